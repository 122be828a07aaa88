"""Predicts measured rows as if they, their GPU, their group or their size had never been measured."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from joulecast.calibration.conformal import conformal_quantile
from joulecast.calibration.corrections import train
from joulecast.calibration.kernels import Pool
from joulecast.calibration.time_fit import fit_time, hosted_s, take_work
from joulecast.coefficients import store, transfer
from joulecast.coefficients.corrections import CorrectionModel
from joulecast.coefficients.schema import TimeCoefficients
from joulecast.physics.correction import correction_factor
from joulecast.physics.priced import rough_s
from joulecast.physics.timing import duration_s, message_factor, module_times, parameters_by_row

Floats = npt.NDArray[np.float64]

#: Coefficients, how unlike they are what they are used for, and whether they are of the same GPU.
Known = tuple[TimeCoefficients, float, bool]

#: Rows of one pool that are looked at; of one pool that a correction is trained on where shapes are left out, and
#: where a GPU is; and of one group that efficiencies are fitted on.
ROWS_OF_POOL = 5_000
SHAPE_ROWS = 5_000
GPU_ROWS = 2_000
_FIT_ROWS = 800

#: Fewer rows than these have no extremes.
FEWEST_OUTSIDE = 40


@dataclass(frozen=True)
class Residuals:
    """Rows of one GPU, engine and group that were predicted without having been seen.

    Attributes
    ----------
    family, gpu, key : str
    log_ratio : ndarray, shape (n,)
        Logarithm of predicted over measured.
    size_s : ndarray
        Rough time of each row. [s]
    distance : ndarray
        From the data of the correction.
    spread90 : float
        Half-width that their coefficients promise.
    unlike : float
        Of their coefficients from what they are used for; 0 for their own.
    itself : bool
        Whether their coefficients are of the same GPU.
    """

    family: str
    gpu: str
    key: str
    log_ratio: Floats
    size_s: Floats
    distance: Floats
    spread90: float
    unlike: float = 0.0
    itself: bool = True

    def take(self, rows: npt.NDArray[np.bool_]) -> Residuals:
        """The rows at `rows`."""
        return replace(self, log_ratio=self.log_ratio[rows], size_s=self.size_s[rows], distance=self.distance[rows])


def residuals_of(
    pool: Pool, per_group: Sequence[Known | None], model: CorrectionModel | None,
    exclude: tuple[str, ...] = (),
) -> list[Residuals]:  # fmt: skip
    """Residuals of the rows of a pool by group, each with its coefficients and how unlike they are; None for no fit."""
    out = []
    family, engine = pool.key.split("/", 1)
    for code, (group, one) in enumerate(zip(pool.work.groups, per_group, strict=True)):
        rows = np.flatnonzero((pool.work.group == code) & pool.at_highest)
        if one is None or not rows.size:
            continue
        fitted, unlike, itself = one
        work = take_work(pool.work, rows)
        times = module_times(work, pool.gpu, parameters_by_row([fitted] * len(work.groups), work.group))
        seconds, distance = duration_s(times, pool.gpu, pool.gpu.clock_max_mhz), np.zeros(rows.size)
        if model is not None:
            factor, distance = correction_factor(model, work, times, pool.gpu, engine=engine, exclude=exclude)
            seconds = seconds * factor
        seconds = seconds * fitted.scale * message_factor(work, [fitted] * len(work.groups))
        if pool.host_bound:
            seconds = hosted_s(work, seconds, fitted.host_us, fitted.host_lead_us)
        ratio = np.log(seconds / pool.time_s[rows])
        size_s = rough_s(times, pool.gpu)
        key = f"{pool.key}/{group}"
        out.append(Residuals(family, pool.gpu.name, key, ratio, size_s, distance, fitted.spread90, unlike, itself))
    return out


def thinned(pool: Pool, seed: int = 0) -> Pool:
    """At most `ROWS_OF_POOL` rows of a pool, drawn so that each group keeps its share."""
    n = len(pool.time_s)
    if n <= ROWS_OF_POOL:
        return pool
    rows = np.random.default_rng(seed).choice(n, ROWS_OF_POOL, replace=False)
    return pool.take(np.sort(rows))


def efficiencies(pool: Pool) -> dict[str, TimeCoefficients]:
    """Efficiencies by group as the calibration fits them, without looking for their error."""
    free = pool.take(np.flatnonzero(~pool.capped))
    return fit_time(
        free.work,
        free.gpu,
        free.time_s,
        free.clock_mhz,
        source="",
        host_bound=free.host_bound,
        most_rows=_FIT_ROWS,
    )


def without_shapes(pools: Sequence[Pool]) -> tuple[list[Residuals], list[Residuals]]:
    """Residuals of two fifths of the shapes that were left out of everything: one to learn from, one to test on.

    The half-width that tests one is that of the other.
    """
    marked = [replace(pool, fold=np.where(pool.fold <= 1, 0, pool.fold).astype(np.intp)) for pool in pools]
    measured = [(pool, efficiencies(pool.take(pool.fold != 0))) for pool in marked]
    model = train(measured, held_out=True, most_rows=SHAPE_ROWS)
    learn: list[Residuals] = []
    test: list[Residuals] = []
    for pool, (_, fits) in zip(pools, measured, strict=True):
        own = [(fits[group], 0.0, True) if group in fits else None for group in pool.work.groups]
        first = residuals_of(pool.take(pool.fold == 0), own, model)
        second = residuals_of(pool.take(pool.fold == 1), own, model)
        for part, other, members in ((first, second, learn), (second, first, test)):
            spread = {one.key: conformal_quantile(np.abs(one.log_ratio)) for one in other}
            members += [replace(one, spread90=spread[one.key]) for one in part if one.key in spread]
    return learn, test


def without_gpus(pools: Sequence[Pool]) -> list[Residuals]:
    """Residuals on the GPUs of each chip from what was measured on others."""
    by_chip: dict[str, list[Pool]] = defaultdict(list)
    for pool in pools:
        by_chip[chip(pool.gpu.name)].append(pool)
    out = []
    for name, members in by_chip.items():
        boards = tuple(one for one in store.known() if chip(one) == name)
        kept = [(pool, own_fits(pool)) for pool in pools if chip(pool.gpu.name) != name]
        model = train(kept, most_rows=GPU_ROWS)
        for pool in members:
            few = pool.take(np.flatnonzero(pool.fold <= 1))
            out += residuals_of(few, _donors(few, boards), model, boards)
    return out


def without_groups(pools: Sequence[Pool]) -> list[Residuals]:
    """Residuals of each group from the nearest other group, engine or GPU, with the shared output of the correction."""
    model = train([(pool, own_fits(pool)) for pool in pools], most_rows=GPU_ROWS)
    out = []
    for pool in pools:
        few = pool.take(np.flatnonzero(pool.fold == 0))
        out += residuals_of(few, _donors(few, (), own=False), model, (pool.gpu.name,))
    return out


def chip(gpu_name: str) -> str:
    """What boards of one chip share: the name before the first hyphen."""
    return gpu_name.split("-")[0]


def _donors(pool: Pool, exclude: tuple[str, ...], own: bool = True) -> list[Known | None]:
    """The nearest coefficients for each group of a pool, and how unlike they are."""
    family, engine = pool.key.split("/", 1)
    found = [transfer.nearest(pool.gpu, family, engine, group, exclude=exclude, own=own) for group in pool.work.groups]
    return [None if one is None else (one.fitted, one.unlike, one.gpu == pool.gpu.name) for one in found]


def own_fits(pool: Pool) -> dict[str, TimeCoefficients]:
    """Stored coefficients of the groups of a pool."""
    stored = store.load(pool.gpu.name)
    start = f"{pool.key}/"
    known = {} if stored is None else stored.time
    return {key.removeprefix(start): one for key, one in known.items() if key.startswith(start)}


def without_extremes(pools: Sequence[Pool], share: float = 0.1) -> list[Residuals]:
    """Residuals of the largest and smallest rows, for a correction and fits that saw only some of the others.

    The half-width of each group is that of left-out rows between the extremes.
    """
    marked, extreme = [], []
    for pool in pools:
        ends = np.zeros(len(pool.time_s), dtype=np.bool_)
        for code in range(len(pool.work.groups)):
            rows = np.flatnonzero(pool.work.group == code)
            if rows.size >= FEWEST_OUTSIDE:
                low, high = np.quantile(pool.time_s[rows], (share, 1 - share))
                ends[rows] = (pool.time_s[rows] < low) | (pool.time_s[rows] > high)
        marked.append(replace(pool, fold=np.where(ends, 0, pool.fold).astype(np.intp)))
        extreme.append(ends)
    measured = [(pool, efficiencies(pool.take(pool.fold != 0))) for pool in marked]
    model = train(measured, held_out=True, most_rows=GPU_ROWS)
    out = []
    for (pool, fits), ends in zip(measured, extreme, strict=True):
        own = [(fits[group], 0.0, True) if group in fits else None for group in pool.work.groups]
        between = residuals_of(pool.take((pool.fold == 0) & ~ends), own, model)
        spread = {one.key: conformal_quantile(np.abs(one.log_ratio)) for one in between}
        outside = residuals_of(pool.take(ends), own, model)
        out += [replace(one, spread90=spread[one.key]) for one in outside if one.key in spread]
    return out
