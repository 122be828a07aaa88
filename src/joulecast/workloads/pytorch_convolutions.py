"""Convolutions of PyTorch and their gradients as two-dimensional convolutions of equal arithmetic and bytes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from joulecast.workloads.convolution_geometry import geometry, two_sides
from joulecast.workloads.pytorch_costs import Row
from joulecast.workloads.pytorch_shapes import convolution_fmt, elementwise, fmt
from joulecast.workloads.pytorch_values import has_no_data

if TYPE_CHECKING:
    from joulecast.workloads.pytorch_rules import Call


def forward(call: Call) -> list[Row]:
    """A convolution, transposed or not, and its bias, which eager frameworks add in a launch of its own."""
    x, weight, bias = call.args[:3]
    stride, padding, dilation, transposed = call.args[3:7]
    groups = int(call.args[8])
    out = call.result
    if out is None or not out.numel():
        return []
    rows = [_row(x, weight, out, stride, padding, dilation, bool(transposed), groups)]
    return rows + (elementwise("bias", [out], [out]) if bias is not None else [])


def backward(call: Call) -> list[Row]:
    """Gradients of input, filters and bias, those that are asked for.

    The first two do the arithmetic of the forward convolution and move the same three tensors.
    """
    grad, x, weight = call.args[:3]
    stride, padding, dilation, transposed = call.args[4:8]
    groups, wanted = int(call.args[9]), call.args[10]
    if not grad.numel():
        return []
    forward_row = _row(x, weight, grad, stride, padding, dilation, bool(transposed), groups)
    rows: list[Row] = [
        (kind, dict(forward_row[1]))
        for kind, asked in zip(("conv2d_data_gradient", "conv2d_weight_gradient"), wanted, strict=False)
        if asked
    ]
    if wanted[2]:
        channels = grad.shape[1] if grad.dim() > 1 else 1
        size = max(grad.numel() // max(channels, 1), 1)
        rows.append(("row_reduction", {"op": "sum", "rows": channels, "dim": size, "dtype": fmt(grad)}))
    return rows


def _row(
    x: Tensor,
    weight: Tensor,
    out: Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    groups: int,
) -> Row:
    if transposed:  # the gradient of a convolution from `out` to `x`
        x, out = out, x
    if x.dim() == weight.dim() - 1:  # no batch
        x, out = x.unsqueeze(0), out.unsqueeze(0)
    sizes = [two_sides(values, places) for values, places in (
        (list(x.shape[2:]), 1), (list(weight.shape[2:]), 1), (list(out.shape[2:]), 1), (list(stride), 1),
        (list(padding), 0), (list(dilation), 1))]  # fmt: skip
    size, kernel, result, step, pad, spread = sizes
    outputs, per_group = (weight.shape[0], weight.shape[1])
    depth = math.prod(out.shape[2:-2])
    columns: dict[str, Any] = {
        "batch_size": x.shape[0] * max(depth, 1),
        "in_channels": per_group * groups * math.prod(weight.shape[2:-2]),
        "out_channels": outputs,
        "kernel_h": kernel[0],
        "kernel_w": kernel[1],
        "groups": groups,
        "channels_last": _channels_last(x),
        "dtype": convolution_fmt(x),
        **geometry(size, kernel, result, step, pad, spread),
    }
    return ("conv2d", columns)


def in_layout_of_input(op: str, args: Any, out: Any) -> Any:
    """The result of a convolution with the channels of a pixel together where its input has them so.

    GPUs' libraries keep that layout; tensors without data lose it.
    """
    if op not in ("convolution", "convolution_overrideable", "_convolution") or not isinstance(out, Tensor):
        return out
    if not has_no_data(out) or out.dim() != 4 or not _channels_last(args[0]):
        return out
    return torch.empty_like(out, memory_format=torch.channels_last)


def _channels_last(x: Tensor) -> int:
    if x.dim() != 4 or x.shape[1] == 1:
        return 0
    return int(x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous())
