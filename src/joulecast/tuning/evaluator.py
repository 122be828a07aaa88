"""What a search asks of whatever builds and runs a kernel: the interface between strategies and back ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from joulecast.meters.reading import MeterFacts, Reading
from joulecast.tuning.space import Config

Floats = npt.NDArray[np.float64]

#: Where a configuration can fail, in the order of the pipeline.
STAGES = ("prune", "compile", "correctness", "launch")


@dataclass(frozen=True)
class Check:
    """Whether a configuration can run at all, found before it is timed.

    Attributes
    ----------
    ok : bool
    stage : str
        Where it failed, of `STAGES`; empty where it did not.
    reason : str
        One line: why it failed.
    features : mapping of str to float
        Numbers of the compiled kernel (registers, shared memory, instruction counts, ...), for the models.
    """

    ok: bool
    stage: str = ""
    reason: str = ""
    features: Mapping[str, float] = field(default_factory=dict)


@runtime_checkable
class Evaluator(Protocol):
    """Builds, times and meters configurations of one kernel on one device; slow, so that every answer is logged."""

    @property
    def question(self) -> Mapping[str, Any]:
        """What is asked, as plain JSON values: kernel, source hash, shapes, device, clock policy, meter, versions.

        Two evaluators with the same question give readings of the same things, and share a log.
        """
        ...

    @property
    def facts(self) -> MeterFacts:
        """Of the meter behind `energy`."""
        ...

    def check(self, configs: Sequence[Config]) -> Sequence[Check]:
        """Prune, compile and test each of `configs`; a batch, so that a pool of processes can share it."""
        ...

    def latency(self, config: Config, count: int) -> Floats:
        """Times of `count` launches that follow each other; empty where the launch fails. [s]"""
        ...

    def energy(self, config: Config, count: int) -> Sequence[Reading]:
        """`count` readings that follow each other; a call of another configuration in between interleaves them."""
        ...

    def features(self, configs: Sequence[Config]) -> Floats | None:
        """Numbers that describe each configuration beside its parameters, shape (n, f); None where there are none.

        Known without running: compiled instruction counts, waves, occupancy, a prior of time and power.
        """
        ...

    def prior(self, configs: Sequence[Config]) -> tuple[Floats, Floats] | None:
        """Physics' own guess of time and mean power before anything is measured, [s] and [W]; None without one."""
        ...
