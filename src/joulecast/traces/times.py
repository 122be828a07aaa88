"""Predicted against measured times of the kernels of a trace, operation by operation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from joulecast.workloads.profile import KERNEL, Floats

if TYPE_CHECKING:
    from joulecast.traces.attribution import GpuShare

#: Families that are scored, with those whose kernels belong to the same operation.
SCORED = {
    "gemm": ("gemm", "gemv", "gemm reduction"),
    "attention": ("attention",),
    "convolution": ("convolution",),
    "elementwise": ("elementwise",),
}

#: Share of its time that an operation may run beside others and still count as alone.
_ALONE = 0.1


def time_errors(shares: Sequence[GpuShare]) -> list[dict[str, Any]]:
    """How far predicted times are from the measured ones, where shapes are known.

    Kernels that run beside others (a collective, mostly) share the GPU with them and take longer than they would
    alone, which is what is predicted: both are scored apart.

    Parameters
    ----------
    shares : sequence of GpuShare

    Returns
    -------
    list of dict
        ``family``, ``ran`` (``alone`` or ``beside others``), ``operations``, ``time_s`` (measured), ``median_error``
        (median of ``|predicted / measured - 1|``), ``bias`` (median of ``predicted / measured - 1``).
    """
    out = []
    for family, members in SCORED.items():
        parts = [_of(share, members) for share in shares]
        ratio, time_s, beside = (np.concatenate([part[place] for part in parts]) for place in range(3))
        for ran, chosen in (("alone", beside <= _ALONE), ("beside others", beside > _ALONE)):
            if chosen.any():
                out.append(
                    {
                        "family": family,
                        "ran": ran,
                        "operations": int(chosen.sum()),
                        "time_s": float(time_s[chosen].sum()),
                        "median_error": float(np.median(np.abs(ratio[chosen] - 1))),
                        "bias": float(np.median(ratio[chosen] - 1)),
                    }
                )
    return out


def _of(share: GpuShare, members: tuple[str, ...]) -> tuple[Floats, Floats, Floats]:
    """Of each operation: predicted over measured time, measured time, and the share of it beside others."""
    activities = share.profile.activities
    wanted = np.array([name in members for name in share.families])[share.family]
    rows = np.flatnonzero(wanted & (activities.category == KERNEL) & (share.assignment.owner >= 0))
    if not rows.size:
        return np.zeros(0), np.zeros(0), np.zeros(0)
    _, group = np.unique(share.assignment.owner[rows], return_inverse=True)
    predicted = np.where(np.isfinite(share.energies.predicted_s[rows]), share.energies.predicted_s[rows], 0.0)
    known = share.assignment.unit[rows] >= 0
    measured: Floats = np.bincount(group, weights=activities.time_s[rows]).astype(np.float64)
    total = np.bincount(group, weights=predicted)
    alone = np.bincount(group, weights=share.account.alone_s[rows])
    scored = (np.bincount(group, weights=known) > 0) & (measured > 0)
    # of two that run together each gets half the wall time
    beside = 2.0 * (1.0 - alone[scored] / measured[scored])
    return total[scored] / measured[scored], measured[scored], beside
