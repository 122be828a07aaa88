"""Energy by an external meter that writes a CSV of times and powers, such as PowerSensor or a smart plug."""

from __future__ import annotations

import csv
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from joulecast.errors import InfeasibleError, InputError, shortened
from joulecast.meters.judge import judged
from joulecast.meters.reading import Load, MeterFacts, Reading
from joulecast.meters.recording import Floats


def read_powers(path: str | Path) -> tuple[Floats, Floats]:
    """Times and powers of a CSV file.

    Parameters
    ----------
    path : path
        With columns ``time_s`` and ``power_W``, in seconds of the machine's own clock (since 1970).

    Returns
    -------
    times_s, powers_w : ndarray

    Raises
    ------
    InputError
        If the file can't be read, lacks a column or holds no number where one belongs. A last line that is still
        being written is left out.
    """
    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8", errors="replace").removeprefix("\ufeff")
    except OSError as error:
        raise InputError(f"can't read the meter's file {shortened(file)}: {error.strerror}") from None
    lines = text.splitlines()
    if text and not text.endswith("\n"):
        lines = lines[:-1]
    reader = csv.DictReader(lines, skipinitialspace=True)
    try:
        rows = list(reader)
    except csv.Error as error:
        raise InputError(f"can't read the meter's file {shortened(file)} as CSV: {error}") from None
    if not {"time_s", "power_W"} <= set(reader.fieldnames or ()):
        raise InputError(f"the meter's file {shortened(file)} needs the columns time_s and power_W")
    times, powers = np.zeros(len(rows)), np.zeros(len(rows))
    for number, row in enumerate(rows):
        try:
            times[number], powers[number] = float(row["time_s"]), float(row["power_W"])
        except (TypeError, ValueError):
            raise InputError(f"{shortened(file)}, line {number + 2}: time_s and power_W must be numbers") from None
    bad = np.flatnonzero(~(np.isfinite(times) & np.isfinite(powers) & (powers >= 0.0)))
    if len(bad):
        raise InputError(f"{shortened(file)}, line {bad[0] + 2}: times are finite, and powers are 0 W or more")
    if np.any(np.diff(times) <= 0):
        raise InputError(f"{shortened(file)}: time_s must rise from line to line")
    return times, powers


def energy_between(times_s: Floats, powers_w: Floats, begun_s: float, ended_s: float) -> float:
    """Energy between two times by the trapezoid rule, interpolated at both ends. [J]

    Raises
    ------
    InfeasibleError
        If the readings do not cover the window, or are fewer than five in it.
    """
    if len(times_s) < 2 or times_s[0] > begun_s or times_s[-1] < ended_s:
        raise InfeasibleError("the external meter's readings do not cover the window")
    within = (times_s > begun_s) & (times_s < ended_s)
    if within.sum() < 5:
        raise InfeasibleError(f"the external meter read {int(within.sum())} times in the window: make it longer")
    ends = np.interp([begun_s, ended_s], times_s, powers_w)
    times = np.concatenate([[begun_s], times_s[within], [ended_s]])
    powers = np.concatenate([ends[:1], powers_w[within], ends[1:]])
    return float(np.trapezoid(powers, times))


class ExternalMeter:
    """A `joulecast.meters.Meter` that reads a CSV file which another program writes.

    Parameters
    ----------
    path : path
    window_s : float
        Least length of a window. [s]
    cap_w, idle_w : float, optional
        Bounds of what a reading can be. [W]
    wait_s : float
        How long to wait for the file to cover a window. [s]
    clock : callable
        Of the machine, in the file's own time. [s]
    """

    def __init__(
        self, path: str | Path, window_s: float = 2.0, *, cap_w: float | None = None, idle_w: float | None = None,
        wait_s: float = 5.0, clock: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        self._path, self._window, self._wait, self._clock = Path(path), window_s, wait_s, clock
        self._facts = MeterFacts(
            "external", f"external meter ({self._path.name})", "power integrated", cap_w, idle_w,
            notes=("what else the meter sees (host, fans, supply) is in the energy",),
        )  # fmt: skip
        self._launch_s: dict[str, float] = {}

    @property
    def facts(self) -> MeterFacts:
        """Of the file."""
        return self._facts

    def prepare(self, load: Load) -> None:
        """Run for ten seconds, and see that the file can be read."""
        read_powers(self._path)
        load.run(self._launches(load, 10.0))

    def read(self, load: Load) -> Reading:
        """One window, once the file covers it; refused where it does not in time."""
        launches = load.launches_of(self._launches(load, self._window))
        begun = self._clock()
        kernel_s = load.run(launches)
        ended = self._clock()
        kernel = None if kernel_s is None else kernel_s / launches
        span = ended - begun
        give_up = time.monotonic() + self._wait
        while True:
            try:
                energy = energy_between(*read_powers(self._path), begun, ended)
                return judged(Reading(energy / launches, span / launches, kernel, launches), self._facts)
            except InfeasibleError as error:
                if time.monotonic() > give_up:
                    return Reading(0.0, span / launches, kernel, launches, refused=str(error))
                time.sleep(0.05)

    def _launches(self, load: Load, seconds: float) -> int:
        if load.name not in self._launch_s:
            load.run(1)
            begun = self._clock()
            done = load.launches_of(16)
            load.run(16)
            self._launch_s[load.name] = max((self._clock() - begun) / done, 1e-9)
        return max(int(seconds / self._launch_s[load.name]), 1)
