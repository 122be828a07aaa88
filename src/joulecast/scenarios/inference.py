"""`predict`: a workload on a GPU, from operations to time, watts, joules and where they go."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from joulecast.bounds.ranges import beyond_settable, check_clock_mhz, check_power_limit_w
from joulecast.coefficients import store
from joulecast.coefficients.intervals import load_intervals
from joulecast.coefficients.schema import PROVENANCES, HostCoefficients
from joulecast.errors import InfeasibleError
from joulecast.gpus import Gpu, load_gpu
from joulecast.gpus.state import running_at
from joulecast.lowering.execution import Execution
from joulecast.lowering.lower import Lowered, undivided
from joulecast.physics.operating import state_notes
from joulecast.physics.power import POWER_MODULES
from joulecast.physics.settled import BOUNDS, bound_by, module_energy_j
from joulecast.physics.timeline import Run, run_phase
from joulecast.physics.uncertainty import bounds, combined, of_sum, under_limit_width
from joulecast.scenarios.launched import Launched
from joulecast.scenarios.memory import memory_need, refuse_what_does_not_fit
from joulecast.scenarios.prediction import MemoryNeed, PhasePrediction, Prediction
from joulecast.scenarios.pricing import Rows, host_of, laid_out, nearly_alike, passes_of, prepared
from joulecast.scenarios.unpriced import unpriced_warnings, unpriced_width
from joulecast.workloads.kinds import EXCHANGES, kind
from joulecast.workloads.table import Workload, decode

Floats = npt.NDArray[np.float64]

IDLE = "idle waiting"

#: GPUs that the links of the catalogue join.
GPUS_OF_A_NODE = 8


class Columns(Mapping[str, npt.NDArray[Any]]):
    """Columns by name; those that take long to write out (texts) are made when first asked for."""

    def __init__(self, columns: Mapping[str, npt.NDArray[Any] | Callable[[], npt.NDArray[Any]]]) -> None:
        self._columns = dict(columns)

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        value = self._columns[name]
        if callable(value):
            value = self._columns[name] = value()
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)


def predict_workload(
    workload: Workload,
    gpu: str | Gpu,
    *,
    execution: Execution = Execution(),  # noqa: B008 - frozen
    changes: Mapping[str, str | float] | None = None,
    clock_mhz: float | None = None,
    power_limit_w: float | None = None,
    host_us_per_launch: float | None = None,
    ignore_memory: bool = False,
    exclude: tuple[str, ...] = (),
    memory_clock_mhz: float | None = None,
    temperature_c: float | None = None,
    host_speed: float | None = None,
    strict: bool = False,
) -> Prediction:
    """Predict a workload on a GPU.

    Parameters
    ----------
    workload : Workload
    gpu : str or Gpu
    execution : Execution
        How it is run.
    changes : mapping, optional
        Fields of the GPU to change, as ``--set`` does.
    clock_mhz : float, optional
        Core clock asked for; default the highest. [MHz]
    power_limit_w : float, optional
        Default the GPU's own. [W]
    host_us_per_launch : float, optional
        Cost of a launch on the host; default by launch mode. [us]
    ignore_memory : bool
        Price a model that does not fit all the same.
    exclude : tuple of str
        GPUs whose fitted coefficients may not be used (to score as if they were unmeasured).
    memory_clock_mhz : float, optional
        One of the GPU's steps; default the highest. [MHz]
    temperature_c : float, optional
        Of the GPU, for its leakage; default that of the measurements. [deg C]
    host_speed : float, optional
        Speed of the host over that of the fitted one; not beside `host_us_per_launch`.
    strict : bool
        Refuse a workload with operations that can't be priced.

    Returns
    -------
    Prediction

    Raises
    ------
    InputError
        For a clock or limit out of range, a format nothing can stand in for, or a layout that does not divide.
    InfeasibleError
        If the model does not fit the memory.
    """
    described = running_at(load_gpu(gpu, changes), memory_clock_mhz=memory_clock_mhz, temperature_c=temperature_c)
    clock = check_clock_mhz(clock_mhz, described.clock_min_mhz, described.clock_max_mhz, described.name)
    limit = described.power_limit_default_w
    if power_limit_w is not None:
        lowest_w = described.power_limit_min_w
        limit = check_power_limit_w(power_limit_w, described.idle_w, described.name, lowest_w)
    memory = memory_need(workload, described, execution)
    if not ignore_memory:
        refuse_what_does_not_fit(workload, memory, described, execution)
    host = host_of(described, host_us_per_launch, host_speed)
    lowered, rows = prepared(workload, described, execution, exclude)
    runs = {
        phase: run_phase(passes_of(lowered, rows, members, host), clock, limit)
        for phase, members in _phases(workload, rows).items()
    }
    parts = _Parts(lowered, rows, runs, described, limit, host)
    warnings = unpriced_warnings(workload.name, parts.unpriced_shares(), strict)
    if not memory.fits:
        warnings.append(
            f"needs {memory.needed_gb:.1f} GB of memory where {described.name} has {memory.available_gb:.1f} GB: "
            "it would not run"
        )
    if max(execution.tp, execution.ep) > GPUS_OF_A_NODE:
        warnings.append(
            f"collectives of {max(execution.tp, execution.ep)} GPUs are priced with the links inside one node"
        )
    warnings += undivided(lowered)
    warnings += beyond_settable(limit, described.power_limit_min_w, described.power_limit_max_w, described.name)
    if any(run.clock_mhz <= described.clock_min_mhz * 1.01 and run.throttled for run in runs.values()):
        warnings.append(f"the power limit of {limit:g} W is exceeded even at the lowest clock")
    return parts.prediction(memory, tuple(warnings))


def _phases(workload: Workload, rows: Rows) -> dict[str, npt.NDArray[np.intp]]:
    """Rows of each phase that runs something, in the order of the passes."""
    names = [one.phase for one in workload.passes]
    members = {
        phase: np.flatnonzero(np.isin(rows.pass_id, [i for i, name in enumerate(names) if name == phase]))
        for phase in dict.fromkeys(names)
    }
    return {phase: some for phase, some in members.items() if some.size}


class _Parts:
    """Puts the figures of a prediction together from the runs of its phases."""

    def __init__(
        self, lowered: Lowered, rows: Rows, runs: Mapping[str, Run], gpu: Gpu, limit_w: float, host: HostCoefficients
    ) -> None:
        self.lowered, self.rows, self.runs, self.gpu, self.limit_w = lowered, rows, runs, gpu, limit_w
        self.host = host
        self.execution = lowered.execution
        passes = lowered.workload.passes
        self.repeats = np.array([one.repeats for one in passes])[rows.pass_id]
        self.runs_of_row = rows.count * self.repeats * self.execution.microbatches
        self.phase_names = tuple(runs)
        codes = {name: code for code, name in enumerate(runs)}
        self.phase_of = np.array([codes.get(one.phase, -1) for one in passes])[rows.pass_id]
        self.clock = np.array([runs[name].clock_mhz for name in self.phase_names])[self.phase_of]
        self.kernel_s = np.empty(len(rows.priced))
        for code, name in enumerate(self.phase_names):
            self.kernel_s[self.phase_of == code] = runs[name].kernel_s
        self.time = self.kernel_s * self.runs_of_row
        self.module_j = module_energy_j(rows.priced, self.kernel_s, self.clock) * self.runs_of_row
        self.energy = self.module_j.sum(axis=0)
        self.bound = bound_by(rows.priced, self.clock)
        often = {name: sum(one.repeats for one in passes if one.phase == name) for name in runs}
        self.laid_out = {
            name: laid_out(self.execution, rows, often[name], run.time_s, run.energy_j, run.clock_mhz)
            for name, run in runs.items()
        }

    def phase(self, name: str) -> PhasePrediction:
        run, rows = self.runs[name], self.rows
        members = self.phase_of == self.phase_names.index(name)
        passes = [one for one in self.lowered.workload.passes if one.phase == name]
        repeats = sum(one.repeats for one in passes)
        replicas = self.execution.microbatches * self.execution.dp
        tokens = sum(one.repeats * one.tokens for one in passes) * replicas
        layout = self.laid_out[name]
        time_s, energy = float(layout.time_s), float(layout.energy_j)
        spread = time_s / run.time_s
        weight = self.runs_of_row[members]
        work = rows.priced.work
        rate = np.where(work.tensor_flop > 0, work.tensor_flop_per_clk, work.cuda_flop_per_clk)[members]
        ideal_s = float(np.sum(weight * work.useful_flop[members] / rate)) / (self.gpu.clock_max_mhz * 1e6)
        dram_bytes = float(weight @ work.dram_bytes[members])
        by_bound = np.bincount(self.bound[members], weights=self.time[members], minlength=len(BOUNDS))
        bound = "host" if run.host_s > run.gpu_s else BOUNDS[int(by_bound.argmax())]
        if nearly_alike(run.gpu_s, run.host_s):
            bound = "mixed"
        generated = float(self.lowered.workload.info.get("batch", 1)) * replicas if name == "prefill" else 0.0
        is_llm = self.lowered.workload.info.get("generate_tokens", 0)
        return PhasePrediction(
            phase=name,
            passes=float(repeats),
            time_s=time_s,
            power_w=energy / time_s,
            energy_j=energy,
            gpu_time_s=run.gpu_s * spread,
            host_time_s=run.host_s * spread,
            idle_share=run.idle_s / run.time_s,
            clock_mhz=run.clock_mhz,
            throttled=run.throttled,
            bound_by=bound + (", cap" if run.throttled else ""),
            tokens_in=float(tokens),
            tokens_out=float(tokens) if name == "decode" else (generated if is_llm else 0.0),
            flop=float(weight @ work.useful_flop[members]) * self.execution.alike,
            dram_bytes=dram_bytes * self.execution.alike,
            peak_flop_share=ideal_s / (time_s * self.execution.pp),
            peak_dram_share=dram_bytes / (self.gpu.dram_gb_s * 1e9) / (time_s * self.execution.pp),
            intervals=self.intervals([name]),
            bubble_share=float(layout.bubble_share),
        )

    def intervals(self, names: list[str]) -> Mapping[str, tuple[float, float]]:
        """90 % intervals of the phases `names` together."""
        rows = self.rows
        times = {name: float(self.laid_out[name].time_s) for name in names}
        time_s = sum(times.values())
        energy_j = sum(float(self.laid_out[name].energy_j) for name in names)
        members = np.isin(self.phase_of, [self.phase_names.index(name) for name in names])
        kernels = of_sum(self.time[members], rows.priced.time_spread[members], rows.family_of[members])
        hosted = sum(times[name] for name in names if self.runs[name].host_s > self.runs[name].gpu_s) / time_s
        known = load_intervals()
        time_width = float(combined((1 - hosted) * kernels, hosted * known.waiting(self.host.provenance), known.model))
        time_width += unpriced_width(self.unpriced_shares())
        power_width = sum(times[name] * self.power_width(name) for name in names) / time_s
        energy_width = float(combined(time_width, power_width))
        figures = ((time_s, time_width), (energy_j / time_s, power_width), (energy_j, energy_width))
        out = {}
        for name, (value, width) in zip(("time_s", "power_w", "energy_j"), figures, strict=True):
            lower, upper = bounds(value, width)
            out[name] = (float(lower), float(upper))
        return MappingProxyType(out)

    def power_width(self, phase: str) -> float:
        run, spread = self.runs[phase], self.rows.priced.power.spread90
        return float(under_limit_width(spread, load_intervals().capped_power, run.throttled, run.excess))

    def prediction(self, memory: MemoryNeed, warnings: tuple[str, ...]) -> Prediction:
        workload, rows, execution = self.lowered.workload, self.rows, self.execution
        phases = tuple(self.phase(name) for name in self.phase_names)
        time_s = sum(one.time_s for one in phases)
        energy_j = sum(one.energy_j for one in phases)
        alike = execution.alike
        waiting = sum(run.idle_j for run in self.runs.values()) * execution.microbatches * alike
        waiting += sum(float(one.waiting_j) for one in self.laid_out.values())
        modules = dict(zip(POWER_MODULES, (self.module_j.sum(axis=1) * alike).tolist(), strict=True))
        by_family = np.bincount(rows.family_of, weights=self.energy, minlength=len(rows.families)) * alike
        if not np.isfinite([time_s, energy_j]).all():
            odd = [name for name, joules in zip(rows.families, by_family, strict=True) if not np.isfinite(joules)]
            what = ", ".join(odd) or "the run"
            raise InfeasibleError(f"{workload.name} can't be priced on {self.gpu.name}: no number comes out for {what}")
        by_layer = np.bincount(rows.layer, weights=self.energy, minlength=len(workload.layers)) * alike
        worst: dict[str, int] = {}
        for code, name in enumerate(rows.families):
            worst[name] = int(rows.priced.provenance[rows.family_of == code].max())
        provenance = {name: PROVENANCES[code] for name, code in worst.items()}
        provenance |= {"power": rows.priced.power.provenance, "host": self.host.provenance}
        longest = max(phases, key=lambda one: one.time_s)
        return Prediction(
            workload=workload.name,
            gpu=self.gpu.name,
            gpu_count=execution.gpu_count,
            time_s=time_s,
            power_w=energy_j / time_s,
            energy_j=energy_j,
            clock_mhz=_weighted_mean([one.clock_mhz for one in phases], [one.time_s for one in phases]),
            power_limit_w=self.limit_w,
            bound_by=longest.bound_by,
            phases=phases,
            kernels=self.kernels(),
            modules=MappingProxyType({**modules, IDLE: waiting}),
            families=MappingProxyType({**dict(zip(rows.families, by_family.tolist(), strict=True)), IDLE: waiting}),
            layers=MappingProxyType({**dict(zip(workload.layers, by_layer.tolist(), strict=True)), IDLE: waiting}),
            memory=memory,
            intervals=self.intervals(list(self.phase_names)),
            provenance=MappingProxyType(provenance),
            warnings=warnings,
            notes=(
                *self.lowered.notes,
                *_own_coefficients(self.gpu),
                *state_notes(self.gpu),
                *_run_notes(execution, exchanges=bool(set(EXCHANGES) & set(rows.kinds))),
            ),
            unpriced=self.unpriced_shares(),
            launched=Launched(self.lowered, rows, self.runs, self.gpu, self.host),
            info=MappingProxyType(
                {
                    **workload.info,
                    "parameters": workload.parameters,
                    "launch_mode": execution.launch_mode,
                    "attention": execution.attention,
                    "engine": execution.engine,
                    "tp": execution.tp,
                    "pp": execution.pp,
                    "ep": execution.ep,
                    "dp": execution.dp,
                    "microbatches": execution.microbatches,
                    "overlap": execution.overlap,
                    "batch": batch_of(workload, execution),
                    "host_us_per_launch": self.host.launch_us(execution.launch_mode),
                    "memory_clock_mhz": self.gpu.memory_clock_mhz or None,
                    "temperature_c": self.gpu.temperature_c,
                    "model_energy_factor": rows.priced.power.model_factor,
                }
            ),
        )

    def unpriced_shares(self) -> Mapping[str, float]:
        left_out = self.lowered.workload.unpriced
        total = float(self.runs_of_row @ self.rows.priced.work.dram_bytes) + sum(left_out.values())
        return MappingProxyType({name: moved / total for name, moved in left_out.items()})

    def kernels(self) -> Columns:
        rows, work = self.rows, self.rows.priced.work
        workload = self.lowered.workload
        phase_names = np.array(self.phase_names, dtype=object)
        layers = np.array(workload.layers, dtype=object)
        kinds = np.array(rows.kinds, dtype=object)
        families = np.array(rows.families, dtype=object)
        return Columns(
            {
                "phase": lambda: phase_names[self.phase_of],
                "layer": lambda: layers[rows.layer],
                "op": lambda: kinds[rows.kind_of],
                "family": lambda: families[rows.family_of],
                "shape": lambda: self.shapes(),
                "count": self.runs_of_row,
                "launches": self.runs_of_row * work.launches,
                "time_s": self.time,
                "power_w": self.energy / np.where(self.time > 0, self.time, 1.0),
                "energy_j": self.energy,
                "clock_mhz": self.clock,
                "bound_by": lambda: np.array(BOUNDS, dtype=object)[self.bound],
                "flop": self.runs_of_row * work.useful_flop,
                "dram_bytes": self.runs_of_row * work.dram_bytes,
                "provenance": lambda: np.array(PROVENANCES, dtype=object)[rows.priced.provenance],
            }
        )

    def shapes(self) -> npt.NDArray[Any]:
        """Shapes as texts such as ``m=8 n=4096 k=4096 dtype=bf16``."""
        tables = list(self.lowered.tables.values())
        texts = []
        for place, row in zip(self.rows.kind_of.tolist(), self.rows.row_of.tolist(), strict=True):
            table = tables[place]
            words = []
            for column in kind(table.kind).columns:
                value = table[column.name][row]
                text = decode(column, value) if column.type in ("dtype", "choice") else f"{value:.12g}"
                words.append(f"{column.name}={text}")
            texts.append(" ".join(words))
        return np.array(texts, dtype=object)


def _run_notes(execution: Execution, *, exchanges: bool) -> tuple[str, ...]:
    """What was assumed of engines and of several GPUs."""
    notes = []
    if execution.engine != "pytorch" and execution.launch_mode == "eager":
        notes.append(f"{execution.engine} with its CUDA graphs turned off; as it comes it runs them: launch cuda_graph")
    if exchanges and execution.overlap:
        notes.append(f"{execution.overlap:.0%} of the time of collectives is taken to overlap with other work")
    elif execution.overlap:
        notes.append("overlap changes nothing: this layout has no collectives")
    elif exchanges:
        notes.append("collectives are taken to overlap with no other work")
    if execution.pp > 1 and execution.microbatches == 1:
        notes.append("one microbatch at a time: the stages of the pipeline wait for each other")
    return tuple(notes)


def _own_coefficients(gpu: Gpu) -> tuple[str, ...]:
    """A note where the user's own coefficients take part."""
    path = store.own_file(gpu.plain_name)
    return () if path is None else (f"with coefficients of your own: {path}",)


def batch_of(workload: Workload, execution: Execution) -> Any:
    """Batch of all microbatches and replicas together; None where the workload does not tell its own."""
    batch = workload.info.get("batch")
    return batch * execution.microbatches * execution.dp if batch else batch


def _weighted_mean(values: list[float], weights: list[float]) -> float:
    """Mean that rounding does not carry beyond its values: a clock that is told can be asked for."""
    return float(np.clip(np.average(values, weights=weights), min(values), max(values)))
