"""What PyTorch's operators do, from the shapes and types that a profiler recorded: rows of our kinds of operation.

Each operator is one entry of `_OPERATORS`; an operator without one, or whose record lacks what its entry needs, has no
rows: its kernels are then counted by what their names and times tell.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from joulecast.workloads.profile import Signature

#: Number formats by the profiler's spelling of element types; whole numbers by their size.
TYPES = {
    "float": "fp32", "c10::half": "fp16", "half": "fp16", "c10::bfloat16": "bf16", "bfloat16": "bf16", "double": "fp64",
    "c10::float8_e4m3fn": "fp8", "c10::float8_e5m2": "fp8", "c10::float8_e4m3fnuz": "fp8", "int": "fp32",
    "long": "fp64", "long int": "fp64", "short": "fp16", "short int": "fp16", "bool": "int8", "unsigned char": "int8",
    "signed char": "int8", "char": "int8", "unsigned int": "fp32", "unsigned short": "fp16", "unsigned long": "fp64",
    "c10::complex<float>": "fp64", "bytes": "int8", "int8": "int8",
}  # fmt: skip
_BYTES = {"fp64": 8, "fp32": 4, "fp16": 2, "bf16": 2, "fp8": 1, "int8": 1}

#: Floating-point words among them: what a matrix product may compute in.
_FLOATS = frozenset(("fp64", "fp32", "fp16", "bf16", "fp8"))


@dataclass(frozen=True)
class OpRow:
    """One operation: its kind, its columns as `joulecast.workloads.kinds` names them, and how often it is done."""

    kind: str
    columns: Mapping[str, Any]
    count: float = 1.0


class _LackingError(Exception):
    """What was recorded does not say what is done."""


@lru_cache(maxsize=65536)
def _rows(name: str, key: _Key, ranks: int) -> tuple[OpRow, ...]:
    entry = _OPERATORS.get(_bare(name))
    if entry is None:
        return ()
    try:
        return tuple(row for row in entry(_Arguments(key.signature, ranks)) if _positive(row))
    except (_LackingError, IndexError, TypeError, ValueError, ZeroDivisionError):
        return ()


def rows_of(name: str, signature: Signature, ranks: int | None = None) -> tuple[OpRow, ...]:
    """What the operator `name` does, given what was recorded of its arguments.

    Parameters
    ----------
    name : str
        As the profiler writes it, such as ``aten::addmm``.
    signature : Signature
    ranks : int, optional
        Ranks of the job, which a collective runs over where its record does not say.

    Returns
    -------
    tuple of OpRow
        Empty where the operator is not known or the record lacks what it takes.
    """
    return _rows(name, _Key(signature), ranks or 0)


def is_known(name: str) -> bool:
    """Whether there is an entry for the operator."""
    return _bare(name) in _OPERATORS


def tensor_bytes(signature: Signature) -> float:
    """Bytes of all tensors that were recorded: what the operator reads at the most once. [B]"""
    arguments = _Arguments(signature)
    return float(
        sum(
            _elements(dims) * _BYTES[arguments.formats[place]]
            for place, dims in enumerate(arguments.dims)
            if place < len(arguments.formats) and arguments.formats[place] and not _nested(dims)
        )
    )


class _Key:
    """A signature as a key of the cache: told by its fields, the mapping among them."""

    __slots__ = ("_mark", "signature")

    def __init__(self, signature: Signature) -> None:
        self.signature = signature
        extra = tuple(sorted((key, str(value)) for key, value in signature.extra.items()))
        self._mark = (signature.dims, signature.types, signature.concrete, extra)

    def __hash__(self) -> int:
        return hash(self._mark)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and self._mark == other._mark


class _Arguments:
    """Arguments of one call: shapes, formats and plain values by place."""

    def __init__(self, signature: Signature, ranks: int = 0) -> None:
        self.ranks = ranks
        self.dims = signature.dims
        self.formats = tuple(TYPES.get(one.lower(), "") for one in signature.types)
        self.types = signature.types
        self.concrete = signature.concrete
        self.extra = signature.extra

    def shape(self, place: int, rank: int | None = None) -> tuple[int, ...]:
        """Shape of a tensor, of that rank."""
        dims = self.dims[place]
        if _nested(dims) or not dims or (rank is not None and len(dims) != rank):
            raise _LackingError
        return tuple(int(size) for size in dims)

    def format(self, place: int = 0) -> str:
        """Format of a tensor."""
        if place >= len(self.formats) or not self.formats[place]:
            raise _LackingError
        return self.formats[place]

    def tensors(self) -> list[tuple[tuple[int, ...], str]]:
        """Shapes and formats of all tensors that are no lists."""
        return [
            (tuple(dims), self.formats[place])
            for place, dims in enumerate(self.dims)
            if place < len(self.formats) and self.formats[place] and not _nested(dims)
        ]

    def lists(self, place: int) -> list[tuple[int, ...]]:
        """Shapes of a list of tensors."""
        dims = self.dims[place]
        if not _nested(dims):
            raise _LackingError
        return [tuple(int(size) for size in one) for one in dims]

    def numbers(self, place: int) -> list[int]:
        """Whole numbers that an argument holds, such as ``[1, 1]``."""
        text = self.concrete[place]
        found = re.findall(r"-?\d+", text)
        if not found:
            raise _LackingError
        return [int(one) for one in found]

    def truth(self, place: int) -> bool:
        """The truth value that an argument holds."""
        text = self.concrete[place].strip().lower()
        if text not in ("true", "false", "0", "1"):
            raise _LackingError
        return text in ("true", "1")


_Entry = Callable[[_Arguments], list[OpRow]]


def _bare(name: str) -> str:
    """Without namespace of the framework and overload: ``aten::add_.Tensor`` is ``add_``."""
    return name.removeprefix("aten::").split(".", 1)[0] if name.startswith("aten::") else name


def _nested(dims: Any) -> bool:
    return bool(dims) and isinstance(dims[0], tuple)


def _elements(shape: Any) -> float:
    return float(math.prod(shape)) if shape else 1.0


def _positive(row: OpRow) -> bool:
    return row.count > 0 and all(
        value > 0 or name in ("padding", "past_len", "inputs", "flop_per_element", "causal", "window_size")
        for name, value in row.columns.items()
        if isinstance(value, int | float)
    )


def _gemm(first: int, second: int, *, transposed: bool = False) -> _Entry:
    def entry(a: _Arguments) -> list[OpRow]:
        left, right = a.shape(first), a.shape(second, 2)
        k, n = right if not transposed else right[::-1]
        if left[-1] != k:
            raise _LackingError
        return [OpRow("gemm", {"m": _elements(left[:-1]), "n": n, "k": k, "dtype": a.format(first)})]

    return entry


def _bmm(first: int, second: int) -> _Entry:
    def entry(a: _Arguments) -> list[OpRow]:
        left, right = a.shape(first, 3), a.shape(second, 3)
        if left[2] != right[1]:
            raise _LackingError
        return [
            OpRow(
                "batched_gemm",
                {"batch": left[0], "m": left[1], "n": right[2], "k": left[2], "dtype": a.format(first)},
            )
        ]

    return entry


def _matmul(a: _Arguments) -> list[OpRow]:
    left, right = a.shape(0), a.shape(1)
    if len(right) == 2 and left[-1] == right[0]:
        return _gemm(0, 1)(a)
    if len(left) < 3 or len(left) != len(right) or left[-1] != right[-2]:
        raise _LackingError
    batch = _elements([max(one, two) for one, two in zip(left[:-2], right[:-2], strict=True)])
    return [OpRow("batched_gemm", {"batch": batch, "m": left[-2], "n": right[-1], "k": left[-1], "dtype": a.format(0)})]


def _vector(matrix: int) -> _Entry:
    def entry(a: _Arguments) -> list[OpRow]:
        rows, k = a.shape(matrix, 2)
        return [OpRow("gemm", {"m": rows, "n": 1, "k": k, "dtype": a.format(matrix)})]

    return entry


def _conv_columns(x: tuple[int, ...], w: tuple[int, ...], dtype: str) -> dict[str, Any]:
    if len(x) == 3 == len(w):
        x, w = (x[0], x[1], 1, x[2]), (w[0], w[1], 1, w[2])
    if len(x) != 4 or len(w) != 4 or x[1] % w[1]:
        raise _LackingError
    return {
        "batch_size": x[0], "in_channels": x[1], "out_channels": w[0], "height": x[2], "width": x[3],
        "kernel_h": w[2], "kernel_w": w[3], "groups": x[1] // w[1], "dtype": dtype,
    }  # fmt: skip


def _convolution(stride: int, padding: int, dilation: int, transposed: int | None = None) -> _Entry:
    def entry(a: _Arguments) -> list[OpRow]:
        if transposed is not None and a.truth(transposed):
            raise _LackingError
        columns = _conv_columns(a.shape(0), a.shape(1), a.format(0))
        columns |= {
            "stride": max(a.numbers(stride)), "padding": max(a.numbers(padding)), "dilation": max(a.numbers(dilation))
        }  # fmt: skip
        return [OpRow("conv2d", columns)]

    return entry


def _convolution_backward(a: _Arguments) -> list[OpRow]:
    grad, x, w = a.shape(0), a.shape(1), a.shape(2)
    columns = _conv_columns(x, w, a.format(1))
    if len(grad) == 3:
        grad = (grad[0], grad[1], 1, grad[2])
    # the step follows from the sizes, the padding from the step: as many rows as there are results
    stride = max(1, round(columns["width"] / grad[3]))
    padding = max(0, math.ceil(((grad[3] - 1) * stride + columns["kernel_w"] - columns["width"]) / 2))
    columns |= {"stride": stride, "padding": padding}
    return [OpRow("conv2d", columns, 2.0)]


def _attention(q: int, k: int, *, heads_first: bool, causal: int | None, times: float = 1.0) -> _Entry:
    """Fused attention; `times`: its gradients take five products for the two of the forward pass."""

    def entry(a: _Arguments) -> list[OpRow]:
        query, key = a.shape(q, 4), a.shape(k, 4)
        if heads_first:
            query, key = (query[0], query[2], query[1], query[3]), (key[0], key[2], key[1], key[3])
        batch, length, heads, width = query
        dtype = a.format(q)
        masked = causal is not None and len(a.concrete) > causal and a.concrete[causal].strip().lower() == "true"
        shared = {"batch_size": batch, "num_heads": heads, "num_kv_heads": key[2], "head_dim": width}
        if masked and key[1] == length:
            return [OpRow("context_attention", {**shared, "query_len": length, "attn_dtype": dtype}, times)]
        if length == 1 and key[1] > 1 and times == 1.0:
            columns = {**shared, "past_len": key[1] - 1, "attn_dtype": dtype}
            return [OpRow("generation_attention", columns, times)]
        columns = {**shared, "seq_len": length, "kv_len": key[1], "attn_dtype": dtype}
        return [OpRow("encoder_attention", columns, times)]

    return entry


def _pointwise(op: str, flop: float = 1.0, inputs: int | None = None) -> _Entry:
    def entry(a: _Arguments) -> list[OpRow]:
        tensors = [(shape, form) for shape, form in a.tensors() if shape]
        if not tensors:
            raise _LackingError
        shape, form = max(tensors, key=lambda one: _elements(one[0]))
        full = sum(1 for one, _ in tensors if _elements(one) >= 0.5 * _elements(shape))
        columns = {
            "op": op, "elements": _elements(shape), "inputs": full if inputs is None else inputs, "outputs": 1,
            "flop_per_element": flop, "dtype": form,
        }  # fmt: skip
        return [OpRow("elementwise", columns)]

    return entry


def _copy(a: _Arguments) -> list[OpRow]:
    shape = a.shape(0)
    return [OpRow("copy", {"elements": _elements(shape), "dtype": a.format(1), "out_dtype": a.format(0)})]


def _clone(a: _Arguments) -> list[OpRow]:
    return [OpRow("copy", {"elements": _elements(a.shape(0)), "dtype": a.format(0)})]


def _cat(a: _Arguments) -> list[OpRow]:
    shapes = a.lists(0)
    form = next((form for form in a.formats if form), "fp32")
    return [OpRow("copy", {"elements": sum(_elements(one) for one in shapes), "dtype": form})]


def _reduced(op: str, inputs: int = 1) -> _Entry:
    """Along the last axis, unless the call says along which."""

    def entry(a: _Arguments) -> list[OpRow]:
        shape = a.shape(0)
        dim = float(shape[-1])
        try:
            axes = {axis % len(shape) for axis in a.numbers(1)}
            dim = _elements([shape[axis] for axis in axes])
        except (_LackingError, IndexError):
            pass
        columns = {"op": op, "rows": max(_elements(shape) / dim, 1.0), "dim": dim, "dtype": a.format(0)}
        return [OpRow("row_reduction", columns, float(inputs))]

    return entry


def _layer_norm(op: str, width: int, times: float = 1.0) -> _Entry:
    def entry(a: _Arguments) -> list[OpRow]:
        shape = a.shape(0)
        dim = float(shape[-1]) if width < 0 else _elements(a.shape(width))
        columns = {"op": op, "rows": _elements(shape) / dim, "dim": dim, "dtype": a.format(0)}
        return [OpRow("row_reduction", columns, times)]

    return entry


def _channel_norm(op: str, times: float = 1.0) -> _Entry:
    def entry(a: _Arguments) -> list[OpRow]:
        shape = a.shape(0)
        if len(shape) < 2:
            raise _LackingError
        rows = float(shape[1])
        columns = {"op": op, "rows": rows, "dim": _elements(shape) / rows, "dtype": a.format(0)}
        return [OpRow("row_reduction", columns, times)]

    return entry


def _gather(table: int, indices: int) -> _Entry:
    def entry(a: _Arguments) -> list[OpRow]:
        source = a.shape(table)
        count = _elements(a.shape(indices))
        columns = {
            "rows": count, "dim": max(_elements(source[1:]), 1.0), "table_rows": source[0], "dtype": a.format(table)
        }  # fmt: skip
        return [OpRow("gather", columns)]

    return entry


def _collective(collective: str) -> _Entry:
    def entry(a: _Arguments) -> list[OpRow]:
        ranks = int(a.extra.get("Group size", a.ranks))
        if "In msg nelems" in a.extra:
            form = TYPES.get(str(a.extra.get("dtype", "")).lower(), "")
            elements = max(float(a.extra["In msg nelems"]), float(a.extra.get("Out msg nelems", 0)))
        else:
            shapes = [one for one, _ in a.tensors()] or [one for dims in a.dims if _nested(dims) for one in dims]
            form = next((one for one in a.formats if one), "")
            elements = sum(_elements(one) for one in shapes)
        if not form or ranks < 2:
            raise _LackingError
        columns = {
            "collective": collective, "num_gpus": ranks, "message_bytes": elements * _BYTES[form],
            "dtype": form if form in _FLOATS else "fp16",
        }  # fmt: skip
        return [OpRow("nccl", columns)]

    return entry


def _named_collective(a: _Arguments) -> list[OpRow]:
    word = str(a.extra.get("Collective name", "")).lower().replace("_", "")
    for part, collective in _COLLECTIVE_WORDS:
        if part in word:
            return _collective(collective)(a)
    raise _LackingError


_COLLECTIVE_WORDS = (
    ("reducescatter", "reduce_scatter"), ("allreduce", "all_reduce"), ("allgather", "all_gather"),
    ("alltoall", "alltoall"), ("all2all", "alltoall"), ("broadcast", "broadcast"), ("send", "send_recv"),
    ("recv", "send_recv"),
)  # fmt: skip


def _with_variants(entries: Mapping[str, _Entry]) -> dict[str, _Entry]:
    """Operators that write in place are named with an underscore."""
    return {**entries, **{f"{name}_": entry for name, entry in entries.items()}}


_POINTWISE: Mapping[str, tuple[str, float]] = {
    "add": ("add", 1), "sub": ("sub", 1), "rsub": ("sub", 1), "mul": ("mul", 1), "div": ("div", 1), "pow": ("pow", 1),
    "neg": ("scale", 1), "abs": ("scale", 1), "sqrt": ("div", 1), "rsqrt": ("div", 1), "reciprocal": ("div", 1),
    "exp": ("exp", 1), "log": ("exp", 1), "sin": ("exp", 1), "cos": ("exp", 1), "tanh": ("tanh", 1), "erf": ("gelu", 1),
    "sigmoid": ("sigmoid", 1), "relu": ("relu", 1), "threshold": ("relu", 1), "clamp": ("relu", 2),
    "clamp_min": ("relu", 1), "hardtanh": ("relu", 2), "leaky_relu": ("relu", 2), "gelu": ("gelu", 8),
    "silu": ("silu", 4), "hardswish": ("silu", 4), "mish": ("silu", 6), "elu": ("exp", 2), "nan_to_num": ("mask", 3),
    "where": ("mask", 1), "masked_fill": ("mask", 1), "eq": ("mask", 1), "ne": ("mask", 1), "lt": ("mask", 1),
    "gt": ("mask", 1), "le": ("mask", 1), "ge": ("mask", 1), "logical_and": ("mask", 1), "logical_or": ("mask", 1),
    "logical_not": ("mask", 1), "bitwise_and": ("mask", 1), "bitwise_or": ("mask", 1), "bitwise_not": ("mask", 1),
    "tril": ("mask", 1), "triu": ("mask", 1), "addcmul": ("mul", 3), "addcdiv": ("div", 3), "lerp": ("add", 3),
    "maximum": ("relu", 1), "minimum": ("relu", 1), "sign": ("mask", 1), "floor": ("scale", 1), "round": ("scale", 1),
    "native_dropout": ("dropout", 2), "_fused_dropout": ("dropout", 2), "dropout": ("dropout", 2),
    "binary_cross_entropy_with_logits": ("exp", 6), "mse_loss": ("mul", 2), "softplus": ("exp", 3),
}  # fmt: skip
_BACKWARD: Mapping[str, tuple[str, float]] = {
    "tanh_backward": ("mul", 3), "sigmoid_backward": ("mul", 3), "threshold_backward": ("relu", 1),
    "gelu_backward": ("gelu", 12), "silu_backward": ("silu", 8), "hardtanh_backward": ("relu", 2),
    "native_dropout_backward": ("mul", 2), "_masked_scale": ("mul", 2), "mse_loss_backward": ("mul", 3),
    "leaky_relu_backward": ("relu", 2), "hardswish_backward": ("silu", 6), "elu_backward": ("exp", 3),
    "logit_backward": ("div", 3), "softplus_backward": ("exp", 4),
}  # fmt: skip
_FILLS = ("fill_", "zero_", "zeros_like", "ones_like", "full_like")

_OPERATORS: Mapping[str, _Entry] = {
    **_with_variants({name: _pointwise(*entry) for name, entry in _POINTWISE.items()}),
    **{name: _pointwise(*entry) for name, entry in _BACKWARD.items()},
    **dict.fromkeys(_FILLS, _pointwise("other", 0.0, inputs=0)),
    "mm": _gemm(0, 1),
    "addmm": _gemm(1, 2),
    "addmm_": _gemm(1, 2),
    "_addmm_activation": _gemm(1, 2),
    "_scaled_mm": _gemm(0, 1),
    "_int_mm": _gemm(0, 1),
    "linear": _gemm(0, 1, transposed=True),
    "matmul": _matmul,
    "bmm": _bmm(0, 1),
    "baddbmm": _bmm(1, 2),
    "baddbmm_": _bmm(1, 2),
    "mv": _vector(0),
    "addmv": _vector(1),
    "addmv_": _vector(1),
    # (input, weight, bias, stride, padding, dilation, transposed, output_padding, groups)
    "convolution": _convolution(3, 4, 5, 6),
    "_convolution": _convolution(3, 4, 5, 6),
    "conv2d": _convolution(3, 4, 5),
    "conv1d": _convolution(3, 4, 5),
    # (input, weight, padding, stride, dilation, groups)
    "cudnn_convolution": _convolution(3, 2, 4),
    "_conv_depthwise2d": _convolution(4, 5, 6),
    "miopen_convolution": _convolution(4, 3, 5),
    "cudnn_convolution_relu": _convolution(3, 4, 5),
    "convolution_backward": _convolution_backward,
    "_flash_attention_forward": _attention(0, 1, heads_first=False, causal=8),
    "_efficient_attention_forward": _attention(0, 1, heads_first=False, causal=None),
    "_scaled_dot_product_flash_attention": _attention(0, 1, heads_first=True, causal=4),
    "_scaled_dot_product_efficient_attention": _attention(0, 1, heads_first=True, causal=6),
    "_scaled_dot_product_cudnn_attention": _attention(0, 1, heads_first=True, causal=6),
    "scaled_dot_product_attention": _attention(0, 1, heads_first=True, causal=5),
    "flash_attn::_flash_attn_forward": _attention(0, 1, heads_first=False, causal=5),
    "_flash_attention_backward": _attention(1, 2, heads_first=False, causal=11, times=2.5),
    "_efficient_attention_backward": _attention(1, 2, heads_first=False, causal=None, times=2.5),
    "_scaled_dot_product_flash_attention_backward": _attention(1, 2, heads_first=True, causal=11, times=2.5),
    "flash_attn::_flash_attn_backward": _attention(1, 2, heads_first=False, causal=11, times=2.5),
    "copy_": _copy,
    "clone": _clone,
    "contiguous": _clone,
    "cat": _cat,
    "_cat": _cat,
    "stack": _cat,
    "sum": _reduced("sum"),
    "mean": _reduced("mean"),
    "max": _reduced("max"),
    "min": _reduced("max"),
    "amax": _reduced("max"),
    "argmax": _reduced("max"),
    "norm": _reduced("sum"),
    "linalg_vector_norm": _reduced("sum"),
    "cumsum": _reduced("sum", 2),
    "_softmax": _layer_norm("softmax", -1),
    "_log_softmax": _layer_norm("softmax", -1),
    "_softmax_backward_data": _layer_norm("softmax", -1, 1.5),
    "_log_softmax_backward_data": _layer_norm("softmax", -1, 1.5),
    "native_layer_norm": _layer_norm("layer_norm", -1),
    "native_layer_norm_backward": _layer_norm("layer_norm", -1, 2.0),
    "_fused_rms_norm": _layer_norm("rms_norm", -1),
    "rms_norm": _layer_norm("rms_norm", -1),
    "native_batch_norm": _channel_norm("batch_norm"),
    "cudnn_batch_norm": _channel_norm("batch_norm"),
    "miopen_batch_norm": _channel_norm("batch_norm"),
    "_batch_norm_with_update": _channel_norm("batch_norm"),
    "native_batch_norm_backward": _channel_norm("batch_norm", 2.0),
    "cudnn_batch_norm_backward": _channel_norm("batch_norm", 2.0),
    "native_group_norm": _channel_norm("group_norm"),
    "native_group_norm_backward": _channel_norm("group_norm", 2.0),
    "embedding": _gather(0, 1),
    "index_select": _gather(0, 2),
    "max_pool2d_with_indices": _layer_norm("pool", -1),
    "avg_pool2d": _layer_norm("pool", -1),
    "_adaptive_avg_pool2d": _layer_norm("pool", -1),
    "nccl:all_reduce": _collective("all_reduce"),
    "nccl:all_to_all": _collective("alltoall"),
    "nccl:all_gather": _collective("all_gather"),
    "nccl:_all_gather_base": _collective("all_gather"),
    "nccl:reduce_scatter": _collective("reduce_scatter"),
    "nccl:_reduce_scatter_base": _collective("reduce_scatter"),
    "nccl:broadcast": _collective("broadcast"),
    "record_param_comms": _named_collective,
}
