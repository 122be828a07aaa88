"""`TrainingPrediction`: the answer for a training job on a group of like GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from joulecast.scenarios.footprint import Footprint
from joulecast.scenarios.training.memory import TrainingMemory

if TYPE_CHECKING:
    from joulecast.scenarios.training.step import PassTable

#: Parts of a step's time, in order; they sum to it.
PARTS = ("forward", "recompute", "backward", "optimizer", "communication", "bubble", "input")

DEFINITIONS: Mapping[str, str] = MappingProxyType(
    {
        "mfu": "arithmetic of forward and backward pass (multiplies, convolutions, attention as masked), "
        "nothing counted twice, over the step's time at the data sheet's dense rate of the format",
        "hfu": "the same with what checkpointing computes again",
        "communication": "time that exchanges between data-parallel GPUs are not hidden behind computing; those of "
        "tensor parallelism count within forward and backward",
        "bubble": "time that a stage of the pipeline waits for others",
        "host": "a step whose launches take the host longer than the GPU takes the host's time in its parts",
    }
)


@dataclass(frozen=True)
class TrainingPrediction:
    """Time, power, energy and memory of a training job.

    Attributes
    ----------
    workload, gpu : str
    gpus, nodes : int
    micro_batch, micro_batches, global_batch : int
        Samples at once, how many times for one update on a GPU, and samples of all GPUs together.
    step_time_s : float
        [s]
    parts_s : mapping of str to float
        Of the step, by `PARTS`. [s]
    tokens_per_sample : float
        1 for images.
    power_w, peak_power_w : float
        Of one GPU: mean over the step, and mean of its hungriest part. [W]
    step_energy_j : float
        Of all GPUs. [J]
    clock_mhz : float
        That the step settles at. [MHz]
    throttled : bool
    bound_by : str
        What takes most of the step.
    mfu, hfu : float
        See `DEFINITIONS`.
    model_flop : float
        Arithmetic of one step that the model asks for, all GPUs. [FLOP]
    modules : mapping of str to float
        Energy of a step by module of the GPU, waiting apart; sums to `step_energy_j`. [J]
    memory : TrainingMemory
    steps : float or None
        Of the run; None where its length was not given.
    footprint : Footprint or None
        Of the run, or of a step where its length was not given; None without a site.
    intervals : mapping of str to (float, float)
        90 % interval of ``time_s``, ``power_w`` and ``energy_j`` of a step.
    provenance : mapping of str to str
    table : PassTable
        What the step's time is made of, class by class.
    warnings, notes : tuple of str
    info : mapping
    """

    workload: str
    gpu: str
    gpus: int
    nodes: int
    micro_batch: int
    micro_batches: int
    global_batch: int
    step_time_s: float
    parts_s: Mapping[str, float]
    tokens_per_sample: float
    power_w: float
    peak_power_w: float
    step_energy_j: float
    clock_mhz: float
    throttled: bool
    bound_by: str
    mfu: float
    hfu: float
    model_flop: float
    modules: Mapping[str, float]
    memory: TrainingMemory
    steps: float | None
    footprint: Footprint | None
    intervals: Mapping[str, tuple[float, float]]
    provenance: Mapping[str, str]
    table: PassTable
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    info: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def samples_per_s(self) -> float:
        """Samples (sequences, images) a second, all GPUs. [1/s]"""
        return self.global_batch / self.step_time_s

    @property
    def tokens_per_s(self) -> float:
        """Tokens (or images) a second, all GPUs. [1/s]"""
        return self.samples_per_s * self.tokens_per_sample

    @property
    def sample_energy_j(self) -> float:
        """Energy a sample. [J]"""
        return self.step_energy_j / self.global_batch

    @property
    def run_time_s(self) -> float | None:
        """Of the whole run. [s]"""
        return None if self.steps is None else self.steps * self.step_time_s

    @property
    def run_energy_j(self) -> float | None:
        """Of all GPUs over the whole run. [J]"""
        return None if self.steps is None else self.steps * self.step_energy_j

    def interval(self, figure: str) -> tuple[float, float]:
        """90 % interval of ``time_s``, ``power_w`` or ``energy_j`` of a step."""
        return self.intervals[figure]
