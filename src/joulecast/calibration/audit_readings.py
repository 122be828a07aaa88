"""Audits plain readings of kernels and whole passes: time, power and energy of something, on some board."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from joulecast.bounds import plausibility as bounds
from joulecast.calibration.audit import audit_power, idle_floor_w
from joulecast.calibration.findings import Audit, Finding, finding, time_text
from joulecast.calibration.least_work import least_work
from joulecast.gpus import Gpu
from joulecast.workloads.table import COMMON, OpTable, Workload

Floats = npt.NDArray[np.float64]

#: NVML's power is a trailing mean of about a second: a shorter window mostly shows what ran before. [s]
METER_WINDOW_S = 1.0

#: Layers of a language model that runs of the bare model leave out.
_HEADS = ("lm_head",)


@dataclass(frozen=True)
class Readings:
    """Times, powers and energies of `n` kernels or passes on one GPU; every array has shape (n,), NaN where not read.

    Attributes
    ----------
    gpu : Gpu or None
        None where it is not told: then only what the rows say of themselves is checked.
    time_s, power_w, energy_j : ndarray
        [s, W, J]
    power_limit_w : ndarray
        NaN for the GPU's default. [W]
    window_s : ndarray
        Time over which power was sampled. [s]
    failed : ndarray of bool
        Rows that say themselves that nothing ran.
    launch_time_s, launch_energy_j : tuple of ndarray
        Single launches of each row, where they were kept. [s, J]
    """

    gpu: Gpu | None
    time_s: Floats
    power_w: Floats
    energy_j: Floats
    power_limit_w: Floats
    window_s: Floats
    failed: npt.NDArray[np.bool_]
    launch_time_s: tuple[Floats, ...] = field(default_factory=tuple)
    launch_energy_j: tuple[Floats, ...] = field(default_factory=tuple)

    def __len__(self) -> int:
        return len(self.time_s)

    @property
    def limit_w(self) -> Floats:
        """The limit told, else the GPU's default; NaN where neither is known. [W]"""
        default = np.nan if self.gpu is None else self.gpu.power_limit_default_w
        return np.where(np.isnan(self.power_limit_w), default, self.power_limit_w)


def audit_readings(r: Readings) -> Audit:
    """Check readings of time, power and energy against the board and against each other.

    Parameters
    ----------
    r : Readings

    Returns
    -------
    Audit
    """
    n = len(r)
    bad_time = bounds.not_positive(r.time_s) & ~r.failed
    bad_energy = bounds.not_positive(r.energy_j) & ~np.isnan(r.energy_j)
    short = ~bad_time & (r.time_s < bounds.SHORTEST_KERNEL_S)
    found = [
        *finding("not_positive", bad_time, r.time_s * 1e3, 0.0, "ms",
                 lambda i: f"a time of {r.time_s[i] * 1e3:g} ms measures nothing"),
        *finding("not_positive", bad_energy, r.energy_j, 0.0, "J",
                 lambda i: f"an energy of {r.energy_j[i]:g} J can't be"),
        *finding("too_short", short, r.time_s, bounds.SHORTEST_KERNEL_S, "s",
                 lambda i: f"{time_text(r.time_s[i])} is less than any kernel takes to start and end"),
    ]  # fmt: skip
    found += _power(r)
    found += audit_energy(r, {int(row) for one in found if one.unit == "W" for row in one.rows})
    found += _launches(r)
    found += finding("window", r.window_s < METER_WINDOW_S * 0.9, r.window_s, METER_WINDOW_S, "s",
                     lambda i: f"power sampled over {r.window_s[i]:.3g} s: the meter averages over about "
                     f"{METER_WINDOW_S:g} s, so that this shows what ran before as well", doubtful=True)  # fmt: skip
    return Audit(n, tuple(found))


def _power(r: Readings) -> list[Finding]:
    # a mean over a window that is told to be long enough is a sampled one; else it is taken as the steady mean
    sampled = r.window_s >= METER_WINDOW_S * 0.9
    if r.gpu is not None:
        found = []
        for mask, over in ((sampled, bounds.SAMPLED_LIMIT_TOLERANCE), (~sampled, bounds.STEADY_LIMIT_TOLERANCE)):
            found += audit_power(np.where(mask, r.power_w, np.nan), r.power_limit_w, r.gpu, tolerance=over)
        return found
    tolerance = np.where(sampled, bounds.SAMPLED_LIMIT_TOLERANCE, bounds.STEADY_LIMIT_TOLERANCE)
    bad = bounds.not_positive(r.power_w) & ~np.isnan(r.power_w)
    above = ~bad & (r.power_w > r.limit_w * (1.0 + tolerance))
    return [
        *finding("not_positive", bad, r.power_w, 0.0, "W", lambda i: f"a power of {r.power_w[i]:g} W can't be"),
        *finding("power_limit", above, r.power_w, r.limit_w, "W",
                 lambda i: f"{r.power_w[i]:.4g} W is {r.power_w[i] / r.limit_w[i] - 1:.1%} above the limit of "
                 f"{r.limit_w[i]:g} W"),
    ]  # fmt: skip


