"""Who pays for which joule: overlapping activities share the GPU's static power, and nothing is counted twice."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Account:
    """Energy of activities on one GPU over a window, and the power over time behind it.

    Attributes
    ----------
    energy_j : ndarray, shape (n,)
        Energy of each activity, its part of the static energy in it. [J]
    alone_s : ndarray, shape (n,)
        Wall time that falls to each: where several run at once each has an equal part. [s]
    capped_j : ndarray, shape (n,)
        What each would have drawn beyond the power limit, which is left out. [J]
    edges_s : ndarray, shape (m + 1,)
        Borders of the stretches over which power is constant. [s]
    power_w : ndarray, shape (m,)
        Power in each. [W]
    busy : ndarray of bool, shape (m,)
        Whether anything runs in it.
    """

    energy_j: Floats
    alone_s: Floats
    capped_j: Floats
    edges_s: Floats
    power_w: Floats
    busy: npt.NDArray[np.bool_]

    @property
    def total_j(self) -> float:
        """Integral of the power over the window. [J]"""
        return float(self.power_w @ np.diff(self.edges_s))

    @property
    def idle_j(self) -> float:
        """Energy while nothing runs. [J]"""
        return float((self.power_w * ~self.busy) @ np.diff(self.edges_s))

    @property
    def idle_s(self) -> float:
        """Time that nothing runs. [s]"""
        return float(np.diff(self.edges_s)[~self.busy].sum())


def account(
    start_s: Floats,
    time_s: Floats,
    dynamic_w: Floats,
    *,
    static_w: float,
    limit_w: float,
    window_s: tuple[float, float],
) -> Account:
    """Divide the energy of a GPU among what runs on it.

    Parameters
    ----------
    start_s, time_s : ndarray, shape (n,)
        Of each activity, within the window. [s]
    dynamic_w : ndarray, shape (n,)
        Power of each beyond the static one. [W]
    static_w : float
        Power of the clocked GPU with nothing running. [W]
    limit_w : float
        Power that the board does not exceed: where the sum would, all that runs is cut alike. [W]
    window_s : tuple of float
        Begin and end of what is accounted for. [s]

    Returns
    -------
    Account
        ``energy_j.sum() + idle_j`` is `Account.total_j`.

    Notes
    -----
    A sweep over the starts and ends: between two of them the same activities run. The static power is shared by
    wall time, equally among those that run at once.
    """
    n = len(start_s)
    begin = np.clip(start_s, *window_s)
    end = np.clip(start_s + time_s, *window_s)
    edges, place = np.unique(np.concatenate([np.array(window_s), begin, end]), return_inverse=True)
    first, last = place[2 : 2 + n], place[2 + n :]
    m = len(edges) - 1
    if m <= 0:
        zero = np.zeros(n)
        return Account(zero, zero, zero, edges, np.zeros(0), np.zeros(0, dtype=bool))
    running = np.cumsum(np.bincount(first, minlength=m + 1) - np.bincount(last, minlength=m + 1))[:m]
    change = np.bincount(first, weights=dynamic_w, minlength=m + 1)
    change -= np.bincount(last, weights=dynamic_w, minlength=m + 1)
    busy = running > 0
    wanted = np.where(busy, np.maximum(np.cumsum(change)[:m], 0.0), 0.0)
    room = max(limit_w - static_w, 0.0)
    kept = room / np.maximum(wanted, max(room, 1e-9))
    length = np.diff(edges)
    part = np.where(busy, 1.0 / np.maximum(running, 1), 0.0)
    alone = _between(length * part, first, last)
    drawn = _between(length * np.where(busy, kept, 0.0), first, last)
    return Account(
        energy_j=dynamic_w * drawn + static_w * alone,
        alone_s=alone,
        capped_j=dynamic_w * np.maximum(edges[last] - edges[first] - drawn, 0.0),
        edges_s=edges,
        power_w=static_w + wanted * kept,
        busy=busy,
    )


def _between(parts: Floats, first: npt.NDArray[np.intp], last: npt.NDArray[np.intp]) -> Floats:
    """Sum of `parts` from stretch `first` up to stretch `last`, exclusive."""
    total = np.concatenate([[0.0], np.cumsum(parts)])
    return np.asarray(total[last] - total[first])
