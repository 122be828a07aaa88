"""Fits the efficiencies of every family on every measured GPU from kernel tables."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from joulecast.calibration.audit import sound
from joulecast.calibration.conformal import conformal_quantile
from joulecast.calibration.tables import QUALITIES, Measured, read_kernel_tables
from joulecast.calibration.time_fit import fit_time, hash_fold, hosted_s, take_work
from joulecast.coefficients.schema import TIME_PARAMETERS, TimeCoefficients
from joulecast.coefficients.versions import order, with_version
from joulecast.gpus import Gpu, load_gpu
from joulecast.kernels.registry import family_of
from joulecast.kernels.work import KernelWork
from joulecast.physics.timing import duration_s, message_factor, module_times

Floats = npt.NDArray[np.float64]

#: Rows of one batch that are looked at; more change no figure.
MOST_ROWS = 24_000

#: Fold of shapes that is left out to learn the error.
FOLDS = 5


@dataclass(frozen=True)
class Pool:
    """Measured operations of one family, engine and GPU, whatever kind and source they came as.

    Attributes
    ----------
    key : str
        ``family/engine``, the engine's version beside it where it is not the one that the engine is named after.
    gpu : Gpu
    work : KernelWork
    time_s, power_w : ndarray, shape (n,)
    quality : ndarray of int
        Index into `joulecast.calibration.tables.QUALITIES`.
    fold : ndarray of int
        Hash fold of each shape.
    capped : ndarray of bool
        Rows that were measured at the power limit, at a clock that nobody found out.
    clock_mhz : ndarray
        Core clock of each row: the highest, unless the limit held it lower. [MHz]
    host_bound : bool
        The host started each kernel by itself.
    source : str
    """

    key: str
    gpu: Gpu
    work: KernelWork
    time_s: Floats
    power_w: Floats
    quality: npt.NDArray[np.intp]
    fold: npt.NDArray[np.intp]
    capped: npt.NDArray[np.bool_]
    clock_mhz: Floats
    host_bound: bool
    source: str

    @property
    def at_highest(self) -> npt.NDArray[np.bool_]:
        """Rows that ran at the highest clock: no limit, and so no error of power, is in their time."""
        return ~self.capped & (self.clock_mhz >= self.gpu.clock_max_mhz)

    def take(self, rows: Any) -> Pool:
        """The rows at `rows`."""
        cut = {name: getattr(self, name)[rows] for name in _BY_ROW}
        return replace(self, work=take_work(self.work, rows), **cut)


_BY_ROW = ("time_s", "power_w", "quality", "fold", "capped", "clock_mhz")


def shape_fold(batch: Measured, folds: int = FOLDS) -> npt.NDArray[np.intp]:
    """Hash fold of each row's shape: rows of one shape share it, whatever their format."""
    columns = batch.table.columns
    return hash_fold([column for _, column in sorted(columns.items()) if column.dtype.kind == "f"], folds)


def pools(
    folder: Path, kinds: tuple[str, ...] | None = None, most_rows: int = MOST_ROWS, seed: int = 0
) -> Iterator[Pool]:  # fmt: skip
    """Measured kernels pooled by GPU, family, engine and version, without rows that the audit flags.

    Bursts and rows under load of one version are one pool at two clocks. Rows at the power limit are marked where
    their clock is not known (`joulecast.calibration.settled` finds it out).
    """
    return pools_of(sound(read_kernel_tables(folder, kinds)), most_rows, seed)


def pools_of(
    measured: Iterable[Measured], most_rows: int = MOST_ROWS, seed: int = 0,
    described: Mapping[str, Gpu] | None = None,
) -> Iterator[Pool]:  # fmt: skip
    """The same of batches that were read already; `described` are GPUs by name that the catalogue may lack."""
    batches: dict[tuple[str, str, str, bool], list[Measured]] = defaultdict(list)
    generator = np.random.default_rng(seed)
    for batch in measured:
        few = batch
        if len(batch) > most_rows:
            few = batch.take(np.sort(generator.choice(len(batch), most_rows, replace=False)))
        family = family_of(batch.table.kind).name
        batches[batch.gpu, family, batch.conditions.engine, batch.launch_mode == "eager"].append(few)
    for (gpu_name, family, engine, host_bound), members in batches.items():
        gpu = (described or {}).get(gpu_name) or load_gpu(gpu_name)
        plain = plain_version(members)
        for version in dict.fromkeys(one.version for one in members):
            name = engine if version == plain else with_version(engine, version)
            chosen = [one for one in members if one.version == version]
            yield pooled(gpu, f"{family}/{name}", chosen, host_bound and engine != "nccl")


def plain_version(members: Sequence[Measured]) -> str:
    """The version that an engine is named after: of bursts where there are any, and of those the latest."""
    held = {one.version for one in members if one.timing_mode == "burst"}
    return max(held or {one.version for one in members}, key=order)


