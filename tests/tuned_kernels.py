"""Triton kernels that tests tune as a user would: at the top of a module of their own."""

# ruff: noqa: N803

import triton
import triton.language as tl


@triton.jit
def double(x, y, n, BLOCK: tl.constexpr):
    """Twice `x`."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, 2.0 * tl.load(x + at, mask=at < n, other=0.0), mask=at < n)


@triton.jit
def stuck(x, y, n, STUCK: tl.constexpr, BLOCK: tl.constexpr):
    """Twice `x`, which never ends where STUCK is 1."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    done = 0
    while done < n:
        tl.store(y + at, 2.0 * tl.load(x + at, mask=at < n, other=0.0), mask=at < n)
        done += n * (1 - STUCK)


@triton.jit
def sum_of_pieces(x, y, n, pieces, BLOCK: tl.constexpr):
    """Sum of `pieces` pieces of `n` numbers, each of `BLOCK`."""
    at = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for piece in range(pieces):
        for start in range(0, n, BLOCK):
            total += tl.load(x + piece * n + start + at, mask=start + at < n, other=0.0)
    tl.store(y + at, total)


def spec():
    """What `joulecast tune tuned_kernels:spec` finds."""
    from joulecast import kernel_spec

    return kernel_spec(
        double,
        space={"BLOCK": [128, 256], "num_warps": [1, 2]},
        args={"x": ((1000,), "fp32"), "y": ((1000,), "fp32"), "n": 1000},
        grid=lambda config: (-(-1000 // config["BLOCK"]),),
        outputs=["y"],
        reference=lambda given: {"y": 2.0 * given["x"]},
    )


def stuck_spec(ways=(1, 0)):
    """A space in which some configurations, or all, never end."""
    from joulecast import kernel_spec

    return kernel_spec(
        stuck,
        space={"STUCK": list(ways), "BLOCK": [128], "num_warps": [1]},
        args={"x": ((1000,), "fp32"), "y": ((1000,), "fp32"), "n": 1000},
        grid=lambda config: (-(-1000 // config["BLOCK"]),),
        outputs=["y"],
        reference=lambda given: {"y": 2.0 * given["x"]},
    )


def always_stuck():
    """A space in which no configuration ends."""
    return stuck_spec((1,))


def not_a_spec():
    """Something else."""
    return 3


def broken():
    """Fails as it is called."""
    raise RuntimeError("no such luck")
