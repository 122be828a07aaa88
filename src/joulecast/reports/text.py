"""Figures as short text with units: three significant digits, the unit that reads best, one spelling everywhere."""

from __future__ import annotations

import math

#: Shown where there is no figure.
ABSENT = "-"

_TIMES = ((1e-6, "µs"), (1e-3, "ms"), (1.0, "s"), (60.0, "min"), (3600.0, "h"))
_TIME_UP_TO = (1e-3, 1.0, 120.0, 7200.0, math.inf)
_ENERGIES = ((1e-6, "µJ"), (1e-3, "mJ"), (1.0, "J"), (1e3, "kJ"), (3.6e6, "kWh"), (3.6e9, "MWh"), (3.6e12, "GWh"))
_ENERGY_UP_TO = (1e-3, 1.0, 1e3, 3.6e6, 3.6e9, 3.6e12, math.inf)
_POWERS = ((1e-3, "mW"), (1.0, "W"), (1e3, "kW"), (1e6, "MW"))
_POWER_UP_TO = (1.0, 1e3, 1e6, math.inf)
_SI = ((1.0, ""), (1e3, "k"), (1e6, "M"), (1e9, "G"), (1e12, "T"), (1e15, "P"), (1e18, "E"), (1e21, "Z"))
_SI_UP_TO = (1e3, 1e6, 1e9, 1e12, 1e15, 1e18, 1e21, math.inf)
_NAMED = ((1.0, ""), (1e3, "k"), (1e6, "M"), (1e9, "B"), (1e12, "T"))
_NAMED_UP_TO = (1e3, 1e6, 1e9, 1e12, math.inf)


def significant(value: float | None, digits: int = 3) -> str:
    """`value` to `digits` significant digits, in at most 9 characters: ``0.0123``, ``39,800``, ``4.00e-7``.

    Parameters
    ----------
    value : float or None
        None and NaN give `ABSENT`.
    digits : int

    Returns
    -------
    str
    """
    if value is None or math.isnan(value):
        return ABSENT
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    if value == 0:
        return "0"
    rounded = float(f"{value:.{digits - 1}e}")
    exponent = math.floor(math.log10(abs(rounded)))
    if not -6 < exponent < 7:
        return f"{rounded / 10.0**exponent:.{digits - 1}f}e{exponent}"
    return f"{rounded:,.{max(digits - 1 - exponent, 0)}f}"


def whole(value: float | None) -> str:
    """`value` as a whole number, thousands apart by commas: ``2,048``."""
    if value is None or not math.isfinite(value):
        return ABSENT
    return f"{value:,.0f}"


def duration(seconds: float | None) -> str:
    """A time in µs, ms, s, min (from 2) or h (from 2)."""
    return _scaled(seconds, _TIMES, _TIME_UP_TO)


def energy(joules: float | None) -> str:
    """An energy in µJ, mJ, J, kJ, or from one kWh up in kWh, MWh or GWh."""
    return _scaled(joules, _ENERGIES, _ENERGY_UP_TO)


def power(watts: float | None) -> str:
    """A power in mW, W, kW or MW."""
    return _scaled(watts, _POWERS, _POWER_UP_TO)


def amount(value: float | None, unit: str) -> str:
    """A quantity with an SI prefix: ``amount(2.4e12, "FLOP")`` is ``2.40 TFLOP``."""
    return _scaled(value, _SI, _SI_UP_TO, unit)


def count(value: float | None) -> str:
    """A number as people say it of models: ``8.03 B`` for 8.03e9."""
    return _scaled(value, _NAMED, _NAMED_UP_TO)


def percent(share: float | None) -> str:
    """A share as whole per cent; below one per cent one digit, below 0.1 % ``<0.1 %``."""
    if share is None or not math.isfinite(share):
        return ABSENT
    per_cent = 100 * share
    if 0 < per_cent < 0.05:
        return "<0.1 %"
    if 0 < per_cent < 0.95:
        return f"{per_cent:.1f} %"
    return f"{per_cent:,.0f} %"


def plus_minus(share: float | None) -> str:
    """A relative half-interval: ``± 6 %``; empty where there is none."""
    if share is None or not math.isfinite(share):
        return ""
    return f"± {percent(share)}"


def gigabytes(value_gb: float | None) -> str:
    """Gigabytes as a bare number: one digit after the point up to 1,000."""
    if value_gb is None or not math.isfinite(value_gb):
        return ABSENT
    return f"{value_gb:,.1f}" if value_gb < 1000 else f"{value_gb:,.0f}"


def in_middle(text: str, width: int) -> str:
    """`text` cut in its middle to at most `width` characters."""
    if len(text) <= width:
        return text
    if width <= 1:
        return text[:width]
    head = (width - 1) // 2
    return text[:head] + "…" + text[len(text) - (width - 1 - head) :]


def _scaled(
    value: float | None, units: tuple[tuple[float, str], ...], up_to: tuple[float, ...], suffix: str = ""
) -> str:
    if value is None or not math.isfinite(value):
        return ABSENT
    rounded = float(f"{value:.2e}")  # 999.7 ms is 1.00 s: the unit is chosen for what is shown
    for (size, prefix), limit in zip(units, up_to, strict=True):
        if abs(rounded) < limit:
            unit = prefix + suffix
            return f"{significant(value / size)} {unit}".rstrip()
    raise AssertionError("the last limit is infinite")
