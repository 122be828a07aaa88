"""Points of one GPU and one way of running, all at once: clocks settled, time, energy, intervals, what bounds them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from joulecast.coefficients.intervals import load_intervals
from joulecast.gpus import Gpu
from joulecast.lowering.execution import Execution
from joulecast.physics.settled import BOUNDS, bound_by
from joulecast.physics.timeline import Passes, repeated, run_phases
from joulecast.physics.uncertainty import bounds, combined, under_limit_width
from joulecast.scenarios.pricing import Rows, laid_out, nearly_alike

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.intp]
Array = npt.NDArray[Any]

#: What may bound a point; the same again, with the power limit beside it.
WORDS = (*BOUNDS, "host", "mixed")
BOUND_WORDS = (*WORDS, *(f"{word}, cap" for word in WORDS))

#: Operations that are evaluated together: their arrays stay in the cache of a core.
_AT_ONCE = 40_000


@dataclass(frozen=True)
class Phases:
    """Priced phases of many workloads on one GPU.

    Attributes
    ----------
    rows : Rows
        All operations.
    workload_of : ndarray of int, shape (phases,)
        Rising.
    execution : Execution
    gpu : Gpu
    host_provenance : str
        Of the costs of the host.
    """

    rows: Rows
    workload_of: Ints
    execution: Execution
    gpu: Gpu
    host_provenance: str


def settled(phases: Phases, passes: Passes, workload: Ints, clock_mhz: Floats, limit_w: Floats) -> dict[str, Array]:
    """Figures of points.

    Parameters
    ----------
    phases : Phases
    passes : Passes
        Of all phases, with ``phase_of``.
    workload : ndarray of int, shape (n,)
        Which workload each point runs.
    clock_mhz, limit_w : ndarray, shape (n,)
        Clock asked for and power limit. [MHz, W]

    Returns
    -------
    dict of str to ndarray, shape (n,)
        ``time_s``, ``power_w``, ``energy_j`` with ``_lower`` and ``_upper``, ``clock_mhz``, ``throttled``,
        ``bound_by`` (index into `BOUND_WORDS`), ``idle_share``.
    """
    assert passes.phase_of is not None
    rows_of_pass = np.bincount(passes.pass_of, minlength=passes.repeats.size)
    rows_of_phase = np.bincount(passes.phase_of, weights=rows_of_pass)
    rows_of_workload = np.bincount(phases.workload_of, weights=rows_of_phase)
    parts = [
        _settled(phases, passes, workload[part], clock_mhz[part], limit_w[part])
        for part in _portions(rows_of_workload[workload])
    ]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _portions(rows: Array) -> Iterator[slice]:
    """Runs of points of at most `_AT_ONCE` operations together."""
    ends = np.cumsum(rows)
    start = 0
    while start < rows.size:
        before = ends[start - 1] if start else 0.0
        end = max(start + 1, int(np.searchsorted(ends, before + _AT_ONCE, side="right")))
        yield slice(start, end)
        start = end


def _settled(phases: Phases, passes: Passes, workload: Ints, clock_mhz: Floats, limit_w: Floats) -> dict[str, Array]:
    n = workload.size
    of_workload = np.bincount(phases.workload_of)
    starts = np.cumsum(of_workload) - of_workload
    each = of_workload[workload]
    point = np.repeat(np.arange(n), each)
    place = np.arange(point.size) - np.repeat(np.cumsum(each) - each, each)
    again, rows = repeated(passes, starts[workload][point] + place)
    runs = run_phases(again, clock_mhz[point], limit_w[point])
    assert again.phase_of is not None
    power = passes.priced.power
    often = np.bincount(again.phase_of, weights=again.repeats)
    layout = laid_out(phases.execution, phases.rows, often, runs.time_s, runs.energy_j, runs.clock_mhz)
    time_s = np.asarray(np.bincount(point, weights=layout.time_s), dtype=np.float64)
    energy_j = np.asarray(np.bincount(point, weights=layout.energy_j), dtype=np.float64)

    def share(weights: Floats) -> Floats:
        return np.asarray(np.bincount(point, weights=weights, minlength=n) / time_s)

    hosted = share(layout.time_s * (runs.host_s > runs.gpu_s))
    phase_of_row = again.phase_of[again.pass_of]
    row_s = runs.kernel_s * (again.count * again.repeats[again.pass_of])
    kernels = _spread(phases, row_s, rows, point[phase_of_row], n)
    known = load_intervals()
    time_width = combined((1 - hosted) * kernels, hosted * known.waiting(phases.host_provenance), known.model)
    of_phase = under_limit_width(power.spread90, known.capped_power, runs.throttled, runs.excess)
    power_width = share(layout.time_s * of_phase)
    out: dict[str, Array] = {}
    figures = (("time_s", time_s, time_width), ("power_w", energy_j / time_s, power_width),
               ("energy_j", energy_j, combined(time_width, power_width)))  # fmt: skip
    for name, value, width in figures:
        out[name] = value
        out[f"{name}_lower"], out[f"{name}_upper"] = bounds(value, width)
    starts_of_point = np.cumsum(each) - each
    lowest, highest = (ufunc.reduceat(runs.clock_mhz, starts_of_point) for ufunc in (np.minimum, np.maximum))
    out["clock_mhz"] = np.clip(share(runs.clock_mhz * layout.time_s), lowest, highest)
    out["throttled"] = np.logical_or.reduceat(runs.throttled, starts_of_point)
    out["idle_share"] = share(runs.idle_s / runs.time_s * layout.time_s)
    longest = _longest(layout.time_s, starts_of_point, point)
    modules = len(BOUNDS)
    code = bound_by(again.priced, runs.clock_mhz[phase_of_row])
    by_bound = np.bincount(phase_of_row * modules + code, weights=row_s, minlength=point.size * modules)
    bound = by_bound.reshape(point.size, modules).argmax(axis=1)
    host_or_both = np.where(nearly_alike(runs.gpu_s, runs.host_s), WORDS.index("mixed"), WORDS.index("host"))
    hostly = (runs.host_s > runs.gpu_s) | nearly_alike(runs.gpu_s, runs.host_s)
    bound = np.where(hostly, host_or_both, bound) + len(WORDS) * runs.throttled
    out["bound_by"] = bound[longest]
    return out


def _longest(time_s: Floats, starts: Ints, point: Ints) -> Ints:
    """The phase of each point that takes the longest, the first of equals."""
    top = np.maximum.reduceat(time_s, starts)
    found = np.flatnonzero(time_s == top[point])
    _, first = np.unique(point[found], return_index=True)
    return np.asarray(found[first])


def _spread(phases: Phases, row_s: Floats, rows: Ints, point: Ints, n: int) -> Floats:
    """As `joulecast.physics.uncertainty.of_sum`, for the operations of each point."""
    families = len(phases.rows.families)
    weighted = row_s * phases.rows.priced.time_spread[rows]
    by_family = np.bincount(point * families + phases.rows.family_of[rows], weights=weighted, minlength=n * families)
    total = np.bincount(point, weights=row_s, minlength=n)
    parts = by_family.reshape(n, families) / np.where(total > 0, total, 1.0)[:, None]
    return np.asarray(np.sqrt(np.square(parts).sum(axis=1)))
