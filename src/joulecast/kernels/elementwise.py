"""Elementwise kernels and copies: bytes, arithmetic an element, and special functions."""

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
from joulecast.kernels.work import Conditions, Family, Floats, KernelWork, work
from joulecast.workloads.kinds import ELEMENTWISE, plain_op
from joulecast.workloads.table import OpTable

#: Instructions and special-function results an element, by operation. Accurate single-precision library
#: functions: a division is a reciprocal with refinement, tanh and erf are polynomials around an exponential,
#: pow is an extended-precision logarithm and exponential.
INSTRUCTIONS = {
    "add": 1, "mul": 1, "div": 8, "sub": 1, "pow": 60, "relu": 2, "gelu": 24, "silu": 12, "tanh": 16,
    "sigmoid": 10, "exp": 4, "scale": 1, "cast": 1, "bias": 1, "glu": 14, "rope": 4, "mask": 2, "dropout": 14,
    "fused": 4, "other": 2, "gelu_new": 24, "quick_gelu": 12,
}  # fmt: skip
SPECIAL = {
    "div": 1,
    "pow": 2,
    "gelu": 1,
    "silu": 2,
    "tanh": 2,
    "sigmoid": 2,
    "exp": 1,
    "glu": 2,
    "gelu_new": 2,
    "quick_gelu": 2,
}

_INSTRUCTIONS = np.array([INSTRUCTIONS[plain_op(op)] for op in ELEMENTWISE], dtype=np.float64)
_PLAIN = np.array([ELEMENTWISE.index(plain_op(op)) for op in ELEMENTWISE], dtype=np.intp)
_SPECIAL = np.array([SPECIAL.get(plain_op(op), 0) for op in ELEMENTWISE], dtype=np.float64)

#: Threads of a block, and bytes that a thread moves at a time (a 128-bit load).
THREADS = 128
VECTOR_BYTES = 16.0


def elementwise_work(table: OpTable, gpu: Gpu, conditions: Conditions) -> KernelWork:
    """Work of elementwise operations and copies.

    Parameters
    ----------
    table : OpTable
        Of kind ``elementwise`` or ``copy``.
    gpu : Gpu
    conditions : Conditions

    Returns
    -------
    KernelWork
        Every byte of the inputs and outputs once; in DRAM those that don't stay in L2.
    """
    n = len(table)
    elements = np.asarray(table["elements"], dtype=np.float64)
    code, out_code = table["dtype"], table["out_dtype"]
    in_bytes, out_bytes = ACTIVATION_BYTES[code], ACTIVATION_BYTES[out_code]
    if table.kind == "copy":
        inputs: Floats | float = 1.0
        outputs: Floats | float = 1.0
        arithmetic: Floats | float = 0.0
        special: Floats | float = 0.0
        useful: Floats | float = 0.0
    else:
        inputs, outputs = table["inputs"], table["outputs"]
        arithmetic = np.maximum(_INSTRUCTIONS[table["op"]], table["flop_per_element"])
        special = _SPECIAL[table["op"]]
        useful = table["flop_per_element"] * elements
    element_bytes = inputs * in_bytes + outputs * out_bytes
    moved = elements * element_bytes
    # a vector load or store and its address for each tensor, shared by the elements of a vector
    vector = VECTOR_BYTES / np.maximum(in_bytes, out_bytes)
    per_element = arithmetic + (inputs + outputs) * 3.0 / vector
    blocks = np.maximum(np.ceil(elements / (THREADS * vector)), 1.0)
    waves = np.ceil(blocks / gpu.sm_count)
    misses = activation_misses(moved, gpu, conditions)
    op = _PLAIN[table["op"]] if table.kind == "elementwise" else np.full(n, len(ELEMENTWISE))
    groups, group = group_labels(
        op * len(DTYPES) + code, [f"{name}/{dtype.name}" for name in (*ELEMENTWISE, "copy") for dtype in DTYPES]
    )
    return work(
        "elementwise",
        n,
        groups=groups,
        group=group,
        cuda_flop=2.0 * elements * per_element,
        cuda_flop_per_clk=vector_rate(gpu),
        sfu_ops=elements * special,
        shared_bytes=moved,
        l2_bytes=moved,
        dram_bytes=moved * misses,
        fill=blocks / (waves * gpu.sm_count),
        blocks=blocks,
        waves=waves,
        useful_flop=useful,
        math=FP32,
        features={
            "log_footprint_over_l2": log_ratio(moved, gpu.l2_mib * 2.0**20),
            "log_blocks_over_sm": log_ratio(blocks, gpu.sm_count),
            "log_special_per_byte": np.log1p((special + arithmetic / 16.0) / element_bytes),
            "dram_share": misses,
        },
    )


FAMILY = Family("elementwise", ("elementwise", "copy"), elementwise_work)
