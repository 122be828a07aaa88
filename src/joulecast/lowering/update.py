"""The update of the weights: what an optimizer moves and computes, and in how many launches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from joulecast.bounds.dtypes import dtype
from joulecast.lowering.recipe import OPTIMIZERS, Recipe
from joulecast.lowering.rows import Row, weights_of, whole

#: Tensors that one launch of a list-wise update takes.
_TENSORS_A_LAUNCH = 100.0


def update(recipe: Recipe, trained: float, tensors: float) -> Iterator[Row]:
    """The update of all parameters, and what surrounds it."""
    if trained < 1:
        return
    formats, rule = recipe.formats, OPTIMIZERS[recipe.optimizer]
    gradient = formats.gradients

    def launches(passes: float, inputs: float, outputs: float, flop: float, read: str, layer: str) -> Row:
        """`passes` over all parameters, in as many launches as the update is started with."""
        each = {
            "fused": max(tensors / _TENSORS_A_LAUNCH, 1.0),
            "foreach": max(tensors / _TENSORS_A_LAUNCH, 1.0),
            "per_tensor": tensors,
        }[recipe.update]
        columns = {
            "op": "fused", "elements": max(round(trained / each), 1), "inputs": inputs, "outputs": outputs,
            "flop_per_element": flop, "dtype": read,
        }  # fmt: skip
        return Row("elementwise", whole("elementwise", columns), layer, passes * each, "out", 0)

    if formats.scaled:
        yield launches(1, 1, 1, 1, gradient, "optimizer.unscale")
    if recipe.clip_gradients:
        norm = {"op": "sum", "rows": tensors, "dim": max(round(trained / tensors), 1), "dtype": gradient}
        yield Row("row_reduction", whole("row_reduction", norm), "optimizer.clip", 1.0, "none", 0)
        yield launches(1, 1, 1, 1, gradient, "optimizer.clip")
    master = recipe.master_weights and formats.weights != "fp32"
    # a framework makes the states in the format of the weights that are updated
    kept = rule.states * min(rule.state_bytes, 4.0 if master else dtype(formats.weights).output_bytes) / 4
    if recipe.update == "fused" or rule.steps == 1:
        # weight, gradient and states in, weight and states out, in units of fp32
        weight = (dtype(formats.weights).output_bytes + (4 if master else 0)) / 4
        read = weight + dtype(gradient).output_bytes / 4 + kept
        written = weight + kept
        one = launches(1, 1, 1, rule.flop, "fp32", "optimizer.update")
        # as many fp32 elements as bytes move: half read, half written
        scale = (read + written) / 2
        yield replace(
            one,
            columns={
                **one.columns,
                "elements": max(round(one.columns["elements"] * scale), 1),
                "flop_per_element": rule.flop / scale,
            },
        )
    else:
        state = "fp32" if master or formats.weights == "fp32" else formats.weights
        yield launches(rule.steps, 2, 1, rule.flop / rule.steps, state, "optimizer.update")
        if master:
            yield launches(1, 1, 1, 1, "fp32", "optimizer.cast")


def casts(rows: list[Row], recipe: Recipe, tensors: float) -> Iterator[Row]:
    """The narrow copies of its weights that an autocasting framework makes once a forward pass."""
    narrowed = sum(row.count * weights_of(row) for row in rows if row.kind in ("gemm", "conv2d", "moe"))
    if not (recipe.formats.mixed and narrowed):
        return
    each = max(tensors, 1.0)
    columns = {
        "op": "cast", "elements": max(round(narrowed / each), 1), "dtype": "fp32", "out_dtype": recipe.formats.model,
    }  # fmt: skip
    yield Row("elementwise", whole("elementwise", columns), "weights.cast", each, "out", 0)


def summed(recipe: Recipe, trained: float, tensors: float) -> Iterator[Row]:
    """The gradients of one micro-batch, tensor by tensor, added to those of the ones before it."""
    if trained < 1:
        return
    each = max(tensors, 1.0)
    columns = {"op": "add", "elements": max(round(trained / each), 1), "inputs": 2, "dtype": recipe.formats.gradients}
    yield Row("elementwise", whole("elementwise", columns), "gradients.sum", each, "out", 0)
