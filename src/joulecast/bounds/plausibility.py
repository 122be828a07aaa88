"""Whether a measured time, power or energy can be: pure functions over arrays, from what no GPU of a kind exceeds."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
Rows = npt.NDArray[np.intp]

#: Rates of data sheets are rounded, and clocks boost a step beyond what is listed. [share of a rate]
RATE_TOLERANCE = 0.03

#: What readings averaged over a loop may exceed the limit by: the limiter holds a mean over its own window. [share]
SAMPLED_LIMIT_TOLERANCE = 0.05

#: The same for one energy over one time, which is to be the steady mean that the limiter holds. [share]
STEADY_LIMIT_TOLERANCE = 0.03

#: Share of the idle power that a working GPU never draws less than: where it was measured, and where estimated.
IDLE_SHARE, ESTIMATED_IDLE_SHARE = 0.8, 0.5

#: How far an energy may be from power x time: meters that integrate and meters that sample differ. [share]
ENERGY_TOLERANCE = 0.3

#: No kernel starts and ends faster. [s]
SHORTEST_KERNEL_S = 0.5e-6

#: What whole boards draw at work, from an embedded module to two dies with their memories. [W]
BOARD_W = (2.0, 3000.0)

#: Core clocks, from the lowest that drivers set. [MHz]
CORE_CLOCK_MHZ = (90.0, 5000.0)

#: Operands that share memory (keys and values in the same pages, copies of weights) are touched this often at most
#: for each time that they come from DRAM.
MOST_SHARING = 2.0

#: Within such a factor of a thousand (or a million) a misfit is taken for a slip of the unit.
_SLIP_FACTOR = 2.5


def not_positive(value: Any) -> Mask:
    """Where `value` is zero, negative, NaN or infinite: no time, power or energy is."""
    value = np.asarray(value, dtype=np.float64)
    return np.asarray(~(np.isfinite(value) & (value > 0)))


def arithmetic_floor_s(flop: Any, flop_per_s: Any) -> Floats:
    """Least time of `flop` at the peak rate; 0 where there is none. [s]

    Parameters
    ----------
    flop : array_like
        Arithmetic that can't be avoided (masks and fast algorithms taken off), dense. [FLOP]
    flop_per_s : array_like
        Dense peak of the whole GPU at its highest clock. [FLOP/s]

    Returns
    -------
    ndarray
    """
    return _over(flop, flop_per_s)


def cache_floor_s(touched_bytes: Any, l2_bytes_per_s: Any) -> Floats:
    """Least time to bring distinct bytes to the SMs once, all from L2. [s]

    L1 and shared memory keep nothing from one kernel to the next, so that no benchmark beats this.

    Parameters
    ----------
    touched_bytes : array_like
        Distinct bytes read or written. [B]
    l2_bytes_per_s : array_like
        L2's rate at the highest clock. [B/s]

    Returns
    -------
    ndarray
    """
    return _over(touched_bytes, l2_bytes_per_s)


def memory_floor_s(touched_bytes: Any, l2_bytes: Any, dram_bytes_per_s: Any, sharing: float = 1.0) -> Floats:
    """Least time that a loop over the same tensors takes for its DRAM traffic. [s]

    Parameters
    ----------
    touched_bytes : array_like
        Distinct bytes that one run reads or writes. [B]
    l2_bytes : array_like
        Size of L2. [B]
    dram_bytes_per_s : array_like
        Nominal rate. [B/s]
    sharing : float
        How often the same memory may stand for different operands.

    Returns
    -------
    ndarray

    Notes
    -----
    With the best replacement there can be, L2 keeps its full size from one run to the next; what is beyond passes
    through DRAM once a run: ``max(touched / sharing - L2, 0) / rate``. Rates above DRAM's are thereby possible for
    footprints that fit, and for those that nearly do.
    """
    beyond = np.maximum(np.asarray(touched_bytes, dtype=np.float64) / sharing - np.asarray(l2_bytes), 0.0)
    return _over(beyond, dram_bytes_per_s)


def faster_than(time_s: Any, floor_s: Any, tolerance: float = RATE_TOLERANCE) -> Mask:
    """Where a time is below its floor by more than the tolerance on the rate. NaN is not."""
    return np.asarray(time_s, dtype=np.float64) * (1.0 + tolerance) < np.asarray(floor_s, dtype=np.float64)


def mean_power_w(energy_j: Any, time_s: Any) -> Floats:
    """Power that an energy over a time implies; NaN where either is missing or not positive. [W]"""
    energy, time = np.asarray(energy_j, dtype=np.float64), np.asarray(time_s, dtype=np.float64)
    bad = not_positive(energy) | not_positive(time)
    return np.asarray(np.where(bad, np.nan, energy) / np.where(bad, 1.0, time))


def above_limit(power_w: Any, limit_w: Any, tolerance: float = SAMPLED_LIMIT_TOLERANCE) -> Mask:
    """Where a mean power exceeds the board's limit by more than the limiter lets through. NaN does not.

    Parameters
    ----------
    power_w, limit_w : array_like
        [W]
    tolerance : float
        `SAMPLED_LIMIT_TOLERANCE` for readings averaged over a loop, `STEADY_LIMIT_TOLERANCE` for an energy over a time.

    Returns
    -------
    ndarray of bool
    """
    return np.asarray(power_w, dtype=np.float64) > np.asarray(limit_w, dtype=np.float64) * (1.0 + tolerance)


def below_idle(power_w: Any, idle_w: Any, share: float = IDLE_SHARE) -> Mask:
    """Where a working GPU draws less than `share` of what it draws idle. NaN does not."""
    return np.asarray(power_w, dtype=np.float64) < np.asarray(idle_w, dtype=np.float64) * share


def energy_off(energy_j: Any, power_w: Any, time_s: Any, tolerance: float = ENERGY_TOLERANCE) -> Mask:
    """Where an energy is not power x time, by more than `tolerance` either way. NaN is not.

    Parameters
    ----------
    energy_j, power_w, time_s : array_like
        Of the same run. [J, W, s]
    tolerance : float
        Share by which meters may differ.

    Returns
    -------
    ndarray of bool
    """
    ratio = mean_power_w(energy_j, time_s) / np.asarray(power_w, dtype=np.float64)
    return (ratio > 1.0 + tolerance) | (ratio < 1.0 / (1.0 + tolerance))


def slip_of_unit(ratio: Any) -> npt.NDArray[np.int_]:
    """Power of ten, a multiple of three, that a ratio is near; 0 where it is none.

    Parameters
    ----------
    ratio : array_like
        What was found over what was to be expected. Dimensionless.

    Returns
    -------
    ndarray of int
        3 for a thousand times too much, -3 for a thousandth, 6, -6, ...
    """
    ratio = np.asarray(ratio, dtype=np.float64)
    logs = np.log10(np.where(ratio > 0, ratio, 1.0))
    thousands = np.round(logs / 3.0)
    near = np.abs(logs - 3.0 * thousands) < np.log10(_SLIP_FACTOR)
    return np.where(near & np.isfinite(logs), 3.0 * np.nan_to_num(thousands), 0.0).astype(np.int_)


def against_growth(
    line: Any, work: Any, time_s: Any, *, growth: float = 3.0, fall: float = 4.0, jitter_s: float = 20e-6
) -> tuple[Rows, Rows]:
    """Pairs of rows that contradict that more work takes longer.

    Parameters
    ----------
    line : array_like of int, shape (n,)
        Rows with the same number differ in `work` alone.
    work : array_like, shape (n,)
        Size along the line, at least 0.
    time_s : array_like, shape (n,)
        Positive. [s]
    growth, fall : float
        A pair contradicts where `growth` times the work takes less than one `fall`-th of the time.
    jitter_s : float
        Differences up to this are the clock's and the host's. [s]

    Returns
    -------
    slow, fast : ndarray of int
        The row with less work and more time of each pair, and the other.

    Notes
    -----
    Tiles and waves make a quarter of neighbouring sizes a little faster than the size before, and a library that
    changes to a better kernel may save half. Four times less time for three times the work is beyond both.
    """
    line, work = np.asarray(line, dtype=np.intp), np.asarray(work, dtype=np.float64)
    time = np.asarray(time_s, dtype=np.float64)
    none = np.zeros(0, dtype=np.intp)
    if len(time) < 2:
        return none, none
    order = np.lexsort((work, line))
    lines, sizes, logs = line[order], np.log(np.maximum(work[order], 1e-3)), np.log(time[order])
    # one rising key for all lines: a running maximum and a search then respect their borders
    gap = (logs.max() - logs.min()) + 1.0
    highest = np.maximum.accumulate(logs + lines * gap) - lines * gap
    width = sizes.max() - sizes.min() + np.log(growth) + 1.0
    before = np.searchsorted(sizes + lines * width, sizes - np.log(growth) + lines * width + 1e-9, side="right") - 1
    within = (before >= 0) & (lines[np.maximum(before, 0)] == lines)
    suspect = within & (highest[np.maximum(before, 0)] - logs > np.log(fall))
    slow, fast = [none], [none]
    for number in np.unique(lines[suspect]):  # few lines have any
        start, end = np.searchsorted(lines, [number, number + 1])
        s, t, rows = sizes[start:end], time[order[start:end]], order[start:end]
        more = s[None, :] - s[:, None] >= np.log(growth) - 1e-9
        pairs = np.argwhere(more & (t[None, :] * fall < t[:, None]) & (t[:, None] - t[None, :] > jitter_s))
        slow.append(rows[pairs[:, 0]])
        fast.append(rows[pairs[:, 1]])
    return np.concatenate(slow), np.concatenate(fast)


def borne_out(line: Any, work: Any, time_s: Any, rows: Any, *, reach: float = 2.05, noise: float = 1.5) -> Mask:
    """Whether a neighbour on its line bears out the time of each of `rows`.

    A kernel that is chosen badly for a range of sizes is slow for all of them, a spoiled measurement stands alone.

    Parameters
    ----------
    line, work, time_s : array_like, shape (n,)
        As for `against_growth`.
    rows : array_like of int
        Rows to look at.
    reach : float
        Neighbours differ in work by at most this factor.
    noise : float
        A neighbour's time may differ by the ratio of work, and by this factor beyond.

    Returns
    -------
    ndarray of bool
    """
    line, rows = np.asarray(line, dtype=np.intp), np.asarray(rows, dtype=np.intp)
    sizes = np.log(np.maximum(np.asarray(work, dtype=np.float64), 1e-3))
    logs = np.log(np.asarray(time_s, dtype=np.float64))
    order = np.lexsort((sizes, line))
    place = np.empty(len(order), dtype=np.intp)
    place[order] = np.arange(len(order))
    borne = np.zeros(len(rows), dtype=bool)
    for step in (-1, 1):
        beside = place[rows] + step
        there = (beside >= 0) & (beside < len(order))
        other = order[np.where(there, beside, 0)]
        apart = np.abs(sizes[other] - sizes[rows])
        near = there & (line[other] == line[rows]) & (apart <= np.log(reach))
        borne |= near & (np.abs(logs[other] - logs[rows]) <= apart + np.log(noise))
    return borne


def blamed(first: Any, second: Any) -> tuple[Rows, Rows]:
    """Which rows of contradicting pairs to doubt: those that contradict the most others, one after the other.

    Parameters
    ----------
    first, second : array_like of int, shape (p,)
        Pairs of rows.

    Returns
    -------
    rows, others : ndarray of int
        Rows to doubt, each with one that it contradicts. Of a pair that contradicts nothing else both are given.
    """
    pairs = np.stack([np.asarray(first, dtype=np.intp), np.asarray(second, dtype=np.intp)], axis=1)
    names, codes = np.unique(pairs, return_inverse=True)
    codes = codes.reshape(pairs.shape)
    rows: list[int] = []
    others: list[int] = []
    while len(codes):
        votes = np.bincount(codes.reshape(-1), minlength=len(names))
        worst = int(np.argmax(votes))
        if votes[worst] == 1:  # what is left are pairs apart from each other
            rows += [*codes[:, 0].tolist(), *codes[:, 1].tolist()]
            others += [*codes[:, 1].tolist(), *codes[:, 0].tolist()]
            break
        its = (codes == worst).any(axis=1)
        rows.append(worst)
        others.append(int(codes[its][0].sum() - worst))
        codes = codes[~its]
    return names[np.array(rows, dtype=np.intp)], names[np.array(others, dtype=np.intp)]


def disagreeing(group: Any, value: Any, factor: float) -> tuple[Rows, Floats]:
    """Rows that measure the same and yet differ: those further than `factor` from the middle of their group.

    Parameters
    ----------
    group : array_like of int, shape (n,)
        Rows with the same number measured the same thing.
    value : array_like, shape (n,)
        Positive; NaN is left out.
    factor : float
        Within it repeats are noise. Of two rows that differ by more, neither is known to be right: both are given.

    Returns
    -------
    rows : ndarray of int
    middle : ndarray
        Median of each one's group; of two rows their geometric mean.
    """
    group, logs = np.asarray(group, dtype=np.intp), np.log(np.asarray(value, dtype=np.float64))
    use = np.flatnonzero(np.isfinite(logs))
    if len(use) < 2:
        return np.zeros(0, dtype=np.intp), np.zeros(0)
    order = use[np.lexsort((logs[use], group[use]))]
    _, start, count = np.unique(group[order], return_index=True, return_counts=True)
    end = start + count - 1
    wide = logs[order[end]] - logs[order[start]] > np.log(factor)
    rows, middles = [], []
    for first, size in zip(start[wide], count[wide], strict=True):
        members = order[first : first + size]
        middle = float(np.median(logs[members]))
        far = np.abs(logs[members] - middle) > np.log(factor) / (2.0 if size == 2 else 1.0)
        rows.append(members[far])
        middles.append(np.full(int(far.sum()), np.exp(middle)))
    if not rows:
        return np.zeros(0, dtype=np.intp), np.zeros(0)
    return np.concatenate(rows), np.concatenate(middles)


def _over(amount: Any, rate: Any) -> Floats:
    amount, rate = np.asarray(amount, dtype=np.float64), np.asarray(rate, dtype=np.float64)
    known = (amount > 0) & (rate > 0)
    return np.asarray(np.where(known, amount, 0.0) / np.where(known, rate, 1.0))
