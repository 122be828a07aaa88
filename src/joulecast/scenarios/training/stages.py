"""Clocks of a pipeline's stages: slack of short stages turned into energy, at the same time for an iteration."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from joulecast.bounds.ranges import number
from joulecast.errors import InputError
from joulecast.gpus import Gpu, load_gpu
from joulecast.lowering.execution import Execution
from joulecast.lowering.recipe import Recipe
from joulecast.physics.power import spinning_power_w
from joulecast.physics.priced import take
from joulecast.physics.settled import module_energy_j
from joulecast.physics.timing import duration_s
from joulecast.scenarios.pricing import prepared
from joulecast.scenarios.training.layout import Layout
from joulecast.scenarios.training.step import OF_WEIGHTS, rows_before_layers
from joulecast.scenarios.training.train import layers_of_stages, one_micro_batch
from joulecast.workloads.table import Workload

Floats = npt.NDArray[np.float64]

#: Iterations from the fastest to so much slower are planned for.
SLOWEST = 1.6
_PLANS = 24


@dataclass(frozen=True)
class StageCurve:
    """What one micro-batch takes of one stage at each clock.

    Attributes
    ----------
    layers : float
        Layers of the stage.
    time_s, energy_j : ndarray, shape (c,)
        Forward and backward pass of one micro-batch on one GPU of the stage, its gradients added to those before it,
        and all that the GPU draws the while. [s, J]
    """

    layers: float
    time_s: Floats
    energy_j: Floats


@dataclass(frozen=True)
class StagePlan:
    """Clocks of the stages for one time of an iteration.

    Attributes
    ----------
    clock_mhz : tuple of float
        By stage. [MHz]
    time_s, energy_j : float
        Of an iteration; energy of all GPUs of one pipeline. [s, J]
    """

    clock_mhz: tuple[float, ...]
    time_s: float
    energy_j: float


@dataclass(frozen=True)
class StagePlans:
    """Plans for a pipeline.

    Attributes
    ----------
    clocks_mhz : ndarray, shape (c,)
        That were tried.
    stages : tuple of StageCurve
    uniform : tuple of StagePlan
        All stages at one clock, for each of them.
    planned : tuple of StagePlan
        Least energy for rising times of an iteration.
    """

    clocks_mhz: Floats
    stages: tuple[StageCurve, ...]
    uniform: tuple[StagePlan, ...]
    planned: tuple[StagePlan, ...]

    def saving(self, slower: float = 0.01) -> float:
        """Share of the energy at the highest clock on all stages that a plan saves which is at most so much slower."""
        fastest = self.uniform[-1]
        slower = number(slower, "share by which a plan may be slower")
        least = min(
            (plan.energy_j for plan in self.planned if plan.time_s <= fastest.time_s * (1 + slower)),
            default=fastest.energy_j,
        )
        return max(1.0 - least / fastest.energy_j, 0.0)


def stage_plans(
    forward: Workload,
    gpu: str | Gpu,
    recipe: Recipe,
    layout: Layout,
    *,
    micro_batches: int,
    launch_mode: str = "eager",
    attention: str = "fused",
    exclude: tuple[str, ...] = (),
) -> StagePlans:
    """Clocks by stage that take the least energy for a time of an iteration.

    A stage with less to do than the slowest may run at a lower clock for nothing: the pipeline waits for the slowest
    anyway [1]_.

    Parameters
    ----------
    forward : Workload
        Over one micro-batch.
    gpu : str or Gpu
    recipe : Recipe
    layout : Layout
        Its ``pp`` is the number of stages, at least 2; its ``stage_layers`` say what each holds.
    micro_batches : int
        Of an iteration.
    launch_mode, attention : str
    exclude : tuple of str

    Returns
    -------
    StagePlans

    Raises
    ------
    InputError
        If there is one stage, or the layers do not add up.

    References
    ----------
    .. [1] J.-W. Chung et al., Reducing energy bloat in large model training (Perseus), SOSP 2024.
    """
    described = load_gpu(gpu)
    stages = layout.pp
    if stages < 2:
        raise InputError("stage clocks need a pipeline: give pp of 2 or more")
    split = layers_of_stages(forward, layout)
    step = one_micro_batch(forward, replace(recipe, accumulate=micro_batches), layout, attention == "eager")
    execution = Execution(launch_mode, attention, "pytorch", tp=layout.tp, ep=layout.ep, overlap=layout.overlap)
    lowered, rows = prepared(step.workload, described, execution, exclude)
    names = [one.phase for one in lowered.workload.passes]
    in_step = np.array([name in ("forward", "recompute", "backward") for name in names])[rows.pass_id]
    inner = np.array(["*" in name for name in lowered.workload.layers])[rows.layer]
    body = inner | np.array([name in OF_WEIGHTS for name in lowered.workload.layers])[rows.layer]
    first = rows_before_layers(rows.layer, rows.pass_id, inner)
    clocks = _clocks(described)
    masks = (body, first & ~body, ~first & ~body)
    layers_curve, head, tail = (_curve(rows, mask & in_step, clocks) for mask in masks)
    curves = []
    for at, count in enumerate(split):
        share = count / sum(split)
        time_s, energy_j = layers_curve[0] * share, layers_curve[1] * share
        for edge, curve in ((0, head), (stages - 1, tail)):
            if at == edge:
                time_s, energy_j = time_s + curve[0], energy_j + curve[1]
        curves.append(StageCurve(float(count), time_s, energy_j))
    waiting_w = spinning_power_w(clocks, described, rows.priced.power)
    uniform = tuple(
        _plan(curves, [at] * stages, clocks, waiting_w, micro_batches, layout.tp) for at in range(clocks.size)
    )
    fastest = max(float(curve.time_s[-1]) for curve in curves)
    planned = []
    for slower in np.geomspace(1.0, SLOWEST, _PLANS):
        places = [_cheapest(curve, fastest * slower, waiting_w) for curve in curves]
        planned.append(_plan(curves, places, clocks, waiting_w, micro_batches, layout.tp))
    return StagePlans(clocks, tuple(curves), uniform, tuple(planned))


def _clocks(gpu: Gpu) -> Floats:
    """Clocks from 40 % of the highest on, the highest last. [MHz]"""
    lowest = max(gpu.clock_min_mhz, 0.4 * gpu.clock_max_mhz)
    return np.linspace(lowest, gpu.clock_max_mhz, 40)


def _curve(rows: Any, mask: npt.NDArray[np.bool_], clocks: Floats) -> tuple[Floats, Floats]:
    """Time and energy of the operations at `mask`, all of their runs, at each clock. [s, J]"""
    some = np.flatnonzero(mask)
    if not some.size:
        return np.zeros(clocks.size), np.zeros(clocks.size)
    priced, count = take(rows.priced, some), rows.count[some]
    times, energies = np.empty(clocks.size), np.empty(clocks.size)
    for at, clock in enumerate(clocks):
        each = duration_s(priced.times, priced.gpu, float(clock))
        times[at] = count @ each
        energies[at] = count @ module_energy_j(priced, each, float(clock)).sum(axis=0)
    return times, energies


def _cheapest(curve: StageCurve, time_s: float, waiting_w: Floats) -> int:
    """Clock at which a stage takes the least energy within a time, what it draws while it waits among it."""
    total = curve.energy_j + waiting_w * np.maximum(time_s - curve.time_s, 0.0)
    total = np.where(curve.time_s <= time_s * (1 + 1e-9), total, np.inf)
    return int(np.argmin(total))


def _plan(
    curves: list[StageCurve], places: list[int], clocks: Floats, waiting_w: Floats, micro_batches: int, tp: int
) -> StagePlan:
    """An iteration with each stage at its clock: m of the slowest, and once through the others."""
    each = np.array([curve.time_s[at] for curve, at in zip(curves, places, strict=True)])
    time_s = float(micro_batches * each.max() + each.sum() - each.max())
    energy_j = 0.0
    for curve, at, busy in zip(curves, places, each, strict=True):
        waits = time_s - micro_batches * float(busy)
        energy_j += micro_batches * float(curve.energy_j[at]) + float(waiting_w[at]) * waits
    return StagePlan(tuple(float(clocks[at]) for at in places), time_s, energy_j * tp)
