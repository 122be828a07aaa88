"""Tables that a user hands over, as data frames: CSV or parquet, told apart by content."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from joulecast.errors import InputError, shortened
from joulecast.workloads.files import content_of, named, read_bytes, text_of

if TYPE_CHECKING:
    import polars as pl


def read_frame(path: str | Path) -> pl.DataFrame:
    """The table in a CSV or parquet file.

    Raises
    ------
    InputError
        If there is no such regular file, or it is neither, is damaged or too large.
    """
    data, name = read_bytes(path), named(path)
    content = content_of(data, name)
    if content == "parquet":
        return frame_of_parquet(data, name)
    if content == "json":
        raise InputError(f"{name} is JSON: a table is CSV or parquet")
    import polars as pl

    text_of(data, name)
    try:
        return pl.read_csv(io.BytesIO(data), infer_schema_length=None)
    except pl.exceptions.PolarsError as error:
        first = str(error).strip().split("\n", 1)[0]
        raise InputError(f"{name} is neither a CSV nor a parquet table: {shortened(first)}") from None


#: What tables write where nothing was measured.
_ABSENT = ("", "-", "n/a", "[n/a]", "na", "nan", "null", "none", "[not supported]")


def numbers(frame: pl.DataFrame, column: str) -> pl.Series:
    """A column as floats, null where a word says that there is nothing.

    Raises
    ------
    InputError
        If a row holds something else, such as a number with its unit.
    """
    import polars as pl

    found = frame[column]
    if found.dtype in (pl.String, pl.Categorical):
        words = found.cast(pl.String).str.strip_chars()
        words = words.set(words.str.to_lowercase().is_in(_ABSENT).fill_null(False), None)
        cast = words.cast(pl.Float64, strict=False)
        wrong = (cast.is_null() & words.is_not_null()).arg_true()
        if len(wrong):
            told = shortened(repr(words[int(wrong[0])]), 40)
            raise InputError(f"column {column} must hold numbers, row {int(wrong[0])} has {told}")
        return cast
    if not (found.dtype.is_numeric() or found.dtype == pl.Null):
        raise InputError(f"column {column} must hold numbers, it holds {found.dtype}")
    return found.cast(pl.Float64)


def frame_of_parquet(data: bytes, name: str, most_rows: int | None = None) -> pl.DataFrame:
    """The table in the bytes of a parquet file.

    Parameters
    ----------
    data : bytes
    name : str
        The file, as messages call it.
    most_rows : int, optional
        Longer tables are refused before they are decoded.

    Raises
    ------
    InputError
        If it is truncated, damaged or longer than `most_rows`.
    """
    import polars as pl

    try:
        with _quiet_decoder():
            length = int(pl.scan_parquet(io.BytesIO(data)).select(pl.len()).collect().item())
            if most_rows is None or length <= most_rows:
                return pl.read_parquet(io.BytesIO(data))
    except (Exception, pl.exceptions.PanicException):  # a panic is no Exception
        raise InputError(f"{name} is not a readable parquet file (truncated or damaged)") from None
    raise InputError(f"{name} has {length:,} rows; at most {most_rows:,} are read")


@contextmanager
def _quiet_decoder() -> Iterator[None]:
    """Keep what a panic of the decoder prints, before it is raised, off the standard error."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)
