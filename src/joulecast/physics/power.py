"""From duty to watts: energies of the work, and the power a GPU draws whatever it does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from joulecast.coefficients.schema import PowerCoefficients
from joulecast.coefficients.voltage import voltage_ratio
from joulecast.gpus import Gpu
from joulecast.kernels.work import MATHS, KernelWork

Floats = npt.NDArray[np.float64]

#: Power of an SM whose warps all wait for memory, over that of one that works: its clock runs, its pipelines rest.
STALLED_SHARE = 0.3

#: Share of the energy of a multiply-add that is saved where one operand is zero: what the multiplier switches.
#: (All-zero operands draw far less than random ones; T. Gregersen et al., Input-Dependent Power Usage in GPUs, 2024.
#: The value fits whole passes of a ReLU model, OPT-1.3B, beside those of other models.)
ZERO_SAVING = 0.6

#: Energy of arithmetic and data movement over that with random operands, by what the operands hold: wires, multipliers
#: and memory lines whose bits stay the same charge nothing. Memory that nobody wrote is zeros in large part, of a
#: cache more than of weights that were allocated among other tensors.
#: (Matrix products of zeros draw up to 40 % less board power than those of random numbers; T. Gregersen et al.,
#: Input-dependent power usage in GPUs, 2024.)
#:
#: Fitted beside the energies of H200 and B200 without the shapes that are scored, and rounded. Weights: cores 0.72 and
#: 0.52, DRAM 0.67 and 0.60. Constants: cores 0.37 and 0.36, DRAM 0.08 and 0.32. Caches (B200): cores 0.25, DRAM 0.35.
#: Told apart for cores and DRAM they transfer no better. With them both GPUs agree on what random operands take (0.32
#: and 0.31 pJ a FLOP in bf16), and served models, which had no say, take what kernels do.
OPERAND_ENERGY = {
    "random": 1.0,
    "uninitialised": 0.65,
    "constant": 0.35,
    "kv_cache_uninitialised": 0.35,
    "not_applicable": 1.0,
}

#: What waiting for another GPU adds, for each SM of the GPU at its rate clock. The blocks of an exchange (a receive in
#: a pipeline, a sum of gradients) ask for what is to come again and again: SMs, caches and schedulers stay awake, which
#: goes with V^2 f. A GPU that waits for its host or its input has no block and draws static power alone. [W]
#:
#: Told by stages of pipelines that compute unlike shares of an iteration (Perseus, SOSP 2024): 0.64 on A100 PCIe, 0.34
#: on A40, and their geometric mean ships. The waiting power of either is 22 % off by the other's number, and without
#: any 26 % (A40) and 49 % (A100) too low. ``benchmarks/waiting_power.py`` finds it, beside other measures than the SM.
SPIN_W_PER_SM = 0.47

#: Where energy goes, in the order of `energy_parts_j`.
POWER_MODULES = ("tensor core", "CUDA core", "special functions", "shared memory", "L2", "DRAM", "active SMs", "static")


@dataclass(frozen=True)
class WorkEnergy:
    """Energy that the work of `n` operations takes, apart from what is drawn by time.

    Attributes
    ----------
    core_j : ndarray, shape (5, n)
        Energy of tensor cores, CUDA cores, special functions, shared memory and L2 at the voltage of the
        GPU's rate clock. [J]
    dram_j : ndarray, shape (n,)
        Energy of DRAM and its interface. [J]
    busy : ndarray, shape (n,)
        Share of the SMs that hold blocks, those that wait for memory counted by `STALLED_SHARE`, in [0, 1] before
        any learned correction.
    """

    core_j: Floats
    dram_j: Floats
    busy: Floats

    @property
    def core_total_j(self) -> Floats:
        """Core-domain energy at the voltage of the rate clock. [J]"""
        return np.asarray(self.core_j.sum(axis=0))


def work_energy(
    work: KernelWork, gpu: Gpu, power: PowerCoefficients, core_share: Any = 1.0, operand_factor: Any = 1.0
) -> WorkEnergy:
    """Energy of the work of each operation at the voltage of the rate clock.

    Parameters
    ----------
    work : KernelWork
    gpu : Gpu
    power : PowerCoefficients
    core_share : array_like
        Share of each operation's time that its core modules need; the rest they wait.
    operand_factor : array_like
        Energy of what the operands hold over that of random ones (`operand_energy`).

    Returns
    -------
    WorkEnergy
    """
    tensor_pj = np.array([power.tensor_pj.get(math, 0.0) for math in MATHS])
    cuda_pj = np.array([power.cuda_pj.get(math, power.cuda_pj.get("fp32", 0.0)) for math in MATHS])
    core = np.stack(
        [
            work.tensor_flop * tensor_pj[work.math] * switching(work),
            work.cuda_flop * cuda_pj[work.math] * switching(work),
            work.sfu_ops * power.sfu_pj,
            work.shared_bytes * power.shared_pj,
            work.l2_bytes * power.l2_pj,
        ]
    )
    working = STALLED_SHARE + (1.0 - STALLED_SHARE) * np.minimum(core_share, 1.0)
    busy = np.minimum(1.0, work.blocks / gpu.sm_count) * working
    pico = 1e-12 * np.asarray(operand_factor)
    return WorkEnergy(core * pico, work.dram_bytes * (power.dram_pj * pico), busy)


def operand_energy(operands: str) -> float:
    """Factor of `OPERAND_ENERGY`; that of random operands where nothing is said of them. Dimensionless."""
    return OPERAND_ENERGY.get(operands, 1.0)


def engine_with(engine: str, operands: str) -> str:
    """Name under which what was learned of an engine's power with such operands is kept: its own for random ones."""
    return engine if operand_energy(operands) == 1.0 else f"{engine}@{operands}"


