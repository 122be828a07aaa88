"""How PyTorch operators become operations of ours: rules from arguments and result, which the table is made of."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from joulecast.workloads.pytorch_costs import Row
from joulecast.workloads.pytorch_shapes import (
    elementwise,
    fmt,
    matmul_fmt,
    tensors_in,
)


@dataclass(frozen=True)
class Call:
    """One operator as it was called: arguments and result, whose shapes alone are looked at."""

    name: str
    args: Sequence[Any]
    kwargs: dict[str, Any]
    out: Any

    def arg(self, place: int, name: str, default: Any = None) -> Any:
        """An argument by place or by name."""
        return self.args[place] if len(self.args) > place else self.kwargs.get(name, default)

    @property
    def result(self) -> Tensor | None:
        """The first tensor of the result."""
        found = tensors_in(self.out)
        return found[0] if found else None


#: A reduction of fewer rows than this, each longer than that, is spread over the blocks of a GPU.
_MANY_ROWS, _LONGEST_ROW = 1024, 8192

Handler = Callable[[Call], list[Row]]


def gemm(m: int, n: int, k: int, dtype: str, batch: int = 1) -> list[Row]:
    """A matrix multiply; none where a size is 0."""
    if 0 in (m, n, k, batch):
        return []
    return [("gemm", {"m": m, "n": n, "k": k, "dtype": dtype, "batch": batch})]


def _real(tensor: Tensor, size: int) -> int:
    """A size of a product in real numbers: four products make one of complex numbers, two along each of two axes."""
    return 2 * size if tensor.is_complex() else size


def mm(place: int) -> Handler:
    """A product of two matrices, the arguments from `place` on."""

    def rows(call: Call) -> list[Row]:
        a, b = call.args[place], call.args[place + 1]
        if a.layout is not torch.strided:  # each number that is stored takes a row of the other matrix
            return gather(a._nnz(), b.shape[1], b.shape[0], fmt(b))
        return gemm(a.shape[0], _real(b, b.shape[1]), _real(a, a.shape[1]), matmul_fmt(a))

    return rows


def vector(place: int) -> Handler:
    """A product with a vector."""

    def rows(call: Call) -> list[Row]:
        a = call.args[place]
        if a.layout is not torch.strided:
            return gather(a._nnz(), 1, a.shape[1], fmt(a))
        return gemm(1, _real(a, a.shape[0] if a.dim() == 2 else 1), _real(a, a.shape[-1]), matmul_fmt(a))

    return rows


def bmm(place: int) -> Handler:
    """Independent products."""

    def rows(call: Call) -> list[Row]:
        a, b = call.args[place], call.args[place + 1]
        batch, m, k, n = a.shape[0], a.shape[1], _real(a, a.shape[2]), _real(b, b.shape[2])
        if 0 in (batch, m, n, k):
            return []
        return [("batched_gemm", {"batch": batch, "m": m, "n": n, "k": k, "dtype": matmul_fmt(a)})]

    return rows


def linear(call: Call) -> list[Row]:
    """A dense layer."""
    x, weight = call.args[0], call.args[1]
    return gemm(x.numel() // max(x.shape[-1], 1), weight.shape[0], x.shape[-1], matmul_fmt(x))


def grouped_mm(call: Call) -> list[Row]:
    """Rows of `a` spread evenly over the experts of `b`; both flat where the weights' gradient is made."""
    a, b = call.args[0], call.args[1]
    dtype = matmul_fmt(a)
    if a.dim() == 2 and b.dim() == 2:
        experts = call.result.shape[0] if call.result is not None else 1
        return spread(a.shape[1], experts, lambda k: (a.shape[0], b.shape[1], k), dtype)
    if a.dim() == 3:
        return gemm(a.shape[1], b.shape[-1], a.shape[2], dtype, a.shape[0])
    return spread(a.shape[0], b.shape[0], lambda m: (m, b.shape[2], a.shape[1]), dtype)


