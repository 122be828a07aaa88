"""Many workloads as one: each lowered for any GPU, like operations of a pass joined, then put one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from joulecast.lowering.execution import Execution
from joulecast.lowering.lower import Lowered, for_any_gpu
from joulecast.workloads.table import COMMON, OpTable, Workload

Ints = npt.NDArray[np.intp]


@dataclass(frozen=True)
class Merged:
    """Several lowered workloads as one.

    Attributes
    ----------
    lowered : Lowered
        Its workload has the passes of all, those of one workload and phase together.
    workload_of : ndarray of int, shape (phases,)
        Which workload each phase belongs to.
    phase_of : ndarray of int, shape (passes,)
        Which phase each pass belongs to.
    phases : tuple of str
        Name of each phase.
    """

    lowered: Lowered
    workload_of: Ints
    phase_of: Ints
    phases: tuple[str, ...]


def compact(workload: Workload, execution: Execution) -> Lowered:
    """A workload lowered for any GPU, with like operations of a pass as one row, and no pass without any.

    Raises
    ------
    InputError
        If a size does not divide by the layout.
    """
    lowered = for_any_gpu(workload, execution)
    tables = {name: _joined(table) for name, table in lowered.tables.items()}
    names = [one.phase for one in workload.passes]
    phases = list(dict.fromkeys(names))
    used = np.unique(np.concatenate([table["pass_id"] for table in tables.values()])) if tables else np.array([], int)
    order = sorted(used.tolist(), key=lambda i: phases.index(names[i]))
    renumbered = np.zeros(len(names), dtype=np.int64)
    renumbered[order] = np.arange(len(order))
    kept = replace(workload, passes=tuple(workload.passes[i] for i in order), tables={})
    return replace(
        lowered,
        workload=kept,
        tables={
            name: OpTable(name, {**table.columns, "pass_id": renumbered[table["pass_id"]]})
            for name, table in tables.items()
        },
    )


def _joined(table: OpTable) -> OpTable:
    alike = {name: column for name, column in table.columns.items() if name not in COMMON or name == "pass_id"}
    few, inverse = OpTable(table.kind, alike).distinct()
    n = len(few)
    columns = {name: np.asarray(column).astype(table[name].dtype) for name, column in few.columns.items()}
    columns["count"] = np.bincount(inverse, weights=table["count"], minlength=n)
    columns |= {name: np.zeros(n, dtype=np.int64) for name in ("order", "layer", "shard")}
    return OpTable(table.kind, columns)


def merged(parts: Sequence[Lowered]) -> Merged:
    """What `compact` gave for several workloads, run alike, as one."""
    first = parts[0]
    starts = np.cumsum([0, *(len(part.workload.passes) for part in parts)])
    kinds = dict.fromkeys(name for part in parts for name in part.tables)
    tables = {}
    for kind in kinds:
        having = [(part.tables[kind], start) for part, start in zip(parts, starts, strict=False) if kind in part.tables]
        columns = {name: np.concatenate([table[name] for table, _ in having]) for name in having[0][0].columns}
        columns["pass_id"] = np.concatenate([table["pass_id"] + start for table, start in having])
        tables[kind] = OpTable(kind, columns)
    phases, workload_of, phase_of = [], [], []
    for place, part in enumerate(parts):
        last = None
        for one in part.workload.passes:
            if one.phase != last:
                phases.append(one.phase)
                workload_of.append(place)
                last = one.phase
            phase_of.append(len(phases) - 1)
    passes = tuple(one for part in parts for one in part.workload.passes)
    workload = Workload(name=first.workload.name, tables={}, passes=passes)
    return Merged(
        Lowered(workload, tables, first.execution, ()),
        np.array(workload_of, dtype=np.intp),
        np.array(phase_of, dtype=np.intp),
        tuple(phases),
    )
