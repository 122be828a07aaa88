"""Fits convolutions, and the pointwise kernels and host around them, on measured steps of whole networks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from joulecast.calibration.networks import (
    Kernels,
    MeasuredNetwork,
    NetworkTable,
    read_networks,
    tabulate_networks,
)
from joulecast.coefficients.schema import TIME_PARAMETERS, HostCoefficients, TimeCoefficients
from joulecast.coefficients.transfer import time_coefficients
from joulecast.gpus import Gpu
from joulecast.physics.timeline import pass_time_s
from joulecast.physics.timing import duration_s, module_times

Floats = npt.NDArray[np.float64]

#: How sources name steps of networks.
NETWORK_STEPS = "eager steps of networks"

#: Where the fit of a convolution starts that no kernel table knows: dense loops on tensor cores overlap well.
TENSOR_START = TimeCoefficients(tensor_efficiency=0.8, l2_efficiency=0.7, sharpness=4.0)

#: The same of depthwise convolutions, which other convolutions tell nothing of.
DEPTHWISE_START = TimeCoefficients(cuda_efficiency=0.85)

#: Prior and its width (in natural logarithms) of: share of the peak, share of DRAM's rate, scale; cost of a launch
#: and of a module [us]; rate of copies from memory that is not pinned [GB/s].
_PRIORS = {
    "core": (0.75, 0.4),
    "dram": (0.85, 0.15),
    "scale": (1.0, 0.4),
    "pointwise": (1.0, 0.1),
    "launch": (9.0, 1.0),
    "module": (20.0, 1.0),
    "copy": (5.0, 0.4),
}

#: Weight of priors against the mean squared residual.
_PRIOR_WEIGHT = 0.02

#: Kernels that take less than this share of every step keep what they had.
_LEAST_SHARE = 0.03


#: Algorithms of convolution that are one matrix multiply, whose efficiencies are fitted apart.
_MULTIPLIES = ("direct", "grouped")


def lever(key: str) -> str:
    """The parameter that moves the time of kernels of `key`: those of one lever are scaled together."""
    family, _, group = key.split("/", 2)
    if family == "conv2d":
        algorithm, dtype = group.split("/")
        return f"conv2d/{algorithm}/{dtype}" if algorithm in _MULTIPLIES else f"conv2d/{algorithm}"
    return "gemm" if "gemm" in family else "pointwise"


@dataclass(frozen=True)
class NetworkFit:
    """What was fitted on the steps of one GPU.

    Attributes
    ----------
    direct : dict of str to TimeCoefficients
        By ``family/engine/group``: convolutions as implicit matrix multiplies.
    scale : dict of str to float
        Factor on the time of all other kernels, by `lever`.
    launch_us, module_us : float
        Of the host, in eager mode. [us]
    copy_gb_s : float
        Rate of copies to the GPU. [GB/s]
    """

    direct: dict[str, TimeCoefficients]
    scale: dict[str, float]
    launch_us: float
    module_us: float
    copy_gb_s: float


def predicted_steps_s(fit: NetworkFit, table: NetworkTable) -> Floats:
    """Time of each step of `table`. [s]"""
    gpu_s = np.zeros(len(table.time_s))
    for one in table.kernels:
        coefficients = fit.direct.get(one.key)
        if coefficients is None:
            gpu_s += fit.scale.get(lever(one.key), 1.0) * _by_step(one, _before(table.gpu, one.key), table)
        else:
            gpu_s += _by_step(one, coefficients, table)
    host_s = (table.launches * fit.launch_us + table.modules * fit.module_us) * 1e-6
    return np.asarray(pass_time_s(gpu_s, host_s) + table.copied_bytes / (fit.copy_gb_s * 1e9))


def _by_step(one: Kernels, coefficients: TimeCoefficients, table: NetworkTable) -> Floats:
    parameters = np.array([getattr(coefficients, name) for name in TIME_PARAMETERS])
    times = module_times(one.work, table.gpu, parameters, coefficients.scale * one.factor)
    seconds = duration_s(times, table.gpu, one.clock_mhz)
    return np.bincount(one.step, weights=one.count * seconds, minlength=len(table.time_s)).astype(np.float64)


def _before(gpu: Gpu, key: str) -> TimeCoefficients:
    """What relatives of `gpu` say of kernels of `key`."""
    if key.startswith("conv2d/") and key.split("/")[2].startswith("depthwise"):
        return DEPTHWISE_START
    return time_coefficients(gpu, *key.split("/", 2), exclude=(gpu.name,))


def fit_networks(table: NetworkTable) -> NetworkFit:
    """Fit with relative, robust loss and priors.

    Parameters
    ----------
    table : NetworkTable

    Returns
    -------
    NetworkFit
    """
    from scipy.optimize import least_squares

    r, gpu = len(table.time_s), table.gpu
    direct = {one.key: _start(gpu, one.key) for one in table.kernels if _is_multiply(one.key)}
    fixed: dict[str, Floats] = defaultdict(lambda: np.zeros(r))
    for one in table.kernels:
        if one.key not in direct:
            fixed[lever(one.key)] += _by_step(one, _before(gpu, one.key), table)
    levers = list(fixed)
    moved = [one for one in table.kernels if one.key in direct]
    names = ["core", "dram"] * len(direct)
    names += ["pointwise" if name == "pointwise" else "scale" for name in levers] + ["launch", "module", "copy"]
    prior = np.log([_PRIORS[name][0] for name in names])
    width = np.array([_PRIORS[name][1] for name in names])

    def unpacked(theta: Floats) -> NetworkFit:
        values = np.exp(theta)
        changed = {
            key: _reaching(start, _core(key, gpu), float(values[2 * i]), float(values[2 * i + 1]))
            for i, (key, start) in enumerate(direct.items())
        }
        scales = dict(zip(levers, values[2 * len(direct) : -3].tolist(), strict=True))
        return NetworkFit(changed, scales, *(float(x) for x in values[-3:]))

    def residuals(theta: Floats) -> Floats:
        fit = unpacked(theta)
        gpu_s = sum((fit.scale[name] * fixed[name] for name in levers), np.zeros(r))
        for one in moved:
            gpu_s = gpu_s + _by_step(one, fit.direct[one.key], table)
        host_s = (table.launches * fit.launch_us + table.modules * fit.module_us) * 1e-6
        time_s = pass_time_s(gpu_s, host_s) + table.copied_bytes / (fit.copy_gb_s * 1e9)
        return np.concatenate(
            [_robust(np.log(time_s / table.time_s)) / np.sqrt(r), _PRIOR_WEIGHT * (theta - prior) / width]
        )

    reach = np.array([{"dram": 0.6, "launch": 2.5, "module": 2.5}.get(name, 1.5) for name in names])
    upper = np.where(np.isin(names, ["core", "dram"]), np.minimum(prior + reach, 0.0), prior + reach)
    found = least_squares(residuals, prior, bounds=(prior - reach, upper))
    return unpacked(found.x)


def _is_multiply(key: str) -> bool:
    return key.startswith("conv2d/") and key.split("/")[2] in _MULTIPLIES


def _start(gpu: Gpu, key: str) -> TimeCoefficients:
    return TENSOR_START if _core(key, gpu) == "tensor_efficiency" else _before(gpu, key)


def _core(key: str, gpu: Gpu) -> str:
    """Which efficiency bounds the arithmetic of convolutions of `key`."""
    dtype = key.rsplit("/", 1)[1]
    return "tensor_efficiency" if dtype != "fp32" and gpu.tensor_flop_per_clk(dtype) > 0 else "cuda_efficiency"


def _reaching(start: TimeCoefficients, core: str, share: float, dram: float) -> TimeCoefficients:
    """`start` at shares of the peaks of its arithmetic (`core` says which) and of DRAM."""
    if core == "tensor_efficiency":
        return replace(start, tensor_efficiency=share, dram_efficiency=dram)
    return replace(start, cuda_efficiency=share, dram_efficiency=dram)


def _robust(residual: Floats) -> Floats:
    """Square root of a pseudo-Huber loss with its knee at 10 %."""
    return np.asarray(np.sign(residual) * np.sqrt(0.02 * (np.sqrt(1 + (residual / 0.1) ** 2) - 1)))


def leave_out(runs: Sequence[MeasuredNetwork], table: NetworkTable, by: str = "network") -> Floats:
    """Relative error of each step, predicted from a fit without its ``network`` (or its ``family``)."""
    names = np.array([getattr(run, by) for run in runs])
    out = np.empty(len(runs))
    for name in np.unique(names):
        rows = names == name
        fit = fit_networks(table.take(~rows))
        few = table.take(rows)
        out[rows] = predicted_steps_s(fit, few) / few.time_s - 1
    return out


def coefficients_of(
    runs: Sequence[MeasuredNetwork], table: NetworkTable, fit: NetworkFit, errors: Floats
) -> tuple[dict[str, TimeCoefficients], HostCoefficients | None]:
    """A fit as coefficients of its GPU; no host where no step of the source waits for it."""
    gpu, rows = table.gpu, len(runs)
    families = ", ".join(sorted({run.family for run in runs}))
    source = f"{rows} {NETWORK_STEPS} ({families})"
    error, spread = float(np.mean(np.abs(errors))), float(np.quantile(np.abs(np.log1p(errors)), 0.9))
    time = {}
    for one in table.kernels:
        own, told = fit.direct.get(one.key), source
        if own is None:
            base, factor = _before(gpu, one.key), fit.scale[lever(one.key)]
            share = factor * _by_step(one, base, table) / table.time_s
            if lever(one.key) == "gemm" or share.max() < _LEAST_SHARE:
                continue
            own = replace(base, scale=base.scale * factor)
            told = f"{source}; before: {base.source.removeprefix('from ')}"
        time[one.key] = replace(own, provenance="fitted", source=told, rows=rows, error=error, spread90=spread)
    if not any(run.waits_for_host for run in runs):
        return time, None
    host = HostCoefficients.of_eager(fit.launch_us, fit.module_us, source, rows)
    return time, host


def fit_all_networks(
    folder: Path, tell: Callable[[str], None] = lambda _: None
) -> dict[str, tuple[dict[str, TimeCoefficients], HostCoefficients | None]]:
    """Coefficients of every GPU with measured steps of networks.

    Parameters
    ----------
    folder : Path
        The data folder; steps lie in its ``training``.
    tell : callable
        Gets a line for each GPU.
    """
    by_gpu: dict[str, list[MeasuredNetwork]] = defaultdict(list)
    for run in read_networks(folder / "training"):
        by_gpu[run.gpu].append(run)
    out = {}
    for name, runs in sorted(by_gpu.items()):
        table = tabulate_networks(runs)
        errors = leave_out(runs, table)
        out[name] = coefficients_of(runs, table, fit_networks(table), errors)
        families = leave_out(runs, table, "family")
        tell(
            f"{name:18s} networks {len(runs):3d} steps  time {np.mean(np.abs(errors)):.1%} left out by network, "
            f"{np.mean(np.abs(families)):.1%} by family"
        )
    return out
