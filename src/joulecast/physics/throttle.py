"""A power cap becomes a clock: the highest at which mean power does not exceed the limit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

#: Clocks are solved for to this share, put right for what is left, then taken so much lower: the limit is kept, even
#: where the slope changes threefold in between, as it may at the voltage floor.
_TOLERANCE, _BELOW = 2.5e-5, 5e-5

#: Slope of log power over log clock that the first step takes, between that of memory (0) and of arithmetic (3).
_FIRST_SLOPE = 1.8

#: Steps of the secant that all operations take together; the few that are left go on alone, by halves if need be.
_TOGETHER = 3
_MOST_STEPS = 40

#: Time constant of the driver's control loop: what swings faster than that it sees as its mean. Of 0, 12, 25 and 50 ms
#: the one that steps of 37 ms to 1.6 s under power limits (Zeus, among the runs that `joulecast validate` scores) are
#: predicted best with; sensors of boards average over 10 to 100 ms. [s]
CONTROL_S = 0.012

#: Parts that `swings` divides a step into: points and weights of a normal distribution (Gauss and Hermite).
_POINTS, _WEIGHTS = np.polynomial.hermite_e.hermegauss(5)


def settled_clock_mhz(
    power_w: Callable[[Floats, npt.NDArray[np.intp]], Floats],
    clock_mhz: Any,
    clock_min_mhz: float,
    power_limit_w: Any,
    rows: int,
) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """Clock at which each operation (or phase) settles under a power limit.

    Throttling is an equation: the driver lowers clock and voltage until mean power meets the limit, and time
    stretches with it. Power is taken to rise with the clock.

    Parameters
    ----------
    power_w : callable
        ``(clock_mhz, row indices) -> mean power of those rows`` at those clocks. [W]
    clock_mhz : array_like
        Clock asked for. [MHz]
    clock_min_mhz : float
        Lowest clock that the GPU goes down to. [MHz]
    power_limit_w : array_like
        Board power limit. [W]
    rows : int
        Number of operations.

    Returns
    -------
    clock_mhz : ndarray, shape (rows,)
        Settled clock, at most the one asked for. [MHz]
    throttled : ndarray of bool
        Where it is below.
    """
    clock = np.array(np.broadcast_to(np.asarray(clock_mhz, dtype=np.float64), (rows,)))
    limit = np.broadcast_to(np.asarray(power_limit_w, dtype=np.float64), (rows,))
    every = np.arange(rows)
    asked_w = power_w(clock, every)
    throttled = asked_w > limit
    over = every[throttled]
    if over.size:
        clock[over] = clock_at_limit(
            lambda mhz, few: power_w(mhz, over[few]), asked_w[over], clock[over], clock_min_mhz, limit[over]
        )
    return clock, throttled


def clock_at_limit(
    power_w: Callable[[Floats, Any], Floats], asked_w: Floats, clock_mhz: Floats, clock_min_mhz: float,
    power_limit_w: Floats,
) -> Floats:  # fmt: skip
    """Clock at which operations over their limit meet it.

    Parameters
    ----------
    power_w : callable
        ``(clock_mhz, rows) -> mean power`` of the operations at `rows`, indices or a slice. [W]
    asked_w : ndarray, shape (n,)
        Power at `clock_mhz`, above the limit. [W]
    clock_mhz : ndarray, shape (n,)
        Clock asked for. [MHz]
    clock_min_mhz : float
        Lowest clock. [MHz]
    power_limit_w : ndarray, shape (n,)
        [W]

    Returns
    -------
    ndarray, shape (n,)
        Just below the clock where power meets the limit; the lowest clock where it never does. [MHz]

    Notes
    -----
    Secant steps on log power over log clock, which is nearly straight, kept within a bracket.
    """
    high = np.log(clock_mhz)
    low = np.minimum(np.log(clock_min_mhz), high)
    bottom = low.copy()
    log_limit = np.log(power_limit_w)
    last, last_miss = high.copy(), np.log(asked_w) - log_limit
    slope = np.full(high.shape, _FIRST_SLOPE)
    place = np.maximum(last - last_miss / slope, low)
    miss = np.empty_like(place)
    left: Any = slice(None)
    for step in range(_MOST_STEPS):
        miss[left] = np.log(power_w(np.exp(place[left]), left)) - log_limit[left]
        done = (np.abs(miss) < _TOLERANCE * slope) | ((place <= bottom) & (miss > 0))
        if done.all():
            break
        if step >= _TOGETHER:
            left = np.flatnonzero(~done)
        x, y = place[left], miss[left]
        high[left] = np.where(y > 0, np.minimum(x, high[left]), high[left])
        low[left] = np.where(y > 0, low[left], np.maximum(x, low[left]))
        gap = last[left] - x
        found = (last_miss[left] - y) / np.where(gap == 0, 1.0, gap)
        # What has settled stays as it is: no operation's clock depends on those solved for beside it.
        slope[left] = np.where((gap != 0) & (found > 1e-7) & ~done[left], found, slope[left])
        last[left], last_miss[left] = x, y
        ahead = x - y / slope[left]
        inside = (ahead > low[left]) & (ahead < high[left]) & (step < _MOST_STEPS // 2)
        halved = np.where(low[left] > bottom[left], 0.5 * (low[left] + high[left]), np.maximum(ahead, bottom[left]))
        halved = np.where((halved < high[left]) & (halved >= low[left]), halved, 0.5 * (low[left] + high[left]))
        place[left] = np.where(done[left], x, np.where(inside, ahead, halved))
    # One more step costs no power: what is left of the miss is straight to the second order.
    kept = place - np.clip(miss / slope, -_TOLERANCE, None) - _BELOW
    return np.asarray(np.clip(np.exp(kept), np.minimum(clock_min_mhz, clock_mhz), clock_mhz))


def felt_swing(swing: Any, period_s: Any) -> Floats:
    """What a control loop of first order sees of power that swings once in a period.

    Parameters
    ----------
    swing : array_like
        Standard deviation of the logarithm of power over the work of a period. Dimensionless.
    period_s : array_like
        Time from one micro-batch to the next. [s]

    Returns
    -------
    ndarray
        Dimensionless.
    """
    return np.asarray(swing / np.hypot(1.0, 2.0 * np.pi * CONTROL_S / np.asarray(period_s, dtype=np.float64)))


def swings(swing: Any) -> tuple[tuple[float, Floats], ...]:
    """Parts of a step by what they draw: the driver sees them apart, and lowers the clock in those that are over.

    Parameters
    ----------
    swing : array_like
        Standard deviation of the logarithm of power over the work of a step. Dimensionless.

    Returns
    -------
    tuple of (float, ndarray)
        Share of the work, and its power over the mean of the step; their products sum to 1.
    """
    shares = _WEIGHTS / _WEIGHTS.sum()
    power = np.exp(np.multiply.outer(_POINTS, np.asarray(swing, dtype=np.float64)))
    power = power / np.tensordot(shares, power, axes=1)
    return tuple((float(share), one) for share, one in zip(shares, power, strict=True))
