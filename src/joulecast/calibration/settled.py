"""Finds out at which clock rows under load ran: where power met the limit and time came out as it was read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from joulecast.calibration.power_fit import CAPPED
from joulecast.calibration.power_learning import Knowing, by_family, free_times_s, train_power
from joulecast.calibration.tables import QUALITIES, Measured
from joulecast.coefficients.corrections import CorrectionModel
from joulecast.coefficients.schema import PowerCoefficients, TimeCoefficients
from joulecast.physics.power import static_power_w
from joulecast.physics.price import Priced, at_clock, with_host

Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

#: Clocks that are tried, over the highest.
_TRIED = np.linspace(0.55, 1.0, 61)

#: How far predictions of time and of power are off, in natural logarithms; of time where rows don't tell.
_TIME_SPREAD = 0.08
_TIME_SPREAD_RANGE = (0.02, 0.15)
_POWER_SPREAD = 0.08

#: Readings under these shares of the limit were not throttled, by quality: B readings hold much of what ran before.
_FREE_A, _FREE_B = 0.9, 0.5

#: Rows predicted to draw less than this share of the limit are taken to run at the highest clock, whatever is read.
_SURELY_FREE = 0.75
_FEWEST_FREE = 20


def with_clocks(
    batches: Sequence[Measured],
    power: Mapping[str, PowerCoefficients],
    time: Mapping[str, Mapping[str, TimeCoefficients]],
    corrections: Mapping[str, CorrectionModel],
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
    """
    known = [one for one in batches if one.gpu in power and np.isfinite(one.power_limit_w)]
    loaded = [one for one in known if one.timing_mode == "sustained"]
    if not loaded:
        return list(batches)
    bursts = [one for one in known if one.timing_mode == "burst"]
    energies = {name: replace(one, learned_share=1.0) for name, one in power.items()}
    knowing = Knowing(energies, {name: dict(one) for name, one in time.items()}, corrections)
    found: dict[int, Measured] = {}
    (family,) = by_family(loaded)
    model = train_power(family, loaded, knowing, bursts=bursts)
    for batch in loaded:
        priced = knowing.priced(batch, {} if model is None else {family: model})
        same = [one for one in bursts if (one.gpu, one.conditions.engine) == (batch.gpu, batch.conditions.engine)]
        clock = settled_clock_mhz(batch, priced, free_times_s(batch, priced, same))
        found[id(batch)] = replace(batch, clock_mhz=clock)
    return [found.get(id(one), one) for one in batches]


def settled_clock_mhz(batch: Measured, priced: Priced, free_s: Floats) -> Floats:
    """Clock of each row of a batch under load. [MHz]

    Of all clocks, the one at which the predictions of time and of power have to be the least wrong for the row to
    have taken the time it took, at the power limit; at the highest clock power may lie below the limit.

    Parameters
    ----------
    batch : Measured
    priced : Priced
        The same operations, with the learned power.
    free_s : ndarray
        Predicted time of each at the highest clock. [s]
    """
    gpu = priced.gpu
    limit_w = priced.power.limit_share * batch.power_limit_w
    evaluated = with_host if batch.host_bound else at_clock
    highest_s, highest_w = evaluated(priced, gpu.clock_max_mhz)
    read = (batch.quality <= QUALITIES.index("B")) & np.isfinite(batch.power_w)
    settled = batch.quality == QUALITIES.index("A")
    surely_free = read & (batch.power_w < np.where(settled, _FREE_A, _FREE_B) * batch.power_limit_w)
    at_limit = read & (batch.power_w > CAPPED * batch.power_limit_w)
    miss = np.log(batch.time_s / free_s)
    free = surely_free | (~at_limit & (highest_w < _SURELY_FREE * limit_w))
    offset, spread = _typical(miss, free, priced.work.group, len(priced.work.groups))
    best = np.full(len(batch), np.inf)
    clock = np.full(len(batch), gpu.clock_max_mhz)
    for share in _TRIED[::-1]:
        mhz = share * gpu.clock_max_mhz
        seconds, watts = (highest_s, highest_w) if share == 1.0 else evaluated(priced, mhz)
        static_w = static_power_w(mhz, gpu, priced.power)
        needed = np.log(np.maximum(limit_w - static_w, 1.0) * batch.time_s / ((watts - static_w) * seconds))
        if share == 1.0:
            needed = np.where(at_limit, needed, np.minimum(needed, 0.0))
        cost = np.square((miss - offset - np.log(seconds / highest_s)) / spread) + np.square(needed / _POWER_SPREAD)
        better = cost < best
        best, clock = np.where(better, cost, best), np.where(better, mhz, clock)
    return np.where(surely_free, gpu.clock_max_mhz, clock)


def _typical(miss: Floats, free: Mask, group: npt.NDArray[np.intp], groups: int) -> tuple[Floats, Floats]:
    """Middle and spread of `miss` of the free rows of each group, by row."""
    offset, spread = np.zeros(groups), np.full(groups, _TIME_SPREAD)
    for code in range(groups):
        some = miss[free & (group == code)]
        if some.size >= _FEWEST_FREE:
            offset[code] = np.median(some)
            spread[code] = np.clip(1.48 * np.median(np.abs(some - offset[code])), *_TIME_SPREAD_RANGE)
    return offset[group], spread[group]
