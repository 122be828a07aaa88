"""What serving whole models takes over what kernels benchmarked one by one say: a factor on energy, GPU by GPU."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from joulecast.coefficients.schema import ModelEnergy
from joulecast.coefficients.transfer import power_coefficients
from joulecast.errors import InputError, UnknownNameError, shortened
from joulecast.gpus import Gpu, load_gpu
from joulecast.lowering.execution import Execution
from joulecast.physics.power import static_power_w
from joulecast.physics.settled import at_clock
from joulecast.scenarios.pricing import prepared
from joulecast.workloads.catalogue import from_name
from joulecast.workloads.frames import read_frame
from joulecast.workloads.table import Workload

Floats = npt.NDArray[np.float64]

#: Where the runs lie in a data folder.
TABLE = "mlenergy/v3_llm.csv"

#: Tokens of a prompt by task; none was published. What times of runs on H100s, where the host is no limit, come out
#: right with (3 % mean error); power has no say.
PROMPT_TOKENS: Mapping[str, int] = MappingProxyType({"lm-arena-chat": 570, "gpqa": 300})

#: Mean square of the lengths of answers over the square of their mean: long ones are longer in the batch. Chosen with
#: `PROMPT_TOKENS`; both tasks ask for the same.
LENGTH_SPREAD = 1.5

#: Runs whose kernels are predicted to take such a share of the measured time tell of energy; others wait for a host,
#: or run other kernels.
BUSY = (0.75, 1.25)

#: Runs that draw more of the limit are throttled and tell how slow, not how much.
_CAPPED = 0.95

COLUMNS = ("task", "model_id", "gpu", "n_gpus", "weight_precision", "avg_batch_size_req", "median_itl_ms",
           "avg_output_tokens_per_request", "output_throughput_tok_per_s", "avg_power_all_gpus_w")  # fmt: skip

#: Prompts that one pass of prefill holds.
_PREFILLED = 4


@dataclass(frozen=True)
class ServedRun:
    """Steady state of a language model served by one GPU, its batch always full.

    Attributes
    ----------
    gpu, model, task, dtype : str
    batch : int
        Requests that are answered at the same time, on average.
    answer_tokens : float
        Mean length of an answer.
    step_s : float
        Time in which each request gets a token, with the share of prefill that falls into it. [s]
    power_w : float
        Mean. [W]
    """

    gpu: str
    model: str
    task: str
    dtype: str
    batch: int
    answer_tokens: float
    step_s: float
    power_w: float

    @property
    def context_tokens(self) -> int:
        """Mean tokens before the one that is made."""
        return round(PROMPT_TOKENS[self.task] + LENGTH_SPREAD * self.answer_tokens / 2)


@dataclass(frozen=True)
class ServedTable:
    """Served runs with what their kernels take; arrays have shape (n,).

    Attributes
    ----------
    runs : tuple of ServedRun
    busy_s : ndarray
        Time of the kernels of one step. [s]
    work_w : ndarray
        Energy of one step beyond what is drawn by time, at a factor of 1, over the measured time of the step. [W]
    static_w, limit_w : ndarray
        Drawn by time, and what the limit lets a GPU draw. [W]
    """

    runs: tuple[ServedRun, ...]
    busy_s: Floats
    work_w: Floats
    static_w: Floats
    limit_w: Floats

    def __len__(self) -> int:
        return len(self.runs)

    @property
    def step_s(self) -> Floats:
        """Measured time of a step. [s]"""
        return np.array([run.step_s for run in self.runs])

    @property
    def measured_w(self) -> Floats:
        """Measured mean power. [W]"""
        return np.array([run.power_w for run in self.runs])

    @property
    def models(self) -> npt.NDArray[np.str_]:
        """Model of each run."""
        return np.array([run.model for run in self.runs], dtype=np.str_)

    @property
    def telling(self) -> npt.NDArray[np.bool_]:
        """Runs that the factor is fitted on: explained in time, and below the limit."""
        busy = self.busy_s / self.step_s
        return (busy >= BUSY[0]) & (busy <= BUSY[1]) & (self.measured_w < _CAPPED * self.limit_w)

    def take(self, rows: npt.NDArray[np.bool_]) -> ServedTable:
        """Some of the runs."""
        return ServedTable(
            tuple(run for run, kept in zip(self.runs, rows, strict=True) if kept),
            self.busy_s[rows], self.work_w[rows], self.static_w[rows], self.limit_w[rows],
        )  # fmt: skip

    def power_w(self, factor: float) -> Floats:
        """Mean power of each run at its measured time, if running takes `factor` of what kernels say. [W]"""
        return np.minimum(self.static_w + factor * self.work_w, self.limit_w)


def read_served(path: Path) -> list[ServedRun]:
    """Runs of `PROMPT_TOKENS`' tasks on one GPU.

    Raises
    ------
    InputError
        If the table lacks a column.
    """
    frame = read_frame(path)
    lacking = [column for column in COLUMNS if column not in frame.columns]
    if lacking:
        raise InputError(f"{shortened(path)} lacks {', '.join(lacking)}")
    return [
        ServedRun(
            gpu=load_gpu(row["gpu"]).name,
            model=row["model_id"],
            task=row["task"],
            dtype="fp8" if row["weight_precision"] == "fp8" else "bf16",
            batch=max(round(row["avg_batch_size_req"]), 1),
            answer_tokens=float(row["avg_output_tokens_per_request"]),
            step_s=float(row["avg_batch_size_req"]) / float(row["output_throughput_tok_per_s"]),
            power_w=float(row["avg_power_all_gpus_w"]),
        )
        for row in frame.iter_rows(named=True)
        if row["n_gpus"] == 1 and row["task"] in PROMPT_TOKENS
    ]


def tabulate(runs: Sequence[ServedRun], *, exclude: tuple[str, ...] = ()) -> ServedTable:
    """What the kernels of one step of each run take; runs of models that the catalogue does not know are left out.

    Parameters
    ----------
    runs : sequence of ServedRun
    exclude : tuple of str
        GPUs whose coefficients may not be used.
    """
    kept, busy_s, work_w, static_w, limit_w = [], [], [], [], []
    for run in runs:
        gpu = load_gpu(run.gpu)
        power = power_coefficients(gpu, exclude=exclude)
        try:
            decoded = _workload(run, run.batch, run.context_tokens, 2)
            prefilled = _workload(run, _PREFILLED, PROMPT_TOKENS[run.task], 1)
        except UnknownNameError:
            continue
        step_s, step_j = _taken(decoded, gpu, "decode", exclude)
        prompt_s, prompt_j = _taken(prefilled, gpu, "prefill", exclude)
        prompts = run.batch / run.answer_tokens / _PREFILLED
        kept.append(run)
        busy_s.append(step_s + prompts * prompt_s)
        work_w.append((step_j + prompts * prompt_j) / run.step_s / power.model_factor)
        static_w.append(float(static_power_w(gpu.clock_max_mhz, gpu, power)))
        limit_w.append(gpu.power_limit_default_w * power.limit_share)
    return ServedTable(tuple(kept), *(np.array(column) for column in (busy_s, work_w, static_w, limit_w)))


def _workload(run: ServedRun, batch: int, prompt: int, generated: int) -> Workload:
    return from_name(run.model, batch=batch, prompt_tokens=prompt, generate_tokens=generated, dtype=run.dtype)


def _taken(workload: Workload, gpu: Gpu, phase: str, exclude: tuple[str, ...]) -> tuple[float, float]:
    """Time of the kernels of a phase at the highest clock, and their energy beyond what is drawn by time. [s, J]"""
    _, rows = prepared(workload, gpu, Execution(launch_mode="cuda_graph", engine="vllm"), exclude)
    mine = np.array([one.phase == phase for one in workload.passes])[rows.pass_id]
    often = np.where(mine, rows.count * np.array([one.repeats for one in workload.passes])[rows.pass_id], 0.0)
    time_s, power_w = at_clock(rows.priced, gpu.clock_max_mhz)
    static_w = static_power_w(gpu.clock_max_mhz, gpu, rows.priced.power)
    return float(often @ time_s), float(often @ ((power_w - static_w) * time_s))


def factor_of(table: ServedTable) -> float:
    """Energy over what kernels say: the median over models of their median. Dimensionless.

    Few parameters that many runs of a model move alike; the median of models takes no harm from one whose kernels
    are other ones than those that were priced.
    """
    ratio = (table.measured_w - table.static_w) / table.work_w
    return float(np.median([np.median(ratio[table.models == model]) for model in np.unique(table.models)]))


def left_out_errors(table: ServedTable, kin: Callable[[str], str] = str) -> Floats:
    """Relative errors of power at measured times, each model's with a factor from the others; a factor of 1 if none.

    Parameters
    ----------
    table : ServedTable
        Of one GPU.
    kin : callable
        Names what a model is left out together with.
    """
    groups = np.array([kin(model) for model in table.models])
    power_w = np.empty(len(table))
    for group in np.unique(groups):
        others = table.take((groups != group) & table.telling)
        power_w[groups == group] = table.take(groups == group).power_w(factor_of(others) if len(others) else 1.0)
    return power_w / table.measured_w - 1


def family_name(model: str) -> str:
    """Whose model it is, the sizes and versions of one house alike: ``Qwen/Qwen3-14B`` is ``Qwen``."""
    return model.split("/")[0]


def fit_all_served(folder: Path, tell: Callable[[str], None] = lambda _: None) -> dict[str, ModelEnergy]:
    """Factors of every GPU that served models in the data folder; none without the table.

    Parameters
    ----------
    folder : Path
        The data folder.
    tell : callable
        Gets a line for each GPU.
    """
    path = folder / TABLE
    by_gpu: dict[str, list[ServedRun]] = defaultdict(list)
    for run in read_served(path) if path.is_file() else ():
        by_gpu[run.gpu].append(run)
    out = {}
    for name, runs in by_gpu.items():
        table = tabulate(runs)
        telling = table.take(table.telling)
        if not len(telling):
            continue
        errors = left_out_errors(telling)
        plain = telling.power_w(1.0) / telling.measured_w - 1
        models = ", ".join(sorted(set(telling.models.tolist())))
        out[name] = ModelEnergy(
            factor=factor_of(telling),
            source=f"{len(telling)} served runs of {models}",
            rows=len(telling),
            error=float(np.abs(errors).mean()),
            before=float(np.abs(plain).mean()),
        )
        tell(f"{name:18s} served {len(telling):4d} runs  x{out[name].factor:.2f}  power {out[name].error:.1%}")
    return out
