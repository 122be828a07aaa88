"""Draws a sweep: time against energy with its front, and energy and time against the clock with the optimum marked."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from joulecast.reports.plots import styled, the_altair

Row = Mapping[str, Any]

_COLOURS = ("#2a6f97", "#e07a5f", "#81b29a", "#8d6a9f", "#e9a03b", "#457b9d", "#6d6875", "#5c946e")
_FRONT, _BEST, _TIME = "#b23a48", "#222222", "#e07a5f"

#: Colours are for so many groups at most; with more all points look alike.
_MOST_GROUPS = len(_COLOURS)


def sweep_chart(
    points: Sequence[Row],
    front: Sequence[Row],
    best: Sequence[Row],
    axes: tuple[Row, Row],
    group: str | None,
    clock: Sequence[Row],
    clock_units: tuple[str, str],
    clock_caption: str,
    *,
    title: str,
    subtitle: Sequence[str],
) -> Any:
    """The chart of a sweep.

    Parameters
    ----------
    points, front : sequence of mapping
        ``x``, ``y``, ``group``, ``what`` (for the pointer). The front is in order.
    best : sequence of mapping
        ``x``, ``y``, ``label``.
    axes : tuple of mapping
        Of x and y: ``title``, ``unit``.
    group : str, optional
        What colours tell.
    clock : sequence of mapping
        ``clock_mhz``, ``energy``, ``time``, and ``best`` with its ``label``; empty where there is one clock only.
    clock_units : tuple of str
        Of ``energy`` and ``time``.
    clock_caption : str
        What the curve over clocks is of.
    title : str
    subtitle : sequence of str
    """
    alt = the_altair()
    left = _plane(alt, points, front, best, axes, group)
    whole = alt.hconcat(left, _by_clock(alt, clock, clock_units, clock_caption), spacing=40) if len(clock) > 1 else left
    words = alt.TitleParams(
        text=title, subtitle=list(subtitle), anchor="start", fontSize=14, subtitleFontSize=11, subtitleColor="#555",
        offset=12,
    )  # fmt: skip
    return styled(whole.resolve_scale(color="independent").properties(title=words))


def _far_apart(values: Sequence[float]) -> bool:
    return min(values) > 0 and max(values) > 20 * min(values)


def _lies(value: float, values: Sequence[float]) -> float:
    """How far along its axis a value lies, in [0, 1]."""
    low, high, at = min(values), max(values), value
    if _far_apart(values):
        low, high, at = math.log(low), math.log(high), math.log(at)
    return (at - low) / (high - low) if high > low else 0.0


def _scale(alt: Any, values: Sequence[float]) -> Any:
    """Logarithmic where figures are far apart."""
    if _far_apart(values):
        return alt.Scale(type="log", nice=False, padding=12)
    return alt.Scale(zero=False, nice=True, padding=8)


def _titled(axis: Row) -> str:
    return f"{axis['title']} [{axis['unit']}]" if axis["unit"] else str(axis["title"])


def _plane(
    alt: Any, points: Sequence[Row], front: Sequence[Row], best: Sequence[Row], axes: tuple[Row, Row], group: str | None
) -> Any:
    both = [*points, *front]
    xs = [row["x"] for row in both]
    marks = alt.Axis(format=",.4~r", tickCount=6, labelFlush=False)
    x = alt.X("x:Q", title=_titled(axes[0]), scale=_scale(alt, xs), axis=marks)
    y = alt.Y("y:Q", title=_titled(axes[1]), scale=_scale(alt, [row["y"] for row in both]), axis=marks)
    names = list(dict.fromkeys(str(row["group"]) for row in both))
    dots = (
        alt.Chart(alt.Data(values=list(points)))
        .mark_circle(size=14 if len(points) > 500 else 30, opacity=0.4)
        .encode(x=x, y=y, tooltip="what:N")
    )
    if group and 1 < len(names) <= _MOST_GROUPS:
        scale = alt.Scale(domain=names, range=list(_COLOURS[: len(names)]))
        legend = alt.Legend(symbolOpacity=1, symbolSize=60, orient="top", columns=4, labelLimit=220)
        dots = dots.encode(color=alt.Color("group:N", title=group, sort=names, scale=scale, legend=legend))
    else:
        dots = dots.encode(color=alt.value(_COLOURS[0]))
    line = (
        alt.Chart(alt.Data(values=list(front)))
        .mark_line(color=_FRONT, strokeWidth=1.8, point=alt.OverlayMarkDef(color=_FRONT, size=22))
        .encode(x=x, y=y, order="x:Q", tooltip="what:N")
    )
    rings = alt.Chart(alt.Data(values=list(best))).mark_point(
        size=110, shape="diamond", filled=False, color=_BEST, strokeWidth=1.8
    ).encode(x=x, y=y)  # fmt: skip
    heights = [_lies(row["y"], [one["y"] for one in both]) for row in best]
    words = [
        layer for row, dy in _apart(best, heights) for layer in _label(alt, row, x, y, dy, _lies(row["x"], xs) > 0.6)
    ]
    caption = alt.TitleParams("points, and the front in red", anchor="start", fontSize=12, fontWeight="normal")
    return alt.layer(dots, line, rings, *words).properties(width=460, height=380, title=caption)


def _label(alt: Any, row: Row, x: Any, y: Any, dy: float, leftward: bool) -> list[Any]:
    """Words beside a point, with a white edge where lines run below them."""
    base = alt.Chart(alt.Data(values=[row])).encode(x=x, y=y, text="label:N")
    side = {"align": "right", "dx": -10} if leftward else {"align": "left", "dx": 10}
    place = {**side, "dy": dy, "fontSize": 11, "fontWeight": "bold"}
    return [base.mark_text(**place, stroke="white", strokeWidth=3, color="white"), base.mark_text(**place, color=_BEST)]


def _apart(best: Sequence[Row], heights: Sequence[float]) -> list[tuple[Row, float]]:
    """Points with how far below each its words stand, so that those of near points do not overlap. [pixels]

    `heights` tells how far up the plot each point lies, in [0, 1]: words that would overlap go up, away from the axis.
    """
    placed: list[tuple[Row, float, float]] = []
    for height, row in sorted(zip(heights, best, strict=True), key=lambda one: one[0]):
        near = [dy for _, dy, other in placed if abs(other - height) < 0.06]
        placed.append((row, -9.0 if not near else min(near) - 16.0, height))
    return [(row, dy) for row, dy, _ in placed]


def _by_clock(alt: Any, clock: Sequence[Row], units: tuple[str, str], caption: str) -> Any:
    data = alt.Data(values=list(clock))
    x = alt.X(
        "clock_mhz:Q", title="core clock asked for [MHz]", scale=alt.Scale(zero=False, nice=False, padding=10),
        axis=alt.Axis(tickCount=6, grid=False),
    )  # fmt: skip
    chosen = [row for row in clock if row["best"]]
    late = any(row["clock_mhz"] > (clock[0]["clock_mhz"] + clock[-1]["clock_mhz"]) / 2 for row in chosen)

    def panel(name: str, unit: str, colour: str, *, words: bool) -> Any:
        y = alt.Y(f"{name}:Q", title=f"{name} [{unit}]", scale=alt.Scale(zero=False),
                  axis=alt.Axis(format=",.4~r", tickCount=5))  # fmt: skip
        layers = [
            alt.Chart(data).mark_line(color=colour, strokeWidth=2, point={"size": 18, "color": colour}).encode(x=x, y=y)
        ]
        mark = alt.Chart(alt.Data(values=chosen))
        layers.append(mark.mark_rule(color=_BEST, strokeDash=[4, 3]).encode(x=x))
        layers.append(
            mark.mark_point(size=110, shape="diamond", filled=False, color=_BEST, strokeWidth=1.8).encode(x=x, y=y)
        )
        if words:
            layers.append(
                mark.mark_text(
                    align="right" if late else "left",
                    baseline="top",
                    dx=-5 if late else 5,
                    fontSize=11,
                    fontWeight="bold",
                    color=_BEST,
                ).encode(x=x, y=alt.value(2), text="label:N")
            )
        return alt.layer(*layers).properties(width=320, height=165)

    both = alt.vconcat(
        panel("energy", units[0], _COLOURS[0], words=True), panel("time", units[1], _TIME, words=False), spacing=14
    )
    return both.properties(title=alt.TitleParams(caption, anchor="start", fontSize=12, fontWeight="normal"))
