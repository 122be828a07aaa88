"""How each sort of operator reads its arguments: entries of the table in `joulecast.workloads.aten_shapes`."""

from __future__ import annotations

import math
import re
from typing import Any

from joulecast.workloads.aten_arguments import (
    ELEMENT_BYTES,
    FLOATS,
    TYPES,
    Arguments,
    Entry,
    LackingError,
    OpRow,
    element_count,
    nested,
)


def gemm(first: int, second: int, *, transposed: bool = False) -> Entry:
    """A matrix product of two arguments; `transposed` where the second is kept as (out, in)."""

    def entry(a: Arguments) -> list[OpRow]:
        left, right = a.shape(first), a.shape(second, 2)
        k, n = right if not transposed else right[::-1]
        if left[-1] != k:
            raise LackingError
        return [OpRow("gemm", {"m": element_count(left[:-1]), "n": n, "k": k, "dtype": a.format(first)})]

    return entry


def bmm(first: int, second: int) -> Entry:
    """Independent matrix products of two arguments."""

    def entry(a: Arguments) -> list[OpRow]:
        left, right = a.shape(first, 3), a.shape(second, 3)
        if left[2] != right[1]:
            raise LackingError
        return [
            OpRow(
                "batched_gemm",
                {"batch": left[0], "m": left[1], "n": right[2], "k": left[2], "dtype": a.format(first)},
            )
        ]

    return entry


def matmul(a: Arguments) -> list[OpRow]:
    """A product of tensors: one matrix for all, or one each."""
    left, right = a.shape(0), a.shape(1)
    if len(right) == 2 and left[-1] == right[0]:
        return gemm(0, 1)(a)
    if len(left) < 3 or len(left) != len(right) or left[-1] != right[-2]:
        raise LackingError
    batch = element_count([max(one, two) for one, two in zip(left[:-2], right[:-2], strict=True)])
    return [OpRow("batched_gemm", {"batch": batch, "m": left[-2], "n": right[-1], "k": left[-1], "dtype": a.format(0)})]


def vector(matrix: int) -> Entry:
    """A matrix times a vector."""

    def entry(a: Arguments) -> list[OpRow]:
        rows, k = a.shape(matrix, 2)
        return [OpRow("gemm", {"m": rows, "n": 1, "k": k, "dtype": a.format(matrix)})]

    return entry


def _conv_columns(x: tuple[int, ...], w: tuple[int, ...], dtype: str) -> dict[str, Any]:
    if len(x) == 3 == len(w):
        x, w = (x[0], x[1], 1, x[2]), (w[0], w[1], 1, w[2])
    if len(x) != 4 or len(w) != 4 or x[1] % w[1]:
        raise LackingError
    return {
        "batch_size": x[0], "in_channels": x[1], "out_channels": w[0], "height": x[2], "width": x[3],
        "kernel_h": w[2], "kernel_w": w[3], "groups": x[1] // w[1], "dtype": dtype,
    }  # fmt: skip


def convolution(stride: int, padding: int, dilation: int, transposed: int | None = None) -> Entry:
    """A convolution, with the places of its arguments; `transposed` of the flag that turns it around."""

    def entry(a: Arguments) -> list[OpRow]:
        if transposed is not None and a.truth(transposed):
            raise LackingError
        columns = _conv_columns(a.shape(0), a.shape(1), a.format(0))
        columns |= {
            "stride": max(a.numbers(stride)), "padding": max(a.numbers(padding)), "dilation": max(a.numbers(dilation))
        }  # fmt: skip
        return [OpRow("conv2d", columns)]

    return entry


def convolution_backward(a: Arguments) -> list[OpRow]:
    """Both gradients: with respect to what was read, and to the weights."""
    grad, x, w = a.shape(0), a.shape(1), a.shape(2)
    columns = _conv_columns(x, w, a.format(1))
    if len(grad) == 3:
        grad = (grad[0], grad[1], 1, grad[2])
    try:
        stride, padding, dilation = (max(a.numbers(place)) for place in (4, 5, 6))
    except (LackingError, IndexError):
        # the step follows from the sizes, the padding from the step: as many columns as there are results
        stride, dilation = max(1, round(columns["width"] / grad[3])), 1
        padding = max(0, math.ceil(((grad[3] - 1) * stride + columns["kernel_w"] - columns["width"]) / 2))
    columns |= {"stride": stride, "padding": padding, "dilation": dilation}
    kinds = ("conv2d_data_gradient", "conv2d_weight_gradient")
    wanted = re.findall("true|false", a.concrete[10].lower()) if len(a.concrete) > 10 else []
    return [OpRow(kind, columns) for place, kind in enumerate(kinds) if len(wanted) != 3 or wanted[place] == "true"]


def attention(q: int, k: int, *, heads_first: bool, causal: int | None, backward: bool = False) -> Entry:
    """Fused attention or its gradients; `causal`: the argument that says whether it is, None where none does."""

    def entry(a: Arguments) -> list[OpRow]:
        query, key = a.shape(q, 4), a.shape(k, 4)
        if heads_first:
            query, key = (query[0], query[2], query[1], query[3]), (key[0], key[2], key[1], key[3])
        batch, length, heads, width = query
        masked = causal is not None and len(a.concrete) > causal and a.concrete[causal].strip().lower() == "true"
        sizes = {"batch_size": batch, "num_heads": heads, "num_kv_heads": key[2], "head_dim": width}
        shared = {**sizes, "attn_dtype": a.format(q)}
        if backward:
            columns = {**shared, "query_len": length, "kv_len": key[1], "causal": int(masked)}
            return [OpRow("attention_backward", columns)]
        if masked and key[1] == length:
            return [OpRow("context_attention", {**shared, "query_len": length})]
        if length == 1 and key[1] > 1:
            return [OpRow("generation_attention", {**shared, "past_len": key[1] - 1})]
        return [OpRow("encoder_attention", {**shared, "seq_len": length, "kv_len": key[1]})]

    return entry


