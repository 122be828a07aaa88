"""A power cap becomes a clock: the highest at which mean power does not exceed the limit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

#: Halvings of the clock range: the settled clock is exact to 1/4000 of it.
_STEPS = 12


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
    throttled = power_w(clock, every) > limit
    over = every[throttled]
    if over.size:
        low = np.minimum(np.full(over.size, clock_min_mhz), clock[over])
        high = clock[over].copy()
        for _ in range(_STEPS):
            middle = 0.5 * (low + high)
            above = power_w(middle, over) > limit[over]
            high = np.where(above, middle, high)
            low = np.where(above, low, middle)
        clock[over] = low
    return clock, throttled
