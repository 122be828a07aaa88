"""What measured training steps are made of, class by class and clock by clock, and what they take at other scales."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from joulecast.calibration.training_runs import TrainingRun
from joulecast.coefficients.training import Scales
from joulecast.errors import JoulecastError
from joulecast.gpus import load_gpu
from joulecast.physics.power import spin_w
from joulecast.physics.throttle import felt_swing, swings
from joulecast.physics.timeline import pass_time_s
from joulecast.scenarios.training.question import forward_pass, told_apart
from joulecast.scenarios.training.scales import CLASSES
from joulecast.scenarios.training.step import PassTable
from joulecast.scenarios.training.train import train
from joulecast.workloads.table import Workload

Floats = npt.NDArray[np.float64]

#: Scales that a time depends on, and those that power does beside.
TIMED = (*CLASSES, "host", "communication", "copying")
POWERED = ("energy", "static", "voltage_floor", "voltage_knee", "limit_share", "power_swing")

#: All of them, in the order of columns of arrays of scales.
SCALES = (*TIMED, *POWERED)

#: Clocks at which a step is priced where power was measured: between them it is interpolated.
CLOCKS = 12

#: Power limit that limits nothing. [W]
_UNLIMITED_W = 1e5


@dataclass(frozen=True)
class RunTables:
    """Runs with what their steps are made of, at scales of 1: `n` runs at `k` clocks, `p` passes, `c` classes.

    Attributes
    ----------
    runs : tuple of TrainingRun
    class_s, other_s, host_s, repeats, exchange_s, waiting_s, bubble_s, copying_s
        As in `joulecast.scenarios.training.step.PassTable`, shapes (n, k, p, c), (n, k, p), (n, p), (n, p), (n, k),
        (n, k), (n, k) and (n,).
    holding_s : ndarray, shape (n, k)
    clock_mhz : ndarray, shape (n, k)
        Rising to the clock asked for; a single one is that which the step settles at. [MHz]
    core_j, dram_j : ndarray, shape (n,)
    top_mhz, rate_mhz, limit_w, idle_w, clocked_w, active_w, spin_w, exponent, floor, knee : ndarray, shape (n,)
        Of the GPU.
    own_voltage : ndarray, shape (n, k)
        Voltage ratios of GPUs whose voltages are known; NaN for others.
    measured_s, measured_w : ndarray, shape (n,)
        NaN where not measured.
    """

    runs: tuple[TrainingRun, ...]
    class_s: Floats
    other_s: Floats
    host_s: Floats
    repeats: Floats
    exchange_s: Floats
    waiting_s: Floats
    bubble_s: Floats
    copying_s: Floats
    holding_s: Floats
    clock_mhz: Floats
    core_j: Floats
    dram_j: Floats
    top_mhz: Floats
    rate_mhz: Floats
    limit_w: Floats
    idle_w: Floats
    clocked_w: Floats
    active_w: Floats
    spin_w: Floats
    exponent: Floats
    floor: Floats
    knee: Floats
    own_voltage: Floats
    measured_s: Floats
    measured_w: Floats

    def __len__(self) -> int:
        return len(self.runs)


def tabulated(
    runs: Sequence[TrainingRun], *, tell: Callable[[str, float], None] = lambda *_: None
) -> tuple[RunTables, list[str]]:
    """What the steps of runs are made of, and why those that can't be predicted are left out.

    Parameters
    ----------
    runs : sequence of TrainingRun
    tell : callable
        Gets what is being done, and the share of all of it that is done.
    """
    points = CLOCKS if any(run.power_w for run in runs) else 1
    kept: list[TrainingRun] = []
    found: list[list[PassTable]] = []
    reasons: list[str] = []
    opened: dict[Any, Workload] = {}
    done: dict[Any, list[PassTable]] = {}
    for at, run in enumerate(runs):
        tell(f"{run.network} on {run.gpu}", at / len(runs))
        try:
            model, recipe, layout, rest = told_apart(run.options)
            key = (_key(run.source), recipe.precision, *sorted(model.items()))
            if key not in opened:
                opened[key] = forward_pass(run.source, model, recipe)
            same = (run.configuration, rest.get("clock_mhz"), rest.get("power_limit_w") if points == 1 else None)
            if same not in done:
                done[same] = _steps(run, opened[key], recipe, layout, rest, points)
        except JoulecastError as error:
            reasons.append(f"{run.network} on {run.gpu}: {error}")
            continue
        kept.append(run)
        found.append(done[same])
    return _joined(kept, found), reasons


def _key(source: Any) -> Any:
    return source if isinstance(source, str) else id(source)


def _steps(run: TrainingRun, forward: Workload, recipe: Any, layout: Any, rest: Any, points: int) -> list[PassTable]:
    """The step at clocks up to the one asked for, or at the one that it settles at."""
    if points == 1:
        clocks: list[dict[str, float]] = [{}]
    else:
        gpu = load_gpu(run.gpu)
        top = min(rest.get("clock_mhz") or gpu.clock_max_mhz, gpu.clock_max_mhz)
        clocks = [{"clock_mhz": float(one), "power_limit_w": _UNLIMITED_W}
                  for one in np.geomspace(gpu.clock_min_mhz, max(top, gpu.clock_min_mhz), points)]  # fmt: skip
    return [
        train(forward, run.gpu, recipe, layout, ignore_memory=True, scales=Scales(), **{**rest, **clock}).table
        for clock in clocks
    ]


def _joined(runs: Sequence[TrainingRun], found: Sequence[Sequence[PassTable]]) -> RunTables:
    n, k = len(found), len(found[0]) if found else 1
    most = max((steps[0].repeats.size for steps in found), default=1)
    class_s = np.zeros((n, k, most, len(CLASSES)))
    other_s = np.zeros((n, k, most))
    host_s, repeats = np.zeros((n, most)), np.zeros((n, most))
    for i, steps in enumerate(found):
        size = steps[0].repeats.size
        host_s[i, :size], repeats[i, :size] = steps[0].host_s, steps[0].repeats
        for j, one in enumerate(steps):
            class_s[i, j, :size], other_s[i, j, :size] = one.class_s, one.other_s

    def each(name: str) -> Floats:
        return np.array([[getattr(one, name) for one in steps] for steps in found], dtype=np.float64).reshape(n, k)

    def once(name: str) -> Floats:
        return np.array([getattr(steps[0], name) for steps in found], dtype=np.float64)

    def power(name: str) -> Floats:
        return np.array([getattr(steps[0].power, name) for steps in found], dtype=np.float64)

    gpus = [load_gpu(run.gpu) for run in runs]
    clock_mhz = each("clock_mhz")
    own = np.full((n, k), np.nan)
    for i, gpu in enumerate(gpus):
        if gpu.voltage_points:
            mhz, mv = np.array(gpu.voltage_points).T
            own[i] = np.interp(clock_mhz[i], mhz, mv) / np.interp(gpu.rate_clock_mhz, mhz, mv)
    limits = [run.options.get("power_limit_w") or gpu.power_limit_default_w
              for run, gpu in zip(runs, gpus, strict=True)]  # fmt: skip
    return RunTables(
        runs=tuple(runs), class_s=class_s, other_s=other_s, host_s=host_s, repeats=repeats,
        exchange_s=each("exchange_s"), waiting_s=each("waiting_s"), bubble_s=each("bubble_s"),
        copying_s=once("copying_s"),
        holding_s=each("holding_s"), clock_mhz=clock_mhz,
        core_j=once("core_j"), dram_j=once("dram_j"),
        top_mhz=np.array([gpu.clock_max_mhz for gpu in gpus], dtype=np.float64),
        rate_mhz=np.array([gpu.rate_clock_mhz for gpu in gpus], dtype=np.float64),
        limit_w=np.array(limits, dtype=np.float64) * power("limit_share"),
        idle_w=power("idle_w"), clocked_w=power("clocked_w"), active_w=power("active_w"),
        spin_w=np.array([spin_w(gpu, steps[0].power) for gpu, steps in zip(gpus, found, strict=True)], np.float64),
        exponent=power("voltage_exponent"), floor=power("voltage_floor"), knee=power("voltage_knee"), own_voltage=own,
        measured_s=np.array([run.step_time_s or np.nan for run in runs], dtype=np.float64),
        measured_w=np.array([run.power_w or np.nan for run in runs], dtype=np.float64),
    )  # fmt: skip


def taken(tables: RunTables, rows: Any) -> RunTables:
    """The runs at `rows`: indices or a mask."""
    at = np.arange(len(tables))[rows]
    columns = {one.name: getattr(tables, one.name)[at] for one in fields(RunTables) if one.name != "runs"}
    return RunTables(runs=tuple(tables.runs[i] for i in at), **columns)


def figures(tables: RunTables, scales: Scales) -> tuple[Floats, Floats]:
    """Time and mean power of one GPU of each step at some scales. [s, W]"""
    batches = np.array([float(run.options.get("micro_batch") or 1) for run in tables.runs])
    time_s, power_w = np.full(len(tables), np.nan), np.full(len(tables), np.nan)
    for batch in np.unique(batches) if scales.doubling != 1.0 else [0.0]:
        rows = (batches == batch) | (batch == 0.0)
        found = evaluated(taken(tables, rows), vector_of(scales.at_batch(batch))[None])
        time_s[rows], power_w[rows] = found[0][0], found[1][0]
    return time_s, power_w


def power_over_clock(tables: RunTables, scales: Scales) -> tuple[Floats, Floats, Floats]:
    """Time, mean power, and power of waiting for other GPUs, of each step at each of its clocks. [s, W, W]

    Returns
    -------
    time_s, power_w, waiting_w : ndarray, shape (n, k)
    """
    time_s, power_w, waiting_w = _over_clock(tables, vector_of(scales)[None])
    return time_s[0], power_w[0], waiting_w[0]


def vector_of(scales: Scales) -> Floats:
    """Values of `SCALES`, shape (s,)."""
    return np.array([getattr(scales, name) for name in SCALES])


def evaluated(tables: RunTables, scales: Floats) -> tuple[Floats, Floats]:
    """Time and power, shape (m, n), of each step at each of `m` rows of scales in the order of `SCALES`."""
    time_s, power_w, _ = _over_clock(tables, scales)
    if time_s.shape[-1] == 1:
        return time_s[..., 0], power_w[..., 0]
    limit_w = tables.limit_w * scales[:, SCALES.index("limit_share"), None]
    period_s = time_s[..., -1] / tables.repeats.max(axis=1)
    return _swinging(time_s, power_w, limit_w, felt_swing(scales[:, SCALES.index("power_swing"), None], period_s))


def _over_clock(tables: RunTables, scales: Floats) -> tuple[Floats, Floats, Floats]:
    """Time, power, and power of waiting, shape (m, n, k).

    Waiting in a pipeline grows with the passes. Where there is one clock, it is the one that was settled at scales 1.
    """

    def scale(name: str) -> Floats:
        return np.asarray(scales[:, SCALES.index(name), None, None])

    both = tables.class_s @ scales[:, : len(CLASSES)].T  # (n, k, p, m)
    gpu_s = np.moveaxis(both, -1, 0) + tables.other_s * scale("communication")[..., None]
    host_s = tables.host_s[:, None] * scale("host")[..., None]
    repeats = tables.repeats[:, None]
    passes = np.sum(repeats * pass_time_s(gpu_s, host_s), axis=-1)
    plain_gpu = tables.class_s.sum(axis=-1) + tables.other_s
    plain = np.sum(repeats * pass_time_s(plain_gpu, tables.host_s[:, None]), axis=-1)
    exchange_s = tables.exchange_s * scale("communication")
    time_s = passes + exchange_s + tables.waiting_s * passes / plain
    time_s = time_s + tables.copying_s[:, None] * scale("copying")
    holding_s = tables.holding_s * np.sum(repeats * gpu_s, axis=-1) / np.sum(repeats * plain_gpu, axis=-1)
    energy, static = scale("energy"), scale("static")
    core = _core_scale(tables, scale("voltage_floor"), scale("voltage_knee"))
    drive = core * tables.clock_mhz / tables.rate_mhz[:, None]
    work_j = (
        tables.active_w[:, None] * drive * holding_s + tables.core_j[:, None] * core + tables.dram_j[:, None]
    ) * energy
    static_w = static * (tables.idle_w[:, None] + tables.clocked_w[:, None] * drive)
    spin = tables.spin_w[:, None] * drive
    work_j = work_j + spin * (exchange_s + tables.bubble_s * passes / plain)
    return time_s, static_w + work_j / time_s, static_w + spin


def _core_scale(tables: RunTables, floor: Any, knee: Any) -> Floats:
    floor = np.where(floor > 0, floor, tables.floor[:, None])
    knee = np.where(knee > 0, knee, tables.knee[:, None])

    def voltage(clock_mhz: Floats) -> Any:
        rise = np.clip((clock_mhz / tables.top_mhz[:, None] - knee) / (1.0 - knee), 0.0, 1.0)
        return floor + (1.0 - floor) * rise**1.2

    family = voltage(tables.clock_mhz) / voltage(tables.rate_mhz[:, None])
    ratio = np.where(np.isfinite(tables.own_voltage), tables.own_voltage, family)
    return np.asarray(ratio ** tables.exponent[:, None])


def _swinging(time_s: Floats, power_w: Floats, limit_w: Floats, swing: Floats) -> tuple[Floats, Floats]:
    """As `_settled`, parts of the step at powers of their own, each at its clock."""
    total_s, total_j = np.zeros(limit_w.shape), np.zeros(limit_w.shape)
    for share, power in swings(swing):
        part_s, part_w = _settled(time_s, power_w, limit_w / power)
        total_s = total_s + share * part_s
        total_j = total_j + share * part_s * part_w * power
    return total_s, total_j / total_s


def _settled(time_s: Floats, power_w: Floats, limit_w: Floats) -> tuple[Floats, Floats]:
    """Time and power at the highest clock that keeps to the limit, between the clocks there are."""
    rising = np.maximum.accumulate(power_w, axis=-1)
    last = np.clip(np.sum(rising <= limit_w[..., None], axis=-1) - 1, 0, rising.shape[-1] - 1)
    after = np.minimum(last + 1, rising.shape[-1] - 1)

    def at(values: Floats, place: Any) -> Floats:
        return np.asarray(np.take_along_axis(values, place[..., None], axis=-1)[..., 0])

    low, high = at(rising, last), at(rising, after)
    step = np.log(np.maximum(high, low * (1 + 1e-12)) / low)
    share = np.clip(np.where(after > last, np.log(np.maximum(limit_w, low) / low) / step, 0.0), 0.0, 1.0)
    settled_s = np.exp((1 - share) * np.log(at(time_s, last)) + share * np.log(at(time_s, after)))
    settled_w = np.exp((1 - share) * np.log(low) + share * np.log(np.maximum(high, low)))
    return settled_s, settled_w
