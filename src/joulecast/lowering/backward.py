"""What the backward pass runs for each operation of the forward pass: a table of rules by kind.

A rule takes the columns of one operation (sizes as numbers, formats and choices as words) and gives the operations of
its backward pass in order: the gradients of what it read, and of its weights where it has any.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from joulecast.bounds.dtypes import DTYPES
from joulecast.errors import InputError
from joulecast.workloads.kinds import plain_op

Columns = Mapping[str, Any]

#: Widths of the heads of latent attention as it trains, unfolded: queries and keys, values (DeepSeek-V3).
_MLA_KEY, _MLA_VALUE = 192, 128

#: Sums that the gradient of a bias is taken as where the operation does not tell its channels.
_CHANNELS = 256

_WEIGHT_ONLY = frozenset({"w8a16", "w4a16", "w4a16_mxfp4"})


@dataclass(frozen=True)
class Gradient:
    """One operation of a backward pass.

    Attributes
    ----------
    kind : str
    columns : mapping
        Of its kind, without those that are by default.
    of : str
        ``data`` (gradient of what was read) or ``weights``.
    """

    kind: str
    columns: Columns
    of: str = "data"


def gradients(kind: str, columns: Columns) -> list[Gradient]:
    """Operations of the backward pass of one operation.

    Parameters
    ----------
    kind : str
        Kind of the operation, as in `joulecast.workloads.kinds.KINDS`.
    columns : mapping of str to number or str
        All its columns.

    Returns
    -------
    list of Gradient
        In order of execution; empty for what passes its gradient on as it is.

    Raises
    ------
    InputError
        If no rule says what the backward pass of `kind` is: kernels made for inference alone.
    """
    rule = _RULES.get(kind)
    if rule is None:
        raise InputError(f"{kind} is an operation of inference: no rule says what trains it")
    return rule(columns)


def _gemm(c: Columns) -> list[Gradient]:
    # dx[m, k] = dy[m, n] w'[n, k];  dw'[n, k] = dy'[n, m] x[m, k], so that outputs stay the side a layout divides
    plain = "bf16" if c["dtype"] in _WEIGHT_ONLY else c["dtype"]
    common = {"batch": c["batch"]}
    return [
        Gradient("gemm", {**common, "m": c["m"], "n": c["k"], "k": c["n"], "dtype": c["dtype"]}),
        Gradient("gemm", {**common, "m": c["n"], "n": c["k"], "k": c["m"], "dtype": plain}, "weights"),
    ]


def _batched_gemm(c: Columns) -> list[Gradient]:
    common = {"batch": c["batch"], "dtype": c["dtype"]}
    return [
        Gradient("batched_gemm", {**common, "m": c["m"], "n": c["k"], "k": c["n"]}),
        Gradient("batched_gemm", {**common, "m": c["k"], "n": c["n"], "k": c["m"]}),
    ]


def _causal_attention(c: Columns) -> list[Gradient]:
    shared = ("batch_size", "query_len", "num_heads", "num_kv_heads", "head_dim", "value_dim", "window_size")
    shape = {name: c[name] for name in shared}
    keys = c["query_len"] + c["past_len"]
    return [Gradient("attention_backward", {**shape, "kv_len": keys, "attn_dtype": c["attn_dtype"]})]


def _encoder_attention(c: Columns) -> list[Gradient]:
    shape = {name: c[name] for name in ("batch_size", "kv_len", "num_heads", "num_kv_heads", "head_dim", "attn_dtype")}
    return [Gradient("attention_backward", {**shape, "query_len": c["seq_len"], "causal": 0})]


def _mla_context(c: Columns) -> list[Gradient]:
    shape = {name: c[name] for name in ("batch_size", "query_len", "num_heads", "attn_dtype")}
    keys = c["query_len"] + c["past_len"]
    wide = {"kv_len": keys, "num_kv_heads": c["num_heads"], "head_dim": _MLA_KEY, "value_dim": _MLA_VALUE}
    return [Gradient("attention_backward", {**shape, **wide})]


def _moe(c: Columns) -> list[Gradient]:
    # as many products over the same tokens and experts: once with the weights, once with the tokens
    return [Gradient("moe", dict(c)), Gradient("moe", dict(c), "weights")]


def _conv2d(c: Columns) -> list[Gradient]:
    shape = {name: value for name, value in c.items() if name != "zero_share"}
    return [Gradient("conv2d_data_gradient", shape), Gradient("conv2d_weight_gradient", shape, "weights")]


def _row_reduction(c: Columns) -> list[Gradient]:
    op, rows, dim, dtype = plain_op(c["op"]), c["rows"], c["dim"], c["dtype"]
    if op in ("sum", "mean", "max", "pool"):  # each element of a row gets its row's gradient, or its share of it
        return [Gradient("elementwise", {"op": "scale", "elements": rows * dim, "inputs": 1, "dtype": dtype})]
    out = [Gradient("row_reduction", {"op": op, "rows": rows, "dim": dim, "inputs": 2, "dtype": dtype})]
    if op in ("layer_norm", "rms_norm"):  # gains: products summed over the rows; a batch norm's sums are its own pass
        sums = {"op": "sum", "rows": dim, "dim": rows, "inputs": 2, "dtype": dtype}
        out.append(Gradient("row_reduction", sums, "weights"))
    return out


def _elementwise(c: Columns) -> list[Gradient]:
    op, elements, dtype, out_dtype = plain_op(c["op"]), c["elements"], c["dtype"], c["out_dtype"]
    flop = {"flop_per_element": c["flop_per_element"]}
    if c["op"] == "rope_table":
        return []

    def one(op: str, inputs: float, outputs: float = 1, **more: Any) -> Gradient:
        return Gradient(
            "elementwise",
            {"op": op, "elements": elements, "inputs": inputs, "outputs": outputs, "dtype": dtype, **more},
        )

    if op == "cast":
        return [one("cast", 1, dtype=out_dtype, out_dtype=dtype)]
    if op == "bias":  # the gradient of a bias is a sum over all but the channels
        rows = min(elements, _CHANNELS)
        sums = {"op": "sum", "rows": rows, "dim": math.ceil(elements / rows), "dtype": dtype}
        return [Gradient("row_reduction", sums, "weights")]
    if op == "dropout":  # a product with the mask that was kept
        return [one("mul", 2)]
    if op in ("add", "sub"):  # what was added was read elsewhere too: two gradients meet there
        return [one("add", 2)] if c["inputs"] > 1 else []
    if op in ("mul", "div") and c["inputs"] > 1:
        return [one("mul", 2), one("mul", 2)]
    if op in ("scale", "rope", "mask", "mul", "div"):
        return [one("scale" if op in ("mul", "div") else op, 1, **flop)]
    if op == "glu":
        return [one("glu", 3, 2, flop_per_element=2 * c["flop_per_element"])]
    if op == "fused":
        return [one("fused", c["inputs"] + c["outputs"], max(c["inputs"], 1), **flop)]
    return [one(op, 1 + c["inputs"], **flop)]


def _gather(c: Columns) -> list[Gradient]:
    # a dense gradient: the whole table is zeroed, and rows are added into it
    table, rows = c["table_rows"] * c["dim"], c["rows"] * c["dim"]
    zeros = {"op": "other", "elements": table, "inputs": 0, "flop_per_element": 0, "dtype": c["dtype"]}
    return [
        Gradient("elementwise", zeros, "weights"),
        Gradient("elementwise", {"op": "add", "elements": rows, "inputs": 2, "dtype": c["dtype"]}, "weights"),
    ]


def _copy(c: Columns) -> list[Gradient]:
    return [Gradient("copy", {"elements": c["elements"], "dtype": c["out_dtype"], "out_dtype": c["dtype"]})]


def _recurrent(kind: str) -> Callable[[Columns], list[Gradient]]:
    # a scan backwards computes its states again, then two products for each of the forward's
    return lambda c: [Gradient(kind, dict(c)), Gradient(kind, dict(c)), Gradient(kind, dict(c))]


def _nothing(_: Columns) -> list[Gradient]:
    return []


_RULES: Mapping[str, Callable[[Columns], list[Gradient]]] = MappingProxyType(
    {
        "gemm": _gemm,
        "batched_gemm": _batched_gemm,
        "context_attention": _causal_attention,
        "encoder_attention": _encoder_attention,
        "mla_context": _mla_context,
        "moe": _moe,
        "conv2d": _conv2d,
        "row_reduction": _row_reduction,
        "elementwise": _elementwise,
        "gather": _gather,
        "copy": _copy,
        "quantize": _nothing,
        "linear_attention_gdn": _recurrent("linear_attention_gdn"),
        "linear_attention_mamba2": _recurrent("linear_attention_mamba2"),
    }
)


def kept_bytes(kind: str, columns: Columns) -> float:
    """Bytes that an operation keeps of the forward pass for its backward pass. [B]

    What it reads and is not there otherwise, or what it wrote where the gradient is a function of that; an input that
    several operations read must be counted once by the caller.

    Parameters
    ----------
    kind : str
    columns : mapping
        All columns of the operation.

    Returns
    -------
    float
    """
    rule = _KEPT.get(kind)
    return 0.0 if rule is None else float(rule(columns))


def _bytes(word: str) -> float:
    return next(one.output_bytes for one in DTYPES if one.name == word)


def _kept_attention(c: Columns) -> float:
    """Queries, keys, values, the result, and a number a row of the softmax."""
    queries = c.get("query_len", c.get("seq_len"))
    keys = c["kv_len"] if "kv_len" in c else c["past_len"] + c["query_len"]
    width, value = c.get("head_dim", _MLA_KEY), c.get("value_dim", c.get("head_dim", _MLA_VALUE))
    kv_heads = c.get("num_kv_heads", c["num_heads"])
    rows = c["batch_size"] * queries * c["num_heads"]
    cached = c["batch_size"] * keys * kv_heads * (width + value)
    return float((rows * (width + value) + cached) * _bytes(c["attn_dtype"]) + 4 * rows)


def _kept_reduction(c: Columns) -> float:
    if c["op"] in ("sum", "mean", "pool"):
        return 0.0
    if c["op"] == "max":
        return float(c["rows"] * 8)  # where the maximum was
    return float(c["rows"] * c["dim"] * _bytes(c["dtype"]))


#: Elementwise operations whose gradient needs what they read (or wrote): bytes an element beside the format's.
_NEEDS_INPUT = frozenset(
    {
        "mul",
        "div",
        "pow",
        "relu",
        "gelu",
        "gelu_new",
        "quick_gelu",
        "silu",
        "tanh",
        "sigmoid",
        "exp",
        "glu",
        "fused",
        "other",
    }
)


def _kept_elementwise(c: Columns) -> float:
    if c["op"] == "dropout":
        return float(c["elements"])  # a byte of mask
    if c["op"] == "rope_table":
        return 0.0
    if plain_op(c["op"]) not in _NEEDS_INPUT or (c["op"] in ("mul", "div") and c["inputs"] < 2):
        return 0.0
    return float(c["elements"] * c["inputs"] * _bytes(c["dtype"]))


def _kept_moe(c: Columns) -> float:
    """Tokens laid out by expert, both halves of the gate, and their product."""
    routed = c["num_tokens"] * c["topk"] / (c["moe_tp_size"] * c["moe_ep_size"])
    inter = c["inter_size"] * (2 + c["gated"])
    return float(routed * (c["hidden_size"] * c["moe_tp_size"] + inter) * 2)


_KEPT: Mapping[str, Callable[[Columns], float]] = MappingProxyType(
    {
        "gemm": lambda c: c["batch"] * c["m"] * c["k"] * max(_bytes(c["dtype"]), 1.0),
        "batched_gemm": lambda c: c["batch"] * (c["m"] + c["n"]) * c["k"] * _bytes(c["dtype"]),
        "conv2d": lambda c: c["batch_size"] * c["in_channels"] * c["height"] * c["width"] * _bytes(c["dtype"]),
        "context_attention": _kept_attention,
        "encoder_attention": _kept_attention,
        "mla_context": _kept_attention,
        "row_reduction": _kept_reduction,
        "elementwise": _kept_elementwise,
        "gather": lambda c: c["rows"] * 8,
        "moe": _kept_moe,
    }
)
