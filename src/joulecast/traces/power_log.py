"""Power that was measured while a trace was taken: logs of several tools, told apart by content."""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from joulecast.errors import InputError, shortened
from joulecast.workloads.files import named, read_bytes, text_of
from joulecast.workloads.profile import Floats

#: Columns that hold a time, by the words of their names.
_TIME = re.compile(r"^(time|timestamp|t|date_?time|time_s|seconds|elapsed|unix_time|epoch)(_?\(?(s|sec|seconds)\)?)?$")
#: Columns that hold a power, with the number of a GPU in the second group.
_POWER = re.compile(
    r"^(power|power_w|watts?|w|pwr|power_?draw|power\.draw(?:\.instant|\.average)?|gpu|gpu_?power)_?(\d+)?(?:_w)?$"
)
_GPU = re.compile(r"^(gpu|index|gpu_?id|gpu_?index|id|device|idx)$")
_UNIT = re.compile(r"\s*[\[(].*?[\])]\s*$")
_TIME_FORMS = (
    "%Y/%m/%d %H:%M:%S.%f", "%Y/%m/%d %H:%M:%S", "%Y-%m-%d %H:%M:%S.%f", "%Y-%m-%d %H:%M:%S",
    "%Y-%m-%dT%H:%M:%S.%f", "%Y-%m-%dT%H:%M:%S", "%Y%m%d %H:%M:%S",
)  # fmt: skip
_HIGHEST_W = 1e5


@dataclass(frozen=True)
class PowerLog:
    """Samples of a meter.

    Attributes
    ----------
    source : str
    format : str
        ``csv``, ``nvidia-smi``, ``nvidia-smi dmon``, ``dcgm`` or ``zeus``.
    time_s : mapping of int to ndarray
        Of the samples of each GPU, rising; seconds since 1970 where `dated`, else since some moment. [s]
    power_w : mapping of int to ndarray
        [W]
    dated : bool
    timed : bool
        Whether the log holds times at all; else its samples are taken to be evenly spaced.
    """

    source: str
    format: str
    time_s: dict[int, Floats]
    power_w: dict[int, Floats]
    dated: bool
    timed: bool = True

    @property
    def gpus(self) -> tuple[int, ...]:
        """Numbers of the GPUs in it."""
        return tuple(sorted(self.power_w))


def read_power_log(path: str | Path, *, interval_s: float | None = None) -> PowerLog:
    """Read a log of power.

    Parameters
    ----------
    path : str or Path
        A CSV table with a time and a power column (Zeus's power monitor, or one's own: ``time_s,power_w``), or what
        ``nvidia-smi --query-gpu=timestamp,index,power.draw --format=csv``, ``nvidia-smi dmon -s p -o DT`` or
        ``dcgmi dmon -e 155`` print.
    interval_s : float, optional
        Time between samples of a log without times; default 1 s, the tools' own. [s]

    Returns
    -------
    PowerLog

    Raises
    ------
    InputError
        If it is none of these, or holds fewer than two samples.
    """
    name = named(path)
    text = text_of(read_bytes(path), name)
    lines = [line for line in text.splitlines() if line.strip()]
    if lines and lines[0].lstrip().startswith("#"):
        return _checked(_monitor(lines, name, interval_s or 1.0), name)
    return _checked(_table(lines, name), name)


def _checked(log: PowerLog, name: str) -> PowerLog:
    for gpu, power in log.power_w.items():
        if len(power) < 2:
            raise InputError(f"{name} holds {len(power)} power sample(s) of GPU {gpu}: at least two are needed")
        if not np.all(np.isfinite(power)) or power.min() < 0 or power.max() > _HIGHEST_W:
            raise InputError(f"{name} holds powers that are none: they must lie between 0 and {_HIGHEST_W:g} W")
    return log


def _sorted(samples: dict[int, list[tuple[float, float]]], name: str) -> tuple[dict[int, Floats], dict[int, Floats]]:
    if not samples:
        raise InputError(f"{name} holds no power sample")
    time_s, power_w = {}, {}
    for gpu, pairs in samples.items():
        table = np.array(sorted(pairs))
        time_s[gpu], power_w[gpu] = table[:, 0], table[:, 1]
    return time_s, power_w


