"""Workloads of one model put one after the other: the passes of all, their operations by kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from joulecast.workloads.table import OpTable, Workload


def joined_workloads(first: Workload, others: Sequence[Workload]) -> Workload:
    """`first` followed by the passes of `others`; all but passes, operations and notes is that of `first`."""
    layers = {path: place for place, path in enumerate(first.layers)}
    passes = list(first.passes)
    tables: dict[str, list[OpTable]] = {name: [table] for name, table in first.tables.items()}
    notes = list(first.notes)
    unpriced = dict(first.unpriced)
    for other in others:
        places = np.array([layers.setdefault(path, len(layers)) for path in other.layers], dtype=np.int64)
        for name, table in other.tables.items():
            columns = dict(table.columns)
            columns["layer"] = places[columns["layer"]]
            columns["pass_id"] = columns["pass_id"] + len(passes)
            tables.setdefault(name, []).append(replace(table, columns=columns))
        passes += other.passes
        notes += [note for note in other.notes if note not in notes]
        for name, moved in other.unpriced.items():
            unpriced[name] = unpriced.get(name, 0.0) + moved
    joined = {
        name: OpTable(name, {key: np.concatenate([part[key] for part in parts]) for key in parts[0].columns})
        for name, parts in tables.items()
    }
    compiled = None
    if first.compiled is not None and all(other.compiled is not None for other in others):
        compiled = joined_workloads(first.compiled, [other.compiled for other in others if other.compiled is not None])
    return replace(
        first,
        tables=joined,
        passes=tuple(passes),
        layers=tuple(layers),
        notes=tuple(notes),
        unpriced=unpriced,
        compiled=compiled,
    )


def renamed_passes(workload: Workload, **fields: Any) -> Workload:
    """`workload`, its compiled form too, with `fields` of all passes changed."""
    passes = tuple(replace(one, **fields) for one in workload.passes)
    compiled = None if workload.compiled is None else renamed_passes(workload.compiled, **fields)
    return replace(workload, passes=passes, compiled=compiled)
