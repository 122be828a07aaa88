"""Scored runs of whole models that are no single pass, and their tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from joulecast.validation.metrics import metrics


@dataclass(frozen=True)
class ScoredRun:
    """A measured run with what was predicted for it; NaN where something was not measured.

    Attributes
    ----------
    group : str
        Rows of the table that it belongs to.
    model, gpu : str
    time_s, power_w : float
        Predicted, of one GPU. [s, W]
    measured_s, measured_w : float
        [s, W]
    host_bound : bool
        Whether the host, not the GPU, is predicted to set the time.
    """

    group: str
    model: str
    gpu: str
    time_s: float
    power_w: float
    measured_s: float
    measured_w: float
    host_bound: bool = False


def run_figures(scored: Sequence[ScoredRun]) -> dict[str, Any]:
    """Metrics of time, throughput, power and energy of some runs."""

    def column(name: str) -> Any:
        return np.array([getattr(one, name) for one in scored], dtype=np.float64)

    time_s, power_w, measured_s, measured_w = map(column, ("time_s", "power_w", "measured_s", "measured_w"))
    found = {
        "time": metrics(time_s, measured_s),
        "throughput": metrics(1.0 / time_s, 1.0 / measured_s),
        "power": metrics(power_w, measured_w),
        "energy": metrics(time_s * power_w, measured_s * measured_w),
    }
    return {name: one.as_dict() for name, one in found.items()}


def run_table(scored: Sequence[ScoredRun], by: Callable[[ScoredRun], str]) -> list[dict[str, Any]]:
    """`run_figures` of the runs that share `by`, in the order they come in."""
    names = dict.fromkeys(map(by, scored))
    return [{"group": name, **run_figures([one for one in scored if by(one) == name])} for name in names]
