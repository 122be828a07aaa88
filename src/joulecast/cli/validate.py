"""`joulecast validate`: predictions scored against measured tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from joulecast import writing
from joulecast.cli import options
from joulecast.cli.flags import switch
from joulecast.cli.output import Answer, chosen_format, give
from joulecast.cli.progress import bar
from joulecast.errors import InputError, shortened
from joulecast.reports import accuracy, figures, files, whole_runs
from joulecast.reports.tables import Block, Facts, Heading, Table

if TYPE_CHECKING:
    from joulecast.validation.baseline import Change, Comparison
    from joulecast.validation.run import Validation

#: Lines of changes that a page for people shows.
MOST_CHANGES = 12

#: Exit code where an error grew.
WORSE = 1

_OPTION = {"show_default": False}


def validate(
    data: Annotated[
        Path | None,
        typer.Option("--data", metavar="PATH", help="Folder of measured tables, or one table.", **_OPTION),
    ] = None,
    only: Annotated[
        str | None,
        typer.Option(
            "--only",
            metavar="PART",
            help="One part: kernels, passes, generations, engines, pipelines, training, slowdown.",
            **_OPTION,
        ),
    ] = None,
    kind: Annotated[
        list[str] | None, typer.Option("--kind", metavar="OP", help="Only these operations.", **_OPTION)
    ] = None,
    gpu: Annotated[list[str] | None, typer.Option("--gpu", metavar="NAME", help="Only these GPUs.", **_OPTION)] = None,
    protocol: Annotated[
        list[str] | None,
        typer.Option("--protocol", metavar="NAME", help="shapes, gpus, older or shipped; all by default.", **_OPTION),
    ] = None,
    sample: Annotated[
        str | None, typer.Option("--sample", metavar="N", help="Rows of a batch to score (4000).", **_OPTION)
    ] = None,
    train_rows: Annotated[
        str | None, typer.Option("--train-rows", metavar="N", help="Rows to train corrections on (8000).", **_OPTION)
    ] = None,
    jobs: Annotated[
        str | None, typer.Option("--jobs", metavar="N", help="Processes side by side (2).", **_OPTION)
    ] = None,
    ablation: Annotated[bool, switch("--ablation", "Score passes again without each of their mechanisms.")] = False,
    write: Annotated[
        Path | None,
        typer.Option("--write", metavar="FILE", help="Write a page with plots: FILE.md and FILE/*.svg.", **_OPTION),
    ] = None,
    baseline: Annotated[
        Path | None, typer.Option("--baseline", metavar="FILE", help="Stored results to compare with.", **_OPTION)
    ] = None,
    update_baseline: Annotated[bool, switch("--update-baseline", "Store these results.")] = False,
    json: options.Json = False,
    csv: options.Csv = False,
    output: options.Output = None,
) -> int:
    """Score predictions against measured tables.

    joulecast validate --data DATA
    joulecast validate --data DATA --only kernels --kind gemm --gpu h200

    Exit code 1 where an error grew against the stored results.
    Without --data it shows the stored results.
    """
    form = chosen_format(json, csv, output)
    from joulecast.validation import baseline as stored_results

    path = baseline or stored_results.stored_path()
    stored = stored_results.read(path)
    if stored is None and baseline is not None and not update_baseline:
        raise InputError(f"no stored results at {shortened(path)}: --update-baseline makes them")
    numbers = {"sample": sample, "train_rows": train_rows, "jobs": jobs}
    asked = _asked(only, kind, gpu, protocol, numbers)
    if data is None:
        scored = {
            "ablation": ablation,
            "write": write,
            "update_baseline": update_baseline,
            "only": only,
            "kind": kind,
            "gpu": gpu,
        }
        for name, value in {**scored, "protocol": protocol, **numbers}.items():
            if value:
                raise InputError(f"--{name.replace('_', '-')} needs measurements to score: give --data PATH")
        _show_stored(stored, form, output)
        return 0

    if write is not None:
        _check_page(write)
    from joulecast.validation.run import validate as run

    with bar() as tell:
        found = run(data, tell=tell, ablate=ablation, **asked)
    new = stored_results.flat(found.document)
    compared = stored_results.compare(new, stored["errors"] if stored else {})
    if write is not None:
        _write(write, found)
    if update_baseline:
        narrowed = any(value is not None for value in (only, kind, gpu, protocol))
        writing.write_atomic(
            path, files.to_json(stored_results.updated(stored, new, found.document["settings"], not narrowed))
        )
    document = {**found.document, "comparison": asdict(compared)}
    give(Answer(lambda: _page(document, compared), lambda: document, lambda: _rows(document)), form, output)
    return WORSE if compared.worse and not update_baseline else 0


def add_to(app: typer.Typer) -> None:
    """Add the verb to the command line."""
    app.command("validate")(validate)


def _asked(
    only: str | None,
    kinds: list[str] | None,
    gpus: list[str] | None,
    protocols: list[str] | None,
    numbers: Mapping[str, str | None],
) -> dict[str, Any]:
    """What the flags ask for, checked, as arguments of the run."""
    asked: dict[str, Any] = {"jobs": 2}
    from joulecast.errors import UnknownNameError
    from joulecast.gpus import resolve
    from joulecast.validation.kernels import PROTOCOLS
    from joulecast.validation.run import PARTS
    from joulecast.workloads.kinds import KINDS

    asked["only"] = options.one_of("--only", only, PARTS)
    if kinds:
        asked["kinds"] = options.names("--kind", kinds)
        for name in asked["kinds"]:
            if name not in KINDS:
                raise UnknownNameError("operation", name, KINDS)
        if asked["only"] not in (None, "kernels"):
            raise InputError(f"--kind picks kernels, and --only {asked['only']} leaves them out: give one")
    if gpus:
        asked["gpus"] = [resolve(name)[0].name for name in options.names("--gpu", gpus)]
    if protocols:
        asked["protocols"] = [
            options.one_of("--protocol", name, tuple(PROTOCOLS)) for name in options.names("--protocol", protocols)
        ]
    for name, text in numbers.items():
        least, example = (1, "2") if name == "jobs" else (100, "4000")
        number = options.whole(f"--{name.replace('_', '-')}", text, minimum=least, example=example)
        if number is not None:
            asked[name] = number
    return asked


def _page(document: Mapping[str, Any], compared: Comparison) -> list[Block]:
    blocks: list[Block] = []
    for protocol, (title, _) in accuracy.PROTOCOLS.items():
        found = [row for row in document.get("headline", ()) if row["protocol"] == protocol]
        if found:
            blocks += [Heading(f"kernels: {title.lower()}"), _kernels(found)]
            timed = [row for row in document.get("by_clock", ()) if row["protocol"] == protocol]
            if len({row["timing"] for row in timed}) > 1:
                blocks.append(_by_clock(timed))
            formats = [row for row in document.get("products", ()) if row["protocol"] == protocol]
            if formats:
                blocks.append(_by_format(formats))
    if document.get("passes"):
        blocks += [Heading("whole passes: model left out"), _passes(document["passes"])]
    blocks += whole_runs.blocks(document)
    if document.get("slowdown"):
        blocks += [Heading("slower at the power limit, as shipped"), _slowdown(document["slowdown"]["total"])]
    blocks.append(_verdict(compared))
    blocks += _changes("got worse", compared.worse, "red") + _changes("got better", compared.better, "green")
    return blocks


def _kernels(found: list[Mapping[str, Any]]) -> Table:
    percent, whole_percent = figures.percent, figures.whole_percent
    rows = tuple(
        (
            row["title"],
            str(row["gpus"]),
            percent(row["time"]["mean"]),
            percent(row["time"]["median"]),
            percent(row["worst_mean"]),
            whole_percent(row["time"]["coverage"]),
            percent(row["power_a"]["mean"] if "power_a" in row else None),
            percent(row["power_ab"]["mean"] if "power_ab" in row else None),
        )
        for row in found
    )
    return Table(("", "GPUs", "time", "median", "worst", "in 90 %", "W (A)", "W (A, B)"), rows, "lrrrrrrr", elastic=0)


def _by_clock(found: list[Mapping[str, Any]]) -> Table:
    rows = []
    for title in dict.fromkeys(row["title"] for row in found):
        timed = {row["timing"]: row for row in found if row["title"] == title}
        cells = [
            figures.percent(value)
            for one in (timed.get(way) for way in accuracy.WAYS)
            for value in ((one["time"]["mean"], one["worst_mean"]) if one else (None, None))
        ]
        rows.append((title, *cells))
    held, loaded = accuracy.WAYS.values()
    return Table(("time", held, "worst", loaded, "worst"), tuple(rows), "lrrrr", elastic=0)


def _by_format(found: list[Mapping[str, Any]]) -> Table:
    rows = []
    for gpu, group in dict.fromkeys((row["gpu"], row["group"]) for row in found):
        timed = {row["timing"]: row for row in found if (row["gpu"], row["group"]) == (gpu, group)}
        cells = [figures.percent(timed[way]["time"]["mean"] if way in timed else None) for way in accuracy.WAYS]
        rows.append((f"{gpu}, {group}", *cells))
    return Table(("time of products", *accuracy.WAYS.values()), tuple(rows), "lrr", elastic=0)


def _passes(passes: Mapping[str, Any]) -> Table:
    percent = figures.percent
    rows = [
        (
            row["dataset"],
            str(row["time"]["rows"]),
            *(percent(row[what]["mean"]) for what in ("time", "power", "energy")),
        )
        for row in passes["datasets"]
    ]
    for kind, words in (("host_bound", "bound by the host"), ("host_bound_steady", "bound by a steady host")):
        rows += [
            (
                f"{row['dataset']}, {words}",
                str(row["time"]["rows"]),
                *(percent(row[what]["mean"]) for what in ("time", "power", "energy")),
            )
            for row in passes.get(kind, ())
        ]
    throttled = passes["throttled"]
    if throttled["clock"]["rows"]:
        rows.append(
            ("settled clock of throttled runs", str(throttled["clock"]["rows"]), percent(throttled["clock"]["mean"]))
        )
    return Table(("", "runs", "time", "power", "energy"), tuple(rows), "lrrrr")


def _slowdown(found: list[Mapping[str, Any]]) -> Table:
    rows = tuple(
        (
            f"{row['gpu']}, {row['engine']}",
            f"{row['rows']:,}",
            *(figures.percent(row[what], sign=True) for what in ("measured", "predicted")),
            f"{100 * row['error']:.1f} points",
        )
        for row in found
    )
    return Table(("", "rows", "slower by", "predicted", "error"), rows, "lrrrr", elastic=0)


def _verdict(compared: Comparison) -> Facts:
    if not compared.compared:
        words = "none of these errors is among the stored ones (other rows, or other settings)"
    else:
        words = (
            f"{len(compared.worse)} of {compared.compared} errors got worse than the stored ones, "
            f"{len(compared.better)} better"
        )
    return Facts((("compared", (words,)),), "", 10)


def _changes(title: str, changes: tuple[Change, ...], style: str) -> list[Block]:
    if not changes:
        return []
    shown = changes[:MOST_CHANGES]
    rows = tuple((one.key, figures.percent(one.before), figures.percent(one.after)) for one in shown)
    blocks: list[Block] = [Table((title, "was", "is"), rows, "lrr", (style,) * len(rows), elastic=0)]
    if len(changes) > len(shown):
        blocks.append(Facts((("", (f"{len(changes) - len(shown)} more: --json gives all",)),), "dim", 0))
    return blocks


def _rows(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One row of the CSV for each of the finest groups of kernels, each set of passes and runs, and each ablation."""
    quantities = ("time", "throughput", "power_a", "power_ab", "power", "energy")

    def spread(row: Mapping[str, Any]) -> dict[str, Any]:
        words = {name: value for name, value in row.items() if not isinstance(value, Mapping)}
        figures = {f"{name}_{key}": value for name in quantities if name in row for key, value in row[name].items()}
        return {**words, **figures}

    passes = (document.get("passes") or {}).get("datasets", ())
    runs = [{"part": name, **row} for name, tables in (document.get("runs") or {}).items() for row in tables["groups"]]
    return [spread(row) for row in (*document.get("detail", ()), *passes, *runs, *document.get("ablation", ()))]


