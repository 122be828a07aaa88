"""Whether an energy reading can be: refused with the reason, or let through."""

from __future__ import annotations

from dataclasses import replace

from joulecast.bounds.plausibility import IDLE_SHARE, SAMPLED_LIMIT_TOLERANCE, above_limit, below_idle, not_positive
from joulecast.meters.reading import MeterFacts, Reading

#: Below this share of the period in the kernel, a reading tells of gaps as much as of the kernel.
LEAST_DUTY = 0.95


def judged(reading: Reading, facts: MeterFacts) -> Reading:
    """`reading`, with `refused` set where it can't be.

    Parameters
    ----------
    reading : Reading
    facts : MeterFacts
        With the device's power limit and idle power, where they are known.

    Returns
    -------
    Reading
        Refused where energy or period is no positive number, where the energy over the *period* exceeds 1.05 times
        the power limit, or where it is below idle power. Energy over kernel time is not looked at: where launches
        have gaps between them, it exceeds what the board draws.
    """
    if reading.refused:
        return reading
    reason = refusal(reading.energy_j, reading.period_s, facts.cap_w, facts.idle_w, kernel_s=reading.kernel_s)
    return replace(reading, refused=reason) if reason else reading


def refusal(
    energy_j: float, period_s: float, cap_w: float | None, idle_w: float | None, *, kernel_s: float | None = None
) -> str:
    """Why an energy over a period can't be; empty where it can. The arguments are those of `Reading` and the meter."""
    if bool(not_positive(energy_j)) or bool(not_positive(period_s)):
        return f"an energy of {energy_j:.4g} J over {period_s:.4g} s is no measurement"
    power_w = energy_j / period_s
    if cap_w is not None and bool(above_limit(power_w, cap_w)):
        limit = 1.0 + SAMPLED_LIMIT_TOLERANCE
        reason = (
            f"{energy_j * 1e3:.4g} mJ in {period_s * 1e3:.4g} ms is {power_w:.0f} W, "
            f"more than {limit:.2f} x the limit of {cap_w:.0f} W"
        )
        if kernel_s is None:
            reason += f"; if the time is the kernel's alone, the period was at least {energy_j / cap_w * 1e3:.3g} ms"
        return reason
    if idle_w is not None and bool(below_idle(power_w, idle_w)):
        return f"{power_w:.1f} W is less than {IDLE_SHARE:.0%} of the idle power of {idle_w:.0f} W"
    return ""


def remark_on_duty(reading: Reading) -> str:
    """What to say of a reading whose launches have gaps between them; empty where they have none to speak of."""
    duty = reading.duty
    if duty is None or duty >= LEAST_DUTY:
        return ""
    return f"the kernel ran {duty:.0%} of the period: the energy is that of the period, gaps included"
