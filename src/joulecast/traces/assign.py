"""Which work each kernel of a profile does: its share of its operator's, or what its name and grid tell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from joulecast.traces.names import KernelName, parsed
from joulecast.workloads.aten_arguments import OpRow
from joulecast.workloads.aten_shapes import rows_of
from joulecast.workloads.profile import COPY, KERNEL, OPERATOR, Floats, Ints, Profile

#: Where what is known of an activity's work comes from, best first.
SHAPES, GRID, FAMILY, BYTES, NOTHING = range(5)
BASES = ("shapes", "name and grid", "family", "bytes", "time alone")

_MEMORY_KINDS = ("elementwise", "copy", "row_reduction", "gather")
_ATTENTION_KINDS = ("context_attention", "generation_attention", "encoder_attention", "attention_backward")
_GRADIENTS = {"dgrad": "conv2d_data_gradient", "wgrad": "conv2d_weight_gradient"}
_CONVOLUTIONS = ("conv2d", *_GRADIENTS.values())

#: Kinds of operation that a kernel of each family can be the main part of.
_FITS: Mapping[str, tuple[str, ...]] = {
    "gemm": ("gemm", "batched_gemm", *_CONVOLUTIONS),
    "gemv": ("gemm", "batched_gemm"),
    "convolution": _CONVOLUTIONS,
    "attention": _ATTENTION_KINDS,
    "collective": ("nccl",),
    **dict.fromkeys(
        ("elementwise", "copy", "random", "layout", "reduction", "softmax", "normalisation", "gather", "pool", "loss",
         "quantize", "rope"),
        _MEMORY_KINDS,
    ),
    "triton": ("gemm", "batched_gemm", *_ATTENTION_KINDS, *_MEMORY_KINDS),
}  # fmt: skip

#: How far up from the range that starts a kernel an operator is looked for whose shapes say what is done.
_CLIMBS = 3

#: Formats that a kernel's name may put in place of what its operator's tensors have.
_ARITHMETIC = frozenset(("fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "nvfp4", "int8"))
_DTYPE_COLUMN = dict.fromkeys(("gemm", "batched_gemm", *_CONVOLUTIONS), "dtype")

#: Elements of tensors that are neither whole numbers nor known: counted by their size.
_STORED_AS = {"int64": "fp64", "int32": "fp32", "tf32": "fp32", "": "fp32", "nvfp4": "fp8"}


@dataclass(frozen=True)
class Assignment:
    """What each of the `n` activities of a profile does.

    Attributes
    ----------
    kernels : tuple of KernelName
        By index into the profile's names; only those of kernels are filled in.
    basis : ndarray of int
        Index into `BASES`.
    unit : ndarray of int
        Row of `units` that the activity does a share of; -1 for none.
    share : ndarray
        How often it does that unit: a part of one where several kernels do one operation together.
    units : tuple of OpRow
        Distinct operations.
    owner : ndarray of int
        Row of the operator whose shapes were used; the one that started it elsewhere; -1 where unknown.
    """

    kernels: Mapping[int, KernelName]
    basis: Ints
    unit: Ints
    share: Floats
    units: tuple[OpRow, ...]
    owner: Ints


def assigned(profile: Profile) -> Assignment:
    """Say what each activity of `profile` does.

    Parameters
    ----------
    profile : Profile

    Returns
    -------
    Assignment
        Kernels that do one operation together share it by their measured times.
    """
    activities = profile.activities
    n = len(activities)
    kernel_codes = np.unique(activities.name[activities.category == KERNEL])
    kernels = {int(code): parsed(profile.names[code]) for code in kernel_codes}
    owners = _Owners(profile)
    units = _Units()
    unit = np.full(n, -1, dtype=np.int64)
    count = np.zeros(n)
    owner = np.full(n, -1, dtype=np.int64)
    for row, (name, category, operator) in enumerate(
        zip(activities.name.tolist(), activities.category.tolist(), activities.operator.tolist(), strict=True)
    ):
        owner[row] = operator
        if category == KERNEL and operator >= 0:
            found, place = owners.of(operator)
            if found:
                unit[row], count[row] = units.of_operator(found, name, kernels[name])
                owner[row] = place if unit[row] >= 0 else operator
    basis = np.where(unit >= 0, SHAPES, NOTHING)
    share = _shared(owner, unit, count, activities.time_s)
    _by_grid(profile, kernels, units, unit, share, basis)
    families = {name: bool(kernel.bound) for name, kernel in kernels.items()}
    recognised = np.array([families.get(name, False) for name in activities.name.tolist()], dtype=bool)
    rest = (basis == NOTHING) & (activities.category == KERNEL)
    basis[rest & recognised] = FAMILY
    moved = (activities.category >= COPY) & np.isfinite(activities.moved_bytes) & (activities.moved_bytes > 0)
    basis[moved] = BYTES
    return Assignment(kernels, basis, unit, share, tuple(units.rows), owner)


def _shared(owner: Ints, unit: Ints, count: Floats, time_s: Floats) -> Floats:
    """Shares of one operation among the kernels that do it together, by time."""
    share = np.zeros(len(owner))
    some = np.flatnonzero(unit >= 0)
    if some.size:
        pairs = np.stack([owner[some], unit[some]], axis=1)
        group = np.unique(pairs, axis=0, return_inverse=True)[1].reshape(-1)
        weight = np.maximum(time_s[some], 1e-12)
        share[some] = count[some] * weight / np.bincount(group, weights=weight)[group]
    return share


class _Owners:
    """Operators and what they do, found once for each."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self._found: dict[int, tuple[tuple[OpRow, ...], int]] = {}
        self._rows: dict[tuple[int, int], tuple[OpRow, ...]] = {}

    def of(self, operator: int) -> tuple[tuple[OpRow, ...], int]:
        """What the operator around a launch does, and its row; empty where nothing near it tells."""
        found = self._found.get(operator)
        if found is None:
            found = self._found[operator] = self._climb(operator)
        return found

    def _climb(self, operator: int) -> tuple[tuple[OpRow, ...], int]:
        operators = self.profile.operators
        place = operator
        for _ in range(_CLIMBS):
            key = (int(operators.name[place]), int(operators.signature[place]))
            rows = self._rows.get(key)
            if rows is None:
                rows = ()
                if key[1] >= 0:
                    rows = rows_of(self.profile.names[key[0]], self.profile.signatures[key[1]], self.profile.world_size)
                self._rows[key] = rows
            if rows:
                return rows, place
            above = int(operators.parent[place])
            if above < 0 or operators.kind[above] != OPERATOR:
                break
            place = above
        return (), operator


