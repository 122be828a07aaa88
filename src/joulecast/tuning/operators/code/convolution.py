"""Convolution of channels-last images as a matrix product whose left operand is gathered as it is read."""

# ruff: noqa: N803
# mypy: disable-error-code="no-untyped-def,untyped-decorator,misc"

import triton
import triton.language as tl


@triton.jit
def convolution(
    x, w, y, images, height, width, channels, filters, out_height, out_width, stride, padding,
    KERNEL_H: tl.constexpr, KERNEL_W: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
):  # fmt: skip
    """One tile of ``y[pixel, filter]``; `x` is N H W C, `w` is filters x rows x columns x C."""
    pid = tl.program_id(0)
    pixels = images * out_height * out_width
    down, across = tl.cdiv(pixels, BLOCK_M), tl.cdiv(filters, BLOCK_N)
    first = pid // (GROUP_M * across) * GROUP_M
    high = min(down - first, GROUP_M)
    rest = pid % (GROUP_M * across)
    pixel = (first + rest % high) * BLOCK_M + tl.arange(0, BLOCK_M)
    one = rest // high * BLOCK_N + tl.arange(0, BLOCK_N)
    depth = tl.arange(0, BLOCK_K)
    image = pixel // (out_height * out_width)
    top = pixel // out_width % out_height * stride - padding
    left = pixel % out_width * stride - padding
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    pieces = tl.cdiv(channels, BLOCK_K)
    for step in range(KERNEL_H * KERNEL_W * pieces):
        tap = step // pieces
        channel = step % pieces * BLOCK_K + depth
        row, column = top + tap // KERNEL_W, left + tap % KERNEL_W
        inside = (pixel < pixels) & (row >= 0) & (row < height) & (column >= 0) & (column < width)
        at_x = ((image * height + row) * width + column)[:, None] * channels + channel[None, :]
        values = tl.load(x + at_x, mask=inside[:, None] & (channel[None, :] < channels), other=0.0)
        at_w = one[None, :] * (KERNEL_H * KERNEL_W * channels) + tap * channels + channel[:, None]
        weights = tl.load(w + at_w, mask=(one[None, :] < filters) & (channel[:, None] < channels), other=0.0)
        total = tl.dot(values, weights, total)
    at_y = pixel[:, None] * filters + one[None, :]
    tl.store(y + at_y, total.to(y.dtype.element_ty), mask=(pixel[:, None] < pixels) & (one[None, :] < filters))
