"""A `Timeline` cut into as many columns as a chart has room for: plain tables to draw."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from joulecast.physics.trace import DUTY_MODULES
from joulecast.scenarios.timeline import Timeline
from joulecast.scenarios.timeline_rows import PASS, REST, WAIT

Floats = npt.NDArray[np.float64]

#: Columns of a chart, about one a pixel.
COLUMNS = 800

WAITING, WHOLE = "waiting", "pass as a whole"


def chart_tables(timeline: Timeline, columns: int = COLUMNS) -> dict[str, Any]:
    """What a chart of power over time shows.

    Parameters
    ----------
    timeline : Timeline
    columns : int
        Stretches of equal length to cut it into, at most.

    Returns
    -------
    dict of str to list of dict
        ``power``: ``start_s``, ``end_s``, mean ``power_w`` (their integral is the timeline's energy), ``low_w`` and
        ``high_w`` of the steps in each; ``duty``: ``start_s``, ``end_s``, ``module``, ``duty``; ``families``:
        ``start_s``, ``end_s``, ``family`` that takes most of the time; ``meter``: ``at_s``, ``power_w``; ``phases``:
        ``start_s``, ``phase``; and single figures: ``limit_w``, ``mean_w``, ``peak_w``.
    """
    ends = np.cumsum(timeline.duration_s)
    count = max(1, min(columns, 4 * len(timeline)))
    cuts = np.linspace(0.0, float(ends[-1]), count + 1)
    widths = np.diff(cuts)
    first = np.minimum(np.searchsorted(ends, cuts[:-1], side="right"), len(timeline) - 1)
    last = np.minimum(np.searchsorted(ends, cuts[1:], side="left"), len(timeline) - 1)
    mean = _in_columns(timeline.power_w, timeline.duration_s, cuts) / widths
    power = [
        {
            "start_s": float(cuts[i]),
            "end_s": float(cuts[i + 1]),
            "power_w": float(mean[i]),
            "low_w": float(timeline.power_w[first[i] : last[i] + 1].min()),
            "high_w": float(timeline.power_w[first[i] : last[i] + 1].max()),
        }
        for i in range(count)
    ]
    return {
        "power": power,
        "duty": _duty(timeline, cuts),
        "families": _families(timeline, cuts),
        "meter": [
            {"at_s": at, "power_w": shown}
            for at, shown in zip(timeline.meter_at_s.tolist(), timeline.meter_w.tolist(), strict=True)
        ],
        "phases": _phases(timeline),
        "limit_w": timeline.prediction.power_limit_w,
        "mean_w": timeline.mean_power_w,
        "peak_w": timeline.peak_power_w,
    }


def _in_columns(rate: Floats, duration_s: Floats, cuts: Floats) -> Floats:
    """Integral of a rate in steps over each column."""
    edges = np.concatenate([[0.0], np.cumsum(duration_s)])
    return np.diff(np.interp(cuts, edges, np.concatenate([[0.0], np.cumsum(rate * duration_s)])))


def _duty(timeline: Timeline, cuts: Floats) -> list[dict[str, Any]]:
    """Duties in wider columns: a colour needs more room than a line."""
    cuts = cuts[:: max(1, (cuts.size - 1) // 200)] if cuts.size > 2 else cuts
    widths = np.diff(cuts)
    return [
        {"start_s": float(start), "end_s": float(end), "module": name, "duty": float(value)}
        for i, name in enumerate(DUTY_MODULES)
        for start, end, value in zip(
            cuts[:-1], cuts[1:], _in_columns(timeline.duty[i], timeline.duration_s, cuts) / widths, strict=True
        )
    ]


def _families(timeline: Timeline, cuts: Floats) -> list[dict[str, Any]]:
    """Stretches by the family that takes most of each column, like neighbours together."""
    of_row = timeline.prediction.kernels["family"]
    names = sorted({str(one) for one in of_row[timeline.row[timeline.row >= 0]]})
    codes = {name: code for code, name in enumerate([*names, WAITING, WHOLE])}
    code_of_row = np.array([codes.get(str(one), -1) for one in of_row.tolist()], dtype=np.intp)
    code = np.where(timeline.row >= 0, code_of_row[timeline.row], 0)
    code[timeline.what == WAIT] = codes[WAITING]
    code[(timeline.what == PASS) | (timeline.what == REST)] = codes[WHOLE]
    shares = np.stack(
        [_in_columns((code == one).astype(float), timeline.duration_s, cuts) for one in range(len(codes))]
    )
    most = shares.argmax(axis=0)
    starts = np.flatnonzero(np.diff(most, prepend=-1))
    stops = np.append(starts[1:], most.size)
    spelled = list(codes)
    return [
        {"start_s": float(cuts[a]), "end_s": float(cuts[b]), "family": spelled[most[a]].replace("_", " ")}
        for a, b in zip(starts.tolist(), stops.tolist(), strict=True)
    ]


def _phases(timeline: Timeline) -> list[dict[str, Any]]:
    starts = np.flatnonzero(np.diff(timeline.phase, prepend=-1))
    return [{"start_s": float(timeline.start_s[i]), "phase": timeline.phases[timeline.phase[i]]} for i in starts]
