"""What power readings of the same work differ by: no prediction that knows the work alone could be nearer.

python benchmarks/twins.py --data DIR

Context attention: as many heads times sequences, split between batch and heads in different ways. Products: m and m + 1
rows, which read the same weights; and weights of as many elements, which hold other values. Only pairs that take the
same time within 5 %, and readings that had settled (quality A and B); below 95 % of the limit, since the limit makes
all readings alike. Printed are mean and median deviations from the mean of a group.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import polars as pl

GPUS = ("h200_sxm", "b200_sxm")

#: Kernels whose times differ by more are not the same work to the GPU.
_SAME_TIME = 1.05
_BELOW_LIMIT = 0.95

_ATTENTION = ["framework", "kernel_source", "head_dim", "attn_dtype", "kv_cache_dtype", "window_size", "query_len",
              "heads", "kv_heads"]  # fmt: skip
_PRODUCT = ["framework", "dtype", "operand_init", "n", "k"]


def readings(path: Path) -> pl.DataFrame:
    """Settled readings below the limit."""
    return pl.read_parquet(path).filter(
        (pl.col("timing_mode") == "sustained")
        & pl.col("power_quality").is_in(["A", "B"])
        & (pl.col("power_w") < _BELOW_LIMIT * pl.col("power_limit_w"))
    )


def deviations(table: pl.DataFrame, key: list[str]) -> pl.DataFrame:
    """Deviations of power from the mean of a group, of groups that take the same time; of single readings, unbiased."""
    of_group = table.with_columns(
        count=pl.len().over(key),
        mean_w=pl.col("power_w").mean().over(key),
        least_ms=pl.col("latency_ms").min().over(key),
        most_ms=pl.col("latency_ms").max().over(key),
    )
    alike = of_group.filter((pl.col("count") > 1) & (pl.col("most_ms") < _SAME_TIME * pl.col("least_ms")))
    unbiased = (pl.col("count") / (pl.col("count") - 1)).sqrt()
    return alike.with_columns(off=(pl.col("power_w") / pl.col("mean_w") - 1).abs() * unbiased)


def attention(path: Path) -> pl.DataFrame:
    """Context attention whose heads times sequences are as many."""
    table = readings(path).with_columns(
        heads=pl.col("batch_size") * pl.col("num_heads"), kv_heads=pl.col("batch_size") * pl.col("num_kv_heads")
    )
    return deviations(table, _ATTENTION)


def products(path: Path) -> pl.DataFrame:
    """Products of m and m + 1 rows, m even."""
    table = readings(path).with_columns(pair=pl.col("m") // 2)
    return deviations(table, [*_PRODUCT, "pair"])


def other_weights(path: Path) -> pl.DataFrame:
    """Products of as many rows by weights of as many elements."""
    table = readings(path).with_columns(elements=pl.col("n").cast(pl.Int64) * pl.col("k").cast(pl.Int64))
    return deviations(table, [*_PRODUCT[:3], "m", "elements"])


def main() -> None:
    """Print deviations by GPU and kind."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the data folder")
    folder = parser.parse_args().data / "aiconfigurator"
    print(f"{'':10s} {'':52s} {'readings':>8s} {'mean':>7s} {'median':>7s}")
    for gpu in GPUS:
        kinds = {
            "context attention": (attention(folder / gpu / "context_attention.parquet"), ["framework"]),
            "gemm, m and m + 1": (products(folder / gpu / "gemm.parquet"), _PRODUCT[:3]),
            "gemm, other weights": (other_weights(folder / gpu / "gemm.parquet"), _PRODUCT[:3]),
        }
        for kind, (found, by) in kinds.items():
            for key, part in found.group_by(by, maintain_order=True):
                name = f"{kind}, {', '.join(str(one) for one in key)}"
                print(f"{gpu:10s} {name:52s} {part.height:8d} {part['off'].mean():7.1%} {part['off'].median():7.1%}")


if __name__ == "__main__":
    main()
