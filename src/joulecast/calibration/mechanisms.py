"""The mechanisms of whole passes, each of which can be left out: to see what it earns."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from joulecast.coefficients.schema import HostCoefficients, PowerCoefficients
from joulecast.gpus import Gpu
from joulecast.kernels.work import Conditions
from joulecast.physics.price import price
from joulecast.physics.priced import Priced
from joulecast.physics.timing import CORE_MODULES, ModuleTimes, dram_rate_gb_s
from joulecast.workloads.table import OpTable

_L2 = CORE_MODULES.index("L2")


@dataclass(frozen=True)
class Mechanisms:
    """Which mechanisms take part in a prediction; what is left out is left out of its fit too.

    Attributes
    ----------
    host : bool
        Launches cost a host time. Without: the GPU never waits.
    module_calls : bool
        Modules without weights cost the host too.
    bandwidth_of_clock : bool
        A slow core can't keep DRAM busy. Without: the rate of the highest clock at any clock.
    throttle : bool
        The power limit lowers the clock. Without: the clock asked for is held.
    l2 : bool
        Traffic of the L2 cache takes time and energy.
    correction : bool
        Learned corrections of the time of kernels.
    voltage : bool
        Energies of the core fall with its voltage. Without: one voltage at all clocks.
    """

    host: bool = True
    module_calls: bool = True
    bandwidth_of_clock: bool = True
    throttle: bool = True
    l2: bool = True
    correction: bool = True
    voltage: bool = True

    def without(self, name: str) -> Mechanisms:
        """All of these but the one of that name."""
        return Mechanisms(**{one.name: getattr(self, one.name) and one.name != name for one in fields(self)})

    def price(self, table: OpTable, gpu: Gpu, conditions: Conditions, **options: Any) -> Priced:
        """As `joulecast.physics.price.price`, with what is left out left out."""
        if not self.correction:
            options |= {"corrections": {}, "power_corrections": {}}
        priced = price(table, gpu, conditions, **options)
        if not self.l2:
            priced = _without_l2(priced)
        return priced if self.bandwidth_of_clock else _at_full_bandwidth(priced)

    def power(self, power: PowerCoefficients) -> PowerCoefficients:
        """Energies that do not go with the voltage where that is left out."""
        return power if self.voltage else replace(power, voltage_exponent=0.0)

    def host_costs(self, host: HostCoefficients) -> HostCoefficients:
        """A host that costs nothing where it is left out."""
        return host if self.host else HostCoefficients(0.0, 0.0, 0.0, module_us=0.0)


#: Every mechanism.
ALL = Mechanisms()

#: Names of what can be left out.
NAMES = tuple(one.name for one in fields(Mechanisms))


def _without_l2(priced: Priced) -> Priced:
    """Operations whose L2 traffic takes neither time nor energy."""
    times, energy = priced.times, priced.energy
    core, joules = times.core_cycles.copy(), energy.core_j.copy()
    p = times.sharpness
    rest = np.maximum(times.core_total_cycles**p - core[_L2] ** p, 0.0) ** (1.0 / p)
    core[_L2] = joules[_L2] = 0.0
    changed = replace(times, core_cycles=core, core_total_cycles=rest, serial_cycles=np.zeros_like(times.serial_cycles))
    return replace(priced, times=changed, energy=replace(energy, core_j=joules))


def _at_full_bandwidth(priced: Priced) -> Priced:
    """Operations whose DRAM traffic takes the time it takes at the highest clock, whatever the clock."""
    times: ModuleTimes = priced.times
    rate = dram_rate_gb_s(times.dram_rate_gb_s, priced.gpu.clock_max_mhz, priced.gpu) * 1e9
    none = np.zeros_like(times.dram_bytes)
    changed = replace(
        times,
        link_s=np.maximum(times.link_s, times.dram_bytes / rate),
        fixed_s=times.fixed_s + times.serial_dram_bytes / rate,
        dram_bytes=none,
        serial_dram_bytes=none,
    )
    return replace(priced, times=changed)
