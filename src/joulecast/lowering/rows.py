"""Operations one by one, with their columns in words: what a training step is put together from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from joulecast.workloads.kinds import kind
from joulecast.workloads.table import SHARDS, Workload, decode

#: Kinds whose operations have weights of their own.
WEIGHTED = frozenset({"gemm", "conv2d", "moe", "gather"})

#: Kinds that attention is made of, which selective checkpointing computes again.
ATTENTION = frozenset({"context_attention", "encoder_attention", "mla_context"})


#: One launch of several that an operation becomes: its kind, and its columns (``count``: how often).
Piece = tuple[str, dict[str, Any]]


@dataclass(frozen=True)
class Row:
    """One operation of a workload, with its columns in words and numbers.

    Attributes
    ----------
    kind : str
    columns : mapping
    layer : str
    count : float
    shard : str
    order : int
    """

    kind: str
    columns: Mapping[str, Any]
    layer: str
    count: float
    shard: str
    order: int


def rows_of(workload: Workload) -> list[Row]:
    """Operations of the only pass in order of execution."""
    found = []
    for name, table in workload.tables.items():
        described = kind(name)
        for at in range(len(table)):
            columns = {}
            for column in described.columns:
                value = table[column.name][at]
                coded = column.type in ("dtype", "choice")
                columns[column.name] = decode(column, value) if coded else float(value)
            layer, shard = workload.layers[int(table["layer"][at])], SHARDS[int(table["shard"][at])]
            found.append(Row(name, columns, layer, float(table["count"][at]), shard, int(table["order"][at])))
    return sorted(found, key=lambda row: row.order)


def whole(kind_name: str, columns: Mapping[str, Any]) -> dict[str, Any]:
    """Columns with the defaults of those that are left out."""
    out: dict[str, Any] = {}
    for column in kind(kind_name).columns:
        value = columns.get(column.name, column.default)
        if column.name not in columns and isinstance(value, str) and value in out:
            value = out[value]
        out[column.name] = value
    return out


def weights_of(row: Row) -> float:
    """Weights of one run of an operation, biases aside. [1]"""
    c = row.columns
    if row.kind == "gemm":
        return float(c["batch"] * c["n"] * c["k"])
    if row.kind == "conv2d":
        return float(c["in_channels"] / c["groups"] * c["out_channels"] * c["kernel_h"] * c["kernel_w"])
    if row.kind == "gather":
        return float(c["table_rows"] * c["dim"])
    if row.kind == "moe":
        return float(c["num_experts"] * c["hidden_size"] * c["inter_size"] * (2 + c["gated"]))
    return 0.0
