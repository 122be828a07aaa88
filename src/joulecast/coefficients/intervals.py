"""How wide 90 % intervals are: fitted factors on the spreads of coefficient files, one file for all GPUs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from joulecast.coefficients import places
from joulecast.coefficients.records import mapping, read_toml, record_of, toml_pairs
from joulecast.coefficients.roots import kept
from joulecast.writing import write_atomic

SCHEMA = 1

#: Times of a kernel between whose half-widths the size factor is interpolated, in their logarithm. [s]
SIZE_KNOTS_S = (3e-6, 1e-5, 1e-4, 1e-3, 1e-2)

#: How unlike donor and receiver are, between which the widths of transferred figures are interpolated.
UNLIKE_KNOTS = (0.0, 0.5, 1.0, 2.0, 4.0)

Curve = tuple[float, ...]

#: Numbers of each curve, of a family and of all.
_OF_FAMILY = {"size": len(SIZE_KNOTS_S)}
_OF_ALL = dict.fromkeys(("transfer", "power_transfer"), len(UNLIKE_KNOTS))


@dataclass(frozen=True)
class FamilyIntervals:
    """Factors of one kernel family.

    Attributes
    ----------
    size : tuple of float
        On the half-width of a time, at `SIZE_KNOTS_S`.
    transfer, transfer_added : float
        Of coefficients of another GPU: factor on what they add to the half-width (`Intervals.transfer`), and what this
        family adds beside that, however alike the GPUs are.
    groups, groups_added : float
        The same of coefficients of other groups or engines of the same GPU.
    hull : float
        How many times its inner width an interval gains far outside the data.
    power : float
        On the half-width of the power.
    energy : float
        On the half-width of the energy beside that of independent time and power.
    capped : float
        Half-width of a power that the limit surely sets.
    rows : int
        Left-out rows behind them.
    """

    size: Curve = (1.0,) * len(SIZE_KNOTS_S)
    transfer: float = 1.0
    transfer_added: float = 0.0
    groups: float = 1.0
    groups_added: float = 0.0
    hull: float = 2.0
    power: float = 1.0
    energy: float = 1.0
    capped: float = 0.03
    rows: int = 0


#: Half-width of what hosts cost, in natural logarithms: those that were measured take 7 to 18 us a launch.
HOSTS_DIFFER = 0.4


@dataclass(frozen=True)
class Intervals:
    """Widths beside those of coefficient files; half-widths are in natural logarithms.

    Attributes
    ----------
    source : str
        What they were fitted on, for a reader.
    transfer : tuple of float
        What coefficients of a relative add to the half-width of a time, at `UNLIKE_KNOTS`.
    power_transfer : tuple of float
        The same for powers.
    capped_power : float
        Half-width of the power of a whole pass that the limit sets.
    capped_time : float
        What a clock that the limit sets adds to the half-width of a time.
    model : float
        What the sum over kernels leaves out of a whole pass (order, caches, allocator).
    host : float
        What a pass that waits for its host adds where the costs of that very host were measured.
    any_host : float
        The same where the costs are those of machines like it.
    families : mapping of str to FamilyIntervals
    """

    source: str = "typical, before any was fitted"
    transfer: Curve = (0.2, 0.3, 0.4, 0.55, 0.7)
    power_transfer: Curve = (0.1, 0.15, 0.2, 0.3, 0.5)
    capped_power: float = 0.03
    capped_time: float = 0.0
    model: float = 0.12
    host: float = 0.3
    any_host: float = 0.4
    families: Mapping[str, FamilyIntervals] = field(default_factory=dict)

    def waiting(self, provenance: str) -> float:
        """What a pass adds that waits for a host whose costs are of some `provenance`. Natural logarithm.

        Least where they were measured on that very host, more where they are those of machines like it, most where they
        are any host's.
        """
        if provenance == "measured":
            return self.host
        return max(self.host, self.any_host if provenance == "fitted" else HOSTS_DIFFER)

    def family(self, name: str) -> FamilyIntervals:
        """Factors of a family; neutral ones where it has none."""
        return self.families.get(name, _NEUTRAL)

    def moved(self, family: str, unlike: float, itself: bool = False) -> float:
        """What coefficients of a relative add in quadrature to the half-width of a time. Natural logarithm.

        Parameters
        ----------
        family : str
        unlike : float
            Of donor and receiver, by GPU, group and engine.
        itself : bool
            Whether they are of the same GPU, for another group or engine.
        """
        one = self.family(family)
        factor, added = one.transfer, one.transfer_added
        if itself:
            factor, added = one.groups, one.groups_added * share_added(unlike)
        return math.hypot(factor * float(np.interp(unlike, UNLIKE_KNOTS, self.transfer)), added)


def share_added(unlike: float) -> float:
    """Share of `FamilyIntervals.groups_added` for a group so unlike: kernels of fp16 and bf16, say, differ little.

    Groups that were measured on one GPU, which taught what is added, are a version, an engine or a width apart.
    """
    return min(unlike / UNLIKE_KNOTS[1], 1.0)


_NEUTRAL = FamilyIntervals()


@kept()
def load_intervals() -> Intervals:
    """Widths of the user's folder, else the shipped ones, else typical ones."""
    path = places.found(places.INTERVALS)
    return Intervals() if path is None else read_intervals(path)


def read_intervals(path: Path) -> Intervals:
    """Widths from a file.

    Raises
    ------
    InputError
        If it is missing, is no TOML, is of another schema, or holds an impossible number.
    """
    data = read_toml(path, "widths of intervals", SCHEMA)
    families = data.pop("family", {})
    checked = {
        name: record_of(FamilyIntervals, one, f"{path}: family: {name}", lengths=_OF_FAMILY)
        for name, one in mapping(families, f"{path}: family").items()
    }
    return record_of(Intervals, data, str(path), lengths=_OF_ALL, made={"families": checked})


def dump_intervals(intervals: Intervals) -> str:
    """The text of the file: numbers to four significant digits, families sorted."""
    values = asdict(intervals)
    families = values.pop("families")
    lines = ["# 90 % intervals: half-widths in natural logarithms, factors without unit.", f"schema = {SCHEMA}"]
    lines += toml_pairs(values, digits=4)
    for name in sorted(families):
        lines += ["", f"[family.{name}]", *toml_pairs(families[name], digits=4)]
    return "\n".join(lines) + "\n"


def write_intervals(intervals: Intervals, path: Path) -> None:
    """Write widths atomically."""
    write_atomic(path, dump_intervals(intervals))
