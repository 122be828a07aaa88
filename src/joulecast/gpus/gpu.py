"""`Gpu`: the frozen description of one GPU, in the units of its data sheet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType


def plain_name(name: str) -> str:
    """Name of a GPU without the ``+field=value`` of each number that was changed of it."""
    return name.partition("+")[0]


def _empty() -> Mapping[str, float]:
    return MappingProxyType({})


@dataclass(frozen=True)
class Gpu:
    """One GPU as a model of time and power sees it: no measured kernel, only what a data sheet or a driver tells.

    Attributes
    ----------
    name : str
        Standard name, such as ``A100-SXM-80GB``.
    vendor, architecture : str
        ``nvidia`` and ``ampere``, say.
    compute_capability : str
        CUDA's, such as ``8.0``; the gfx target on AMD.
    process_nm : float
        Node of the process, as the foundry calls it. [nm]
    sm_count : int
        Streaming multiprocessors (compute units on AMD) that are enabled.
    warps_per_sm, shared_memory_kib, registers_kib, l1_kib : float
        Resident warps, shared memory, register file and L1, for one SM.
    sfu_per_clk_sm : float
        Special-function results a clock, for one SM.
    clock_min_mhz, clock_base_mhz, clock_boost_mhz, clock_max_mhz, clock_step_mhz : float
        Core clock: lowest and highest that can be set, base and boost of the data sheet, step. [MHz]
    rate_clock_mhz : float
        Core clock at which the rates below are stated. [MHz]
    tensor_tflops, tensor_sparse_tflops, cuda_tflops : mapping of str to float
        Peak rates of the whole GPU by format, dense and (apart) with 2:4 sparsity, for tensor (matrix)
        cores, and for CUDA (vector) cores. 1 multiply-add = 2 FLOP. [TFLOP/s]
    l2_mib, l2_gb_s : float
        Second-level cache and its read rate at `rate_clock_mhz`. [MiB, GB/s]
    dram_gib, dram_type, dram_gb_s : float, str, float
        Memory; `dram_gib` is what a program can allocate, as marketed. [GiB, -, GB/s]
    memory_clocks_mhz : tuple of float
        Memory clocks that can be set, highest first; empty where there is only one. [MHz]
    pcie_gb_s, nvlink_gb_s : float
        Links, each direction, of one GPU; 0 where there is none. [GB/s]
    power_limit_default_w, power_limit_min_w, power_limit_max_w : float
        Board power limit. [W]
    idle_w : float
        Board power of the waiting GPU: context resident, no kernel running, core clock up (its value at
        the highest clock; `idle_points`, where known, give it for lower ones). [W]
    voltage_points : tuple of (float, float)
        Core clock and voltage, rising in clock; empty where unknown. [(MHz, mV)]
    idle_points : tuple of (float, float)
        Core clock and power of the idle GPU with its clock locked, rising in clock; may be empty. [(MHz, W)]
    memory_clock_mhz : float
        Memory clock that it is run at, which `dram_gb_s` goes with; 0 for the highest. [MHz]
    temperature_c : float or None
        Temperature that it is run at; None for that of the measurements. [deg C]
    aliases : tuple of str
        Other names, lower case not required.
    sources : mapping of str to str
        Where the number of each field comes from.
    """

    name: str
    vendor: str
    architecture: str
    compute_capability: str
    process_nm: float
    sm_count: int
    warps_per_sm: float
    shared_memory_kib: float
    registers_kib: float
    l1_kib: float
    sfu_per_clk_sm: float
    clock_min_mhz: float
    clock_base_mhz: float
    clock_boost_mhz: float
    clock_max_mhz: float
    clock_step_mhz: float
    rate_clock_mhz: float
    tensor_tflops: Mapping[str, float]
    cuda_tflops: Mapping[str, float]
    l2_mib: float
    l2_gb_s: float
    dram_gib: float
    dram_type: str
    dram_gb_s: float
    pcie_gb_s: float
    nvlink_gb_s: float
    power_limit_default_w: float
    power_limit_min_w: float
    power_limit_max_w: float
    idle_w: float
    tensor_sparse_tflops: Mapping[str, float] = field(default_factory=_empty)
    memory_clocks_mhz: tuple[float, ...] = ()
    voltage_points: tuple[tuple[float, float], ...] = ()
    idle_points: tuple[tuple[float, float], ...] = ()
    memory_clock_mhz: float = 0.0
    temperature_c: float | None = None
    aliases: tuple[str, ...] = ()
    sources: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    def __hash__(self) -> int:
        return hash((self.name, self.sm_count, self.rate_clock_mhz, self.dram_gb_s, self.power_limit_default_w))

    def tensor_flop_per_clk(self, math: str) -> float:
        """FLOP a core clock of all tensor cores in format `math`; 0 where they don't have it. [FLOP/clk]"""
        return self.tensor_tflops.get(math, 0.0) * 1e6 / self.rate_clock_mhz

    def cuda_flop_per_clk(self, math: str) -> float:
        """FLOP a core clock of all CUDA cores in format `math`; 0 where they don't have it. [FLOP/clk]"""
        return self.cuda_tflops.get(math, 0.0) * 1e6 / self.rate_clock_mhz

    @property
    def plain_name(self) -> str:
        """Its name without what was changed of it: that of the catalogue, which coefficients are kept under."""
        return plain_name(self.name)

    @property
    def l2_bytes_per_clk(self) -> float:
        """Bytes a core clock that L2 delivers. [B/clk]"""
        return self.l2_gb_s * 1e3 / self.rate_clock_mhz

    @property
    def sfu_per_clk(self) -> float:
        """Special-function results a core clock of the whole GPU. [1/clk]"""
        return self.sfu_per_clk_sm * self.sm_count
