"""Arithmetic of a workload: FLOP by kind of operation, as they are asked for and whatever runs them.

A multiply-add is 2 FLOP. Causal attention counts the pairs of query and key that its mask leaves (and a window
what it lets through); ``causal="full"`` counts all pairs, as many published figures do. Softmax, norms and
elementwise operations count under ``all`` only. Collectives and copies have none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from joulecast.errors import InputError, UnknownNameError
from joulecast.workloads.kinds import KINDS, REDUCTIONS, kind, plain_op
from joulecast.workloads.table import OpTable, Workload

Floats = npt.NDArray[np.float64]

#: Widths of DeepSeek-V3's attention: model; query and key-value ranks; a head's plain and rotated part, its value.
_MODEL, _Q_RANK, _KV_RANK, _NOPE, _ROPE, _VALUE = 7168, 1536, 512, 128, 64, 128

#: Tokens that sparse attention reads at most, and the width of its indexer (heads x head), DeepSeek-V3.2.
_SPARSE_KEYS, _INDEX_HEADS, _INDEX_DIM = 2048, 64, 128

#: FLOP an element of each row reduction: about what its passes add up, multiply and take the exponential of.
_REDUCTION_FLOP: Mapping[str, float] = MappingProxyType(
    {
        "softmax": 5, "layer_norm": 7, "rms_norm": 4, "group_norm": 7, "batch_norm": 7,
        "sum": 1, "max": 1, "mean": 1, "pool": 1,
    }
)  # fmt: skip


def flop(workload: Workload, what: str = "all", *, phase: str | None = None, causal: str = "done") -> float:
    """FLOP of a workload, all its passes together.

    Parameters
    ----------
    workload : Workload
    what : str
        ``all``, ``matmul`` (matrix multiplies, attention's and experts' among them, and convolutions) or
        the name of a kind of operation.
    phase : str, optional
        Passes of one phase only: ``forward``, ``prefill`` or ``decode``.
    causal : str
        ``done``: causal masks and windows leave out what they hide; ``full``: every query with every key.

    Returns
    -------
    float
        [FLOP]

    Raises
    ------
    UnknownNameError
        If `what` is none of these.
    InputError
        If `causal` is neither word.
    """
    if causal not in ("done", "full"):
        raise InputError(f"causal must be done or full, got {causal!r}")
    if what not in ("all", "matmul") and what not in KINDS:
        raise UnknownNameError("kind of operation", what, ("all", "matmul", *KINDS))
    repeats = np.array([one.repeats if phase in (None, one.phase) else 0.0 for one in workload.passes])
    total = 0.0
    for name, table in workload.tables.items():
        if what == "all" or what == name or (what == "matmul" and name in MATMUL):
            total += float((flop_of(table, causal) * table["count"] * repeats[table["pass_id"]]).sum())
    return total


def macs(workload: Workload, *, phase: str | None = None, causal: str = "done") -> float:
    """Multiply-adds of a workload's matrix multiplies and convolutions: half their FLOP; see `flop`."""
    return flop(workload, "matmul", phase=phase, causal=causal) / 2


def flop_of(table: OpTable, causal: str = "done") -> Floats:
    """FLOP of one run of each operation of a table. [FLOP]"""
    return np.asarray(_FLOP[table.kind](table, causal == "full"), dtype=np.float64)


def attended_pairs(query_len: Floats, past_len: Floats, window_size: Floats, full: bool = False) -> Floats:
    """Pairs of query and key in causal attention of one head.

    Parameters
    ----------
    query_len, past_len : ndarray
        New tokens, and cached ones before them.
    window_size : ndarray
        Keys that a query sees, itself among them; 0 for all before it.
    full : bool
        Count every query with every key instead.

    Returns
    -------
    ndarray

    Notes
    -----
    Query i (from 1) sees ``min(past + i, window)`` keys: the sum is that of an arithmetic series up to the
    query at which the window fills, and ``window`` from there on.
    """
    if full:
        return query_len * (past_len + query_len)
    window = np.where(window_size > 0, window_size, np.inf)
    growing = np.clip(window - past_len, 0, query_len)
    rest = query_len - growing
    return growing * past_len + growing * (growing + 1) / 2 + np.where(rest > 0, rest * np.minimum(window, 2.0**80), 0)


