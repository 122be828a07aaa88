"""Batch norms as training runs them: statistics of the batch first, where inference only scales."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from joulecast.lowering.recipe import Recipe
from joulecast.lowering.rows import Row, whole


def with_batch_statistics(rows: Sequence[Row], recipe: Recipe) -> Iterator[Row]:
    """The forward pass with the norms behind its convolutions as those of a batch, and the count of batches each keeps.

    With the channels of a pixel apart (NCHW), a block reduces a channel: few channels leave SMs without work. With
    them together, blocks divide the pixels; the batch is read once for its sums and once to be scaled.

    Parameters
    ----------
    rows : sequence of Row
        In order of execution.
    recipe : Recipe

    Yields
    ------
    Row
    """
    channels: dict[str, float] = {}
    for row in _fused(rows) if recipe.fused_norms else rows:
        if row.kind == "conv2d":
            channels[row.layer] = row.columns["out_channels"]
        owner = row.layer.removesuffix(".norm")
        if row.kind != "elementwise" or row.columns["op"] != "scale" or owner == row.layer or owner not in channels:
            yield row
            continue
        c, many = row.columns, channels[owner]
        if recipe.channels_last:
            columns = {"op": "fused", "elements": c["elements"], "inputs": 2.0, "flop_per_element": 8.0,
                       "dtype": c["dtype"]}  # fmt: skip
            yield replace(row, columns=whole("elementwise", columns))
        else:
            columns = {
                "op": "batch_norm",
                "rows": many,
                "dim": max(round(c["elements"] / many), 1),
                "dtype": c["dtype"],
            }
            yield replace(row, kind="row_reduction", columns=whole("row_reduction", columns))
        counted = {"op": "other", "elements": 1.0, "dtype": "fp32"}
        yield Row("elementwise", whole("elementwise", counted), f"{row.layer}.batches", row.count, "none", row.order)


def _fused(rows: Sequence[Row]) -> list[Row]:
    """Rows without activations behind norms, and sums behind them that move one tensor, what is added."""
    norms = {row.layer.removesuffix(".norm") for row in rows if row.layer.endswith(".norm")}
    sums = {row.layer.removesuffix(".residual") for row in rows if row.layer.endswith(".residual")}
    out = []
    for row in rows:
        owner, _, part = row.layer.rpartition(".")
        if row.kind == "elementwise" and norms:
            if part == "activation" and (owner in norms or owner in sums):
                continue
            if part == "residual":
                row = replace(row, columns={**row.columns, "inputs": 0.0})
        out.append(row)
    return out