def pointwise(op: str, flop: float = 1.0, inputs: int | None = None) -> Entry:
    """An elementwise operation: as many elements as the largest tensor, read from all that are about as large."""

    def entry(a: Arguments) -> list[OpRow]:
        tensors = [(shape, form) for shape, form in a.tensors() if shape]
        if not tensors:
            raise LackingError
        shape, form = max(tensors, key=lambda one: element_count(one[0]))
        full = sum(1 for one, _ in tensors if element_count(one) >= 0.5 * element_count(shape))
        columns = {
            "op": op, "elements": element_count(shape), "inputs": full if inputs is None else inputs, "outputs": 1,
            "flop_per_element": flop, "dtype": form,
        }  # fmt: skip
        return [OpRow("elementwise", columns)]

    return entry


def copy(a: Arguments) -> list[OpRow]:
    """A copy into the first argument."""
    shape = a.shape(0)
    return [OpRow("copy", {"elements": element_count(shape), "dtype": a.format(1), "out_dtype": a.format(0)})]


def clone(a: Arguments) -> list[OpRow]:
    """A copy of the first argument."""
    return [OpRow("copy", {"elements": element_count(a.shape(0)), "dtype": a.format(0)})]


def cat(a: Arguments) -> list[OpRow]:
    """Tensors of a list, copied one after the other."""
    shapes = a.lists(0)
    form = next((form for form in a.formats if form), "fp32")
    return [OpRow("copy", {"elements": sum(element_count(one) for one in shapes), "dtype": form})]


def reduced(op: str, inputs: int = 1) -> Entry:
    """Along the last axis, unless the call says along which."""

    def entry(a: Arguments) -> list[OpRow]:
        shape = a.shape(0)
        dim = float(shape[-1])
        try:
            axes = {axis % len(shape) for axis in a.numbers(1)}
            dim = element_count([shape[axis] for axis in axes])
        except (LackingError, IndexError):
            pass
        columns = {"op": op, "rows": max(element_count(shape) / dim, 1.0), "dim": dim, "dtype": a.format(0)}
        return [OpRow("row_reduction", columns, float(inputs))]

    return entry


def layer_norm(op: str, width: int, times: float = 1.0) -> Entry:
    """A normalisation over the last axis, or over as many elements as the argument at `width` has."""

    def entry(a: Arguments) -> list[OpRow]:
        shape = a.shape(0)
        dim = float(shape[-1]) if width < 0 else element_count(a.shape(width))
        columns = {"op": op, "rows": element_count(shape) / dim, "dim": dim, "dtype": a.format(0)}
        return [OpRow("row_reduction", columns, times)]

    return entry


def channel_norm(op: str, times: float = 1.0) -> Entry:
    """A normalisation of each channel over all else."""

    def entry(a: Arguments) -> list[OpRow]:
        shape = a.shape(0)
        if len(shape) < 2:
            raise LackingError
        rows = float(shape[1])
        columns = {"op": op, "rows": rows, "dim": element_count(shape) / rows, "dtype": a.format(0)}
        return [OpRow("row_reduction", columns, times)]

    return entry


def gather(table: int, indices: int) -> Entry:
    """Rows of a table, as many as there are indices."""

    def entry(a: Arguments) -> list[OpRow]:
        source = a.shape(table)
        count = element_count(a.shape(indices))
        columns = {
            "rows": count, "dim": max(element_count(source[1:]), 1.0), "table_rows": source[0], "dtype": a.format(table)
        }  # fmt: skip
        return [OpRow("gather", columns)]

    return entry


def collective(word: str) -> Entry:
    """An exchange between ranks, of its tensors or of the elements that its record tells."""

    def entry(a: Arguments) -> list[OpRow]:
        ranks = int(a.extra.get("Group size", a.ranks))
        if "In msg nelems" in a.extra:
            form = TYPES.get(str(a.extra.get("dtype", "")).lower(), "")
            elements = max(float(a.extra["In msg nelems"]), float(a.extra.get("Out msg nelems", 0)))
        else:
            shapes = [one for one, _ in a.tensors()] or [one for dims in a.dims if nested(dims) for one in dims]
            form = next((one for one in a.formats if one), "")
            elements = sum(element_count(one) for one in shapes)
        if not form or ranks < 2:
            raise LackingError
        columns = {
            "collective": word, "num_gpus": ranks, "message_bytes": elements * ELEMENT_BYTES[form],
            "dtype": form if form in FLOATS else "fp16",
        }  # fmt: skip
        return [OpRow("nccl", columns)]

    return entry


def named_collective(a: Arguments) -> list[OpRow]:
    """An exchange whose record names it."""
    name = str(a.extra.get("Collective name", "")).lower().replace("_", "")
    for part, word in _COLLECTIVE_WORDS:
        if part in name:
            return collective(word)(a)
    raise LackingError


_COLLECTIVE_WORDS = (
    ("reducescatter", "reduce_scatter"), ("allreduce", "all_reduce"), ("allgather", "all_gather"),
    ("alltoall", "alltoall"), ("all2all", "alltoall"), ("broadcast", "broadcast"), ("send", "send_recv"),
    ("recv", "send_recv"),
)  # fmt: skip
