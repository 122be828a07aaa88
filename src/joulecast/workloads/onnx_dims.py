"""Sizes of a model's inputs: those it says, those asked for by name, and one line where some are missing."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any

from joulecast.errors import InputError, shortened
from joulecast.workloads.request import LARGEST_SIZE

#: How axes of sequences, tokens and pixels are called, in lower case.
_BATCH = re.compile(r"(.*batch.*|n|b|bs|bsz|num_images|unk__.*batch.*)")
_TOKENS = re.compile(
    r"(seq|sequence|seq_?len(gth)?|sequence_?len(gth)?|.*_sequence_length|tokens?|num_tokens|text_len.*|max_seq_len"
    r"|s|t|length|input_len.*)"
)
_PIXELS = re.compile(r"(h|w|height|width|image_size|img_size|rows|columns|cols|.*_height|.*_width)")
_NAME = re.compile(r"[A-Za-z_][\w.\-/:]*")
_LONGEST = 200


@dataclass(frozen=True)
class OnnxModel:
    """A file with sizes for its open dimensions: a source wherever the path of a file is one.

    Attributes
    ----------
    path : str
    dims : tuple of (str, int)
        As `dims` of `joulecast.workload`.
    """

    path: str
    dims: tuple[tuple[str, int], ...] = ()

    def __fspath__(self) -> str:
        return self.path

    def __str__(self) -> str:
        return self.path


def sized(path: Any, dims: Mapping[str, int] | None) -> Any:
    """`path` with sizes for its dimensions, where any are given."""
    return OnnxModel(str(path), tuple(dims.items())) if dims else path


@dataclass
class Asked:
    """Sizes asked for.

    Attributes
    ----------
    name : str
        Of the file, for messages.
    dims : mapping of str to int
        By name of a dimension, or ``input.axis``.
    batch, tokens, pixels : int or None
        For dimensions that are called so.
    """

    name: str
    dims: Mapping[str, int] = field(default_factory=dict)
    batch: int | None = None
    tokens: int | None = None
    pixels: int | None = None
    _used: set[str] = field(default_factory=set, init=False)
    _known: dict[str, str] = field(default_factory=dict, init=False)

    def shapes(self, inputs: Sequence[tuple[str, Sequence[int | str | None]]]) -> dict[str, tuple[int, ...]]:
        """Shapes of the inputs in numbers.

        Parameters
        ----------
        inputs : sequence of (name, dimensions)
            A dimension is a number, a name or expression of names, or None.

        Raises
        ------
        InputError
            If a dimension has no size, or one is asked for that there is not.
        """
        missing: dict[str, tuple[str, int]] = {}
        out = {}
        for name, dims in inputs:
            out[name] = tuple(self._size(name, axis, dim, missing) for axis, dim in enumerate(dims))
        self._check(missing)
        return out

    def _size(self, name: str, axis: int, dim: int | str | None, missing: dict[str, tuple[str, int]]) -> int:
        place = f"{name}.{axis}"
        self._known[place] = "a place"
        if place in self.dims:
            self._used.add(place)
            return self.dims[place]
        if isinstance(dim, int) and dim >= 0:
            return dim
        if isinstance(dim, str) and dim:
            try:
                return self._expression(dim)
            except _MissingError as error:
                missing.setdefault(error.args[0], (name, axis))
                return 1
        found = self._called("batch" if axis == 0 else "")
        if found is not None:
            return found
        missing.setdefault(place, (name, axis))
        return 1

    def _expression(self, text: str) -> int:
        """A name, or sums and products of names and numbers."""
        if text in self.dims or _NAME.fullmatch(text):
            return self._named(text)
        try:
            tree = ast.parse(text[:_LONGEST], mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return self._named(text)
        return self._value(tree, text)

    def _value(self, tree: ast.AST, text: str) -> int:
        if isinstance(tree, ast.Constant) and isinstance(tree.value, int):
            return tree.value
        if isinstance(tree, ast.Name):
            return self._named(tree.id)
        if isinstance(tree, ast.BinOp):
            rule = _ARITHMETIC.get(type(tree.op))
            if rule is not None:
                return max(int(rule(self._value(tree.left, text), self._value(tree.right, text))), 0)
        return self._named(text)

    def _named(self, name: str) -> int:
        self._known.setdefault(name, "a name")
        if name in self.dims:
            self._used.add(name)
            return self.dims[name]
        found = self._called(name)
        if found is None:
            raise _MissingError(name)
        return found

    def _called(self, name: str) -> int | None:
        """What is asked of all dimensions that are called so."""
        lowered = name.lower()
        for option, pattern in (("batch", _BATCH), ("tokens", _TOKENS), ("pixels", _PIXELS)):
            if lowered and getattr(self, option) is not None and pattern.fullmatch(lowered):
                self._used.add(option)
                return int(getattr(self, option))
        return None

    def _check(self, missing: Mapping[str, tuple[str, int]]) -> None:
        if missing:
            listed = ", ".join(
                f"{shortened(one, 40)} (of {shortened(where, 40)})" for one, (where, _) in missing.items()
            )
            example = " ".join(
                f"--dim {shortened(one, 40)}={_example(one, axis)}" for one, (_, axis) in missing.items()
            )
            raise InputError(
                f"{self.name} leaves sizes open: {shortened(listed, 300)}; give each, such as {shortened(example, 300)}"
            )
        for name in self.dims:
            if name not in self._used:
                known = ", ".join(one for one, kind in self._known.items() if kind == "a name")
                places = ", ".join(one for one, kind in self._known.items() if kind == "a place")
                listed = f"it has {known}" if known else f"its sizes are fixed; change one by place: {places}"
                raise InputError(f"{self.name} has no dimension {shortened(name)!r}: {shortened(listed, 300)}")
        for option, flag in (("batch", "batch"), ("tokens", "prompt_tokens"), ("pixels", "image_size")):
            if getattr(self, option) is not None and option not in self._used:
                places = ", ".join(one for one, kind in self._known.items() if kind == "a place")
                raise InputError(
                    f"{self.name} has no open dimension called like {flag}: sizes are asked by place or name, "
                    f"such as --dim {places.partition(',')[0]}={getattr(self, option)}"
                )


class _MissingError(Exception):
    """A name without a size."""


_ARITHMETIC: Mapping[type, Any] = {
    ast.Add: lambda a, b: a + b, ast.Sub: lambda a, b: a - b, ast.Mult: lambda a, b: min(a * b, LARGEST_SIZE),
    ast.FloorDiv: lambda a, b: a // b if b else 0, ast.Div: lambda a, b: a // b if b else 0,
}  # fmt: skip


def _example(name: str, axis: int) -> int:
    lowered = name.lower()
    if _BATCH.fullmatch(lowered) or not axis:
        return 1
    return 224 if _PIXELS.fullmatch(lowered) else 128


def checked_dims(dims: Any) -> dict[str, int]:
    """Sizes by name, as they may be given.

    Raises
    ------
    InputError
        If it is no mapping of names to whole numbers from 0 to `LARGEST_SIZE`.
    """
    if dims is None:
        return {}
    if not isinstance(dims, Mapping):
        raise InputError(f"dims must map names of dimensions to sizes, got {shortened(dims)!r}")
    out = {}
    for name, size in dims.items():
        whole = isinstance(size, Integral) and not isinstance(size, bool)
        if not isinstance(name, str) or not whole or not 0 <= int(size) <= LARGEST_SIZE:
            got = f"{shortened(name)}={shortened(size)}"
            raise InputError(f"a dimension's size is a whole number from 0 to {LARGEST_SIZE}, got {got}")
        out[name] = int(size)
    return out
