"""Clocks and power limits of a sweep on each GPU: absolute ones, its defaults, or shares of its range."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from joulecast.gpus import Gpu
from joulecast.scenarios.sweep.space import Share

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

#: What "all" stands for: so many values, evenly over what each GPU can be set to.
CLOCKS = 20
LIMITS = 11


def evenly(count: int) -> tuple[Share, ...]:
    """Shares of a range from its lowest to its highest."""
    return tuple(Share(i / (count - 1)) for i in range(count))


def clocks_of(values: Sequence[float | Share | None], gpu: Gpu) -> tuple[Floats, Bools, str]:
    """Core clocks on a GPU, which of them can't be, and why. [MHz]

    None is the highest; shares of the range are rounded to the GPU's steps.
    """
    low, high, step = gpu.clock_min_mhz, gpu.clock_max_mhz, max(gpu.clock_step_mhz, 1.0)
    clocks, shared = _resolved(values, low, high, high)
    stepped = np.minimum(low + np.round((clocks - low) / step) * step, high)
    clocks = np.where(shared & (clocks < high), stepped, clocks)
    return (
        clocks,
        ~((clocks >= low) & (clocks <= high)),
        (f"clock outside the range of {_plain(gpu)}: {low:g} to {high:g} MHz"),
    )


def limits_of(values: Sequence[float | Share | None], gpu: Gpu) -> tuple[Floats, Bools, str]:
    """Power limits on a GPU, which of them can't be set, and why. None is its own. [W]"""
    low, high = gpu.power_limit_min_w, gpu.power_limit_max_w
    limits, _ = _resolved(values, low, high, gpu.power_limit_default_w)
    given = np.array([value is not None for value in values])
    wrong = given & ~((limits >= low) & (limits <= high))
    return limits, wrong, f"power limit outside what {_plain(gpu)} can be set to: {low:g} to {high:g} W"


def _resolved(values: Sequence[float | Share | None], low: float, high: float, default: float) -> tuple[Floats, Bools]:
    """Values in their unit, and which of them were shares."""
    found = [
        low + value.of_range * (high - low) if isinstance(value, Share) else default if value is None else value
        for value in values
    ]
    return np.array(found, dtype=np.float64), np.array([isinstance(value, Share) for value in values])


def _plain(gpu: Gpu) -> str:
    """Its name without what was set: like points give like reasons."""
    return gpu.name.split("+")[0]
