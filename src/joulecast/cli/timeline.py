"""The flags of power over time, its file and its block of the page."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from joulecast.cli import options
from joulecast.cli.flags import option
from joulecast.errors import InputError, shortened
from joulecast.reports import text
from joulecast.reports.tables import Facts

if TYPE_CHECKING:
    from joulecast.cli.rows import Outcome
    from joulecast.physics.metering import Meter
    from joulecast.scenarios.timeline import Timeline


CHARTS = (".svg", ".png", ".html")
TRACES = (".json", ".json.gz")
TABLES = (".csv", ".parquet")

_METER = re.compile(r"([0-9.]+)(?:/([0-9.]+))?", re.ASCII)


@dataclass(frozen=True)
class TimelineFlags:
    """Power over time."""

    timeline: Annotated[
        str | None,
        option("--timeline", "FILE", "Chart .svg .png .html, trace .json .json.gz, table .csv .parquet; or -."),
    ] = None
    timeline_passes: Annotated[
        str | None, option("--timeline-passes", "WHICH", "Launch by launch: some, all or none [some].")
    ] = None
    timeline_phase: Annotated[str | None, option("--timeline-phase", "NAME", "Only this phase.")] = None
    meter_ms: Annotated[str | None, option("--meter-ms", "MS[/MS]", "Window of a meter, and its update [100].")] = None


@dataclass(frozen=True)
class Asked:
    """What the flags ask for.

    Attributes
    ----------
    file : Path or None
        None: the page alone.
    ending : str
    passes : str
    phase : str or None
    meter : Meter
    """

    file: Path | None
    ending: str
    passes: str
    phase: str | None
    meter: Meter


def asked(given: TimelineFlags) -> Asked | None:
    """What the flags ask for; None where no timeline is.

    Raises
    ------
    InputError
        For an ending that says no format, a file that can't be written, a meter that can't be read, a flag without
        ``--timeline``.
    """
    file = given.timeline
    if file is None:
        for name, value in vars(given).items():
            if value is not None:
                raise InputError(f"--{name.replace('_', '-')} goes with --timeline FILE")
        return None
    from joulecast.scenarios.timeline import PASSES
    from joulecast.writing import check_writable

    ending = ""
    if file != "-":
        ending = next((one for one in (*TRACES[1:], *CHARTS, *TRACES, *TABLES) if file.lower().endswith(one)), "")
        if not ending:
            known = ", ".join((*CHARTS, *TRACES, *TABLES))
            raise InputError(f"can't tell the format of {shortened(Path(file))}: end it in {known}, or give -")
        check_writable(Path(file))
    which = options.one_of("--timeline-passes", given.timeline_passes, PASSES) or "some"
    return Asked(Path(file) if ending else None, ending, which, given.timeline_phase, _meter(given.meter_ms))


def _meter(meter_ms: str | None) -> Meter:
    from joulecast.physics.metering import Meter

    if meter_ms is None:
        return Meter()
    found = _METER.fullmatch(meter_ms.strip())
    if not found:
        raise InputError(f"--meter-ms takes a window in ms, such as 100 or 25/100, not {shortened(meter_ms, 40)!r}")
    window = options.real("--meter-ms", found[1], "ms", example="100")
    update = options.real("--meter-ms", found[2], "ms", example="25/100") or window
    assert window is not None
    assert update is not None
    return Meter(window * 1e-3, update * 1e-3)


def of_outcomes(outcomes: Sequence[Outcome], ask: Asked) -> Timeline:
    """The timeline of the one prediction that there is.

    Raises
    ------
    InputError
        If there are several.
    """
    if len(outcomes) > 1:
        raise InputError("--timeline takes one GPU, one clock and one limit at a time")
    prediction = outcomes[0].prediction
    assert prediction is not None  # a single failure has been raised before
    made: Timeline = prediction.timeline(passes=ask.passes, phase=ask.phase, meter=ask.meter)
    return made


def write(timeline: Timeline, ask: Asked) -> None:
    """Write the file that is asked for, whole or not at all."""
    from joulecast import writing
    from joulecast.reports import files

    if ask.file is None:
        return
    if ask.ending in CHARTS:
        from joulecast.reports import plots, timeline_plot
        from joulecast.scenarios.timeline_chart import chart_tables

        chart = timeline_plot.power_over_time(
            chart_tables(timeline),
            title=_title(timeline),
            subtitle=_subtitle(timeline),
            meter_name=meter_name(timeline),
        )
        writing.write_atomic(ask.file, plots.written(chart, ask.ending[1:]))
    elif ask.ending in TRACES:
        pieces = trace(timeline)
        writing.write_stream(ask.file, files.gzipped(pieces) if ask.ending.endswith(".gz") else pieces)
    else:
        import polars as pl

        buffer = io.BytesIO()
        frame = pl.DataFrame(timeline.columns())
        frame.write_csv(buffer) if ask.ending == ".csv" else frame.write_parquet(buffer)
        writing.write_atomic(ask.file, buffer.getvalue())


def trace(timeline: Timeline) -> Any:
    """The trace for Perfetto, in pieces."""
    from joulecast import __version__
    from joulecast.physics.trace import DUTY_MODULES
    from joulecast.reports import perfetto

    columns = timeline.columns()
    plain = {name: values if isinstance(values, list) else values.tolist() for name, values in columns.items()}
    meter = {name: values.tolist() for name, values in timeline.meter_columns().items()}
    duties = {f"{name.replace(' ', '_').lower()}_duty": name for name in DUTY_MODULES}
    facts = {
        "joulecast": __version__,
        "workload": timeline.prediction.workload,
        "gpu": timeline.prediction.gpu,
        "gpu_count": timeline.prediction.gpu_count,
        "time_s": timeline.time_s,
        "energy_j": timeline.energy_j,
        "notes": list(timeline.notes),
    }
    events = perfetto.events(
        plain, meter, process=_title(timeline), meter_name=f"{meter_name(timeline)} [W]", duties=duties
    )
    return perfetto.written(events, facts)


def meter_name(timeline: Timeline) -> str:
    """``100 ms meter``."""
    meter = timeline.meter
    update = "" if meter.update_s == meter.window_s else f" every {meter.update_s * 1e3:g} ms"
    return f"{meter.window_s * 1e3:g} ms meter{update}"


def _title(timeline: Timeline) -> str:
    p = timeline.prediction
    one = f", one of {p.gpu_count} GPUs" if p.gpu_count > 1 else ""
    return f"{p.workload} on {p.gpu}{one}"


def _subtitle(timeline: Timeline) -> list[str]:
    head = f"{text.duration(timeline.time_s)}, {text.energy(timeline.energy_j)}: {text.power(timeline.mean_power_w)}"
    lines = [f"{head} mean, {text.power(timeline.peak_power_w)} in the launch that draws the most"]
    if timeline.meter_repeats:
        lines.append(f"{meter_name(timeline)}: as if repeated back to back")
    return [*lines, *timeline.notes]


def document(whole: dict[str, Any], timeline: Timeline | None) -> dict[str, Any]:
    """The JSON document of the verb with the figures of `timeline` in its one prediction."""
    if timeline is not None:
        whole["predictions"][0]["power_over_time"] = {
            "mean_power_w": timeline.mean_power_w,
            "peak_power_w": timeline.peak_power_w,
            "meter_window_s": timeline.meter.window_s,
            "meter_update_s": timeline.meter.update_s,
            "meter_lowest_w": float(timeline.meter_w.min()),
            "meter_highest_w": float(timeline.meter_w.max()),
            "meter_repeats": timeline.meter_repeats,
            "steps": len(timeline),
            "waiting_share": timeline.waiting_share,
            "timeline_notes": list(timeline.notes),
        }
    return whole


def facts(timeline: Timeline, ask: Asked | None) -> Facts:
    """The block of the page."""
    waits = timeline.waiting_share
    low, high = float(timeline.meter_w.min()), float(timeline.meter_w.max())
    mean, peak = text.power(timeline.mean_power_w), text.power(timeline.peak_power_w)
    how = "as if repeated back to back" if timeline.meter_repeats else "after an idle GPU"
    items: list[tuple[str, tuple[str, ...]]] = [
        ("  power", (f"{mean} mean,", f"{peak} in the launch that draws the most")),
        ("  meter", (f"{meter_name(timeline)}:", f"{text.power(low)} to {text.power(high)},", how)),
        ("  steps", (f"{text.whole(len(timeline))},", f"{text.percent(waits)} of the time waiting for the host")),
    ]
    items += [("", (note,)) for note in timeline.notes]
    if ask is not None and ask.file is not None:
        items.append(("  written to", (shortened(ask.file),)))
    return Facts(tuple(items), title="power over time", label_width=16)
