"""Matrix products: the tile a library would choose, its waves, and the traffic at each level of memory."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from joulecast.bounds.dtypes import DTYPES, dtype_code
from joulecast.gpus import Gpu
from joulecast.kernels.formats import maths_on
from joulecast.kernels.tiling import MOST_SPLITS, MULTICAST, Tiling, step_cycles_of, tiling_of
from joulecast.kernels.work import MATHS, Conditions, Family, KernelWork, resident_share, work
from joulecast.workloads.table import OpTable

Floats = npt.NDArray[np.float64]

#: Copies of the weights that a benchmark loop rotates over, and whether it stops at so many as exceed L2.
ROTATED_COPIES = {"trtllm": (5.0, True), "vllm": (6.0, False), "pytorch": (1.0, False)}

#: Architectures with an L2 in two halves that each keep what the SMs beside them read: less fits than its size says.
HALVED_L2 = ("8.0", "9.0", "10.0", "10.3")

#: Formats whose weights vLLM's loop does not rotate.
NOT_ROTATED = {"vllm": ("fp8_block", "nvfp4")}

#: Kernels before the product that bring activations into its format: launches, reads of x at 2 bytes.
QUANTISE = {"fp8": (2.0, 2.0), "fp8_block": (1.0, 1.0), "nvfp4": (1.0, 1.0), "mxfp4": (1.0, 1.0),
            "w4a8_mxfp4": (1.0, 1.0)}  # fmt: skip

#: CUDA-core operations to widen one weight element of a weight-only format.
DEQUANTISE = {"w8a16": 2.0, "w4a16": 3.0, "w4a16_mxfp4": 3.0}

#: Formats whose kernels give each tile to one block, however long k is: over k = 16,384 an A100's plugins for integer
#: weights take 40 to 45 us, for 16 rows as for 256, where its bf16 product splits k and takes 8.
UNSPLIT = ("fp8_block", "nvfp4", "mxfp4", "w4a8_mxfp4", "w8a8", "w8a16", "w4a16")

#: Rows up to which TensorRT-LLM gives a format to CUDA cores, many blocks an SM, as it does matrix-vector products
#: (its plugins have a path of their own below 5 rows; on an A100, 4 rows over k = 16,384 take 13 us, and 8 take 64).
FEW_ROWS_ON_CUDA_CORES = {"w8a8": 4.0}

#: Format whose partial sums are scaled by blocks of so many elements of k: CUDA cores do it, one multiply-add a result
#: and block, while tensor cores wait for their accumulators; tensor cores of Blackwell's servers scale by themselves.
PROMOTED, _PROMOTED_DEPTH = "fp8_block", 128.0
SCALES_BLOCKS = ("10.0", "10.3")

_SPLIT_LAUNCHES = 0.5  # a split product ends in a reduction, which costs part of another launch
_VECTOR_ROWS_PER_BLOCK = 8.0  # results of one block of a matrix-vector product: a warp each


@dataclass(frozen=True)
class _Formats:
    """What each format of `DTYPES` costs on one GPU, by code."""

    weight_bytes: Floats
    activation_bytes: Floats
    output_bytes: Floats
    tensor_rate: Floats
    cuda_rate: Floats
    widen_rate: float
    quantise_launches: Floats
    quantise_reads: Floats
    dequantise: Floats
    most_splits: Floats
    few_rows: Floats
    math: npt.NDArray[np.intp]
    missing: tuple[str, ...]


@lru_cache(maxsize=256)
def _formats(gpu: Gpu) -> _Formats:
    maths = [MATHS[math] for math in maths_on(gpu)]
    tensor = np.array([gpu.tensor_flop_per_clk(math) for math in maths])
    cuda = np.array([gpu.cuda_flop_per_clk(math) for math in maths])
    single = [math == "fp32" for math in maths]
    if gpu.vendor == "nvidia":
        tensor[single] = 0.0
    missing = tuple(
        "" if t > 0 or c > 0 else f"{gpu.name} has no {math} arithmetic for {one.name}"
        for one, math, t, c in zip(DTYPES, maths, tensor, cuda, strict=True)
    )
    return _Formats(
        weight_bytes=np.array([one.weight_bytes for one in DTYPES]),
        activation_bytes=np.array([one.activation_bytes for one in DTYPES]),
        output_bytes=np.array([one.output_bytes for one in DTYPES]),
        tensor_rate=tensor,
        cuda_rate=cuda,
        widen_rate=gpu.cuda_flop_per_clk("fp32"),
        quantise_launches=np.array([QUANTISE.get(one.name, (0.0, 0.0))[0] for one in DTYPES]),
        quantise_reads=np.array([QUANTISE.get(one.name, (0.0, 0.0))[1] for one in DTYPES]),
        dequantise=np.array([DEQUANTISE.get(one.name, 0.0) for one in DTYPES]),
        most_splits=np.array([1.0 if one.name in UNSPLIT else MOST_SPLITS for one in DTYPES]),
        few_rows=np.array([FEW_ROWS_ON_CUDA_CORES.get(one.name, 0.0) for one in DTYPES]),
        math=maths_on(gpu),
        missing=missing,
    )


def gemm_work(table: OpTable, gpu: Gpu, conditions: Conditions) -> KernelWork:
    """Work of ``y[m, n] = x[m, k] w[k, n]``, `batch` times.

    Parameters
    ----------
    table : OpTable
        Of kind ``gemm`` or ``batched_gemm``.
    gpu : Gpu
    conditions : Conditions

    Returns
    -------
    KernelWork
        Groups are formats. Rows whose format the GPU does not compute in are in `reasons`.
    """
    formats = _formats(gpu)
    code = np.asarray(table["dtype"], dtype=np.intp)
    m, n, k, batch = (np.asarray(table[name], dtype=np.float64) for name in ("m", "n", "k", "batch"))
    tensor_rate, cuda_rate = formats.tensor_rate[code], formats.cuda_rate[code]
    weight_bytes, x_bytes, y_bytes = (
        formats.weight_bytes[code], formats.activation_bytes[code], formats.output_bytes[code])  # fmt: skip
    on_tensor = tensor_rate > 0
    vector = np.minimum(m, n) == 1
    if conditions.engine == "trtllm":
        vector |= m <= formats.few_rows[code]
    promoted = (code == dtype_code(PROMOTED)) & on_tensor & (gpu.compute_capability not in SCALES_BLOCKS)
    waits = np.where(promoted, 1.0 / (_PROMOTED_DEPTH * formats.widen_rate), 0.0)  # clk/FLOP
    tensor_rate = tensor_rate / (1.0 + tensor_rate * waits)
    rate = np.where(on_tensor, tensor_rate, np.maximum(cuda_rate, 1.0))
    tile_k = np.where(on_tensor, 128.0 / np.maximum(x_bytes, 1.0), 16.0)
    tiling = tiling_of(table.kind, gpu, on_tensor, m, n, k, batch, tile_k, rate / gpu.sm_count,
                       x_bytes, weight_bytes, formats.most_splits[code], promoted)  # fmt: skip

    depth = np.ceil(k / (tiling.splits * tile_k)) * tile_k
    blocks = np.where(vector, np.ceil(m * n / _VECTOR_ROWS_PER_BLOCK) * batch, tiling.blocks)
    area = np.where(vector, 1.0, tiling.tile_m * tiling.tile_n)
    multiplies = np.where(vector, m * n * k * batch, blocks * area * depth)
    per_sm = np.ceil(blocks / gpu.sm_count)
    fill = blocks / (per_sm * gpu.sm_count)
    resident = np.where(vector, 8.0, np.clip(np.floor(32768.0 / np.maximum(area, 1.0)), 1.0, 4.0))
    waves = np.ceil(blocks / (gpu.sm_count * resident))

    # Traffic. Operands come to the SMs tile by tile, through L2, and from DRAM as often as L2 loses them.
    x_loads, w_loads = np.minimum(m, tiling.tile_m) * x_bytes, np.minimum(n, tiling.tile_n) * weight_bytes
    x_shared, w_shared = MULTICAST.get(gpu.architecture, (1.0, 1.0))
    from_l2 = x_loads / np.where(n > tiling.tile_n, x_shared, 1.0)
    from_l2 += w_loads / np.where(m > tiling.tile_m, w_shared, 1.0)
    loads = np.where(vector, 0.0, (x_loads + w_loads) * depth * blocks)
    x, w, y = m * k * x_bytes * batch, n * k * weight_bytes * batch, m * n * y_bytes * batch
    from_l2 = np.where(vector, x + w, from_l2 * depth * blocks)
    partials = np.where(tiling.splits > 1, 2.0 * 4.0 * m * n * batch * np.minimum(tiling.splits, 8.0), 0.0)
    partials = np.where(vector, 0.0, partials)
    l2 = gpu.l2_mib * 2.0**20
    walk = _walk(conditions, l2, x, w, y, code)
    kept = walked_share(walk, l2 * (0.6 if gpu.compute_capability in HALVED_L2 else 1.0))
    rereads = _rereads(gpu, tiling, m, n, k, batch, x_bytes, weight_bytes)
    dram = _dram_bytes(conditions, l2, x, w, y, kept, rereads)

    quantise_reads = formats.quantise_reads[code]
    prologue = np.where(quantise_reads > 0, m * k * batch * (2.0 * quantise_reads + x_bytes), 0.0)
    between = m * k * batch * (2.0 + x_bytes) + (w if conditions.residency == "loop" else 0.0)
    prologue_dram = prologue * (1.0 - resident_share(between, l2))
    launches = 1.0 + formats.quantise_launches[code] + np.where((tiling.splits > 1) & ~vector, _SPLIT_LAUNCHES, 0.0)

    # Shared memory takes in what is loaded and hands each operand to the warps that share it.
    warp_reads = np.where(on_tensor, _operand_reads(gpu, tiling, x_bytes, weight_bytes), 0.1875)
    shared = np.where(vector, 0.0, loads + multiplies * warp_reads)
    useful = 2.0 * m * n * k * batch
    widened = formats.dequantise[code] * np.where(vector, n * k * batch, blocks * tiling.tile_n * depth)
    arithmetic = 2.0 * multiplies
    on_tensor = on_tensor & ~vector
    widen_rate = formats.widen_rate
    plain_cuda = np.where(vector, widen_rate, np.maximum(cuda_rate, 1.0))
    seen = np.flatnonzero(np.bincount(code, minlength=len(DTYPES)))
    place = np.zeros(len(DTYPES), dtype=np.intp)
    place[seen] = np.arange(seen.size)
    reasons = {}
    for one in seen:
        if formats.missing[one]:
            reasons.update(dict.fromkeys(np.flatnonzero(code == one).tolist(), formats.missing[one]))
    return work(
        table.kind,
        len(m),
        zero_share=table["zero_share"] if "zero_share" in table.columns else 0.0,
        groups=tuple(DTYPES[one].name for one in seen),
        group=place[code],
        tensor_flop=np.where(on_tensor, arithmetic, 0.0),
        tensor_flop_per_clk=np.where(on_tensor, np.maximum(tensor_rate, 1.0), 1.0),
        cuda_flop=np.where(on_tensor, 0.0, arithmetic) + widened,
        cuda_flop_per_clk=np.where(on_tensor, widen_rate, plain_cuda),
        shared_bytes=shared,
        l2_bytes=from_l2 + y + partials + prologue,
        dram_bytes=dram + prologue_dram,
        serial_dram_bytes=prologue_dram,
        serial_l2_bytes=prologue,
        latency_cycles=np.where(vector, 0.0, np.maximum(waves, 1.0) * depth / tile_k * step_cycles_of(gpu)),
        fill=fill,
        blocks=blocks,
        waves=waves,
        launches=launches,
        useful_flop=useful,
        host_steps=_host_steps(gpu, conditions, code, m),
        math=formats.math[code],
        features=_features(
            gpu, tiling, rate, m, n, k, batch, x, w, y, x_bytes, weight_bytes, depth, vector, l2, kept, walk
        ),
        reasons=reasons,
    )


#: Rows below which vLLM's block-scaled products take a path of their own on Hopper, and what a host's time for the
#: others is over that: 52, 75 and 84 us between launches on an H200's host, whatever n and k.
_FEW_ROWS = 32.0
_HOST_OF_MANY, _HOST_OF_PADDED = 1.44, 1.61


def _host_steps(gpu: Gpu, conditions: Conditions, code: Any, m: Floats) -> Any:
    """Host's time to start a product over that of the shortest path of its format.

    Scales of rows that aren't a multiple of four are first laid out again, so that they can be copied in bulk.
    """
    if conditions.engine != "vllm" or gpu.architecture != "hopper":
        return 1.0
    many = np.where(np.fmod(m, 4.0) == 0.0, _HOST_OF_MANY, _HOST_OF_PADDED)
    return np.where((code == dtype_code("fp8_block")) & (m >= _FEW_ROWS), many, 1.0)


def _operand_reads(gpu: Gpu, tiling: Tiling, x_bytes: Floats, weight_bytes: Floats) -> Floats:
    """Bytes that tensor cores read from shared memory for one multiply-add.

    A warp of the older ones holds 64x64 of the result; four warps of Hopper share 64 rows and all columns of a tile;
    Blackwell's read each operand of a tile once.
    """
    if gpu.architecture == "blackwell":
        return x_bytes / tiling.tile_n + weight_bytes / tiling.tile_m
    if gpu.architecture == "hopper":
        return x_bytes / tiling.tile_n + weight_bytes / np.minimum(tiling.tile_m, 64.0)
    return np.asarray(x_bytes / np.minimum(tiling.tile_n, 64.0) + weight_bytes / np.minimum(tiling.tile_m, 64.0))


def _rereads(
    gpu: Gpu, tiling: Tiling, m: Floats, n: Floats, k: Floats, batch: Floats, x_bytes: Floats, weight_bytes: Floats
) -> Floats:
    """Operand bytes that all waves read beyond the first time, if L2 kept nothing from wave to wave. [B]"""
    across, down = np.ceil(n / tiling.tile_n), np.ceil(m / tiling.tile_m)
    together = np.minimum(gpu.sm_count / tiling.splits, across * down)
    rows = np.clip(np.sqrt(together * tiling.tile_n / tiling.tile_m), 1.0, down)
    columns = np.clip(together / rows, 1.0, across)
    rows = np.clip(together / columns, 1.0, down)
    waves = across * down / (rows * columns)
    once = (m * x_bytes + n * weight_bytes) * k * batch
    x_wave = np.minimum(rows * tiling.tile_m, m) * x_bytes
    w_wave = np.minimum(columns * tiling.tile_n, n) * weight_bytes
    return np.asarray(np.maximum(waves * (x_wave + w_wave) * k * batch - once, 0.0))


def _walk(conditions: Conditions, l2: float, x: Floats, w: Floats, y: Floats, code: Any) -> Floats:
    """Bytes touched from one use of a weight to the next. [B]"""
    if conditions.residency == "stream":
        return x + y + w + 4.0 * l2
    most, stops = ROTATED_COPIES.get(conditions.engine, (1.0, False))
    copies = np.minimum(most, np.ceil(l2 / w)) if stops else np.full(w.shape, most)
    fixed = [one.name in NOT_ROTATED.get(conditions.engine, ()) for one in DTYPES]
    return x + y + w * np.where(np.array(fixed)[code], 1.0, copies)


def walked_share(walk_bytes: Any, l2_bytes: float) -> Floats:
    """Share of data still in L2 when so many bytes are walked through in the same order again and again.

    A cache that drops what was used the longest ago keeps all of a walk that fits and nothing of one that does not:
    on an L40S (96 MiB) the rate from 96 MiB of weights is three times that from 105 MiB.
    """
    ratio = np.minimum(np.asarray(walk_bytes, dtype=np.float64) / (1.04 * l2_bytes), 4.0)
    for _ in range(5):
        ratio = np.square(ratio)
    return np.asarray(1.0 / (1.0 + ratio))


def _dram_bytes(
    conditions: Conditions, l2: float, x: Floats, w: Floats, y: Floats, kept: Floats, rereads: Floats
) -> Floats:
    again = rereads * (1.0 - resident_share(x + w, l2))
    if conditions.residency == "stream":
        return np.asarray(w + (x + y) * (1.0 - resident_share(x + y, l2)) + again)
    return np.asarray(w * (1.0 - kept) + (x + y) * (1.0 - resident_share(x + w + y, l2)) + again)


def _aligned(size: Floats) -> Floats:
    """How many times 2 divides a size, up to 7: what vector loads and whole tiles depend on."""
    whole = np.minimum(size, 2.0**52).astype(np.int64)
    lowest = np.minimum(whole & -whole, 128)
    return np.asarray(np.log2(np.maximum(lowest, 1).astype(np.float64)))


def _features(
    gpu: Gpu, tiling: Tiling, rate: Floats, m: Floats, n: Floats, k: Floats, batch: Floats, x: Floats, w: Floats,
    y: Floats, x_bytes: Floats, weight_bytes: Floats, depth: Floats, vector: Any, l2: float, kept: Floats, walk: Floats,
) -> dict[str, Any]:  # fmt: skip
    intensity = 2.0 * m * n * k * batch / (x + w + y)
    ridge = rate * gpu.rate_clock_mhz * 1e-3 / gpu.dram_gb_s
    return {
        "log m over 128": np.log2(m / 128.0),
        "log n over 128": np.log2(n / 128.0),
        "log k over 128": np.log2(k / 128.0),
        "log batch": np.log2(batch),
        "log tile m": np.log2(tiling.tile_m),
        "log tile n": np.log2(tiling.tile_n),
        "fill m": m / (np.ceil(m / 128.0) * 128.0),
        "fill n": n / (np.ceil(n / 128.0) * 128.0),
        "fill k": k / (depth * tiling.splits),
        "alignment m": _aligned(m),
        "alignment n": _aligned(n),
        "alignment k": _aligned(k),
        "log splits": np.log2(tiling.splits),
        "log operands over L2": np.log2((x + w) / l2),
        "log weights over L2": np.log2(w / l2),
        "log result over L2": np.log2(y / l2),
        "share of weights kept in L2": kept,
        "log walk over L2": np.log2(np.clip(walk / l2, 0.25, 4.0)),
        "log intensity over ridge": np.log2(intensity / ridge),
        "log 128x128 tiles over SMs": np.log2(np.ceil(m / 128.0) * np.ceil(n / 128.0) * batch / gpu.sm_count),
        **_wave_fills(m, n, batch, gpu.sm_count),
        "weight bytes": weight_bytes,
        "activation bytes": x_bytes,
        "vector": vector.astype(np.float64),
    }


#: Tiles whose waves the correction sees, as (rows of m, columns of n): those that libraries choose among most.
WAVE_TILES = (
    (128, 128), (128, 256), (256, 128), (64, 64), (64, 128), (128, 64), (64, 256), (256, 64), (256, 256), (192, 128),
    (128, 192),
)  # fmt: skip


def _wave_fills(m: Floats, n: Floats, batch: Floats, slots: float) -> dict[str, Floats]:
    """How full the waves of each of `WAVE_TILES` are, one block an SM. Dimensionless, (0, 1]."""
    sides = sorted({side for tile in WAVE_TILES for side in tile})
    down = {side: np.ceil(m / side) * batch for side in sides}
    across = {side: np.ceil(n / side) for side in sides}
    found = {}
    for tile_m, tile_n in WAVE_TILES:
        waves = down[tile_m] * across[tile_n] / slots
        found[f"fill of {tile_m}x{tile_n} tiles"] = waves / np.ceil(waves)
    return found


FAMILY = (Family("gemm", ("gemm",), gemm_work), Family("batched_gemm", ("batched_gemm",), gemm_work))
