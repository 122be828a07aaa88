"""One stride, padding and dilation for both sides of a convolution that has its own for each."""

from __future__ import annotations

from collections.abc import Sequence


def geometry(
    size: Sequence[int], kernel: Sequence[int], result: Sequence[int], step: Sequence[int], pad: Sequence[int],
    spread: Sequence[int],
) -> dict[str, int]:  # fmt: skip
    """Size, stride, padding and dilation with one number for both sides that give the same result.

    Parameters
    ----------
    size, kernel, result : sequence of int
        Rows and columns of input, filter and result.
    step, pad, spread : sequence of int
        Stride, padding and dilation of rows and of columns; a padding of -1 differs between the ends of its side.

    Returns
    -------
    dict
        ``height``, ``width``, ``stride``, ``padding``, ``dilation`` of a convolution of equal arithmetic.
    """
    sides = [side for side in (0, 1) if kernel[side] > 1 or step[side] > 1 or size[side] > 1]
    alike = all(len({values[side] for side in sides}) <= 1 for values in (step, pad, spread))
    main = sides[-1] if sides else 0
    if alike and pad[main] >= 0:
        one = {"stride": step[main], "padding": pad[main], "dilation": spread[main]}
        if len(sides) < 2 and one["padding"]:  # a single row has no rows of zeros beside it
            one["padding"] = 0
        elif _results(size, kernel, one) == list(result):
            return {"height": size[0], "width": size[1], **one}
    else:
        same_step = step[0] == step[1] and spread[0] == spread[1]
        one = {"stride": step[0] if same_step else 1, "padding": 0, "dilation": spread[0] if same_step else 1}
    height, width = ((result[side] - 1) * one["stride"] + one["dilation"] * (kernel[side] - 1) + 1 for side in (0, 1))
    return {"height": max(height, 1), "width": max(width, 1), **one}


def _results(size: Sequence[int], kernel: Sequence[int], one: dict[str, int]) -> list[int]:
    return [
        (size[side] + 2 * one["padding"] - one["dilation"] * (kernel[side] - 1) - 1) // one["stride"] + 1
        for side in (0, 1)
    ]


def two_sides(values: Sequence[int], neutral: int) -> list[int]:
    """The last two sizes; a missing one is `neutral`."""
    return [neutral, neutral, *(int(one) for one in values)][-2:]
