"""Core voltage over the clock: what core-domain energies go with."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from joulecast.coefficients.schema import PowerCoefficients
from joulecast.gpus import Gpu

Floats = npt.NDArray[np.float64]


def voltage_ratio(clock_mhz: Any, gpu: Gpu, power: PowerCoefficients) -> Floats:
    """Core voltage at a clock over that at the GPU's rate clock.

    The driver's own points where the catalogue has them, else a family curve: flat up to a knee, then rising
    a little faster than the clock. Valid over the GPU's clock range; held at its ends.

    Parameters
    ----------
    clock_mhz : array_like
        Core clock. [MHz]
    gpu : Gpu
    power : PowerCoefficients
        For ``voltage_floor`` and ``voltage_knee`` of the family curve.

    Returns
    -------
    ndarray
        Ratio of voltages, 1 at the rate clock. Dimensionless.

    Notes
    -----
    Dynamic power of CMOS goes with ``V^2 f``. Measured on an A100-PCIE-40GB: flat to 1,020 MHz, then up by
    29 % at 1,410 MHz (K. Lee et al., EnergAIzer, ISPASS 2026, artifact).
    """
    clock = np.asarray(clock_mhz, dtype=np.float64)
    if gpu.voltage_points:
        mhz, mv = np.array(gpu.voltage_points).T
        return np.asarray(np.interp(clock, mhz, mv) / np.interp(gpu.rate_clock_mhz, mhz, mv))
    return _family_voltage(clock, gpu, power) / _family_voltage(gpu.rate_clock_mhz, gpu, power)


def _family_voltage(clock_mhz: Any, gpu: Gpu, power: PowerCoefficients) -> Floats:
    share = np.clip(np.asarray(clock_mhz) / gpu.clock_max_mhz, 0.0, 1.0)
    rise = np.clip((share - power.voltage_knee) / (1.0 - power.voltage_knee), 0.0, 1.0)
    return power.voltage_floor + (1.0 - power.voltage_floor) * rise**1.2


def rate_energy(gpu: Gpu, other: Gpu, power: PowerCoefficients) -> float:
    """Core-domain energies at the rate clock of `gpu` over those at that of `other`, for the same circuits.

    Parts reach about the same voltage at their highest clock, and rates are stated lower: an RTX 4000 Ada's at 0.70 of
    the highest clock, at the bottom of its voltage, a B200's at 0.94.

    Returns
    -------
    float
        Dimensionless; 1 for GPUs whose rates are stated at the same share of their highest clocks.
    """
    tops = [float(voltage_ratio(one.clock_max_mhz, one, power)) for one in (other, gpu)]
    return float((tops[0] / tops[1]) ** power.voltage_exponent)
