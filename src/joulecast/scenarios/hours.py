"""A price or a carbon intensity that changes by the hour: a table over time, and its mean over a run."""

from __future__ import annotations

import csv
import io
import math
import stat
from dataclasses import dataclass
from datetime import UTC, datetime, time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from joulecast.errors import InputError, shortened

Floats = npt.NDArray[np.float64]

HOUR_S = 3600.0

#: Tables of plain hours, by their length: what hour 0 is. They repeat.
_SPANS = {24: "day", 168: "week", 8760: "year", 8784: "year"}

#: Two decades of quarter hours.
_MOST_BYTES, _MOST_ROWS = 32_000_000, 750_000


@dataclass(frozen=True)
class HourTable:
    """A figure that holds from each of `edges_s` to the next.

    Attributes
    ----------
    edges_s : ndarray, shape (n + 1,)
        Strictly rising. Seconds after midnight (``day``), after Monday 00:00 (``week``), after 1 January (``year``),
        or after 1 January 1970 (``dates``). [s]
    values : ndarray, shape (n,)
    span : str
        ``day``, ``week`` or ``year``: the table repeats; ``dates``: it holds for its own dates only.
    zoned : bool
        Whether the dates came with a time zone (they are kept in UTC).
    name : str
        For messages.
    """

    edges_s: Floats
    values: Floats
    span: str
    zoned: bool = False
    name: str = "the table"

    def whole_mean(self) -> float:
        """Mean over the whole table, weighted by time."""
        return float(self.values @ np.diff(self.edges_s) / (self.edges_s[-1] - self.edges_s[0]))

    def mean(self, start_s: Any, duration_s: Any) -> Floats:
        """Mean over a run, weighted by time: that of a run that draws the same power all along.

        Parameters
        ----------
        start_s : array_like
            When it starts, in the table's own seconds (`seconds_of`). [s]
        duration_s : array_like
            How long it takes; 0 gives the figure at the start. [s]

        Returns
        -------
        ndarray

        Raises
        ------
        InputError
            If the run leaves a table of dates.
        """
        start, duration = np.broadcast_arrays(
            np.asarray(start_s, dtype=np.float64), np.asarray(duration_s, dtype=np.float64)
        )
        end = start + duration
        first, last = float(self.edges_s[0]), float(self.edges_s[-1])
        if self.span == "dates" and start.size and (start.min() < first or end.max() > last):
            raise InputError(
                f"{self.name} covers {_date(first, self.zoned)} to {_date(last, self.zoned)}, but the run goes from "
                f"{_date(float(start.min()), self.zoned)} to {_date(float(end.max()), self.zoned)}: give more rows or "
                "another start"
            )
        at_start, at_end = self._integral(start), self._integral(end)
        # Within one cell the difference of two large integrals would lose what short runs need.
        within = start if self.span == "dates" else np.mod(start, last)
        cell = self._cell(within)
        one_cell = within + duration <= self.edges_s[cell + 1]
        spread = np.divide(at_end - at_start, duration, out=np.zeros(start.shape), where=duration > 0)
        lowest, highest = self.values.min(), self.values.max()
        return np.where(one_cell | (duration <= 0), self.values[cell], np.clip(spread, lowest, highest))

    def seconds_of(self, start: str | datetime | time) -> float:
        """A moment in the table's own seconds.

        Parameters
        ----------
        start : str, datetime or time
            A date and time (ISO 8601); for a table over a day a time alone (``18:30``) is enough.

        Raises
        ------
        InputError
            If it can't be read, lacks the date or the time zone that the table needs, or has a zone too many.
        """
        moment = _moment(start)
        if isinstance(moment, time):
            if self.span != "day":
                raise InputError(
                    f"{self.name} needs a date with the time of the start, such as 2026-01-31T18:30, "
                    f"not {shortened(start, 40)!r}"
                )
            return _of_day(moment)
        zoned = moment.tzinfo is not None
        if zoned != (self.zoned if self.span == "dates" else False):
            has = "times with a zone" if self.zoned and self.span == "dates" else "times without a zone"
            raise InputError(f"{self.name} has {has}, the start {shortened(start, 40)!r} does not match: give it alike")
        if self.span == "dates":
            return _epoch_s(moment)
        days = {"day": 0, "week": moment.weekday(), "year": moment.timetuple().tm_yday - 1}[self.span]
        return days * 24 * HOUR_S + _of_day(moment)

    def _integral(self, at_s: Floats) -> Floats:
        """Integral of the figure from the first edge to `at_s`, through repetitions."""
        areas = np.concatenate([[0.0], np.cumsum(self.values * np.diff(self.edges_s))])
        if self.span == "dates":
            return np.asarray(np.interp(at_s, self.edges_s, areas))
        period = self.edges_s[-1]
        turns = np.floor(at_s / period)
        return np.asarray(turns * areas[-1] + np.interp(at_s - turns * period, self.edges_s, areas))

    def _cell(self, at_s: Floats) -> npt.NDArray[np.intp]:
        found = np.searchsorted(self.edges_s, at_s, side="right") - 1
        return np.asarray(np.clip(found, 0, self.values.size - 1), dtype=np.intp)


