"""The design space of a sweep: a product of axes, whose points are numbered and never listed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from joulecast.errors import InputError

#: More points than this are refused: at some 10,000 a second they take a quarter of an hour.
MOST_POINTS = 10_000_000


@dataclass(frozen=True)
class Share:
    """A value between the lowest (0) and the highest (1) that each GPU can be set to."""

    of_range: float

    def __str__(self) -> str:
        return f"{100 * self.of_range:.0f} % of range"


@dataclass(frozen=True)
class Axis:
    """One thing that points differ in.

    Attributes
    ----------
    name : str
        Such as ``clock_mhz``, ``batch``, or ``set.sm_count`` for a field of the GPU.
    values : tuple
        None stands for the default.
    """

    name: str
    values: tuple[Any, ...]


@dataclass(frozen=True)
class Space:
    """Product of `axes`; the last one turns fastest.

    Attributes
    ----------
    axes : tuple of Axis
    """

    axes: tuple[Axis, ...]

    def __len__(self) -> int:
        return math.prod(len(axis.values) for axis in self.axes)

    @property
    def shape(self) -> tuple[int, ...]:
        """Values on each axis."""
        return tuple(len(axis.values) for axis in self.axes)

    @property
    def varied(self) -> tuple[Axis, ...]:
        """The axes of more than one value."""
        return tuple(axis for axis in self.axes if len(axis.values) > 1)

    def axis(self, name: str) -> Axis:
        """The axis called `name`."""
        return next(axis for axis in self.axes if axis.name == name)

    def codes(self, points: npt.NDArray[np.int64]) -> dict[str, npt.NDArray[np.intp]]:
        """For each axis the place of each point's value in `Axis.values`."""
        places = np.unravel_index(points, self.shape)
        return {axis.name: place for axis, place in zip(self.axes, places, strict=True)}

    def along(self, name: str, point: int) -> npt.NDArray[np.int64]:
        """The points that differ from `point` in the axis `name` alone, itself among them."""
        at = next(i for i, axis in enumerate(self.axes) if axis.name == name)
        step = math.prod(self.shape[at + 1 :])
        place = point // step % self.shape[at]
        return point + (np.arange(self.shape[at], dtype=np.int64) - place) * step

    def part(self, names: Sequence[str], codes: Mapping[str, Any]) -> npt.NDArray[np.int64]:
        """One number for the values of each point on the axes `names`."""
        number = np.zeros(len(next(iter(codes.values()))), dtype=np.int64)
        for name in names:
            number = number * len(self.axis(name).values) + codes[name]
        return number

    def checked(self) -> Space:
        """The space itself.

        Raises
        ------
        InputError
            If it has more than `MOST_POINTS` points.
        """
        if len(self) > MOST_POINTS:
            sizes = " x ".join(f"{len(axis.values):,} {axis.name}" for axis in self.varied)
            raise InputError(f"{sizes} are {len(self):,} points, more than {MOST_POINTS:,}: take fewer or larger steps")
        return self


def axis(name: str, values: Any) -> Axis:
    """An axis from one value or several, each once.

    Raises
    ------
    InputError
        If there is none.
    """
    single = values is None or isinstance(values, str | bytes | Share) or not hasattr(values, "__iter__")
    listed = [values] if single else list(values)
    if not listed:
        raise InputError(f"{name} has no values: give one or several")
    plain = [value.item() if isinstance(value, np.generic) else value for value in listed]
    try:
        return Axis(name, tuple(dict.fromkeys(plain)))
    except TypeError:
        raise InputError(f"{name} takes plain values, not {type(plain[0]).__name__}") from None
