"""Reads the flags of `joulecast sweep` that take several values."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulecast.cli import options, with_options
from joulecast.cli.idle_options import refuse_idle
from joulecast.errors import InputError, shortened

if TYPE_CHECKING:
    from joulecast.scenarios.footprint import Site
    from joulecast.scenarios.sweep.inference import InferenceEvaluator
    from joulecast.scenarios.sweep.objectives import Objective
    from joulecast.scenarios.sweep.training import TrainingEvaluator

CHARTS = ("svg", "png", "html")

#: Points for which more than one process pays.
_WORTH_PROCESSES = 20_000
_MOST_PROCESSES = 8

_ALL = "all"
_RAY = "ray"


@dataclass(frozen=True)
class Asked:
    """Values of the flags by the names that `joulecast.sweep` knows them by; None where a flag was not given."""

    model: dict[str, Any]
    run: dict[str, Any]
    limits: dict[str, Any]

    def given(self) -> dict[str, Any]:
        """What was given of model and run."""
        return {name: value for name, value in {**self.model, **self.run}.items() if value is not None}


def longest(max_time: str | None, finish_by: str | None, start: str | None) -> float | None:
    """The most that a run may take: as given, or until a moment from the start, which is now by default. [s]

    Raises
    ------
    InputError
        For what can't be read, both at once, and a moment that is past.
    """
    if finish_by is None:
        return options.duration("--max-time", max_time)
    if max_time is not None:
        raise InputError("--max-time and --finish-by both say how long a run may take: give one")
    end = _moment("--finish-by", finish_by)
    begin = datetime.now(end.tzinfo) if start is None else _moment("--start", start)
    if (begin.tzinfo is None) != (end.tzinfo is None):
        raise InputError("--start and --finish-by must both have a time zone, or neither")
    left = (end - begin).total_seconds()
    if left <= 0:
        raise InputError(f"--finish-by must be after the start, {begin:%Y-%m-%d %H:%M}, not {shortened(finish_by, 40)}")
    return left


def _moment(flag: str, text: str) -> datetime:
    try:
        return datetime.fromisoformat(text.strip())
    except ValueError:
        raise InputError(
            f"{flag} takes a date with its time, such as 2026-12-04T17:00, not {shortened(text, 40)!r}"
        ) from None


def all_or_numbers(flag: str, text: str | None, unit: str, example: str) -> Any:
    """Numbers, or ``all`` as it is."""
    if text is not None and text.strip().lower() == _ALL:
        return _ALL
    return options.numbers(flag, text, unit, example=f"{example} or all")


def changes(texts: Sequence[str] | None) -> dict[str, Any] | None:
    """What ``--set`` asks for: by field one value or several, words or numbers."""
    found: dict[str, Any] = {}
    for field, text in options.pairs("--set", texts, example="sm_count=108,128").items():
        if field in ("compute_capability", "architecture", "dram_type"):
            found[field] = options.names("--set", [text])
        else:
            found[field] = options.numbers("--set", text, f"the unit of {shortened(field, 40)}", example="108:148:8")
    return found or None


def engines_and_runner(
    engines: list[str] | None, run_on: str | None, address: str | None
) -> tuple[list[str] | None, str]:
    """Whose kernels run, and where the sweep does: ``ray`` among the engines asks for the latter.

    Raises
    ------
    InputError
        If they contradict each other.
    """
    where = options.one_of("--run-on", run_on, ("local", _RAY))
    if engines is not None and _RAY in engines:
        if where == "local":
            raise InputError("--engine ray and --run-on local contradict each other: give one")
        engines, where = [one for one in engines if one != _RAY] or None, _RAY
    if address is not None and where != _RAY:
        raise InputError("--ray-address goes with --run-on ray")
    return engines, where or "local"


def workers(text: str | None, points: int) -> int:
    """Processes: as asked for, else one, or one a CPU where there are many points."""
    asked = options.whole("--workers", text, example="2")
    if asked is not None:
        return asked
    if points < _WORTH_PROCESSES:
        return 1
    free = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(free, _MOST_PROCESSES)


def pair(text: str | None, evaluator: InferenceEvaluator | TrainingEvaluator) -> tuple[Objective, Objective]:
    """The objectives of the front: as asked for, else time and energy, or for different work what a token takes.

    Raises
    ------
    InputError
        If they are not two that are known.
    """
    from joulecast.scenarios.sweep.objectives import objective

    if text is None:
        varied = {axis.name for axis in evaluator.space.varied}
        differs = varied & set(evaluator.asked) and not all(
            name.endswith("dtype") for name in varied & set(evaluator.asked)
        )
        chosen = ["throughput", "energy_per_token"] if differs else ["time", "energy"]
    else:
        chosen = options.names("--front", [text])
    if len(chosen) != 2:
        raise InputError("--front takes two objectives apart by a comma, such as time,energy")
    known = evaluator.figures
    return objective(chosen[0], known), objective(chosen[1], known)


def of_training(
    source: str, gpus: list[str], site: Site | None, asked: Asked, with_: Sequence[str] | None
) -> TrainingEvaluator:
    """The points of a sweep over training that the flags describe.

    Raises
    ------
    InputError
        If flags of inference are among them, or an option can't be used.
    """
    from joulecast.scenarios.sweep.training import training

    shared = ("clock_mhz", "power_limit_w", "host_us_per_launch", "changes", "ignore_memory")
    given = asked.given()
    ours = {name: given.pop(name) for name in shared if name in given}
    ours |= {name: given.pop(name) for name in ("launch_mode", "attention") if name in given}
    ours |= {name: given.pop(name) for name in ("tp", "pp", "ep") if name in given}
    if given:
        named = ", ".join(name.replace("_", " ") for name in given)
        raise InputError(f"with --train, {named} can't be given: what train takes comes by --with OPTION=VALUES")
    options_of_training = _with(with_)
    twice = sorted(set(ours) & set(options_of_training))
    if twice:
        raise InputError(f"--with gives {twice[0]}, which a flag gives too")
    refuse_idle({name: _several(value) for name, value in {**ours, **options_of_training}.items()})
    return training(source, gpu=gpus, site=site, **ours, **options_of_training)


def _several(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else (value,)


def _with(texts: Sequence[str] | None) -> dict[str, Any]:
    """What ``--with`` asks for: by option one value or several, numbers where they are."""
    found: dict[str, Any] = {}
    for given, text in options.pairs("--with", texts, example="zero=1,3").items():
        flag, name = f"--with {shortened(given, 40)}", with_options.argument(given)
        if name in found:
            raise InputError(f"--with gives {shortened(name, 40)} twice")
        several = options.names(flag, [text])
        if any(":" in word for word in several):
            spanned = options.numbers(flag, text, "its unit", example="1:8:1") or ()
            found[name] = [with_options.number(one) for one in spanned]
        else:
            found[name] = [with_options.value(word) for word in several]
    return found


def check_files(output: Path | None, plot: Path | None) -> None:
    """Refuse files that can't be written before anything is evaluated.

    Raises
    ------
    InputError
    """
    from joulecast.reports.columns import form_of
    from joulecast.writing import check_writable

    if output is not None:
        form_of(output)
    if plot is not None:
        if plot.suffix.lower().removeprefix(".") not in CHARTS:
            raise InputError(f"can't draw {shortened(plot)}: end it in .svg, .png or .html")
        from joulecast.reports import plots

        plots.available()
    for path in (output, plot):
        if path is not None:
            check_writable(path)
