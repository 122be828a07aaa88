"""Scores forecasts of newer GPUs from Ampere and older data against what was later measured on them.

python benchmarks/forecast.py --data DIR [--rows 200] [--serving] [--shipped] [--json]

Kernels one by one; with --serving, language models served by one H100 (steady state, many requests at once) against the
decoding step at their mean batch and context: its power, and its time beside the median between two tokens.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import polars as pl

import joulecast as jc
from joulecast.coefficients.forecasts import FORECASTS, forecasting
from joulecast.errors import InputError, UnknownNameError
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
    parser.add_argument("--serving", action="store_true", help="whole models on one H100 instead of kernels")
    parser.add_argument("--forecast", default="ampere", choices=sorted(FORECASTS))
    parser.add_argument(
        "--shipped", action="store_true", help="beside them what is shipped, which learnt from the rows"
    )
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    if asked.serving:
        names = (asked.forecast, None) if asked.shipped else (asked.forecast,)
        found = [one for name in names for one in served(asked.data / "mlenergy" / "v3_llm.csv", name)]
        print_served(found, as_json=asked.json)
        return
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


#: Tokens of a chat prompt before the answer; published for none of the requests.
PROMPT_TOKENS = 300


def served(path: Path, forecast: str | None) -> list[dict[str, object]]:
    """Rows of one H100 whose models the catalogue knows, each with the decoding step of a forecast."""
    table = pl.read_csv(path, infer_schema_length=None).filter((pl.col("gpu") == "H100") & (pl.col("n_gpus") == 1))
    rows: list[dict[str, object]] = []
    for row in table.iter_rows(named=True):
        context = PROMPT_TOKENS + int(row["avg_output_tokens_per_request"] // 2)
        try:
            workload = jc.workload(
                row["model_id"],
                batch=max(round(row["avg_batch_size_req"]), 1),
                prompt_tokens=context,
                generate_tokens=2,
                dtype="fp8" if row["weight_precision"] == "fp8" else "bf16",
            )
        except UnknownNameError:
            continue
        step = jc.predict(
            workload, "h100", engine="vllm", launch_mode="cuda_graph", ignore_memory=True, forecast_from=forecast
        ).phases[1]
        rows.append(
            {
                "forecast": forecast or "",
                "model": row["model_id"],
                "batch": workload.info["batch"],
                "time_s": step.time_s,
                "measured_time_s": row["median_itl_ms"] * 1e-3,
                "power_w": step.power_w,
                "measured_power_w": row["avg_power_all_gpus_w"],
                "inside": step.interval("power_w")[0] <= row["avg_power_all_gpus_w"] <= step.interval("power_w")[1],
            }
        )
    return rows


def print_served(rows: list[dict[str, object]], *, as_json: bool) -> None:
    """Errors of `served`, all together and by model."""
    if as_json:
        print(json.dumps(rows, indent=1))
        return
    table = pl.DataFrame(rows).with_columns(
        time=(pl.col("time_s") / pl.col("measured_time_s") - 1).abs(),
        power=(pl.col("power_w") / pl.col("measured_power_w") - 1).abs(),
    )
    print(f"{'':36s} {'':8s} {'rows':>5s} {'power':>7s} {'median':>7s} {'in 90 %':>8s} {'time, median':>13s}")
    for keys in (["forecast"], ["model", "forecast"]):
        for key, part in table.group_by(keys, maintain_order=True):
            name = str(key[0]) if len(keys) > 1 else "all"
            print(
                f"{name[-36:]:36s} {str(key[-1]) or 'shipped':8s} {part.height:5d} {part['power'].mean():7.1%} "
                f"{part['power'].median():7.1%} {part['inside'].mean():8.1%} {part['time'].median():13.1%}"
            )


main()
