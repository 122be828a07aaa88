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


def check_power_limit_w(power_limit_w: Any, idle_w: float, gpu: str, settable_w: float = math.inf) -> float:
    """A power limit above the GPU's idle power, or one that its driver can set, from `settable_w` on. [W]"""
    limit = number(power_limit_w, "power limit", "W")
    if limit <= idle_w and limit < settable_w:
        raise InputError(f"power limit of {limit:g} W is not above the idle power of {gpu}, {idle_w:g} W")
    return limit


def check_settable_w(power_limit_w: float, lowest_w: float, highest_w: float, gpu: str) -> None:
    """Refuse a power limit that the GPU's driver would not set. [W]"""
    if not lowest_w <= power_limit_w <= highest_w:
        raise InputError(
            f"{gpu} takes no power limit of {power_limit_w:g} W: {lowest_w:g} to {highest_w:g} W can be set"
        )


def beyond_settable(power_limit_w: float, lowest_w: float, highest_w: float, gpu: str) -> tuple[str, ...]:
    """A warning where no driver would set a limit, though it can be worked out. [W]"""
    if lowest_w <= power_limit_w <= highest_w:
        return ()
    side, end = ("below", lowest_w) if power_limit_w < lowest_w else ("above", highest_w)
    return (f"{gpu} can't be set {side} {end:g} W, {power_limit_w:g} W were asked for",)


def _in(unit: str) -> str:
    return f" of {unit}" if unit else ""
