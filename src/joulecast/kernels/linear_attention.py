"""Linear attention: the short convolution, the chunked scan and the recurrent step of gated delta nets and Mamba-2."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from joulecast.gpus import Gpu
from joulecast.kernels.formats import activation_misses, by_math, group_labels, log_ratio, rate_of, vector_rate
from joulecast.kernels.work import MATHS, Conditions, Family, Floats, KernelWork, work
from joulecast.workloads.kinds import KINDS
from joulecast.workloads.table import OpTable

_BF16 = MATHS.index("bf16")
_FP16 = MATHS.index("fp16")
_BYTES = 2.0  # activations, and the states of gated delta nets
_FP32_BYTES = 4.0

#: Tokens that a block of the short convolution takes in at a time, one block for each channel of each sequence.
_CONV_TOKENS = 1024.0
#: Instructions of a thread over one block of it.
_CONV_INSTRUCTIONS = 220.0
_CONV_THREADS = 128.0

#: Tokens of a chunk of the gated delta rule, and core cycles from one chunk's state to the next's.
DELTA_CHUNK = 64.0
_DELTA_STEP_CYCLES = 5500.0

GDN_KERNELS = KINDS["linear_attention_gdn"].column("kernel_source").choices
MAMBA2_KERNELS = KINDS["linear_attention_mamba2"].column("kernel_source").choices


@dataclass(frozen=True)
class _Part:
    """Work of one kind of kernel, each an array of shape (n,)."""

    tensor_flop: Floats
    cuda_flop: Floats
    sfu_ops: Floats
    traffic: Floats  # between kernels and memory [B]
    footprint: Floats  # distinct bytes [B]
    blocks: Floats
    launches: Floats
    latency_cycles: Floats
    useful_flop: Floats


def conv_work(tokens: Floats, sequences: Floats, channels: Floats, taps: Floats) -> _Part:
    """Short causal convolution of whole sequences: one block for each channel of each sequence."""
    length = tokens / sequences
    blocks = sequences * channels
    turns = np.ceil(length / _CONV_TOKENS)
    moved = 2.0 * tokens * channels * _BYTES + channels * taps * _BYTES + sequences * channels * taps * _BYTES
    zero = np.zeros_like(tokens)
    return _Part(
        tensor_flop=zero,
        cuda_flop=2.0 * _CONV_THREADS * blocks * (_CONV_INSTRUCTIONS + 60.0 * (turns - 1.0)),
        sfu_ops=2.0 * tokens * channels,
        traffic=moved,
        footprint=moved / 2.0,  # results take the place of what they were made from
        blocks=blocks,
        launches=np.ones_like(tokens),
        latency_cycles=zero,
        useful_flop=2.0 * tokens * channels * taps,
    )


def conv_step_work(sequences: Floats, channels: Floats, taps: Floats) -> _Part:
    """Short causal convolution of one new token a sequence: its window is read, shifted and written."""
    results = sequences * channels
    moved = results * _BYTES * (2.0 * (taps - 1.0) + 2.0) + channels * taps * _BYTES
    zero = np.zeros_like(sequences)
    return _Part(
        tensor_flop=zero,
        cuda_flop=2.0 * results * (taps * 4.0 + 20.0),
        sfu_ops=2.0 * results,
        traffic=moved,
        footprint=moved,
        blocks=np.ceil(results / 64.0),
        launches=np.ones_like(sequences),
        latency_cycles=zero,
        useful_flop=2.0 * results * taps,
    )


def step_work(sequences: Floats, heads: Floats, key: Floats, value: Floats, state_bytes: float) -> _Part:
    """One recurrent step: the state of each head is read, decayed, updated and written."""
    states = sequences * heads * key * value
    vectors = sequences * heads * (2.0 * key + 2.0 * value) * _BYTES
    moved = 2.0 * states * state_bytes + vectors
    zero = np.zeros_like(sequences)
    return _Part(
        tensor_flop=zero,
        cuda_flop=2.0 * states * 4.0,
        sfu_ops=sequences * heads * 4.0,
        traffic=moved,
        footprint=states * state_bytes + vectors,
        blocks=sequences * heads * np.ceil(value / 32.0),
        launches=np.ones_like(sequences),
        latency_cycles=zero,
        useful_flop=6.0 * states,
    )


def delta_rule_work(tokens: Floats, sequences: Floats, table: OpTable) -> _Part:
    """Gated delta rule over chunks of 64 tokens: products within chunks, and a state handed from chunk to chunk."""
    key_heads, heads = table["num_k_heads"], table["num_v_heads"]
    key, value = table["head_k_dim"], table["head_v_dim"]
    chunks = np.ceil(tokens / sequences / DELTA_CHUNK)
    padded = sequences * chunks * DELTA_CHUNK
    within = DELTA_CHUNK * (3.0 * key + 2.0 * value)  # keys by keys, queries by keys, and their uses
    flop = 2.0 * padded * heads * (within + 3.0 * key * value)
    # values, keys (once a head of values where they are combined with its gate), results, and a state a chunk
    vectors = tokens * (key_heads * 6.0 * key + heads * (6.0 * key + 7.0 * value + 3.0 * DELTA_CHUNK)) * _BYTES
    states = sequences * heads * key * value * (2.0 * chunks * _BYTES + 2.0 * _BYTES)
    moved = vectors + states
    return _Part(
        tensor_flop=flop,
        cuda_flop=2.0 * padded * heads * (key + value) * 12.0,
        sfu_ops=padded * heads * DELTA_CHUNK,
        traffic=moved,
        footprint=moved / 2.0,
        blocks=sequences * chunks * heads,
        launches=np.full_like(tokens, 7.0),
        latency_cycles=chunks * _DELTA_STEP_CYCLES,
        useful_flop=2.0 * tokens * heads * (within + 3.0 * key * value),
    )


def scan_work(tokens: Floats, sequences: Floats, table: OpTable) -> _Part:
    """Mamba-2's scan over chunks: states of chunks, their passing on, and the results within chunks."""
    heads, width, state = table["nheads"], table["head_dim"], table["d_state"]
    groups, chunk = table["n_groups"], table["chunk_size"]
    chunks = np.ceil(tokens / sequences / chunk)
    padded = sequences * chunks * chunk
    per_token = heads * (chunk * width + 2.0 * width * state) + groups * chunk * state
    inner = heads * width
    vectors = tokens * (4.0 * inner + 4.0 * groups * state) * _BYTES + padded * groups * chunk * 2.0 * _FP32_BYTES
    states = sequences * chunks * inner * state * 4.0 * _FP32_BYTES
    moved = vectors + states
    return _Part(
        tensor_flop=2.0 * padded * per_token,
        cuda_flop=2.0 * padded * heads * (chunk + width) * 4.0,
        sfu_ops=padded * heads * chunk,
        traffic=moved,
        footprint=moved / 2.0,
        blocks=sequences * chunks * heads,
        launches=np.full_like(tokens, 5.0),
        latency_cycles=np.zeros_like(tokens),
        useful_flop=2.0 * tokens * per_token,
    )


