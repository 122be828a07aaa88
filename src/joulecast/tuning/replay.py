"""An evaluator that answers from a recorded space: tests strategies and models without a GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from joulecast.meters.reading import MeterFacts, Reading
from joulecast.meters.recording import Recording
from joulecast.meters.replay import Noise, ReplayMeter, replayed_times
from joulecast.tuning.evaluator import Check, Floats
from joulecast.tuning.space import Config, Space


class ReplayEvaluator:
    """A recorded space as if it were compiled and measured.

    Parameters
    ----------
    recording : Recording
    noise : Noise
        Of the energy meter.
    seed : int
        Of the noise.

    Attributes
    ----------
    replays : bool
        True: the noise of an answer follows from how many were asked for before, so that a search that goes on from a
        log asks for those again, to end as it would have without the stop.
    """

    replays = True

    def __init__(self, recording: Recording, noise: Noise | None = None, seed: int = 0) -> None:
        self.recording = recording
        self.noise = noise or Noise()
        self.seed = seed
        self.meter = None if recording.energy_j is None else ReplayMeter(recording, self.noise, seed)
        self._rng = np.random.default_rng([seed, 2])

    @property
    def space(self) -> Space:
        """Of the recording: exactly its configurations."""
        return Space.of_list(self.recording.configs)

    @property
    def question(self) -> Mapping[str, Any]:
        """Recording, noise and seed."""
        noise = [self.noise.cv, self.noise.autocorrelation, self.noise.drift, self.noise.warming]
        return {
            "replay": self.recording.name,
            "constants": dict(self.recording.constants),
            "configurations": len(self.recording.configs),
            "noise": noise,
            "seed": self.seed,
        }

    @property
    def facts(self) -> MeterFacts:
        """Of the replayed meter."""
        if self.meter is None:
            return MeterFacts("replay", self.recording.name, "recorded times, no energies")
        return self.meter.facts

    def check(self, configs: Sequence[Config]) -> list[Check]:
        """Fails what failed before it ran when it was recorded."""
        found = []
        for config in configs:
            reason = self.recording.reasons[self.recording.row(config)]
            stage = "compile" if "ompil" in reason else "launch"
            found.append(Check(not reason, stage if reason else "", reason))
        return found

    def latency(self, config: Config, count: int) -> Floats:
        """Times around the recorded mean. [s]"""
        return replayed_times(self.recording, self.recording.row(config), count, self._rng)

    def energy(self, config: Config, count: int) -> list[Reading]:
        """Readings of the replayed meter."""
        assert self.meter is not None, "a recording without energies is searched for time alone"
        return [self.meter.read(config) for _ in range(count)]

    def features(self, configs: Sequence[Config]) -> Floats | None:  # noqa: ARG002
        """None: a recording has no kernel source."""
        return None

    def prior(self, configs: Sequence[Config]) -> tuple[Floats, Floats] | None:  # noqa: ARG002
        """None: what the numbers of a recording mean is not known."""
        return None
