"""Fits the widths of intervals on rows that no fit saw: left-out shapes, left-out GPUs, left-out extremes."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import pairwise, repeat
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import numpy.typing as npt

from joulecast.calibration.conformal import LEVEL, conformal_quantile, equal_weights, weighted_quantile
from joulecast.calibration.kernels import pools_of
from joulecast.calibration.left_out import (
    FEWEST_OUTSIDE,
    Residuals,
    thinned,
    without_extremes,
    without_gpus,
    without_groups,
    without_shapes,
)
from joulecast.calibration.settled import with_stored_clocks
from joulecast.calibration.tables import Measured
from joulecast.coefficients import places, transfer
from joulecast.coefficients.intervals import SIZE_KNOTS_S, UNLIKE_KNOTS, FamilyIntervals, Intervals, share_added
from joulecast.kernels.registry import family_of
from joulecast.physics.uncertainty import by_size

Floats = npt.NDArray[np.float64]

#: Rows of one table that are looked at.
ROWS_OF_BATCH = 8_000

#: Small matrices are multiplied faster by one thread; families share the cores instead.
_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")

#: Fewer rows than these tell nothing of a size.
_FEWEST_OF_SIZE = 60

#: Distance from the data beyond which rows tell how intervals grow.
_FAR = 0.3

#: How many measured groups a typical width counts as much as.
_TYPICAL_COUNTS = 3

#: Bounds of the fitted factors.
_SIZE_RANGE = (0.4, 3.0)
_HULL_RANGE = (0.5, 6.0)

#: Bounds of the factor of a family on what transfer adds, and how many in between are tried.
_FACTOR_RANGE = (0.3, 6.0)
_FACTORS = 25


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
    if far.sum() < FEWEST_OUTSIDE or inside.sum() < FEWEST_OUTSIDE:
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

    Of every GPU, engine and group what is needed, beside its spread, to hold nine of ten of its rows; the median of
    those near each knot.
    """
    places, added = [], []
    for name, members in moved.items():
        for one in members:
            if one.log_ratio.size < 8:
                continue
            places.append(one.unlike)
            added.append(conformal_quantile(_beyond(one, families[name])))
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


def _beyond(one: Residuals, family: FamilyIntervals) -> Floats:
    """What each row's miss needs in quadrature beside the half-width that its spread explains. Natural logarithm."""
    explained = one.spread90 * inner_half_width(one, family)
    return np.asarray(np.sqrt(np.maximum(np.square(one.log_ratio) - np.square(explained), 0.0)))


def transfer_widths(
    members: Sequence[Residuals], family: FamilyIntervals, curve: tuple[float, ...]
) -> tuple[float, float]:
    """Factor of one family on what transfer adds, and what the family adds beside; every GPU counts the same.

    Of all pairs that hold nine of ten rows, that with the least mean width: misses that grow with unlikeness are held
    by the factor, misses of near relatives by what is added, which then says nothing of farther ones. Where none is as
    far as another generation, nothing tells that the curve gives too much.
    """
    if not members:
        return 1.0, 0.0
    weights = equal_weights([one.gpu for one in members for _ in range(one.log_ratio.size)])
    explained = np.concatenate([np.square(one.spread90 * inner_half_width(one, family)) for one in members])
    curved = np.concatenate(
        [np.full(one.log_ratio.size, transfer.interpolated(one.unlike, UNLIKE_KNOTS, curve)) for one in members]
    )
    needed = np.square(np.concatenate([_beyond(one, family) for one in members]))
    share = np.concatenate(
        [np.full(one.log_ratio.size, share_added(one.unlike) if one.itself else 1.0) for one in members]
    )
    share = np.square(np.maximum(share, 0.1))
    most = weighted_quantile(np.sqrt(needed) / np.maximum(curved, 1e-6), weights, LEVEL)
    best, narrowest = (1.0, 0.0), np.inf
    least, greatest = _FACTOR_RANGE
    least = least if max(one.unlike for one in members) >= 1.0 else 1.0
    for factor in np.clip(np.linspace(0.0, most, _FACTORS), least, greatest):
        lacks = float(weighted_quantile((needed - np.square(factor * curved)) / share, weights, LEVEL))
        added = float(np.sqrt(max(lacks, 0.0)))
        mean = float(np.average(np.sqrt(explained + np.square(factor * curved) + share * added**2), weights=weights))
        if mean < narrowest:
            best, narrowest = (float(factor), added), mean
    return best


