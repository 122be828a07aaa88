"""`joulecast attribute`: where the joules of a profiler trace went."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from joulecast.cli import options
from joulecast.cli.flags import option
from joulecast.cli.output import Answer, chosen_format, give
from joulecast.cli.progress import bar
from joulecast.errors import InputError, shortened

if TYPE_CHECKING:
    from joulecast.traces.attribution import Attribution
    from joulecast.traces.reconcile import Reconciliation

GROUPS = ("kernel", "family", "operator", "layer", "step", "gpu", "launch")


def attribute(
    traces: Annotated[
        list[Path],
        typer.Argument(metavar="TRACE...", help="Profiler traces, one a rank.", show_default=False),
    ],
    gpu: Annotated[str | None, option("--gpu", "NAME", "GPU it was taken on [what the trace says].")] = None,
    clock: Annotated[str | None, option("--clock", "MHZ", "Core clock it was taken at [highest].")] = None,
    power_limit: Annotated[str | None, option("--power-limit", "W", "Power limit it was taken under.")] = None,
    by: Annotated[
        str | None, option("--by", "GROUP", "kernel, family, operator, layer, step, gpu or launch [operator].")
    ] = None,
    top: Annotated[str, typer.Option("--top", metavar="N", help="Rows to show.")] = "12",
    power_log: Annotated[
        Path | None, option("--power-log", "FILE", "Power measured meanwhile: a log to reconcile with.")
    ] = None,
    log_interval: Annotated[
        str | None, option("--log-interval", "S", "Time between readings of a log without times [1].")
    ] = None,
    flame: Annotated[Path | None, option("--flame", "FILE", "Flame graph by energy: .html or .svg.")] = None,
    perfetto: Annotated[Path | None, option("--perfetto", "FILE", "Trace with a power counter, for Perfetto.")] = None,
    coefficients: options.Coefficients = None,
    json: options.Json = False,
    csv: options.Csv = False,
    output: options.Output = None,
) -> None:
    """Power and energy of the kernels, operators, layers and steps of a profiler trace.

    joulecast attribute trace.json.gz --gpu a100-sxm-40gb --by layer
    """
    form = chosen_format(json, csv, output)
    _check_pictures(flame, perfetto)
    options.use_coefficients(coefficients)
    group = options.one_of("--by", by, GROUPS) or "operator"
    shown = options.whole("--top", top, minimum=0, example="12") or 0
    clock_mhz = options.real("--clock", clock, "MHz", example="1410")
    every_s = options.real("--log-interval", log_interval, "s", example="0.1")
    if every_s is not None and power_log is None:
        raise InputError("--log-interval changes nothing without --power-log")
    limit_w = options.real("--power-limit", power_limit, "W", example="300")

    from joulecast.cli import attribute_page as pages
    from joulecast.traces.attribution import attribute as attributed

    with bar() as progress:
        found = attributed(traces, gpu, clock_mhz=clock_mhz, power_limit_w=limit_w, progress=progress)
    meter = () if power_log is None else _reconciled(found, power_log, every_s)
    _pictures(found, flame, perfetto)
    give(
        Answer(
            lambda: pages.page(found, group, shown, meter),
            lambda: pages.document(found, group, meter),
            lambda: pages.rows(found, group),
        ),
        form,
        output,
    )


def add_to(app: typer.Typer) -> None:
    """Add the verb to the command line."""
    app.command("attribute")(attribute)


def _reconciled(found: Attribution, path: Path, interval_s: float | None) -> tuple[Reconciliation, ...]:
    from joulecast.traces.power_log import read_power_log
    from joulecast.traces.reconcile import reconcile

    return reconcile(found, read_power_log(path, interval_s=interval_s))


def _check_pictures(flame: Path | None, perfetto: Path | None) -> None:
    from joulecast.reports.flame import check_flame
    from joulecast.writing import check_writable

    if flame is not None:
        check_flame(flame)
    if perfetto is not None:
        check_writable(perfetto)
        if not perfetto.name.lower().endswith((".json", ".json.gz")):
            raise InputError(f"can't write a trace to {shortened(perfetto)}: end it in .json or .json.gz")


def _pictures(found: Attribution, flame: Path | None, perfetto: Path | None) -> None:
    if flame is not None:
        from joulecast.reports.flame import write_flame
        from joulecast.traces.stacks import stacks

        title = f"energy by operator on {found.gpu}"
        write_flame(flame, stacks(found), title=title, unit="J")
    if perfetto is not None:
        from joulecast.cli.attribute_page import timeline_bytes
        from joulecast.writing import write_atomic

        written = timeline_bytes(found)
        write_atomic(perfetto, gzip.compress(written, 6, mtime=0) if perfetto.suffix.lower() == ".gz" else written)
