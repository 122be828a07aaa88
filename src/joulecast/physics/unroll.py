"""A table of operations with counts becomes the order in which they run: repeated layers laid out one by one."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Places = npt.NDArray[np.intp]

STAR = "*"


@dataclass(frozen=True)
class Order:
    """Runs of the operations of one pass, in order.

    Attributes
    ----------
    row : ndarray of int, shape (m,)
        Which operation.
    repeat : ndarray of int, shape (m,)
        Which of the like layers it belongs to (what stands for the ``*`` of its path); -1 where its path has none.
    weight : ndarray, shape (m,)
        How much of a whole run each is: 1, but for counts that are no whole numbers. Over the runs of an operation
        they sum to its count.
    """

    row: Places
    repeat: Places
    weight: Floats


def launch_count(count: Floats) -> int:
    """How many runs `unrolled` gives for operations of such counts."""
    return int(np.ceil(count - 1e-9).sum())


def unrolled(count: Floats, paths: Sequence[str]) -> Order:
    """The order in which the operations of one pass run.

    Parameters
    ----------
    count : ndarray, shape (n,)
        How often each runs in the pass.
    paths : sequence of str, length n
        Layer path of each; a ``*`` stands for the number of like layers.

    Returns
    -------
    Order

    Notes
    -----
    Neighbours whose paths share all up to their ``*`` (or that have none, and like counts) are a block that runs as
    often as its first operation or as most of them. Of a block that holds alternatives (3 layers with one kind of
    network, then 58 with another) each has its share of the rounds: one after the other, but attentions, which models
    alternate, evenly mixed.
    """
    runs_of: list[Places] = []
    repeats, rounds, weights, blocks = [], [], [], []
    for number, (start, stop, prefix) in enumerate(_blocks(count, paths)):
        rounds_in_all = _rounds(count[start:stop])
        first = _after_siblings(prefix, paths[:start])
        for row, its in _its_rounds(count[start:stop], paths[start:stop], rounds_in_all):
            runs_of.append(np.full(its.size, start + row))
            rounds.append(its)
            repeats.append(its + first if prefix else np.full(its.size, -1))
            weights.append(np.full(its.size, float(count[start + row]) / its.size))
            blocks.append(np.full(its.size, number))
    if not runs_of:
        return Order(np.zeros(0, np.intp), np.zeros(0, np.intp), np.zeros(0))
    which = np.concatenate(runs_of)
    order = np.lexsort((which, np.concatenate(rounds), np.concatenate(blocks)))
    return Order(
        which[order].astype(np.intp), np.concatenate(repeats)[order].astype(np.intp), np.concatenate(weights)[order]
    )


def _blocks(count: Floats, paths: Sequence[str]) -> Iterator[tuple[int, int, str]]:
    """Start, end and common prefix ('' without a star) of each block."""
    keys = [
        (path[: path.index(STAR)], 0.0) if STAR in path else ("", float(often))
        for path, often in zip(paths, count.tolist(), strict=True)
    ]
    start = 0
    for place in range(1, len(keys) + 1):
        if place == len(keys) or keys[place] != keys[start]:
            yield start, place, keys[start][0]
            start = place


def _whole(often: float) -> int:
    return math.ceil(often - 1e-9)


def _rounds(count: Floats) -> int:
    """How often a block runs: as its first operation or as most of them, whichever is more."""
    counts = [_whole(one) for one in count.tolist()]
    most = max(dict.fromkeys(counts), key=counts.count)  # of several the first
    return max(counts[0], most, 1)


def _its_rounds(count: Floats, paths: Sequence[str], often: int) -> Iterator[tuple[int, Places]]:
    """The rounds, 0 to `often` - 1, in which each operation of a block runs; one that never does is left out."""
    taken = 0
    row = 0
    while row < count.size:
        runs = _whole(float(count[row]))
        if runs >= often:
            taken = 0
            yield row, np.arange(runs) * often // runs
            row += 1
            continue
        mixed = "attention" in paths[row]
        stop = row
        while stop < count.size and count[stop] == count[row] and ("attention" in paths[stop]) == mixed:
            stop += 1
        if runs > 0:
            kinds = often // runs if mixed and often % runs == 0 and (stop - row) % (often // runs) == 0 else 1
            for place in range(row, stop):
                if kinds > 1:
                    yield place, np.arange(runs) * kinds + (place - row) // ((stop - row) // kinds)
                elif mixed:
                    yield place, _spread(taken, runs, often)
                else:
                    yield place, (taken + np.arange(runs)) % often
            taken = (taken + kinds * runs) % often
        row = stop


def _spread(taken: int, runs: int, often: int) -> Places:
    """Rounds for `runs` of `often`, evenly spread; what follows `taken` others takes what they left."""
    if not taken:
        return np.asarray((np.arange(runs) * often) // runs, dtype=np.intp)
    left = np.setdiff1d(np.arange(often), (np.arange(taken) * often) // taken)
    if left.size < runs:
        return np.asarray((taken + np.arange(runs)) % often, dtype=np.intp)
    return np.asarray(left[(np.arange(runs) * left.size) // runs], dtype=np.intp)


def _after_siblings(prefix: str, before: Sequence[str]) -> int:
    """The number after those that earlier paths spell out in place of the star: ``stages.0.0`` and so on."""
    if not prefix:
        return 0
    spelled = re.compile(re.escape(prefix) + r"(\d+)")
    found = [int(match[1]) for match in map(spelled.match, dict.fromkeys(before)) if match]
    return max(found) + 1 if found else 0
