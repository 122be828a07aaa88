"""`Prediction`: the answer for one workload on one GPU (or one group of like GPUs)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from joulecast.scenarios.timeline import Timeline

#: Figures that carry an interval.
FIGURES = ("time_s", "power_w", "energy_j")


@dataclass(frozen=True)
class PhasePrediction:
    """One phase (``forward``, ``prefill``, ``decode``) over all its passes.

    Attributes
    ----------
    phase : str
    passes : float
        How often the model runs in it.
    time_s, power_w, energy_j : float
        Over all passes; power and energy of all GPUs of the layout together. [s, W, J]
    gpu_time_s, host_time_s : float
        What the GPU alone and the host alone would take. [s]
    idle_share : float
        Share of the time that the GPU waits for its host.
    clock_mhz : float
        Core clock that the phase settles at. [MHz]
    throttled : bool
        Whether the power limit lowers the clock.
    bound_by : str
        ``tensor core``, ``DRAM``, ``L2``, ``CUDA core``, ``special functions``, ``launches``, ``links``, ``host``, or
        ``mixed`` where GPU and host take times within 15 % of each other; followed
        by ``, cap`` where the power limit lowers the clock.
    tokens_in, tokens_out : float
        Tokens (or images) taken in and given out over all passes.
    flop : float
        Arithmetic done, 2 a multiply-add. [FLOP]
    dram_bytes : float
        Traffic to DRAM. [B]
    peak_flop_share, peak_dram_share : float
        Achieved share of the GPU's peak arithmetic (of the formats used) and of its DRAM rate.
    intervals : mapping of str to (float, float)
        90 % interval of each of `FIGURES`.
    bubble_share : float
        Share of the time that pipeline stages wait for each other.
    """

    phase: str
    passes: float
    time_s: float
    power_w: float
    energy_j: float
    gpu_time_s: float
    host_time_s: float
    idle_share: float
    clock_mhz: float
    throttled: bool
    bound_by: str
    tokens_in: float
    tokens_out: float
    flop: float
    dram_bytes: float
    peak_flop_share: float
    peak_dram_share: float
    intervals: Mapping[str, tuple[float, float]]
    bubble_share: float = 0.0

    @property
    def tokens_per_s(self) -> float:
        """Tokens (or images) worked through a second: the prompt's in a prefill, the new ones in a decode. [1/s]

        NaN where the workload does not count them, as an operation list without ``tokens``.
        """
        return (self.tokens_in or np.nan) / self.time_s

    @property
    def energy_per_token_j(self) -> float:
        """Energy for each of the tokens (or images) worked through; NaN where they are not counted. [J]"""
        return self.energy_j / (self.tokens_in or np.nan)

    def interval(self, figure: str) -> tuple[float, float]:
        """90 % interval of ``time_s``, ``power_w`` or ``energy_j``."""
        return self.intervals[figure]


@dataclass(frozen=True)
class MemoryNeed:
    """Memory of one GPU of the layout against what it has. [GB, 1e9 bytes]"""

    weights_gb: float
    kv_cache_gb: float
    activations_gb: float
    framework_gb: float
    available_gb: float

    @property
    def needed_gb(self) -> float:
        """Sum of the parts. [GB]"""
        return self.weights_gb + self.kv_cache_gb + self.activations_gb + self.framework_gb

    @property
    def fits(self) -> bool:
        """Whether the need is within what the GPU has."""
        return self.needed_gb <= self.available_gb


@dataclass(frozen=True)
class Prediction:
    """Time, power and energy of a workload on a GPU, and where they go.

    Attributes
    ----------
    workload, gpu : str
        Names.
    gpu_count : int
        GPUs of the layout (tensor x pipeline x data parallel).
    time_s, power_w, energy_j : float
        Over all phases; power and energy of all GPUs together. [s, W, J]
    clock_mhz : float
        Core clock settled at, weighted by time. [MHz]
    power_limit_w : float
        Power limit of one GPU. [W]
    bound_by : str
        Of the phase that takes the longest.
    phases : tuple of PhasePrediction
    kernels : mapping of str to ndarray
        One row for each distinct operation of each pass, in order of execution: ``phase``, ``layer``, ``op`` (kind),
        ``family``, ``shape`` (text), ``count`` (how often over all passes), ``launches`` (over all passes),
        ``time_s``, ``energy_j`` (over all passes, one GPU), ``power_w`` (while it runs), ``clock_mhz``, ``bound_by``,
        ``flop``, ``dram_bytes`` (over all passes), ``provenance``.
    modules, families, layers : mapping of str to float
        Energy by module of the GPU (static power, idle waiting and links included), by kernel family and by
        layer path; each sums to `energy_j`. [J]
    memory : MemoryNeed
    intervals : mapping of str to (float, float)
        90 % interval of each of `FIGURES`.
    provenance : mapping of str to str
        Of the times of each kernel family, of ``power`` and of ``host``.
    warnings, notes : tuple of str
        What the reader should beware of; what was assumed.
    unpriced : mapping of str to float
        Operations that could not be priced, with their share of the bytes moved.
    info : mapping
        Facts of the question: batch, prompt_tokens, generate_tokens, dtype, launch_mode, attention, engine, tp, pp,
        ep, parameters.
    launched : Launched or None
        What `timeline` follows from: priced operations and the runs of their phases.
    """

    workload: str
    gpu: str
    gpu_count: int
    time_s: float
    power_w: float
    energy_j: float
    clock_mhz: float
    power_limit_w: float
    bound_by: str
    phases: tuple[PhasePrediction, ...]
    kernels: Mapping[str, npt.NDArray[Any]]
    modules: Mapping[str, float]
    families: Mapping[str, float]
    layers: Mapping[str, float]
    memory: MemoryNeed
    intervals: Mapping[str, tuple[float, float]]
    provenance: Mapping[str, str]
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    unpriced: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    info: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    launched: Any = field(default=None, repr=False, compare=False)

    def timeline(self, **options: Any) -> Timeline:
        """Power over time, launch by launch: `joulecast.scenarios.timeline.timeline` of this prediction."""
        from joulecast.scenarios.timeline import timeline

        return timeline(self, **options)

    def interval(self, figure: str) -> tuple[float, float]:
        """90 % interval of ``time_s``, ``power_w`` or ``energy_j``.

        Raises
        ------
        KeyError
            For another figure.
        """
        return self.intervals[figure]

    @property
    def tokens_out(self) -> float:
        """Tokens given out; without generation the tokens (or images) taken in."""
        out = sum(phase.tokens_out for phase in self.phases)
        return out or sum(phase.tokens_in for phase in self.phases)

    @property
    def tokens_per_s(self) -> float:
        """Tokens (or images) a second over all phases; NaN where they are not counted. [1/s]"""
        return (self.tokens_out or np.nan) / self.time_s

    @property
    def energy_per_token_j(self) -> float:
        """Energy a token (or image); NaN where they are not counted. [J]"""
        return self.energy_j / (self.tokens_out or np.nan)

    @property
    def launches(self) -> float:
        """Kernels started over all passes on one GPU."""
        return float(np.sum(self.kernels["launches"]))
