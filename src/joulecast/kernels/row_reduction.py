"""Row reductions: softmax, normalisations, sums and pooling, one warp or one block a row."""

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
from joulecast.kernels.work import Conditions, Family, KernelWork, resident_share, work
from joulecast.workloads.kinds import REDUCTIONS, plain_op
from joulecast.workloads.table import OpTable

#: By operation: passes over a row that does not fit in registers, instructions and special functions an element,
#: and results a row (0: as many as elements).
PASSES = {"softmax": 3, "layer_norm": 2, "rms_norm": 2, "group_norm": 2, "batch_norm": 2}
INSTRUCTIONS = {"softmax": 10, "layer_norm": 14, "rms_norm": 8, "group_norm": 14, "batch_norm": 6}
SPECIAL = {"softmax": 2}
RESULTS = {"sum": 1, "max": 1, "mean": 1, "pool": 1}

_PASSES = np.array([PASSES.get(op, 1) for op in REDUCTIONS], dtype=np.float64)
_INSTRUCTIONS = np.array([INSTRUCTIONS.get(op, 2) for op in REDUCTIONS], dtype=np.float64)
_SPECIAL = np.array([SPECIAL.get(op, 0) for op in REDUCTIONS], dtype=np.float64)
_RESULTS = np.array([RESULTS.get(op, 0) for op in REDUCTIONS], dtype=np.float64)
_PLAIN = np.array([REDUCTIONS.index(plain_op(op)) for op in REDUCTIONS], dtype=np.intp)
_SOFTMAX, _BATCH_NORM = REDUCTIONS.index("softmax"), REDUCTIONS.index("batch_norm")
_SUMMED = np.array([op == "add_rms_norm" for op in REDUCTIONS], dtype=np.float64)

#: Longest row that a warp keeps in its registers between the passes.
WARP_ROW = 1024.0
WARP = 32.0

#: Threads of a block that reduces a channel of a batch, each with one load under way, and core cycles until a load is
#: back from DRAM that all SMs ask (400 to 800 where it was measured, all generations).
_CHANNEL_THREADS, _LOAD_CYCLES = 512.0, 500.0


def row_reduction_work(table: OpTable, gpu: Gpu, conditions: Conditions) -> KernelWork:
    """Work of row reductions.

    Rows up to `WARP_ROW` of a softmax stay in registers of a warp, of which a block holds four; longer rows and
    all normalisations are read again in each pass, through L1 and L2. A row shorter than a warp (or than a
    block's vectors) leaves lanes idle; sums, means and pooling windows that short take one thread a row.

    Parameters
    ----------
    table : OpTable
        Of kind ``row_reduction``.
    gpu : Gpu
    conditions : Conditions

    Returns
    -------
    KernelWork
    """
    n = len(table)
    rows = np.asarray(table["rows"], dtype=np.float64)
    dim = np.asarray(table["dim"], dtype=np.float64)
    op, code = _PLAIN[table["op"]], table["dtype"]
    size = ACTIVATION_BYTES[code]
    inputs = np.asarray(table["inputs"], dtype=np.float64)
    results = np.where(_RESULTS[op] > 0, _RESULTS[op], dim)
    summed = _SUMMED[table["op"]]  # tensors that are added first; the sum is kept beside the result
    row_bytes = rows * dim * size * inputs
    read, written = row_bytes + rows * dim * size * summed, rows * (results + dim * summed) * size
    in_warp = (op == _SOFTMAX) & (dim <= WARP_ROW)
    passes = np.where(in_warp, 1.0, _PASSES[op])
    in_thread = (_RESULTS[op] > 0) & (dim < WARP)

    # lanes that a row occupies: a power of two below a warp, whole warps of vectors above
    vector = np.where(in_warp, 1.0, 16.0 / size)
    lanes = np.where(
        in_warp,
        np.minimum(2.0 ** np.ceil(np.log2(dim)), WARP),
        WARP * np.clip(np.ceil(dim / (vector * WARP)), 1.0, np.where(op == _SOFTMAX, 32.0, 4.0)),
    )
    turns = np.where(
        in_warp, 2.0 ** np.ceil(np.log2(np.maximum(dim / WARP, 1.0))), np.ceil(dim / (lanes * vector)) * vector
    )
    lanes, turns = np.where(in_thread, 1.0, lanes), np.where(in_thread, dim, turns)
    padded = rows * lanes * turns
    blocks = np.maximum(np.where(in_warp | in_thread, np.ceil(rows * lanes / 128.0), rows), 1.0)
    waves = np.ceil(blocks / gpu.sm_count)

    footprint = read + written
    misses = activation_misses(footprint, gpu, conditions)
    again = row_bytes * (passes - 1.0)
    # a row is read again soon: what the SMs' L1 can hold of it does not go to L2
    resident_rows = np.minimum(rows, gpu.sm_count * gpu.warps_per_sm * WARP / np.maximum(lanes, WARP))
    l1_misses = np.clip(resident_rows * dim * size * inputs / (gpu.sm_count * gpu.l1_kib * 1024.0), 0.0, 1.0)
    # a channel of a whole batch is long: what L2 can't hold of those under way comes from DRAM in each pass
    under_way = np.minimum(rows, gpu.sm_count) * dim * size * inputs
    dram_again = np.where(op == _BATCH_NORM, again * (1.0 - resident_share(under_way, gpu.l2_mib * 2.0**20)), 0.0)
    reduction_steps = np.where(
        in_thread, 0.0, rows * 10.0 * lanes
    )  # shuffles of the lanes, and the exchange between warps
    # each block walks through its channel load by load: few channels keep few loads under way
    turns_of_blocks = np.maximum(rows * _CHANNEL_THREADS / (gpu.sm_count * gpu.warps_per_sm * WARP), 1.0)
    walk = np.ceil(dim * inputs * passes / _CHANNEL_THREADS) * _LOAD_CYCLES * turns_of_blocks
    groups, group = group_labels(
        op * len(DTYPES) + code, [f"{name}/{dtype.name}" for name in REDUCTIONS for dtype in DTYPES]
    )
    return work(
        "row_reduction",
        n,
        groups=groups,
        group=group,
        cuda_flop=2.0 * (padded * ((_INSTRUCTIONS[op] + 2.0 * passes / vector) * inputs + summed) + reduction_steps),
        cuda_flop_per_clk=vector_rate(gpu),
        sfu_ops=padded * _SPECIAL[op] + np.where(in_thread, 0.0, rows * lanes),
        shared_bytes=row_bytes * passes + rows * results * size,
        l2_bytes=read + written + again * l1_misses,
        dram_bytes=footprint * misses + dram_again,
        fill=blocks / (waves * gpu.sm_count),
        blocks=blocks,
        waves=waves,
        latency_cycles=np.where(op == _BATCH_NORM, walk, 0.0),
        useful_flop=rows * dim * (np.maximum(_INSTRUCTIONS[op] / 2.0, 1.0) + summed),
        math=FP32,
        features={
            "log_footprint_over_l2": log_ratio(footprint, gpu.l2_mib * 2.0**20),
            "log_blocks_over_sm": log_ratio(blocks, gpu.sm_count),
            "log_dim": np.log(dim) / np.log(1024.0),
            "padding": padded / (rows * dim) - 1.0,
            "in_warp": in_warp.astype(np.float64),
            "dram_share": misses,
        },
    )


FAMILY = Family("row_reduction", ("row_reduction",), row_reduction_work)
