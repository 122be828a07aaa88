"""Fits host, power and the scale of eager kernels on measured whole passes of models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from joulecast.calibration.mechanisms import ALL, Mechanisms
from joulecast.calibration.pass_runs import MeasuredPass
from joulecast.coefficients.schema import HostCoefficients, PowerCoefficients
from joulecast.coefficients.voltage import voltage_ratio
from joulecast.gpus import Gpu, load_gpu
from joulecast.kernels.work import Conditions
from joulecast.lowering.execution import Execution
from joulecast.lowering.lower import lower
from joulecast.physics.host import MODULES, operations_started, plain_calls
from joulecast.physics.power import switching
from joulecast.physics.timeline import pass_time_s
from joulecast.physics.timing import duration_s
from joulecast.workloads.table import COMMON, OpTable

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class PassTable:
    """What the fits need of `r` passes of one GPU, at the clock each had.

    Attributes
    ----------
    gpu : Gpu
    keys : tuple of str
        ``family/engine/group`` of the columns of `kernel_s`.
    kernel_s : ndarray, shape (r, k)
        Time of all kernels of each key, unscaled, launch costs apart. [s]
    launches, modules : ndarray, shape (r,)
        Operations started, and calls of modules, those without weights counted by `PLAIN_MODULE`.
    work : ndarray, shape (r, w)
        Work by energy parameter (see `ENERGIES`): FLOP, results or bytes.
    busy : ndarray, shape (r, k)
        Time of each key's kernels weighted by the share of SMs in use. [s]
    voltage, clock : ndarray, shape (r,)
        Voltage and clock over those at the rate clock.
    time_s, power_w : ndarray, shape (r,)
    models : ndarray of str
    takes_turns : ndarray of bool
        Whether host and GPU take turns.
    """

    gpu: Gpu
    keys: tuple[str, ...]
    kernel_s: Floats
    launches: Floats
    modules: Floats
    work: Floats
    busy: Floats
    voltage: Floats
    clock: Floats
    time_s: Floats
    power_w: Floats
    models: npt.NDArray[np.str_]
    takes_turns: npt.NDArray[np.bool_]

    def take(self, rows: Any) -> PassTable:
        """The passes at `rows`."""
        names = [name for name in self.__dict__ if name not in ("gpu", "keys")]
        return replace(self, **{name: getattr(self, name)[rows] for name in names})


#: Energies that passes tell apart, with prior and the width of the prior in natural logarithms.
ENERGIES: dict[str, tuple[float, float]] = {
    "tensor": (0.45, 0.5),
    "cuda": (4.0, 0.5),
    "sfu": (8.0, 0.5),
    "shared": (2.0, 0.4),
    "l2": (12.0, 0.4),
    "dram": (70.0, 0.4),
}


def tabulate(runs: Sequence[MeasuredPass], power: PowerCoefficients, mechanisms: Mechanisms = ALL) -> PassTable:
    """Lower and price the passes of one GPU. `power` gives the voltage curve."""
    gpu = load_gpu(runs[0].gpu)
    execution = Execution(launch_mode="eager", attention="eager")
    conditions = Conditions(engine="pytorch", residency="stream")
    keys: dict[str, int] = {}
    rows: list[dict[str, Any]] = []
    for run in runs:
        lowered = lower(run.workload, gpu, execution)
        repeats = np.array([one.repeats for one in run.workload.passes])
        times: dict[str, float] = {}
        busy: dict[str, float] = {}
        launches = 0.0
        modules = plain_calls(run.workload.info) * float(repeats.sum()) if mechanisms.module_calls else 0.0
        work = np.zeros(len(ENERGIES))
        for table in lowered.tables.values():
            shapes = OpTable(table.kind, {k: v for k, v in table.columns.items() if k not in COMMON})
            priced = mechanisms.price(shapes, gpu, conditions, power=power, pass_scales=False)
            count = table["count"] * repeats[table["pass_id"]]
            seconds = duration_s(priced.times, gpu, run.clock_mhz)
            for code, group in enumerate(priced.work.groups):
                mask = priced.work.group == code
                if mask.any():
                    key = f"{priced.work.family}/pytorch/{group}"
                    keys.setdefault(key, len(keys))
                    times[key] = times.get(key, 0.0) + float(count[mask] @ seconds[mask])
                    busy[key] = busy.get(key, 0.0) + float(count[mask] @ (seconds * priced.energy.busy)[mask])
            share = HostCoefficients.copy_share if table.kind == "copy" else 1.0
            launches += share * float(count @ operations_started(priced.work.launches))
            modules += float(count.sum()) if table.kind in MODULES else 0.0
            w = priced.work
            flop = switching(w)
            units = (w.tensor_flop * flop, w.cuda_flop * flop, w.sfu_ops, w.shared_bytes, w.l2_bytes, w.dram_bytes)
            work += np.array([count @ unit for unit in units])
        rows.append({"times": times, "busy": busy, "launches": launches, "modules": modules, "work": work,
                     "voltage": float(voltage_ratio(run.clock_mhz, gpu, power)) if mechanisms.voltage else 1.0,
                     "clock": run.clock_mhz / gpu.rate_clock_mhz})  # fmt: skip
    order = tuple(keys)
    return PassTable(
        gpu=gpu,
        keys=order,
        kernel_s=np.array([[row["times"].get(key, 0.0) for key in order] for row in rows]),
        launches=mechanisms.host * np.array([row["launches"] for row in rows]),
        modules=mechanisms.host * np.array([row["modules"] for row in rows]),
        work=np.array([row["work"] for row in rows]),
        busy=np.array([[row["busy"].get(key, 0.0) for key in order] for row in rows]),
        voltage=np.array([row["voltage"] for row in rows]),
        clock=np.array([row["clock"] for row in rows]),
        time_s=np.array([run.time_s for run in runs]),
        power_w=np.array([run.power_w for run in runs]),
        models=np.array([run.model for run in runs]),
        takes_turns=np.array([run.takes_turns for run in runs]),
    )


@dataclass(frozen=True)
class PassFit:
    """Fitted on passes: scale of each key's kernel times, host cost, and energies.

    Attributes
    ----------
    scale : dict of str to float
        Factor on the time of each ``family/engine/group``.
    launch_us, module_us : float
        Cost of a launch, and added cost of a module, in eager mode. [us]
    energies : dict of str to float
        pJ by the names of `ENERGIES`, ``idle_w``, ``clocked_w``, ``active_w``, and ``voltage_exponent``. [pJ, W, 1]
    """

    scale: dict[str, float]
    launch_us: float
    module_us: float
    energies: dict[str, float]


#: Share of the host's time that the GPU waits for where they take turns. Counted, not fitted: of what a layer of
#: GPT-NeoX starts, the quarter between the first long product of its MLP and the next wait is started while those run.
_LAID_BARE = 0.75


def predicted_time_s(table: PassTable, log_scale: Floats, launch_us: float, module_us: float) -> tuple[Floats, Floats]:
    """Time of each pass, and the GPU's part of it. [s]"""
    gpu_s = table.kernel_s @ np.exp(log_scale)
    host_s = (table.launches * launch_us + table.modules * module_us) * 1e-6
    return np.where(table.takes_turns, gpu_s + _LAID_BARE * host_s, pass_time_s(gpu_s, host_s)), gpu_s


