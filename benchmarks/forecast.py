"""Scores forecasts of newer GPUs from Ampere and older data against what was later measured on them.

python benchmarks/forecast.py --data DIR [--rows 200] [--shipped] [--json]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import polars as pl

from joulecast.coefficients.forecasts import FORECASTS, forecasting
from joulecast.errors import InputError
from joulecast.gpus import load_gpu
from joulecast.kernels.registry import families
from joulecast.validation.kernels import scored
from joulecast.validation.knowledge import SHIPPED
from joulecast.validation.read import read_batches

#: Readings of power that are trusted.
TRUSTED = ("A", "B")


def main() -> None:
    """Print mean absolute percentage errors of time and power by GPU and kind of operation."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of measured tables")
    parser.add_argument("--rows", type=int, default=200, help="rows of each table of like conditions")
    parser.add_argument("--forecast", default="ampere", choices=sorted(FORECASTS))
    parser.add_argument(
        "--shipped", action="store_true", help="beside them what is shipped, which learnt from the rows"
    )
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    known = FORECASTS[asked.forecast]
    batches = [
        batch
        for batch in read_batches(asked.data, kinds=None, gpus=None, most_rows=asked.rows, seed=0)
        if batch.rows.table.kind in families()
        and load_gpu(batch.rows.gpu).architecture not in known
        and load_gpu(batch.rows.gpu).vendor == "nvidia"
    ]
    found = []
    for name in (asked.forecast, None) if asked.shipped else (asked.forecast,):
        with forecasting(name):
            for batch in batches:
                try:
                    found.append(scored(batch, "shapes", SHIPPED).with_columns(forecast=pl.lit(name or "")))
                except InputError:
                    continue
    table = pl.concat(found)
    rows = [summary(part, key) for key, part in table.group_by("gpu", "kind", "forecast", maintain_order=True)]
    totals = [
        summary(part, (key[0], "all", key[1])) for key, part in table.group_by("gpu", "forecast", maintain_order=True)
    ]
    if asked.json:
        print(json.dumps([*totals, *rows], indent=1))
        return
    print(
        f"{'':18s} {'':24s} {'':8s} {'rows':>6s} {'time':>7s} {'median':>7s} {'in 90 %':>8s} {'power':>7s} {'rows':>6s}"
    )
    for one in [*totals, *rows]:
        print(
            f"{one['gpu']:18s} {one['kind']:24s} {one['forecast'] or 'shipped':8s} {one['rows']:6d} {one['time']:7.1%} "
            f"{one['time_median']:7.1%} {one['coverage']:8.1%} {one['power']:7.1%} {one['power_rows']:6d}"
        )


def summary(part: pl.DataFrame, key: tuple[object, ...]) -> dict[str, object]:
    """Errors of some rows; power of readings that are trusted."""
    time = (part["predicted_s"] / part["measured_s"] - 1).abs()
    inside = ((part["predicted_s"] / part["measured_s"]).log().abs() <= part["half_s"]).mean()
    trusted = part.filter(pl.col("quality").is_in(TRUSTED) & pl.col("measured_w").is_finite())
    power = (trusted["predicted_w"] / trusted["measured_w"] - 1).abs()
    return {
        "gpu": str(key[0]),
        "kind": str(key[1]),
        "forecast": str(key[2]),
        "rows": part.height,
        "time": float(time.mean()),
        "time_median": float(time.median()),
        "coverage": float(inside),
        "power": float(power.mean()) if trusted.height else float(np.nan),
        "power_rows": trusted.height,
    }


main()
