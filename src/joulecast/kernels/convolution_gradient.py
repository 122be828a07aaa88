"""Gradients of convolutions: that of the input is a convolution back, that of the filters a product over all pixels."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from joulecast.bounds.dtypes import dtype_code
from joulecast.gpus import Gpu
from joulecast.kernels.convolution import convolution_work, output_size
from joulecast.kernels.formats import ACTIVATION_BYTES, OUTPUT_BYTES, activation_misses, vector_rate
from joulecast.kernels.gemm import gemm_work
from joulecast.kernels.work import Conditions, Family, Floats, KernelWork
from joulecast.workloads.table import OpTable, trusted_table


def _results(table: OpTable) -> tuple[Floats, Floats]:
    """Rows and columns of the forward pass's result."""
    geometry = (table["stride"], table["padding"], table["dilation"])
    return (
        output_size(table["height"], table["kernel_h"], *geometry),
        output_size(table["width"], table["kernel_w"], *geometry),
    )


def _as_it_lies(table: OpTable) -> Floats:
    """Whether trying kernels out finds one that takes feature maps as they lie: no gradient in TF32 does.

    Training steps of ResNet-50 in TF32 take on A100s as much longer than kernels do as turning both maps takes.
    """
    return np.where(table["dtype"] == dtype_code("tf32"), 0.0, table["autotuned"])


def _depthwise(table: OpTable) -> npt.NDArray[np.bool_]:
    return np.asarray((table["groups"] > 1) & (table["groups"] == table["in_channels"]))


#: Arithmetic of the filters' gradient of a depthwise convolution over that of the convolution: each product is summed
#: over all pixels. Fitted on steps of ConvMixers.
_DEPTHWISE_SUMS = 2.0


#: Instructions of a CUDA core, addresses and checks of bounds mostly, for each pixel, filter and tap of the direct
#: kernel that makes the gradient of a grouped convolution's filters in cuDNN up to 8.0. Fitted on steps of ResNeXts;
#: those of any one GPU, in fp16 or fp32, give 160 to 400.
_DIRECT_STEPS = 320.0


def data_gradient_work(table: OpTable, gpu: Gpu, conditions: Conditions) -> KernelWork:
    """Work of the gradient of a convolution's input.

    A convolution from the channels written to those read, with as much arithmetic as the forward pass; where that
    stepped over pixels, the gradient of the larger input is written beside.

    Parameters
    ----------
    table : OpTable
        Of kind ``conv2d_data_gradient``; shapes are those of the forward pass.
    gpu : Gpu
    conditions : Conditions

    Returns
    -------
    KernelWork
    """
    rows, columns = _results(table)
    reach_h = table["dilation"] * (table["kernel_h"] - 1.0)
    geometry: dict[str, Any] = {
        # padded so that as many pixels come out as gradients come in
        "height": np.maximum(rows + reach_h - 2.0 * np.floor(reach_h / 2.0), 1.0),
        "width": np.maximum(columns + reach_h - 2.0 * np.floor(reach_h / 2.0), 1.0),
        "padding": np.floor(reach_h / 2.0),
        "stride": 1.0,
    }
    same = ("batch_size", "kernel_h", "kernel_w", "dilation", "groups", "dtype")
    back = trusted_table(
        "conv2d",
        {
            **{name: table[name] for name in same},
            **geometry,
            "autotuned": _as_it_lies(table),
            "channels_last": table["channels_last"],
            "in_channels": table["out_channels"],
            "out_channels": table["in_channels"],
        },
        len(table),
    )
    found = convolution_work(back, gpu, conditions)
    per_pixel = table["batch_size"] * table["in_channels"] * OUTPUT_BYTES[table["dtype"]]
    beside = np.maximum(table["height"] * table["width"] - rows * columns, 0.0) * per_pixel
    exact = _useful_flop(table, rows * columns)
    return replace(
        found,
        l2_bytes=found.l2_bytes + beside,
        dram_bytes=found.dram_bytes + beside * activation_misses(beside, gpu, conditions),
        useful_flop=exact,
    )


def weight_gradient_work(table: OpTable, gpu: Gpu, conditions: Conditions) -> KernelWork:
    """Work of the gradient of a convolution's filters.

    As much arithmetic as the forward pass and the same kernels' rates, but spread over the GPU as the matrix product
    that it is: gradients of the result times the input gathered by taps, with a reduction over all pixels of the
    batch that is cut into pieces where the filters alone are few.

    Parameters
    ----------
    table : OpTable
        Of kind ``conv2d_weight_gradient``; shapes are those of the forward pass.
    gpu : Gpu
    conditions : Conditions

    Returns
    -------
    KernelWork
    """
    rows, columns = _results(table)
    pixels = table["batch_size"] * rows * columns
    groups = np.minimum(table["groups"], np.minimum(table["in_channels"], table["out_channels"]))
    taps = table["kernel_h"] * table["kernel_w"]
    filters, channels = np.ceil(table["out_channels"] / groups), np.ceil(table["in_channels"] / groups)
    shapes = {"batch": groups, "m": filters, "n": channels * taps, "k": pixels, "dtype": table["dtype"]}
    product = gemm_work(trusted_table("gemm", shapes, len(table)), gpu, conditions)
    asked = {**table.columns, "zero_share": 0.0, "autotuned": _as_it_lies(table)}
    forward = trusted_table("conv2d", asked, len(table))
    found = convolution_work(forward, gpu, conditions)
    direct = np.array([name.startswith(("direct", "grouped")) for name in found.groups])[found.group]
    size = ACTIVATION_BYTES[table["dtype"]]
    written = 4.0 * groups * filters * channels * taps
    read = size * table["batch_size"] * table["in_channels"] * table["height"] * table["width"]
    read = read + size * pixels * table["out_channels"] + found.serial_dram_bytes
    old = (table["direct_groups"] > 0) & (groups > 1) & ~_depthwise(table) & (table["channels_last"] == 0)
    steps = 2.0 * _DIRECT_STEPS * pixels * table["out_channels"] * taps
    return replace(
        found,
        fill=np.where(old, 1.0, np.where(direct, product.fill, found.fill)),
        blocks=np.where(direct, product.blocks, found.blocks),
        waves=np.where(direct, product.waves, found.waves),
        tensor_flop=np.where(old, 0.0, found.tensor_flop),
        cuda_flop=np.where(old, steps, found.cuda_flop * np.where(_depthwise(table), _DEPTHWISE_SUMS, 1.0)),
        cuda_flop_per_clk=np.where(old, vector_rate(gpu), found.cuda_flop_per_clk),
        dram_bytes=np.maximum(read * activation_misses(read, gpu, conditions), found.serial_dram_bytes) + written,
        useful_flop=_useful_flop(table, rows * columns),
    )


def _useful_flop(table: OpTable, pixels: Floats) -> Floats:
    taps = table["kernel_h"] * table["kernel_w"]
    channels = np.ceil(table["in_channels"] / table["groups"])
    return np.asarray(2.0 * table["batch_size"] * pixels * table["out_channels"] * channels * taps)


FAMILY = (
    Family("conv2d_data_gradient", ("conv2d_data_gradient",), data_gradient_work),
    Family("conv2d_weight_gradient", ("conv2d_weight_gradient",), weight_gradient_work),
)
