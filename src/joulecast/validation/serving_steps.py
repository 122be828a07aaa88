"""What serving engines add to a step: read off served runs as measured time less that of the kernels, and fitted.

Runs of one version are told apart by where they were published: vLLM 0.11.1 (ML.ENERGY v3), vLLM 0.5.4 behind its
server (ML.ENERGY v2), and vLLM and TensorRT-LLM run offline (LLM-Inference-Bench). Models are left out to score.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from joulecast.calibration.served import PROMPT_TOKENS, TABLE, read_served, tabulate
from joulecast.coefficients.engines import EngineSteps
from joulecast.errors import InputError, JoulecastError
from joulecast.validation.compare import compare
from joulecast.validation.engines import FOLDER, read_engine_runs, waves_of
from joulecast.validation.serving_files import ServingResult

Floats = npt.NDArray[np.float64]

#: Prompts of ML.ENERGY v2, whose lengths were not published. [tokens]
OLDER_PROMPTS = {"chat": 200, "code": 150}

#: Runs that waited for something else: on B200s the long-answer task runs at a fifth of the pace of the other.
_STALLED = ("B200-SXM-180GB", "gpqa")

#: Rounds of the weighting that makes the fit one of absolute errors, and the error below which they count alike.
_ROUNDS = 8
_LEAST_ERROR = 0.02


@dataclass(frozen=True)
class StepRow:
    """One run: the time between two tokens of a sequence, prefills of others included, and what kernels take of it.

    Attributes
    ----------
    gpu, model : str
    sequences : float
        In a step.
    gpus : int
    measured_s, kernel_s : float
        [s]
    """

    gpu: str
    model: str
    sequences: float
    gpus: int
    measured_s: float
    kernel_s: float


def older_results(path: Path) -> list[ServingResult]:
    """Runs of ``v2_llm.csv`` that were made with text prompts."""
    out = []
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            prompt = next((size for task, size in OLDER_PROMPTS.items() if task in row["task"]), None)
            if prompt is None or "visual" in row["task"]:
                continue
            measured = {
                "tpot_s": float(row["avg_time_per_output_token_s"]),
                "output_throughput": float(row["output_throughput_tok_per_s"]),
                "energy_per_token_j": float(row["energy_per_output_token_j"]),
            }
            out.append(
                ServingResult(
                    path.name, "vLLM", "vllm", measured, model=row["model_id"], gpu=row["gpu"], tp=int(row["tp"]),
                    pp=int(row["pp"]), input_tokens=prompt, concurrency=float(row["avg_batch_size_req"]),
                    output_tokens=float(row["avg_output_tokens_per_request"]), concurrency_from="mean",
                )
            )  # fmt: skip
    return out


def newer_results(path: Path) -> list[ServingResult]:
    """Runs of ``v3_llm.csv`` with text prompts, on any number of GPUs that split layers among them."""
    out = []
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            if row["task"] not in PROMPT_TOKENS or int(row["dp"]) > 1:
                continue
            if row["task"] == _STALLED[1] and row["gpu"].startswith("B200"):
                continue
            gpus = int(row["n_gpus"])
            measured = {
                "itl_s": float(row["median_itl_ms"]) * 1e-3,
                "output_throughput": float(row["output_throughput_tok_per_s"]),
                "energy_per_token_j": float(row["energy_per_output_token_j"]),
            }
            out.append(
                ServingResult(
                    path.name, "vLLM", "vllm", measured, model=row["model_id"], gpu=row["gpu"], tp=gpus,
                    ep=gpus if int(row["ep"]) > 1 else 1, input_tokens=PROMPT_TOKENS[row["task"]],
                    output_tokens=float(row["avg_output_tokens_per_request"]),
                    concurrency=float(row["avg_batch_size_req"]), concurrency_from="mean",
                    dtype="fp8" if row["weight_precision"] == "fp8" else "bf16",
                )
            )  # fmt: skip
    return out


def _compared(results: Sequence[ServingResult]) -> list[StepRow]:
    out = []
    for one in results:
        try:
            found = compare(one, server="none")
        except JoulecastError:  # a model that the catalogue does not know
            continue
        measured = one.concurrency / one.measured["output_throughput"]
        kernels = found.batch / found.predicted["output_throughput"]
        out.append(StepRow(found.gpu, one.model, one.concurrency, one.tp * one.pp, measured, kernels))
    return out


def step_rows(data: Path) -> dict[str, tuple[str, list[StepRow]]]:
    """By version of an engine: where its runs are from, and the runs.

    Parameters
    ----------
    data : Path
        The folder of measured tables; tables that it lacks are passed over.
    """
    out: dict[str, tuple[str, list[StepRow]]] = {}
    newer, older, offline = data / TABLE, data / "mlenergy" / "v2_llm.csv", data / FOLDER
    if newer.is_file():
        table = tabulate([run for run in read_served(newer) if (run.gpu, run.task) != _STALLED])
        # one GPU alone: what the exchanges of several take would be fitted along
        alone = [
            StepRow(run.gpu, run.model, run.batch, 1, run.step_s, float(busy))
            for run, busy in zip(table.runs, table.busy_s, strict=True)
        ]
        out["vllm-0.11"] = ("ML.ENERGY v3, vLLM 0.11.1, one GPU", alone)
    if older.is_file():
        out["vllm-0.5"] = ("ML.ENERGY v2, vLLM 0.5.4", _compared(older_results(older)))
    if (offline / "throughput.csv").is_file():
        for name, engine in (("vllm-offline", "vllm"), ("trtllm", "trtllm")):
            rows = []
            for run in read_engine_runs(offline):
                waves = waves_of(run) if run.engine == engine else None
                if waves is not None:
                    each = (run.time_s / waves.steps, waves.kernel_s / waves.steps)
                    rows.append(StepRow(run.gpu, run.model, waves.sequence_steps / waves.steps, run.gpus, *each))
            out[name] = ("LLM-Inference-Bench, offline", rows)
    return out


def fit_steps(rows: Sequence[StepRow]) -> EngineSteps:
    """Costs, none below zero, with the least relative errors of the steps of `rows`; a robust fit."""
    from scipy.optimize import lsq_linear

    if not rows:
        raise InputError("no runs to fit what an engine adds on")
    measured = np.array([one.measured_s for one in rows])
    several = [float(one.gpus > 1) for one in rows]
    columns = np.array([[1.0, one.sequences, group] for one, group in zip(rows, several, strict=True)])
    missing = measured - np.array([one.kernel_s for one in rows])
    weight = np.ones(len(rows))
    found = np.zeros(3)
    for _ in range(_ROUNDS):
        scale = weight / measured
        found = lsq_linear(columns * scale[:, None], missing * scale, bounds=(0.0, np.inf)).x
        off = np.abs(missing - columns @ found) / measured
        weight = 1.0 / np.sqrt(np.maximum(off, _LEAST_ERROR))
    found[2] *= any(several)
    step, sequence, group = (round(float(one) * 1e6, 3) for one in found)
    return EngineSteps(step, sequence, group)


def step_errors(rows: Sequence[StepRow], steps: EngineSteps) -> Floats:
    """Relative errors of the times of steps with what an engine adds."""
    predicted = np.array([one.kernel_s + steps.step_s(one.sequences, one.gpus) for one in rows])
    return np.asarray(predicted / np.array([one.measured_s for one in rows]) - 1)


def left_out_errors(rows: Sequence[StepRow]) -> Floats:
    """Relative errors of the steps of each model, with costs from those of the others."""
    errors = np.empty(len(rows))
    for model in {one.model for one in rows}:
        others = [one for one in rows if one.model != model]
        mine = [place for place, one in enumerate(rows) if one.model == model]
        errors[mine] = step_errors([rows[place] for place in mine], fit_steps(others) if others else EngineSteps())
    return errors


def scored(source: str, rows: Sequence[StepRow]) -> EngineSteps:
    """The costs of a version, fitted on all of its runs, with the errors of models left out."""
    return replace(
        fit_steps(rows),
        error=float(np.median(np.abs(left_out_errors(rows)))),
        before=float(np.median(np.abs(step_errors(rows, EngineSteps())))),
        rows=len(rows),
        source=source,
    )
