"""What serving engines run in place of a model's own operations, whatever their version.

Products of one input are one product of their weights laid side by side, what is added to the stream is added by the
RMS norm behind it, sines and cosines are read from a table made once, and short all-reduces go by the engine's own
kernel, in which each GPU reads its peers' memory.

References
----------
.. [1] W. Kwon et al., Efficient memory management for large language model serving with PagedAttention, SOSP 2023.
.. [2] NVIDIA, TensorRT-LLM documentation: fused projections, custom all-reduce.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from joulecast.gpus import Gpu
from joulecast.workloads.kinds import REDUCTIONS, kind, plain_op
from joulecast.workloads.table import Array, OpTable, Workload

#: Ends of the paths of products of one input, and of the product that engines make of them.
MERGED: Mapping[tuple[str, ...], str] = {
    ("q_proj", "k_proj", "v_proj"): "qkv_proj",
    ("gate_proj", "up_proj"): "gate_up_proj",
    ("q_a_proj", "kv_a_proj"): "qkv_a_proj",
}

#: Longest message of an engine's own all-reduce [B], and the most GPUs that take part in it (vLLM's, and of the order
#: of TensorRT-LLM's, for more GPUs than two).
LONGEST_OWN, MOST_OWN = 8.0 * 2.0**20, 8

_NORMS = [REDUCTIONS.index(op) for op in REDUCTIONS if plain_op(op) == "rms_norm"]
_ADDED = REDUCTIONS.index("add_rms_norm")
_ADD = kind("elementwise").column("op").choices.index("add")
_TABLE = kind("elementwise").column("op").choices.index("rope_table")
_SUM = kind("nccl").column("collective").choices.index("all_reduce")


def as_served(workload: Workload, tables: Mapping[str, OpTable]) -> tuple[Workload, dict[str, OpTable]]:
    """Operations of one GPU as an engine runs them, and the workload with the layers that they are of.

    Parameters
    ----------
    workload : Workload
    tables : mapping of str to OpTable
        By kind, with the common columns.
    """
    out = dict(tables)
    if "gemm" in out:
        workload, out["gemm"] = _merged(workload, out["gemm"])
    if "elementwise" in out:
        out["elementwise"] = out["elementwise"].take(out["elementwise"]["op"] != _TABLE)
    if "elementwise" in out and "row_reduction" in out:
        out["elementwise"], out["row_reduction"] = _added(out["elementwise"], out["row_reduction"])
    return workload, {name: table for name, table in out.items() if len(table)}


def own_allreduces(tables: Mapping[str, OpTable], gpu: Gpu) -> dict[str, OpTable]:
    """`tables` with short all-reduces by the engine's own kernel: between two GPUs, or over NVLink."""
    out = dict(tables)
    if "nccl" not in out:
        return out
    table = out["nccl"]
    ranks = table["num_gpus"]
    most = MOST_OWN if gpu.nvlink_gb_s > 0 else 2
    own = (table["collective"] == _SUM) & (ranks <= most) & (table["message_bytes"] <= LONGEST_OWN)
    if not own.any():
        return out
    del out["nccl"]
    if not own.all():
        out["nccl"] = table.take(~own)
    columns = {name: column[own] for name, column in table.columns.items() if name != "collective"}
    out["custom_allreduce"] = OpTable("custom_allreduce", columns)
    return out


def _merged(workload: Workload, table: OpTable) -> tuple[Workload, OpTable]:
    """Products of one input as one, in the layer that engines name it."""
    layers, biased = list(workload.layers), set(workload.biased)
    outputs, layer = table["n"].copy(), table["layer"].copy()
    rest = np.ones(len(table), dtype=np.bool_)
    for path, parts in _siblings(workload.layers, table):
        first = parts[0]
        rest[parts[1:]] = False
        outputs[first] = table["n"][parts].sum()
        if path not in layers:
            layers.append(path)
        layer[first] = layers.index(path)
        if any(workload.layers[one] in biased for one in table["layer"][parts]):
            biased.add(path)
    whole = replace(workload, layers=tuple(layers), biased=tuple(sorted(biased)))
    return whole, replace(table, columns={**table.columns, "n": outputs, "layer": layer}).take(rest)


def _siblings(layers: tuple[str, ...], table: OpTable) -> Iterator[tuple[str, Array]]:
    """Path of each merged product, and the rows of its parts: of one block, alike but for what they give."""
    alike = [name for name in table.columns if name not in ("n", "layer", "order")]
    groups: dict[tuple[str, tuple[float, ...]], list[int]] = defaultdict(list)
    for row, layer in enumerate(table["layer"]):
        block, _, end = layers[layer].rpartition(".")
        merged = next((name for ends, name in MERGED.items() if end in ends), None)
        if merged:
            groups[(f"{block}.{merged}", tuple(float(table[name][row]) for name in alike))].append(row)
    for (path, _), rows in groups.items():
        if len(rows) > 1 and len({int(table["layer"][row]) for row in rows}) == len(rows):
            yield path, np.array(rows)


def _added(elementwise: OpTable, norms: OpTable) -> tuple[OpTable, OpTable]:
    """Sums of two tensors taken into RMS norms of as many elements that run as often in the pass."""
    ops = norms["op"].copy()
    rest = np.ones(len(elementwise), dtype=np.bool_)
    free = np.isin(ops, _NORMS) & (norms["inputs"] == 1)
    for row in np.flatnonzero((elementwise["op"] == _ADD) & (elementwise["inputs"] == 2)):
        fits = free & (norms["rows"] * norms["dim"] == elementwise["elements"][row])
        for name in ("pass_id", "count", "dtype"):
            fits &= norms[name] == elementwise[name][row]
        if fits.any():
            # the norm behind it, or the first of the next layer
            places = norms["order"] - elementwise["order"][row]
            behind = np.where(places > 0, places, places - norms["order"].min() + norms["order"].max() + 1)
            chosen = int(np.argmin(np.where(fits, behind, np.inf)))
            free[chosen] = False
            ops[chosen] = _ADDED
            rest[row] = False
    return elementwise.take(rest), replace(norms, columns={**norms.columns, "op": ops})
