"""What an operation list may hold: its columns, words and bounds, shared by reader and writer."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from joulecast.workloads.kinds import ELEMENTWISE, KINDS, REDUCTIONS

VERSION = 1
#: More operations than this in one file are refused.
MAX_OPERATIONS = 5_000_000
PHASES = ("forward", "prefill", "decode", "backward", "optimizer")

#: Columns that any operation may have, with their defaults.
COMMON_COLUMNS: Mapping[str, Any] = MappingProxyType(
    {"count": 1.0, "layer": "", "phase": "forward", "pass_phase": None, "shard": "none", "pass": 0.0, "repeats": 1.0,
     "tokens": 0.0}
)  # fmt: skip
#: Smallest and largest value of the common columns that hold numbers.
NUMBER_BOUNDS: Mapping[str, tuple[float, float]] = MappingProxyType(
    {"count": (1e-9, 1e12), "pass": (0.0, 1e6), "repeats": (1e-9, 1e15), "tokens": (0.0, 2.0**48)}
)
#: Kinds whose own column ``phase`` says which pass they belong to unless ``pass_phase`` does.
OWN_PHASE: Mapping[str, str] = MappingProxyType({"context": "prefill", "generation": "decode"})
#: What an `op` that names no kind computes: the kind it stands for.
KIND_OF_WORD: Mapping[str, str] = MappingProxyType(
    dict.fromkeys(REDUCTIONS, "row_reduction") | dict.fromkeys(ELEMENTWISE, "elementwise")
)
#: Columns that hold numbers, of whatever kind; all others hold words.
NUMERIC_COLUMNS = frozenset(
    {column.name for one in KINDS.values() for column in one.columns if column.type in ("size", "real")}
    | set(NUMBER_BOUNDS)
)
#: Every column that a list may have.
COLUMNS = frozenset({name for one in KINDS.values() for name in one.names} | set(COMMON_COLUMNS) | {"op"})
#: Fields of the outer object of a JSON list.
HEADER_FIELDS = frozenset(
    {"joulecast", "name", "operations", "passes", "memory", "parameters", "info", "notes", "unpriced"}
)
