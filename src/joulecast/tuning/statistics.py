"""What readings say about a difference in energy: paired logarithms, their interval, and how many it takes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

#: Two-sided 95 % and one-sided 80 % points of the normal distribution.
_Z95, _Z80 = 1.959964, 0.841621

#: Power rises with temperature by so much a degree, and within such a spread (RTX A4000 repeats: 0.2 to 0.45 %).
TEMPERATURE_SLOPE, TEMPERATURE_SPREAD = 0.003, 0.0015

#: Differences scatter by so much at least: whole degrees would else be taken for more than they tell.
_LEAST_SPREAD = 0.003


@dataclass(frozen=True)
class Saving:
    """Saving of energy against the baseline, as a share of the baseline's.

    Attributes
    ----------
    estimate, lower, upper : float
        With the bounds of the 95 % interval. Dimensionless; negative where more is used.
    blocks : int
        ABBA blocks behind it.
    readings : int
        Readings behind it.
    """

    estimate: float
    lower: float
    upper: float
    blocks: int
    readings: int

    @property
    def significant(self) -> bool:
        """Whether the whole interval is above zero."""
        return self.lower > 0.0


def t_point(freedom: int) -> float:
    """Two-sided 95 % point of Student's t.

    Notes
    -----
    Cornish-Fisher expansion in 1/freedom to the fourth order (Abramowitz and Stegun 26.7.5), within 0.002 from five
    degrees on; below, the exact values.
    """
    exact = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776}
    if freedom in exact:
        return exact[freedom]
    z, n = _Z95, float(max(freedom, 1))
    terms = (
        (z**3 + z) / 4.0,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96.0,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384.0,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160.0,
    )
    return z + sum(term / n ** (order + 1) for order, term in enumerate(terms))


def saving_of(
    baseline: Sequence[tuple[float, float]],
    candidate: Sequence[tuple[float, float]],
    warmer: Sequence[float | None] | None = None,
) -> Saving:
    """Saving by blocks of two readings each, taken in the order ABBA.

    Parameters
    ----------
    baseline, candidate : sequence of (float, float)
        Energies of each block. At least three blocks. [J]
    warmer : sequence of float or None, optional
        By how much warmer the candidate's readings of a block were; None where it is not known. [K]

    Returns
    -------
    Saving

    Notes
    -----
    A block's difference of mean logarithms is free of what changes linearly with time. Blocks that remain
    correlated widen the interval by ``sqrt((1 + r) / (1 - r))`` with their lag-1 correlation r where it is positive.
    """
    if len(baseline) != len(candidate) or len(baseline) < 3:
        raise ValueError("a saving needs three blocks or more, as many of the candidate as of the baseline")
    differences = np.log(np.asarray(candidate)).mean(axis=1) - np.log(np.asarray(baseline)).mean(axis=1)
    if warmer is not None:
        differences = without_temperature(differences, warmer)
    count = len(differences)
    mean, spread = float(differences.mean()), float(differences.std(ddof=1))
    centred = differences - mean
    square = float(centred @ centred)
    lag = 0.0 if square == 0 else float(centred[1:] @ centred[:-1]) / square + 1.0 / count
    lag = min(max(lag, 0.0), 0.8)
    half = t_point(count - 1) * spread / math.sqrt(count) * math.sqrt((1.0 + lag) / (1.0 - lag))
    return Saving(-math.expm1(mean), -math.expm1(mean + half), -math.expm1(mean - half), count, 4 * count)


def without_temperature(differences: Floats, warmer: Sequence[float | None]) -> Floats:
    """Differences of log energy as if both had been equally warm.

    Parameters
    ----------
    differences : ndarray, shape (n,)
    warmer : sequence of float or None
        Difference in temperature of each. [K]

    Returns
    -------
    ndarray, shape (n,)

    Notes
    -----
    The slope is the data's where temperatures vary enough to tell, and what is known of GPUs where they don't: the
    posterior mean under a normal prior of `TEMPERATURE_SLOPE` and `TEMPERATURE_SPREAD`.
    """
    if any(value is None for value in warmer):
        return differences
    degrees = np.array(warmer, dtype=np.float64)
    around = degrees - degrees.mean()
    residual = max(float(differences.var()), _LEAST_SPREAD**2)
    told = float(around @ around) / residual
    slope = (TEMPERATURE_SLOPE / TEMPERATURE_SPREAD**2 + float(around @ differences) / residual) / (
        1.0 / TEMPERATURE_SPREAD**2 + told
    )
    return np.asarray(differences - np.clip(slope, 0.0, 2.0 * TEMPERATURE_SLOPE) * degrees)


def blocks_needed(effect: float, spread: float, least: int = 6, most: int = 40) -> int:
    """ABBA blocks to see `effect` with 95 % confidence in 80 % of cases.

    Parameters
    ----------
    effect : float
        Difference of log energy.
    spread : float
        Standard deviation of one reading's logarithm; that of a block's difference is the same.
    least, most : int

    Returns
    -------
    int
    """
    if effect <= 0:
        return most
    needed = ((_Z95 + _Z80) * spread / effect) ** 2
    return int(min(max(math.ceil(needed) + 2, least), most))


@dataclass
class Standing:
    """Configurations that are read pass by pass: each pass reads all that are left, forth and back.

    Attributes
    ----------
    passes : list of dict
        For each pass, mean log energy by configuration.
    spreads : list of float
        Half the squared difference of the two readings of a configuration in a pass: estimates of a reading's variance.
    """

    passes: list[dict[tuple[int, ...], float]]
    spreads: list[float]

    @property
    def spread(self) -> float:
        """Standard deviation of one reading's logarithm, by the two readings of each pass."""
        return math.sqrt(max(float(np.mean(self.spreads)), 1e-12)) if self.spreads else 0.0

    def levels(self) -> tuple[dict[tuple[int, ...], float], dict[tuple[int, ...], float]]:
        """Log energy of each, free of what all of a pass share, and its standard error."""
        codes = list(dict.fromkeys(code for one in self.passes for code in one))
        place = {code: at for at, code in enumerate(codes)}
        sums, counts = np.zeros(len(codes)), np.zeros(len(codes))
        level = np.zeros(len(codes))
        rows = [(np.array([place[c] for c in one]), np.array(list(one.values()))) for one in self.passes]
        for _ in range(12):  # alternating least squares of configuration + pass
            sums[:], counts[:] = 0.0, 0.0
            for at, values in rows:
                shift = float((values - level[at]).mean())
                sums[at] += values - shift
                counts[at] += 1.0
            level = sums / counts
        error = self.spread / np.sqrt(2.0 * counts)
        return dict(zip(codes, level.tolist(), strict=True)), dict(zip(codes, error.tolist(), strict=True))
