"""Columns that come piece by piece, written to one file as parquet, CSV or JSON without being held whole."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from joulecast.errors import InputError, shortened
from joulecast.writing import check_writable, told, unfinished_folder, write_stream

#: Endings of files that columns are written to.
FORMATS = ("parquet", "csv", "json")

Columns = Mapping[str, Any]


def form_of(path: Path) -> str:
    """What a file's ending asks for.

    Raises
    ------
    InputError
        If it is none of `FORMATS`.
    """
    ending = path.suffix.lower().removeprefix(".")
    if ending not in FORMATS:
        raise InputError(f"can't tell the format of {shortened(path)}: end it in .parquet, .csv or .json")
    return ending


def write_columns(path: Path, pieces: Iterable[Columns]) -> None:
    """Write columns to a file, whole or not at all.

    Parameters
    ----------
    path : Path
        Its ending says the form (`form_of`).
    pieces : iterable of mapping
        Name to NumPy array; the same names and types in each. NaN is written as no value.

    Raises
    ------
    InputError
        If the file can't be written.
    """
    form = form_of(path)
    if form == "csv":
        write_stream(path, csv_pieces(pieces))
    elif form == "json":
        write_stream(path, _json_pieces(pieces))
    else:
        _write_parquet(path, pieces)


def csv_pieces(pieces: Iterable[Columns]) -> Iterator[bytes]:
    """CSV text, the names of the columns first."""
    for place, columns in enumerate(pieces):
        yield _frame(columns).write_csv(include_header=place == 0).encode("utf-8")


def _json_pieces(pieces: Iterable[Columns]) -> Iterator[bytes]:
    yield b'{"schema": "joulecast.points/1", "points": [\n'
    first = True
    for columns in pieces:
        rows = _frame(columns).rows(named=True)
        for row in rows:
            yield (b"" if first else b",\n") + json.dumps(row, ensure_ascii=False, allow_nan=False).encode("utf-8")
            first = False
    yield b"\n]}\n"


def _write_parquet(path: Path, pieces: Iterable[Columns]) -> None:
    """Each piece as a file in a folder beside, then all as one: polars can't append."""
    import polars as pl

    check_writable(path)
    try:
        with told(path), unfinished_folder(path) as folder:
            parts = []
            for place, columns in enumerate(pieces):
                parts.append(folder / f"{place:08d}.parquet")
                _frame(columns).write_parquet(parts[-1])
            whole = folder / "whole"
            pl.scan_parquet(parts).sink_parquet(whole)
            with whole.open("rb") as file:
                write_stream(path, iter(lambda: file.read(1 << 20), b""))
    except pl.exceptions.ComputeError as error:  # what polars tells of a full disk
        raise InputError(f"can't write to {shortened(path)}: {str(error).rsplit(': ', 1)[-1]}") from None


def _frame(columns: Columns) -> Any:
    import polars as pl

    frame = pl.DataFrame({name: _series(pl, name, column) for name, column in columns.items()})
    return frame.with_columns(pl.col(pl.Float64).fill_nan(None))


def _series(pl: Any, name: str, column: Any) -> Any:
    """Words stay words where a piece has none of them."""
    if column.dtype == object:
        return pl.Series(name, [None if value is None else str(value) for value in column], dtype=pl.String)
    return pl.Series(name, column)
