"""Attention as eager code runs it: products around a softmax, and heads copied out where a kernel takes no groups."""

from __future__ import annotations

import numpy as np

from joulecast.bounds.dtypes import CODES
from joulecast.lowering.rows import Piece
from joulecast.workloads.table import COMMON, Array, OpTable


def attention_in_pieces(table: OpTable, masked: bool) -> list[Piece]:
    """Eager attention: two batched matrix multiplies around scale, mask, softmax; then heads are laid together.

    As Hugging Face models run it: keys and values of grouped heads are first copied out to all query heads;
    the softmax works in fp32 on 16-bit scores and is cast back by a launch of its own.
    """
    c = table.columns
    b, heads, dtype = c["batch_size"], c["num_heads"], c["attn_dtype"]
    q = c["query_len"] if "query_len" in c else c["seq_len"]
    kv = c["kv_len"] if "kv_len" in c else c["past_len"] + c["query_len"]
    d = c["head_dim"]
    dv = c.get("value_dim", d)
    scores = b * heads * q * kv
    half = dtype != CODES["fp32"]
    fp32 = np.full_like(dtype, CODES["fp32"])
    soft = np.where(half, fp32, dtype)
    grouped = (c["num_kv_heads"] < heads).astype(float)
    pieces: list[Piece] = [
        ("copy", {"elements": b * heads * kv * d, "dtype": dtype, "count": grouped}),
        ("copy", {"elements": b * heads * kv * dv, "dtype": dtype, "count": grouped}),
        ("batched_gemm", {"batch": b * heads, "m": q, "n": kv, "k": d, "dtype": dtype}),
        ("elementwise", {"op": "scale", "elements": scores, "dtype": dtype}),
    ]
    if masked:
        pieces.append(("elementwise", {"op": "mask", "elements": scores, "inputs": 2, "dtype": dtype}))
    pieces += [
        ("row_reduction", {"op": "softmax", "rows": b * heads * q, "dim": kv, "dtype": soft}),
        ("elementwise", {"op": "cast", "elements": scores, "dtype": soft, "out_dtype": dtype,
                         "count": half.astype(float)}),
        ("batched_gemm", {"batch": b * heads, "m": q, "n": dv, "k": kv, "dtype": dtype}),
        ("copy", {"elements": b * heads * q * dv, "dtype": dtype}),
    ]  # fmt: skip
    return pieces


def attention_backward_in_pieces(table: OpTable) -> list[Piece]:
    """The backward pass of eager attention: four batched matrix multiplies around those of softmax, mask and scale."""
    c = table.columns
    b, heads, dtype = c["batch_size"], c["num_heads"], c["attn_dtype"]
    q, kv, d, dv = c["query_len"], c["kv_len"], c["head_dim"], c["value_dim"]
    scores = b * heads * q * kv
    half = (dtype != CODES["fp32"]).astype(float)
    fp32 = np.full_like(dtype, CODES["fp32"])
    grouped = (c["num_kv_heads"] < heads).astype(float)
    shape = {"batch": b * heads, "dtype": dtype}
    return [
        ("copy", {"elements": b * heads * q * dv, "dtype": dtype}),
        ("batched_gemm", {**shape, "m": kv, "n": dv, "k": q}),
        ("batched_gemm", {**shape, "m": q, "n": kv, "k": dv}),
        ("elementwise", {"op": "cast", "elements": scores, "dtype": dtype, "out_dtype": fp32, "count": half}),
        ("row_reduction", {"op": "softmax", "rows": b * heads * q, "dim": kv, "dtype": fp32, "inputs": 2}),
        ("elementwise", {"op": "cast", "elements": scores, "dtype": fp32, "out_dtype": dtype, "count": half}),
        ("elementwise", {"op": "scale", "elements": scores, "dtype": dtype}),
        ("batched_gemm", {**shape, "m": q, "n": d, "k": kv}),
        ("batched_gemm", {**shape, "m": kv, "n": d, "k": q}),
        ("row_reduction", {"op": "sum", "rows": b * kv * c["num_kv_heads"] * d,
                           "dim": np.maximum(heads / c["num_kv_heads"], 1.0), "dtype": dtype, "count": grouped}),
        ("row_reduction", {"op": "sum", "rows": b * kv * c["num_kv_heads"] * dv,
                           "dim": np.maximum(heads / c["num_kv_heads"], 1.0), "dtype": dtype, "count": grouped}),
    ]  # fmt: skip


def windowed_in_pieces(table: OpTable) -> list[Piece]:
    """Fused attention with a window as a mask: PyTorch's takes no grouped heads beside one, so that they are copied."""
    columns = {name: column for name, column in table.columns.items() if name not in COMMON}
    kept = columns["batch_size"] * columns["num_heads"] * (columns["past_len"] + columns["query_len"])
    dtype = columns["attn_dtype"]
    return [
        ("copy", {"elements": kept * columns["head_dim"], "dtype": dtype}),
        ("copy", {"elements": kept * columns["value_dim"], "dtype": dtype}),
        ("context_attention", {**columns, "num_kv_heads": columns["num_heads"]}),
    ]


def copied_for_window(table: OpTable) -> Array:
    """Which attention has a window and grouped heads."""
    return np.asarray((table["window_size"] > 0) & (table["num_kv_heads"] < table["num_heads"]))
