"""What stands out among points that come chunk by chunk: counts, the best of each objective, the front, a sample."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from joulecast.scenarios.sweep.chunk import Chunk
from joulecast.scenarios.sweep.objectives import Objective, front

Array = npt.NDArray[Any]

#: Points that a drawing shows beside the front.
_SAMPLE = 3000


@dataclass(frozen=True)
class Findings:
    """What stands out.

    Attributes
    ----------
    points, feasible : int
        How many there are, and how many have an answer within the limits.
    reasons : mapping of str to int
        Why the others have none, and how many.
    best : mapping of str to int
        By name of the objective, the point that is best; empty where none is feasible.
    front : ndarray of int
        Points of the front, rising in its first objective.
    sample : ndarray of int
        Feasible points at even steps, for drawing.
    columns : mapping of str to ndarray
        Figures of `kept`.
    kept : ndarray of int
        Points whose figures are in `columns`: those of `best`, `front` and `sample`, rising.
    throttled : int
        Feasible points whose clock the power limit lowers.
    """

    points: int
    feasible: int
    reasons: Mapping[str, int]
    best: Mapping[str, int]
    front: npt.NDArray[np.int64]
    sample: npt.NDArray[np.int64]
    columns: Mapping[str, Array]
    kept: npt.NDArray[np.int64]
    throttled: int

    def rows(self, points: Array) -> dict[str, Array]:
        """Figures of some of the points that are kept."""
        places = np.searchsorted(self.kept, points)
        return {name: column[places] for name, column in self.columns.items()}


class Collector:
    """Takes chunks in order and keeps what `Findings` tells; its memory does not grow with the points."""

    def __init__(self, objectives: Sequence[Objective], pair: tuple[Objective, Objective]) -> None:
        self.objectives, self.pair = tuple(objectives), pair
        self.points = self.feasible = self.throttled = 0
        self.reasons: Counter[str] = Counter()
        self._best: dict[str, tuple[float, int]] = {}
        self._front = self._sample = np.zeros(0, dtype=np.int64)
        self._step = 1
        self._kept = np.zeros(0, dtype=np.int64)
        self._columns: dict[str, Array] = {}

    def add(self, chunk: Chunk) -> None:
        """Take the next chunk."""
        self.points += len(chunk)
        counts = np.bincount(chunk.columns["reason"], minlength=len(chunk.reasons))
        self.reasons.update({text: int(n) for text, n in zip(chunk.reasons[1:], counts[1:], strict=True) if n})
        here = np.flatnonzero(chunk.feasible)
        if not here.size:
            return
        points = chunk.points[here]
        self.throttled += int(np.count_nonzero(chunk.columns["throttled"][here]))
        for one in self.objectives:
            figures = one.sign * chunk.columns[one.column][here]
            if np.isnan(figures).all():  # tokens of a workload that counts none
                continue
            least = int(np.nanargmin(figures))
            if one.name not in self._best or figures[least] < self._best[one.name][0]:
                self._best[one.name] = float(figures[least]), int(points[least])
        self._take_sample(points)
        columns = {name: column[here] for name, column in chunk.columns.items() if name != "reason"}
        if self._columns:
            columns = {name: np.concatenate([self._columns[name], column]) for name, column in columns.items()}
        known = np.concatenate([self._kept, points])
        self.feasible += here.size
        candidates = np.searchsorted(known, np.union1d(self._front, points))
        x, y = (one.sign * columns[one.column][candidates] for one in self.pair)
        self._front = known[candidates[front(x, y)]]
        kept = np.unique(np.concatenate([self._front, self._sample, [point for _, point in self._best.values()]]))
        places = np.searchsorted(known, kept)
        self._kept, self._columns = known[places], {name: column[places] for name, column in columns.items()}

    def _take_sample(self, points: npt.NDArray[np.int64]) -> None:
        numbers = self.feasible + np.arange(points.size)
        self._sample = np.concatenate([self._sample, points[numbers % self._step == 0]])
        while self._sample.size > _SAMPLE:
            self._sample, self._step = self._sample[::2], 2 * self._step

    def findings(self) -> Findings:
        """What stood out so far."""
        return Findings(
            points=self.points, feasible=self.feasible, reasons=dict(self.reasons.most_common()),
            best={name: point for name, (_, point) in self._best.items()}, front=self._front, sample=self._sample,
            columns=self._columns, kept=self._kept, throttled=self.throttled,
        )  # fmt: skip
