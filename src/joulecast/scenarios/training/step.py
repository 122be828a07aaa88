"""One training step: its passes on a GPU, the pipeline around them, exchanges behind them, and what waiting draws."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from joulecast.coefficients.intervals import load_intervals
from joulecast.coefficients.schema import PROVENANCES, HostCoefficients, PowerCoefficients
from joulecast.coefficients.training import Scales
from joulecast.gpus import Gpu
from joulecast.lowering.execution import Execution
from joulecast.lowering.lower import Lowered, undivided
from joulecast.lowering.recipe import Recipe
from joulecast.lowering.training import Step
from joulecast.physics.power import POWER_MODULES, spinning_power_w, static_power_w
from joulecast.physics.settled import module_energy_j
from joulecast.physics.timeline import Passes, Run, pass_time_s, run_swinging
from joulecast.physics.uncertainty import bounds, combined, of_sum, under_limit_width
from joulecast.scenarios.pricing import Rows, passes_of, prepared
from joulecast.scenarios.training.layout import Layout
from joulecast.scenarios.training.scales import CLASSES, classes_of, scaled_host, scaled_rows
from joulecast.scenarios.training.waits import Exchanges, Waits, waits_of

Floats = npt.NDArray[np.float64]

#: Half-width of the interval of an exchange that is not hidden, in natural logarithms: networks differ.
_EXCHANGE_SPREAD = 0.5

#: Host time of a launch of the backward pass over that of another: the engine of gradients goes from node to node, and
#: sums up what reaches each weight. Fitted on steps of small networks that wait for their host (torchvision's).
AUTOGRAD = 2.0

#: Layers that are of all weights: each stage of a pipeline has its share.
OF_WEIGHTS = ("weights.cast", "gradients.sum")

#: What a process that drives several GPUs adds to its host's time of a forward pass, over that time: for the second of
#: them, and for each further one. It makes a copy of each module for each GPU, and threads start kernels one at a time.
#: Fitted on torchvision's networks on two to four A100s.
_FIRST_REPLICA, _NEXT_REPLICA = 2.0, 1.3

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
    bubble_s : float
        Part of `waiting_s` that is for other stages of a pipeline. [s]
    copying_s : float
        Batches copied in while nothing else runs. [s]
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
    bubble_s: float
    copying_s: float
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
    copying_s: float = 0.0,
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
    copying_s : float
        Time in which batches are copied to the GPU and nothing else runs. [s]
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
    step, waiting included, settles under the limit, its hot parts at lower clocks than the others
    (`joulecast.physics.timeline.run_swinging`).

    References
    ----------
    .. [1] D. Narayanan et al., Efficient large-scale language model training on GPU clusters, SC 2021.
    """
    lowered, rows = prepared(step.workload, gpu, execution, exclude)
    rows = scaled_rows(rows, scales)
    limit_w = power_limit_w * rows.priced.power.limit_share
    names = [one.phase for one in lowered.workload.passes]
    passes = _passes(lowered, rows, host, layout, micro_batches, scales)
    inner = np.array(["*" in name for name in lowered.workload.layers])[rows.layer]
    staged = np.array([name != "optimizer" for name in names])[rows.pass_id]
    staged &= np.array([name not in OF_WEIGHTS for name in lowered.workload.layers])[rows.layer]
    first = rows_before_layers(rows.layer, rows.pass_id, inner)
    exchange = Exchanges(step, recipe, layout, gpu, scales.communication)
    sent_j = exchange.dram_bytes * rows.priced.power.dram_pj * 1e-12
    waits, sent_w = Waits(), 0.0
    for _ in range(_TURNS):
        # bytes of exchanges take power beside the passes: the limit holds for both
        run = run_swinging(_with_wait(passes, waits), clock_mhz, limit_w - sent_w, scales.power_swing)
        times = _pass_times(passes, run.kernel_s)
        spread = _uneven(passes, run.kernel_s * staged, inner, first, layout.stage_shares)
        each = dict(zip(names, times.tolist(), strict=True))
        waits = waits_of(each, spread, layout, micro_batches, exchange, input_s, copying_s * scales.copying)
        sent_w = sent_j / (float(passes.repeats @ times) + waits.total)
    parts = {name: each.get(name, 0.0) * micro_batches for name in ("forward", "recompute", "backward")}
    parts |= {"optimizer": each.get("optimizer", 0.0)}
    parts |= {"communication": waits.communication, "bubble": waits.bubble,
              "input": waits.input + waits.copying}  # fmt: skip
    time_s = sum(parts.values())
    runs = passes.count * passes.repeats[passes.pass_of]
    modules = {**_module_energies_j(rows, runs, run, waits, time_s), "exchanges": sent_j}
    energy_j = sum(modules.values())
    hottest_w = _hottest_pass_w(rows, passes, run, times)
    known = load_intervals()
    kernels = float(of_sum(run.kernel_s * runs, rows.priced.time_spread, rows.family_of))
    share = waits.communication / time_s
    # steps of networks left out say how wide, where there are any: kernels' own widths are in theirs
    kernels = scales.spread90 or float(combined(kernels, known.model))
    width = float(combined((1 - share) * kernels, share * _EXCHANGE_SPREAD))
    plain = rows.priced.power.spread90
    power_width = scales.power_spread90 or under_limit_width(plain, known.capped_power, run.throttled, run.excess)
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
        peak_power_w=max(min(hottest_w, limit_w), energy_j / time_s),  # the limit holds in every part
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
            bubble_s=waits.bubble,
            copying_s=waits.copying,
            core_j=float(runs @ rows.priced.energy.core_total_j),
            dram_j=float(runs @ rows.priced.energy.dram_j) + sent_j,
            holding_s=float((runs * run.kernel_s) @ rows.priced.energy.busy),
            clock_mhz=run.clock_mhz,
            power=rows.priced.power,
        ),
        notes=lowered.notes,
        warnings=undivided(lowered),
    )


