"""Answers without a GPU: compiled kernels priced by physics, at one clock and limit or at several."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from joulecast.errors import InfeasibleError
from joulecast.gpus import Gpu
from joulecast.meters.reading import MeterFacts
from joulecast.tuning.aot.built import Report
from joulecast.tuning.clocked import CLOCK, LIMIT, kernel_part
from joulecast.tuning.kernelspec import KernelSpec
from joulecast.tuning.log import key_of
from joulecast.tuning.reasons import grouped
from joulecast.tuning.result import Point, TuningResult
from joulecast.tuning.space import Config
from joulecast.tuning.triton_evaluator import Floats, TritonEvaluator


@dataclass(frozen=True)
class PredictedResult(TuningResult):
    """A `TuningResult` that no meter stands behind: physics priced compiled kernels."""

    @property
    def effort(self) -> tuple[str, ...]:
        """What the search took, in a few words each."""
        within = () if self.objective == "time" else (f"{self.eligible:,} within the slack",)
        return f"{len(self.points):,} predicted", *within, "none measured"

    @property
    def verdict(self) -> str:
        """The answer in a line."""
        by = {key_of(point.config): point for point in self.points}
        chosen, base = by[key_of(self.chosen)], by[key_of(self.baseline)]
        if key_of(self.chosen) == key_of(self.baseline):
            if self.objective == "time":
                return f"predicted, not measured: the fastest of {len(self.points):,} that can be launched"
            return "predicted, not measured: no other within the slack promises less energy than the baseline"
        assert chosen.energy_j is not None
        assert base.energy_j is not None
        energy, time_ = chosen.energy_j / base.energy_j - 1.0, chosen.time_s / base.time_s - 1.0
        return f"predicted, not measured: {energy:+.1%} energy, {time_:+.1%} time against the baseline"

    def to_dict(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        return {**super().to_dict(), "measured": False}


class AtClocks:
    """A `TritonEvaluator` without a meter, of which each configuration names its clock, its power limit, or both.

    Parameters
    ----------
    evaluator : TritonEvaluator
    """

    def __init__(self, evaluator: TritonEvaluator) -> None:
        self._plain = evaluator
        self._at: dict[tuple[float | None, float | None], TritonEvaluator] = {}

    @property
    def spec(self) -> KernelSpec:
        """Of the kernel."""
        return self._plain.spec

    @property
    def gpu(self) -> Gpu:
        """Priced on."""
        return self._plain.gpu

    @property
    def report(self) -> Report:
        """Of compiling."""
        return self._plain.report

    @property
    def endless(self) -> str:
        """As `TritonEvaluator.endless`."""
        return self._plain.endless

    @property
    def facts(self) -> MeterFacts:
        """Of the model meter."""
        return self._plain.facts

    @property
    def question(self) -> Mapping[str, Any]:
        """Of the evaluator, with the clocks that were priced."""
        asked = dict(self._plain.question)
        for name, place in (("clock_mhz", 0), ("power_limit_w", 1)):
            if any(key[place] is not None for key in self._at):
                asked[name] = "by configuration"
        return asked

    def prior(self, configs: Sequence[Config]) -> tuple[Floats, Floats]:
        """Predicted time and power of each. [s, W]"""
        time_s, power_w = np.empty(len(configs)), np.empty(len(configs))
        places: dict[tuple[float | None, float | None], list[int]] = {}
        for place, config in enumerate(configs):
            places.setdefault(_state(config), []).append(place)
        for state, rows in places.items():
            found = self._of(state).prior([kernel_part(configs[row]) for row in rows])
            assert found is not None
            time_s[rows], power_w[rows] = found
        return time_s, power_w

    def told(self, config: Config) -> Mapping[str, Any]:
        """Predicted figures of one."""
        return self._of(_state(config)).told(kernel_part(config))

    def verified(self, configs: Sequence[Config]) -> list[tuple[Config, str | None]]:
        """Each with what is wrong with its result."""
        told = self._plain.verified([kernel_part(config) for config in configs])
        return [(config, verdict) for config, (_, verdict) in zip(configs, told, strict=True)]

    def _of(self, state: tuple[float | None, float | None]) -> TritonEvaluator:
        if state not in self._at:
            self._at[state] = self._plain.at(*state)
        return self._at[state]


def _state(config: Config) -> tuple[float | None, float | None]:
    clock, limit = config.get(CLOCK), config.get(LIMIT)
    return None if clock is None else float(clock), None if limit is None else float(limit)


def predicted(
    evaluator: TritonEvaluator | AtClocks, configs: Sequence[Config], slack: float, objective: str,
    baseline: Config | None, check: str, begun: float,
) -> PredictedResult:  # fmt: skip
    """The answer of physics alone: least predicted energy within the slack of the fastest predicted.

    Parameters
    ----------
    evaluator : TritonEvaluator or AtClocks
    configs : sequence of mapping
        That can be launched.
    slack : float
        [share]
    objective : str
    baseline : mapping or None
    check : str
        What is tested: ``all``, or of ``winners`` the chosen and the fastest; the search goes on without what is wrong.
    begun : float
        When the search did, by `time.perf_counter`. [s]

    Raises
    ------
    InfeasibleError
        If none is right, or the baseline can't be launched.
    """
    left = list(configs)
    notes = [f"{evaluator.report.compiled} compiled, {evaluator.report.cached} from the cache, "
             f"{evaluator.report.pruned} pruned before"]  # fmt: skip
    failed = Counter(evaluator.report.reasons)
    while True:
        time_s, power_w = evaluator.prior(left) or (np.ones(0), np.ones(0))
        energy_j = time_s * power_w
        fastest = int(np.argmin(time_s))
        limit = time_s[fastest] * (1.0 + slack)
        eligible = np.flatnonzero(time_s <= limit)
        best = int(eligible[np.argmin(energy_j[eligible])]) if objective == "energy" else fastest
        due = {"all": left, "winners": [left[best], left[fastest]], "none": []}[check]
        bad = {key_of(config): why for config, why in evaluator.verified(due) if why}
        if not bad:
            break
        failed.update(f"correctness: {why}" for why in bad.values())
        left = [config for config in left if key_of(config) not in bad]
        if evaluator.endless:
            said = "more time (timeout_s, --timeout) or a small problem in small may help; check none tests nothing"
            raise InfeasibleError(f"{evaluator.spec.name} could not be tested: each {evaluator.endless}: {said}")
        if not left:
            why = next(iter(grouped(Counter(bad.values()))))
            raise InfeasibleError(f"no configuration of {evaluator.spec.name} is right: {why}")
    if check != "none" and evaluator.spec.reference is not None:
        notes.append("tested against the reference on the CPU")
    bounds = evaluator.told(left[best])["bound_by"]
    notes.append(f"predicted to be bound by {bounds} at {evaluator.told(left[best])['clock_mhz']:.0f} MHz")
    order = np.argsort(time_s, kind="stable")
    points, least = [], np.inf
    for place in order.tolist():
        on_front = bool(energy_j[place] < least)
        least = min(least, energy_j[place])
        points.append(
            Point(left[place], float(time_s[place]), float(energy_j[place]), 0, bool(time_s[place] <= limit), on_front)
        )
    base = left[fastest] if baseline is None else baseline
    if key_of(base) not in {key_of(one) for one in left}:
        raise InfeasibleError(f"the baseline {dict(base)} can't be launched on {evaluator.gpu.name}")
    clocks = [evaluator.told(config)["clock_mhz"] for config in left]
    return PredictedResult(
        evaluator.question, "prediction", objective, slack, left[best], base, left[fastest],
        left[best] if key_of(left[best]) != key_of(base) else None, None, float(time_s[best] / time_s[fastest]),
        tuple(points), evaluator.facts, 0, 0, 0, len(eligible), {}, grouped(failed), None,
        (min(clocks), max(clocks)), None, {}, time.perf_counter() - begun, 0.0, tuple(notes),
    )  # fmt: skip