@dataclass(frozen=True)
class Belief:
    """How much of what is known before any pass is believed.

    Attributes
    ----------
    scale_width : float
        Width of the prior on the scales of kernel times, in natural logarithms: how little benchmarks of kernels are
        to be believed.
    tensor_pj : float
        Prior of the energy of a FLOP of the tensor cores, in place of that of `ENERGIES`. [pJ]
    energies_strength : float
        How much the priors of energies count: the scatter of power, in natural logarithms, that an energy one width
        away from its prior is worth.
    """

    scale_width: float
    tensor_pj: float
    energies_strength: float


#: Whole forward passes, whose tensor cores are busy; the prior is what the limit of an A100-SXM leaves each FLOP at its
#: peak, (400 - 75) W over 312 TFLOP/s. (It and the strength are those of a low error of power at measured times, models
#: left out, of the passes that do not wait for their host.)
FORWARD = Belief(scale_width=0.25, tensor_pj=1.0, energies_strength=0.02)

#: Generations, which wait for their host most of the time and tell little of kernels, nothing of tensor cores.
GENERATED = Belief(scale_width=0.06, tensor_pj=0.45, energies_strength=0.01)

#: Width of the prior of idle power, in natural logarithms: of a reading of the board, and of what its like draw.
_IDLE_WIDTH = {True: 0.1, False: 0.3}

