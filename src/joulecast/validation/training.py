"""Published training runs, each predicted without its own network or GPU in any fit: what `validate` makes of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from joulecast.calibration.step_tables import POWERED, RunTables, figures, tabulated, taken
from joulecast.calibration.training import fit_scales, left_out
from joulecast.calibration.training_fit import learning_curve
from joulecast.calibration.training_runs import TrainingRun
from joulecast.coefficients.training import Scales
from joulecast.validation.runs import ScoredRun, run_table
from joulecast.validation.training_pipelines import score_pipelines
from joulecast.validation.training_power import score_keras, score_memory, score_node_power
from joulecast.validation.training_stage_clocks import score_stage_clocks
from joulecast.validation.training_tables import SOURCES, torchvision

Floats = npt.NDArray[np.float64]
Tell = Callable[[str, float], None]

FOLDER = "training"

#: The recommender of Zeus waits for its input. That says nothing of a busy GPU, nor the other way round: it is
#: predicted from other GPUs that wait, of which it tells what one draws with nothing running.
WAITING, OF_WAITING = "ncf", ("static",)

#: By source: what is left out together, what fits may look at (from the widest to the narrowest, each starting from
#: the one before), and which scales they fit (all by default).
PROTOCOLS: dict[
    str, tuple[Callable[[TrainingRun], str], Callable[[TrainingRun], tuple[str, ...]], tuple[str, ...] | None]
] = {
    "MPT": (lambda run: run.network, lambda run: (f"{run.gpu} {run.options['precision']}",), None),
    "DLE": (lambda run: run.gpu[:4], lambda run: (str(run.tags["stack"]),), None),
    "torchvision": (
        lambda run: run.network,
        lambda run: ("", str(run.tags["machine"]), str(run.options["precision"])),
        None,
    ),
    "timm": (lambda run: run.network, lambda _: ("",), None),
    "Zeus": (lambda run: run.network, lambda run: (f"{run.gpu}{' waiting' * (run.network == WAITING)}",), POWERED),
}

#: Configurations of a GPU that are measured where the rest is predicted.
CONFIGURATIONS = 10


def holds_training(path: Path) -> Path | None:
    """The folder of training tables at `path`, if there is one."""
    for folder in (path / FOLDER, path):
        if (folder / "zeus_power_limit_sweeps.csv").is_file() and (
            folder / "mpt_llm_training_throughput.csv"
        ).is_file():
            return folder
    return None


def score_training(folder: Path, tell: Tell) -> list[ScoredRun]:
    """Every training run of `folder` that the catalogue has a model for.

    Groups name the set, and what is compared: times and powers themselves, ratios to the highest limit or clock, power
    of whole nodes, or the largest batch (as ``time_s``).
    """
    out: list[ScoredRun] = []
    for done, name in enumerate(PROTOCOLS):
        tell(name, 0.1 * done)
        tables, _ = tabulated(list(SOURCES[name](folder)))
        group, within, only = PROTOCOLS[name]
        runs = tables.runs
        time_s, power_w = left_out(
            tables, [group(run) for run in runs], within=[within(run) for run in runs], only=only
        )
        waits = np.array([name == "Zeus" and run.network == WAITING for run in runs])
        if waits.any():
            few = taken(tables, waits)
            time_s[waits], power_w[waits] = left_out(few, [run.gpu for run in few.runs], only=OF_WAITING)
        unfitted_s, unfitted_w = figures(tables, Scales())
        if name == "Zeus":
            out += _ratios("Zeus: ratio to the highest limit", tables, time_s, power_w)
            out += _scored("Zeus: power", tables, np.full_like(time_s, np.nan), power_w)
            out += _ratios("Zeus: ratio to the highest limit, nothing fitted", tables, unfitted_s, unfitted_w)
        else:
            out += _scored(name, tables, time_s, np.full_like(time_s, np.nan))
            out += _scored(f"{name}, nothing fitted", tables, unfitted_s, np.full_like(time_s, np.nan))
        if name in ("Zeus", "DLE", "torchvision"):
            tell(f"{name}, {CONFIGURATIONS} configurations", 0.1 * done + 0.05)
            # the recommender's time is its input's, which no scale tells
            those = taken(tables, [run.network != WAITING for run in runs])
            out += _calibrated(f"{name}: {CONFIGURATIONS} configurations of a GPU measured", those)
    tell("several GPUs of one process", 0.55)
    out += _replicated(folder)
    tell("pipelines", 0.6)
    out += score_pipelines(folder, lambda what, share: tell(what, 0.6 + 0.2 * share))
    out += score_stage_clocks(folder, lambda what, _: tell(what, 0.8))
    tell("nodes", 0.85)
    out += score_node_power(folder) + score_keras(folder)
    tell("memory", 0.9)
    return out + score_memory(folder)


def _replicated(folder: Path) -> list[ScoredRun]:
    """Steps of torchvision's networks on two to four GPUs of one process, from the same machine's steps on one."""
    tables, _ = tabulated(list(torchvision(folder, gpus=(1, 2, 3, 4))))
    several = np.array([run.options.get("gpus", 1) > 1 for run in tables.runs])
    jobs = np.array([f"{run.tags['machine']} {run.options['precision']}" for run in tables.runs])
    out = []
    for job in np.unique(jobs[several]):
        rest, alone = (taken(tables, (jobs == job) & those) for those in (several, ~several))
        time_s, _ = figures(rest, fit_scales(alone) if len(alone) else Scales())
        out += _scored("torchvision, 2-4 GPUs of one process", rest, time_s, np.full_like(time_s, np.nan))
    return out


def _scored(name: str, tables: RunTables, time_s: Floats, power_w: Floats) -> list[ScoredRun]:
    return [
        ScoredRun(name, run.network, run.gpu, float(time_s[i]), float(power_w[i]), float(tables.measured_s[i]),
                  float(tables.measured_w[i]))
        for i, run in enumerate(tables.runs)
    ]  # fmt: skip


def _ratios(name: str, tables: RunTables, time_s: Floats, power_w: Floats) -> list[ScoredRun]:
    """Each configuration under its limits over itself under the highest."""
    groups = [run.tags["group"] for run in tables.runs]
    out = []
    for group in dict.fromkeys(groups):
        rows = [i for i, one in enumerate(groups) if one == group]
        top = max(rows, key=lambda i: float(tables.runs[i].tags["limit_w"]))
        for i in rows:
            if i == top:
                continue
            pairs = ((time_s, tables.measured_s), (power_w, tables.measured_w))
            (t, m), (w, v) = ((float(ours[i] / ours[top]), float(theirs[i] / theirs[top])) for ours, theirs in pairs)
            out.append(ScoredRun(name, tables.runs[i].network, tables.runs[i].gpu, t, w, m, v))
    return out


def _calibrated(name: str, tables: RunTables) -> list[ScoredRun]:
    """The runs of each GPU, from fits to a few of its configurations chosen at random, as mean errors over choices."""
    gpus = np.array([f"{run.gpu} {run.tags['stack']} {run.tags.get('machine', '')}".strip() for run in tables.runs])
    out = []
    for gpu in np.unique(gpus):
        mine = taken(tables, gpus == gpu)
        # the same network on other data is another job: its length and its input differ
        jobs = [f"{run.network} {run.options.get('sequence_tokens', '')}".strip() for run in mine.runs]
        mine = replace(mine, runs=tuple(replace(run, network=job) for run, job in zip(mine.runs, jobs, strict=True)))
        out += [
            ScoredRun(
                name, "configurations", str(gpu), 1.0 + point.time, 1.0 + point.power, 1.0,
                1.0 if np.isfinite(point.power) else np.nan,
            )
            for point in learning_curve(mine, (CONFIGURATIONS,))
            if point.configurations == CONFIGURATIONS
        ]  # fmt: skip
    return out


def training_tables(scored: Sequence[ScoredRun]) -> dict[str, Any]:
    """Tables of scored training runs: by set, by set and GPU, by set and network, and how well memory is known."""
    batches = [one for one in scored if "largest batch" in one.group]
    rest = [one for one in scored if "largest batch" not in one.group]
    off = np.array([np.log2(one.time_s / one.measured_s) for one in batches])
    return {
        "groups": run_table(rest, lambda one: one.group),
        "total": [],
        "gpus": run_table(rest, lambda one: f"{one.group}, {one.gpu}"),
        "models": run_table([one for one in rest if _plain(one)], lambda one: f"{one.model}, {one.group}"),
        "memory": {
            "rows": len(batches),
            "right": float(np.mean(off == 0)) if len(off) else float("nan"),
            "within_one": float(np.mean(np.abs(off) <= 1)) if len(off) else float("nan"),
        },
    }


def _plain(one: ScoredRun) -> bool:
    return "nothing fitted" not in one.group and "configurations" not in one.group
