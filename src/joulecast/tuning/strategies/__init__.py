"""Strategies of search: one module each, found by name."""

from __future__ import annotations

import math
from importlib import import_module
from typing import Any

from joulecast.errors import InputError, UnknownNameError, shortened
from joulecast.tuning.strategies.base import Found, Strategy, Wanted

#: Module of each strategy; it defines ``STRATEGY``, a frozen dataclass of settings with a method ``run``.
NAMES = {"race": "race", "paper": "paper", "measure-all": "measure_all", "random": "random_draw"}

#: Strategies that keep to each bound of a search; the others have settings of their own, or look at everything.
BOUNDED = {"evaluations": ("race", "random"), "readings": ("race",)}

#: Strategies that can look for the fastest alone.
TIMING = ("race", "measure-all", "random")

#: Largest count of a setting.
_MOST = 1_000_000

__all__ = ["BOUNDED", "NAMES", "TIMING", "Found", "Strategy", "Wanted", "strategy"]


def strategy(name: str, **settings: Any) -> Strategy:
    """The strategy of a name, with settings of its own changed.

    Raises
    ------
    UnknownNameError
        For another name, or a setting that the strategy does not have.
    """
    if name not in NAMES:
        raise UnknownNameError("strategy", name, NAMES)
    kind = import_module(f"joulecast.tuning.strategies.{NAMES[name]}").STRATEGY
    known = list(kind.__dataclass_fields__)
    for setting in settings:
        if setting not in known:
            raise UnknownNameError(f"setting of {name}", setting, known)
        _usable(setting, settings[setting], kind.__dataclass_fields__[setting].default)
    made: Strategy = kind(**settings)
    return made


def _usable(name: str, value: Any, default: Any) -> None:
    """Refuse what is not of the setting's own kind: counts from 1, finite numbers from 0, or true and false."""
    if isinstance(default, bool):
        good, what = isinstance(value, bool), "true or false"
    elif isinstance(default, int):
        good = isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= _MOST
        what = f"a whole number from 1 to {_MOST:,}"
    else:
        good = isinstance(value, int | float) and not isinstance(value, bool) and 0.0 <= value < math.inf
        what = "a number of 0 or more"
    if not good:
        raise InputError(f"the setting {name} takes {what}, such as {str(default).lower()}, not {shortened(value)!r}")