def distances(call: Call) -> list[Row]:
    """Distances between the rows of two tensors: a product of them."""
    a, b = call.args[0], call.args[1]
    batch = max(math.prod(a.shape[:-2]), 1)
    return gemm(a.shape[-2], b.shape[-2], a.shape[-1], matmul_fmt(a), batch)


def triangular(call: Call) -> list[Row]:
    """A triangular solve: half a product of its two tensors."""
    a, b = call.args[0], call.args[1]
    batch, size = max(math.prod(b.shape[:-2]), 1), a.shape[-1]
    return gemm(size, max(b.numel() // max(batch * size, 1), 1), max(size // 2, 1), matmul_fmt(a), batch)


def spread(total: int, groups: int, shape: Callable[[int], tuple[int, int, int]], dtype: str) -> list[Row]:
    """Multiplies of `total` rows over `groups`, as evenly as whole rows go."""
    low, more = divmod(total, max(groups, 1))
    return [
        row
        for size, count in ((low, groups - more), (low + 1, more))
        if size and count
        for row in gemm(*shape(size), dtype, count)
    ]


def softmax(call: Call) -> list[Row]:
    """A softmax along one dimension."""
    x = call.args[0]
    return reduction("softmax", x, x.shape[call.args[1]] if x.dim() else 1)


def reduction(op: str, x: Tensor, dim: int, dtype: str = "") -> list[Row]:
    """A reduction of rows of `dim` elements of `x`; a few long rows are cut over the blocks of a GPU."""
    if not x.numel() or not dim:
        return []
    rows = max(x.numel() // dim, 1)
    if op in ("sum", "mean", "max") and dim > _LONGEST_ROW and rows < _MANY_ROWS:
        cuts = -(-dim // _LONGEST_ROW)
        rows, dim = rows * cuts, -(-dim // cuts)
    return [("row_reduction", {"op": op, "rows": rows, "dim": dim, "dtype": dtype or fmt(x)})]


def chosen(call: Call) -> list[Row]:
    """The loss of one class a row: as many elements as there are targets."""
    return reduction("sum", call.args[1], max(call.args[1].numel(), 1))


def zeros_but_few(call: Call) -> list[Row]:
    """A tensor of zeros with few elements set."""
    return elementwise("other", [], tensors_in(call.out)[:1], flop=0)


def reduce_by(op: str) -> Handler:
    """A reduction to as many elements as the result has."""

    def rows(call: Call) -> list[Row]:
        x, out = tensors_in(call.args)[0], call.result
        kept = out.numel() if out is not None else 1
        return reduction(op, x, max(x.numel() // max(kept, 1), 1))

    return rows


def norm(op: str, width: Callable[[Call], int]) -> Handler:
    """A normalisation over `width` elements."""
    return lambda call: reduction(op, call.args[0], width(call))


def group_width(call: Call) -> int:
    """Elements that a group norm takes together."""
    x = call.args[0]
    return max(int(x.numel()) // max(int(call.args[3]) * int(call.args[6]), 1), 1)


def weight_norm_width(call: Call) -> int:
    """Elements of a weight that share a gain."""
    return max(int(call.args[0].numel()) // max(int(call.args[1].numel()), 1), 1)


def batch_norm(call: Call) -> list[Row]:
    """Batch norm: statistics in training, a scale otherwise."""
    x = call.args[0]
    training = call.name in ("cudnn_batch_norm", "_batch_norm_with_update", "_native_batch_norm_legit_functional")
    if call.name in ("native_batch_norm", "_native_batch_norm_legit"):
        training = any(one is True for one in call.args[3:7])
    elif call.name == "cudnn_batch_norm":
        training = bool(call.args[5])
    if not training:
        return elementwise("scale", [x], [call.result], flop=2)
    return reduction("batch_norm", x, max(x.numel() // max(x.shape[1], 1), 1))


def norm_backward(op: str) -> Handler:
    """Gradient of the input in one walk over two tensors, those of gain and bias in another along the columns."""

    def rows(call: Call) -> list[Row]:
        x = tensors_in(call.args)[1]
        if not x.numel():
            return []
        width = _normalised(op, call, x)
        made: list[Row] = [("row_reduction", {"op": op, "rows": max(x.numel() // width, 1), "dim": width, "inputs": 2,
                                              "dtype": fmt(x)})]  # fmt: skip
        gains = [one.numel() for one in tensors_in(call.out)[1:] if 0 < one.numel() < x.numel()]
        if op != "batch_norm" and gains:
            sums = {"op": "sum", "rows": gains[0], "dim": x.numel() // gains[0], "inputs": 2, "dtype": fmt(x)}
            made.append(("row_reduction", sums))
        return made

    return rows


def _normalised(op: str, call: Call, x: Tensor) -> int:
    """Elements that a norm takes together."""
    if op == "layer_norm":
        return max(int(math.prod(call.args[2])), 1)
    if op == "group_norm":
        return max(int(x.numel()) // max(int(call.args[5]) * int(call.args[8]), 1), 1)
    return max(int(x.numel()) // max(int(x.shape[1]), 1), 1)


def softmax_backward(call: Call) -> list[Row]:
    """The gradient of a softmax: two tensors read, one written."""
    grad = call.args[0]
    dim = grad.shape[call.args[2]] if grad.dim() else 1
    return [(kind, {**columns, "inputs": 2}) for kind, columns in reduction("softmax", grad, dim)]


def pointwise(op: str, flop: float = 1) -> Handler:
    """A pointwise operation on all tensors given."""
    return lambda call: elementwise(op, distinct(call), tensors_in(call.out), flop=flop)


def distinct(call: Call) -> list[Tensor]:
    """Tensors read, one given twice (x * x) once; in an ``out=`` none."""
    seen: list[Tensor] = []
    for one in tensors_in(call.args) + tensors_in([v for k, v in call.kwargs.items() if k != "out"]):
        if all(one is not other for other in seen):
            seen.append(one)
    return seen


def cast(call: Call) -> list[Row]:
    """A cast; without change of format a copy."""
    x, out = tensors_in(call.args)[-1], call.result
    if out is None or not out.numel():
        return []
    if x.dtype == out.dtype:
        return [("copy", {"elements": out.numel(), "dtype": fmt(out)})]
    return elementwise("cast", [x], [out])


def copy(call: Call) -> list[Row]:
    """A copy into another place or layout."""
    out = call.result
    return [("copy", {"elements": out.numel(), "dtype": fmt(out)})] if out is not None and out.numel() else []


def fill(call: Call) -> list[Row]:
    """Memory written with numbers."""
    return elementwise("other", [], tensors_in(call.out)[:1], flop=0)


def foreach(op: str, lists: int, written: int, flop: float) -> Handler:
    """Many tensors in one kernel: `lists` lists of them read, `written` written."""

    def rows(call: Call) -> list[Row]:
        first = tensors_in(call.args[0])
        given = [tensors_in(one) for one in call.args if isinstance(one, list | tuple) and tensors_in(one)]
        total = sum(one.numel() for one in first)
        if not total:
            return []
        reads = max(1, min(lists, len(given)))
        return [("elementwise", {"op": op, "elements": total, "inputs": reads, "outputs": written,
                                 "flop_per_element": flop, "dtype": fmt(first[0])})]  # fmt: skip

    return rows


def foreach_reduction(call: Call) -> list[Row]:
    """A reduction of many tensors in one kernel."""
    first = tensors_in(call.args[0])
    total = sum(one.numel() for one in first)
    return [("row_reduction", {"op": "sum", "rows": 1, "dim": total, "dtype": fmt(first[0])})] if total else []


def embedding(call: Call) -> list[Row]:
    """Rows of a table."""
    table, index = call.args[0], call.args[1]
    return gather(index.numel(), table.shape[-1], table.shape[0], fmt(table))


def gather(rows: int, dim: int, table_rows: int, dtype: str) -> list[Row]:
    """`rows` rows of `dim` elements fetched from a table (or written to it)."""
    if not rows or not dim:
        return []
    return [("gather", {"rows": rows, "dim": dim, "table_rows": max(table_rows, 1), "dtype": dtype})]


def embedding_backward(call: Call) -> list[Row]:
    """The gradient of a table: zeros, and rows added."""
    grad, out = call.args[0], call.result
    if out is None:
        return []
    dim = grad.shape[-1]
    return fill(call) + gather(grad.numel() // max(dim, 1), dim, out.shape[0], fmt(grad))


def index_rows(call: Call) -> list[Row]:
    """Elements or rows picked by indices or a mask."""
    x, out = call.args[0], call.result
    if out is None or not out.numel() or not x.dim():
        return []
    picked = call.args[1]
    last = max((i for i, one in enumerate(picked) if one is not None), default=0)
    first = picked[last]
    spanned = first.dim() if isinstance(first, Tensor) and first.dtype is torch.bool else 1
    dim = math.prod(x.shape[last + spanned :])
    return gather(out.numel() // max(dim, 1), dim, x.numel() // max(dim, 1), fmt(x))


def select_rows(call: Call) -> list[Row]:
    """Rows picked along one dimension."""
    x, out = call.args[0], call.result
    if out is None or not x.dim():
        return []
    dim = math.prod(x.shape[int(call.args[1]) % x.dim() + 1 :]) if len(call.args) > 1 else 1
    return gather(out.numel() // max(dim, 1), dim, x.numel() // max(dim, 1), fmt(x))


def scatter(call: Call) -> list[Row]:
    """Values written (or added) into a tensor; not in place, it is copied first."""
    x, source = call.args[0], tensors_in(call.args)[-1]
    copied = [] if call.name.endswith("_") or not x.numel() else [("copy", {"elements": x.numel(), "dtype": fmt(x)})]
    dim = source.shape[-1] if source.dim() > 1 and x.dim() and source.shape[-1] == x.shape[-1] else 1
    return copied + gather(source.numel() // max(dim, 1), dim, x.numel() // max(dim, 1), fmt(x))


def radix_sort(call: Call) -> list[Row]:
    """A radix sort: keys and places written in four turns."""
    x = call.args[0]
    turn = ("elementwise", {"op": "other", "elements": x.numel(), "inputs": 2, "outputs": 2, "dtype": "fp32"})
    return [turn] * 4 if x.numel() else []


def topk(call: Call) -> list[Row]:
    """The largest of each row: read once."""
    x = call.args[0]
    return reduction("max", x, x.shape[call.arg(2, "dim", -1)] if x.dim() else 1)


def pool(call: Call) -> list[Row]:
    """Pooling: each element of the input about once."""
    x, out = call.args[0], call.result
    if out is None or not out.numel():
        return []
    return [("row_reduction", {"op": "pool", "rows": out.numel(), "dim": max(x.numel() // out.numel(), 1),
                               "dtype": fmt(x)})]  # fmt: skip


def fourier(call: Call) -> list[Row]:
    """A Fourier transform, 5 n log2 n FLOP."""
    out = call.result
    return elementwise("other", tensors_in(call.args)[:1], [out], flop=5 * math.log2(max(out.numel(), 2)))  # type: ignore[union-attr]


def collective(name: str) -> Handler:
    """An exchange between GPUs."""

    def rows(call: Call) -> list[Row]:
        sent = max(tensors_in([call.args, call.out]), key=lambda one: one.numel() * one.element_size())
        size = next((one for one in call.args if isinstance(one, int) and not isinstance(one, bool) and one > 1), 2)
        return [("nccl", {"collective": name, "num_gpus": size,
                          "message_bytes": sent.numel() * sent.element_size(), "dtype": fmt(sent)})]  # fmt: skip

    return rows


def nothing(_: Call) -> list[Row]:
    """Nothing that a GPU runs."""
    return []
