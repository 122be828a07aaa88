"""What one operation becomes when frameworks run it as several launches: a table of rules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from joulecast.bounds.dtypes import CODES
from joulecast.workloads.kinds import kind as find_kind
from joulecast.workloads.table import COMMON, Array, OpTable, trusted_table

#: Positions between two operations of a workload, for the launches that one of them becomes.
STEP = 64

Piece = tuple[str, dict[str, Any]]


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


def rms_norm_backward_in_pieces(table: OpTable) -> list[Piece]:
    """The backward pass of an eager RMS norm, piece by piece in reverse; the sum for its gain stands by itself."""
    rows, dim, dtype = table["rows"], table["dim"], table["dtype"]
    elements = rows * dim
    fp32 = np.full_like(dtype, CODES["fp32"])
    half = (dtype != CODES["fp32"]).astype(float)
    product = {"op": "mul", "elements": elements, "inputs": 2}
    return [
        ("elementwise", {**product, "dtype": dtype}),
        ("elementwise", {**product, "dtype": dtype}),
        ("elementwise", {"op": "cast", "elements": elements, "dtype": dtype, "out_dtype": fp32, "count": half}),
        ("elementwise", {**product, "dtype": fp32}),
        ("elementwise", {**product, "dtype": fp32}),
        ("row_reduction", {"op": "sum", "rows": rows, "dim": dim, "dtype": fp32}),
        ("elementwise", {"op": "other", "elements": rows, "inputs": 2, "dtype": fp32}),
        ("elementwise", {"op": "other", "elements": elements, "inputs": 2, "dtype": fp32}),
        ("elementwise", {**product, "op": "add", "dtype": fp32}),
        ("elementwise", {"op": "cast", "elements": elements, "dtype": fp32, "out_dtype": dtype, "count": half}),
    ]


def glu_backward_in_pieces(table: OpTable) -> list[Piece]:
    """The backward pass of an eager gated activation: two products, and the activation's own gradient."""
    elements, dtype = table["elements"], table["dtype"]
    return [
        ("elementwise", {"op": "mul", "elements": elements, "inputs": 2, "dtype": dtype}),
        ("elementwise", {"op": "mul", "elements": elements, "inputs": 2, "dtype": dtype}),
        ("elementwise", {"op": "silu", "elements": elements, "inputs": 2, "flop_per_element": 8, "dtype": dtype}),
    ]


def rms_norm_in_pieces(table: OpTable) -> list[Piece]:
    """Eager RMS norm: cast up, square, mean, epsilon and root (short), scale, cast down, weight.

    The scale of a row and the weights are read with it, small beside it.
    """
    rows, dim, dtype = table["rows"], table["dim"], table["dtype"]
    elements = rows * dim
    fp32 = np.full_like(dtype, CODES["fp32"])
    half = (dtype != CODES["fp32"]).astype(float)
    return [
        ("elementwise", {"op": "cast", "elements": elements, "dtype": dtype, "out_dtype": fp32, "count": half}),
        ("elementwise", {"op": "pow", "elements": elements, "dtype": fp32}),
        ("row_reduction", {"op": "mean", "rows": rows, "dim": dim, "dtype": fp32}),
        ("elementwise", {"op": "add", "elements": rows, "dtype": fp32}),
        ("elementwise", {"op": "other", "elements": rows, "dtype": fp32}),
        ("elementwise", {"op": "mul", "elements": elements, "dtype": fp32}),
        ("elementwise", {"op": "cast", "elements": elements, "dtype": fp32, "out_dtype": dtype, "count": half}),
        ("elementwise", {"op": "mul", "elements": elements, "dtype": dtype}),
    ]


def rope_in_pieces(table: OpTable) -> list[Piece]:
    """Eager rotary embedding: negate half, concatenate, two products and a sum, for queries and for keys.

    Sines and cosines are shared by the heads, and small beside what they turn.
    """
    elements, dtype = table["elements"], table["dtype"]
    part = np.maximum(np.floor(elements / 2), 1)
    return [
        piece
        for _ in range(2)
        for piece in (
            ("elementwise", {"op": "other", "elements": np.maximum(np.floor(part / 2), 1), "dtype": dtype}),
            ("copy", {"elements": part, "dtype": dtype}),
            ("elementwise", {"op": "mul", "elements": part, "dtype": dtype}),
            ("elementwise", {"op": "mul", "elements": part, "dtype": dtype}),
            ("elementwise", {"op": "add", "elements": part, "inputs": 2, "dtype": dtype}),
        )
    ]


def glu_in_pieces(table: OpTable) -> list[Piece]:
    """Eager gated activation: the activation, then the product with the other branch."""
    elements, dtype = table["elements"], table["dtype"]
    return [
        ("elementwise", {"op": "silu", "elements": elements, "flop_per_element": 5, "dtype": dtype}),
        ("elementwise", {"op": "mul", "elements": elements, "inputs": 2, "dtype": dtype}),
    ]


