"""Fits the energies of a GPU on measured power of single kernels."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from joulecast.calibration.audit import sound
from joulecast.calibration.kernels import shape_fold
from joulecast.calibration.tables import QUALITIES, Measured, read_kernel_tables
from joulecast.coefficients.schema import PowerCoefficients
from joulecast.coefficients.transfer import default_power
from joulecast.gpus import Gpu, load_gpu
from joulecast.kernels.registry import families
from joulecast.kernels.work import MATHS
from joulecast.physics.power import core_scale
from joulecast.physics.price import price
from joulecast.physics.timing import duration_s

Floats = npt.NDArray[np.float64]

#: Readings this close to the limit were throttled.
_CAPPED = 0.93

#: Rows a table; more change no figure.
_MOST_ROWS = 8_000

#: Weight of a reading by its quality: A readings settle, B readings can be 10 % low.
_WEIGHT = {"A": 1.0, "B": 0.5}

#: Width of the priors in natural logarithms: energies are physical and differ little from part to part.
_WIDTH = 0.7


@dataclass(frozen=True)
class PowerRows:
    """Measured power with the work behind it, rows of one GPU.

    Attributes
    ----------
    terms : ndarray, shape (n, p)
        Watts for one unit of each parameter (see `names`).
    names : tuple of str
    power_w, weight : ndarray, shape (n,)
    at_least : ndarray of bool, shape (n,)
        Throttled rows: unthrottled, at the highest clock, they would take `power_w` or more.
    fold : ndarray of int, shape (n,)
    """

    terms: Floats
    names: tuple[str, ...]
    power_w: Floats
    weight: Floats
    at_least: npt.NDArray[np.bool_]
    fold: npt.NDArray[np.intp]


def power_rows(batches: list[Measured], gpu: Gpu, seed: int = 0) -> PowerRows:
    """Rows of trusted power under the limit, as sums over parameters, at the highest clock and measured time."""
    generator = np.random.default_rng(seed)
    names = ["idle_w", "clocked_w", "active_w"]
    names += [f"{unit}.{math}" for unit in ("tensor", "cuda") for math in MATHS]
    names += ["sfu", "shared", "l2", "dram"]
    terms, power, weight, limit, fold = [], [], [], [], []
    for batch in batches:
        trusted = np.isin(batch.quality, [QUALITIES.index(q) for q in _WEIGHT])
        usable = trusted & (batch.power_w > 0.5 * gpu.idle_w)
        rows = np.flatnonzero(usable)
        if rows.size > _MOST_ROWS:
            rows = np.sort(generator.choice(rows, _MOST_ROWS, replace=False))
        if rows.size < 20:
            continue
        few = batch.take(rows)
        priced = price(few.table, gpu, few.conditions)
        work, t = priced.work, few.time_s
        capped = few.power_w > _CAPPED * few.power_limit_w
        free_s = duration_s(priced.times, gpu, gpu.clock_max_mhz)
        t = np.where(capped, t * np.clip(free_s / t, 0.6, 1.0), t)
        scale = float(core_scale(gpu.clock_max_mhz, gpu, priced.power))
        drive = np.full(rows.size, scale * gpu.clock_max_mhz / gpu.rate_clock_mhz)
        rate = scale / t * 1e-12
        by_math = np.eye(len(MATHS))[work.math]
        columns = [
            np.ones((rows.size, 1)),
            drive[:, None],
            (drive * priced.energy.busy)[:, None],
            by_math * (work.tensor_flop * rate)[:, None],
            by_math * (work.cuda_flop * rate)[:, None],
            (work.sfu_ops * rate)[:, None],
            (work.shared_bytes * rate)[:, None],
            (work.l2_bytes * rate)[:, None],
            (work.dram_bytes / t)[:, None] * 1e-12,
        ]
        terms.append(np.concatenate(columns, axis=1))
        power.append(few.power_w)
        random = 1.0 if few.operand_init == "random" else 0.3
        scale = min(1.0, np.sqrt(2000 / rows.size))
        weight.append(random * scale * np.where(few.quality == QUALITIES.index("A"), _WEIGHT["A"], _WEIGHT["B"]))
        limit.append(capped)
        fold.append(shape_fold(few))
    return PowerRows(
        np.concatenate(terms), tuple(names), np.concatenate(power), np.concatenate(weight), np.concatenate(limit),
        np.concatenate(fold),
    )  # fmt: skip


def fit_power(rows: PowerRows, gpu: Gpu) -> tuple[dict[str, float], Floats]:
    """Parameters by name, and predicted power of every row of a fit without its fold 0.

    Relative loss, weights by trust, priors from the data sheet's order of magnitude.
    """
    from scipy.optimize import least_squares

    start = default_power(gpu)
    prior_of = {
        "idle_w": 0.6 * gpu.idle_w,
        "clocked_w": 0.4 * gpu.idle_w,
        "active_w": start.active_w,
        **{f"tensor.{m}": start.tensor_pj.get(m, 0.45) for m in MATHS},
        **{f"cuda.{m}": start.cuda_pj.get(m, 4.0) for m in MATHS},
        "sfu": start.sfu_pj,
        "shared": start.shared_pj,
        "l2": start.l2_pj,
        "dram": start.dram_pj,
    }
    prior = np.log([prior_of[name] for name in rows.names])
    width = np.array([0.005 if name in ("idle_w", "clocked_w") else _WIDTH for name in rows.names])

    def fit(chosen: npt.NDArray[np.bool_]) -> Floats:
        terms, target, at_least = rows.terms[chosen], np.log(rows.power_w[chosen]), rows.at_least[chosen]
        weight = np.sqrt(rows.weight[chosen] / rows.weight[chosen].sum())

        def residuals(theta: Floats) -> Floats:
            gap = np.log(terms @ np.exp(theta)) - target
            gap = np.where(at_least, np.minimum(gap, 0.0), gap)
            robust = np.sign(gap) * np.sqrt(0.02 * (np.sqrt(1 + (gap / 0.1) ** 2) - 1))
            return np.concatenate([robust * weight, 0.004 * (theta - prior) / width])

        return np.asarray(least_squares(residuals, prior, bounds=(prior - 2.5, prior + 2.5), max_nfev=80).x)

    trial = rows.terms @ np.exp(fit(rows.fold != 0))
    trial = np.where(rows.at_least, np.minimum(trial, rows.power_w), trial)
    final = np.exp(fit(np.ones(len(rows.power_w), dtype=np.bool_)))
    return dict(zip(rows.names, (float(x) for x in final), strict=True)), trial


def as_coefficients(fitted: dict[str, float], gpu: Gpu, source: str, errors: Floats, rows: int) -> PowerCoefficients:
    """Coefficients from fitted parameters; what no row used keeps its order of magnitude from the data sheet."""
    start = default_power(gpu)
    return replace(
        start,
        idle_w=fitted["idle_w"],
        clocked_w=fitted["clocked_w"],
        active_w=fitted["active_w"],
        tensor_pj={m: fitted[f"tensor.{m}"] for m in MATHS if m in gpu.tensor_tflops},
        cuda_pj={m: fitted[f"cuda.{m}"] for m in MATHS if m in gpu.cuda_tflops},
        sfu_pj=fitted["sfu"],
        shared_pj=fitted["shared"],
        l2_pj=fitted["l2"],
        dram_pj=fitted["dram"],
        provenance="fitted",
        source=source,
        rows=rows,
        error=float(np.mean(np.abs(errors))),
        spread90=float(np.quantile(np.abs(np.log1p(errors)), 0.9)),
    )


def fit_kernel_power(folder: Path, tell: Callable[[str], None] = lambda _: None) -> dict[str, PowerCoefficients]:
    """Energies of every GPU whose kernels were measured with power.

    Parameters
    ----------
    folder : Path
        The data folder.
    tell : callable
        Gets a line for each GPU.
    """
    batches: dict[str, list[Measured]] = defaultdict(list)
    for batch in sound(read_kernel_tables(folder, tuple(families()))):
        if np.isfinite(batch.power_w).any():
            batches[batch.gpu].append(batch)
    out = {}
    for name, members in batches.items():
        gpu = load_gpu(name)
        rows = power_rows(members, gpu)
        fitted, trial = fit_power(rows, gpu)
        left = rows.fold == 0
        errors = trial[left] / rows.power_w[left] - 1
        out[name] = as_coefficients(fitted, gpu, "kernels under load, power quality A and B", errors, len(rows.power_w))
        tell(f"{name:18s} power {len(rows.power_w):7d} rows  {out[name].error:6.1%}")
    return out
