"""Scores answers generated one at a time in eager PyTorch (ML.ENERGY leaderboard, first version)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from joulecast.calibration.pass_fit import leave_model_out
from joulecast.calibration.passes import MeasuredPass, read_generations, tabulate
from joulecast.coefficients.transfer import default_power
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
    """What models of like shape share: their config without the size of the vocabulary."""
    config = {key: value for key, value in entry(model).config.items() if key != "vocab_size"}
    return str(sorted(config.items()))


def holds_generations(path: Path) -> Path | None:
    """The folder of generations at `path`, if there is one."""
    for folder in (path / FOLDER, path):
        if (folder / FILE).is_file():
            return folder
    return None
