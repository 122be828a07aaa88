"""Stages of pipelines at locked clocks (Perseus, SOSP 2024)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from joulecast.calibration.step_tables import tabulated
from joulecast.calibration.training_runs import TrainingRun
from joulecast.coefficients.training import Scales
from joulecast.physics.throttle import felt_swing
from joulecast.validation.runs import ScoredRun
from joulecast.validation.training_pipelines import GPUS, curve_of

Tell = Callable[[str, float], None]

#: The pipeline stage of the clock sweeps: a twelfth of GPT-3's layers over eight tensor-parallel GPUs, one sequence.
_STAGE = {"model_type": "gpt2", "n_embd": 12288, "n_layer": 12, "n_head": 96, "vocab_size": 50257, "n_positions": 2048}


def score_stage_clocks(folder: Path, tell: Tell) -> list[ScoredRun]:
    """Time and energy of pipeline stages at locked clocks over those at the highest: nothing fitted on either GPU."""
    import polars as pl

    table = pl.read_csv(folder / "perseus_stage_clock_sweeps.csv")
    out = []
    for (theirs,), part in table.group_by(["gpu"], maintain_order=True):
        gpu = GPUS[str(theirs)]
        tell(f"stages on {gpu}", 0.5)
        options = {"micro_batch": 1, "sequence_tokens": 2048, "precision": "bf16", "accumulate": 64, "gpus": 8, "tp": 8,
                   "optimizer": "sgd", "attention": "eager"}  # fmt: skip
        tables, _ = tabulated([TrainingRun(_STAGE, gpu, options, 1.0, 1.0, "gpt3")])
        # one GPU was profiled with its slice of the weights: no exchanges
        tables = replace(tables, other_s=np.zeros_like(tables.other_s))
        curve = curve_of(tables, 0, Scales())
        swing = float(felt_swing(Scales().power_swing, curve.time_s[-1] / options["accumulate"]))
        whole = part.group_by("stage", "sm_clock_MHz").agg(pl.col("time_s").sum(), pl.col("gpu_energy_J").sum())
        limit = tables.limit_w[0]
        for (stage,), rows in whole.group_by(["stage"]):
            found = rows.sort("sm_clock_MHz")
            predicted = []
            for clock in found["sm_clock_MHz"]:
                # the A100s of this source draw more than the part's limit
                held_w = limit if gpu == "A40" else np.inf
                predicted.append(curve.held(float(clock), held_w, swing))
            times, watts = np.array(predicted).T
            measured_s, measured_j = found["time_s"].to_numpy(), found["gpu_energy_J"].to_numpy()
            t, m = times / times[-1], measured_s / measured_s[-1]
            w, v = watts / watts[-1], measured_j / measured_j[-1] / m
            out += [
                ScoredRun(
                    f"Perseus stage clocks, {gpu}",
                    f"gpt3 stage {stage}",
                    gpu,
                    float(t[i]),
                    float(w[i]),
                    float(m[i]),
                    float(v[i]),
                )
                for i in range(len(times) - 1)
            ]
    return out
