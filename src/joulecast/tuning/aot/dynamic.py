"""Instructions that a launch runs: loop bodies of the machine code times the trips that the problem asks for."""

from __future__ import annotations

import math
from dataclasses import dataclass

from joulecast.tuning.aot.asked import Asked
from joulecast.tuning.aot.sass import Code, Counts, Loop


@dataclass(frozen=True)
class Dynamic:
    """What one warp of an average block runs.

    Attributes
    ----------
    counts : Counts
        Of the whole run of the kernel.
    trips : tuple of float
        Iterations of each loop of the machine code.
    in_loops : Counts
        The part of `counts` that is inside loops.
    """

    counts: Counts
    trips: tuple[float, ...]
    in_loops: Counts


def dynamic_of(code: Code, asked: Asked, warps: int) -> Dynamic:
    """Counts of a run.

    Parameters
    ----------
    code : Code
    asked : Asked
        Trips of each loop of the source, and what an iteration of it does.
    warps : int
        Of a block.

    Notes
    -----
    A loop of the machine code may do several iterations of one of the source at once (unrolled, with another loop for
    the rest), and loops of the source may be gone (unrolled in full). Loops are matched in their order by what they
    do; the factor is the work of one iteration of each over the other's.
    """
    matched = _matched(code.loops, asked, warps)
    trips = [1.0] * len(code.loops)
    for place in range(len(asked.trips)):
        mine = [at for at, one in enumerate(matched) if one == place]
        left = asked.trips[place]
        for at in sorted(mine, key=lambda at: -_factor(code.loops[at], asked, place, warps)):
            factor = _factor(code.loops[at], asked, place, warps)
            whole = left // factor if factor > 1 and len(mine) > 1 else left / factor
            trips[at] = whole
            left -= whole * factor
    inside = Counts()
    for loop, count in zip(code.loops, trips, strict=True):
        inside.add(loop.own, count)
    total = Counts()
    total.add(code.straight)
    total.add(inside)
    return Dynamic(total, tuple(trips), inside)


def _bytes(own: Counts) -> float:
    return own.global_load_bytes + own.async_copy_bytes + own.global_store_bytes


def _matched(loops: list[Loop], asked: Asked, warps: int) -> list[int]:
    """Loop of the source for each of the machine code; -1 where none fits."""
    if len(loops) == len(asked.trips):
        return list(range(len(loops)))
    found: list[int] = []
    begin = 0
    for loop in loops:
        fits = [
            place
            for place in range(begin, len(asked.trips))
            if (loop.own.matrix_flop > 0) == (asked.loop_flop[place] > 0)
            and (_bytes(loop.own) > 0) == (asked.loop_bytes[place] > 0)
        ]
        if not fits:
            fits = [
                place for place in range(begin, len(asked.trips)) if asked.loop_bytes[place] or asked.loop_flop[place]
            ]
            fits = fits if loop.own.matrix or _bytes(loop.own) else []
        found.append(fits[0] if fits else -1)
        begin = max(begin, found[-1])
        if fits and len(fits) > 1 and _factor(loop, asked, fits[0], warps) <= 1 and _rest_is_needed(loops, loop, fits):
            begin = fits[1]
    return found


def _rest_is_needed(loops: list[Loop], loop: Loop, fits: list[int]) -> bool:
    """Whether the loops that follow are no more than the loops of the source that are left."""
    return len(loops) - loops.index(loop) - 1 >= len(fits) - 1


def _factor(loop: Loop, asked: Asked, place: int, warps: int) -> int:
    """Iterations of the source's loop that one of the machine code's does."""
    if asked.loop_flop[place] > 0 and loop.own.matrix_flop > 0:
        return max(round(loop.own.matrix_flop * warps / asked.loop_flop[place]), 1)
    moved = _bytes(loop.own) * 32.0 * warps
    if asked.loop_bytes[place] > 0 and moved > 0:
        # Threads may load the same bytes, so that the ratio is no whole number; compilers unroll by powers of two.
        return 1 << max(int(math.log2(moved / asked.loop_bytes[place] + 0.01)), 0)
    return 1
