"""What one operation becomes when frameworks run it as several launches: a table of rules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from joulecast.bounds.dtypes import CODES
from joulecast.lowering.attention_pieces import (
    attention_backward_in_pieces,
    attention_in_pieces,
    copied_for_window,
    windowed_in_pieces,
)
from joulecast.lowering.rows import Piece
from joulecast.workloads.kinds import kind as find_kind
from joulecast.workloads.table import COMMON, Array, OpTable, trusted_table

#: Positions between two operations of a workload, for the launches that one of them becomes.
STEP = 64

#: Arithmetic of rotating one element; less an element where a part of a head is rotated. [FLOP]
ROPE_FLOP = 3.0


def copies_one_by_one(table: OpTable) -> list[Piece]:
    """Eager copies of several tensors: one launch each."""
    parts = table["parts"]
    columns = {"elements": np.maximum(np.floor(table["elements"] / parts), 1), "count": parts}
    return [("copy", {**columns, "dtype": table["dtype"], "out_dtype": table["out_dtype"]})]


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


def rms_norm_unit_in_pieces(table: OpTable) -> list[Piece]:
    """Eager RMS norm whose gain counts from one: as `rms_norm_in_pieces`, but the gain in fp32, before the cast."""
    rows, dim, dtype = table["rows"], table["dim"], table["dtype"]
    fp32 = np.full_like(dtype, CODES["fp32"])
    half = (dtype != CODES["fp32"]).astype(float)
    up, *middle, down, _ = rms_norm_in_pieces(table)
    return [
        up, *middle,
        ("elementwise", {"op": "cast", "elements": dim, "dtype": dtype, "out_dtype": fp32, "count": half}),
        ("elementwise", {"op": "add", "elements": dim, "dtype": fp32}),
        ("elementwise", {"op": "mul", "elements": rows * dim, "dtype": fp32}),
        down,
    ]  # fmt: skip


def rms_norm_wide_in_pieces(table: OpTable) -> list[Piece]:
    """Eager RMS norm whose gain is applied in fp32, before the cast down."""
    *middle, down, gain = rms_norm_in_pieces(table)
    return [*middle, (gain[0], {**gain[1], "dtype": np.full_like(table["dtype"], CODES["fp32"])}), down]


def rms_norm_late_in_pieces(table: OpTable) -> list[Piece]:
    """Eager RMS norm that casts up for the mean alone: what it scales is the input, which becomes fp32 in that."""
    pieces = rms_norm_in_pieces(table)
    kind, scaled = pieces[5]
    fp32 = np.full_like(table["dtype"], CODES["fp32"])
    pieces[5] = (kind, {**scaled, "dtype": table["dtype"], "out_dtype": fp32})
    return pieces


def rope_in_pieces(table: OpTable) -> list[Piece]:
    """Eager rotary embedding: negate half, concatenate, two products and a sum, for queries and for keys.

    Sines and cosines are shared by the heads, and small beside what they turn.
    """
    return _rotated(table["elements"], table["dtype"], table["dtype"])


def rope_table_in_pieces(table: OpTable) -> list[Piece]:
    """Sines and cosines of an eager model, made anew in each pass, and the places that they are of."""
    elements, dtype = table["elements"], table["dtype"]
    half = np.maximum(np.floor(elements / 2), 1)
    fp32 = np.full_like(dtype, CODES["fp32"])

    def one(op: str, size: Array, **more: Any) -> Piece:
        return ("elementwise", {"op": op, "elements": size, "dtype": fp32, **more})

    short = np.ones_like(elements)
    return [
        one("other", short, inputs=0), one("add", short), one("cast", short), one("cast", short),
        one("mul", half, inputs=0), ("copy", {"elements": elements, "dtype": fp32}),
        one("other", elements), one("other", elements), one("mul", elements), one("mul", elements),
        one("cast", elements, out_dtype=dtype), one("cast", elements, out_dtype=dtype),
    ]  # fmt: skip


def rope_wide_in_pieces(table: OpTable) -> list[Piece]:
    """Eager rotary embedding with sines and cosines in fp32, cast down at its end."""
    part = np.maximum(np.floor(table["elements"] / 2), 1)
    dtype = table["dtype"]
    fp32 = np.full_like(dtype, CODES["fp32"])
    half = (dtype != CODES["fp32"]).astype(float)
    cast = ("elementwise", {"op": "cast", "elements": part, "dtype": fp32, "out_dtype": dtype, "count": half})
    return [*_rotated(table["elements"], dtype, fp32), cast, (cast[0], dict(cast[1]))]


def rope_partial_in_pieces(table: OpTable) -> list[Piece]:
    """Eager rotary embedding of a part of each head, and the whole head laid together again."""
    elements, dtype = table["elements"], table["dtype"]
    share = np.clip(table["flop_per_element"] / ROPE_FLOP, 0.0, 1.0)
    whole = ("copy", {"elements": np.maximum(np.floor(elements / 2), 1), "dtype": dtype})
    return [*_rotated(np.maximum(elements * share, 2), dtype, dtype), whole, (whole[0], dict(whole[1]))]


def rope_halves_in_pieces(table: OpTable) -> list[Piece]:
    """Eager rotary embedding by halves: four products, a difference and a sum, both halves laid together."""
    dtype = table["dtype"]
    part = np.maximum(np.floor(table["elements"] / 2), 1)
    half = np.maximum(np.floor(part / 2), 1)

    def one(op: str, inputs: int = 1) -> Piece:
        return ("elementwise", {"op": op, "elements": half, "inputs": inputs, "dtype": dtype})

    return [
        piece
        for _ in range(2)
        for piece in (
            one("mul"), one("mul"), one("sub", 2), one("mul"), one("mul"), one("add", 2),
            ("copy", {"elements": part, "dtype": dtype}),
        )
    ]  # fmt: skip


def _rotated(elements: Array, dtype: Array, made: Array) -> list[Piece]:
    """Queries and keys of `elements` together, each turned in five launches; products and sum in the format `made`."""
    part = np.maximum(np.floor(elements / 2), 1)
    return [
        piece
        for _ in range(2)
        for piece in (
            ("elementwise", {"op": "other", "elements": np.maximum(np.floor(part / 2), 1), "dtype": dtype}),
            ("copy", {"elements": part, "dtype": dtype}),
            ("elementwise", {"op": "mul", "elements": part, "dtype": dtype, "out_dtype": made}),
            ("elementwise", {"op": "mul", "elements": part, "dtype": dtype, "out_dtype": made}),
            ("elementwise", {"op": "add", "elements": part, "inputs": 2, "dtype": made}),
        )
    ]


def glu_in_pieces(table: OpTable) -> list[Piece]:
    """Eager gated activation: the activation, then the product with the other branch."""
    elements, dtype = table["elements"], table["dtype"]
    return [
        ("elementwise", {"op": "silu", "elements": elements, "flop_per_element": 10, "dtype": dtype}),
        ("elementwise", {"op": "mul", "elements": elements, "inputs": 2, "dtype": dtype}),
    ]


def geglu_in_pieces(table: OpTable) -> list[Piece]:
    """Eager activation gated by GELU."""
    (kind, gate), product = glu_in_pieces(table)
    return [(kind, {**gate, "op": "gelu"}), product]


def geglu_new_in_pieces(table: OpTable) -> list[Piece]:
    """Eager activation gated by GELU that is written out in Python."""
    return [*gelu_new_in_pieces(table), glu_in_pieces(table)[1]]


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


def expanded(tables: Mapping[str, OpTable], attention: str, *, fuses: bool) -> dict[str, OpTable]:
    """`tables` with the operations that are run in several launches replaced by those.

    Parameters
    ----------
    tables : mapping of str to OpTable
        By kind, with the common columns.
    attention : str
        ``eager`` takes attention apart.
    fuses : bool
        Whether a compiler or an engine has one kernel for a norm, a rotary embedding, a gated activation; else they
        are taken apart.

    Returns
    -------
    dict of str to OpTable
    """
    out: dict[str, list[OpTable]] = {}
    for name, table in tables.items():
        rest = np.ones(len(table), dtype=np.bool_)
        for matches, rule in _rules(name, attention, fuses):
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


def _rules(name: str, attention: str, fuses: bool) -> Iterable[tuple[Callable[[OpTable], Array], Rule]]:
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
    if not fuses:
        if name == "context_attention":
            yield copied_for_window, windowed_in_pieces
        if name == "copy":
            yield lambda table: np.asarray(table["parts"] > 1), copies_one_by_one
        if name == "row_reduction":
            yield op_is("rms_norm", inputs=1), rms_norm_in_pieces
            yield op_is("rms_norm_unit"), rms_norm_unit_in_pieces
            yield op_is("rms_norm_wide"), rms_norm_wide_in_pieces
            yield op_is("rms_norm_late"), rms_norm_late_in_pieces
            yield op_is("rms_norm", inputs=2), rms_norm_backward_in_pieces
        if name == "elementwise":
            yield op_is("rope"), rope_in_pieces
            yield op_is("rope_table"), rope_table_in_pieces
            yield op_is("rope_wide"), rope_wide_in_pieces
            yield op_is("rope_partial"), rope_partial_in_pieces
            yield op_is("rope_halves"), rope_halves_in_pieces
            yield op_is("glu", inputs=3), glu_backward_in_pieces
            yield op_is("glu"), glu_in_pieces
            yield op_is("geglu"), geglu_in_pieces
            yield op_is("geglu_new"), geglu_new_in_pieces
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
