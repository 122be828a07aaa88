"""Trains and scores the learned corrections on measured kernels: one family at a time, over all GPUs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from joulecast.calibration.correction_fit import CorrectionBatch, fit_correction
from joulecast.calibration.kernels import Pool, fit_pool, pools, predicted_s
from joulecast.calibration.time_fit import HOST_PARAMETERS, Floats, take_work
from joulecast.coefficients.corrections import CorrectionModel
from joulecast.coefficients.schema import TimeCoefficients
from joulecast.physics.correction import correction_factor
from joulecast.physics.timing import duration_s, measured_s, module_times, parameters_by_row

Fits = Mapping[str, TimeCoefficients]

#: Fewer measured rows than this teach a correction nothing.
FEWEST_ROWS = 400


@dataclass(frozen=True)
class Corrected:
    """Left-out rows of one GPU, engine and group: relative errors of the scaffold, and with the correction."""

    label: str
    plain: Floats
    corrected: Floats
    distance: Floats

    def line(self) -> str:
        """One line for a person: rows, mean error of the scaffold, then mean, median, 90th percentile and bias."""
        size = np.abs(self.corrected)
        return (
            f"{self.label:48s} {size.size:6d} {np.abs(self.plain).mean():7.1%} {size.mean():7.1%} "
            f"{np.median(size):7.1%} {np.quantile(size, 0.9):7.1%} {self.corrected.mean():+7.1%}"
        )


def batch_of(pool: Pool, fits: Fits, rows: Any = None) -> CorrectionBatch | None:
    """Rows of a pool as a batch to train on; None where no group of it was fitted.

    Rows at the power limit (whose clock is unknown) and rows of groups without a fit are left out. Batches count
    by the root of their size, so that a GPU with few rows is not forgotten over one with many.
    """
    known = np.array([group in fits for group in pool.work.groups])
    good = known[pool.work.group] & ~pool.capped
    if rows is not None:
        good &= np.isin(np.arange(good.size), rows)
    chosen = np.flatnonzero(good)
    if not chosen.size:
        return None
    part = pool.take(chosen)
    return CorrectionBatch(
        work=part.work,
        gpu=part.gpu,
        engine=part.key.split("/", 1)[1],
        per_group=[fits.get(group, TimeCoefficients()) for group in part.work.groups],
        time_s=part.time_s,
        clock_mhz=part.gpu.clock_max_mhz,
        weight=float(chosen.size) ** -0.5,
    )


def train(
    measured: Sequence[tuple[Pool, Fits]], *, held_out: bool = False, most_rows: int = 60_000, seed: int = 0
) -> CorrectionModel | None:
    """The correction of one family from its pools and their fits; None where there are too few rows.

    Parameters
    ----------
    measured : sequence of (Pool, mapping of str to TimeCoefficients)
        All pools of the family, with the fits of their groups.
    held_out : bool
        Leave the shapes of fold 0 out, to score the result on them.
    most_rows : int
        Rows of one pool at most.
    seed : int
    """
    batches = []
    for pool, fits in measured:
        batch = batch_of(pool, fits, np.flatnonzero(pool.fold != 0) if held_out else None)
        if batch is not None:
            batches.append(batch)
    rows = sum(len(batch.time_s) for batch in batches)
    if rows < FEWEST_ROWS:
        return None
    hidden, epochs = ((128, 96), 80) if rows > 100_000 else ((96, 64), 80) if rows > 20_000 else ((48, 32), 120)
    return fit_correction(batches, hidden=hidden, epochs=epochs, most_rows=most_rows, seed=seed)


def score(model: CorrectionModel, pool: Pool, fits: Fits, *, exclude: tuple[str, ...] = ()) -> list[Corrected]:
    """Errors of `model` on the rows of fold 0 of a pool, by group."""
    out = []
    left = pool.take((pool.fold == 0) & ~pool.capped)
    plain = predicted_s(left, dict(fits))
    for code, group in enumerate(left.work.groups):
        rows = np.flatnonzero((left.work.group == code) & np.isfinite(plain))
        if not rows.size:
            continue
        work, one = take_work(left.work, rows), fits[group]
        times = module_times(work, left.gpu, parameters_by_row([one] * len(work.groups), work.group))
        engine = left.key.split("/", 1)[1]
        factor, distance = correction_factor(model, work, times, left.gpu, engine=engine, exclude=exclude)
        seconds = factor * duration_s(times, left.gpu, left.gpu.clock_max_mhz)
        if left.host_bound:
            seconds = measured_s(seconds, *(getattr(one, name) for name in HOST_PARAMETERS))
        truth = left.time_s[rows]
        label = f"{left.gpu.name} {left.key}/{group}"
        out.append(Corrected(label, plain[rows] / truth - 1, seconds / truth - 1, distance))
    return out


def held_out_scores(
    family_kinds: tuple[str, ...], folder: Path, tell: Callable[[str], None] = print, without: str = ""
) -> list[Corrected]:
    """Train with shapes left out by hash, and score on them; `without` leaves out the GPUs whose name contains it."""
    measured = [(pool, fit_pool(pool)) for pool in pools(folder, family_kinds)]
    kept = [(pool, fits) for pool, fits in measured if not (without and without in pool.gpu.name)]
    model = train(kept, held_out=True)
    if model is None:
        raise ValueError(f"fewer than {FEWEST_ROWS} measured rows of {', '.join(family_kinds)}")
    out = []
    for pool, fits in measured:
        if without and without not in pool.gpu.name:
            continue
        for one in score(model, pool, fits):
            tell(one.line())
            out.append(one)
    return out


if __name__ == "__main__":
    columns = "rows plain mean median p90 bias"
    print(f"{'gpu family/engine/group':48s} " + " ".join(f"{name:>7s}" for name in columns.split()))
    held_out_scores(tuple(sys.argv[1].split(",")), Path(sys.argv[2] if len(sys.argv) > 2 else "../shared/data"))
