"""What no prediction can do anything about: how far like measurements differ, and which rows carry an error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from joulecast.calibration.tables import QUALITIES
from joulecast.kernels.mla import WIDTHS
from joulecast.kernels.routing import EXPONENTS
from joulecast.validation.metrics import repeat_floor
from joulecast.validation.read import Batch
from joulecast.validation.summary import TITLES, titled
from joulecast.workloads.table import OpTable

if TYPE_CHECKING:
    import polars as pl

#: Repeated rows that a noise floor needs.
LEAST_REPEATS = 50

#: Share of the rows that is looked at for what carries an error.
WORST_SHARE = 0.01

#: Rows of a title that tell what carries its error.
LEAST_ROWS = 200


def repeats(batches: Sequence[Batch]) -> list[dict[str, Any]]:
    """How far like measurements differ, by kind and GPU: the error that no prediction could go below.

    Only of rows of one engine, version and way of timing. Models whose layers have the same widths are alike; so are
    messages of as many bytes whatever their format, and experts under the two power laws: each of these rows is the
    mean of five random routings, and the laws themselves differ by 2 %.
    """
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for batch in batches:
        if batch.source not in ("aiconfigurator", "table"):
            continue
        same, members = _same_operation(batch.rows.table)
        floor, rows = repeat_floor(same, np.where(members, batch.rows.time_s, np.nan))
        if rows < LEAST_REPEATS:
            continue
        trusted = np.isin(batch.rows.quality, [QUALITIES.index("A"), QUALITIES.index("B")])
        power_floor, power_rows = repeat_floor(same, np.where(trusted, batch.rows.power_w, np.nan))
        found.setdefault((batch.rows.table.kind, batch.rows.gpu), []).append(
            {"rows": rows, "time": floor, "power_rows": power_rows, "power": power_floor}
        )
    return [
        {
            "kind": kind,
            "title": TITLES.get(kind, kind),
            "gpu": gpu,
            "rows": sum(one["rows"] for one in ones),
            "time": _weighted(ones, "time", "rows"),
            "power_rows": sum(one["power_rows"] for one in ones),
            "power": _weighted([one for one in ones if one["power_rows"] >= LEAST_REPEATS], "power", "power_rows"),
        }
        for (kind, gpu), ones in sorted(found.items())
    ]


def floors(found: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Noise floor of the time by title: the mean over kinds and GPUs of what `repeats` found."""
    titles = dict.fromkeys(row["title"] for row in found)
    return {title: float(np.mean([row["time"] for row in found if row["title"] == title])) for title in titles}


def carriers(rows: pl.DataFrame) -> list[dict[str, Any]]:
    """Which rows carry the error of the time of each title, of shapes left out.

    Returns
    -------
    list of dict
        ``title``; ``mean`` error; ``share`` of all error that the worst hundredth of the rows has, and the mean
        ``without`` them; ``what`` most of it is of (GPU, engine, group, way of timing), with its own ``what_share``.
    """
    import polars as pl

    if not rows.height:
        return []
    size = (pl.col("predicted_s") / pl.col("measured_s") - 1).abs()
    chosen = titled(rows.filter(pl.col("protocol") == "shapes")).with_columns(miss=size).filter(size.is_finite())
    out = []
    for (title,), part in chosen.group_by(["title"], maintain_order=True):
        if part.height < LEAST_ROWS:
            continue
        ordered = part.sort("miss", descending=True)
        few = ordered.head(max(1, round(WORST_SHARE * part.height)))
        total, carried = float(part["miss"].sum()), float(few["miss"].sum())
        by = ["gpu", "engine", "group", "timing"]
        most = few.group_by(by).agg(pl.col("miss").sum()).sort("miss", *by, descending=[True, *[False] * 4]).row(0)
        out.append(
            {
                "title": title,
                "mean": total / part.height,
                "share": carried / total if total else 0.0,
                "without": (total - carried) / max(part.height - few.height, 1),
                "what": list(most[:4]),
                "what_share": most[4] / carried if carried else 0.0,
            }
        )
    return sorted(out, key=lambda row: str(row["title"]))


def _same_operation(table: OpTable) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.bool_]]:
    """Equal numbers for rows that are the same operation, and which rows may be compared so."""
    columns = dict(table.columns)
    members = np.ones(len(table), dtype=np.bool_)
    if "model" in columns and table.kind.startswith(("mla_module", "dsa_module")):
        columns["model"] = np.array([WIDTHS.index(one) for one in WIDTHS])[columns["model"]]
    if table.kind == "nccl":
        del columns["dtype"]
    if table.kind == "moe":
        members = EXPONENTS[columns.pop("distribution").astype(np.intp)] > 0
    _, same = np.unique(np.stack([np.asarray(one, dtype=np.float64) for one in columns.values()]), axis=1,
                        return_inverse=True)  # fmt: skip
    return np.asarray(same.ravel(), dtype=np.intp), members


def _weighted(ones: Sequence[Mapping[str, Any]], name: str, weight: str) -> float:
    if not ones:
        return float("nan")
    return float(np.average([one[name] for one in ones], weights=[one[weight] for one in ones]))
