"""Trains and scores the learned corrections on measured kernels: one family at a time, over all GPUs."""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from itertools import repeat
from multiprocessing import get_context
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from joulecast.calibration.audit import sound
from joulecast.calibration.conformal import conformal_quantile
from joulecast.calibration.correction_fit import CorrectionBatch, fit_correction
from joulecast.calibration.kernels import FOLDS, Pool, fit_pool, pools_of, predicted_s
from joulecast.calibration.power_fit import fit_kernel_power
from joulecast.calibration.settled import with_clocks
from joulecast.calibration.tables import Measured, read_kernel_tables
from joulecast.calibration.time_fit import Floats, hosted_s, take_work
from joulecast.coefficients import transfer
from joulecast.coefficients.corrections import CorrectionModel
from joulecast.coefficients.likeness import unlikeness
from joulecast.coefficients.schema import PowerCoefficients, TimeCoefficients
from joulecast.gpus import gpu_names
from joulecast.kernels.registry import families
from joulecast.physics.correction import correction_factor
from joulecast.physics.timing import duration_s, module_times, parameters_by_row

Fits = Mapping[str, TimeCoefficients]

#: Rows of one table that are looked at: a correction learns from more than a fit of a few numbers does.
ROWS_OF_BATCH = 32_000

#: Families whose fits go by the size of messages already (`TimeCoefficients.message_factors`).
BY_MESSAGE = ("nccl", "custom_allreduce")

#: Small matrices are multiplied faster by one thread; families share the cores instead.
_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")

#: A group with so many rows gets a network of its own.
FEWEST_ROWS_OF_PART = 3_000

#: Share of the rows of groups with a network of their own that the network for all others sees.
SHARE_IN_WHOLE = 1 / 6

#: Rows of one pool that the correction of a first round is trained on.
DRAFT_ROWS = 6_000

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
        clock_mhz=part.clock_mhz,
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
    thinned = [_thinned(batch, tuple(parts), seed) for batch in batches]
    whole = _fitted(thinned, most_rows, seed)
    return replace(whole, parts=MappingProxyType(parts))


def _fitted(batches: list[CorrectionBatch], most_rows: int, seed: int) -> CorrectionModel:
    """A network of a size that its rows can fill.

    Three layers tell which kernel a library picked better than two wider ones that cost as much.
    """
    rows = sum(min(len(batch.time_s), most_rows) for batch in batches)
    hidden, epochs, members = next(size for least, size in _SIZES if rows > least)
    return fit_correction(batches, hidden=hidden, epochs=epochs, members=members, most_rows=most_rows, seed=seed)


#: Widths of the layers, passes over the rows, and networks whose mean is taken (what few rows leave to chance differs
#: from one to the next), by how many rows there are more than.
_SIZES: tuple[tuple[int, tuple[tuple[int, ...], int, int]], ...] = (
    (60_000, ((96, 96, 64), 72, 1)),
    (15_000, ((96, 64, 48), 80, 1)),
    (-1, ((48, 40, 32), 100, 2)),
)


def _thinned(batch: CorrectionBatch, parts: tuple[str, ...], seed: int) -> CorrectionBatch:
    """A batch with all rows of groups that have no network of their own, and some of those of `parts`."""
    served = np.array([group in parts for group in batch.work.groups])[batch.work.group]
    if not served.any():
        return batch
    kept = ~served | (np.random.default_rng(seed).random(served.size) < SHARE_IN_WHOLE)
    rows = np.flatnonzero(kept)
    return replace(
        batch,
        work=take_work(batch.work, rows),
        time_s=batch.time_s[rows],
        clock_mhz=np.broadcast_to(batch.clock_mhz, batch.time_s.shape)[rows],
        weight=float(max(rows.size, 1)) ** -0.5,
    )


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
        clock_mhz=np.broadcast_to(batch.clock_mhz, batch.time_s.shape)[rows],
        weight=float(rows.size) ** -0.5,
    )


def score(model: CorrectionModel, pool: Pool, fits: Fits, *, exclude: tuple[str, ...] = ()) -> list[Corrected]:
    """Errors of `model` on the rows of fold 0 of a pool that no limit slowed down, by group."""
    out = []
    left = pool.take((pool.fold == 0) & pool.at_highest)
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
            seconds = hosted_s(work, seconds, one.host_us, one.host_lead_us)
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


@dataclass(frozen=True)
class TrainedFamily:
    """What was learnt of one family.

    Attributes
    ----------
    model : CorrectionModel or None
        Trained on all shapes; None where too little was measured.
    scores : list of Corrected
        Errors of a model that had not seen the shapes.
    fits : mapping of str to mapping
        Efficiencies by ``family/engine/group``, by GPU, of pools with rows that the power limit slowed down: fitted
        again once their clocks were found out.
    """

    model: CorrectionModel | None
    scores: list[Corrected]
    fits: Mapping[str, dict[str, TimeCoefficients]]


