"""What measured training steps are made of, class by class and clock by clock, and the scales that fit them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from joulecast.calibration.training_runs import TrainingRun
from joulecast.coefficients.training import Scales
from joulecast.errors import InputError, JoulecastError
from joulecast.gpus import load_gpu
from joulecast.physics.timeline import pass_time_s
from joulecast.scenarios.training.question import forward_pass, told_apart
from joulecast.scenarios.training.scales import CLASSES
from joulecast.scenarios.training.step import PassTable
from joulecast.scenarios.training.train import train
from joulecast.workloads.table import Workload

Floats = npt.NDArray[np.float64]

#: Scales that a time depends on, and those that power does beside.
TIMED = (*CLASSES, "host", "communication")
POWERED = ("energy", "static", "voltage_floor", "voltage_knee", "limit_share")

#: Of each scale: expected before anything is measured, spread around it, and bounds. Factors as logarithms.
_EXPECTED = {
    # kernels were measured, and networks of GPUs and hosts differ far more
    **{name: (0.0, 0.2, np.log(0.2), np.log(5.0)) for name in TIMED},
    "communication": (0.0, 0.6, np.log(0.1), np.log(10.0)),
    "host": (0.0, 0.8, np.log(0.1), np.log(10.0)),
    "energy": (0.0, 0.4, np.log(0.3), np.log(3.0)),
    "static": (0.0, 0.4, np.log(0.3), np.log(3.0)),
    "voltage_floor": (0.75, 0.15, 0.4, 0.98),
    "voltage_knee": (0.7, 0.2, 0.1, 0.95),
    "limit_share": (1.0, 0.03, 0.85, 1.05),
}
_LOGS = (*TIMED, "energy", "static")

#: Scatter of measured steps, in natural logarithms: of all points of one configuration together, and of single points
#: around it; of powers.
NOISE, POINT_NOISE, POWER_NOISE = 0.05, 0.03, 0.06

#: A scale is told to be unknown where its class takes less than this share of every step.
LEAST_SHARE = 0.03

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
    class_s, other_s, host_s, repeats, exchange_s, waiting_s
        As in `joulecast.scenarios.training.step.PassTable`, shapes (n, k, p, c), (n, k, p), (n, p), (n, p), (n, k)
        and (n, k).
    holding_s : ndarray, shape (n, k)
    clock_mhz : ndarray, shape (n, k)
        Rising to the clock asked for; a single one is that which the step settles at. [MHz]
    core_j, dram_j : ndarray, shape (n,)
    top_mhz, rate_mhz, limit_w, idle_w, clocked_w, active_w, exponent, floor, knee : ndarray, shape (n,)
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
    exponent: Floats
    floor: Floats
    knee: Floats
    own_voltage: Floats
    measured_s: Floats
    measured_w: Floats

    def __len__(self) -> int:
        return len(self.runs)


def tabulated(
    runs: Sequence[TrainingRun], *, exclude: tuple[str, ...] = (), tell: Callable[[str, float], None] = lambda *_: None
) -> tuple[RunTables, list[str]]:
    """What the steps of runs are made of, and why those that can't be predicted are left out.

    Parameters
    ----------
    runs : sequence of TrainingRun
    exclude : tuple of str
        GPUs whose fitted coefficients may not be used.
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
                done[same] = _steps(run, opened[key], recipe, layout, rest, points, exclude)
        except JoulecastError as error:
            reasons.append(f"{run.network} on {run.gpu}: {error}")
            continue
        kept.append(run)
        found.append(done[same])
    return _joined(kept, found), reasons


def _key(source: Any) -> Any:
    return source if isinstance(source, str) else id(source)


