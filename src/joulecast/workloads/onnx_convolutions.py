"""Convolutions of ONNX as two-dimensional convolutions of equal arithmetic and bytes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

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
    size, kernel, result = (_two(list(one.shape[2:]), 1) for one in (x, weight, out))
    steps, pads, spreads = _two(step, 1), _two(pad, 0), _two(spread, 1)
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


def geometry(
    size: Sequence[int], kernel: Sequence[int], result: Sequence[int], step: Sequence[int], pad: Sequence[int],
    spread: Sequence[int],
) -> dict[str, Any]:  # fmt: skip
    """Size, stride, padding and dilation with one number for both sides that give the same result."""
    sides = [side for side in (0, 1) if kernel[side] > 1 or step[side] > 1 or size[side] > 1]
    alike = all(len({values[side] for side in sides}) <= 1 for values in (step, pad, spread))
    main = sides[-1] if sides else 0
    if alike and pad[main] >= 0:
        one = {"stride": step[main], "padding": pad[main], "dilation": spread[main]}
        if len(sides) < 2 and one["padding"]:  # a single row has no rows of zeros beside it
            one["padding"] = 0
        elif _results(size, kernel, one) == list(result):
            return {"height": size[0], "width": size[1], **one}
    else:
        same_step = step[0] == step[1] and spread[0] == spread[1]
        one = {"stride": step[0] if same_step else 1, "padding": 0, "dilation": spread[0] if same_step else 1}
    height, width = ((result[side] - 1) * one["stride"] + one["dilation"] * (kernel[side] - 1) + 1 for side in (0, 1))
    return {"height": max(height, 1), "width": max(width, 1), **one}


def _results(size: Sequence[int], kernel: Sequence[int], one: dict[str, int]) -> list[int]:
    return [
        (size[side] + 2 * one["padding"] - one["dilation"] * (kernel[side] - 1) - 1) // one["stride"] + 1
        for side in (0, 1)
    ]


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


def _two(values: list[int], neutral: int) -> list[int]:
    """The last two sizes; a missing one is `neutral`."""
    return [neutral, neutral, *values][-2:]
