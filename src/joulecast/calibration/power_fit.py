"""Fits the energies of a GPU on measured power of single kernels."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from joulecast.bounds.energies import ACTIVE_SHARE, energy_bounds_pj
from joulecast.calibration.kernels import shape_fold
from joulecast.calibration.tables import QUALITIES, Measured
from joulecast.coefficients.corrections import CorrectionModel
from joulecast.coefficients.energies import default_power, static_parts_w
from joulecast.coefficients.schema import PowerCoefficients
from joulecast.gpus import Gpu, load_gpu
from joulecast.kernels.work import MATHS
from joulecast.physics.power import core_scale, operand_energy
from joulecast.physics.price import price
from joulecast.physics.timing import duration_s

Floats = npt.NDArray[np.float64]

#: Mean power that a throttled GPU settles at, over its limit: the most frequent reading of both GPUs under load.
LIMIT_SHARE = 0.985

#: Readings this close to the limit were throttled (they hold a little of what ran before).
CAPPED = 0.955

#: A throttled kernel took at most so much longer than its time at the highest clock.
SLOWEST = 0.6

#: Rows a table; more change no figure.
_MOST_ROWS = 8_000

#: Weight of a reading by its quality: A readings settle, B readings can be 10 % low.
WEIGHT = {"A": 1.0, "B": 0.5}

#: Weight of readings with operands that were not random: how much of them stayed the same is known roughly.
_NOT_RANDOM = 0.3

#: Width of the priors in natural logarithms, and how much they count: energies are physical and differ little from part
#: to part. Weak priors let one GPU's attention name special functions, and another's its L2, as what takes the power.
_WIDTH = 0.7
_PRIOR_STRENGTH = 0.02

#: A parameter this close to its prior, in natural logarithms, was used by no row.
_UNMOVED = 1e-3

#: Arithmetic that takes nearly the same energy as another.
_LIKE_MATH = {"fp16": "bf16", "bf16": "fp16", "int8": "fp8", "fp8": "int8"}


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


def trusted(batch: Measured, gpu: Gpu) -> npt.NDArray[np.bool_]:
    """Rows with a reading of the kernel's own power: qualities A and B, of a GPU that works."""
    known = np.isin(batch.quality, [QUALITIES.index(q) for q in WEIGHT])
    return known & np.isfinite(batch.power_w) & (batch.power_w > 0.5 * gpu.idle_w)


def throttled(batch: Measured) -> npt.NDArray[np.bool_]:
    """Rows whose reading is at the power limit."""
    return np.asarray(batch.power_w > CAPPED * batch.power_limit_w)


def power_rows(
    batches: Sequence[Measured], gpu: Gpu, seed: int = 0, corrections: Mapping[str, CorrectionModel] | None = None
) -> PowerRows:
    """Rows of trusted power as sums over parameters, at the highest clock and measured time.

    Parameters
    ----------
    batches : sequence of Measured
        All of `gpu`.
    gpu : Gpu
    seed : int
        Of the sample of large tables.
    corrections : mapping of str to CorrectionModel, optional
        Of times, by family; default the stored ones.
    """
    generator = np.random.default_rng(seed)
    names = ["idle_w", "clocked_w", "active_w"]
    names += [f"{unit}.{math}" for unit in ("tensor", "cuda") for math in MATHS]
    names += ["sfu", "shared", "l2", "dram"]
    terms, power, weight, at_least, fold = [], [], [], [], []
    for batch in batches:
        rows = np.flatnonzero(trusted(batch, gpu))
        if rows.size > _MOST_ROWS:
            rows = np.sort(generator.choice(rows, _MOST_ROWS, replace=False))
        if rows.size < 20:
            continue
        few = batch.take(rows)
        capped = throttled(few)
        terms.append(_terms(few, gpu, capped, corrections))
        power.append(few.power_w)
        random = 1.0 if few.operand_init == "random" else _NOT_RANDOM
        settled = np.where(few.quality == QUALITIES.index("A"), WEIGHT["A"], WEIGHT["B"])
        weight.append(random * rows.size**-0.5 * settled)
        at_least.append(capped)
        fold.append(shape_fold(few))
    return PowerRows(
        np.concatenate(terms), tuple(names), np.concatenate(power), np.concatenate(weight), np.concatenate(at_least),
        np.concatenate(fold),
    )  # fmt: skip


