"""Matrix product, batched, any strides."""

# ruff: noqa: N803
# mypy: disable-error-code="no-untyped-def,untyped-decorator,misc"

import triton
import triton.language as tl


@triton.jit
def matmul(
    a, b, c, m, n, k, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn, batch_a, batch_b, batch_c,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
):  # fmt: skip
    """One tile of ``c[m, n] = a[m, k] b[k, n]``; tiles go down `GROUP_M` rows before across, to share columns in L2."""
    pid = tl.program_id(0)
    a += tl.program_id(1) * batch_a
    b += tl.program_id(1) * batch_b
    c += tl.program_id(1) * batch_c
    down, across = tl.cdiv(m, BLOCK_M), tl.cdiv(n, BLOCK_N)
    first = pid // (GROUP_M * across) * GROUP_M
    height = min(down - first, GROUP_M)
    rest = pid % (GROUP_M * across)
    rows = (first + rest % height) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = rest // height * BLOCK_N + tl.arange(0, BLOCK_N)
    depth = tl.arange(0, BLOCK_K)
    at_a = a + rows[:, None] * stride_am + depth[None, :] * stride_ak
    at_b = b + depth[:, None] * stride_bk + columns[None, :] * stride_bn
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for step in range(tl.cdiv(k, BLOCK_K)):
        left = k - step * BLOCK_K
        x = tl.load(at_a, mask=(rows[:, None] < m) & (depth[None, :] < left), other=0.0)
        w = tl.load(at_b, mask=(depth[:, None] < left) & (columns[None, :] < n), other=0.0)
        total = tl.dot(x, w, total)
        at_a += BLOCK_K * stride_ak
        at_b += BLOCK_K * stride_bk
    at_c = c + rows[:, None] * stride_cm + columns[None, :] * stride_cn
    tl.store(at_c, total.to(c.dtype.element_ty), mask=(rows[:, None] < m) & (columns[None, :] < n))


@triton.jit
def gemv(x, w, y, n, k, stride_w, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    """`BLOCK_N` results of ``y[n] = w[n, k] x[k]``."""
    rows = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    depth = tl.arange(0, BLOCK_K)
    total = tl.zeros((BLOCK_N, BLOCK_K), dtype=tl.float32)
    at = w + rows[:, None] * stride_w + depth[None, :]
    for start in range(0, k, BLOCK_K):
        inside = depth < k - start
        given = tl.load(x + start + depth, mask=inside, other=0.0).to(tl.float32)
        weights = tl.load(at, mask=(rows[:, None] < n) & inside[None, :], other=0.0).to(tl.float32)
        total += weights * given[None, :]
        at += BLOCK_K
    tl.store(y + rows, tl.sum(total, axis=1).to(y.dtype.element_ty), mask=rows < n)
