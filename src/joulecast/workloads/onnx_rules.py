"""How ONNX operators become operations of ours: rules from inputs and results, which the table is made of."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from joulecast.workloads.events import Row
from joulecast.workloads.onnx_values import FLOAT, FORMATS, INT64, Value

#: A reduction of fewer rows than this, each longer than that, is spread over the blocks of a GPU.
_MANY_ROWS, _LONGEST_ROW = 1024, 8192


@dataclass(frozen=True)
class Formats:
    """Formats in which a graph is priced.

    Attributes
    ----------
    activation : str
        Of tensors in fp32; ``fp32`` unless asked otherwise.
    product : str
        Of matrix multiplies and convolutions of them: tf32, which ONNX Runtime allows by default.
    packed : str
        Of multiplies with weights where these are asked for in fewer bits; empty otherwise.
    """

    activation: str = "fp32"
    product: str = "tf32"
    packed: str = ""

    def of(self, value: Value) -> str:
        """Our name of a tensor's format."""
        return self.activation if value.elem == FLOAT else FORMATS.get(value.elem, ("fp32", 4))[0]

    def size(self, value: Value) -> float:
        """Bytes of an element. [B]"""
        if value.elem == FLOAT:
            return {"fp16": 2.0, "bf16": 2.0, "fp64": 8.0}.get(self.activation, 4.0)
        return FORMATS.get(value.elem, ("fp32", 4.0))[1]

    def bytes(self, value: Value) -> float:
        """Bytes of a tensor. [B]"""
        return value.numel * self.size(value)

    def multiplied(self, value: Value, weight: Value | None = None) -> str:
        """Format of a matrix multiply of `value`."""
        if value.elem == FLOAT or (self.packed and value.floating):
            fixed = weight is not None and weight.fixed
            return self.packed if self.packed and fixed else (self.product if value.elem == FLOAT else self.of(value))
        return self.of(value)


@dataclass(frozen=True)
class Call:
    """One operator with its tensors, whose shapes alone are looked at."""

    op: str
    ins: Sequence[Value | None]
    outs: Sequence[Value | None]
    attrs: Mapping[str, Any]
    formats: Formats

    @property
    def x(self) -> Value:
        """The first input."""
        found = next((one for one in self.ins if one is not None), None)
        return found if found is not None else self.out

    @property
    def out(self) -> Value:
        """The first result."""
        return next((one for one in self.outs if one is not None), Value(-1, (0,), FLOAT))

    def arg(self, place: int) -> Value | None:
        """An input by place."""
        return self.ins[place] if len(self.ins) > place else None

    def given(self) -> list[Value]:
        """Inputs that are there, one given twice (x * x) once."""
        return list({one.number: one for one in self.ins if one is not None}.values())

    def fmt(self, value: Value) -> str:
        """Our name of a tensor's format."""
        return self.formats.of(value)


Handler = Callable[[Call], list[Row]]


# ---------------------------------------------------------------- building rows


def gemm(m: int, n: int, k: int, dtype: str, batch: int = 1) -> list[Row]:
    """A matrix multiply; none where a size is 0."""
    return [] if 0 in (m, n, k, batch) else [("gemm", {"m": m, "n": n, "k": k, "dtype": dtype, "batch": batch})]