def gelu_new_in_pieces(table: OpTable) -> list[Piece]:
    """Eager GELU by tanh as written in Python: half, cube, two scales around a sum, tanh, plus one, product."""
    elements, dtype = table["elements"], table["dtype"]

    def one(op: str, inputs: int = 1) -> Piece:
        return ("elementwise", {"op": op, "elements": elements, "inputs": inputs, "dtype": dtype})

    return [
        one("mul"), one("pow"), one("mul"), one("add", 2), one("mul"),
        ("elementwise", {"op": "tanh", "elements": elements, "flop_per_element": 10, "dtype": dtype}),
        one("add"), one("mul", 2),
    ]  # fmt: skip


def quick_gelu_in_pieces(table: OpTable) -> list[Piece]:
    """Eager GELU by a sigmoid as written in Python: scale, sigmoid, product."""
    elements, dtype = table["elements"], table["dtype"]
    return [
        ("elementwise", {"op": "mul", "elements": elements, "dtype": dtype}),
        ("elementwise", {"op": "sigmoid", "elements": elements, "flop_per_element": 10, "dtype": dtype}),
        ("elementwise", {"op": "mul", "elements": elements, "inputs": 2, "dtype": dtype}),
    ]


def expanded(tables: Mapping[str, OpTable], attention: str, launch_mode: str) -> dict[str, OpTable]:
    """`tables` with the operations that are run in several launches replaced by those.

    Parameters
    ----------
    tables : mapping of str to OpTable
        By kind, with the common columns.
    attention : str
        ``eager`` takes attention apart.
    launch_mode : str
        ``eager`` takes norms, rotary embeddings and gated activations apart.

    Returns
    -------
    dict of str to OpTable
    """
    out: dict[str, list[OpTable]] = {}
    for name, table in tables.items():
        rest = np.ones(len(table), dtype=np.bool_)
        for matches, rule in _rules(name, attention, launch_mode):
            mask = matches(table) & rest
            if mask.any():
                rest &= ~mask
                for piece in _pieces(table.take(mask), rule):
                    out.setdefault(piece.kind, []).append(piece)
        if rest.all():
            out.setdefault(name, []).append(table)
        elif rest.any():
            out.setdefault(name, []).append(table.take(rest))
    return {name: joined(parts) for name, parts in out.items()}


def joined(parts: list[OpTable]) -> OpTable:
    """Tables of one kind one after the other."""
    if len(parts) == 1:
        return parts[0]
    return OpTable(parts[0].kind, {c: np.concatenate([part[c] for part in parts]) for c in parts[0].columns})


Rule = Callable[[OpTable], list[Piece]]


def _rules(name: str, attention: str, launch_mode: str) -> Iterable[tuple[Callable[[OpTable], Array], Rule]]:
    def everything(table: OpTable) -> Array:
        return np.ones(len(table), dtype=np.bool_)

    def op_is(word: str, *, inputs: int | None = None) -> Callable[[OpTable], Array]:
        code = find_kind(name).column("op").choices.index(word)
        if inputs is None:
            return lambda table: np.asarray(table["op"] == code)
        return lambda table: np.asarray((table["op"] == code) & (table["inputs"] == inputs))

    if attention == "eager":
        if name in ("context_attention", "generation_attention"):
            yield everything, lambda table: attention_in_pieces(table, masked=True)
        if name == "encoder_attention":
            yield everything, lambda table: attention_in_pieces(table, masked=False)
        if name == "attention_backward":
            yield everything, attention_backward_in_pieces
    if launch_mode == "eager":
        if name == "row_reduction":
            yield op_is("rms_norm", inputs=1), rms_norm_in_pieces
            yield op_is("rms_norm", inputs=2), rms_norm_backward_in_pieces
        if name == "elementwise":
            yield op_is("rope"), rope_in_pieces
            yield op_is("glu", inputs=3), glu_backward_in_pieces
            yield op_is("glu"), glu_in_pieces
            yield op_is("gelu_new"), gelu_new_in_pieces
            yield op_is("quick_gelu"), quick_gelu_in_pieces


def _pieces(table: OpTable, rule: Rule) -> Iterable[OpTable]:
    for position, (name, columns) in enumerate(rule(table)):
        share = np.broadcast_to(np.asarray(columns.pop("count", 1.0), dtype=np.float64), (len(table),))
        mask = share > 0
        if not mask.any():
            continue
        piece = trusted_table(name, columns, len(table))
        common = {key: table[key] for key in COMMON}
        common["count"] = table["count"] * share
        common["order"] = table["order"] + position
        whole = OpTable(name, {**piece.columns, **common})
        yield whole if mask.all() else whole.take(mask)
