"""What the GPUs of a training job tell each other, how long it takes inside and between nodes, and what it moves."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from joulecast.gpus import Gpu
from joulecast.kernels.collective import sent_bytes
from joulecast.kernels.work import Conditions
from joulecast.physics.price import price
from joulecast.physics.timing import duration_s
from joulecast.scenarios.training.layout import Layout
from joulecast.workloads.kinds import COLLECTIVES
from joulecast.workloads.table import op_table

Floats = npt.NDArray[np.float64]

#: Share of the nominal rate of a network that large messages reach, and the delay of one step between nodes.
NETWORK_SHARE = 0.85
NETWORK_STEP_S = 12e-6


@dataclass(frozen=True)
class Group:
    """GPUs that take part in a collective: how many, and how many of them share a node."""

    size: int
    local: int

    @property
    def nodes(self) -> int:
        """Nodes that the group spans."""
        return -(-self.size // max(self.local, 1))


def data_group(layout: Layout, size: int) -> Group:
    """A group of `size` data-parallel GPUs, of which a node holds those that tensor parallelism leaves it."""
    return Group(size, max(min(size, layout.gpus_per_node // layout.tp), 1))


def collective_s(name: str, message_bytes: float, group: Group, gpu: Gpu, link_gb_s: float) -> float:
    """Time of one collective.

    Inside a node as NVLink or PCIe give it (fitted); between nodes each GPU sends its part of what its node holds
    over its share of the network while the others do the same: the slower of the two bounds, chunks overlap.

    Parameters
    ----------
    name : str
        One of `joulecast.workloads.kinds.COLLECTIVES`.
    message_bytes : float
        Full buffer of one rank. [B]
    group : Group
    gpu : Gpu
    link_gb_s : float
        Network of a node for each of its GPUs, one direction. [GB/s]

    Returns
    -------
    float
        [s]
    """
    if group.size <= 1 or message_bytes <= 0:
        return 0.0
    inside = _inside_s(name, float(message_bytes), group.local, gpu) if group.local > 1 else 0.0
    if group.nodes <= 1:
        return inside
    code = COLLECTIVES.index(name)
    between = float(sent_bytes(code, group.nodes, message_bytes / group.local)) / (link_gb_s * 1e9 * NETWORK_SHARE)
    return max(inside, between) + NETWORK_STEP_S * float(np.log2(group.nodes) + 1.0)


@lru_cache(maxsize=4096)
def _inside_s(name: str, message_bytes: float, ranks: int, gpu: Gpu) -> float:
    table = op_table("nccl", {"collective": name, "num_gpus": ranks, "message_bytes": max(round(message_bytes), 1)})
    priced = price(table, gpu, Conditions(engine="nccl", residency="stream"))
    return float(duration_s(priced.times, gpu, gpu.clock_max_mhz)[0])


def moved_bytes(name: str, message_bytes: Any, size: int) -> Floats:
    """Bytes that a collective reads and writes in each GPU's memory: three for each byte sent. [B]"""
    return 3.0 * sent_bytes(COLLECTIVES.index(name), size, message_bytes)
