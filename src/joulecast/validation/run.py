"""`validate`: everything there is to score at a path, as one document."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulecast.errors import InputError, MissingExtraError, shortened
from joulecast.validation.kernels import TRAIN_ROWS, score_kernels
from joulecast.validation.noise import carriers, floors, repeats
from joulecast.validation.passes import ScoredPass, score_passes
from joulecast.validation.read import check_path, holds_kernels, holds_passes, read_batches
from joulecast.validation.slowdown import paired, slowdowns, totals
from joulecast.validation.summary import SCHEMA, kernel_tables, pass_tables, plot_tables
from joulecast.validation.whole import RUNS, ablation, score_runs

if TYPE_CHECKING:
    import polars as pl

#: What may be scored alone.
PARTS = ("kernels", "passes", *RUNS, "slowdown")

#: Rows of each batch that are scored unless asked otherwise.
SAMPLE = 4000

#: Rows of each batch that are read, to fit on.
ROWS_TO_FIT = 24_000


@dataclass(frozen=True)
class Validation:
    """Scores at a path.

    Attributes
    ----------
    document : dict
        Plain tables: ``settings``, ``gpus``, ``headline``, ``by_clock``, ``products``, ``by_gpu``,
        ``by_engine``, ``by_size``, ``detail``, ``repeats``, ``floors``, ``carriers``, ``slowdown``, ``passes``,
        ``runs``, ``ablation``.
    plots : dict
        Binned statistics to draw (`joulecast.validation.summary.plot_tables`).
    """

    document: dict[str, Any]
    plots: dict[str, Any]


def validate(
    path: Path,
    *,
    protocols: Sequence[str] = ("shapes", "gpus", "older", "shipped"),
    only: str | None = None,
    kinds: Sequence[str] | None = None,
    gpus: Sequence[str] | None = None,
    sample: int = SAMPLE,
    train_rows: int = TRAIN_ROWS,
    seed: int = 0,
    jobs: int = 1,
    ablate: bool = False,
    tell: Callable[[str, float], None] = lambda *_: None,
) -> Validation:
    """Score predictions against the measurements at `path`.

    Parameters
    ----------
    path : Path
        The data folder, a folder of tables, a table of kernels, or a folder of whole passes or runs.
    protocols : sequence of str
        Some of `joulecast.validation.kernels.PROTOCOLS`.
    only : str, optional
        One of `PARTS`.
    kinds, gpus : sequence of str, optional
        Only these kinds of operation and GPUs (catalogue names).
    sample : int
        Rows of each batch that are scored at most.
    train_rows : int
        Rows of one GPU and engine at most that a correction is trained on again.
    seed : int
    jobs : int
        Processes that work side by side.
    ablate : bool
        Whether whole passes are scored again without each of their mechanisms.
    tell : callable
        Gets what is being done, and the share of all of it that is done.

    Returns
    -------
    Validation

    Raises
    ------
    InputError
        If there is nothing to score at `path`, or nothing of what was asked for.
    """
    check_path(path)
    with _one_thread():
        return _validated(path, protocols, only, kinds, gpus, sample, train_rows, seed, jobs, ablate, tell)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Keep linear algebra to one thread: its matrices are small, and threads that wait for each other cost more."""
    try:
        limits = import_module("threadpoolctl").threadpool_limits
        import_module("scipy")
    except ImportError:
        raise MissingExtraError("validating", "calibrate") from None
    with limits(limits=1):
        yield


def _validated(
    path: Path,
    protocols: Sequence[str],
    only: str | None,
    kinds: Sequence[str] | None,
    gpus: Sequence[str] | None,
    sample: int,
    train_rows: int,
    seed: int,
    jobs: int,
    ablate: bool,
    tell: Callable[[str, float], None],
) -> Validation:
    from importlib.metadata import version

    with_kernels = only in (None, "kernels") and holds_kernels(path)
    with_slowdown = only in (None, "slowdown") and holds_kernels(path)
    wanted = () if kinds is not None else (*PARTS[1:],) if only is None else (only,)
    folder = holds_passes(path) if "passes" in wanted else None
    those = tuple(gpus) if gpus is not None else None
    rows: pl.DataFrame | None = None
    repeated: list[dict[str, Any]] = []
    if with_kernels:
        tell("reading tables", 0.0)
        most = max(ROWS_TO_FIT, sample, train_rows)
        batches = list(read_batches(path, kinds=None, gpus=None, most_rows=most, seed=seed))
        end = 0.9 if wanted else 1.0

        def part(what: str, share: float) -> None:
            tell(what, share * end)

        rows = score_kernels(
            batches,
            protocols,
            sample=sample,
            kinds=kinds,
            gpus=gpus,
            train_rows=train_rows,
            seed=seed,
            jobs=jobs,
            tell=part,
        )
        repeated = repeats(
            [
                one
                for one in batches
                if (kinds is None or one.rows.table.kind in kinds) and (gpus is None or one.rows.gpu in gpus)
            ]
        )
    passes: list[ScoredPass] = []
    if folder is not None:
        passes = score_passes(folder, those, _span(tell, 0.9 if with_kernels else 0.0, 0.93 if with_kernels else 0.3))
    runs = score_runs(path, [name for name in RUNS if name in wanted], those, _span(tell, 0.93, 0.98))
    limited = _limited(path, kinds, those) if with_slowdown else []
    if (rows is None or not rows.height) and not passes and not runs and not limited:
        raise InputError(f"nothing to score in {shortened(path)}: it has none of what was asked for")
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "settings": {"version": version("joulecast"), "sample": sample, "train_rows": train_rows, "seed": seed},
        **(kernel_tables(rows) if rows is not None else {}),
        "repeats": repeated,
        "floors": floors(repeated),
        "carriers": carriers(rows) if rows is not None else [],
    }
    if limited:
        document["slowdown"] = {"groups": limited, "total": totals(limited)}
    if passes:
        document["passes"] = pass_tables(passes)
    if runs:
        document["runs"] = runs
    if ablate and folder is not None:
        document["ablation"] = ablation(folder, those, _span(tell, 0.98, 1.0))
    drawn = plot_tables(rows) if rows is not None else {}
    tell("done", 1.0)
    return Validation(document, drawn)


def _limited(path: Path, kinds: Sequence[str] | None, gpus: tuple[str, ...] | None) -> list[dict[str, Any]]:
    """How much the power limit slows kernels down, with the coefficients that are in use."""
    named = None if kinds is None else tuple(kinds)
    batches = read_batches(path, kinds=named, gpus=gpus, most_rows=sys.maxsize, seed=0)
    return slowdowns(paired([one.rows for one in batches]))


def _span(tell: Callable[[str, float], None], start: float, end: float) -> Callable[[str, float], None]:
    """Tells a part's share as that of the whole, of which the part is from `start` to `end`."""
    return lambda what, share: tell(what, start + (end - start) * share)
