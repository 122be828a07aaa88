"""The backward pass of fused attention: scores once more, then the gradients of queries, keys and values."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from joulecast.gpus import Gpu
from joulecast.kernels import flash
from joulecast.kernels.attention import Shape, prefill
from joulecast.kernels.flash import column
from joulecast.kernels.formats import activation_misses
from joulecast.kernels.work import Conditions, Family, Floats, KernelWork
from joulecast.workloads.table import OpTable

#: Rate of a product in the backward kernel over that in the forward one: five products share registers and shared
#: memory with twice the operands. An estimate: T. Dao, FlashAttention-2 (ICLR 2024), draws about this ratio for long
#: sequences on an A100; no table of backward kernels was fitted.
RATE_SHARE = 0.85

#: Launches: the products of results and their gradients, the kernel itself, and its sum for the queries cast down.
LAUNCHES = 3.0


def attention_backward_work(table: OpTable, gpu: Gpu, conditions: Conditions) -> KernelWork:
    """Work of the backward pass of fused attention.

    The forward kernel's blocks of scores with five products in each for two, its softmax recomputed from a number a
    row; gradients of queries are summed in fp32 in L2.

    Parameters
    ----------
    table : OpTable
        Of kind ``attention_backward``.
    gpu : Gpu
    conditions : Conditions

    Returns
    -------
    KernelWork
        Of family ``context_attention``, whose efficiencies it takes: no table of backward kernels was fitted.
    """
    found, reasons = flash.formats(
        gpu, {"attn_dtype": table["attn_dtype"]}, conditions.kernel_source, low_cache_computes_low=False
    )
    queries, keys = column(table, "query_len"), column(table, "kv_len")
    heads = column(table, "num_heads")
    width, value = column(table, "head_dim"), column(table, "value_dim")
    kv_heads = np.minimum(column(table, "num_kv_heads"), heads)
    causal = np.asarray(table["causal"]) > 0
    batch, window = column(table, "batch_size"), column(table, "window_size")
    shapes = [
        Shape(batch, queries, np.maximum(keys - queries, 0.0), keys, heads, kv_heads, width, value, window, masked)
        for masked in (True, False)
    ]
    masked, whole = (
        prefill(shape, gpu, conditions, found, family="context_attention", reasons=reasons, prepares=0.0)
        for shape in shapes
    )

    def chosen(name: str) -> Floats:
        return np.asarray(np.where(causal, getattr(masked, name), getattr(whole, name)))

    products = (3.0 * width + 2.0 * value) / (width + value)
    size = flash.by_code(found.math, lambda one: one.activation_bytes)
    queried = batch * queries * heads * (width + value) * size
    cached = batch * keys * kv_heads * (width + value) * size
    # read: queries, keys, values, results and their gradients; written: three gradients; sums of fp32 in between
    sums = 2.0 * 4.0 * batch * queries * heads * width
    moved = 2.0 * queried + 2.0 * cached + batch * queries * heads * value * size + sums
    misses = activation_misses(moved, gpu, conditions)
    features = np.where(causal[:, None], masked.features, whole.features)
    return replace(
        masked,
        tensor_flop=chosen("tensor_flop") * products / RATE_SHARE,
        cuda_flop=chosen("cuda_flop") * products / 2.0,
        sfu_ops=chosen("sfu_ops"),
        shared_bytes=chosen("shared_bytes") * products,
        l2_bytes=chosen("l2_bytes") * 2.0 + moved,
        dram_bytes=moved * misses,
        serial_l2_bytes=sums / 2.0 + batch * queries * heads * value * 2.0 * size,
        serial_dram_bytes=(sums / 2.0 + batch * queries * heads * value * 2.0 * size) * misses,
        fill=chosen("fill"),
        blocks=chosen("blocks"),
        waves=chosen("waves"),
        launches=np.full(len(table), LAUNCHES),
        useful_flop=chosen("useful_flop") * products,
        features=features,
    )


FAMILY = Family("attention_backward", ("attention_backward",), attention_backward_work)
