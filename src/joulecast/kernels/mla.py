"""Latent attention (MLA) as DeepSeek has it: the kernels, and whole modules with projections and sparse indexer."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from joulecast.bounds.dtypes import DTYPES
from joulecast.gpus import Gpu
from joulecast.kernels import flash, gemm
from joulecast.kernels.attention import Shape, prefill
from joulecast.kernels.flash import Floats, by_code, column
from joulecast.kernels.work import Conditions, Family, KernelWork, tail_fill, work
from joulecast.workloads.kinds import LATENT_MODELS
from joulecast.workloads.table import OpTable, op_table


@dataclass(frozen=True)
class Widths:
    """Widths of a latent attention module. [elements, but for counts of heads and keys]

    Attributes
    ----------
    hidden, q_rank, kv_rank : float
        Model, compressed queries, compressed keys and values (the cache, beside `rope`).
    nope, rope, value : float
        Of one head: part of queries and keys without and with positions, and values.
    index_heads, index_dim, index_keys : float
        Heads and width of the indexer of sparse attention, and keys that it leaves a query.
    """

    hidden: float = 7168
    q_rank: float = 1536
    kv_rank: float = 512
    nope: float = 128
    rope: float = 64
    value: float = 128
    index_heads: float = 64
    index_dim: float = 128
    index_keys: float = 2048


#: From the models' published configurations.
DEEPSEEK = Widths()
GLM5 = Widths(hidden=6144, q_rank=2048, nope=192, value=256, index_heads=32)
WIDTHS = tuple(GLM5 if "GLM-5" in name else DEEPSEEK for name in LATENT_MODELS)


@dataclass(frozen=True)
class LatentKernel:
    """Numbers of a kernel that decodes from the latent cache.

    Attributes
    ----------
    rows : ndarray
        Query rows (heads x queries) of a tile.
    start_cycles : ndarray
        What an SM spends on a tile of few keys. [core cycles]
    key_cycles : ndarray
        Chain of a block for each key. [core cycles]
    splits : bool
        Keys are split over blocks, and the loop over them runs in the shadow of other blocks'.
    """

    rows: Floats
    start_cycles: Floats
    key_cycles: Floats
    splits: bool


def latent_kernel(gpu: Gpu, rows: Floats, cache_bytes: Floats) -> LatentKernel:
    """The kernel that decodes `rows` query rows a sequence from the latent cache."""
    ones = np.ones_like(rows)
    if flash.major(gpu) == 9:  # FlashMLA: tiles of 64 rows
        return LatentKernel(64 * ones, 16000 * ones, 18 * cache_bytes, True)
    if flash.major(gpu) >= 10:
        few = rows <= 16
        return LatentKernel(np.where(few, 16.0, 128.0), np.where(few, 11000.0, 20000.0), 18 * cache_bytes, True)
    return LatentKernel(64 * ones, 9000 * ones, 160 * ones, False)


def latent_decode(
    gpu: Gpu,
    conditions: Conditions,
    found: flash.Formats,
    *,
    family: str,
    reasons: dict[int, str],
    batch: Floats,
    queries: Floats,
    keys: Floats,
    heads: Floats,
    widths: dict[str, Floats],
    scattered: bool = False,
) -> KernelWork:
    """Work of absorbed attention: all heads of a query read one cache of latents, keys and values at once.

    Parameters
    ----------
    gpu : Gpu
    conditions : Conditions
    found : Formats
    family : str
    reasons : dict of int to str
    batch, queries, keys, heads : ndarray
        Sequences, queries of each, keys that each query reads, and query heads.
    widths : dict of str to ndarray
        Columns of `Widths` by row.
    scattered : bool
        Each query reads keys of its own (sparse attention), so that queries share no tile.

    Returns
    -------
    KernelWork
    """
    groups = batch * queries if scattered else batch
    rows = heads if scattered else heads * queries
    kernel = latent_kernel(gpu, rows, found.cache_bytes)
    row_tiles = np.ceil(rows / kernel.rows)
    units = groups * row_tiles
    splits = np.ones_like(units)
    if kernel.splits:
        splits = np.clip(np.floor(gpu.sm_count / units), 1.0, np.ceil(keys / 128))
    share = np.ceil(keys / splits)
    waves, fill = tail_fill(units * splits, gpu.sm_count)
    key_width, value_width = widths["kv_rank"] + widths["rope"], widths["kv_rank"]
    cache = found.cache_bytes * batch * keys * key_width
    gathered = found.cache_bytes * groups * keys * key_width * row_tiles
    tokens = batch * queries
    side = 2.0 * tokens * heads * (key_width + value_width)
    partial = np.where(splits > 1, 8.0 * splits * tokens * heads * value_width, 0.0)
    tensor_rate, cuda_rate, on_cuda = flash.rates(gpu, found.math)
    scores = units * kernel.rows * keys
    flop = 2 * scores * (key_width + value_width)
    l2 = gpu.l2_mib * 2**20
    cold = 1 - flash.cyclic_hits(cache + side, l2) if conditions.residency == "loop" else 1.0
    walk = kernel.key_cycles * share
    chain = (waves - 0.6) * kernel.start_cycles + walk
    if not kernel.splits:
        chain = waves * (kernel.start_cycles + walk)
    return work(
        family,
        len(batch),
        groups=found.groups,
        group=found.group,
        tensor_flop=np.where(on_cuda, 0.0, flop),
        tensor_flop_per_clk=tensor_rate,
        cuda_flop=flash.SOFTMAX_FLOP * scores + np.where(on_cuda, flop, 0.0),
        cuda_flop_per_clk=cuda_rate,
        sfu_ops=scores,
        shared_bytes=gathered,
        l2_bytes=gathered + side + partial,
        dram_bytes=(cache + side) * cold,
        fill=fill,
        blocks=units * splits,
        waves=waves,
        launches=3.0 if conditions.engine == "trtllm" else 2.0,
        latency_cycles=chain,
        useful_flop=2 * tokens * heads * keys * (key_width + value_width),
        math=flash.MATH_OF[found.math],
        features={
            "log_blocks_over_sms": np.log(units * splits / gpu.sm_count),
            "log_splits": np.log(splits),
            "log_share": np.log(share),
            "fill": fill,
            "row_fill": rows / (row_tiles * kernel.rows),
            "log_rows": np.log(rows),
            "log_cache_over_l2": np.log(cache / l2),
            "log_batch": np.log(batch),
        },
        reasons=reasons,
    )


def formats(table: OpTable, gpu: Gpu, conditions: Conditions) -> tuple[flash.Formats, dict[int, str]]:
    """Formats of rows of latent attention, and the rows that the GPU has no arithmetic for."""
    names = [name for name in ("attn_dtype", "kv_cache_dtype", "gemm_dtype") if name in table.columns]
    columns = {name: table[name] for name in names}
    return flash.formats(gpu, columns, conditions.kernel_source, low_cache_computes_low=flash.major(gpu) >= 9)


def widths_of(table: OpTable) -> dict[str, Floats]:
    """Columns of `Widths` for each row, by its model."""
    model = table.columns.get("model")
    codes = np.zeros(len(table), dtype=np.intp) if model is None else np.asarray(model, dtype=np.intp)
    return {name: np.array([getattr(one, name) for one in WIDTHS])[codes] for name in DEEPSEEK.__dataclass_fields__}


def context_work(table: OpTable, gpu: Gpu, conditions: Conditions) -> KernelWork:
    """Work of prefill from unfolded keys and values: as many key heads as query heads, wider keys than values."""
    found, reasons = formats(table, gpu, conditions)
    return unfolded_prefill(table, gpu, conditions, found, "mla_context", reasons)


def unfolded_prefill(
    table: OpTable, gpu: Gpu, conditions: Conditions, found: flash.Formats, family: str, reasons: dict[int, str]
) -> KernelWork:
    """Work of prefill attention with keys and values unfolded from the latents."""
    queries, past, heads = (column(table, name) for name in ("query_len", "past_len", "num_heads"))
    widths = widths_of(table)
    shape = Shape(
        batch=column(table, "batch_size"),
        queries=queries,
        past=past,
        keys=queries + past,
        heads=heads,
        kv_heads=heads,
        head_dim=widths["nope"] + widths["rope"],
        value_dim=widths["value"],
        window=np.zeros_like(queries),
        causal=True,
    )
    # keys and values come apart from the queries: only what is rotated is touched, unless all is converted
    converted = by_code(found.math, lambda one: one.activation_bytes) < found.query_bytes
    rotated = widths["rope"] / (widths["nope"] + widths["rope"])
    prepares = np.where(converted, 1.0, rotated) * (conditions.engine == "trtllm")
    latents = shape.batch * queries * (widths["kv_rank"] + widths["rope"]) * (2.0 + found.cache_bytes)
    return prefill(
        shape, gpu, conditions, found, family=family, reasons=reasons, prepares=prepares,
        beside_bytes=latents * (conditions.engine == "trtllm"),
    )  # fmt: skip


def generation_work(table: OpTable, gpu: Gpu, conditions: Conditions) -> KernelWork:
    """Work of decoding from the latent cache."""
    found, reasons = formats(table, gpu, conditions)
    queries = column(table, "query_len")
    return latent_decode(
        gpu, conditions, found, family="mla_generation", reasons=reasons, batch=column(table, "batch_size"),
        queries=queries, keys=column(table, "past_len") + queries, heads=column(table, "num_heads"),
        widths=widths_of(table),
    )  # fmt: skip


def bmm_work(table: OpTable, gpu: Gpu, conditions: Conditions) -> KernelWork:
    """Work of the products that absorb the unfolding of keys (``pre``) and values (``post``), one a head."""
    pre = np.asarray(table["bmm_stage"]) == 0
    inner, outer = DEEPSEEK.nope, DEEPSEEK.kv_rank
    asked = np.asarray(table["dtype"], dtype=np.intp)
    computed = asked
    if flash.major(gpu) >= 10 and conditions.engine == "trtllm":  # no such product in fp8: its weights are kept widened
        computed = np.where(by_code(asked, lambda one: one.math == "fp8") > 0, flash.BF16, asked)
    products = op_table(
        "batched_gemm",
        {
            "batch": table["num_heads"],
            "m": table["num_tokens"],
            "n": np.where(pre, outer, inner),
            "k": np.where(pre, inner, outer),
            "dtype": computed,
        },
        rows=len(table),
    )
    codes, group = np.unique(asked, return_inverse=True)
    suffix = "" if conditions.kernel_source in flash.DEFAULT_SOURCES else f"@{conditions.kernel_source}"
    return replace(
        gemm.gemm_work(products, gpu, conditions),
        family="mla_bmm",
        groups=tuple(DTYPES[code].name + suffix for code in codes),
        group=group.reshape(-1),
    )


CONTEXT = Family("mla_context", ("mla_context",), context_work)
GENERATION = Family("mla_generation", ("mla_generation",), generation_work)
BMM = Family("mla_bmm", ("mla_bmm",), bmm_work)
FAMILY = (CONTEXT, GENERATION, BMM)
