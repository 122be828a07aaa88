"""Gathers: rows fetched from a table by index, as embeddings do."""

from __future__ import annotations

import numpy as np

from joulecast.bounds.dtypes import DTYPES
from joulecast.gpus import Gpu
from joulecast.kernels.formats import ACTIVATION_BYTES, FP32, activation_misses, group_labels, log_ratio, vector_rate
from joulecast.kernels.work import Conditions, Family, Floats, KernelWork, work
from joulecast.workloads.table import OpTable

#: Least bytes that DRAM hands over at a time. [B]
SECTOR_BYTES = 32.0

#: Bytes of an index. [B]
INDEX_BYTES = 8.0

THREADS = 128.0


def distinct_rows(rows: Floats, table_rows: Floats) -> Floats:
    """Expected distinct rows among `rows` drawn evenly from a table, ``T (1 - (1 - 1/T)^rows)``."""
    size = np.maximum(table_rows, 1.0)
    chance = np.where(size > 1.0, np.log1p(-1.0 / np.maximum(size, 2.0)), -np.inf)
    return -size * np.expm1(rows * chance)


def gather_work(table: OpTable, gpu: Gpu, conditions: Conditions) -> KernelWork:
    """Work of gathers: each row is read through L2 and written, distinct ones come from DRAM.

    Parameters
    ----------
    table : OpTable
        Of kind ``gather``.
    gpu : Gpu
    conditions : Conditions
        In a ``stream`` the table's rows are cold.

    Returns
    -------
    KernelWork
    """
    rows, dim = table["rows"], table["dim"]
    code = table["dtype"]
    size = ACTIVATION_BYTES[code]
    row_bytes = np.ceil(dim * size / SECTOR_BYTES) * SECTOR_BYTES
    written = rows * dim * size + rows * INDEX_BYTES
    fetched = distinct_rows(rows, table["table_rows"]) * row_bytes
    misses = activation_misses(fetched + written, gpu, conditions)
    cold = 1.0 if conditions.residency == "stream" else misses
    elements = rows * dim
    blocks = np.maximum(np.ceil(elements / (THREADS * 4.0)), 1.0)
    waves = np.ceil(blocks / gpu.sm_count)
    groups, group = group_labels(code, [dtype.name for dtype in DTYPES])
    return work(
        "gather",
        len(table),
        groups=groups,
        group=group,
        cuda_flop=2.0 * elements * 6.0,  # 64-bit index arithmetic an element
        cuda_flop_per_clk=vector_rate(gpu),
        shared_bytes=rows * row_bytes + written,
        l2_bytes=rows * row_bytes + written,
        dram_bytes=fetched * cold + written * misses,
        fill=blocks / (waves * gpu.sm_count),
        blocks=blocks,
        waves=waves,
        math=FP32,
        features={
            "log_footprint_over_l2": log_ratio(fetched + written, gpu.l2_mib * 2.0**20),
            "log_blocks_over_sm": log_ratio(blocks, gpu.sm_count),
            "log_repeats": log_ratio(rows * row_bytes, fetched),
            "dram_share": misses,
        },
    )


FAMILY = Family("gather", ("gather",), gather_work)
