"""Core clock and power limit as two more tunables: set before each measurement and put back at any end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from joulecast.errors import InputError
from joulecast.meters.clocks import Settings
from joulecast.meters.reading import MeterFacts, Reading
from joulecast.tuning.evaluator import Check, Evaluator, Floats
from joulecast.tuning.space import Config, Space, Tunable

#: Names of the tunables. [MHz, W]
CLOCK, LIMIT = "core_clock_mhz", "power_limit_w"


def with_clocks(space: Space, clocks_mhz: Sequence[float] = (), limits_w: Sequence[float] = ()) -> Space:
    """`space` with core clock and power limit beside its tunables; an empty one is left out.

    Raises
    ------
    InputError
        If the space has such a tunable already.
    """
    for name, values in ((CLOCK, clocks_mhz), (LIMIT, limits_w)):
        if not values:
            continue
        if name in space.names:
            raise InputError(f"the space has a tunable {name} already")
        made = Tunable(name, tuple(int(v) if v.is_integer() else v for v in sorted({float(one) for one in values})))
        listed = space.listed
        if listed is not None:
            listed = frozenset((*code, place) for code in listed for place in range(len(made.values)))
        space = replace(space, tunables=(*space.tunables, made), listed=listed)
    return space


def kernel_part(config: Config) -> dict[str, Any]:
    """A configuration without its clock and limit: what is compiled."""
    return {name: value for name, value in config.items() if name not in (CLOCK, LIMIT)}


class ClockedEvaluator:
    """An evaluator of which each configuration names its core clock, its power limit, or both.

    Parameters
    ----------
    evaluator : Evaluator
        Of the configurations without clock and limit.
    settings : Settings
        Of the device; the caller holds them (`Settings.held`), so that all is put back at any end.
    clocks_mhz, limits_w : sequence of float
        That may be asked for; whether they may be set is looked at here, before anything is measured. One alone need
        not stand in the configurations: it is set for all. [MHz, W]

    Raises
    ------
    joulecast.errors.InputError
        For a clock or limit that the device does not have.
    joulecast.errors.InfeasibleError
        Naming the right that is missing.
    """

    def __init__(
        self, evaluator: Evaluator, settings: Settings, clocks_mhz: Sequence[float] = (), limits_w: Sequence[float] = ()
    ) -> None:
        self._clocks = tuple(sorted({float(clock) for clock in clocks_mhz}))
        self._limits = tuple(sorted({float(limit) for limit in limits_w}))
        settings.check(self._clocks, self._limits)
        self._evaluator, self._settings = evaluator, settings
        self._now: tuple[float | None, float | None] = (None, None)

    @property
    def question(self) -> Mapping[str, Any]:
        """Of the evaluator; outcomes are kept by clock and limit, so that others may be asked for later."""
        asked = dict(self._evaluator.question)
        for name, values in (("clock_mhz", self._clocks), ("power_limit_w", self._limits)):
            if values:
                asked[name] = values[0] if len(values) == 1 else "by configuration"
        return asked

    @property
    def facts(self) -> MeterFacts:
        """Of the evaluator's meter; where limits are set, the highest of them bounds what a reading can be."""
        facts = self._evaluator.facts
        return replace(facts, cap_w=self._limits[-1]) if self._limits else facts

    def check(self, configs: Sequence[Config]) -> Sequence[Check]:
        """Of the evaluator: compiling asks for no clock, so that each kernel is checked once."""
        plain = [kernel_part(config) for config in configs]
        keys = [tuple(config.items()) for config in plain]
        first = dict(zip(keys, plain, strict=True))
        found = dict(zip(first, self._evaluator.check(list(first.values())), strict=True))
        return [found[key] for key in keys]

    def latency(self, config: Config, count: int) -> Floats:
        """Times at the configuration's clock and limit. [s]"""
        self._set(config)
        return self._evaluator.latency(kernel_part(config), count)

    def energy(self, config: Config, count: int) -> Sequence[Reading]:
        """Readings at the configuration's clock and limit."""
        self._set(config)
        return self._evaluator.energy(kernel_part(config), count)

    def features(self, configs: Sequence[Config]) -> Floats | None:
        """Of the evaluator; clock and limit are tunables and stand among the parameters."""
        return self._evaluator.features([kernel_part(config) for config in configs])

    def prior(self, configs: Sequence[Config]) -> tuple[Floats, Floats] | None:
        """Of the evaluator, time stretched by the clock as if cores bounded it."""
        found = self._evaluator.prior([kernel_part(config) for config in configs])
        if found is None or not self._clocks:
            return found
        ratio = np.array([float(config.get(CLOCK, self._clocks[-1])) for config in configs]) / self._clocks[-1]
        return found[0] / ratio, found[1] * ratio

    def _set(self, config: Config) -> None:
        clock = _asked(config, CLOCK, self._clocks)
        limit = _asked(config, LIMIT, self._limits)
        if clock is not None and clock != self._now[0]:
            self._settings.set(clock_mhz=clock)
        if limit is not None and limit != self._now[1]:
            self._settings.set(limit_w=limit)
        self._now = clock, limit


def _asked(config: Config, name: str, values: tuple[float, ...]) -> float | None:
    if name in config:
        return float(config[name])
    return values[0] if values else None
