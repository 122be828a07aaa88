"""Scores how much the power limit slows kernels down: rows under load against bursts of the same shapes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from joulecast.calibration.power_fit import CAPPED
from joulecast.calibration.tables import QUALITIES, Measured
from joulecast.gpus import load_gpu
from joulecast.physics.price import price
from joulecast.physics.settled import at_clock, under_limit, with_host
from joulecast.validation.summary import TITLES

Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

#: Readings and predictions of free rows are below these shares of the limit: readings hold what ran before.
_FREE_READING, _FREE_PREDICTION = 0.85, 0.75

#: Rows of either kind that are needed, and those that are predicted at most.
LEAST_ROWS = 20
MOST_ROWS = 12_000

#: Free rows that take less than this share of what most capped ones take are left out: launches weigh on them.
_LONG_ENOUGH = 0.3

#: Kernels are taken to be the same ones where the middle half of free rows agrees on the offset within this.
SAME_KERNELS = 0.10


@dataclass(frozen=True)
class Paired:
    """Rows under load of one batch with a burst of the same operation.

    Attributes
    ----------
    rows : Measured
    burst_s : ndarray, shape (n,)
        Time of the burst. [s]
    against : str
        Engine and version of the bursts.
    """

    rows: Measured
    burst_s: Floats
    against: str


def paired(batches: Iterable[Measured], seed: int = 0) -> list[Paired]:
    """Rows under load beside bursts of their shapes: of the same engine where that GPU has any, else of another."""
    held: dict[tuple[str, str], list[Measured]] = defaultdict(list)
    loaded = []
    for batch in batches:
        if batch.timing_mode == "burst":
            held[batch.gpu, batch.table.kind].append(batch)
        elif np.isfinite(batch.power_limit_w) and not batch.host_bound:
            loaded.append(batch)
    generator = np.random.default_rng(seed)
    out = []
    for batch in loaded:
        bursts = held[batch.gpu, batch.table.kind]
        own = [one for one in bursts if one.conditions.engine == batch.conditions.engine] or bursts
        times: dict[tuple[float, ...], float] = {}
        for one in own:
            times.update(zip(_shapes(one), one.time_s.tolist(), strict=True))
        burst_s = np.array([times.get(shape, np.nan) for shape in _shapes(batch)])
        rows = np.flatnonzero(np.isfinite(burst_s))
        if rows.size > MOST_ROWS:
            rows = np.sort(generator.choice(rows, MOST_ROWS, replace=False))
        if rows.size:
            names = sorted({f"{one.conditions.engine} {one.version}" for one in own})
            out.append(Paired(batch.take(rows), burst_s[rows], ", ".join(names)))
    return out


def slowdowns(pairs: Sequence[Paired]) -> list[dict[str, Any]]:
    """Measured and predicted slowdown of rows at the power limit, by GPU, kind, engine and group.

    The measured one is the time under load over that of the burst, over the offset between the two versions: the
    median of that ratio among rows that no limit slows down. The predicted one is the time at the clock that the limit
    allows over that at the highest clock.

    Returns
    -------
    list of dict
        ``rows`` at the limit and ``free`` ones, ``offset``, means of ``measured`` and ``predicted``, mean ``error``
        and ``bias`` of the slowdown (0.05: five points), and whether offsets agree so well that both are the ``same``
        kernels: where they are not, the slowdown is not told apart from the difference of kernels.
    """
    out = []
    for pair in pairs:
        rows, gpu = pair.rows, load_gpu(pair.rows.gpu)
        priced = price(rows.table, gpu, rows.conditions)
        free_s, free_w = (with_host if rows.host_bound else at_clock)(priced, gpu.clock_max_mhz)
        settled = under_limit(priced, gpu.clock_max_mhz, rows.power_limit_w, hosted=rows.host_bound)
        capped, free = _capped(rows), _free(rows, free_w)
        ratio, predicted = rows.time_s / pair.burst_s, settled.time_s / free_s
        for code, group in enumerate(priced.work.groups):
            members = priced.work.group == code
            at_limit = capped & members
            if at_limit.sum() < LEAST_ROWS:
                continue
            long = rows.time_s > _LONG_ENOUGH * np.quantile(rows.time_s[at_limit], 0.25)
            unlimited = free & members & long
            if unlimited.sum() < LEAST_ROWS:
                continue
            low, offset, high = np.quantile(ratio[unlimited], (0.25, 0.5, 0.75))
            slowdown = ratio[at_limit] / offset
            miss = predicted[at_limit] - slowdown
            out.append(
                {
                    "gpu": gpu.name, "kind": rows.table.kind, "title": TITLES.get(rows.table.kind, rows.table.kind),
                    "engine": f"{rows.conditions.engine} {rows.version}", "against": pair.against, "group": group,
                    "rows": int(at_limit.sum()), "free": int(unlimited.sum()), "offset": float(offset),
                    "same": bool((high - low) / offset <= SAME_KERNELS),
                    "measured": float(slowdown.mean() - 1), "predicted": float(predicted[at_limit].mean() - 1),
                    "error": float(np.abs(miss).mean()), "bias": float(miss.mean()),
                }
            )  # fmt: skip
    return sorted(out, key=lambda row: [row[name] for name in ("gpu", "engine", "title", "group")])


def totals(found: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The same by GPU and engine, of kernels that are the same ones under load and in bursts; rows count alike."""
    out = []
    for gpu, engine in dict.fromkeys((row["gpu"], row["engine"]) for row in found if row["same"]):
        rows = [row for row in found if row["same"] and (row["gpu"], row["engine"]) == (gpu, engine)]
        weights = [row["rows"] for row in rows]
        figures = {name: float(np.average([row[name] for row in rows], weights=weights))
                   for name in ("measured", "predicted", "error", "bias")}  # fmt: skip
        out.append({"gpu": gpu, "engine": engine, "groups": len(rows), "rows": sum(weights), **figures})
    return out


def _capped(rows: Measured) -> Mask:
    trusted = np.isin(rows.quality, [QUALITIES.index("A"), QUALITIES.index("B")])
    return np.asarray(trusted & np.isfinite(rows.power_w) & (rows.power_w > CAPPED * rows.power_limit_w))


def _free(rows: Measured, free_w: Floats) -> Mask:
    read = ~(rows.power_w > _FREE_READING * rows.power_limit_w)
    return np.asarray(read & (free_w < _FREE_PREDICTION * rows.power_limit_w))


def _shapes(batch: Measured) -> list[tuple[float, ...]]:
    columns = [column for _, column in sorted(batch.table.columns.items())]
    return list(zip(*(column.tolist() for column in columns), strict=True))
