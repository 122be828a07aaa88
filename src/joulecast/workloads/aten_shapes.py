"""What PyTorch's operators do, from the shapes and types that a profiler recorded: rows of our kinds of operation.

Each operator is one entry of `_OPERATORS`; an operator without one, or whose record lacks what its entry needs, has no
rows: its kernels are then counted by what their names and times tell.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from joulecast.workloads.aten_arguments import (
    ELEMENT_BYTES,
    Arguments,
    Entry,
    LackingError,
    OpRow,
    element_count,
    nested,
)
from joulecast.workloads.aten_entries import (
    attention,
    bmm,
    cat,
    channel_norm,
    clone,
    collective,
    convolution,
    convolution_backward,
    copy,
    gather,
    gemm,
    layer_norm,
    matmul,
    named_collective,
    pointwise,
    reduced,
    vector,
)
from joulecast.workloads.profile import Signature

#: A tensor of more elements is in no memory: what was recorded is damaged.
MOST_ELEMENTS = 2.0**48


@lru_cache(maxsize=65536)
def _rows(name: str, key: _Key, ranks: int) -> tuple[OpRow, ...]:
    entry = _OPERATORS.get(_bare(name))
    if entry is None:
        return ()
    try:
        arguments = Arguments(key.signature, ranks)
        if any(element_count(dims) > MOST_ELEMENTS for dims, _ in arguments.tensors()):
            return ()
        return tuple(row for row in entry(arguments) if _positive(row))
    except (LackingError, IndexError, TypeError, ValueError, ZeroDivisionError):
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


def tensor_bytes(signature: Signature) -> float:
    """Bytes of all tensors that were recorded: what the operator reads at the most once. [B]"""
    arguments = Arguments(signature)
    return float(
        sum(
            element_count(dims) * ELEMENT_BYTES[arguments.formats[place]]
            for place, dims in enumerate(arguments.dims)
            if place < len(arguments.formats) and arguments.formats[place] and not nested(dims)
        )
    )


def _bare(name: str) -> str:
    """Without namespace of the framework and overload: ``aten::add_.Tensor`` is ``add_``."""
    return name.removeprefix("aten::").split(".", 1)[0] if name.startswith("aten::") else name


def _positive(row: OpRow) -> bool:
    return row.count > 0 and all(
        value > 0 or name in ("padding", "past_len", "inputs", "flop_per_element", "causal", "window_size")
        for name, value in row.columns.items()
        if isinstance(value, int | float)
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


def _with_variants(entries: Mapping[str, Entry]) -> dict[str, Entry]:
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

_OPERATORS: Mapping[str, Entry] = {
    **_with_variants({name: pointwise(*entry) for name, entry in _POINTWISE.items()}),
    **{name: pointwise(*entry) for name, entry in _BACKWARD.items()},
    **dict.fromkeys(_FILLS, pointwise("other", 0.0, inputs=0)),
    "mm": gemm(0, 1),
    "addmm": gemm(1, 2),
    "addmm_": gemm(1, 2),
    "_addmm_activation": gemm(1, 2),
    "_scaled_mm": gemm(0, 1),
    "_int_mm": gemm(0, 1),
    "linear": gemm(0, 1, transposed=True),
    "matmul": matmul,
    "bmm": bmm(0, 1),
    "baddbmm": bmm(1, 2),
    "baddbmm_": bmm(1, 2),
    "mv": vector(0),
    "addmv": vector(1),
    "addmv_": vector(1),
    # (input, weight, bias, stride, padding, dilation, transposed, output_padding, groups)
    "convolution": convolution(3, 4, 5, 6),
    "_convolution": convolution(3, 4, 5, 6),
    "conv2d": convolution(3, 4, 5),
    "conv1d": convolution(3, 4, 5),
    # (input, weight, padding, stride, dilation, groups)
    "cudnn_convolution": convolution(3, 2, 4),
    "_conv_depthwise2d": convolution(4, 5, 6),
    "miopen_convolution": convolution(4, 3, 5),
    "cudnn_convolution_relu": convolution(3, 4, 5),
    "convolution_backward": convolution_backward,
    "_flash_attention_forward": attention(0, 1, heads_first=False, causal=8),
    "_efficient_attention_forward": attention(0, 1, heads_first=False, causal=None),
    "_scaled_dot_product_flash_attention": attention(0, 1, heads_first=True, causal=4),
    "_scaled_dot_product_efficient_attention": attention(0, 1, heads_first=True, causal=6),
    "_scaled_dot_product_cudnn_attention": attention(0, 1, heads_first=True, causal=6),
    "scaled_dot_product_attention": attention(0, 1, heads_first=True, causal=5),
    "flash_attn::_flash_attn_forward": attention(0, 1, heads_first=False, causal=5),
    "_flash_attention_backward": attention(1, 2, heads_first=False, causal=11, backward=True),
    "_efficient_attention_backward": attention(1, 2, heads_first=False, causal=None, backward=True),
    "_scaled_dot_product_flash_attention_backward": attention(1, 2, heads_first=True, causal=11, backward=True),
    "flash_attn::_flash_attn_backward": attention(1, 2, heads_first=False, causal=11, backward=True),
    "copy_": copy,
    "clone": clone,
    "contiguous": clone,
    "cat": cat,
    "_cat": cat,
    "stack": cat,
    "sum": reduced("sum"),
    "mean": reduced("mean"),
    "max": reduced("max"),
    "min": reduced("max"),
    "amax": reduced("max"),
    "argmax": reduced("max"),
    "norm": reduced("sum"),
    "linalg_vector_norm": reduced("sum"),
    "cumsum": reduced("sum", 2),
    "_softmax": layer_norm("softmax", -1),
    "_log_softmax": layer_norm("softmax", -1),
    "_softmax_backward_data": layer_norm("softmax", -1, 1.5),
    "_log_softmax_backward_data": layer_norm("softmax", -1, 1.5),
    "native_layer_norm": layer_norm("layer_norm", -1),
    "native_layer_norm_backward": layer_norm("layer_norm", -1, 2.0),
    "_fused_rms_norm": layer_norm("rms_norm", -1),
    "rms_norm": layer_norm("rms_norm", -1),
    "native_batch_norm": channel_norm("batch_norm"),
    "cudnn_batch_norm": channel_norm("batch_norm"),
    "miopen_batch_norm": channel_norm("batch_norm"),
    "_batch_norm_with_update": channel_norm("batch_norm"),
    "native_batch_norm_backward": channel_norm("batch_norm", 2.0),
    "cudnn_batch_norm_backward": channel_norm("batch_norm", 2.0),
    "native_group_norm": channel_norm("group_norm"),
    "native_group_norm_backward": channel_norm("group_norm", 2.0),
    "embedding": gather(0, 1),
    "index_select": gather(0, 2),
    "max_pool2d_with_indices": layer_norm("pool", -1),
    "avg_pool2d": layer_norm("pool", -1),
    "_adaptive_avg_pool2d": layer_norm("pool", -1),
    "nccl:all_reduce": collective("all_reduce"),
    "nccl:all_to_all": collective("alltoall"),
    "nccl:all_gather": collective("all_gather"),
    "nccl:_all_gather_base": collective("all_gather"),
    "nccl:reduce_scatter": collective("reduce_scatter"),
    "nccl:_reduce_scatter_base": collective("reduce_scatter"),
    "nccl:broadcast": collective("broadcast"),
    "record_param_comms": named_collective,
}
