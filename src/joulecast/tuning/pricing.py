"""Prices compiled kernels: what their machine code does, through joulecast's physics, as time, power and energy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from joulecast.bounds.ranges import check_clock_mhz, check_power_limit_w
from joulecast.coefficients.transfer import time_coefficients
from joulecast.gpus import Gpu
from joulecast.kernels.gemm import walked_share
from joulecast.kernels.work import MATHS, Conditions, KernelWork, resident_share, work
from joulecast.physics.price import price_work
from joulecast.physics.priced import Priced
from joulecast.physics.settled import BOUNDS, bound_by, under_limit
from joulecast.tuning.aot.built import Built
from joulecast.tuning.kernelspec import KernelSpec, Tensor

Floats = npt.NDArray[np.float64]

#: Core cycles from a load to its data, from L2 and beyond that from DRAM.
#: (Pointer chases on A100, H100 and Ada give 200-280 and 460-650 cycles; Luo et al., Benchmarking and dissecting the
#: Nvidia Hopper GPU architecture via microbenchmarking, 2024.)
L2_CYCLES, DRAM_CYCLES = 260.0, 300.0

#: Cycles of a block before its first load and after its last result, and of a barrier.
BLOCK_CYCLES, BARRIER_CYCLES = 900.0, 30.0

#: Cycles that one warp needs for an instruction where each waits for the one before in part.
CYCLES_AN_INSTRUCTION = 1.5

#: Share of the tensor cores' peak that warp-wide instructions reach on Hopper, which has warp-group ones for all of it.
#: (62.9 % on average; same source.)
WARP_WIDE_ON_HOPPER = 0.63

#: Half-width of the 90 % interval of these prices, in natural logarithms: no measured Triton kernel stands behind them.
TIME_SPREAD, POWER_SPREAD = 0.5, 0.3

_MATH_OF = {"fp16": "fp16", "bf16": "bf16", "fp32": "tf32", "fp64": "fp64", "fp8e4nv": "fp8", "fp8e5": "fp8",
            "i8": "int8"}  # fmt: skip


@dataclass(frozen=True)
class Prices:
    """Prices of configurations; each array has shape (n,).

    Attributes
    ----------
    time_s, power_w, energy_j : ndarray
        Of a launch, back to back with others. [s, W, J]
    clock_mhz : ndarray
        That the power limit leaves. [MHz]
    throttled : ndarray of bool
    bound_by : tuple of str
    waves : ndarray
        Of blocks.
    dram_bytes : ndarray
        [B]
    """

    time_s: Floats
    power_w: Floats
    energy_j: Floats
    clock_mhz: Floats
    throttled: npt.NDArray[np.bool_]
    bound_by: tuple[str, ...]
    waves: Floats
    dram_bytes: Floats


def prices(
    spec: KernelSpec,
    gpu: Gpu,
    built: Sequence[Built],
    *,
    clock_mhz: float | None = None,
    power_limit_w: float | None = None,
    residency: str = "loop",
) -> Prices:
    """Price each of `built` on `gpu`.

    Parameters
    ----------
    spec : KernelSpec
    gpu : Gpu
    built : sequence of Built
    clock_mhz, power_limit_w : float, optional
        Clock asked for and power limit; default the GPU's highest and own. [MHz, W]
    residency : str
        ``loop``: the same tensors again and again, as a tuner runs them; ``stream``: what is read comes from DRAM.

    Returns
    -------
    Prices

    Raises
    ------
    InputError
        For a clock or limit out of bounds.
    """
    clock = check_clock_mhz(clock_mhz, gpu.clock_min_mhz, gpu.clock_max_mhz, gpu.name)
    limit = gpu.power_limit_default_w
    if power_limit_w is not None:
        limit = check_power_limit_w(power_limit_w, gpu.idle_w, gpu.name)
    made = kernel_work(spec, gpu, built, residency)
    priced = _priced(gpu, made)
    settled = under_limit(priced, clock, limit)
    return Prices(
        settled.time_s, settled.power_w, settled.energy_j, settled.clock_mhz, settled.throttled,
        tuple(BOUNDS[place] for place in bound_by(priced, settled.clock_mhz)), made.waves, made.dram_bytes,
    )  # fmt: skip


def _priced(gpu: Gpu, made: KernelWork) -> Priced:
    """With the memory efficiencies and launch costs of the GPU's fitted products; the code says the rest exactly."""
    group = made.groups[0]
    own = time_coefficients(gpu, "gemm", "pytorch", group)
    exact = replace(
        own, tensor_efficiency=0.9, cuda_efficiency=0.8, sfu_efficiency=0.8, shared_efficiency=0.9, sharpness=4.0,
        latency_factor=1.0, scale=1.0, pass_scale=1.0, host_us=0.0, host_lead_us=0.0, spread90=TIME_SPREAD,
    )  # fmt: skip
    return price_work(
        made, gpu, Conditions(engine="pytorch"), time={f"gemm/pytorch/{group}": exact}, corrections={},
        power_corrections={},
    )  # fmt: skip


