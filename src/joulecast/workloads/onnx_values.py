"""Tensors of an ONNX graph as far as their shapes tell, and arithmetic on the few whose numbers are known.

Shapes, axes and masks are worked out with NumPy, so that a reshape knows where it leads and a causal mask is seen for
one. A mask that is the same for all sequences is held once: arrays have size 1 where they repeat.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Shape = tuple[int, ...]

#: Numbers of one array that are worked out, and bytes of all of them together.
LARGEST_KNOWN = 1 << 22
ALL_KNOWN_BYTES = 1 << 28

#: Formats by ONNX's numbers, as arithmetic or (integers) by their width, and bytes an element.
FORMATS: Mapping[int, tuple[str, float]] = {
    1: ("fp32", 4), 2: ("int8", 1), 3: ("int8", 1), 4: ("fp16", 2), 5: ("fp16", 2), 6: ("fp32", 4), 7: ("fp64", 8),
    8: ("fp64", 8), 9: ("int8", 1), 10: ("fp16", 2), 11: ("fp64", 8), 12: ("fp32", 4), 13: ("fp64", 8),
    14: ("fp64", 8), 15: ("fp64", 16), 16: ("bf16", 2), 17: ("fp8", 1), 18: ("fp8", 1), 19: ("fp8", 1),
    20: ("fp8", 1), 21: ("int4", 0.5), 22: ("int4", 0.5), 23: ("nvfp4", 0.5), 24: ("fp8", 1), 25: ("int4", 0.25),
    26: ("int4", 0.25),
}  # fmt: skip
FLOAT, UINT8, INT8, INT32, INT64, STRING, BOOL, FLOAT16, DOUBLE, BFLOAT16 = 1, 2, 3, 6, 7, 8, 9, 10, 11, 16
FLOATING = frozenset({FLOAT, FLOAT16, DOUBLE, BFLOAT16, 17, 18, 19, 20, 23})

#: NumPy's types of what is worked out.
NUMPY: Mapping[int, type] = {
    FLOAT: np.float32, UINT8: np.uint8, INT8: np.int8, 4: np.uint16, 5: np.int16, INT32: np.int32, INT64: np.int64,
    BOOL: np.bool_, FLOAT16: np.float32, DOUBLE: np.float64, 12: np.uint32, 13: np.uint64, BFLOAT16: np.float32,
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Value:
    """One tensor.

    Attributes
    ----------
    number : int
        Of its memory: a view has that of what it looks at.
    shape : tuple of int
    elem : int
        ONNX's number of its format.
    data : ndarray or None
        Its numbers, where known; of size 1 along dimensions in which it repeats.
    fixed : bool
        Whether it is the same in every run: weights, and what follows from weights and shapes alone.
    items : tuple of Value or None
        Of a sequence.
    """

    number: int
    shape: Shape
    elem: int
    data: Array | None = field(default=None, repr=False)
    fixed: bool = False
    items: tuple[Value, ...] | None = None

    @property
    def numel(self) -> int:
        """Elements."""
        return math.prod(self.shape)

    @property
    def floating(self) -> bool:
        """Whether it holds real numbers."""
        return self.elem in FLOATING

    def known(self) -> Array | None:
        """All its numbers, where they are known and not too many."""
        if self.data is None or self.numel > LARGEST_KNOWN:
            return None
        return np.broadcast_to(self.data, self.shape)

    def ints(self) -> list[int] | None:
        """Its numbers as whole ones, where known."""
        found = self.known()
        if found is None or found.size > 4096 or found.dtype.kind not in "iubf":
            return None
        if found.dtype.kind == "f" and not np.isfinite(found).all():
            return None
        return [int(one) for one in found.reshape(-1)]

    def as_view(self, shape: Shape) -> Value:
        """The same memory in another shape, its numbers unknown."""
        return replace(self, shape=shape, data=None)


def _divided(a: Array, b: Array) -> Array:
    if a.dtype.kind == "f":
        return np.asarray(a / b)
    with np.errstate(all="ignore"):
        return np.asarray(np.trunc(a / np.where(b == 0, 1, b)).astype(a.dtype))


#: Element by element, on arrays that broadcast.
_POINTWISE: Mapping[str, Callable[..., Any]] = {
    "Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": _divided, "Neg": np.negative, "Abs": np.abs,
    "Sqrt": np.sqrt, "Exp": np.exp, "Log": np.log, "Floor": np.floor, "Ceil": np.ceil, "Round": np.round,
    "Equal": np.equal, "Greater": np.greater, "Less": np.less, "GreaterOrEqual": np.greater_equal,
    "LessOrEqual": np.less_equal, "And": np.logical_and, "Or": np.logical_or, "Not": np.logical_not,
    "Xor": np.logical_xor, "Where": np.where, "Pow": np.power, "Sign": np.sign, "Identity": lambda a: a,
    "Reciprocal": lambda a: 1 / a, "IsNaN": np.isnan, "Mod": lambda a, b: np.mod(a, np.where(b == 0, 1, b)),
    "Sin": np.sin, "Cos": np.cos, "BitwiseAnd": np.bitwise_and, "BitwiseOr": np.bitwise_or,
    "Max": lambda *a: _folded(np.maximum, a), "Min": lambda *a: _folded(np.minimum, a),
    "Sum": lambda *a: _folded(np.add, a),
}  # fmt: skip


def _folded(function: Callable[[Array, Array], Array], arrays: Sequence[Array]) -> Array:
    out = arrays[0]
    for one in arrays[1:]:
        out = function(out, one)
    return out


def evaluated(op: str, ins: Sequence[Value | None], attrs: Mapping[str, Any], shape: Shape, elem: int) -> Array | None:
    """Numbers of the first result of an operator whose inputs are known, held once where they repeat.

    Parameters
    ----------
    op : str
        Of ONNX's own domain.
    ins : sequence of Value or None
    attrs : mapping
    shape : tuple of int
        Of the result.
    elem : int
        Its format.

    Returns
    -------
    ndarray or None
        None where the operator is not one that is worked out, or there is too much to work out.
    """
    given = [one for one in ins if one is not None]
    if elem not in NUMPY or any(one.data is None for one in given):
        return None
    try:
        with np.errstate(all="ignore"):
            if op in _POINTWISE:
                arrays = [_raised(one.data, len(shape)) for one in given if one.data is not None]
                if math.prod(np.broadcast_shapes(*(one.shape for one in arrays))) > LARGEST_KNOWN:
                    return None
                out = np.asarray(_POINTWISE[op](*arrays))
            else:
                found = _evaluated_whole(op, ins, attrs, shape)
                if found is None:
                    return None
                out = found
            out = out.astype(NUMPY[elem], copy=False)
    except (ValueError, IndexError, TypeError, OverflowError, MemoryError, ZeroDivisionError, KeyError):
        return None
    fits = out.ndim == len(shape) and all(a in (1, b) for a, b in zip(out.shape, shape, strict=True))
    return out if fits else None


def _raised(data: Array | None, rank: int) -> Array:
    """An array with ones in front, up to `rank` dimensions."""
    assert data is not None
    return data.reshape((1,) * (rank - data.ndim) + data.shape)


def _evaluated_whole(op: str, ins: Sequence[Value | None], attrs: Mapping[str, Any], shape: Shape) -> Array | None:
    """Operators that need to know where elements are."""
    held = _HELD.get(op)
    first = ins[0] if ins else None
    if held is not None and first is not None and first.data is not None:
        return held(first.data, ins, attrs, shape)
    rule = _WHOLE.get(op)
    if rule is None or math.prod(shape) > LARGEST_KNOWN:
        return None
    arrays = [None if one is None else one.known() for one in ins]
    if any(array is None and one is not None for array, one in zip(arrays, ins, strict=True)):
        return None
    return np.asarray(rule(arrays, attrs, shape))


def axes_of(ins: Sequence[Value | None], attrs: Mapping[str, Any]) -> list[int] | None:
    """Axes given as an attribute (older opsets) or an input."""
    if "axes" in attrs:
        return [int(one) for one in attrs["axes"]]
    given = ins[1] if len(ins) > 1 else None
    return given.ints() if given is not None else None


def _unsqueezed(data: Array, ins: Sequence[Value | None], attrs: Mapping[str, Any], shape: Shape) -> Array:
    axes = {axis % len(shape) for axis in axes_of(ins, attrs) or []}
    left = iter(data.shape)
    return data.reshape([1 if axis in axes else next(left) for axis in range(len(shape))])


def _squeezed(data: Array, ins: Sequence[Value | None], attrs: Mapping[str, Any], _: Shape) -> Array:
    rank = len(ins[0].shape) if ins[0] is not None else 0
    axes = axes_of(ins, attrs)
    gone = [i for i, size in enumerate(ins[0].shape) if size == 1] if axes is None and ins[0] is not None else axes
    dropped = {axis % rank for axis in gone or []} if rank else set()
    return data.reshape([size for axis, size in enumerate(data.shape) if axis not in dropped])


def _sliced(data: Array, ins: Sequence[Value | None], attrs: Mapping[str, Any], _: Shape) -> Array | None:
    first = ins[0]
    given = [one.ints() if one is not None else None for one in ins[1:]]
    starts = given[0] if given else list(attrs.get("starts", []))
    ends = given[1] if len(given) > 1 else list(attrs.get("ends", []))
    if first is None or starts is None or ends is None:
        return None
    axes = given[2] if len(given) > 2 and given[2] is not None else list(attrs.get("axes", range(len(starts))))
    steps = given[3] if len(given) > 3 and given[3] is not None else [1] * len(starts)
    cut: list[slice] = [slice(None)] * data.ndim
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        at = axis % data.ndim
        if data.shape[at] == first.shape[at]:
            cut[at] = slice(start, None if step < 0 and end < -first.shape[at] else end, step)
    return data[tuple(cut)]


#: Operators that keep a repeated dimension repeated.
_HELD: Mapping[str, Callable[..., Array | None]] = {
    "Cast": lambda data, *_: data,
    "CastLike": lambda data, *_: data,
    "Expand": lambda data, _ins, _attrs, shape: _raised(data, len(shape)),
    "Unsqueeze": _unsqueezed,
    "Squeeze": _squeezed,
    "Slice": _sliced,
    "Transpose": lambda data, _ins, attrs, _: data.transpose(attrs.get("perm") or tuple(range(data.ndim))[::-1]),
}


def _concatenated(a: list[Any], attrs: Mapping[str, Any], _: Shape) -> Array:
    return np.concatenate(a, axis=int(attrs["axis"]))


def _kept(triangle: Any, attrs: Mapping[str, Any]) -> Array:
    k = int(triangle[1]) if len(triangle) > 1 and triangle[1] is not None else 0
    return np.triu(triangle[0], k) if attrs.get("upper", 1) else np.tril(triangle[0], k)


def _reduced(function: Callable[..., Any]) -> Callable[..., Any]:
    def rule(a: list[Any], attrs: Mapping[str, Any], shape: Shape) -> Any:
        axes = attrs.get("axes") or ([int(one) for one in a[1]] if len(a) > 1 and a[1] is not None else None)
        return np.asarray(function(a[0], axis=tuple(axes) if axes else None)).reshape(shape)

    return rule


_WHOLE: Mapping[str, Callable[[list[Any], Mapping[str, Any], Shape], Any]] = {
    "Reshape": lambda a, _, shape: a[0].reshape(shape),
    "Flatten": lambda a, _, shape: a[0].reshape(shape),
    "Gather": lambda a, attrs, _: np.take(a[0], a[1].astype(np.int64), axis=int(attrs.get("axis", 0))),
    "Concat": _concatenated,
    "Tile": lambda a, *_: np.tile(a[0], [int(one) for one in a[1]]),
    "Range": lambda a, *_: np.arange(a[0].item(), a[1].item(), a[2].item()),
    "ReduceProd": _reduced(np.prod), "ReduceSum": _reduced(np.sum), "ReduceMax": _reduced(np.max),
    "ReduceMin": _reduced(np.min), "ReduceMean": _reduced(np.mean),
    "CumSum": lambda a, *_: np.cumsum(a[0], axis=int(a[1].item())),
    "Trilu": lambda a, attrs, _: _kept(a, attrs),
    "GatherElements": lambda a, attrs, _: np.take_along_axis(a[0], a[1], int(attrs.get("axis", 0))),
    "Pad": lambda a, *_: np.pad(
        a[0],
        [(int(a[1][i]), int(a[1][i + a[0].ndim])) for i in range(a[0].ndim)],
        constant_values=a[2].item() if len(a) > 2 and a[2] is not None else 0,
    ),
}  # fmt: skip
