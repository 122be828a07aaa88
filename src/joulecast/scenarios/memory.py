"""Memory that a workload needs on each GPU of a layout, and what to do where it does not fit."""

from __future__ import annotations

from joulecast.errors import InfeasibleError
from joulecast.gpus import Gpu, gpu_names, load_gpu
from joulecast.lowering.execution import Execution
from joulecast.scenarios.prediction import MemoryNeed
from joulecast.workloads.table import Workload

#: What a context, its libraries and the allocator's slack take. [GB]
FRAMEWORK_GB = 1.0

_GIB = 2.0**30 / 1e9


def memory_need(workload: Workload, gpu: Gpu, execution: Execution) -> MemoryNeed:
    """Memory of one GPU of the layout: weights and cache are divided by tensor and pipeline parallel degree.

    Activations are divided by the tensor-parallel degree alone. [GB, 1e9 bytes]
    """
    memory = workload.memory
    return MemoryNeed(
        weights_gb=memory.weights_bytes / execution.gpu_count / 1e9,
        kv_cache_gb=memory.kv_cache_bytes / execution.gpu_count / 1e9,
        activations_gb=memory.activation_bytes / execution.tp / 1e9,
        framework_gb=FRAMEWORK_GB,
        available_gb=gpu.dram_gib * _GIB,
    )


def refuse_what_does_not_fit(workload: Workload, memory: MemoryNeed, gpu: Gpu, execution: Execution) -> None:
    """Raise `InfeasibleError` with the shortfall and what would fit, if `memory` is more than the GPU has."""
    if memory.fits:
        return
    short = memory.needed_gb - memory.available_gb
    ways = []
    free = memory.available_gb - memory.weights_gb - memory.framework_gb
    by_batch = memory.kv_cache_gb + memory.activations_gb
    batch = int(workload.info.get("batch", 1) or 1)
    if free > 0 and by_batch > 0 and batch > 1:
        fits = int(batch * free / by_batch)
        if fits >= 1:
            ways.append(f"batch {fits}")
    wide = memory.weights_gb + memory.framework_gb
    for name, factor in (("fp8", 0.5), ("w4a16", 0.28)):
        if workload.info.get("dtype") in ("bf16", "fp16") and wide > 0:
            if memory.needed_gb - memory.weights_gb * (1 - factor) <= memory.available_gb:
                ways.append(f"weights in {name}")
                break
    for tp in (2, 4, 8, 16):
        if tp > execution.tp and _needed(memory, execution.tp, tp) <= memory.available_gb:
            ways.append(f"tp={tp}")
            break
    larger = [load_gpu(name) for name in gpu_names()]
    roomy = sorted(
        (other for other in larger if other.dram_gib * _GIB >= memory.needed_gb and other.vendor == gpu.vendor),
        key=lambda other: (other.dram_gib, other.name),
    )
    if roomy:
        ways.append(f"{roomy[0].name} ({roomy[0].dram_gib:g} GiB)")
    what = f"{memory.needed_gb:.1f} GB needed (weights {memory.weights_gb:.1f}, KV cache {memory.kv_cache_gb:.1f}, "
    what += f"activations {memory.activations_gb:.1f}), {memory.available_gb:.1f} GB there"
    hint = f"; would fit: {', '.join(ways)}" if ways else ""
    raise InfeasibleError(f"{workload.name} does not fit {gpu.name} by {short:.1f} GB: {what}{hint}")


def _needed(memory: MemoryNeed, now: int, then: int) -> float:
    return (memory.needed_gb - memory.framework_gb) * now / then + memory.framework_gb