def covered(rows: Sequence[Residuals], family: FamilyIntervals, curve: tuple[float, ...] | None = None) -> Floats:
    """Whether each row lies in its interval (1 or 0); with `curve`, of transferred coefficients."""
    found = []
    for one in rows:
        moved = 0.0
        if curve is not None:
            moved = Intervals(transfer=curve, families={one.family: family}).moved(one.family, one.unlike, one.itself)
        found.append(np.abs(one.log_ratio) <= np.hypot(one.spread90 * inner_half_width(one, family), moved))
    return np.concatenate(found).astype(np.float64) if found else np.zeros(0)


def fit_time_intervals(batches: Sequence[Measured], tell: Callable[[str], None] = lambda _: None) -> Intervals:
    """Widths of the intervals of times, from stored coefficients and measured kernels.

    Parameters
    ----------
    batches : sequence of Measured
    tell : callable
        Gets a line for each family.
    """
    by_family: dict[str, list[Measured]] = defaultdict(list)
    for batch in batches:
        by_family[family_of(batch.table.kind).name].append(batch)
    widths: dict[str, FamilyIntervals] = {}
    moved: dict[str, list[Residuals]] = {}
    grouped: dict[str, list[Residuals]] = {}
    names = sorted(by_family)
    for name, found in zip(names, _side_by_side([by_family[name] for name in names]), strict=True):
        if found is None:
            continue
        widths[name], moved[name], grouped[name], hit = found
        factors = f"size {_short(widths[name].size)}  hull {widths[name].hull:.1f}"
        tell(f"{name:24s} {widths[name].rows:7d} rows  other shapes in {hit:.1%}  {factors}")
    curve = transfer_curve({name: [*moved[name], *grouped[name]] for name in moved}, widths)
    for name, members in moved.items():
        groups = [one for one in grouped[name] if one.itself]
        factor, added = transfer_widths(members, widths[name], curve)
        of_groups, added_groups = transfer_widths(groups, widths[name], curve)
        widths[name] = replace(
            widths[name], transfer=factor, transfer_added=added, groups=of_groups, groups_added=added_groups
        )
        tell(f"{name:24s} other GPUs x{factor:.2f} + {added:.2f}: {_by_gpu(members, widths[name], curve)}")
        tell(f"{name:24s} other groups: {_by_gpu(grouped[name], widths[name], curve)}")
    source = f"{sum(map(len, batches))} measured kernels, left out by shape, size and GPU"
    return Intervals(source=source, transfer=curve, families=widths)


OfFamily = tuple[FamilyIntervals, list[Residuals], list[Residuals], float]


def _side_by_side(tasks: Sequence[Sequence[Measured]]) -> Iterator[OfFamily | None]:
    """Families in processes of their own, each with one thread, in their order; one family in this process."""
    if len(tasks) < 2:
        yield from map(of_family, tasks)
        return
    few = [[sampled(batch) for batch in members] for members in tasks]
    os.environ.update(dict.fromkeys(_ONE_THREAD, "1"))
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as workers:
        yield from workers.map(_of_family_with, few, repeat(places.users_folder()))


def _of_family_with(batches: Sequence[Measured], folder: Path | None) -> OfFamily | None:
    """`of_family` in another process, with the coefficients of this one."""
    places.choose(folder)
    return of_family(batches)


def sampled(batch: Measured, seed: int = 0) -> Measured:
    """At most `ROWS_OF_BATCH` of the rows of a batch."""
    if len(batch) <= ROWS_OF_BATCH:
        return batch
    return batch.take(np.sort(np.random.default_rng(seed).choice(len(batch), ROWS_OF_BATCH, replace=False)))


def of_family(
    batches: Sequence[Measured],
) -> OfFamily | None:
    """Widths of one family, its residuals on left-out GPUs and groups, and the coverage of shapes not learnt from."""
    pools = [thinned(pool) for pool in pools_of(with_stored_clocks(batches), ROWS_OF_BATCH)]
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
        factor, added = transfer_widths(others, family, curve) if others else (family.transfer, family.transfer_added)
        honest = replace(family, transfer=factor, transfer_added=added)
        shares.append(f"{gpu} {covered([one for one in rows if one.gpu == gpu], honest, curve).mean():.0%}")
    return "  ".join(shares)


def _short(values: Sequence[float]) -> str:
    return " ".join(f"{value:.2f}" for value in values)
