"""What starting launches costs a user's host, from a few measured passes of whole models."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from joulecast.bounds.ranges import check_clock_mhz, number
from joulecast.calibration.own import today
from joulecast.coefficients import store, transfer
from joulecast.coefficients.schema import Calibration, GpuCoefficients, HostCoefficients
from joulecast.coefficients.transfer import host_coefficients
from joulecast.errors import InputError, shortened
from joulecast.gpus import Gpu, load_gpu
from joulecast.lowering.execution import Execution
from joulecast.physics.timeline import Passes, pass_time_s, run_phase
from joulecast.scenarios.pricing import passes_of, prepared
from joulecast.workloads.frames import read_frame
from joulecast.workloads.sources import open_workload

Floats = npt.NDArray[np.float64]

#: Columns of a table of passes: those that must be there, and those that may.
NEEDED = ("model", "gpu", "time_s")
MAY_BE = ("batch", "prompt_tokens", "generate_tokens", "image_size", "dtype", "clock_mhz", "launch_mode", "attention",
          "engine", "power_w")  # fmt: skip

#: Fewest passes that tell a cost, and fewest whose calls and launches must differ to tell two.
_FEWEST, _FEWEST_FOR_TWO = 2, 4

#: How little is believed beforehand, in logarithms: of the cost of a launch, of a module call beside it, and how far
#: the model of the GPU may be off for all passes together.
_LAUNCH_WIDTH, _RATIO_WIDTH, _GPU_WIDTH = 1.5, 0.5, 0.25

#: Scatter of single passes. Natural logarithm.
_NOISE = 0.05


@dataclass(frozen=True)
class HostRun:
    """One measured pass, as far as its host matters.

    Attributes
    ----------
    label : str
    gpu : Gpu
    launch_mode : str
    time_s : float
        Measured. [s]
    gpu_s : ndarray, shape (p,)
        Time of the GPU alone in each pass of the workload, at the clock that it settles at. [s]
    repeats : ndarray, shape (p,)
        How often each runs.
    launches, modules : ndarray, shape (p,)
        What each costs the host, in costs of a launch and of a module call.
    """

    label: str
    gpu: Gpu
    launch_mode: str
    time_s: float
    gpu_s: Floats
    repeats: Floats
    launches: Floats
    modules: Floats

    def predicted_s(self, launch_us: float, module_us: float, gpu_scale: float = 1.0) -> float:
        """Time at costs of the host, and of the GPU scaled. [s]"""
        host_s = (self.launches * launch_us + self.modules * module_us) * 1e-6
        return float(self.repeats @ pass_time_s(self.gpu_s * gpu_scale, host_s))

    def host_share(self, launch_us: float, module_us: float, gpu_scale: float = 1.0) -> float:
        """Time of the host alone over that of the GPU alone. Dimensionless."""
        host_s = float(self.repeats @ (self.launches * launch_us + self.modules * module_us)) * 1e-6
        return host_s / max(float(self.repeats @ self.gpu_s) * gpu_scale, 1e-300)


@dataclass(frozen=True)
class HostFit:
    """Costs of one launch mode on the host of one GPU.

    Attributes
    ----------
    gpu, launch_mode : str
    launch_us, module_us : float
        [us]
    rows, host_bound : int
        Passes, and those among them that wait for their host.
    before, error : float
        Mean absolute error of the times with the costs known before, and of each pass with a fit on the others (NaN
        with fewer than three).
    warnings : tuple of str
    """

    gpu: str
    launch_mode: str
    launch_us: float
    module_us: float
    rows: int
    host_bound: int
    before: float
    error: float
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class CalibratedHost:
    """What came of a table of passes: the fits, those that could not be, and the files written."""

    fits: tuple[HostFit, ...]
    refused: tuple[str, ...]
    files: tuple[Path, ...]


def calibrate_host(
    path: Path, out: Path, *, version: str = "", tell: Callable[[str, float], None] = lambda *_: None
) -> CalibratedHost:
    """Fit costs of the host to measured passes and write them to the coefficient files of their GPUs in `out`.

    Parameters
    ----------
    path : Path
        A table with the columns `NEEDED`, and any of `MAY_BE`; a row for each pass (or prefill and decode together).
    out : Path
        Made where it is missing.
    version : str
        Of joulecast, for the files.
    tell : callable
        Gets a line and the share done.

    Returns
    -------
    CalibratedHost

    Raises
    ------
    InputError
        For a table that can't be read, a row that can't be, or where no pass waits for its host.
    """
    runs = read_host_runs(path, tell)
    groups: dict[tuple[str, str], list[HostRun]] = defaultdict(list)
    for run in runs:
        groups[run.gpu.name, run.launch_mode].append(run)
    fits, refused = [], []
    for (name, mode), members in groups.items():
        try:
            fits.append(fit_host(members))
        except InputError as error:
            refused.append(f"{name}, {mode}: {error}")
    if not fits:
        raise InputError("; ".join(refused))
    files = tuple(
        _written(load_gpu(name), [one for one in fits if one.gpu == name], path.name, out, version)
        for name in dict.fromkeys(one.gpu for one in fits)
    )
    transfer.forget()
    return CalibratedHost(tuple(fits), tuple(refused), files)


def read_host_runs(path: Path, tell: Callable[[str, float], None] = lambda *_: None) -> list[HostRun]:
    """Measured passes of a table, each with what its GPU and its host have to do.

    Raises
    ------
    InputError
        Naming the row, if one can't be.
    """
    frame = read_frame(path)
    missing = [name for name in NEEDED if name not in frame.columns]
    unknown = [name for name in frame.columns if name not in (*NEEDED, *MAY_BE)]
    if missing or unknown:
        what = f"lacks {', '.join(missing)}" if missing else f"has a column {shortened(unknown[0])!r}"
        raise InputError(f"{path.name} {what}: passes have {', '.join(NEEDED)}, and may have {', '.join(MAY_BE)}")
    out = []
    for place, row in enumerate(frame.iter_rows(named=True)):
        tell(f"row {place + 1} of {frame.height}", place / max(frame.height, 1))
        try:
            out.append(_run({name: value for name, value in row.items() if value not in (None, "")}))
        except InputError as error:
            raise InputError(f"{path.name}, row {place + 1}: {error}") from None
    if not out:
        raise InputError(f"{path.name} has no rows")
    return out


def _run(row: Mapping[str, Any]) -> HostRun:
    for name in NEEDED:
        if name not in row:
            raise InputError(f"{name} is empty")
    time_s = number(row["time_s"], "time_s", "s")
    if time_s <= 0:
        raise InputError(f"time_s must be above zero, got {time_s:g}")
    gpu = load_gpu(str(row["gpu"]))
    sizes = ("batch", "prompt_tokens", "generate_tokens", "image_size", "dtype")
    workload = open_workload(str(row["model"]), **{name: row[name] for name in sizes if name in row})
    mode = str(row.get("launch_mode", "eager")).lower().replace("-", "_")
    execution = Execution(mode, str(row.get("attention", "fused")), str(row.get("engine", "pytorch")))
    clock = check_clock_mhz(row.get("clock_mhz"), gpu.clock_min_mhz, gpu.clock_max_mhz, gpu.name)
    lowered, rows = prepared(workload, gpu, execution, ())
    base = host_coefficients(gpu)
    by_phase: list[tuple[Floats, ...]] = []
    for phase in dict.fromkeys(one.phase for one in workload.passes):
        ids = [place for place, one in enumerate(workload.passes) if one.phase == phase]
        members = np.flatnonzero(np.isin(rows.pass_id, ids))
        if not members.size:
            continue
        launches, modules, free = (
            passes_of(lowered, rows, members, _host_of(base, *costs)) for costs in ((1.0, 0.0), (0.0, 1.0), (0.0, 0.0))
        )
        by_phase.append((_gpu_s(free, clock, gpu), free.repeats, launches.host_s * 1e6, modules.host_s * 1e6))
    gpu_s, repeats, launch, module = (np.concatenate(parts) for parts in zip(*by_phase, strict=True))
    return HostRun(workload.name, gpu, mode, time_s, gpu_s, repeats, launch, module)


def _host_of(base: HostCoefficients, launch_us: float, module_us: float) -> HostCoefficients:
    """`base` with one cost of a launch in all modes."""
    return replace(base, eager_us=launch_us, compiled_us=launch_us, cuda_graph_us=launch_us, module_us=module_us)


def _gpu_s(passes: Passes, clock_mhz: float, gpu: Gpu) -> Floats:
    """Time of the GPU alone in each pass, at the clock that its power limit lets it have. [s]"""
    settled = run_phase(passes, clock_mhz, gpu.power_limit_default_w)
    busy_s = passes.count * settled.kernel_s
    return np.asarray(np.bincount(passes.pass_of, weights=busy_s, minlength=passes.repeats.size), dtype=np.float64)


def fit_host(runs: Sequence[HostRun]) -> HostFit:
    """Costs of a launch and of a module call that the times of passes of one GPU and launch mode tell.

    Raises
    ------
    InputError
        If they are too few, or none waits for its host: their times then tell only what a launch costs at most.
    """
    gpu, mode = runs[0].gpu, runs[0].launch_mode
    if len(runs) < _FEWEST:
        raise InputError(f"{len(runs)} pass is too few: {_FEWEST} are needed")
    base = host_coefficients(gpu)
    known = (max(base.launch_us(mode), 0.1), base.module_us if mode == "eager" else 0.0)
    launch_us, module_us, scale = _fitted(runs, *known)
    bound = [run for run in runs if run.host_share(launch_us, module_us, scale) > 1.0]
    if not bound:
        most = min(
            run.time_s * 1e6 / float(run.repeats @ (run.launches + run.modules * known[1] / known[0])) for run in runs
        )
        raise InputError(
            f"none of the {len(runs)} passes waits for its host, so that their times tell only that a launch costs at "
            f"most {most:.3g} us: measure a smaller batch"
        )
    warnings = []
    if len(bound) == 1:
        warnings.append(f"only one pass waits for its host ({bound[0].label}): more would tell more")
    if known[1] and not _tell_two(bound):
        warnings.append("launches and module calls can't be told apart: their ratio is that of other hosts")
    before = float(np.mean([abs(run.predicted_s(*known) / run.time_s - 1) for run in runs]))
    return HostFit(
        gpu.name, mode, launch_us, module_us, len(runs), len(bound), before, _left_out_error(runs, known),
        tuple(warnings),
    )  # fmt: skip


def _left_out_error(runs: Sequence[HostRun], known: tuple[float, float]) -> float:
    if len(runs) <= _FEWEST:
        return float("nan")
    errors = []
    for place, run in enumerate(runs):
        launch_us, module_us, _ = _fitted([*runs[:place], *runs[place + 1 :]], *known)
        errors.append(abs(run.predicted_s(launch_us, module_us) / run.time_s - 1))
    return float(np.mean(errors))


def _tell_two(runs: Sequence[HostRun]) -> bool:
    """Whether passes differ enough in calls a launch to tell what each of the two costs."""
    ratios = [float(run.repeats @ run.modules) / float(run.repeats @ run.launches) for run in runs]
    return len(runs) >= _FEWEST_FOR_TWO and max(ratios) > 1.2 * min(ratios)


def _fitted(runs: Sequence[HostRun], launch_us: float, module_us: float) -> tuple[float, float, float]:
    """Costs of a launch and a module call, and the scale of GPU times, that fit best. [us, us, -]"""
    from scipy.optimize import least_squares

    ratio = module_us / launch_us if launch_us else 0.0
    two = ratio > 0 and _tell_two(runs)
    times = np.log([run.time_s for run in runs])

    def costs(x: Floats) -> tuple[float, float, float]:
        launch = launch_us * float(np.exp(x[0]))
        return launch, launch * ratio * float(np.exp(x[2] if two else 0.0)), float(np.exp(x[1]))

    def misses(x: Floats) -> Floats:
        found = np.log([run.predicted_s(*costs(x)) for run in runs])
        widths = np.array([_LAUNCH_WIDTH, _GPU_WIDTH, _RATIO_WIDTH][: x.size])
        return np.concatenate([(found - times) / _NOISE, x / widths])

    # the times feel nothing of a cost that hides behind the GPU: start from those that would make each of them too
    most = [run.time_s * 1e6 / float(run.repeats @ (run.launches + run.modules * ratio)) for run in runs]
    firsts = {0.0, *(float(np.log(one / launch_us)) for one in (min(most), float(np.median(most))))}
    starts = [np.array([first, 0.0, 0.0][: 3 if two else 2]) for first in sorted(firsts)]
    found = min((least_squares(misses, start) for start in starts), key=lambda one: float(one.cost))
    return costs(found.x)


def _written(gpu: Gpu, fits: Sequence[HostFit], table: str, out: Path, version: str) -> Path:
    """Write the fits of one GPU over what its file in `out` has."""
    host = host_coefficients(gpu)
    modes = {one.launch_mode: one for one in fits}
    changes: dict[str, float] = {f"{mode}_us": one.launch_us for mode, one in modes.items()}
    if "eager" in modes:
        changes["module_us"] = modes["eager"].module_us
        if "compiled" not in modes:
            changes["compiled_us"] = host.compiled_us * modes["eager"].launch_us / host.eager_us
    rows = sum(one.rows for one in fits)
    source = f"{rows} passes of {table}: {', '.join(sorted(modes))}"
    fitted: HostCoefficients = replace(host, **changes, provenance="measured", source=source, rows=rows)
    errors = {f"host/{one.launch_mode}": one.error for one in fits if one.error == one.error}
    note = Calibration(version=version, date=today(), sources=source, rows=rows, residuals=errors)
    new = GpuCoefficients(gpu.name, host=fitted, calibration=note)
    try:
        out.mkdir(parents=True, exist_ok=True)
        path = out / f"{gpu.name}.toml"
        old = store.read(path) if path.is_file() else None
        if old is not None and old.calibration is not None:
            new = replace(new, calibration=old.calibration)
        store.write(new if old is None else store.overlaid(old, new), path)
    except OSError as error:
        raise InputError(f"can't write coefficients to {shortened(out)}: {error.strerror or error}") from None
    return path
