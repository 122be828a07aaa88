"""From kernels to passes: launches queue on a host, the GPU drains the queue, a phase settles at one clock."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from joulecast.coefficients.schema import PowerCoefficients
from joulecast.gpus import Gpu
from joulecast.physics.power import core_scale, spin_w
from joulecast.physics.priced import Floats, Priced, timed
from joulecast.physics.throttle import clock_at_limit, felt_swing, swings
from joulecast.physics.timing import ModuleTimes, duration_s, without_parts

#: Exponent of the smooth maximum between GPU time and host time of a pass: near the crossing each waits
#: for the other now and then.
HOST_SHARPNESS = 8.0

#: Share of a phase's work that may throttle before the phase is said to.
_FEW = 0.1


@dataclass(frozen=True)
class Passes:
    """The operations of one phase or several, and how often each runs in each of its passes.

    Attributes
    ----------
    priced : Priced
        `n` operations of all kinds.
    count : ndarray, shape (n,)
        Runs of each in one pass of its own.
    pass_of : ndarray of int, shape (n,)
        Which pass, 0 to p - 1.
    repeats : ndarray, shape (p,)
        How often each pass runs.
    host_s : ndarray, shape (p,)
        Time the host needs to start everything of one pass. [s]
    phase_of : ndarray of int, shape (p,), optional
        Which phase each pass belongs to, 0 to q - 1, none empty; all to one where it is not given.
    spinning_s : float
        Part of each phase's time in which no operation runs and the GPU waits for another one. [s]
    """

    priced: Priced
    count: Floats
    pass_of: npt.NDArray[np.intp]
    repeats: Floats
    host_s: Floats
    phase_of: npt.NDArray[np.intp] | None = None
    spinning_s: float = 0.0


@dataclass(frozen=True)
class Run:
    """A phase at the clock it settled at.

    Attributes
    ----------
    clock_mhz : float
    throttled : bool
    time_s, energy_j : float
        Over all passes, one GPU. [s, J]
    gpu_s, host_s : float
        What GPU and host alone take over all passes. [s]
    idle_s, idle_j : float
        Time that the GPU waits, and the energy it draws then. [s, J]
    excess : float
        Logarithm of the power at the clock asked for over the limit, where it throttles; else 0.
    kernel_s : ndarray, shape (n,)
        Time of each operation once. [s]
    """

    clock_mhz: float
    throttled: bool
    time_s: float
    energy_j: float
    gpu_s: float
    host_s: float
    idle_s: float
    idle_j: float
    excess: float
    kernel_s: Floats


@dataclass(frozen=True)
class Runs:
    """Phases at the clocks they settled at: as `Run`, arrays of shape (q,); `kernel_s` of all operations, (n,)."""

    clock_mhz: Floats
    throttled: npt.NDArray[np.bool_]
    time_s: Floats
    energy_j: Floats
    gpu_s: Floats
    host_s: Floats
    idle_s: Floats
    idle_j: Floats
    excess: Floats
    kernel_s: Floats


def pass_time_s(gpu_s: Any, host_s: Any) -> Floats:
    """Time of a pass whose launches queue: the GPU's or the host's, whichever is longer, smoothly. [s]

    The queue holds many launches, so that the two overlap but for the first and last of them.
    """
    gpu, host = np.broadcast_arrays(np.asarray(gpu_s, dtype=np.float64), np.asarray(host_s, dtype=np.float64))
    longer = np.maximum(gpu, host)
    shorter = np.minimum(gpu, host)
    ratio = np.divide(shorter, longer, out=np.zeros_like(longer), where=longer > 0)
    return np.asarray(longer * (1.0 + ratio**HOST_SHARPNESS) ** (1.0 / HOST_SHARPNESS))


def run_phase(passes: Passes, clock_mhz: float, power_limit_w: float) -> Run:
    """Time and energy of a phase at the highest clock, up to the one asked for, that keeps within the limit.

    The driver's control loop is slower than kernels and passes: the whole phase settles at one clock, at which
    its mean power, gaps included, meets the limit.

    Parameters
    ----------
    passes : Passes
        Of one phase.
    clock_mhz : float
        Clock asked for. [MHz]
    power_limit_w : float
        Limit of one GPU. [W]

    Returns
    -------
    Run
    """
    runs = run_phases(passes, np.array([clock_mhz], dtype=np.float64), np.array([power_limit_w], dtype=np.float64))
    figures = {name: value.item() for name, value in runs.__dict__.items() if name != "kernel_s"}
    return Run(**figures, kernel_s=runs.kernel_s)


def run_swinging(passes: Passes, clock_mhz: float, power_limit_w: float, swing: float) -> Run:
    """As `run_phase`, parts of the phase at powers of their own (`joulecast.physics.throttle.swings`).

    A phase of many milliseconds is long beside the driver's control loop: its hot parts throttle while its mean is
    below the limit, and its cool ones run on at the clock asked for where it is not. Of a shorter one, which repeats,
    the loop sees little but the mean (`joulecast.physics.throttle.felt_swing`).

    Parameters
    ----------
    passes, clock_mhz, power_limit_w
        As for `run_phase`.
    swing : float
        Standard deviation of the logarithm of power over the work of the phase, or of the micro-batch that it repeats
        most. Dimensionless.

    Returns
    -------
    Run
        Clock and times of operations are means over the parts; it throttles where more than a tenth of the work does.
    """
    plain = run_phase(passes, clock_mhz, math.inf)
    asked_w = plain.energy_j / plain.time_s
    felt = felt_swing(swing, plain.time_s / passes.repeats.max())
    shares, power = (np.array(column, dtype=np.float64) for column in zip(*swings(felt), strict=True))
    if asked_w * power.max() <= power_limit_w:
        return plain
    again, _ = repeated(passes, np.zeros(shares.size, dtype=np.intp))
    parts = run_phases(again, np.full(shares.size, float(clock_mhz)), power_limit_w / power)
    time_s = float(shares @ parts.time_s)

    def mean(values: Floats) -> float:
        return float(shares @ values)

    return Run(
        clock_mhz=mean(parts.time_s * parts.clock_mhz) / time_s,
        throttled=mean(parts.throttled.astype(np.float64)) > _FEW,
        time_s=time_s,
        energy_j=mean(power * parts.energy_j),
        gpu_s=mean(parts.gpu_s),
        host_s=mean(parts.host_s),
        idle_s=mean(parts.idle_s),
        idle_j=mean(parts.idle_j),
        excess=max(math.log(asked_w / power_limit_w), 0.0),
        kernel_s=np.asarray(shares @ parts.kernel_s.reshape(shares.size, -1)),
    )


def run_phases(passes: Passes, clock_mhz: Floats, power_limit_w: Floats) -> Runs:
    """As `run_phase`, for many phases at once, each with a clock and a limit of its own.

    Parameters
    ----------
    passes : Passes
        Of `q` phases.
    clock_mhz, power_limit_w : ndarray, shape (q,)
        Clocks asked for and limits of one GPU. [MHz, W]

    Returns
    -------
    Runs
        Each phase as it would run alone.
    """
    ready = _ready(passes, clock_mhz.size)
    asked = _evaluated(ready, clock_mhz)
    over = np.flatnonzero(asked.energy_j > power_limit_w * asked.time_s)
    if not over.size:
        return asked
    few = _phases_of(ready, over)
    settled = clock_mhz.copy()
    settled[over] = clock_at_limit(
        lambda mhz, rows: _mean_power_w(few if isinstance(rows, slice) else _phases_of(few, rows), mhz),
        asked.energy_j[over] / asked.time_s[over],
        clock_mhz[over],
        passes.priced.gpu.clock_min_mhz,
        power_limit_w[over],
    )
    throttled, excess = np.zeros(settled.size, dtype=np.bool_), np.zeros(settled.size)
    throttled[over] = True
    excess[over] = np.log(asked.energy_j[over] / asked.time_s[over] / power_limit_w[over])
    return replace(_evaluated(ready, settled, throttled), excess=excess)


def repeated(passes: Passes, phases: npt.NDArray[np.intp]) -> tuple[Passes, npt.NDArray[np.intp]]:
    """The phases at `phases`, in that order, each as often as it is named, and which operation each row is.

    Parameters
    ----------
    passes : Passes
    phases : ndarray of int, shape (q,)

    Returns
    -------
    passes : Passes
        Its `priced` is cut to what times, energies and what bounds them follow from.
    rows : ndarray of int
        For each of its operations, the row of `passes` that it repeats.
    """
    phase_of = _phase_of(passes)
    its_passes, passes_each = _members(phase_of, phases)
    rows, rows_each = _members(passes.pass_of, its_passes)
    again = Passes(
        priced=timed(passes.priced, rows),
        count=passes.count[rows],
        pass_of=np.repeat(np.arange(its_passes.size), rows_each),
        repeats=passes.repeats[its_passes],
        host_s=passes.host_s[its_passes],
        phase_of=np.repeat(np.arange(phases.size), passes_each),
        spinning_s=passes.spinning_s,
    )
    return again, rows


def _phase_of(passes: Passes) -> npt.NDArray[np.intp]:
    return np.zeros(passes.repeats.size, dtype=np.intp) if passes.phase_of is None else passes.phase_of


def _members(group_of: npt.NDArray[np.intp], groups: npt.NDArray[np.intp]) -> tuple[Any, Any]:
    """Places in `group_of` of each of `groups` in turn, and how many each has."""
    order = np.argsort(group_of, kind="stable")
    sizes = np.bincount(group_of, minlength=int(groups.max(initial=-1)) + 1)
    starts = np.cumsum(sizes) - sizes
    each = sizes[groups]
    ends = np.cumsum(each)
    return order[np.repeat(starts[groups] - (ends - each), each) + np.arange(ends[-1] if ends.size else 0)], each


@dataclass(frozen=True)
class _Ready:
    """What the time and the energy of `q` phases at any clocks follow from, nothing else."""

    gpu: Gpu
    power: PowerCoefficients
    times: ModuleTimes
    count: Floats
    busy: Floats
    pass_of: npt.NDArray[np.intp]
    repeats: Floats
    host_s: Floats
    phase_of: npt.NDArray[np.intp]
    core_j: Floats
    dram_j: Floats
    spin_j: float


def _ready(passes: Passes, phases: int) -> _Ready:
    priced, phase_of = passes.priced, _phase_of(passes)
    runs = passes.count * passes.repeats[passes.pass_of]
    of_row = phase_of[passes.pass_of]
    return _Ready(
        gpu=priced.gpu,
        power=priced.power,
        times=priced.times,
        count=passes.count,
        busy=priced.energy.busy,
        pass_of=passes.pass_of,
        repeats=passes.repeats,
        host_s=passes.host_s,
        phase_of=phase_of,
        core_j=_summed(of_row, runs * priced.energy.core_total_j, phases),
        dram_j=_summed(of_row, runs * priced.energy.dram_j, phases),
        spin_j=spin_w(priced.gpu, priced.power) * passes.spinning_s,
    )


def _phases_of(ready: _Ready, phases: npt.NDArray[np.intp]) -> _Ready:
    """Some of the phases."""
    if phases.size == ready.core_j.size:
        return ready
    its_passes, passes_each = _members(ready.phase_of, phases)
    rows, rows_each = _members(ready.pass_of, its_passes)
    return replace(
        ready,
        times=without_parts(ready.times, rows),
        count=ready.count[rows],
        busy=ready.busy[rows],
        pass_of=np.repeat(np.arange(its_passes.size), rows_each),
        repeats=ready.repeats[its_passes],
        host_s=ready.host_s[its_passes],
        phase_of=np.repeat(np.arange(phases.size), passes_each),
        core_j=ready.core_j[phases],
        dram_j=ready.dram_j[phases],
    )


def _summed(group: npt.NDArray[np.intp], values: Floats, groups: int) -> Floats:
    return np.asarray(np.bincount(group, weights=values, minlength=groups), dtype=np.float64)


def _mean_power_w(ready: _Ready, clock_mhz: Floats) -> Floats:
    runs = _evaluated(ready, clock_mhz)
    return runs.energy_j / runs.time_s


def _evaluated(ready: _Ready, clock_mhz: Floats, throttled: npt.NDArray[np.bool_] | None = None) -> Runs:
    power, phases = ready.power, clock_mhz.size
    by_phase = ready.phase_of
    kernel_s = duration_s(ready.times, ready.gpu, clock_mhz[by_phase][ready.pass_of] if phases > 1 else clock_mhz)
    busy_s = ready.count * kernel_s
    gpu_s = _summed(ready.pass_of, busy_s, ready.repeats.size)
    holding_s = _summed(ready.pass_of, busy_s * ready.busy, ready.repeats.size)
    scale = core_scale(clock_mhz, ready.gpu, power)
    drive = scale * clock_mhz / ready.gpu.rate_clock_mhz
    static_w = power.idle_w + power.clocked_w * drive
    time_s = _summed(by_phase, ready.repeats * pass_time_s(gpu_s, ready.host_s), phases)
    total_gpu_s = _summed(by_phase, ready.repeats * gpu_s, phases)
    active_j = power.active_w * drive * _summed(by_phase, ready.repeats * holding_s, phases)
    idle_s = np.maximum(time_s - total_gpu_s, 0.0)
    spin_j = ready.spin_j * drive
    return Runs(
        clock_mhz=clock_mhz,
        throttled=np.zeros(phases, dtype=np.bool_) if throttled is None else throttled,
        time_s=time_s,
        energy_j=static_w * time_s + spin_j + active_j + ready.core_j * scale + ready.dram_j,
        gpu_s=total_gpu_s,
        host_s=_summed(by_phase, ready.repeats * ready.host_s, phases),
        idle_s=idle_s,
        idle_j=static_w * idle_s + spin_j,
        excess=np.zeros(phases),
        kernel_s=kernel_s,
    )