def read_hours(path: str | Path, what: str, unit: str, *, least: float, most: float) -> HourTable:
    """Read a table over hours from a CSV file of two columns.

    The first column is ``hour`` (0 to 23 of a day, 0 to 167 of a week from Monday, 0 to 8759 of a year: the table
    repeats) or ``time`` (ISO 8601, rising; each row holds until the next, the last as long as the one before it).

    Parameters
    ----------
    path : str or Path
    what, unit : str
        What the figures are, and their unit, for messages.
    least, most : float
        Bounds of the figures.

    Returns
    -------
    HourTable

    Raises
    ------
    InputError
        If the file can't be read as such a table; the line is told.
    """
    path = Path(path)
    name = f"{what} table {shortened(path)}"
    first, figures, lines, heading = _two_columns(path, name)
    values = np.array([_figure(text, name, line, unit, least, most) for text, line in zip(figures, lines, strict=True)])
    if heading.startswith("hour") or (not heading and _as_float(first[0]) is not None):
        edges, values, span = _plain_hours(first, values, lines, name)
        return HourTable(edges, values, span, name=name)
    edges, zoned = _dates(first, lines, name)
    return HourTable(edges, values, "dates", zoned, name)


def _two_columns(path: Path, name: str) -> tuple[list[str], list[str], list[int], str]:
    """First and second column, the line of each row, and the first column's heading ('' without one)."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):  # a pipe would be waited for, a device read without end
            raise InputError(f"{name} is not a regular file")
        if status.st_size > _MOST_BYTES:
            raise InputError(f"{name} is larger than {_MOST_BYTES // 10**6} MB: give hours, not seconds")
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(f"{name} is not a text file in UTF-8") from None
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"can't read {name}: {getattr(error, 'strerror', None) or error}") from None
    head = next((line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")), "")
    separator = max(",;\t", key=head.count)
    found: list[tuple[int, list[str]]] = []
    try:
        for number, row in enumerate(csv.reader(io.StringIO(text), delimiter=separator, strict=True), start=1):
            cells = [cell.strip() for cell in row]
            if any(cells) and not cells[0].startswith("#"):
                found.append((number, cells))
    except csv.Error as error:
        raise InputError(f"{name} is damaged: {error}") from None
    if len(found) > _MOST_ROWS:
        raise InputError(f"{name} has more than {_MOST_ROWS:,} rows")
    wide = next(((number, row) for number, row in found if len(row) != 2), None)
    if wide is not None:
        raise InputError(f"{name}, line {wide[0]}: two columns are needed (hour or time, value), not {len(wide[1])}")
    heading = ""
    if found and found[0][1][0].lower() in ("hour", "hours", "time", "datetime", "timestamp"):
        heading, figure = (cell.lower() for cell in found.pop(0)[1])
        if "kg" in figure or "mwh" in figure:
            raise InputError(f"{name} has the column {shortened(figure, 40)!r}: give its figures a kWh, in g or money")
    if not found:
        raise InputError(f"{name} has no rows: give hour,value or time,value")
    return [row[0] for _, row in found], [row[1] for _, row in found], [number for number, _ in found], heading


def _figure(text: str, name: str, line: int, unit: str, least: float, most: float) -> float:
    value = _as_float(text)
    if value is None or not math.isfinite(value):
        raise InputError(f"{name}, line {line}: {shortened(text, 40)!r} is no number of {unit}")
    if not least <= value <= most:
        raise InputError(f"{name}, line {line}: {value:g} {unit} is out of bounds, {least:g} to {most:g}")
    return value


def _plain_hours(hours: list[str], values: Floats, lines: list[int], name: str) -> tuple[Floats, Floats, str]:
    numbers = [_as_float(text) for text in hours]
    for number, text, line in zip(numbers, hours, lines, strict=True):
        if number is None or number != int(number if math.isfinite(number) else 0.5):
            raise InputError(f"{name}, line {line}: {shortened(text, 40)!r} is no whole hour")
    at = np.array(numbers, dtype=np.float64)
    order = np.argsort(at, kind="stable")
    span = _SPANS.get(at.size)
    if span is None or not np.array_equal(at[order], np.arange(at.size)):
        raise InputError(
            f"{name} must give every hour once, 0 to 23 of a day, 0 to 167 of a week or 0 to 8759 of a year; "
            f"it has {at.size} rows from {at.min():g} to {at.max():g}"
        )
    return np.asarray(np.arange(at.size + 1) * HOUR_S, dtype=np.float64), values[order], span


def _dates(texts: list[str], lines: list[int], name: str) -> tuple[Floats, bool]:
    moments: list[datetime] = []
    for text, line in zip(texts, lines, strict=True):
        try:
            moments.append(datetime.fromisoformat(text))
        except ValueError:
            raise InputError(
                f"{name}, line {line}: {shortened(text, 40)!r} is no hour and no time such as 2026-01-31T18:00"
            ) from None
    zoned = moments[0].tzinfo is not None
    if any((one.tzinfo is not None) != zoned for one in moments):
        raise InputError(f"{name} has times with and without a zone: give all of one kind")
    if len(moments) < 2:
        raise InputError(f"{name} has one time only: give two or more, so that it is known how long each holds")
    edges = np.array([_epoch_s(one) for one in moments])
    steps = np.diff(edges)
    if steps.min() <= 0:
        line = lines[int(np.argmax(steps <= 0)) + 1]
        hint = "" if zoned else "; where clocks go back, give times with their zone, such as 2026-10-25T02:00+01:00"
        raise InputError(f"{name}, line {line}: its time is not later than the one before it{hint}")
    return np.append(edges, edges[-1] + steps[-1]), zoned


def _moment(start: str | datetime | time) -> datetime | time:
    if isinstance(start, datetime | time):
        return start
    text = str(start).strip()
    try:
        if text.isascii() and text.isdecimal() and len(text) <= 2:
            return time(int(text))
        if len(text) <= 15 and ":" in text and not {"-", "T", "Z", "+", " "} & set(text.upper()):
            return time.fromisoformat(text.zfill(5) if text.count(":") == 1 else text)
        return datetime.fromisoformat(text)
    except ValueError:
        raise InputError(
            f"start must be a time such as 18:30 or 2026-01-31T18:30, not {shortened(text, 40)!r}"
        ) from None


def _of_day(moment: datetime | time) -> float:
    return moment.hour * HOUR_S + moment.minute * 60.0 + moment.second + moment.microsecond * 1e-6


def _epoch_s(moment: datetime) -> float:
    return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()


def _date(at_s: float, zoned: bool) -> str:
    try:
        text = datetime.fromtimestamp(at_s, tz=UTC).strftime("%Y-%m-%d %H:%M")
    except (OverflowError, ValueError, OSError):
        return f"{at_s / HOUR_S:.4g} h"
    return text + (" UTC" if zoned else "")


def _as_float(text: str) -> float | None:
    try:
        return float(text) if text.isascii() and "_" not in text else None
    except ValueError:
        return None
