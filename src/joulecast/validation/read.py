"""Reads what there is to score: the data folder, a folder of tables, or one table, and a sample of each batch."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from joulecast.calibration.tables import Measured, measured_frame, read_kernel_tables
from joulecast.errors import InputError, JoulecastError, shortened
from joulecast.workloads.frames import numbers, read_frame
from joulecast.workloads.kinds import kind

#: Folders of the data folder that hold kernels, and whole passes.
KERNEL_SOURCES = ("aiconfigurator", "neusight", "e2e/vidur")
PASS_SOURCE = "energaizer"

#: Columns that every table of kernels has beside those of its op.
REQUIRED = ("gpu", "op", "latency_ms")

#: Columns of readings.
MEASURED = ("latency_ms", "power_w", "power_limit_w")

#: What columns that describe a measurement say where a table lacks them.
ABSENT = {
    "framework": "trtllm",
    "framework_version": "",
    "timing_mode": "sustained",
    "launch_mode": "cuda_graph",
    "operand_init": "random",
    "kernel_source": "",
}


@dataclass(frozen=True)
class Batch:
    """A sample of measured rows taken under like conditions, with where they come from.

    Attributes
    ----------
    rows : Measured
    source : str
        ``aiconfigurator``, ``neusight``, ``vidur`` or ``table``.
    available : int
        Rows that the sample was drawn from.
    """

    rows: Measured
    source: str
    available: int


def read_batches(
    path: Path, *, kinds: tuple[str, ...] | None, gpus: tuple[str, ...] | None, most_rows: int, seed: int
) -> Iterator[Batch]:
    """Measured kernels under `path`.

    Parameters
    ----------
    path : Path
        The data folder (it holds some of `KERNEL_SOURCES`), a folder of tables, or one table (parquet or CSV) in
        the columns of ``aiconfigurator``.
    kinds, gpus : tuple of str, optional
        Only these kinds of operation, and GPUs by their catalogue names.
    most_rows : int
        A random sample of so many rows a batch is kept; the same rows whatever else is asked for.
    seed : int

    Yields
    ------
    Batch

    Raises
    ------
    InputError
        If there is no such path, no table in it, or a table that can't be read.
    """
    for found, source in _measured(path, kinds):
        if not len(found) or (gpus is not None and found.gpu not in gpus):
            continue
        how = found.conditions
        words = (found.gpu, found.table.kind, how.engine, how.residency, how.kernel_source, how.operands,
                 found.version, found.timing_mode, found.launch_mode, found.operand_init)  # fmt: skip
        own_seed = zlib.crc32("/".join(map(str, words)).encode()) ^ seed
        yield Batch(sampled(found, most_rows, own_seed), source, len(found))


def sampled(batch: Measured, most_rows: int, seed: int) -> Measured:
    """At most `most_rows` of the rows of `batch`, drawn without replacement, in their order."""
    if len(batch) <= most_rows:
        return batch
    generator = np.random.default_rng(seed)
    return batch.take(np.sort(generator.choice(len(batch), most_rows, replace=False)))


def holds_passes(path: Path) -> Path | None:
    """The folder of measured whole passes at `path`, if there is one."""
    for folder in (path / PASS_SOURCE, path):
        if (folder / "measurements.csv").is_file() and (folder / "traces").is_dir():
            return folder
    return None


def holds_kernels(path: Path) -> bool:
    """Whether `path` is a table, or a folder that holds tables of kernels."""
    if (path.exists() and not path.is_dir()) or any((path / name).is_dir() for name in KERNEL_SOURCES):
        return True
    return path.is_dir() and holds_passes(path) is None and bool(_tables(path))


def check_path(path: Path) -> None:
    """Raise `InputError` if `path` holds nothing to score."""
    name = shortened(path)
    if not os.path.lexists(path):
        raise InputError(f"no measured tables at {name}: there is no such file or folder")
    if not holds_kernels(path) and holds_passes(path) is None:
        raise InputError(
            f"no measured tables in {name}: it should hold {', '.join(KERNEL_SOURCES)}, {PASS_SOURCE}, "
            "or parquet or CSV tables of kernels"
        )


def _measured(path: Path, kinds: tuple[str, ...] | None) -> Iterator[tuple[Measured, str]]:
    root, only = _data_folder(path)
    if root is not None:
        for batch in read_kernel_tables(root, kinds):
            if only in ("", _source(batch)):
                yield batch, _source(batch)
        return
    for file in _tables(path) if path.is_dir() else [path]:
        if file == path or _is_of_kernels(file):
            for batch in read_table(file, kinds):
                yield batch, "table"


def _data_folder(path: Path) -> tuple[Path | None, str]:
    """The data folder that `path` is, or is one source of, and that source's name; None where it is neither."""
    if any((path / name).is_dir() for name in KERNEL_SOURCES):
        return path, ""
    whole = path.resolve()
    for source in KERNEL_SOURCES:
        parts = Path(source).parts
        if path.is_dir() and whole.parts[-len(parts) :] == parts:
            return whole.parents[len(parts) - 1], parts[-1]
    return None, ""


def _source(batch: Measured) -> str:
    if batch.version == "vidur":
        return "vidur"
    return "neusight" if batch.conditions.engine == "pytorch" else "aiconfigurator"


def _is_of_kernels(path: Path) -> bool:
    """Whether a table has the columns of kernels: other tables may lie beside those."""
    return set(REQUIRED) <= set(read_frame(path).columns)


def _tables(folder: Path) -> list[Path]:
    found = {one for pattern in ("*.parquet", "*/*.parquet", "*.csv") for one in folder.glob(pattern)}
    return sorted(one for one in found if one.is_file())


def read_table(path: Path, kinds: tuple[str, ...] | None = None) -> Iterator[Measured]:
    """Batches of one table of kernels in the columns of ``aiconfigurator``.

    Columns that describe a measurement (`ABSENT`) may lack; the op's own and `REQUIRED` may not.

    Raises
    ------
    InputError
        If it is no table, lacks a column, or holds a time that is not above zero.
    """
    import polars as pl

    name = shortened(path)
    frame = read_frame(path)
    lacking = [column for column in REQUIRED if column not in frame.columns]
    if lacking:
        raise InputError(
            f"{name} lacks {', '.join(lacking)}: a table of kernels has {', '.join(REQUIRED)} and the columns of its op"
        )
    try:
        measured = [numbers(frame, column) for column in MEASURED if column in frame.columns]
        frame = frame.with_columns(*measured, pl.col("gpu", "op").cast(pl.String))
    except pl.exceptions.PolarsError:
        raise InputError(f"{name}: columns gpu and op must hold words") from None
    except InputError as error:
        raise InputError(f"{name}: {error}") from None
    good = frame["latency_ms"].is_finite() & (frame["latency_ms"] > 0)
    if frame.height and not good.fill_null(False).all():
        raise InputError(f"{name}: latency_ms must be above zero in every row")
    frame = frame.with_columns(
        **{
            column: pl.col(column).cast(pl.String).fill_null(word) if column in frame.columns else pl.lit(word)
            for column, word in ABSENT.items()
        }
    )
    for (op,), part in frame.group_by(["op"], maintain_order=True):
        described = kind(str(op))
        if kinds is None or described.name in kinds:
            try:
                yield from measured_frame(part, described.name)
            except JoulecastError as error:
                raise InputError(f"{name}: {error}") from None
