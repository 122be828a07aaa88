"""One training step: its passes on a GPU, the pipeline around them, exchanges behind them, and what waiting draws."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from joulecast.bounds.dtypes import dtype
from joulecast.coefficients.intervals import load_intervals
from joulecast.coefficients.schema import PROVENANCES, HostCoefficients, PowerCoefficients
from joulecast.coefficients.training import Scales
from joulecast.gpus import Gpu
from joulecast.lowering.execution import Execution
from joulecast.lowering.lower import undivided
from joulecast.lowering.recipe import Recipe
from joulecast.lowering.training import Step
from joulecast.physics.power import POWER_MODULES, static_power_w
from joulecast.physics.price import module_energy_j
from joulecast.physics.timeline import Passes, pass_time_s, run_phase
from joulecast.physics.uncertainty import bounds, combined, of_sum
from joulecast.scenarios.pricing import Rows, passes_of, prepared
from joulecast.scenarios.training.communication import collective_s, data_group, moved_bytes
from joulecast.scenarios.training.layout import Layout
from joulecast.scenarios.training.scales import CLASSES, classes_of, scaled_host, scaled_rows

Floats = npt.NDArray[np.float64]

#: Share of the backward pass behind which gradients can be sent: the first bucket is full only after some layers.
_HIDING_SHARE = 0.9

#: What computing loses while an exchange runs beside it, over the time of the exchange: its blocks take SMs and its
#: bytes DRAM and L2. Of 0, 0.2, 0.35 and 0.5 the one that MPT's steps under FSDP are predicted best with, those that
#: `joulecast validate` scores among them.
CONTENTION = 0.5

#: Bytes of the last bucket of gradients, which nothing is left to hide behind (DDP's default). [B]
_BUCKET_BYTES = 25e6

#: Half-width of the interval of an exchange that is not hidden, in natural logarithms: networks differ.
_EXCHANGE_SPREAD = 0.5

#: Host time of a launch of the backward pass over that of another: the engine of gradients goes from node to node, and
#: sums up what reaches each weight. Fitted on steps of small networks that wait for their host (torchvision's).
AUTOGRAD = 2.0

#: Waiting depends on the clock and the clock on waiting: so many turns leave less than 0.1 % of either.
_TURNS = 4


@dataclass(frozen=True)
class PassTable:
    """What the time of a step is made of, for fits: class by class and pass by pass, on the mean GPU.

    Attributes
    ----------
    class_s : ndarray, shape (p, c)
        Time of the GPU in one of each pass, by `joulecast.scenarios.training.scales.CLASSES`. [s]
    other_s : ndarray, shape (p,)
        Exchanges within each pass. [s]
    host_s : ndarray, shape (p,)
        Time of the host. [s]
    repeats : ndarray, shape (p,)
        How often each pass runs in a step.
    exchange_s, waiting_s : float
        Exchanges that nothing hides, and other waiting. [s]
    core_j, dram_j : float
        Energy of the work of a step, that of the core at the voltage of the rate clock. [J]
    holding_s : float
        Time of a step times the share of SMs that hold blocks. [s]
    clock_mhz : float
        Clock of the step. [MHz]
    power : PowerCoefficients
        What the energies were reckoned with.
    """

    class_s: Floats
    other_s: Floats
    host_s: Floats
    repeats: Floats
    exchange_s: float
    waiting_s: float
    core_j: float
    dram_j: float
    holding_s: float
    clock_mhz: float
    power: PowerCoefficients


@dataclass(frozen=True)
class StepFigures:
    """What one step takes.

    Attributes
    ----------
    time_s : float
        [s]
    parts_s : mapping of str to float
        Parts of the time; see `joulecast.scenarios.training.prediction.PARTS`. [s]
    energy_j : float
        Of the mean GPU. [J]
    peak_power_w : float
        [W]
    clock_mhz : float
    throttled : bool
    modules : mapping of str to float
        Energy of the mean GPU by module. [J]
    bound_by : str
    intervals : mapping
    provenance : mapping of str to str
    table : PassTable
    notes : tuple of str
        What was priced in place of what the GPU lacks.
    warnings : tuple of str
        Degrees that divide nothing.
    """

    time_s: float
    parts_s: Mapping[str, float]
    energy_j: float
    peak_power_w: float
    clock_mhz: float
    throttled: bool
    modules: Mapping[str, float]
    bound_by: str
    intervals: Mapping[str, tuple[float, float]]
    provenance: Mapping[str, str]
    table: PassTable
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Waits:
    """Time of a step that the mean GPU does not compute. [s]"""

    communication: float = 0.0
    bubble: float = 0.0
    input: float = 0.0

    @property
    def total(self) -> float:
        """All of it. [s]"""
        return self.communication + self.bubble + self.input


def run_step(
    step: Step,
    recipe: Recipe,
    layout: Layout,
    gpu: Gpu,
    execution: Execution,
    host: HostCoefficients,
    *,
    micro_batches: int,
    clock_mhz: float,
    power_limit_w: float,
    input_s: float = 0.0,
    scales: Scales = Scales(),  # noqa: B008 - frozen
    exclude: tuple[str, ...] = (),
) -> StepFigures:
    """Time, power and energy of one step on the mean GPU of a job.

    Parameters
    ----------
    step : Step
        Of one micro-batch.
    recipe : Recipe
    layout : Layout
    gpu : Gpu
    execution : Execution
        Its tensor- and expert-parallel degrees are the layout's.
    host : HostCoefficients
    micro_batches : int
    clock_mhz, power_limit_w : float
        [MHz, W]
    input_s : float
        Least time between two steps that the input allows. [s]
    scales : Scales
        How the software differs from the kernels that were fitted.
    exclude : tuple of str
        GPUs whose coefficients may not be used.

    Returns
    -------
    StepFigures

    Notes
    -----
    A pipeline of p stages and m micro-batches takes ``m t_max + (sum of the stages - t_max) / chunks`` [1]_; the whole
    step settles at one clock, at which the mean power, waiting included, meets the limit.

    References
    ----------
    .. [1] D. Narayanan et al., Efficient large-scale language model training on GPU clusters, SC 2021.
    """
    lowered, rows = prepared(step.workload, gpu, execution, exclude)
    rows = scaled_rows(rows, scales)
    limit_w = power_limit_w * rows.priced.power.limit_share
    passes = passes_of(lowered, rows, np.arange(len(rows.priced)), scaled_host(host, scales.host))
    names = [one.phase for one in lowered.workload.passes]
    scale = np.array([_share(name, layout) for name in names])
    often = np.array([1.0 if name == "optimizer" else float(micro_batches) for name in names])
    eager = execution.launch_mode == "eager"
    started = np.array([AUTOGRAD if eager and name == "backward" else 1.0 for name in names])
    host_s = passes.host_s * scale * started
    passes = replace(passes, count=passes.count * scale[passes.pass_of], host_s=host_s, repeats=often)
    inner = np.array(["*" in name for name in lowered.workload.layers])[rows.layer]
    staged = np.array([name != "optimizer" for name in names])[rows.pass_id]
    staged &= np.array([name != "weights.cast" for name in lowered.workload.layers])[rows.layer]
    first = rows_before_layers(rows.layer, rows.pass_id, inner)
    exchange = Exchanges(step, recipe, layout, gpu, scales.communication)
    waits = Waits()
    for _ in range(_TURNS):
        run = run_phase(_with_wait(passes, waits.total), clock_mhz, limit_w)
        times = _pass_times(passes, run.kernel_s)
        spread = _uneven(passes, run.kernel_s * staged, inner, first, layout.pp)
        waits = _waits(dict(zip(names, times.tolist(), strict=True)), spread, layout, micro_batches, exchange, input_s)
    each = dict(zip(names, times.tolist(), strict=True))
    parts = {name: each.get(name, 0.0) * micro_batches for name in ("forward", "recompute", "backward")}
    parts |= {"optimizer": each.get("optimizer", 0.0)}
    parts |= {"communication": waits.communication, "bubble": waits.bubble, "input": waits.input}
    time_s = sum(parts.values())
    runs = passes.count * passes.repeats[passes.pass_of]
    module_j = (module_energy_j(rows.priced, run.kernel_s, run.clock_mhz) * runs).sum(axis=1)
    sent_j = exchange.dram_bytes * rows.priced.power.dram_pj * 1e-12
    static_w = float(static_power_w(run.clock_mhz, gpu, rows.priced.power))
    busy_s = float(runs @ run.kernel_s)
    modules = dict(zip(POWER_MODULES, module_j.tolist(), strict=True))
    modules["exchanges"] = sent_j
    modules["waiting"] = static_w * max(time_s - busy_s, 0.0)
    energy_j = sum(modules.values())
    by_pass = np.bincount(passes.pass_of, weights=module_energy_j(rows.priced, run.kernel_s, run.clock_mhz).sum(axis=0)
                          * passes.count, minlength=len(names))  # fmt: skip
    powers = [
        (joules + static_w * max(total - gpu_s, 0.0)) / total
        for joules, total, gpu_s in zip(
            by_pass, times, np.bincount(passes.pass_of, weights=passes.count * run.kernel_s, minlength=len(names)),
            strict=True,
        )
        if total > 0
    ]  # fmt: skip
    known = load_intervals()
    kernels = float(of_sum(run.kernel_s * runs, rows.priced.time_spread, rows.family_of))
    share = waits.communication / time_s
    # steps of networks left out say how wide, where there are any: kernels' own widths are in theirs
    kernels = scales.spread90 or float(combined(kernels, known.model))
    width = float(combined((1 - share) * kernels, share * _EXCHANGE_SPREAD))
    power_width = scales.power_spread90 or (known.capped_power if run.throttled else rows.priced.power.spread90)
    figures = (
        ("time_s", time_s, width),
        ("power_w", energy_j / time_s, float(power_width)),
        ("energy_j", energy_j * layout.gpus, float(combined(width, power_width))),
    )
    intervals = {name: tuple(float(one) for one in bounds(value, half)) for name, value, half in figures}
    worst = {
        name: PROVENANCES[int(rows.priced.provenance[rows.family_of == code].max())]
        for code, name in enumerate(rows.families)
    }
    return StepFigures(
        time_s=time_s,
        parts_s=MappingProxyType(parts),
        energy_j=energy_j,
        peak_power_w=float(max(powers)),
        clock_mhz=run.clock_mhz,
        throttled=run.throttled,
        modules=MappingProxyType(modules),
        bound_by=_bound_by(parts, passes, run.kernel_s, run.throttled),
        intervals=MappingProxyType({name: (pair[0], pair[1]) for name, pair in intervals.items()}),
        provenance=MappingProxyType(
            {**worst, "power": rows.priced.power.provenance, "host": host.provenance}
            | ({"network": "spec sheet"} if layout.nodes > 1 else {})
            | ({"stack": scales.provenance} if scales.provenance == "fitted" else {})
        ),
        table=PassTable(
            *_by_class(rows, passes, run.kernel_s),
            host_s=passes.host_s,
            repeats=passes.repeats,
            exchange_s=waits.communication,
            waiting_s=waits.bubble + waits.input,
            core_j=float(runs @ rows.priced.energy.core_total_j),
            dram_j=float(runs @ rows.priced.energy.dram_j) + sent_j,
            holding_s=float((runs * run.kernel_s) @ rows.priced.energy.busy),
            clock_mhz=run.clock_mhz,
            power=rows.priced.power,
        ),
        notes=lowered.notes,
        warnings=undivided(lowered),
    )


def _by_class(rows: Rows, passes: Passes, kernel_s: Floats) -> tuple[Floats, Floats]:
    """Time of each pass by class of operation, and of the exchanges in it. [s]"""
    code, busy = classes_of(rows), passes.count * kernel_s
    shape = (passes.repeats.size, len(CLASSES) + 1)
    place = passes.pass_of * shape[1] + np.where(code < 0, len(CLASSES), code)
    flat: Floats = np.bincount(place, weights=busy, minlength=shape[0] * shape[1]).astype(np.float64)
    table = flat.reshape(shape)
    return table[:, :-1], table[:, -1]


class Exchanges:
    """What data-parallel GPUs tell each other in a step."""

    def __init__(self, step: Step, recipe: Recipe, layout: Layout, gpu: Gpu, scale: float = 1.0) -> None:
        self.scale = scale
        self.layout, self.gpu, self.link = layout, gpu, layout.link_gb_s(gpu)
        formats = recipe.formats
        model = layout.tp * layout.pp
        self.gradient_bytes = step.trained * dtype(formats.gradients).output_bytes / model
        moved = dtype(formats.model if formats.mixed else formats.weights).output_bytes
        self.weight_bytes = (step.parameters + step.added) * moved / model
        self.hidden_bytes = self._boundary_bytes(step, recipe)
        self.group = data_group(layout, layout.dp * layout.cp)
        self.shards = data_group(layout, layout.shards)
        self.dram_bytes = self._dram_bytes()

    def gradients_s(self) -> float:
        """The sum of all gradients, once a step. [s]"""
        if self.layout.zero == 0:
            return self._time("all_reduce", self.gradient_bytes, self.group.size)
        reduced = self._time("reduce_scatter", self.gradient_bytes, self.shards.size)
        return reduced + self._between_copies()

    def _between_copies(self) -> float:
        """Hybrid sharding: the shards' sums over the groups that each hold a copy. [s]"""
        copies = self.group.size // self.shards.size
        return self._time("all_reduce", self.gradient_bytes / self.shards.size, copies) if copies > 1 else 0.0

    def weights_s(self) -> float:
        """Weights gathered from their shards, once. [s]"""
        return self._time("all_gather", self.weight_bytes, self.shards.size)

    def last_s(self) -> float:
        """The last bucket of gradients, that nothing hides. [s]"""
        size = min(_BUCKET_BYTES, self.gradient_bytes)
        return self._time("all_reduce" if self.layout.zero == 0 else "reduce_scatter", size, self.group.size)

    def boundary_s(self) -> float:
        """Activations sent to the next stage. [s]"""
        group = data_group(self.layout, 2) if self.layout.gpus <= self.layout.gpus_per_node else data_group(
            replace(self.layout, gpus_per_node=self.layout.tp), 2)  # fmt: skip
        return self.scale * collective_s("send_recv", self.hidden_bytes, group, self.gpu, self.link)

    def _time(self, name: str, message_bytes: float, size: int) -> float:
        return self.scale * collective_s(name, message_bytes, data_group(self.layout, size), self.gpu, self.link)

    def _boundary_bytes(self, step: Step, recipe: Recipe) -> float:
        hidden = float(step.workload.info.get("hidden_size") or 0)
        tokens = step.workload.passes[0].tokens
        return tokens * hidden * dtype(recipe.formats.model).output_bytes / self.layout.cp / self.layout.tp

    def _dram_bytes(self) -> float:
        if self.layout.zero == 0:
            return float(moved_bytes("all_reduce", self.gradient_bytes, self.group.size))
        total = moved_bytes("reduce_scatter", self.gradient_bytes, self.shards.size)
        times = 2 if self.layout.zero >= 3 else 1
        return float(total + times * moved_bytes("all_gather", self.weight_bytes, self.shards.size))


