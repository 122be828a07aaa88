"""What a little more of each number of the hardware would give: elasticities of time and energy at a point."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from joulecast.errors import JoulecastError
from joulecast.gpus import Gpu
from joulecast.gpus.changes import change_gpu

#: Step to each side, as a share: wide against the tolerance of the clock that is solved for.
_STEP = 0.02


@dataclass(frozen=True)
class Elasticity:
    """What 1 % more of a number changes, to first order.

    Attributes
    ----------
    field, title : str
        Name of the number, and what people call it.
    value : float
        What it is.
    unit : str
    time, energy, power : float
        Change of each figure for a change of the number, both relative: -0.7 is 0.7 % less for 1 % more.
    """

    field: str
    title: str
    value: float
    unit: str
    time: float
    energy: float
    power: float


@dataclass(frozen=True)
class At:
    """Where elasticities are asked for.

    Attributes
    ----------
    gpu : Gpu
    clock_mhz, power_limit_w : float
        [MHz, W]
    others : mapping of str to float or None
        Further numbers by their names among the arguments that are asked with, those of `_OTHERS`; None where not
        given.
    """

    gpu: Gpu
    clock_mhz: float
    power_limit_w: float
    others: Mapping[str, float | None]


#: Answers a question: time, energy and power at a ``gpu``, ``clock_mhz``, ``power_limit_w`` and `At.others`.
Ask = Callable[..., tuple[float, float, float]]

#: Numbers beside those of the GPU: title, unit.
_OTHERS = {
    "host_us_per_launch": ("host time a launch", "µs"),
    "node_link_gb_s": ("network of a node for each GPU", "GB/s"),
    "input_samples_per_s": ("rate of the input", "samples/s"),
}

#: Numbers of a GPU: field, title, unit. Rates by format move together.
_FIELDS = (
    ("dram_gb_s", "DRAM bandwidth", "GB/s"),
    ("tensor_tflops", "tensor core rate", ""),
    ("cuda_tflops", "CUDA core rate", ""),
    ("sm_count", "SMs", ""),
    ("l2_gb_s", "L2 bandwidth", "GB/s"),
    ("l2_mib", "L2 capacity", "MiB"),
    ("nvlink_gb_s", "NVLink rate", "GB/s"),
    ("pcie_gb_s", "PCIe rate", "GB/s"),
)


def elasticities(at: At, ask: Ask) -> tuple[Elasticity, ...]:
    """Elasticities at a point, those of the largest effect first.

    Parameters
    ----------
    at : At
    ask : callable
        Gives time, energy and power. [s, J, W]

    Returns
    -------
    tuple of Elasticity
        Of the GPU's rates, of clock, power limit and the other numbers; what can't be changed there is left out.

    Notes
    -----
    Central differences of logarithms over 2 % to each side (one SM at least); one-sided at the end of a range.
    """
    found = [_of_field(at, ask, *one) for one in _FIELDS]
    low, high = at.gpu.clock_min_mhz, at.gpu.clock_max_mhz
    clocks = [clock for clock in (at.clock_mhz * (1 - _STEP), at.clock_mhz * (1 + _STEP)) if low <= clock <= high]
    ends = [clocks[0], clocks[-1]] if len(clocks) == 2 else [*clocks, at.clock_mhz]
    numbers = [("clock_mhz", "core clock", "MHz", at.clock_mhz, ends)]
    limit = at.power_limit_w
    numbers.append(("power_limit_w", "power limit", "W", limit, [limit * (1 - _STEP), limit * (1 + _STEP)]))
    for name, value in at.others.items():
        if value:
            numbers.append((name, *_OTHERS[name], value, [value * (1 - _STEP), value * (1 + _STEP)]))
    for name, title, unit, value, values in numbers:
        found.append(_between(at, ask, name, title, unit, value, [(one, {name: one}) for one in values]))
    known = [one for one in found if one is not None]
    return tuple(sorted(known, key=lambda one: -max(abs(one.time), abs(one.energy))))


def _of_field(at: At, ask: Ask, field: str, title: str, unit: str) -> Elasticity | None:
    value = getattr(at.gpu, field)
    rates = isinstance(value, Mapping)
    if rates:
        steps = [1 - _STEP, 1 + _STEP]
        base = 1.0
        changed = [{f"{field}.{name}": rate * step for name, rate in value.items()} for step in steps]
    else:
        base = float(value)
        step = max(round(base * _STEP), 1) if field == "sm_count" else base * _STEP
        steps = [base - step, base + step]
        changed = [{field: one} for one in steps]
    if not value or not base or not steps[0] > 0:
        return None
    try:
        gpus = [change_gpu(at.gpu, one) for one in changed]
    except JoulecastError:
        return None
    return _between(at, ask, field, title, unit, base, [(x, {"gpu": gpu}) for x, gpu in zip(steps, gpus, strict=True)])


def _between(
    at: At, ask: Ask, field: str, title: str, unit: str, value: float, ends: list[tuple[float, dict[str, Any]]]
) -> Elasticity | None:
    here = {"gpu": at.gpu, "clock_mhz": at.clock_mhz, "power_limit_w": at.power_limit_w, **at.others}
    try:
        (low, below), (high, above) = ((x, ask(**{**here, **changed})) for x, changed in ends)
    except JoulecastError:
        return None
    width = math.log(high / low)
    time, energy, power = (math.log(more / less) / width for less, more in zip(below, above, strict=True))
    return Elasticity(field, title, value, unit, time, energy, power)
