"""What an evaluator gives for a run of points: columns of numbers, and the reasons why some have no answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from joulecast.scenarios.sweep.space import Space

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Chunk:
    """Figures of the points from `start` on.

    Attributes
    ----------
    start : int
        Number of the first point.
    columns : mapping of str to ndarray, shape (n,)
        Numbers; NaN where a point has none. ``reason`` is an index into `reasons`.
    reasons : tuple of str
        Why points are infeasible; the first is empty and stands for those that are not.
    """

    start: int
    columns: Mapping[str, Array]
    reasons: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.columns["reason"])

    @property
    def points(self) -> npt.NDArray[np.int64]:
        """Numbers of its points."""
        return np.arange(self.start, self.start + len(self), dtype=np.int64)

    @property
    def feasible(self) -> npt.NDArray[np.bool_]:
        """Which points have an answer."""
        return np.asarray(self.columns["reason"] == 0)


class Evaluator(Protocol):
    """Answers the points of a space; the same points always with the same bits, whoever asks and wherever it runs."""

    @property
    def space(self) -> Space:
        """The points."""

    @property
    def words(self) -> Mapping[str, Sequence[str]]:
        """Columns that hold codes, with what these mean."""

    @property
    def unit(self) -> int:
        """How many points that follow one another are best evaluated together."""

    def evaluate(self, start: int, stop: int) -> Chunk:
        """Figures of the points from `start` to before `stop`."""


class Reasons:
    """Collects the reasons of a chunk."""

    def __init__(self, n: int) -> None:
        self.codes = np.zeros(n, dtype=np.int32)
        self.known: dict[str, int] = {"": 0}

    def say(self, rows: Array, text: str) -> None:
        """Give `text` as the reason of those of `rows` that have none yet."""
        if rows.size:
            code = self.known.setdefault(text, len(self.known))
            self.codes[rows[self.codes[rows] == 0]] = code


def joined(chunks: Iterable[Chunk]) -> Chunk:
    """Chunks that follow one another as one."""
    parts = list(chunks)
    known: dict[str, int] = {"": 0}
    reasons = []
    for part in parts:
        codes = np.array([known.setdefault(text, len(known)) for text in part.reasons], dtype=np.int32)
        reasons.append(codes[part.columns["reason"]])
    columns = {name: np.concatenate([part.columns[name] for part in parts]) for name in parts[0].columns}
    columns["reason"] = np.concatenate(reasons)
    return Chunk(parts[0].start, columns, tuple(known))


def picked(chunk: Chunk, rows: Array) -> tuple[dict[str, Array], npt.NDArray[np.int64]]:
    """Columns of some rows, reasons as words, and the numbers of their points."""
    columns = {name: column[rows] for name, column in chunk.columns.items()}
    columns["reason"] = np.array(chunk.reasons, dtype=object)[columns["reason"]]
    return columns, chunk.points[rows]
