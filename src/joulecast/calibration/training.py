"""Scales of a training stack that fit measured steps, and what steps left out say of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from joulecast.calibration.step_tables import POWERED, SCALES, TIMED, RunTables, evaluated, figures, taken, vector_of
from joulecast.coefficients.training import POWER_SWING, Scales
from joulecast.errors import InputError
from joulecast.physics.timeline import pass_time_s
from joulecast.scenarios.training.scales import CLASSES

Floats = npt.NDArray[np.float64]

#: Of each scale: expected before anything is measured, spread around it, and bounds. Factors as logarithms.
_EXPECTED = {
    # kernels were measured, and networks of GPUs and hosts differ far more
    **{name: (0.0, 0.2, np.log(0.2), np.log(5.0)) for name in TIMED},
    "communication": (0.0, 0.6, np.log(0.1), np.log(10.0)),
    "host": (0.0, 0.8, np.log(0.1), np.log(10.0)),
    "copying": (0.0, 0.5, np.log(0.1), np.log(10.0)),
    "energy": (0.0, 0.4, np.log(0.3), np.log(3.0)),
    "static": (0.0, 0.4, np.log(0.3), np.log(3.0)),
    "voltage_floor": (0.75, 0.15, 0.4, 0.98),
    "voltage_knee": (0.7, 0.2, 0.1, 0.95),
    "limit_share": (1.0, 0.03, 0.85, 1.05),
    "power_swing": (POWER_SWING, 0.1, 0.0, 0.6),
}
_LOGS = (*TIMED, "energy", "static")

#: Scatter of measured steps, in natural logarithms: of all points of one configuration together, and of single points
#: around it; of powers.
NOISE, POINT_NOISE, POWER_NOISE = 0.05, 0.03, 0.06

#: Errors over noise from which on a run tells nothing: a step that is 1.8 times off (8 or 12 give the same).
_LOST = 12.0

#: A scale is told to be unknown where its class takes less than this share of every step.
LEAST_SHARE = 0.03


def fit_scales(
    tables: RunTables,
    *,
    seed: int = 0,
    only: Iterable[str] | None = None,
    around: Scales | None = None,
    spread: float = 0.5,
) -> Scales:
    """Scales of a stack from measured steps, by differential evolution over all that the steps say something of.

    Minimises squared errors of the logarithms of times and powers beside those of the scales: what runs at several
    clocks or limits have in common counts once, how they differ counts by itself. A scale that the runs say nothing of
    stays 1.

    Parameters
    ----------
    tables : RunTables
    seed : int
    only : iterable of str, optional
        Scales to fit; by default all of `TIMED` and `POWERED` that `unidentified` does not name.
    around : Scales, optional
        What is expected, of steps among which these are; scales that are not fitted stay as they are in it.
    spread : float
        How far scales may be from those of `around`, over how far these may be from those of other stacks.

    Returns
    -------
    Scales

    References
    ----------
    .. [1] R. Storn, K. Price, Differential evolution, Journal of Global Optimization 11, 1997.
    """
    from scipy.optimize import differential_evolution

    if not np.isfinite(tables.measured_s).any():
        raise InputError("no step time to fit to: give step_time_s")
    blind = set(unidentified(tables))
    chosen = set(SCALES if only is None else only)
    names = [name for name in SCALES if name in chosen and name not in blind]
    start = around or Scales()
    unknown = ", ".join(name for name in SCALES if name in blind)
    if not names:
        return replace(start, provenance="fitted", rows=len(tables), unknown=unknown)
    places = [SCALES.index(name) for name in names]
    logs = np.array([name in _LOGS for name in names])
    expected, width, lowest, highest = np.array([_EXPECTED[name] for name in names]).T
    group, each = _configurations(tables)
    base = vector_of(start)
    if around is not None:
        known = np.where(logs, np.log(np.maximum(base[places], 1e-9)), base[places])
        expected, width = np.where(base[places] > 0, np.clip(known, lowest, highest), expected), spread * width

    def vectors(x: Floats) -> Floats:
        every = np.tile(base, (len(x), 1))
        every[:, places] = np.where(logs, np.exp(x), x)
        return every

    def loss(x: Floats) -> Any:
        points = np.atleast_2d(x.T)
        time_s, power_w = evaluated(tables, vectors(points))
        total = _cost(np.log(time_s / tables.measured_s), group, each, NOISE, POINT_NOISE)
        total += _cost(np.log(power_w / tables.measured_w), group, each, POWER_NOISE, POWER_NOISE)
        total += np.sum(((points - expected) / width) ** 2, axis=1)
        return total if x.ndim > 1 else float(total[0])

    found = differential_evolution(
        loss, list(zip(lowest, highest, strict=True)), seed=seed, tol=1e-6, maxiter=250, popsize=10, polish=True,
        vectorized=True, updating="deferred",
    )  # fmt: skip
    values = np.where(logs, np.exp(found.x), found.x)
    fitted = dict(zip(names, values.tolist(), strict=True))
    return replace(start, provenance="fitted", rows=len(tables), unknown=unknown, **fitted)


def _configurations(tables: RunTables) -> tuple[npt.NDArray[np.intp], Floats]:
    """Which configuration each run belongs to, and how many runs each has."""
    codes: dict[str, int] = {}
    group = np.array([codes.setdefault(run.configuration, len(codes)) for run in tables.runs], dtype=np.intp)
    return group, np.bincount(group).astype(np.float64)


def _cost(miss: Floats, group: npt.NDArray[np.intp], each: Floats, common: float, single: float) -> Floats:
    """Cost of errors, shape (m, n), of runs that belong to configurations: shape (m,); NaN counts nothing.

    Beyond three times the noise an error counts ever less as it grows, and beyond `_LOST` times no more: some runs are
    not what they say, and no scale is to be bent to meet them.
    """
    there = np.isfinite(miss)
    counts = np.stack([np.bincount(group, weights=row, minlength=each.size) for row in there.astype(np.float64)])
    filled = np.where(there, miss, 0.0)
    sums = np.stack([np.bincount(group, weights=row, minlength=each.size) for row in filled])
    mean = sums / np.maximum(counts, 1.0)
    apart = np.where(there, filled - mean[:, group], 0.0)

    def bent(size: Floats) -> Floats:
        return np.asarray(np.where(size < 3, size**2, 9 + 18 * np.log(np.clip(size, 3.0, _LOST) / 3)))

    total = bent(np.abs(mean) / common).sum(axis=1) + 0.5 * bent(np.abs(apart) / single).sum(axis=1)
    # configurations of one network are wrong together: ten of them tell as much as some three that are not
    return np.asarray(total / np.sqrt(each.size))


def unidentified(tables: RunTables) -> tuple[str, ...]:
    """Scales that the runs say nothing of.

    Of time: those whose class takes little of every step. Of power: all without a measured power, voltages and the
    share of the limit without a GPU at three clocks or limits.
    """
    plain = tables.class_s[:, -1].sum(axis=-1) + tables.other_s[:, -1]
    gpu_s = np.sum(tables.repeats * plain, axis=1)
    total = np.sum(tables.repeats * pass_time_s(plain, tables.host_s), axis=1) + tables.exchange_s[:, -1]
    total = total + tables.copying_s
    by_class = np.einsum("npc,np->nc", tables.class_s[:, -1], tables.repeats) / total[:, None]
    shares = {name: float(by_class[:, at].max(initial=0)) for at, name in enumerate(CLASSES)}
    # a host hides behind the GPU: what it takes shows only where it takes nearly as long
    host = np.sum(tables.repeats * tables.host_s, axis=1) / gpu_s
    shares["host"] = 1.0 if float(host.max(initial=0)) > 0.8 else 0.0
    shares["copying"] = float((tables.copying_s / total).max(initial=0))
    exchanged = tables.exchange_s[:, -1] + np.sum(tables.repeats * tables.other_s[:, -1], axis=1)
    shares["communication"] = float((exchanged / total).max(initial=0))
    read = np.isfinite(tables.measured_w)
    shares |= dict.fromkeys(POWERED, 0.0)
    if read.any():
        shares["energy"] = 1.0
        # clocks and limits of a GPU, of whatever configurations: what they have in common is not its voltage's
        gpus = np.array([run.gpu for run in tables.runs])
        points = np.array([np.unique(tables.limit_w[read & (gpus == gpu)]).size
                           + np.unique(tables.clock_mhz[read & (gpus == gpu), -1]).size - 1
                           for gpu in np.unique(gpus[read])])  # fmt: skip
        if points.max() >= 3:
            shares |= dict.fromkeys(POWERED, 1.0)
    return tuple(name for name in SCALES if shares[name] < LEAST_SHARE)


def left_out(
    tables: RunTables, groups: Sequence[str], *, within: Sequence[str] | Sequence[Sequence[str]] | None = None,
    seed: int = 0, only: Iterable[str] | None = None,
) -> tuple[Floats, Floats]:  # fmt: skip
    """Time and power of each run, predicted by scales that were fitted without its group.

    Parameters
    ----------
    tables : RunTables
    groups : sequence of str
        Group of each run; a lone group is predicted without any fit.
    within : sequence of str, or of several of them, optional
        Runs that a fit may look at for each: those with the same word; all by default. Where a run has several words,
        from the widest to the narrowest, the scales of each start from those of the one before, and may be half as far
        from them as those from theirs.
    seed : int
    only : iterable of str, optional
        As for `fit_scales`.

    Returns
    -------
    time_s, power_w : ndarray, shape (n,)
        [s, W]
    """
    out_s, out_w = np.full(len(tables), np.nan), np.full(len(tables), np.nan)
    words = (
        [("",)] * len(tables) if within is None else [(one,) if isinstance(one, str) else tuple(one) for one in within]
    )
    names = np.array(groups)
    fitted: dict[tuple[str, ...], Scales | None] = {}

    def scales_of(name: str, domain: tuple[str, ...]) -> Scales | None:
        """Of the runs of a domain without a group, around those of the domain that it is part of."""
        if not domain:
            return None
        if (name, *domain) not in fitted:
            around = scales_of(name, domain[:-1])
            mine = np.array([one[: len(domain)] == domain for one in words])
            rest = taken(tables, (names != name) & mine)
            known = len(rest) > 0 and bool(np.isfinite(rest.measured_s).any())
            fitted[name, *domain] = (
                fit_scales(rest, seed=seed, only=only, around=around, spread=0.5 ** (len(domain) - 1))
                if known
                else around
            )
        return fitted[name, *domain]

    for name, domain in dict.fromkeys(zip(names.tolist(), words, strict=True)):
        mine = (names == name) & np.array([one == domain for one in words])
        out_s[mine], out_w[mine] = figures(taken(tables, mine), scales_of(name, domain) or Scales())
    return out_s, out_w
