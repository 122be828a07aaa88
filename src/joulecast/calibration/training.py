"""Measured training steps: read from a table, tabulated by class of operation, and what a stack's scales fit them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from joulecast.errors import InputError, JoulecastError, shortened
from joulecast.physics.timeline import pass_time_s
from joulecast.scenarios.training.question import LAYOUT, MODEL, RECIPE, forward_pass, told_apart
from joulecast.scenarios.training.scales import CLASSES, Scales
from joulecast.scenarios.training.step import PassTable
from joulecast.scenarios.training.train import train
from joulecast.workloads.table import Workload

Floats = npt.NDArray[np.float64]

#: Scales that a time depends on, in the order of the fit's parameters.
TIMED = (*CLASSES, "host", "communication")

#: Bounds of each scale, and the spread of its logarithm that is expected before anything is measured.
LOWEST, HIGHEST, EXPECTED_SPREAD = 0.2, 5.0, 0.4

#: Error of a measured time that weighs as much as one spread of a scale, in natural logarithms.
NOISE = 0.05

#: A scale is told to be unknown where its class takes less than this share of every step.
LEAST_SHARE = 0.03

#: Columns of a table beside the options of `joulecast.api.train`.
MEASURED = ("step_time_s", "power_w", "network")
_RUN = ("global_batch", "clock_mhz", "power_limit_w", "launch_mode", "attention", "host_us_per_launch",
        "input_samples_per_s")  # fmt: skip


@dataclass(frozen=True)
class TrainingRun:
    """One measured training configuration.

    Attributes
    ----------
    source : str or Workload
        The model.
    gpu : str
    options : mapping
        As `joulecast.api.train` takes them.
    step_time_s : float or None
        [s]
    power_w : float or None
        Mean of one GPU. [W]
    network : str
        What is left out together when the fit is tested.
    """

    source: Any
    gpu: str
    options: Mapping[str, Any]
    step_time_s: float | None
    power_w: float | None = None
    network: str = ""
    tags: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class RunTables:
    """Runs with what their steps are made of, at scales of 1; arrays over `n` runs.

    Attributes
    ----------
    runs : tuple of TrainingRun
    tables : tuple of PassTable
    measured_s, measured_w : ndarray
        NaN where not measured.
    """

    runs: tuple[TrainingRun, ...]
    tables: tuple[PassTable, ...]
    class_s: Floats
    other_s: Floats
    host_s: Floats
    repeats: Floats
    exchange_s: Floats
    waiting_s: Floats
    work_j: Floats
    static_w: Floats
    measured_s: Floats
    measured_w: Floats

    def __len__(self) -> int:
        return len(self.runs)


def read_runs(path: Path) -> list[TrainingRun]:
    """Measured steps from a CSV table.

    Parameters
    ----------
    path : Path
        Columns ``model``, ``gpu`` and ``step_time_s``; ``power_w`` (mean of one GPU) and ``network`` (left out
        together; the model by default) where known; any option of `joulecast.api.train` as a further column.

    Returns
    -------
    list of TrainingRun

    Raises
    ------
    InputError
        If the file can't be read, lacks a column, or a row holds what can't be.
    """
    import polars as pl

    if not path.is_file():
        raise InputError(f"no file {shortened(path)}")
    try:
        table = pl.read_csv(path, infer_schema_length=None)
    except (pl.exceptions.PolarsError, UnicodeDecodeError, OSError) as error:
        raise InputError(f"{shortened(path)} is no CSV table: {shortened(error, 120)}") from None
    known = {"model", "gpu", *MEASURED, *MODEL, *RECIPE, *LAYOUT, *_RUN}
    for column in table.columns:
        if column not in known:
            raise InputError(f"{shortened(path)} has a column {shortened(column)!r} that is none of "
                             f"{', '.join(sorted(known))}")  # fmt: skip
    for column in ("model", "gpu", "step_time_s"):
        if column not in table.columns:
            raise InputError(f"{shortened(path)} needs a column {column}")
    if not table.height:
        raise InputError(f"{shortened(path)} has no rows")
    return [_run(path, number, row) for number, row in enumerate(table.iter_rows(named=True), start=2)]


def _run(path: Path, number: int, row: Mapping[str, Any]) -> TrainingRun:
    given = {name: value for name, value in row.items() if value is not None}

    def positive(name: str) -> float | None:
        value = given.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e9:
            raise InputError(f"{shortened(path)}, line {number}: {name} must be above 0, got {shortened(value)!r}")
        return float(value)

    if "model" not in given or "gpu" not in given:
        raise InputError(f"{shortened(path)}, line {number}: model and gpu are needed in every row")
    options = {name: value for name, value in given.items() if name not in ("model", "gpu", *MEASURED)}
    time_s = positive("step_time_s")
    if time_s is None:
        raise InputError(f"{shortened(path)}, line {number}: step_time_s is needed in every row")
    return TrainingRun(
        str(given["model"]), str(given["gpu"]), options, time_s, positive("power_w"),
        str(given.get("network", given["model"])),
    )  # fmt: skip


def tabulated(runs: Sequence[TrainingRun], *, exclude: tuple[str, ...] = ()) -> tuple[RunTables, list[str]]:
    """What the steps of runs are made of, and why those that can't be predicted are left out.

    Parameters
    ----------
    runs : sequence of TrainingRun
    exclude : tuple of str
        GPUs whose fitted coefficients may not be used.
    """
    kept, tables, reasons = [], [], []
    opened: dict[tuple[Any, ...], Workload] = {}
    for run in runs:
        try:
            model, recipe, layout, rest = told_apart(run.options)
            key = (_key(run.source), recipe.precision, *sorted(model.items()))
            if key not in opened:
                opened[key] = forward_pass(run.source, model, recipe)
            found = train(opened[key], run.gpu, recipe, layout, ignore_memory=True, exclude=exclude, **rest)
        except JoulecastError as error:
            reasons.append(f"{run.network} on {run.gpu}: {error}")
            continue
        kept.append(run)
        tables.append(found.table)
    return _joined(kept, tables), reasons


def _key(source: Any) -> Any:
    return source if isinstance(source, str) else id(source)


def _joined(runs: Sequence[TrainingRun], tables: Sequence[PassTable]) -> RunTables:
    most = max((one.repeats.size for one in tables), default=1)

    def padded(name: str) -> Floats:
        return np.array([np.pad(getattr(one, name), (0, most - one.repeats.size)) for one in tables]).reshape(-1, most)

    class_s = np.zeros((len(tables), most, len(CLASSES)))
    for at, one in enumerate(tables):
        class_s[at, : one.repeats.size] = one.class_s
    return RunTables(
        runs=tuple(runs),
        tables=tuple(tables),
        class_s=class_s,
        other_s=padded("other_s"),
        host_s=padded("host_s"),
        repeats=padded("repeats"),
        exchange_s=np.array([one.exchange_s for one in tables]),
        waiting_s=np.array([one.waiting_s for one in tables]),
        work_j=np.array([one.work_j for one in tables]),
        static_w=np.array([one.static_w for one in tables]),
        measured_s=np.array([run.step_time_s if run.step_time_s else np.nan for run in runs], dtype=np.float64),
        measured_w=np.array([run.power_w if run.power_w else np.nan for run in runs], dtype=np.float64),
    )


def taken(tables: RunTables, rows: Any) -> RunTables:
    """The runs at `rows`: indices or a mask."""
    at = np.arange(len(tables))[rows]
    columns = {name: getattr(tables, name)[at] for name in
               ("class_s", "other_s", "host_s", "repeats", "exchange_s", "waiting_s", "work_j", "static_w",
                "measured_s", "measured_w")}  # fmt: skip
    return RunTables(runs=tuple(tables.runs[i] for i in at), tables=tuple(tables.tables[i] for i in at), **columns)


def step_times_s(tables: RunTables, factors: Any) -> Floats:
    """Time of each step at scales `factors`, in the order of `TIMED`. [s]

    Waiting in a pipeline grows with the passes; the clock is that which was settled at scales of 1.
    """
    scale = np.asarray(factors, dtype=np.float64)
    gpu_s = tables.class_s @ scale[: len(CLASSES)] + tables.other_s * scale[-1]
    passes = np.sum(tables.repeats * pass_time_s(gpu_s, tables.host_s * scale[-2]), axis=1)
    plain = np.sum(tables.repeats * pass_time_s(tables.class_s.sum(axis=2) + tables.other_s, tables.host_s), axis=1)
    return np.asarray(passes + tables.exchange_s * scale[-1] + tables.waiting_s * passes / plain)


def fit_scales(tables: RunTables, *, seed: int = 0, only: Iterable[str] = TIMED) -> Scales:
    """Scales of a stack from measured steps, by differential evolution.

    Minimises mean squared errors of the logarithm of the time beside those of the logarithms of the scales: a scale
    that the runs say nothing of stays 1. A scale on energy follows from measured powers.

    Parameters
    ----------
    tables : RunTables
    seed : int
    only : iterable of str
        Scales to fit; the others stay 1.

    Returns
    -------
    Scales

    References
    ----------
    .. [1] R. Storn, K. Price, Differential evolution, Journal of Global Optimization 11, 1997.
    """
    from scipy.optimize import differential_evolution

    names = [name for name in TIMED if name in set(only)]
    places = [TIMED.index(name) for name in names]
    measured = np.isfinite(tables.measured_s)
    few = taken(tables, measured)
    if not len(few):
        raise InputError("no step time to fit to: give step_time_s")
    log_measured = np.log(few.measured_s)
    weights = _weights(few)

    def factors(logs: Floats) -> Floats:
        every = np.ones(len(TIMED))
        every[places] = np.exp(logs)
        return every

    def loss(logs: Floats) -> float:
        error = np.log(step_times_s(few, factors(logs))) - log_measured
        # beyond three times the noise a run counts by its distance alone: some are not what they say
        size = np.abs(error) / NOISE
        cost = np.where(size < 3, size**2, 6 * size - 9)
        return float(weights @ cost + np.sum((logs / EXPECTED_SPREAD) ** 2))

    bounds = [(np.log(LOWEST), np.log(HIGHEST))] * len(names)
    found = differential_evolution(loss, bounds, seed=seed, tol=1e-8, maxiter=400, popsize=12, polish=True)
    scales = dict(zip(names, np.exp(found.x).tolist(), strict=True))
    return replace(Scales(provenance="fitted"), **scales, energy=_energy_scale(tables, factors(found.x)))


def _weights(tables: RunTables) -> Floats:
    """Weight of each run: those of a network that was measured often count less each."""
    names = [run.network for run in tables.runs]
    counts = {name: names.count(name) for name in set(names)}
    return np.array([1.0 / np.sqrt(counts[name]) for name in names])


def _energy_scale(tables: RunTables, factors: Floats) -> float:
    """Factor on the energy of work that measured powers ask for; 1 without any."""
    there = np.isfinite(tables.measured_w)
    if not there.any():
        return 1.0
    few = taken(tables, there)
    time_s = step_times_s(few, factors)
    work_w, beyond_w = few.work_j / time_s, few.measured_w - few.static_w
    use = beyond_w > 0.05 * few.measured_w
    if not use.any():
        return 1.0
    return float(np.clip(np.exp(np.median(np.log(beyond_w[use] / work_w[use]))), 0.3, 3.0))


def predicted_w(tables: RunTables, scales: Scales) -> Floats:
    """Mean power of one GPU at fitted scales, whatever its limit. [W]"""
    time_s = step_times_s(tables, factors_of(scales))
    return np.asarray(tables.static_w + tables.work_j * scales.energy / time_s)


def factors_of(scales: Scales) -> Floats:
    """The scales that a time depends on, in the order of `TIMED`."""
    return np.array([getattr(scales, name) for name in TIMED])


def unidentified(tables: RunTables) -> tuple[str, ...]:
    """Scales that the runs say nothing of: their class takes little of every step."""
    plain = step_times_s(tables, np.ones(len(TIMED)))
    by_class = np.einsum("npc,np->nc", tables.class_s, tables.repeats) / plain[:, None]
    host = np.sum(tables.repeats * tables.host_s, axis=1) / plain
    shares = {name: float(by_class[:, at].max(initial=0)) for at, name in enumerate(CLASSES)}
    # a host hides behind the GPU: what it takes shows only where it takes nearly as long
    shares["host"] = 1.0 if float(host.max(initial=0)) > 0.8 else 0.0
    shares["communication"] = float((tables.exchange_s / plain).max(initial=0)) + float(
        (np.sum(tables.repeats * tables.other_s, axis=1) / plain).max(initial=0)
    )
    return tuple(name for name in TIMED if shares[name] < LEAST_SHARE)


def left_out_errors(tables: RunTables, groups: Sequence[str], *, seed: int = 0) -> Floats:
    """Relative error of each run's time, predicted by scales that were fitted without its group.

    Parameters
    ----------
    tables : RunTables
    groups : sequence of str
        Group of each run; a lone group is predicted without any fit.

    Returns
    -------
    ndarray
        ``predicted / measured - 1``; NaN where no time was measured.
    """
    out = np.full(len(tables), np.nan)
    names = np.array(groups)
    for name in dict.fromkeys(groups):
        mine = names == name
        rest = taken(tables, ~mine)
        scales = fit_scales(rest, seed=seed) if len(rest) and np.isfinite(rest.measured_s).any() else Scales()
        few = taken(tables, mine)
        out[mine] = step_times_s(few, factors_of(scales)) / few.measured_s - 1.0
    return out
