"""Fused attention of a decoding step: few queries over a long cache, with split keys."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from joulecast.gpus import Gpu
from joulecast.kernels import flash
from joulecast.kernels.flash import Floats, by_code, column
from joulecast.kernels.work import MATHS, Conditions, Family, KernelWork, tail_fill, work
from joulecast.workloads.table import OpTable

Flags = npt.NDArray[np.bool_]

#: Keys under which no kernel splits a sequence further.
SPLIT_KEYS = 128.0


def generation_work(table: OpTable, gpu: Gpu, conditions: Conditions) -> KernelWork:
    """Work of one decoding step: few queries a sequence over a cache of keys and values.

    Heads that share keys stand in one tile; where sequences and key heads are fewer than the SMs, the keys are
    split over blocks whose results are combined. The cache is read once, from DRAM unless L2 still holds it.
    """
    found, reasons = flash.formats(
        gpu,
        {"attn_dtype": table["attn_dtype"], "kv_cache_dtype": table["kv_cache_dtype"]},
        conditions.kernel_source,
        low_cache_computes_low=conditions.engine == "vllm" or flash.major(gpu) >= 9,
    )
    batch, queries = column(table, "batch_size"), column(table, "query_len")
    heads = column(table, "num_heads")
    kv_heads = np.minimum(column(table, "num_kv_heads"), heads)
    head_dim, value_dim = column(table, "head_dim"), column(table, "value_dim")
    window = column(table, "window_size")
    keys = column(table, "past_len") + queries
    seen = np.where(window > 0, np.minimum(keys, window + queries - 1), keys)
    rows = queries * heads / kv_heads
    kernel = _decode_kernel(gpu, conditions.engine, rows, head_dim, found)
    single, kernel_rows, start_cycles = kernel.single, kernel.rows, kernel.start_cycles
    kernel_rows = np.where(single, 1.0, kernel_rows)
    row_tiles = np.ceil(rows / kernel_rows)
    units = batch * kv_heads * row_tiles
    splits = np.clip(np.floor(gpu.sm_count / units), 1.0, np.ceil(seen / SPLIT_KEYS))
    splits = np.where(seen < kernel.split_from, 1.0, splits)
    merged = splits
    if conditions.engine == "trtllm" and flash.major(gpu) <= 9:
        # the older kernel splits all keys, those outside the window too: few blocks have any to read
        over_all = np.clip(np.floor(gpu.sm_count / units), 1.0, np.ceil(keys / SPLIT_KEYS))
        over_all = np.where((seen < keys) & (keys >= kernel.split_from) & (kernel.columns > 128), over_all, splits)
        merged = over_all
        splits = np.where(seen < keys, np.clip(np.floor(over_all * seen / keys), 1.0, over_all), splits)
    share = np.ceil(seen / splits)
    blocks = units * splits
    waves, fill = tail_fill(blocks, gpu.sm_count)
    width = head_dim + value_dim
    cache_bytes = found.cache_bytes * batch * kv_heads * seen * width
    walked = np.where(share <= kernel.columns / 8, share, np.ceil(share / kernel.columns) * kernel.columns)
    walk = walked * width * found.cache_bytes / kernel.bytes_per_clk
    if conditions.engine == "trtllm":  # the last block of a sequence adds up the results of all
        start, rate = (0.0, 64.0) if flash.major(gpu) >= 10 else (1500.0, 32.0)
        walk += np.where(merged > 1, start + merged * rows * value_dim * 4.0 / rate, 0.0)
    tokens = batch * queries
    side = tokens * heads * (found.query_bytes * head_dim + 2.0 * value_dim)
    partial = np.where(splits > 1, 4.0 * 2 * splits * tokens * heads * value_dim, 0.0)
    tensor_rate, cuda_rate, on_cuda = flash.rates(gpu, found.math)
    on_cuda = on_cuda | single
    scores = batch * kv_heads * seen * np.where(on_cuda, rows, row_tiles * kernel_rows)
    flop = 2 * scores * width
    converted = np.where(found.cache_bytes < by_code(found.math, lambda one: one.activation_bytes), 2.0, 0.0)
    l2 = gpu.l2_mib * 2**20
    cold = 1 - flash.cyclic_hits(cache_bytes + side, l2) if conditions.residency == "loop" else 1.0
    prepares = conditions.engine == "trtllm"
    names = (*found.groups, *(f"{name}/single" for name in found.groups))
    present, group = np.unique(found.group + len(found.groups) * single, return_inverse=True)
    return work(
        "generation_attention",
        len(batch),
        groups=tuple(names[code] for code in present),
        group=group.reshape(-1),
        tensor_flop=np.where(on_cuda, 0.0, flop),
        tensor_flop_per_clk=tensor_rate,
        cuda_flop=flash.SOFTMAX_FLOP * scores + np.where(on_cuda, flop, 0.0) + converted * cache_bytes,
        cuda_flop_per_clk=np.where(on_cuda, max(gpu.cuda_flop_per_clk("fp32"), 1.0), cuda_rate),
        sfu_ops=scores,
        shared_bytes=cache_bytes * row_tiles,
        l2_bytes=cache_bytes * row_tiles + side + partial,
        dram_bytes=(cache_bytes + side) * cold,
        fill=fill,
        blocks=blocks,
        waves=waves,
        launches=kernel.launches + ((splits > 1) if conditions.engine == "pytorch" else 0.0),
        latency_cycles=(waves - (0.6 if prepares else 0.0)) * start_cycles + walk,
        useful_flop=2 * tokens * heads * seen * width,
        math=np.where(single, MATHS.index("fp32"), flash.MATH_OF[found.math]),
        features={
            "log_blocks_over_sms": np.log(blocks / gpu.sm_count),
            "log_units_over_sms": np.log(units / gpu.sm_count),
            "log_splits": np.log(splits),
            "log_share": np.log(share),
            "fill": fill,
            "row_fill": rows / (row_tiles * kernel_rows),
            "log_group": np.log(heads / kv_heads),
            "single": single,
            "head_dim": head_dim / 128,
            "window_share": seen / keys,
            "log_cache_over_l2": np.log(cache_bytes / l2),
            "log_batch": np.log(batch),
            "start_share": start_cycles / (start_cycles + walk),
        },
        reasons=reasons,
    )


@dataclass(frozen=True)
class DecodeKernel:
    """A decoding kernel, row by row.

    Attributes
    ----------
    single : ndarray of bool
        A kernel of CUDA cores with a block for each query head: TensorRT-LLM's where heads share no keys (before
        Blackwell), or where more than 32 share them.
    rows, columns : ndarray
        Query rows and keys of a tile.
    start_cycles : ndarray
        Start of a block, load of its queries, its end: what an SM spends on a block of few keys. [core cycles]
    bytes_per_clk : ndarray
        Keys and values that one block takes in: loads in flight over their latency. [B/clk]
    split_from : ndarray
        Keys from which a sequence is split.
    launches : ndarray
        Kernels of a step: one before that writes the cache, or one after that combines splits.
    """

    single: Flags
    rows: Floats
    columns: Floats
    start_cycles: Floats
    bytes_per_clk: Floats
    split_from: Floats
    launches: Floats


def _decode_kernel(gpu: Gpu, engine: str, rows: Floats, head_dim: Floats, formats: flash.Formats) -> DecodeKernel:
    """Which decoding kernel runs for `rows` query rows a key head."""
    ones, none = np.ones_like(rows), np.zeros(len(rows), dtype=bool)
    wide = head_dim * formats.cache_bytes
    if engine != "trtllm":
        start = 3700.0 + 8 * wide if flash.major(gpu) <= 9 else 1600.0 + 6 * wide
        tile = 64.0 if flash.major(gpu) == 9 else 16.0
        # graphs of vLLM always hold FlashAttention-3's combination; its other kernels combine by themselves
        launches = 2.0 if engine == "vllm" and flash.major(gpu) == 9 else 1.0
        return DecodeKernel(none, tile * ones, 128 * ones, start, 32 * ones, 256 * ones, launches * ones)
    if flash.major(gpu) >= 10:
        single = rows > 32
        start = np.where(single, 2200.0, 1500.0 + 8 * wide)
        return DecodeKernel(single, 16 * ones, 128 * ones, start, 32 * ones, 256 * ones, 2 * ones)
    single = (rows <= 1) | (rows > 32)
    narrow = formats.cache_bytes < 2
    if flash.major(gpu) == 9:
        asynchronous = narrow & ~single & (rows * head_dim < 4096)  # room for so many queries
        never = none
    else:
        asynchronous = none
        never = narrow & ~single  # no version of this kernel splits keys
    plain = ~single & ~asynchronous
    tight = asynchronous & (rows * head_dim >= 3072)  # queries leave no room to load ahead
    start = np.where(asynchronous, np.where(tight, 10000.0, 1300.0) + 13 * wide, 6500.0 + 12 * wide)
    return DecodeKernel(
        single,
        np.where(asynchronous, 64.0, 16.0),
        np.where(plain, 256.0, 128.0),
        np.where(single, 2200.0, start),
        np.where(plain, 24.0, 32.0),
        np.where(never, np.inf, np.where(plain, 1000.0, 256.0)),
        np.where(asynchronous & (head_dim > 64), 1.0, 2.0),  # wide heads: it rotates and stores by itself
    )


GENERATION = Family("generation_attention", ("generation_attention",), generation_work)
FAMILY = GENERATION
