"""Intervals: from the spread of held-out residuals to bounds on each figure."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def widened(spread: Any, distance: Any, growth: Any = 2.0) -> Floats:
    """Half-width of an interval outside the hull of the data.

    Parameters
    ----------
    spread : array_like
        Half-width inside the hull, in natural logarithms.
    distance : array_like
        Distance from the data, 0 inside, about 1 where the learned correction has faded.
    growth : array_like
        How many times `spread` is added far outside (`joulecast.coefficients.intervals.FamilyIntervals.hull`).

    Returns
    -------
    ndarray
        Half-width, growing with the distance up to ``1 + growth`` times the inner one. Natural logarithms.
    """
    return np.asarray(np.asarray(spread) * (1.0 + np.asarray(growth) * np.tanh(np.asarray(distance))))


def by_size(time_s: Any, knots_s: Any, factors: Any) -> Floats:
    """Factor on a half-width for the size of an operation: short ones are bound by what varies most.

    Parameters
    ----------
    time_s : array_like
        Rough time of each operation. [s]
    knots_s, factors : array_like, shape (k,)
        Times and the factors at them; between them it goes straight in the logarithm of time, outside it is level.

    Returns
    -------
    ndarray
    """
    logs = np.log(np.maximum(np.asarray(time_s, dtype=np.float64), 1e-12))
    return np.asarray(np.interp(logs, np.log(np.asarray(knots_s, dtype=np.float64)), factors))


def bounds(value: Any, half_width: Any) -> tuple[Floats, Floats]:
    """Lower and upper bound of a positive figure: ``value * exp(-/+ half_width)``, in the figure's unit."""
    factor = np.exp(half_width)
    return np.asarray(value / factor), np.asarray(value * factor)


def combined(*half_widths: Any) -> Floats:
    """Half-width of a product of figures whose errors are independent: root of the sum of squares."""
    return np.asarray(np.sqrt(np.sum([np.square(width) for width in np.broadcast_arrays(*half_widths)], axis=0)))


def under_limit_width(spread: Any, capped: Any, throttled: Any, excess: Any) -> Floats:
    """Half-width of a power that a limit may set: the better known, the further the power without it would lie above.

    Parameters
    ----------
    spread : array_like
        Half-width where no limit sets it, in natural logarithms.
    capped : array_like
        The same of a power that the limit surely sets.
    throttled : array_like of bool
        Where it sets the power.
    excess : array_like
        Logarithm of the power without the limit over the limit, where it throttles.

    Returns
    -------
    ndarray
        Natural logarithms.
    """
    known = np.maximum(np.asarray(spread) - np.asarray(excess), np.minimum(spread, capped))
    return np.asarray(np.where(throttled, known, spread))


def of_sum(parts: Any, half_widths: Any, family: npt.NDArray[np.intp]) -> float:
    """Half-width of a sum of positive parts: errors within a family go together, those of families are independent.

    Parameters
    ----------
    parts : array_like, shape (n,)
        What is summed.
    half_widths : array_like, shape (n,)
        Half-width of each, in natural logarithms.
    family : ndarray of int, shape (n,)
        Family of each.

    Returns
    -------
    float
        Half-width of the sum, in natural logarithms.
    """
    parts = np.asarray(parts, dtype=np.float64)
    total = float(parts.sum())
    if total <= 0:
        return 0.0
    by_family = np.bincount(family, weights=parts * np.broadcast_to(half_widths, parts.shape))
    return float(np.sqrt(np.sum(np.square(by_family / total))))
