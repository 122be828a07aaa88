"""One search from end to end: space, evaluator, strategy and log become a result."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from joulecast.errors import InfeasibleError, InputError, shortened
from joulecast.tuning.evaluator import Evaluator
from joulecast.tuning.fastest import Settings
from joulecast.tuning.log import Log
from joulecast.tuning.result import TuningResult, result_of
from joulecast.tuning.session import Session, Telling
from joulecast.tuning.space import Config, Space
from joulecast.tuning.strategies import BOUNDED, TIMING, Wanted, strategy

OBJECTIVES = ("energy", "time")


def search(
    evaluator: Evaluator,
    space: Space,
    *,
    strategy_name: str = "race",
    slack: float = 0.02,
    objective: str = "energy",
    baseline: Config | None = None,
    evaluations: int | None = None,
    readings: int | None = None,
    log: str | os.PathLike[str] | None = None,
    seed: int = 0,
    tell: Telling | None = None,
    settings: Mapping[str, Any] | None = None,
) -> TuningResult:
    """Search a space.

    Parameters
    ----------
    evaluator : Evaluator
    space : Space
    strategy_name : str
        ``race``, ``paper``, ``measure-all`` or ``random``.
    slack : float
        How much slower than the fastest a configuration may be. [share]
    objective : str
        ``energy`` within the slack, or ``time``.
    baseline : mapping, optional
        What savings are told against; the fastest found where it is not given.
    evaluations : int, optional
        Configurations timed at most (before what is likely within the slack is added), by race and random.
    readings : int, optional
        Readings of energy at most, about, by race.
    log : path, optional
        Every outcome is kept there; a search that was stopped, or is asked again, answers from it.
    seed : int
        Of what is drawn at random.
    tell : callable, optional
        Takes what is being done and the share that is done.
    settings : mapping, optional
        Of the strategy.

    Returns
    -------
    TuningResult

    Raises
    ------
    InputError
        For a value that can't be used.
    joulecast.errors.InfeasibleError
        If no configuration runs, or energy can't be measured.
    """
    if not 0.0 <= slack <= 10.0:
        raise InputError(f"the slack is a share such as 0.05, not {slack}")
    if objective not in OBJECTIVES:
        raise InputError(f"the objective is energy or time, not {objective!r}")
    for name, value in (("evaluations", evaluations), ("readings", readings)):
        if value is not None and value < 1:
            raise InputError(f"{name} must be 1 or more, not {value}")
        if value is not None and strategy_name not in BOUNDED[name]:
            takers = " and ".join(BOUNDED[name])
            raise InputError(f"{name} is a bound of {takers}: {strategy_name} has settings of its own")
    chosen = strategy(strategy_name, **dict(settings or {}))
    if objective == "time" and strategy_name not in TIMING:
        raise InputError(f"{strategy_name} looks for energy: {', '.join(TIMING)} look for the fastest alone")
    code = None if baseline is None else space.code(baseline)
    if code is not None and not space.holds(code):
        raise InputError(f"the baseline {dict(baseline or {})} is not in the space: it breaks a constraint")
    latency = Settings() if evaluations is None else Settings(evaluations=evaluations)
    wanted = Wanted(slack, code, objective, latency)
    if readings is not None:
        wanted = Wanted(slack, code, objective, latency, readings, max(min(40, readings // 8), 6))
    kept = None if log is None else Log(os.fspath(log), evaluator.question)
    begun = time.perf_counter()
    try:
        session = Session(space, evaluator, kept, np.random.default_rng(seed), tell or _silent)
        if code is not None and not np.isfinite(session.time_s(code)):
            why = next(iter(session.failed), "")
            raise InfeasibleError(f"the baseline {shortened(dict(baseline or {}))} does not run: {why}")
        found = chosen.run(session, wanted)
        took = time.perf_counter() - begun
        return result_of(session, wanted, found, strategy_name, took)
    finally:
        if kept is not None:
            kept.close()


def replay(
    path: str | os.PathLike[str],
    *,
    where: Mapping[str, Any] | None = None,
    clocks_mhz: Sequence[float] = (),
    power_limits_w: Sequence[float] = (),
    noise: float | str = "recorded",
    autocorrelation: float = 0.0,
    drift: float = 0.0,
    session: str | int | None = None,
    seed: int = 0,
    **options: Any,
) -> TuningResult:
    """Search a recorded space.

    Parameters
    ----------
    path : path
        Parquet or CSV with ``time_ms``, ``energy_J`` and a column a tunable.
    where : mapping, optional
        Tunables held at a value.
    clocks_mhz, power_limits_w : sequence of float
        Of those that were recorded, which to search; all where none is given. [MHz, W]
    noise : float or str
        Coefficient of variation of a reading, or ``recorded``.
    autocorrelation, drift : float
        As in `joulecast.meters.replay.Noise`.
    session : str or int, optional
        Of a file of repeats.
    seed : int
        Of the noise and the search.
    **options
        Of `search`.
    """
    from joulecast.meters.recording import read_recording
    from joulecast.meters.replay import Noise
    from joulecast.tuning.replay import ReplayEvaluator

    recording = read_recording(os.fspath(path), session=session)
    if where:
        recording = recording.only(**where)
    for kind, values in (("core clock", clocks_mhz), ("power limit", power_limits_w)):
        if len(values):
            recording = recording.at(kind, tuple(float(value) for value in values))
    if options.get("objective", "energy") == "energy" and recording.energy_j is None:
        raise InputError(f"{recording.name} recorded no energies: ask for the objective time")
    if options.get("objective") == "time" and (noise != "recorded" or autocorrelation or drift):
        raise InputError("noise is of readings of energy: the objective time asks for none")
    if isinstance(noise, str) and noise != "recorded":
        raise InputError(f"noise is a share such as 0.023 or the word recorded, not {noise!r}")
    cv = None if isinstance(noise, str) else noise
    evaluator = ReplayEvaluator(recording, Noise(cv, autocorrelation, drift), seed)
    return search(evaluator, evaluator.space, seed=seed, **options)


def _silent(what: str, share: float) -> None:
    """Nobody listens."""