def _share(phase: str, layout: Layout) -> float:
    """Share of a pass that the mean GPU of the job does."""
    shards = layout.shards if phase == "optimizer" and layout.zero else 1
    return 1.0 / layout.pp / shards


def _with_wait(passes: Passes, wait_s: float) -> Passes:
    """The passes, and one more in which the GPU waits."""
    return replace(passes, repeats=np.append(passes.repeats, 1.0), host_s=np.append(passes.host_s, wait_s))


def _pass_times(passes: Passes, kernel_s: Floats) -> Floats:
    """Time of each pass once. [s]"""
    gpu_s = np.bincount(passes.pass_of, weights=passes.count * kernel_s, minlength=passes.repeats.size)
    return pass_time_s(gpu_s, passes.host_s)


def rows_before_layers(
    layer: npt.NDArray[np.intp], pass_id: npt.NDArray[np.intp], inner: npt.NDArray[np.bool_]
) -> npt.NDArray[np.bool_]:
    """Operations that lie before the repeated layers, in any pass: those of the layers met first in the forward one."""
    forward = np.flatnonzero(pass_id == 0)
    start = forward[inner[forward]].min() if inner[forward].any() else forward.size
    early = np.unique(layer[forward[forward < start]])
    return np.isin(layer, early) & ~inner


