"""Microbatches through the stages of a pipeline: how long it takes, and what share of it stages wait."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def makespan(runs: Any, stages: int, microbatches: int, largest_share: float) -> Floats:
    """Time of `runs` passes of `microbatches` microbatches through a pipeline, over `runs` passes of one of them alone.

    A microbatch passes the stages one after the other and starts its next pass when it leaves the last; a stage works
    on one microbatch at a time. The stage that takes the longest sets the pace.

    Parameters
    ----------
    runs : array_like
        Passes of each microbatch, one after the other (decoding steps; 1 for a prefill).
    stages, microbatches : int
    largest_share : float
        Share of a pass that the longest stage takes, from 1 / `stages`.

    Returns
    -------
    ndarray
        ``[(n - 1) max(1, m s) + 1 + (m - 1) s] / n`` for `n` runs, `m` microbatches and a largest share `s`: with one
        run and even stages ``(m + p - 1) / p``. Dimensionless.
    """
    n = np.maximum(np.asarray(runs, dtype=np.float64), 1.0)
    share = max(largest_share, 1.0 / stages)
    first = 1.0 + (microbatches - 1) * share
    return np.asarray(((n - 1.0) * max(1.0, microbatches * share) + first) / n)


def waiting_share(spans: Any, stages: int, microbatches: int) -> Floats:
    """Share of the time of all stages that they wait for each other, from `makespan`. In [0, 1).

    With one run and even stages the bubble of the textbook, ``(p - 1) / (m + p - 1)``.
    """
    return np.asarray(1.0 - microbatches / (np.asarray(spans) * stages))


def largest_stage_share(stages: int, layers: int | None) -> float:
    """Share of a pass that the longest of `stages` takes where `layers` are dealt out whole. Dimensionless."""
    if not layers or stages <= 1:
        return 1.0 / stages
    return -(-layers // stages) / layers
