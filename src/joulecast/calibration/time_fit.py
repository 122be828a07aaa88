"""Fits the efficiencies of one family on one GPU: few numbers, relative loss, weak priors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from joulecast.coefficients.schema import TIME_PARAMETERS, TimeCoefficients
from joulecast.gpus import Gpu
from joulecast.kernels.work import KernelWork
from joulecast.physics.timing import ModuleTimes, duration_s, measured_s, message_factor, module_times

Floats = npt.NDArray[np.float64]

#: A learned correction: from work and times to a factor on each time.
Factor = Callable[[KernelWork, ModuleTimes], Floats]

#: Lower bound, upper bound, prior and width of the prior (in natural logarithms) of each parameter.
#: The prior only decides what the data leave open: a module that never limits keeps its prior efficiency.
PRIORS: dict[str, tuple[float, float, float, float]] = {
    "tensor_efficiency": (0.02, 1.0, 0.75, 1.0),
    "cuda_efficiency": (0.02, 1.0, 0.7, 1.0),
    "sfu_efficiency": (0.02, 1.0, 0.6, 0.7),
    "shared_efficiency": (0.05, 1.0, 0.7, 0.7),
    "l2_efficiency": (0.05, 1.0, 0.6, 0.7),
    "dram_efficiency": (0.05, 1.0, 0.85, 0.3),
    "fixed_us": (0.05, 300.0, 2.0, 1.0),
    "fixed_kcycles": (0.05, 300.0, 2.0, 1.0),
    "sharpness": (1.0, 12.0, 3.0, 0.5),
    "link_efficiency": (0.02, 1.0, 0.7, 0.7),
    "latency_factor": (0.05, 20.0, 1.0, 0.5),
}

#: Families whose launches go by the core clock more than elsewhere: in its cycles they agree over GPUs of 1.4 to
#: 2.5 GHz (a plain product 5,300 on A100, H100 and L40S), in seconds they don't. Rows at one clock leave it open.
_LAUNCH_CYCLES = {"fixed_us": (0.05, 300.0, 0.7, 0.5), "fixed_kcycles": (0.05, 300.0, 4.0, 1.0)}

#: Fused attention leaves open what of L2, tensor cores and special functions binds it. How much of L2's rate can be
#: reached is the hardware's and not the kernel's: what products show, 0.52 to 0.58 from Ampere to Blackwell.
_L2_OF_PRODUCTS = {"l2_efficiency": (0.05, 1.0, 0.55, 0.1)}

#: So is DRAM's: plain products that stream weights show 0.85 to 0.88 on H100 and H200. Left open, fits of narrower
#: formats give DRAM up to 0.95 and the rest to L2 and chains of steps, which take alike, and a sibling's memory then
#: counts too little. (The width was chosen on that pair.)
_DRAM_OF_STREAMS = {"dram_efficiency": (0.05, 1.0, 0.85, 0.03)}

FAMILY_PRIORS = {
    **dict.fromkeys(("batched_gemm", "moe", "nccl", "custom_allreduce"), _LAUNCH_CYCLES),
    "gemm": {**_LAUNCH_CYCLES, **_DRAM_OF_STREAMS},
    "context_attention": {**_L2_OF_PRODUCTS, **_DRAM_OF_STREAMS},
    "encoder_attention": _L2_OF_PRODUCTS,
}

#: Sizes of messages that tell a curve.
FEWEST_SIZES = 6

#: How much priors count. Weak ones let a fit on one GPU name any of several modules that take alike as the one that
#: binds, which another GPU, where they don't, is told wrongly. Families that have few rows, and priors that are
#: of a relative, weigh less.
PRIOR_STRENGTH = {"nccl": 3.0, "custom_allreduce": 3.0}

#: The same for the host of rows whose kernels it started one by one. What such rows tell of a kernel's own fixed
#: cost is lost in the host's, so that then stays at its prior.
HOST_PRIORS: dict[str, tuple[float, float, float, float]] = {
    "host_us": (1.0, 3000.0, 25.0, 1.0),
    "host_lead_us": (0.1, 3000.0, 8.0, 1.0),
}
HOST_PARAMETERS = tuple(HOST_PRIORS)


def take_work(work: KernelWork, rows: Any) -> KernelWork:
    """The rows of `work` at `rows` (indices or mask)."""
    arrays = {k: v[rows] for k, v in work.__dict__.items() if isinstance(v, np.ndarray)}
    return KernelWork(**{**work.__dict__, **arrays, "reasons": {}})


def hash_fold(columns: Sequence[Any], folds: int = 5) -> npt.NDArray[np.intp]:
    """Fold of each row by a hash of its shape: rows of one shape share a fold, whatever their dtype or engine.

    Parameters
    ----------
    columns : sequence of ndarray, shape (n,)
        The shape.
    folds : int

    Returns
    -------
    ndarray of int, shape (n,)
    """
    state = np.full(len(columns[0]), 1469598103934665603, dtype=np.uint64)
    with np.errstate(over="ignore"):
        for column in columns:
            state ^= np.asarray(column).astype(np.uint64)
            state *= np.uint64(1099511628211)
            state ^= state >> np.uint64(29)
    return (state % np.uint64(folds)).astype(np.intp)


def fit_time(
    work: KernelWork,
    gpu: Gpu,
    time_s: Floats,
    clock_mhz: float | Floats,
    *,
    source: str,
    host_bound: bool = False,
    most_rows: int = 2500,
    seed: int = 0,
    priors: Mapping[str, TimeCoefficients] | None = None,
    prior_width: float = 1.0,
    factor: Factor | None = None,
    least_rows: int = 8,
) -> dict[str, TimeCoefficients]:
    """Efficiencies of each group of `work` that make predicted times closest to measured ones.

    Parameters
    ----------
    work : KernelWork
    gpu : Gpu
    time_s : ndarray, shape (n,)
        Measured times. [s]
    clock_mhz : float or ndarray
        Core clock of each row. [MHz]
    source : str
        What the rows are, for the provenance.
    host_bound : bool
        The host started each kernel by itself (eager mode), so that short ones show its time and not their own.
    most_rows : int
        A random sample of so many rows a group is enough for ten numbers.
    seed : int
    priors : mapping of str to TimeCoefficients, optional
        By group, what to stay near where the rows leave it open; `PRIORS` for other groups.
    prior_width : float
        Factor on the widths of the priors: less than 1 where `priors` are of a near relative.
    factor : callable, optional
        A learned correction of the times that is kept as it is: efficiencies are then fitted for use with it.
    least_rows : int
        Groups of fewer rows are left out.

    Returns
    -------
    dict of str to TimeCoefficients
        By group; ``error`` is the mean absolute relative error over all rows of the group.
    """
    from scipy.optimize import least_squares

    generator = np.random.default_rng(seed)
    clock = np.broadcast_to(np.asarray(clock_mhz, dtype=np.float64), time_s.shape)
    names = (*TIME_PARAMETERS, *HOST_PARAMETERS) if host_bound else TIME_PARAMETERS
    known = {**PRIORS, **FAMILY_PRIORS.get(work.family, {}), **HOST_PRIORS}
    low, high, prior, width = np.array([known[name] for name in names]).T
    if host_bound:
        width[[names.index("fixed_us"), names.index("fixed_kcycles")]] = 0.05
    efficiencies = len(TIME_PARAMETERS)
    out: dict[str, TimeCoefficients] = {}
    for code, group in enumerate(work.groups):
        members = np.flatnonzero((work.group == code) & np.isfinite(time_s))
        members = members[~np.isin(members, list(work.reasons))]
        if members.size < least_rows:
            continue
        sample = generator.choice(members, most_rows, replace=False) if members.size > most_rows else members
        part, target, mhz = take_work(work, sample), np.log(time_s[sample]), clock[sample]
        weight = 3.0 if priors is not None else PRIOR_STRENGTH.get(work.family, 8.0)
        strength = weight / np.sqrt(sample.size) / prior_width
        center = _center(names, low, high, prior, (priors or {}).get(group))

        def residuals(
            theta: Floats, part: KernelWork = part, target: Floats = target, mhz: Floats = mhz, s: float = strength,
            center: Floats = center,
        ) -> Floats:  # fmt: skip
            time = _corrected_s(part, gpu, np.exp(theta[:efficiencies]), mhz, factor)
            seen = hosted_s(part, time, *np.exp(theta[efficiencies:])) if host_bound else time
            fit = np.log(seen) - target
            # square root of a pseudo-Huber loss: large residuals count by their size, not its square
            robust = np.sign(fit) * np.sqrt(2 * 0.01 * (np.sqrt(1 + (fit / 0.1) ** 2) - 1))
            return np.concatenate([robust / np.sqrt(fit.size), s * 0.05 * (theta - np.log(center)) / width])

        solution = least_squares(residuals, np.log(center), bounds=(np.log(low), np.log(high)), max_nfev=60)
        fitted = np.exp(solution.x)
        every = take_work(work, members)
        predicted = _corrected_s(every, gpu, fitted[:efficiencies], clock[members], factor)
        if host_bound:
            predicted = hosted_s(every, predicted, *fitted[efficiencies:])
        factors: dict[str, float] = {}
        if work.message_bytes.any():
            factors = message_factors(every.message_bytes, predicted, time_s[members])
            curve = TimeCoefficients(message_factors=factors)
            predicted = predicted * message_factor(every, [curve] * len(work.groups))
        out[group] = TimeCoefficients(
            **dict(zip(names, (float(x) for x in fitted), strict=True)),
            provenance="fitted",
            source=source,
            rows=int(members.size),
            message_factors=factors,
            error=float(np.mean(np.abs(predicted / time_s[members] - 1))),
        )
    return out


def message_factors(message_bytes: Floats, predicted_s: Floats, time_s: Floats) -> dict[str, float]:
    """What brings predicted times of collectives to measured ones, by size of message (`TimeCoefficients`).

    At each measured size the mean of what is missing, corrected so that a larger message never takes less time.

    Parameters
    ----------
    message_bytes, predicted_s, time_s : ndarray, shape (n,)
        Sizes [B]; times at the clock of each row. [s]
    """
    from scipy.optimize import isotonic_regression

    exact = np.log2(message_bytes)
    _, place, rows = np.unique(np.round(2.0 * exact), return_inverse=True, return_counts=True)
    if rows.size < FEWEST_SIZES:
        return {}
    size, measured, plain = (np.bincount(place, one) / rows for one in (exact, np.log(time_s), np.log(predicted_s)))
    rising = isotonic_regression(measured, weights=rows).x
    return {f"{x:.6g}": float(np.exp(y)) for x, y in zip(size, rising - plain, strict=True)}


def hosted_s(work: KernelWork, kernel_s: Floats, host_us: float, host_lead_us: float) -> Floats:
    """Time that a host which starts each operation of `work` by itself sees (`physics.timing.measured_s`). [s]"""
    return np.asarray(measured_s(kernel_s, host_us * work.host_steps, host_lead_us))


def _corrected_s(work: KernelWork, gpu: Gpu, parameters: Floats, clock_mhz: Floats, factor: Factor | None) -> Floats:
    times = module_times(work, gpu, parameters)
    seconds = duration_s(times, gpu, clock_mhz)
    return seconds if factor is None else seconds * factor(work, times)


def _center(names: tuple[str, ...], low: Floats, high: Floats, prior: Floats, known: TimeCoefficients | None) -> Floats:
    """What the fit starts from and stays near: `known`, within the bounds; `prior` where it says nothing."""
    if known is None:
        return prior
    told = np.array([getattr(known, name) for name in names])
    # a hair inside the bounds, where the solver can step both ways
    return np.clip(np.where(told > 0, told, prior), low * 1.001, high * 0.999)
