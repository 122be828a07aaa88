"""The chart of `joulecast sweep --plot`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from joulecast import writing
from joulecast.cli.sweep_page import Told, coordinates, points_kept
from joulecast.errors import InputError
from joulecast.reports import plots, sweep_plot, text
from joulecast.scenarios.sweep.chunk import joined
from joulecast.scenarios.sweep.objectives import OBJECTIVES, Objective
from joulecast.scenarios.sweep.table import points_of

#: Clocks that the curve over them has at most.
_CLOCKS = 160

_LABELS = {
    "time": "fastest", "energy": "fewest joules", "edp": "least energy x time", "throughput": "most tokens/s",
    "energy_per_token": "least J/token", "cost": "cheapest", "carbon": "least carbon", "power": "fewest watts",
    "ed2p": "least energy x time²",
}  # fmt: skip


def draw(told: Told, path: Path) -> None:
    """Write the chart, whole or not at all."""
    group = _group(told)
    rows = points_kept(told, told.found.sample).rows()
    front = points_kept(told, told.found.front).rows()
    x, y = told.pair
    if not front:
        raise InputError(f"nothing to draw of {x.title} against {y.title}: the workload counts no tokens")
    scales = tuple(_scale([row[one.column] for row in [*rows, *front]], one.unit) for one in told.pair)
    curve = _clock_curve(told)
    clock_scales = tuple(
        _scale([row[name] for row in curve], unit) for name, unit in (("energy_j", "J"), ("time_s", "s"))
    )
    chart = sweep_plot.sweep_chart(
        [_mark(told, row, group, scales) for row in rows],
        [_mark(told, row, group, scales) for row in front],
        _best(told, scales),
        ({"title": x.title, "unit": scales[0][1]}, {"title": y.title, "unit": scales[1][1]}),
        None if group is None else "GPU" if group == "gpu" else group.removeprefix("set."),
        [
            {**row, "energy": row["energy_j"] * clock_scales[0][0], "time": row["time_s"] * clock_scales[1][0]}
            for row in curve
        ],
        (clock_scales[0][1], clock_scales[1][1]),
        f"the point of least {_thrifty(told).title} at other clocks",
        title=str(told.evaluator.source).rsplit("/", 1)[-1],
        subtitle=_subtitle(told, len(rows)),
    )
    writing.write_atomic(path, plots.written(chart, path.suffix.lower().removeprefix(".")))


_PREFIXES = ((1e-6, "µ"), (1e-3, "m"), (1.0, ""), (1e3, "k"), (1e6, "M"))


def _scale(values: Sequence[float], unit: str) -> tuple[float, str]:
    """Factor and unit in which the middle of `values` reads best; only units of one letter take a prefix."""
    middle = float(np.median(values)) if len(values) else 1.0
    if len(unit) != 1:
        return 1.0, unit
    for small, least, large in (("s", 7200.0, (3600.0, "h")), ("J", 3.6e8, (3.6e9, "MWh"))):
        if unit == small and middle >= least:
            return 1.0 / large[0], large[1]
    size, prefix = next((one for one in reversed(_PREFIXES) if middle >= 0.2 * one[0]), _PREFIXES[0])
    if unit == "s" and size > 1:
        size, prefix = 1.0, ""
    return 1.0 / size, prefix + unit


def _group(told: Told) -> str | None:
    """The axis whose values colours tell: of the GPU first, else the one of fewest values that is not the clock."""
    varied = [axis for axis in told.evaluator.space.varied if axis.name not in ("clock_mhz", "power_limit_w")]
    if any(axis.name == "gpu" for axis in varied):
        return "gpu"
    return min(varied, key=lambda axis: len(axis.values)).name if varied else None


def _mark(told: Told, row: Mapping[str, Any], group: str | None, scales: Sequence[tuple[float, str]]) -> dict[str, Any]:
    x, y = told.pair
    named = "" if group is None else row[group]
    return {
        "x": row[x.column] * scales[0][0],
        "y": row[y.column] * scales[1][0],
        "group": f"{named:g}" if isinstance(named, float) else str(named),
        "what": f"{coordinates(told, row)}: {text.duration(row['time_s'])}, {text.power(row['power_w'])}, "
        f"{text.energy(row['energy_j'])}",
    }


def _best(told: Told, scales: Sequence[tuple[float, str]]) -> list[dict[str, Any]]:
    """Marks of the ends of the front, and of the least energy-delay product on it."""
    x, y = told.pair
    names = [x.name, y.name] + [name for name in ("edp",) if {x.name, y.name} == {"time", "energy"}]
    at: dict[int, list[str]] = {}
    for name in names:
        if name not in told.found.best:  # of tokens, and the workload counts none
            continue
        at.setdefault(told.found.best[name], []).append(_LABELS[name])
    return [
        {"x": row[x.column] * scales[0][0], "y": row[y.column] * scales[1][0], "label": ", ".join(labels)}
        for row, labels in zip(points_kept(told, list(at)).rows(), at.values(), strict=True)
    ]


def _thrifty(told: Told) -> Objective:
    """Energy, or that of a token where the front is of it."""
    of_token = (one for one in told.pair if one.name == "energy_per_token" and one.name in told.found.best)
    return next(of_token, OBJECTIVES["energy"])


def _clock_curve(told: Told) -> list[dict[str, Any]]:
    """The point of least energy (of a token, where that is the question) at other clocks."""
    space = told.evaluator.space
    if len(space.axis("clock_mhz").values) < 2:
        return []
    best = told.found.best[_thrifty(told).name]
    along = space.along("clock_mhz", best)
    if along.size > _CLOCKS:
        along = np.unique([*along[np.linspace(0, along.size - 1, _CLOCKS).astype(int)], best])
    rows = [
        row
        for point in along.tolist()
        for row in points_of(told.evaluator, joined([told.evaluator.evaluate(point, point + 1)])).rows()
        if row["time_s"] is not None
    ]
    found = [
        {
            "clock_mhz": row["clock_asked_mhz"],
            "energy_j": row["energy_j"],
            "time_s": row["time_s"],
            "best": bool(row["clock_asked_mhz"] == told_clock),
            "label": f"{text.whole(row['clock_asked_mhz'])} MHz: {text.energy(row['energy_j'])}, "
            f"{text.duration(row['time_s'])}",
        }
        for told_clock in [points_kept(told, [best])["clock_asked_mhz"][0]]
        for row in rows
    ]
    return sorted(found, key=lambda row: row["clock_mhz"])


def _subtitle(told: Told, shown: int) -> list[str]:
    found = told.found
    some = f" ({text.whole(shown)} of them drawn)" if shown < found.feasible else ""
    lines = [f"{text.whole(found.feasible)} of {text.whole(found.points)} points are feasible{some}"]
    for name in dict.fromkeys(one.name for one in told.pair):
        row = points_kept(told, [found.best[name]]).row(0)
        lines.append(f"{_LABELS[name]}: {coordinates(told, row)}")
    return lines