def kernel_work(spec: KernelSpec, gpu: Gpu, built: Sequence[Built], residency: str = "loop") -> KernelWork:
    """What each of `built` asks of the modules of `gpu`, row by row."""
    math = _math(spec)
    rows = [_row(spec, gpu, one, residency) for one in built]
    columns = {name: np.array([row[name] for row in rows]) for name in (rows[0] if rows else {})}
    rate = gpu.tensor_flop_per_clk(math) or gpu.cuda_flop_per_clk("fp32")
    return work(
        "gemm", len(rows), groups=("fp16" if math == "fp16" else "bf16",), group=0, math=MATHS.index(math),
        tensor_flop_per_clk=rate * columns.pop("tensor_share", np.ones(0)),
        cuda_flop_per_clk=gpu.cuda_flop_per_clk("fp32"), launches=1.0, **columns,
    )  # fmt: skip


def _math(spec: KernelSpec) -> str:
    return _MATH_OF.get(spec.dtype, "fp32")


def _row(spec: KernelSpec, gpu: Gpu, one: Built, residency: str) -> dict[str, float]:
    asked, run, warps = one.asked, one.dynamic.counts, one.compiled.warps
    all_warps = one.blocks * warps
    per_sm = np.ceil(one.blocks / gpu.sm_count)
    together = min(one.resident, per_sm)
    waves = np.ceil(one.blocks / (gpu.sm_count * one.resident))
    # Four parts of an SM issue one warp each a clock: fewer warps leave some without work.
    fill = one.blocks / (per_sm * gpu.sm_count) * min(together * warps / 4.0, 1.0)
    read, written = sum(asked.read_bytes.values()), sum(asked.written_bytes.values())
    once, rereads = _first_and_again(spec, one, gpu)
    l2 = gpu.l2_mib * 2.0**20
    kept = float(walked_share(once + written, l2)) if residency == "loop" else 0.0
    dram = once * (1.0 - kept) + written * (1.0 - float(resident_share(once + written, l2)))
    dram += rereads * (1.0 - float(resident_share(once, l2)))
    memory_cycles = L2_CYCLES + DRAM_CYCLES * min(dram / max(read + written, 1.0), 1.0)
    matrix_rate = WARP_WIDE_ON_HOPPER if _warp_wide(one) and gpu.architecture == "hopper" else 1.0
    # What goes through the load and store units moves whole lines at the least, one warp's access a clock.
    narrow = max(run.global_loads + run.global_stores, 0.0) * 128.0
    through = max(32.0 * (run.global_load_bytes + run.global_store_bytes), narrow) + 32.0 * run.shared_bytes
    return {
        "tensor_flop": asked.tensor_flop,
        "tensor_share": matrix_rate,
        # 64 FLOP are what an issue slot could have done: every instruction but the matrix ones takes one.
        "cuda_flop": 64.0 * max(run.instructions - run.matrix, 0.0) * all_warps,
        "sfu_ops": 32.0 * run.special * all_warps,
        "shared_bytes": through * all_warps,
        "l2_bytes": read + written + 64.0 * run.spill_bytes * all_warps,
        "dram_bytes": dram,
        "fill": fill,
        "blocks": one.blocks,
        "waves": waves,
        "useful_flop": asked.tensor_flop + asked.float_flop,
        "latency_cycles": waves * _chain_cycles(one, memory_cycles),
    }


def _first_and_again(spec: KernelSpec, one: Built, gpu: Gpu) -> tuple[float, float]:
    """Bytes that are read for the first time, and that later waves read again. [B]"""
    sizes = {name: tensor.bytes for name, tensor in spec.arguments_of(one.config).items() if isinstance(tensor, Tensor)}
    first = sum(min(sizes.get(name, moved), moved) for name, moved in one.asked.read_bytes.items())
    if spec.rereads is not None:
        return first, spec.rereads(one.config, gpu.sm_count * one.resident)
    return first, max(sum(one.asked.read_bytes.values()) - first, 0.0)


def _warp_wide(one: Built) -> bool:
    """Whether the matrix instructions are those of one warp, 4,096 FLOP or less each."""
    run = one.dynamic.counts
    return run.matrix > 0 and run.matrix_flop / run.matrix <= 8192.0


def _chain_cycles(one: Built, memory_cycles: float) -> float:
    """Cycles of one block's chain of steps that wait for each other, where nothing else shares the SM. [cycles]"""
    stages = max(int(one.config.get("num_stages", 1)), 1)
    total = BLOCK_CYCLES + 2.0 * memory_cycles
    for loop, trips in zip(one.compiled.code.loops, one.dynamic.trips, strict=True):
        own = loop.own
        step = CYCLES_AN_INSTRUCTION * own.instructions + BARRIER_CYCLES * own.barriers
        waits = 0.0
        if own.async_copies:
            waits = max(memory_cycles / max(stages - 1, 1) - step, 0.0)
        elif own.global_loads:
            waits = memory_cycles
        total += trips * (step + waits)
    return total
