"""`joulecast models`: the models it knows by name."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from joulecast.cli import options
from joulecast.cli.output import Answer, chosen_format, give
from joulecast.errors import UnknownNameError
from joulecast.reports import text
from joulecast.reports.tables import Block, Facts, Table


def models(
    filter: Annotated[
        str | None, typer.Argument(metavar="[FILTER]", help="Part of a name or family.", show_default=False)
    ] = None,
    json: options.Json = False,
    csv: options.Csv = False,
    output: options.Output = None,
) -> None:
    """The models it knows by name; any other comes by its config.json."""
    form = chosen_format(json, csv, output)
    rows = _rows()
    if filter:
        wanted = filter.strip().lower()
        found = [row for row in rows if wanted in row["model"].lower() or wanted in row["family"].lower()]
        if not found:
            raise UnknownNameError("model", filter, [row["model"] for row in rows])
        rows = found
    give(
        Answer(lambda: _page(rows), lambda: {"schema": "joulecast.models/1", "models": rows}, lambda: rows),
        form,
        output,
    )


def add_to(app: typer.Typer) -> None:
    """Add the verb to the command line."""
    app.command("models")(models)


def _rows() -> list[dict[str, Any]]:
    from joulecast.workloads.catalogue import catalogue

    return [{"model": entry.name, "family": entry.family, "parameters": entry.parameters} for entry in catalogue()]


def _page(rows: list[dict[str, Any]]) -> list[Block]:
    cells = tuple((row["model"], row["family"], text.count(row["parameters"])) for row in rows)
    return [
        Table(("", "family", "parameters"), cells, "llr", elastic=0),
        Facts((("others", ("give a Hugging Face config.json, an operation list or a trace",)),), "dim", 8),
    ]
