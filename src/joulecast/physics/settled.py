"""Priced operations at a clock or under a power limit: time, power, intervals, what bounds them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from joulecast.coefficients.intervals import load_intervals
from joulecast.physics.power import energy_parts_j, mean_power_w, static_power_w
from joulecast.physics.priced import Floats, Priced, timed
from joulecast.physics.throttle import clock_at_limit
from joulecast.physics.timing import CORE_MODULES, dram_rate_gb_s, duration_s, measured_s

#: What may bound a kernel; `bound_by` holds indices into it.
BOUNDS = (*CORE_MODULES, "DRAM", "links", "launches")


@dataclass(frozen=True)
class Settled:
    """Operations at the clock they settle at.

    Attributes
    ----------
    time_s, power_w, clock_mhz : ndarray
        Of each. [s, W, MHz]
    throttled : ndarray of bool
        Where the power limit lowers the clock.
    excess : ndarray
        Logarithm of the power at the clock asked for over the limit, where it throttles; else 0.
    """

    time_s: Floats
    power_w: Floats
    clock_mhz: Floats
    throttled: npt.NDArray[np.bool_]
    excess: Floats

    @property
    def energy_j(self) -> Floats:
        """Energy of each operation. [J]"""
        return self.time_s * self.power_w


def at_clock(priced: Priced, clock_mhz: Any) -> tuple[Floats, Floats]:
    """Time and mean power of each operation at a core clock, whatever the power limit. [s, W]"""
    time_s = duration_s(priced.times, priced.gpu, clock_mhz)
    return time_s, mean_power_w(priced.energy, time_s, clock_mhz, priced.gpu, priced.power)


def with_host(priced: Priced, clock_mhz: Any) -> tuple[Floats, Floats]:
    """As `at_clock`, each operation started by a host that takes its time (`Priced.host_us`). [s, W]

    While it waits, the GPU draws the power of a clocked GPU with nothing running.
    """
    kernel_s, power_w = at_clock(priced, clock_mhz)
    time_s = measured_s(kernel_s, priced.host_us, priced.host_lead_us)
    static_w = static_power_w(clock_mhz, priced.gpu, priced.power)
    return time_s, static_w + (power_w - static_w) * kernel_s / time_s


def under_limit(priced: Priced, clock_mhz: Any, power_limit_w: Any, *, hosted: bool = False) -> Settled:
    """Each operation run on its own, again and again, at the clock that the power limit lets it have.

    Parameters
    ----------
    priced : Priced
    clock_mhz : array_like
        Clock asked for. [MHz]
    power_limit_w : array_like
        Power limit; infinite to hold the clock. Mean power settles at `PowerCoefficients.limit_share` of it. [W]
    hosted : bool
        Whether a host starts each operation by itself; what is drawn while it does counts towards the limit.

    Returns
    -------
    Settled
    """
    n = len(priced)
    clock = np.array(np.broadcast_to(np.asarray(clock_mhz, dtype=np.float64), (n,)))
    limit_w = np.broadcast_to(np.asarray(power_limit_w, dtype=np.float64) * priced.power.limit_share, (n,))
    evaluated = with_host if hosted else at_clock
    time_s, power_w = evaluated(priced, clock)
    throttled, excess = power_w > limit_w, np.zeros(n)
    over = np.flatnonzero(throttled)
    if over.size:
        excess[over] = np.log(power_w[over] / limit_w[over])
        few = timed(priced, over)
        clock[over] = clock_at_limit(
            lambda mhz, rows: evaluated(few if isinstance(rows, slice) else timed(few, rows), mhz)[1],
            power_w[over], clock[over], priced.gpu.clock_min_mhz, limit_w[over],
        )  # fmt: skip
        time_s[over], power_w[over] = evaluated(few, clock[over])
    return Settled(time_s, power_w, clock, throttled, excess)


def half_widths(priced: Priced, settled: Settled) -> tuple[Floats, Floats, Floats]:
    """Half the width of the 90 % intervals of time, power and energy of each operation, in natural logarithms.

    Where the limit sets the power, that is known well, the better the further the power without it would lie above,
    and what is not known of it shows in clock and time.
    """
    known = load_intervals()
    capped = np.maximum(priced.power_spread - settled.excess, priced.capped_spread)
    power = np.where(settled.throttled, capped, priced.power_spread)
    time = np.where(settled.throttled, np.hypot(priced.time_spread, known.capped_time), priced.time_spread)
    return time, power, priced.energy_factor * np.hypot(time, power)


#: Of parts that take nearly the longest, the one to name: what a reader can do something about comes first.
_NAMED_FIRST = np.array([BOUNDS.index(name) for name in (
    "tensor core", "CUDA core", "DRAM", "special functions", "links", "L2", "shared memory", "launches")])  # fmt: skip
_NEARLY = 0.7


def bound_by(priced: Priced, clock_mhz: Any) -> npt.NDArray[np.intp]:
    """What bounds each operation at a clock, as an index into `BOUNDS`.

    The part that takes the longest; of several within 30 % of it (their efficiencies can't be told apart so well)
    the first of tensor core, CUDA core, DRAM, special functions, links, L2, shared memory, launches.
    """
    times, gpu = priced.times, priced.gpu
    hertz = np.asarray(clock_mhz) * 1e6
    rate = dram_rate_gb_s(times.dram_rate_gb_s, clock_mhz, gpu) * 1e9
    parts = np.empty((len(BOUNDS), times.dram_bytes.size))
    parts[:5] = times.core_cycles / hertz
    parts[5] = times.dram_bytes / rate
    parts[6] = times.link_s
    parts[7] = times.fixed_s + times.fixed_cycles / hertz
    longest = parts.max(axis=0)
    nearly = parts[_NAMED_FIRST] >= _NEARLY * longest
    return np.where(longest > 0, _NAMED_FIRST[nearly.argmax(axis=0)], BOUNDS.index("launches"))


def module_energy_j(priced: Priced, time_s: Floats, clock_mhz: Any) -> Floats:
    """Energy of each operation by module, shape (8, n), rows as `joulecast.physics.power.POWER_MODULES`. [J]"""
    return energy_parts_j(priced.energy, time_s, clock_mhz, priced.gpu, priced.power)
