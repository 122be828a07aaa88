"""Coefficients from whole passes: host, energies, and how eager kernels differ from benchmarked ones."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from joulecast.calibration.pass_runs import MeasuredPass, read_generations, read_passes
from joulecast.calibration.passes import (
    FORWARD,
    GENERATED,
    PassFit,
    PassTable,
    fit_passes,
    predicted_power_w,
    predicted_time_s,
    tabulate,
)
from joulecast.coefficients.energies import default_power
from joulecast.coefficients.schema import HostCoefficients, PowerCoefficients, TimeCoefficients
from joulecast.coefficients.transfer import time_coefficients
from joulecast.gpus import Gpu, load_gpu

Floats = npt.NDArray[np.float64]

#: How sources name whole passes: such coefficients build on those of kernels alone.
PASSES = "on efficiencies"

#: Kernels that take less than this share of every pass keep what kernel tables say of them.
_LEAST_SHARE = 0.02

#: Static power of the clocked core beside that of the idle GPU at a low clock, where no reading tells it apart.
_CLOCKED_SHARE = 0.4


@dataclass(frozen=True)
class PassErrors:
    """Relative errors of passes predicted without their own model in the fit."""

    runs: tuple[MeasuredPass, ...]
    time: Floats
    power: Floats
    energy: Floats


def idle_prior_w(gpu: Gpu) -> tuple[float, float]:
    """Idle power at a low clock, and what the clocked core adds at the rate clock. [W]

    From the idle readings by clock where the catalogue has them.
    """
    if gpu.idle_points:
        mhz, watts = np.array(gpu.idle_points).T
        low = float(watts[0])
        return low, max(float(np.interp(gpu.rate_clock_mhz, mhz, watts)) - low, 1.0)
    return (1 - _CLOCKED_SHARE) * gpu.idle_w, _CLOCKED_SHARE * gpu.idle_w


_BELIEF = {"eager forward passes": FORWARD, "eager generations": GENERATED}


def leave_model_out(runs: Sequence[MeasuredPass], table: PassTable) -> PassErrors:
    """Errors of each pass at its own clock, predicted from a fit on the other models of the same GPU."""
    time_s, power_w = np.empty(len(runs)), np.empty(len(runs))
    prior = idle_prior_w(table.gpu)
    for model in np.unique(table.models):
        rows = table.models == model
        fit = fit_passes(table.take(~rows), prior, _BELIEF[runs[0].source])
        time_s[rows], power_w[rows] = predicted(fit, table.take(rows))
    return PassErrors(
        tuple(runs),
        time_s / table.time_s - 1,
        power_w / table.power_w - 1,
        time_s * power_w / (table.time_s * table.power_w) - 1,
    )


def predicted(fit: PassFit, table: PassTable) -> tuple[Floats, Floats]:
    """Time and mean power that a fit gives the passes of `table`. [s, W]"""
    log_scale = np.log([fit.scale[key] for key in table.keys])
    time_s, _ = predicted_time_s(table, log_scale, fit.launch_us, fit.module_us)
    return time_s, predicted_power_w(table, fit.energies, table.busy @ np.exp(log_scale), time_s)


def coefficients_of(
    fit: PassFit, table: PassTable, errors: PassErrors
) -> tuple[dict[str, TimeCoefficients], PowerCoefficients, HostCoefficients]:
    """A fit on passes as coefficients of its GPU."""
    gpu, rows = table.gpu, len(table.time_s)
    models = ", ".join(sorted(set(table.models.tolist())))
    source = f"{rows} {errors.runs[0].source} of {models}"
    share = (table.kernel_s / table.kernel_s.sum(axis=1, keepdims=True)).max(axis=0)
    time = {}
    for key, most in zip(table.keys, share, strict=True):
        if most < _LEAST_SHARE:
            continue
        base = time_coefficients(gpu, *key.split("/", 2))
        scaled = replace(base, pass_scale=fit.scale[key])
        if base.provenance != "fitted":
            scaled = replace(
                scaled,
                provenance="fitted",
                source=f"{source}; {PASSES} {base.source}",
                rows=rows,
                error=float(np.mean(np.abs(errors.time))),
                spread90=float(np.quantile(np.abs(np.log1p(errors.time)), 0.9)),
            )
        time[key] = scaled
    start = default_power(gpu)
    energies = fit.energies
    tensor = energies["tensor"] / start.tensor_pj["bf16"]
    cuda = energies["cuda"] / start.cuda_pj["fp32"]
    power = replace(
        start,
        idle_w=energies["idle_w"],
        clocked_w=energies["clocked_w"],
        active_w=energies["active_w"],
        voltage_exponent=energies["voltage_exponent"],
        tensor_pj={m: pj * tensor for m, pj in start.tensor_pj.items() if m in gpu.tensor_tflops},
        cuda_pj={m: pj * cuda for m, pj in start.cuda_pj.items() if m in gpu.cuda_tflops},
        sfu_pj=energies["sfu"],
        shared_pj=energies["shared"],
        l2_pj=energies["l2"],
        dram_pj=energies["dram"],
        provenance="fitted",
        source=source,
        rows=rows,
        error=float(np.mean(np.abs(errors.power))),
        spread90=float(np.quantile(np.abs(np.log1p(errors.power)), 0.9)),
    )
    host = HostCoefficients.of_eager(fit.launch_us, fit.module_us, source, rows)
    return time, power, host


def read_all(folder: Path) -> list[MeasuredPass]:
    """Forward passes and generations of the data folder; no GPU has both."""
    passes = read_passes(folder / "energaizer")
    generations = folder / "mlenergy" / "v1_llm.csv"
    return [*passes, *(read_generations(generations) if generations.is_file() else ())]


def fitted_gpus(folder: Path) -> dict[str, list[MeasuredPass]]:
    """Measured passes of the data folder by GPU."""
    by_gpu: dict[str, list[MeasuredPass]] = defaultdict(list)
    for run in read_all(folder):
        by_gpu[run.gpu].append(run)
    return dict(by_gpu)


def pass_fit_of(gpu: Gpu, runs: Sequence[MeasuredPass]) -> tuple[PassTable, PassFit]:
    """All passes of one GPU tabulated, and the fit on them."""
    table = tabulate(runs, default_power(gpu))
    return table, fit_passes(table, idle_prior_w(gpu), _BELIEF[runs[0].source])


def fit_all_passes(
    folder: Path, tell: Callable[[str], None] = lambda _: None
) -> dict[str, tuple[dict[str, TimeCoefficients], PowerCoefficients, HostCoefficients]]:
    """Coefficients of every GPU with measured passes.

    Parameters
    ----------
    folder : Path
        The data folder; passes lie in its ``energaizer``.
    tell : callable
        Gets a line for each GPU.
    """
    out = {}
    for name, runs in fitted_gpus(folder).items():
        table, fit = pass_fit_of(load_gpu(name), runs)
        errors = leave_model_out(runs, table)
        out[name] = coefficients_of(fit, table, errors)
        sizes = [float(np.mean(np.abs(one))) for one in (errors.time, errors.power, errors.energy)]
        tell(f"{name:18s} passes {len(runs):4d} runs  time {sizes[0]:.1%} power {sizes[1]:.1%} energy {sizes[2]:.1%}")
    return out