def audit_energy(r: Readings, told: Collection[int] = ()) -> list[Finding]:
    """Findings on energies: against power x time, and the powers they imply.

    Parameters
    ----------
    r : Readings
    told : collection of int
        Rows that have a wrong power already: what their energies imply is not told again.

    Returns
    -------
    list of Finding
    """
    implied = bounds.mean_power_w(r.energy_j, r.time_s)
    off = bounds.energy_off(r.energy_j, r.power_w, r.time_s)
    ratio = np.where(off, implied / np.where(r.power_w > 0, r.power_w, np.nan), 1.0)
    slip = bounds.slip_of_unit(np.nan_to_num(ratio, nan=1.0))
    alone = np.isnan(r.power_w)
    # an energy without a power: units come out where the implied power is possible once shifted
    limit = r.limit_w
    far = alone & bounds.above_limit(implied, limit, 100.0)
    fits = far & (implied / 1e3 <= limit * (1.0 + bounds.STEADY_LIMIT_TOLERANCE))
    fresh = np.array([row not in told for row in range(len(r))], dtype=bool)
    above = bounds.above_limit(implied, limit, bounds.STEADY_LIMIT_TOLERANCE) & ~off & ~fits & fresh

    def of_unit(i: int) -> str:
        return (f"{_joules(r.energy_j[i])} in {time_text(r.time_s[i])} would be {implied[i]:,.4g} W, "
                f"1e{int(slip[i])} times the power given: is one of the three in other units?")  # fmt: skip

    def of_window(i: int) -> str:
        return (f"{_joules(r.energy_j[i])} in {time_text(r.time_s[i])} is {implied[i]:,.4g} W on a board limited to "
                f"{limit[i]:g} W: the energy is of a longer time than the kernel's, or of a window too short "
                "for the meter")  # fmt: skip

    found = [
        *finding("unit", off & (slip != 0), implied, r.power_w, "W", of_unit),
        *finding("unit", fits, implied, limit, "W",
                 lambda i: f"{_joules(r.energy_j[i])} in {time_text(r.time_s[i])} is {implied[i]:,.4g} W: "
                 "possible if the energy were in units a thousand times smaller, or the time in larger"),
        *finding("energy", off & (slip == 0), implied, r.power_w, "W",
                 lambda i: f"energy over time is {implied[i]:.4g} W, the power given is {r.power_w[i]:.4g} W"),
        *finding("window", above, implied, limit, "W", of_window),
    ]  # fmt: skip
    if r.gpu is not None:
        floor, share = idle_floor_w(r.gpu)
        below = alone & bounds.below_idle(implied, floor, share)
        found += finding("idle", below, implied, floor, "W",
                         lambda i: f"energy over time is {implied[i]:.4g} W, below what an idle board draws, "
                         f"{floor:g} W")  # fmt: skip
    return found


def _launches(r: Readings) -> list[Finding]:
    """Single launches whose energies imply more than the limit: no meter resolves one launch."""
    if not r.launch_energy_j:
        return []
    limit, n = r.limit_w, len(r)
    counts, over, worst = np.zeros(n), np.zeros(n), np.zeros(n)
    for i, (energy, time) in enumerate(zip(r.launch_energy_j, r.launch_time_s, strict=True)):
        size = min(len(energy), len(time))
        power = bounds.mean_power_w(energy[:size], time[:size])
        counts[i] = size
        over[i] = bounds.above_limit(power, limit[i], 0.0).sum()
        worst[i] = np.nanmax(power) if np.isfinite(power).any() else 0.0
    flagged = bounds.above_limit(worst, limit, bounds.STEADY_LIMIT_TOLERANCE)
    share = over.sum() / max(counts.sum(), 1.0)
    return finding("window", flagged, worst, limit, "W",
                   lambda i: f"{over[i]:.0f} of {counts[i]:.0f} single launches imply more than {limit[i]:g} W, up to "
                   f"{worst[i]:.0f} W: no meter resolves one launch ({share:.1%} of the table's launches)")  # fmt: skip


def least_pass_s(workload: Workload, gpu: Gpu, clock_mhz: float | None = None) -> float:
    """Least time of one pass: the arithmetic of all its operations at the dense peak, a language model's head left out.

    Parameters
    ----------
    workload : Workload
    gpu : Gpu
    clock_mhz : float, optional
        Core clock; the highest by default. [MHz]

    Returns
    -------
    float
        [s]
    """
    heads = [i for i, name in enumerate(workload.layers) if name in _HEADS]
    total = 0.0
    for table in workload.tables.values():
        shapes = OpTable(table.kind, {k: v for k, v in table.columns.items() if k not in COMMON})
        work = least_work(shapes, gpu, clock_mhz)
        count = np.where(np.isin(table["layer"], heads), 0.0, table["count"])
        total += float(count @ bounds.arithmetic_floor_s(work.flop, work.flop_per_s))
    return total


def too_fast_passes(time_s: Any, least_s: Any, names: Any) -> list[Finding]:
    """Passes that took less than their arithmetic takes at the peak rate; NaN of `least_s` is not known. [s]"""
    time, least = np.asarray(time_s, dtype=np.float64), np.asarray(least_s, dtype=np.float64)
    return finding("peak_flop", bounds.faster_than(time, least), time, least, "s",
                   lambda i: f"{names[i]} took {time_text(time[i])}: its arithmetic alone takes {time_text(least[i])} "
                   "at the peak rate, so that it can't have run")  # fmt: skip


def _joules(energy_j: float) -> str:
    for size, unit in ((1.0, "J"), (1e-3, "mJ"), (1e-6, "uJ")):
        if abs(energy_j) >= size:
            return f"{energy_j / size:.4g} {unit}"
    return f"{energy_j:.4g} J"
