"""From a workload to priced operations: lowered, evaluated once where alike, and queued for a host."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from joulecast.bounds.ranges import number
from joulecast.coefficients.schema import HostCoefficients
from joulecast.coefficients.transfer import host_coefficients, relatives
from joulecast.errors import InputError
from joulecast.gpus import Gpu
from joulecast.kernels.work import Conditions
from joulecast.lowering.execution import Execution
from joulecast.lowering.lower import Lowered, lower
from joulecast.physics.host import faster, host_cost_us, pass_cost_us
from joulecast.physics.pipeline import largest_stage_share, makespan, waiting_share
from joulecast.physics.power import spinning_power_w
from joulecast.physics.price import price
from joulecast.physics.priced import Priced, concatenated, take
from joulecast.physics.timeline import Passes
from joulecast.physics.timing import duration_s
from joulecast.scenarios.unpriced import nothing_priced
from joulecast.workloads.kinds import EXCHANGES
from joulecast.workloads.table import COMMON, OpTable, Workload

Floats = npt.NDArray[np.float64]

#: Phases that a framework runs from lists of its own: no module is called.
WITHOUT_MODULES = frozenset({"backward", "optimizer"})

#: A second for one launch: more is a slip of units.
_LARGEST_HOST_US = 1e6


@dataclass(frozen=True)
class Rows:
    """All operations of the lowered workload in one order: by pass, then by position."""

    priced: Priced
    kinds: tuple[str, ...]
    kind_of: npt.NDArray[np.intp]
    row_of: npt.NDArray[np.intp]
    count: Floats
    pass_id: npt.NDArray[np.intp]
    layer: npt.NDArray[np.intp]
    families: tuple[str, ...]
    family_of: npt.NDArray[np.intp]
    largest_stage: float = 1.0


#: What was lowered and priced last: clocks, limits and hosts of one question differ far more often than its model.
_KEPT: deque[tuple[Workload, Any, Gpu, Execution, tuple[str, ...], Lowered, Rows]] = deque(maxlen=8)


def prepared(workload: Workload, gpu: Gpu, execution: Execution, exclude: tuple[str, ...]) -> tuple[Lowered, Rows]:
    """The workload lowered and priced, from memory where the same was asked before with the same coefficients."""
    known = relatives(gpu, exclude)
    for asked, coefficients, described, how, without, lowered, rows in tuple(_KEPT):
        same = asked is workload and coefficients is known and how == execution and without == exclude
        if same and described == gpu:
            return lowered, rows
    lowered = lower(workload, gpu, execution)
    rows = priced_rows(lowered, gpu, exclude)
    _KEPT.append((workload, known, gpu, execution, exclude, lowered, rows))
    return lowered, rows


#: A host so much slower or faster than those that were measured is a slip.
_LEAST_SPEED, _MOST_SPEED = 0.01, 100.0


def host_of(gpu: Gpu, host_us_per_launch: float | None, host_speed: float | None = None) -> HostCoefficients:
    """Costs of the host: what was measured on the user's, else the fitted defaults, of a host `host_speed` as fast.

    Raises
    ------
    InputError
        For a cost or a speed out of bounds, or both.
    """
    if host_speed is not None:
        speed = number(host_speed, "host speed")
        if not _LEAST_SPEED <= speed <= _MOST_SPEED:
            raise InputError(f"host speed must be between {_LEAST_SPEED:g} and {_MOST_SPEED:g}, got {speed:g}")
        if host_us_per_launch is not None:
            raise InputError("a host has a measured cost a launch or a speed beside the fitted one, not both")
        return faster(host_coefficients(gpu), speed)
    if host_us_per_launch is None:
        return host_coefficients(gpu)
    cost = number(host_us_per_launch, "host cost a launch", "us")
    if not 0 <= cost <= _LARGEST_HOST_US:
        raise InputError(f"host cost a launch must be between 0 and {_LARGEST_HOST_US:g} us, got {cost:g}")
    return HostCoefficients(
        cost, cost, cost, module_us=0.0, copy_share=1.0, provenance="measured", source="given by the user"
    )


def priced_rows(lowered: Lowered, gpu: Gpu, exclude: tuple[str, ...] = ()) -> Rows:
    """All operations of a lowered workload, priced.

    Raises
    ------
    InputError
        If one can't run, or there are none.
    """
    conditions = Conditions(engine=lowered.execution.engine, residency="stream")
    collectives = Conditions(engine="nccl", residency="stream")
    priced, tables = [], []
    for table in lowered.tables.values():
        shapes = OpTable(table.kind, {name: column for name, column in table.columns.items() if name not in COMMON})
        one = _price_distinct(shapes, gpu, collectives if table.kind == "nccl" else conditions, exclude)
        if one.work.reasons:
            raise InputError(next(iter(one.work.reasons.values())))
        priced.append(one)
        tables.append(table)
    if not tables:
        raise nothing_priced(lowered.workload)
    names = [one.work.family for one in priced]
    families = tuple(dict.fromkeys(names))
    lengths = [len(table) for table in tables]
    joined = {name: np.concatenate([table[name] for table in tables]) for name in COMMON}
    order = np.lexsort((joined["order"], joined["pass_id"]))
    together = take(concatenated(priced), order)
    rows = Rows(
        priced=together,
        kinds=tuple(table.kind for table in tables),
        kind_of=np.repeat(np.arange(len(tables)), lengths)[order],
        row_of=np.concatenate([np.arange(length) for length in lengths])[order],
        count=joined["count"][order].astype(np.float64),
        pass_id=joined["pass_id"][order],
        layer=joined["layer"][order],
        families=families,
        family_of=np.repeat([families.index(name) for name in names], lengths)[order],
        largest_stage=largest_stage_share(lowered.execution.pp, lowered.workload.info.get("num_layers")),
    )
    return _overlapped(rows, gpu, lowered.execution.overlap)


def _overlapped(rows: Rows, gpu: Gpu, overlap: float) -> Rows:
    """Collectives without the time that they run beside other work of their pass, of which there must be enough."""
    exchanges = [index for index, name in enumerate(rows.kinds) if name in EXCHANGES]
    if not overlap or not exchanges:
        return rows
    collective = np.isin(rows.kind_of, exchanges)
    busy_s = rows.count * duration_s(rows.priced.times, gpu, gpu.clock_max_mhz)
    passes = int(rows.pass_id.max()) + 1
    sent_s, rest_s = (
        np.bincount(rows.pass_id[those], weights=busy_s[those], minlength=passes) for those in (collective, ~collective)
    )
    hidden = overlap * np.minimum(1.0, np.divide(rest_s, sent_s, out=np.ones(passes), where=sent_s > 0))
    scale = rows.priced.times.scale * np.where(collective, 1.0 - hidden[rows.pass_id], 1.0)
    return replace(rows, priced=replace(rows.priced, times=replace(rows.priced.times, scale=scale)))


def _price_distinct(table: OpTable, gpu: Gpu, conditions: Conditions, exclude: tuple[str, ...]) -> Priced:
    """Like operations are evaluated once."""
    if len(table) <= 64:
        return price(table, gpu, conditions, exclude=exclude)
    few, inverse = table.distinct()
    priced = price(few, gpu, conditions, exclude=exclude)
    in_order = len(few) == len(table) and np.array_equal(inverse, np.arange(len(table)))
    return priced if in_order else take(priced, inverse)


def passes_of(lowered: Lowered, rows: Rows, members: npt.NDArray[np.intp], host: HostCoefficients) -> Passes:
    """The passes that the rows `members` make up, with what starting them costs the host."""
    ids, pass_of = np.unique(rows.pass_id[members], return_inverse=True)
    priced = rows.priced if members.size == len(rows.priced) else take(rows.priced, members)
    count = rows.count[members]
    kind_of = rows.kind_of[members]
    how = lowered.execution
    called = np.array([lowered.workload.passes[i].phase not in WITHOUT_MODULES for i in ids])
    cost_us = np.zeros(members.size)
    for python, one in ((True, host), (False, replace(host, module_us=0.0))):
        for place, name in enumerate(rows.kinds):
            those = (kind_of == place) & (called[pass_of] == python)
            cost_us[those] = host_cost_us(name, priced.work.launches[those], one, how.launch_mode)
    info, phases = lowered.workload.info, [lowered.workload.passes[i].phase for i in ids]
    calls_us = np.array([pass_cost_us(info, host, how.launch_mode, one) for one in phases]) / how.pp * called
    started_us = np.bincount(pass_of, weights=count * cost_us, minlength=ids.size)
    return Passes(
        priced=priced,
        count=count,
        pass_of=pass_of.astype(np.intp),
        repeats=np.array([lowered.workload.passes[i].repeats for i in ids], dtype=np.float64),
        host_s=np.asarray(started_us + calls_us, dtype=np.float64) * 1e-6,
    )


#: GPU and host times of a phase that are within this share of each other bound it together.
_MIXED_SHARE = 0.15


def nearly_alike(gpu_s: Any, host_s: Any) -> npt.NDArray[np.bool_]:
    """Whether neither the GPU nor its host alone bounds a phase: their times are within 15 % of the longer."""
    gpu, host = np.asarray(gpu_s, dtype=np.float64), np.asarray(host_s, dtype=np.float64)
    return np.asarray(np.minimum(gpu, host) >= (1.0 - _MIXED_SHARE) * np.maximum(gpu, host))


@dataclass(frozen=True)
class LaidOut:
    """Phases on all GPUs of a layout.

    Attributes
    ----------
    time_s, energy_j : ndarray
        Of the whole layout. [s, J]
    waiting_j : ndarray
        Part of `energy_j` that pipeline stages draw while they wait for each other. [J]
    bubble_share : ndarray
        Share of the time that they do. In [0, 1).
    """

    time_s: Floats
    energy_j: Floats
    waiting_j: Floats
    bubble_share: Floats


def laid_out(execution: Execution, rows: Rows, runs: Any, time_s: Any, energy_j: Any, clock_mhz: Any) -> LaidOut:
    """Time and energy of all GPUs from those of one GPU that runs all stages of one microbatch, one after the other.

    Parameters
    ----------
    execution : Execution
    rows : Rows
        For the energies and the longest stage.
    runs : array_like
        Passes of each phase, one after the other.
    time_s, energy_j, clock_mhz : array_like
        Of each phase, one microbatch. [s, J, MHz]

    Returns
    -------
    LaidOut
    """
    power = rows.priced.power
    spans = makespan(runs, execution.pp, execution.microbatches, rows.largest_stage)
    waits = np.maximum(spans * execution.pp - execution.microbatches, 0.0)
    # a stage that waits for another spins in its receive
    waiting_j = spinning_power_w(clock_mhz, rows.priced.gpu, power) * time_s * waits * execution.alike
    worked_j = np.asarray(energy_j) * (execution.microbatches * execution.alike)
    share = waiting_share(spans, execution.pp, execution.microbatches)
    return LaidOut(np.asarray(time_s * spans), worked_j + waiting_j, np.asarray(waiting_j), share)


def tokens_out(workload: Workload) -> float:
    """Tokens that a workload gives out; without generation the tokens (or images) it takes in."""
    generates = workload.info.get("generate_tokens", 0)
    prefilled = float(workload.info.get("batch", 1)) if generates else 0.0
    taken = {
        phase: sum(one.repeats * one.tokens for one in workload.passes if one.phase == phase)
        for phase in dict.fromkeys(one.phase for one in workload.passes)
    }
    out = sum(tokens if name == "decode" else prefilled if name == "prefill" else 0.0 for name, tokens in taken.items())
    return float(out or sum(taken.values()))
