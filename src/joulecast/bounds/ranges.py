"""Checks of what is asked of a GPU: a clock in its range, a power limit above its idle power."""

from __future__ import annotations

import math
from typing import Any

from joulecast.errors import InputError, shortened


def number(value: Any, what: str, unit: str = "") -> float:
    """`value` as a finite float.

    Raises
    ------
    InputError
        If it is no finite number; `what` and `unit` name it.
    """
    try:
        if isinstance(value, bool) or getattr(getattr(value, "dtype", None), "kind", "f") in "bc":
            raise TypeError
        found = float(value)
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"{what} must be a number{_in(unit)}, got {shortened(value)!r}") from None
    if not math.isfinite(found):
        raise InputError(f"{what} must be a finite number{_in(unit)}, got {shortened(value)}")
    return found


def check_clock_mhz(clock_mhz: Any, lowest_mhz: float, highest_mhz: float, gpu: str) -> float:
    """A core clock in the GPU's range; None means its highest. [MHz]"""
    if clock_mhz is None:
        return highest_mhz
    clock = number(clock_mhz, "clock", "MHz")
    if not lowest_mhz <= clock <= highest_mhz:
        raise InputError(f"clock of {clock:g} MHz is outside the range of {gpu}: {lowest_mhz:g} to {highest_mhz:g} MHz")
    return clock


def check_power_limit_w(power_limit_w: Any, idle_w: float, gpu: str) -> float:
    """A power limit above the GPU's idle power. [W]"""
    limit = number(power_limit_w, "power limit", "W")
    if limit <= idle_w:
        raise InputError(f"power limit of {limit:g} W is not above the idle power of {gpu}, {idle_w:g} W")
    return limit


def _in(unit: str) -> str:
    return f" of {unit}" if unit else ""