def _gemm(t: OpTable, _: bool) -> Floats:
    return np.asarray(2 * t["batch"] * t["m"] * t["n"] * t["k"])


def _causal(t: OpTable, full: bool) -> Floats:
    pairs = attended_pairs(t["query_len"], t["past_len"], t["window_size"], full)
    return np.asarray(2 * t["batch_size"] * t["num_heads"] * pairs * (t["head_dim"] + t["value_dim"]))


def _encoder(t: OpTable, _: bool) -> Floats:
    return np.asarray(4 * t["batch_size"] * t["num_heads"] * t["seq_len"] * t["kv_len"] * t["head_dim"])


def _moe(t: OpTable, _: bool) -> Floats:
    # Two multiplies of the expert's width, three where gated; one GPU's share.
    share = t["moe_tp_size"] * t["moe_ep_size"]
    routed = t["num_tokens"] * t["topk"]
    return np.asarray(2 * routed * (2 + t["gated"]) * t["hidden_size"] * t["inter_size"] / share)


def _mla_context(t: OpTable, full: bool) -> Floats:
    pairs = attended_pairs(t["query_len"], t["past_len"], np.zeros(len(t)), full)
    return np.asarray(2 * t["batch_size"] * t["num_heads"] * pairs * (_NOPE + _ROPE + _VALUE))


def _mla_generation(t: OpTable, full: bool) -> Floats:
    pairs = attended_pairs(t["query_len"], t["past_len"], np.zeros(len(t)), full)
    return np.asarray(2 * t["batch_size"] * t["num_heads"] * pairs * (2 * _KV_RANK + _ROPE))


def _mla_bmm(t: OpTable, _: bool) -> Floats:
    return np.asarray(2 * t["num_tokens"] * t["num_heads"] * _NOPE * _KV_RANK)


def _mla_projections(t: OpTable) -> Floats:
    """The multiplies around latent attention, keys and values unfolded or (as much work) absorbed."""
    heads = t["num_heads"]
    down = _MODEL * (_Q_RANK + _KV_RANK + _ROPE)
    up = heads * (_Q_RANK * (_NOPE + _ROPE) + _KV_RANK * (_NOPE + _VALUE) + _VALUE * _MODEL)
    return np.asarray(2 * t["batch_size"] * t["query_len"] * (down + up))


def _mla_module_context(t: OpTable, full: bool) -> Floats:
    return _mla_projections(t) + _mla_context(t, full)


def _mla_module_generation(t: OpTable, full: bool) -> Floats:
    return _mla_projections(t) + _mla_generation(t, full)


def _dsa_module(t: OpTable, full: bool) -> Floats:
    """Sparse attention: an indexer scores all keys, attention in the latent space reads the best ones."""
    tokens = t["batch_size"] * t["query_len"]
    scored = t["batch_size"] * attended_pairs(t["query_len"], t["past_len"], np.zeros(len(t)), full)
    read = t["batch_size"] * attended_pairs(t["query_len"], t["past_len"], np.full(len(t), float(_SPARSE_KEYS)))
    index_weights = _Q_RANK * _INDEX_HEADS * _INDEX_DIM + _MODEL * (_INDEX_DIM + _INDEX_HEADS)
    indexer = 2 * (tokens * index_weights + scored * _INDEX_HEADS * _INDEX_DIM)
    return np.asarray(_mla_projections(t) + indexer + 2 * t["num_heads"] * read * (2 * _KV_RANK + _ROPE))


def _conv2d(t: OpTable, _: bool) -> Floats:
    def out(size: str, kernel: str) -> Floats:
        reach = t["dilation"] * (t[kernel] - 1) + 1
        return np.asarray(np.floor((t[size] + 2 * t["padding"] - reach) / t["stride"]) + 1)

    places = t["batch_size"] * out("height", "kernel_h") * out("width", "kernel_w")
    taps = t["in_channels"] / t["groups"] * t["kernel_h"] * t["kernel_w"]
    return np.asarray(2 * places * t["out_channels"] * taps)


