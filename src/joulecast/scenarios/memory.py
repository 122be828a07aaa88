"""Memory that a workload needs on each GPU of a layout, and what to do where it does not fit."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from joulecast.bounds.dtypes import DTYPES, dtype
from joulecast.errors import InfeasibleError
from joulecast.gpus import Gpu, gpu_names, load_gpu
from joulecast.lowering.execution import Execution
from joulecast.lowering.formats import substitute
from joulecast.scenarios.prediction import MemoryNeed
from joulecast.workloads.table import OpTable, Workload

#: What a context, its libraries and the allocator's slack take. [GB]
FRAMEWORK_GB = 1.0

_GIB = 2.0**30 / 1e9


def memory_need(workload: Workload, gpu: Gpu, execution: Execution) -> MemoryNeed:
    """Memory of the GPU of the layout that needs the most. [GB, 1e9 bytes]

    Pipeline stages hold whole layers; the first has the embedding beside them, the last the vocabulary head. Weights
    are divided by the tensor-parallel degree, those of experts by the expert-parallel one where that is larger;
    activations by the tensor-parallel degree alone. So is the cache, as far as there are key-value heads to divide:
    beyond, each GPU keeps a copy of one. It holds all microbatches. Where no layer divides, each GPU holds all of it.
    A model of 16 bit takes twice its bytes on a GPU that runs it in 32.
    """
    memory = workload.memory
    format_ = workload.info.get("dtype")
    wider = 2.0 if format_ in ("bf16", "fp16") and substitute(gpu, format_) == "fp32" else 1.0
    tp = tensor_degree(workload, execution)
    cache_share = 1.0 / tp
    heads = workload.info.get("num_kv_heads")
    if heads:
        cache_share = math.ceil(heads / tp) / heads
    weights, share = _largest_stage_bytes(workload, execution)
    cache = memory.kv_cache_bytes * execution.microbatches
    return MemoryNeed(
        weights_gb=wider * weights / 1e9,
        kv_cache_gb=wider * cache * cache_share * share / 1e9,
        activations_gb=wider * memory.activation_bytes / tp / 1e9,
        framework_gb=FRAMEWORK_GB,
        available_gb=gpu.dram_gib * _GIB,
    )


def tensor_degree(workload: Workload, execution: Execution) -> int:
    """GPUs that layers are divided over; 1 where no layer says how it divides: each GPU does all of the work."""
    return execution.tp if any(_divides(name, table) for name, table in workload.tables.items()) else 1


def _divides(name: str, table: OpTable) -> bool:
    return len(table) > 0 and (name == "moe" or bool(table["shard"].any()))


def without_operations(workload: Workload) -> Workload:
    """`workload` with no more of its operations than `memory_need` looks at: its experts, a layer that divides."""
    kept = {name: table for name, table in workload.tables.items() if name == "moe"}
    for name, table in workload.tables.items():
        if not kept and _divides(name, table):
            kept[name] = table.take(np.flatnonzero(table["shard"])[:1])
    return replace(workload, tables=kept)


def _largest_stage_bytes(workload: Workload, execution: Execution) -> tuple[float, float]:
    """Weights of one GPU of the pipeline stage that has the most, and its share of the layers. [B, -]"""
    info, stages = workload.info, execution.pp
    experts = expert_weight_bytes(workload)
    tp, spread = tensor_degree(workload, execution), execution.expert_group
    layers = int(info.get("num_layers") or 0)
    table = 2.0 * (info.get("vocab_size") or 0) * (info.get("hidden_size") or 0)
    others = workload.memory.weights_bytes - experts
    if stages == 1 or not layers:
        return (others / tp + experts / spread) / stages, 1.0 / stages
    tied = bool(info.get("tied_embeddings"))
    both = min(table * (1.0 if tied else 2.0), 0.9 * others)
    embedding = both if tied else both / 2.0
    a_layer = ((others - both) / tp + experts / spread) / layers
    held = [one * a_layer for one in layers_of_stages(layers, stages)]
    held[0] += embedding / tp
    held[-1] += embedding / tp
    return max(held), max(layers_of_stages(layers, stages)) / layers


def layers_of_stages(layers: int, stages: int) -> list[int]:
    """Layers of each pipeline stage: as even as can be, odd ones to inner stages, which hold no embedding or head."""
    counts = [layers // stages] * stages
    for place in range(layers % stages):
        counts[(stages - 2 - place) % stages] += 1
    return counts


def expert_weight_bytes(workload: Workload) -> float:
    """Weights of all routed experts, of what one pass runs. [B]"""
    table = workload.tables.get("moe")
    if table is None or not len(table):
        return 0.0
    one = table.take(table["pass_id"] == table["pass_id"].min())
    weight = np.array([format_.weight_bytes for format_ in DTYPES])[one["dtype"]]
    each = one["hidden_size"] * one["inter_size"] * (2.0 + one["gated"]) * one["num_experts"]
    return min(float(one["count"] @ (each * weight)), workload.memory.weights_bytes)


def refuse_what_does_not_fit(workload: Workload, memory: MemoryNeed, gpu: Gpu, execution: Execution) -> None:
    """Raise `InfeasibleError` with the shortfall and what would fit, if `memory` is more than the GPU has."""
    if memory.fits:
        return
    short = memory.needed_gb - memory.available_gb
    ways = [
        way
        for way in (
            _smaller_batch(workload, memory, execution),
            _narrower_weights(workload, memory, execution),
            _wider_layout(workload, gpu, execution),
            _roomier_gpu(memory, gpu),
        )
        if way
    ]
    what = f"{memory.needed_gb:,.1f} GB needed (weights {memory.weights_gb:,.1f}, KV cache {memory.kv_cache_gb:,.1f}, "
    what += f"activations {memory.activations_gb:,.1f}, framework {memory.framework_gb:.1f}), "
    what += f"{memory.available_gb:,.1f} GB there"
    hint = f"; would fit: {', '.join(ways)}" if ways else ""
    raise InfeasibleError(f"{workload.name} does not fit {gpu.name} by {short:,.1f} GB: {what}{hint}")


def _smaller_batch(workload: Workload, memory: MemoryNeed, execution: Execution) -> str:
    free = memory.available_gb - memory.weights_gb - memory.framework_gb
    by_batch = memory.kv_cache_gb + memory.activations_gb
    batch = int(workload.info.get("batch") or 1) * execution.microbatches * execution.dp
    fits = int(batch * free / by_batch) if by_batch > 0 else 0
    fits -= fits % (execution.microbatches * execution.dp)
    return f"batch {fits}" if 1 <= fits < batch else ""


def _narrower_weights(workload: Workload, memory: MemoryNeed, execution: Execution) -> str:
    """Weights of fewer bytes; embedding and vocabulary head stay in 16 bit."""
    info = workload.info
    if info.get("dtype") not in ("bf16", "fp16") or info.get("weight_dtype") not in (None, info["dtype"]):
        return ""
    kept_gb = 2 * 2 * (info.get("vocab_size") or 0) * (info.get("hidden_size") or 0) / execution.replica_gpus / 1e9
    narrowed_gb = max(memory.weights_gb - kept_gb, 0.0)
    for name in ("fp8", "w4a16"):
        saved_gb = narrowed_gb * (1 - dtype(name).weight_bytes / 2)
        if memory.needed_gb - saved_gb <= memory.available_gb:
            return f"weights in {name}"
    return ""


def _wider_layout(workload: Workload, gpu: Gpu, execution: Execution) -> str:
    heads = workload.info.get("num_heads")
    if not heads:
        return ""
    for tp in (2, 4, 8, 16):
        divides = heads % tp == 0 and (tp % execution.ep == 0 or execution.ep % tp == 0)
        if tp > execution.tp and divides and memory_need(workload, gpu, replace(execution, tp=tp)).fits:
            return f"tp={tp}"
    return ""


def _roomier_gpu(memory: MemoryNeed, gpu: Gpu) -> str:
    others = [load_gpu(name) for name in gpu_names()]
    roomy = [one for one in others if one.dram_gib * _GIB >= memory.needed_gb and one.vendor == gpu.vendor]
    if not roomy:
        return ""
    smallest = min(roomy, key=lambda one: (one.dram_gib, one.name))
    return f"{smallest.name} ({smallest.dram_gib:g} GiB)"
