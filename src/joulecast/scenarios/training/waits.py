"""What a step waits for: exchanges between data-parallel GPUs, the other stages of a pipeline, and its input."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from joulecast.bounds.dtypes import dtype
from joulecast.gpus import Gpu
from joulecast.lowering.recipe import Recipe
from joulecast.lowering.training import Step
from joulecast.scenarios.training.communication import collective_s, data_group, moved_bytes
from joulecast.scenarios.training.layout import Layout

#: Share of the backward pass behind which gradients can be sent: the first bucket is full only after some layers.
_HIDING_SHARE = 0.9

#: What computing loses while an exchange runs beside it, over the time of the exchange: its blocks take SMs and its
#: bytes DRAM and L2. Of 0, 0.2, 0.35 and 0.5 the one that MPT's steps under FSDP are predicted best with, those that
#: `joulecast validate` scores among them.
CONTENTION = 0.5

#: Bytes of the last bucket of gradients, which nothing is left to hide behind (DDP's default). [B]
_BUCKET_BYTES = 25e6


#: NVLink of boards that a bridge joins in pairs, at most: bridges are sold apart, and more boards than two have none
#: that joins them all. One process is taken to go over PCIe there, at this share of its rate. [GB/s]
BRIDGE_GB_S, _PCIE_SHARE = 60.0, 0.72


@dataclass(frozen=True)
class Waits:
    """Time of a step that the mean GPU does not compute. [s]"""

    communication: float = 0.0
    bubble: float = 0.0
    input: float = 0.0
    copying: float = 0.0

    @property
    def spinning(self) -> float:
        """In which it waits for other GPUs inside an exchange, and not for its host. [s]"""
        return self.communication + self.bubble

    @property
    def total(self) -> float:
        """All of it. [s]"""
        return self.communication + self.bubble + self.input + self.copying


class Exchanges:
    """What data-parallel GPUs tell each other in a step."""

    def __init__(self, step: Step, recipe: Recipe, layout: Layout, gpu: Gpu, scale: float = 1.0) -> None:
        self.scale = scale
        self.layout, self.gpu, self.link = layout, gpu, layout.link_gb_s(gpu)
        formats = recipe.formats
        model = layout.tp / max(layout.stage_shares)  # the stage with the most of them ends last
        self.gradient_bytes = step.trained * dtype(formats.gradients).output_bytes / model
        moved = dtype(formats.model if formats.mixed else formats.weights).output_bytes
        self.weight_bytes = (step.parameters + step.added) * moved / model
        self.hidden_bytes = self._boundary_bytes(step, recipe)
        self.group = data_group(layout, layout.dp * layout.cp)
        self.shards = data_group(layout, layout.shards)
        self.dram_bytes = self._dram_bytes()

    def gradients_s(self) -> float:
        """The sum of all gradients, once a step. [s]"""
        if self.layout.zero == 0:
            return self._time("all_reduce", self.gradient_bytes, self.group.size)
        reduced = self._time("reduce_scatter", self.gradient_bytes, self.shards.size)
        return reduced + self._between_copies()

    def _between_copies(self) -> float:
        """Hybrid sharding: the shards' sums over the groups that each hold a copy. [s]"""
        copies = self.group.size // self.shards.size
        return self._time("all_reduce", self.gradient_bytes / self.shards.size, copies) if copies > 1 else 0.0

    def weights_s(self) -> float:
        """Weights gathered from their shards, once. [s]"""
        return self._time("all_gather", self.weight_bytes, self.shards.size)

    def last_s(self) -> float:
        """The last bucket of gradients, that nothing hides. [s]"""
        size = min(_BUCKET_BYTES, self.gradient_bytes)
        return self._time("all_reduce" if self.layout.zero == 0 else "reduce_scatter", size, self.group.size)

    def replicated_s(self) -> float:
        """Weights copied from the first GPU to all, and gradients summed on it again, once each. [s]"""
        moved = self.weight_bytes + self.gradient_bytes
        if self.gpu.nvlink_gb_s <= BRIDGE_GB_S and self.gpu.pcie_gb_s > 0:
            return self.scale * moved / (self.gpu.pcie_gb_s * 1e9 * _PCIE_SHARE)
        there = self._time("broadcast", self.weight_bytes, self.group.size)
        return there + self._time("broadcast", self.gradient_bytes, self.group.size)

    def boundary_s(self) -> float:
        """Activations sent to the next stage. [s]"""
        group = data_group(self.layout, 2) if self.layout.gpus <= self.layout.gpus_per_node else data_group(
            replace(self.layout, gpus_per_node=self.layout.tp), 2)  # fmt: skip
        return self.scale * collective_s("send_recv", self.hidden_bytes, group, self.gpu, self.link)

    def _time(self, name: str, message_bytes: float, size: int) -> float:
        return self.scale * collective_s(name, message_bytes, data_group(self.layout, size), self.gpu, self.link)

    def _boundary_bytes(self, step: Step, recipe: Recipe) -> float:
        hidden = float(step.workload.info.get("hidden_size") or 0)
        tokens = step.workload.passes[0].tokens
        return tokens * hidden * dtype(recipe.formats.model).output_bytes / self.layout.cp / self.layout.tp

    def _dram_bytes(self) -> float:
        if self.layout.zero == 0:
            return float(moved_bytes("all_reduce", self.gradient_bytes, self.group.size))
        total = moved_bytes("reduce_scatter", self.gradient_bytes, self.shards.size)
        times = 2 if self.layout.zero >= 3 else 1
        return float(total + times * moved_bytes("all_gather", self.weight_bytes, self.shards.size))


