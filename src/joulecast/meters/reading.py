"""What a meter gives and what it needs: the interface that every meter fulfils."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable


@dataclass(frozen=True)
class Reading:
    """Energy of a launch, the mean over one window of back-to-back launches.

    Attributes
    ----------
    energy_j : float
        Energy drawn in the window over the launches in it. [J]
    period_s : float
        Length of the window over the launches in it: what the energy was drawn in. [s]
    kernel_s : float or None
        Time that the device spent in the kernel, a launch; None where the meter can't tell. [s]
    launches : int
        Launches in the window.
    temperature_c, clock_mhz : float or None
        Means over the window; None where they can't be read. [deg C, MHz]
    throttled : bool
        Whether a cap or the temperature held the clock down in the window.
    refused : str
        Why the reading can't be used; empty where it can. A refused reading is counted and never averaged.
    """

    energy_j: float
    period_s: float
    kernel_s: float | None = None
    launches: int = 1
    temperature_c: float | None = None
    clock_mhz: float | None = None
    throttled: bool = False
    refused: str = ""

    @property
    def power_w(self) -> float:
        """Mean power over the period. [W]"""
        return self.energy_j / self.period_s

    @property
    def duty(self) -> float | None:
        """Share of the period that the kernel ran; below 0.95 gaps are part of the energy."""
        return None if self.kernel_s is None else self.kernel_s / self.period_s


@dataclass(frozen=True)
class MeterFacts:
    """What a meter says of itself and of the device, as part of the evidence.

    Attributes
    ----------
    name : str
        ``nvml``, ``zeus``, ``external``, ``replay``, ``model``.
    device : str
        The device's own name.
    method : str
        How energy is found, such as ``energy counter`` or ``power polled every 25 ms (1 s average field)``.
    cap_w, idle_w : float or None
        Power limit in force and power at idle; bounds of what a reading can be. [W]
    noise : float or None
        Coefficient of variation of one reading, where known beforehand.
    versions : tuple of (str, str)
        Driver, library and file versions, and whatever else identifies the meter.
    notes : tuple of str
        What is worth knowing, a line each.
    """

    name: str
    device: str
    method: str
    cap_w: float | None = None
    idle_w: float | None = None
    noise: float | None = None
    versions: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()


@runtime_checkable
class Load(Protocol):
    """Something that runs on a device again and again; the best is one CUDA graph of many launches."""

    @property
    def name(self) -> str:
        """For messages."""
        ...

    def run(self, launches: int) -> float | None:
        """Launch so many times back to back and return when the last has ended (synchronised).

        Parameters
        ----------
        launches : int
            At least this many; a graph may round up, and says so through `launches_of`.

        Returns
        -------
        float or None
            Time the device spent in these launches by its own events, without gaps before the first. [s]
        """
        ...

    def launches_of(self, launches: int) -> int:
        """How many launches `run` makes when asked for `launches`."""
        ...


@runtime_checkable
class Meter(Protocol):
    """Measures the energy of a load."""

    @property
    def facts(self) -> MeterFacts:
        """What it is; known after `prepare`."""
        ...

    def prepare(self, load: Load) -> None:
        """Warm the device up with `load` until its temperature is steady; done once before the first reading."""
        ...

    def read(self, load: Load) -> Reading:
        """One window. A reading that can't be is returned with `refused` set, never dropped silently.

        Raises
        ------
        joulecast.errors.InfeasibleError
            If energy can't be measured any more (access lost, counter and power both gone).
        """
        ...
