"""A GPU as rows for people: field, value, unit and where the number comes from."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from joulecast.bounds.limits import GPU_CURVES, GPU_RANGES, GPU_RATES, MEMORY_CLOCK
from joulecast.gpus.gpu import Gpu

_HIDDEN = ("sources", "aliases", "memory_clock_mhz", "temperature_c")


def describe(gpu: Gpu) -> list[tuple[str, str, str, str]]:
    """Every field of `gpu` as a row, in the order of the description.

    Parameters
    ----------
    gpu : Gpu
        What to show.

    Returns
    -------
    list of (str, str, str, str)
        Field, value, unit and source; a rate by format is a row of its own (``tensor_tflops.bf16``),
        and so is each curve, as ``210:743.75 ...``. Fields that are empty are left out.
    """
    rows: list[tuple[str, str, str, str]] = []
    for item in dataclasses.fields(gpu):
        if item.name in _HIDDEN:
            continue
        value = getattr(gpu, item.name)
        if isinstance(value, Mapping):
            unit = GPU_RATES[item.name].unit
            for math, rate in value.items():
                key = f"{item.name}.{math}"
                rows.append((key, f"{rate:.4g}", unit, gpu.sources.get(key, "")))
        elif value != ():
            rows.append((item.name, _text(value), _unit(item.name), gpu.sources.get(item.name, "")))
    if gpu.aliases:
        rows.append(("aliases", ", ".join(gpu.aliases), "", ""))
    return rows


def _text(value: object) -> str:
    if isinstance(value, tuple):
        return " ".join(_text(part) if not isinstance(part, tuple) else f"{part[0]:g}:{part[1]:g}" for part in value)
    return f"{value:g}" if isinstance(value, int | float) else str(value)


def _unit(field: str) -> str:
    if field in GPU_CURVES:
        return f"MHz:{GPU_CURVES[field].unit}"
    if field == "memory_clocks_mhz":
        return MEMORY_CLOCK.unit
    limits = GPU_RANGES.get(field)
    return limits.unit if limits else ""
