"""Specs of matrix products: large, skinny, batched, and of a matrix with one vector."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from joulecast.tuning.kernelspec import ELEMENT_BYTES, KernelSpec, Tensor
from joulecast.tuning.space import Config, Space, Value

#: Tiles that a space of matrix products is made of; skinny ones start at the 16 rows that tensor cores take.
TILES = {"BLOCK_M": (16, 32, 64, 128, 256), "BLOCK_N": (16, 32, 64, 128, 256), "BLOCK_K": (16, 32, 64, 128)}
LAUNCH = {"num_warps": (1, 2, 4, 8), "num_stages": (1, 2, 3, 4, 5)}


def tile_space(m: int, n: int, k: int, constraints: tuple[str, ...] = ()) -> Space:
    """Tiles that are no more than twice what the sizes need, with as many warps as keep results in registers."""
    tiles = {
        name: tuple(value for value in values if value <= max(16, 2 * size - 1))
        for (name, values), size in zip(TILES.items(), (m, n, k), strict=True)
    }
    rules = (
        "BLOCK_M * BLOCK_N <= 128 * 32 * num_warps",  # 256 results a thread would spill
        "BLOCK_M * BLOCK_N >= 128 * num_warps",
        *constraints,
    )
    groups = (1, 4, 8) if m > 64 else (1,)
    return Space.of({**tiles, "GROUP_M": groups, **LAUNCH}, rules)


def tile_default(space: Space, wanted: Mapping[str, int]) -> Config:
    """What most Triton code starts from, as near as the space has it."""
    near = {one.name: min(one.values, key=lambda v, to=wanted[one.name]: _apart(v, to)) for one in space.tunables}  # type: ignore[misc]
    code = space.code(near)
    return near if space.holds(code) else space.config(next(space.enumerated()))


def _apart(value: Value, wanted: float) -> float:
    """How far two settings are apart: in octaves, zero standing half an octave below one half."""
    return abs(math.log2(max(float(value), 0.35)) - math.log2(max(wanted, 0.35)))


def tile_footprint(config: Config, element: float, names: tuple[str, str, str]) -> tuple[float, float]:
    """Shared memory of the tiles in flight, and accumulator registers a thread. [B, 1]"""
    bm, bn, bk = (float(config[name]) for name in names)
    stages = float(config["num_stages"])
    # With two stages or fewer one tile is in flight; each stage beyond the first of a pipeline holds one more.
    return (bm + bn) * bk * element * max(stages - 1.0, 1.0), bm * bn / (32.0 * float(config["num_warps"]))


def tile_of(config: Config) -> tuple[int, int, int]:
    """Rows and columns of a tile, and rows of tiles in a group."""
    return int(config["BLOCK_M"]), int(config["BLOCK_N"]), int(config["GROUP_M"])


def grouped_waves(down: int, across: int, group: int, slots: float) -> tuple[float, float]:
    """Row and column tiles that all waves of a grouped order read, each wave reading each of its own once.

    Parameters
    ----------
    down, across : int
        Tiles of the result.
    group : int
        Rows of tiles that are gone down before the next column.
    slots : float
        Blocks that run at a time.

    Returns
    -------
    rows, columns : float
    """
    pid = np.arange(down * across)
    first = pid // (group * across) * group
    height = np.minimum(down - first, group)
    rest = pid % (group * across)
    row, column, wave = first + rest % height, rest // height, pid // max(int(slots), 1)
    return float(len(np.unique(wave * down + row))), float(len(np.unique(wave * across + column)))


def rereads_of_tiles(
    m: int, n: int, k: int, element: float, tile: tuple[int, int, int], slots: float, batch: int = 1
) -> float:
    """Operand bytes that waves of a tiled product read again, each wave reading what its blocks share once. [B]

    Parameters
    ----------
    m, n, k : int
    element : float
        Bytes of an element.
    tile : tuple of int
        Rows and columns of a tile, and rows of tiles in a group.
    slots : float
        Blocks that run at a time.
    batch : int
    """
    bm, bn, group = tile
    down, across = -(-m // bm), -(-n // bn)
    rows, columns = grouped_waves(down, across, group, slots)
    a, b = m * k * element * batch, n * k * element * batch
    return max((rows / down - 1.0) * a, 0.0) + max((columns / across - 1.0) * b, 0.0)


def matmul(*, m: int = 4096, n: int = 4096, k: int = 4096, dtype: str = "fp16") -> KernelSpec:
    """``c[m, n] = a[m, k] w[n, k]^T``: weights as a linear layer keeps them."""
    return _product("matmul", 1, m, n, k, dtype)


def batched_matmul(*, batch: int = 32, m: int = 128, n: int = 128, k: int = 128, dtype: str = "fp16") -> KernelSpec:
    """`batch` products, each with operands of its own."""
    return _product("batched_matmul", batch, m, n, k, dtype)


def _product(name: str, batch: int, m: int, n: int, k: int, dtype: str) -> KernelSpec:
    from joulecast.tuning.operators.code import matmul as code

    element = ELEMENT_BYTES[dtype]
    space = tile_space(m, n, k)
    wanted = {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 64, "GROUP_M": 8, "num_warps": 8, "num_stages": 3}
    sizes = {"batch": batch} if name == "batched_matmul" else {}
    return KernelSpec(
        name=name,
        kernel=code.matmul,
        space=space,
        arguments={
            "a": Tensor((batch, m, k), dtype), "b": Tensor((batch, n, k), dtype),
            "c": Tensor((batch, m, n), dtype, output=True), "m": m, "n": n, "k": k,
            "stride_am": k, "stride_ak": 1, "stride_bk": 1, "stride_bn": k, "stride_cm": n, "stride_cn": 1,
            "batch_a": m * k, "batch_b": n * k, "batch_c": m * n,
        },
        grid=lambda config: (-(-m // int(config["BLOCK_M"])) * -(-n // int(config["BLOCK_N"])), batch),
        reference=_reference,
        default=tile_default(space, wanted),
        problem={**sizes, "m": m, "n": n, "k": k, "dtype": dtype},
        footprint=lambda config: tile_footprint(config, element, ("BLOCK_M", "BLOCK_N", "BLOCK_K")),
        rereads=lambda config, slots: rereads_of_tiles(m, n, k, element, tile_of(config), slots, batch),
        small=lambda: _product(name, min(batch, 2), min(m, 80), min(n, 96), min(k, 144), dtype),
    )  # fmt: skip


def _reference(given: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"c": given["a"].float() @ given["b"].float().transpose(1, 2)}


def gemv(*, n: int = 4096, k: int = 4096, dtype: str = "fp16") -> KernelSpec:
    """``y[n] = w[n, k] x[k]``, one vector."""
    from joulecast.tuning.operators.code import matmul as code

    space = Space.of(
        {
            "BLOCK_N": tuple(v for v in (1, 2, 4, 8, 16, 32, 64) if v < 2 * n),
            "BLOCK_K": tuple(v for v in (64, 128, 256, 512, 1024, 2048, 4096) if v < 2 * k or v == 64),
            "num_warps": (1, 2, 4, 8, 16),
            "num_stages": (1, 2, 3, 4),
        },
        ("BLOCK_N * BLOCK_K <= 128 * 32 * num_warps", "BLOCK_N * BLOCK_K >= 64 * num_warps"),
    )
    wanted = {"BLOCK_N": 16, "BLOCK_K": 512, "num_warps": 4, "num_stages": 3}
    return KernelSpec(
        name="gemv",
        kernel=code.gemv,
        space=space,
        arguments={"x": Tensor((k,), dtype), "w": Tensor((n, k), dtype), "y": Tensor((n,), dtype, output=True),
                   "n": n, "k": k, "stride_w": k},
        grid=lambda config: (-(-n // int(config["BLOCK_N"])),),
        reference=lambda given: {"y": given["w"].float() @ given["x"].float()},
        default=tile_default(space, wanted),
        problem={"n": n, "k": k, "dtype": dtype},
        small=lambda: gemv(n=min(n, 70), k=min(k, 700), dtype=dtype),
    )  # fmt: skip