def reduction(op: str, x: Value, dim: int, dtype: str) -> list[Row]:
    """A reduction of rows of `dim` elements of `x`; a few long rows are cut over the blocks of a GPU."""
    if not x.numel or not dim:
        return []
    rows = max(x.numel // dim, 1)
    if op in ("sum", "mean", "max") and dim > _LONGEST_ROW and rows < _MANY_ROWS:
        cuts = -(-dim // _LONGEST_ROW)
        rows, dim = rows * cuts, -(-dim // cuts)
    return [("row_reduction", {"op": op, "rows": rows, "dim": dim, "dtype": dtype})]


def elementwise(
    op: str, reads: Sequence[Value], writes: Sequence[Value], formats: Formats, flop: float = 1
) -> list[Row]:
    """One pointwise operation: its inputs counted in tensors as large as the result, small ones not at all."""
    results = [one for one in writes if one.numel]
    if not results:
        return []
    out = results[0]
    elements = max([out.numel, *(one.numel for one in reads)])
    largest = max(reads, key=lambda one: one.numel, default=out)
    if largest.numel * 2 < elements:  # nothing but small inputs: a fill
        largest = out
    read_bytes = sum(formats.bytes(one) for one in reads)
    inputs = round(read_bytes / (elements * formats.size(largest)))
    written = sum(formats.bytes(one) for one in results)
    outputs = max(round(written / (elements * formats.size(out))), 1)
    row = {"op": op, "elements": elements, "inputs": inputs, "outputs": outputs, "flop_per_element": flop,
           "dtype": formats.of(largest), "out_dtype": formats.of(out)}  # fmt: skip
    return [("elementwise", row)]


def fetched(rows: int, dim: int, table_rows: int, dtype: str) -> list[Row]:
    """`rows` rows of `dim` elements fetched from a table (or written to it)."""
    if not rows or not dim:
        return []
    return [("gather", {"rows": rows, "dim": dim, "table_rows": max(table_rows, 1), "dtype": dtype})]


# ---------------------------------------------------------------- reductions


def along(op: str, default: int = -1, inputs: int = 1) -> Handler:
    """A softmax or norm along the axes from `axis` on (norms), or along `axis` alone (softmax)."""

    def rows(call: Call) -> list[Row]:
        x = call.x
        if not x.shape:
            return reduction(op, x, 1, call.fmt(x))
        axis = int(call.attrs.get("axis", default)) % len(x.shape)
        dim = x.shape[axis] if op in ("softmax", "max") else math.prod(x.shape[axis:])
        made = reduction(op, x, dim, call.fmt(x))
        return [(kind, {**columns, "inputs": inputs}) if inputs > 1 else (kind, columns) for kind, columns in made]

    return rows


def reduced(op: str) -> Handler:
    """A reduction to as many elements as the result has."""
    return lambda call: reduction(op, call.x, max(call.x.numel // max(call.out.numel, 1), 1), call.fmt(call.x))


def grouped_norm(call: Call) -> list[Row]:
    """A norm of groups of channels of each image; without groups, of each channel."""
    x = call.x
    groups = int(call.attrs.get("num_groups", call.attrs.get("groups", x.shape[1] if len(x.shape) > 1 else 1)))
    return reduction("group_norm", x, max(x.numel // max(x.shape[0] * groups, 1), 1), call.fmt(x))


def batch_norm(call: Call) -> list[Row]:
    """Batch norm: a scale where its statistics are known; in training a reduction."""
    x = call.x
    if call.attrs.get("training_mode"):
        return reduction("batch_norm", x, max(x.numel // max(x.shape[1], 1), 1), call.fmt(x))
    return elementwise("scale", [x], [call.out], call.formats, 2)


def pooled(call: Call) -> list[Row]:
    """Pooling: each element of the input about once."""
    x, out = call.x, call.out
    if not out.numel:
        return []
    return [("row_reduction", {"op": "pool", "rows": out.numel, "dim": max(x.numel // out.numel, 1),
                               "dtype": call.fmt(x)})]  # fmt: skip


# ---------------------------------------------------------------- pointwise, copies, lookups


def pointwise(op: str, flop: float = 1) -> Handler:
    """A pointwise operation on all tensors given."""
    return lambda call: elementwise(op, call.given(), [one for one in call.outs if one is not None],
                                    call.formats, flop)  # fmt: skip


def first_alone(op: str, flop: float = 1) -> Handler:
    """A pointwise operation on the first tensor; scales, bounds and sizes beside it are small."""
    return lambda call: elementwise(op, [call.x], [call.out], call.formats, flop)


def cast(call: Call) -> list[Row]:
    """A cast; without change of format nothing."""
    x, out = call.x, call.out
    if not out.numel or x.elem == out.elem:
        return []
    return elementwise("cast", [x], [out], call.formats)


def moved(call: Call) -> list[Row]:
    """A copy into another place or layout."""
    out = call.out
    total = sum(one.numel for one in call.outs if one is not None)
    return [("copy", {"elements": total, "dtype": call.fmt(out)})] if total else []


def transposed(call: Call) -> list[Row]:
    """A copy, unless dimensions of one element alone change their places."""
    perm = call.attrs.get("perm") or list(range(len(call.x.shape)))[::-1]
    real = [axis for axis in perm if 0 <= axis < len(call.x.shape) and call.x.shape[axis] != 1]
    return [] if real == sorted(real) else moved(call)


def filled(call: Call) -> list[Row]:
    """Memory written with numbers."""
    return elementwise("other", [], [call.out], call.formats, 0)


def gathered(call: Call) -> list[Row]:
    """Rows of a table along one axis."""
    x, out, index = call.x, call.out, call.arg(1)
    if not x.shape:
        return []
    if index is not None and index.numel == 1 and call.op == "Gather":  # one slice of a tensor
        return moved(call)
    dim = math.prod(x.shape[int(call.attrs.get("axis", 0)) % len(x.shape) + 1 :])
    return fetched(out.numel // max(dim, 1), dim, x.numel // max(dim, 1), call.fmt(x))


def gathered_nd(call: Call) -> list[Row]:
    """Rows picked by tuples of places."""
    x, out, index = call.x, call.out, call.arg(1)
    spanned = index.shape[-1] + int(call.attrs.get("batch_dims", 0)) if index is not None and index.shape else 1
    dim = math.prod(x.shape[spanned:])
    return fetched(out.numel // max(dim, 1), dim, x.numel // max(dim, 1), call.fmt(x))


def scattered(call: Call) -> list[Row]:
    """Values written into a copy of a tensor."""
    x, source = call.x, call.arg(2) or call.x
    copied: list[Row] = [("copy", {"elements": x.numel, "dtype": call.fmt(x)})] if x.numel else []
    same = len(source.shape) > 1 and bool(x.shape) and source.shape[-1] == x.shape[-1]
    dim = source.shape[-1] if same else 1
    return copied + fetched(source.numel // max(dim, 1), dim, x.numel // max(dim, 1), call.fmt(x))


def sorted_top(call: Call) -> list[Row]:
    """The largest of each row: read once; of long rows many, sorted."""
    x = call.x
    if not x.shape:
        return []
    axis = int(call.attrs.get("axis", -1)) % len(x.shape)
    if call.out.numel * 4 > x.numel and x.shape[axis] > _MANY_ROWS:
        turn: Row = ("elementwise", {"op": "other", "elements": x.numel, "inputs": 2, "outputs": 2, "dtype": "fp32"})
        return [turn] * 4
    return reduction("max", x, x.shape[axis], call.fmt(x))


def suppressed(call: Call) -> list[Row]:
    """Boxes that overlap others thrown out: scores sorted, every pair of boxes compared, 8 FLOP a pair."""
    boxes, scores = call.ins[0], call.ins[1]
    if boxes is None or scores is None or not boxes.numel or not scores.numel:
        return []
    many = boxes.shape[1] if len(boxes.shape) > 1 else 1
    turn: Row = ("elementwise", {"op": "other", "elements": scores.numel, "inputs": 2, "outputs": 2, "dtype": "fp32"})
    compare = {"op": "other", "elements": scores.numel, "inputs": 1, "flop_per_element": 8.0 * many, "dtype": "fp32"}
    return [turn, turn, turn, turn, ("elementwise", compare)]


def fourier(call: Call) -> list[Row]:
    """A Fourier transform, 5 n log2 n FLOP."""
    return elementwise("other", [call.x], [call.out], call.formats, 5 * math.log2(max(call.out.numel, 2)))


def windowed_fourier(call: Call) -> list[Row]:
    """Fourier transforms of windows of a signal."""
    frames = max(call.out.shape[-2] if len(call.out.shape) > 1 else 1, 2)
    return elementwise("other", [call.x], [call.out], call.formats, 5 * math.log2(2 * frames))


def places(call: Call) -> list[Row]:
    """Places of what is not zero: counted, then written."""
    x, index = call.x, Value(-1, call.out.shape, INT64)
    return elementwise("other", [x], [index], call.formats, 4) if x.numel else []
