"""`lower`: a workload becomes the launches that one GPU of the layout runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from joulecast.gpus import Gpu
from joulecast.lowering.engines import as_served, own_allreduces
from joulecast.lowering.execution import Execution
from joulecast.lowering.expand import STEP, expanded
from joulecast.lowering.formats import replace_formats
from joulecast.lowering.layout import divided
from joulecast.workloads.kinds import EXCHANGES
from joulecast.workloads.table import OpTable, Workload


@dataclass(frozen=True)
class Lowered:
    """What one GPU runs.

    Attributes
    ----------
    workload : Workload
    tables : mapping of str to OpTable
        By kind, with the common columns; shapes are those of one GPU.
    execution : Execution
    notes : tuple of str
        Formats replaced, and what else was decided.
    """

    workload: Workload
    tables: Mapping[str, OpTable]
    execution: Execution
    notes: tuple[str, ...]


def lower(workload: Workload, gpu: Gpu, execution: Execution) -> Lowered:
    """Lower a workload for a GPU and a way of running it.

    Parameters
    ----------
    workload : Workload
    gpu : Gpu
    execution : Execution

    Returns
    -------
    Lowered

    Raises
    ------
    InputError
        If a format can't run on the GPU, or a size does not divide by the layout.
    """
    return for_gpu(for_any_gpu(workload, execution), gpu)


def for_any_gpu(workload: Workload, execution: Execution) -> Lowered:
    """The part of `lower` that no GPU has a say in: its formats are still those of the workload."""
    served = execution.engine != "pytorch"
    fuses = served or execution.launch_mode != "eager"
    if fuses and workload.compiled is not None:
        workload = workload.compiled
    spaced = {
        name: replace(table, columns={**table.columns, "order": np.asarray(table["order"]) * STEP})
        for name, table in _that_run(workload).items()
    }
    tables = divided(spaced, workload, execution)
    if served:
        workload, tables = as_served(workload, tables)
    tables = expanded(tables, execution.attention, fuses=fuses)
    return Lowered(workload, tables, execution, workload.notes)


def for_gpu(lowered: Lowered, gpu: Gpu) -> Lowered:
    """What `for_any_gpu` gave, in the formats that `gpu` has."""
    out: dict[str, OpTable] = {}
    replaced: dict[str, str] = {}
    tables = lowered.tables
    if lowered.execution.engine != "pytorch":
        tables = own_allreduces(tables, gpu)
    for name, table in tables.items():
        out[name], here = replace_formats(table, gpu)
        replaced.update(here)
    notes = [f"{gpu.name} has no {a} arithmetic: priced as {b}" for a, b in sorted(replaced.items())]
    return replace(lowered, tables=out, notes=(*lowered.notes, *notes))


def undivided(lowered: Lowered) -> tuple[str, ...]:
    """A line for each degree of the layout that divides nothing of the workload."""
    name, how = lowered.workload.name, lowered.execution
    found = []
    if how.tp > 1 and not set(EXCHANGES) & set(lowered.tables):
        found.append(f"tp={how.tp} divides nothing of {name}: each GPU does all of the work")
    if how.ep > 1 and "moe" not in lowered.workload.tables:
        found.append(f"{name} has no experts: ep={how.ep} divides nothing")
    return tuple(found)


def _that_run(workload: Workload) -> dict[str, OpTable]:
    """The tables without what never runs: of no count, of passes never made, exchanges of one GPU with itself."""
    repeats = np.array([one.repeats for one in workload.passes])
    out = {}
    for name, table in workload.tables.items():
        runs = table["count"] * repeats[table["pass_id"]] > 0
        if "num_gpus" in table.columns:
            runs &= table["num_gpus"] > 1
        if runs.any():
            out[name] = table if runs.all() else table.take(runs)
    return out