def waits_of(
    each: Mapping[str, float], uneven: float, layout: Layout, micro_batches: int, exchange: Exchanges, input_s: float,
    copying_s: float,
) -> Waits:  # fmt: skip
    """What a step waits for beside its passes.

    Parameters
    ----------
    each : mapping of str to float
        Time of each pass once. [s]
    uneven : float
        Time of the slowest stage of the pipeline over the mean.
    layout : Layout
    micro_batches : int
    exchange : Exchanges
    input_s : float
        Least time between two steps that the input allows. [s]
    copying_s : float
        Time in which batches are copied in and nothing else runs. [s]
    """
    forward, backward = each.get("forward", 0.0), each.get("backward", 0.0)
    again = each.get("recompute", 0.0)
    micro = forward + again + backward
    slowest = uneven * micro
    pipe = micro_batches * slowest + (layout.pp * micro - slowest) / layout.chunks
    if layout.pp > 1:
        pipe += 2 * (layout.pp - 1) * exchange.boundary_s() * layout.chunks
    bubble = max(pipe - micro_batches * micro, 0.0) if layout.pp > 1 else 0.0
    communication = 0.0
    if exchange.group.size > 1:
        if layout.single_process:
            communication = micro_batches * exchange.replicated_s()
        elif layout.zero >= 3:
            # weights are gathered twice a micro-batch, each layer's behind the one before it
            gathered, summed = exchange.weights_s(), exchange.gradients_s()
            hidden_forward = _HIDING_SHARE * forward
            hidden_backward = _HIDING_SHARE * (backward + again)
            once = max(gathered - hidden_forward, 0.0) + max(gathered + summed - hidden_backward, 0.0)
            communication = micro_batches * (once + CONTENTION * (2 * gathered + summed - once))
            communication += gathered * (1 - _HIDING_SHARE)
        else:
            total = exchange.gradients_s()
            communication = max(total - _HIDING_SHARE * backward, min(exchange.last_s(), total))
            communication += CONTENTION * (total - communication)
            if layout.zero:
                communication += exchange.weights_s()
    computed = micro_batches * micro + each.get("optimizer", 0.0) + bubble + communication
    return Waits(communication, bubble, max(input_s - computed - copying_s, 0.0), copying_s)
