"""Runs of whole models that are scored beside single passes: what there is, and the tables made of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from joulecast.calibration.mechanisms import ALL, NAMES
from joulecast.validation.engines import holds_engine_runs, score_engines
from joulecast.validation.generations import LEFT_OUT, agreeing, holds_generations, of_its_like, score_generations
from joulecast.validation.metrics import metrics
from joulecast.validation.passes import score_passes
from joulecast.validation.pipelines import holds_pipeline_runs, score_pipelines
from joulecast.validation.runs import ScoredRun, run_figures, run_table
from joulecast.validation.summary import pass_figures
from joulecast.validation.training import holds_training, score_training, training_tables

Tell = Callable[[str, float], None]


@dataclass(frozen=True)
class Part:
    """One set of runs.

    Attributes
    ----------
    folder_at : callable
        Its folder at a path; None where there is none.
    score : callable
        Scores a folder.
    tables : callable
        Makes tables of scored runs.
    """

    folder_at: Callable[[Path], Path | None]
    score: Callable[[Path, Tell], list[ScoredRun]]
    tables: Callable[[Sequence[ScoredRun]], dict[str, Any]]


def _generation_tables(scored: Sequence[ScoredRun]) -> dict[str, Any]:
    by_model = [one for one in scored if one.group == LEFT_OUT[0]]
    agreed = agreeing(by_model)
    apart = len(by_model) - len(agreed)
    return {
        "groups": [
            {**row, "left_out": what}
            for what in LEFT_OUT
            for row in run_table([one for one in scored if one.group == what], lambda one: one.gpu)
        ],
        "total": [
            *({**row, "left_out": row["group"]} for row in run_table(scored, lambda one: one.group)),
            {
                "group": f"all but {apart} that others of their shape contradict",
                "left_out": LEFT_OUT[0],
                **run_figures(agreed),
            },
        ],
        "models": run_table(by_model, lambda one: one.model),
        "like_runs": [_like_runs(by_model, lambda one: (one.gpu, one.model))],
        "of_its_like": [_of_its_like(by_model), _of_its_like(agreed)],
    }


def _of_its_like(scored: Sequence[ScoredRun]) -> dict[str, Any]:
    rows, power = of_its_like(scored)
    return {"rows": rows, "power": power}


def _engine_tables(scored: Sequence[ScoredRun]) -> dict[str, Any]:
    return {
        "groups": run_table(scored, lambda one: one.group),
        "total": run_table(scored, lambda _: "all"),
        "models": run_table(scored, lambda one: f"{one.model}, {one.group}"),
    }


def _pipeline_tables(scored: Sequence[ScoredRun]) -> dict[str, Any]:
    return {
        "groups": run_table(scored, lambda one: one.group),
        "total": run_table(scored, lambda one: "bound by the host" if one.host_bound else "bound by the GPU"),
        "models": run_table(scored, lambda one: one.model),
        "like_runs": [
            _like_runs([one for one in scored if one.host_bound], lambda one: (one.group, one.model)),
        ],
    }


def _like_runs(scored: Sequence[ScoredRun], key: Callable[[ScoredRun], Any]) -> dict[str, Any]:
    """How far measured power of like runs lies from the mean of them: no prediction could be nearer."""
    found: dict[Any, list[float]] = {}
    for one in scored:
        if np.isfinite(one.measured_w):
            found.setdefault(key(one), []).append(one.measured_w)
    off = [
        abs(value / float(np.mean(values)) - 1.0) * np.sqrt(len(values) / (len(values) - 1.0))
        for values in found.values()
        if len(values) > 1
        for value in values
    ]
    return {"rows": len(off), "power": float(np.mean(off)) if off else float("nan")}


#: By name, what may be scored beside kernels and passes.
RUNS: Mapping[str, Part] = {
    "generations": Part(holds_generations, score_generations, _generation_tables),
    "engines": Part(holds_engine_runs, score_engines, _engine_tables),
    "pipelines": Part(holds_pipeline_runs, score_pipelines, _pipeline_tables),
    "training": Part(holds_training, score_training, training_tables),
}


def score_runs(path: Path, names: Sequence[str], gpus: Sequence[str] | None, tell: Tell) -> dict[str, Any]:
    """Tables of each of `names` that `path` holds, of some GPUs or all."""
    out = {}
    held = {name: folder for name in names if (folder := RUNS[name].folder_at(path)) is not None}
    for i, (name, folder) in enumerate(held.items()):

        def part(what: str, share: float, at: int = i) -> None:
            tell(what, (at + share) / len(held))

        scored = [one for one in RUNS[name].score(folder, part) if gpus is None or one.gpu in gpus]
        if scored:
            out[name] = RUNS[name].tables(scored)
    return out


def ablation(folder: Path, gpus: tuple[str, ...] | None, tell: Tell) -> list[dict[str, Any]]:
    """Errors of whole passes with everything, and with each mechanism left out of fits and predictions."""
    out = []
    for i, name in enumerate(("", *NAMES)):
        tell(f"without {name or 'nothing'}", i / (1 + len(NAMES)))
        scored = score_passes(folder, gpus, mechanisms=ALL.without(name))
        for dataset in dict.fromkeys(one.dataset for one in scored):
            few = [one for one in scored if one.dataset == dataset]
            out.append({"without": name, "dataset": dataset, **pass_figures(few)})
        slowed = [one for one in scored if one.throttled]
        if slowed:
            clock = metrics([one.clock_mhz for one in slowed], [one.run.clock_mhz for one in slowed])
            figures = {**pass_figures(slowed), "clock": clock.as_dict()}
            out.append({"without": name, "dataset": "throttled", **figures})
    return out
