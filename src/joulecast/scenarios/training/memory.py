"""Memory of a training job on each GPU, by part, and whether it fits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from joulecast.bounds.dtypes import dtype
from joulecast.errors import InfeasibleError
from joulecast.gpus import Gpu
from joulecast.lowering.recipe import OPTIMIZERS, Recipe
from joulecast.lowering.training import Step
from joulecast.scenarios.training.layout import Layout

#: What a context, its libraries and their workspaces take. [GB]
CONTEXT_GB = 1.5

#: Share that an allocator loses to blocks that fit nothing.
FRAGMENTATION = 0.05

_GIB = 2.0**30 / 1e9


@dataclass(frozen=True)
class TrainingMemory:
    """Memory of the GPU that needs most of it, by part. [GB, 1e9 bytes]

    Attributes
    ----------
    parts : mapping of str to float
        ``weights``, ``gradients``, ``optimizer``, ``activations``, ``buffers``.
    available_gb : float
    """

    parts: Mapping[str, float]
    available_gb: float

    @property
    def needed_gb(self) -> float:
        """Sum of the parts. [GB]"""
        return sum(self.parts.values())

    @property
    def fits(self) -> bool:
        """Whether the need is within what the GPU has."""
        return self.needed_gb <= self.available_gb


def training_memory(step: Step, recipe: Recipe, layout: Layout, micro_batches: int, gpu: Gpu) -> TrainingMemory:
    """Memory of one GPU of a training job.

    Parameters
    ----------
    step : Step
        Of one micro-batch, before the layout divides it.
    recipe : Recipe
    layout : Layout
    micro_batches : int
        Of one update, on each data-parallel GPU.
    gpu : Gpu

    Returns
    -------
    TrainingMemory

    Notes
    -----
    A stage of a pipeline keeps the activations of as many micro-batches as it has stages after it and itself (1F1B;
    GPipe keeps all) [1]_; the stage that needs the most is told. Layouts divide activations along tensor parallelism
    but for what lies whole on each GPU.

    References
    ----------
    .. [1] D. Narayanan et al., Efficient large-scale language model training on GPU clusters, SC 2021.
    """
    formats = recipe.formats
    stages = [_of_stage(share, at, step, recipe, layout, micro_batches) for at, share in enumerate(layout.stage_shares)]
    gb = {name: value / 1e9 for name, value in max(stages, key=lambda parts: sum(parts.values())).items()}
    largest = step.held.largest_weight * dtype(formats.weights).output_bytes if layout.zero >= 3 else 0.0
    buckets = min(gb["gradients"], 0.05) if layout.dp > 1 else 0.0
    gb["buffers"] = 2 * largest / 1e9 + buckets + CONTEXT_GB + FRAGMENTATION * gb["activations"]
    return TrainingMemory(MappingProxyType(gb), gpu.dram_gib * _GIB)


def _of_stage(
    share: float, at: int, step: Step, recipe: Recipe, layout: Layout, micro_batches: int
) -> dict[str, float]:
    """Weights, gradients, optimizer and activations of stage `at`, which holds a share of the layers. [B]"""
    formats = recipe.formats
    model = layout.tp / share
    divided = {at: layout.shards if layout.zero >= at else 1 for at in (1, 2, 3)}
    held = dtype(formats.weights).output_bytes
    frozen = max(step.parameters + step.added - step.trained, 0.0)
    stored = step.workload.info.get("weight_dtype")
    frozen_bytes = frozen * (dtype(stored).weight_bytes if stored and recipe.trainable != "all" else held)
    weights = (step.trained * held + frozen_bytes) / model / divided[3]
    if formats.mixed:  # the cast copies of a forward pass live until its backward pass is done
        weights += (
            step.held.cast_weights * dtype(formats.model).output_bytes / model / (divided[3] if layout.zero >= 3 else 1)
        )
    gradients = step.trained * dtype(formats.gradients).output_bytes / model / divided[2]
    rule = OPTIMIZERS[recipe.optimizer]
    master = recipe.master_weights and formats.weights != "fp32"
    states = rule.states * min(rule.state_bytes, 4.0 if master else held) + (4.0 if master else 0.0)
    optimizer = step.trained * states / model / divided[1]
    if layout.schedule == "gpipe":
        in_flight = float(micro_batches)
    else:
        in_flight = float(min(micro_batches, layout.pp - at)) * (1.0 + (layout.pp - 1) / (layout.pp * layout.chunks)
                                                            if layout.schedule == "interleaved" else 1.0)  # fmt: skip
    whole = step.held.whole_bytes / (layout.tp if layout.sequence_parallel else 1)
    saved = (whole + (step.saved_bytes - step.held.whole_bytes) / layout.tp) / layout.cp
    activations = saved * share * in_flight + step.held.recomputed_bytes / layout.tp / layout.cp
    # what the widest operation writes beside: its result and the gradient of it
    activations += 2.0 * step.held.widest_bytes / layout.tp / layout.cp
    return {"weights": weights, "gradients": gradients, "optimizer": optimizer, "activations": activations}


def refuse_what_does_not_fit(
    name: str, memory: TrainingMemory, recipe: Recipe, layout: Layout, micro_batch: int, gpu: Gpu
) -> None:
    """Raise `InfeasibleError` with the shortfall and what is likely to fit, if `memory` is more than the GPU has."""
    if memory.fits:
        return
    parts = memory.parts
    room = memory.available_gb - (memory.needed_gb - parts["activations"])
    ways = []
    fitting = int(micro_batch * room / parts["activations"]) if parts["activations"] > 0 else 0
    if 1 <= fitting < micro_batch:
        ways.append(f"micro-batch {fitting}")
    if recipe.checkpointing != "full" and parts["activations"] > 0.3 * memory.needed_gb:
        ways.append("checkpointing='full'")
    states = parts["weights"] + parts["gradients"] + parts["optimizer"]
    if layout.zero < 3 and layout.dp > 1:
        ways.append("zero=3")
    elif states > memory.available_gb:
        needed = layout.gpus * states / (0.8 * memory.available_gb)
        ways.append(f"about {max(layout.gpus * 2, 1 << int(needed - 1).bit_length())} GPUs with zero=3")
    if recipe.trainable == "all" and states > memory.available_gb:
        ways.append("trainable='lora'")
    listed = ", ".join(f"{part} {value:,.1f}" for part, value in parts.items())
    hint = f"; may fit: {', '.join(ways)}" if ways else ""
    short = memory.needed_gb - memory.available_gb
    raise InfeasibleError(
        f"training {name} does not fit {gpu.name} by {short:,.1f} GB: {memory.needed_gb:,.1f} GB needed a GPU "
        f"({listed}), {memory.available_gb:,.1f} GB there{hint}"
    )
