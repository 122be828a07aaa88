"""When each launch of a pass runs: the queue of host and GPU walked through, and power over time as steps."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from joulecast.gpus import Gpu
from joulecast.physics.priced import Priced
from joulecast.physics.timing import dram_rate_gb_s

Floats = npt.NDArray[np.float64]

#: Modules whose duty is told, in the order of `module_duty`.
DUTY_MODULES = ("tensor core", "CUDA core", "special functions", "shared memory", "L2", "DRAM")

#: Waits of the walk that are a smaller share of those predicted say nothing of where they are.
_NO_WALK = 1e-9


def queue_starts_s(host_cost_s: Floats, gpu_cost_s: Floats) -> Floats:
    """When each launch of a queue starts: when its host and the launch before are done. [s]

    Parameters
    ----------
    host_cost_s, gpu_cost_s : ndarray, shape (n,)
        Cost of each launch on the host and on the GPU, in order. [s]

    Returns
    -------
    ndarray, shape (n,)
        ``max over j up to i of (host time up to j + GPU time from j to i)``.
    """
    done_before = np.cumsum(gpu_cost_s) - gpu_cost_s
    return np.asarray(np.maximum.accumulate(np.cumsum(host_cost_s) - done_before) + done_before)


def gaps_s(host_cost_s: Floats, gpu_cost_s: Floats, pass_s: float) -> tuple[Floats, float]:
    """How long the GPU waits before each launch of a pass that takes `pass_s` altogether.

    Parameters
    ----------
    host_cost_s, gpu_cost_s : ndarray, shape (n,)
        Cost of each launch on the host and on the GPU, in order. [s]
    pass_s : float
        Time of the pass, such as `joulecast.physics.timeline.pass_time_s` gives; no less than the GPU's. [s]

    Returns
    -------
    gaps_s : ndarray, shape (n,)
        Wait before each launch; they sum to ``pass_s - sum(gpu_cost_s)``. [s]
    scale : float
        Factor on the gaps of the exact walk through the queue that makes them do so; 1 where none is needed.

    Notes
    -----
    `joulecast.physics.timeline.pass_time_s` is a smooth maximum of the sums of host and GPU, fitted on measured
    passes; an exact walk through the queue of one pass starts with the host alone and ends with the GPU alone, and so
    finishes a little later where the host is slow, and knows no waits where the GPU is a little slower. Where the
    waits are and how they compare is the walk's; how much they are together is the fitted time's.
    """
    if not gpu_cost_s.size:
        return np.zeros(0), 1.0
    starts = queue_starts_s(host_cost_s, gpu_cost_s)
    ends = np.concatenate([[0.0], (starts + gpu_cost_s)[:-1]])
    walked = np.maximum(starts - ends, 0.0)
    waits = max(pass_s - float(gpu_cost_s.sum()), 0.0)
    total = float(walked.sum())
    if not waits:
        return np.zeros_like(walked), 1.0 if not total else 0.0
    if total < _NO_WALK * waits:  # a host that costs nothing, and a pass longer than its kernels: all before the first
        return waits * (np.arange(walked.size) == 0), 1.0
    scale = waits / total
    return walked * scale, scale


def module_duty(priced: Priced, kernel_s: Floats, clock_mhz: Floats, gpu: Gpu) -> Floats:
    """Share of each operation's time that each module of the GPU is busy.

    Parameters
    ----------
    priced : Priced
        `n` operations.
    kernel_s, clock_mhz : ndarray, shape (n,)
        Time of each and the core clock it runs at. [s, MHz]
    gpu : Gpu

    Returns
    -------
    ndarray, shape (6, n)
        Rows as `DUTY_MODULES`, in [0, 1]: time that the module's work takes at the rate it reaches, over the
        operation's time.
    """
    times = priced.times
    hertz = clock_mhz * 1e6
    needed = np.empty((len(DUTY_MODULES), kernel_s.size))
    needed[:5] = times.core_cycles / hertz
    needed[4] += times.serial_cycles / hertz
    moved = times.dram_bytes + times.serial_dram_bytes
    needed[5] = moved / (dram_rate_gb_s(times.dram_rate_gb_s, clock_mhz, gpu) * 1e9)
    return np.clip(needed / np.maximum(kernel_s, 1e-300), 0.0, 1.0)
