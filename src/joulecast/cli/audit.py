"""`joulecast audit`: measured tables checked by physics."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from joulecast.cli import options
from joulecast.cli.output import Answer, chosen_format, give
from joulecast.cli.progress import bar
from joulecast.errors import InputError
from joulecast.reports import text
from joulecast.reports.tables import Block, Facts, Heading, Table

if TYPE_CHECKING:
    from joulecast.calibration.audit_files import AuditedTable

#: Exit code where some row is flagged; 0 where none is.
FLAGGED = 1


def audit(
    path: Annotated[Path, typer.Argument(metavar="FILE|DIR", help="A CSV or parquet table, or a folder of them.")],
    gpu: Annotated[
        str | None, typer.Option("--gpu", help="The GPU, where the table does not tell it.", show_default=False)
    ] = None,
    top: Annotated[
        str, typer.Option("--top", metavar="N", help="Rows shown of each check; the rest is counted.")
    ] = "3",
    json: options.Json = False,
    csv: options.Csv = False,
    output: options.Output = None,
) -> None:
    """Check measured tables by physics; exit code 1 where a row can't be, 2 where a table can't be read.

    Rows are flagged for what no GPU does (above peak rates, above the power limit, below idle) and for
    contradicting other rows. Doubtful rows have an innocent explanation: they are listed, and don't count.
    """
    from joulecast.calibration.audit_files import audit_all, table_files
    from joulecast.gpus import load_gpu

    form = chosen_format(json, csv, output)
    shown = options.whole("--top", top, minimum=0, example="3")
    if gpu is not None:
        load_gpu(gpu)
    files = table_files(path)
    with bar() as tell:
        outcomes = list(audit_all(path, files, gpu, lambda done: tell("auditing", done / len(files))))
    tables = [one for one in outcomes if not isinstance(one, InputError)]
    refused = [one for one in outcomes if isinstance(one, InputError)]
    if not tables:
        raise refused[0]
    rows = [row for table in tables for row in _rows(table)]
    give(
        Answer(
            lambda: _page(tables, refused, shown or 0),
            lambda: _document(tables, refused, rows),
            lambda: rows,
        ),
        form,
        output,
    )
    if any(table.audit.flagged.any() for table in tables):
        raise typer.Exit(FLAGGED)
    if refused:
        raise InputError(f"{len(refused)} of {len(files)} tables can't be read, the first: {refused[0]}")


def add_to(app: typer.Typer) -> None:
    """Add the verb to the command line."""
    app.command("audit")(audit)


def _rows(table: AuditedTable) -> Iterator[dict[str, Any]]:
    for found in table.audit.findings:
        for row, value, limit, reason in zip(found.rows, found.values, found.limits, found.reasons, strict=True):
            yield {
                "table": table.name,
                "row": int(row),
                "check": found.check,
                "doubtful": found.doubtful,
                "value": float(value),
                "bound": float(limit),
                "unit": found.unit,
                "reason": reason,
            }


def _document(tables: list[AuditedTable], refused: list[InputError], rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "schema": "joulecast.audit/1",
        "tables": [
            {
                "table": table.name,
                "format": table.format,
                "rows": table.audit.n,
                "flagged": int(table.audit.flagged.sum()),
                "doubtful": int(table.audit.doubted.sum()),
                "not_checked": table.left_out,
                "weak_power": table.weak_power,
                "columns_not_used": list(table.unused),
            }
            for table in tables
        ],
        "not_read": [str(error) for error in refused],
        "findings": rows,
    }


def _page(tables: list[AuditedTable], refused: list[InputError], top: int) -> list[Block]:
    cells = [
        (
            table.name,
            text.whole(table.audit.n),
            text.whole(int(table.audit.flagged.sum())),
            text.percent(float(table.audit.flagged.mean())),
            text.whole(int(table.audit.doubted.sum())),
            text.whole(table.weak_power) if table.weak_power else "",
            text.whole(table.left_out) if table.left_out else "",
        )
        for table in tables
    ]
    headers = ("", "rows", "flagged", "", "doubtful", "weak power", "unchecked")
    blocks: list[Block] = [Table(headers, tuple(cells), "lrrmrrr", elastic=0)]
    for table in tables:
        if table.audit.findings:
            blocks += _findings(table, top)
    unused = list(dict.fromkeys(column for table in tables for column in table.unused))
    notes: list[tuple[str, tuple[str, ...]]] = [("columns not used", (", ".join(unused),) if unused else ())]
    if any(table.weak_power for table in tables):
        notes.append(("weak power", ("graded C or D by the table itself: the window was short for the meter",)))
    notes += [("not read", (str(error),)) for error in refused]
    blocks.append(Facts(tuple(note for note in notes if note[1]), "dim", 18))
    if not any(table.audit.flagged.any() for table in tables):
        where = f" in what could be read; {len(refused)} could not" if refused else ""
        blocks.append(Heading(f"clean: nothing is impossible or contradicts another row{where}"))
    return [block for block in blocks if not (isinstance(block, Facts) and not block.items)]


def _findings(table: AuditedTable, top: int) -> list[Block]:
    """Findings of one table by check: how many, and the first few rows with their reasons."""
    from joulecast.calibration.findings import CHECKS

    items: list[tuple[str, tuple[str, ...]]] = []
    for doubtful in (False, True):
        for check, meaning in CHECKS.items():
            found = [one for one in table.audit.findings if one.check == check and one.doubtful == doubtful]
            if not found:
                continue
            rows = [(int(row), why) for one in found for row, why in zip(one.rows, one.reasons, strict=True)]
            what = f"{meaning}{' (doubtful)' if doubtful else ''}"
            items.append((text.whole(len(rows)), (what,)))
            items += [(f"  row {row}", (why,)) for row, why in rows[:top]]
    return [Heading(table.name), Facts(tuple(items), label_width=16)]