def _steps(
    run: TrainingRun, forward: Workload, recipe: Any, layout: Any, rest: Any, points: int, exclude: tuple[str, ...]
) -> list[PassTable]:
    """The step at clocks up to the one asked for, or at the one that it settles at."""
    if points == 1:
        clocks: list[dict[str, float]] = [{}]
    else:
        gpu = load_gpu(run.gpu)
        top = min(rest.get("clock_mhz") or gpu.clock_max_mhz, gpu.clock_max_mhz)
        clocks = [{"clock_mhz": float(one), "power_limit_w": _UNLIMITED_W}
                  for one in np.geomspace(gpu.clock_min_mhz, max(top, gpu.clock_min_mhz), points)]  # fmt: skip
    return [
        train(
            forward, run.gpu, recipe, layout, ignore_memory=True, exclude=exclude, scales=Scales(), **{**rest, **clock}
        ).table
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
        exchange_s=each("exchange_s"), waiting_s=each("waiting_s"), holding_s=each("holding_s"), clock_mhz=clock_mhz,
        core_j=once("core_j"), dram_j=once("dram_j"),
        top_mhz=np.array([gpu.clock_max_mhz for gpu in gpus], dtype=np.float64),
        rate_mhz=np.array([gpu.rate_clock_mhz for gpu in gpus], dtype=np.float64),
        limit_w=np.array(limits, dtype=np.float64) * power("limit_share"),
        idle_w=power("idle_w"), clocked_w=power("clocked_w"), active_w=power("active_w"),
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
    time_s, power_w = _evaluated(tables, _vector(scales)[None])
    return time_s[0], power_w[0]


def power_over_clock(tables: RunTables, scales: Scales) -> tuple[Floats, Floats, Floats]:
    """Time, mean power, and power of waiting of each step at each of its clocks, whatever the limit. [s, W, W]

    Returns
    -------
    time_s, power_w, waiting_w : ndarray, shape (n, k)
    """
    time_s, power_w, waiting_w = _over_clock(tables, _vector(scales)[None])
    return time_s[0], power_w[0], waiting_w[0]


def _vector(scales: Scales) -> Floats:
    return np.array([getattr(scales, name) for name in (*TIMED, *POWERED)])


def _evaluated(tables: RunTables, scales: Floats) -> tuple[Floats, Floats]:
    """Time and power, shape (m, n), of each step at each of `m` rows of scales in the order of `TIMED`, `POWERED`."""
    time_s, power_w, _ = _over_clock(tables, scales)
    if time_s.shape[-1] == 1:
        return time_s[..., 0], power_w[..., 0]
    return _settled(time_s, power_w, tables.limit_w * scales[:, -1, None])


def _over_clock(tables: RunTables, scales: Floats) -> tuple[Floats, Floats, Floats]:
    """Time, power, and power of waiting, shape (m, n, k).

    Waiting in a pipeline grows with the passes. Where there is one clock, it is the one that was settled at scales 1.
    """
    classes = len(CLASSES)
    both = tables.class_s @ scales[:, :classes].T  # (n, k, p, m)
    gpu_s = np.moveaxis(both, -1, 0) + tables.other_s * scales[:, 5, None, None, None]
    host_s = tables.host_s[:, None] * scales[:, 4, None, None, None]
    repeats = tables.repeats[:, None]
    passes = np.sum(repeats * pass_time_s(gpu_s, host_s), axis=-1)
    plain_gpu = tables.class_s.sum(axis=-1) + tables.other_s
    plain = np.sum(repeats * pass_time_s(plain_gpu, tables.host_s[:, None]), axis=-1)
    time_s = passes + tables.exchange_s * scales[:, 5, None, None] + tables.waiting_s * passes / plain
    holding_s = tables.holding_s * np.sum(repeats * gpu_s, axis=-1) / np.sum(repeats * plain_gpu, axis=-1)
    energy, static, floor, knee = (scales[:, 6 + at, None, None] for at in range(4))
    scale = _core_scale(tables, floor, knee)
    drive = scale * tables.clock_mhz / tables.rate_mhz[:, None]
    work_j = (
        tables.active_w[:, None] * drive * holding_s + tables.core_j[:, None] * scale + tables.dram_j[:, None]
    ) * energy
    waiting_w = static * (tables.idle_w[:, None] + tables.clocked_w[:, None] * drive)
    return time_s, waiting_w + work_j / time_s, waiting_w


def _core_scale(tables: RunTables, floor: Any, knee: Any) -> Floats:
    floor = np.where(floor > 0, floor, tables.floor[:, None])
    knee = np.where(knee > 0, knee, tables.knee[:, None])

    def voltage(clock_mhz: Floats) -> Any:
        rise = np.clip((clock_mhz / tables.top_mhz[:, None] - knee) / (1.0 - knee), 0.0, 1.0)
        return floor + (1.0 - floor) * rise**1.2

    family = voltage(tables.clock_mhz) / voltage(tables.rate_mhz[:, None])
    ratio = np.where(np.isfinite(tables.own_voltage), tables.own_voltage, family)
    return np.asarray(ratio ** tables.exponent[:, None])


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


def fit_scales(
    tables: RunTables, *, seed: int = 0, only: Iterable[str] | None = None, around: Scales | None = None
) -> Scales:
    """Scales of a stack from measured steps, by differential evolution over all that the steps say something of.

    Minimises squared errors of the logarithms of times and powers beside those of the scales: what runs at several
    clocks or limits have in common counts once, how they differ counts by itself. A scale that the runs say nothing of
    stays 1.

    Parameters
    ----------
    tables : RunTables
    seed : int
    only : iterable of str, optional
        Scales to fit; by default all of `TIMED` and `POWERED` that `unidentified` does not name.
    around : Scales, optional
        What is expected, of steps among which these are; scales that are not fitted stay as they are in it.

    Returns
    -------
    Scales

    References
    ----------
    .. [1] R. Storn, K. Price, Differential evolution, Journal of Global Optimization 11, 1997.
    """
    from scipy.optimize import differential_evolution

    if not np.isfinite(tables.measured_s).any():
        raise InputError("no step time to fit to: give step_time_s")
    blind = set(unidentified(tables))
    chosen = set((*TIMED, *POWERED) if only is None else only)
    names = [name for name in (*TIMED, *POWERED) if name in chosen and name not in blind]
    start = around or Scales()
    unknown = ", ".join(name for name in (*TIMED, *POWERED) if name in blind)
    if not names:
        return replace(start, provenance="fitted", rows=len(tables), unknown=unknown)
    places = [(*TIMED, *POWERED).index(name) for name in names]
    logs = np.array([name in _LOGS for name in names])
    expected, spread, lowest, highest = np.array([_EXPECTED[name] for name in names]).T
    group, each = _configurations(tables)
    base = _vector(start)
    if around is not None:
        known = np.where(logs, np.log(np.maximum(base[places], 1e-9)), base[places])
        expected, spread = np.where(base[places] > 0, np.clip(known, lowest, highest), expected), 0.5 * spread

    def vectors(x: Floats) -> Floats:
        every = np.tile(base, (len(x), 1))
        every[:, places] = np.where(logs, np.exp(x), x)
        return every

    def loss(x: Floats) -> Any:
        points = np.atleast_2d(x.T)
        time_s, power_w = _evaluated(tables, vectors(points))
        total = _cost(np.log(time_s / tables.measured_s), group, each, NOISE, POINT_NOISE)
        total += _cost(np.log(power_w / tables.measured_w), group, each, POWER_NOISE, POWER_NOISE)
        total += np.sum(((points - expected) / spread) ** 2, axis=1)
        return total if x.ndim > 1 else float(total[0])

    found = differential_evolution(
        loss, list(zip(lowest, highest, strict=True)), seed=seed, tol=1e-6, maxiter=250, popsize=10, polish=True,
        vectorized=True, updating="deferred",
    )  # fmt: skip
    values = np.where(logs, np.exp(found.x), found.x)
    fitted = dict(zip(names, values.tolist(), strict=True))
    return replace(start, provenance="fitted", rows=len(tables), unknown=unknown, **fitted)


def _configurations(tables: RunTables) -> tuple[npt.NDArray[np.intp], Floats]:
    """Which configuration each run belongs to, and how many runs each has."""
    codes: dict[str, int] = {}
    group = np.array([codes.setdefault(run.configuration, len(codes)) for run in tables.runs], dtype=np.intp)
    return group, np.bincount(group).astype(np.float64)


def _cost(miss: Floats, group: npt.NDArray[np.intp], each: Floats, common: float, single: float) -> Floats:
    """Cost of errors, shape (m, n), of runs that belong to configurations: shape (m,); NaN counts nothing.

    Beyond three times the noise an error counts by its distance alone: some runs are not what they say.
    """
    there = np.isfinite(miss)
    counts = np.stack([np.bincount(group, weights=row, minlength=each.size) for row in there.astype(np.float64)])
    filled = np.where(there, miss, 0.0)
    sums = np.stack([np.bincount(group, weights=row, minlength=each.size) for row in filled])
    mean = sums / np.maximum(counts, 1.0)
    apart = np.where(there, filled - mean[:, group], 0.0)

    def bent(size: Floats) -> Floats:
        return np.asarray(np.where(size < 3, size**2, 6 * size - 9))

    total = bent(np.abs(mean) / common).sum(axis=1) + 0.5 * bent(np.abs(apart) / single).sum(axis=1)
    # configurations of one network are wrong together: ten of them tell as much as some three that are not
    return np.asarray(total / np.sqrt(each.size))


def unidentified(tables: RunTables) -> tuple[str, ...]:
    """Scales that the runs say nothing of.

    Of time: those whose class takes little of every step. Of power: all without a measured power, voltages and the
    share of the limit without one configuration at several clocks or limits.
    """
    plain = tables.class_s[:, -1].sum(axis=-1) + tables.other_s[:, -1]
    gpu_s = np.sum(tables.repeats * plain, axis=1)
    total = np.sum(tables.repeats * pass_time_s(plain, tables.host_s), axis=1) + tables.exchange_s[:, -1]
    by_class = np.einsum("npc,np->nc", tables.class_s[:, -1], tables.repeats) / total[:, None]
    shares = {name: float(by_class[:, at].max(initial=0)) for at, name in enumerate(CLASSES)}
    # a host hides behind the GPU: what it takes shows only where it takes nearly as long
    host = np.sum(tables.repeats * tables.host_s, axis=1) / gpu_s
    shares["host"] = 1.0 if float(host.max(initial=0)) > 0.8 else 0.0
    exchanged = tables.exchange_s[:, -1] + np.sum(tables.repeats * tables.other_s[:, -1], axis=1)
    shares["communication"] = float((exchanged / total).max(initial=0))
    read = np.isfinite(tables.measured_w)
    shares |= dict.fromkeys(POWERED, 0.0)
    if read.any():
        shares["energy"] = 1.0
        group, _ = _configurations(tables)
        points = np.array([np.unique(tables.limit_w[read & (group == code)]).size
                           + np.unique(tables.clock_mhz[read & (group == code), -1]).size - 1
                           for code in np.unique(group[read])])  # fmt: skip
        if points.max() >= 3:
            shares |= dict.fromkeys(POWERED, 1.0)
    return tuple(name for name in (*TIMED, *POWERED) if shares[name] < LEAST_SHARE)


def left_out(
    tables: RunTables, groups: Sequence[str], *, within: Sequence[str] | None = None, seed: int = 0,
    only: Iterable[str] | None = None,
) -> tuple[Floats, Floats]:  # fmt: skip
    """Time and power of each run, predicted by scales that were fitted without its group.

    Parameters
    ----------
    tables : RunTables
    groups : sequence of str
        Group of each run; a lone group is predicted without any fit.
    within : sequence of str, optional
        Runs that a fit may look at for each: those with the same word; all by default.
    seed : int
    only : iterable of str, optional
        As for `fit_scales`.

    Returns
    -------
    time_s, power_w : ndarray, shape (n,)
        [s, W]
    """
    out_s, out_w = np.full(len(tables), np.nan), np.full(len(tables), np.nan)
    names, domains = np.array(groups), np.array(within if within is not None else [""] * len(tables))
    for name, domain in dict.fromkeys(zip(names.tolist(), domains.tolist(), strict=True)):
        mine = (names == name) & (domains == domain)
        rest = taken(tables, (names != name) & (domains == domain))
        known = len(rest) > 0 and bool(np.isfinite(rest.measured_s).any())
        scales = fit_scales(rest, seed=seed, only=only) if known else Scales()
        out_s[mine], out_w[mine] = figures(taken(tables, mine), scales)
    return out_s, out_w
