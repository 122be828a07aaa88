"""Audits measured rows by physics: what can't be, what contradicts other rows, and why; never by what is usual."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from joulecast.bounds import plausibility as bounds
from joulecast.bounds.dtypes import CODES
from joulecast.calibration import contradictions
from joulecast.calibration.findings import Audit, Finding, Floats, finding, time_text
from joulecast.calibration.least_work import LeastWork, least_work
from joulecast.calibration.tables import Measured
from joulecast.gpus import Gpu, load_gpu
from joulecast.workloads.table import OpTable

#: Kinds of which a benchmark may lay several operands into the same memory: keys and values of one dummy cache,
#: weights of all experts, results over inputs.
_MAY_SHARE = frozenset({"generation_attention", "moe", "linear_attention_gdn", "linear_attention_mamba2"})

#: Times count as a thousand times too long where hardly any comes nearer to its floor than this.
_SLOW_RATIO, _SLOW_LEAST_S, _SLOW_ROWS = 100.0, 20e-6, 20
#: A unit is taken to be wrong for a whole batch where this share of its rows is too fast, by this much in the middle,
#: and a thousandfold cures it.
_FAST_SHARE, _FAST_RATIO, _CURED_SHARE = 0.5, 10.0, 0.02


@np.errstate(over="ignore")
def audit_batch(measured: Measured, gpu: Gpu | None = None) -> Audit:
    """Check a batch of measured kernels.

    Parameters
    ----------
    measured : Measured
    gpu : Gpu, optional
        The description to check against; that of the catalogue by default.

    Returns
    -------
    Audit
        `Audit.flagged` is what calibration sets aside.
    """
    gpu = load_gpu(measured.gpu) if gpu is None else gpu
    n = len(measured)
    bad = bounds.not_positive(measured.time_s)
    found = finding("not_positive", bad, measured.time_s * 1e3, 0.0, "ms",
                    lambda i: f"a time of {measured.time_s[i] * 1e3:g} ms measures nothing")  # fmt: skip
    found += audit_power(measured.power_w, measured.power_limit_w, gpu)
    good = np.flatnonzero(~bad)
    if not len(good):
        return Audit(n, tuple(found))
    part = measured if len(good) == n else measured.take(good)
    work = least_work(part.table, gpu)
    rates = _floors(part.table.kind, work, gpu)
    findings = _unit(part, rates) or _too_fast(part, work, rates, gpu)
    findings += contradictions.repeats(part) + contradictions.against_growth(part)
    return Audit(n, tuple(found + [one.moved(good) for one in findings]))


def sound(batches: Iterable[Measured]) -> Iterator[Measured]:
    """`batches` without the rows that an audit flags; none that is left without rows."""
    for batch in batches:
        flagged = audit_batch(batch).flagged
        if not flagged.any():
            yield batch
        elif not flagged.all():
            yield batch.take(np.flatnonzero(~flagged))


def audit_power(power_w: Floats, limit_w: Any, gpu: Gpu, *, tolerance: float | None = None) -> list[Finding]:
    """Findings on power readings: not positive, a slipped unit, above the limit, below the idle floor.

    Parameters
    ----------
    power_w : ndarray, shape (n,)
        Mean board power, NaN where not read. [W]
    limit_w : array_like
        Board power limit; NaN for the GPU's default. [W]
    gpu : Gpu
    tolerance : float, optional
        Above the limit; `joulecast.bounds.plausibility.SAMPLED_LIMIT_TOLERANCE` by default.

    Returns
    -------
    list of Finding
    """
    tolerance = bounds.SAMPLED_LIMIT_TOLERANCE if tolerance is None else tolerance
    told = np.broadcast_to(np.asarray(limit_w, dtype=np.float64), power_w.shape)
    limit = np.where(np.isnan(told), gpu.power_limit_default_w, told)
    read = ~np.isnan(power_w)
    bad = read & bounds.not_positive(power_w)
    floor, share = idle_floor_w(gpu)
    above = read & ~bad & bounds.above_limit(power_w, limit, tolerance)
    below = read & ~bad & bounds.below_idle(power_w, floor, share)
    sane = np.where(read & ~bad, power_w, 1.0)
    # a reading in another unit is back between idle and limit once it is converted
    cured = {k: (sane * 10.0**-k <= limit * 1.05) & (sane * 10.0**-k >= floor * share) for k in (3, -3)}
    slip = np.where(above & cured[3], 3, np.where(below & cured[-3], -3, 0))
    units = {3: "mW", -3: "kW"}

    def of_limit(i: int) -> str:
        told_by = "" if not np.isnan(told[i]) else f", the default of {gpu.name}"
        return f"{power_w[i]:.4g} W is {power_w[i] / limit[i] - 1:.1%} above the limit of {limit[i]:g} W{told_by}"

    return [
        *finding("not_positive", bad, power_w, 0.0, "W", lambda i: f"a power of {power_w[i]:g} W can't be"),
        *finding("unit", slip != 0, power_w, limit, "W",
                 lambda i: f"{power_w[i]:.4g} W would be possible if it were in {units[int(slip[i])]}"),
        *finding("power_limit", above & (slip == 0), power_w, limit, "W", of_limit),
        *finding("idle", below & (slip == 0), power_w, floor, "W",
                 lambda i: f"{power_w[i]:.4g} W is below what an idle {gpu.name} draws, {floor:g} W"),
    ]  # fmt: skip


def idle_floor_w(gpu: Gpu) -> tuple[float, float]:
    """The lowest idle power known of `gpu`, and the share of it below which no kernel runs. [W, 1]"""
    if gpu.idle_points:
        return min(power for _, power in gpu.idle_points), bounds.IDLE_SHARE
    estimated = "estimate" in gpu.sources.get("idle_w", "estimate")
    return gpu.idle_w, bounds.ESTIMATED_IDLE_SHARE if estimated else bounds.IDLE_SHARE


@dataclass(frozen=True)
class _Floors:
    """Least times of each row by what sets them. [s]"""

    flop: Floats
    cache: Floats
    memory: Floats
    shared_memory: Floats
    link: Floats

    @property
    def all(self) -> Floats:
        """The highest that nothing excuses."""
        return np.asarray(np.maximum.reduce([self.flop, self.cache, self.shared_memory, self.link]))


def _floors(kind: str, work: LeastWork, gpu: Gpu) -> _Floors:
    l2, dram = gpu.l2_mib * 2.0**20, gpu.dram_gb_s * 1e9
    touched = work.touched_bytes
    sharing = bounds.MOST_SHARING if kind in _MAY_SHARE else 1.0
    return _Floors(
        flop=bounds.arithmetic_floor_s(work.flop, work.flop_per_s),
        cache=bounds.cache_floor_s(touched, gpu.l2_bytes_per_clk * gpu.clock_max_mhz * 1e6),
        memory=bounds.memory_floor_s(touched, l2, dram),
        shared_memory=bounds.memory_floor_s(touched, l2, dram, sharing),
        link=bounds.arithmetic_floor_s(work.link_bytes, work.link_bytes_per_s),
    )


def _unit(m: Measured, floors: _Floors) -> list[Finding]:
    """A whole batch in another unit of time."""
    least = np.maximum(floors.all, bounds.SHORTEST_KERNEL_S)
    fast = bounds.faster_than(m.time_s, least)
    rows = np.arange(len(m))
    cured = bounds.faster_than(m.time_s * 1e3, least).mean() < _CURED_SHARE
    if fast.mean() > _FAST_SHARE and np.median(least[fast] / m.time_s[fast]) > _FAST_RATIO and cured:
        return finding("unit", rows, m.time_s, least, "s",
                       lambda i: f"{time_text(m.time_s[i])} can't be, a thousand times as long could: is the time in "
                       f"other units? {fast.mean():.0%} of the batch is too fast")  # fmt: skip
    nearest = float(np.quantile(m.time_s / np.maximum(floors.all, _SLOW_LEAST_S), 0.05))
    if len(m) >= _SLOW_ROWS and nearest > _SLOW_RATIO:
        return finding("unit", rows, m.time_s, least, "s",
                       lambda i: f"{time_text(m.time_s[i])}: 95 % of the batch takes over {nearest:,.0f} times the "
                       "least time of its work, a thousandth of it would do: is the time in other units?")  # fmt: skip
    return []


def _too_fast(m: Measured, work: LeastWork, floors: _Floors, gpu: Gpu) -> list[Finding]:
    time = m.time_s

    def rate(amount: Floats) -> Callable[[int], float]:
        return lambda i: float(amount[i] / time[i])

    flop_rate, byte_rate, link_rate = rate(work.flop), rate(work.touched_bytes), rate(work.link_bytes)

    def of_flop(i: int) -> str:
        text = f"{flop_rate(i) / 1e12:,.4g} TFLOP/s are above the dense peak of {gpu.name} at its highest clock, "
        text += f"{work.flop_per_s[i] / 1e12:,.4g}"
        return text + ("; TF32 could: is it fp32?" if _could_be_tf32(m.table, gpu, i, flop_rate(i)) else "")

    def of_cache(i: int) -> str:
        return (f"{byte_rate(i) / 1e9:,.4g} GB/s of distinct bytes are above L2's rate at the highest clock, "
                f"{gpu.l2_bytes_per_clk * gpu.clock_max_mhz / 1e3:,.4g}")  # fmt: skip

    def of_memory(i: int) -> str:
        return (f"{byte_rate(i) / 1e9:,.4g} GB/s are {byte_rate(i) / gpu.dram_gb_s / 1e9:.2g} times DRAM's rate, and "
                f"{work.touched_bytes[i] / 1e6:,.4g} MB do not stay in {gpu.l2_mib:g} MiB of L2")  # fmt: skip

    cache = bounds.faster_than(time, floors.cache)
    memory = bounds.faster_than(time, floors.shared_memory) & ~cache
    alias = bounds.faster_than(time, floors.memory) & ~cache & ~memory
    dram = np.full(len(m), gpu.dram_gb_s)
    return [
        *finding("too_short", time < bounds.SHORTEST_KERNEL_S, time, bounds.SHORTEST_KERNEL_S, "s",
                 lambda i: f"{time_text(time[i])} is less than any kernel takes to start and end"),
        *finding("peak_flop", bounds.faster_than(time, floors.flop), work.flop / time / 1e12,
                 work.flop_per_s / 1e12, "TFLOP/s", of_flop),
        *finding("bandwidth", cache, work.touched_bytes / time / 1e9,
                 gpu.l2_bytes_per_clk * gpu.clock_max_mhz / 1e3, "GB/s", of_cache),
        *finding("bandwidth", memory, work.touched_bytes / time / 1e9, dram, "GB/s", of_memory),
        *finding("bandwidth", alias, work.touched_bytes / time / 1e9, dram, "GB/s",
                 lambda i: of_memory(i) + "; possible only if operands share memory", doubtful=True),
        *finding("link", bounds.faster_than(time, floors.link), work.link_bytes / time / 1e9,
                 work.link_bytes_per_s / 1e9, "GB/s",
                 lambda i: f"{link_rate(i) / 1e9:,.4g} GB/s out of one GPU are above its links' "
                 f"{work.link_bytes_per_s / 1e9:,.4g}"),
    ]  # fmt: skip


def _could_be_tf32(table: OpTable, gpu: Gpu, row: int, rate: float) -> bool:
    if "dtype" not in table.columns or int(table["dtype"][row]) != CODES["fp32"]:
        return False
    return rate <= gpu.tensor_flop_per_clk("tf32") * gpu.clock_max_mhz * 1e6
