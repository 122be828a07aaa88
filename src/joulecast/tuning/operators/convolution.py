"""Spec of a convolution as an implicit matrix product."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from joulecast.errors import InputError
from joulecast.tuning.kernelspec import ELEMENT_BYTES, KernelSpec, Tensor
from joulecast.tuning.operators.matmul import rereads_of_tiles, tile_default, tile_footprint, tile_of, tile_space


def conv(
    *, batch: int = 32, channels: int = 64, filters: int = 64, height: int = 56, width: int = 56, kernel: int = 3,
    stride: int = 1, padding: int = 1, dtype: str = "fp16",
) -> KernelSpec:  # fmt: skip
    """Square filters over channels-last images; the defaults are a layer of ResNet-50."""
    from joulecast.tuning.operators.code import convolution as code

    high = (height + 2 * padding - kernel) // stride + 1
    wide = (width + 2 * padding - kernel) // stride + 1
    if high < 1 or wide < 1:
        raise InputError(f"a filter of {kernel} x {kernel} does not fit an image of {height} x {width}")
    pixels, element = batch * high * wide, ELEMENT_BYTES[dtype]
    space = tile_space(pixels, filters, channels)
    wanted = {"BLOCK_M": 128, "BLOCK_N": 64, "BLOCK_K": 32, "GROUP_M": 8, "num_warps": 4, "num_stages": 3}

    def reference(given: Mapping[str, Any]) -> Mapping[str, Any]:
        import torch

        x = given["x"].float().permute(0, 3, 1, 2)
        w = given["w"].float().permute(0, 3, 1, 2)
        y = torch.nn.functional.conv2d(x, w, stride=stride, padding=padding)
        return {"y": y.permute(0, 2, 3, 1)}

    def small() -> KernelSpec:
        few = conv(
            batch=1, channels=min(channels, 40), filters=min(filters, 48), height=min(height, 9 + kernel),
            width=min(width, 8 + kernel), kernel=kernel, stride=stride, padding=padding, dtype=dtype,
        )  # fmt: skip
        return replace(few, small=None)

    return KernelSpec(
        name="conv",
        kernel=code.convolution,
        space=space,
        arguments={
            "x": Tensor((batch, height, width, channels), dtype),
            "w": Tensor((filters, kernel, kernel, channels), dtype),
            "y": Tensor((batch, high, wide, filters), dtype, output=True),
            "images": batch, "height": height, "width": width, "channels": channels, "filters": filters,
            "out_height": high, "out_width": wide, "stride": stride, "padding": padding,
        },
        grid=lambda config: (-(-pixels // int(config["BLOCK_M"])) * -(-filters // int(config["BLOCK_N"])),),
        reference=reference,
        default=tile_default(space, wanted),
        problem={"batch": batch, "channels": channels, "filters": filters, "height": height, "width": width,
                 "kernel": kernel, "stride": stride, "padding": padding, "dtype": dtype},
        constants={"KERNEL_H": kernel, "KERNEL_W": kernel},
        footprint=lambda config: tile_footprint(config, element, ("BLOCK_M", "BLOCK_N", "BLOCK_K")),
        # Overlapping windows share pixels: the left operand is the image, not its windows.
        rereads=lambda config, slots: rereads_of_tiles(pixels, filters, channels, element, tile_of(config), slots),
        small=small,
    )  # fmt: skip
