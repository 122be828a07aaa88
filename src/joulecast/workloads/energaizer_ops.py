"""Traced kernels, what a trace tells of its model, and the draft of a fuller list of launches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True)
class TracedOp:
    """One kernel: its kind and columns, the layer it belongs to, and whether it was added here."""

    kind: str
    columns: dict[str, Any]
    layer: str = ""
    added: bool = False

    def __getitem__(self, column: str) -> Any:
        return self.columns[column]

    def is_elementwise(self, *words: str) -> bool:
        """Whether it is an elementwise operation (one of `words`, if any are given)."""
        return self.kind == "elementwise" and (not words or self.columns["op"] in words)

    def is_reduction(self, word: str) -> bool:
        """Whether it is the row reduction `word`."""
        return self.kind == "row_reduction" and bool(self.columns["op"] == word)

    @property
    def side(self) -> int:
        """Rows (and columns) of a convolution's result."""
        c = self.columns
        return int((c["height"] + 2 * c["padding"] - c["kernel_h"]) // c["stride"] + 1)

    @property
    def results(self) -> int:
        """Elements written."""
        c = self.columns
        if self.kind == "conv2d":
            return int(c["batch_size"] * c["out_channels"] * self.side**2)
        if self.kind in ("gemm", "batched_gemm"):
            return int(c.get("batch", 1) * c["m"] * c["n"])
        if self.kind in ("row_reduction", "gather"):
            return int(c["rows"] * (1 if c.get("op") == "mean" else c["dim"]))
        return int(c["elements"])


@dataclass(frozen=True)
class TraceShape:
    """What a trace tells about its model as a whole.

    Attributes
    ----------
    images : int
        Images of the batch, 0 for a language model.
    tokens, sequence, batch : int
        Rows of the linear layers, queries of the attention, and their ratio; 0 where there are none.
    dtype : str
        The format of most operations.
    """

    images: int
    tokens: int
    sequence: int
    batch: int
    dtype: str


def shape_of(ops: Sequence[TracedOp]) -> TraceShape:
    """Batch, sequence length and format, read off the operations."""
    images = next((op["batch_size"] for op in ops if op.kind == "conv2d"), 0)
    rows = Counter(op["m"] for op in ops if op.kind == "gemm" and op["k"] > 1)
    tokens = rows.most_common(1)[0][0] if rows else 0
    sequences = Counter(op["m"] for op in ops if op.kind == "batched_gemm")
    sequence = sequences.most_common(1)[0][0] if sequences else 0
    batch = tokens // sequence if sequence and tokens % sequence == 0 else 1
    dtype = Counter(op["dtype"] for op in ops if op.kind != "elementwise").most_common(1)
    fallback = ops[0]["dtype"]
    return TraceShape(images, tokens, sequence, batch, dtype[0][0] if dtype else fallback)


@dataclass
class Draft:
    """The launches around each traced kernel while rules add to them.

    Attributes
    ----------
    ops : list of TracedOp
        The traced kernels.
    shape : TraceShape
    before, after : list of list of TracedOp
        Launches added before and after each traced kernel.
    counts : Counter
        Launches by what they are, for the notes; a text that begins with ``!`` is a note of its own,
        in which ``#`` stands for the number.
    """

    ops: list[TracedOp]
    shape: TraceShape
    before: list[list[TracedOp]] = field(init=False)
    after: list[list[TracedOp]] = field(init=False)
    counts: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.before = [[] for _ in self.ops]
        self.after = [[] for _ in self.ops]

    def add(self, what: str, index: int, kind: str, *, after: bool = False, **columns: Any) -> None:
        """Add a launch before (or after) traced kernel `index`, counted in the notes under `what`."""
        op = TracedOp(kind, columns, self.ops[index].layer, added=True)
        (self.after if after else self.before)[index].append(op)
        self.counts[what] += 1

    def change(self, index: int, **columns: Any) -> None:
        """State columns of a traced kernel more exactly."""
        self.ops[index] = replace(self.ops[index], columns={**self.ops[index].columns, **columns})

    def copy(self, what: str, index: int, elements: float, *, after: bool = False, dtype: str | None = None) -> None:
        """Add a copy of `elements`."""
        self.add(what, index, "copy", after=after, elements=elements, dtype=dtype or self.shape.dtype)

    def at(self, index: int) -> TracedOp | None:
        """The traced kernel at `index`, if there is one."""
        return self.ops[index] if 0 <= index < len(self.ops) else None
