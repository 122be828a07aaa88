"""What-if hardware: a known GPU with some of its numbers set by the user."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from joulecast.bounds.limits import GPU_RANGES, MATHS
from joulecast.errors import InputError, UnknownNameError, shortened
from joulecast.gpus.gpu import Gpu
from joulecast.gpus.reader import PLAIN_NAME, RATE_TABLES, gpu_from_values

TEXT_CHANGES = ("architecture", "compute_capability", "dram_type")
SET_BY_USER = "set by the user"


def change_gpu(gpu: Gpu, changes: Mapping[str, str | float]) -> Gpu:
    """`gpu` with some fields set, and the rates that follow from them.

    Another SM count or rate clock keeps FLOP a clock of each SM, so that the rates of the whole GPU
    follow; L2 keeps its bytes a clock, whatever the SM count. A rate set in the same call stands as set.

    Parameters
    ----------
    gpu : Gpu
        What to start from.
    changes : mapping of str to (str or float)
        Field of `Gpu` to its new value, in the unit of the field's name; rates by format as
        ``tensor_tflops.bf16``. Texts of numbers are read, as they come from a command line.

    Returns
    -------
    Gpu
        Named after `gpu` and the changes, such as ``H100-SXM-80GB+sm_count=160``.

    Raises
    ------
    UnknownNameError
        If there is no such field; the line names the nearest.
    InputError
        If a value is no number, out of range, or contradicts another field.
    """
    if not changes:
        return gpu
    if not isinstance(changes, Mapping):
        raise InputError(f"changes must map fields of a GPU to values, got {shortened(changes)!r}")
    given = {_field(key): _value(_field(key), value) for key, value in changes.items()}
    values: dict[str, Any] = {field.name: getattr(gpu, field.name) for field in dataclasses.fields(gpu)}
    sources = dict(gpu.sources)
    values.update({field: value for field, value in given.items() if "." not in field})
    scale = _scale(gpu, values)
    for table in RATE_TABLES:
        rates = {math: rate * scale for math, rate in getattr(gpu, table).items()}
        for math in MATHS:
            key = f"{table}.{math}"
            if key in given:
                rates[math] = given[key]
            elif math in rates and scale != 1:
                sources[key] = f"{gpu.sources.get(key, 'unknown')}; scaled with SM count and rate clock set by the user"
        values[table] = rates
    if "l2_gb_s" not in given and "rate_clock_mhz" in given:
        values["l2_gb_s"] = gpu.l2_gb_s * values["rate_clock_mhz"] / gpu.rate_clock_mhz
        sources["l2_gb_s"] = f"{gpu.sources.get('l2_gb_s', 'unknown')}; scaled with the rate clock set by the user"
    sources.update(dict.fromkeys(given, SET_BY_USER))
    values["name"] = gpu.name + "".join(f"+{field}={_shown(value)}" for field, value in sorted(given.items()))
    values["aliases"], values["sources"] = (), sources
    return gpu_from_values(values)


def changeable_fields() -> tuple[str, ...]:
    """Names that `change_gpu` accepts."""
    rates = tuple(f"{table}.{math}" for table in RATE_TABLES for math in MATHS)
    return (*GPU_RANGES, *TEXT_CHANGES, *rates)


def _field(key: object) -> str:
    name = str(key).strip().lower().replace("-", "_")
    known = changeable_fields()
    if name not in known:
        raise UnknownNameError("GPU field", key, known)
    return name


def _value(field: str, value: object) -> str | float:
    if field in TEXT_CHANGES:
        text = str(value).strip()
        if not PLAIN_NAME.match(text):
            raise InputError(f"{field} must be a short plain text, not {shortened(repr(value), 40)}")
        return text.lower() if field == "architecture" else text
    if isinstance(value, bool):
        raise InputError(f"{field} must be a number, not {value}")
    try:
        if isinstance(value, str) and not (value.isascii() and "_" not in value):
            raise ValueError("Python would read other scripts' digits and grouped ones")
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"{field} must be a number, not {shortened(repr(value), 40)}") from None


def _scale(gpu: Gpu, values: Mapping[str, Any]) -> float:
    """By how much the rates of the whole GPU change; 1 where the new fields are refused later anyway."""
    new = values["sm_count"] * values["rate_clock_mhz"]
    return float(new / (gpu.sm_count * gpu.rate_clock_mhz)) if 0 < new < float("inf") else 1.0


def _shown(value: str | float) -> str:
    return value if isinstance(value, str) else f"{value:g}"
