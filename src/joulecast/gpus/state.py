"""A GPU as it is run: its memory clock and its temperature, where they are not those of the data sheet."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from joulecast.bounds.ranges import number
from joulecast.errors import InputError
from joulecast.gpus.gpu import Gpu

#: Temperatures that a GPU is run at: below is no air or water, above none is left on. [deg C]
COLDEST_C, HOTTEST_C = 0.0, 110.0


def running_at(gpu: Gpu, *, memory_clock_mhz: Any = None, temperature_c: Any = None) -> Gpu:
    """`gpu` at a memory clock and a temperature.

    Parameters
    ----------
    gpu : Gpu
    memory_clock_mhz : float, optional
        One of its steps (`Gpu.memory_clocks_mhz`); default the highest. The DRAM rate goes with it. [MHz]
    temperature_c : float, optional
        Default: that of the measurements, whatever it was. [deg C]

    Returns
    -------
    Gpu

    Raises
    ------
    InputError
        For a step that it does not have, or a temperature out of range.
    """
    if memory_clock_mhz is not None:
        gpu = _at_memory_clock(gpu, number(memory_clock_mhz, "memory clock", "MHz"))
    if temperature_c is not None:
        temperature = number(temperature_c, "temperature", "degrees Celsius")
        if not COLDEST_C <= temperature <= HOTTEST_C:
            raise InputError(f"temperature must be from {COLDEST_C:g} to {HOTTEST_C:g} °C, got {temperature:g}")
        gpu = replace(gpu, temperature_c=temperature)
    return gpu


def _at_memory_clock(gpu: Gpu, clock_mhz: float) -> Gpu:
    steps = gpu.memory_clocks_mhz
    if not steps:
        raise InputError(f"{gpu.name} has no steps of its memory clock that are known: leave the memory clock out")
    if clock_mhz not in steps:
        known = f"its steps are {', '.join(f'{one:g}' for one in steps)} MHz"
        raise InputError(f"{gpu.name} has no memory clock of {clock_mhz:g} MHz that is known: {known}")
    whole = rated(gpu)
    if clock_mhz == steps[0]:
        return replace(whole, temperature_c=gpu.temperature_c)
    return replace(
        whole,
        name=f"{whole.name}+memory_clock_mhz={clock_mhz:g}",
        dram_gb_s=whole.dram_gb_s * clock_mhz / steps[0],
        memory_clock_mhz=clock_mhz,
        temperature_c=gpu.temperature_c,
    )


def memory_clock_share(gpu: Gpu) -> float:
    """Memory clock over the highest; 1 where it is that. Dimensionless."""
    return gpu.memory_clock_mhz / gpu.memory_clocks_mhz[0] if gpu.memory_clock_mhz else 1.0


def rated(gpu: Gpu) -> Gpu:
    """`gpu` as its measurements saw it: at its highest memory clock, its temperature left open."""
    if not gpu.memory_clock_mhz and gpu.temperature_c is None:
        return gpu
    share = memory_clock_share(gpu)
    name = gpu.name.replace(f"+memory_clock_mhz={gpu.memory_clock_mhz:g}", "")
    rate = float(f"{gpu.dram_gb_s / share:.12g}")
    return replace(gpu, name=name, dram_gb_s=rate, memory_clock_mhz=0.0, temperature_c=None)
