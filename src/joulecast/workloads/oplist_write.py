"""Writing a workload as an operation list."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from joulecast.errors import InputError
from joulecast.workloads.files import named
from joulecast.workloads.kinds import kind
from joulecast.workloads.oplist_schema import NUMERIC_COLUMNS, OWN_PHASE, VERSION
from joulecast.workloads.table import COMMON, SHARDS, Pass, Workload
from joulecast.writing import told, write_atomic


def write_oplist(workload: Workload, path: str | Path) -> None:
    """Write `workload` as an operation list; the ending says the format (.json, .csv or .parquet).

    The file appears whole or not at all. JSON keeps everything; CSV and parquet keep the operations and
    passes, not the name, memory, parameters, facts and notes.

    Raises
    ------
    InputError
        For another ending, or a place that can't be written.
    """
    path = Path(path)
    writers = {".json": _json_bytes, ".csv": _csv_bytes, ".parquet": _parquet_bytes}
    writer = writers.get(path.suffix.lower())
    if writer is None:
        raise InputError(f"{named(path)}: an operation list ends in .json, .csv or .parquet")
    with told(path):
        write_atomic(path, writer(workload))


def operation_rows(workload: Workload) -> list[dict[str, Any]]:
    """The operations of `workload` as rows of an operation list, in the order in which they run."""
    keyed: list[tuple[int, int, dict[str, Any]]] = []
    for table in workload.tables.values():
        described = kind(table.kind)
        cells: dict[str, list[Any]] = {}
        for column in described.columns:
            if column.type in ("dtype", "choice"):
                cells[column.name] = table.words(column.name)
            else:
                cells[column.name] = [_plain(number) for number in table[column.name].tolist()]
        common = {name: table[name].tolist() for name in COMMON}
        for i in range(len(table)):
            own = {name: values[i] for name, values in cells.items()}
            row = {"op": own.pop("op", table.kind), **own}
            one = workload.passes[common["pass_id"][i]]
            row.update(_common_cells(own, one, common["pass_id"][i]))
            row["count"] = _plain(common["count"][i])
            row["layer"] = workload.layers[common["layer"][i]]
            row["shard"] = SHARDS[common["shard"][i]]
            keyed.append((common["pass_id"][i], common["order"][i], row))
    keyed.sort(key=lambda item: item[:2])
    return [row for _, _, row in keyed]


def _common_cells(own: Mapping[str, Any], one: Pass, pass_id: int) -> dict[str, Any]:
    cells: dict[str, Any] = {"pass": pass_id, "repeats": _plain(one.repeats), "tokens": _plain(one.tokens)}
    if "phase" not in own:
        cells["phase"] = one.phase
    elif OWN_PHASE[own["phase"]] != one.phase:
        cells["pass_phase"] = one.phase
    return cells


def _plain(number: float) -> float | int:
    return int(number) if float(number).is_integer() else float(number)


def _json_bytes(workload: Workload) -> bytes:
    content = {
        "joulecast": VERSION,
        "name": workload.name,
        "parameters": workload.parameters,
        "memory": asdict(workload.memory),
        "info": dict(workload.info),
        "notes": list(workload.notes),
        "unpriced": dict(workload.unpriced),
    }
    head = json.dumps(content, indent=1, allow_nan=False, default=str)[:-2]
    rows = ",\n  ".join(json.dumps(row, allow_nan=False) for row in operation_rows(workload))
    return f'{head},\n "operations": [\n  {rows}\n ]\n}}\n'.encode()


def _csv_bytes(workload: Workload) -> bytes:
    rows = operation_rows(workload)
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(_union(rows)), restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def _parquet_bytes(workload: Workload) -> bytes:
    import polars as pl

    rows = operation_rows(workload)
    frame = pl.DataFrame(
        {
            name: pl.Series(
                name,
                [row.get(name) for row in rows],
                pl.Float64 if name in NUMERIC_COLUMNS else pl.String,
                strict=False,
            )
            for name in _union(rows)
        }
    )
    out = io.BytesIO()
    frame.write_parquet(out)
    return out.getvalue()


def _union(rows: Sequence[Mapping[str, Any]]) -> dict[str, None]:
    return {"op": None} | {name: None for row in rows for name in row}
