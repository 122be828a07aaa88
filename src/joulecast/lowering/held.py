"""What a training step keeps in memory between its forward and its backward pass."""

from __future__ import annotations

from dataclasses import dataclass

from joulecast.bounds.dtypes import dtype
from joulecast.lowering.backward import kept_bytes
from joulecast.lowering.learning import Learning
from joulecast.lowering.recipe import Recipe
from joulecast.lowering.rows import ATTENTION, Row, weights_of
from joulecast.workloads.table import Workload


@dataclass(frozen=True)
class Held:
    """Bytes of one micro-batch on one GPU, before any layout divides them.

    Attributes
    ----------
    saved_bytes : float
        Activations kept between forward and backward pass. [B]
    whole_bytes : float
        Those of them that tensor-parallel GPUs each hold whole. [B]
    recomputed_bytes : float
        Activations of the layer that recomputation brings back. [B]
    widest_bytes : float
        Result of the operation that writes most. [B]
    largest_weight : float
        Elements of the largest tensor of weights, or of all those of a layer. [1]
    cast_weights : float
        Weights that mixed precision keeps a cast copy of. [1]
    """

    saved_bytes: float
    whole_bytes: float
    recomputed_bytes: float
    widest_bytes: float
    largest_weight: float
    cast_weights: float


def held(rows: list[Row], recipe: Recipe, forward: Workload, learns: Learning) -> Held:
    """What stays in memory of the forward pass `rows`.

    Parameters
    ----------
    rows : list of Row
    recipe : Recipe
    forward : Workload
        The rows' workload: its layers and tokens.
    learns : Learning

    Returns
    -------
    Held
    """
    layers = float(forward.info.get("num_layers") or 1)
    share = checkpointed(recipe, layers)
    later = siblings(rows)
    convolutional = any(row.kind == "conv2d" for row in rows)
    saved = whole = again = 0.0
    for row in rows:
        reached = learns.reached(row)
        if reached <= 0 or later.get(row.order, 0) > 0:
            continue
        if row.kind == "gemm" and learns.weights(row) <= 0:
            continue  # the gradient of what it read needs its weights alone
        if convolutional and row.kind == "elementwise" and row.columns["op"] == "relu":
            continue  # works in place: what it wrote is what the next convolution keeps
        size = kept_bytes(row.kind, row.columns) * row.count * reached
        if row.kind == "elementwise" and row.columns["op"] == "fused" and row.layer.endswith(".norm"):
            size /= row.columns["inputs"]  # a batch norm reads its input twice and keeps it once
        if is_recomputed(row, recipe):
            again += size * share / layers
            size *= 1.0 - share
        saved += size
        undivided = row.shard == "none" or (row.kind == "gemm" and row.shard == "out")
        whole += size if undivided else 0.0
    hidden = float(forward.info.get("hidden_size") or 0)
    if recipe.checkpointing == "full" and hidden:
        width = 4.0 if recipe.formats.mixed or recipe.formats.weights == "fp32" else 2.0
        boundary = share * layers * forward.passes[0].tokens * hidden * width
        saved, whole = saved + boundary, whole + boundary
    per_layer = sum(row.count * weights_of(row) / layers for row in rows if "*" in row.layer)
    return Held(
        saved_bytes=saved,
        whole_bytes=whole,
        recomputed_bytes=again,
        widest_bytes=max((_result_bytes(row) for row in rows), default=0.0),
        largest_weight=max([per_layer, *(weights_of(row) for row in rows if "*" not in row.layer)]),
        cast_weights=sum(row.count * weights_of(row) for row in rows if row.kind in ("gemm", "conv2d", "moe")),
    )


def _result_bytes(row: Row) -> float:
    c = row.columns
    if row.kind == "gemm":
        return float(c["batch"] * c["m"] * c["n"] * dtype(c["dtype"]).output_bytes)
    if row.kind == "elementwise":
        return float(c["elements"] * c["outputs"] * dtype(c["out_dtype"]).output_bytes)
    if row.kind == "row_reduction" and c["op"] not in ("sum", "mean", "max", "pool"):
        return float(c["rows"] * c["dim"] * dtype(c["dtype"]).output_bytes)
    return 0.0


def checkpointed(recipe: Recipe, layers: float) -> float:
    """Share of the layers that are checkpointed."""
    if recipe.checkpointing == "none":
        return 0.0
    return 1.0 if recipe.checkpointed_layers is None else min(recipe.checkpointed_layers / layers, 1.0)


def is_recomputed(row: Row, recipe: Recipe) -> bool:
    """Whether checkpointing runs an operation a second time."""
    if recipe.checkpointing == "selective":
        return row.kind in ATTENTION
    return recipe.checkpointing == "full" and "*" in row.layer


def siblings(rows: list[Row]) -> dict[int, int]:
    """Place of each multiply among those of its block that read the same input, by order; the first has 0."""
    seen: dict[tuple[str, float, float], int] = {}
    out = {}
    for row in rows:
        if row.kind == "gemm" and "lora" not in row.layer:
            key = (row.layer.rpartition(".")[0], row.columns["m"], row.columns["k"])
            out[row.order] = seen.get(key, 0) if row.shard == "out" else 0
            seen[key] = seen.get(key, 0) + 1
    return out
