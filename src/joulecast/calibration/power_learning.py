"""Trains and scores the learned corrections of power on measured kernels under load."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from joulecast.calibration.correction_fit import TrainingRows, fit_rows
from joulecast.calibration.kernels import shape_fold
from joulecast.calibration.power_fit import SLOWEST, WEIGHT, throttled, trusted
from joulecast.calibration.tables import QUALITIES, Measured
from joulecast.coefficients.corrections import CorrectionModel
from joulecast.coefficients.schema import PowerCoefficients, TimeCoefficients
from joulecast.gpus import Gpu, load_gpu
from joulecast.kernels.registry import family_of
from joulecast.physics.correction import correction_features, feature_names
from joulecast.physics.power import engine_with, static_power_w
from joulecast.physics.price import price
from joulecast.physics.priced import Priced
from joulecast.physics.settled import at_clock, under_limit, with_host

Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

#: Tells the time of every row of a batch at the highest clock, from bursts of its engine. [s]
FreeTimes = Callable[[Measured, Priced, Sequence[Measured]], Floats]

#: Fewer rows than this teach a correction nothing.
FEWEST_ROWS = 100

#: A throttled row tells power through its slowdown: an error in time is one in power two to three times as large.
_SLOWDOWN_WEIGHT = 0.3

#: Share of the rows that train what all GPUs share.
_SHARED_SHARE = 0.3

#: What of the hidden weights is forgotten: readings of power are fewer and noisier than times. (Of 0 to 3, 1 does best
#: for attention and modules and 0.1 for products, on shapes that were left out.)
_FORGOTTEN = 0.3

#: Unthrottled rows that tell how much faster or slower another version is.
_FEWEST_PAIRS = 20

#: Left-out rows that tell how wide an interval is.
_FEWEST_SCORED = 25

#: Readings under these shares of the limit were not throttled, by quality: B readings hold much of what ran before.
_FREE_A, _FREE_B = 0.9, 0.5

#: Rows that are read below the first share of the limit, and predicted to draw less than the second, are taken to run
#: at the highest clock.
_FREE_READING, _FREE_PREDICTION = 0.85, 0.75

#: Halvings of the clock range in finding the clock that a slowdown tells.
_HALVINGS = 14


@dataclass(frozen=True)
class Knowing:
    """What a correction of power builds on, and is used with.

    Attributes
    ----------
    power : mapping of str to PowerCoefficients
        Energies, by GPU.
    time : mapping of str to mapping
        Efficiencies by ``family/engine/group`` that win over the shipped ones, by GPU.
    corrections : mapping of str to CorrectionModel, optional
        Corrections of time in place of the shipped ones.
    """

    power: Mapping[str, PowerCoefficients]
    time: Mapping[str, dict[str, TimeCoefficients]] | None = None
    corrections: Mapping[str, CorrectionModel] | None = None

    def priced(self, batch: Measured, models: Mapping[str, CorrectionModel]) -> Priced:
        """The operations of `batch`, with corrections of power from `models`."""
        gpu = load_gpu(batch.gpu)
        return price(
            batch.table, gpu, batch.conditions, power=self.power[gpu.name], time=(self.time or {}).get(gpu.name),
            corrections=self.corrections, power_corrections=models,
        )  # fmt: skip


@dataclass(frozen=True)
class PowerErrors:
    """Left-out rows of one GPU, family and engine: relative errors of the power, and what they are.

    Attributes
    ----------
    gpu, key : str
        ``key`` is ``family/engine``.
    error : ndarray
    settled : ndarray of bool
        Readings of quality A.
    throttled : ndarray of bool
        Predicted at the limit.
    """

    gpu: str
    key: str
    error: Floats
    settled: Mask
    throttled: Mask

    @property
    def spread90(self) -> float:
        """90th percentile of ``|log(predicted / measured)|`` where no limit sets the power."""
        free = self.error[~self.throttled]
        return float(np.quantile(np.abs(np.log1p(free if free.size >= 20 else self.error)), 0.9))

    def line(self) -> str:
        """One line for a person: rows, mean error of A and of all, median, 90th percentile, bias."""
        size = np.abs(self.error)
        first = size[self.settled].mean() if self.settled.any() else np.nan
        return (
            f"{f'{self.gpu} {self.key} power':56s} {size.size:6d} {first:7.1%} {size.mean():7.1%} "
            f"{np.median(size):7.1%} {np.quantile(size, 0.9):7.1%} {self.error.mean():+7.1%}"
        )


def seen_s(priced: Priced, batch: Measured, clock_mhz: float | Floats) -> Floats:
    """Time of each operation as the measurement of `batch` sees it. [s]"""
    return (with_host if batch.host_bound else at_clock)(priced, clock_mhz)[0]


def training_rows(batch: Measured, priced: Priced, free_s: Floats, weight: float = 1.0) -> TrainingRows:
    """What the rows of a batch say of their power beside the energies alone.

    An unthrottled reading says it directly. A throttled one is the limit: what power would be at the highest clock
    shows in the slowdown, through the clock at which time has stretched so far.

    Parameters
    ----------
    batch : Measured
        Trusted readings.
    priced : Priced
        The same operations, without a correction of power.
    free_s : ndarray
        Time of each operation at the highest clock, as measured or predicted. [s]
    weight : float
        Of each row.
    """
    gpu, capped = priced.gpu, throttled(batch)
    clock = np.full(len(batch), gpu.clock_max_mhz)
    clock[capped] = slowed_clock_mhz(priced, batch, free_s)[capped]
    limit_w = priced.power.limit_share * batch.power_limit_w
    reading_w = np.where(capped, limit_w, batch.power_w)
    _, seen_w = (with_host if batch.host_bound else at_clock)(priced, clock)
    static_w = static_power_w(clock, gpu, priced.power)
    over_w = np.maximum(reading_w - static_w, 0.05 * static_w)
    sensitivity = over_w / reading_w
    quality = np.where(batch.quality == QUALITIES.index("A"), WEIGHT["A"], WEIGHT["B"])
    trust = quality * np.where(capped, _SLOWDOWN_WEIGHT, sensitivity)
    # unwritten memory draws at most what random operands do; constants tell nothing of them
    engine = engine_with(batch.conditions.engine, batch.conditions.operands)
    return TrainingRows(
        features=correction_features(priced.work, priced.times, gpu),
        names=feature_names(priced.work),
        target=np.clip(np.log(over_w / (seen_w - static_w)), -3.0, 3.0).astype(np.float32),
        key=priced.work.group,
        keys=tuple(f"{gpu.name}/{engine}/{group}" for group in priced.work.groups),
        weight=(weight * trust).astype(np.float32),
        common=batch.conditions.operands != "constant",
        at_least=engine != batch.conditions.engine,
    )


def slowed_clock_mhz(priced: Priced, batch: Measured, free_s: Floats) -> Floats:
    """Clock at which each operation has slowed down as measured, against `free_s` at the highest clock. [MHz]"""
    gpu = priced.gpu
    highest = seen_s(priced, batch, gpu.clock_max_mhz)
    slowdown = np.clip(batch.time_s / free_s, 1.0, 1.0 / SLOWEST)
    low, high = np.full(len(batch), 0.5 * gpu.clock_max_mhz), np.full(len(batch), gpu.clock_max_mhz)
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        slower = seen_s(priced, batch, middle) > slowdown * highest
        low, high = np.where(slower, middle, low), np.where(slower, high, middle)
    return np.where(slowdown > 1.0, high, gpu.clock_max_mhz)


def surely_free(batch: Measured) -> Mask:
    """Rows whose reading of power is their own and below the limit: nothing slowed them down."""
    read = (batch.quality <= QUALITIES.index("B")) & np.isfinite(batch.power_w)
    share = np.where(batch.quality == QUALITIES.index("A"), _FREE_A, _FREE_B)
    return np.asarray(read & (batch.power_w < share * batch.power_limit_w))


def unthrottled(batch: Measured, priced: Priced) -> Mask:
    """Rows that nothing slowed down, by their own reading or by what is predicted of them."""
    _, watts = (with_host if batch.host_bound else at_clock)(priced, priced.gpu.clock_max_mhz)
    below = batch.power_w < _FREE_READING * batch.power_limit_w
    return np.asarray(surely_free(batch) | (below & (watts < _FREE_PREDICTION * batch.power_limit_w)))


def free_times_s(batch: Measured, priced: Priced, bursts: Sequence[Measured]) -> Floats:
    """Time of every row of a batch at the highest clock. [s]

    The one of a burst of the same operation where there is one, else the predicted one; both times the offset that
    unthrottled rows of the same group show, since versions differ.
    """
    held: dict[tuple[float, ...], float] = {}
    for burst in bursts:
        held.update(zip(_shapes(burst), burst.time_s.tolist(), strict=True))
    free_s = seen_s(priced, batch, priced.gpu.clock_max_mhz)
    paired = np.array([held.get(shape, np.nan) for shape in _shapes(batch)])
    free = unthrottled(batch, priced)
    for code in range(len(priced.work.groups)):
        rows = priced.work.group == code
        free_s[rows] *= _offset(batch.time_s[rows & free] / free_s[rows & free])
        both = rows & np.isfinite(paired)
        if (both & free).sum() >= _FEWEST_PAIRS:
            free_s[both] = paired[both] * np.median(batch.time_s[both & free] / paired[both & free])
    return free_s


def _offset(ratios: Floats) -> float:
    """Middle of ratios of times to predicted ones, near 1; 1 where there are few."""
    return float(np.clip(np.median(ratios), 0.8, 1.25)) if ratios.size >= _FEWEST_PAIRS else 1.0


def _shapes(batch: Measured) -> list[tuple[float, ...]]:
    columns = [column for _, column in sorted(batch.table.columns.items())]
    return list(zip(*(column.tolist() for column in columns), strict=True))


def train_power(
    family: str, batches: Sequence[Measured], knowing: Knowing, *, bursts: Sequence[Measured] = (),
    fold: int | None = None, seed: int = 0, free_s: FreeTimes | None = None,
) -> CorrectionModel | None:  # fmt: skip
    """The correction of the power of one family; None where too few rows are trusted.

    Parameters
    ----------
    family : str
    batches : sequence of Measured
        Kernels of the family under load, whatever GPU and engine; readings that are not trusted are passed over.
    knowing : Knowing
    bursts : sequence of Measured
        Kernels of the family with the clock held, where they were measured.
    fold : int, optional
        Hash fold of shapes to leave out.
    seed : int
    free_s : callable, optional
        Tells the time of every row at the highest clock in place of `free_times_s`.
    """
    parts = []
    for (gpu_name, engine), members in grouped(batches).items():
        kept = [few for few in (_usable(one, load_gpu(gpu_name), fold) for one in members) if len(few)]
        priced = [knowing.priced(one, {}) for one in kept]
        same = [one for one in bursts if (one.gpu, one.conditions.engine) == (gpu_name, engine)]
        rows = sum(len(one) for one in kept)
        for batch, one in zip(kept, priced, strict=True):
            part = training_rows(batch, one, (free_s or free_times_s)(batch, one, same), rows**-0.5)
            runs = np.isfinite(part.target) & np.isfinite(part.features).all(axis=1)
            runs[list(one.work.reasons)] = False
            parts.append(part.take(np.flatnonzero(runs)))
    rows = sum(len(part.target) for part in parts)
    if rows < FEWEST_ROWS:
        return None
    hidden = (96, 64) if rows > 3000 else (48, 32)
    epochs = int(np.clip(3e6 / rows, 60, 160))
    return fit_rows(
        family, parts, np.random.default_rng(seed), hidden=hidden, epochs=epochs, shared_share=_SHARED_SHARE,
        forgotten=_FORGOTTEN,
    )  # fmt: skip


def _usable(batch: Measured, gpu: Gpu, fold: int | None) -> Measured:
    chosen = trusted(batch, gpu)
    if fold is not None:
        chosen &= shape_fold(batch) != fold
    return batch.take(np.flatnonzero(chosen))


def grouped(batches: Sequence[Measured]) -> dict[tuple[str, str], list[Measured]]:
    """Batches by GPU and engine."""
    out: dict[tuple[str, str], list[Measured]] = defaultdict(list)
    for batch in batches:
        out[batch.gpu, batch.conditions.engine].append(batch)
    return dict(out)


def score_power(
    family: str, batches: Sequence[Measured], knowing: Knowing, model: CorrectionModel | None, fold: int | None = 0
) -> Iterator[PowerErrors]:
    """Errors of the power of trusted readings (of one hash fold of shapes), by GPU and engine."""
    models = {} if model is None else {family: model}
    for (gpu_name, engine), members in grouped(batches).items():
        gpu = load_gpu(gpu_name)
        errors, settled, capped = [], [], []
        for batch in members:
            chosen = trusted(batch, gpu)
            if fold is not None:
                chosen &= shape_fold(batch) == fold
            if not chosen.any():
                continue
            few = batch.take(np.flatnonzero(chosen))
            power_w, limited = predicted_w(knowing.priced(few, models), few)
            errors.append(power_w / few.power_w - 1)
            settled.append(few.quality == QUALITIES.index("A"))
            capped.append(limited)
        if errors:
            yield PowerErrors(
                gpu_name, f"{family}/{engine}", np.concatenate(errors), np.concatenate(settled), np.concatenate(capped)
            )


def predicted_w(priced: Priced, batch: Measured) -> tuple[Floats, Mask]:
    """Mean power as the meter of `batch` shows it, host and limit included, and where the limit holds. [W]"""
    settled = under_limit(priced, priced.gpu.clock_max_mhz, batch.power_limit_w, hosted=batch.host_bound)
    return settled.power_w, settled.throttled


def learn_power(
    batches: Sequence[Measured], power: Mapping[str, PowerCoefficients], tell: Callable[[str], None] = lambda _: None
) -> tuple[dict[str, CorrectionModel], dict[str, PowerCoefficients]]:
    """Corrections of the power of every family, and the energies with the errors that left-out shapes have with them.

    Parameters
    ----------
    batches : sequence of Measured
        All kernels; those of GPUs without energies are passed over.
    power : mapping of str to PowerCoefficients
        Fitted energies, by GPU.
    tell : callable
        Gets a line for each GPU and engine.
    """
    knowing = Knowing({name: replace(one, learned_share=1.0) for name, one in power.items()})
    models: dict[str, CorrectionModel] = {}
    scores: list[PowerErrors] = []
    known = [one for one in batches if one.gpu in power]
    for family, members in by_family(known).items():
        loaded = [one for one in members if one.timing_mode == "sustained"]
        bursts = [one for one in members if one.timing_mode == "burst"]
        trial = train_power(family, loaded, knowing, bursts=bursts, fold=0)
        model = train_power(family, loaded, knowing, bursts=bursts)
        if model is not None and trial is not None:
            models[family] = model
        for one in score_power(family, loaded, knowing, trial):
            tell(one.line())
            scores.append(one)
    return models, {name: with_errors(one, scores, name) for name, one in knowing.power.items()}


def with_errors(power: PowerCoefficients, scores: Sequence[PowerErrors], gpu_name: str) -> PowerCoefficients:
    """Energies with the errors that left-out rows of one GPU have, by family and engine and all together."""
    own = [one for one in scores if one.gpu == gpu_name]
    if not own:
        return power
    free = np.concatenate([one.error[~one.throttled] for one in own])
    return replace(
        power,
        error=float(np.mean([np.abs(one.error).mean() for one in own])),
        spread90=float(np.quantile(np.abs(np.log1p(free)), 0.9)),
        family_spread90={one.key: one.spread90 for one in own if one.error.size >= _FEWEST_SCORED},
    )


def by_family(batches: Sequence[Measured]) -> dict[str, list[Measured]]:
    """Batches by kernel family, by name."""
    out: dict[str, list[Measured]] = defaultdict(list)
    for batch in batches:
        out[family_of(batch.table.kind).name].append(batch)
    return dict(sorted(out.items()))
