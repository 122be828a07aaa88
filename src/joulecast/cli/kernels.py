"""`joulecast kernels`: single kernels, many shapes at once."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from joulecast import writing
from joulecast.cli import options
from joulecast.cli.flags import option, switch
from joulecast.cli.output import Answer, chosen_format, give
from joulecast.reports import text
from joulecast.reports.tables import Block, Facts, Table

if TYPE_CHECKING:
    import polars as pl

    from joulecast.scenarios.kernels import KernelTable

#: Rows that a page for people shows.
MOST_ROWS = 40

#: Characters of a shape that a page for people shows.
WIDEST_SHAPE = 28


def kernels(
    op: Annotated[str, typer.Argument(help="A kind of operation, such as gemm.", show_default=False)],
    gpu: Annotated[str, option("--gpu", "NAME", "The GPU.")],
    columns: Annotated[Path | None, option("--columns", "FILE", "CSV or parquet, one row a kernel.")] = None,
    set_: Annotated[list[str] | None, option("--set", "COLUMN=V[,V...]", "A column, such as m=1,512.")] = None,
    clock: Annotated[str | None, option("--clock", "MHZ", "Core clock.")] = None,
    power_limit: Annotated[str | None, option("--power-limit", "W", "Power limit.")] = None,
    memory_clock: Annotated[str | None, option("--memory-clock", "MHZ", "One of its steps.")] = None,
    temperature: Annotated[str | None, option("--temperature", "C", "For its leakage.")] = None,
    forecast: options.ForecastFrom = None,
    ignore_extra: Annotated[bool, switch("--ignore-extra", "Pass over unknown columns.")] = False,
    coefficients: options.Coefficients = None,
    json: options.Json = False,
    csv: options.Csv = False,
    output: Annotated[Path | None, option("--output", "FILE", "Write to FILE: .json, .csv, .parquet or .txt.")] = None,
) -> None:
    """Time, power and energy of single kernels.

    joulecast kernels gemm --gpu h200 --set m=1,512 --set n=4096 --set k=4096 --set dtype=bf16
    """
    parquet = output is not None and output.suffix.lower() == ".parquet" and not (json or csv)
    form = "parquet" if parquet else chosen_format(json, csv, output)
    options.no_own_coefficients(forecast, coefficients)
    options.use_coefficients(coefficients)
    shapes = {**_read(columns), **_columns_set(set_)}
    clock_mhz = options.real("--clock", clock, "MHz")
    limit_w = options.real("--power-limit", power_limit, "W", example="300")

    memory_mhz = options.real("--memory-clock", memory_clock, "MHz", example="5001")
    temperature_c = options.real("--temperature", temperature, "degrees Celsius", zero=True, example="80")

    import joulecast as jc

    table = jc.predict_kernels(op, shapes, gpu, clock_mhz=clock_mhz, power_limit_w=limit_w, ignore_extra=ignore_extra,
                               forecast_from=forecast, memory_clock_mhz=memory_mhz,
                               temperature_c=temperature_c)  # fmt: skip
    if output is not None and parquet:
        buffer = io.BytesIO()
        _frame(table, shapes).write_parquet(buffer)
        writing.write_atomic(output, buffer.getvalue())
        return
    answer = Answer(
        lambda: _page(table, shapes),
        lambda: {"schema": "joulecast.kernels/1", "op": op, "rows": _rows(table, shapes)},
        lambda: _rows(table, shapes),
    )
    give(answer, form, output)


def add_to(app: typer.Typer) -> None:
    """Add the verb to the command line."""
    app.command("kernels")(kernels)


def _rows(table: KernelTable, shapes: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One mapping a row: what was given, then what was found."""
    n = len(table)
    given = {name: column if isinstance(column, list) else [column] * n for name, column in shapes.items()}
    columns = {name: column * n if len(column) == 1 else column for name, column in given.items()}
    columns |= {name: table[name].tolist() for name in table.names}
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _frame(table: KernelTable, shapes: Mapping[str, Any]) -> pl.DataFrame:
    import polars as pl

    found = table.to_polars()
    given = [
        pl.Series(name, column * len(table) if len(column) == 1 else column, strict=False)
        for name, column in ((name, c if isinstance(c, list) else [c]) for name, c in shapes.items())
        if name not in found.columns
    ]
    return found.select(*given, *found.columns)


def _page(table: KernelTable, shapes: dict[str, Any]) -> list[Block]:
    rows = _rows(table, shapes)
    varying = [name for name, column in shapes.items() if isinstance(column, list) and len(set(column)) > 1]
    cells: list[tuple[str, ...]] = []
    for i, row in enumerate(rows[:MOST_ROWS]):
        shape = text.in_middle(" ".join(f"{name}={row[name]}" for name in varying) or str(i), WIDEST_SHAPE)
        if row["note"] and row["time_s"] != row["time_s"]:
            cells.append((shape, f"no answer: {row['note']}"))
            continue
        cells.append(
            (
                shape,
                text.duration(row["time_s"]),
                text.power(row["power_w"]),
                text.energy(row["energy_j"]),
                f"{text.whole(row['clock_mhz'])} MHz",
                row["bound_by"],
                row["provenance"],
            )
        )
    headers = ("", "time", "power", "energy", "clock", "bound by", "provenance")
    blocks: list[Block] = [Table(headers, tuple(cells), "lrrrrll")]
    if len(rows) > MOST_ROWS:
        blocks.append(
            Facts((("", (f"{len(rows) - MOST_ROWS:,} more rows: --csv, --json or --output gives all",)),), "dim", 0)
        )
    return blocks


def _columns_set(texts: list[str] | None) -> dict[str, Any]:
    """Columns from ``--set``: one value, or several apart by commas."""
    found: dict[str, Any] = {}
    for name, value in options.pairs("--set", texts, example="m=1,512").items():
        values = [_value(item.strip()) for item in value.split(",")]
        found[name] = values[0] if len(values) == 1 else values
    return found


def _value(item: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(item) if item.isascii() and "_" not in item else item
        except ValueError:
            continue
    return item


def _read(path: Path | None) -> dict[str, Any]:
    """Columns of a table; told apart by content, never run."""
    if path is None:
        return {}
    from joulecast.workloads.frames import read_frame

    frame = read_frame(path)
    return {column: frame[column].to_list() for column in frame.columns}
