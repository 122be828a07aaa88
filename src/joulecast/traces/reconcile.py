"""An attribution beside a meter: clocks aligned, energies compared, and the factor between them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from joulecast.errors import InputError
from joulecast.traces.attribution import Attribution, GpuShare
from joulecast.traces.power_log import PowerLog
from joulecast.workloads.profile import Floats

#: Shifts of the meter's clock that are tried where no common clock is known, over the window, and their most.
_SHIFTS = 400

#: Time over which NVML averages the power it tells on GPUs since Ampere, and delay until it does. [s]
AVERAGED_S = 0.1

#: A correlation of shapes below which an alignment by shape is not to be relied on.
_CLEAR = 0.5


@dataclass(frozen=True)
class Reconciliation:
    """What a meter says beside what was attributed, over the time both cover.

    Attributes
    ----------
    gpu_label : str
    meter : str
        Format and file of the log.
    overlap_s : float
        Time that both cover. [s]
    samples : int
        Readings within it.
    measured_j, attributed_j : float
        Energy over it. [J]
    factor : float
        Measured over attributed: what the attributed energies may be multiplied by.
    factor_interval : tuple of float
        90 % interval of the factor from the scatter of the readings and the borders of the window.
    residual_w : float
        Root mean square of measured less scaled power, at the readings. [W]
    shift_s : float
        What was added to the meter's clock. [s]
    aligned_by : str
        ``clock``, ``clock and time zone`` or ``shape``.
    correlation : float
        Of measured and attributed power at the readings; NaN where either is level.
    """

    gpu_label: str
    meter: str
    overlap_s: float
    samples: int
    measured_j: float
    attributed_j: float
    factor: float
    factor_interval: tuple[float, float]
    residual_w: float
    shift_s: float
    aligned_by: str
    correlation: float

    def facts(self) -> dict[str, object]:
        """The fields as plain values."""
        return {**self.__dict__, "factor_interval": list(self.factor_interval)}

    def lines(self) -> list[tuple[str, str]]:
        """Labels and texts for a page."""
        low, high = self.factor_interval
        correlation = "" if np.isnan(self.correlation) else f", correlation {self.correlation:.2f}"
        return [
            ("meter", f"{self.meter}: {self.samples} readings over {self.overlap_s:.3g} s of {self.gpu_label}"),
            ("energy", f"{self.measured_j:.4g} J measured, {self.attributed_j:.4g} J attributed"),
            ("factor", f"{self.factor:.3f} ({low:.3f} to {high:.3f}): multiply attributed energies by it"),
            ("residual", f"{self.residual_w:.3g} W of power at the readings, after the factor{correlation}"),
            ("alignment", f"by {self.aligned_by}: {self.shift_s:+.3f} s on the meter's clock"),
        ]


def reconcile(found: Attribution, log: PowerLog) -> tuple[Reconciliation, ...]:
    """Lay a meter's readings beside an attribution.

    Parameters
    ----------
    found : Attribution
    log : PowerLog
        Each of its GPUs goes with the trace's of the same number; its only one, whatever its number.

    Returns
    -------
    tuple of Reconciliation
        One for each GPU that both tell of.

    Raises
    ------
    InputError
        If the log has no such GPU, or covers no part of the trace.

    Notes
    -----
    Both clocks are the time of day where both tell it; readings written in local time are moved by the whole
    quarter hours that make them overlap the most. Otherwise the meter is shifted to where its power follows the
    attributed one best. Attributed power is averaged over `AVERAGED_S` before each reading, as the driver's is.
    """
    return tuple(_reconciled(share, number, log) for share, number in _matching(found, log))


def _reconciled(share: GpuShare, number: int, log: PowerLog) -> Reconciliation:
    times, watts = log.time_s[number], log.power_w[number]
    moment = times.copy()
    begin, end = share.window_s
    origin = share.profile.unix_origin_s
    if log.dated and origin is not None:
        shift = _zone(moment - origin, begin, end)
        moment = moment - origin + shift
        aligned = "clock and time zone" if shift else "clock"
    else:
        shift = _by_shape(share, moment, watts)
        moment, aligned = moment + shift, "shape"
    inside = (moment >= begin - AVERAGED_S) & (moment <= end + AVERAGED_S)
    low, high = max(begin, float(moment[0])), min(end, float(moment[-1]))
    if high <= low:
        raise InputError(f"{log.source} does not cover the trace: its readings and the trace have no time in common")
    if inside.sum() < 2:
        raise InputError(
            f"{log.source} does not cover the trace: {int(inside.sum())} reading(s) fall within its {end - begin:.3g} "
            "s; trace for longer, or read the meter more often"
        )
    measured = _integral(moment, watts, low, high)
    attributed = float(_cumulative(share, np.array([high]))[0] - _cumulative(share, np.array([low]))[0])
    factor = measured / attributed
    expected = _averaged(share, moment[inside])
    scatter = watts[inside] - factor * expected
    count = int(inside.sum())
    residual = float(np.sqrt(np.mean(np.square(scatter))))
    mean_w = max(float(watts[inside].mean()), 1e-9)
    spacing = float(np.median(np.diff(moment))) if len(moment) > 1 else 0.0
    # each border may be off by half the time between readings, the mean by their scatter
    width = 1.645 * float(np.hypot(residual / mean_w / np.sqrt(count), spacing / np.sqrt(6.0) / (high - low)))
    return Reconciliation(
        gpu_label=share.label,
        meter=f"{log.format} log {log.source}",
        overlap_s=high - low,
        samples=count,
        measured_j=measured,
        attributed_j=attributed,
        factor=factor,
        factor_interval=(float(factor * np.exp(-width)), float(factor * np.exp(width))),
        residual_w=residual,
        shift_s=float(shift),
        aligned_by=aligned,
        correlation=_correlation(watts[inside], expected),
    )


def _matching(found: Attribution, log: PowerLog) -> list[tuple[GpuShare, int]]:
    pairs = [(share, share.device) for share in found.shares if share.device in log.gpus]
    if pairs:
        return pairs
    if len(log.gpus) == 1 and len(found.shares) == 1:
        return [(found.shares[0], log.gpus[0])]
    wanted = ", ".join(str(share.device) for share in found.shares)
    raise InputError(f"{log.source} holds GPUs {', '.join(map(str, log.gpus))}; the trace ran on GPU {wanted}")


def _zone(moment_s: Floats, begin: float, end: float) -> float:
    """Shift by whole quarter hours that makes readings overlap the trace the most; none if they do already."""
    quarters = np.arange(-14 * 4, 14 * 4 + 1) * 900.0
    quarters = quarters[np.argsort(np.abs(quarters), kind="stable")]
    overlap = np.minimum(moment_s[-1] + quarters, end) - np.maximum(moment_s[0] + quarters, begin)
    best = int(np.argmax(overlap))
    return float(quarters[best]) if overlap[best] > 0 else 0.0


def _by_shape(share: GpuShare, moment_s: Floats, watts: Floats) -> float:
    """Shift that makes the meter's power follow the attributed one best; the middle where all fit alike."""
    begin, end = share.window_s
    first, last = float(moment_s[0]), float(moment_s[-1])
    low, high = begin - first, end - last
    if low > high:  # the log is longer than the trace
        low, high = high, low
    shifts = np.linspace(low, high, _SHIFTS) if high > low else np.array([low])
    best, place = -np.inf, len(shifts) // 2
    for index, shift in enumerate(shifts.tolist()):
        inside = (moment_s + shift >= begin) & (moment_s + shift <= end)
        if inside.sum() < 3:
            continue
        score = _correlation(watts[inside], _averaged(share, moment_s[inside] + shift))
        if score > best:
            best, place = score, index
    return float(shifts[place if best >= _CLEAR else len(shifts) // 2])


def _cumulative(share: GpuShare, at_s: Floats) -> Floats:
    """Energy from the window's begin to each moment. [J]"""
    edges = share.account.edges_s
    total = np.concatenate([[0.0], np.cumsum(share.account.power_w * np.diff(edges))])
    static = share.energies.static_w
    inside = np.interp(at_s, edges, total)
    return np.asarray(inside + static * (np.minimum(at_s - edges[0], 0.0) + np.maximum(at_s - edges[-1], 0.0)))


def _averaged(share: GpuShare, at_s: Floats) -> Floats:
    """Attributed power averaged over the time before each moment that a meter averages. [W]"""
    return np.asarray((_cumulative(share, at_s) - _cumulative(share, at_s - AVERAGED_S)) / AVERAGED_S)


def _integral(time_s: Floats, power_w: Floats, low: float, high: float) -> float:
    """Integral of readings joined by straight lines. [J]"""
    inner = time_s[(time_s > low) & (time_s < high)]
    at = np.concatenate([[low], inner, [high]])
    return float(np.trapezoid(np.interp(at, time_s, power_w), at))


def _correlation(one: Floats, other: Floats) -> float:
    if len(one) < 3 or one.std() < 1e-9 or other.std() < 1e-9:
        return float("nan")
    return float(np.corrcoef(one, other)[0, 1])
