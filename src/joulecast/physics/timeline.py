"""From kernels to passes: launches queue on a host, the GPU drains the queue, a phase settles at one clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from joulecast.physics.power import core_scale
from joulecast.physics.price import Floats, Priced
from joulecast.physics.throttle import settled_clock_mhz
from joulecast.physics.timing import duration_s

#: Exponent of the smooth maximum between GPU time and host time of a pass: near the crossing each waits
#: for the other now and then.
HOST_SHARPNESS = 8.0


@dataclass(frozen=True)
class Passes:
    """The operations of one phase, and how often each runs in each of its passes.

    Attributes
    ----------
    priced : Priced
        `n` operations of all kinds.
    count : ndarray, shape (n,)
        Runs of each in one pass of its own.
    pass_of : ndarray of int, shape (n,)
        Which pass, 0 to p - 1.
    repeats : ndarray, shape (p,)
        How often each pass runs.
    host_s : ndarray, shape (p,)
        Time the host needs to start everything of one pass. [s]
    """

    priced: Priced
    count: Floats
    pass_of: npt.NDArray[np.intp]
    repeats: Floats
    host_s: Floats


@dataclass(frozen=True)
class Run:
    """A phase at the clock it settled at.

    Attributes
    ----------
    clock_mhz : float
    throttled : bool
    time_s, energy_j : float
        Over all passes, one GPU. [s, J]
    gpu_s, host_s : float
        What GPU and host alone take over all passes. [s]
    idle_s, idle_j : float
        Time that the GPU waits, and the energy it draws then. [s, J]
    kernel_s : ndarray, shape (n,)
        Time of each operation once. [s]
    """

    clock_mhz: float
    throttled: bool
    time_s: float
    energy_j: float
    gpu_s: float
    host_s: float
    idle_s: float
    idle_j: float
    kernel_s: Floats


def pass_time_s(gpu_s: Any, host_s: Any) -> Floats:
    """Time of a pass whose launches queue: the GPU's or the host's, whichever is longer, smoothly. [s]

    The queue holds many launches, so that the two overlap but for the first and last of them.
    """
    gpu, host = np.broadcast_arrays(np.asarray(gpu_s, dtype=np.float64), np.asarray(host_s, dtype=np.float64))
    longer = np.maximum(gpu, host)
    shorter = np.minimum(gpu, host)
    ratio = np.divide(shorter, longer, out=np.zeros_like(longer), where=longer > 0)
    return np.asarray(longer * (1.0 + ratio**HOST_SHARPNESS) ** (1.0 / HOST_SHARPNESS))


def queue_finish_s(host_cost_s: Floats, gpu_cost_s: Floats) -> float:
    """When the last of a queue of launches ends: each starts when its host and the one before are done. [s]

    Parameters
    ----------
    host_cost_s, gpu_cost_s : ndarray, shape (n,)
        Cost of each launch on the host and on the GPU, in order. [s]

    Returns
    -------
    float
        ``max over i of (host time up to i + GPU time from i on)``; between the longer of the two sums and both
        together.
    """
    if not len(host_cost_s):
        return 0.0
    started = np.cumsum(host_cost_s)
    done_before = np.cumsum(gpu_cost_s) - gpu_cost_s
    return float(np.max(started - done_before) + gpu_cost_s.sum())


def run_phase(passes: Passes, clock_mhz: float, power_limit_w: float) -> Run:
    """Time and energy of a phase at the highest clock, up to the one asked for, that keeps within the limit.

    The driver's control loop is slower than kernels and passes: the whole phase settles at one clock, at which
    its mean power, gaps included, meets the limit.

    Parameters
    ----------
    passes : Passes
    clock_mhz : float
        Clock asked for. [MHz]
    power_limit_w : float
        Limit of one GPU. [W]

    Returns
    -------
    Run
    """
    asked = _evaluated(passes, clock_mhz, False)
    if asked.energy_j <= power_limit_w * asked.time_s:
        return asked
    settled, throttled = settled_clock_mhz(
        lambda mhz, _: np.array([_mean_power_w(passes, float(mhz[0]))]),
        clock_mhz,
        passes.priced.gpu.clock_min_mhz,
        power_limit_w,
        1,
    )
    return _evaluated(passes, float(settled[0]), bool(throttled[0]))


def _mean_power_w(passes: Passes, clock_mhz: float) -> float:
    run = _evaluated(passes, clock_mhz, False)
    return run.energy_j / run.time_s


def _evaluated(passes: Passes, clock_mhz: float, throttled: bool) -> Run:
    priced = passes.priced
    power = priced.power
    kernel_s = duration_s(priced.times, priced.gpu, clock_mhz)
    busy_s = passes.count * kernel_s
    gpu_s = np.bincount(passes.pass_of, weights=busy_s, minlength=passes.repeats.size)
    pass_s = pass_time_s(gpu_s, passes.host_s)
    runs = passes.count * passes.repeats[passes.pass_of]
    scale = float(core_scale(clock_mhz, priced.gpu, power))
    drive = scale * clock_mhz / priced.gpu.rate_clock_mhz
    static_w = power.idle_w + power.clocked_w * drive
    time_s = float(passes.repeats @ pass_s)
    total_gpu_s = float(passes.repeats @ gpu_s)
    work_j = float(runs @ (priced.energy.core_total_j * scale + priced.energy.dram_j))
    active_j = power.active_w * drive * float(runs @ (priced.energy.busy * kernel_s))
    idle_s = max(time_s - total_gpu_s, 0.0)
    return Run(
        clock_mhz=clock_mhz,
        throttled=throttled,
        time_s=time_s,
        energy_j=static_w * time_s + active_j + work_j,
        gpu_s=total_gpu_s,
        host_s=float(passes.repeats @ passes.host_s),
        idle_s=idle_s,
        idle_j=static_w * idle_s,
        kernel_s=kernel_s,
    )
