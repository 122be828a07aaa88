"""Conformal quantiles: half-widths that hold nine of ten rows that no fit saw."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

LEVEL = 0.9


def conformal_quantile(scores: Any, level: float = LEVEL) -> float:
    """The score that a further one stays below with probability `level`, if it is like these.

    Parameters
    ----------
    scores : array_like, shape (n,)
        Sizes of left-out residuals, not negative; at least one.
    level : float

    Returns
    -------
    float
        The score of rank ``ceil((n + 1) level)``. Where there are too few for that rank, the largest of them, taken
        for the highest of a half-normal sample and raised to the quantile asked for, so never less than the largest.

    Notes
    -----
    The rank, with its ``n + 1``, is what makes coverage hold for any distribution (Vovk, Gammerman and Shafer,
    Algorithmic Learning in a Random World, 2005; Lei et al., JASA 113, 2018).
    """
    ordered = np.sort(np.asarray(scores, dtype=np.float64))
    n = ordered.size
    if not n:
        raise ValueError("a quantile of no scores")
    rank = math.ceil((n + 1) * level - 1e-9)
    if rank <= n:
        return float(ordered[rank - 1])
    from statistics import NormalDist

    normal = NormalDist()
    highest = normal.inv_cdf(0.5 + 0.5 * n / (n + 1))
    return float(ordered[-1] * max(1.0, normal.inv_cdf(0.5 + 0.5 * level) / highest))


def weighted_quantile(scores: Any, weights: Any, level: float = LEVEL) -> float:
    """The smallest score at or below which rows of a share `level` of all weight lie.

    Parameters
    ----------
    scores, weights : array_like, shape (n,)
        Not negative; at least one of each.
    level : float
    """
    scores, weights = np.asarray(scores, dtype=np.float64), np.asarray(weights, dtype=np.float64)
    order = np.argsort(scores, kind="stable")
    reached = np.cumsum(weights[order])
    place = int(np.searchsorted(reached, level * reached[-1] * (1 - 1e-12)))
    return float(scores[order][min(place, scores.size - 1)])


def equal_weights(labels: Any) -> Floats:
    """Weights under which every label counts the same, however many rows it has."""
    _, code = np.unique(np.asarray(labels), return_inverse=True)
    return np.asarray(1.0 / np.bincount(code)[code], dtype=np.float64)