def pooled(gpu: Gpu, key: str, members: list[Measured], host_bound: bool) -> Pool:
    """One pool of several batches."""
    works = [family_of(one.table.kind).work(one.table, gpu, one.conditions) for one in members]
    capped = [
        np.isfinite(one.power_w) & (one.quality <= QUALITIES.index("B")) & (one.power_w > 0.9 * one.power_limit_w)
        if one.timing_mode == "sustained" and one.clock_mhz is None
        else np.zeros(len(one), dtype=np.bool_)
        for one in members
    ]
    clocks = [np.full(len(one), gpu.clock_max_mhz) if one.clock_mhz is None else one.clock_mhz for one in members]
    versions = sorted({f"{one.conditions.engine} {one.version} {one.timing_mode}" for one in members})
    pool = Pool(
        key=key,
        gpu=gpu,
        work=joined_work(works),
        time_s=np.concatenate([one.time_s for one in members]),
        power_w=np.concatenate([one.power_w for one in members]),
        quality=np.concatenate([one.quality for one in members]),
        fold=np.concatenate([shape_fold(one) for one in members]),
        capped=np.concatenate(capped),
        clock_mhz=np.concatenate(clocks),
        host_bound=host_bound,
        source=", ".join(versions),
    )
    runs = np.ones(len(pool.time_s), dtype=np.bool_)
    runs[list(pool.work.reasons)] = False
    return pool if runs.all() else pool.take(runs)


def joined_work(works: list[KernelWork]) -> KernelWork:
    """Work of several tables of one family as one, their groups brought together by label."""
    if len(works) == 1:
        return works[0]
    groups = tuple(dict.fromkeys(group for work in works for group in work.groups))
    arrays: dict[str, Any] = {}
    for name, value in works[0].__dict__.items():
        if isinstance(value, np.ndarray) and name not in ("group", "features"):
            arrays[name] = np.concatenate([getattr(work, name) for work in works])
    names = tuple(dict.fromkeys(name for work in works for name in work.feature_names))
    features = [
        np.stack(
            [work.features[:, work.feature_names.index(name)] if name in work.feature_names else np.zeros(len(work))
             for name in names],
            axis=1,
        ) if names else np.zeros((len(work), 0))
        for work in works
    ]  # fmt: skip
    codes = [np.array([groups.index(group) for group in work.groups], dtype=np.intp)[work.group] for work in works]
    reasons: dict[int, str] = {}
    start = 0
    for work in works:
        reasons.update({start + row: reason for row, reason in work.reasons.items()})
        start += len(work)
    return replace(
        works[0],
        groups=groups,
        group=np.concatenate(codes),
        features=np.concatenate(features),
        feature_names=names,
        reasons=reasons,
        **arrays,
    )


def predicted_s(pool: Pool, fitted: dict[str, TimeCoefficients]) -> Floats:
    """What the scaffold says of the rows of `pool` at their clocks; NaN where their group has no fit. [s]"""
    out = np.full(len(pool.time_s), np.nan)
    for code, group in enumerate(pool.work.groups):
        if group not in fitted:
            continue
        rows = np.flatnonzero(pool.work.group == code)
        one = fitted[group]
        parameters = np.array([getattr(one, name) for name in TIME_PARAMETERS])
        times = module_times(take_work(pool.work, rows), pool.gpu, parameters)
        seconds = duration_s(times, pool.gpu, pool.clock_mhz[rows])
        seconds *= message_factor(pool.work, [fitted.get(name, one) for name in pool.work.groups])[rows]
        if pool.host_bound:
            seconds = hosted_s(take_work(pool.work, rows), seconds, one.host_us, one.host_lead_us)
        out[rows] = seconds
    return out


def fit_pool(pool: Pool, seed: int = 0) -> dict[str, TimeCoefficients]:
    """Efficiencies by group, with the error and spread that shapes left out by hash had."""
    free = pool.take(~pool.capped)

    def fit(part: Pool) -> dict[str, TimeCoefficients]:
        return fit_time(
            part.work, part.gpu, part.time_s, part.clock_mhz, source=part.source, host_bound=part.host_bound, seed=seed
        )

    left_out = free.take(free.fold == 0)
    trial = predicted_s(left_out, fit(free.take(free.fold != 0)))
    out = {}
    for group, one in fit(free).items():
        rows = (left_out.work.group == left_out.work.groups.index(group)) & np.isfinite(trial)
        if rows.sum() >= 4:
            ratio = trial[rows] / left_out.time_s[rows]
            one = replace(
                one,
                error=float(np.mean(np.abs(ratio - 1))),
                spread90=conformal_quantile(np.abs(np.log(ratio))),
            )
        out[group] = one
    return out


def fit_kernels(folder: Path, tell: Callable[[str], None] = lambda _: None) -> dict[str, dict[str, TimeCoefficients]]:
    """Efficiencies of all families, by GPU and ``family/engine/group``.

    Parameters
    ----------
    folder : Path
        The data folder.
    tell : callable
        Gets a line for each fit.
    """
    out: dict[str, dict[str, TimeCoefficients]] = defaultdict(dict)
    for pool in pools(folder):
        for group, fitted in fit_pool(pool).items():
            out[pool.gpu.name][f"{pool.key}/{group}"] = fitted
            tell(f"{pool.gpu.name:18s} {pool.key}/{group:28s} {fitted.rows:7d} rows  {fitted.error:6.1%}")
    return dict(out)


def lines(fits: dict[str, dict[str, TimeCoefficients]]) -> Iterable[str]:
    """The fits as lines for a person."""
    for gpu, table in sorted(fits.items()):
        for key, one in sorted(table.items()):
            yield f"{gpu:18s} {key:40s} {one.rows:7d} {one.error:7.1%} ± {one.spread90:.2f}"
