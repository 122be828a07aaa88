"""Draws what a search found: time against energy, with the slack, the front, the baseline and the choice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from joulecast.reports.plots import styled, the_altair

_OTHER, _FRONT, _BASELINE, _CHOSEN = "#9cc3d5", "#2a6f97", "#e07a5f", "#1f7a4d"


def time_energy(
    rows: Sequence[Mapping[str, Any]], limit: float, units: tuple[str, str], *, title: str, subtitle: Sequence[str]
) -> Any:
    """A chart of the configurations whose energy is known.

    Parameters
    ----------
    rows : sequence of mapping
        With ``time``, ``energy``, ``error`` (half of its 95 % interval, 0 where there is none), ``kind`` (``other``,
        ``on the front``, ``baseline`` or ``chosen``), ``front`` and ``label``.
    limit : float
        Longest time within the slack, in the unit of ``time``.
    units : (str, str)
        Of time and energy.
    title : str
    subtitle : sequence of str
        One line each.
    """
    alt = the_altair()
    kinds = ["other", "on the front", "baseline", "chosen"]
    colour = alt.Color(
        "kind:N", title=None, sort=kinds, scale=alt.Scale(domain=kinds, range=[_OTHER, _FRONT, _BASELINE, _CHOSEN]),
        legend=alt.Legend(orient="top"),
    )  # fmt: skip
    shape = alt.Shape(
        "kind:N", title=None, sort=kinds, scale=alt.Scale(domain=kinds, range=["circle", "circle", "diamond", "square"])
    )
    # What is far beyond the slack would squeeze all that matters into a corner.
    shown = [row for row in rows if row["time"] <= limit * 1.25 or row["label"]]
    shown.sort(key=lambda row: kinds.index(row["kind"]))  # what it is about lies on top
    shown = [{**row, "low": row["energy"] - row["error"], "high": row["energy"] + row["error"]} for row in shown]
    x = alt.X("time:Q", title=f"time of a launch [{units[0]}]", scale=alt.Scale(zero=False, padding=18))
    height, span = f"energy of a launch [{units[1]}]", alt.Scale(zero=False, padding=18)
    y = alt.Y("energy:Q", title=height, scale=span)
    data = alt.Data(values=shown)
    points = alt.Chart(data).mark_point(filled=True, size=90, opacity=0.9).encode(x=x, y=y, color=colour, shape=shape)
    line = (
        alt.Chart(alt.Data(values=sorted((row for row in shown if row["front"]), key=lambda row: row["time"])))
        .mark_line(interpolate="step-after", color=_FRONT, strokeWidth=1.5, opacity=0.6)
        .encode(x=x, y=y)
    )
    edge = alt.Chart(alt.Data(values=[{"time": limit}])).mark_rule(color="#b23a48", strokeDash=[5, 4]).encode(x=x)
    said = (
        alt.Chart(alt.Data(values=[{"time": limit, "label": "slack"}]))
        .mark_text(align="left", dx=4, color="#b23a48")
        .encode(x=x, y=alt.value(10), text="label:N")
    )
    bars = (
        alt.Chart(data)
        .mark_rule(opacity=0.7)
        .encode(x=x, y=alt.Y("low:Q", title=height, scale=span), y2="high:Q", color=colour)
    )
    named = alt.Data(values=[row for row in shown if row["label"]])
    below = {"baseline": -9, "chosen": 15}
    words = [
        alt.Chart(named)
        .transform_filter(alt.datum.kind == kind)
        .mark_text(align="left", dx=9, dy=dy, fontSize=11, **style)
        .encode(x=x, y=y, text="label:N")
        for kind, dy in below.items()
        for style in ({"stroke": "white", "strokeWidth": 3}, {})  # readable on whatever lies beneath
    ]
    chart = alt.layer(line, edge, said, bars, points, *words).properties(
        width=620, height=380, title=alt.TitleParams(title, subtitle=list(subtitle), anchor="start")
    )
    return styled(chart)
