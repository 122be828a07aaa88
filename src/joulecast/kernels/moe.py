"""Mixtures of experts: grouped matrix multiplies over the experts that a batch hits, and what surrounds them."""

from __future__ import annotations

import numpy as np

from joulecast.bounds.dtypes import DTYPES, dtype_code
from joulecast.gpus import Gpu
from joulecast.kernels.formats import (
    ACTIVATION_BYTES,
    WEIGHT_BYTES,
    activation_misses,
    by_math,
    group_labels,
    log_ratio,
    maths_on,
    missing_formats,
    rate_of,
    vector_rate,
)
from joulecast.kernels.routing import route
from joulecast.kernels.work import Conditions, Family, Floats, KernelWork, resident_share, tail_fill, work
from joulecast.workloads.table import OpTable

#: Kernels of one layer: permute, two products, activation, finalise, and the sorting of tokens by expert.
LAUNCHES = 6.0

#: Tokens of a tile, least and most; its output features, and those of a full tile where tensor cores read their
#: operands from shared memory; blocks that an SM holds.
TILE_LIMITS = (16.0, 128.0)
TILE_FEATURES = 128.0
WIDE_FEATURES = 256.0
RESIDENT = 1.0

#: Blocks of a cluster that share what they read from L2, by architecture.
_CLUSTER = {"hopper": 2.0, "blackwell": 2.0}

#: Steps of the reduction that a block's prologue and epilogue last as long as; for clusters (descriptors of the
#: expert's operands come first) those of a full tile, however few its tokens. [B of a row]
_EDGE_BYTES = 256.0
_CLUSTER_EDGE_BYTES = 1024.0

#: Names by which engines call their default kernels.
_PREFIXES = (
    "moe_torch_flow",
    "vllm_fused_moe",
    "torch_flow",
    "vllm_default",
    "default",
    "cutlass",
    "deepgemm",
    "nongated",
)

_ROUNDED = np.array([dtype.weight_bytes < dtype.activation_bytes for dtype in DTYPES])


def kernel_label(kernel_source: str) -> str:
    """What sets an engine's kernel apart from its default one: empty, or ``@name``."""
    rest = kernel_source
    for prefix in _PREFIXES:
        rest = rest.replace(prefix, "").strip("_")
    return f"@{rest}" if rest else ""


def _both(first: Floats, second: Floats, fill_first: Floats, fill_second: Floats) -> Floats:
    """Fill of two products one after the other, weighted by their work."""
    return (first + second) / (first / fill_first + second / fill_second)


