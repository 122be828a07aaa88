"""Scores thousand-sample runs of Hugging Face pipelines at batch 1, in eager PyTorch (Power Hungry Processing).

Prompts and answers of the data sets are not published, and the host's Python takes most of the time. What is not
known is fitted on the models that are not scored: cost of a launch and of a module call, what a sample costs besides
(one number for text, one for each image task), what the code around a model costs for each token that it generates,
and how many tokens each task generates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from joulecast.coefficients.schema import HostCoefficients, PowerCoefficients
from joulecast.coefficients.transfer import power_coefficients
from joulecast.errors import InputError, UnknownNameError, shortened
from joulecast.gpus import Gpu, load_gpu
from joulecast.lowering.execution import Execution
from joulecast.lowering.lower import lower
from joulecast.physics.host import MODULES, operations_started, plain_calls
from joulecast.physics.power import core_scale, static_power_w
from joulecast.physics.timeline import pass_time_s
from joulecast.physics.timing import duration_s
from joulecast.scenarios.pricing import priced_rows
from joulecast.validation.pipeline_meter import Meter, Readings, fit_meter, readings_of
from joulecast.validation.runs import ScoredRun
from joulecast.workloads.catalogue import entry, from_name
from joulecast.workloads.frames import read_frame
from joulecast.workloads.table import Workload

Floats = npt.NDArray[np.float64]

FOLDER = "e2e/power_hungry_processing"
FILE = "inference_1000.csv"
COLUMNS = ("task_dataset", "model_id", "duration_s", "mean_gpu_power_all_gpus_w", "gpu_count", "num_parameters")

#: Samples of a row.
_SAMPLES = 1000.0

GPU = "A100-SXM-80GB"
_EAGER = Execution(launch_mode="eager", attention="eager")

#: Tokens that a data set's samples are thought to have before any run; then they are fitted.
_PROMPT_TOKENS = {"imdb": 250, "squad": 180, "sciq": 120, "cnn": 500, "samsum": 150, "xsum": 400, "c4": 300,
                  "oscar": 300, "record": 200}  # fmt: skip
_SHORT_TOKENS = 30

#: Models whose answers end by themselves, each kind in its own way; the others run to the length that is asked for.
_ANSWERING = ("flan-t5", "bloomz")


#: Families whose published files hold numbers of 16 bits; those of the others hold 32.
_IN_HALVES = frozenset({"bloom", "llama", "opt"})


@dataclass(frozen=True)
class PipelineRun:
    """One task and model, the median of its repetitions.

    Attributes
    ----------
    task, model : str
    time_s : float
        A sample. [s]
    together_w, gpus : float
        Energy of all GPUs over the time of the samples, and how many there are. [W]
    parameters : float
        Of the model.
    """

    task: str
    model: str
    time_s: float
    together_w: float
    gpus: float
    parameters: float

    @property
    def generates(self) -> str:
        """Name of the number of tokens that it generates; empty where it generates none."""
        if not self.task.startswith(("textgen", "zeroshot", "summarize")):
            return ""
        kin = next((name for name in _ANSWERING if name in self.model), "")
        task = "textgen" if self.task.startswith("textgen") else self.task.removesuffix("_bloomz")
        return f"{task}/{kin}"

    @property
    def prompt(self) -> str:
        """Name of the number of tokens that its samples have."""
        return next((word for word in _PROMPT_TOKENS if word in self.task), "short")

    @property
    def file_gb(self) -> float:
        """Size of the files that it is loaded from. [GB]"""
        return self.parameters * (2.0 if entry(self.model).config["model_type"] in _IN_HALVES else 4.0) * 1e-9

    @property
    def overhead(self) -> str:
        """Name of what a sample costs besides: pictures are read and resized."""
        return self.task if self.task.startswith("image") else "text"


@dataclass(frozen=True)
class Step:
    """One pass of a pipeline's model on the GPU.

    Attributes
    ----------
    kernel_s, busy_j : float
        Time of its kernels, and their energy beside that of a clocked GPU with nothing running. [s, J]
    launches, modules : float
        What it costs the host, in launches and calls of modules.
    """

    kernel_s: float
    busy_j: float
    launches: float
    modules: float


@dataclass(frozen=True)
class Model:
    """Passes of a model: over a short and a long prompt (`_LENGTHS` tokens; an image model's are alike), and later."""

    short: Step
    long: Step
    later: Step


def read_pipeline_runs(folder: Path) -> list[PipelineRun]:
    """Tasks and models of ``inference_1000.csv``.

    Raises
    ------
    InputError
        If it lacks a column.
    """
    import polars as pl

    frame = read_frame(folder / FILE)
    lacking = [column for column in COLUMNS if column not in frame.columns]
    if lacking:
        raise InputError(f"{shortened(folder / FILE)} lacks {', '.join(lacking)}")
    middle = frame.group_by("task_dataset", "model_id", maintain_order=True).agg(
        pl.col("duration_s", "mean_gpu_power_all_gpus_w", "gpu_count", "num_parameters").median()
    )
    return [
        PipelineRun(task, model, seconds / _SAMPLES, watts, gpus, parameters)
        for task, model, seconds, watts, gpus, parameters in middle.iter_rows()
    ]


#: Lengths of the prompts that are priced; between them times and energies are nearly straight. [tokens]
_LENGTHS = (16, 512)


def priced_model(name: str, images: bool, gpu: Gpu, power: PowerCoefficients) -> Model | None:
    """Price the passes of a model in fp32; None where the catalogue does not know it."""
    try:
        if images:
            one = _steps(from_name(name, dtype="fp32"), gpu, power)[0]
            return Model(one, one, one)
        decodes = entry(name).config["model_type"] in _DECODING
        found = [
            _steps(from_name(name, prompt_tokens=length, generate_tokens=2 if decodes else 0, dtype="fp32"), gpu, power)
            for length in _LENGTHS
        ]
    except UnknownNameError:
        return None
    return Model(found[0][0], found[1][0], found[0][-1])


_DECODING = frozenset({"bloom", "gpt2", "llama", "opt", "t5"})


def _steps(workload: Workload, gpu: Gpu, power: PowerCoefficients) -> list[Step]:
    """The passes of a workload."""
    lowered = lower(workload, gpu, _EAGER)
    rows = priced_rows(lowered, gpu)
    clock = gpu.clock_max_mhz
    seconds = duration_s(rows.priced.times, gpu, clock)
    scale = float(core_scale(clock, gpu, power))
    energy = rows.priced.energy
    active_w = power.active_w * scale * clock / gpu.rate_clock_mhz
    joules = energy.core_total_j * scale + energy.dram_j + active_w * energy.busy * seconds
    kinds = np.array(rows.kinds)[rows.kind_of]
    launches = operations_started(rows.priced.work.launches) * np.where(kinds == "copy", _COPY_SHARE, 1.0)
    calls = np.isin(kinds, list(MODULES)).astype(float)
    found = []
    for number in range(len(workload.passes)):
        count = np.where(rows.pass_id == number, rows.count, 0.0)
        modules = float(count @ calls) + plain_calls(workload.info)
        found.append(Step(float(count @ seconds), float(count @ joules), float(count @ launches), modules))
    return found


_COPY_SHARE = HostCoefficients.copy_share


@dataclass(frozen=True)
class Fit:
    """Logarithms of what was fitted, by name.

    ``host``: speed of the host, over that of `HostCoefficients`; ``sample/...`` and ``step/...`` [s]; ``prompt/...``
    and ``tokens/...`` [tokens].
    """

    values: Mapping[str, float]

    def of(self, kind: str, names: Sequence[str]) -> Floats:
        """Values by name; 1 for the empty name."""
        return np.exp([self.values[f"{kind}/{name}"] if name else 0.0 for name in names])

    def predicted(self, table: Table) -> tuple[Floats, Floats, Floats]:
        """Time of each sample, time of its kernels, and their energy. [s, s, J]"""
        host_s = 1e-6 * math.exp(self.values["host/all"])
        place = (self.of("prompt", table.prompts) - _LENGTHS[0]) / (_LENGTHS[1] - _LENGTHS[0])
        first = np.maximum(table.short + place * (table.long - table.short), 0.1 * table.short)
        tokens = self.of("tokens", table.tokens)
        often = tokens - 1.0
        steps = pass_time_s(first[0], first[2] * host_s) + often * pass_time_s(table.later[0], table.later[2] * host_s)
        kernel_s, joules = (first[:2] + often * table.later[:2])[:2]
        beside = self.of("sample", table.overheads) + np.where(table.generating, tokens * self.of("step", ["all"]), 0.0)
        return beside + steps, kernel_s, joules


@dataclass(frozen=True)
class Table:
    """Runs with the passes of their models, as columns.

    Attributes
    ----------
    short, long, later : ndarray, shape (3, r)
        Kernel time, energy, and host time on the host of `HostCoefficients`. [s, J, us]
    prompts, tokens, overheads : tuple of str
        `PipelineRun.prompt` (empty for images), ``generates`` and ``overhead`` of each.
    """

    runs: tuple[PipelineRun, ...]
    short: Floats
    long: Floats
    later: Floats
    prompts: tuple[str, ...]
    tokens: tuple[str, ...]
    overheads: tuple[str, ...]

    @classmethod
    def of(cls, runs: Sequence[PipelineRun], models: Mapping[str, Model]) -> Table:
        """The runs in columns."""
        host = HostCoefficients()

        def column(name: str) -> Floats:
            steps = [getattr(models[run.model], name) for run in runs]
            rows = [(s.kernel_s, s.busy_j, s.launches * host.eager_us + s.modules * host.module_us) for s in steps]
            return np.array(rows).T

        return cls(
            tuple(runs),
            column("short"),
            column("long"),
            column("later"),
            prompts=tuple("" if run.task.startswith("image") else run.prompt for run in runs),
            tokens=tuple(run.generates for run in runs),
            overheads=tuple(run.overhead for run in runs),
        )

    @property
    def generating(self) -> npt.NDArray[np.bool_]:
        """Which of them generate tokens, one after the other."""
        return np.array([bool(name) for name in self.tokens])

    @property
    def names(self) -> list[str]:
        """Everything that its runs need fitted."""
        steps = tuple("all" if name else "" for name in self.tokens)
        groups = {"sample": self.overheads, "step": steps, "prompt": self.prompts, "tokens": self.tokens}
        return ["host/all", *dict.fromkeys(f"{kind}/{name}" for kind, all_ in groups.items() for name in all_ if name)]


def _thought(name: str) -> tuple[float, float]:
    """What is thought of a value before any run, and the width of that in natural logarithms."""
    kind, _, which = name.partition("/")
    if kind == "host":
        return 2.0, 0.7
    if kind == "step":
        return 1e-3, 1.0
    if kind == "sample":
        return (1e-3, 1.0) if which == "text" else (12e-3, 0.7)
    return (_PROMPT_TOKENS.get(which, _SHORT_TOKENS), 0.5) if kind == "prompt" else (10.0, 2.0)


def fit_pipelines(table: Table) -> Fit:
    """Fit on some runs with a robust relative loss and weak priors."""
    from scipy.optimize import least_squares

    names = table.names
    prior, width = np.array([_thought(name) for name in names]).T
    measured = np.log([run.time_s for run in table.runs])

    def residuals(theta: Floats) -> Floats:
        time_s, _, _ = Fit(dict(zip(names, theta.tolist(), strict=True))).predicted(table)
        return np.concatenate([np.log(time_s) - measured, 0.1 * (theta - np.log(prior)) / width])

    found = least_squares(residuals, np.log(prior), loss="soft_l1", f_scale=0.1)
    return Fit(dict(zip(names, found.x.tolist(), strict=True)))


def score_pipelines(folder: Path, tell: Callable[[str, float], None] = lambda *_: None) -> list[ScoredRun]:
    """Every run of a model that the catalogue knows, without models of its shape in any fit.

    What the meter read beside the GPU that worked (`pipeline_meter`) is taken out as the other models tell. Power that
    one GPU can't draw, that is less than what loading took, or that was read for less than a period of the meter is set
    aside; it and the energy are NaN.
    """
    gpu = load_gpu(GPU)
    power = power_coefficients(gpu)
    runs = read_pipeline_runs(folder)
    models: dict[str, Model] = {}
    for i, (name, images) in enumerate(dict.fromkeys((run.model, run.task.startswith("image")) for run in runs)):
        tell(f"pipelines {name}", i / len(runs))
        found = priced_model(name, images, gpu, power)
        if found is not None:
            models[name] = found
    static_w = float(static_power_w(gpu.clock_max_mhz, gpu, power))
    known = [run for run in runs if run.model in models]
    shapes = [str(sorted(entry(run.model).config.items())) for run in known]
    out = []
    for i, left_out in enumerate(dict.fromkeys(shapes)):
        tell("pipelines", 0.5 + 0.5 * i / len(set(shapes)))
        others = Table.of([run for run, shape in zip(known, shapes, strict=True) if shape != left_out], models)
        fit = fit_pipelines(others)
        few = Table.of([run for run, shape in zip(known, shapes, strict=True) if shape == left_out], models)
        few = Table.of([run for run in few.runs if set(Table.of([run], models).names) <= set(fit.values)], models)
        if few.runs:
            meter = _meter(others, fit, static_w)
            out += _scored(few, fit, gpu, static_w, meter)
    return out


def _meter(table: Table, fit: Fit, static_w: float) -> Meter:
    """The meter that runs with a prediction of their own tell."""
    joules = fit.predicted(table)[2]
    return fit_meter(_readings(table), static_w + joules / np.array([run.time_s for run in table.runs]))


def _readings(table: Table) -> Readings:
    return readings_of([(run.task, run.file_gb, run.time_s * _SAMPLES, run.gpus, run.together_w) for run in table.runs])


def _scored(table: Table, fit: Fit, gpu: Gpu, static_w: float, meter: Meter) -> list[ScoredRun]:
    idle_w, loading_w = meter.beside_w(_readings(table))
    alone_w = np.array([run.together_w for run in table.runs]) - idle_w - loading_w
    read = (alone_w > 0) & (alone_w <= gpu.power_limit_default_w) & (loading_w <= _MOST_LOADING * alone_w)
    return [
        ScoredRun(
            group=run.task.split("_")[0],
            model=run.model,
            gpu=gpu.name,
            time_s=float(time_s),
            power_w=static_w + float(joules / time_s),
            measured_s=run.time_s,
            measured_w=float(watts) if told and run.time_s * _SAMPLES > _SHORTEST_S else math.nan,
            host_bound=bool(kernel_s < _GPU_SHARE * time_s),
        )
        for run, time_s, kernel_s, joules, watts, told in zip(
            table.runs, *fit.predicted(table), alone_w, read, strict=True
        )
    ]


#: Loading over what is left to the GPU that worked, above which a reading tells little of it.
_MOST_LOADING = 1.0


#: A run is bound by its host where kernels take less than this share of the time.
_GPU_SHARE = 0.85

#: The meter of these runs was read every 15 s: shorter runs hold no whole period. [s]
_SHORTEST_S = 15.0


def holds_pipeline_runs(path: Path) -> Path | None:
    """The folder of pipelines' runs at `path`, if there is one."""
    for folder in (path / FOLDER, path):
        if (folder / FILE).is_file():
            return folder
    return None
