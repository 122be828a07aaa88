"""Operators that are a whole attention or a whole layer of an encoder, as operations of ours."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from joulecast.workloads import pytorch_rules as rules
from joulecast.workloads.pytorch_costs import Row
from joulecast.workloads.pytorch_rules import Call, Handler
from joulecast.workloads.pytorch_shapes import attention, attention_gradient, elementwise, matmul_fmt, tensors_in


def attention_by(query: int, key: int, causal: Callable[[Call], bool], heads_last: bool = False) -> Handler:
    """Fused attention whose query, key and value are arguments."""

    def rows(call: Call) -> list[Row]:
        q, k, v = (call.args[query], call.args[key], call.args[key + 1])
        if heads_last:
            q, k, v = (one.transpose(1, 2) if one.dim() == 4 else one for one in (q, k, v))
        return attention(q, k, v, causal=causal(call))

    return rows


def flag(place: int, name: str) -> Callable[[Call], bool]:
    """Whether an argument is true."""
    return lambda call: bool(call.arg(place, name, False))


def attention_backward(causal: Callable[[Call], bool]) -> Handler:
    """The gradient of fused attention: five products where the forward has two."""

    def rows(call: Call) -> list[Row]:
        q, k, v = call.args[1:4]
        return attention_gradient(attention(q, k, v, causal=causal(call)))

    return rows


def encoder_layer(call: Call) -> list[Row]:
    """The encoder's fast path: one operator for a whole layer."""
    x, width, heads = call.args[0], int(call.args[1]), int(call.args[2])
    up = call.args[15] if len(call.args) > 15 else call.args[-4]
    hidden = [one.shape[0] for one in tensors_in(call.args) if one.dim() == 2 and one.shape[1] == width]
    inter = up.shape[0] if isinstance(up, Tensor) and up.dim() == 2 and up.shape[1] == width else max(hidden)
    rows, dtype = x.numel() // width, matmul_fmt(x)
    batch, length = (x.shape[0], x.shape[1]) if x.dim() == 3 else (1, x.shape[0])
    wide = x.new_empty((rows, inter), device="meta")
    return [
        *rules.gemm(rows, 3 * width, width, dtype),
        ("encoder_attention", {"batch_size": batch, "seq_len": length, "num_heads": heads,
                               "head_dim": width // heads, "attn_dtype": dtype}),
        *rules.gemm(rows, width, width, dtype),
        *elementwise("add", [x, x], [x]),
        *rules.reduction("layer_norm", x, width),
        *rules.gemm(rows, inter, width, dtype),
        *elementwise("gelu" if call.args[5] else "relu", [wide], [wide]),
        *rules.gemm(rows, width, inter, dtype),
        *elementwise("add", [x, x], [x]),
        *rules.reduction("layer_norm", x, width),
    ]  # fmt: skip


def native_mha(call: Call) -> list[Row]:
    """Multi-head attention as one operator."""
    x, width, heads = call.args[0], int(call.args[3]), int(call.args[4])
    rows, dtype = x.numel() // width, matmul_fmt(x)
    shape = {"batch_size": x.shape[0], "seq_len": x.shape[1], "num_heads": heads, "head_dim": width // heads}
    return [
        *rules.gemm(rows, 3 * width, width, dtype),
        ("encoder_attention", {**shape, "kv_len": call.args[1].shape[1], "attn_dtype": dtype}),
        *rules.gemm(rows, width, width, dtype),
    ]
