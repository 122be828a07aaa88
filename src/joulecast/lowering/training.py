"""A forward pass becomes a training step: loss, recomputation, backward pass and optimizer, as operations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from joulecast.bounds.dtypes import dtype
from joulecast.errors import InputError
from joulecast.lowering.autocast import autocast
from joulecast.lowering.backward import Gradient, gradients
from joulecast.lowering.batch_norm import with_batch_statistics
from joulecast.lowering.held import Held, checkpointed, held, is_recomputed, siblings
from joulecast.lowering.learning import Learning
from joulecast.lowering.recipe import Recipe
from joulecast.lowering.rows import ATTENTION, Row, rows_of, weights_of, whole
from joulecast.lowering.update import casts, summed, update
from joulecast.workloads.table import Workload, WorkloadBuilder


@dataclass(frozen=True)
class Step:
    """A training step as a workload, and what its memory follows from.

    Attributes
    ----------
    workload : Workload
        Passes ``forward``, ``recompute`` (where there is checkpointing), ``backward`` and ``optimizer``; the first
        ones run as often as micro-batches are accumulated.
    parameters : float
        Of the model, shared ones once.
    trained : float
        Parameters that learn, those that LoRA adds included.
    added : float
        Parameters that LoRA adds.
    held : Held
        What stays in memory between forward and backward pass.
    """

    workload: Workload
    parameters: float
    trained: float
    added: float
    held: Held

    @property
    def saved_bytes(self) -> float:
        """Activations that one micro-batch keeps, before any layout divides them. [B]"""
        return self.held.saved_bytes


#: Families whose configurations drop values as they train (10 %, in their published configurations).
DROPPING = frozenset(
    {"albert", "bart", "bert", "distilbert", "electra", "gpt2", "mbart", "opt", "roberta", "t5", "xlm-roberta"}
)


def training_step(forward: Workload, recipe: Recipe, *, unfused: bool = False, sums: bool = False) -> Step:
    """The step that trains a model, from its forward pass.

    Parameters
    ----------
    forward : Workload
        One pass over a micro-batch (``forward``, or the ``prefill`` of a language model with all its logits), in the
        format of `Recipe.formats`.
    recipe : Recipe
    unfused : bool
        Whether attention runs as multiplies around a softmax, whose probabilities are then dropped in a launch.
    sums : bool
        Whether the gradients are added to those of micro-batches before, each GPU all that it has.

    Returns
    -------
    Step

    Raises
    ------
    InputError
        If the workload has more than one pass, or operations that only inference runs; if more layers are frozen or
        checkpointed than it has.
    """
    if len(forward.passes) != 1:
        names = ", ".join(dict.fromkeys(one.phase for one in forward.passes))
        raise InputError(
            f"training takes one pass over a batch, {forward.name} has {names}: leave tokens to generate out"
        )
    _check_layers(recipe, forward)
    rows = list(with_batch_statistics(_without_cache(rows_of(forward)), recipe))
    rows = list(_dropping(rows, recipe, forward, unfused))
    if recipe.formats.mixed:
        rows = autocast(rows, recipe)
    rows = [*rows, *_loss(rows, recipe)]
    learns = Learning(rows, recipe, forward)
    rows = learns.with_adapters()
    builder = WorkloadBuilder(forward.name)
    tokens = forward.passes[0].tokens
    builder.begin_pass("forward", repeats=recipe.accumulate, tokens=tokens)
    for row in (*casts(rows, recipe, learns.tensors), *rows):
        builder.add(row.kind, layer=row.layer, count=row.count, shard=row.shard, **row.columns)
    _emit_recompute(builder, rows, recipe, forward)
    builder.begin_pass("backward", repeats=recipe.accumulate)
    for row in _backward(rows, learns):
        builder.add(row.kind, layer=row.layer, count=row.count, shard=row.shard, **row.columns)
    added = learns.added
    # an operation list does not tell its parameters: they are the weights of its operations
    parameters = forward.parameters or sum(row.count * weights_of(row) for row in rows if ".lora_" not in row.layer)
    trained = learns.trained(parameters, added)
    for row in summed(recipe, trained, learns.tensors) if sums else ():
        builder.add(row.kind, layer=row.layer, count=row.count, shard=row.shard, **row.columns)
    updates = list(update(recipe, trained, learns.tensors))
    if updates:
        builder.begin_pass("optimizer")
    for row in updates:
        builder.add(row.kind, layer=row.layer, count=row.count, shard=row.shard, **row.columns)
    built = builder.build(
        memory=forward.memory,
        parameters=parameters + added,
        info={**forward.info, "precision": recipe.precision},
        notes=forward.notes,
        unpriced=forward.unpriced,
    )
    return Step(built, parameters, trained, added, held(rows, recipe, forward, learns))


def _check_layers(recipe: Recipe, forward: Workload) -> None:
    layers = int(forward.info.get("num_layers") or 0)
    for name in ("frozen_layers", "checkpointed_layers"):
        asked = getattr(recipe, name) or 0
        if asked and not layers:
            raise InputError(f"{name} can't be asked of {forward.name}: it does not tell its layers apart")
        if asked > layers:
            raise InputError(f"{name} must be at most the {layers} layers of {forward.name}, got {asked}")


def _without_cache(rows: list[Row]) -> list[Row]:
    """Without what keeps keys and values for later tokens."""
    return [row for row in rows if not row.layer.endswith(".cache_append")]


def _dropping(rows: list[Row], recipe: Recipe, forward: Workload, unfused: bool) -> Iterator[Row]:
    """The forward pass with values dropped before each residual sum, and of probabilities where those are written."""
    drops = recipe.dropout
    if drops is None:
        drops = forward.info.get("family") in DROPPING

    def dropped(row: Row, elements: float, dtype_: str) -> Row:
        columns = {"op": "dropout", "elements": elements, "inputs": 1.0, "dtype": dtype_}
        return Row("elementwise", whole("elementwise", columns), f"{row.layer}.dropout", row.count, "none", row.order)

    for row in rows:
        c = row.columns
        if drops and row.kind == "elementwise" and c["op"] == "add" and row.layer.endswith("_residual"):
            yield dropped(row, c["elements"], c["dtype"])
        yield row
        if drops and unfused and row.kind in ATTENTION:
            queries = c.get("query_len", c.get("seq_len"))
            keys = c["kv_len"] if "kv_len" in c else c["past_len"] + c["query_len"]
            scores = dropped(row, c["batch_size"] * c["num_heads"] * queries * keys, c["attn_dtype"])
            yield replace(scores, shard=row.shard)


def _loss(rows: list[Row], recipe: Recipe) -> list[Row]:
    """Cross entropy of what the last multiply gives: cast up, logarithm of the softmax, and a pick a row."""
    last = next((row for row in reversed(rows) if row.kind == "gemm"), None)
    if last is None:
        return []
    count, classes = last.columns["batch"] * last.columns["m"], last.columns["n"]
    narrow = dtype(last.columns["dtype"]).output_bytes < 4
    out = []
    shape = {"elements": count * classes, "inputs": 1.0}
    if narrow:
        cast = {
            **shape,
            "op": "cast",
            "dtype": "fp16" if recipe.precision == "amp_fp16" else "bf16",
            "out_dtype": "fp32",
        }
        out.append(("elementwise", cast))
    out.append(("row_reduction", {"op": "softmax", "rows": count, "dim": classes, "dtype": "fp32", "inputs": 1.0}))
    out.append(("gather", {"rows": count, "dim": 1.0, "table_rows": count * classes, "dtype": "fp32"}))
    shard = "out" if last.shard == "out" else "none"
    return [
        Row(name, whole(name, columns), "loss", 1.0, shard if name == "elementwise" else "none", last.order + 1 + i)
        for i, (name, columns) in enumerate(out)
    ]


def _emit_recompute(builder: WorkloadBuilder, rows: list[Row], recipe: Recipe, forward: Workload) -> None:
    share = checkpointed(recipe, float(forward.info.get("num_layers") or 1))
    chosen = [row for row in rows if is_recomputed(row, recipe)]
    if not share or not chosen:
        return
    builder.begin_pass("recompute", repeats=recipe.accumulate)
    for row in chosen:
        builder.add(row.kind, layer=row.layer, count=row.count * share, shard=row.shard, **row.columns)


def _backward(rows: list[Row], learns: Learning) -> list[Row]:
    """Operations of the backward pass, in order."""
    later = siblings(rows)
    out: list[Row] = []
    for row in reversed(rows):
        reached = learns.reached(row)
        if reached <= 0 or row.layer.endswith(".batches"):
            continue
        for one in gradients(row.kind, row.columns):
            share = learns.weights(row) if one.of == "weights" else learns.data(row)
            if one.of == "weights" and row.kind == "row_reduction":
                share = learns.weights(row) if learns.recipe.trainable == "all" else 0.0
            if share <= 0:
                continue
            shard = _shard_of(row, one, later)
            columns = whole(one.kind, one.columns)
            out.append(Row(one.kind, columns, row.layer, row.count * share, shard, len(out)))
        if row.kind == "gemm":
            out += _beside_a_multiply(row, learns, later, len(out))
    return out


def _beside_a_multiply(row: Row, learns: Learning, later: Mapping[int, int], place: int) -> list[Row]:
    """The gradient of a bias, and the sum of the gradients where several multiplies read one input."""
    c = row.columns
    out = []
    plain = "fp32" if dtype(c["dtype"]).output_bytes > 2 else "fp16" if c["dtype"] == "fp16" else "bf16"
    if row.layer in learns.biased and learns.recipe.trainable == "all":
        sums = {"op": "sum", "rows": c["n"], "dim": c["m"], "dtype": plain}
        out.append(("row_reduction", sums, learns.weights(row)))
    if later.get(row.order, 0) > 0:
        total = {"op": "add", "elements": c["m"] * c["k"], "inputs": 2.0, "dtype": plain}
        out.append(("elementwise", total, learns.data(row)))
    return [
        Row(name, whole(name, columns), row.layer, row.count * share, "none", place + at)
        for at, (name, columns, share) in enumerate(out)
        if share > 0
    ]


def _shard_of(row: Row, one: Gradient, later: Mapping[int, int]) -> str:
    """How a layout divides a gradient: along what it divides the operation along."""
    if row.shard == "none" or one.kind == "moe":
        return "partial" if one.kind == "moe" and one.of == "weights" else row.shard
    if one.kind == "gemm" and one.of == "data":
        # the gradient of what all GPUs read is a sum over them; sums of one input go out together
        return "out" if row.shard == "in" else ("in" if later.get(row.order, 0) == 0 else "partial")
    if one.kind == "gemm":
        # dw'[n, k]: outputs are divided as rows of the product, inputs as its columns
        return "out" if row.shard == "in" else "rows"
    if one.kind == "conv2d_data_gradient":
        return "out" if row.shard == "in" else "in"
    return "out"
