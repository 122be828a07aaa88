"""How a matrix product is cut into thread blocks: the tile and split of k that a library would choose."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from joulecast.gpus import Gpu

Floats = npt.NDArray[np.float64]

#: Tiles of the result that one thread block computes, as (rows of m, columns of n).
TENSOR_TILES = (
    (256, 128), (128, 256), (192, 128), (128, 192), (128, 128), (64, 128), (128, 64), (64, 64), (32, 64), (16, 64),
)  # fmt: skip

#: Tiles of products whose partial sums CUDA cores add up with the scales of their blocks: accumulators that are kept
#: twice, in tensor cores' layout and as sums, leave no registers for larger ones. Tensor memory (Blackwell) does.
PROMOTED_TILES = tuple(tile for tile in TENSOR_TILES if tile[0] <= 128 and tile[1] <= 128)
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

#: Blocks that one load of x or of w from L2 serves, where neighbouring blocks share what they load.
MULTICAST = {"hopper": (2.0, 2.0), "blackwell": (2.0, 2.0)}

_SHORTEST_SPLIT = 512.0  # elements of k that a split keeps at least
MOST_SPLITS = 64.0
_SPLIT_CYCLES = 3500.0
_BLOCK_CYCLES = 600.0  # start and end of a block that nothing hides

#: Core cycles that one step of a block's loop over k (128 bytes a row) waits for the step before, by architecture:
#: what the shortest products with a long k show. Others are taken to be like Ampere.
STEP_CYCLES = {"hopper": 160.0, "blackwell": 130.0, "ampere": 280.0, "ada": 500.0}


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
    sm_count: float, flop_per_clk_sm: Floats, bytes_m: Floats, bytes_n: Floats, most_splits: Floats,
    l2_bytes_per_clk_sm: float, step_cycles: float,
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
    step_cycles : float
        Wait of one step of the loop over k for the one before. [core cycles]

    Returns
    -------
    Tiling
    """
    best = np.full(m.shape, np.inf)
    which = np.zeros(m.shape, dtype=np.intp)
    load_per_clk = 0.6 * l2_bytes_per_clk_sm
    price = _Price(k, tile_k, sm_count, flop_per_clk_sm, bytes_m, bytes_n, most_splits, load_per_clk, step_cycles)
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
    step_cycles: float

    def splits(self, cells: Floats) -> Floats:
        """Splits of k that fill the GPU with `cells` tiles."""
        most = np.clip(np.floor(self.k / _SHORTEST_SPLIT), 1.0, self.most_splits)
        return np.asarray(np.clip(np.floor(self.sm_count / cells), 1.0, most))

    def cycles(self, rows: Floats, columns: Floats, tile_m: Any, tile_n: Any, cells: Floats, splits: Floats) -> Floats:
        """Core cycles of the busiest SM, up to what all choices share."""
        area = tile_m * tile_n
        depth = self.k / splits
        per_sm = np.ceil(cells * splits / self.sm_count)
        loads = (rows * self.bytes_m + columns * self.bytes_n) / self.load_per_clk
        flop = (2.0 / 0.8) * (area + 4096.0) / self.flop_per_clk_sm
        step = np.maximum(per_sm * np.maximum(loads, flop), self.step_cycles / self.tile_k)
        return np.asarray(depth * step + per_sm * _BLOCK_CYCLES + np.where(splits > 1, _SPLIT_CYCLES, 0.0))


def tiling_of(
    kind: str, gpu: Gpu, on_tensor: Any, m: Floats, n: Floats, k: Floats, batch: Floats, tile_k: Floats,
    rate_sm: Floats, x_bytes: Floats, weight_bytes: Floats, most_splits: Floats, promoted: Any = False,
) -> Tiling:  # fmt: skip
    """The tiling of each row on `gpu`: `choose_tiling` among the tiles that its libraries have for the row's units.

    Parameters
    ----------
    kind : str
        ``gemm`` or ``batched_gemm``.
    gpu : Gpu
    on_tensor : ndarray of bool, shape (n,)
        Rows whose arithmetic runs on tensor cores.
    m, n, k, batch, tile_k, rate_sm, x_bytes, weight_bytes, most_splits : ndarray, shape (n,)
        As `choose_tiling` takes them.
    promoted : ndarray of bool, shape (n,)
        Rows whose partial sums CUDA cores add up (`PROMOTED_TILES`).
    """
    by_architecture = PLAIN_CUDA_TILES if kind == "gemm" else BATCHED_CUDA_TILES
    cuda_tiles = by_architecture.get(gpu.architecture, CUDA_TILES)
    arrays = (m, n, k, batch, tile_k, rate_sm, x_bytes, weight_bytes, most_splits)
    whole: Tiling | None = None
    promoted = np.broadcast_to(promoted, m.shape)
    choices = ((TENSOR_TILES, on_tensor & ~promoted), (PROMOTED_TILES, on_tensor & promoted), (cuda_tiles, ~on_tensor))
    for tiles, rows in choices:
        if not rows.any():
            continue
        every = bool(rows.all())
        part = arrays if every else tuple(array[rows] for array in arrays)
        chosen = choose_tiling(
            *part[:4], tiles=tiles, tile_k=part[4], sm_count=float(gpu.sm_count), flop_per_clk_sm=part[5],
            bytes_m=part[6], bytes_n=part[7], most_splits=part[8],
            l2_bytes_per_clk_sm=gpu.l2_bytes_per_clk / gpu.sm_count,
            step_cycles=step_cycles_of(gpu),
        )  # fmt: skip
        if every:
            return chosen
        if whole is None:
            whole = Tiling(*(np.ones(m.shape) for _ in range(5)))
        for name, array in whole.__dict__.items():
            array[rows] = getattr(chosen, name)
    return whole if whole is not None else Tiling(*(np.ones(m.shape) for _ in range(5)))


def step_cycles_of(gpu: Gpu) -> float:
    """Wait of one step of a block's loop over k for the one before. [core cycles]"""
    return STEP_CYCLES.get(gpu.architecture, STEP_CYCLES["ampere"])
