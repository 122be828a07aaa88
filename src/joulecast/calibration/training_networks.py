"""What networks are off by beside the scales of a stack: on all of their time, on their host's, and over the batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from joulecast.calibration.step_tables import SCALES, TIMED, RunTables, evaluated, figures, taken, vector_of
from joulecast.coefficients.training import Scales

Floats = npt.NDArray[np.float64]

#: Expected spread, in natural logarithms, of a network's own factor on all times, of that on its host's beside, and of
#: its exponent over the batch; and of those of one of its precisions around the network's.
_SPREADS, _SPREADS_WITHIN = (0.2, 0.5, 0.08), (0.1, 0.2, 0.04)

#: Scatter of measured steps around all that, in natural logarithms.
_SCATTER = 0.04

#: Square of the scatter of a configuration's power over that of what networks leave unexplained.
_REMAINDER_NOISE = 0.1


def network_scales(tables: RunTables, every: Scales) -> dict[str, Scales]:
    """Scales of each network of the runs: those of all, with what its own steps are off by.

    Three numbers that are shrunk towards nothing: a factor on all times, another on the host's, and one for each
    doubling of the batch. A network in several precisions has scales of each (``precision/network``), shrunk towards
    the network's. A factor on energies follows from powers.

    Parameters
    ----------
    tables : RunTables
    every : Scales
        Of all the runs.

    Returns
    -------
    dict of str to Scales
    """
    networks = np.array([run.network for run in tables.runs])
    precisions = np.array([str(run.options.get("precision", "amp_bf16")) for run in tables.runs])
    out: dict[str, Scales] = {}
    for name in dict.fromkeys(networks.tolist()):
        mine = networks == name
        found = _own(taken(tables, mine), every, (0.0, 0.0, 0.0), _SPREADS)
        out[name] = _scaled(taken(tables, mine), every, found)
        kinds = dict.fromkeys(precisions[mine].tolist())
        for precision in kinds if len(kinds) > 1 else ():
            rows = taken(tables, mine & (precisions == precision))
            out[f"{precision}/{name}"] = _scaled(rows, every, _own(rows, every, found, _SPREADS_WITHIN))
    return out


def by_network(tables: RunTables, every: Scales, own: Mapping[str, Scales]) -> tuple[Floats, Floats]:
    """Times and powers, each network by its own scales where there are any. [s, W]"""
    time_s, power_w = (one.copy() for one in figures(tables, every))
    names = np.array([run.network for run in tables.runs])
    precise = np.array([f"{run.options.get('precision', 'amp_bf16')}/{run.network}" for run in tables.runs])
    for scope, scales in own.items():
        mine = (names == scope) & ~np.isin(precise, list(own)) | (precise == scope)
        if mine.any():
            time_s[mine], power_w[mine] = figures(taken(tables, mine), scales)
    return time_s, power_w


def _batches(tables: RunTables) -> Floats:
    """Logarithms of micro-batches."""
    return np.log([float(run.options.get("micro_batch") or 1) for run in tables.runs])


def _own(
    tables: RunTables, every: Scales, around: tuple[float, ...], spreads: tuple[float, ...]
) -> tuple[float, float, float]:
    """Logarithms of the factors on all times and on the host's, and the exponent over the batch, most likely."""
    from scipy.optimize import least_squares

    there = np.isfinite(tables.measured_s)
    if not there.any():
        return around[0], around[1], around[2]
    few = taken(tables, there)
    away = _batches(few) - _batches(few).mean()
    base = vector_of(every)
    # a step that takes longer for the same energy would draw less
    timed = np.array([name in (*TIMED, "energy") for name in SCALES])
    host = np.array([name == "host" for name in SCALES])

    def misses(x: Floats) -> Floats:
        time_s, _ = evaluated(few, (base * np.exp(timed * x[0] + host * x[1]))[None])
        off = np.log(time_s[0] / few.measured_s) + x[2] * away
        return np.concatenate([off / _SCATTER, (x - np.array(around)) / np.array(spreads)])

    found = least_squares(misses, np.array(around), loss="soft_l1", max_nfev=50, diff_step=1e-3).x
    return float(found[0]), float(found[1]), float(found[2])


def _scaled(tables: RunTables, every: Scales, own: tuple[float, float, float]) -> Scales:
    """Scales with a network's own factors, and the factor on energies that its powers ask for."""
    factors: dict[str, Any] = {
        name: float(np.clip(getattr(every, name) * np.exp(own[0]), 0.05, 20.0)) for name in TIMED
    }
    factors["host"] = float(np.clip(factors["host"] * np.exp(own[1]), 0.05, 20.0))
    factors["energy"] = float(np.clip(every.energy * np.exp(own[0]), 0.05, 20.0))
    batches = _batches(tables)
    several = float(np.ptp(batches)) > 0
    batch, doubling = (float(np.exp(batches.mean())), float(2.0 ** own[2])) if several else (0.0, 1.0)
    scales = replace(every, batch=batch, doubling=doubling, rows=len(tables), **factors)
    _, power_w = figures(tables, scales)
    watts = np.log(tables.measured_w / power_w)
    if not np.isfinite(watts).any():
        return scales
    count = len({run.configuration for run in tables.runs})
    energy = scales.energy * np.exp(count / (count + _REMAINDER_NOISE) * np.nanmean(watts))
    return replace(scales, energy=float(np.clip(energy, 0.05, 20.0)))
