"""What a sweep sets GPUs to: fields changed, clocks and power limits, absolute ones, defaults or shares of a range."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from joulecast.errors import InputError, UnknownNameError, shortened
from joulecast.gpus import Gpu, gpu_names, load_gpu, resolve
from joulecast.gpus.changes import changeable_fields
from joulecast.scenarios.sweep.space import Axis, Share, Space, axis

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

#: What "all" stands for: so many values, evenly over what each GPU can be set to.
CLOCKS = 20
LIMITS = 11


#: What stands for even steps over what each GPU can be set to.
ALL = "all"

#: What axes of fields of the GPU begin with.
SET = "set."


def gpu_axis(gpus: Any) -> Axis:
    """The axis of GPUs: each by its name, or as it is where its name alone does not bring it back.

    Raises
    ------
    InputError
        For an unknown GPU, a file that describes none, and none at all.
    """
    several = [gpus] if isinstance(gpus, str | Path | Gpu) or not hasattr(gpus, "__iter__") else list(gpus)
    if not several:
        raise InputError("gpu has no values: give one or several")
    found = [resolve(one)[0] for one in several]
    catalogued = [one.name in gpu_names() and load_gpu(one.name) == one for one in found]
    return Axis("gpu", tuple(dict.fromkeys(one.name if known else one
                                           for one, known in zip(found, catalogued, strict=True))))  # fmt: skip


def described_axes(space: Space) -> dict[str, Any]:
    """The axes of a space and its GPUs as plain values: part of what a folder of chunks must agree with."""
    return {
        "axes": {
            one.name: [repr(value) if isinstance(value, Gpu) else str(value) for value in one.values]
            for one in space.axes
        },
        "gpus": [repr(resolve(value)[0]) for value in space.axis("gpu").values],
    }


def change_axes(changes: Mapping[str, Any] | None) -> list[Axis]:
    """An axis for each field of the GPU that is changed.

    Raises
    ------
    InputError
        For what is no field, or no values.
    """
    if changes is not None and not isinstance(changes, Mapping):
        raise InputError(f"changes must map fields of a GPU to values, got {shortened(changes)!r}")
    known = changeable_fields()
    found = []
    for key, values in (changes or {}).items():
        name = str(key).strip().lower().replace("-", "_")
        if name not in known:
            raise UnknownNameError("GPU field", key, known)
        found.append(axis(SET + name, values))
    return found


def spread(values: Any, count: int) -> Any:
    """`values`, with even steps in place of ``"all"``."""
    if isinstance(values, str) and values.strip().lower() == ALL:
        return evenly(count)
    return values


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
    wrong = ~((clocks >= low) & (clocks <= high))
    return clocks, wrong, f"clock outside the range of {gpu.plain_name}: {low:g} to {high:g} MHz"


def limits_of(values: Sequence[float | Share | None], gpu: Gpu) -> tuple[Floats, Bools, str]:
    """Power limits on a GPU, which of them can't be set, and why. None is its own. [W]"""
    low, high = gpu.power_limit_min_w, gpu.power_limit_max_w
    limits, _ = _resolved(values, low, high, gpu.power_limit_default_w)
    given = np.array([value is not None for value in values])
    wrong = given & ~((limits >= low) & (limits <= high))
    return limits, wrong, f"power limit outside what {gpu.plain_name} can be set to: {low:g} to {high:g} W"


def _resolved(values: Sequence[float | Share | None], low: float, high: float, default: float) -> tuple[Floats, Bools]:
    """Values in their unit, and which of them were shares."""
    found = [
        low + value.of_range * (high - low) if isinstance(value, Share) else default if value is None else value
        for value in values
    ]
    return np.array(found, dtype=np.float64), np.array([isinstance(value, Share) for value in values])
