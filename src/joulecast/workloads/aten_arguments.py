"""Arguments of an operator as a profiler recorded them, and what operations they are put into."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from joulecast.workloads.profile import Signature

#: Number formats by the profiler's spelling of element types; whole numbers by their size.
TYPES = {
    "float": "fp32", "c10::half": "fp16", "half": "fp16", "c10::bfloat16": "bf16", "bfloat16": "bf16", "double": "fp64",
    "c10::float8_e4m3fn": "fp8", "c10::float8_e5m2": "fp8", "c10::float8_e4m3fnuz": "fp8", "int": "fp32",
    "long": "fp64", "long int": "fp64", "short": "fp16", "short int": "fp16", "bool": "int8", "unsigned char": "int8",
    "signed char": "int8", "char": "int8", "unsigned int": "fp32", "unsigned short": "fp16", "unsigned long": "fp64",
    "c10::complex<float>": "fp64", "bytes": "int8", "int8": "int8",
}  # fmt: skip
ELEMENT_BYTES = {"fp64": 8, "fp32": 4, "fp16": 2, "bf16": 2, "fp8": 1, "int8": 1}

#: Floating-point words among them: what a matrix product may compute in.
FLOATS = frozenset(("fp64", "fp32", "fp16", "bf16", "fp8"))


@dataclass(frozen=True)
class OpRow:
    """One operation: its kind, its columns as `joulecast.workloads.kinds` names them, and how often it is done."""

    kind: str
    columns: Mapping[str, Any]
    count: float = 1.0


class LackingError(Exception):
    """What was recorded does not say what is done."""


class Arguments:
    """Arguments of one call: shapes, formats and plain values by place."""

    def __init__(self, signature: Signature, ranks: int = 0) -> None:
        self.ranks = ranks
        self.dims = signature.dims
        self.formats = tuple(TYPES.get(one.lower(), "") for one in signature.types)
        self.types = signature.types
        self.concrete = signature.concrete
        self.extra = signature.extra

    def shape(self, place: int, rank: int | None = None) -> tuple[int, ...]:
        """Shape of a tensor, of that rank."""
        dims = self.dims[place]
        if nested(dims) or not dims or (rank is not None and len(dims) != rank):
            raise LackingError
        return tuple(int(size) for size in dims)

    def format(self, place: int = 0) -> str:
        """Format of a tensor."""
        if place >= len(self.formats) or not self.formats[place]:
            raise LackingError
        return self.formats[place]

    def tensors(self) -> list[tuple[tuple[int, ...], str]]:
        """Shapes and formats of all tensors that are no lists."""
        return [
            (tuple(dims), self.formats[place])
            for place, dims in enumerate(self.dims)
            if place < len(self.formats) and self.formats[place] and not nested(dims)
        ]

    def lists(self, place: int) -> list[tuple[int, ...]]:
        """Shapes of a list of tensors."""
        dims = self.dims[place]
        if not nested(dims):
            raise LackingError
        return [tuple(int(size) for size in one) for one in dims]

    def numbers(self, place: int) -> list[int]:
        """Whole numbers that an argument holds, such as ``[1, 1]``."""
        text = self.concrete[place]
        found = re.findall(r"-?\d+", text)
        if not found:
            raise LackingError
        return [int(one) for one in found]

    def truth(self, place: int) -> bool:
        """The truth value that an argument holds."""
        text = self.concrete[place].strip().lower()
        if text not in ("true", "false", "0", "1"):
            raise LackingError
        return text in ("true", "1")


#: What an operator does, given its arguments.
Entry = Callable[[Arguments], list[OpRow]]


def nested(dims: Any) -> bool:
    """Whether dims are those of a list of tensors."""
    return bool(dims) and isinstance(dims[0], tuple)


def element_count(shape: Any) -> float:
    """Elements of a tensor of that shape."""
    return float(math.prod(shape)) if shape else 1.0
