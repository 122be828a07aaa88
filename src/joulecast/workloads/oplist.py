"""The operation list: a workload as a table that anyone can write, in JSON, CSV or parquet."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from joulecast.errors import InputError, UnknownNameError, shortened
from joulecast.workloads.files import content_of, content_of_json, named, parse_json, read_bytes, text_of
from joulecast.workloads.kinds import KINDS, REDUCTIONS, kind
from joulecast.workloads.oplist_schema import (
    COLUMNS,
    COMMON_COLUMNS,
    HEADER_FIELDS,
    KIND_OF_WORD,
    MAX_OPERATIONS,
    NUMBER_BOUNDS,
    NUMERIC_COLUMNS,
    OWN_PHASE,
    PHASES,
    VERSION,
)
from joulecast.workloads.oplist_write import operation_rows, write_oplist
from joulecast.workloads.table import SHARDS, Array, Memory, OpTable, Pass, Workload, op_table

__all__ = [
    "operation_rows",
    "read_oplist",
    "workload_of_csv",
    "workload_of_json",
    "workload_of_parquet",
    "write_oplist",
]


@dataclass(frozen=True)
class _Rows:
    """A table read from a file: named columns of one length, None where a cell is blank."""

    name: str
    columns: Mapping[str, list[Any]]
    length: int


def read_oplist(path: str | Path) -> Workload:
    """The workload that an operation list describes; the format is told by content.

    Parameters
    ----------
    path : str or Path
        A JSON, CSV or parquet file as ``docs/operation-list.md`` describes.

    Returns
    -------
    Workload

    Raises
    ------
    InputError
        For anything that is not such a list: one line that names file, row (from 1) and column.
    """
    data, name = read_bytes(path), named(path)
    content = content_of(data, name)
    if content == "parquet":
        return workload_of_parquet(data, name)
    if content == "text":
        return workload_of_csv(data, name)
    value = parse_json(data, name)
    if content_of_json(value, name) != "oplist":
        raise InputError(f"{name} is not an operation list")
    return workload_of_json(value, name)


def workload_of_json(value: Any, name: str) -> Workload:
    """The workload in a parsed JSON operation list; `name` is the file's, for messages."""
    header: Mapping[str, Any] = value if isinstance(value, Mapping) else {}
    if header:
        unknown = sorted(set(header) - HEADER_FIELDS)
        if unknown:
            raise InputError(f"{name}: {UnknownNameError('field', unknown[0], HEADER_FIELDS)}")
        version = header.get("joulecast", VERSION)
        if isinstance(version, bool) or version != VERSION:
            raise InputError(f"{name}: version {shortened(version)} of the operation list is not {VERSION}")
    operations = header.get("operations") if header else value
    if not isinstance(operations, list):
        raise InputError(f"{name}: operations must be a list of objects")
    columns: dict[str, list[Any]] = {}
    for row, operation in enumerate(operations):
        if not isinstance(operation, Mapping):
            raise InputError(f"{name}, row {row + 1}: an operation must be an object, got {shortened(operation)}")
        for key, cell in operation.items():
            if key not in columns:
                columns[key] = [None] * len(operations)
            columns[key][row] = cell
    rows = _Rows(name, columns, len(operations))
    title = header.get("name", Path(name).stem)
    if not isinstance(title, str):
        raise InputError(f"{name}: name must be text, got {shortened(title)}")
    return _workload(rows, title, _header_fields(header, name))


def workload_of_csv(data: bytes, name: str) -> Workload:
    """The workload in a CSV operation list."""
    reader = csv.reader(io.StringIO(text_of(data, name), newline=""), strict=True)
    try:
        header = [cell.strip() for cell in next(reader, [])]
        if "op" not in header:
            raise InputError(f"{name} is not an operation list: its first line has no column op")
        _no_duplicates(header, name)
        cells: list[list[str]] = []
        for line in reader:
            if not line:
                continue
            if len(line) != len(header):
                raise InputError(f"{name}, row {len(cells) + 1}: {len(line)} cells under {len(header)} columns")
            cells.append(line)
            if len(cells) > MAX_OPERATIONS:
                break
    except csv.Error as error:
        raise InputError(f"{name}, line {reader.line_num}: not valid CSV ({error})") from None
    columns = {
        column: [cell.strip() or None for cell in values]
        for column, values in zip(header, zip(*cells, strict=True), strict=True)
    } if cells else {}  # fmt: skip
    numbers = {
        column: _numbers_of_text(values, name, column) if column in NUMERIC_COLUMNS else values
        for column, values in columns.items()
    }
    return _workload(_Rows(name, numbers, len(cells)), Path(name).stem, {})


