"""What points are wanted for: objectives, limits that they must keep, and the front between two objectives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from joulecast.bounds.ranges import number
from joulecast.errors import InputError, UnknownNameError
from joulecast.scenarios.sweep.chunk import Chunk, Reasons

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Objective:
    """A column that is to be small, or large where `sign` is -1."""

    name: str
    column: str
    title: str
    unit: str
    sign: float = 1.0


OBJECTIVES = {
    one.name: one
    for one in (
        Objective("time", "time_s", "time", "s"),
        Objective("energy", "energy_j", "energy", "J"),
        Objective("power", "power_w", "mean power", "W"),
        Objective("edp", "edp_js", "energy-delay product", "J s"),
        Objective("ed2p", "ed2p_js2", "energy-delay-squared product", "J s²"),
        Objective("energy_per_token", "energy_per_token_j", "energy a token", "J"),
        Objective("throughput", "tokens_per_s", "tokens a second", "1/s", -1.0),
        Objective("cost", "cost", "cost", ""),
        Objective("carbon", "carbon_g_co2e", "carbon", "g CO2e"),
    )
}


def objective(name: str, columns: Sequence[str] | None = None) -> Objective:
    """The objective called `name`.

    Raises
    ------
    InputError
        If there is none, or `columns` lack what it needs.
    """
    found = OBJECTIVES.get(str(name).strip().lower().replace("-", "_"))
    if found is None:
        raise UnknownNameError("objective", name, OBJECTIVES)
    if columns is not None and found.column not in columns:
        needed = {"cost": "a price of a kWh", "carbon": "a carbon intensity or a region"}.get(found.name, found.column)
        raise InputError(f"the objective {found.name} needs {needed}")
    return found


def objectives_of(columns: Sequence[str]) -> tuple[Objective, ...]:
    """All objectives that `columns` have figures of."""
    return tuple(one for one in OBJECTIVES.values() if one.column in columns)


@dataclass(frozen=True)
class Limits:
    """What a point must keep to; None leaves it open.

    Attributes
    ----------
    max_time_s, max_power_w, max_energy_j : float, optional
        Time of the workload; power and energy of all its GPUs. [s, W, J]
    min_tokens_per_s : float, optional
        Throughput. [1/s]
    max_cost : float, optional
        In the currency of the price.
    max_carbon_g : float, optional
        [g CO2e]
    """

    max_time_s: float | None = None
    max_power_w: float | None = None
    max_energy_j: float | None = None
    min_tokens_per_s: float | None = None
    max_cost: float | None = None
    max_carbon_g: float | None = None

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            if value is not None:
                found = number(value, one.name)
                if found <= 0:
                    raise InputError(f"{one.name} must be above zero, got {found:g}")
                object.__setattr__(self, one.name, found)


_LIMITED = {
    "max_time_s": ("time_s", "s", "time above"),
    "max_power_w": ("power_w", "W", "power above"),
    "max_energy_j": ("energy_j", "J", "energy above"),
    "min_tokens_per_s": ("tokens_per_s", "tokens/s", "throughput below"),
    "max_cost": ("cost", "", "cost above"),
    "max_carbon_g": ("carbon_g_co2e", "g CO2e", "carbon above"),
}


def check_limits(limits: Limits, columns: Sequence[str]) -> None:
    """Refuse limits on what there are no figures of.

    Raises
    ------
    InputError
        For a limit on money or carbon where nothing says what a kWh costs or emits.
    """
    for name, (column, _, _) in _LIMITED.items():
        if getattr(limits, name) is not None and column not in columns:
            what, needed = (
                ("cost", "a price of a kWh") if column == "cost" else ("carbon", "a carbon intensity or region")
            )
            raise InputError(f"a limit on {what} needs {needed}")


def kept_to(chunk: Chunk, limits: Limits) -> Chunk:
    """`chunk` with the points that break a limit infeasible; their figures stay."""
    given = {name: value for name, value in limits.__dict__.items() if value is not None}
    if not given:
        return chunk
    reasons = Reasons(len(chunk))
    reasons.known = {text: code for code, text in enumerate(chunk.reasons)}
    reasons.codes = chunk.columns["reason"].copy()
    for name, value in given.items():
        column, unit, what = _LIMITED[name]
        figure = chunk.columns[column]
        broken = ~(figure >= value if name.startswith("min") else figure <= value)  # what is not known keeps to none
        reasons.say(np.flatnonzero(broken), f"{what} {value:g} {unit}".strip())
    return replace(chunk, columns={**chunk.columns, "reason": reasons.codes}, reasons=tuple(reasons.known))


def front(first: Any, second: Any) -> npt.NDArray[np.intp]:
    """Points that no other is better than in one figure without being worse in the other.

    Parameters
    ----------
    first, second : array_like, shape (n,)
        Figures that are to be small; points with NaN are left out.

    Returns
    -------
    ndarray of int
        Indices, rising in `first` and falling in `second`. Of points alike in both the first alone.

    Notes
    -----
    Sorted by `first`, a point is on the front if its `second` is below all before it: O(n log n).
    """
    x, y = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    known = np.flatnonzero(~(np.isnan(x) | np.isnan(y)))
    order = known[np.lexsort((known, y[known], x[known]))]
    if not order.size:
        return order
    lowest = np.minimum.accumulate(y[order])
    better = np.concatenate([[True], y[order][1:] < lowest[:-1]])
    return np.asarray(order[better])
