"""Block arithmetic of fused attention: tiles by architecture, blocks that a mask leaves, how units fill a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from joulecast.bounds.dtypes import CODES, DTYPES
from joulecast.gpus import Gpu
from joulecast.kernels.work import MATHS
from joulecast.workloads.table import OpTable

Floats = npt.NDArray[np.float64]

#: Kernels that an engine takes when it is not told otherwise; rows of any other form groups of their own.
DEFAULT_SOURCES = frozenset(
    {
        "",
        "default",
        "torch_flow",
        "vllm_default",
        "vllm_flash_attn",
        "vllm_flashinfer",
        "vllm_vit_flash_attn",
        "trtllm_bmm_out",
        "trtllm_fp8_block_scaling_bmm_out",
        "trtllm_bmm_out_dequant_bf16",
    }
)

#: FLOP on CUDA cores that the softmax of one score takes: scale, maximum, subtract, sum, rescale, convert.
SOFTMAX_FLOP = 8.0


#: Index into `joulecast.kernels.work.MATHS` by code of format.
MATH_OF = np.array([MATHS.index(one.math) for one in DTYPES], dtype=np.intp)

BF16 = CODES["bf16"]


@dataclass(frozen=True)
class Tiles:
    """Tile of a fused attention kernel: query rows, key columns, rows that share one read of a key from shared memory.

    `resident` is the number of thread blocks that an SM holds at a time.
    """

    rows: Floats
    columns: Floats
    shared_rows: Floats
    resident: Floats


def major(gpu: Gpu) -> int:
    """First number of the compute capability; 8 for GPUs that have none (their tiles are like Ampere's)."""
    head = gpu.compute_capability.split(".")[0]
    return int(head) if head.isdigit() else 8


def prefill_tiles(gpu: Gpu, queries: Floats, head_dim: Floats, source: str = "") -> Tiles:
    """Tile that prefill kernels use, by architecture, length and head width.

    Parameters
    ----------
    gpu : Gpu
    queries : ndarray, shape (n,)
        Query rows of one head. [1]
    head_dim : ndarray, shape (n,)
        Width of a head. [1]
    source : str
        Kernel of the engine; Triton's unified attention has small tiles on every GPU.

    Returns
    -------
    Tiles

    Notes
    -----
    Hopper: two warpgroups of 64 rows (FlashAttention-3). Blackwell: two tiles of 128 rows in turns
    (FlashAttention-4). Before: 128 or 64 rows, 16 or 32 a warp, two blocks an SM (FlashAttention-2).
    """
    ones = np.ones_like(queries)
    wide = head_dim > 128
    if source == "vllm_triton_attn":
        return Tiles(16 * ones, 32 * ones, 16 * ones, 2 * ones)
    if major(gpu) == 9:
        rows = np.where(queries <= 64, 64.0, 128.0)
        return Tiles(rows, np.where(wide, 64.0, 128.0), 64 * ones, ones)
    if major(gpu) == 10:
        rows = np.where((queries <= 128) | wide, 128.0, 256.0)
        return Tiles(rows, 128 * ones, 128 * ones, ones)
    rows = np.clip(2.0 ** np.ceil(np.log2(queries)), 16.0, np.where(wide, 64.0, 128.0))
    return Tiles(rows, 64 * ones, np.where(wide, 16.0, 32.0), np.where(wide, 1.0, 2.0))


def visible_pairs(queries: Floats, past: Floats, window: Floats) -> Floats:
    """Query-key pairs of one causal head: query i sees ``min(past + i + 1, window)`` keys (window 0: all of them)."""
    window = np.where(window > 0, window, np.inf)
    growing = np.clip(window - past - 1, 0, queries)  # queries that see less than a whole window
    with np.errstate(invalid="ignore"):
        capped = np.where(queries > growing, (queries - growing) * np.where(np.isinf(window), 0.0, window), 0.0)
    return growing * past + growing * (growing + 1) / 2 + capped


def causal_blocks(
    queries: Floats, past: Floats, window: Floats, rows: Floats, columns: Floats
) -> tuple[Floats, Floats]:
    """Blocks of a causal, windowed score matrix that hold an unmasked pair.

    Parameters
    ----------
    queries, past, window : ndarray
        Query rows, keys before them, keys that a query sees (0: all before it). [1]
    rows, columns : ndarray
        Size of a block; powers of two. [1]

    Returns
    -------
    total, longest : ndarray
        Blocks of one head, and of its longest row of blocks. Exact where the columns of a block do not exceed
        its rows; else the mean over the possible alignments.
    """
    last = np.ceil(queries / rows) - 1  # full rows of blocks before the last one
    step = np.minimum(rows, columns)  # powers of two: the greatest common divisor
    off = (columns - step) / 2
    past_up = past + np.mod(-past, step) + off
    upper = (last * past_up + rows * last * (last + 1) / 2) / columns + np.ceil((past + queries) / columns)
    windowed = (window > 0) & (window < past + queries)
    begin = past - window + 1  # first key of the first query; negative while the window is not full
    first = np.clip(np.ceil(-begin / rows), 0, last + 1)
    count = last + 1 - first
    indices = (first + last) * count / 2
    lower = (count * (begin - np.mod(begin, step) - off) + rows * indices) / columns
    total = np.maximum(upper - np.where(windowed, np.maximum(lower, 0.0), 0.0), last + 1)
    longest = np.ceil((past + queries) / columns)
    span = np.ceil((np.minimum(rows, queries) + window - 1) / columns) + (columns > step)
    return total, np.where(windowed, np.minimum(longest, span), longest)


def uneven_fill(total: Floats, longest: Floats, units: Floats, slots: Floats) -> Floats:
    """Share of the slots at work when `units` pieces of uneven length are dealt out, longest first.

    Parameters
    ----------
    total, longest : ndarray
        Length of all pieces together and of the longest. [any one unit]
    units, slots : ndarray
        Pieces and places to run them. [1]

    Returns
    -------
    ndarray
        ``total / (slots x makespan)``, in (0, 1]. Pieces of one length run in whole waves; the shorter the mean
        piece is against the longest, the better small ones fill the gaps.
    """
    mean = total / units
    whole = np.ceil(units / slots) * mean
    even = total / slots
    spread = np.clip(longest / mean - 1, 0, 1)  # 0: all alike, 1: causal triangle of many rows
    makespan = np.maximum(whole + (even - whole) * spread, longest)
    return np.minimum(total / (slots * makespan), 1.0)


def cyclic_hits(footprint_bytes: Any, cache_bytes: Any) -> Floats:
    """Share of hits when a footprint is read from end to end again and again.

    Replacement of the line that was used longest ago keeps all of a footprint that fits and none of one that
    does not: a steep slope (exponent 10) that passes a half where the footprint is 0.85 of the cache.

    Parameters
    ----------
    footprint_bytes, cache_bytes : array_like
        [B]

    Returns
    -------
    ndarray
        Dimensionless, 0 to 1.
    """
    ratio = np.asarray(footprint_bytes, dtype=np.float64) / np.asarray(cache_bytes, dtype=np.float64)
    square = np.square(np.minimum(ratio / 0.85, 1e3))
    hits: Floats = 1.0 / (1.0 + square * np.square(np.square(square)))
    return hits


@dataclass(frozen=True)
class Formats:
    """Formats of attention rows.

    Attributes
    ----------
    groups : tuple of str
    group : ndarray of int
    math : ndarray of int
        Code of the format that the scores are computed in (`joulecast.bounds.dtypes`).
    query_bytes, cache_bytes : ndarray
        Bytes an element of the queries and of the cached keys and values.
    codes : ndarray of int, shape (n,)
        Of the arithmetic asked for.
    """

    groups: tuple[str, ...]
    group: npt.NDArray[np.intp]
    math: npt.NDArray[np.intp]
    query_bytes: Floats
    cache_bytes: Floats
    codes: npt.NDArray[np.intp]


def by_code(codes: npt.NDArray[Any], value: Any) -> Floats:
    """``value(DTYPES[code])`` of each row."""
    rows: Floats = np.array([value(one) for one in DTYPES], dtype=np.float64)[codes]
    return rows


def column(table: OpTable, name: str) -> Floats:
    """A size column as float64."""
    return np.asarray(table[name], dtype=np.float64)


def formats(
    gpu: Gpu, columns: dict[str, npt.NDArray[Any]], source: str, *, low_cache_computes_low: bool
) -> tuple[Formats, dict[int, str]]:
    """Groups and arithmetic of attention rows, and the rows that the GPU has no arithmetic for.

    Parameters
    ----------
    gpu : Gpu
    columns : dict of str to ndarray of int
        Codes of ``attn_dtype`` and, where it may differ, ``kv_cache_dtype``; further formats only name groups.
    source : str
        Kernel of the engine; part of the group's name unless it is a default.
    low_cache_computes_low : bool
        A cache of fp8 makes the kernel compute in fp8 (queries are converted) where the tensor cores can.

    Returns
    -------
    formats : Formats
    reasons : dict of int to str
        By row.
    """
    asked = np.asarray(columns["attn_dtype"], dtype=np.intp)
    cache = np.asarray(columns.get("kv_cache_dtype", asked), dtype=np.intp)
    others = [np.asarray(columns[name], dtype=np.intp) for name in ("gemm_dtype",) if name in columns]
    key = asked * 64 + cache
    for codes in others:
        key = key * 64 + codes
    _, first, group = np.unique(key, return_index=True, return_inverse=True)
    suffix = "" if source in DEFAULT_SOURCES else f"@{source}"
    names = []
    for row in first:
        name = DTYPES[asked[row]].name
        if cache[row] != asked[row]:
            name += f"/{DTYPES[cache[row]].name}kv"
        names.append("".join([name, *(f"/{DTYPES[codes[row]].name}" for codes in others), suffix]))
    computed = asked.copy()
    if low_cache_computes_low and gpu.tensor_flop_per_clk("fp8") > 0 and major(gpu) >= 9:
        low = by_code(cache, lambda one: one.math == "fp8") > 0
        half = by_code(asked, lambda one: one.math in ("bf16", "fp16")) > 0
        computed = np.where(low & half, cache, asked)
    reasons = {}
    for code in np.unique(asked):
        reason = lacking(gpu, DTYPES[code].math)
        if reason:
            reasons.update(dict.fromkeys(np.flatnonzero(asked == code).tolist(), reason))
    found = Formats(
        tuple(names),
        group.reshape(-1),
        computed,
        by_code(asked, lambda one: one.activation_bytes),
        by_code(cache, lambda one: one.weight_bytes),
        asked,
    )
    return found, reasons


def lacking(gpu: Gpu, math: str) -> str:
    """Why `gpu` can't compute attention in `math`; empty where it can."""
    if math not in ("fp32", "tf32", "fp16", "bf16", "fp8"):
        return f"attention is not computed in {math}; give bf16, fp16, fp8 or fp32"
    if gpu.tensor_flop_per_clk(math) > 0 or (math != "fp8" and gpu.cuda_flop_per_clk(math) > 0):
        return ""
    return (
        f"{gpu.name} has no {math} arithmetic for attention; give fp16 or fp32"
        if math != "fp8"
        else (f"{gpu.name} has no fp8 tensor cores for attention; give bf16 or fp16")
    )


def rates(gpu: Gpu, codes: npt.NDArray[np.intp]) -> tuple[Floats, Floats, npt.NDArray[np.bool_]]:
    """Tensor and CUDA-core rates of each row's arithmetic, and where only CUDA cores have it. [FLOP/clk]"""
    tensor = by_code(codes, lambda one: gpu.tensor_flop_per_clk(one.math) if one.math != "fp32" else 0.0)
    vector = by_code(codes, lambda one: gpu.cuda_flop_per_clk(one.math))
    single = max(gpu.cuda_flop_per_clk("fp32"), 1.0)
    none = tensor <= 0
    return np.where(none, 1.0, tensor), np.where(none & (vector > 0), vector, single), none
