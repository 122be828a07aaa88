"""Scores answers generated one at a time in eager PyTorch (ML.ENERGY leaderboard, first version)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from joulecast.calibration.pass_fit import leave_model_out
from joulecast.calibration.pass_runs import MeasuredPass, read_generations
from joulecast.calibration.passes import tabulate
from joulecast.coefficients.energies import default_power
from joulecast.gpus import load_gpu
from joulecast.validation.runs import ScoredRun
from joulecast.workloads.catalogue import entry

FOLDER = "mlenergy"
FILE = "v1_llm.csv"

#: What is left out of the fit that predicts a run: its model, or every model of the same shape.
LEFT_OUT = ("model", "shape")


def score_generations(folder: Path, tell: Callable[[str, float], None] = lambda *_: None) -> list[ScoredRun]:
    """Every run of `folder`, twice: predicted from the other models of its GPU, and from those of other shapes.

    Most of these models are LLaMA-7B or 13B trained further: a model that is left out leaves its likes in.
    """
    by_gpu: dict[str, list[MeasuredPass]] = defaultdict(list)
    for run in read_generations(folder / FILE):
        by_gpu[run.gpu].append(run)
    out = []
    for i, (name, runs) in enumerate(by_gpu.items()):
        table = tabulate(runs, default_power(load_gpu(name)))
        shapes = np.array([_shape(run.model) for run in runs])
        for j, (what, keys) in enumerate(zip(LEFT_OUT, (table.models, shapes), strict=True)):
            tell(f"{name} generations", (2 * i + j) / (2 * len(by_gpu)))
            errors = leave_model_out(runs, replace(table, models=keys))
            for run, time, power in zip(runs, errors.time.tolist(), errors.power.tolist(), strict=True):
                out.append(
                    ScoredRun(
                        group=what,
                        model=run.model,
                        gpu=name,
                        time_s=run.time_s * (1 + time),
                        power_w=run.power_w * (1 + power),
                        measured_s=run.time_s,
                        measured_w=run.power_w,
                    )
                )
    return out


def _shape(model: str) -> str:
    """What models of like shape share: their config but for the sizes of vocabulary and context."""
    config = {name: value for name, value in entry(model).config.items() if name not in _NOT_SHAPE}
    if config.get("num_key_value_heads") == config.get("num_attention_heads"):
        config.pop("num_key_value_heads", None)
    return str(sorted(config.items()))


_NOT_SHAPE = ("vocab_size", "max_position_embeddings")


#: How far the mean power of a model's runs may lie from the median of its shape before the others contradict it.
_CONTRADICTED = 0.15


def agreeing(scored: Sequence[ScoredRun]) -> list[ScoredRun]:
    """Runs of models whose mean power is within 15 % of the median of all of the same shape on the same GPU."""
    shape_w: dict[tuple[str, str], list[float]] = defaultdict(list)
    model_w: dict[tuple[str, str], list[float]] = defaultdict(list)
    for one in scored:
        shape_w[one.gpu, _shape(one.model)].append(one.measured_w)
        model_w[one.gpu, one.model].append(one.measured_w)

    def off(one: ScoredRun) -> float:
        middle = float(np.median(shape_w[one.gpu, _shape(one.model)]))
        return abs(float(np.mean(model_w[one.gpu, one.model])) / middle - 1.0)

    return [one for one in scored if off(one) <= _CONTRADICTED]


def of_its_like(scored: Sequence[ScoredRun]) -> tuple[int, float]:
    """Runs of models that have others of their shape on their GPU, and the error of the median power of those others.

    Knows the measured runs of the shape but nothing of power: what a prediction without the model can be held against.
    """
    by_shape: dict[tuple[str, str], list[ScoredRun]] = defaultdict(list)
    for one in scored:
        by_shape[one.gpu, _shape(one.model)].append(one)
    errors = []
    for runs in by_shape.values():
        for model in dict.fromkeys(one.model for one in runs):
            others = [one.measured_w for one in runs if one.model != model]
            if others:
                middle = float(np.median(others))
                errors += [abs(middle / one.measured_w - 1.0) for one in runs if one.model == model]
    return len(errors), float(np.mean(errors)) if errors else float("nan")


def holds_generations(path: Path) -> Path | None:
    """The folder of generations at `path`, if there is one."""
    for folder in (path / FOLDER, path):
        if (folder / FILE).is_file():
            return folder
    return None