@dataclass
class _Units:
    """Distinct operations, numbered."""

    rows: list[OpRow] = field(default_factory=list)
    _codes: dict[Any, int] = field(default_factory=dict)
    _chosen: dict[Any, tuple[int, float]] = field(default_factory=dict)

    def of_operator(self, rows: tuple[OpRow, ...], name: int, kernel: KernelName) -> tuple[int, float]:
        """The one of an operator's `rows` that a kernel does, and how often; -1 where it does none of them."""
        key = (id(rows), name)
        if key not in self._chosen:
            able = [one for one in rows if one.kind in _FITS.get(kernel.family, ())]
            told = [one for one in able if one.kind == _GRADIENTS.get(kernel.direction)]
            # a kernel that does not say which gradient it is of stands for all of them
            count = sum(one.count for one in told or able)
            self._chosen[key] = (self.code(_as_run((told or able)[0], kernel)), count) if able else (-1, 0.0)
        return self._chosen[key]

    def code(self, row: OpRow) -> int:
        """Number of an operation."""
        key = (row.kind, tuple(sorted(row.columns.items())))
        if key not in self._codes:
            self._codes[key] = len(self.rows)
            self.rows.append(OpRow(row.kind, row.columns))
        return self._codes[key]


def _as_run(row: OpRow, kernel: KernelName) -> OpRow:
    """The operation in the format that the kernel computes in, where its name says."""
    column = _DTYPE_COLUMN.get(row.kind)
    if column is None or kernel.dtype not in _ARITHMETIC:
        return row
    return OpRow(row.kind, {**row.columns, column: kernel.dtype}, row.count)


def _by_grid(
    profile: Profile,
    kernels: Mapping[int, KernelName],
    units: _Units,
    unit: Ints,
    share: Floats,
    basis: npt.NDArray[Any],
) -> None:
    """Elementwise kernels without shapes, from the tensors and elements a thread that their names tell."""
    activities = profile.activities
    threads = activities.grid.prod(axis=1) * activities.block.prod(axis=1)
    for row in np.flatnonzero((unit < 0) & (activities.category == KERNEL) & np.isfinite(threads)).tolist():
        kernel = kernels[int(activities.name[row])]
        if not kernel.elements_per_thread or threads[row] <= 0:
            continue
        tensors = kernel.tensors or 2
        dtype = _STORED_AS.get(kernel.dtype, kernel.dtype)
        columns = {
            "op": "other", "elements": float(threads[row]) * kernel.elements_per_thread, "inputs": tensors - 1,
            "outputs": 1, "dtype": dtype,
        }  # fmt: skip
        unit[row], share[row], basis[row] = units.code(OpRow("elementwise", columns)), 1.0, GRID