def _uneven(
    passes: Passes, kernel_s: Floats, inner: npt.NDArray[np.bool_], first: npt.NDArray[np.bool_], stages: int
) -> float:
    """Time of the slowest stage of a pipeline over the mean: the ends have embedding or vocabulary head beside."""
    if stages == 1:
        return 1.0
    busy = passes.count * kernel_s * stages
    body = float(busy[inner].sum()) / stages
    ends = max(float(busy[first].sum()), float(busy[~inner & ~first].sum()))
    mean = float(busy.sum()) / stages
    return (body + ends) / mean if mean > 0 else 1.0


def _waits(
    each: Mapping[str, float], uneven: float, layout: Layout, micro_batches: int, exchange: Exchanges, input_s: float
) -> Waits:
    forward, backward = each.get("forward", 0.0), each.get("backward", 0.0)
    again = each.get("recompute", 0.0)
    micro = forward + again + backward
    slowest = uneven * micro
    pipe = micro_batches * slowest + (layout.pp * micro - slowest) / layout.chunks
    if layout.pp > 1:
        pipe += 2 * (layout.pp - 1) * exchange.boundary_s() * layout.chunks
    bubble = max(pipe - micro_batches * micro, 0.0) if layout.pp > 1 else 0.0
    communication = 0.0
    if exchange.group.size > 1:
        if layout.zero >= 3:
            # weights are gathered twice a micro-batch, each layer's behind the one before it
            gathered, summed = exchange.weights_s(), exchange.gradients_s()
            hidden_forward = _HIDING_SHARE * forward
            hidden_backward = _HIDING_SHARE * (backward + again)
            once = max(gathered - hidden_forward, 0.0) + max(gathered + summed - hidden_backward, 0.0)
            communication = micro_batches * (once + CONTENTION * (2 * gathered + summed - once))
            communication += gathered * (1 - _HIDING_SHARE)
        else:
            total = exchange.gradients_s()
            communication = max(total - _HIDING_SHARE * backward, min(exchange.last_s(), total))
            communication += CONTENTION * (total - communication)
            if layout.zero:
                communication += exchange.weights_s()
    computed = micro_batches * micro + each.get("optimizer", 0.0) + bubble + communication
    return Waits(communication, bubble, max(input_s - computed, 0.0))


def _bound_by(parts: Mapping[str, float], passes: Passes, kernel_s: Floats, throttled: bool) -> str:
    longest = max(parts, key=lambda name: parts[name])
    if longest in ("communication", "bubble", "input"):
        return longest
    gpu_s = np.bincount(passes.pass_of, weights=passes.count * kernel_s, minlength=passes.repeats.size)
    host = float(passes.repeats @ passes.host_s) > float(passes.repeats @ gpu_s)
    return ("host" if host else f"GPU, {longest}") + (", cap" if throttled else "")