def _show_stored(stored: Mapping[str, Any] | None, form: str, output: Path | None) -> None:
    if stored is None:
        raise InputError("there are no stored results yet: give measurements with --data PATH")
    rows = [{"what": key, **values} for key, values in stored["errors"].items()]
    cells = tuple(
        (row["what"], f"{row['rows']:,}", figures.percent(row["mean"]), figures.whole_percent(row.get("coverage")))
        for row in rows
    )
    page: list[Block] = [
        Heading(f"stored results, joulecast {stored['settings'].get('version', '')}"),
        Table(("", "rows", "mean error", "in 90 %"), cells, "lrrr", elastic=0),
    ]
    give(Answer(lambda: page, lambda: stored, lambda: rows), form, output)


def _check_page(path: Path) -> None:
    """Refuse a page that could not be written, before the work is done."""
    if path.suffix != ".md":
        raise InputError(f"--write takes a file that ends in .md, not {shortened(path)}")
    if not path.parent.is_dir():
        raise InputError(f"can't write to {shortened(path)}: its folder does not exist")
    from joulecast.reports import plots

    plots.available()


def _write(path: Path, found: Validation) -> None:
    """The page, and its plots in a folder beside it that is named like it."""
    from joulecast.reports import plots
    from joulecast.validation.sources import SOURCES

    charts = plots.of_accuracy(found.document, found.plots)
    folder = path.with_suffix("")
    if charts:
        folder.mkdir(exist_ok=True)
    names: dict[str, str] = {}
    for name, chart in charts.items():
        writing.write_atomic(folder / f"{name}.svg", plots.written(chart))
        names[name] = f"{folder.name}/{name}.svg"
    writing.write_atomic(path, accuracy.page(found.document, names, [asdict(one) for one in SOURCES]))
