"""Finds what a measurement's times gained from its first row to its last, whatever was measured."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

#: Share of the rows, those with the least work, in whose times a drift shows best; and how many are needed.
_LEAST_WORK = 0.06
FEWEST_ROWS = 60

#: Rank correlation of time with place that is no accident; of work with place, in a table that is no sweep by size.
_DRIFTS, _SWEEPS = 0.4, 0.1


def drift_s(time_s: Floats, work: Floats) -> Floats:
    """Time that each row of a table took longer for its place in it.

    A process that measures for hours may get slower: its allocator, its profiler, its host. Rows in random order tell,
    since their work then says nothing of their place: the smallest operations, whose own times matter least, take
    longer and longer.

    Parameters
    ----------
    time_s : ndarray, shape (n,)
        Measured times in the order of measurement. [s]
    work : ndarray, shape (n,)
        Arithmetic or bytes of each row.

    Returns
    -------
    ndarray, shape (n,)
        A straight line from 0 (Theil-Sen's slope of the rows with the least work); all 0 where rows are few, in order
        of size, or don't drift. Never more than three quarters of a row's time. [s]
    """
    n = time_s.size
    place = np.arange(n) / max(n - 1, 1)
    none = np.zeros(n)
    small = np.flatnonzero(work <= np.quantile(work, _LEAST_WORK)) if n else np.zeros(0, dtype=np.intp)
    if small.size < FEWEST_ROWS or abs(_rank_correlation(work, place)) > _SWEEPS:
        return none
    if _rank_correlation(time_s[small], place[small]) < _DRIFTS:
        return none
    rise = np.subtract.outer(time_s[small], time_s[small])
    run = np.subtract.outer(place[small], place[small])
    slope = float(np.median(rise[run > 0] / run[run > 0]))
    return np.minimum(slope * place, 0.75 * time_s)


def _rank_correlation(x: Floats, y: Floats) -> float:
    """Spearman's; 0 where one of them does not vary."""
    first, second = (np.argsort(np.argsort(one)).astype(np.float64) for one in (x, y))
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        return 0.0
    return float(np.corrcoef(first, second)[0, 1])
