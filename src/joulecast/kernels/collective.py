"""Collectives between the GPUs of a node: what each one sends over its links, and the latency of the steps."""

from __future__ import annotations

from typing import Any

import numpy as np

from joulecast.gpus import Gpu
from joulecast.kernels.formats import FP32, activation_misses, group_labels, log_ratio, vector_rate
from joulecast.kernels.work import Conditions, Family, Floats, KernelWork, work
from joulecast.workloads.kinds import COLLECTIVES
from joulecast.workloads.table import OpTable

#: Rank counts that coefficients are kept apart by; a count in between goes with the next larger one.
RANK_CLASSES = (2, 4, 8)

#: Delay of one chunk between two GPUs. A message cut into chunks that follow one another through the steps takes,
#: at the best size of chunk, ``sqrt(delay x time)`` longer than its bytes alone. [s]
CHUNK_DELAY_S = 6e-6

#: Architectures whose NVLink switches add up what the GPUs of a node send (from the third GPU generation with one).
_SWITCH_REDUCES = ("hopper", "blackwell")

_ALL_REDUCE = COLLECTIVES.index("all_reduce")


def sent_bytes(collective: Any, ranks: Any, message_bytes: Any) -> Floats:
    """Bytes that each rank sends, in the bandwidth-optimal (ring) algorithm.

    Parameters
    ----------
    collective : array_like of int
        Index into `joulecast.workloads.kinds.COLLECTIVES`.
    ranks : array_like
        GPUs that take part; 1 sends nothing.
    message_bytes : array_like
        Full buffer of one rank: what an all-gather ends with and a reduce-scatter begins with. [B]

    Returns
    -------
    ndarray
        ``2 (p - 1) / p`` of the buffer for an all-reduce, ``(p - 1) / p`` for all-gather, reduce-scatter and
        all-to-all, all of it for send-receive and broadcast. [B]
    """
    p = np.maximum(np.asarray(ranks, dtype=np.float64), 1.0)
    per_op = np.array([{"all_reduce": 2.0, "send_recv": 0.0, "broadcast": 0.0}.get(name, 1.0) for name in COLLECTIVES])
    share = per_op[np.asarray(collective)] * (p - 1.0) / p
    whole = (per_op[np.asarray(collective)] == 0.0) & (p > 1.0)
    return np.asarray(message_bytes, dtype=np.float64) * np.where(whole, 1.0, share)


def link_gb_s(gpu: Gpu) -> float:
    """Rate of the links that a collective inside a node uses, one direction of one GPU. [GB/s]."""
    return gpu.nvlink_gb_s if gpu.nvlink_gb_s > 0 else gpu.pcie_gb_s


def _rank_class(ranks: Floats) -> Any:
    return np.searchsorted(np.array(RANK_CLASSES[:-1]), ranks)


def _steps(ranks: Floats) -> Floats:
    """Steps that latency counts for, relative to those of the rank class. Dimensionless."""
    typical = np.array(RANK_CLASSES, dtype=np.float64)[_rank_class(ranks)]
    return np.where(ranks > 1, np.log2(np.maximum(ranks, 2.0)) / np.log2(typical), 0.0)


def _collective(
    family: str, table: OpTable, gpu: Gpu, conditions: Conditions, collective: Any, names: tuple[str, ...]
) -> KernelWork:
    n = len(table)
    ranks, message = table["num_gpus"], table["message_bytes"]
    rate = link_gb_s(gpu) * 1e9
    reduces = collective == _ALL_REDUCE
    sent = sent_bytes(collective, ranks, message)
    switch = (gpu.nvlink_gb_s > 0) & (gpu.architecture in _SWITCH_REDUCES) & reduces & (ranks > 4)
    sent = np.where(switch, message * (ranks + 1.0) / ranks, sent)
    # without NVLink more than two ranks share the host's memory, whose rate and not a delay bounds them
    delay = np.where((gpu.nvlink_gb_s > 0) | (ranks <= 2), CHUNK_DELAY_S, 0.0)
    bare = sent / max(rate, 1.0)
    link = bare + np.sqrt(bare * delay)
    if family == "custom_allreduce":
        link = np.minimum((ranks - 1.0) * message / max(rate, 1.0), link)
    link = np.where(ranks > 1, link, 0.0)
    # what is received is added to or stored beside the own part: a read and a write of it, and a read to send
    moved = np.where(ranks > 1, 3.0 * sent, 0.0)
    misses = activation_misses(2.0 * message, gpu, conditions)
    steps = _steps(ranks)
    blocks = np.clip(np.ceil(sent / 2.0**17), 1.0, 24.0)
    groups, group = group_labels(
        np.asarray(collective) * len(RANK_CLASSES) + _rank_class(ranks),
        [f"{name}/{count}" for name in names for count in RANK_CLASSES],
    )
    reasons = {}
    if rate <= 0:
        reasons = {int(row): f"{gpu.name} has no link to other GPUs" for row in np.flatnonzero(ranks > 1)}
    return work(
        family,
        n,
        groups=groups,
        group=group,
        cuda_flop=np.where(reduces & (ranks > 1), sent, 0.0),
        cuda_flop_per_clk=vector_rate(gpu),
        l2_bytes=moved,
        dram_bytes=moved * misses,
        link_s=link,
        message_bytes=np.where(ranks > 1, message, 0.0),
        fill=blocks / gpu.sm_count,
        blocks=blocks,
        launches=steps,
        useful_flop=np.where(reduces & (ranks > 1), message / 2.0, 0.0),
        math=FP32,
        features={
            "log_message": log_ratio(message, 2.0**20) / 8.0,
            "log_ranks": np.log2(np.maximum(ranks, 1.0)),
            "dram_share": misses,
        },
        reasons=reasons,
    )


def nccl_work(table: OpTable, gpu: Gpu, conditions: Conditions) -> KernelWork:
    """Work of a collective of a library: bandwidth-optimal rings, or reduction in the switches where those can.

    Parameters
    ----------
    table : OpTable
        Of kind ``nccl``.
    gpu : Gpu
    conditions : Conditions

    Returns
    -------
    KernelWork
        Groups are ``collective/rank class``.
    """
    return _collective("nccl", table, gpu, conditions, table["collective"].astype(np.intp), COLLECTIVES)


def custom_allreduce_work(table: OpTable, gpu: Gpu, conditions: Conditions) -> KernelWork:
    """Work of an inference engine's own all-reduce: each rank reads all of its peers' buffers, or parts twice.

    Parameters
    ----------
    table : OpTable
        Of kind ``custom_allreduce``.
    gpu : Gpu
    conditions : Conditions

    Returns
    -------
    KernelWork
    """
    collective = np.full(len(table), _ALL_REDUCE, dtype=np.intp)
    return _collective("custom_allreduce", table, gpu, conditions, collective, COLLECTIVES)


FAMILY = (
    Family("nccl", ("nccl",), nccl_work),
    Family("custom_allreduce", ("custom_allreduce",), custom_allreduce_work),
)
