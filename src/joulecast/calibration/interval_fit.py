"""Fits the widths of intervals on rows that no fit saw: left-out shapes, left-out GPUs, left-out extremes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from joulecast.calibration.conformal import LEVEL, conformal_quantile, equal_weights, weighted_quantile
from joulecast.calibration.corrections import train
from joulecast.calibration.kernels import Pool, pools_of
from joulecast.calibration.tables import Measured
from joulecast.calibration.time_fit import fit_time, take_work
from joulecast.coefficients import store, transfer
from joulecast.coefficients.corrections import CorrectionModel
from joulecast.coefficients.intervals import SIZE_KNOTS_S, UNLIKE_KNOTS, FamilyIntervals, Intervals
from joulecast.coefficients.schema import TimeCoefficients
from joulecast.kernels.registry import family_of
from joulecast.physics.correction import correction_factor
from joulecast.physics.price import rough_s
from joulecast.physics.timing import duration_s, measured_s, module_times, parameters_by_row
from joulecast.physics.uncertainty import by_size

Floats = npt.NDArray[np.float64]
Fits = Mapping[str, TimeCoefficients]

#: Coefficients, how unlike they are what they are used for, and whether they are of the same GPU.
Known = tuple[TimeCoefficients, float, bool]

#: Rows of one table and of one pool that are looked at; of one pool that a correction is trained on where shapes are
#: left out, and where a GPU is; and of one group that efficiencies are fitted on.
ROWS_OF_BATCH = 8_000
ROWS_OF_POOL = 5_000
SHAPE_ROWS = 5_000
GPU_ROWS = 2_000
_FIT_ROWS = 800

#: Fewer rows than these tell nothing of a size, or of the region outside the data.
_FEWEST_OF_SIZE = 60
_FEWEST_OUTSIDE = 40

#: Distance from the data beyond which rows tell how intervals grow.
_FAR = 0.3

#: How many measured groups a typical width counts as much as.
_TYPICAL_COUNTS = 3

#: Bounds of the fitted factors.
_SIZE_RANGE = (0.4, 3.0)
_HULL_RANGE = (0.5, 6.0)


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
        rows = np.flatnonzero((pool.work.group == code) & ~pool.capped)
        if one is None or not rows.size:
            continue
        fitted, unlike, itself = one
        work = take_work(pool.work, rows)
        times = module_times(work, pool.gpu, parameters_by_row([fitted] * len(work.groups), work.group))
        seconds, distance = duration_s(times, pool.gpu, pool.gpu.clock_max_mhz), np.zeros(rows.size)
        if model is not None:
            factor, distance = correction_factor(model, work, times, pool.gpu, engine=engine, exclude=exclude)
            seconds = seconds * factor
        seconds = seconds * fitted.scale
        if pool.host_bound:
            seconds = measured_s(seconds, fitted.host_us, fitted.host_lead_us)
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
        free.gpu.clock_max_mhz,
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
            if rows.size >= _FEWEST_OUTSIDE:
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


def size_factors(learn: Sequence[Residuals]) -> tuple[float, ...]:
    """Factors by size of one family (`FamilyIntervals.size`), such that nine of ten left-out rows are inside.

    At each knot the quantile of the rows around it, drawn towards 1 where they are few.
    """
    score = np.concatenate([np.abs(one.log_ratio) / max(one.spread90, 1e-4) for one in learn])
    place = np.log(np.concatenate([one.size_s for one in learn]))
    knots = np.log(SIZE_KNOTS_S)
    middle = np.concatenate([[-np.inf], 0.5 * (knots[1:] + knots[:-1]), [np.inf]])
    raw = []
    for low, high in pairwise(middle):
        some = score[(place > low) & (place <= high)]
        trust = some.size / (some.size + _FEWEST_OF_SIZE)
        raw.append(np.exp(trust * np.log(np.clip(conformal_quantile(some), *_SIZE_RANGE))) if some.size else 1.0)
    scale = conformal_quantile(score / by_size(np.exp(place), SIZE_KNOTS_S, raw))
    return tuple(float(np.clip(one * scale, *_SIZE_RANGE)) for one in raw)


def hull_growth(extremes: Sequence[Residuals]) -> float:
    """How much wider intervals get outside the data (`FamilyIntervals.hull`): beside extremes that lie inside."""
    if not extremes:
        return FamilyIntervals().hull
    score = np.concatenate([np.abs(one.log_ratio) / max(one.spread90, 1e-4) for one in extremes])
    distance = np.concatenate([one.distance for one in extremes])
    far, inside = distance > _FAR, distance <= 0
    if far.sum() < _FEWEST_OUTSIDE or inside.sum() < _FEWEST_OUTSIDE:
        return FamilyIntervals().hull
    base = max(conformal_quantile(score[inside]), 1.0)
    needed = (score[far] / base - 1) / np.tanh(distance[far])
    return float(np.clip(conformal_quantile(np.maximum(needed, 0.0)), *_HULL_RANGE))


def inner_half_width(one: Residuals, family: FamilyIntervals) -> Floats:
    """Half-width of each row apart from what transfer adds, over its spread."""
    grown = 1.0 + family.hull * np.tanh(one.distance)
    return np.asarray(by_size(one.size_s, SIZE_KNOTS_S, family.size) * grown)


def transfer_curve(
    moved: Mapping[str, Sequence[Residuals]], families: Mapping[str, FamilyIntervals]
) -> tuple[float, ...]:
    """What coefficients of a relative add at `UNLIKE_KNOTS`: one rising curve for all families.

    Of every GPU, engine and group the half-width that would hold nine of ten of its rows, less what its spread
    explains; the median of those near each knot.
    """
    places, added = [], []
    for name, members in moved.items():
        for one in members:
            if one.log_ratio.size < 8:
                continue
            needed = conformal_quantile(np.abs(one.log_ratio) / inner_half_width(one, families[name]))
            places.append(one.unlike)
            added.append(np.sqrt(max(needed**2 - one.spread90**2, 0.0)))
    return blended_curve(places, added, Intervals().transfer)


def blended_curve(places: Sequence[float], values: Sequence[float], typical: tuple[float, ...]) -> tuple[float, ...]:
    """A rising curve at `UNLIKE_KNOTS`: at each the median of the `values` nearest it, drawn to a `typical` one."""
    place, value = np.array(places, dtype=np.float64), np.array(values, dtype=np.float64)
    nearest = np.abs(place[:, None] - np.array(UNLIKE_KNOTS)).argmin(axis=1)
    curve = []
    for knot, usual in enumerate(typical):
        near = value[nearest == knot]
        middle = float(np.median(near)) if near.size else usual
        curve.append((middle * near.size + usual * _TYPICAL_COUNTS) / (near.size + _TYPICAL_COUNTS))
    return tuple(float(one) for one in np.maximum.accumulate(curve))


def transfer_factor(members: Sequence[Residuals], family: FamilyIntervals, curve: tuple[float, ...]) -> float:
    """Factor of one family on the widths of transferred times, every GPU counting the same."""
    score, gpu = [], []
    for one in members:
        promised = np.hypot(one.spread90, transfer.interpolated(one.unlike, UNLIKE_KNOTS, curve))
        score.append(np.abs(one.log_ratio) / (promised * inner_half_width(one, family)))
        gpu += [one.gpu] * one.log_ratio.size
    if not gpu:
        return 1.0
    return float(np.clip(weighted_quantile(np.concatenate(score), equal_weights(gpu), LEVEL), 0.3, 6.0))


def covered(rows: Sequence[Residuals], family: FamilyIntervals, curve: tuple[float, ...] | None = None) -> Floats:
    """Whether each row lies in its interval (1 or 0); with `curve`, of transferred coefficients."""
    found = []
    for one in rows:
        spread = one.spread90
        if curve is not None:
            added = transfer.interpolated(one.unlike, UNLIKE_KNOTS, curve)
            factor = family.groups if one.itself else family.transfer
            spread = max(spread, factor * float(np.hypot(spread, added)))
        found.append(np.abs(one.log_ratio) <= spread * inner_half_width(one, family))
    return np.concatenate(found).astype(np.float64) if found else np.zeros(0)


def fit_time_intervals(
    batches: Sequence[Measured], tell: Callable[[str], None] = lambda _: None, families: tuple[str, ...] = ()
) -> Intervals:
    """Widths of the intervals of times, from stored coefficients and measured kernels.

    Parameters
    ----------
    batches : sequence of Measured
    tell : callable
        Gets a line for each family.
    families : tuple of str
        Only these.
    """
    by_family: dict[str, list[Measured]] = defaultdict(list)
    for batch in batches:
        name = family_of(batch.table.kind).name
        if not families or name in families:
            by_family[name].append(batch)
    widths: dict[str, FamilyIntervals] = {}
    moved: dict[str, list[Residuals]] = {}
    grouped: dict[str, list[Residuals]] = {}
    for name, measured in sorted(by_family.items()):
        found = of_family(measured)
        if found is None:
            continue
        widths[name], moved[name], grouped[name], hit = found
        tell(f"{name:24s} {widths[name].rows:7d} rows  other shapes in {hit:.1%}  size {_short(widths[name].size)}  "
             f"hull {widths[name].hull:.1f}")  # fmt: skip
    curve = transfer_curve({name: [*moved[name], *grouped[name]] for name in moved}, widths)
    for name, members in moved.items():
        groups = [one for one in grouped[name] if one.itself]
        widths[name] = replace(
            widths[name],
            transfer=transfer_factor(members, widths[name], curve),
            groups=transfer_factor(groups, widths[name], curve),
        )
        tell(f"{name:24s} other GPUs x{widths[name].transfer:.2f}: {_by_gpu(members, widths[name], curve)}")
        tell(f"{name:24s} other groups: {_by_gpu(grouped[name], widths[name], curve)}")
    source = f"{sum(map(len, batches))} measured kernels, left out by shape, size and GPU"
    return Intervals(source=source, transfer=curve, families=widths)


def of_family(
    batches: Sequence[Measured],
) -> tuple[FamilyIntervals, list[Residuals], list[Residuals], float] | None:
    """Widths of one family, its residuals on left-out GPUs and groups, and the coverage of shapes not learnt from."""
    pools = [thinned(pool) for pool in pools_of(batches, ROWS_OF_BATCH)]
    learn, test = without_shapes(pools)
    if not learn or not test:
        return None
    # each of the two left-out fifths tests what the other teaches; what is kept learns from both
    hits = np.concatenate(
        [covered(rows, FamilyIntervals(size=size_factors(others))) for rows, others in ((test, learn), (learn, test))]
    )
    both = [*learn, *test]
    family = FamilyIntervals(
        size=size_factors(both), hull=hull_growth(without_extremes(pools)), rows=sum(one.log_ratio.size for one in both)
    )
    return family, without_gpus(pools), without_groups(pools), float(hits.mean())


def _by_gpu(rows: Sequence[Residuals], family: FamilyIntervals, curve: tuple[float, ...]) -> str:
    """Coverage of each GPU's rows, with the factor for other GPUs that it did not teach."""
    shares = []
    for gpu in sorted({one.gpu for one in rows}):
        others = [one for one in rows if one.gpu != gpu and not one.itself]
        honest = replace(family, transfer=transfer_factor(others, family, curve)) if others else family
        shares.append(f"{gpu} {covered([one for one in rows if one.gpu == gpu], honest, curve).mean():.0%}")
    return "  ".join(shares)


def _short(values: Sequence[float]) -> str:
    return " ".join(f"{value:.2f}" for value in values)
