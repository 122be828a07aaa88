"""Coefficients of a GPU from tables of its user, be they a few rows: near a relative where the rows leave it open."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from joulecast.calibration.conformal import conformal_quantile
from joulecast.calibration.interval_fit import inner_half_width
from joulecast.calibration.kernels import MOST_ROWS, Pool, pools_of
from joulecast.calibration.left_out import Residuals, residuals_of
from joulecast.calibration.power_fit import as_coefficients, fit_power, power_rows
from joulecast.calibration.tables import QUALITIES, Measured
from joulecast.calibration.time_fit import Factor, fit_time
from joulecast.coefficients import transfer
from joulecast.coefficients.corrections import load_correction
from joulecast.coefficients.intervals import load_intervals
from joulecast.coefficients.schema import Calibration, GpuCoefficients, PowerCoefficients, TimeCoefficients
from joulecast.gpus import Gpu, load_gpu
from joulecast.kernels.work import KernelWork
from joulecast.physics.correction import correction_factor
from joulecast.physics.timing import ModuleTimes

Floats = npt.NDArray[np.float64]

#: Fewer rows of a group than these tell nothing that a relative does not tell better.
FEWEST_ROWS = 3

#: Rows of one group that are fitted on; each step of a fit takes them through the learned correction.
_FIT_ROWS = 1_000

#: Parts in which the rows of a group are left out to learn the error.
_FOLDS = 5

#: Factors on the width of the prior that are tried.
_WIDTHS = (0.5, 1.5, 5.0)

#: Rows that can do without a relative.
_FEWEST_AFRESH = 20
_AFRESH_WIDTHS = (1.0, 3.0)

#: With more rows than these, the prior has no say and one left-out part tells the error.
_MANY_ROWS = 500

#: Trusted readings of power that energies are fitted on at least, all together and in one table.
_FEWEST_POWER_ROWS = 60
_FEWEST_OF_TABLE = 20


@dataclass(frozen=True)
class FittedGroup:
    """What was fitted of one family, engine and group.

    Attributes
    ----------
    key : str
    rows : int
    before, error : float
        Mean absolute relative error of what was known before, and of rows that were left out of the fit.
    spread90 : float
    start : str
        What the fit started from.
    """

    key: str
    rows: int
    before: float
    error: float
    spread90: float
    start: str


@dataclass(frozen=True)
class OwnFit:
    """A user's GPU, fitted.

    Attributes
    ----------
    coefficients : GpuCoefficients
    groups : tuple of FittedGroup
    too_few : mapping of str to int
        Rows of groups that were left out because they are too few.
    power_rows : int
        Trusted readings of power, fitted on where there are enough.
    """

    coefficients: GpuCoefficients
    groups: tuple[FittedGroup, ...]
    too_few: Mapping[str, int] = field(default_factory=dict)
    power_rows: int = 0


def fit_own(
    batches: Sequence[Measured],
    gpu: Gpu,
    *,
    sources: str,
    set_aside: int = 0,
    version: str = "",
    date: str = "",
    seed: int = 0,
    tell: Callable[[str, float], None] = lambda *_: None,
) -> OwnFit:
    """Fit one GPU on audited tables.

    Parameters
    ----------
    batches : sequence of Measured
        All of `gpu`.
    gpu : Gpu
    sources, version, date : str
        For the provenance.
    set_aside : int
        Rows that the audit took out before.
    seed : int
    tell : callable
        Gets what is being done, and the share of all of it that is done.

    Returns
    -------
    OwnFit
    """
    time: dict[str, TimeCoefficients] = {}
    groups: list[FittedGroup] = []
    too_few: dict[str, int] = {}
    pools = list(pools_of(batches, MOST_ROWS, seed, described={gpu.name: gpu}))
    for place, pool in enumerate(pools):
        tell(pool.key, place / (len(pools) + 1))
        found, short = fit_groups(pool, sources, seed)
        too_few |= short
        for group, one in found:
            time[group.key] = one
            groups.append(group)
    tell("energies", len(pools) / (len(pools) + 1))
    power, readings = _power(batches, gpu, sources)
    tell("done", 1.0)
    calibration = Calibration(
        version=version,
        date=date,
        seed=seed,
        sources=sources,
        rows=sum(one.rows for one in groups),
        set_aside=set_aside,
        residuals=residuals_by_family(time, power),
    )
    return OwnFit(GpuCoefficients(gpu.name, time, power, None, calibration), tuple(groups), too_few, readings)


def residuals_by_family(time: Mapping[str, TimeCoefficients], power: PowerCoefficients | None) -> dict[str, float]:
    """Mean absolute relative error of left-out rows by family, groups weighted by their rows, and of power."""
    rows: dict[str, list[tuple[float, int]]] = defaultdict(list)
    for key, one in time.items():
        rows[key.split("/", 1)[0]].append((one.error, one.rows))
    out = {name: float(np.average([e for e, _ in some], weights=[max(n, 1) for _, n in some]))
           for name, some in sorted(rows.items())}  # fmt: skip
    return out if power is None else {**out, "power": power.error}


def fit_groups(pool: Pool, source: str, seed: int) -> tuple[list[tuple[FittedGroup, TimeCoefficients]], dict[str, int]]:
    """Efficiencies of each group of a pool for use with the learned correction, and groups with too few rows.

    Each fit starts from, and stays near, what is known without these rows: the GPU's shipped coefficients, else its
    nearest relative's.
    """
    family, engine = pool.key.split("/", 1)
    free = pool.take(np.flatnonzero(~pool.capped & np.isfinite(pool.time_s) & (pool.time_s > 0)))
    model = load_correction(family)

    def learned(work: KernelWork, times: ModuleTimes) -> Floats:
        assert model is not None
        return correction_factor(model, work, times, pool.gpu, engine=engine)[0]

    factor: Factor | None = None if model is None else learned
    out, too_few = [], {}
    for code, group in enumerate(free.work.groups):
        key = f"{pool.key}/{group}"
        rows = np.flatnonzero(free.work.group == code)
        if rows.size < FEWEST_ROWS:
            if rows.size:
                too_few[key] = int(rows.size)
            continue
        part = free.take(rows)
        donor = transfer.nearest(pool.gpu, family, engine, group)
        start = TimeCoefficients() if donor is None else donor.fitted
        unlike = 4.0 if donor is None else donor.unlike
        before = _misses(part, group, start, model)
        # how far from the relative to go, or to start afresh, is what predicts left-out rows best
        base = float(np.clip(0.25 + 0.5 * unlike, 0.25, 1.0))
        widths = _WIDTHS if rows.size <= _MANY_ROWS else _WIDTHS[-1:]
        ways = [_Fits(part, group, start, base * width, factor, source, seed) for width in widths]
        if rows.size >= _FEWEST_AFRESH:
            ways += [_Fits(part, group, TimeCoefficients(), width, factor, source, seed) for width in _AFRESH_WIDTHS]
        tried = [fits.left_out(model) for fits in ways]
        best = int(np.argmin([np.mean(np.abs(one.log_ratio)) for one in tried]))
        left_out, fitted = tried[best], _least_missing(ways[best], part, group, model)
        scores = np.abs(left_out.log_ratio) / inner_half_width(left_out, load_intervals().family(family))
        spread = conformal_quantile(scores)
        if left_out.log_ratio.size < _FOLDS * 2 and donor is not None:
            # so few say little of how far off it may be: never surer than a relative's own fit
            spread = max(spread, start.spread90)
        error = float(np.mean(np.abs(np.expm1(left_out.log_ratio))))
        fitted = replace(fitted, provenance="fitted", rows=int(rows.size), error=error, spread90=spread)
        where = "defaults" if donor is None else f"{donor.key} of {donor.gpu}"
        out.append((FittedGroup(key, int(rows.size), before, error, spread, where), fitted))
    return out, too_few


def _least_missing(fits: _Fits, part: Pool, group: str, model: object) -> TimeCoefficients:
    """The fit of all rows, or one without some where that misses all of them by less: a search may end too early."""
    found = fits.fit(part)
    if len(part.time_s) > _MANY_ROWS:
        return found
    fold = np.arange(len(part.time_s)) % _FOLDS
    others = [fits.fit(part.take(np.flatnonzero(fold != one))) for one in np.unique(fold)] if len(fold) > _FOLDS else []
    return min((found, *others), key=lambda one: _misses(part, group, one, model))


@dataclass(frozen=True)
class _Fits:
    """How the rows of one group are fitted, all of them or without some."""

    pool: Pool
    group: str
    start: TimeCoefficients
    width: float
    factor: Factor | None
    source: str
    seed: int

    def fit(self, part: Pool) -> TimeCoefficients:
        found = fit_time(
            part.work, part.gpu, part.time_s, part.clock_mhz, source=self.source, host_bound=part.host_bound,
            most_rows=_FIT_ROWS, seed=self.seed, priors={self.group: self.start}, prior_width=self.width,
            factor=self.factor, least_rows=1,
        )  # fmt: skip
        # a factor that whole networks showed on the relative is its own
        return replace(found[self.group], scale=1.0, pass_scale=self.start.pass_scale)

    def left_out(self, model: object) -> Residuals:
        """Residuals of all rows (of a fifth, where there are many), each from a fit without its shape."""
        part = self.pool
        shapes = np.unique(part.fold)
        fold = part.fold if shapes.size == _FOLDS else np.arange(len(part.time_s)) % min(_FOLDS, len(part.time_s))
        found: list[Residuals] = []
        for one in np.unique(fold)[: 1 if len(fold) > _MANY_ROWS else None]:
            kept, rest = np.flatnonzero(fold != one), np.flatnonzero(fold == one)
            if kept.size:
                fitted = self.fit(part.take(kept))
                found += _residuals(part.take(rest), self.group, fitted, model)
        return replace(
            found[0],
            log_ratio=np.concatenate([one.log_ratio for one in found]),
            size_s=np.concatenate([one.size_s for one in found]),
            distance=np.concatenate([one.distance for one in found]),
        )


def _residuals(part: Pool, group: str, fitted: TimeCoefficients, model: object) -> list[Residuals]:
    per_group = [(fitted, 0.0, True) if name == group else None for name in part.work.groups]
    return residuals_of(part, per_group, model)  # type: ignore[arg-type]


def _misses(part: Pool, group: str, fitted: TimeCoefficients, model: object) -> float:
    """Mean absolute relative error of `fitted` on the rows of a group."""
    return float(np.mean([np.mean(np.abs(np.expm1(one.log_ratio))) for one in _residuals(part, group, fitted, model)]))


def _power(batches: Sequence[Measured], gpu: Gpu, source: str) -> tuple[PowerCoefficients | None, int]:
    """Energies where enough readings are trusted, and how many are."""
    good = [int((np.isfinite(one.power_w) & (one.quality <= QUALITIES.index("B"))).sum()) for one in batches]
    total = sum(good)
    if total < _FEWEST_POWER_ROWS or max(good) < _FEWEST_OF_TABLE:
        return None, total
    rows = power_rows(list(batches), gpu)
    fitted, trial = fit_power(rows, gpu)
    left = rows.fold == 0
    if not left.any():
        return None, total
    errors = trial[left] / rows.power_w[left] - 1
    found = as_coefficients(fitted, gpu, source, errors, len(rows.power_w))
    return replace(found, spread90=conformal_quantile(np.abs(np.log1p(errors)))), total


def by_gpu(batches: Sequence[Measured], asked: Gpu | None) -> dict[str, tuple[Gpu, list[Measured]]]:
    """Batches by the GPU that they were measured on, in order of names."""
    found: dict[str, tuple[Gpu, list[Measured]]] = {}
    for batch in sorted(batches, key=lambda one: one.gpu):
        if batch.gpu not in found:
            gpu = asked if asked is not None and asked.name == batch.gpu else load_gpu(batch.gpu)
            found[batch.gpu] = (gpu, [])
        found[batch.gpu][1].append(batch)
    return found