def moe_work(table: OpTable, gpu: Gpu, conditions: Conditions) -> KernelWork:
    """Work of a layer of experts on one GPU.

    The weights of every expert that is hit are read once; tokens are padded to whole tiles, expert by expert.

    Parameters
    ----------
    table : OpTable
        Of kind ``moe``.
    gpu : Gpu
    conditions : Conditions
        ``kernel_source`` tells apart an engine's kernels.

    Returns
    -------
    KernelWork
        Groups are the weights' format, ``@nongated`` and ``@kernel`` where they differ from the usual.
    """
    n = len(table)
    code = table["dtype"]
    math = maths_on(gpu)[code]
    kernel = kernel_label(conditions.kernel_source)
    gates = 1.0 + table["gated"]
    hidden, inner = table["hidden_size"], np.maximum(np.ceil(table["inter_size"] / table["moe_tp_size"]), 1.0)
    tokens, spread = table["num_tokens"], np.minimum(table["moe_ep_size"], table["num_experts"])
    routed = route(tokens, table["topk"], table["num_experts"], spread, table["distribution"], TILE_LIMITS)
    weight, moved = WEIGHT_BYTES[code], ACTIVATION_BYTES[code]

    # two grouped products: hidden -> gate and up, inner -> hidden
    # kernels written for clusters set up descriptors for each expert; others start and end like any tile
    clustered = conditions.engine == "trtllm" and gpu.architecture in _CLUSTER
    full = (routed.tile >= TILE_LIMITS[1]) & (gpu.architecture in _CLUSTER)
    features = np.where(full, WIDE_FEATURES, TILE_FEATURES)
    columns = np.ceil(gates * inner / features), np.ceil(hidden / features)
    blocks = routed.tiles * columns[0], routed.tiles * columns[1]
    edge = (_CLUSTER_EDGE_BYTES * TILE_LIMITS[1] if clustered else _EDGE_BYTES * routed.tile) / moved
    flop = [2.0 * b * features * (routed.tile * depth + edge) for b, depth in zip(blocks, (hidden, inner), strict=True)]
    slots = gpu.sm_count * RESIDENT
    (waves, fill_first), (_, fill_second) = tail_fill(blocks[0], slots), tail_fill(blocks[1], slots)
    fill = _both(flop[0], flop[1], fill_first, fill_second)
    staged = sum(
        b * d * (routed.tile * moved + features * weight) for b, d in zip(blocks, (hidden, inner), strict=True)
    )

    weights = routed.hit * (gates + 1.0) * hidden * inner * weight
    present = np.minimum(tokens, routed.pairs)
    # permute (and quantise), activate, finalise: each reads what the kernel before wrote
    # vLLM, and kernels made for low latency, keep room for the pairs of all GPUs and walk through it on each
    every = (conditions.engine == "vllm") | (kernel == "@min_latency") | (code == dtype_code("w4a8_mxfp4"))
    kept = np.where(every, tokens * np.minimum(table["topk"], table["num_experts"]), routed.pairs)
    permuted = present * hidden * 2.0 + routed.pairs * hidden * moved
    activated = kept * inner * (gates * 2.0 + moved)
    finished = kept * hidden * 2.0 + tokens * hidden * 2.0
    between = permuted + activated + finished
    handed = routed.pairs * (hidden * moved + gates * inner * 2.0 + inner * moved + hidden * 2.0)
    largest = np.maximum(np.maximum(permuted, activated), finished)
    misses = activation_misses(largest, gpu, conditions)
    hot = resident_share(weights + handed, gpu.l2_mib * 2.0**20) if conditions.residency == "loop" else np.zeros(n)

    tensor_rates = by_math(gpu.tensor_flop_per_clk)
    cuda_rates = by_math(gpu.cuda_flop_per_clk)
    matrix = tensor_rates[math] > 0
    reasons = {
        row: reason
        for row, reason in missing_formats(math, tensor_rates, gpu, "tensor cores").items()
        if cuda_rates[math[row]] <= 0
    }
    total = flop[0] + flop[1]
    # weights of fewer bits than the arithmetic are widened by each block that reads them
    widened = np.where(_ROUNDED[code] & matrix, sum(blocks) * features * (hidden + inner) / 2.0 * 4.0, 0.0)
    surround = 2.0 * (routed.pairs * (hidden * 4.0 + inner * 14.0)) + widened
    labels = [dtype.name + gated + kernel for gated in ("@nongated", "") for dtype in DTYPES]
    groups, group = group_labels(table["gated"].astype(np.intp) * len(DTYPES) + code, labels)
    useful = 2.0 * routed.pairs * (gates + 1.0) * hidden * inner
    return work(
        "moe",
        n,
        groups=groups,
        group=group,
        tensor_flop=np.where(matrix, total, 0.0),
        cuda_flop=np.where(matrix, surround, total + surround),
        tensor_flop_per_clk=rate_of(tensor_rates, math),
        cuda_flop_per_clk=vector_rate(gpu),
        sfu_ops=routed.pairs * inner * 2.0,
        shared_bytes=staged,
        l2_bytes=staged / (_CLUSTER[gpu.architecture] if clustered else 1.0) + handed + between,
        dram_bytes=weights * (1.0 - hot) + (handed + between) * misses,
        serial_l2_bytes=between,
        serial_dram_bytes=between * misses,
        fill=fill,
        blocks=blocks[0],
        waves=waves,
        launches=LAUNCHES,
        useful_flop=useful,
        math=math,
        features={
            "log_padding": log_ratio(total, useful),
            "log_load": np.log1p(routed.pairs / routed.hit) / 8.0,
            "log_hit": np.log1p(routed.hit) / 8.0,
            "hit_share": routed.hit / np.ceil(table["num_experts"] / spread),
            "log_skew": log_ratio(routed.largest * routed.hit, routed.pairs),
            "log_waves": np.log1p(waves),
            "log_inner": np.log(inner) / 8.0,
            "log_hidden": np.log(hidden) / 8.0,
            "fill": fill,
            "unaligned": (inner * moved % 16.0 != 0).astype(np.float64),
            "dram_share": misses,
        },
        reasons=reasons,
    )


FAMILY = Family("moe", ("moe",), moe_work)