def at_their_clocks(
    batches: Sequence[Measured], power: Mapping[str, PowerCoefficients], most_rows: int, *,
    held_out: bool = False, draft_rows: int = DRAFT_ROWS, fold: int = 0,
    known: Mapping[str, Fits] | None = None,
) -> list[tuple[Pool, Fits]]:  # fmt: skip
    """Pools of one family with fits of their groups, every row at the clock that it ran at.

    A first round leaves out what the power limit surely slowed down. From its times, and power learnt beside them,
    the clocks follow; then all rows tell of times.

    Parameters
    ----------
    batches : sequence of Measured
    power : mapping of str to PowerCoefficients
        Energies, by GPU: rows under load of others keep the highest clock.
    most_rows : int
        Rows of one batch at most.
    held_out : bool
        Leave the shapes of fold 0 out of what is learnt on the way.
    draft_rows : int
        Rows of one pool that the correction of the first round is trained on.
    fold : int
        Hash fold that counts as fold 0.
    known : mapping of str to mapping, optional
        Fits of the first round by ``family/engine/group``, by GPU, where they were made already.
    """

    def pooled_all(given: Sequence[Measured]) -> list[Pool]:
        return [replace(one, fold=((one.fold - fold) % FOLDS).astype(np.intp)) for one in pools_of(given, most_rows)]

    first = pooled_all(batches)
    measured = [(one, fit_pool(one) if known is None else _of_pool(known[one.gpu.name], one)) for one in first]
    if not any(one.gpu in power and one.timing_mode == "sustained" for one in batches):
        return measured
    draft = train(measured, held_out=held_out, most_rows=draft_rows)
    time: dict[str, dict[str, TimeCoefficients]] = defaultdict(dict)
    for pool, fits in measured:
        time[pool.gpu.name].update({f"{pool.key}/{group}": one for group, one in fits.items()})
    family = first[0].key.split("/", 1)[0]
    clocked = with_clocks(batches, power, time, {} if draft is None else {family: draft})
    out = []
    for pool, (_, fits) in zip(pooled_all(clocked), measured, strict=True):
        slowed = bool((pool.clock_mhz < pool.gpu.clock_max_mhz).any())
        out.append((pool, fit_pool(pool) if slowed else fits))
    return out


def train_corrections(
    folder: Path, fits_of: Callable[[str], Fits], power: Mapping[str, PowerCoefficients] = MappingProxyType({}),
    tell: Callable[[str], None] = lambda _: None, names: tuple[str, ...] = (),
) -> Iterator[TrainedFamily]:  # fmt: skip
    """The correction of each family that enough was measured of, with the errors that left-out shapes had.

    Parameters
    ----------
    folder : Path
        The data folder.
    fits_of : callable
        Efficiencies of a GPU by ``family/engine/group``, as bursts and rows that were not throttled show them.
    power : mapping of str to PowerCoefficients
        Energies by GPU, which tell at which clock rows under load ran.
    tell : callable
        Gets a line for each GPU, engine and group.
    names : tuple of str
        Only these families.

    Yields
    ------
    TrainedFamily
    """
    wanted = [name for name in family_kinds() if name not in BY_MESSAGE and (not names or name in names)]
    fits = {name: dict(fits_of(name)) for name in gpu_names()}
    os.environ.update(dict.fromkeys(_ONE_THREAD, "1"))
    with ProcessPoolExecutor(max_workers=os.cpu_count(), mp_context=get_context("spawn")) as workers:
        for found in workers.map(_train_family, wanted, repeat(folder), repeat(fits), repeat(dict(power))):
            for one in found.scores:
                tell(one.line())
            yield found


def _train_family(
    name: str, folder: Path, fits: Mapping[str, Fits], power: Mapping[str, PowerCoefficients]
) -> TrainedFamily:
    """One family in a process of its own."""
    batches = list(sound(read_kernel_tables(folder, family_kinds()[name])))
    measured = at_their_clocks(batches, power, ROWS_OF_BATCH, known=fits)
    again: dict[str, dict[str, TimeCoefficients]] = defaultdict(dict)
    for pool, known in measured:
        if (pool.clock_mhz < pool.gpu.clock_max_mhz).any():
            again[pool.gpu.name].update({f"{pool.key}/{group}": one for group, one in known.items()})
    trial = train(measured, held_out=True)
    model = train(measured)
    if trial is None or model is None:
        return TrainedFamily(None, [], dict(again))
    scores = [one for pool, known in measured for one in score(trial, pool, known)]
    return TrainedFamily(_plain(model), scores, dict(again))


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
    batches = list(sound(read_kernel_tables(folder, kinds)))
    measured = at_their_clocks(batches, fit_kernel_power(batches), ROWS_OF_BATCH, held_out=True)
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
