"""Shapes and formats of tensors in our vocabulary: what the table of operators is written with."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from joulecast.workloads.pytorch_costs import Row

#: Formats as arithmetic; integers by their width in memory, which is all that counts of them.
FORMATS: dict[torch.dtype, str] = {
    torch.float32: "fp32", torch.float64: "fp64", torch.float16: "fp16", torch.bfloat16: "bf16",
    torch.int8: "int8", torch.uint8: "int8", torch.bool: "int8", torch.int16: "fp16", torch.int32: "fp32",
    torch.int64: "fp64", torch.complex64: "fp64", torch.complex128: "fp64",
}  # fmt: skip
_WIDTHS = {1: "fp8", 2: "fp16", 4: "fp32", 8: "fp64"}


def fmt(tensor: Tensor) -> str:
    """Our name of a tensor's format."""
    found = FORMATS.get(tensor.dtype)
    return found if found is not None else _WIDTHS.get(tensor.dtype.itemsize, "fp8")


def matmul_fmt(tensor: Tensor) -> str:
    """Format that a matrix multiply of `tensor` runs in: fp32 as tf32 where PyTorch is told so.

    That of complex numbers is their parts'.
    """
    name = FORMATS[tensor.dtype.to_real()] if tensor.is_complex() else fmt(tensor)
    if name == "fp32" and torch.get_float32_matmul_precision() != "highest":
        return "tf32"
    return name


def convolution_fmt(tensor: Tensor) -> str:
    """Format that a convolution of `tensor` runs in: fp32 as tf32 unless PyTorch is told otherwise."""
    name = fmt(tensor)
    return "tf32" if name == "fp32" and torch.backends.cudnn.allow_tf32 else name


def tensors_in(value: Any) -> list[Tensor]:
    """Tensors in an argument or result: itself, or within lists, tuples and mappings; sparse ones are passed over."""
    if isinstance(value, torch.Tensor):
        return [value] if value.layout is torch.strided else []
    if isinstance(value, list | tuple):
        return [one for item in value for one in tensors_in(item)]
    if isinstance(value, dict):
        return [one for item in value.values() for one in tensors_in(item)]
    return []


def stored_elements(tensor: Tensor) -> int:
    """Elements in memory: a broadcast dimension (stride 0) once."""
    return math.prod(
        size if stride else min(size, 1) for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )


def moved_bytes(tensors: Sequence[Tensor]) -> float:
    """Bytes of tensors, broadcast dimensions once. [B]"""
    return float(sum(stored_elements(one) * one.element_size() for one in tensors))


def elementwise(op: str, reads: Sequence[Tensor], writes: Sequence[Tensor | None], *, flop: float = 1) -> list[Row]:
    """One pointwise operation: its inputs counted in tensors as large as the result, small ones not at all."""
    results = [one for one in writes if one is not None and one.numel()]
    if not results:
        return []
    out = results[0]
    elements = max([out.numel(), *(stored_elements(one) for one in reads)])
    largest = max(reads, key=stored_elements, default=out)
    if stored_elements(largest) * 2 < elements:  # nothing but small inputs: a fill
        largest = out
    read_bytes = sum(stored_elements(one) * one.element_size() for one in reads)
    inputs = round(read_bytes / (elements * largest.element_size()))
    written = sum(one.numel() * one.element_size() for one in results)
    outputs = max(round(written / (elements * out.element_size())), 1)
    row = {"op": op, "elements": elements, "inputs": inputs, "outputs": outputs, "flop_per_element": flop,
           "dtype": fmt(largest), "out_dtype": fmt(out)}  # fmt: skip
    return [("elementwise", row)]


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool,
    window: int = 0,
    keys: int | None = None,
    past: int | None = None,
) -> list[Row]:
    """Fused attention of queries (batch, heads, length, width) on keys and values of perhaps fewer heads.

    `keys` stands for the keys that a query sees on average where that is less than all and no causal mask;
    `past` for the keys before the first query, all but the queries' own by default.
    """
    if q.dim() == 3:
        q, k, v = (one.unsqueeze(0) for one in (q, k, v))
    batch, heads, length, width = q.shape
    kv_heads, kv_length, value = k.shape[1], k.shape[2], v.shape[3]
    if not q.numel() or not k.numel():
        return []
    dtype = matmul_fmt(q)
    if causal or (length == 1 and kv_length > 1 and keys is None):
        before = max(kv_length - length, 0) if past is None else past
        columns = {"batch_size": batch, "query_len": length, "past_len": before, "num_heads": heads,
                   "num_kv_heads": kv_heads, "head_dim": width, "value_dim": value, "attn_dtype": dtype,
                   "window_size": window if 0 < window < before + length else 0}  # fmt: skip
        return [("generation_attention" if length == 1 and before else "context_attention", columns)]
    columns = {"batch_size": batch, "seq_len": length, "kv_len": keys or kv_length, "num_heads": heads,
               "num_kv_heads": kv_heads, "head_dim": max((width + value) // 2, 1), "attn_dtype": dtype}  # fmt: skip
    return [("encoder_attention", columns)]


def attention_gradient(rows: Sequence[Row]) -> list[Row]:
    """The gradient of fused attention, from the forward's operations."""
    out: list[Row] = []
    for kind, columns in rows:
        shared = ("batch_size", "num_heads", "num_kv_heads", "head_dim", "attn_dtype")
        shape = {name: columns[name] for name in shared}
        if kind == "encoder_attention":
            lengths = {"query_len": columns["seq_len"], "kv_len": columns["kv_len"], "causal": 0}
        else:
            keys = columns["query_len"] + columns["past_len"]
            lengths = {"query_len": columns["query_len"], "kv_len": keys, "value_dim": columns["value_dim"],
                       "window_size": columns["window_size"], "causal": 1}  # fmt: skip
        out.append(("attention_backward", {**shape, **lengths}))
    return out
