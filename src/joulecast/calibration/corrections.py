"""Trains and scores the learned corrections on measured kernels: one family at a time, over all GPUs."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from itertools import repeat
from multiprocessing import get_context
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from joulecast.calibration.conformal import conformal_quantile
from joulecast.calibration.correction_fit import CorrectionBatch, fit_correction
from joulecast.calibration.kernels import Pool, fit_pool, pools, predicted_s
from joulecast.calibration.time_fit import HOST_PARAMETERS, Floats, take_work
from joulecast.coefficients import transfer
from joulecast.coefficients.corrections import CorrectionModel
from joulecast.coefficients.likeness import unlikeness
from joulecast.coefficients.schema import TimeCoefficients
from joulecast.gpus import gpu_names
from joulecast.kernels.registry import families
from joulecast.physics.correction import correction_factor
from joulecast.physics.timing import duration_s, measured_s, module_times, parameters_by_row

Fits = Mapping[str, TimeCoefficients]

#: Rows of one table that are looked at: a correction learns from more than a fit of a few numbers does.
ROWS_OF_BATCH = 32_000

#: Small matrices are multiplied faster by one thread; families share the cores instead.
_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")

#: A group with so many rows gets a network of its own.
FEWEST_ROWS_OF_PART = 8_000

#: Fewer measured rows than this teach a correction nothing.
FEWEST_ROWS = 400


@dataclass(frozen=True)
class Corrected:
    """Left-out rows of one GPU, engine and group: relative errors of the scaffold, and with the correction."""

    gpu: str
    key: str
    plain: Floats
    corrected: Floats
    distance: Floats

    @property
    def error(self) -> float:
        """Mean absolute relative error with the correction."""
        return float(np.abs(self.corrected).mean())

    @property
    def spread90(self) -> float:
        """90th percentile of ``|log(predicted / measured)|`` with the correction."""
        return conformal_quantile(np.abs(np.log1p(self.corrected)))

    def line(self) -> str:
        """One line for a person: rows, mean error of the scaffold, then mean, median, 90th percentile and bias."""
        size = np.abs(self.corrected)
        return (
            f"{f'{self.gpu} {self.key}':48s} {size.size:6d} {np.abs(self.plain).mean():7.1%} {size.mean():7.1%} "
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
    measured: Sequence[tuple[Pool, Fits]], *, held_out: bool = False, most_rows: int = 32_000, seed: int = 0
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
    parts = {}
    for group in sorted({group for batch in batches for group in batch.work.groups}):
        alone = [one for one in (_only(batch, group) for batch in batches) if one is not None]
        if FEWEST_ROWS_OF_PART <= sum(len(one.time_s) for one in alone) < rows:
            parts[group] = _fitted(alone, most_rows, seed)
    whole = _fitted(batches, most_rows if not parts else most_rows // 6, seed)
    return replace(whole, parts=MappingProxyType(parts))


def _fitted(batches: list[CorrectionBatch], most_rows: int, seed: int) -> CorrectionModel:
    """A network of a size that its rows can fill."""
    rows = sum(min(len(batch.time_s), most_rows) for batch in batches)
    hidden, epochs = ((128, 96), 36) if rows > 60_000 else ((96, 64), 80) if rows > 15_000 else ((48, 32), 120)
    return fit_correction(batches, hidden=hidden, epochs=epochs, most_rows=most_rows, seed=seed)


def _only(batch: CorrectionBatch, group: str) -> CorrectionBatch | None:
    """The rows of one group of a batch; None where it has none."""
    if group not in batch.work.groups:
        return None
    code = batch.work.groups.index(group)
    rows = np.flatnonzero(batch.work.group == code)
    if not rows.size:
        return None
    return replace(
        batch,
        work=replace(take_work(batch.work, rows), groups=(group,), group=np.zeros(rows.size, dtype=np.intp)),
        per_group=[batch.per_group[code]],
        time_s=batch.time_s[rows],
        weight=float(rows.size) ** -0.5,
    )


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
        key = f"{left.key}/{group}"
        out.append(Corrected(left.gpu.name, key, plain[rows] / truth - 1, seconds / truth - 1, distance))
    return out


def _transferred(pool: Pool, known: Sequence[tuple[Pool, Fits]]) -> Fits:
    """Efficiencies for the groups of a pool from those that are known."""
    family, engine = pool.key.split("/", 1)
    out = {}
    for group in pool.work.groups:
        choices = []
        for other, fits in known:
            its_engine = other.key.split("/", 1)[1]
            for its, one in fits.items():
                unlike = unlikeness(family, pool.gpu, (engine, group), other.gpu, (its_engine, its))
                choices.append((unlike, other.gpu.name, its, one))
        if choices:
            choices.sort(key=lambda choice: choice[:3])
            out[group] = transfer.blended([(choice[0], choice[3]) for choice in choices])
    return out


def family_kinds() -> dict[str, tuple[str, ...]]:
    """Kinds of operation that each family serves."""
    found = {family.name: family.kinds for family in families().values()}
    return dict(sorted(found.items()))


def train_corrections(
    folder: Path, fits_of: Callable[[str], Fits], tell: Callable[[str], None] = lambda _: None,
    names: tuple[str, ...] = (),
) -> Iterator[tuple[CorrectionModel, list[Corrected]]]:  # fmt: skip
    """The correction of each family that enough was measured of, with the errors that left-out shapes had.

    Parameters
    ----------
    folder : Path
        The data folder.
    fits_of : callable
        Efficiencies of a GPU by ``family/engine/group``, as they will be when the correction is used.
    tell : callable
        Gets a line for each GPU, engine and group.
    names : tuple of str
        Only these families.

    Yields
    ------
    CorrectionModel, list of Corrected
        The model was trained on all shapes, the errors are those of a model that had not seen theirs.
    """
    wanted = [name for name in family_kinds() if not names or name in names]
    fits = {name: dict(fits_of(name)) for name in gpu_names()}
    os.environ.update(dict.fromkeys(_ONE_THREAD, "1"))
    with ProcessPoolExecutor(max_workers=os.cpu_count(), mp_context=get_context("spawn")) as workers:
        for found in workers.map(_train_family, wanted, repeat(folder), repeat(fits)):
            if found is None:
                continue
            model, scores = found
            for one in scores:
                tell(one.line())
            yield model, scores


def _train_family(name: str, folder: Path, fits: Mapping[str, Fits]) -> tuple[CorrectionModel, list[Corrected]] | None:
    """One family in a process of its own."""
    kinds = family_kinds()[name]
    measured = [(pool, _of_pool(fits[pool.gpu.name], pool)) for pool in pools(folder, kinds, ROWS_OF_BATCH)]
    trial = train(measured, held_out=True)
    model = train(measured)
    if trial is None or model is None:
        return None
    return _plain(model), [one for pool, known in measured for one in score(trial, pool, known)]


def _plain(model: CorrectionModel) -> CorrectionModel:
    """The model with its mappings as dictionaries, which can be sent from process to process."""
    parts = {group: _plain(part) for group, part in model.parts.items()}
    return replace(model, own=dict(model.own), parts=parts)


def _of_pool(fits: Fits, pool: Pool) -> Fits:
    """Fits of the groups of a pool, from those of its GPU."""
    return {group: fits[f"{pool.key}/{group}"] for group in pool.work.groups if f"{pool.key}/{group}" in fits}


def held_out_scores(
    kinds: tuple[str, ...], folder: Path, tell: Callable[[str], None] = print, without: str = ""
) -> list[Corrected]:
    """Train with shapes left out by hash, and score on them.

    `without` leaves out of all fits the GPUs whose name contains it, and scores only those, with the efficiencies
    of their relatives.
    """
    measured = [(pool, fit_pool(pool)) for pool in pools(folder, kinds, ROWS_OF_BATCH)]
    kept = [(pool, fits) for pool, fits in measured if not (without and without in pool.gpu.name)]
    model = train(kept, held_out=True)
    if model is None:
        raise ValueError(f"fewer than {FEWEST_ROWS} measured rows of {', '.join(kinds)}")
    out = []
    for pool, fits in measured:
        if without and without not in pool.gpu.name:
            continue
        for one in score(model, pool, _transferred(pool, kept) if without else fits):
            tell(one.line())
            out.append(one)
    return out


if __name__ == "__main__":
    columns = "rows plain mean median p90 bias"
    print(f"{'gpu family/engine/group':48s} " + " ".join(f"{name:>7s}" for name in columns.split()))
    held_out_scores(tuple(sys.argv[1].split(",")), Path(sys.argv[2]), without=(*sys.argv, "")[3])
