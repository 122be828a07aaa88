"""Reductions along rows: softmax and norms, each block some rows, each row at once or piece by piece."""

# ruff: noqa: N803
# mypy: disable-error-code="no-untyped-def,untyped-decorator,misc"

import triton
import triton.language as tl


@triton.jit
def softmax(x, y, rows, columns, BLOCK: tl.constexpr, ROWS: tl.constexpr, WHOLE: tl.constexpr):
    """Softmax of `ROWS` rows; `WHOLE` where a row fits a block of `BLOCK` columns, so that it is read once."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)
    at = row[:, None].to(tl.int64) * columns + column[None, :]
    present = row[:, None] < rows
    if WHOLE:
        inside = present & (column[None, :] < columns)
        value = tl.load(x + at, mask=inside, other=-float("inf")).to(tl.float32)
        value = tl.exp(value - tl.max(value, axis=1)[:, None])
        value = value / tl.sum(value, axis=1)[:, None]
        tl.store(y + at, value.to(y.dtype.element_ty), mask=inside)
    else:
        top = tl.full((ROWS,), -1.0e30, dtype=tl.float32)
        total = tl.zeros((ROWS,), dtype=tl.float32)
        for start in range(0, columns, BLOCK):
            inside = present & (column[None, :] < columns - start)
            value = tl.load(x + at + start, mask=inside, other=-float("inf")).to(tl.float32)
            higher = tl.maximum(top, tl.max(value, axis=1))
            total = total * tl.exp(top - higher) + tl.sum(tl.exp(value - higher[:, None]), axis=1)
            top = higher
        for start in range(0, columns, BLOCK):
            inside = present & (column[None, :] < columns - start)
            value = tl.load(x + at + start, mask=inside, other=-float("inf")).to(tl.float32)
            value = tl.exp(value - top[:, None]) / total[:, None]
            tl.store(y + at + start, value.to(y.dtype.element_ty), mask=inside)


@triton.jit
def norm(
    x, weight, bias, y, rows, columns, epsilon,
    BLOCK: tl.constexpr, ROWS: tl.constexpr, WHOLE: tl.constexpr, CENTRED: tl.constexpr,
):  # fmt: skip
    """RMS norm of `ROWS` rows, or layer norm where `CENTRED`."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)
    at = row[:, None].to(tl.int64) * columns + column[None, :]
    present = row[:, None] < rows
    if WHOLE:
        inside = present & (column[None, :] < columns)
        value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
        if CENTRED:
            value -= (tl.sum(value, axis=1) / columns)[:, None]
            value = tl.where(column[None, :] < columns, value, 0.0)
        scale = tl.rsqrt(tl.sum(value * value, axis=1) / columns + epsilon)
        value = value * scale[:, None] * tl.load(weight + column, mask=column < columns, other=0.0)[None, :]
        if CENTRED:
            value += tl.load(bias + column, mask=column < columns, other=0.0)[None, :]
        tl.store(y + at, value.to(y.dtype.element_ty), mask=inside)
    else:
        total = tl.zeros((ROWS, BLOCK), dtype=tl.float32)
        squares = tl.zeros((ROWS, BLOCK), dtype=tl.float32)
        for start in range(0, columns, BLOCK):
            inside = present & (column[None, :] < columns - start)
            value = tl.load(x + at + start, mask=inside, other=0.0).to(tl.float32)
            if CENTRED:
                total += value
            squares += value * value
        mean = tl.sum(total, axis=1) / columns
        scale = tl.rsqrt(tl.sum(squares, axis=1) / columns - mean * mean + epsilon)
        for start in range(0, columns, BLOCK):
            left = column < columns - start
            inside = present & left[None, :]
            value = tl.load(x + at + start, mask=inside, other=0.0).to(tl.float32)
            value = (value - mean[:, None]) * scale[:, None]
            value *= tl.load(weight + start + column, mask=left, other=0.0)[None, :]
            if CENTRED:
                value += tl.load(bias + start + column, mask=left, other=0.0)[None, :]
            tl.store(y + at + start, value.to(y.dtype.element_ty), mask=inside)
