"""Builds coefficients of a forecast: from a data folder in which newer GPUs were never measured."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from joulecast.coefficients import transfer
from joulecast.coefficients.forecasts import FORECASTS
from joulecast.coefficients.roots import ROOT_ENVIRONMENT, rooted
from joulecast.errors import UnknownNameError
from joulecast.gpus import load_gpu

if TYPE_CHECKING:
    import polars as pl


def build_forecasts(
    folder: Path,
    out: Path,
    build: Callable[[Path, Path, Callable[[str], None]], None],
    tell: Callable[[str], None] = lambda _: None,
) -> None:
    """Fit each forecast's coefficients anew into ``out/forecast/NAME``.

    The fits see a copy of the data folder without a row of any newer GPU, and no coefficients but their own: what a
    forecast knows can't come from what it forecasts.

    Parameters
    ----------
    folder : Path
        The data folder.
    out : Path
        Where coefficient files are.
    build : callable
        Fits everything from a data folder into a folder of coefficient files.
    tell : callable
        Gets a line for each fit.
    """
    for name, architectures in FORECASTS.items():
        into = out / "forecast" / name
        into.mkdir(parents=True, exist_ok=True)
        for old in (*into.glob("*.toml"), *into.glob("*.npz")):
            old.unlink()
        with tempfile.TemporaryDirectory() as temporary:
            older = Path(temporary)
            tell(f"{name}: {copy_of_older(folder, older, architectures)} tables")
            before = os.environ.get(ROOT_ENVIRONMENT)
            os.environ[ROOT_ENVIRONMENT] = str(into)
            try:
                with rooted(into):
                    transfer.forget()
                    build(older, into, tell)
            finally:
                if before is None:
                    del os.environ[ROOT_ENVIRONMENT]
                else:
                    os.environ[ROOT_ENVIRONMENT] = before
                transfer.forget()


def copy_of_older(folder: Path, into: Path, architectures: tuple[str, ...]) -> int:
    """Copy the tables of `folder` that name the GPU of each row, without those of other architectures.

    Traces (descriptions of work, no measurements) are copied whole; tables with no such column are left out.

    Returns
    -------
    int
        Tables that have rows left.
    """
    import polars as pl

    tables = 0
    for path in sorted(folder.rglob("*")):
        target = into / path.relative_to(folder)
        if path.suffix == ".json" and path.parent.name == "traces":
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
        elif path.suffix in (".csv", ".parquet"):
            read = pl.read_csv(path, infer_schema_length=None) if path.suffix == ".csv" else pl.read_parquet(path)
            rows = _older(read, architectures)
            if rows is None:
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            if path.suffix == ".csv":
                rows.write_csv(target)
            else:
                rows.write_parquet(target)
            tables += 1
    return tables


def _older(table: pl.DataFrame, architectures: tuple[str, ...]) -> pl.DataFrame | None:
    """Rows of GPUs of `architectures`; None where there are none, or a row's GPU is not told."""
    import polars as pl

    if "gpu" not in table.columns:
        return None
    names = table["gpu"].cast(pl.String)
    old = [name for name in names.drop_nulls().unique().to_list() if _architecture(name) in architectures]
    rows = table.filter(names.is_in(old))
    return rows if rows.height else None


def _architecture(name: str) -> str:
    """Architecture of a GPU; empty where it is not known, and so can't be taken for an older one."""
    try:
        return load_gpu(name).architecture
    except UnknownNameError:
        return ""
