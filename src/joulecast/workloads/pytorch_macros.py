"""Functions that a GPU runs as one kernel though PyTorch takes them apart on a CPU: recorded as what they are there.

Fused attention, RMS norms and recurrent layers are caught above autograd, so that their gradients are caught too;
autocast's rules are applied where it would apply them on a GPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from torch.overrides import TorchFunctionMode

from joulecast.workloads.pytorch_costs import Row
from joulecast.workloads.pytorch_masks import seen_through
from joulecast.workloads.pytorch_recorder import Recorder
from joulecast.workloads.pytorch_shapes import attention, attention_gradient, fmt, matmul_fmt, tensors_in
from joulecast.workloads.pytorch_values import has_no_data


class _Whole(torch.autograd.Function):  # type: ignore[misc]
    """A function recorded as one operation, forward and backward; computed in truth only on tensors with data."""

    @staticmethod
    def forward(ctx: Any, recorder: Recorder, what: Macro, *tensors: Tensor | None) -> Any:
        ctx.recorder, ctx.what = recorder, what
        ctx.save_for_backward(*tensors)
        with recorder.pause():
            out = what.run(tensors)
        recorder.write_down(what.name, what.forward, list(tensors), out)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        tensors = ctx.saved_tensors
        wanted = ctx.needs_input_grad[2:]
        with ctx.recorder.pause():
            if any(one is not None and has_no_data(one) for one in tensors):
                made = [torch.empty_like(one) if need else None for one, need in zip(tensors, wanted, strict=True)]
            else:
                made = _gradients(ctx.what, tensors, wanted, grads)
        ctx.recorder.write_down(ctx.what.name + "_backward", ctx.what.backward, [*grads, *tensors], made)
        return (None, None, *made)


def whole(recorder: Recorder, what: Macro, *tensors: Tensor | None) -> Any:
    """The result of a function that is recorded as one operation."""
    return _Whole.apply(recorder, what, *tensors)


def _gradients(what: Macro, tensors: Any, wanted: Any, grads: Any) -> list[Tensor | None]:
    with torch.enable_grad():
        leaves = [
            None if one is None else one.detach().requires_grad_(need)
            for one, need in zip(tensors, wanted, strict=True)
        ]
        out = what.run(leaves)
        pairs = [
            (one, grad)
            for one, grad in zip(tensors_in(out), grads, strict=False)
            if one.requires_grad and grad is not None
        ]
        asked = [one for one in leaves if one is not None and one.requires_grad]
        found = iter(
            torch.autograd.grad([one for one, _ in pairs], asked, [grad for _, grad in pairs], allow_unused=True)
        )
    return [next(found) if one is not None and one.requires_grad else None for one in leaves]


class Macro:
    """A function priced as a whole: what computes it, and the operations it is, forward and backward."""

    def __init__(self, name: str, run: Callable[[Any], Any], forward: list[Row], backward: list[Row]) -> None:
        self.name, self.run, self.forward, self.backward = name, run, forward, backward


class Macros(TorchFunctionMode):  # type: ignore[misc]
    """A function mode that records whole functions, and casts as autocast does.

    Parameters
    ----------
    recorder : Recorder
    autocast : torch.dtype, optional
        Format that matrix multiplies and convolutions of fp32 tensors are cast to; within ``torch.autocast("cuda")``
        that of the program.
    """

    def __init__(self, recorder: Recorder, autocast: torch.dtype | None = None) -> None:
        super().__init__()
        self.recorder, self.autocast = recorder, autocast
        self._cast: dict[int, tuple[Tensor, Tensor]] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _LOWER or func in _HIGHER:
            lower = self.autocast or (torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else None)
            if lower is not None:
                args, kwargs = self._autocast(lower, func, args, kwargs)
        if func is torch.Tensor.__format__ and has_no_data(args[0]) and not args[0].dim():
            return format(self._listed(args[0]), *args[1:])
        if func is torch.Tensor.tolist and has_no_data(args[0]):
            return self._listed(args[0])
        make = _WHOLE.get(func)
        if make is not None and not self.recorder.suspended:
            found = make(self, args, kwargs)
            if found is not None:
                macro, tensors = found
                return whole(self.recorder, macro, *tensors)
        return func(*args, **kwargs)

    def _listed(self, tensor: Tensor) -> Any:
        """The numbers of a tensor, as far as they are known; ones where they are not."""
        value = self.recorder.values.of(tensor)
        if value is None:
            self.recorder.values.assumed.add("numbers that depend on weights are taken as one")
            value = torch.ones(tensor.shape, dtype=tensor.dtype, device="cpu")
        with self.recorder.pause():
            return value.tolist()

    def _autocast(self, lower: torch.dtype, func: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
        change = (torch.float32, lower) if func in _LOWER else (lower, torch.float32)

        def cast(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                return self._as(value, change[1]) if value.dtype is change[0] else value
            if isinstance(value, list | tuple) and not isinstance(value, torch.Size):
                return type(value)(cast(one) for one in value) if type(value) in (list, tuple) else value
            return value

        return [cast(one) for one in args], {name: cast(one) for name, one in kwargs.items()}

    def _as(self, tensor: Tensor, dtype: Any) -> Tensor:
        """`tensor` in another format; a weight is cast once."""
        if not (tensor.is_leaf and tensor.requires_grad):
            return tensor.to(dtype)
        kept = self._cast.get(id(tensor))
        if kept is None or kept[1].dtype is not dtype:
            kept = self._cast[id(tensor)] = (tensor, tensor.to(dtype))
        return kept[1]


def _scaled_dot_product(mode: Macros, args: Any, kwargs: Any) -> Any:
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
    given = dict(zip(names, args, strict=False)) | kwargs
    q, k, v, mask = given["query"], given["key"], given["value"], given.get("attn_mask")
    if not 3 <= q.dim() <= 4 or k.dim() != q.dim() or type(q).__name__ == "NestedTensor":
        return None
    causal, seen = bool(given.get("is_causal")), None
    if isinstance(mask, torch.Tensor):
        value = mode.recorder.values.of(mask)
        seen = None if value is None else seen_through(value, q.shape[-2], k.shape[-2])
    details: dict[str, Any] = {"causal": causal}
    if seen is not None:
        details = {"causal": seen.causal, "window": seen.window, "past": seen.past, "keys": seen.keys or None}
    elif causal:
        details["past"] = 0 if q.shape[-2] > 1 else None
    forward = attention(q, k, v, **details)
    backward = attention_gradient(forward)

    def run(tensors: Any) -> Any:
        query, key, value_, *rest = tensors
        if has_no_data(query):
            shape = [*query.shape[:-1], value_.shape[-1]]
            if len(shape) == 4:  # kernels lay the heads of a token side by side
                return query.new_empty((shape[0], shape[2], shape[1], shape[3])).transpose(1, 2)
            return query.new_empty(shape)
        options = {name: one for name, one in given.items() if name not in names[:4]}
        return F.scaled_dot_product_attention(query, key, value_, rest[0] if rest else None, **options)

    tensors = [q, k, v, *([mask] if isinstance(mask, torch.Tensor) else [])]
    return Macro("scaled_dot_product_attention", run, forward, backward), tensors


def _rms_norm(_: Macros, args: Any, kwargs: Any) -> Any:
    given = dict(zip(("input", "normalized_shape", "weight", "eps"), args, strict=False)) | kwargs
    x, weight = given["input"], given.get("weight")
    width = math.prod(given["normalized_shape"])
    if not x.numel():
        return None
    forward: list[Row] = [
        ("row_reduction", {"op": "layer_norm", "rows": x.numel() // width, "dim": width, "dtype": fmt(x)})
    ]
    backward: list[Row] = [(forward[0][0], {**forward[0][1], "inputs": 2})]
    if weight is not None:
        sums = {"op": "sum", "rows": width, "dim": x.numel() // width, "inputs": 2, "dtype": fmt(x)}
        backward.append(("row_reduction", sums))

    def run(tensors: Any) -> Any:
        if has_no_data(tensors[0]):
            return torch.empty_like(tensors[0], memory_format=torch.contiguous_format)
        gain = tensors[1] if len(tensors) > 1 else None
        return F.rms_norm(tensors[0], given["normalized_shape"], gain, given.get("eps"))

    return Macro("rms_norm", run, forward, backward), [x, *([weight] if weight is not None else [])]


def _recurrent(name: str, gates: int) -> Callable[[Macros, Any, Any], Any]:
    """A recurrent layer as cuDNN runs it: inputs of all steps multiplied at once, then one product a step."""

    def make(_: Macros, args: Any, __: Any) -> Any:
        if len(args) < 8 or isinstance(args[3], list | tuple) or not isinstance(args[0], torch.Tensor):
            return None  # packed sequences are taken apart
        x, hidden, weights, layers, two_ways = args[0], args[1], args[2], args[4], args[7]
        batch_first = bool(args[8]) if len(args) > 8 else False
        states = list(hidden) if isinstance(hidden, list | tuple) else [hidden]
        steps, batch = (x.shape[1], x.shape[0]) if batch_first else (x.shape[0], x.shape[1])
        ways = 2 if two_ways else 1
        inner, handed = weights[0].shape[0] // gates, weights[1].shape[1]
        rows = _recurrent_rows(x, steps, batch, inner, handed, gates, layers, ways)
        width = ways * handed

        def run(tensors: Any) -> Any:
            first, rest = tensors[0], tensors[1:]
            if has_no_data(first):
                shape = (batch, steps, width) if batch_first else (steps, batch, width)
                return (first.new_empty(shape), *(torch.empty_like(one) for one in rest[: len(states)]))
            state = tuple(rest[: len(states)])
            given = list(rest[len(states) :])
            return tuple(getattr(_VARIABLE, name)(first, state if gates == 4 else state[0], given, *args[3:]))

        backward = [(kind, {**columns, "count": 2 * columns.get("count", 1)}) for kind, columns in rows]
        return Macro(name, run, rows, backward), [x, *states, *weights]

    return make


def _recurrent_rows(
    x: Tensor, steps: int, batch: int, inner: int, handed: int, gates: int, layers: int, ways: int
) -> list[Row]:
    """`inner` is the width of the cells, `handed` that of what they hand on: smaller where it is projected."""
    dtype, width = matmul_fmt(x), x.shape[-1]
    rows: list[Row] = []
    for layer in range(layers):
        inputs = width if layer == 0 else handed * ways
        whole = {"m": steps * batch, "n": gates * inner, "k": inputs, "dtype": dtype, "count": ways}
        each = {"m": batch, "n": gates * inner, "k": handed, "dtype": dtype, "count": steps * ways}
        point = {"op": "fused", "elements": batch * inner, "inputs": gates + 1, "outputs": 2, "flop_per_element": 40,
                 "dtype": fmt(x), "count": steps * ways}  # fmt: skip
        rows += [("gemm", whole), ("gemm", each), ("elementwise", point)]
        if handed != inner:
            rows.append(("gemm", {"m": batch, "n": handed, "k": inner, "dtype": dtype, "count": steps * ways}))
    return rows


_VARIABLE = torch._C._VariableFunctions
_GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}

_WHOLE: dict[Any, Callable[[Macros, Any, Any], Any]] = {
    F.scaled_dot_product_attention: _scaled_dot_product,
    torch.ops.aten.scaled_dot_product_attention.default: _scaled_dot_product,
    torch.ops.aten.rms_norm.default: _rms_norm,
    F.rms_norm: _rms_norm,
    torch.rms_norm: _rms_norm,
    **{getattr(_VARIABLE, name): _recurrent(name, gates) for name, gates in _GATES.items()},
}

#: What autocast on a GPU runs in 16 bit, and what in fp32.
_LOWER = frozenset(
    {
        F.linear, F.conv1d, F.conv2d, F.conv3d, F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d,
        F.scaled_dot_product_attention, F.bilinear, torch.matmul, torch.mm, torch.bmm, torch.addmm, torch.baddbmm,
        torch.addbmm, torch.mv, torch.addmv, torch.einsum, torch.chain_matmul, torch.Tensor.matmul,
        torch.Tensor.__matmul__, torch.Tensor.__rmatmul__, torch.Tensor.mm, torch.Tensor.bmm, torch.Tensor.addmm,
        F.prelu, _VARIABLE.lstm, _VARIABLE.gru,
    }
)  # fmt: skip
_HIGHER = frozenset(
    {
        F.softmax, F.log_softmax, F.layer_norm, F.group_norm, F.cross_entropy, F.nll_loss, F.mse_loss, F.l1_loss,
        F.binary_cross_entropy_with_logits, F.kl_div, F.cosine_similarity, F.rms_norm, torch.softmax,
        torch.log_softmax, torch.exp, torch.log, torch.pow, torch.rsqrt, torch.sum, torch.prod, torch.cumsum,
        torch.norm, torch.cosh, torch.sinh, torch.tan, torch.acos, torch.asin, torch.log10, torch.log1p, torch.log2,
        torch.reciprocal, torch.expm1, torch.Tensor.softmax, torch.Tensor.exp, torch.Tensor.log, torch.Tensor.pow,
        torch.Tensor.__pow__, torch.Tensor.rsqrt, torch.Tensor.sum, torch.Tensor.cumsum, torch.Tensor.norm,
        torch.Tensor.log_softmax,
    }
)  # fmt: skip
