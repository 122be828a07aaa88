"""Predicted against measured times of the kernels of a trace, operation by operation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

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

#: What the traffic of a collective adds to the time of a matrix kernel beside it. Fitted on a training trace of an A100
#: (products beside collectives of 7 and 8 blocks); with it, those beside 24 blocks there and those of a V100 come out.
BESIDE = 1.23

#: Share of its time that an operation may run beside others and still count as alone.
_ALONE = 0.1


def time_errors(shares: Sequence[GpuShare]) -> list[dict[str, Any]]:
    """How far predicted times are from the measured ones, where shapes are known.

    Kernels that run beside others share the GPU with them and take longer than they would alone; both are scored
    apart. Matrix kernels beside a collective are expected to take `slowed` as long.

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


def slowed(share: GpuShare, rows: npt.NDArray[np.intp]) -> Floats:
    """How many times as long matrix kernels take for the collectives that run beside them.

    Parameters
    ----------
    share : GpuShare
    rows : ndarray of int
        Activities.

    Returns
    -------
    ndarray
        Over the part of its time that a kernel has a collective beside it, ``BESIDE / (1 - h)``: the SMs that hold the
        collective's blocks, a share `h` of all, are not there for it, and its traffic slows the others.
    """
    activities = share.profile.activities
    exchanging = np.array([name == "collective" for name in share.families])[share.family]
    if not exchanging.any():
        return np.ones(len(rows))
    start, end = activities.start_s, activities.start_s + activities.time_s
    blocks = np.nan_to_num(activities.grid[exchanging].prod(axis=1), nan=0.0)
    held = np.minimum(blocks / share.sm_count, 0.9)
    edges = np.unique(np.concatenate([start[exchanging], end[exchanging]]))
    running, together = np.zeros(len(edges)), np.zeros(len(edges))
    for at, sign in ((start, 1.0), (end, -1.0)):
        place = np.searchsorted(edges, at[exchanging])
        running += np.bincount(place, weights=np.full(len(place), sign), minlength=len(edges))
        together += np.bincount(place, weights=sign * held, minlength=len(edges))
    beside = np.cumsum(running)[:-1] > 0.5
    factor = np.where(beside, BESIDE / (1.0 - np.clip(np.cumsum(together)[:-1], 0.0, 0.9)), 1.0)
    # what it did beside them it would have done in 1 / factor of that time alone
    saved = np.concatenate([[0.0], np.cumsum((1.0 - 1.0 / factor) * np.diff(edges))])
    alone = activities.time_s[rows] - (np.interp(end[rows], edges, saved) - np.interp(start[rows], edges, saved))
    return np.asarray(activities.time_s[rows] / np.maximum(alone, 1e-12))


def _of(share: GpuShare, members: tuple[str, ...]) -> tuple[Floats, Floats, Floats]:
    """Of each operation: predicted over measured time, measured time, and the share of it beside others."""
    activities = share.profile.activities
    wanted = np.array([name in members for name in share.families])[share.family]
    rows = np.flatnonzero(wanted & (activities.category == KERNEL) & (share.assignment.owner >= 0))
    if not rows.size:
        return np.zeros(0), np.zeros(0), np.zeros(0)
    _, group = np.unique(share.assignment.owner[rows], return_inverse=True)
    predicted = np.where(np.isfinite(share.energies.predicted_s[rows]), share.energies.predicted_s[rows], 0.0)
    if members != SCORED["elementwise"]:
        predicted = predicted * slowed(share, rows)
    known = share.assignment.unit[rows] >= 0
    measured: Floats = np.bincount(group, weights=activities.time_s[rows]).astype(np.float64)
    total = np.bincount(group, weights=predicted)
    alone = np.bincount(group, weights=share.account.alone_s[rows])
    scored = (np.bincount(group, weights=known) > 0) & (measured > 0)
    # of two that run together each gets half the wall time
    beside = 2.0 * (1.0 - alone[scored] / measured[scored])
    return total[scored] / measured[scored], measured[scored], beside
