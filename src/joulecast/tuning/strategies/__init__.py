"""Strategies of search: one module each, found by name."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from joulecast.errors import UnknownNameError
from joulecast.tuning.strategies.base import Found, Strategy, Wanted

#: Module of each strategy; it defines ``STRATEGY``, a frozen dataclass of settings with a method ``run``.
NAMES = {"race": "race", "paper": "paper", "measure-all": "measure_all", "random": "random_draw"}

__all__ = ["NAMES", "Found", "Strategy", "Wanted", "strategy"]


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
    made: Strategy = kind(**settings)
    return made
