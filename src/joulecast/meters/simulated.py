"""A simulated GPU with the failings of real ones: for testing meters and for trying out a search without a GPU."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from joulecast.meters.device import DeniedError, LostError
from joulecast.meters.reading import Load


@dataclass(frozen=True)
class Failings:
    """What is wrong with a simulated device.

    Attributes
    ----------
    counter : str
        ``works``, ``none``, ``frozen``, ``impossible`` (ten times too much) or ``resets`` (falls to 0 now and then).
    wraps_at_j : float or None
        Where the counter starts anew. [J]
    instant : bool
        Whether there is a field of instantaneous power.
    average_s : float
        Window of the other field. [s]
    power : bool
        Whether power can be read at all.
    update_s : float
        Between two updates of counter and power. [s]
    noise : float
        Coefficient of variation of power over 0.1 s.
    lost_after_s : float or None
        When the device stops answering. [s]
    may_set : bool
        Whether clocks and limits may be set.
    """

    counter: str = "works"
    wraps_at_j: float | None = None
    instant: bool = True
    average_s: float = 1.0
    power: bool = True
    update_s: float = 0.02
    noise: float = 0.0
    lost_after_s: float | None = None
    may_set: bool = True


@dataclass
class SimulatedDevice:
    """A GPU whose time passes when it runs or sleeps.

    Attributes
    ----------
    failings : Failings
    idle_w, cap_w, top_mhz : float
    ambient_c, heating_k_per_w, warming_s : float
        Steady temperature is ambient plus heating x power, approached with a time constant.
    leakage : float
        Growth of power a degree above 40.
    """

    failings: Failings = field(default_factory=Failings)
    idle_w: float = 50.0
    cap_w: float = 300.0
    top_mhz: float = 1800.0
    ambient_c: float = 30.0
    heating_k_per_w: float = 0.15
    warming_s: float = 20.0
    leakage: float = 0.003
    seed: int = 0

    def __post_init__(self) -> None:
        self._rng = np.random.default_rng(self.seed)
        self._now, self._joules, self._told_j, self._told_w = 0.0, 0.0, 0.0, self.idle_w
        self._temperature = self.ambient_c + self.heating_k_per_w * self.idle_w
        self._history: deque[tuple[float, float]] = deque([(0.0, self.idle_w)])
        self._updated = 0.0
        self._watcher: tuple[Callable[[], None], float, float] | None = None
        self._beside: SimulatedLoad | None = None
        self._held, self._running_mhz = False, 0.0
        self._limit_w = self.cap_w
        self.locked_mhz = float("nan")
        self._flutter, self._flutter_until = 1.0, 0.0

    # what the protocol asks

    @property
    def name(self) -> str:
        """Of the simulation."""
        return "simulated GPU"

    @property
    def versions(self) -> tuple[tuple[str, str], ...]:
        """None real."""
        return (("driver", "simulated"),)

    def now_s(self) -> float:
        """Simulated time. [s]"""
        return self._now

    def sleep(self, seconds: float) -> None:
        """Let time pass, under the load that runs beside, if any."""
        self._pass(seconds, self._beside)

    def energy_j(self) -> float | None:
        """The counter with its failings. [J]"""
        self._alive()
        kind = self.failings.counter
        if kind == "none":
            return None
        if kind == "frozen":
            return 12.0
        told = self._told_j * (10.0 if kind == "impossible" else 1.0)
        if kind == "resets":
            told = math.fmod(told, 1000.0)
        return math.fmod(told, self.failings.wraps_at_j) if self.failings.wraps_at_j else told

    def instant_power_w(self) -> float | None:
        """Power at the last update. [W]"""
        self._alive()
        return self._told_w if self.failings.instant and self.failings.power else None

    def average_power_w(self) -> float | None:
        """Mean over the trailing window. [W]"""
        self._alive()
        if not self.failings.power:
            return None
        start = self._updated - self.failings.average_s
        parts = list(self._history)
        total = span = 0.0
        for (begun, power), (ended, _) in zip(parts, [*parts[1:], (self._updated, 0.0)], strict=True):
            length = max(min(ended, self._updated) - max(begun, start), 0.0)
            total, span = total + power * length, span + length
        return total / span if span > 0 else self._told_w

    def temperature_c(self) -> float | None:
        """Whole degrees, as real ones tell. [deg C]"""
        self._alive()
        return float(round(self._temperature))

    def clock_mhz(self) -> float | None:
        """Of the last step under load, else as locked. [MHz]"""
        self._alive()
        return self._running_mhz or self._clock()

    def limit_w(self) -> float | None:
        """In force. [W]"""
        return self._limit_w

    def throttled(self) -> bool | None:
        """Whether the limit held the clock down in the last step."""
        self._alive()
        return self._held

    def clocks_mhz(self) -> tuple[float, ...]:
        """Every 15 MHz up to the top."""
        return tuple(float(value) for value in np.arange(210.0, self.top_mhz + 1.0, 15.0))

    def limits_w(self) -> tuple[float, float] | None:
        """A third of the cap up to it."""
        return self.cap_w / 3.0, self.cap_w

    def lock_clock(self, clock_mhz: float) -> None:
        """Hold the clock."""
        self._allowed("lock the core clock")
        self.locked_mhz, self._running_mhz = clock_mhz, 0.0

    def unlock_clock(self) -> None:
        """Let it go."""
        self._allowed("unlock the core clock")
        self.locked_mhz, self._running_mhz = float("nan"), 0.0

    def set_limit(self, limit_w: float) -> None:
        """Set the limit."""
        self._allowed("set the power limit")
        self._limit_w = limit_w

    # what only a simulation offers

    def watch(self, look: Callable[[], None] | None, every_s: float) -> None:
        """Call `look` as time passes; None ends it."""
        self._watcher = None if look is None else (look, every_s, self._now + every_s)

    def run_beside(self, load: Load | None) -> None:
        """A load that runs while the caller sleeps; None ends it."""
        self._beside = load if isinstance(load, SimulatedLoad) else None

    def run(self, load: SimulatedLoad, launches: int) -> float:
        """Run launches back to back; gives the time spent in the kernel. [s]"""
        self._alive()
        left = float(launches)
        kernel_s = 0.0
        while left > 1e-9:
            slow = self.top_mhz / self._clock_under(load)
            kernel = load.time_s * slow
            period = kernel + load.gap_s
            step = min(left * period, 0.05)
            self._pass(step, load)
            kernel_s += step * kernel / period
            left -= step / period
        return kernel_s  # the clock stays where it was: the next launches follow at once

    def _clock(self) -> float:
        return self.top_mhz if math.isnan(self.locked_mhz) else min(self.locked_mhz, self.top_mhz)

    def _power(self, load: SimulatedLoad | None, clock_mhz: float) -> float:
        warm = 1.0 + self.leakage * (self._temperature - 40.0)
        if load is None:
            return self.idle_w
        busy = load.time_s / (load.time_s + load.gap_s)
        dynamic = (load.power_w - self.idle_w) * busy * (clock_mhz / self.top_mhz) ** 2.5
        return float((self.idle_w + dynamic) * warm)

    def _clock_under(self, load: SimulatedLoad) -> float:
        clock = self._clock()
        power = self._power(load, clock)
        self._held = power > self._limit_w
        if self._held:
            idle = self.idle_w * (1.0 + self.leakage * (self._temperature - 40.0))
            clock *= float(max((self._limit_w - idle) / (power - idle), 0.01) ** (1.0 / 2.5))
        return clock

    def _pass(self, seconds: float, load: SimulatedLoad | None) -> None:
        end = self._now + seconds
        while self._now < end - 1e-12:
            step = min(end - self._now, self.failings.update_s)
            clock = self._clock() if load is None else self._clock_under(load)
            self._running_mhz = 0.0 if load is None else clock
            if self._now >= self._flutter_until:
                self._flutter = 1.0 + self.failings.noise * float(self._rng.normal())
                self._flutter_until = self._now + 0.1
            power = self._power(load, clock) * self._flutter
            self._now += step
            self._joules += power * step
            goal = self.ambient_c + self.heating_k_per_w * power
            self._temperature += (goal - self._temperature) * -math.expm1(-step / self.warming_s)
            self._history.append((self._now - step, power))
            while self._history[0][0] < self._now - self.failings.average_s - 1.0:
                self._history.popleft()
            if self._now - self._updated >= self.failings.update_s - 1e-12:
                self._updated, self._told_j, self._told_w = self._now, self._joules, power
            if self._watcher is not None and self._now >= self._watcher[2]:
                look, every, _ = self._watcher
                self._watcher = (look, every, self._now + every)
                look()

    def _alive(self) -> None:
        after = self.failings.lost_after_s
        if after is not None and self._now >= after:
            raise LostError(f"{self.name} answers no more: it was lost after {after:.0f} s")

    def _allowed(self, what: str) -> None:
        if not self.failings.may_set:
            raise DeniedError(f"no right to {what} of {self.name}: run as root, or have it granted")


@dataclass
class SimulatedLoad:
    """A kernel on a simulated device.

    Attributes
    ----------
    device : SimulatedDevice
    name : str
    time_s : float
        In the kernel, at the top clock. [s]
    power_w : float
        Of the board while it runs, at 40 deg C and the top clock. [W]
    gap_s : float
        Between two launches. [s]
    """

    device: SimulatedDevice
    name: str
    time_s: float
    power_w: float
    gap_s: float = 0.0

    def run(self, launches: int) -> float | None:
        """Run on the simulated device."""
        return self.device.run(self, launches)

    def launches_of(self, launches: int) -> int:
        """As many as asked for."""
        return launches
