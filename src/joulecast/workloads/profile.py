"""What a profiler recorded, as columns: what ran on the GPU and when, and the operators that started it."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

#: Begin and length of a range are each rounded to a microsecond by older profilers: by so much what lies within
#: another may seem to end after it. [s]
ROUNDED_S = 1.5e-6

#: What ran on a GPU, and what a range on the host is, by code.
KERNEL, COPY, SET = 0, 1, 2
OPERATOR, ANNOTATION, MODULE = 0, 1, 2


@dataclass(frozen=True)
class Device:
    """A GPU as the profiler names it; what it does not tell is empty or 0. `memory_bytes` in [B]."""

    number: int
    name: str = ""
    sm_count: int = 0
    memory_bytes: float = 0.0
    capability: str = ""


@dataclass(frozen=True)
class Signature:
    """What was recorded of an operator's arguments.

    Attributes
    ----------
    dims : tuple
        Shape of each argument: a tuple of sizes, empty for a scalar; a tuple of shapes for a list of tensors.
    types : tuple of str
        Element type of each argument as the profiler spells it; empty where it is none or not recorded.
    concrete : tuple of str
        Values of arguments that are no tensors, as text; may be empty.
    extra : mapping of str to Any
        Facts of a collective: its name, elements, type and ranks.
    """

    dims: tuple[Any, ...] = ()
    types: tuple[str, ...] = ()
    concrete: tuple[str, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True)
class Activities:
    """What ran on GPUs: `n` kernels, copies and fills in the order of their start.

    Attributes
    ----------
    name : ndarray of int
        Index into `Profile.names`.
    category : ndarray of int
        `KERNEL`, `COPY` or `SET`.
    device, stream : ndarray of int
    start_s, time_s : ndarray
        Start since `Profile.origin_s`, and duration as measured. [s]
    launched_s : ndarray
        When its host started it; NaN where unknown. [s]
    operator : ndarray of int
        Row of the innermost host range that started it; -1 where unknown.
    grid, block : ndarray, shape (n, 3)
        Blocks of the grid, threads of a block; NaN where not recorded.
    moved_bytes : ndarray
        Bytes copied or set; NaN for kernels and where not recorded. [B]
    """

    name: Ints
    category: Ints
    device: Ints
    stream: Ints
    start_s: Floats
    time_s: Floats
    launched_s: Floats
    operator: Ints
    grid: Floats
    block: Floats
    moved_bytes: Floats

    def __len__(self) -> int:
        return len(self.name)


@dataclass(frozen=True)
class Operators:
    """Ranges on the host: operators, annotations and modules, by thread and start; each knows the one around it.

    Attributes
    ----------
    name : ndarray of int
        Index into `Profile.names`.
    kind : ndarray of int
        `OPERATOR`, `ANNOTATION` or `MODULE`.
    thread : ndarray of int
    start_s, time_s : ndarray
        [s]
    parent : ndarray of int
        Row of the range around it on its thread; -1 for none.
    signature : ndarray of int
        Index into `Profile.signatures`; -1 where nothing was recorded.
    forward : ndarray of int
        For what autograd runs, row of the operator of the forward pass that it belongs to; else -1.
    """

    name: Ints
    kind: Ints
    thread: Ints
    start_s: Floats
    time_s: Floats
    parent: Ints
    signature: Ints
    forward: Ints

    def __len__(self) -> int:
        return len(self.name)


@dataclass(frozen=True)
class Profile:
    """One file of a profiler (of one rank).

    Attributes
    ----------
    source : str
        Name of the file, for people.
    format : str
        ``pytorch`` or ``nsight``.
    names : tuple of str
        Names of kernels and ranges.
    activities : Activities
    operators : Operators
    signatures : tuple of Signature
    devices : mapping of int to Device
    origin_s : float
        Time stamp that times count from, on the trace's own clock. [s]
    rank, world_size : int or None
    unix_origin_s : float or None
        `origin_s` as seconds since 1970, where the trace tells; else None. [s]
    notes : tuple of str
        What is missing or damaged.
    """

    source: str
    format: str
    names: tuple[str, ...]
    activities: Activities
    operators: Operators
    signatures: tuple[Signature, ...]
    devices: Mapping[int, Device]
    origin_s: float
    rank: int | None = None
    world_size: int | None = None
    unix_origin_s: float | None = None
    notes: tuple[str, ...] = ()

    @property
    def has_shapes(self) -> bool:
        """Whether shapes of operators were recorded."""
        return any(any(signature.dims) for signature in self.signatures)


class Names:
    """Texts, each kept once."""

    def __init__(self) -> None:
        self._codes: dict[str, int] = {}

    def code(self, text: str) -> int:
        """Index of `text`."""
        return self._codes.setdefault(text, len(self._codes))

    def all(self) -> tuple[str, ...]:
        """The texts by index."""
        return tuple(self._codes)


class Table:
    """Columns that grow row by row in little memory; `texts` names their array types, ``d`` or ``q``."""

    def __init__(self, **types: str) -> None:
        self._columns = {name: array(kind) for name, kind in types.items()}
        self._append = [column.append for column in self._columns.values()]

    def add(self, *values: Any) -> None:
        """Add a row, its values in the order of the columns."""
        for append, value in zip(self._append, values, strict=True):
            append(value)

    def column(self, name: str) -> npt.NDArray[Any]:
        """A column as an array."""
        column = self._columns[name]
        kind = np.float64 if column.typecode == "d" else np.int64
        return np.array(column, dtype=kind) if len(column) else np.zeros(0, dtype=kind)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns."""
        return tuple(self._columns)

    def __len__(self) -> int:
        return len(next(iter(self._columns.values())))