#: What core-domain energies go with before a sweep of clocks tells: switching (2), and leakage that rises faster. A
#: sweep tells well, so that the prior is wide.
_VOLTAGE_EXPONENT = 2.5


def fit_passes(table: PassTable, idle_w: tuple[float, float], belief: Belief = FORWARD) -> PassFit:
    """Fit time, then power, with relative loss and priors.

    Parameters
    ----------
    table : PassTable
    idle_w : (float, float)
        Prior of idle power at low clock, and of what the clocked core adds at the rate clock. [W]
    belief : Belief
        How much the priors count.

    Returns
    -------
    PassFit
    """
    from scipy.optimize import least_squares

    k, r = len(table.keys), len(table.time_s)
    share = (table.kernel_s / table.kernel_s.sum(axis=1, keepdims=True)).max(axis=0)
    host_prior = np.log([9.0, 20.0])

    def time_residuals(theta: Floats) -> Floats:
        time_s, _ = predicted_time_s(table, theta[:k], *np.exp(theta[k:]))
        fit = np.log(time_s / table.time_s)
        prior = theta[:k] / belief.scale_width * np.where(share > 0.02, 1.0, 3.0)
        return np.concatenate([_robust(fit) / np.sqrt(r), 0.02 * prior, 0.01 * (theta[k:] - host_prior) / 0.5])

    start = np.append(np.zeros(k), host_prior)
    bound = np.append(np.full(k, 1.2), [2.0, 2.0])
    time_fit = least_squares(time_residuals, start, bounds=(start - bound, start + bound))
    log_scale = time_fit.x[:k]
    launch_us, module_us = (float(x) for x in np.exp(time_fit.x[k:]))

    active = table.busy @ np.exp(log_scale)
    names = [*ENERGIES, "idle_w", "clocked_w", "active_w", "voltage_exponent"]
    known = {name: p for name, (p, _) in ENERGIES.items()} | {"tensor": belief.tensor_pj}
    prior = np.log([*known.values(), idle_w[0], max(idle_w[1], 1.0), 40.0, _VOLTAGE_EXPONENT])
    idle_width = _IDLE_WIDTH[bool(table.gpu.idle_points)]
    width = np.array([*(w for _, w in ENERGIES.values()), idle_width, 0.3, 0.8, 0.5])

    def power_residuals(theta: Floats) -> Floats:
        power = predicted_power_w(table, dict(zip(names, np.exp(theta), strict=True)), active, table.time_s)
        return np.concatenate(
            [_robust(np.log(power / table.power_w)) / np.sqrt(r), belief.energies_strength * (theta - prior) / width]
        )

    power_fit = least_squares(power_residuals, prior, bounds=(prior - 2.0, prior + 2.0))
    return PassFit(
        scale=dict(zip(table.keys, (float(x) for x in np.exp(log_scale)), strict=True)),
        launch_us=launch_us,
        module_us=module_us,
        energies=dict(zip(names, (float(x) for x in np.exp(power_fit.x)), strict=True)),
    )


def predicted_power_w(table: PassTable, energies: dict[str, float], active_s: Floats, time_s: Floats) -> Floats:
    """Mean power of each pass over `time_s`. [W]"""
    picojoules = np.array([energies[name] for name in ENERGIES])
    scale = table.voltage ** energies["voltage_exponent"]
    drive = scale * table.clock
    static = energies["idle_w"] + energies["clocked_w"] * drive
    core = np.array([name != "dram" for name in ENERGIES])
    by_work_j = (table.work[:, core] @ picojoules[core] * scale + table.work[:, ~core] @ picojoules[~core]) * 1e-12
    return np.asarray(static + (energies["active_w"] * drive * active_s + by_work_j) / time_s)


def _robust(residual: Floats) -> Floats:
    """Square root of a pseudo-Huber loss with its knee at 10 %."""
    return np.asarray(np.sign(residual) * np.sqrt(0.02 * (np.sqrt(1 + (residual / 0.1) ** 2) - 1)))