def _terms(
    few: Measured, gpu: Gpu, capped: npt.NDArray[np.bool_], corrections: Mapping[str, CorrectionModel] | None
) -> Floats:
    """Watts of each row for one unit of each parameter."""
    priced = price(few.table, gpu, few.conditions, power=default_power(gpu), corrections=corrections)
    work, t = priced.work, few.time_s
    free_s = duration_s(priced.times, gpu, gpu.clock_max_mhz)
    t = np.where(capped, t * np.clip(free_s / t, SLOWEST, 1.0), t)
    scale = float(core_scale(gpu.clock_max_mhz, gpu, priced.power))
    drive = scale * gpu.clock_max_mhz / gpu.rate_clock_mhz
    running = np.minimum(free_s / t, 1.0) if few.host_bound else 1.0
    pico = operand_energy(few.operand_init) * 1e-12
    rate = scale / t * pico
    by_math = np.eye(len(MATHS))[work.math]
    columns = [
        np.ones((t.size, 1)),
        np.full((t.size, 1), drive),
        (drive * running * priced.energy.busy)[:, None],
        by_math * (work.tensor_flop * rate)[:, None],
        by_math * (work.cuda_flop * rate)[:, None],
        (work.sfu_ops * rate)[:, None],
        (work.shared_bytes * rate)[:, None],
        (work.l2_bytes * rate)[:, None],
        (work.dram_bytes / t)[:, None] * pico,
    ]
    return np.concatenate(columns, axis=1)


def fit_power(rows: PowerRows, gpu: Gpu) -> tuple[dict[str, float], Floats]:
    """Parameters by name, and predicted power of every row of a fit without its fold 0.

    Relative loss, weights by trust, priors from the data sheet's order of magnitude, and energies that no fit leaves
    (`joulecast.bounds.energies`).
    """
    from scipy.optimize import least_squares

    prior, low, high = _priors(rows.names, gpu)
    width = np.array([0.005 if name in ("idle_w", "clocked_w") else _WIDTH for name in rows.names])

    def fit(chosen: npt.NDArray[np.bool_]) -> Floats:
        terms, target, at_least = rows.terms[chosen], np.log(rows.power_w[chosen]), rows.at_least[chosen]
        weight = np.sqrt(rows.weight[chosen] / rows.weight[chosen].sum())

        def residuals(theta: Floats) -> Floats:
            gap = np.log(terms @ np.exp(theta)) - target
            gap = np.where(at_least, np.minimum(gap, 0.0), gap)
            robust = np.sign(gap) * np.sqrt(0.02 * (np.sqrt(1 + (gap / 0.1) ** 2) - 1))
            return np.concatenate([robust * weight, _PRIOR_STRENGTH * (theta - prior) / width])

        return np.asarray(least_squares(residuals, prior, bounds=(low, high), max_nfev=80).x)

    trial = rows.terms @ np.exp(fit(rows.fold != 0))
    trial = np.where(rows.at_least, np.minimum(trial, rows.power_w), trial)
    final = np.exp(fit(np.ones(len(rows.power_w), dtype=np.bool_)))
    return dict(zip(rows.names, (float(x) for x in final), strict=True)), trial


def _priors(names: tuple[str, ...], gpu: Gpu) -> tuple[Floats, Floats, Floats]:
    """Prior and bounds of the parameters, natural logarithms."""
    start = default_power(gpu)
    idle_w, clocked_w = static_parts_w(gpu)
    span_w = gpu.power_limit_default_w - gpu.idle_w
    known = {"idle_w": idle_w, "clocked_w": clocked_w, "active_w": start.active_w, "sfu": start.sfu_pj,
             "shared": start.shared_pj, "l2": start.l2_pj, "dram": start.dram_pj}  # fmt: skip
    known.update({f"tensor.{math}": start.tensor_pj.get(math, 0.45) for math in MATHS})
    known.update({f"cuda.{math}": start.cuda_pj.get(math, start.cuda_pj["fp32"]) for math in MATHS})
    found = []
    for name in names:
        if name in ("idle_w", "clocked_w"):
            limits = (0.8 * known[name], 1.25 * known[name])
        elif name == "active_w":
            limits = (ACTIVE_SHARE[0] * span_w, ACTIVE_SHARE[1] * span_w)
        else:
            limits = energy_bounds_pj(name, gpu.process_nm, gpu.dram_type)
        found.append((float(np.clip(known[name], 1.01 * limits[0], 0.99 * limits[1])), *limits))
    prior, low, high = np.log(np.array(found)).T
    return prior, low, high


