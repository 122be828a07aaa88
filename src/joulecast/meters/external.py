"""Energy by an external meter that writes a CSV of times and powers, such as PowerSensor or a smart plug."""

from __future__ import annotations

import csv
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from joulecast.bounds.plausibility import BOARD_W, slip_of_unit
from joulecast.errors import InfeasibleError, InputError, shortened
from joulecast.meters.contents import content_of
from joulecast.meters.device import LostError
from joulecast.meters.judge import judged
from joulecast.meters.reading import Load, MeterFacts, Reading
from joulecast.meters.recording import Floats

#: Readings that tell how a file is written now.
_LAST = 100

#: A file whose newest reading is further from now is not being written; programs may keep lines back for a while. [s]
_FRESH_S = 60.0


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
    content_of(file, "the meter's file", "CSV")
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


def in_units(times_s: Floats, powers_w: Floats, now_s: float, usual_w: tuple[float, float] = BOARD_W) -> None:
    """See that times and powers are in seconds of this machine's clock and in watts, and are being written.

    Parameters
    ----------
    times_s, powers_w : ndarray
        Of the file. [s, W]
    now_s : float
        By the clock of this machine. [s]
    usual_w : (float, float)
        What the meter can show, at the least and at the most. [W]

    Raises
    ------
    InputError
        Naming the unit that they seem to be in.
    """
    if len(times_s) < 2:
        raise InputError("the meter's file holds no readings yet: start the program that writes it first")
    newest = float(times_s[-1])
    unit = {3: "milliseconds", 6: "microseconds", 9: "nanoseconds"}.get(int(slip_of_unit(newest / now_s)))
    if unit:
        raise InputError(
            f"the meter's time_s ends at {newest:.6g}, which looks like {unit}: seconds since 1970 are needed"
        )
    if abs(newest - now_s) > _FRESH_S:
        side = "before" if newest < now_s else "after"
        told = "it is in seconds since 1970 by this machine's clock, and written while the search runs"
        raise InputError(f"the meter's time_s ends {abs(newest - now_s):,.0f} s {side} now: {told}")
    middle = float(np.median(powers_w[-_LAST:]))
    if not usual_w[0] <= middle <= usual_w[1]:
        told = "mW?" if middle > usual_w[1] else "kW?" if middle > 0 else "nothing is metered"
        raise InputError(
            f"the meter's power_W was {middle:,.3g} of late, which can't be the watts of this GPU ({told})"
        )


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
    usual_w : (float, float)
        What the meter can show: beyond it, its file is in another unit. [W]
    wait_s : float
        How long to wait for the file to cover a window. [s]
    clock : callable
        Of the machine, in the file's own time. [s]
    """

    def __init__(
        self, path: str | Path, window_s: float = 2.0, *, cap_w: float | None = None, idle_w: float | None = None,
        usual_w: tuple[float, float] = BOARD_W, wait_s: float = 5.0, clock: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        self._path, self._window, self._wait, self._clock = Path(path), window_s, wait_s, clock
        self._usual_w = usual_w
        self._facts = MeterFacts(
            "external", f"external meter ({self._path.name})", "power integrated", cap_w, idle_w,
            notes=("what else the meter sees (host, fans, supply) is in the energy",),
        )  # fmt: skip
        self._launch_s: dict[str, float] = {}

    @property
    def facts(self) -> MeterFacts:
        """Of the file."""
        return self._facts

    def look(self) -> None:
        """See that the file is written and in its units, and make the window long enough for how often it is.

        Raises
        ------
        InputError
            Naming what is wrong.
        """
        times, powers = read_powers(self._path)
        in_units(times, powers, self._clock(), self._usual_w)
        apart = float(np.median(np.diff(times[-_LAST:])))
        self._window, self._wait = max(self._window, 7.0 * apart), max(self._wait, 3.0 * apart)

    def prepare(self, load: Load) -> None:
        """Look at the file, and run for ten seconds."""
        self.look()
        load.run(self._launches(load, 10.0))

    def read(self, load: Load) -> Reading:
        """One window, once the file covers it; refused where it does not in time.

        Raises
        ------
        LostError
            If the file has not grown since before the window.
        """
        launches = load.launches_of(self._launches(load, self._window))
        begun = self._clock()
        kernel_s = load.run(launches)
        ended = self._clock()
        kernel = None if kernel_s is None else kernel_s / launches
        span = ended - begun
        give_up = time.monotonic() + self._wait
        while True:
            times, powers = read_powers(self._path)
            try:
                energy = energy_between(times, powers, begun, ended)
                return judged(Reading(energy / launches, span / launches, kernel, launches), self._facts)
            except InfeasibleError as error:
                if time.monotonic() > give_up:
                    if not len(times) or times[-1] < begun:
                        raise LostError(
                            f"{self._path.name} grows no more: the program that writes it has ended"
                        ) from None
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
