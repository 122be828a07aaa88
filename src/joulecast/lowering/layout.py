"""Parallel layouts: shapes divided over the GPUs of a tensor-parallel group, and the collectives that follow."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from joulecast.bounds.dtypes import DTYPES
from joulecast.errors import InputError
from joulecast.lowering.execution import Execution
from joulecast.lowering.expand import joined
from joulecast.workloads.kinds import kind
from joulecast.workloads.table import COMMON, SHARDS, Array, OpTable, Workload, trusted_table

_KEY_VALUE_HEADS = ("num_kv_heads",)


def divided(tables: Mapping[str, OpTable], workload: Workload, execution: Execution) -> dict[str, OpTable]:
    """`tables` as one GPU of the layout runs them, with collectives added.

    Parameters
    ----------
    tables : mapping of str to OpTable
        By kind, with the common columns.
    workload : Workload
        Where they come from: its layer paths and passes.
    execution : Execution

    Returns
    -------
    dict of str to OpTable

    Raises
    ------
    InputError
        If a size does not divide by the degree (the nearest degree that works is named).
    """
    out = dict(tables)
    messages: list[OpTable] = []
    if execution.expert_group > 1:
        for name, table in tables.items():
            out[name], sent = _tensor_parallel(table, execution)
            messages += sent
        if execution.ep == 1:
            messages = _reduced_once(messages, tables, workload.layers)
    messages += _between_stages(tables, workload, execution)
    if messages:
        out["nccl"] = joined([*messages, *([out["nccl"]] if "nccl" in out else [])])
    return out


def _tensor_parallel(table: OpTable, execution: Execution) -> tuple[OpTable, list[OpTable]]:
    """The table of one GPU, and the all-reduces that follow its operations."""
    columns = dict(table.columns)
    described = kind(table.kind)
    sent = []
    by_shard = (
        ("out", described.split_out),
        ("in", described.split_in),
        ("partial", described.split_in),
        ("rows", ("m",)),
    )
    for shard, split in by_shard:
        mask = table["shard"] == SHARDS.index(shard)
        if not mask.any():
            continue
        for column in split:
            divided_size = _split(table.kind, column, columns[column], mask, execution.tp)
            columns[column] = np.where(mask, divided_size, columns[column])
        if shard == "in" and execution.tp > 1:
            whole = table.take(mask)
            sent.append(_collective("all_reduce", execution.tp, _result_bytes(whole), whole))
    if table.kind == "moe":
        _check_experts(table, execution)
        columns["moe_ep_size"] = np.full(len(table), float(execution.ep))
        columns["moe_tp_size"] = np.full(len(table), float(max(execution.tp // execution.ep, 1)))
        columns["num_tokens"] = table["num_tokens"] * float(execution.expert_replicas)
        summed = table.take(table["shard"] != SHARDS.index("partial"))
        if len(summed):
            sent += _experts_collectives(summed, execution)
    return OpTable(table.kind, columns), sent


def _check_experts(table: OpTable, execution: Execution) -> None:
    uneven = table["num_experts"] % execution.ep != 0
    if uneven.any():
        raise InputError(f"{int(table['num_experts'][uneven][0])} experts don't divide by ep={execution.ep}")


def _experts_collectives(table: OpTable, execution: Execution) -> list[OpTable]:
    """What GPUs exchange around each layer of experts.

    Without expert parallelism every GPU of the group has all tokens and part of each expert: one all-reduce of the
    results. With it, each GPU of the group sends its share of the tokens to the experts chosen for them, and gets
    their results back: two all-to-alls, and an all-gather where a tensor-parallel group goes on with all tokens.
    """
    result = _result_bytes(table)
    if execution.ep == 1:
        return [_collective("all_reduce", execution.tp, result, table)]
    if execution.ep <= execution.tp:  # each token goes to all the GPUs that one of its experts is divided over
        routed = result * table["topk"] / execution.ep
    else:
        routed = result * table["topk"] / execution.tp
    sent = [_collective("alltoall", execution.expert_group, routed, table, place=place) for place in (-1, 1)]
    if execution.tp > 1:
        sent.append(_collective("all_gather", execution.tp, result, table, place=2))
    return sent


def _reduced_once(messages: list[OpTable], tables: Mapping[str, OpTable], layers: tuple[str, ...]) -> list[OpTable]:
    """Without the all-reduces of shared experts: their sum goes out with that of the routed experts beside them."""
    if "moe" not in tables:
        return messages
    blocks = [path.rpartition(".")[0] for path in layers]
    routed = {(one, blocks[layer]) for one, layer in _places(tables["moe"])}
    out = []
    for table in messages:
        beside = [
            (one, blocks[layer].rpartition(".")[0]) in routed and blocks[layer].endswith((".shared", ".shared_expert"))
            for one, layer in _places(table)
        ]
        out.append(table.take(~np.array(beside, dtype=np.bool_)))
    return [table for table in out if len(table)]


def _places(table: OpTable) -> list[tuple[int, int]]:
    """Pass and layer of each row."""
    return list(zip(table["pass_id"].tolist(), table["layer"].tolist(), strict=True))


def _between_stages(tables: Mapping[str, OpTable], workload: Workload, execution: Execution) -> list[OpTable]:
    """Activations sent from pipeline stage to pipeline stage, once a pass and boundary."""
    hidden = workload.info.get("hidden_size")
    if execution.pp == 1 or not hidden:
        return []
    if execution.pp > (workload.info.get("num_layers") or execution.pp):
        raise InputError(f"pp={execution.pp} is more stages than the model has layers ({workload.info['num_layers']})")
    n = len(workload.passes)
    tokens = np.array([one.tokens for one in workload.passes])
    last = max(int(table["order"].max()) for table in tables.values())
    common = OpTable(
        "nccl",
        {
            "count": np.full(n, float(execution.pp - 1)),
            "order": np.full(n, last),
            "pass_id": np.arange(n),
            "layer": np.zeros(n, dtype=np.int64),
            "shard": np.zeros(n, dtype=np.int64),
        },
    )
    return [_collective("send_recv", 2, np.maximum(tokens, 1.0) * float(hidden) * 2.0, common)]


def _split(name: str, column: str, values: Array, mask: Array, degree: int) -> Array:
    if column in _KEY_VALUE_HEADS:  # fewer key-value heads than GPUs: each GPU keeps a copy of one
        return np.maximum(np.ceil(values / degree), 1.0)
    if "heads" in column:
        uneven = mask & (values % degree != 0)
        if uneven.any():
            heads = int(values[uneven][0])
            fits = max(d for d in range(1, degree + 1) if heads % d == 0)
            what = f"{heads} {column} of {name} don't divide by tp={degree}"
            raise InputError(f"{what}; the nearest that does is tp={fits}")
    return np.asarray(np.ceil(values / degree))


def _result_bytes(table: OpTable) -> Array:
    if table.kind == "gemm":
        elements = table["batch"] * table["m"] * table["n"]
    elif table.kind == "moe":
        elements = table["num_tokens"] * table["hidden_size"]
    elif table.kind == "conv2d_data_gradient":
        elements = table["batch_size"] * table["in_channels"] * table["height"] * table["width"]
    elif table.kind == "conv2d":
        elements = table["batch_size"] * table["out_channels"] * _outputs(table, "height") * _outputs(table, "width")
    else:
        raise InputError(f"no rule says what {table.kind} sends when it is divided along its reduction")
    return np.asarray(elements * np.array([one.output_bytes for one in DTYPES])[table["dtype"]])


def _outputs(table: OpTable, side: str) -> Array:
    """Rows or columns of the result of a convolution."""
    reach = table["dilation"] * (table[f"kernel_{side[0]}"] - 1) + 1
    return np.asarray(np.maximum(np.floor((table[side] + 2 * table["padding"] - reach) / table["stride"]) + 1, 1.0))


def _collective(name: str, gpus: int, message_bytes: Array, after: OpTable, place: int = 1) -> OpTable:
    """A collective behind each row of `after`, or `place` launches off."""
    columns = {
        "collective": name,
        "num_gpus": float(gpus),
        "message_bytes": np.maximum(np.asarray(message_bytes, dtype=np.float64), 1.0),
    }
    table = trusted_table("nccl", columns, len(after))
    common = {key: after[key] for key in COMMON}
    return OpTable("nccl", {**table.columns, **common, "order": common["order"] + place})
