"""A meter that answers from a recorded space, with the noise that was recorded or one that is asked for."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from joulecast.errors import InfeasibleError, InputError
from joulecast.meters.reading import MeterFacts, Reading
from joulecast.meters.recording import Floats, Recording


@dataclass(frozen=True)
class Noise:
    """What a replayed meter adds to the truth.

    Attributes
    ----------
    cv : float or None
        Coefficient of variation of a reading. None takes what was recorded: single launches or a series of repeats
        where there are any, else none.
    autocorrelation : float
        Of a reading with the one before, 0 up to below 1.
    drift : float
        By how much readings rise while the card warms, as a share of the energy.
    warming : float
        Readings after which 63 % of the drift is done.
    """

    cv: float | None = 0.0
    autocorrelation: float = 0.0
    drift: float = 0.0
    warming: float = 100.0

    def __post_init__(self) -> None:
        if self.cv is not None and not 0 <= self.cv < 1:
            raise InputError(f"the noise of a meter is a share such as 0.023, not {self.cv}")
        if not 0 <= self.autocorrelation < 1 or not 0 <= self.drift < 1 or self.warming <= 0:
            raise InputError("autocorrelation and drift are shares from 0 to below 1, and warming is a positive count")


@dataclass
class ReplayMeter:
    """Gives readings of a `Recording`, one after the other; the same seed gives the same ones.

    Attributes
    ----------
    recording : Recording
    noise : Noise
    seed : int
    """

    recording: Recording
    noise: Noise = field(default_factory=Noise)
    seed: int = 0

    def __post_init__(self) -> None:
        if self.recording.energy_j is None:
            raise InputError(f"{self.recording.name} recorded no energies: it can only be searched for time")
        self._rng = np.random.default_rng([self.seed, 1])
        self._last = float(self._rng.normal())
        self._read = 0
        series = self.recording.series
        self._start = 0 if series is None else int(self._rng.integers(len(series[0])))

    @property
    def facts(self) -> MeterFacts:
        """Of the recording and the noise."""
        cv = self.noise.cv
        said = "as recorded" if cv is None else f"{cv:.2%} a reading"
        return MeterFacts(
            "replay", self.recording.name, f"recorded values, noise {said}", noise=cv,
            versions=(("recording", self.recording.name),),
        )  # fmt: skip

    def truth_j(self, config: Mapping[str, Any]) -> float:
        """Energy that the readings of a configuration scatter around. [J]"""
        assert self.recording.energy_j is not None
        return float(self.recording.energy_j[self.recording.row(config)])

    def read(self, config: Mapping[str, Any]) -> Reading:
        """The next reading.

        Raises
        ------
        InfeasibleError
            If the configuration failed when it was recorded.
        """
        row = self.recording.row(config)
        time_s = float(self.recording.time_s[row])
        truth = self.truth_j(config)
        if not math.isfinite(time_s):
            raise InfeasibleError(f"{dict(config)} failed when it was recorded: {self.recording.reasons[row]}")
        if not math.isfinite(truth):
            return Reading(0.0, time_s, time_s, refused="no energy was recorded")
        place = self._read
        self._read += 1
        if self.noise.cv is None and self.recording.series is not None:
            energies, times, temperatures = self.recording.series
            at = (self._start + place) % len(energies)
            degree = float(temperatures[at])
            return Reading(float(energies[at]), float(times[at]), float(times[at]),
                           temperature_c=degree if math.isfinite(degree) else None)  # fmt: skip
        if self.noise.cv is None and self.recording.launches_j is not None:
            launches = self.recording.launches_j[row]
            truth = float(launches[self._rng.integers(len(launches))])
        rho, cv = self.noise.autocorrelation, self.noise.cv or 0.0
        self._last = rho * self._last + math.sqrt(1.0 - rho * rho) * float(self._rng.normal())
        drift = self.noise.drift * -math.expm1(-place / self.noise.warming) if self.noise.drift else 0.0
        return Reading(truth * (1.0 + cv * self._last) * (1.0 + drift), time_s, time_s)

    def times(self, config: Mapping[str, Any], count: int) -> Floats:
        """Times of `count` launches; empty where the configuration failed. [s]"""
        row = self.recording.row(config)
        return replayed_times(self.recording, row, count, self._rng)


def replayed_times(recording: Recording, row: int, count: int, rng: np.random.Generator) -> Floats:
    """Times of `count` launches of a recorded configuration, around its mean; empty where it failed. [s]"""
    mean = recording.time_s[row]
    if not np.isfinite(mean):
        return np.zeros(0)
    cv = min(float(recording.time_cv[row]), 0.1)
    return np.asarray(mean * np.maximum(1.0 + cv * rng.normal(size=count), 0.5))
