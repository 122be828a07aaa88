"""Draws plain tables as charts (SVG or PNG); needs the extra ``plot``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from joulecast.errors import MissingExtraError

Row = Mapping[str, Any]

_FONT = "Helvetica, Arial, sans-serif"
_BAR_COLOURS = ("#2a6f97", "#e07a5f", "#81b29a")

#: Errors from here on have the darkest colour.
_DARKEST = 0.3


def the_altair() -> Any:
    """The altair package.

    Raises
    ------
    MissingExtraError
        If it, or what it writes files with, is not installed.
    """
    try:
        import altair
        import vl_convert  # noqa: F401  (altair needs it to write files)
    except ImportError:
        raise MissingExtraError("drawing plots", "plot") from None
    return altair


def written(chart: Any, form: str = "svg") -> bytes:
    """A chart as the bytes of a file: ``svg``, ``png`` at twice the size, or ``html`` that needs no network."""
    import vl_convert

    spec = chart.to_json()
    if form == "html":
        return str(vl_convert.vegalite_to_html(spec, bundle=True)).encode("utf-8")
    if form == "png":
        return bytes(vl_convert.vegalite_to_png(spec, scale=2))
    return str(vl_convert.vegalite_to_svg(spec)).encode("utf-8")


def styled(chart: Any) -> Any:
    """A chart in the fonts and lines of all our charts."""
    return (
        chart.configure(font=_FONT, background="white")
        .configure_axis(labelFontSize=11, titleFontSize=12, titleFontWeight="normal", gridColor="#e6e6e6")
        .configure_header(labelFontSize=12, titleFontSize=12)
        .configure_view(strokeWidth=0)
        .configure_legend(labelFontSize=11, titleFontSize=11, titleFontWeight="normal")
    )


def error_map(rows: Sequence[Row], titles: Sequence[str], gpus: Sequence[str]) -> Any:
    """Mean error by title and GPU, each in the order given, as a coloured table: ``title``, ``gpu``, ``error``."""
    alt = the_altair()
    data = [{"title": row["title"], "gpu": row["gpu"], "error": row["error"]} for row in rows]
    base = alt.Chart(alt.Data(values=data)).encode(
        x=alt.X("gpu:N", title=None, sort=list(gpus), axis=alt.Axis(labelAngle=-35, orient="top")),
        y=alt.Y("title:N", title=None, sort=list(titles), axis=alt.Axis(labelLimit=260)),
    )
    cells = base.mark_rect(stroke="white", strokeWidth=2).encode(
        color=alt.Color(
            "error:Q",
            title="mean error",
            scale=alt.Scale(domain=[0, _DARKEST], clamp=True, range=["#e8f4ea", "#fbe3a0", "#d1495b"]),
            legend=alt.Legend(format=".0%"),
        )
    )
    words = base.mark_text(fontSize=11, color="#222").encode(text=alt.Text("error:Q", format=".1%"))
    return styled((cells + words).properties(width=alt.Step(66), height=alt.Step(24)))


def bands(rows: Sequence[Row], columns: int = 4) -> Any:
    """Median and middle 80 % of a ratio against size in seconds, one panel a title."""
    alt = the_altair()
    top = 2.0
    names = ("title", "size", "low", "middle", "high")
    data = [{name: row[name] for name in names} for row in rows]
    x = alt.X("size:Q", title="measured time [s]", scale=alt.Scale(type="log"), axis=alt.Axis(format="~s", tickCount=4))
    scale = alt.Scale(type="log", domain=[1 / top, top], clamp=True, nice=False)
    y_axis = alt.Axis(values=[0.5, 0.7, 0.85, 1, 1.2, 1.4, 2], format=".2~f")
    base = alt.Chart().encode(x=x)
    band = base.mark_area(opacity=0.28, color=_BAR_COLOURS[0]).encode(
        y=alt.Y("low:Q", title="predicted / measured", scale=scale, axis=y_axis), y2="high:Q"
    )
    line = base.mark_line(color=_BAR_COLOURS[0], strokeWidth=2).encode(y=alt.Y("middle:Q", scale=scale))
    even = alt.Chart().mark_rule(color="#d1495b", strokeDash=[4, 3]).encode(y=alt.datum(1, scale=scale))
    panels = alt.layer(band, line, even, data=alt.Data(values=data)).properties(width=190, height=120)
    return styled(panels.facet(facet=alt.Facet("title:N", title=None), columns=columns).resolve_scale(x="independent"))


def density(rows: Sequence[Row], unit: str, bins_per_decade: int) -> Any:
    """Cells of measured against predicted, coloured by how many rows they hold, with the line of equality."""
    alt = the_altair()
    half = 10 ** (0.5 / bins_per_decade)
    cells = [
        {
            "x": row["measured"] / half,
            "x2": row["measured"] * half,
            "y": row["predicted"] / half,
            "y2": row["predicted"] * half,
            "rows": row["rows"],
        }
        for row in rows
    ]
    ends = [value for cell in cells for value in (cell["x"], cell["x2"], cell["y"], cell["y2"])]
    low, high = min(ends), max(ends)
    scale = alt.Scale(type="log", domain=[low, high], nice=False)
    axis = alt.Axis(format="~s", tickCount=6)
    chart = (
        alt.Chart(alt.Data(values=cells))
        .mark_rect()
        .encode(
            x=alt.X("x:Q", title=f"measured [{unit}]", scale=scale, axis=axis),
            x2="x2:Q",
            y=alt.Y("y:Q", title=f"predicted [{unit}]", scale=scale, axis=axis),
            y2="y2:Q",
            color=alt.Color("rows:Q", title="rows", scale=alt.Scale(type="log", scheme="tealblues")),
        )
    )
    ends_of_line = alt.Data(values=[{"x": low, "y": low}, {"x": high, "y": high}])
    even = alt.Chart(ends_of_line).mark_line(color="#d1495b", strokeDash=[4, 3]).encode(x="x:Q", y="y:Q")
    return styled((chart + even).properties(width=380, height=380))


def error_bars(rows: Sequence[Row]) -> Any:
    """Mean errors as bars: ``panel``, ``name``, ``what`` (time, power, energy), ``error``."""
    alt = the_altair()
    whats = ["time", "power", "energy"]
    data = [{name: row[name] for name in ("panel", "name", "what", "error")} for row in rows]
    base = alt.Chart().encode(
        y=alt.Y("what:N", title=None, sort=whats, axis=None),
        x=alt.X("error:Q", title="mean error", axis=alt.Axis(format=".0%", tickCount=5)),
    )
    bars = base.mark_bar().encode(
        color=alt.Color("what:N", title=None, sort=whats, scale=alt.Scale(domain=whats, range=list(_BAR_COLOURS)))
    )
    words = base.mark_text(align="left", dx=3, fontSize=10, color="#333").encode(text=alt.Text("error:Q", format=".1%"))
    panels = alt.layer(bars, words, data=alt.Data(values=data)).properties(width=230, height=48)
    return styled(
        panels.facet(
            row=alt.Row("name:N", title=None, header=alt.Header(labelAngle=0, labelAlign="left")),
            column=alt.Column("panel:N", title=None),
            spacing=6,
        )
    )


def available() -> None:
    """Raise `MissingExtraError` if plots can't be drawn."""
    the_altair()


