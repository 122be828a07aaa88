"""`joulecast calibrate`: coefficients of a GPU from measured tables."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from joulecast.cli import options
from joulecast.cli.flags import option, switch
from joulecast.cli.output import Answer, chosen_format, give
from joulecast.cli.progress import bar
from joulecast.errors import InputError
from joulecast.reports import text
from joulecast.reports.tables import Block, Facts, Heading, Table

if TYPE_CHECKING:
    from joulecast.calibration.own import Calibrated

#: Reasons of rows set aside that a page for people shows of one table.
_MOST_REASONS = 3


def calibrate(
    path: Annotated[
        Path | None,
        typer.Argument(metavar="TABLE|DIR", help="A CSV or parquet table, or a folder.", show_default=False),
    ] = None,
    passes: Annotated[Path | None, option("--passes", "FILE", "Whole passes, to fit the host on.")] = None,
    training: Annotated[
        Path | None,
        option("--training", "FILE", "Training steps, to fit a stack's scales on."),
    ] = None,
    per: Annotated[list[str] | None, option("--per", "WHAT", "Scales of each gpu, precision or network too.")] = None,
    curve: Annotated[bool, switch("--curve", "How many measured steps reach which error.")] = False,
    gpu: Annotated[str | None, option("--gpu", "NAME", "The GPU, where a table does not tell.")] = None,
    out: Annotated[Path | None, option("--out", "DIR", "Where to write [your folder].")] = None,
    stage: Annotated[list[str] | None, option("--stage", "NAME", "A stage of a whole data folder.")] = None,
    seed: Annotated[str, typer.Option("--seed", metavar="N", help="Of random samples.")] = "0",
    json: options.Json = False,
    csv: options.Csv = False,
    output: options.Output = None,
) -> None:
    """Fit coefficients of a GPU to measured kernels.

    joulecast calibrate docs/examples/measured.csv --out my-coefficients

    joulecast calibrate --passes passes.csv

    joulecast calibrate --training steps.csv

    The audit runs first; rows that can't be are set aside. Predictions find
    the result by --coefficients DIR or $JOULECAST_COEFFICIENTS. With --stage,
    everything is fitted anew from a data folder, as the shipped files are.
    """
    from joulecast.coefficients import places
    from joulecast.gpus import load_gpu

    form = chosen_format(json, csv, output)
    number = options.whole("--seed", seed, minimum=0, example="0") or 0
    described = None if gpu is None else load_gpu(gpu)
    folder = places.default_folder() if out is None else out
    if folder.exists() and not folder.is_dir():
        raise InputError(f"--out must be a folder, {folder} is a file")
    if training is not None:
        if path is not None or passes is not None or stage is not None or described is not None:
            raise InputError("--training fits scales from its own table: give no other table, --stage or --gpu")
        names = options.names("--per", per) if per else []
        _training(training, folder, names, curve, number, form, output)
        return
    if per or curve:
        raise InputError(f"--{'per' if per else 'curve'} belongs to --training FILE")
    if passes is not None:
        if path is not None or stage is not None or described is not None:
            raise InputError("--passes fits the host from its own table: give no other table, --stage or --gpu")
        _host(passes, folder, form, output)
        return
    if path is None:
        raise InputError("calibrate takes a table or folder of measured kernels, --passes FILE or --training FILE")
    if stage is not None:
        if described is not None:
            raise InputError("--stage fits all GPUs of a data folder: leave --gpu out")
        _rebuild(path, folder, stage)
        return

    from joulecast import __version__
    from joulecast.calibration.own import calibrate as run

    with bar() as tell:
        found = run(path, folder, gpu=described, seed=number, version=__version__, tell=tell)
    rows = list(_rows(found))
    give(Answer(lambda: _page(found), lambda: _document(found, rows), lambda: rows), form, output)


def add_to(app: typer.Typer) -> None:
    """Add the verb to the command line."""
    app.command("calibrate")(calibrate)


def _host(passes: Path, folder: Path, form: str, output: Path | None) -> None:
    """The host, from whole passes."""
    from joulecast import __version__
    from joulecast.calibration.host_fit import calibrate_host
    from joulecast.cli import calibrate_host as pages

    with bar() as tell:
        found = calibrate_host(passes, folder, version=__version__, tell=tell)
    give(Answer(lambda: pages.page(found), lambda: pages.document(found), lambda: pages.rows(found)), form, output)


def _training(
    table: Path, folder: Path, per: list[str], curve: bool, seed: int, form: str, output: Path | None
) -> None:
    """Scales of a training stack, from measured steps."""
    from joulecast import __version__
    from joulecast.calibration.training_fit import PER, calibrate_training
    from joulecast.cli import calibrate_training as pages

    for name in per:
        options.one_of("--per", name, PER)
    with bar() as tell:
        found = calibrate_training(table, folder, per=per, curve=curve, seed=seed, version=__version__, tell=tell)
    give(Answer(lambda: pages.page(found), lambda: pages.document(found), lambda: pages.rows(found)), form, output)


def _rebuild(path: Path, folder: Path, stages: list[str]) -> None:
    """The stages of a whole data folder, with a line for each fit."""
    from joulecast.calibration.build import STAGES, build
    from joulecast.calibration.forecast import build_forecasts

    names = options.names("--stage", stages)
    for name in names:
        options.one_of("--stage", name, (*STAGES, "forecast"))
    if not path.is_dir():
        raise InputError(f"--stage needs a data folder, {path} is none")
    folder.mkdir(parents=True, exist_ok=True)
    with bar() as tell:
        lines: list[str] = []

        def say(line: str) -> None:
            lines.append(line)
            tell(line, 0.0)

        if set(names) & set(STAGES):
            build(path, folder, tuple(names), tell=say)
        if "forecast" in names:
            build_forecasts(path, folder, lambda data, out, tell: build(data, out, STAGES, tell), say)
    for line in lines:
        typer.echo(line)


def _rows(found: Calibrated) -> Iterator[dict[str, Any]]:
    for file in found.files:
        for group in file.fit.groups:
            yield {
                "gpu": file.fit.coefficients.gpu,
                "key": group.key,
                "rows": group.rows,
                "error_before": group.before,
                "error": group.error,
                "spread90": group.spread90,
                "started_from": group.start,
            }
        power = file.fit.coefficients.power
        if power is not None:
            yield {"gpu": file.fit.coefficients.gpu, "key": "power", "rows": power.rows, "error": power.error,
                   "spread90": power.spread90}  # fmt: skip


def _document(found: Calibrated, rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "schema": "joulecast.calibrate/1",
        "tables": [
            {
                "table": table.name,
                "rows": table.rows,
                "set_aside": table.set_aside,
                "checks": dict(table.checks),
                "reasons": [{"check": check, "reason": reason} for check, reason in table.reasons],
            }
            for table in found.tables
        ],
        "not_read": [str(error) for error in found.refused],
        "fitted": rows,
        "too_few": [
            {"gpu": file.fit.coefficients.gpu, "key": key, "rows": count}
            for file in found.files for key, count in file.fit.too_few.items()
        ],
        "files": [str(file.path) for file in found.files if file.path is not None],
    }  # fmt: skip


def _page(found: Calibrated) -> list[Block]:
    from joulecast.calibration.findings import CHECKS

    read = tuple((table.name, text.whole(table.rows), text.whole(table.set_aside)) for table in found.tables)
    blocks: list[Block] = [Table(("", "rows", "set aside"), read, "lrr", elastic=0)]
    for table in found.tables:
        if table.set_aside:
            items = [(text.whole(rows), (CHECKS[check],)) for check, rows in table.checks.items()]
            items += [("", (reason,)) for _, reason in table.reasons[:_MOST_REASONS]]
            blocks += [Heading(f"set aside of {table.name}"), Facts(tuple(items), label_width=6)]
    for file in found.files:
        fitted = [
            (group.key, text.whole(group.rows), text.percent(group.before), text.percent(group.error),
             f"± {text.percent(group.spread90)}", group.start)
            for group in file.fit.groups
        ]  # fmt: skip
        power = file.fit.coefficients.power
        if power is not None:
            fitted.append(("power", text.whole(power.rows), "", text.percent(power.error),
                           f"± {text.percent(power.spread90)}", ""))  # fmt: skip
        headers = (file.fit.coefficients.gpu, "rows", "before", "error", "90 %", "started from")
        blocks.append(Table(headers, tuple(fitted), "lrrrrl", elastic=5))
    blocks.append(Facts(tuple(_notes(found)), "dim", 18))
    return blocks


def _notes(found: Calibrated) -> Iterator[tuple[str, tuple[str, ...]]]:
    for file in found.files:
        if file.fit.too_few:
            few = tuple(f"{key} ({rows})" for key, rows in file.fit.too_few.items())
            yield "too few rows", few
        if file.fit.power_rows and file.fit.coefficients.power is None:
            yield "power", (f"{file.fit.power_rows} trusted readings are too few to fit energies on",)
    for error in found.refused:
        yield "not read", (str(error),)
    for file in found.files:
        if file.path is not None:
            yield "written", (str(file.path),)
