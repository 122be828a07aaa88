"""The core clock as one more tunable: it is set before each measurement and put back at any end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from joulecast.errors import InputError
from joulecast.meters.clocks import Settings
from joulecast.meters.reading import MeterFacts, Reading
from joulecast.tuning.evaluator import Check, Evaluator, Floats
from joulecast.tuning.space import Config, Space, Tunable

#: Name of the tunable.
CLOCK = "core_clock_mhz"


def with_clocks(space: Space, clocks_mhz: Sequence[float]) -> Space:
    """`space` with the core clock beside its tunables.

    Raises
    ------
    InputError
        If the space has such a tunable already.
    """
    if CLOCK in space.names:
        raise InputError(f"the space has a tunable {CLOCK} already")
    values = tuple(sorted({float(clock) for clock in clocks_mhz}))
    listed = space.listed
    if listed is not None:
        listed = frozenset((*code, place) for code in listed for place in range(len(values)))
    return replace(space, tunables=(*space.tunables, Tunable(CLOCK, values)), listed=listed)


class ClockedEvaluator:
    """An evaluator of which each configuration names its core clock.

    Parameters
    ----------
    evaluator : Evaluator
        Of the configurations without the clock.
    settings : Settings
        Of the device; the caller holds them (`Settings.held`), so that the clock is put back at any end.
    clocks_mhz : sequence of float
        That may be asked for; whether they may be set is looked at here, before anything is measured. [MHz]

    Raises
    ------
    joulecast.errors.InfeasibleError
        Naming the right that is missing.
    """

    def __init__(self, evaluator: Evaluator, settings: Settings, clocks_mhz: Sequence[float]) -> None:
        settings.check(tuple(float(clock) for clock in clocks_mhz))
        self._evaluator, self._settings = evaluator, settings
        self._clocks = tuple(sorted({float(clock) for clock in clocks_mhz}))
        self._now: float | None = None

    @property
    def question(self) -> Mapping[str, Any]:
        """Of the evaluator, and the clocks."""
        return {**self._evaluator.question, "clocks_mhz": list(self._clocks)}

    @property
    def facts(self) -> MeterFacts:
        """Of the evaluator's meter."""
        return self._evaluator.facts

    def check(self, configs: Sequence[Config]) -> Sequence[Check]:
        """Of the evaluator: compiling asks for no clock, so that each kernel is checked once."""
        plain = [_without(config) for config in configs]
        keys = [tuple(config.items()) for config in plain]
        first = dict(zip(keys, plain, strict=True))
        found = dict(zip(first, self._evaluator.check(list(first.values())), strict=True))
        return [found[key] for key in keys]

    def latency(self, config: Config, count: int) -> Floats:
        """Times at the configuration's clock. [s]"""
        self._set(config)
        return self._evaluator.latency(_without(config), count)

    def energy(self, config: Config, count: int) -> Sequence[Reading]:
        """Readings at the configuration's clock."""
        self._set(config)
        return self._evaluator.energy(_without(config), count)

    def features(self, configs: Sequence[Config]) -> Floats | None:
        """Of the evaluator; the clock is a tunable and stands among the parameters."""
        return self._evaluator.features([_without(config) for config in configs])

    def prior(self, configs: Sequence[Config]) -> tuple[Floats, Floats] | None:
        """Of the evaluator, time stretched by the clock as if cores bounded it."""
        found = self._evaluator.prior([_without(config) for config in configs])
        if found is None:
            return None
        import numpy as np

        ratio = np.array([float(config[CLOCK]) for config in configs]) / self._clocks[-1]
        return found[0] / ratio, found[1] * ratio

    def _set(self, config: Config) -> None:
        clock = float(config[CLOCK])
        if clock != self._now:
            self._settings.set(clock)
            self._now = clock


def _without(config: Config) -> dict[str, Any]:
    return {name: value for name, value in config.items() if name != CLOCK}
