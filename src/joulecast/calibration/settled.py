"""Finds out at which clock rows under load ran: where power met the limit and time came out as it was read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from joulecast.calibration.power_fit import CAPPED, throttled
from joulecast.calibration.power_learning import Knowing, by_family, seen_s, surely_free, train_power, unthrottled
from joulecast.calibration.tables import QUALITIES, Measured
from joulecast.coefficients import store
from joulecast.coefficients.corrections import CorrectionModel, load_correction, load_power_correction
from joulecast.coefficients.schema import PowerCoefficients, TimeCoefficients
from joulecast.physics.power import static_power_w
from joulecast.physics.priced import Priced
from joulecast.physics.settled import at_clock, with_host

Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

#: Clocks that are tried, over the highest.
_TRIED = np.linspace(0.55, 1.0, 61)

#: How far predictions of time and of power are off, in natural logarithms; of time where rows don't tell.
_TIME_SPREAD = 0.08
_TIME_SPREAD_RANGE = (0.02, 0.1)
_POWER_SPREAD = 0.08

#: Free rows that tell what is typical.
_FEWEST_FREE = 20

#: Where there are enough, free rows that take at least this share of what most throttled ones do: versions differ
#: more in how they launch than in how they multiply.
_LONG_ENOUGH = 0.3

#: Bursts tell how long kernels under load take when nothing slows them down where the times of free rows stand in one
#: proportion to theirs, within this (natural logarithm).
_ALIKE = 0.2


@dataclass(frozen=True)
class FreeTimes:
    """Time of each row of a batch at the highest clock.

    Attributes
    ----------
    seconds : ndarray, shape (n,)
        As predicted, put right by rows that nothing slowed down. [s]
    spread : ndarray, shape (n,)
        How far off it may be, in natural logarithms.
    """

    seconds: Floats
    spread: Floats


def with_clocks(
    batches: Sequence[Measured],
    power: Mapping[str, PowerCoefficients],
    time: Mapping[str, Mapping[str, TimeCoefficients]],
    corrections: Mapping[str, CorrectionModel],
    learned_power: CorrectionModel | None = None,
) -> list[Measured]:
    """The batches, with the clock of every row under load of the GPUs in `power`.

    Parameters
    ----------
    batches : sequence of Measured
        Of one family.
    power : mapping of str to PowerCoefficients
        Energies, by GPU.
    time : mapping of str to mapping
        Efficiencies by ``family/engine/group``, by GPU: of bursts and of rows that were not throttled.
    corrections : mapping of str to CorrectionModel
        Of times, by family.
    learned_power : CorrectionModel, optional
        Of power; learnt from these batches where it isn't given.
    """
    known = [one for one in batches if one.gpu in power]
    loaded = [one for one in known if one.timing_mode == "sustained" and np.isfinite(one.power_limit_w)]
    if not loaded:
        return list(batches)
    bursts = [one for one in known if one.timing_mode == "burst"]
    energies = {name: replace(one, learned_share=1.0) for name, one in power.items()}
    knowing = Knowing(energies, {name: dict(one) for name, one in time.items()}, corrections)

    def at_highest(batch: Measured, priced: Priced, _: Sequence[Measured]) -> Floats:
        return free_times(batch, priced, _held(batch, bursts, knowing)).seconds

    found: dict[int, Measured] = {}
    (family,) = by_family(loaded)
    model = learned_power or train_power(family, loaded, knowing, bursts=bursts, free_s=at_highest)
    for batch in loaded:
        priced = knowing.priced(batch, {} if model is None else {family: model})
        free = free_times(batch, priced, _held(batch, bursts, knowing))
        found[id(batch)] = replace(batch, clock_mhz=settled_clock_mhz(batch, priced, free))
    return [found.get(id(one), one) for one in batches]


def with_stored_clocks(batches: Sequence[Measured]) -> list[Measured]:
    """The batches of one family with the clocks that stored coefficients say of rows under load."""
    stored = {name: store.load(name) for name in {one.gpu for one in batches}}
    known = {name: one for name, one in stored.items() if one is not None}
    power = {name: one.power for name, one in known.items() if one.power is not None and one.power.learned_share > 0}
    names = list(by_family(batches))
    learned = load_power_correction(names[0]) if len(names) == 1 else None
    if learned is None or not power:
        return list(batches)
    correction = load_correction(names[0])
    time = {name: one.time for name, one in known.items()}
    return with_clocks(batches, power, time, {} if correction is None else {names[0]: correction}, learned)


def _held(batch: Measured, bursts: Sequence[Measured], knowing: Knowing) -> Floats | None:
    """Time of the same operations by what bursts on the same GPU show: of the same engine, else of another. [s]"""
    if batch.host_bound:
        return None
    engines = {one.conditions.engine for one in bursts if one.gpu == batch.gpu}
    if not engines:
        return None
    own = batch.conditions.engine
    engine = own if own in engines else min(engines)
    other = replace(batch, conditions=replace(batch.conditions, engine=engine, version="", kernel_source=""))
    held = knowing.priced(other, {})
    return at_clock(held, held.gpu.clock_max_mhz)[0] if len(held.work.groups) else None


def free_times(batch: Measured, priced: Priced, held_s: Floats | None) -> FreeTimes:
    """Time of every row of a batch at the highest clock.

    From what bursts show of the same operations where that is in proportion to the rows that nothing slowed down, else
    from what was learnt of these kernels themselves, some of which ran slower than is known.

    Parameters
    ----------
    batch : Measured
    priced : Priced
        The same operations.
    held_s : ndarray, optional
        Time of the same operations by what bursts show. [s]
    """
    own_s = seen_s(priced, batch, priced.gpu.clock_max_mhz)
    free = unthrottled(batch, priced)
    seconds, spread = own_s.copy(), np.full(len(batch), _TIME_SPREAD)
    for code in range(len(priced.work.groups)):
        rows = priced.work.group == code
        some = rows & free
        slowed = rows & throttled(batch)
        if slowed.sum() >= _FEWEST_FREE:
            long = some & (batch.time_s > _LONG_ENOUGH * np.quantile(batch.time_s[slowed], 0.25))
            some = long if long.sum() >= _FEWEST_FREE else some
        if some.sum() < _FEWEST_FREE:
            continue
        offset, off = _typical(np.log(batch.time_s[some] / own_s[some]))
        start = own_s
        if held_s is not None and np.isfinite(held_s[rows]).all():
            other, other_off = _typical(np.log(batch.time_s[some] / held_s[some]))
            if other_off <= _ALIKE:
                offset, off, start = other, other_off, held_s
        seconds[rows] = start[rows] * np.exp(offset)
        spread[rows] = np.clip(off, *_TIME_SPREAD_RANGE)
    return FreeTimes(seconds, spread)


def _typical(miss: Floats) -> tuple[float, float]:
    """Middle and (robust) standard deviation."""
    middle = float(np.median(miss))
    return middle, float(1.48 * np.median(np.abs(miss - middle)))


def settled_clock_mhz(batch: Measured, priced: Priced, free: FreeTimes) -> Floats:
    """Clock of each row of a batch under load. [MHz]

    Of all clocks, the one at which the predictions of time and of power have to be the least wrong for the row to
    have taken the time it took, at the power limit; at the highest clock power may lie below the limit.

    Parameters
    ----------
    batch : Measured
    priced : Priced
        The same operations, with the learned power.
    free : FreeTimes
        Of the same operations.
    """
    gpu = priced.gpu
    limit_w = priced.power.limit_share * batch.power_limit_w
    evaluated = with_host if batch.host_bound else at_clock
    highest_s, highest_w = evaluated(priced, gpu.clock_max_mhz)
    read = (batch.quality <= QUALITIES.index("B")) & np.isfinite(batch.power_w)
    at_limit = read & (batch.power_w > CAPPED * batch.power_limit_w)
    miss = np.log(batch.time_s / free.seconds)
    best = np.full(len(batch), np.inf)
    clock = np.full(len(batch), gpu.clock_max_mhz)
    for share in _TRIED[::-1]:
        mhz = share * gpu.clock_max_mhz
        seconds, watts = (highest_s, highest_w) if share == 1.0 else evaluated(priced, mhz)
        static_w = static_power_w(mhz, gpu, priced.power)
        needed = np.log(np.maximum(limit_w - static_w, 1.0) * batch.time_s / ((watts - static_w) * seconds))
        if share == 1.0:
            needed = np.where(at_limit, needed, np.minimum(needed, 0.0))
        slower = np.log(seconds / highest_s)
        cost = np.square((miss - slower) / free.spread) + np.square(needed / _POWER_SPREAD)
        better = cost < best
        best, clock = np.where(better, cost, best), np.where(better, mhz, clock)
    return np.where(surely_free(batch), gpu.clock_max_mhz, clock)
