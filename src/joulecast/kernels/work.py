"""`KernelWork`: what launches ask of each module of a GPU; and what a kernel family is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from joulecast.gpus import Gpu
from joulecast.workloads.table import OpTable

Floats = npt.NDArray[np.float64]

#: Engines whose kernels are told apart. Times of one are never mixed with those of another.
ENGINES = ("pytorch", "trtllm", "vllm", "nccl")


@dataclass(frozen=True)
class Conditions:
    """How operations are run, as far as it changes what a kernel does.

    Attributes
    ----------
    engine : str
        Whose kernels: one of `ENGINES`.
    residency : str
        ``loop``: the same tensors again and again, as benchmarks do, so small ones stay in L2;
        ``stream``: weights and caches come from DRAM, activations from the kernel before.
    kernel_source : str
        Which of the engine's kernels, where it has several for one operation; empty for its default.
    operands : str
        What the operands hold, one of `joulecast.physics.power.OPERAND_ENERGY`: no kernel runs otherwise for it, but
        bits that do not change take less energy. Empty for what they held where the engine's kernels were measured,
        random where they were not.
    version : str
        Of the engine, where its kernels of that version were measured apart; empty for those that the engine's
        coefficients are of.
    """

    engine: str = "trtllm"
    residency: str = "loop"
    kernel_source: str = ""
    operands: str = "random"
    version: str = ""


@dataclass(frozen=True)
class KernelWork:
    """Work of `n` operations, module by module; every array has shape (n,).

    Attributes
    ----------
    family : str
        Kernel family, the key of its coefficients.
    groups : tuple of str
        Labels that coefficients are kept apart by (formats, mostly).
    group : ndarray of int
        Index into `groups`.
    tensor_flop, cuda_flop, sfu_ops : ndarray
        Work of tensor cores, CUDA cores and special-function units, padding to whole tiles included. [FLOP, FLOP, 1]
    tensor_flop_per_clk, cuda_flop_per_clk : ndarray
        Peak rate of the whole GPU in the row's format; 1 where there is no such work. [FLOP/clk]
    shared_bytes, l2_bytes, dram_bytes : ndarray
        Traffic between shared memory and registers, between L2 and the SMs, and between DRAM and L2. [B]
    fill : ndarray
        Share of the GPU's slots for blocks that hold one, averaged over the waves, in (0, 1]: core modules work
        at this share of their rates.
    blocks, waves : ndarray
        Thread blocks of the main kernel, and waves of them.
    launches : ndarray
        Kernels started for one operation.
    useful_flop : ndarray
        Arithmetic that the operation asks for, without padding. [FLOP]
    math : ndarray of int
        Index into `MATHS`: the arithmetic, which sets the energy a FLOP.
    features : ndarray, shape (n, e)
        Further dimensionless features for the learned correction, named by `feature_names`.
    reasons : dict of int to str
        Rows that can't run on this GPU, with why.
    link_s : ndarray
        Time that what one GPU sends takes on its links at their nominal rate. [s]
    zero_share : ndarray
        Share of zeros among the activations that the arithmetic reads.
    serial_l2_bytes, serial_dram_bytes : ndarray
        Parts of `l2_bytes` and `dram_bytes` that small kernels before or after the main one move, so that they
        overlap with nothing. [B]
    latency_cycles : ndarray
        Core cycles of the longest chain of steps that wait for each other, which no rate shortens.
    host_steps : ndarray
        Time that a host takes to start the operation over that for the shortest path of the same group.
    message_bytes : ndarray
        Bytes that GPUs exchange, as the operation counts them; 0 where it is no collective. [B]
    """

    family: str
    groups: tuple[str, ...]
    group: npt.NDArray[np.intp]
    tensor_flop: Floats
    cuda_flop: Floats
    sfu_ops: Floats
    tensor_flop_per_clk: Floats
    cuda_flop_per_clk: Floats
    shared_bytes: Floats
    l2_bytes: Floats
    dram_bytes: Floats
    fill: Floats
    blocks: Floats
    waves: Floats
    launches: Floats
    useful_flop: Floats
    math: npt.NDArray[np.intp]
    features: Floats
    feature_names: tuple[str, ...] = ()
    reasons: dict[int, str] = field(default_factory=dict)
    link_s: Floats = field(default_factory=lambda: np.zeros(1))
    zero_share: Floats = field(default_factory=lambda: np.zeros(1))
    serial_l2_bytes: Floats = field(default_factory=lambda: np.zeros(1))
    serial_dram_bytes: Floats = field(default_factory=lambda: np.zeros(1))
    latency_cycles: Floats = field(default_factory=lambda: np.zeros(1))
    host_steps: Floats = field(default_factory=lambda: np.ones(1))
    message_bytes: Floats = field(default_factory=lambda: np.zeros(1))

    def __post_init__(self) -> None:
        for name in ("zero_share", "link_s", "serial_l2_bytes", "serial_dram_bytes", "latency_cycles", "message_bytes"):
            if getattr(self, name).shape != self.group.shape:
                object.__setattr__(self, name, np.zeros(len(self.group)))
        if self.host_steps.shape != self.group.shape:
            object.__setattr__(self, "host_steps", np.ones(len(self.group)))

    def __len__(self) -> int:
        return len(self.group)


#: Arithmetics with an energy a FLOP of their own; formats name theirs in `joulecast.bounds.dtypes`.
MATHS = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "fp4", "int8", "int4")


#: Fields of `KernelWork` that are 1 where nothing is said of them; the other numbers are 0.
_ONES = frozenset({"tensor_flop_per_clk", "cuda_flop_per_clk", "fill", "blocks", "waves", "launches", "host_steps"})
_NUMBERS = tuple(
    one.name
    for one in fields(KernelWork)
    if one.name not in ("family", "groups", "group", "feature_names", "reasons", "features", "math")
)


def work(family: str, n: int, *, groups: tuple[str, ...], group: Any, **given: Any) -> KernelWork:
    """A `KernelWork` of `n` rows: what is given broadcasts, what is not is none of that work."""
    arrays = {name: _column(given.pop(name, 1.0 if name in _ONES else 0.0), n, np.float64) for name in _NUMBERS}
    named = given.pop("features", {})
    features = np.empty((n, len(named)), order="F")
    for place, column in enumerate(named.values()):
        features[:, place] = column
    math = given.pop("math", MATHS.index("bf16"))
    reasons = given.pop("reasons", {})
    if given:
        raise TypeError(f"unknown fields of KernelWork: {', '.join(given)}")
    return KernelWork(
        family=family,
        groups=groups,
        group=_column(group, n, np.intp),
        math=_column(math, n, np.intp),
        features=features,
        feature_names=tuple(named),
        reasons=dict(reasons),
        **arrays,
    )


def _column(value: Any, n: int, dtype: Any) -> Any:
    if isinstance(value, np.ndarray) and value.shape == (n,) and value.dtype == dtype:
        return value
    out = np.empty(n, dtype=dtype)
    out[:] = value
    return out


@dataclass(frozen=True)
class Family:
    """A family of kernels: the kinds of operation it serves and how it turns them into work.

    Attributes
    ----------
    name : str
    kinds : tuple of str
    work : callable
        ``(OpTable, Gpu, Conditions) -> KernelWork``; pure, vectorised over rows.
    """

    name: str
    kinds: tuple[str, ...]
    work: Callable[[OpTable, Gpu, Conditions], KernelWork]


def tail_fill(blocks: Floats, slots: Any) -> tuple[Floats, Floats]:
    """Waves of `blocks` thread blocks on `slots` places, and the share of the places used over them.

    Parameters
    ----------
    blocks : ndarray
        Thread blocks, at least 1.
    slots : array_like
        Blocks that run at a time: SMs x resident blocks.

    Returns
    -------
    waves, fill : ndarray
        ``ceil(blocks / slots)`` and ``blocks / (waves * slots)``.
    """
    waves = np.ceil(blocks / slots)
    return waves, blocks / (waves * slots)


def resident_share(footprint_bytes: Any, l2_bytes: Any) -> Floats:
    """Share of re-read data that is still in L2 when a footprint is walked through again and again.

    Falls from 1 (fits well) to 0 (walks through several times the cache); with the replacement that real
    caches use it is a gradual slope and no step. Dimensionless.
    """
    ratio = np.asarray(footprint_bytes, dtype=np.float64) / np.asarray(l2_bytes, dtype=np.float64)
    return 1.0 / (1.0 + np.minimum(ratio / 0.8, 1e3) ** 4)
