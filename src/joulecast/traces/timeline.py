"""The measured timeline with its power over time, as events that Perfetto and chrome://tracing read."""

from __future__ import annotations

from typing import Any

import numpy as np

from joulecast.traces.attribution import Attribution, GpuShare
from joulecast.traces.names import short_name

#: Most points of the power counter: stretches are averaged together to keep within.
_MOST_POINTS = 200_000


def events(found: Attribution) -> list[dict[str, Any]]:
    """Slices of what ran, by stream, with energy and power of each, and a counter of the power of each GPU.

    Parameters
    ----------
    found : Attribution

    Returns
    -------
    list of dict
        Chrome trace events; times in microseconds from the begin of each trace.
    """
    out: list[dict[str, Any]] = []
    for process, share in enumerate(found.shares, start=1):
        out.append({"ph": "M", "name": "process_name", "pid": process, "tid": 0, "args": {"name": share.label}})
        out += [
            {"ph": "M", "name": "thread_name", "pid": process, "tid": stream, "args": {"name": f"stream {stream}"}}
            for stream in np.unique(share.profile.activities.stream).tolist()
        ]
        out += _slices(share, process)
        out += _counter(share, process)
    return out


def _slices(share: GpuShare, process: int) -> list[dict[str, Any]]:
    activities = share.profile.activities
    short = {code: short_name(share.profile.names[code]) for code in np.unique(activities.name).tolist()}
    columns = (
        activities.name, activities.stream, activities.start_s, activities.time_s, share.account.energy_j, share.family,
    )  # fmt: skip
    return [
        {
            "ph": "X",
            "name": short[name],
            "cat": share.families[family],
            "pid": process,
            "tid": stream,
            "ts": round(start * 1e6, 3),
            "dur": round(time * 1e6, 3),
            "args": {"energy (J)": energy, "power (W)": energy / time if time > 0 else 0.0},
        }
        for name, stream, start, time, energy, family in zip(*(one.tolist() for one in columns), strict=True)
    ]


def _counter(share: GpuShare, process: int) -> list[dict[str, Any]]:
    edges, power = share.account.edges_s, share.account.power_w
    if len(power) > _MOST_POINTS:
        total = np.concatenate([[0.0], np.cumsum(power * np.diff(edges))])
        at = np.linspace(edges[0], edges[-1], _MOST_POINTS + 1)
        power = np.diff(np.interp(at, edges, total)) / np.diff(at)
        edges = at
    points = [(round(start * 1e6, 3), watts) for start, watts in zip(edges[:-1].tolist(), power.tolist(), strict=True)]
    points.append((round(float(edges[-1]) * 1e6, 3), share.energies.static_w))
    return [
        {"ph": "C", "name": "board power (W)", "pid": process, "tid": 0, "ts": ts, "args": {"W": round(watts, 3)}}
        for ts, watts in points
    ]