def _passes(
    lowered: Lowered, rows: Rows, host: HostCoefficients, layout: Layout, micro_batches: int, scales: Scales
) -> Passes:
    """The passes of one step on the mean GPU, with what starting them costs the host."""
    passes = passes_of(lowered, rows, np.arange(len(rows.priced)), scaled_host(host, scales.host))
    names = [one.phase for one in lowered.workload.passes]
    scale = np.array([_share(name, layout) for name in names])
    often = np.array([1.0 if name == "optimizer" else float(micro_batches) for name in names])
    eager = lowered.execution.launch_mode == "eager"
    started = np.array([AUTOGRAD if eager and name == "backward" else 1.0 for name in names])
    if layout.single_process and layout.gpus > 1:
        replicas = 1.0 + _FIRST_REPLICA + _NEXT_REPLICA * (layout.gpus - 2)
        started *= np.array([replicas if name == "forward" else 1.0 for name in names])
    host_s = passes.host_s * scale * started
    return replace(passes, count=passes.count * scale[passes.pass_of], host_s=host_s, repeats=often)


def _module_energies_j(rows: Rows, runs: Floats, run: Run, waits: Waits, time_s: float) -> dict[str, float]:
    """Energy of a step of `time_s` by module of the GPU, and what it draws while it waits. [J]"""
    gpu, power = rows.priced.gpu, rows.priced.power
    module_j = (module_energy_j(rows.priced, run.kernel_s, run.clock_mhz) * runs).sum(axis=1)
    idle_s = max(time_s - float(runs @ run.kernel_s) - waits.spinning, 0.0)
    modules = dict(zip(POWER_MODULES, module_j.tolist(), strict=True))
    modules["waiting"] = (
        float(spinning_power_w(run.clock_mhz, gpu, power)) * waits.spinning
        + float(static_power_w(run.clock_mhz, gpu, power)) * idle_s
    )
    # parts of the step ran at clocks of their own: what they drew is shared out as at their mean
    shared_out = run.energy_j / run.time_s * time_s / sum(modules.values())
    return {name: value * shared_out for name, value in modules.items()}


def _hottest_pass_w(rows: Rows, passes: Passes, run: Run, times_s: Floats) -> float:
    """Mean power of the pass that draws the most. [W]"""
    static_w = float(static_power_w(run.clock_mhz, rows.priced.gpu, rows.priced.power))
    once_j = module_energy_j(rows.priced, run.kernel_s, run.clock_mhz).sum(axis=0)
    by_pass_j, by_pass_s = (
        np.bincount(passes.pass_of, weights=passes.count * one, minlength=times_s.size)
        for one in (once_j, run.kernel_s)
    )
    return max(
        float((joules + static_w * max(total_s - gpu_s, 0.0)) / total_s)
        for joules, total_s, gpu_s in zip(by_pass_j, times_s, by_pass_s, strict=True)
        if total_s > 0
    )


def _by_class(rows: Rows, passes: Passes, kernel_s: Floats) -> tuple[Floats, Floats]:
    """Time of each pass by class of operation, and of the exchanges in it. [s]"""
    code, busy = classes_of(rows), passes.count * kernel_s
    shape = (passes.repeats.size, len(CLASSES) + 1)
    place = passes.pass_of * shape[1] + np.where(code < 0, len(CLASSES), code)
    flat: Floats = np.bincount(place, weights=busy, minlength=shape[0] * shape[1]).astype(np.float64)
    table = flat.reshape(shape)
    return table[:, :-1], table[:, -1]


def _share(phase: str, layout: Layout) -> float:
    """Share of a pass that the mean GPU of the job does."""
    shards = layout.shards if phase == "optimizer" and layout.zero else 1
    return 1.0 / layout.pp / shards


def _with_wait(passes: Passes, waits: Waits) -> Passes:
    """The passes, and one more in which the GPU waits."""
    return replace(
        passes,
        repeats=np.append(passes.repeats, 1.0),
        host_s=np.append(passes.host_s, waits.total),
        spinning_s=waits.spinning,
    )


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
    passes: Passes, kernel_s: Floats, inner: npt.NDArray[np.bool_], first: npt.NDArray[np.bool_],
    shares: Sequence[float],
) -> float:  # fmt: skip
    """Time of the slowest stage of a pipeline over the mean: the ends have embedding or vocabulary head beside.

    Stages hold `shares` of the layers.
    """
    if len(shares) == 1:
        return 1.0
    busy = passes.count * kernel_s * len(shares)
    stages = float(busy[inner].sum()) * np.array(shares)
    stages[0] += busy[first].sum()
    stages[-1] += busy[~inner & ~first].sum()
    return float(stages.max() / stages.mean()) if stages.mean() > 0 else 1.0


def _bound_by(parts: Mapping[str, float], passes: Passes, kernel_s: Floats, throttled: bool) -> str:
    longest = max(parts, key=lambda name: parts[name])
    if longest in ("communication", "bubble", "input"):
        return longest
    gpu_s = np.bincount(passes.pass_of, weights=passes.count * kernel_s, minlength=passes.repeats.size)
    host = float(passes.repeats @ passes.host_s) > float(passes.repeats @ gpu_s)
    return ("host" if host else f"GPU, {longest}") + (", cap" if throttled else "")
