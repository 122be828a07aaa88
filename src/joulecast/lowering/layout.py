"""Parallel layouts: shapes divided over the GPUs of a tensor-parallel group, and the collectives that follow."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from joulecast.bounds.dtypes import DTYPES
from joulecast.errors import InputError
from joulecast.lowering.execution import Execution
from joulecast.workloads.kinds import COLLECTIVES, kind
from joulecast.workloads.table import COMMON, SHARDS, Array, OpTable, op_table

_KEY_VALUE_HEADS = ("num_kv_heads",)


def divided(tables: Mapping[str, OpTable], execution: Execution) -> dict[str, OpTable]:
    """`tables` as one GPU of the layout runs them, with collectives added.

    Raises
    ------
    InputError
        If a size does not divide by the degree (the nearest degree that works is named).
    """
    if execution.tp == 1:
        return dict(tables)
    out: dict[str, OpTable] = {}
    reduced: list[tuple[OpTable, Array]] = []
    for name, table in tables.items():
        columns = dict(table.columns)
        described = kind(name)
        for shard, split in (("out", described.split_out), ("in", described.split_in)):
            mask = table["shard"] == SHARDS.index(shard)
            if not mask.any():
                continue
            for column in split:
                columns[column] = np.where(mask, _split(name, column, columns[column], mask, execution.tp), columns[column])
            if shard == "in":
                reduced.append((table.take(mask), _result_bytes(table.take(mask))))
        if name == "moe":
            columns["moe_ep_size"] = np.full(len(table), float(execution.ep))
            columns["moe_tp_size"] = np.full(len(table), float(execution.tp // execution.ep))
            reduced.append((table, _result_bytes(table)))
        out[name] = OpTable(name, columns)
    if reduced:
        out["nccl"] = _all_reduce(reduced, execution.tp)
    return out


def _split(name: str, column: str, values: Array, mask: Array, degree: int) -> Array:
    if column in _KEY_VALUE_HEADS:  # fewer key-value heads than GPUs: each GPU keeps a copy of one
        return np.maximum(np.ceil(values / degree), 1.0)
    if "heads" in column:
        uneven = mask & (values % degree != 0)
        if uneven.any():
            heads = int(values[uneven][0])
            fits = max(d for d in range(1, degree + 1) if heads % d == 0)
            raise InputError(f"{heads} {column} of {name} don't divide by tp={degree}; the nearest that does is tp={fits}")
    return np.ceil(values / degree)


def _result_bytes(table: OpTable) -> Array:
    bytes_out = np.array([d.output_bytes for d in DTYPES])[table["dtype"]]
    if table.kind == "gemm":
        return table["m"] * table["n"] * bytes_out
    if table.kind == "moe":
        return table["num_tokens"] * table["hidden_size"] * bytes_out
    if table.kind == "conv2d":
        pixels = np.ceil(table["height"] / table["stride"]) * np.ceil(table["width"] / table["stride"])
        return table["batch_size"] * table["out_channels"] * pixels * bytes_out
    raise InputError(f"no rule says what {table.kind} sends when it is divided along its reduction")


def _all_reduce(reduced: list[tuple[OpTable, Array]], degree: int) -> OpTable:
    message = np.concatenate([size for _, size in reduced])
    columns = {
        "collective": np.full(len(message), COLLECTIVES.index("all_reduce")),
        "num_gpus": float(degree),
        "message_bytes": np.maximum(message, 1.0),
    }
    table = op_table("nccl", columns, rows=len(message))
    common = {name: np.concatenate([one[name] for one, _ in reduced]) for name in COMMON}
    common["order"] = common["order"] + 1
    return OpTable("nccl", {**table.columns, **common})
