"""Energy of a window of launches on a device: by its counter where that works, else by integrating power."""

from __future__ import annotations

import itertools
import math
import threading
from dataclasses import dataclass, field

import numpy as np

from joulecast.errors import InfeasibleError
from joulecast.meters.device import Capabilities, Device, LostError, probe
from joulecast.meters.judge import judged
from joulecast.meters.reading import Load, MeterFacts, Reading


@dataclass(frozen=True)
class WindowSettings:
    """How a device is metered.

    Attributes
    ----------
    window_s : float
        Least length of a window. [s]
    updates : int
        A window holds at least so many updates of what is read.
    preheat_s : float
        Longest warming up. [s]
    steady_k : float
        The temperature is steady when it changes by less in ten seconds. [K]
    poll_s : float
        Between two readings of power, where it is integrated; no less than its updates are apart. [s]
    wraps_at_j : float or None
        Where the counter starts anew, if that is known: then a backward step is a wrap, else a reset. [J]
    """

    window_s: float = 1.5
    updates: int = 20
    preheat_s: float = 120.0
    steady_k: float = 0.5
    poll_s: float = 0.02
    wraps_at_j: float | None = None


@dataclass
class WindowMeter:
    """A `Meter` over any `Device`.

    Attributes
    ----------
    device : Device
    settings : WindowSettings
    name : str
    """

    device: Device
    settings: WindowSettings = field(default_factory=WindowSettings)
    name: str = "nvml"

    def __post_init__(self) -> None:
        self._can: Capabilities | None = None
        self._idle_w: float | None = None
        self._notes: list[str] = []
        self._launch_s: dict[str, float] = {}

    @property
    def facts(self) -> MeterFacts:
        """Of device and method; bounds of what a reading can be."""
        can = self._can
        method = "not looked at yet"
        if can is not None:
            method = "energy counter" if can.counter == "works" else f"power integrated ({can.power} field)"
        return MeterFacts(
            self.name, self.device.name, method, self.device.limit_w(), self._idle_w, versions=self.device.versions,
            notes=(*(can.notes if can else ()), *self._notes),
        )  # fmt: skip

    def prepare(self, load: Load) -> None:
        """Read idle power, look at what works under load, and warm up until the temperature is steady.

        Raises
        ------
        InfeasibleError
            If energy can't be measured.
        """
        if self._idle_w is None:
            self._idle_w = self._resting_w()
        self._warm(load)
        if self._can is None:
            with _Running(self.device, load, self._launches(load, 2.5)):
                self._can = probe(self.device)

    def read(self, load: Load) -> Reading:
        """One window of back-to-back launches.

        Raises
        ------
        InfeasibleError
            If the device answers no more.
        """
        if self._can is None:
            self.prepare(load)
        can = self._can
        assert can is not None
        length = max(self.settings.window_s, self.settings.updates * can.update_s)
        if can.counter != "works" and can.power == "average":
            length = max(length, 4.0)  # the first second of the field is what was before
        launches = load.launches_of(self._launches(load, length))
        reading = self._counted(load, launches) if can.counter == "works" else self._integrated(load, launches)
        if reading.period_s > 0:  # by the fastest seen: at another clock no window is too short for it
            self._launch_s[load.name] = min(self._launch_s[load.name], reading.period_s)
        return judged(reading, self.facts)

    def _launches(self, load: Load, seconds: float) -> int:
        """How many launches take so long."""
        if load.name not in self._launch_s:
            count = 1
            while True:
                begun = self.device.now_s()
                load.run(count)
                span = self.device.now_s() - begun
                if span > 0.02 or count >= 1 << 20:
                    break
                count *= 4
            self._launch_s[load.name] = max(span / load.launches_of(count), 1e-9)
        return max(math.ceil(seconds / self._launch_s[load.name]), 1)

    def _counted(self, load: Load, launches: int) -> Reading:
        """Mean power between the first and the last change of the counter in the window, times the period.

        A counter tells what was true at its last update: reading it at the ends of the window would be wrong by up to
        an update at each.
        """
        device, can = self.device, self._can
        assert can is not None
        load.run(max(launches // 20, 1))  # the clock and the queue settle
        begun = device.now_s()
        with _Watching(device, device.energy_j, max(can.update_s / 5.0, 0.002)) as watched:
            kernel_s = load.run(launches)
        span = device.now_s() - begun
        if not watched.told:
            raise LostError(f"{device.name} answers no more: its energy counter is gone")
        changes = [row for before, row in itertools.pairwise(watched.told) if row[1] != before[1]]
        power, refused = 0.0, ""
        if len(changes) < 3:
            refused = "the energy counter stood still for the whole window"
        else:
            energy, refused = self._drawn(changes)
            power = energy / (changes[-1][0] - changes[0][0])
        return Reading(
            power * span / launches, span / launches, None if kernel_s is None else kernel_s / launches, launches,
            watched.temperature_c, watched.clock_mhz, watched.throttled, refused,
        )  # fmt: skip

    def _drawn(self, changes: list[tuple[float, float]]) -> tuple[float, str]:
        """Energy over the changes of the counter [J], and why it can't be used; a known wrap is undone."""
        wraps, limit, total = self.settings.wraps_at_j, self.device.limit_w(), 0.0
        for (before_s, before_j), (after_s, after_j) in itertools.pairwise(changes):
            step = after_j - before_j
            if step < 0:
                most = math.inf if limit is None else 2.0 * limit * (after_s - before_s)
                if wraps is None or not 0 <= step + wraps <= most:
                    return 0.0, "the energy counter went backwards within the window: it was reset"
                step += wraps
            total += step
        return total, ""

    def _integrated(self, load: Load, launches: int) -> Reading:
        device, can = self.device, self._can
        assert can is not None
        read = device.instant_power_w if can.power == "instant" else device.average_power_w
        load.run(max(launches // (3 if can.power == "average" else 20), 1))
        begun = device.now_s()
        with _Watching(device, read, max(self.settings.poll_s, can.update_s)) as watched:
            kernel_s = load.run(launches)
        span = device.now_s() - begun
        powers = watched.told
        refused = "" if len(powers) >= 5 else f"only {len(powers)} power readings in the window: too short"
        power = watched.mean_w if powers else 0.0
        return Reading(
            power * span / launches, span / launches, None if kernel_s is None else kernel_s / launches, launches,
            watched.temperature_c, watched.clock_mhz, watched.throttled, refused,
        )  # fmt: skip

    def _resting_w(self) -> float | None:
        """Power once it falls no more: what ran before, or the average over the last second, is not the idle GPU's."""
        read = self.device.instant_power_w if self.device.instant_power_w() else self.device.average_power_w
        least = read()
        for _ in range(10):
            self.device.sleep(0.7)
            now = read()
            if least is None or now is None:
                return now or least
            settled = now >= 0.98 * least
            least = min(least, now)
            if settled and now <= 1.02 * least:
                break
        return least

    def _warm(self, load: Load) -> None:
        """Run until ten seconds change the temperature by less than what counts as steady."""
        device, settings = self.device, self.settings
        begun, before = device.now_s(), device.temperature_c()
        if before is None:
            load.run(self._launches(load, 5.0))
            self._notes.append("the temperature can't be read: warmed up for 5 s")
            return
        while device.now_s() - begun < settings.preheat_s:
            load.run(self._launches(load, 10.0))
            after = device.temperature_c()
            if after is None or abs(after - before) < settings.steady_k:
                return
            before = after
        self._notes.append(f"the temperature was not steady after {settings.preheat_s:.0f} s of warming up")


class _Watching:
    """Looks at a device from a thread while the caller runs a load; once at each end where nothing can run beside.

    A simulated device offers ``watch``: it calls back as its own time passes.
    """

    def __init__(self, device: Device, read: object = None, every_s: float = 0.1) -> None:
        self._device, self._read, self._every = device, read, every_s
        self.told: list[tuple[float, float]] = []
        self._temperatures: list[float] = []
        self._clocks: list[float] = []
        self.throttled = False
        self._failed: InfeasibleError | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> _Watching:
        self.look()
        simulated = getattr(self._device, "watch", None)
        if simulated is not None:
            simulated(self.look, self._every)
        else:
            self._thread = threading.Thread(target=self._loop, daemon=True)
            self._thread.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        else:
            getattr(self._device, "watch")(None, self._every)  # noqa: B009 - no part of the protocol
        if kind is None:
            self.look()
            if self._failed is not None:
                raise self._failed

    def look(self) -> None:
        """One look at everything."""
        try:
            temperature, clock, held = self._device.temperature_c(), self._device.clock_mhz(), self._device.throttled()
            told = self._read() if callable(self._read) else None
        except InfeasibleError as error:
            self._failed = error
            return
        if temperature is not None:
            self._temperatures.append(temperature)
        if clock is not None:
            self._clocks.append(clock)
        self.throttled |= bool(held)
        if told:  # zeros are readings that came too fast
            self.told.append((self._device.now_s(), told))

    @property
    def temperature_c(self) -> float | None:
        """Mean of what was seen. [deg C]"""
        return float(np.mean(self._temperatures)) if self._temperatures else None

    @property
    def clock_mhz(self) -> float | None:
        """Mean of what was seen; the ends, where the device may rest, weigh little. [MHz]"""
        return float(np.median(self._clocks)) if self._clocks else None

    @property
    def mean_w(self) -> float:
        """Mean power by the trapezoid rule. [W]"""
        times, powers = np.array(self.told).T
        span = float(times[-1] - times[0])
        return float(np.trapezoid(powers, times)) / span if span > 0 else float(powers.mean())

    def _loop(self) -> None:
        while not self._stop.wait(self._every):
            self.look()


class _Running:
    """A load that runs while the caller looks; a simulated device runs it as the caller sleeps."""

    def __init__(self, device: Device, load: Load, launches: int) -> None:
        self._device, self._load, self._launches = device, load, launches
        self._thread: threading.Thread | None = None

    def __enter__(self) -> None:
        simulated = getattr(self._device, "run_beside", None)
        if simulated is not None:
            simulated(self._load)
        else:
            self._thread = threading.Thread(target=self._load.run, args=(self._launches,), daemon=True)
            self._thread.start()
            self._device.sleep(0.2)

    def __exit__(self, *_: object) -> None:
        if self._thread is not None:
            self._thread.join()
        else:
            getattr(self._device, "run_beside")(None)  # noqa: B009 - no part of the protocol
