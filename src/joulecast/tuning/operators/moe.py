"""Spec of the fused product of tokens with their experts' weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from joulecast.errors import InputError
from joulecast.tuning.kernelspec import ELEMENT_BYTES, Argument, KernelSpec, Tensor
from joulecast.tuning.operators.matmul import LAUNCH, TILES, tile_default, tile_footprint
from joulecast.tuning.space import Config, Space

Ints = npt.NDArray[np.int32]


def routed(tokens: int, experts: int, top_k: int, tile: int) -> tuple[Ints, Ints]:
    """Token-expert pairs by expert, each expert padded to whole tiles, with tokens spread evenly.

    Returns
    -------
    pairs : ndarray
        Indices of pairs; ``tokens * top_k`` where a place is empty.
    owners : ndarray
        Expert of each tile.
    """
    entries = tokens * top_k
    expert = np.arange(entries) % experts
    pairs, owners = [], []
    for one in range(min(experts, entries)):
        held = np.flatnonzero(expert == one)
        pairs.append(np.concatenate([held, np.full(-len(held) % tile, entries)]))
        owners += [one] * (-(-len(held) // tile))
    return np.concatenate(pairs).astype(np.int32), np.array(owners, dtype=np.int32)


def fused_moe(
    *, tokens: int = 64, hidden: int = 4096, inter: int = 1792, experts: int = 8, top_k: int = 2, dtype: str = "fp16"
) -> KernelSpec:
    """Up projections of all experts: `inter` columns (gate and up together) of `hidden` inputs."""
    from joulecast.tuning.operators.code import moe as code

    if top_k > experts:
        raise InputError(f"a token can't have {top_k} of {experts} experts")
    element, entries = ELEMENT_BYTES[dtype], tokens * top_k
    each = max(entries // experts, 1)
    tiles = {
        "BLOCK_SIZE_M": tuple(v for v in TILES["BLOCK_M"] if v <= max(16, 2 * each)),
        "BLOCK_SIZE_N": tuple(v for v in TILES["BLOCK_N"] if v >= 32 and v < 2 * inter),
        "BLOCK_SIZE_K": tuple(v for v in TILES["BLOCK_K"] if v >= 32 and v < 2 * hidden),
        "GROUP_SIZE_M": (1, 8),
        **LAUNCH,
    }
    space = Space.of(tiles, ("BLOCK_SIZE_M * BLOCK_SIZE_N <= 128 * 32 * num_warps",
                             "BLOCK_SIZE_M * BLOCK_SIZE_N >= 128 * num_warps"))  # fmt: skip

    def arguments(config: Config) -> Mapping[str, Argument]:
        pairs, owners = routed(tokens, experts, top_k, int(config["BLOCK_SIZE_M"]))
        return {
            "a": Tensor((tokens, hidden), dtype), "w": Tensor((experts, inter, hidden), dtype),
            "c": Tensor((entries, inter), dtype, output=True),
            "sorted_ids": Tensor(pairs.shape, "i32", values=pairs),
            "expert_ids": Tensor(owners.shape, "i32", values=owners),
            "entries": entries, "n": inter, "k": hidden, "padded": len(pairs), "top_k": top_k,
        }  # fmt: skip

    def grid(config: Config) -> tuple[int, ...]:
        tile = int(config["BLOCK_SIZE_M"])
        held = np.bincount(np.arange(entries) % experts, minlength=experts)
        return (int(np.ceil(held / tile).sum()) * -(-inter // int(config["BLOCK_SIZE_N"])),)

    def reference(given: Mapping[str, Any]) -> Mapping[str, Any]:
        import torch

        pair = torch.arange(entries)
        weights = given["w"].float()[pair % experts]
        return {"c": torch.bmm(weights, given["a"].float()[pair // top_k][:, :, None])[:, :, 0]}

    wanted = {"BLOCK_SIZE_M": 64, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 32, "GROUP_SIZE_M": 8, "num_warps": 4,
              "num_stages": 3}  # fmt: skip
    names = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K")
    return KernelSpec(
        name="fused_moe",
        kernel=code.fused_moe,
        space=space,
        arguments=arguments,
        grid=grid,
        reference=reference,
        default=tile_default(space, wanted),
        problem={"tokens": tokens, "hidden": hidden, "inter": inter, "experts": experts, "top_k": top_k,
                 "dtype": dtype},
        footprint=lambda config: tile_footprint(config, element, names),
        family="moe",
        small=lambda: fused_moe(tokens=min(tokens, 13), hidden=min(hidden, 96), inter=min(inter, 80),
                                experts=min(experts, 4), top_k=min(top_k, 2), dtype=dtype),
    )  # fmt: skip
