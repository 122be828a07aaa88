"""Reads a user's measured tables for a calibration: audited, with what no fit should see set aside."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from joulecast.calibration.audit import audit_batch
from joulecast.calibration.audit_files import kernel_frame, kernel_parts
from joulecast.calibration.tables import QUALITIES, Measured, measured_frame, neusight_frame
from joulecast.errors import InputError, UnknownNameError, shortened
from joulecast.gpus import Gpu, load_gpu
from joulecast.kernels.work import ENGINES
from joulecast.scenarios.kernels import DEFAULT_ENGINE
from joulecast.workloads.files import named
from joulecast.workloads.frames import read_frame

if TYPE_CHECKING:
    import polars as pl

#: Reasons of rows set aside that are kept of one table.
_MOST_REASONS = 20

#: Columns that every table of NeuSight's operators has.
_NEUSIGHT = {"op", "gpu", "latency_ms", "b"}


@dataclass(frozen=True)
class OwnTable:
    """One file, audited.

    Attributes
    ----------
    name : str
    batches : tuple of Measured
        Rows to fit on.
    rows : int
        Rows of kernels that were read.
    set_aside : int
        Of them, rows that the audit flagged.
    reasons : tuple of (str, str)
        Check and reason of the first of these.
    checks : mapping of str to int
        Rows by check.
    """

    name: str
    batches: tuple[Measured, ...]
    rows: int
    set_aside: int
    reasons: tuple[tuple[str, str], ...]
    checks: Mapping[str, int]


def read_own(
    path: Path, files: list[Path], gpu: Gpu | None, done: Callable[[int], None] = lambda _: None
) -> tuple[list[OwnTable], list[InputError]]:
    """Tables of kernels at `path`, audited, and why others were not read.

    Parameters
    ----------
    path : Path
        A file or a folder.
    files : list of Path
        From `joulecast.calibration.audit_files.table_files`.
    gpu : Gpu, optional
        The GPU of tables that do not tell it; of those that do, only its rows are taken.
    done : callable
        Gets the number of files read.

    Raises
    ------
    InputError
        If none of the files can be used.
    """
    tables: list[OwnTable] = []
    refused: list[InputError] = []
    for place, file in enumerate(files):
        name = named(file.relative_to(path)) if file != path else named(file)
        try:
            tables.append(_table(file, name, gpu))
        except InputError as error:
            refused.append(error)
        done(place + 1)
    if not tables:
        raise refused[0]
    return tables, refused


def _table(file: Path, name: str, gpu: Gpu | None) -> OwnTable:
    import polars as pl

    frame = read_frame(file)
    try:
        found = _batches(frame, gpu)
    except InputError as error:
        raise InputError(f"{name}: {error}") from None
    except (pl.exceptions.PolarsError, ValueError, TypeError) as error:
        why = shortened(error, 100)
        raise InputError(f"{name}: its columns are not what a table of kernels has: {why}") from None
    kept, reasons, checks, aside = [], [], Counter[str](), 0
    for batch in found:
        audit = audit_batch(batch, gpu if gpu is not None and batch.gpu == gpu.name else None)
        flagged = audit.flagged
        aside += int(flagged.sum())
        for one in audit.findings:
            if not one.doubtful:
                checks[one.check] += len(one.rows)
                reasons += [(one.check, reason) for reason in one.reasons[:_MOST_REASONS]]
        if not flagged.all():
            kept.append(batch.take(np.flatnonzero(~flagged)) if flagged.any() else batch)
    rows = sum(map(len, found))
    return OwnTable(name, tuple(kept), rows, aside, tuple(reasons[:_MOST_REASONS]), dict(checks))


def _batches(frame: pl.DataFrame, gpu: Gpu | None) -> list[Measured]:
    import polars as pl

    if not frame.height:
        raise InputError("it has no rows")
    if "op" not in frame.columns:
        raise InputError("it has no column op, which names the operation of each row, such as gemm")
    if frame["op"].null_count() == frame.height:
        raise InputError("its column op is empty")
    if "gpu" in frame.columns and frame["gpu"].null_count():
        raise InputError("its column gpu is empty in some rows: each must name its GPU, or none (then --gpu does)")
    own = {} if gpu is None else {gpu.name: gpu.name}
    graded = "power_quality" in frame.columns
    found: list[Measured] = []
    tidy = kernel_frame(frame, None if gpu is None else gpu.name)
    for kind_name, part in kernel_parts(tidy):
        found += measured_frame(part.filter(pl.col("latency_ms").is_not_null()), kind_name, own)
    if not found and set(frame.columns) >= _NEUSIGHT:
        for _, part in frame.group_by(["gpu", "op"], maintain_order=True):
            found += neusight_frame(part)
    found = [_with_conditions(one) for one in found]
    if not graded:  # a user's own reading counts as one that nearly settled
        found = [_with_quality(one) for one in found]
    if gpu is not None:
        found = [one for one in found if one.gpu == gpu.name]
    if not found:
        ops = ", ".join(sorted(set(frame["op"].cast(pl.String).drop_nulls().unique().to_list()))[:3])
        whose = "" if gpu is None else f" of {gpu.name}"
        raise InputError(f"it has no kernels{whose} to fit on: its operations are {shortened(ops, 60)}")
    for one in found:
        if gpu is None:
            load_gpu(one.gpu)
    return found


def _with_conditions(batch: Measured) -> Measured:
    """What the table leaves open, as predictions take it: the engine of the operation, and a clock under the limit."""
    kind = batch.table.kind
    engine = batch.conditions.engine or DEFAULT_ENGINE.get(kind, "trtllm")
    if engine not in ENGINES:
        raise UnknownNameError("framework", engine, ENGINES)
    return replace(
        batch,
        conditions=replace(batch.conditions, engine=engine),
        timing_mode=batch.timing_mode or "sustained",
        launch_mode=batch.launch_mode or "cuda_graph",
        operand_init=batch.operand_init or "random",
    )


def _with_quality(batch: Measured) -> Measured:
    quality = np.where(np.isfinite(batch.power_w), QUALITIES.index("B"), len(QUALITIES) - 1)
    return replace(batch, quality=quality.astype(np.intp))