def _row_reduction(t: OpTable, _: bool) -> Floats:
    each = np.array([_REDUCTION_FLOP[plain_op(word)] + (word == "add_rms_norm") for word in REDUCTIONS])
    return np.asarray(t["rows"] * t["dim"] * each[t["op"]])


def _elementwise(t: OpTable, _: bool) -> Floats:
    return np.asarray(t["elements"] * t["flop_per_element"])


def _quantize(t: OpTable, _: bool) -> Floats:
    # A product with the scale and a rounding; the scale itself takes a maximum over all elements.
    dynamic = t["quant_op"] == kind("quantize").column("quant_op").choices.index("dynamic_quant")
    return np.asarray(t["m"] * t["k"] * np.where(dynamic, 3.0, 2.0))


def _is_convolution(t: OpTable) -> npt.NDArray[np.bool_]:
    words = kind(t.kind).column("kernel_source").choices
    return np.array([word.startswith("causal_conv1d") for word in words])[t["kernel_source"]]


def _gdn(t: OpTable, _: bool) -> Floats:
    """Gated delta rule: decay, read, write and query of a state of key by value width, a value head."""
    tokens = t["batch_size"] * t["seq_len"]
    values = t["num_v_heads"] * t["head_v_dim"]
    channels = 2 * t["num_k_heads"] * t["head_k_dim"] + values
    state = 7 * tokens * values * t["head_k_dim"]
    return np.asarray(np.where(_is_convolution(t), 2 * tokens * channels * t["d_conv"], state))


def _mamba2(t: OpTable, _: bool) -> Floats:
    """Selective state space: decay, write and read of a state of `d_state` a channel."""
    tokens = t["batch_size"] * t["seq_len"]
    inner = t["nheads"] * t["head_dim"]
    channels = inner + 2 * t["n_groups"] * t["d_state"]
    state = 5 * tokens * inner * t["d_state"]
    return np.asarray(np.where(_is_convolution(t), 2 * tokens * channels * t["d_conv"], state))


def _attention_backward(t: OpTable, full: bool) -> Floats:
    """Scores once more, then the gradients of values, probabilities, queries and keys: five products for two."""
    every = t["query_len"] * t["kv_len"]
    causal = attended_pairs(t["query_len"], t["kv_len"] - t["query_len"], t["window_size"], full)
    pairs = np.where(t["causal"] > 0, causal, every)
    return np.asarray(2 * t["batch_size"] * t["num_heads"] * pairs * (3 * t["head_dim"] + 2 * t["value_dim"]))


def _none(t: OpTable, _: bool) -> Floats:
    return np.zeros(len(t))


_FLOP: Mapping[str, Callable[[OpTable, bool], Floats]] = MappingProxyType(
    {
        "gemm": _gemm,
        "batched_gemm": _gemm,
        "context_attention": _causal,
        "generation_attention": _causal,
        "encoder_attention": _encoder,
        "moe": _moe,
        "mla_context": _mla_context,
        "mla_generation": _mla_generation,
        "mla_module_context": _mla_module_context,
        "mla_module_generation": _mla_module_generation,
        "dsa_module_context": _dsa_module,
        "dsa_module_generation": _dsa_module,
        "mla_bmm": _mla_bmm,
        "quantize": _quantize,
        "linear_attention_gdn": _gdn,
        "linear_attention_mamba2": _mamba2,
        "nccl": _none,
        "custom_allreduce": _none,
        "row_reduction": _row_reduction,
        "elementwise": _elementwise,
        "conv2d": _conv2d,
        "conv2d_data_gradient": _conv2d,
        "conv2d_weight_gradient": _conv2d,
        "attention_backward": _attention_backward,
        "gather": _none,
        "copy": _none,
    }
)

#: Kinds that are matrix multiplies, or hold little else.
MATMUL = frozenset(
    {
        "gemm", "batched_gemm", "context_attention", "generation_attention", "encoder_attention", "moe", "mla_context",
        "mla_generation", "mla_module_context", "mla_module_generation", "dsa_module_context", "dsa_module_generation",
        "mla_bmm", "conv2d", "conv2d_data_gradient", "conv2d_weight_gradient", "attention_backward",
    }
)  # fmt: skip
