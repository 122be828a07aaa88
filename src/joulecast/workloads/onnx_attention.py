"""Attention operators of ONNX and of ONNX Runtime as fused attention, and what their masks let through."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from joulecast.workloads.events import Row
from joulecast.workloads.onnx_rules import Call, Handler, elementwise, gemm
from joulecast.workloads.onnx_values import Value

#: An additive mask hides what it lowers by this much or more.
_HIDDEN = -1e3

#: Queries of a longer mask that are looked at, spread evenly.
_LOOKED_AT = 512


@dataclass(frozen=True)
class Seen:
    """What queries see.

    Attributes
    ----------
    causal : bool
        All keys up to their own place.
    window : int
        So many of them at most; 0 for all.
    keys : int
        So many on average, where the mask is not causal.
    presumed : bool
        Whether that is taken for granted: the mask is part of the model, but its numbers are not in the file.
    """

    causal: bool
    window: int = 0
    keys: int = 0
    presumed: bool = False


def seen_through(mask: Value, queries: int, keys: int) -> Seen | None:
    """What a mask (True or 0 lets through) shows of `keys` keys to `queries` queries; None where it is unknown.

    Padding differs between sequences: the first stands for all.
    """
    square = mask.shape[-2:] == (queries, keys) and queries == keys > 1
    if mask.data is None and mask.fixed and square and (len(mask.shape) < 3 or mask.shape[-3] == 1):
        return Seen(True, presumed=True)
    if mask.data is None or mask.data.ndim < 2 or mask.shape[-1] != keys or mask.shape[-2] not in (1, queries):
        return None
    data = mask.data[(0,) * (mask.data.ndim - 2)]
    shown = data if data.dtype == np.bool_ else (data > _HIDDEN if data.dtype.kind == "f" else data != 0)
    shown = np.broadcast_to(shown, (queries, keys))
    rows = np.arange(queries)
    if queries > _LOOKED_AT:
        rows = np.linspace(0, queries - 1, _LOOKED_AT).astype(np.int64)
    shown = shown[rows]
    count = shown.sum(axis=-1)
    if not count.sum():
        return Seen(False, keys=keys)
    first = shown.argmax(axis=-1)
    last = keys - 1 - shown[:, ::-1].argmax(axis=-1)
    past = int(last[0] - rows[0])
    if queries > 1 and bool((last - first + 1 == count).all()) and bool((last == rows + past).all()) and past >= 0:
        if not first.any():
            return Seen(True)
        window = int(count.max())
        if bool((first == np.maximum(last - window + 1, 0)).all()):
            return Seen(True, window=window)
    return Seen(False, keys=max(1, min(keys, round(float(count.mean())))))


@dataclass(frozen=True)
class Shape:
    """Sizes of one attention: sequences, queries and keys, heads, widths."""

    batch: int
    queries: int
    keys: int
    heads: int
    groups: int
    width: int
    value: int


def attention_rows(shape: Shape, dtype: str, *, causal: bool = False, seen: Seen | None = None) -> list[Row]:
    """Fused attention.

    Parameters
    ----------
    shape : Shape
    dtype : str
        Format of its arithmetic.
    causal : bool
        Whether the operator itself hides later keys.
    seen : Seen, optional
        What its mask shows.

    Returns
    -------
    list of (kind, columns)
    """
    if not shape.batch * shape.queries * shape.keys * shape.heads * shape.groups * shape.width:
        return []
    shared = {"batch_size": shape.batch, "num_heads": shape.heads, "num_kv_heads": shape.groups, "attn_dtype": dtype}
    causal = causal or (seen is not None and seen.causal)
    whole = seen is None or seen.keys in (0, shape.keys)
    if causal or (shape.queries == 1 and shape.keys > 1 and whole):
        window = seen.window if seen is not None else 0
        past = max(shape.keys - shape.queries, 0)
        columns: dict[str, Any] = {
            **shared, "query_len": shape.queries, "past_len": past, "head_dim": shape.width, "value_dim": shape.value,
            "window_size": window if 0 < window < shape.keys else 0,
        }  # fmt: skip
        return [("generation_attention" if shape.queries == 1 and past else "context_attention", columns)]
    keys = seen.keys if seen is not None and seen.keys else shape.keys
    width = max((shape.width + shape.value) // 2, 1)
    return [("encoder_attention", {**shared, "seq_len": shape.queries, "kv_len": keys, "head_dim": width})]


def standard(call: Call) -> list[Row]:
    """Attention of opset 23: queries, keys and values of four dimensions, or of three with heads given."""
    q, k, v = call.ins[0], call.arg(1), call.arg(2)
    if q is None or k is None or v is None:
        return []
    past = call.arg(4)
    heads, groups = int(call.attrs.get("q_num_heads", 0)), int(call.attrs.get("kv_num_heads", 0))
    before = past.shape[2] if past is not None and len(past.shape) == 4 else 0
    if len(q.shape) == 4:
        shape = Shape(q.shape[0], q.shape[2], k.shape[2] + before, q.shape[1], k.shape[1], q.shape[3], v.shape[3])
    else:
        groups = groups or heads
        shape = Shape(q.shape[0], q.shape[1], k.shape[1] + before, heads, groups,
                      q.shape[2] // heads, v.shape[2] // groups)  # fmt: skip
    mask = call.arg(3)
    seen = seen_through(mask, shape.queries, shape.keys) if mask is not None else None
    rows = attention_rows(shape, call.formats.multiplied(q), causal=bool(call.attrs.get("is_causal")), seen=seen)
    return rows + _cache_copies(call, [past, call.arg(5)])


def _cache_copies(call: Call, past: list[Value | None]) -> list[Row]:
    """Keys and values of earlier tokens copied beside the new ones, where results hold both."""
    held = [one for one in past if one is not None and one.numel]
    return [("copy", {"elements": one.numel, "dtype": call.fmt(one)}) for one in held]


def with_projections(call: Call) -> list[Row]:
    """Attention of ONNX Runtime that multiplies by the weights of queries, keys and values itself."""
    x, weight = call.x, call.arg(1)
    if weight is None or len(x.shape) != 3:
        return []
    heads = int(call.attrs["num_heads"])
    sizes = [int(one) for one in call.attrs.get("qkv_hidden_sizes") or [weight.shape[-1] // 3] * 3]
    batch, length, inner = x.shape
    past = call.arg(4) if call.op == "Attention" else call.arg(8)
    before = past.shape[3] if past is not None and len(past.shape) == 5 else 0
    narrow = call.op == "QAttention" or not x.floating
    dtype = "int8" if narrow else call.formats.multiplied(x, weight)
    shape = Shape(batch, length, length + before, heads, heads, sizes[0] // heads, sizes[2] // heads)
    fused = attention_rows(
        shape, "fp16" if narrow else call.formats.multiplied(x), causal=bool(call.attrs.get("unidirectional"))
    )
    return gemm(batch * length, sum(sizes), inner, dtype) + fused


def many_heads(call: Call) -> list[Row]:
    """Attention of ONNX Runtime on queries, keys and values that are projected already."""
    q, k, v = call.x, call.arg(1), call.arg(2)
    heads = int(call.attrs["num_heads"])
    past = call.arg(6) if call.op == "MultiHeadAttention" else call.arg(5)
    before = past.shape[2] if past is not None and len(past.shape) == 4 else 0
    if len(q.shape) == 5:  # packed: sequences, tokens, heads, 3, width
        shape = Shape(q.shape[0], q.shape[1], q.shape[1] + before, heads, heads, q.shape[4], q.shape[4])
    elif k is None:
        return []
    else:
        width = q.shape[-1] // heads
        keys = k.shape[2] if len(k.shape) == 4 else k.shape[1]
        value = width if v is None else (v.shape[-1] if len(v.shape) == 4 else v.shape[-1] // heads)
        shape = Shape(q.shape[0], q.shape[1], keys + before, heads, heads, width, value)
    mask = next((one for one in call.ins[4:6] if one is not None and len(one.shape) >= 2), None)
    seen = seen_through(mask, shape.queries, shape.keys) if mask is not None else None
    causal = bool(call.attrs.get("unidirectional"))
    return attention_rows(shape, call.formats.multiplied(q), causal=causal, seen=seen)


def grouped(call: Call) -> list[Row]:
    """Attention of ONNX Runtime whose keys and values have fewer heads: causal, with rotary positions if asked."""
    q, k, past = call.x, call.arg(1), call.arg(3)
    heads, groups = int(call.attrs["num_heads"]), int(call.attrs["kv_num_heads"])
    width = q.shape[-1] // (heads if k is not None else heads + 2 * groups)
    cached = past.shape[2] if past is not None and len(past.shape) == 4 else 0
    batch, length = q.shape[0], q.shape[1]
    present = call.outs[1].shape[2] if len(call.outs) > 1 and call.outs[1] is not None else cached + length
    keys = max(present, length) if cached else length
    window = int(call.attrs.get("local_window_size", -1))
    seen = Seen(True, window=max(window, 0))
    rows = attention_rows(Shape(batch, length, keys, heads, groups, width, width),
                          call.formats.multiplied(q), seen=seen)  # fmt: skip
    if call.attrs.get("do_rotary"):
        turned = Value(-1, (batch, length, (heads + groups) * width), q.elem)
        rows = elementwise("rope", [turned], [turned], call.formats, 6) + rows
    return rows


def fused(call: Call) -> list[Row]:
    """Attention that was found in pieces; its sizes and what its mask shows come with it."""
    return attention_rows(call.attrs["shape"], call.formats.multiplied(call.x), seen=call.attrs["seen"])


def flex(call: Call) -> list[Row]:
    """Attention whose scores a function of the user's changes; the function is part of the kernel."""
    q, k, v = call.ins[0], call.arg(1), call.arg(2)
    if q is None or k is None or v is None or len(q.shape) != 4:
        return []
    shape = Shape(q.shape[0], q.shape[2], k.shape[2], q.shape[1], k.shape[1], q.shape[3], v.shape[3])
    return attention_rows(shape, call.formats.multiplied(q))


#: Attention operators by name: of ONNX itself, then of ONNX Runtime.
STANDARD: Mapping[str, Handler] = {"Attention": standard, "FlexAttention": flex}
RUNTIME: Mapping[str, Handler] = {
    "Attention": with_projections, "QAttention": with_projections, "MultiHeadAttention": many_heads,
    "DecoderMaskedMultiHeadAttention": many_heads, "GroupQueryAttention": grouped, "SparseAttention": grouped,
}  # fmt: skip
