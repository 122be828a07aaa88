"""Matrix products: the tile a library would choose, its waves, and the traffic at each level of memory."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from joulecast.bounds.dtypes import DTYPES
from joulecast.gpus import Gpu
from joulecast.kernels.work import MATHS, Conditions, Family, KernelWork, resident_share, work
from joulecast.workloads.table import OpTable

Floats = npt.NDArray[np.float64]

#: Tiles of the result that one thread block computes, as (rows of m, columns of n).
TENSOR_TILES = (
    (256, 128), (128, 256), (192, 128), (128, 192), (128, 128), (64, 128), (128, 64), (64, 64), (32, 64), (16, 64),
)  # fmt: skip
CUDA_TILES = ((128, 128), (64, 128), (128, 64), (64, 64), (32, 128), (128, 32), (32, 32))

#: Tiles of architectures whose libraries have fewer.
PLAIN_CUDA_TILES = {"pascal": ((64, 64), (128, 32), (32, 128))}

#: Tiles that cuBLAS keeps to in batched single-precision products; other architectures choose as in plain ones.
BATCHED_CUDA_TILES = {
    "pascal": ((64, 128),),
    "volta": ((64, 64), (32, 128), (128, 32)),
    "turing": ((64, 64), (64, 128), (32, 128), (128, 32)),
    "ampere": ((128, 128),),
}

#: Copies of the weights that a benchmark loop rotates over at most, so that they come from DRAM; 1 = it does not.
ROTATED_COPIES = {"trtllm": 5.0, "vllm": 6.0, "pytorch": 1.0}

#: Kernels before the product that bring activations into its format: launches, reads of x at 2 bytes.
QUANTISE = {"fp8": (2.0, 2.0), "fp8_block": (1.0, 1.0), "nvfp4": (1.0, 1.0), "mxfp4": (1.0, 1.0),
            "w4a8_mxfp4": (1.0, 1.0)}  # fmt: skip

#: CUDA-core operations to widen one weight element of a weight-only format.
DEQUANTISE = {"w8a16": 2.0, "w4a16": 3.0, "w4a16_mxfp4": 3.0}

#: Blocks that one load of x or of w from L2 serves, where neighbouring blocks share what they load.
MULTICAST = {"hopper": (1.0, 2.0), "blackwell": (2.0, 2.0)}

#: Formats whose kernels give each tile to one block, however long k is.
UNSPLIT = ("fp8_block", "nvfp4", "mxfp4", "w4a8_mxfp4")

_SHORTEST_SPLIT = 512.0  # elements of k that a split keeps at least
_MOST_SPLITS = 64.0
_SPLIT_LAUNCHES = 0.5  # a split product ends in a reduction, which costs part of another launch
_SPLIT_CYCLES = 3500.0
_BLOCK_CYCLES = 600.0  # start and end of a block that nothing hides

#: Core cycles that one step of a block's loop over k waits for the step before, on a step of 128 bytes a row.
STEP_CYCLES = 160.0
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
    math: npt.NDArray[np.intp]
    missing: tuple[str, ...]


@lru_cache(maxsize=256)
def _formats(gpu: Gpu) -> _Formats:
    tensor = np.array([gpu.tensor_flop_per_clk(one.math) for one in DTYPES])
    cuda = np.array([gpu.cuda_flop_per_clk(one.math) for one in DTYPES])
    single = [one.math == "fp32" for one in DTYPES]
    if gpu.vendor == "nvidia":
        tensor[single] = 0.0
    missing = tuple(
        "" if t > 0 or c > 0 else f"{gpu.name} has no {one.math} arithmetic for {one.name}"
        for one, t, c in zip(DTYPES, tensor, cuda, strict=True)
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
        most_splits=np.array([1.0 if one.name in UNSPLIT else _MOST_SPLITS for one in DTYPES]),
        math=np.array([MATHS.index(one.math) for one in DTYPES], dtype=np.intp),
        missing=missing,
    )


@dataclass(frozen=True)
class Tiling:
    """How a product is cut into thread blocks; arrays of shape (n,).

    Attributes
    ----------
    tile_m, tile_n, tile_k : ndarray
        Elements of the result that a block computes, and the step of its loop over k.
    splits : ndarray
        Blocks that share one tile, each with a part of k.
    blocks : ndarray
        Thread blocks of the whole product.
    """

    tile_m: Floats
    tile_n: Floats
    tile_k: Floats
    splits: Floats
    blocks: Floats


def choose_tiling(
    m: Floats, n: Floats, k: Floats, batch: Floats, *, tiles: tuple[tuple[int, int], ...], tile_k: Floats,
    sm_count: float, flop_per_clk_sm: Floats, bytes_m: Floats, bytes_n: Floats, most_splits: Floats, l2_bytes_per_clk_sm: float,
) -> Tiling:  # fmt: skip
    """The tiling with the least modelled time: the busiest SM's arithmetic, its loads, and the price of splitting k.

    Parameters
    ----------
    m, n, k, batch : ndarray, shape (n,)
        The products.
    tiles : tuple of (int, int)
        Candidates, rows of m by columns of n.
    tile_k : ndarray
        Step of the loop over k. [elements]
    sm_count : float
        Streaming multiprocessors.
    flop_per_clk_sm, l2_bytes_per_clk_sm : ndarray, float
        Peak arithmetic of one SM, and its share of the L2 rate. [FLOP/clk, B/clk]
    bytes_m, bytes_n : ndarray
        Bytes an element of the operand along m (activations) and along n (weights). [B]
    most_splits : ndarray
        Blocks that may share a tile.

    Returns
    -------
    Tiling
    """
    best = np.full(m.shape, np.inf)
    which = np.zeros(m.shape, dtype=np.intp)
    price = _Price(k, tile_k, sm_count, flop_per_clk_sm, bytes_m, bytes_n, most_splits, 0.6 * l2_bytes_per_clk_sm)
    for index, (tile_m, tile_n) in enumerate(tiles):
        cells = np.ceil(m / tile_m) * np.ceil(n / tile_n) * batch
        cost = price.cycles(np.minimum(m, tile_m), np.minimum(n, tile_n), tile_m, tile_n, cells, price.splits(cells))
        better = cost < best
        np.copyto(best, cost, where=better)
        which[better] = index
    sides = np.array(tiles, dtype=np.float64)
    rows, columns = sides[which, 0], sides[which, 1]
    cells = np.ceil(m / rows) * np.ceil(n / columns) * batch
    whole = price.cycles(np.minimum(m, rows), np.minimum(n, columns), rows, columns, cells, np.ones(m.shape))
    splits = np.where(whole <= best, 1.0, price.splits(cells))
    return Tiling(rows, columns, tile_k, splits, cells * splits)


@dataclass(frozen=True)
class _Price:
    """What a choice of tile is compared by."""

    k: Floats
    tile_k: Floats
    sm_count: float
    flop_per_clk_sm: Floats
    bytes_m: Floats
    bytes_n: Floats
    most_splits: Floats
    load_per_clk: float

    def splits(self, cells: Floats) -> Floats:
        """Splits of k that fill the GPU with `cells` tiles."""
        most = np.clip(np.floor(self.k / _SHORTEST_SPLIT), 1.0, self.most_splits)
        return np.clip(np.floor(self.sm_count / cells), 1.0, most)

    def cycles(self, rows: Floats, columns: Floats, tile_m: Any, tile_n: Any, cells: Floats, splits: Floats) -> Floats:
        """Core cycles of the busiest SM, up to what all choices share."""
        area = tile_m * tile_n
        depth = self.k / splits
        per_sm = np.ceil(cells * splits / self.sm_count)
        loads = (rows * self.bytes_m + columns * self.bytes_n) / self.load_per_clk
        flop = (2.0 / 0.8) * (area + 4096.0) / self.flop_per_clk_sm
        step = np.maximum(per_sm * np.maximum(loads, flop), STEP_CYCLES / self.tile_k)
        return depth * step + per_sm * _BLOCK_CYCLES + np.where(splits > 1, _SPLIT_CYCLES, 0.0)


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
    rate = np.where(on_tensor, tensor_rate, np.maximum(cuda_rate, 1.0))
    tile_k = np.where(on_tensor, 128.0 / np.maximum(x_bytes, 1.0), 16.0)
    tiling = _tiling(table.kind, gpu, on_tensor, m, n, k, batch, tile_k, rate / gpu.sm_count,
                     x_bytes, weight_bytes, formats.most_splits[code])  # fmt: skip

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
    from_l2 = x_loads / np.where(n > tiling.tile_n, x_shared, 1.0) + w_loads / np.where(m > tiling.tile_m, w_shared, 1.0)
    from_l2 = np.where(vector, 0.0, from_l2 * depth * blocks)
    loads = np.where(vector, 0.0, (x_loads + w_loads) * depth * blocks)
    x, w, y = m * k * x_bytes * batch, n * k * weight_bytes * batch, m * n * y_bytes * batch
    from_l2 = np.where(vector, x + w, from_l2)
    partials = np.where(tiling.splits > 1, 2.0 * 4.0 * m * n * batch * np.minimum(tiling.splits, 8.0), 0.0)
    partials = np.where(vector, 0.0, partials)
    l2 = gpu.l2_mib * 2.0**20
    dram = _dram_bytes(conditions, l2, x, w, y, _rereads(gpu, tiling, m, n, k, batch, x_bytes, weight_bytes))

    quantise_reads = formats.quantise_reads[code]
    prologue = np.where(quantise_reads > 0, m * k * batch * (2.0 * quantise_reads + x_bytes), 0.0)
    prologue_miss = 1.0 - resident_share(m * k * batch * (2.0 + x_bytes) + (w if conditions.residency == "loop" else 0.0), l2)
    prologue_dram = prologue * prologue_miss
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
        "gemm",
        len(m),
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
        latency_cycles=np.where(vector, 0.0, np.maximum(waves, 1.0) * depth / tile_k * STEP_CYCLES),
        fill=fill,
        blocks=blocks,
        waves=waves,
        launches=launches,
        useful_flop=useful,
        math=formats.math[code],
        features=_features(gpu, tiling, rate, m, n, k, batch, x, w, y, x_bytes, weight_bytes, depth, vector, l2),
        reasons=reasons,
    )


def _tiling(
    kind: str, gpu: Gpu, on_tensor: Any, m: Floats, n: Floats, k: Floats, batch: Floats, tile_k: Floats,
    rate_sm: Floats, x_bytes: Floats, weight_bytes: Floats, most_splits: Floats,
) -> Tiling:  # fmt: skip
    by_architecture = PLAIN_CUDA_TILES if kind == "gemm" else BATCHED_CUDA_TILES
    cuda_tiles = by_architecture.get(gpu.architecture, CUDA_TILES)
    arrays = (m, n, k, batch, tile_k, rate_sm, x_bytes, weight_bytes, most_splits)
    whole: Tiling | None = None
    for tiles, rows in ((TENSOR_TILES, on_tensor), (cuda_tiles, ~on_tensor)):
        if not rows.any():
            continue
        every = bool(rows.all())
        part = arrays if every else tuple(array[rows] for array in arrays)
        chosen = choose_tiling(
            *part[:4], tiles=tiles, tile_k=part[4], sm_count=float(gpu.sm_count), flop_per_clk_sm=part[5],
            bytes_m=part[6], bytes_n=part[7], most_splits=part[8],
            l2_bytes_per_clk_sm=gpu.l2_bytes_per_clk / gpu.sm_count,
        )  # fmt: skip
        if every:
            return chosen
        if whole is None:
            whole = Tiling(*(np.ones(m.shape) for _ in range(5)))
        for name, array in whole.__dict__.items():
            array[rows] = getattr(chosen, name)
    return whole if whole is not None else Tiling(*(np.ones(m.shape) for _ in range(5)))


def _operand_reads(gpu: Gpu, tiling: Tiling, x_bytes: Floats, weight_bytes: Floats) -> Floats:
    """Bytes that tensor cores read from shared memory for one multiply-add.

    A warp of the older ones holds 64x64 of the result; four warps of Hopper share 64 rows and all columns of a tile;
    Blackwell's read each operand of a tile once.
    """
    if gpu.architecture == "blackwell":
        return x_bytes / tiling.tile_n + weight_bytes / tiling.tile_m
    if gpu.architecture == "hopper":
        return x_bytes / tiling.tile_n + weight_bytes / np.minimum(tiling.tile_m, 64.0)
    return x_bytes / np.minimum(tiling.tile_n, 64.0) + weight_bytes / np.minimum(tiling.tile_m, 64.0)


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
    per_wave = (np.minimum(rows * tiling.tile_m, m) * x_bytes + np.minimum(columns * tiling.tile_n, n) * weight_bytes) * k
    return np.maximum(waves * per_wave * batch - once, 0.0)


def _dram_bytes(conditions: Conditions, l2: float, x: Floats, w: Floats, y: Floats, rereads: Floats) -> Floats:
    lost = 1.0 - resident_share(x + w, l2)
    if conditions.residency == "stream":
        return w + (x + y) * (1.0 - resident_share(x + y, l2)) + rereads * lost
    copies = ROTATED_COPIES.get(conditions.engine, 1.0)
    turn = x + w + y
    rotated = x + y + w * np.minimum(copies, np.ceil(l2 / w) + 1.0)
    return w * (1.0 - resident_share(rotated, l2)) + (x + y) * (1.0 - resident_share(turn, l2)) + rereads * lost


def _aligned(size: Floats) -> Floats:
    """How many times 2 divides a size, up to 7: what vector loads and whole tiles depend on."""
    whole = np.minimum(size, 2.0**52).astype(np.int64)
    lowest = np.minimum(whole & -whole, 128)
    return np.log2(np.maximum(lowest, 1).astype(np.float64))


def _features(
    gpu: Gpu, tiling: Tiling, rate: Floats, m: Floats, n: Floats, k: Floats, batch: Floats, x: Floats, w: Floats,
    y: Floats, x_bytes: Floats, weight_bytes: Floats, depth: Floats, vector: Any, l2: float,
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
        "log intensity over ridge": np.log2(intensity / ridge),
        "log 128x128 tiles over SMs": np.log2(np.ceil(m / 128.0) * np.ceil(n / 128.0) * batch / gpu.sm_count),
        "fill of 128x128 tiles": _wave_fill(m, n, batch, 128.0, 128.0, gpu.sm_count),
        "fill of 128x256 tiles": _wave_fill(m, n, batch, 128.0, 256.0, gpu.sm_count),
        "fill of 256x128 tiles": _wave_fill(m, n, batch, 256.0, 128.0, gpu.sm_count),
        "weight bytes": weight_bytes,
        "activation bytes": x_bytes,
        "vector": vector.astype(np.float64),
    }


def _wave_fill(m: Floats, n: Floats, batch: Floats, tile_m: float, tile_n: float, slots: float) -> Floats:
    tiles = np.ceil(m / tile_m) * np.ceil(n / tile_n) * batch / slots
    return tiles / np.ceil(tiles)


FAMILY = Family("gemm", ("gemm", "batched_gemm"), gemm_work)
