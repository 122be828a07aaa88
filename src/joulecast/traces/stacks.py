"""Energy by stack: step, layer, operators and kernel, as a flame graph takes it."""

from __future__ import annotations

import numpy as np

from joulecast.traces.attribution import Attribution, GpuShare
from joulecast.traces.groups import IDLE
from joulecast.traces.names import short_name
from joulecast.workloads.profile import OPERATOR

#: Frames that say nothing of where in the program one is.
_LEFT_OUT = ("ProfilerStep", "autograd::engine::evaluate_function", "record_param_comms")


def stacks(found: Attribution) -> dict[tuple[str, ...], float]:
    """Energy of each stack, outermost first.

    Parameters
    ----------
    found : Attribution

    Returns
    -------
    dict of tuple of str to float
        Host ranges around each kernel, the kernel last; where there are several GPUs, which one first. Sums to the
        energy of the attribution. [J]
    """
    out: dict[tuple[str, ...], float] = {}
    for share in found.shares:
        first = (share.label,) if len(found.shares) > 1 else ()
        for stack, energy in _of(share).items():
            out[first + stack] = out.get(first + stack, 0.0) + energy
        if share.account.idle_j > 0:
            out[(*first, IDLE)] = out.get((*first, IDLE), 0.0) + share.account.idle_j
    return out


def _of(share: GpuShare) -> dict[tuple[str, ...], float]:
    activities = share.profile.activities
    pairs = np.stack([activities.operator, activities.name], axis=1)
    distinct, place = np.unique(pairs, axis=0, return_inverse=True)
    energy = np.bincount(place.reshape(-1), weights=share.account.energy_j, minlength=len(distinct))
    above: dict[int, tuple[str, ...]] = {-1: ()}
    out: dict[tuple[str, ...], float] = {}
    for (operator, name), joules in zip(distinct.tolist(), energy.tolist(), strict=True):
        path = above.get(operator)
        if path is None:
            path = _path(share, operator)
            above[operator] = path
        stack = (*path, short_name(share.profile.names[name]))
        out[stack] = out.get(stack, 0.0) + joules
    return out


def _path(share: GpuShare, operator: int) -> tuple[str, ...]:
    """Ranges around a launch; what autograd runs stands under the layer of its forward operator."""
    operators, names = share.profile.operators, share.profile.names
    frames: list[str] = []
    row, ahead = operator, -1
    while row >= 0:
        text = names[int(operators.name[row])]
        if not text.startswith(_LEFT_OUT):
            frames.append(text.removeprefix("nn.Module: ").strip("# ") or text)
        if operators.forward[row] >= 0:
            ahead = int(operators.forward[row])
        row = int(operators.parent[row])
    if ahead >= 0:
        frames += ["backward", *_named(share, ahead)]
    return tuple(reversed(frames))


def _named(share: GpuShare, row: int) -> list[str]:
    """Annotations and modules around a range, innermost first."""
    operators, names = share.profile.operators, share.profile.names
    frames = []
    while row >= 0:
        text = names[int(operators.name[row])]
        if operators.kind[row] != OPERATOR and not text.startswith(_LEFT_OUT):
            frames.append(text.removeprefix("nn.Module: ").strip("# ") or text)
        row = int(operators.parent[row])
    return frames
