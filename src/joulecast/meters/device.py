"""The thin protocol that a metered GPU speaks, so that meters run alike on a real and on a simulated one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from joulecast.errors import InfeasibleError


class LostError(InfeasibleError):
    """The device answers no more: reset, taken away, or its driver gone."""


class DeniedError(InfeasibleError):
    """The right to do this is missing; the text names it."""


class Device(Protocol):
    """One GPU. Every query stands alone: one that is not answered gives None and disables nothing else."""

    @property
    def name(self) -> str:
        """As the driver calls it."""
        ...

    @property
    def versions(self) -> tuple[tuple[str, str], ...]:
        """Of driver and library."""
        ...

    def now_s(self) -> float:
        """A steady clock. [s]"""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait by that clock."""
        ...

    def energy_j(self) -> float | None:
        """The energy counter since some start; None where there is none. [J]"""
        ...

    def instant_power_w(self) -> float | None:
        """Power now, by the field that is no average; None where there is none. [W]"""
        ...

    def average_power_w(self) -> float | None:
        """Power by the older field, on newer GPUs the mean over the last second; None where there is none. [W]"""
        ...

    def temperature_c(self) -> float | None:
        """Of the GPU. [deg C]"""
        ...

    def clock_mhz(self) -> float | None:
        """Of the SMs, now. [MHz]"""
        ...

    def limit_w(self) -> float | None:
        """Power limit in force. [W]"""
        ...

    def throttled(self) -> bool | None:
        """Whether a limit of power or temperature holds the clock down; None where it is not told."""
        ...

    def clocks_mhz(self) -> tuple[float, ...]:
        """Core clocks that can be locked, lowest first; empty where none can. [MHz]"""
        ...

    def limits_w(self) -> tuple[float, float] | None:
        """Least and highest power limit that can be set. [W]"""
        ...

    def lock_clock(self, clock_mhz: float) -> None:
        """Hold the core clock. Raises `DeniedError` without the right."""
        ...

    def unlock_clock(self) -> None:
        """Let the core clock go. Raises `DeniedError` without the right."""
        ...

    def set_limit(self, limit_w: float) -> None:
        """Set the power limit. Raises `DeniedError` without the right."""
        ...


@dataclass(frozen=True)
class Capabilities:
    """What was found by looking, not by name.

    Attributes
    ----------
    counter : str
        ``works``, ``none``, ``frozen`` (does not move while power is drawn) or ``impossible`` (moves faster than the
        power limit allows).
    power : str
        Field that power is read from: ``instant``, ``average``, or ``none``.
    update_s : float
        Time between two changes of what is read. [s]
    notes : tuple of str
        What to tell, a line each.
    """

    counter: str
    power: str
    update_s: float
    notes: tuple[str, ...] = ()


def probe(device: Device, *, seconds: float = 1.5, step_s: float = 0.005) -> Capabilities:
    """Look at a working device for a while: which of its readings can be used, and how often they change.

    Parameters
    ----------
    device : Device
        Under load: an idle counter may rest for long.
    seconds : float
        How long to look. [s]
    step_s : float
        Between two looks. [s]

    Returns
    -------
    Capabilities

    Raises
    ------
    InfeasibleError
        If there is neither a counter that moves nor a power to integrate: energy can't be measured, which is not 0 J.
    """
    field = "instant" if device.instant_power_w() else ("average" if device.average_power_w() else "none")
    read = device.instant_power_w if field == "instant" else device.average_power_w
    begun = device.now_s()
    first = last = device.energy_j()
    moves, changes, powers = [], [], []
    seen = None
    while device.now_s() - begun < seconds:
        device.sleep(step_s)
        now = device.now_s()
        counter = device.energy_j()
        if counter is not None and last is not None and counter != last:
            moves.append(now)
        last = counter
        power = read() if field != "none" else None
        if power is not None:
            powers.append(power)
            if seen is not None and power != seen:
                changes.append(now)
            seen = power
    span = device.now_s() - begun
    mean_w = sum(powers) / len(powers) if powers else None
    notes: list[str] = []
    kind = "works"
    if first is None or last is None:
        kind = "none"
    elif not moves:
        kind = "frozen"
        notes.append(f"the energy counter stood still for {span:.1f} s while the device worked: not used")
    else:
        limit = device.limit_w()
        told = (last - first) / span
        if told < 0 or (limit is not None and told > 1.5 * limit) or (mean_w is not None and told > 2.0 * mean_w):
            kind = "impossible"
            notes.append(f"the energy counter told {told:.0f} W on average, which can't be: not used")
    marks = moves if kind == "works" else changes
    if kind != "works":
        if field == "none":
            raise InfeasibleError(
                f"{device.name} has no energy counter that works and no power reading: its energy can't be measured"
            )
        notes.append("energy is integrated from power readings")
        if field == "average":
            notes.append("power is read from a field that may be an average over a second: windows are longer for it")
    update = span / max(len(marks), 1) if marks else span
    return Capabilities(kind, field, update, tuple(notes))
