"""Power of a GPU in another state than that of its measurements: hotter or colder, memory clocked lower."""

from __future__ import annotations

import math
from dataclasses import replace

from joulecast.coefficients.schema import PowerCoefficients
from joulecast.gpus import Gpu
from joulecast.gpus.state import memory_clock_share

#: Temperature of the GPUs whose energies were fitted: median of the measured passes that tell it. [deg C]
MEASURED_AT_C = 64.0

#: Growth of static power with temperature, a degree, of its value with the core clock up. [1/K]
#: (Fitted: 0.7 % on an RTX A4000, 0.5 % on an RTX 4000 Ada by an external meter, 0.3 % on an A100;
#: ``python benchmarks/leakage.py``. Leakage grows exponentially: K. De Vogeleer et al., Modeling the Temperature Bias
#: of Power Consumption for Nanometer-Scale CPUs, 2014.)
LEAKAGE_PER_K = 0.0053

#: Share of the idle power that is the memory's clocked interface, which falls with the memory clock: an assumption,
#: no measured table has two memory clocks.
_MEMORY_IDLE_SHARE = 0.3

#: What is not known of power at another memory clock, as a logarithm, for a clock of zero.
_MEMORY_CLOCK_SPREAD = 0.2


def leakage_factor(temperature_c: float) -> float:
    """Static power at a temperature over that at `MEASURED_AT_C`. Dimensionless."""
    return math.exp(LEAKAGE_PER_K * (temperature_c - MEASURED_AT_C))


def at_state(power: PowerCoefficients, gpu: Gpu) -> PowerCoefficients:
    """Energies and static power of `gpu` in the state it is run in.

    Leakage goes with temperature alone: all static power with the core clock up is taken to grow, and what it grows by
    is drawn at any clock. Energy of a byte to DRAM stays; the idle power of memory falls with its clock.

    Parameters
    ----------
    power : PowerCoefficients
        As fitted or transferred.
    gpu : Gpu
        With `Gpu.temperature_c` and `Gpu.memory_clock_mhz`.

    Returns
    -------
    PowerCoefficients
        `power` itself where the GPU is in no other state.
    """
    idle_w, spread = power.idle_w, power.spread90
    if gpu.temperature_c is not None:
        grown_w = (leakage_factor(gpu.temperature_c) - 1.0) * (power.idle_w + power.clocked_w)
        idle_w = max(idle_w + grown_w, 0.1 * power.idle_w)
    share = memory_clock_share(gpu)
    if share < 1.0:
        idle_w -= _MEMORY_IDLE_SHARE * (1.0 - share) * power.idle_w
        spread = math.hypot(spread, _MEMORY_CLOCK_SPREAD * (1.0 - share))
    if idle_w == power.idle_w and spread == power.spread90:
        return power
    return replace(power, idle_w=max(idle_w, 0.0), spread90=spread)


#: Below this share of the highest memory clock drivers are in an idle state and hold the core clock low too.
_IDLE_STATE = 0.2


def state_notes(gpu: Gpu) -> tuple[str, ...]:
    """What a reader should know of a state that was not measured."""
    notes = []
    if gpu.temperature_c is not None:
        notes.append(f"leakage at {gpu.temperature_c:g} °C; power was measured at about {MEASURED_AT_C:g} °C")
    if gpu.memory_clock_mhz:
        notes.append(
            f"memory at {gpu.memory_clock_mhz:g} of {gpu.memory_clocks_mhz[0]:g} MHz: DRAM rate in proportion; "
            "what its idle power saves is an assumption"
        )
        if memory_clock_share(gpu) < _IDLE_STATE:
            notes.append(f"at a memory clock of {gpu.memory_clock_mhz:g} MHz drivers may hold the core clock low too")
    return tuple(notes)
