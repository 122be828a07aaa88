"""`Event`: one operator that runs, as every recording of operators writes it down; nothing of a framework in it."""

from __future__ import annotations

from collections.abc import Set
from typing import Any, Protocol

Row = tuple[str, dict[str, Any]]


class Event:
    """One operator that ran: what it is in our kinds, where it belongs, and which tensors it read and wrote.

    Attributes
    ----------
    op : str
        Operator, without library and overload.
    rows : list of (kind, columns)
    path, phase : str
        Path of the module, numbers of repeated layers as stars; ``forward``, ``backward``, ``optimizer``,
        ``prefill`` or ``decode``.
    reads, writes : tuple of (value, elements, bytes)
        Tensors by the number of their value: memory gets a new number each time that it is written.
    mask : tensor or None
        What a small tensor of two or more dimensions that it read holds, where that is known.
    unpriced_bytes : float
        What it moves, where no kind describes it. [B]
    repeat : (int, int) or None
        Events that are run again in place of this one: a layer like an earlier one.
    """

    __slots__ = ("mask", "op", "path", "phase", "reads", "repeat", "rows", "shape", "unpriced_bytes", "writes")

    def __init__(self, op: str, rows: list[Row], path: str, phase: str) -> None:
        self.op, self.rows, self.path, self.phase = op, rows, path, phase
        self.reads: tuple[tuple[int, int, int], ...] = ()
        self.writes: tuple[tuple[int, int, int], ...] = ()
        self.shape: tuple[int, ...] = ()
        self.mask: Any = None
        self.unpriced_bytes = 0.0
        self.repeat: tuple[int, int] | None = None


class Assumptions(Protocol):
    """What a recording had to assume, one sentence each."""

    @property
    def assumed(self) -> Set[str]:
        """The sentences."""


class Recording(Protocol):
    """What a workload needs of a recording beside its events.

    Attributes
    ----------
    weights : mapping
        Bytes of each weight. [B]
    parameters : mapping
        Elements of each parameter.
    tokens : mapping
        Tokens (or images) taken in, by phase.
    values : Assumptions
    """

    weights: dict[int, float]
    parameters: dict[int, int]
    tokens: dict[str, float]

    @property
    def values(self) -> Assumptions:
        """What was assumed of tensors without data."""