def _select(parts: list[_Part], chosen: Floats) -> _Part:
    """The part of each row, by its kernel."""
    rows = np.arange(len(chosen))
    index = chosen.astype(np.intp)
    return _Part(
        **{name: np.stack([getattr(part, name) for part in parts])[index, rows] for name in _Part.__dataclass_fields__}
    )


def _finish(
    family: str, table: OpTable, part: _Part, kernels: tuple[str, ...], gpu: Gpu, conditions: Conditions
) -> KernelWork:
    n = len(table)
    misses = activation_misses(part.footprint, gpu, conditions)
    waves = np.ceil(part.blocks / gpu.sm_count)
    fill = part.blocks / (waves * gpu.sm_count)
    rates = by_math(gpu.tensor_flop_per_clk)
    math = _BF16 if rates[_BF16] > 0 else _FP16
    matrix = rates[math] > 0
    if not matrix:
        part = replace(part, cuda_flop=part.cuda_flop + part.tensor_flop, tensor_flop=np.zeros(n))
    groups, group = group_labels(table["kernel_source"], kernels)
    return work(
        family,
        n,
        groups=groups,
        group=group,
        tensor_flop=part.tensor_flop,
        cuda_flop=part.cuda_flop,
        sfu_ops=part.sfu_ops,
        tensor_flop_per_clk=rate_of(rates, np.full(n, math)),
        cuda_flop_per_clk=vector_rate(gpu),
        shared_bytes=part.traffic,
        l2_bytes=part.traffic,
        dram_bytes=part.traffic * misses,
        latency_cycles=part.latency_cycles,
        fill=fill,
        blocks=part.blocks,
        waves=waves,
        launches=part.launches,
        useful_flop=part.useful_flop,
        math=math,
        features={
            "log_footprint_over_l2": log_ratio(part.footprint, gpu.l2_mib * 2.0**20),
            "log_blocks_over_sm": log_ratio(part.blocks, gpu.sm_count),
            "log_batch": np.log2(table["batch_size"]) / 8.0,
            "log_length": np.log2(table["seq_len"]) / 16.0,
            "padding": log_ratio(part.tensor_flop + 1.0, part.useful_flop + 1.0) * (part.tensor_flop > 0),
            "dram_share": misses,
        },
    )


