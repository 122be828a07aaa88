"""Many workloads as one, lowered for any GPU, with like operations of a pass joined: what a sweep prices at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from joulecast.errors import InputError
from joulecast.lowering.execution import Execution
from joulecast.lowering.lower import Lowered, for_any_gpu
from joulecast.workloads.table import COMMON, OpTable, Workload

Ints = npt.NDArray[np.intp]


@dataclass(frozen=True)
class Merged:
    """Several workloads as one, lowered.

    Attributes
    ----------
    lowered : Lowered
        Its workload has the passes of all that run something, those of one workload and phase together.
    phase_of : ndarray of int, shape (passes,)
        Which phase each pass belongs to.
    workload_of : ndarray of int, shape (phases,)
        Which of the workloads each phase belongs to, rising.
    places : mapping of int to int
        For the workloads that could be lowered: their place among those given, to that in `workload_of`.
    reasons : mapping of int to str
        Why the others could not.
    """

    lowered: Lowered
    phase_of: Ints
    workload_of: Ints
    places: dict[int, int]
    reasons: dict[int, str]


def merged(workloads: Sequence[Workload | str], execution: Execution) -> Merged:
    """Lower workloads together.

    Parameters
    ----------
    workloads : sequence of Workload or str
        Of one model; a text says why there is none.
    execution : Execution

    Returns
    -------
    Merged
    """
    reasons = {place: one for place, one in enumerate(workloads) if isinstance(one, str)}
    having = {place: one for place, one in enumerate(workloads) if not isinstance(one, str)}
    try:
        lowered = for_any_gpu(_one_after_another(list(having.values())), execution) if having else None
    except InputError:
        for place, one in having.items():
            try:
                for_any_gpu(one, execution)
            except InputError as error:
                reasons[place] = str(error)
        having = {place: one for place, one in having.items() if place not in reasons}
        lowered = for_any_gpu(_one_after_another(list(having.values())), execution) if having else None
    if lowered is None or not lowered.tables:
        nothing = {place: f"{one.name} has no operations to price" for place, one in having.items()}
        return Merged(_NOTHING, _NONE, _NONE, {}, {**reasons, **nothing})
    return _ordered(lowered, list(having), [len(one.passes) for one in having.values()], reasons)


_NONE = np.zeros(0, dtype=np.intp)
_NOTHING = Lowered(Workload("", {}, ()), {}, Execution(), ())


def _one_after_another(workloads: list[Workload]) -> Workload:
    """Workloads as one that runs all their passes."""
    first = workloads[0]
    if len(workloads) == 1:
        return first
    passes = np.cumsum([0, *(len(one.passes) for one in workloads)])
    alike = all(one.layers == first.layers for one in workloads)
    layers = np.cumsum([0, *(0 if alike else len(one.layers) for one in workloads)])
    tables = {}
    for name in dict.fromkeys(name for one in workloads for name in one.tables):
        having = [(i, one.tables[name]) for i, one in enumerate(workloads) if name in one.tables]
        columns = {column: np.concatenate([table[column] for _, table in having]) for column in having[0][1].columns}
        columns["pass_id"] = np.concatenate([table["pass_id"] + passes[i] for i, table in having])
        columns["layer"] = np.concatenate([table["layer"] + layers[i] for i, table in having])
        tables[name] = OpTable(name, columns)
    return replace(
        first,
        tables=tables,
        passes=tuple(one for workload in workloads for one in workload.passes),
        layers=first.layers if alike else tuple(path for workload in workloads for path in workload.layers),
    )


def _ordered(lowered: Lowered, given: list[int], passes: list[int], reasons: dict[int, str]) -> Merged:
    """Passes that run something, in the order of workload and phase; like operations of each joined."""
    names = [one.phase for one in lowered.workload.passes]
    its_workload = np.repeat(np.arange(len(passes)), passes)
    phases = list(dict.fromkeys(names))
    its_phase = np.array([phases.index(name) for name in names])
    used = np.unique(np.concatenate([table["pass_id"] for table in lowered.tables.values()]))
    order = used[np.lexsort((its_phase[used], its_workload[used]))]
    renumbered = np.zeros(len(names), dtype=np.int64)
    renumbered[order] = np.arange(order.size)
    both = its_workload[order] * len(phases) + its_phase[order]
    distinct, phase_of = np.unique(both, return_inverse=True)
    tables = {
        name: _joined(OpTable(name, {**table.columns, "pass_id": renumbered[table["pass_id"]]}))
        for name, table in lowered.tables.items()
    }
    kept = replace(lowered.workload, tables={}, passes=tuple(lowered.workload.passes[i] for i in order))
    running, workload_of = np.unique(distinct // len(phases), return_inverse=True)
    places = {given[one]: place for place, one in enumerate(running.tolist())}
    nothing = {one: f"{kept.name} has no operations to price" for one in given if one not in places}
    return Merged(
        replace(lowered, workload=kept, tables=tables),
        phase_of.astype(np.intp),
        workload_of.astype(np.intp),
        places,
        {**reasons, **nothing},
    )


def _joined(table: OpTable) -> OpTable:
    alike = {name: column for name, column in table.columns.items() if name not in COMMON or name == "pass_id"}
    few, inverse = OpTable(table.kind, alike).distinct()
    n = len(few)
    columns = dict(few.columns)
    columns["count"] = np.bincount(inverse, weights=table["count"], minlength=n)
    columns |= {name: np.zeros(n, dtype=np.int64) for name in ("order", "layer", "shard")}
    return OpTable(table.kind, columns)
