"""Scores serving engines run offline: fixed batches and lengths, one to many GPUs (LLM-Inference-Bench).

Kernels are those that the package ships for the engine. What the engine's Python does between two steps is fitted:
a cost a step, one a sequence of its batch, and one for telling it to other GPUs, for each machine and engine, on
the models that are not scored.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from joulecast.coefficients.transfer import power_coefficients
from joulecast.errors import InputError, shortened
from joulecast.gpus import load_gpu
from joulecast.lowering.execution import Execution
from joulecast.physics.power import static_power_w
from joulecast.scenarios.inference import predict_workload
from joulecast.scenarios.memory import expert_weight_bytes, memory_need
from joulecast.validation.runs import ScoredRun
from joulecast.workloads.catalogue import from_name
from joulecast.workloads.frames import read_frame

Floats = npt.NDArray[np.float64]

FOLDER = "e2e/llm_inference_bench"

#: The publishers' machines, and engines whose kernels the package knows.
GPUS = {"Nvidia A100 GPU": "A100-SXM-40GB", "Nvidia H100 GPU": "H100-SXM-80GB", "Nvidia GH200 GPU": "GH200-96GB"}
ENGINES = {"vLLM": "vllm", "TensorRT-LLM": "trtllm"}

#: Share of the memory that the engines take; what weights leave of it holds the cache.
_MEMORY_SHARE = 0.9

COLUMNS = ("hardware", "n_devices", "framework", "model_id", "input_tokens", "output_tokens", "batch_size",
           "latency_s", "throughput_tok_per_s")  # fmt: skip


@dataclass(frozen=True)
class EngineRun:
    """One measured run: a batch of equal prompts, all answered to the same length.

    Attributes
    ----------
    machine, gpu, engine, model : str
    gpus, prompt, generated, batch : int
    time_s : float
        Of the whole batch. [s]
    power_w : float
        Mean of one GPU; NaN where it was not read. [W]
    """

    machine: str
    gpu: str
    engine: str
    model: str
    gpus: int
    prompt: int
    generated: int
    batch: int
    time_s: float
    power_w: float


def read_engine_runs(folder: Path) -> list[EngineRun]:
    """Measured runs of the engines and GPUs that the package knows.

    Parameters
    ----------
    folder : Path
        Holds ``throughput.csv`` and ``power.csv``.

    Raises
    ------
    InputError
        If a table lacks a column.
    """
    out = []
    for name, power in (("throughput.csv", False), ("power.csv", True)):
        frame = read_frame(folder / name)
        wanted = (*COLUMNS, *(("avg_power_w",) if power else ()))
        lacking = [column for column in wanted if column not in frame.columns]
        if lacking:
            raise InputError(f"{shortened(folder / name)} lacks {', '.join(lacking)}")
        for row in frame.iter_rows(named=True):
            if row["hardware"] not in GPUS or row["framework"] not in ENGINES:
                continue
            tokens = row["batch_size"] * (row["input_tokens"] + row["output_tokens"])
            out.append(
                EngineRun(
                    machine=row["hardware"],
                    gpu=GPUS[row["hardware"]],
                    engine=ENGINES[row["framework"]],
                    model=row["model_id"],
                    gpus=int(row["n_devices"]),
                    prompt=int(row["input_tokens"]),
                    generated=int(row["output_tokens"]),
                    batch=int(row["batch_size"]),
                    time_s=tokens / row["throughput_tok_per_s"],
                    power_w=float(row["avg_power_w"]) if power else math.nan,
                )
            )
    return out


@dataclass(frozen=True)
class Waves:
    """What kernels take of a run whose batch the memory may split in waves, and what its steps are.

    Attributes
    ----------
    kernel_s, energy_j : float
        Time of all kernels, and energy of one GPU meanwhile. [s, J]
    steps, sequence_steps : float
        Steps of all waves, and the sum of the sequences in each.
    clock_mhz : float
    """

    kernel_s: float
    energy_j: float
    steps: float
    sequence_steps: float
    clock_mhz: float


def waves_of(run: EngineRun) -> Waves | None:
    """Price a run; None where it can't be.

    That is: the model is not known, its context too short, there is no room for it, or the run was faster than the
    memory gives the weights once a step (its answers ended early).
    """
    try:
        one = _priced(run.model, run.gpu, run.engine, run.gpus, run.prompt, run.generated, 1)
    except InputError:
        return None
    room, each, least_s = one[3]
    if run.time_s < run.generated * least_s:
        return None
    together = min(run.batch, int(room / each))
    if together < 1:
        return None
    counts = [together] * (run.batch // together) + ([run.batch % together] if run.batch % together else [])
    found = [_priced(run.model, run.gpu, run.engine, run.gpus, run.prompt, run.generated, n) for n in counts]
    steps = float(run.generated * len(counts))
    return Waves(
        kernel_s=sum(part[0] for part in found),
        energy_j=sum(part[1] for part in found),
        steps=steps,
        sequence_steps=float(run.generated * run.batch),
        clock_mhz=found[0][2],
    )


@lru_cache(maxsize=4096)
def _priced(
    model: str, gpu: str, engine: str, gpus: int, prompt: int, generated: int, batch: int
) -> tuple[float, float, float, tuple[float, float, float]]:
    """Kernel time, energy of one GPU and clock of one wave. [s, J, MHz]

    Then memory for the cache, the cache of one sequence, and the least time of a step. [GB, GB, s]
    """
    execution = Execution(launch_mode="cuda_graph", engine=engine, tp=gpus)
    workload = from_name(model, prompt_tokens=prompt, generate_tokens=generated, batch=batch, dtype="fp16")
    described = load_gpu(gpu)
    need = memory_need(workload, described, execution)
    room = _MEMORY_SHARE * need.available_gb - need.weights_gb - need.activations_gb
    found = predict_workload(workload, described, execution=execution, ignore_memory=True)
    decode = found.phases[-1]
    read_gb = (workload.memory.weights_bytes - expert_weight_bytes(workload)) / gpus / 1e9
    limits = (room, need.kv_cache_gb / batch, read_gb / described.dram_gb_s)
    return found.time_s, found.energy_j / gpus, decode.clock_mhz, limits


@dataclass(frozen=True)
class StepCost:
    """What an engine's host adds to each step while the GPU waits. [s]

    Attributes
    ----------
    step_s, sequence_s, group_s : float
        A step, a sequence in it, and a step on more than one GPU.
    """

    step_s: float
    sequence_s: float
    group_s: float

    def of(self, waves: Waves, gpus: int) -> float:
        """Over all steps of a run. [s]"""
        step = self.step_s + (self.group_s if gpus > 1 else 0.0)
        return step * waves.steps + self.sequence_s * waves.sequence_steps


def fit_step_cost(runs: Sequence[EngineRun], waves: Sequence[Waves]) -> StepCost:
    """Costs, none below zero, with the least relative errors of the times of `runs`; a robust fit."""
    from scipy.optimize import lsq_linear

    measured = np.array([one.time_s for one in runs])
    columns = np.array([[w.steps, w.sequence_steps, w.steps * (r.gpus > 1)] for r, w in zip(runs, waves, strict=True)])
    missing = measured - np.array([w.kernel_s for w in waves])
    weight = np.ones(len(runs))
    found = np.zeros(3)
    for _ in range(_ROUNDS):
        scale = weight / measured
        found = lsq_linear(columns * scale[:, None], missing * scale, bounds=(0.0, np.inf)).x
        off = np.abs(missing - columns @ found) / measured
        weight = 1.0 / np.sqrt(np.maximum(off, _LEAST_ERROR))
    return StepCost(*(float(one) for one in found))


#: Rounds of the weighting that makes the fit one of absolute errors, and the error below which they count alike.
_ROUNDS = 8
_LEAST_ERROR = 0.02


def score_engines(folder: Path, tell: Callable[[str, float], None] = lambda *_: None) -> list[ScoredRun]:
    """Every run of `folder` that can be priced, its model left out of the fit of its engine's step costs."""
    by_machine: dict[tuple[str, str], list[tuple[EngineRun, Waves]]] = defaultdict(list)
    runs = read_engine_runs(folder)
    for i, run in enumerate(runs):
        tell(f"{run.gpu} {run.engine}", i / len(runs))
        waves = waves_of(run)
        if waves is not None:
            by_machine[run.machine, run.engine].append((run, waves))
    out = []
    for (_, engine), pairs in by_machine.items():
        for model in dict.fromkeys(run.model for run, _ in pairs):
            others = [pair for pair in pairs if pair[0].model != model]
            cost = fit_step_cost(*zip(*others, strict=True)) if others else StepCost(0.0, 0.0, 0.0)
            out += [_scored(run, waves, cost, engine) for run, waves in pairs if run.model == model]
    return out


def _scored(run: EngineRun, waves: Waves, cost: StepCost, engine: str) -> ScoredRun:
    gpu = load_gpu(run.gpu)
    waiting_s = cost.of(waves, run.gpus)
    time_s = waves.kernel_s + waiting_s
    static_w = float(static_power_w(waves.clock_mhz, gpu, power_coefficients(gpu)))
    return ScoredRun(
        group=f"{run.gpu}, {engine}",
        model=run.model,
        gpu=run.gpu,
        time_s=time_s,
        power_w=(waves.energy_j + static_w * waiting_s) / time_s,
        measured_s=run.time_s,
        measured_w=run.power_w,
        host_bound=waiting_s > waves.kernel_s,
    )


def holds_engine_runs(path: Path) -> Path | None:
    """The folder of engines' runs at `path`, if there is one."""
    for folder in (path / FOLDER, path):
        if (folder / "throughput.csv").is_file() and (folder / "power.csv").is_file():
            return folder
    return None
