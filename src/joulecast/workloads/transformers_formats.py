"""Formats of a request on a recorded model: quantisable multiplies, experts, attention, the cache."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from joulecast.bounds.dtypes import CODES, DTYPES, dtype
from joulecast.workloads.request import Request
from joulecast.workloads.table import OpTable, Workload

#: Parts of paths whose multiplies stay in 16 bit: vocabulary heads, routers, embeddings.
_KEPT = ("lm_head", "embed_out", "router", "gate", "classifier", "score", "head", "embed", "proj_out_vocab")
_QUANTISED = ("gemm", "moe", "conv2d")


def packed_experts(values: Mapping[str, object]) -> str:
    """Format in which a checkpoint holds its experts, by its ``config.json``; empty where that of the model."""
    block = values.get("quantization_config")
    method = block.get("quant_method") if isinstance(block, Mapping) else None
    return "w4a16_mxfp4" if method == "mxfp4" else ""


def in_formats(workload: Workload, request: Request, experts: str = "") -> Workload:
    """A recorded workload, run in the activations' format, in the formats that `request` asks for.

    Parameters
    ----------
    workload : Workload
    request : Request
    experts : str
        Format of the checkpoint's experts, taken where `request` asks for none; see `packed_experts`.

    Returns
    -------
    Workload
        Multiplies with weights in `Request.gemm_dtype`, but heads and routers; attention and cache in theirs; the
        bytes of the weights by what their multiplies read.
    """
    tables = dict(workload.tables)
    act = CODES[request.activation_dtype]
    saved = 0.0
    for name, table in workload.tables.items():
        columns = dict(table.columns)
        if name in _QUANTISED and "dtype" in columns:
            quantised = (columns["dtype"] == act) & ~_kept_rows(workload, table)
            packed = (
                bool(experts) and name == "moe" and request.weight_dtype is None and request.dtype in ("bf16", "fp16")
            )
            wanted = experts if packed else request.gemm_dtype
            columns["dtype"] = np.where(quantised, np.int16(CODES[wanted]), columns["dtype"])
            if request.head_dtype != request.activation_dtype:
                others = (columns["dtype"] == act) & ~quantised
                columns["dtype"] = np.where(others, np.int16(CODES[request.head_dtype]), columns["dtype"])
            first = quantised & (columns["pass_id"] == 0)
            difference = DTYPES[act].weight_bytes - dtype(wanted).weight_bytes
            saved += difference * float((_weights(table) * columns["count"])[first].sum())
        for column, word in (("attn_dtype", request.attention_dtype), ("kv_cache_dtype", request.cache_dtype)):
            if column in columns:
                columns[column] = np.where(columns[column] == act, np.int16(CODES[word]), columns[column])
        tables[name] = OpTable(name, columns)
    weights = max(workload.memory.weights_bytes - saved, 0.0)
    info: Mapping[str, object] = {
        **workload.info,
        "dtype": request.dtype,
        "weight_dtype": request.weight_dtype or request.dtype,
        "kv_cache_dtype": request.cache_dtype,
    }
    return replace(
        workload,
        tables=tables,
        info=info,
        memory=replace(workload.memory, weights_bytes=weights),
        compiled=None if workload.compiled is None else in_formats(workload.compiled, request, experts),
    )


def _kept_rows(workload: Workload, table: OpTable) -> np.ndarray:
    kept = np.array([path.rpartition(".")[2] in _KEPT for path in workload.layers])
    return np.asarray(kept[table["layer"]])


def _weights(table: OpTable) -> np.ndarray:
    """Elements of the weights that each operation reads."""
    if table.kind == "gemm":
        return np.asarray(table["batch"] * table["n"] * table["k"])
    if table.kind == "moe":
        return np.asarray((2 + table["gated"]) * table["num_experts"] * table["hidden_size"] * table["inter_size"])
    taps = table["kernel_h"] * table["kernel_w"]
    return np.asarray(table["out_channels"] * table["in_channels"] * taps / table["groups"])
