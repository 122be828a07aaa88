"""Fits the energies that all GPUs share on whole passes of several of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from joulecast.calibration.pass_fit import idle_prior_w
from joulecast.calibration.passes import ENERGIES, PassTable
from joulecast.coefficients.energies import COMMON, COMMON_VOLTAGE_EXPONENT, common_units

Floats = npt.NDArray[np.float64]

#: Orders of magnitude of a part of 7 nm, how far from them energies may lie, in natural logarithms, and what it counts.
_PRIOR = {"tensor": 0.45, "cuda": 4.0, "sfu": 8.0, "shared": 2.0, "l2": 12.0, "dram": 60.0, "active": 0.45}
_WIDTH = 0.7
_STRENGTH = 0.02


@dataclass(frozen=True)
class CommonRows:
    """Mean power of the passes of one GPU as a sum over what all GPUs share.

    Attributes
    ----------
    terms : ndarray, shape (n, p)
        Watts for one unit of each of `COMMON`.
    static_w, power_w : ndarray, shape (n,)
        Drawn by time alone, as the catalogue says; measured. [W]
    """

    terms: Floats
    static_w: Floats
    power_w: Floats


def common_rows(table: PassTable, scale: Mapping[str, float]) -> CommonRows:
    """Rows of one GPU at measured times, its kernels' times by `scale` those of a fit on them."""
    volts = table.voltage**COMMON_VOLTAGE_EXPONENT
    drive = volts * table.clock
    unit = common_units(table.gpu)
    work = dict(zip(ENERGIES, table.work.T * 1e-12, strict=True))
    work["active"] = table.clock * (table.busy @ np.array([scale[key] for key in table.keys]))
    columns = [work[name] * unit[name] * (1.0 if name == "dram" else volts) / table.time_s for name in COMMON]
    idle_w, clocked_w = idle_prior_w(table.gpu)
    return CommonRows(np.stack(columns, axis=1), idle_w + clocked_w * drive, table.power_w)


def fit_common(parts: list[CommonRows]) -> dict[str, float]:
    """What the rows of several GPUs have in common, each GPU counting the same."""
    from scipy.optimize import least_squares

    prior = np.log([_PRIOR[name] for name in COMMON])

    def residuals(theta: Floats) -> Floats:
        gaps = [np.log((one.static_w + one.terms @ np.exp(theta)) / one.power_w) for one in parts]
        robust = [np.sign(gap) * np.sqrt(0.02 * (np.sqrt(1 + (gap / 0.1) ** 2) - 1) / gap.size) for gap in gaps]
        return np.concatenate([*robust, _STRENGTH * (theta - prior) / _WIDTH])

    return dict(zip(COMMON, np.exp(least_squares(residuals, prior).x).tolist(), strict=True))