def _table(lines: list[str], name: str) -> PowerLog:
    head = [_UNIT.sub("", cell).strip().lower() for cell in next(csv.reader(lines[:1]), [])]
    times = [place for place, cell in enumerate(head) if _TIME.match(cell)]
    powers = {place: found.group(2) for place, cell in enumerate(head) if (found := _POWER.match(cell))}
    numbers = [place for place, cell in enumerate(head) if _GPU.match(cell)]
    index = next((place for place in numbers if len(powers) > (place in powers)), None)
    if index is not None:
        powers.pop(index, None)
    if not times or not powers:
        raise InputError(
            f"{name} is no power log: its first line must name a time and a power column, such as time_s,power_w, "
            "or be that of nvidia-smi, DCGM or Zeus"
        )
    samples: dict[int, list[tuple[float, float]]] = {}
    dated = False
    for number, row in enumerate(csv.reader(lines[1:]), start=2):
        if len(row) < len(head):
            if number == len(lines):  # the tool was stopped in the middle of a line
                break
            raise InputError(f"{name}, line {number}: {len(row)} cells where {len(head)} are expected")
        stamp, is_date = _moment(row[times[0]], name, number)
        dated = is_date or (dated or stamp > 1e9)
        for place, suffix in powers.items():
            cell = row[place].strip().removesuffix("W").strip()
            if cell in ("[N/A]", "N/A", "[Not Supported]", ""):
                continue
            gpu = int(suffix) if suffix else _whole(row[index], name, number) if index is not None else 0
            samples.setdefault(gpu, []).append((stamp, _real(cell, name, number)))
    time_s, power_w = _sorted(samples, name)
    zeus = any(cell.startswith(("gpu", "power")) and cell[-1:].isdigit() for cell in head)
    form = "nvidia-smi" if any("power.draw" in cell for cell in head) else "zeus" if zeus else "csv"
    return PowerLog(name, form, time_s, power_w, dated)


def _monitor(lines: list[str], name: str, interval_s: float) -> PowerLog:
    """What ``nvidia-smi dmon`` and ``dcgmi dmon`` print: headers after ``#``, cells apart by spaces."""
    head = lines[0].lstrip("# ").lower().split()
    dcgm = "entity" in head
    power = next((place for place, cell in enumerate(head) if cell in ("power", "pwr", "powrd", "pwr_draw")), None)
    if power is None:
        raise InputError(f"{name} is no power log: no column POWER (dcgmi dmon -e 155) or pwr (nvidia-smi dmon -s p)")
    from_end = power - len(head)
    stamps = "date" in head and "time" in head
    samples: dict[int, list[tuple[float, float]]] = {}
    for number, line in enumerate(lines, start=1):
        cells = line.split()
        if line.lstrip().startswith(("#", "ID")) or len(cells) < len(head):
            continue
        gpu = _whole(cells[1] if dcgm else cells[head.index("gpu")], name, number)
        stamp = (
            _moment(f"{cells[head.index('date')]} {cells[head.index('time')]}", name, number)[0]
            if stamps
            else len(samples.get(gpu, ())) * interval_s
        )
        if cells[from_end] not in ("-", "N/A"):
            samples.setdefault(gpu, []).append((stamp, _real(cells[from_end], name, number)))
    time_s, power_w = _sorted(samples, name)
    return PowerLog(name, "dcgm" if dcgm else "nvidia-smi dmon", time_s, power_w, dated=stamps, timed=stamps)


def _moment(cell: str, name: str, line: int) -> tuple[float, bool]:
    """A time in seconds, and whether it is a date."""
    text = cell.strip()
    try:
        return float(text), False
    except ValueError:
        pass
    for form in _TIME_FORMS:
        try:
            # local time is not known: hours are aligned by the offset that fits (`reconcile`)
            return datetime.strptime(text.removesuffix("Z"), form).replace(tzinfo=UTC).timestamp(), True
        except ValueError:
            continue
    raise InputError(f"{name}, line {line}: {shortened(text, 40)!r} is no time")


def _real(cell: str, name: str, line: int) -> float:
    try:
        return float(cell)
    except ValueError:
        raise InputError(f"{name}, line {line}: {shortened(cell, 40)!r} is no power in W") from None


def _whole(cell: str, name: str, line: int) -> int:
    try:
        return int(cell)
    except ValueError:
        raise InputError(f"{name}, line {line}: {shortened(cell, 40)!r} is no number of a GPU") from None
