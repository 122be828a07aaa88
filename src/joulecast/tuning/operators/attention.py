"""Specs of attention: prompts (prefill) and one new token over a cache (decode)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from joulecast.errors import InputError
from joulecast.tuning.kernelspec import ELEMENT_BYTES, KernelSpec, Tensor
from joulecast.tuning.operators.matmul import tile_default
from joulecast.tuning.space import Config, Space

_MOST_SPLITS = 64


def _checked_heads(heads: int, key_heads: int, head_dim: int) -> None:
    if heads % key_heads:
        raise InputError(f"{heads} heads can't share {key_heads} key heads: give a divisor of {heads}")
    if head_dim not in (16, 32, 64, 128, 256):
        raise InputError(f"head_dim is 16, 32, 64, 128 or 256, not {head_dim}")


def prefill(
    *, batch: int = 1, heads: int = 32, key_heads: int = 8, tokens: int = 2048, head_dim: int = 128,
    causal: bool = True, dtype: str = "fp16",
) -> KernelSpec:  # fmt: skip
    """Attention of all tokens of a prompt with themselves."""
    from joulecast.tuning.operators.code import attention as code

    _checked_heads(heads, key_heads, head_dim)
    space = Space.of(
        {"BLOCK_M": (16, 32, 64, 128, 256), "BLOCK_N": (16, 32, 64, 128), "num_warps": (1, 2, 4, 8, 16),
         "num_stages": (1, 2, 3, 4)},
        (f"BLOCK_M * (BLOCK_N + {head_dim}) <= 320 * 32 * num_warps", "BLOCK_M >= 8 * num_warps"),
    )  # fmt: skip
    element, group = ELEMENT_BYTES[dtype], heads // key_heads
    queries, keys = (batch, heads, tokens, head_dim), (batch, key_heads, tokens, head_dim)

    def reference(given: Mapping[str, Any]) -> Mapping[str, Any]:
        import torch

        key, value = (given[name].float().repeat_interleave(group, dim=1) for name in ("k", "v"))
        out = torch.nn.functional.scaled_dot_product_attention(given["q"].float(), key, value, is_causal=bool(causal))
        return {"o": out}

    def footprint(config: Config) -> tuple[float, float]:
        bm, bn, stages = (float(config[name]) for name in ("BLOCK_M", "BLOCK_N", "num_stages"))
        threads = 32.0 * float(config["num_warps"])
        shared = head_dim * element * (bm + 2.0 * bn * max(stages - 1.0, 1.0))
        return shared, bm * (bn + head_dim) / threads

    return KernelSpec(
        name="attention_prefill",
        kernel=code.prefill,
        space=space,
        arguments={
            "q": Tensor(queries, dtype), "k": Tensor(keys, dtype), "v": Tensor(keys, dtype),
            "o": Tensor(queries, dtype, output=True), "tokens": tokens, "heads": heads, "group": group,
            "scale": 1.0 / math.sqrt(head_dim),
        },
        grid=lambda config: (-(-tokens // int(config["BLOCK_M"])), batch * heads),
        reference=reference,
        default=tile_default(space, {"BLOCK_M": 128, "BLOCK_N": 64, "num_warps": 8, "num_stages": 3}),
        problem={"batch": batch, "heads": heads, "key_heads": key_heads, "tokens": tokens, "head_dim": head_dim,
                 "causal": int(causal), "dtype": dtype},
        constants={"HEAD": head_dim, "CAUSAL": int(causal)},
        footprint=footprint,
        family="context_attention",
        small=lambda: prefill(batch=1, heads=2 * min(group, 2), key_heads=2, tokens=min(tokens, 150),
                              head_dim=head_dim, causal=causal, dtype=dtype),
    )  # fmt: skip


def decode(
    *, batch: int = 1, heads: int = 32, key_heads: int = 8, cached: int = 4096, head_dim: int = 128,
    dtype: str = "fp16",
) -> KernelSpec:  # fmt: skip
    """Attention of one new token of each sequence over its cache, in parts that are put together afterwards."""
    from joulecast.tuning.operators.code import attention as code

    _checked_heads(heads, key_heads, head_dim)
    group = heads // key_heads
    if group > 64:
        raise InputError(f"at most 64 query heads share a key head here, not {group}")
    rows = max(16, 1 << (group - 1).bit_length())
    space = Space.of(
        {
            "BLOCK_H": (rows,),
            "BLOCK_N": (16, 32, 64, 128, 256),
            "SPLITS": tuple(v for v in (1, 2, 4, 8, 16, 32, 64) if v == 1 or 16 * v <= cached),
            "num_warps": (1, 2, 4, 8),
            "num_stages": (1, 2, 3, 4),
        },
        (f"{rows} * BLOCK_N >= 32 * num_warps", f"{rows} * (BLOCK_N + {head_dim}) <= 256 * 32 * num_warps"),
    )
    element = ELEMENT_BYTES[dtype]

    def reference(given: Mapping[str, Any]) -> Mapping[str, Any]:
        q = given["q"].float().view(batch, key_heads, group, head_dim)
        score = q @ given["k"].float().transpose(2, 3) / math.sqrt(head_dim)
        return {"o": (score.softmax(dim=3) @ given["v"].float()).view(batch, heads, head_dim)}

    def finish(outputs: Mapping[str, Any], config: Config) -> Mapping[str, Any]:
        parts = int(config["SPLITS"])
        level = outputs["level"][:, :parts].float()  # pairs, parts, group
        weight = (level - level.amax(dim=1, keepdim=True)).exp2()
        out = (outputs["partial"][:, :parts].float() * weight[..., None]).sum(dim=1) / weight.sum(dim=1)[..., None]
        return {"o": out.view(batch, heads, head_dim)}

    def footprint(config: Config) -> tuple[float, float]:
        bn, stages = float(config["BLOCK_N"]), float(config["num_stages"])
        shared = head_dim * element * (rows + 2.0 * bn * max(stages - 1.0, 1.0))
        return shared, rows * (bn + head_dim) / (32.0 * float(config["num_warps"]))

    pairs, cache = batch * key_heads, (batch, key_heads, cached, head_dim)
    wanted = {"BLOCK_H": rows, "BLOCK_N": 64, "SPLITS": 8, "num_warps": 4, "num_stages": 2}
    return KernelSpec(
        name="attention_decode",
        kernel=code.decode,
        space=space,
        arguments={
            "q": Tensor((batch, heads, head_dim), dtype), "k": Tensor(cache, dtype), "v": Tensor(cache, dtype),
            "partial": Tensor((pairs, _MOST_SPLITS, group, head_dim), "fp32", output=True),
            "level": Tensor((pairs, _MOST_SPLITS, group), "fp32", output=True),
            "cached": cached, "group": group, "scale": 1.0 / math.sqrt(head_dim),
        },
        grid=lambda config: (pairs, int(config["SPLITS"])),
        reference=reference,
        default=tile_default(space, wanted),
        problem={"batch": batch, "heads": heads, "key_heads": key_heads, "cached": cached, "head_dim": head_dim,
                 "dtype": dtype},
        constants={"HEAD": head_dim, "MOST_SPLITS": _MOST_SPLITS},
        footprint=footprint,
        finish=finish,
        family="generation_attention",
        small=lambda: decode(batch=1, heads=2 * group, key_heads=2, cached=min(cached, 1100), head_dim=head_dim,
                             dtype=dtype),
    )  # fmt: skip
