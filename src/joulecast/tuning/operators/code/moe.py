"""Products of tokens with the weights of the experts they are routed to, all experts in one launch."""

# ruff: noqa: N803
# mypy: disable-error-code="no-untyped-def,untyped-decorator,misc"

import triton
import triton.language as tl


@triton.jit
def fused_moe(
    a, w, c, sorted_ids, expert_ids, entries, n, k, padded, top_k,
    BLOCK_SIZE_M: tl.constexpr, BLOCK_SIZE_N: tl.constexpr, BLOCK_SIZE_K: tl.constexpr, GROUP_SIZE_M: tl.constexpr,
):  # fmt: skip
    """One tile; `sorted_ids` lists token-expert pairs by expert, each expert padded to whole tiles with `entries`."""
    pid = tl.program_id(0)
    down, across = tl.cdiv(padded, BLOCK_SIZE_M), tl.cdiv(n, BLOCK_SIZE_N)
    first = pid // (GROUP_SIZE_M * across) * GROUP_SIZE_M
    height = min(down - first, GROUP_SIZE_M)
    rest = pid % (GROUP_SIZE_M * across)
    tile = first + rest % height
    pair = tl.load(sorted_ids + tile * BLOCK_SIZE_M + tl.arange(0, BLOCK_SIZE_M))
    expert = tl.load(expert_ids + tile).to(tl.int64)
    held = pair < entries
    columns = rest // height * BLOCK_SIZE_N + tl.arange(0, BLOCK_SIZE_N)
    depth = tl.arange(0, BLOCK_SIZE_K)
    at_a = a + (pair // top_k)[:, None] * k + depth[None, :]
    at_w = w + expert * n * k + columns[None, :] * k + depth[:, None]
    total = tl.zeros((BLOCK_SIZE_M, BLOCK_SIZE_N), dtype=tl.float32)
    for step in range(tl.cdiv(k, BLOCK_SIZE_K)):
        left = k - step * BLOCK_SIZE_K
        x = tl.load(at_a, mask=held[:, None] & (depth[None, :] < left), other=0.0)
        weights = tl.load(at_w, mask=(depth[:, None] < left) & (columns[None, :] < n), other=0.0)
        total = tl.dot(x, weights, total)
        at_a += BLOCK_SIZE_K
        at_w += BLOCK_SIZE_K
    at_c = c + pair[:, None] * n + columns[None, :]
    tl.store(at_c, total.to(c.dtype.element_ty), mask=held[:, None] & (columns[None, :] < n))
