"""Quantisation of activations: one pass with a known scale, or a reduction first to find it."""

from __future__ import annotations

import numpy as np

from joulecast.bounds.dtypes import DTYPES
from joulecast.gpus import Gpu
from joulecast.kernels.formats import (
    ACTIVATION_BYTES,
    FP32,
    activation_misses,
    group_labels,
    log_ratio,
    vector_rate,
)
from joulecast.kernels.work import Conditions, Family, KernelWork, work
from joulecast.workloads.table import OpTable

_OPS = ("static_quant", "dynamic_quant")
_DYNAMIC = 1
_INPUT_BYTES = 2.0  # activations arrive in 16 bits

#: Instructions an element: scale, clamp and convert; and a maximum of magnitudes where the scale is looked for.
_CONVERT = 6.0
_MAXIMUM = 3.0

#: Instructions of all threads of a block that starts, reduces and ends.
_BLOCK = 256.0 * 60.0


def quantize_work(table: OpTable, gpu: Gpu, conditions: Conditions) -> KernelWork:
    """Work of quantising an m x k activation.

    A dynamic scale of the whole tensor needs a pass that reads it before the one that converts it; what L2 can't
    hold is read from DRAM twice.

    Parameters
    ----------
    table : OpTable
        Of kind ``quantize``.
    gpu : Gpu
    conditions : Conditions

    Returns
    -------
    KernelWork
        Groups are ``operation/format``.
    """
    elements = table["m"] * table["k"]
    code, op = table["dtype"], table["quant_op"]
    dynamic = op == _DYNAMIC
    read, written = elements * _INPUT_BYTES, elements * ACTIVATION_BYTES[code]
    misses = activation_misses(read + written, gpu, conditions)
    # frameworks other than TensorRT-LLM scale token by token in the same kernel: the row stays on the SM
    whole = dynamic & (conditions.engine == "trtllm")
    again = np.where(whole, read, 0.0)
    # those also start a block for each token, whatever its length
    tokens = np.full(len(table), conditions.engine != "trtllm")
    blocks = np.maximum(np.where(tokens, table["m"], np.ceil(elements / 2048.0)), 1.0)
    waves = np.ceil(blocks / gpu.sm_count)
    per_element = _CONVERT + np.where(dynamic, _MAXIMUM, 0.0)
    again_dram = again * activation_misses(read, gpu, conditions)
    groups, group = group_labels(op * len(DTYPES) + code, [f"{name}/{dtype.name}" for name in _OPS for dtype in DTYPES])
    return work(
        "quantize",
        len(table),
        groups=groups,
        group=group,
        cuda_flop=2.0 * (elements * per_element + np.where(tokens, blocks * _BLOCK, 0.0)),
        cuda_flop_per_clk=vector_rate(gpu),
        shared_bytes=read + written,
        l2_bytes=read + written + again,
        dram_bytes=(read + written) * misses + again_dram,
        serial_l2_bytes=again,
        serial_dram_bytes=again_dram,
        fill=blocks / (waves * gpu.sm_count),
        blocks=blocks,
        waves=waves,
        launches=np.where(whole, 3.0, 1.0),
        useful_flop=elements * np.where(dynamic, 3.0, 2.0),
        math=FP32,
        features={
            "log_footprint_over_l2": log_ratio(read + written, gpu.l2_mib * 2.0**20),
            "log_blocks_over_sm": log_ratio(blocks, gpu.sm_count),
            "log_width": np.log(table["k"]) / 8.0,
            "dram_share": misses,
        },
    )


FAMILY = Family("quantize", ("quantize",), quantize_work)
