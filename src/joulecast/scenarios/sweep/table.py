"""Points as a table: what each asked, what came of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from joulecast.errors import MissingExtraError
from joulecast.gpus import Gpu
from joulecast.scenarios.sweep.chunk import Array, Chunk, Evaluator

if TYPE_CHECKING:
    import polars

#: Axes that figures tell of, as what they came to on each GPU.
_RESOLVED = ("clock_mhz", "power_limit_w")

#: Columns that are true or false, and those that count.
_COUNTS = ("gpu_count",)


@dataclass(frozen=True)
class Points(Mapping[str, Array]):
    """Points of a sweep, columns by name.

    Attributes
    ----------
    numbers : ndarray of int
        Numbers of the points in the space.
    columns : mapping of str to ndarray
        First what was asked (``gpu``, ``batch``, ``set.sm_count``, ...), then ``feasible``, ``reason`` and the
        figures.
    """

    numbers: npt.NDArray[np.int64]
    columns: Mapping[str, Array]

    def __getitem__(self, name: str) -> Array:
        return self.columns[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)

    def __len__(self) -> int:
        """Number of columns, as of any mapping; `numbers` has one for each point."""
        return len(self.columns)

    def take(self, rows: Any) -> Points:
        """The points at `rows`, indices or a mask."""
        return Points(self.numbers[rows], {name: column[rows] for name, column in self.columns.items()})

    def row(self, place: int) -> dict[str, Any]:
        """One point as plain values."""
        return {name: _plain(column[place]) for name, column in self.columns.items()}

    def rows(self) -> list[dict[str, Any]]:
        """All points as plain values."""
        return [self.row(place) for place in range(len(self.numbers))]

    def to_polars(self) -> polars.DataFrame:
        """A data frame, a row for each point."""
        try:
            import polars as pl
        except ImportError:
            raise MissingExtraError("data frames", "pandas") from None
        return pl.DataFrame({name: pl.Series(name, _listed(column), strict=False) for name, column in self.items()})


def points_of(evaluator: Evaluator, chunk: Chunk) -> Points:
    """The points of a chunk as a table."""
    return table(evaluator, chunk.points, {**chunk.columns, "reason": _words(chunk.reasons, chunk.columns["reason"])})


def table(evaluator: Evaluator, points: npt.NDArray[np.int64], figures: Mapping[str, Array]) -> Points:
    """Points with their figures as a table; reasons as words."""
    codes = evaluator.space.codes(points)
    columns: dict[str, Array] = {}
    for axis in evaluator.space.axes:
        if axis.name in _RESOLVED or axis.values == (None,):
            continue
        values = [value.name if isinstance(value, Gpu) else value for value in axis.values]
        plain = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
        found = np.array(values) if plain else _objects(values)
        columns[axis.name] = found[codes[axis.name]]
    reason = figures.get("reason", _objects([""])[np.zeros(points.size, dtype=np.intp)])
    columns |= {"feasible": reason == "", "reason": reason}
    words = {name: _objects(list(known)) for name, known in evaluator.words.items()}
    absent = np.isnan(figures["time_s"])
    for name, column in figures.items():
        if name in words:
            columns[name] = np.where(absent, "", words[name][column])
        elif name != "reason":
            columns[name] = column.astype(np.int64) if name in _COUNTS else column
    return Points(points, columns)


def _objects(values: list[Any]) -> Array:
    found = np.empty(len(values), dtype=object)
    found[:] = values
    return found


def _words(known: tuple[str, ...], codes: Array) -> Array:
    return np.asarray(_objects(list(known))[codes])


def _plain(value: Any) -> Any:
    value = value.item() if isinstance(value, np.generic) else value
    return None if isinstance(value, float) and np.isnan(value) else value


def _listed(column: Array) -> Any:
    return column.tolist() if column.dtype == object else column