def as_coefficients(fitted: dict[str, float], gpu: Gpu, source: str, errors: Floats, rows: int) -> PowerCoefficients:
    """Coefficients from fitted parameters.

    Arithmetic that no row used lies as far from the data sheet's order of magnitude as what is like it, or as the
    others on average.
    """
    start = default_power(gpu)
    tensor = {m: fitted[f"tensor.{m}"] for m in MATHS if m in gpu.tensor_tflops}
    cuda = {m: fitted[f"cuda.{m}"] for m in MATHS if m in gpu.cuda_tflops}
    return replace(
        start,
        idle_w=fitted["idle_w"],
        clocked_w=fitted["clocked_w"],
        active_w=fitted["active_w"],
        tensor_pj=_with_unused(tensor, start.tensor_pj),
        cuda_pj=_with_unused(cuda, start.cuda_pj),
        sfu_pj=fitted["sfu"],
        shared_pj=fitted["shared"],
        l2_pj=fitted["l2"],
        dram_pj=fitted["dram"],
        provenance="fitted",
        source=source,
        rows=rows,
        error=float(np.mean(np.abs(errors))),
        spread90=float(np.quantile(np.abs(np.log1p(errors)), 0.9)),
        limit_share=LIMIT_SHARE,
    )


def _with_unused(fitted: Mapping[str, float], start: Mapping[str, float]) -> dict[str, float]:
    """Energies by arithmetic, those that the fit left where it started moved as others are."""
    moved = {name: float(np.log(pj / start[name])) for name, pj in fitted.items() if name in start}
    used = {name: by for name, by in moved.items() if abs(by) > _UNMOVED}
    mean = float(np.mean(list(used.values()))) if used else 0.0
    return {
        name: pj if name in used or name not in start else pj * float(np.exp(used.get(_LIKE_MATH.get(name, ""), mean)))
        for name, pj in fitted.items()
    }


def fit_energies(
    members: Sequence[Measured], gpu: Gpu, corrections: Mapping[str, CorrectionModel] | None = None
) -> PowerCoefficients:
    """Energies of one GPU from its kernels, with the error that shapes left out by hash have."""
    rows = power_rows(members, gpu, corrections=corrections)
    fitted, trial = fit_power(rows, gpu)
    left = rows.fold == 0
    errors = trial[left] / rows.power_w[left] - 1
    return as_coefficients(fitted, gpu, "kernels under load, power quality A and B", errors, len(rows.power_w))


def fit_kernel_power(
    batches: Sequence[Measured], tell: Callable[[str], None] = lambda _: None, *,
    corrections: Mapping[str, CorrectionModel] | None = None,
) -> dict[str, PowerCoefficients]:  # fmt: skip
    """Energies of every GPU whose kernels were measured with power.

    Parameters
    ----------
    batches : sequence of Measured
        Those without readings are passed over.
    tell : callable
        Gets a line for each GPU.
    corrections : mapping of str to CorrectionModel, optional
        Of times, by family; default the stored ones.
    """
    by_gpu: dict[str, list[Measured]] = defaultdict(list)
    for batch in batches:
        if np.isfinite(batch.power_w).any():
            by_gpu[batch.gpu].append(batch)
    out = {}
    for name, members in by_gpu.items():
        out[name] = fit_energies(members, load_gpu(name), corrections)
        tell(f"{name:18s} power {out[name].rows:7d} rows  {out[name].error:6.1%}")
    return out
