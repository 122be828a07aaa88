"""Time and energy of an attribution by kernel, family, operator, layer, step or GPU: plain columns that sum up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from joulecast.errors import UnknownNameError
from joulecast.traces.assign import BASES
from joulecast.traces.places import NOWHERE, layers_of
from joulecast.workloads.profile import Floats, Ints

if TYPE_CHECKING:
    from joulecast.traces.attribution import Attribution, GpuShare

GROUPS = ("kernel", "family", "operator", "layer", "step", "gpu", "launch")

#: Row of the time that nothing ran.
IDLE = "(idle)"


def table(attribution: Attribution, by: str) -> dict[str, list[Any]]:
    """Measured time and energy by group, with a row for the idle time; most energy first, steps in their order.

    Parameters
    ----------
    attribution : Attribution
    by : str
        One of `GROUPS`.

    Returns
    -------
    dict of str to list
        ``name``, ``count``, ``time_s`` (measured, summed), ``wall_s`` (each moment counted once), ``energy_j``,
        ``power_w`` (energy over measured time; of steps, GPUs and idle time over wall time), ``share`` (of all
        energy), ``predicted_s`` (of what the model prices; NaN where nothing of the group is), ``measured_s`` (of
        the same); by launch, which has a row for each, also where it belongs; by kernel also ``family``,
        ``library``, ``dtype``, ``tile`` and ``basis``; by step and GPU ``idle_s``.
        Energies and wall times sum to those of the attribution.

    Raises
    ------
    UnknownNameError
        For another group.
    """
    if by not in GROUPS:
        raise UnknownNameError("group", by, GROUPS)
    if by == "launch":
        return _launches(attribution)
    sums = _Sums()
    facts: dict[str, tuple[str, ...]] = {}
    for share in attribution.shares:
        labels, code = _codes(share, by)
        sums.add(share, labels, code)
        if by == "kernel":
            facts.update(_facts(share))
        if by == "step":
            sums.idle_by_step(share)
        elif by == "gpu":
            sums.idle(share, share.label)
        else:
            sums.idle(share, IDLE)
    out = sums.columns(attribution.energy_j, with_idle=by in ("step", "gpu"), by_energy=by != "step")
    if by == "kernel":
        blank = ("",) * 5
        for place, column in enumerate(("family", "library", "dtype", "tile", "basis")):
            out[column] = [facts.get(name, blank)[place] for name in out["name"]]
    return out


def _codes(share: GpuShare, by: str) -> tuple[Sequence[str], Ints]:
    """Names of groups, and the group of each activity."""
    profile = share.profile
    activities, operators = profile.activities, profile.operators
    if by == "family":
        return share.families, share.family
    if by == "kernel":
        return profile.names, activities.name
    if by == "gpu":
        return (share.label,), np.zeros(len(activities), dtype=np.int64)
    if by == "step":
        moment = np.where(np.isfinite(activities.launched_s), activities.launched_s, activities.start_s)
        return (*share.steps.labels, NOWHERE), share.steps.of(moment)  # -1 is the last: none
    if by == "operator":
        owner = share.assignment.owner
        own = operators.name[np.maximum(owner, 0)] if len(operators) else np.zeros(len(activities), dtype=np.int64)
        return (*profile.names, NOWHERE), np.where(owner >= 0, own, -1)
    layers, layer = layers_of(profile)
    operator = activities.operator
    found = layer[np.maximum(operator, 0)] if len(operators) else np.zeros(len(activities), dtype=np.int64)
    return layers, np.where(operator >= 0, found, 0)


def _facts(share: GpuShare) -> dict[str, tuple[str, ...]]:
    out: dict[str, tuple[str, ...]] = {}
    names = share.profile.activities.name
    first = dict(zip(names[::-1].tolist(), share.assignment.basis[::-1].tolist(), strict=True))
    for code, basis in first.items():
        kernel = share.assignment.kernels.get(code)
        if kernel is None:
            out[share.profile.names[code]] = ("memory", "", "", "", BASES[basis])
        else:
            tile = "x".join(str(size) for size in kernel.tile if size)
            out[share.profile.names[code]] = (kernel.family, kernel.library, kernel.dtype, tile, BASES[basis])
    return out


def _launches(attribution: Attribution) -> dict[str, list[Any]]:
    """One row for each launch, in the order of their start, and one for the idle time of each GPU."""
    out: dict[str, list[Any]] = {name: [] for name in _LAUNCH_COLUMNS}
    for share in attribution.shares:
        activities, account = share.profile.activities, share.account
        energy = account.energy_j
        power = energy / np.maximum(activities.time_s, 1e-12)
        labels = {by: _codes(share, by) for by in ("kernel", "family", "operator", "layer", "step")}
        named = {by: np.array(names, dtype=object)[code].tolist() for by, (names, code) in labels.items()}
        count = len(activities)
        columns = (
            named["kernel"], [1] * count, activities.start_s.tolist(), activities.time_s.tolist(),
            account.alone_s.tolist(), energy.tolist(), np.where(activities.time_s > 0, power, np.nan).tolist(),
            (energy / attribution.energy_j).tolist(), share.energies.predicted_s.tolist(), named["family"],
            named["operator"], named["layer"], named["step"], [share.label] * count, activities.stream.tolist(),
            [BASES[code] for code in share.assignment.basis.tolist()],
        )  # fmt: skip
        idle = (
            IDLE, 0, share.window_s[0], 0.0, account.idle_s, account.idle_j, share.energies.static_w,
            account.idle_j / attribution.energy_j, float("nan"), "", "", "", "", share.label, None, "",
        )  # fmt: skip
        for column, values, last in zip(out.values(), columns, idle, strict=True):
            column += [*values, last]
    return out


_LAUNCH_COLUMNS = (
    "name", "count", "start_s", "time_s", "wall_s", "energy_j", "power_w", "share", "predicted_s", "family", "operator",
    "layer", "step", "gpu", "stream", "basis",
)  # fmt: skip

_FIGURES = ("count", "time_s", "wall_s", "energy_j", "predicted_s", "measured_s", "idle_s")


class _Sums:
    def __init__(self) -> None:
        self.rows: dict[str, Floats] = {}

    def row(self, name: str) -> Floats:
        return self.rows.setdefault(name, np.zeros(len(_FIGURES)))

    def add(self, share: GpuShare, labels: Sequence[str], code: Ints) -> None:
        time_s = share.profile.activities.time_s
        predicted = share.energies.predicted_s
        known = np.isfinite(predicted)
        columns = (
            np.ones(len(code)), time_s, share.account.alone_s, share.account.energy_j, np.where(known, predicted, 0.0),
            np.where(known, time_s, 0.0),
        )  # fmt: skip
        place = np.where(code < 0, len(labels) - 1, code)
        summed = [np.bincount(place, weights=column, minlength=len(labels)) for column in columns]
        for one in np.flatnonzero(summed[0]).tolist():
            self.row(labels[one])[:6] += [column[one] for column in summed]

    def idle(self, share: GpuShare, name: str) -> None:
        self._idle(name, share.account.idle_s, share.account.idle_j)

    def idle_by_step(self, share: GpuShare) -> None:
        account, steps = share.account, share.steps
        length = np.diff(account.edges_s) * ~account.busy
        upto = np.concatenate([[0.0], np.cumsum(length)])
        borders = np.concatenate([[share.window_s[0]], steps.start_s, [share.window_s[1]]])
        if len(steps.labels):
            borders[-1] = max(float(steps.end_s.max()), borders[-2])
        at = np.interp(borders, account.edges_s, upto)
        names = (NOWHERE, *steps.labels)
        for name, seconds in zip(names, np.diff(at).tolist(), strict=True):
            self._idle(name, seconds, seconds * share.energies.static_w)
        rest = float(upto[-1] - at[-1])
        self._idle(NOWHERE, rest, rest * share.energies.static_w)

    def _idle(self, name: str, seconds: float, joules: float) -> None:
        if seconds > 0:
            self.row(name)[[2, 3, 6]] += (seconds, joules, seconds)

    def columns(self, energy_j: float, *, with_idle: bool, by_energy: bool) -> dict[str, list[Any]]:
        names = sorted(self.rows, key=lambda name: -self.rows[name][3]) if by_energy else list(self.rows)
        figures = np.array([self.rows[name] for name in names]).reshape(len(names), len(_FIGURES))
        count, time_s, wall_s, energy, predicted, measured, idle_s = figures.T
        with np.errstate(divide="ignore", invalid="ignore"):
            length = wall_s if with_idle else np.where(time_s > 0, time_s, wall_s)
            power = np.where(length > 0, energy / length, np.nan)
        out: dict[str, list[Any]] = {
            "name": names,
            "count": count.astype(int).tolist(),
            "time_s": time_s.tolist(),
            "wall_s": wall_s.tolist(),
            "energy_j": energy.tolist(),
            "power_w": power.tolist(),
            "share": (energy / energy_j).tolist(),
            "predicted_s": np.where(measured > 0, predicted, np.nan).tolist(),
            "measured_s": measured.tolist(),
        }
        if with_idle:
            out["idle_s"] = idle_s.tolist()
        return out
