"""A handful of measured training steps become the scales of one's own stack, with what left-out steps say of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from joulecast.calibration.conformal import conformal_quantile
from joulecast.calibration.own import today
from joulecast.calibration.step_tables import TIMED, RunTables, figures, tabulated, taken
from joulecast.calibration.training import fit_scales, left_out
from joulecast.calibration.training_networks import by_network, network_scales
from joulecast.calibration.training_runs import read_runs
from joulecast.coefficients.training import ALL, Scales, TrainingScales, write_scales
from joulecast.errors import InputError, UnknownNameError, shortened
from joulecast.gpus import plain_name

Floats = npt.NDArray[np.float64]

#: What scales may be fitted apart for.
PER = ("gpu", "precision", "network")

#: Fits that leave configurations out, at most: with more configurations, several are left out together.
FOLDS = 8

#: Numbers of configurations of a learning curve, and random choices of each.
CURVE = (1, 2, 3, 5, 7, 10, 15, 20, 30, 50)
DRAWS = 4

#: Fewest runs that scales of a precision or a GPU are fitted to by themselves.
_FEWEST = 3


@dataclass(frozen=True)
class CurvePoint:
    """Error of runs that were not measured, from fits to some that were: mean over random choices.

    Attributes
    ----------
    configurations : int
        Measured.
    time, power : float
        Mean absolute relative error; power NaN where not measured.
    worst_time : float
        Of the worst choice.
    """

    configurations: int
    time: float
    power: float
    worst_time: float


@dataclass(frozen=True)
class TrainingCalibration:
    """What a table of measured steps gave.

    Attributes
    ----------
    scales : TrainingScales
    path : Path or None
        Where it was written.
    runs, configurations, networks : int
    refused : tuple of str
        Runs that could not be predicted, and why.
    before, configuration, network : (float, float)
        Mean absolute relative error of time and power: at scales of 1, with each configuration left out, and with each
        network left out; NaN where there is only one, or no power.
    warnings : tuple of str
    curve : tuple of CurvePoint
    """

    scales: TrainingScales
    path: Path | None
    runs: int
    configurations: int
    networks: int
    refused: tuple[str, ...]
    before: tuple[float, float]
    configuration: tuple[float, float]
    network: tuple[float, float]
    warnings: tuple[str, ...]
    curve: tuple[CurvePoint, ...] = ()


def calibrate_training(
    path: Path, out: Path | None, *, per: Sequence[str] = (), curve: bool = False, seed: int = 0, version: str = "",
    tell: Callable[[str, float], None] = lambda *_: None,
) -> TrainingCalibration:  # fmt: skip
    """Fit the scales of a training stack to the measured steps of a table, and write them.

    Parameters
    ----------
    path : Path
        A table as `joulecast.calibration.training_runs.read_runs` takes it.
    out : Path or None
        Folder for ``training.toml``; None to write nothing.
    per : sequence of str
        Some of `PER`: scales of each GPU, precision or network beside those of all.
    curve : bool
        Whether errors from few measured configurations are found too.
    seed : int
    version : str
        Of joulecast.
    tell : callable
        Gets what is being done, and the share of all of it that is done.

    Returns
    -------
    TrainingCalibration

    Raises
    ------
    InputError
        If the table can't be used, or none of its runs can be predicted.
    """
    for name in per:
        if name not in PER:
            raise UnknownNameError("scope of scales", name, PER)
    runs = read_runs(path)
    tables, refused = tabulated(runs, tell=lambda what, share: tell(what, 0.4 * share))
    if not len(tables):
        raise InputError(f"none of the {len(runs)} steps of {shortened(path)} can be predicted: {refused[0]}")
    tell("scales", 0.4)
    every = fit_scales(tables, seed=seed)
    tell("left-out configurations", 0.5)
    configuration = left_out(tables, folds([run.configuration for run in tables.runs], FOLDS, seed), seed=seed)
    tell("left-out networks", 0.7)
    networks = [run.network for run in tables.runs]
    many = len(set(networks)) > 1
    network = left_out(tables, networks, seed=seed) if many else None
    errors = {"configuration": _errors(tables, configuration), "network": _errors(tables, network)}
    widths = _widths(tables, network or configuration)
    source = f"{len(tables)} steps of {path.name}"
    named = {"source": source, "error": errors["network" if many else "configuration"][0], **widths}
    scopes = {ALL: replace(every, **named)}
    for scope, rows in _scopes(tables, [name for name in per if name != "network"]).items():
        scopes[scope] = replace(fit_scales(taken(tables, rows), seed=seed, around=every), **named)
    if "network" in per:
        for network_name, one in network_scales(tables, every).items():
            scopes[network_name] = replace(one, **named)
    tell("learning curve", 0.85)
    note: dict[str, str | int | float] = {
        "version": version, "date": today(), "table": path.name, "steps": len(tables), "seed": seed,
        "configurations": len({run.configuration for run in tables.runs}), "networks": len(set(networks)),
    }  # fmt: skip
    for name, (time, power) in errors.items():
        note |= {f"time_error_{name}_left_out": time} if np.isfinite(time) else {}
        note |= {f"power_error_{name}_left_out": power} if np.isfinite(power) else {}
    scales = TrainingScales(MappingProxyType(scopes), MappingProxyType(note))
    return TrainingCalibration(
        scales=scales,
        path=None if out is None else write_scales(scales, out),
        runs=len(tables),
        configurations=int(note["configurations"]),
        networks=len(set(networks)),
        refused=tuple(refused),
        before=_errors(tables, figures(tables, Scales())),
        configuration=errors["configuration"],
        network=errors["network"],
        warnings=tuple(_warnings(tables, every)),
        curve=learning_curve(tables, seed=seed) if curve else (),
    )


def folds(names: Sequence[str], most: int, seed: int) -> list[str]:
    """Each name by itself, or `most` random groups of names where there are more."""
    apart = list(dict.fromkeys(names))
    order = np.random.default_rng(seed).permutation(len(apart))
    group = {apart[at]: str(place % most) for place, at in enumerate(order)}
    return [group[name] for name in names]


def learning_curve(
    tables: RunTables, counts: Sequence[int] = CURVE, *, draws: int = DRAWS, seed: int = 0
) -> tuple[CurvePoint, ...]:
    """Errors of the other configurations after fits to a few of them, chosen at random, networks by their own scales.

    Parameters
    ----------
    tables : RunTables
    counts : sequence of int
        Configurations to fit to; those that leave none to test are left out.
    draws : int
        Random choices of each number.
    seed : int
    """
    names = np.array([run.configuration + str(run.options.get("power_limit_w")) for run in tables.runs])
    apart = np.unique(names)
    random = np.random.default_rng(seed)
    out = []
    for count in (0, *counts):
        if count and count > 0.7 * apart.size:
            break
        found = []
        for _ in range(draws if count else 1):
            chosen = np.isin(names, random.choice(apart, count, replace=False))
            rest, mine = taken(tables, ~chosen), taken(tables, chosen)
            every = fit_scales(mine, seed=seed) if count else Scales()
            own = network_scales(mine, every) if count else {}
            found.append(_errors(rest, by_network(rest, every, own)))
        time, power = np.array(found).T
        out.append(CurvePoint(count, float(time.mean()), float(power.mean()), float(time.max())))
    return tuple(out)


def _scopes(tables: RunTables, per: Sequence[str]) -> dict[str, npt.NDArray[np.bool_]]:
    words = {"gpu": [plain_name(run.gpu) for run in tables.runs],
             "precision": [str(run.options.get("precision", "amp_bf16")) for run in tables.runs]}  # fmt: skip
    if not per:
        return {}
    scopes = ["/".join(parts) for parts in zip(*(words[name] for name in PER if name in per), strict=True)]
    names = np.array(scopes)
    return {name: names == name for name in dict.fromkeys(scopes) if int(np.sum(names == name)) >= _FEWEST}


def _errors(tables: RunTables, found: tuple[Floats, Floats] | None) -> tuple[float, float]:
    """Mean absolute relative error of times and powers; NaN where there are none."""
    if found is None:
        return float("nan"), float("nan")
    out = []
    for predicted, measured in zip(found, (tables.measured_s, tables.measured_w), strict=True):
        off = np.abs(predicted / measured - 1.0)
        out.append(float(off[np.isfinite(off)].mean()) if np.isfinite(off).any() else float("nan"))
    return out[0], out[1]


def _widths(tables: RunTables, found: tuple[Floats, Floats]) -> dict[str, Any]:
    out = {}
    for name, predicted, measured in zip(
        ("spread90", "power_spread90"), found, (tables.measured_s, tables.measured_w), strict=True
    ):
        miss = np.log(predicted / measured)
        there = miss[np.isfinite(miss)]
        if there.size >= _FEWEST:
            out[name] = conformal_quantile(np.abs(there))
    return out


def _warnings(tables: RunTables, scales: Scales) -> list[str]:
    out = []
    if scales.unknown:
        powered = np.isfinite(tables.measured_w).any()
        hint = "" if powered else "; power_w in the table tells those of power"
        out.append(f"the steps say nothing of {scales.unknown}: left at what it is without them{hint}")
    if len({run.network for run in tables.runs}) == 1:
        out.append("one network alone: how far the scales hold for others is not known")
    fitted = sum(1 for name in TIMED
                 if name not in scales.unknown.split(", "))  # fmt: skip
    count = len({run.configuration for run in tables.runs})
    if count < fitted:
        out.append(f"{count} configurations for {fitted} scales of time: what they share out among them is a guess")
    return out
