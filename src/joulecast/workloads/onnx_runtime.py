"""Operators that ONNX Runtime's optimiser makes of several, and what it runs for resizing and scaling."""

from __future__ import annotations

from joulecast.workloads.events import Row
from joulecast.workloads.onnx_products import matmul
from joulecast.workloads.onnx_rules import (
    Call,
    Handler,
    elementwise,
    fetched,
    reduction,
)

#: Arithmetic an element of an interpolated picture. [FLOP]
_INTERPOLATED = {"nearest": 2.0, "linear": 16.0, "cubic": 40.0}


def resized(call: Call) -> list[Row]:
    """A picture in another size."""
    mode = str(call.attrs.get("mode", "nearest"))
    return elementwise("other", [call.x], [call.out], call.formats, _INTERPOLATED.get(mode, 16.0))


def rescaled(call: Call) -> list[Row]:
    """Numbers brought into or out of few bits: one read, one written, the scale small."""
    return elementwise("cast", [call.x], [call.out], call.formats, 2)


def skip_norm(call: Call) -> list[Row]:
    """A residual added, then a norm, in one kernel: two tensors read, one or two written."""
    x = call.x
    dim = x.shape[-1] if x.shape else 1
    sums = [one for one in call.outs[3:4] if one is not None]
    made = reduction("layer_norm", x, dim, call.fmt(x))
    return [(kind, {**columns, "inputs": 2 + len(sums)}) for kind, columns in made]


def embedded_norm(call: Call) -> list[Row]:
    """Rows of words, places and segments fetched and added, then a norm."""
    ids, word, position = call.x, call.arg(2), call.arg(3)
    if word is None or position is None:
        return []
    tables = [one for one in (word, position, call.arg(4)) if one is not None]
    rows = [row for one in tables for row in fetched(ids.numel, one.shape[-1], one.shape[0], call.fmt(one))]
    return rows + reduction("layer_norm", call.out, word.shape[-1], call.fmt(call.out))


def rotary(call: Call) -> list[Row]:
    """Positions turned into queries or keys: one read, one written."""
    return elementwise("rope", [call.x], [call.out], call.formats, 6)


def float8_matmul(call: Call) -> list[Row]:
    """A multiply in fp8."""
    return [(kind, {**columns, "dtype": "fp8"}) for kind, columns in matmul(call)]


def causal_convolution(call: Call) -> list[Row]:
    """A short convolution along the tokens, each channel by itself, its last inputs kept."""
    weight = call.arg(1)
    taps = weight.shape[-1] if weight is not None and weight.shape else 4
    return elementwise("other", [call.x], [call.out], call.formats, 2.0 * taps)


def experts(packed: str) -> Handler:
    """Routed experts; `packed` is the format of weights of few bits."""

    def rows(call: Call) -> list[Row]:
        x, router, first = call.x, call.arg(1), call.arg(2)
        second = call.arg(5 if packed else 4)
        if router is None or first is None or second is None or not x.numel:
            return []
        hidden, count = x.shape[-1], router.shape[-1]
        gated = str(call.attrs.get("activation_type", "relu")) == "swiglu" or call.arg(8 if packed else 6) is not None
        per_byte = 8 // int(call.attrs.get("expert_weight_bits", 4)) if packed else 1
        one, two = second.shape[-2], second.shape[-1] * per_byte
        inter = two if one == hidden else one
        row = {"num_tokens": x.numel // hidden, "hidden_size": hidden, "inter_size": inter,
               "topk": int(call.attrs.get("k", 1)), "num_experts": count,
               "dtype": packed or call.formats.multiplied(x, first), "gated": int(gated)}  # fmt: skip
        return [("moe", row)]

    return rows
