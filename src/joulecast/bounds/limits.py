"""Plausible ranges and contradictions of a GPU's description: the check that catches unit slips and typos."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from joulecast.errors import InputError, shortened


@dataclass(frozen=True)
class Range:
    """What a number may be: an interval that every GPU made or soon to be made lies well within.

    Attributes
    ----------
    low, high : float
        Bounds, both allowed.
    unit : str
        Unit in which the field is given; empty for counts.
    whole : bool
        Whether only whole numbers make sense.
    """

    low: float
    high: float
    unit: str = ""
    whole: bool = False


_CLOCK = Range(100, 5000, "MHz")
_RATE = Range(1e-3, 2e5, "TFLOP/s")

# Rates of links may be zero (no link); everything else that is listed must be there.
GPU_RANGES: Mapping[str, Range] = {
    "process_nm": Range(1, 90, "nm"),
    "sm_count": Range(1, 1024, "SMs", whole=True),
    "warps_per_sm": Range(8, 128, "warps", whole=True),
    "shared_memory_kib": Range(8, 2048, "KiB"),
    "registers_kib": Range(32, 4096, "KiB"),
    "l1_kib": Range(4, 2048, "KiB"),
    "sfu_per_clk_sm": Range(1, 256, "results/clk"),
    "clock_min_mhz": Range(50, 5000, "MHz"),
    "clock_base_mhz": _CLOCK,
    "clock_boost_mhz": _CLOCK,
    "clock_max_mhz": _CLOCK,
    "clock_step_mhz": Range(0.5, 500, "MHz"),
    "rate_clock_mhz": _CLOCK,
    "l2_mib": Range(0.125, 4096, "MiB"),
    "l2_gb_s": Range(50, 200_000, "GB/s"),
    "dram_gib": Range(0.5, 4096, "GiB"),
    "dram_gb_s": Range(20, 40_000, "GB/s"),
    "pcie_gb_s": Range(0, 1000, "GB/s"),
    "nvlink_gb_s": Range(0, 10_000, "GB/s"),
    "power_limit_default_w": Range(5, 5000, "W"),
    "power_limit_min_w": Range(1, 5000, "W"),
    "power_limit_max_w": Range(5, 5000, "W"),
    "idle_w": Range(0.5, 2000, "W"),
}
# Mappings and curves: the range of each of their numbers.
GPU_RATES: Mapping[str, Range] = {
    "tensor_tflops": _RATE,
    "tensor_sparse_tflops": _RATE,
    "cuda_tflops": _RATE,
}
GPU_CURVES: Mapping[str, Range] = {
    "voltage_points": Range(300, 2000, "mV"),
    "idle_points": Range(0.5, 2000, "W"),
}
MEMORY_CLOCK = Range(50, 20_000, "MHz")
MATHS = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "fp4", "int8", "int4")
TENSOR_FLOP_PER_CLK_SM = Range(64, 65_536, "FLOP/clk an SM")
CUDA_FLOP_PER_CLK_SM = Range(1, 4096, "FLOP/clk an SM")

# Factors by which people slip, and the unit they probably had.
_SLIPS: Mapping[str, tuple[tuple[float, str], ...]] = {
    "MHz": ((1e3, "GHz"), (1e-3, "kHz"), (1e-6, "Hz")),
    "GB/s": ((1e3, "TB/s"), (1e-3, "MB/s"), (1e-9, "byte/s")),
    "TFLOP/s": ((1e3, "PFLOP/s"), (1e-3, "GFLOP/s"), (1e-12, "FLOP/s")),
    "GiB": ((1 / 1024, "MiB"), (1024, "TiB"), (1 / 1024**3, "bytes")),
    "MiB": ((1 / 1024, "KiB"), (1 / 1024**2, "bytes"), (1024, "GiB")),
    "KiB": ((1 / 1024, "bytes"), (1024, "MiB")),
    "W": ((1e-3, "mW"), (1e3, "kW")),
    "mV": ((1e3, "V"),),
    "nm": ((1e-3, "pm"),),
}


def number(field: str, value: object, limits: Range) -> float:
    """`value` as a float, if it is a plausible number for `field`.

    Parameters
    ----------
    field : str
        Name for the message.
    value : object
        What was given; must be an int or float (NumPy scalars are floats), not a bool or a string.
    limits : Range
        What it may be.

    Raises
    ------
    InputError
        If it is no number, not finite, outside the range, or not whole where that is asked.
    """
    unit = f" {limits.unit}" if limits.unit else ""
    if isinstance(value, bool) or not hasattr(value, "__float__") or isinstance(value, str | bytes):
        raise InputError(f"{field} must be a number{unit and ' of' + unit}, not {shortened(repr(value), 40)}")
    try:
        result = float(value)
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"{field} must be a number{unit and ' of' + unit}, not {shortened(repr(value), 40)}") from None
    if not math.isfinite(result):
        raise InputError(f"{field} must be finite, not {result}")
    if not limits.low <= result <= limits.high:
        raise InputError(
            f"{field} = {result:g}{unit} is not plausible: "
            f"expected {limits.low:g} to {limits.high:g}{unit}{_slip(result, limits)}"
        )
    if limits.whole and result != math.floor(result):
        raise InputError(f"{field} = {result:g} must be a whole number")
    return result


def _slip(value: float, limits: Range) -> str:
    """Which unit was probably meant, as an end of a sentence; empty if none fits."""
    for factor, unit in _SLIPS.get(limits.unit, ()):
        if limits.low <= value * factor <= limits.high:
            return f" (is it in {unit}? then give {value * factor:g})"
    return ""


def check_gpu(values: Mapping[str, Any], name: str = "") -> None:
    """Refuse a GPU that can't be: every number within its range, and no two that contradict each other.

    Parameters
    ----------
    values : mapping of str to object
        Fields as `joulecast.gpus.Gpu` names them, numbers in the units of the names. All of
        `GPU_RANGES` must be there; `GPU_RATES`, `GPU_CURVES` and ``memory_clocks_mhz`` may be empty.
    name : str
        Name of the GPU, for the message.

    Raises
    ------
    InputError
        On the first field that is missing, no number, out of range or contradictory; the line names
        the field, its value with its unit, and why.
    """
    try:
        _check_ranges(values)
        for complaint in _contradictions(values):
            raise InputError(complaint)
    except InputError as error:
        raise InputError(f"{shortened(name, 60)}: {error}" if name else str(error)) from None


def _check_ranges(values: Mapping[str, Any]) -> None:
    for field, limits in GPU_RANGES.items():
        if field not in values:
            raise InputError(f"{field} is missing")
        number(field, values[field], limits)
    for field, limits in GPU_RATES.items():
        rates = values.get(field, {})
        if not isinstance(rates, Mapping):
            raise InputError(f"{field} must be a table of rates by format, such as fp16 = 312")
        for math_name, rate in rates.items():
            if math_name not in MATHS:
                raise InputError(f"{field}.{shortened(math_name, 40)} is no format: known are {', '.join(MATHS)}")
            number(f"{field}.{math_name}", rate, limits)
    for field, limits in GPU_CURVES.items():
        _check_curve(field, values.get(field, ()), limits)
    clocks = values.get("memory_clocks_mhz", ())
    if not isinstance(clocks, list | tuple):
        raise InputError("memory_clocks_mhz must be a list of clocks, highest first")
    for clock in clocks:
        number("memory_clocks_mhz", clock, MEMORY_CLOCK)
    if any(later >= earlier for earlier, later in itertools.pairwise(clocks)):
        raise InputError("memory_clocks_mhz must fall from one to the next")


def _check_curve(field: str, points: object, limits: Range) -> None:
    if not isinstance(points, list | tuple):
        raise InputError(f"{field} must be a list of [MHz, {limits.unit}] pairs")
    last_clock, last_value = 0.0, 0.0
    for point in points:
        if not isinstance(point, list | tuple) or len(point) != 2:
            raise InputError(f"{field} must be a list of [MHz, {limits.unit}] pairs")
        clock = number(f"{field} (clock)", point[0], GPU_RANGES["clock_min_mhz"])
        value = number(field, point[1], limits)
        if clock <= last_clock:
            raise InputError(f"{field} must rise in clock: {clock:g} MHz comes after {last_clock:g} MHz")
        if value < last_value:
            raise InputError(f"{field} must not fall: {value:g} {limits.unit} after {last_value:g} {limits.unit}")
        last_clock, last_value = clock, value


# Pairs (lower, upper): the first must not exceed the second.
_ORDERED: tuple[tuple[str, str], ...] = (
    ("clock_min_mhz", "clock_base_mhz"),
    ("clock_base_mhz", "clock_boost_mhz"),
    ("clock_boost_mhz", "clock_max_mhz"),
    ("clock_min_mhz", "rate_clock_mhz"),
    ("rate_clock_mhz", "clock_max_mhz"),
    ("power_limit_min_w", "power_limit_default_w"),
    ("power_limit_default_w", "power_limit_max_w"),
    ("dram_gb_s", "l2_gb_s"),
)


def _contradictions(values: Mapping[str, Any]) -> Iterator[str]:
    """What no real GPU can be, one line each; every number is within its own range already."""
    for lower, upper in _ORDERED:
        if values[lower] > values[upper]:
            unit = GPU_RANGES[lower].unit
            yield f"{lower} = {values[lower]:g} {unit} exceeds {upper} = {values[upper]:g} {unit}; set both"
    if values["idle_w"] >= values["power_limit_default_w"]:
        yield (
            f"idle_w = {values['idle_w']:g} W is not below "
            f"power_limit_default_w = {values['power_limit_default_w']:g} W"
        )
    if values["l2_mib"] / 1024 >= values["dram_gib"]:
        yield f"l2_mib = {values['l2_mib']:g} MiB is not below dram_gib = {values['dram_gib']:g} GiB"
    if "fp32" not in values.get("cuda_tflops", {}):
        yield "cuda_tflops.fp32 is missing: every GPU has that rate"
    dense = values.get("tensor_tflops", {})
    for math_name, rate in values.get("tensor_sparse_tflops", {}).items():
        if math_name not in dense:
            yield f"tensor_sparse_tflops.{math_name} is given but tensor_tflops.{math_name} is not"
        elif rate < dense[math_name]:
            yield (
                f"tensor_sparse_tflops.{math_name} = {rate:g} TFLOP/s is below "
                f"the dense rate, {dense[math_name]:g} TFLOP/s"
            )
    yield from _rates_per_clock(values, "tensor_tflops", TENSOR_FLOP_PER_CLK_SM)
    yield from _rates_per_clock(values, "cuda_tflops", CUDA_FLOP_PER_CLK_SM)


def _rates_per_clock(values: Mapping[str, Any], field: str, limits: Range) -> Iterator[str]:
    per_tflops = 1e6 / (values["rate_clock_mhz"] * values["sm_count"])
    for math_name, rate in values.get(field, {}).items():
        flop = rate * per_tflops
        # One part in a thousand: rates are printed with few digits.
        if not limits.low * 0.999 <= flop <= limits.high * 1.001:
            yield (
                f"{field}.{math_name} = {rate:g} TFLOP/s is {flop:.4g} FLOP/clk an SM with sm_count = "
                f"{values['sm_count']:g} at rate_clock_mhz = {values['rate_clock_mhz']:g}: "
                f"expected {limits.low:g} to {limits.high:g}"
            )
