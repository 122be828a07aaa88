"""Convolutions of ONNX as two-dimensional convolutions of equal arithmetic and bytes."""

from __future__ import annotations

import math

from joulecast.workloads.convolution_geometry import geometry, two_sides
from joulecast.workloads.events import Row
from joulecast.workloads.onnx_rules import Call, Handler
from joulecast.workloads.onnx_values import Value


def convolution(places: tuple[int, int] = (0, 1), dtype: str = "", transposed: bool = False) -> Handler:
    """A convolution whose input and filters stand at `places`; its bias is added on the way out.

    A transposed one is the gradient of a convolution from its result to its input.
    """

    def rows(call: Call) -> list[Row]:
        x, weight, out = call.ins[places[0]], call.ins[places[1]], call.out
        if x is None or weight is None or not out.numel or not weight.numel or len(x.shape) < 3:
            return []
        return [_row(call, x, weight, out, dtype or call.formats.multiplied(x, weight), transposed)]

    return rows


def deformed(call: Call) -> list[Row]:
    """A convolution whose taps are moved by offsets, each read between pixels first."""
    gathered = {"op": "other", "elements": call.out.numel, "inputs": 2, "flop_per_element": 16,
                "dtype": call.fmt(call.x)}  # fmt: skip
    return [*convolution()(call), ("elementwise", gathered)] if call.out.numel else []


def _row(call: Call, x: Value, weight: Value, out: Value, dtype: str, transposed: bool) -> Row:
    space = len(x.shape) - 2
    step, spread, pad = (
        _listed(call, "strides", 1, space), _listed(call, "dilations", 1, space), _padding(call, space)
    )  # fmt: skip
    groups = max(int(call.attrs.get("group", 1)), 1)
    if transposed:
        x, out = out, x
    size, kernel, result = (two_sides(list(one.shape[2:]), 1) for one in (x, weight, out))
    steps, pads, spreads = two_sides(step, 1), two_sides(pad, 0), two_sides(spread, 1)
    depth = math.prod(out.shape[2:-2])
    return (
        "conv2d",
        {
            "batch_size": x.shape[0] * max(depth, 1),
            "in_channels": weight.shape[1] * groups * math.prod(weight.shape[2:-2]),
            "out_channels": weight.shape[0],
            "kernel_h": kernel[0],
            "kernel_w": kernel[1],
            "groups": groups,
            "channels_last": 0,
            "dtype": dtype,
            **geometry(size, kernel, result, steps, pads, spreads),
        },
    )


def _listed(call: Call, name: str, default: int, space: int) -> list[int]:
    given = [int(one) for one in call.attrs.get(name) or []]
    return given if len(given) == space else [default] * space


def _padding(call: Call, space: int) -> list[int]:
    """Zeros on each side; -1 where the two sides of a dimension differ, which no one number says."""
    if call.attrs.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        return [-1] * space
    given = [int(one) for one in call.attrs.get("pads") or []]
    if len(given) != 2 * space:
        return [0] * space
    return [a if a == b else -1 for a, b in zip(given[:space], given[space:], strict=True)]
