"""Predicts measured kernels under a protocol and puts prediction and measurement side by side."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from typing import TYPE_CHECKING

import numpy as np

from joulecast.calibration.tables import QUALITIES, Measured
from joulecast.coefficients.likeness import GENERATIONS, distance
from joulecast.coefficients.schema import PROVENANCES, PowerCoefficients
from joulecast.coefficients.transfer import SIBLING, measured_on_chip, relatives
from joulecast.gpus import Gpu, load_gpu
from joulecast.kernels.registry import families
from joulecast.physics.price import price
from joulecast.physics.settled import half_widths, under_limit
from joulecast.validation.knowledge import (
    SHIPPED,
    Knowledge,
    chip,
    left_out,
    power_without_shapes,
    without_gpu,
    without_shapes,
)
from joulecast.validation.metrics import size_class
from joulecast.validation.read import Batch, sampled

if TYPE_CHECKING:
    import polars as pl

#: What each protocol lets a prediction know.
PROTOCOLS = {
    "shipped": "as shipped: the coefficients of the package, which saw these rows or rows like them",
    "shapes": "shapes left out: everything fitted again without a fifth of the shapes, and scored on those",
    "gpus": "GPU left out: nothing that was measured on any board with the scored GPU's chip",
    "older": "older only: a GPU newer than Ampere, from what was measured on Ampere and before",
}

#: Rows of one pool that a correction is trained on again; how many times fewer for a GPU that is left out, and how many
#: times more where it was measured itself or one like it was: what two generations share takes few rows to learn, what
#: its own or a sibling's kernels do takes nearly all that the package learns from.
TRAIN_ROWS = 8000
TRANSFER_SHARE = 4
SIBLING_TIMES = SHAPES_TIMES = 3

#: The last architecture that the protocol ``older`` knows, and how far newer ones may be from it (other makers' lie
#: further).
NEWEST_OF_OLDER = "ampere"
FURTHEST_NEWER = 5.0


def scored(batch: Batch, protocol: str, knowledge: Knowledge = SHIPPED) -> pl.DataFrame:
    """One row for each measured row of `batch` that runs on its GPU.

    Parameters
    ----------
    batch : Batch
    protocol : str
        One of `PROTOCOLS`, written beside each row.
    knowledge : Knowledge
        What the prediction may use.

    Returns
    -------
    polars.DataFrame
        ``measured_s``, ``predicted_s``, ``half_s`` (half width of the 90 % interval, natural logarithms), the same
        for watts, ``quality`` of the power reading, ``capped``, ``provenance``, ``size`` (a class), ``group`` (formats,
        mostly), ``elsewhere`` and ``on_sibling`` (whether the same kernels were measured on a GPU that the prediction
        may know of, and on one of the same chip), and what describes the batch.
    """
    import polars as pl

    rows = batch.rows
    gpu = load_gpu(rows.gpu)
    priced = price(
        rows.table, gpu, rows.conditions, time=knowledge.time.get(gpu.name), power=knowledge.power.get(gpu.name),
        exclude=knowledge.exclude, corrections=knowledge.corrections, power_corrections=knowledge.power_corrections,
    )  # fmt: skip
    limit_w = rows.power_limit_w if np.isfinite(rows.power_limit_w) else gpu.power_limit_default_w
    held = rows.timing_mode == "burst"
    settled = under_limit(priced, gpu.clock_max_mhz, np.inf if held else limit_w, hosted=rows.host_bound)
    half_s, half_w, _ = half_widths(priced, settled)
    start = f"{priced.work.family}/{rows.conditions.engine}"
    elsewhere = np.array([measured_elsewhere(gpu, f"{start}/{one}", knowledge.exclude) for one in priced.work.groups])
    of_chip = measured_on_chip(gpu, exclude=knowledge.exclude)
    on_sibling = np.array([f"{start}/{one}" in of_chip for one in priced.work.groups])
    frame = pl.DataFrame(
        {
            "measured_s": rows.time_s,
            "predicted_s": settled.time_s,
            "half_s": half_s,
            "measured_w": rows.power_w,
            "predicted_w": settled.power_w,
            "half_w": half_w,
            "quality": np.array(QUALITIES)[rows.quality],
            "capped": settled.throttled,
            "provenance": np.array(PROVENANCES)[priced.provenance],
            "group": np.array(priced.work.groups)[priced.work.group],
            "elsewhere": elsewhere[priced.work.group],
            "on_sibling": on_sibling[priced.work.group],
            "size": size_class(rows.time_s).astype(np.int8),
        }
    ).with_columns(
        protocol=pl.lit(protocol),
        source=pl.lit(batch.source),
        gpu=pl.lit(rows.gpu),
        kind=pl.lit(rows.table.kind),
        engine=pl.lit(rows.conditions.engine),
        version=pl.lit(rows.version),
        timing=pl.lit(rows.timing_mode),
        launch=pl.lit("eager" if rows.host_bound else "graph"),
        operands=pl.lit(rows.operand_init),
    )
    if not priced.work.reasons:
        return frame
    runs = np.ones(frame.height, dtype=np.bool_)
    runs[list(priced.work.reasons)] = False
    return frame.filter(runs)


def measured_elsewhere(gpu: Gpu, key: str, exclude: tuple[str, ...]) -> bool:
    """Whether kernels of `key` (``family/engine/group``) were measured on some GPU that is not excluded.

    Where not, other kernels stand in for them, and nothing tells how much faster or slower those are.
    """
    return any(key in coefficients.time for _, _, coefficients in relatives(gpu, exclude))


def score_kernels(
    batches: Sequence[Batch],
    protocols: Iterable[str],
    *,
    sample: int,
    kinds: Sequence[str] | None = None,
    gpus: Sequence[str] | None = None,
    train_rows: int = TRAIN_ROWS,
    seed: int = 0,
    jobs: int = 1,
    tell: Callable[[str, float], None] = lambda *_: None,
) -> pl.DataFrame:
    """Batches under each of `protocols`, as one table (see `scored`).

    Parameters
    ----------
    batches : sequence of Batch
        All that fits may learn from.
    protocols : iterable of str
        Some of `PROTOCOLS`.
    sample : int
        Rows of each batch that are scored at most.
    kinds, gpus : sequence of str, optional
        Only these are scored.
    train_rows : int
        Rows of one pool at most that a correction is trained on again.
    seed : int
    jobs : int
        Processes that work side by side.
    tell : callable
        Gets what is being done, and the share of all of it that is done.
    """
    import polars as pl

    asked = [name for name in PROTOCOLS if name in set(protocols)]
    known = [batch for batch in batches if batch.rows.table.kind in families()]
    chosen = [
        batch
        for batch in known
        if (kinds is None or batch.rows.table.kind in kinds) and (gpus is None or batch.rows.gpu in gpus)
    ]
    by_family: dict[str, list[Batch]] = defaultdict(list)
    for batch in chosen:
        by_family[families()[batch.rows.table.kind].name].append(batch)
    power: dict[str, PowerCoefficients] = {}
    if "shapes" in asked:
        for name in dict.fromkeys(batch.rows.gpu for batch in chosen if np.isfinite(batch.rows.power_w).any()):
            tell(f"{name} energies", 0.0)
            fitted = power_without_shapes([batch.rows for batch in known], load_gpu(name))
            if fitted is not None:
                power[name] = fitted
    tasks = [
        _Task(
            family=family,
            members=members,
            everything=[one.rows for one in known if families()[one.rows.table.kind].name == family],
            power=power,
            protocols=tuple(asked),
            sample=sample,
            train_rows=train_rows,
            seed=seed,
        )
        for family, members in by_family.items()
    ]
    tasks.sort(key=lambda task: -sum(map(len, task.everything)))
    run = _in_turn if jobs == 1 or len(tasks) < 2 else partial(_side_by_side, jobs=jobs)
    parts = [frame for frames in run(tasks, tell) for frame in frames]
    return pl.concat(parts) if parts else pl.DataFrame()


@dataclass(frozen=True)
class _Task:
    """One family to score: what is scored, and what fits may learn from."""

    family: str
    members: Sequence[Batch]
    everything: Sequence[Measured]
    power: Mapping[str, PowerCoefficients]
    protocols: tuple[str, ...]
    sample: int
    train_rows: int
    seed: int

    def run(self, tell: Callable[[str, float], None] = lambda *_: None) -> list[pl.DataFrame]:
        """Score the family under each protocol."""
        parts = []
        for step, protocol in enumerate(self.protocols):
            say = partial(_tell, tell, step / len(self.protocols), f"{self.family}, {protocol}: ")
            say("")
            for batches, knowledge in _told(protocol, self, say):
                for batch in batches:
                    rows = left_out(batch.rows) if protocol == "shapes" else batch.rows
                    if len(rows):
                        few = Batch(sampled(rows, self.sample, self.seed), batch.source, batch.available)
                        parts.append(scored(few, protocol, knowledge))
        return parts


def _in_turn(tasks: Sequence[_Task], tell: Callable[[str, float], None]) -> list[list[pl.DataFrame]]:
    found = []
    weights = np.array([sum(map(len, task.everything)) for task in tasks], dtype=np.float64)
    ends = np.cumsum(weights) / weights.sum()
    for task, end, weight in zip(tasks, ends, weights / weights.sum(), strict=True):
        found.append(task.run(partial(_within, tell, float(end - weight), float(weight))))
    return found


def _within(tell: Callable[[str, float], None], start: float, length: float, what: str, share: float) -> None:
    tell(what, start + share * length)


def _side_by_side(tasks: Sequence[_Task], tell: Callable[[str, float], None], jobs: int) -> list[list[pl.DataFrame]]:
    """The tasks in processes of their own, each with one thread; results in the order of the tasks."""
    threads = {name: os.environ.get(name) for name in _THREADS}
    os.environ.update(dict.fromkeys(_THREADS, "1"))
    try:
        with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
            waiting = [pool.submit(_Task.run, task) for task in tasks]
            total = sum(sum(map(len, task.everything)) for task in tasks)
            done = 0
            for one in as_completed(waiting):
                task = tasks[waiting.index(one)]
                done += sum(map(len, task.everything))
                tell(task.family, done / total)
            return [one.result() for one in waiting]
    finally:
        for name, value in threads.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


#: What tells numerical libraries how many threads to use: read when a process starts.
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "POLARS_MAX_THREADS")


def _tell(tell: Callable[[str, float], None], share: float, start: str, what: str) -> None:
    tell(start + what, share)


def _told(protocol: str, task: _Task, say: Callable[[str], None]) -> Iterator[tuple[Sequence[Batch], Knowledge]]:
    """What the predictions of a family may know under a protocol, with the batches that it is for."""
    family, everything = task.family, task.everything
    if protocol == "shipped":
        yield task.members, SHIPPED
        return
    names = list(dict.fromkeys(batch.rows.gpu for batch in task.members))
    if protocol == "shapes":
        rows = SHAPES_TIMES * task.train_rows
        yield task.members, without_shapes(family, everything, task.power, train_rows=rows, gpus=names, tell=say)
        return
    newest = NEWEST_OF_OLDER if protocol == "older" else ""
    by_chip: dict[str, list[Batch]] = defaultdict(list)
    for batch in task.members:
        architecture = load_gpu(batch.rows.gpu).architecture
        if not newest or 0 < GENERATIONS.get(architecture, 0.0) - GENERATIONS[newest] < FURTHEST_NEWER:
            by_chip[chip(batch.rows.gpu)].append(batch)
    for name, of_chip in by_chip.items():
        say(name)
        gpu = load_gpu(of_chip[0].rows.gpu)
        rest = [load_gpu(one) for one in {batch.gpu for batch in everything} if chip(one) != name]
        sibling = not newest and any(distance(gpu, one) < SIBLING for one in rest)
        rows = SIBLING_TIMES * task.train_rows if sibling else max(task.train_rows // TRANSFER_SHARE, 1000)
        yield of_chip, without_gpu(family, gpu, everything, newest=newest, train_rows=rows)