def gdn_work(table: OpTable, gpu: Gpu, conditions: Conditions) -> KernelWork:
    """Work of the kernels of a gated delta net.

    Parameters
    ----------
    table : OpTable
        Of kind ``linear_attention_gdn``; ``kernel_source`` names the kernel of each row. A convolution is of
        ``num_k_heads * head_k_dim`` channels: that of queries or of keys.
    gpu : Gpu
    conditions : Conditions

    Returns
    -------
    KernelWork
        Groups are the kernels.
    """
    sequences = table["batch_size"]
    tokens = sequences * table["seq_len"]
    channels = table["num_k_heads"] * table["head_k_dim"]
    heads, key, value = table["num_v_heads"], table["head_k_dim"], table["head_v_dim"]
    parts = [
        conv_work(tokens, sequences, channels, table["d_conv"]),
        conv_step_work(sequences, channels, table["d_conv"]),
        delta_rule_work(tokens, sequences, table),
        step_work(sequences, heads, key, value, _BYTES),
    ]
    part = _select(parts, table["kernel_source"])
    return _finish("linear_attention_gdn", table, part, GDN_KERNELS, gpu, conditions)


def mamba2_work(table: OpTable, gpu: Gpu, conditions: Conditions) -> KernelWork:
    """Work of the kernels of a Mamba-2 layer.

    Parameters
    ----------
    table : OpTable
        Of kind ``linear_attention_mamba2``; ``kernel_source`` names the kernel of each row.
    gpu : Gpu
    conditions : Conditions

    Returns
    -------
    KernelWork
        Groups are the kernels.
    """
    sequences = table["batch_size"]
    tokens = sequences * table["seq_len"]
    channels = table["nheads"] * table["head_dim"] + 2.0 * table["n_groups"] * table["d_state"]
    parts = [
        conv_work(tokens, sequences, channels, table["d_conv"]),
        conv_step_work(sequences, channels, table["d_conv"]),
        scan_work(tokens, sequences, table),
        step_work(sequences, table["nheads"], table["d_state"], table["head_dim"], _FP32_BYTES),
    ]
    part = _select(parts, table["kernel_source"])
    return _finish("linear_attention_mamba2", table, part, MAMBA2_KERNELS, gpu, conditions)


FAMILY = (
    Family("linear_attention_gdn", ("linear_attention_gdn",), gdn_work),
    Family("linear_attention_mamba2", ("linear_attention_mamba2",), mamba2_work),
)