def of_accuracy(document: Row, binned: Row) -> dict[str, Any]:
    """The charts of the accuracy page that there is something to draw for, by the names of their files.

    Parameters
    ----------
    document : mapping
        As `joulecast validate --json` gives it.
    binned : mapping
        ``bands``, ``time_density``, ``power_density``: binned statistics.
    """
    charts: dict[str, Any] = {}
    for protocol, name in (("shapes", "error_by_gpu"), ("gpus", "error_of_unmeasured_gpu")):
        rows = [
            {"title": row["title"], "gpu": row["gpu"], "error": row["time"]["mean"]}
            for row in document.get("by_gpu", ())
            if row["protocol"] == protocol and row["time"]["rows"]
        ]
        if rows:
            order = [row["title"] for row in document["headline"] if row["protocol"] == protocol]
            charts[name] = error_map(rows, order, document["gpus"])
    if binned.get("bands"):
        charts["error_by_size"] = bands(binned["bands"])
    if binned.get("time_density"):
        charts["time"] = density(binned["time_density"], "s", 8)
    if binned.get("power_density"):
        charts["power"] = density(binned["power_density"], "W", 24)
    passes = document.get("passes")
    if passes:
        charts["passes"] = error_bars(
            [
                {"panel": row["dataset"], "name": row["model"], "what": what, "error": row[what]["mean"]}
                for row in passes["models"]
                for what in ("time", "power", "energy")
            ]
        )
    return charts
