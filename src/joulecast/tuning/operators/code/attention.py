"""Attention: of all tokens of a prompt, and of one new token over a cache."""

# ruff: noqa: N803
# mypy: disable-error-code="no-untyped-def,untyped-decorator,misc"

import triton
import triton.language as tl


@triton.jit
def prefill(
    q, k, v, o, tokens, heads, group, scale,
    HEAD: tl.constexpr, CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """`BLOCK_M` queries of one head over all keys they may see; tensors are sequence, head, token, width."""
    block, head = tl.program_id(0), tl.program_id(1)
    key_head = head // heads * (heads // group) + head % heads // group
    query = block * BLOCK_M + tl.arange(0, BLOCK_M)
    key, wide = tl.arange(0, BLOCK_N), tl.arange(0, HEAD)
    at_q = (head.to(tl.int64) * tokens + query)[:, None] * HEAD + wide[None, :]
    base = key_head.to(tl.int64) * tokens * HEAD
    x = tl.load(q + at_q, mask=query[:, None] < tokens, other=0.0)
    top = tl.full((BLOCK_M,), -1.0e30, dtype=tl.float32)
    total = tl.zeros((BLOCK_M,), dtype=tl.float32)
    out = tl.zeros((BLOCK_M, HEAD), dtype=tl.float32)
    end = min((block + 1) * BLOCK_M, tokens) if CAUSAL else tokens
    for start in range(0, end, BLOCK_N):
        seen = start + key < tokens
        keys = tl.load(k + base + (start + key)[None, :] * HEAD + wide[:, None], mask=seen[None, :], other=0.0)
        score = tl.dot(x, keys) * (scale * 1.4426950408889634)
        allowed = seen[None, :]
        if CAUSAL:
            allowed = allowed & (start + key[None, :] <= query[:, None])
        score = tl.where(allowed, score, -1.0e30)
        higher = tl.maximum(top, tl.max(score, axis=1))
        weight = tl.exp2(score - higher[:, None])
        shrink = tl.exp2(top - higher)
        total = total * shrink + tl.sum(weight, axis=1)
        values = tl.load(v + base + (start + key)[:, None] * HEAD + wide[None, :], mask=seen[:, None], other=0.0)
        out = tl.dot(weight.to(values.dtype), values, out * shrink[:, None])
        top = higher
    tl.store(o + at_q, (out / total[:, None]).to(o.dtype.element_ty), mask=query[:, None] < tokens)


@triton.jit
def decode(
    q, k, v, partial, level, cached, group, scale,
    HEAD: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_N: tl.constexpr, SPLITS: tl.constexpr, MOST_SPLITS: tl.constexpr,
):  # fmt: skip
    """A part of the cache for the query heads that share a key head; parts are put together afterwards."""
    pair, split = tl.program_id(0), tl.program_id(1)
    row, key, wide = tl.arange(0, BLOCK_H), tl.arange(0, BLOCK_N), tl.arange(0, HEAD)
    at_q = (pair * group + row)[:, None] * HEAD + wide[None, :]
    x = tl.load(q + at_q, mask=row[:, None] < group, other=0.0)
    base = pair.to(tl.int64) * cached * HEAD
    each = tl.cdiv(tl.cdiv(cached, SPLITS), BLOCK_N) * BLOCK_N
    top = tl.full((BLOCK_H,), -1.0e30, dtype=tl.float32)
    total = tl.zeros((BLOCK_H,), dtype=tl.float32)
    out = tl.zeros((BLOCK_H, HEAD), dtype=tl.float32)
    for start in range(split * each, min(cached, (split + 1) * each), BLOCK_N):
        seen = start + key < cached
        keys = tl.load(k + base + (start + key)[None, :] * HEAD + wide[:, None], mask=seen[None, :], other=0.0)
        score = tl.where(seen[None, :], tl.dot(x, keys) * (scale * 1.4426950408889634), -1.0e30)
        higher = tl.maximum(top, tl.max(score, axis=1))
        weight = tl.exp2(score - higher[:, None])
        shrink = tl.exp2(top - higher)
        total = total * shrink + tl.sum(weight, axis=1)
        values = tl.load(v + base + (start + key)[:, None] * HEAD + wide[None, :], mask=seen[:, None], other=0.0)
        out = tl.dot(weight.to(values.dtype), values, out * shrink[:, None])
        top = higher
    at = (pair * MOST_SPLITS + split) * group + row
    held = row < group
    tl.store(partial + at[:, None] * HEAD + wide[None, :], out / tl.maximum(total, 1e-30)[:, None], mask=held[:, None])
    tl.store(level + at, top + tl.log2(tl.maximum(total, 1e-30)), mask=held)
