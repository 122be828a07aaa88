"""What a search found, with the evidence for it: what is claimed, on how many readings, under which conditions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from joulecast.meters.judge import remark_on_duty
from joulecast.meters.reading import MeterFacts, Reading
from joulecast.tuning.log import key_of
from joulecast.tuning.models import PowerModel, Scores, described, scores
from joulecast.tuning.reasons import grouped
from joulecast.tuning.session import Session
from joulecast.tuning.space import Code, Config
from joulecast.tuning.statistics import Saving
from joulecast.tuning.strategies.base import Found, Wanted

SCHEMA = "joulecast.tune/1"


@dataclass(frozen=True)
class Point:
    """A configuration that was timed.

    Attributes
    ----------
    config : mapping
    time_s : float
        [s]
    energy_j : float or None
        Mean of its readings; None where its energy was not read. [J]
    readings : int
    within_slack : bool
    on_front : bool
        Whether none that was read is both faster and of less energy.
    error_j : float or None
        Half of the 95 % interval of the energy, by how readings of one configuration scatter in this search. [J]
    """

    config: Config
    time_s: float
    energy_j: float | None
    readings: int
    within_slack: bool
    on_front: bool
    error_j: float | None = None


@dataclass(frozen=True)
class TuningResult:
    """Answer of a search.

    Attributes
    ----------
    question : mapping
        What was asked of the evaluator: kernel, shapes, device, versions.
    strategy, objective : str
    slack : float
        [share]
    chosen, baseline, fastest : mapping
        Configurations; `chosen` is the baseline where no saving was confirmed.
    candidate : mapping or None
        What was put to the test.
    saving : Saving or None
        Of the candidate against the baseline, on readings that had no part in choosing it.
    time_ratio : float
        Time of the chosen over the fastest's.
    points : tuple of Point
        All that were timed, fastest first.
    facts : MeterFacts
    latency_evaluations, energy_readings, answered_by_log, eligible : int
    refused, failed : mapping of str to int
        Readings that can't be and configurations that don't run, by reason.
    temperature_c, clock_mhz : tuple of (float, float) or None
        Lowest and highest seen.
    duty : float or None
        Least seen in the confirmation.
    model : mapping of str to Scores
        The power model and constant power x time, each configuration predicted from the others.
    seconds, overhead_s : float
        Of the whole search, and of it outside measuring and compiling. [s]
    notes : tuple of str
    """

    question: Mapping[str, Any]
    strategy: str
    objective: str
    slack: float
    chosen: Config
    baseline: Config
    fastest: Config
    candidate: Config | None
    saving: Saving | None
    time_ratio: float
    points: tuple[Point, ...]
    facts: MeterFacts
    latency_evaluations: int
    energy_readings: int
    answered_by_log: int
    eligible: int
    refused: Mapping[str, int]
    failed: Mapping[str, int]
    temperature_c: tuple[float, float] | None
    clock_mhz: tuple[float, float] | None
    duty: float | None
    model: Mapping[str, Scores]
    seconds: float
    overhead_s: float
    notes: tuple[str, ...]

    @property
    def front(self) -> tuple[Point, ...]:
        """Pareto front of time against energy, the fastest first."""
        return tuple(point for point in self.points if point.on_front)

    @property
    def effort(self) -> tuple[str, ...]:
        """What the search took, in a few words each."""
        timed = f"{self.latency_evaluations:,} timed"
        if self.objective == "time":
            return (timed,)
        return timed, f"{self.eligible:,} within the slack", f"{self.energy_readings:,} energy readings"

    @property
    def verdict(self) -> str:
        """The answer in a line."""
        if self.objective == "time":
            by = {key_of(point.config): point.time_s for point in self.points}
            ratio = by[key_of(self.chosen)] / by[key_of(self.baseline)]
            against = "" if ratio == 1.0 else f", {ratio - 1.0:+.1%} time against the baseline"
            return f"the fastest of {len(self.points):,} that were timed{against}"
        if self.saving is None and self.eligible < 2:
            return "no significant saving: nothing else was found within the slack"
        if self.saving is None:
            return "no significant saving: nothing within the slack reads lower than the baseline"
        low, high = self.saving.lower, self.saving.upper
        span = f"95 % interval {low:+.2%} to {high:+.2%}, {self.saving.readings} readings"
        if self.saving.significant:
            return f"{self.saving.estimate:.2%} less energy ({span})"
        return f"no significant saving ({self.saving.estimate:+.2%}, {span})"

    def to_dict(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        saving = self.saving
        return {
            "schema": SCHEMA,
            "verdict": self.verdict,
            "strategy": self.strategy,
            "objective": self.objective,
            "slack": self.slack,
            "chosen": dict(self.chosen),
            "baseline": dict(self.baseline),
            "fastest": dict(self.fastest),
            "candidate": None if self.candidate is None else dict(self.candidate),
            "saving": None if saving is None else {**vars(saving), "significant": saving.significant},
            "time_over_fastest": self.time_ratio,
            "front": [_row(point) for point in self.front],
            "points": [_row(point) for point in self.points],
            "question": dict(self.question),
            "meter": {**vars(self.facts), "versions": dict(self.facts.versions)},
            "latency_evaluations": self.latency_evaluations,
            "energy_readings": self.energy_readings,
            "answered_by_log": self.answered_by_log,
            "eligible": self.eligible,
            "refused": dict(self.refused),
            "failed": dict(self.failed),
            "temperature_c": self.temperature_c,
            "clock_mhz": self.clock_mhz,
            "duty": self.duty,
            "model": {name: dict(vars(one)) for name, one in self.model.items()},
            "seconds": self.seconds,
            "overhead_s": self.overhead_s,
            "notes": list(self.notes),
        }


def result_of(session: Session, wanted: Wanted, found: Found, name: str, seconds: float) -> TuningResult:
    """The result of a finished search.

    Parameters
    ----------
    session : Session
    wanted : Wanted
    found : Found
    name : str
        Of the strategy.
    seconds : float
        It took. [s]
    """
    confirming = [reading for block in found.blocks for reading in block]
    seen = confirming or [reading for several in session.readings.values() for reading in several]
    duties = [reading.duty for reading in confirming if reading.duty is not None]
    notes = list(found.notes)
    worst = min(confirming, key=lambda reading: 1.0 if reading.duty is None else reading.duty, default=None)
    if worst is not None and remark_on_duty(worst):
        notes.append(remark_on_duty(worst))
    if any(reading.throttled for reading in confirming):
        notes.append("the clock was held down by a limit while this was measured")
    config = session.config
    return TuningResult(
        dict(session.evaluator.question), name, wanted.objective, wanted.slack, config(found.chosen),
        config(found.baseline), config(found.fastest), None if found.candidate is None else config(found.candidate),
        found.saving, session.times[found.chosen] / session.times[found.fastest],
        _points(session, wanted, found), session.facts, len(session.times), session.energy_readings,
        session.answered_by_log, found.eligible, grouped(session.refused), grouped(session.failed),
        _range([reading.temperature_c for reading in seen]), _range([reading.clock_mhz for reading in seen]),
        min(duties) if duties else None, scored(session), seconds, session.overhead_s,
        tuple(notes),
    )  # fmt: skip


def scored(session: Session, least: int = 12, folds: int = 5) -> dict[str, Scores]:
    """The power model and constant power x time on what was read, each part predicted from the others.

    Empty where fewer than `least` configurations were read.
    """
    codes = [code for code in session.readings if np.isfinite(session.times.get(code, np.nan))]
    if len(codes) < least:
        return {}
    times = np.array([session.times[code] for code in codes])
    energies = np.exp([np.mean(np.log([r.energy_j for r in session.readings[code]])) for code in codes])
    features = described(session.features(codes), times)
    fold = np.arange(len(codes)) % folds
    fold = fold[np.random.default_rng(0).permutation(len(codes))]
    modelled, constant, caution = (np.zeros(len(codes)) for _ in range(3))
    for number in range(folds):
        train, test = fold != number, fold == number
        model = PowerModel.fit(features[train], times[train], energies[train], features)
        modelled[test], caution[test] = model.predict(features[test], times[test])
        constant[test] = np.log(times[test] * np.mean(energies[train] / times[train]))
    return {
        "power model x measured time": scores(np.exp(modelled), energies, times, caution),
        "constant power x measured time": scores(np.exp(constant), energies, times),
    }


def _points(session: Session, wanted: Wanted, found: Found) -> tuple[Point, ...]:
    limit = session.times[found.fastest] * (1.0 + wanted.slack)
    ran = sorted((code for code, time in session.times.items() if np.isfinite(time)), key=lambda c: session.times[c])
    read = {code: _read(session, found, code) for code in ran}
    scatter = _scatter(list(read.values()))
    least = float("inf")
    points = []
    for code in ran:
        values = read[code]
        energy = float(np.mean(values)) if values else None
        on_front = energy is not None and energy < least
        if on_front and energy is not None:
            least = energy
        within = session.times[code] <= limit
        error = None if energy is None or scatter is None else energy * 1.96 * scatter / float(np.sqrt(len(values)))
        points.append(Point(session.config(code), session.times[code], energy, len(values), within, on_front, error))
    return tuple(points)


def _read(session: Session, found: Found, code: Code) -> list[float]:
    """Energies that were read of a configuration, those of the confirmation included. [J]"""
    several: list[Reading] = list(session.readings.get(code, ()))
    for first, second, third, fourth in found.blocks:
        if code == found.baseline:
            several += [first, fourth]
        elif code == found.candidate:
            several += [second, third]
    return [reading.energy_j for reading in several]


def _scatter(read: list[list[float]]) -> float | None:
    """Relative standard deviation of a reading, pooled over configurations; None where none was read twice."""
    logs = [np.log(values) for values in read if len(values) > 1]
    freedom = sum(len(values) - 1 for values in logs)
    return float(np.sqrt(sum(float(((v - v.mean()) ** 2).sum()) for v in logs) / freedom)) if freedom else None


def _range(values: list[float | None]) -> tuple[float, float] | None:
    told = [value for value in values if value is not None]
    return (min(told), max(told)) if told else None


def _row(point: Point) -> dict[str, Any]:
    return {
        "config": dict(point.config), "time_s": point.time_s, "energy_j": point.energy_j, "readings": point.readings,
        "within_slack": point.within_slack, "on_front": point.on_front, "error_j": point.error_j,
    }  # fmt: skip