def scaled(energy: WorkEnergy, factor: Any) -> WorkEnergy:
    """All that running takes (energy of the work, power of the SMs that hold blocks) times a factor of each row."""
    return WorkEnergy(energy.core_j * factor, energy.dram_j * factor, energy.busy * factor)


def switching(work: KernelWork) -> Floats:
    """Factor on the energy of arithmetic: operands that are zero switch less. Dimensionless."""
    return 1.0 - ZERO_SAVING * work.zero_share


def core_scale(clock_mhz: Any, gpu: Gpu, power: PowerCoefficients) -> Floats:
    """Factor on core-domain energies at a clock: the voltage ratio to `PowerCoefficients.voltage_exponent`.

    Dimensionless.
    """
    return np.asarray(voltage_ratio(clock_mhz, gpu, power) ** power.voltage_exponent)


def static_power_w(clock_mhz: Any, gpu: Gpu, power: PowerCoefficients) -> Floats:
    """Power of the clocked GPU with nothing running, ``idle + clocked * V^2 f``. [W]"""
    drive = core_scale(clock_mhz, gpu, power) * np.asarray(clock_mhz) / gpu.rate_clock_mhz
    return np.asarray(power.idle_w + power.clocked_w * drive)


def spin_w(gpu: Gpu, power: PowerCoefficients) -> float:
    """What waiting for another GPU adds to static power at the rate clock: at most SMs that all hold blocks. [W]"""
    return min(SPIN_W_PER_SM * gpu.sm_count, power.active_w)


def spinning_power_w(clock_mhz: Any, gpu: Gpu, power: PowerCoefficients) -> Floats:
    """Power of a GPU that waits for another one inside an exchange: static power, and `spin_w` by V^2 f. [W]"""
    drive = core_scale(clock_mhz, gpu, power) * np.asarray(clock_mhz) / gpu.rate_clock_mhz
    return np.asarray(power.idle_w + (power.clocked_w + spin_w(gpu, power)) * drive)


def energy_parts_j(energy: WorkEnergy, time_s: Floats, clock_mhz: Any, gpu: Gpu, power: PowerCoefficients) -> Floats:
    """Energy of each operation by where it goes.

    Parameters
    ----------
    energy : WorkEnergy
    time_s : ndarray, shape (n,)
        Time of each operation at `clock_mhz`. [s]
    clock_mhz : array_like
        Core clock. [MHz]
    gpu : Gpu
    power : PowerCoefficients

    Returns
    -------
    ndarray, shape (8, n)
        One row for each of `POWER_MODULES`; they sum to the energy. [J]
    """
    scale = core_scale(clock_mhz, gpu, power)
    drive = scale * np.asarray(clock_mhz) / gpu.rate_clock_mhz
    out = np.empty((len(POWER_MODULES), len(time_s)))
    out[:5] = energy.core_j * scale
    out[5] = energy.dram_j
    out[6] = power.active_w * drive * energy.busy * time_s
    out[7] = (power.idle_w + power.clocked_w * drive) * time_s
    return out


def mean_power_w(energy: WorkEnergy, time_s: Floats, clock_mhz: Any, gpu: Gpu, power: PowerCoefficients) -> Floats:
    """Mean power of each operation while it runs: all its energy over its time. [W]

    What takes no time (an exchange of one GPU with itself) takes no energy either: its power is what is drawn by time.
    """
    scale = core_scale(clock_mhz, gpu, power)
    drive = scale * np.asarray(clock_mhz) / gpu.rate_clock_mhz
    by_time = power.idle_w + drive * (power.clocked_w + power.active_w * energy.busy)
    return np.asarray(by_time + (energy.core_total_j * scale + energy.dram_j) / np.maximum(time_s, 1e-300))
