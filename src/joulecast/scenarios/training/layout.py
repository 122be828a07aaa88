"""`Layout`: how a training job is spread over GPUs and nodes, and whether it divides."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np

from joulecast.bounds.ranges import number
from joulecast.errors import InputError, UnknownNameError, shortened
from joulecast.gpus import Gpu

SCHEDULES = ("1f1b", "gpipe", "interleaved")

#: Network of a node divided by its GPUs, one direction, by architecture of servers built with them: adapters of
#: 4 x EDR (V100: DGX-1), 8 x HDR (A100), 8 x NDR (H100, H200), 8 x NDR or XDR (B200). [GB/s]
_NODE_LINK_GB_S = {"volta": 6.25, "ampere": 25.0, "hopper": 50.0, "blackwell": 50.0}

#: One adapter of 100 Gbit/s between eight GPUs. [GB/s]
_PLAIN_LINK_GB_S = 12.5 / 8


@dataclass(frozen=True)
class Layout:
    """How a training job is spread over GPUs.

    Attributes
    ----------
    gpus : int
        Of the whole job.
    tp, pp, cp, ep : int
        Tensor, pipeline, context and expert parallel degree; data parallel is what is left of `gpus`. Experts are
        spread over GPUs of the tensor-parallel group.
    zero : int
        What data-parallel GPUs divide among them instead of each holding it: 0 nothing, 1 states of the optimizer,
        2 gradients too, 3 weights too (FSDP).
    shard_group : int, optional
        GPUs that divide these among them, where not all data-parallel ones do (hybrid sharding).
    sequence_parallel : bool
        Whether tensor-parallel GPUs divide what lies between their multiplies, along the sequence.
    overlap : float
        Share of the time of tensor- and expert-parallel exchanges that runs beside the multiplies around them, in
        pieces, as far as these last. From 0 to 1.
    schedule : str
        One of `SCHEDULES`.
    chunks : int
        Pieces of the model on each stage of an interleaved pipeline.
    stage_layers : tuple of int, optional
        Layers of each stage, as DeepSpeed, Megatron and PyTorch let one choose; alike by default.
    single_process : bool
        Whether one process drives all GPUs, as ``torch.nn.DataParallel`` does: weights are copied to all of them before
        each forward pass, gradients summed on the first after the backward pass, and kernels started one GPU after the
        other.
    gpus_per_node : int
        GPUs that NVLink or one host's PCIe joins.
    node_link_gb_s : float, optional
        Network of a node for each of its GPUs, one direction. [GB/s]

    Raises
    ------
    InputError
        If a degree is no whole number, or the degrees do not divide the GPUs.
    """

    gpus: int = 1
    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    zero: int = 0
    shard_group: int | None = None
    sequence_parallel: bool = False
    overlap: float = 0.0
    schedule: str = "1f1b"
    chunks: int = 1
    stage_layers: tuple[int, ...] | None = None
    single_process: bool = False
    gpus_per_node: int = 8
    node_link_gb_s: float | None = None

    def __post_init__(self) -> None:
        for name in ("gpus", "tp", "pp", "cp", "ep", "chunks", "gpus_per_node"):
            object.__setattr__(self, name, _whole(name, getattr(self, name), 1))
        object.__setattr__(self, "zero", _whole("zero", self.zero, 0))
        if self.zero > 3:
            raise InputError(f"zero must be 0, 1, 2 or 3, got {self.zero}")
        if not isinstance(self.sequence_parallel, bool | np.bool_):
            raise InputError(
                f"sequence_parallel must be True or False, got {shortened(repr(self.sequence_parallel), 40)}"
            )
        overlap = number(self.overlap, "overlap")
        if not 0 <= overlap <= 1:
            raise InputError(f"overlap must be a share from 0 to 1, got {overlap:g}")
        object.__setattr__(self, "overlap", overlap)
        if not isinstance(self.schedule, str) or self.schedule not in SCHEDULES:
            raise UnknownNameError("pipeline schedule", self.schedule, SCHEDULES)
        if self.schedule != "interleaved" and self.chunks > 1:
            raise InputError("chunks belong to the interleaved schedule: give schedule='interleaved' with them")
        if self.stage_layers is not None:
            self._check_stages(self.stage_layers)
        if not isinstance(self.single_process, bool | np.bool_):
            raise InputError(f"single_process must be True or False, got {shortened(repr(self.single_process), 40)}")
        if self.single_process and (self.tp * self.pp * self.cp > 1 or self.zero or self.gpus > self.gpus_per_node):
            raise InputError(
                "single_process is data parallel alone, on the GPUs of one node: leave tp, pp, cp at 1 and zero at 0, "
                f"and give at most {self.gpus_per_node} GPUs"
            )
        model = self.tp * self.pp * self.cp
        if self.gpus % model:
            near = max(model, round(self.gpus / model) * model)
            degrees = " x ".join(f"{name}={getattr(self, name)}" for name in ("tp", "pp", "cp"))
            raise InputError(f"{self.gpus} GPUs do not divide by {degrees}: the nearest number that does is {near}")
        if self.tp % self.ep:
            raise InputError(
                f"ep={self.ep} must divide tp={self.tp}: experts are spread over the tensor-parallel group; "
                f"the nearest that does is ep={_nearest_divisor(self.tp, self.ep)}"
            )
        if self.tp > self.gpus_per_node:
            raise InputError(
                f"tp={self.tp} reaches beyond a node of {self.gpus_per_node} GPUs: "
                f"tp={self.gpus_per_node} is the most, or give gpus_per_node"
            )
        if self.shard_group is not None:
            group = _whole("shard_group", self.shard_group, 1)
            if self.dp % group:
                raise InputError(
                    f"shard_group={group} must divide the {self.dp} data-parallel GPUs: "
                    f"the nearest that does is {_nearest_divisor(self.dp, group)}"
                )
            object.__setattr__(self, "shard_group", group)
        if self.node_link_gb_s is not None and not 0 < number(self.node_link_gb_s, "node_link_gb_s", "GB/s") <= 1e5:
            raise InputError(f"node_link_gb_s must be between 0 and 100,000 GB/s, got {self.node_link_gb_s}")

    def _check_stages(self, given: Any) -> None:
        if not isinstance(given, tuple | list | np.ndarray):
            raise InputError(f"stage_layers takes whole numbers in a list, not {shortened(repr(given), 40)}")
        layers = tuple(_whole("each of stage_layers", value, 1) for value in given)
        if len(layers) != self.pp or self.pp == 1:
            raise InputError(
                f"stage_layers says what each stage of a pipeline holds: {len(layers)} numbers for pp={self.pp}"
            )
        if self.chunks > 1:
            raise InputError("stages of an interleaved pipeline hold like pieces: leave stage_layers out, or chunks")
        object.__setattr__(self, "stage_layers", layers)

    @property
    def stage_shares(self) -> tuple[float, ...]:
        """Share of the layers that each stage of the pipeline holds."""
        layers = self.stage_layers or (1,) * self.pp
        return tuple(one / sum(layers) for one in layers)

    @property
    def dp(self) -> int:
        """Data-parallel degree."""
        return self.gpus // (self.tp * self.pp * self.cp)

    @property
    def shards(self) -> int:
        """GPUs among which ZeRO divides what it divides."""
        return self.shard_group or self.dp * self.cp

    @property
    def nodes(self) -> int:
        """Nodes of the job."""
        return -(-self.gpus // self.gpus_per_node)

    def link_gb_s(self, gpu: Gpu) -> float:
        """Network of a node for each of its GPUs, one direction: what was given, or usual for the GPU. [GB/s]"""
        if self.node_link_gb_s is not None:
            return float(self.node_link_gb_s)
        return _NODE_LINK_GB_S.get(gpu.architecture, _PLAIN_LINK_GB_S) if gpu.nvlink_gb_s > 0 else _PLAIN_LINK_GB_S


def micro_batches(global_batch: int, micro_batch: int, layout: Layout) -> int:
    """Micro-batches that one update takes on each data-parallel GPU.

    Raises
    ------
    InputError
        If they do not divide, with the nearest global batch that does.
    """
    whole = micro_batch * layout.dp
    if isinstance(global_batch, bool) or not isinstance(global_batch, Integral) or global_batch < 1:
        raise InputError(f"global_batch must be a whole number of at least 1, got {shortened(global_batch)!r}")
    if global_batch % whole:
        near = max(whole, round(global_batch / whole) * whole)
        raise InputError(
            f"a global batch of {global_batch} does not divide by micro-batch {micro_batch} x {layout.dp} "
            f"data-parallel GPUs: the nearest that does is {near}"
        )
    return global_batch // whole


def _nearest_divisor(of: int, wanted: int) -> int:
    """The divisor of a number that is nearest to `wanted`; the smaller of two as near."""
    return min((n for n in range(1, of + 1) if of % n == 0), key=lambda n: (abs(n - wanted), n))


def _whole(name: str, value: Any, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral) or not least <= int(value) <= 2**24:
        raise InputError(
            f"{name} must be a whole number of at least {least}, at most {2**24:,}, got {shortened(value)!r}"
        )
    return int(value)