def nested_order(thread: Ints, start: Floats, end: Floats) -> npt.NDArray[np.intp]:
    """Order of ranges by thread and start, what lies around others before them.

    Of ranges that begin together the longer is the outer one; where their ends differ by rounding alone, the one that
    the profiler wrote first.

    Parameters
    ----------
    thread : ndarray of int, shape (n,)
    start, end : ndarray, shape (n,)
        [s]

    Returns
    -------
    ndarray of int, shape (n,)
    """
    order = np.lexsort((np.arange(len(thread)), -end, start, thread))
    while True:
        one, two = order[:-1], order[1:]
        alike = (thread[one] == thread[two]) & (start[one] == start[two]) & (np.abs(end[one] - end[two]) < ROUNDED_S)
        wrong = np.flatnonzero(alike & (one > two))
        if not wrong.size:
            return order
        # neighbours that are both wrong are put right one after the other
        wrong = wrong[np.concatenate([[True], np.diff(wrong) > 1])]
        order[wrong], order[wrong + 1] = order[wrong + 1], order[wrong].copy()


def parents(thread: Ints, start: Floats, end: Floats) -> Ints:
    """For ranges sorted by thread, start and falling end: the row of the range around each on its thread, or -1.

    Parameters
    ----------
    thread : ndarray of int, shape (n,)
    start, end : ndarray, shape (n,)
        [s]

    Returns
    -------
    ndarray of int, shape (n,)
    """
    out = np.full(len(thread), -1, dtype=np.int64)
    stack: list[tuple[float, int]] = []
    last = None
    for row, (one, begin, finish) in enumerate(zip(thread.tolist(), start.tolist(), end.tolist(), strict=True)):
        if one != last:
            stack.clear()
            last = one
        while stack and (stack[-1][0] <= begin or stack[-1][0] < finish - ROUNDED_S):
            stack.pop()
        if stack:
            out[row] = stack[-1][1]
        stack.append((finish, row))
    return out


def innermost(operators: Operators, thread: Ints, at_s: Floats) -> Ints:
    """Row of the innermost range that holds each moment on its thread; -1 where none does.

    Parameters
    ----------
    operators : Operators
    thread : ndarray of int, shape (n,)
    at_s : ndarray, shape (n,)
        [s]

    Returns
    -------
    ndarray of int, shape (n,)
    """
    out = np.full(len(thread), -1, dtype=np.int64)
    if not len(operators):
        return out
    first = np.searchsorted(operators.thread, np.unique(operators.thread))
    bounds = np.append(first, len(operators))
    for begin, end in pairwise(bounds.tolist()):
        mine = np.flatnonzero(thread == operators.thread[begin])
        out[mine] = begin - 1 + np.searchsorted(operators.start_s[begin:end], at_s[mine], side="right")
        out[mine[out[mine] < begin]] = -1
    ends = operators.start_s + operators.time_s + 1e-9  # launches are stamped by their begin
    open_ = np.flatnonzero(out >= 0)
    while open_.size:
        open_ = open_[ends[out[open_]] < at_s[open_]]
        out[open_] = operators.parent[out[open_]]
        open_ = open_[out[open_] >= 0]
    return out
