"""How far predictions are from measurements: errors, bias, and how often an interval holds what was measured."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

#: Upper edges of the size classes of kernels by measured time, and their names. [s]
SIZE_EDGES_S = (1e-5, 1e-4, 1e-3, 1e-2)
SIZE_NAMES = ("under 10 us", "10-100 us", "0.1-1 ms", "1-10 ms", "over 10 ms")


@dataclass(frozen=True)
class Metrics:
    """Errors of one set of predictions, all as shares of what was measured.

    Attributes
    ----------
    rows : int
        Predictions scored.
    mean, median, p90 : float
        Mean, median and 90th percentile of ``|predicted / measured - 1|``.
    bias : float
        Mean of ``predicted / measured - 1``: above 0 where predictions are too high.
    coverage : float
        Share of the rows whose measured value lies within the predicted 90 % interval; NaN where none was given.
    """

    rows: int
    mean: float
    median: float
    p90: float
    bias: float
    coverage: float

    def as_dict(self) -> dict[str, Any]:
        """The figures as a plain mapping."""
        return asdict(self)


def metrics(predicted: Any, measured: Any, half_width: Any = None) -> Metrics:
    """Errors of `predicted` against `measured`.

    Parameters
    ----------
    predicted, measured : array_like, shape (n,)
        Of one unit, above zero. Rows where either is not finite are passed over.
    half_width : array_like, shape (n,), optional
        Half the width of the 90 % interval around `predicted`, in natural logarithms.

    Returns
    -------
    Metrics
        NaN everywhere but in `rows` where no row is left.
    """
    p, m = np.asarray(predicted, dtype=np.float64), np.asarray(measured, dtype=np.float64)
    good = np.isfinite(p) & np.isfinite(m) & (p > 0) & (m > 0)
    if not good.any():
        return Metrics(0, *[float("nan")] * 5)
    ratio = p[good] / m[good]
    size = np.abs(ratio - 1.0)
    covered = float("nan")
    if half_width is not None:
        half = np.broadcast_to(np.asarray(half_width, dtype=np.float64), p.shape)[good]
        if np.isfinite(half).all():
            covered = float(np.mean(np.abs(np.log(ratio)) <= half))
    return Metrics(
        rows=int(good.sum()),
        mean=float(size.mean()),
        median=float(np.median(size)),
        p90=float(np.quantile(size, 0.9)),
        bias=float(ratio.mean() - 1.0),
        coverage=covered,
    )


def size_class(time_s: Any) -> npt.NDArray[np.intp]:
    """Index into `SIZE_NAMES` of each measured time. [s]"""
    return np.searchsorted(np.array(SIZE_EDGES_S), np.asarray(time_s), side="right")


@dataclass(frozen=True)
class Band:
    """Ratio of predicted to measured in one bin of size: never fewer rows than make a statistic."""

    size: float
    rows: int
    low: float
    middle: float
    high: float


#: Rows that a bin needs to be shown: fewer would tell of single measurements.
LEAST_ROWS_OF_A_BIN = 20


def bands(size: Any, predicted: Any, measured: Any, bins_per_decade: int = 4) -> list[Band]:
    """Median and 10-90 % band of ``predicted / measured`` in logarithmic bins of `size`.

    Parameters
    ----------
    size, predicted, measured : array_like, shape (n,)
        Above zero.
    bins_per_decade : int

    Returns
    -------
    list of Band
        `Band.size` is the middle of the bin; bins of fewer than `LEAST_ROWS_OF_A_BIN` rows are left out.
    """
    x, ratio = np.asarray(size, dtype=np.float64), np.asarray(predicted) / np.asarray(measured)
    good = np.isfinite(ratio) & (ratio > 0) & (x > 0)
    place = np.floor(np.log10(x[good]) * bins_per_decade).astype(np.int64)
    out = []
    for one in np.unique(place):
        inside = ratio[good][place == one]
        if inside.size >= LEAST_ROWS_OF_A_BIN:
            low, middle, high = np.quantile(inside, (0.1, 0.5, 0.9))
            out.append(
                Band(float(10 ** ((one + 0.5) / bins_per_decade)), inside.size, float(low), float(middle), float(high))
            )
    return out


def density(predicted: Any, measured: Any, bins_per_decade: int = 8) -> list[tuple[float, float, int]]:
    """Rows in each cell of a logarithmic grid of measured against predicted: (measured, predicted, rows).

    Cells of fewer than `LEAST_ROWS_OF_A_BIN` rows are left out.
    """
    p, m = np.asarray(predicted, dtype=np.float64), np.asarray(measured, dtype=np.float64)
    good = np.isfinite(p) & np.isfinite(m) & (p > 0) & (m > 0)
    cells = np.floor(np.log10(np.stack([m[good], p[good]], axis=1)) * bins_per_decade).astype(np.int64)
    if not len(cells):
        return []
    places, rows = np.unique(cells, axis=0, return_counts=True)
    return [
        (float(10 ** ((x + 0.5) / bins_per_decade)), float(10 ** ((y + 0.5) / bins_per_decade)), int(count))
        for (x, y), count in zip(places, rows, strict=True)
        if count >= LEAST_ROWS_OF_A_BIN
    ]


def repeat_floor(same: npt.NDArray[np.intp], measured: Any) -> tuple[float, int]:
    """Mean absolute error that the best prediction would have, from rows that were measured more than once.

    Parameters
    ----------
    same : ndarray of int, shape (n,)
        Equal where rows are the same operation.
    measured : array_like, shape (n,)

    Returns
    -------
    floor : float
        Mean of ``|measured / mean of its repeats - 1|``, put right for the mean being of few; NaN without repeats.
    rows : int
        Rows that have repeats.
    """
    values = np.asarray(measured, dtype=np.float64)
    good = np.isfinite(values)
    _, place = np.unique(same[good], return_inverse=True)
    values = values[good]
    count = np.bincount(place).astype(np.float64) if values.size else np.zeros(0)
    repeated = count[place] > 1
    if not repeated.any():
        return float("nan"), 0
    mean = np.bincount(place, weights=values) / count
    size = np.abs(values / mean[place] - 1.0)[repeated]
    few = count[place][repeated]
    return float(np.mean(size * np.sqrt(few / (few - 1.0)))), int(repeated.sum())
