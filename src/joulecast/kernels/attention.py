"""Fused attention over many queries: causal prefill (windowed, grouped) and encoders."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from joulecast.gpus import Gpu
from joulecast.kernels import flash
from joulecast.kernels.flash import Floats, by_code, column
from joulecast.kernels.formats import activation_misses
from joulecast.kernels.work import Conditions, Family, KernelWork, work
from joulecast.workloads.table import OpTable

#: Cost of a byte of keys and values in the kernel that prepares them, relative to queries: values are not rotated.
KEY_WEIGHT = 0.7

#: Rate of Ampere's matrix instructions on Hopper over that of its own, which PyTorch's fused attention
#: (FlashAttention-2) does not use. (W. Luo et al., Benchmarking and dissecting the Nvidia Hopper GPU architecture,
#: IPDPS 2024: 62.9 % of peak on average.)
MMA_SHARE = 0.629

#: Rate of the same instructions on an SM of Blackwell's servers, that of an Ampere's SM. [FLOP/clk]
AMPERES_RATE_SM = 2048.0

#: Share of peak that long kernels reach, to set the time of a block against what a row of blocks costs beside them.
TYPICAL_SHARE = 0.45


@dataclass(frozen=True)
class Shape:
    """Attention over many queries, row by row.

    Attributes
    ----------
    batch : ndarray
        Sequences.
    queries, past, keys : ndarray
        New queries, keys before the first of them, and all keys, of a sequence. [tokens]
    heads, kv_heads, head_dim, value_dim : ndarray
    window : ndarray
        Keys that a query sees; 0: all that the mask allows.
    causal : bool
        Query i sees the keys up to its own.
    """

    batch: Floats
    queries: Floats
    past: Floats
    keys: Floats
    heads: Floats
    kv_heads: Floats
    head_dim: Floats
    value_dim: Floats
    window: Floats
    causal: bool


@dataclass(frozen=True)
class Grid:
    """Blocks of scores that a kernel computes: of one query head but for `units`, the thread blocks of all of them."""

    tile: flash.Tiles
    units: Floats
    row_blocks: Floats
    blocks: Floats
    longest: Floats
    pairs: Floats


@dataclass(frozen=True)
class Traffic:
    """Bytes of an attention kernel and of the one that prepares its operands. [B]"""

    once: Floats
    cache: Floats
    l2: Floats
    serial_l2: Floats
    dram: Floats
    serial_dram: Floats


def prefill(
    shape: Shape,
    gpu: Gpu,
    conditions: Conditions,
    formats: flash.Formats,
    *,
    family: str,
    reasons: dict[int, str],
    prepares: Floats | float,
    beside_bytes: Floats | float = 0.0,
) -> KernelWork:
    """Work of fused attention over many queries a sequence.

    Parameters
    ----------
    shape : Shape
    gpu : Gpu
    conditions : Conditions
    formats : Formats
    family : str
    reasons : dict of int to str
        Rows that can't run, with why.
    prepares : float or ndarray
        Share of queries, keys and values that a kernel before it splits, rotates, converts and writes to the cache;
        0 where there is none.
    beside_bytes : float or ndarray
        What that kernel moves beside them. [B]

    Returns
    -------
    KernelWork
    """
    grid = score_grid(shape, gpu, conditions)
    traffic = prefill_traffic(shape, grid, gpu, conditions, formats, prepares, beside_bytes)
    head_dim, value_dim = shape.head_dim, shape.value_dim
    tensor_rate, cuda_rate, on_cuda = flash.rates(gpu, formats.math)
    small = conditions.kernel_source == "vllm_triton_attn"  # tiles of fewer rows than later instructions take
    if flash.major(gpu) == 9 and (small or conditions.engine == "pytorch"):
        tensor_rate = tensor_rate * MMA_SHARE
    if flash.major(gpu) == 10 and (small or conditions.engine == "trtllm"):
        # widths that the asynchronous copies can't take run on kernels with Ampere's instructions
        own = (head_dim % 16 == 0) & (not small)
        tensor_rate = np.where(own, tensor_rate, np.minimum(tensor_rate, AMPERES_RATE_SM * gpu.sm_count))
    # accumulators of more than 256 values a row do not fit: each half of them computes the scores anew
    width = _padded(gpu, conditions.engine, head_dim) * np.ceil(value_dim / 256)
    width = width + _padded(gpu, conditions.engine, value_dim)
    block = grid.tile.rows * grid.tile.columns
    scores = shape.batch * shape.heads * grid.blocks * block
    flop = 2 * scores * width
    masked = np.where((shape.window > 0) & (shape.window < shape.keys), scores, 0.0)
    flop_cycles = np.where(on_cuda, 2 * width / cuda_rate, 2 * width / tensor_rate)
    block_cycles = gpu.sm_count * block * np.maximum(flop_cycles, 1 / gpu.sfu_per_clk) / TYPICAL_SHARE
    overhead = unit_cycles(gpu, conditions.engine) / block_cycles
    length = grid.blocks + overhead * grid.row_blocks
    slots = np.asarray(float(gpu.sm_count))  # blocks that share an SM share its rates, one alone has all of them
    busy = flash.uneven_fill(shape.batch * shape.heads * length, grid.longest + overhead, grid.units, slots)
    l2 = gpu.l2_mib * 2**20
    math_bytes = by_code(formats.math, lambda one: one.activation_bytes)
    groups, group = formats.groups, formats.group
    if conditions.engine == "trtllm" and flash.major(gpu) == 8:
        # its fp8 kernels for Ada are made for widths near 128; narrow and wide heads take slower ones
        group = group + len(groups) * np.where(math_bytes < 2, (head_dim <= 64) + 2 * (head_dim > 192), 0)
        named = (*groups, *(f"{name}/narrow" for name in groups), *(f"{name}/wide" for name in groups))
        present, group = np.unique(group, return_inverse=True)
        groups, group = tuple(named[code] for code in present), group.reshape(-1)
    return work(
        family,
        len(shape.batch),
        groups=groups,
        group=group,
        tensor_flop=np.where(on_cuda, 0.0, flop),
        tensor_flop_per_clk=tensor_rate,
        cuda_flop=flash.SOFTMAX_FLOP * scores
        + mask_flop(gpu, conditions.engine) * masked
        + np.where(on_cuda, flop, 0.0),
        cuda_flop_per_clk=cuda_rate,
        sfu_ops=scores,
        shared_bytes=scores / grid.tile.shared_rows * (head_dim + value_dim) * math_bytes,
        l2_bytes=traffic.l2,
        serial_l2_bytes=traffic.serial_l2,
        dram_bytes=traffic.dram,
        serial_dram_bytes=traffic.serial_dram,
        fill=busy * grid.blocks / length,
        blocks=grid.units,
        waves=np.ceil(grid.units / slots),
        launches=1.0 + (np.asarray(prepares) > 0),
        useful_flop=2 * shape.batch * shape.heads * grid.pairs * (head_dim + value_dim),
        math=flash.MATH_OF[formats.math],
        features={
            "log_units_over_slots": np.log(grid.units / slots),
            "log_row_blocks": np.log(grid.row_blocks),
            "log_blocks_of_longest": np.log(grid.longest),
            "row_fill": shape.queries / (grid.row_blocks * grid.tile.rows),
            "pair_share": grid.pairs / (grid.blocks * block),
            "head_dim": head_dim / 128,
            "wide_head": head_dim > 128,
            "head_dim_pad": width / (head_dim + value_dim) - 1,
            "log_group": np.log(shape.heads / shape.kv_heads),
            "window_share": np.where(shape.window > 0, np.minimum(shape.window / shape.keys, 1.0), 1.0),
            "past_share": shape.past / shape.keys,
            "log_once_over_l2": np.log(traffic.once / l2),
            "log_cache_over_l2": np.log(traffic.cache / l2),
            "log_batch": np.log(shape.batch),
        },
        reasons=reasons,
    )


def score_grid(shape: Shape, gpu: Gpu, conditions: Conditions) -> Grid:
    """Blocks that a prefill kernel computes."""
    widest = np.maximum(shape.head_dim, shape.value_dim)
    tile = flash.prefill_tiles(gpu, shape.queries, widest, conditions.kernel_source)
    row_blocks = np.ceil(shape.queries / tile.rows)
    units = shape.batch * shape.heads * row_blocks
    if shape.causal:
        blocks, longest = flash.causal_blocks(shape.queries, shape.past, shape.window, tile.rows, tile.columns)
        pairs = flash.visible_pairs(shape.queries, shape.past, shape.window)
    else:
        longest = np.ceil(shape.keys / tile.columns)
        blocks, pairs = row_blocks * longest, shape.queries * shape.keys
    if conditions.engine == "vllm":
        # heads that share keys stand in one tile where that leaves fewer rows empty
        sharing = shape.heads / shape.kv_heads
        packed = np.ceil(shape.queries * sharing / tile.rows)
        pack = packed < (1.0 if conditions.kernel_source == "vllm_triton_attn" else 0.9) * row_blocks * sharing
        seen = np.where(shape.window > 0, np.minimum(shape.keys, shape.window + shape.queries - 1), shape.keys)
        reach = np.ceil(seen / tile.columns)
        units = np.where(pack, shape.batch * shape.kv_heads * packed, units)
        row_blocks = np.where(pack, packed / sharing, row_blocks)
        blocks = np.where(pack, packed / sharing * reach, blocks)
        longest = np.where(pack, reach, longest)
    return Grid(tile, units, row_blocks, blocks, longest, pairs)


def prefill_traffic(
    shape: Shape,
    grid: Grid,
    gpu: Gpu,
    conditions: Conditions,
    formats: flash.Formats,
    prepares: Floats | float,
    beside_bytes: Floats | float = 0.0,
) -> Traffic:
    """Bytes that prefill attention moves; keys and values are read again from L2 by every row of blocks."""
    math_bytes = by_code(formats.math, lambda one: one.activation_bytes)
    width = shape.head_dim + shape.value_dim
    tokens = shape.batch * shape.queries
    new = shape.batch * np.minimum(shape.queries, shape.keys) * shape.kv_heads * width
    out_bytes = np.maximum(formats.query_bytes, 2.0) * tokens * shape.heads * shape.value_dim
    query_bytes = math_bytes * tokens * shape.heads * shape.head_dim
    cache_bytes = formats.cache_bytes * shape.batch * shape.keys * shape.kv_heads * width
    once = query_bytes + cache_bytes + out_bytes
    read_l2 = shape.batch * shape.heads * grid.blocks * grid.tile.columns * width * math_bytes
    queries_both = prepares * (2.0 + math_bytes) * tokens * shape.heads * shape.head_dim
    new_both = prepares * (2.0 + formats.cache_bytes) * new
    prepared = queries_both + new_both + beside_bytes
    costly = queries_both + KEY_WEIGHT * new_both + beside_bytes
    loop = conditions.residency == "loop"
    cold = activation_misses(once + prepared / 2, gpu, conditions) if loop else np.ones_like(once)
    fresh = query_bytes + formats.cache_bytes * new
    # what the kernel before has just written is still in L2 where it fits
    written = np.asarray(prepares) > 0 if loop else np.asarray(True)
    missed = np.where(written, np.minimum(cold, activation_misses(fresh, gpu, conditions)), cold)
    return Traffic(
        once=once,
        cache=cache_bytes,
        l2=read_l2 + query_bytes + out_bytes + costly,
        serial_l2=costly,
        dram=fresh * missed + (once - fresh + prepared) * cold,
        serial_dram=prepared * cold,
    )


def unit_cycles(gpu: Gpu, engine: str) -> float:
    """Cost of one row of blocks beside its blocks: load of queries, first scores with nothing to overlap, store.

    Kernels of one warp-specialised block an SM pay more than those that keep two blocks on it. [core cycles]
    """
    if flash.major(gpu) < 9:
        return 1500.0
    return 6000.0 if engine == "trtllm" else 3500.0


def mask_flop(gpu: Gpu, engine: str) -> float:
    """FLOP on CUDA cores that a score under a sliding window takes: two compares and a select, or a slow path."""
    return 40.0 if engine == "trtllm" and flash.major(gpu) == 9 else 10.0


def _padded(gpu: Gpu, engine: str, width: Floats) -> Floats:
    """Width of a head as the tensor cores see it: kernels exist for few widths, and the next wider one is taken.

    TensorRT-LLM before Blackwell has 64 and 128 (and on Ampere and Ada powers of two above), others whole 32s.
    """
    step = np.where(width <= 64, 16.0, 32.0)
    if engine == "trtllm" and flash.major(gpu) <= 9:
        step = np.where((width > 64) & (width <= 128), 128.0, step)
        if flash.major(gpu) < 9:
            step = np.where(width > 128, 256.0, step)
    if flash.major(gpu) >= 10:
        step = np.where(width <= 128, 16.0, step)
    return np.ceil(width / step) * step


def context_work(table: OpTable, gpu: Gpu, conditions: Conditions) -> KernelWork:
    """Work of causal prefill attention."""
    found, reasons = flash.formats(
        gpu,
        {"attn_dtype": table["attn_dtype"], "kv_cache_dtype": table["kv_cache_dtype"]},
        conditions.kernel_source,
        low_cache_computes_low=conditions.engine in ("trtllm", "vllm"),
    )
    queries, past = column(table, "query_len"), column(table, "past_len")
    shape = Shape(
        batch=column(table, "batch_size"),
        queries=queries,
        past=past,
        keys=queries + past,
        heads=column(table, "num_heads"),
        kv_heads=np.minimum(column(table, "num_kv_heads"), column(table, "num_heads")),
        head_dim=column(table, "head_dim"),
        value_dim=column(table, "value_dim"),
        window=column(table, "window_size"),
        causal=True,
    )
    prepares = float(conditions.engine == "trtllm")
    return prefill(shape, gpu, conditions, found, family="context_attention", reasons=reasons, prepares=prepares)


def encoder_work(table: OpTable, gpu: Gpu, conditions: Conditions) -> KernelWork:
    """Work of attention without a mask."""
    found, reasons = flash.formats(
        gpu, {"attn_dtype": table["attn_dtype"]}, conditions.kernel_source, low_cache_computes_low=False
    )
    queries, width = column(table, "seq_len"), column(table, "head_dim")
    shape = Shape(
        batch=column(table, "batch_size"),
        queries=queries,
        past=np.zeros_like(queries),
        keys=column(table, "kv_len"),
        heads=column(table, "num_heads"),
        kv_heads=np.minimum(column(table, "num_kv_heads"), column(table, "num_heads")),
        head_dim=width,
        value_dim=width,
        window=np.zeros_like(queries),
        causal=False,
    )
    prepares = float(conditions.engine == "trtllm")
    return prefill(shape, gpu, conditions, found, family="encoder_attention", reasons=reasons, prepares=prepares)


CONTEXT = Family("context_attention", ("context_attention",), context_work)
ENCODER = Family("encoder_attention", ("encoder_attention",), encoder_work)
FAMILY = (CONTEXT, ENCODER)