def workload_of_parquet(data: bytes, name: str) -> Workload:
    """The workload in a parquet operation list."""
    import polars as pl

    from joulecast.workloads.frames import frame_of_parquet

    frame = frame_of_parquet(data, name, MAX_OPERATIONS)
    columns: dict[str, list[Any]] = {}
    for series in frame:
        number, word = series.dtype.is_numeric(), series.dtype in (pl.String, pl.Categorical, pl.Enum)
        wanted = number if series.name in NUMERIC_COLUMNS else word
        if series.name in COLUMNS and not wanted and series.dtype != pl.Null:
            what = "numbers" if series.name in NUMERIC_COLUMNS else "text"
            raise InputError(f"{name}: column {series.name} must hold {what}, it holds {series.dtype}")
        columns[series.name] = series.to_list()
    return _workload(_Rows(name, columns, frame.height), Path(name).stem, {})


def _header_fields(header: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The attributes of `Workload` that a JSON list carries beside its operations."""
    out: dict[str, Any] = {}
    if "parameters" in header:
        out["parameters"] = _non_negative(header["parameters"], f"{name}: parameters")
    memory = header.get("memory", {})
    if not isinstance(memory, Mapping):
        raise InputError(f"{name}: memory must be an object")
    for key in memory:
        if key not in Memory.__dataclass_fields__:
            raise InputError(f"{name}: {UnknownNameError('field of memory', key, Memory.__dataclass_fields__)}")
    out["memory"] = Memory(**{key: _non_negative(value, f"{name}: memory {key}") for key, value in memory.items()})
    notes = header.get("notes", [])
    if not isinstance(notes, list) or not all(isinstance(note, str) for note in notes):
        raise InputError(f"{name}: notes must be a list of text")
    out["notes"] = tuple(notes)
    for key in ("info", "unpriced"):
        value = header.get(key, {})
        if not isinstance(value, Mapping):
            raise InputError(f"{name}: {key} must be an object")
        out[key] = MappingProxyType(dict(value))
    out["unpriced"] = MappingProxyType(
        {key: _non_negative(value, f"{name}: unpriced {shortened(key)}") for key, value in out["unpriced"].items()}
    )
    return out


def _non_negative(value: Any, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1e30:
        raise InputError(f"{what} must be a number, zero or more, got {shortened(value)}")
    return float(value)


def _numbers_of_text(values: Sequence[str | None], name: str, column: str) -> list[float | None]:
    out: list[float | None] = []
    for row, value in enumerate(values):
        try:
            out.append(None if value is None else float(value))
        except ValueError:
            raise InputError(f"{name}, row {row + 1}: {column} must be a number, got {shortened(value)!r}") from None
    return out


def _no_duplicates(header: Sequence[str], name: str) -> None:
    for i, column in enumerate(header):
        if column in header[:i]:
            raise InputError(f"{name}: column {shortened(column)!r} stands twice in the header")


def _workload(rows: _Rows, title: str, fields: Mapping[str, Any]) -> Workload:
    if rows.length == 0:
        raise InputError(f"{rows.name} holds no operations")
    if rows.length > MAX_OPERATIONS:
        raise InputError(f"{rows.name} has more than {MAX_OPERATIONS:,} operations")
    for column in rows.columns:
        if column not in COLUMNS:
            raise InputError(f"{rows.name}: {UnknownNameError('column', column, COLUMNS)}")
    _check_types(rows)
    kinds = _kinds_of_rows(rows)
    count, layer_code, layers = _numbers(rows, "count"), *_coded(rows, "layer")
    shard = _words(rows, "shard", SHARDS)
    pass_id, passes = _passes(rows, kinds)
    order = np.zeros(rows.length, dtype=np.int64)
    for index in range(len(passes)):
        inside = pass_id == index
        order[inside] = np.arange(inside.sum())
    tables: dict[str, OpTable] = {}
    for name in dict.fromkeys(kinds):
        members = [i for i, one in enumerate(kinds) if one == name]
        common: dict[str, Array] = {
            "count": count[members], "order": order[members], "pass_id": pass_id[members],
            "layer": layer_code[members], "shard": shard[members],
        }  # fmt: skip
        tables[name] = OpTable(name, {**_table(rows, name, members).columns, **common})
    return Workload(name=title, tables=tables, passes=passes, layers=layers, **fields)


def _check_types(rows: _Rows) -> None:
    for column, values in rows.columns.items():
        wanted: tuple[type, ...] = (int, float) if column in NUMERIC_COLUMNS else (str,)
        if set(map(type, values)) <= {*wanted, type(None)}:
            continue
        for row, value in enumerate(values):
            if value is not None and (not isinstance(value, wanted) or isinstance(value, bool)):
                what = "a number" if column in NUMERIC_COLUMNS else "text"
                raise InputError(f"{rows.name}, row {row + 1}: {column} must be {what}, got {shortened(value)!r}")


def _kinds_of_rows(rows: _Rows) -> list[str]:
    """The kind of each row: `op` names a kind, or what a row reduction or elementwise operation computes."""
    out: list[str] = []
    for row, word in enumerate(rows.columns.get("op", [None] * rows.length)):
        if word is None:
            raise InputError(f"{rows.name}, row {row + 1}: column op is missing (a kind of operation, as in gemm)")
        found = word if word in KINDS else KIND_OF_WORD.get(word)
        if found is None:
            raise InputError(f"{rows.name}, row {row + 1}: {UnknownNameError('op', word, {*KINDS, *KIND_OF_WORD})}")
        if found == word == "row_reduction":
            raise InputError(f"{rows.name}, row {row + 1}: write which reduction as op: {', '.join(REDUCTIONS)}")
        out.append(found)
    return out


def _numbers(rows: _Rows, column: str) -> Array:
    low, high = NUMBER_BOUNDS[column]
    out = np.full(rows.length, float(COMMON_COLUMNS[column]))
    for row, value in enumerate(rows.columns.get(column, ())):
        if value is None:
            continue
        if not low <= value <= high:
            raise InputError(
                f"{rows.name}, row {row + 1}: {column} must be between {low:g} and {high:g}, got {shortened(value, 30)}"
            )
        out[row] = float(value)
    return out


def _words(rows: _Rows, column: str, choices: Sequence[str]) -> Array:
    out = np.full(rows.length, choices.index(COMMON_COLUMNS[column]), dtype=np.int64)
    for row, value in enumerate(rows.columns.get(column, ())):
        if value is not None:
            out[row] = choices.index(_known(rows, row, column, value, choices))
    return out


def _known(rows: _Rows, row: int, column: str, value: str, choices: Sequence[str]) -> str:
    if value not in choices:
        raise InputError(f"{rows.name}, row {row + 1}: {UnknownNameError(column, value, choices)}")
    return value


def _coded(rows: _Rows, column: str) -> tuple[Array, tuple[str, ...]]:
    codes: dict[str, int] = {}
    values = rows.columns.get(column, [None] * rows.length)
    coded = np.array([codes.setdefault(value or "", len(codes)) for value in values], dtype=np.int64)
    return coded, tuple(codes)


def _passes(rows: _Rows, kinds: Sequence[str]) -> tuple[Array, tuple[Pass, ...]]:
    """For each row the index of its pass; rows with like pass, phase, repeats and tokens share one."""
    blank = [None] * rows.length
    phase, pass_phase = rows.columns.get("phase", blank), rows.columns.get("pass_phase", blank)
    number, repeats, tokens = (_numbers(rows, column).tolist() for column in ("pass", "repeats", "tokens"))
    known: dict[tuple[float, str, float, float], int] = {}
    pass_id = np.zeros(rows.length, dtype=np.int64)
    with_own_phase = {name for name in set(kinds) if "phase" in kind(name).names}
    for row in range(rows.length):
        word = pass_phase[row]
        if word is None:
            own = kinds[row] in with_own_phase
            word = OWN_PHASE.get(phase[row], "forward") if own else phase[row] or "forward"
        word = _known(rows, row, "phase", word, PHASES)
        key = (number[row], word, repeats[row], tokens[row])
        pass_id[row] = known.setdefault(key, len(known))
    return pass_id, tuple(Pass(word, often, taken) for _, word, often, taken in known)


def _table(rows: _Rows, kind_name: str, members: Sequence[int]) -> OpTable:
    """The columns of the rows `members`, all of one kind, checked; a bad row is named as in the file."""
    described = kind(kind_name)
    names = set(described.names)
    columns: dict[str, list[Any]] = {}
    for column, values in rows.columns.items():
        if column == "op":
            if "op" in names:
                picked = [values[i] for i in members]
                columns["op"] = [None if word == kind_name else word for word in picked]
        elif column in names:
            columns[column] = [values[i] for i in members]
        elif column not in COMMON_COLUMNS:
            for i in members:
                if values[i] is not None:
                    raise InputError(
                        f"{rows.name}, row {i + 1}: {UnknownNameError(f'column of {kind_name}', column, names)}"
                    )
    try:
        return op_table(kind_name, columns, rows=len(members))
    except InputError:
        row, error = _first_bad(kind_name, columns, len(members))
        text = str(error).removesuffix(" in row 0")
        raise InputError(f"{rows.name}, row {members[row] + 1}: {text}") from None


def _first_bad(kind_name: str, columns: Mapping[str, list[Any]], length: int) -> tuple[int, InputError]:
    """The first row that `op_table` refuses, and why: the shortest refused prefix, by halving."""
    good, bad = 0, length
    while bad - good > 1:
        middle = (good + bad) // 2
        try:
            op_table(kind_name, {name: values[:middle] for name, values in columns.items()}, rows=middle)
            good = middle
        except InputError:
            bad = middle
    row = bad - 1
    try:
        op_table(kind_name, {name: values[row : row + 1] for name, values in columns.items()}, rows=1)
    except InputError as error:
        return row, error
    raise AssertionError("a row is refused in company but not alone")
