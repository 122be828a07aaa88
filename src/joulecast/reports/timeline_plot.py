"""Draws power over time: the launches, what a meter shows of them, and what is busy below."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any

from joulecast.reports.plots import styled, the_altair

_WIDTH = 760
_LAUNCHES, _METER, _LIMIT = "#2a6f97", "#e07a5f", "#b23a48"
#: Colours of kernel families that are nearly always there; others take the rest in turn.
_FAMILIES = {
    "gemm": "#2a6f97", "elementwise": "#e9a03b", "row reduction": "#81b29a", "gather": "#c9ada7",
    "context attention": "#8d6a9f", "generation attention": "#8d6a9f", "encoder attention": "#8d6a9f",
    "conv2d": "#2a6f97", "moe": "#1f9e89", "nccl": "#d1495b", "waiting": "#e6e6e6", "pass as a whole": "#b9c6d0",
}  # fmt: skip
_OTHERS = ("#5c946e", "#457b9d", "#bc6c25", "#6d6875", "#a44a3f", "#3d5a80", "#7f9183")


def power_over_time(tables: Mapping[str, Any], *, title: str, subtitle: Sequence[str], meter_name: str) -> Any:
    """A chart of three panels on one axis of time: power, duty of the modules, family of the kernels.

    Parameters
    ----------
    tables : mapping
        As `joulecast.scenarios.timeline_chart.chart_tables` gives.
    title : str
    subtitle : sequence of str
        One line each.
    meter_name : str
        Of the meter's line in the legend.
    """
    alt = the_altair()
    length_s = tables["power"][-1]["end_s"]
    factor, unit = (1.0, "s") if length_s >= 3 else (1e3, "ms") if length_s >= 2e-3 else (1e6, "µs")
    domain = [0.0, length_s * factor]
    scale = alt.Scale(domain=domain, nice=False)

    def x(name: str, *, labels: bool = False) -> Any:
        axis = alt.Axis(
            grid=False, labels=labels, ticks=labels, title=f"time [{unit}]" if labels else None, tickCount=12
        )
        return alt.X(name, scale=scale, axis=axis)

    power = _power(alt, tables, x, factor, meter_name)
    duty = (
        alt.Chart(alt.Data(values=_in_unit(tables["duty"], factor)))
        .mark_rect()
        .encode(
            x=x("start:Q"),
            x2="end:Q",
            y=alt.Y("module:N", title=None, sort=list(dict.fromkeys(row["module"] for row in tables["duty"]))),
            color=alt.Color(
                "duty:Q",
                title="busy",
                scale=alt.Scale(domain=[0, 1], range=["#f4f6f7", "#9cc3d5", "#1d4e6b"]),
                legend=alt.Legend(format=".0%", gradientLength=90),
            ),
        )
        .properties(width=_WIDTH, height=132)
    )
    names = list(dict.fromkeys(row["family"] for row in tables["families"]))
    others = cycle(_OTHERS)
    colours = {name: _FAMILIES.get(name) or next(others) for name in names}
    families = (
        alt.Chart(alt.Data(values=_in_unit(tables["families"], factor)))
        .mark_rect()
        .encode(
            x=x("start:Q", labels=True),
            x2="end:Q",
            color=alt.Color(
                "family:N", title="most of the time", sort=names,
                scale=alt.Scale(domain=names, range=[colours[name] for name in names]),
                legend=alt.Legend(symbolType="square"),
            ),
        )
        .properties(width=_WIDTH, height=26)
    )  # fmt: skip
    stacked = alt.vconcat(power, duty, families, spacing=8).resolve_scale(color="independent")
    words = alt.TitleParams(
        text=title, subtitle=list(subtitle), anchor="start", fontSize=14, subtitleFontSize=11, subtitleColor="#555",
        offset=10,
    )  # fmt: skip
    return styled(stacked.properties(title=words))


def _power(alt: Any, tables: Mapping[str, Any], x: Any, factor: float, meter_name: str) -> Any:
    rows = _in_unit(tables["power"], factor)
    meter = [{"at": row["at_s"] * factor, "power_w": row["power_w"], "line": meter_name} for row in tables["meter"]]
    meter.append({**meter[-1], "at": rows[-1]["end"]})  # a figure stands until the next
    for row in rows:
        row["line"] = "GPU"
    last = {**rows[-1], "start": rows[-1]["end"]}
    top = 1.06 * max(tables["limit_w"], *(row["high_w"] for row in rows))
    watts = alt.Y(
        "power_w:Q", title="power [W]", scale=alt.Scale(domain=[0, top], nice=False), axis=alt.Axis(tickCount=6)
    )
    names = ["GPU", meter_name, "power limit"]
    colour = alt.Color(
        "line:N", title=None, sort=names, scale=alt.Scale(domain=names, range=[_LAUNCHES, _METER, _LIMIT]),
        legend=alt.Legend(symbolType="stroke", symbolStrokeWidth=3),
    )  # fmt: skip
    steps = alt.Chart(alt.Data(values=[*rows, last]))
    band = steps.mark_area(interpolate="step-after", opacity=0.22, color=_LAUNCHES).encode(
        x=x("start:Q"), y=alt.Y("low_w:Q", title="power [W]"), y2="high_w:Q"
    )
    line = steps.mark_line(interpolate="step-after", strokeWidth=1.2).encode(x=x("start:Q"), y=watts, color=colour)
    limit = (
        alt.Chart(alt.Data(values=[{"power_w": tables["limit_w"], "line": "power limit"}]))
        .mark_rule(strokeDash=[5, 4], strokeWidth=1.5)
        .encode(y=watts, color=colour)
    )
    shown = alt.Chart(alt.Data(values=meter)).mark_line(strokeWidth=2.4, interpolate="step-after").encode(
        x=x("at:Q"), y=watts, color=colour
    )  # fmt: skip
    layers = [band, line, limit, shown]
    if len(tables["phases"]) > 1:
        marks = alt.Chart(
            alt.Data(values=[{"at": row["start_s"] * factor, "phase": row["phase"]} for row in tables["phases"]])
        )
        layers.append(marks.mark_rule(color="#999", strokeDash=[2, 3]).encode(x=x("at:Q")))
        layers.append(
            marks.mark_text(align="left", baseline="bottom", dx=3, dy=-2, color="#555", fontSize=11).encode(
                x=x("at:Q"), y=alt.value(0), text="phase:N"
            )
        )
    return alt.layer(*layers).properties(width=_WIDTH, height=230)


def _in_unit(rows: Sequence[Mapping[str, Any]], factor: float) -> list[dict[str, Any]]:
    """`rows` with ``start`` and ``end`` in the axis's unit."""
    return [
        {
            **{name: value for name, value in row.items() if name not in ("start_s", "end_s")},
            "start": row["start_s"] * factor,
            "end": row["end_s"] * factor,
        }
        for row in rows
    ]
