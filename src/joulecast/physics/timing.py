"""From work to time: ideal times of each module, a smooth maximum of them, and the cost of a launch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from joulecast.coefficients.schema import TIME_PARAMETERS, TimeCoefficients
from joulecast.gpus import Gpu
from joulecast.kernels.work import KernelWork

Floats = npt.NDArray[np.float64]

#: Modules that work in the core clock's domain, in the order of `ModuleTimes.core_cycles`.
CORE_MODULES = ("tensor core", "CUDA core", "special functions", "shared memory", "L2")

#: Bytes a core clock that one SM can keep in flight to DRAM; below some clock it and not the memory sets the rate.
#: (Achieved 825, 983, 1152, 1270 GB/s at 510, 705, 900, 1410 MHz on an A100 with 108 SMs.) Asynchronous copies
#: keep more in flight: an H200 reaches 4,330 and a B200 7,360 GB/s under 2 GHz, above what 17 would allow.
DRAM_BYTES_PER_CLK_SM = 20.0
DRAM_BYTES_PER_CLK_SM_OF = {"hopper": 28.0, "blackwell": 40.0}


@dataclass(frozen=True)
class ModuleTimes:
    """Ideal times of `n` operations at efficiencies that real kernels reach.

    Attributes
    ----------
    core_cycles : ndarray, shape (5, n)
        Core cycles that each of `CORE_MODULES` needs.
    core_total_cycles : ndarray, shape (n,)
        Smooth maximum of them and of the chain of dependent steps.
    dram_bytes, dram_rate_gb_s : ndarray
        Traffic of the main kernel, and the rate reached at a high core clock. [B, GB/s]
    serial_cycles, serial_dram_bytes : ndarray
        L2 time and DRAM traffic of small kernels before or after it, which overlap with nothing. [cycles, B]
    link_s : ndarray
        Time of the links between GPUs, which no core clock changes. [s]
    fixed_s, fixed_cycles : ndarray
        Cost of the launches, outside and inside the core clock's domain. [s, cycles]
    sharpness : ndarray
        Exponent of the smooth maximum.
    scale : ndarray
        Learned correction of the time, a factor; 1 where there is none.
    """

    core_cycles: Floats
    core_total_cycles: Floats
    dram_bytes: Floats
    dram_rate_gb_s: Floats
    serial_cycles: Floats
    serial_dram_bytes: Floats
    link_s: Floats
    fixed_s: Floats
    fixed_cycles: Floats
    sharpness: Floats
    scale: Floats


def without_parts(times: ModuleTimes, rows: Any) -> ModuleTimes:
    """The operations at `rows` as far as `duration_s` looks at them: without the times of each module."""
    kept = {name: value[rows] for name, value in times.__dict__.items() if name != "core_cycles"}
    return ModuleTimes(core_cycles=times.core_cycles[:, :0], **kept)


def smooth_maximum(parts: Floats, sharpness: Any, axis: int = 0) -> Floats:
    """Smooth maximum ``(sum x^p)^(1/p)`` of non-negative `parts` along `axis`.

    Between the maximum (perfect overlap, large `sharpness`) and the sum (none, 1). Zero where all are.
    """
    top = parts.max(axis=axis)
    safe = np.where(top > 0, top, 1.0)
    total = ((parts / np.expand_dims(safe, axis)) ** sharpness).sum(axis=axis)
    return np.where(top > 0, safe * np.maximum(total, 1e-300) ** (1.0 / np.asarray(sharpness)), 0.0)


def parameters_by_row(per_group: list[TimeCoefficients], group: npt.NDArray[np.intp]) -> Floats:
    """Coefficients of each row, shape (len(TIME_PARAMETERS), n), from those of its group."""
    table = np.array([[getattr(one, name) for name in TIME_PARAMETERS] for one in per_group], dtype=np.float64)
    return table.T[:, group]


def message_factor(work: KernelWork, per_group: Sequence[TimeCoefficients]) -> Floats:
    """Factor on the time of each row by the size of its message (`TimeCoefficients.message_factors`), shape (n,).

    The logarithm is straight between sizes, on a logarithmic axis, and level outside them.
    """
    out = np.ones(len(work))
    for code, one in enumerate(per_group):
        if one.message_factors:
            rows = np.flatnonzero((work.group == code) & (work.message_bytes > 0))
            knots = sorted((float(size), np.log(factor)) for size, factor in one.message_factors.items())
            size, height = np.array(knots).T
            out[rows] = np.exp(np.interp(np.log2(work.message_bytes[rows]), size, height))
    return out


def module_times(work: KernelWork, gpu: Gpu, parameters: Floats, scale: Any = 1.0) -> ModuleTimes:
    """Times of each module from work and efficiencies.

    Parameters
    ----------
    work : KernelWork
    gpu : Gpu
    parameters : ndarray, shape (11,) or (11, n)
        The numbers named by `joulecast.coefficients.schema.TIME_PARAMETERS`.
    scale : array_like
        Learned correction, a factor.

    Returns
    -------
    ModuleTimes
    """
    n = len(work)
    tensor, cuda, sfu, shared, l2, dram, fixed_us, fixed_kcycles, sharpness, link, latency = parameters
    shared_per_clk = 128.0 * gpu.sm_count  # 32 banks of 4 bytes an SM, all architectures in the catalogue
    core = np.empty((len(CORE_MODULES), n))
    core[0] = work.tensor_flop / (work.tensor_flop_per_clk * tensor * work.fill)
    core[1] = work.cuda_flop / (work.cuda_flop_per_clk * cuda * work.fill)
    core[2] = work.sfu_ops / (gpu.sfu_per_clk * sfu * work.fill)
    core[3] = work.shared_bytes / (shared_per_clk * shared * work.fill)
    core[4] = (work.l2_bytes - work.serial_l2_bytes) / (gpu.l2_bytes_per_clk * l2)
    ones = np.ones(n)
    waits = (*core, work.latency_cycles * latency) if work.latency_cycles.any() else core
    return ModuleTimes(
        core_cycles=core,
        core_total_cycles=smooth_maximum(np.asarray(waits), sharpness),
        dram_bytes=work.dram_bytes - work.serial_dram_bytes,
        dram_rate_gb_s=gpu.dram_gb_s * dram * ones,
        serial_cycles=work.serial_l2_bytes / (gpu.l2_bytes_per_clk * l2),
        serial_dram_bytes=work.serial_dram_bytes,
        link_s=work.link_s / link,
        fixed_s=work.launches * fixed_us * 1e-6,
        fixed_cycles=work.launches * fixed_kcycles * 1e3,
        sharpness=sharpness * ones,
        scale=np.asarray(scale) * ones,
    )


def dram_rate_gb_s(peak_gb_s: Any, clock_mhz: Any, gpu: Gpu) -> Floats:
    """DRAM rate that can be reached at a core clock: bytes in flight limit it when the core is slow.

    Parameters
    ----------
    peak_gb_s : array_like
        Rate reached at a high core clock. [GB/s]
    clock_mhz : array_like
        Core clock. [MHz]
    gpu : Gpu
        Its SMs and their architecture set the bytes in flight.

    Returns
    -------
    ndarray
        Rate, below both limits; a smooth minimum (exponent 4) of them. [GB/s]
    """
    in_flight_sm = DRAM_BYTES_PER_CLK_SM_OF.get(gpu.architecture, DRAM_BYTES_PER_CLK_SM)
    in_flight = in_flight_sm * gpu.sm_count * np.asarray(clock_mhz) * 1e-3
    ratio = np.asarray(peak_gb_s) / in_flight
    return np.asarray(peak_gb_s / np.sqrt(np.sqrt(1.0 + np.square(np.square(ratio)))))


def duration_s(times: ModuleTimes, gpu: Gpu, clock_mhz: Any) -> Floats:
    """Time of each operation at a core clock.

    Parameters
    ----------
    times : ModuleTimes
    gpu : Gpu
    clock_mhz : array_like, shape broadcasting with (n,)
        Core clock. [MHz]

    Returns
    -------
    ndarray
        ``scale * (fixed + serial + smooth maximum of core, DRAM and link time)``; never rises with the clock. [s]
    """
    hertz = np.asarray(clock_mhz) * 1e6
    core = times.core_total_cycles / hertz
    rate = dram_rate_gb_s(times.dram_rate_gb_s, clock_mhz, gpu) * 1e9
    dram = times.dram_bytes / rate
    parts = (core, dram, times.link_s) if times.link_s.any() else (core, dram)
    body = smooth_maximum(np.stack(np.broadcast_arrays(*parts)), times.sharpness)
    serial = times.serial_cycles / hertz + times.serial_dram_bytes / rate
    return times.scale * (times.fixed_s + times.fixed_cycles / hertz + serial + body)


def core_share(times: ModuleTimes, gpu: Gpu) -> Floats:
    """Share of each operation's time at the rate clock that its core modules need, at most 1. Dimensionless."""
    hertz = gpu.rate_clock_mhz * 1e6
    total = duration_s(times, gpu, gpu.rate_clock_mhz) / times.scale
    needed = (times.core_total_cycles + times.serial_cycles) / hertz
    return np.minimum(1.0, needed / np.where(total > 0, total, 1.0))


def measured_s(duration_s: Any, host_us: Any, host_lead_us: Any) -> Floats:
    """Time that event timers around a single launch show: the kernel's, or the host's where that is longer.

    The host reads the clock, prepares the launch for `host_lead_us`, starts the kernel, and can read the clock
    again `host_us` after the first reading at the earliest.

    Parameters
    ----------
    duration_s : array_like
        Time of the kernels. [s]
    host_us, host_lead_us : array_like
        `TimeCoefficients.host_us` and ``host_lead_us``; both 0 where launches cost nothing (graphs). [us]

    Returns
    -------
    ndarray
        Smooth maximum (exponent 8) of ``host`` and ``lead + kernel``. [s]
    """
    reached = np.asarray(duration_s) + np.asarray(host_lead_us) * 1e-6
    return reached * (1.0 + (np.asarray(host_us) * 1e-6 / reached) ** 8) ** 0.125
