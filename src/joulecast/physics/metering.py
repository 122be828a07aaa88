"""What a meter of power shows of a power that changes faster than it looks: trailing means, at its updates."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from joulecast.bounds.ranges import number
from joulecast.errors import InputError

Floats = npt.NDArray[np.float64]

FILTERS = ("boxcar", "rc")

#: A day: more is a slip of units.
_LONGEST_S = 86400.0


@dataclass(frozen=True)
class Meter:
    """How a meter averages and how often it shows a new figure.

    Attributes
    ----------
    window_s : float
        Averaging window of a boxcar; time constant of an RC filter. [s]
    update_s : float
        Time between two figures; each stands until the next. [s]
    filter : str
        ``boxcar`` (mean over the window before the update) or ``rc`` (first-order low pass).

    Notes
    -----
    NVIDIA's own readings are boxcars: they update every 100 ms on most boards, and on A100 and H100 average over a
    quarter of that time only, ``Meter(0.025, 0.1)`` (Yang, Adamek and Armour, arXiv 2312.02741 and SC 2024); NVML
    documents a mean over 1 s for other GPUs since Ampere. The sensor of the K20 behaves as a first-order low pass
    (Burtscher, Zecena and Zong, Measuring GPU Power with the K20 Built-in Sensor, GPGPU-7, 2014).
    """

    window_s: float = 0.1
    update_s: float = 0.1
    filter: str = "boxcar"

    def __post_init__(self) -> None:
        for name, what in (("window_s", "window of the meter"), ("update_s", "update of the meter")):
            value = number(getattr(self, name), what, "s")
            if not 1e-6 <= value <= _LONGEST_S:
                raise InputError(f"{what} must be between 1e-6 and {_LONGEST_S:g} s, got {value:g}")
            object.__setattr__(self, name, value)
        if self.filter not in FILTERS:
            raise InputError(f"a meter's filter is one of {', '.join(FILTERS)}, not {self.filter!r}")


def trailing_mean_w(duration_s: Floats, power_w: Floats, at_s: Floats, window_s: float, before_w: float) -> Floats:
    """Mean of a power in steps over the window that ends at each of `at_s`. [W]

    Parameters
    ----------
    duration_s, power_w : ndarray, shape (n,)
        Steps from time 0 on. [s, W]
    at_s : ndarray
        Between 0 and the end of the last step. [s]
    window_s : float
        [s]
    before_w : float
        Power before time 0; NaN: the steps as if repeated back to back. [W]
    """
    edges = np.concatenate([[0.0], np.cumsum(duration_s)])
    energy = np.concatenate([[0.0], np.cumsum(duration_s * power_w)])
    length, total = edges[-1], energy[-1]

    def until(t: Floats) -> Floats:
        if np.isnan(before_w):
            turns = np.floor(t / length)
            return np.asarray(turns * total + np.interp(t - turns * length, edges, energy))
        return np.asarray(np.interp(t, edges, energy) + np.minimum(t, 0.0) * before_w)

    return np.asarray((until(at_s) - until(at_s - window_s)) / window_s)


def low_pass_w(duration_s: Floats, power_w: Floats, at_s: Floats, constant_s: float, before_w: float) -> Floats:
    """A power in steps behind a first-order low pass (an RC filter), at each of `at_s`; as `trailing_mean_w`. [W]"""
    decay = np.exp(-duration_s / constant_s)
    pairs = list(zip(decay.tolist(), (power_w * (1.0 - decay)).tolist(), strict=True))

    def run(first: float) -> list[float]:
        return list(accumulate(pairs, lambda shown, step: shown * step[0] + step[1], initial=first))

    first = before_w
    if np.isnan(before_w):  # what it shows after a pass is what it showed before: y = y e^(-T/c) + y0
        first = run(0.0)[-1] / -np.expm1(-float(duration_s.sum()) / constant_s)
    shown = np.array(run(first))
    edges = np.concatenate([[0.0], np.cumsum(duration_s)])
    step = np.clip(np.searchsorted(edges, at_s, side="right") - 1, 0, duration_s.size - 1)
    rest = np.exp(-(at_s - edges[step]) / constant_s)
    return np.asarray(shown[step] * rest + power_w[step] * (1.0 - rest))


def readings(
    duration_s: Floats, power_w: Floats, meter: Meter, before_w: float, *, least: int = 16
) -> tuple[Floats, Floats]:
    """When a meter shows what of a power in steps: at time 0, and at each update after it.

    Parameters
    ----------
    duration_s, power_w : ndarray, shape (n,)
        Steps from time 0 on. [s, W]
    meter : Meter
    before_w : float
        Power before; NaN: the steps as if repeated back to back. [W]
    least : int
        Steps that end before the first update are shown at so many points, wherever the update may fall.

    Returns
    -------
    at_s, power_w : ndarray
        [s, W]
    """
    length = float(duration_s.sum())
    updates = int(length / meter.update_s * (1 + 1e-12))
    at = meter.update_s * np.arange(updates + 1) if updates else length * np.arange(least + 1) / least
    filtered = trailing_mean_w if meter.filter == "boxcar" else low_pass_w
    at = np.asarray(np.minimum(at, length), dtype=np.float64)
    return at, filtered(duration_s, power_w, at, meter.window_s, before_w)
