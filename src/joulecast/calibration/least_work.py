"""The least that an operation can do: arithmetic that no algorithm in use avoids, and bytes that any must touch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from joulecast.gpus import Gpu
from joulecast.kernels.collective import link_gb_s
from joulecast.kernels.convolution import output_size
from joulecast.kernels.formats import ACTIVATION_BYTES, MATH_OF, OUTPUT_BYTES, WEIGHT_BYTES, Codes
from joulecast.kernels.work import MATHS, Floats
from joulecast.workloads.counting import MATMUL, flop_of
from joulecast.workloads.kinds import COLLECTIVES, kind
from joulecast.workloads.table import OpTable

#: Outputs an edge of the largest Winograd tile in use; a filter of r taps an edge then saves (4 r / (r + 3))^2.
_WINOGRAD_TILE = 4.0

#: Widths of latent attention that all models with it share: a cached token's latent and rotated part. [elements]
_LATENT, _ROTATED = 512.0, 64.0


@dataclass(frozen=True)
class LeastWork:
    """What `n` operations need at the least; every array has shape (n,).

    Attributes
    ----------
    flop : ndarray
        Arithmetic of matrix multiplies and convolutions, after what masks hide and Winograd's transforms save;
        0 for other kinds, whose arithmetic binds nothing. [FLOP]
    flop_per_s : ndarray
        Dense peak of the whole GPU for it, at its highest clock. [FLOP/s]
    touched_bytes : ndarray
        Distinct bytes read or written. [B]
    link_bytes : ndarray
        Bytes that one GPU must send to others. [B]
    link_bytes_per_s : float
        Rate of its links, one direction. [B/s]
    """

    flop: Floats
    flop_per_s: Floats
    touched_bytes: Floats
    link_bytes: Floats
    link_bytes_per_s: float


def least_work(table: OpTable, gpu: Gpu, clock_mhz: float | None = None) -> LeastWork:
    """The least work of each operation of a table on `gpu`.

    Parameters
    ----------
    table : OpTable
    gpu : Gpu
    clock_mhz : float, optional
        Core clock of the rates; the highest by default. [MHz]

    Returns
    -------
    LeastWork

    Notes
    -----
    Every number errs to the low side: weights of experts count where routing must hit them, activations in the
    narrowest format they have on the way, windows and masks leave out what they hide. 2:4 sparsity is no excuse:
    arithmetic is counted dense against the dense rate.
    """
    n = len(table)
    flop = flop_of(table) / _saved(table) if table.kind in MATMUL else np.zeros(n)
    touched = np.asarray(_TOUCHED[table.kind](table), dtype=np.float64) if table.kind in _TOUCHED else np.zeros(n)
    sent = _sent(table) if table.kind in ("nccl", "custom_allreduce") else np.zeros(n)
    rate = _peak_flop_per_s(table, gpu, gpu.clock_max_mhz if clock_mhz is None else clock_mhz)
    return LeastWork(flop, rate, touched, sent, link_gb_s(gpu) * 1e9)


def peak_flop_per_s(gpu: Gpu, math: str, clock_mhz: float | None = None) -> float:
    """Dense peak of `gpu` in one arithmetic, tensor or CUDA cores; of fp16 or bf16 where it lacks it. [FLOP/s]"""
    clock = gpu.clock_max_mhz if clock_mhz is None else clock_mhz
    own = max(gpu.tensor_flop_per_clk(math), gpu.cuda_flop_per_clk(math))
    if own <= 0:
        own = max(max(gpu.tensor_flop_per_clk(m), gpu.cuda_flop_per_clk(m)) for m in ("bf16", "fp16", "fp32"))
    return own * clock * 1e6


def _peak_flop_per_s(table: OpTable, gpu: Gpu, clock_mhz: float) -> Floats:
    """Rate of each row: that of the fastest format that it computes in."""
    by_math = np.array([peak_flop_per_s(gpu, math, clock_mhz) for math in MATHS])
    if table.kind == "conv2d":  # frameworks let convolutions of fp32 run in TF32 unless told otherwise
        tf32 = gpu.tensor_flop_per_clk("tf32") * clock_mhz * 1e6
        by_math[MATHS.index("fp32")] = max(by_math[MATHS.index("fp32")], tf32)
    # kernels that read a cache in fp8 may as well compute in it
    names = [name for name in ("dtype", "attn_dtype", "gemm_dtype", "kv_cache_dtype") if name in table.columns]
    rate = np.zeros(len(table))
    for name in names:
        rate = np.maximum(rate, by_math[MATH_OF[np.asarray(table[name], dtype=np.intp)]])
    if table.kind.startswith("dsa_"):  # the indexer computes in fp8 whatever the module does
        rate = np.maximum(rate, by_math[MATHS.index("fp8")])
    return rate


def _saved(table: OpTable) -> Floats:
    """How many times less arithmetic the best algorithm in use does than the definition counts."""
    if table.kind != "conv2d":
        return np.ones(len(table))
    edge = np.minimum(table["kernel_h"], table["kernel_w"])
    plain = (table["stride"] == 1) & (table["dilation"] == 1) & (edge > 1)
    return np.where(plain, (_WINOGRAD_TILE * edge / (_WINOGRAD_TILE + edge - 1.0)) ** 2, 1.0)


def _sent(t: OpTable) -> Floats:
    """Bytes each rank must send; switches that add up spare an all-reduce its second half. [B]"""
    ranks = np.maximum(t["num_gpus"], 1.0)
    whole = np.zeros(len(t), dtype=bool)
    if "collective" in t.columns:
        whole = np.isin(t["collective"], [COLLECTIVES.index("send_recv")]) & (ranks > 1)
    return np.asarray(t["message_bytes"] * np.where(whole, 1.0, (ranks - 1.0) / ranks))


def _codes(t: OpTable, name: str) -> Codes:
    return np.asarray(t[name], dtype=np.intp)


def _gemm(t: OpTable) -> Floats:
    code = _codes(t, "dtype")
    m, n, k = t["m"], t["n"], t["k"]
    one = m * k * ACTIVATION_BYTES[code] + k * n * WEIGHT_BYTES[code] + m * n * OUTPUT_BYTES[code]
    return np.asarray(t["batch"] * one)


def _causal(t: OpTable) -> Floats:
    act = ACTIVATION_BYTES[_codes(t, "attn_dtype")]
    cached = ACTIVATION_BYTES[_codes(t, "kv_cache_dtype")]
    width = t["head_dim"] + t["value_dim"]
    window = np.where(t["window_size"] > 0, t["window_size"] + t["query_len"] - 1.0, np.inf)
    keys = np.minimum(t["past_len"] + t["query_len"], window)
    queries = t["query_len"] * t["num_heads"] * width * act
    return np.asarray(t["batch_size"] * (queries + keys * t["num_kv_heads"] * width * cached))


def _encoder(t: OpTable) -> Floats:
    act = ACTIVATION_BYTES[_codes(t, "attn_dtype")]
    rows = t["seq_len"] * t["num_heads"] + t["kv_len"] * t["num_kv_heads"]
    return np.asarray(2.0 * t["batch_size"] * t["head_dim"] * rows * act)


def _moe(t: OpTable) -> Floats:
    code = _codes(t, "dtype")
    routed = t["num_tokens"] * t["topk"] / t["moe_ep_size"]
    # Skewed routing may send all tokens to the same experts, and few of them to this GPU's.
    balanced = _codes(t, "distribution") == kind("moe").column("distribution").choices.index("balanced")
    local = t["num_experts"] / t["moe_ep_size"]
    hit = np.where(balanced, np.minimum(local, np.floor(routed)), t["topk"] / t["moe_ep_size"])
    weights = hit * (2.0 + t["gated"]) * t["hidden_size"] * t["inter_size"] / t["moe_tp_size"] * WEIGHT_BYTES[code]
    return np.asarray(weights + routed / t["topk"] * t["hidden_size"] * ACTIVATION_BYTES[code])


def _latent(t: OpTable) -> Floats:
    cached = ACTIVATION_BYTES[_codes(t, "kv_cache_dtype")]
    act = ACTIVATION_BYTES[_codes(t, "attn_dtype")]
    queries = t["query_len"] * t["num_heads"] * (192.0 + 128.0) * act
    # A module of generation counts past as the whole cache or one less: take the lower.
    return np.asarray(t["batch_size"] * (queries + t["past_len"] * (_LATENT + _ROTATED) * cached))


def _mla_module(t: OpTable) -> Floats:
    model, q_rank = 7168.0, 1536.0
    heads = t["num_heads"]
    weights = model * (q_rank + _LATENT + _ROTATED) + heads * (q_rank * 192.0 + _LATENT * 256.0 + 128.0 * model)
    cached = ACTIVATION_BYTES[_codes(t, "kv_cache_dtype")]
    cache = t["past_len"] * (_LATENT + _ROTATED) * cached
    tokens = 2.0 * t["query_len"] * model * 2.0  # in and out in 16 bits, whatever is computed in
    return np.asarray(weights * WEIGHT_BYTES[_codes(t, "gemm_dtype")] + t["batch_size"] * (cache + tokens))


def _dsa_module(t: OpTable) -> Floats:
    # Models differ in widths: only their in- and outputs and the weights that all share are counted.
    model = 6144.0
    weights = model * (1536.0 + _LATENT + _ROTATED) + t["num_heads"] * 128.0 * model
    tokens = 2.0 * t["query_len"] * model * 2.0
    return np.asarray(weights * WEIGHT_BYTES[_codes(t, "gemm_dtype")] + t["batch_size"] * tokens)


def _mla_bmm(t: OpTable) -> Floats:
    code = _codes(t, "dtype")
    rows = t["num_tokens"] * (128.0 + 512.0) * ACTIVATION_BYTES[code]
    return np.asarray(t["num_heads"] * (rows + 128.0 * 512.0 * WEIGHT_BYTES[code]))


def _quantize(t: OpTable) -> Floats:
    return np.asarray(t["m"] * t["k"] * (2.0 + ACTIVATION_BYTES[_codes(t, "dtype")]))


def _row_reduction(t: OpTable) -> Floats:
    code = _codes(t, "dtype")
    words = kind("row_reduction").column("op").choices
    shrinks = np.array([word in ("sum", "max", "mean", "pool") for word in words])[_codes(t, "op")]
    return np.asarray(t["rows"] * t["dim"] * ACTIVATION_BYTES[code] * np.where(shrinks, 1.0, 2.0))


def _elementwise(t: OpTable) -> Floats:
    read, written = ACTIVATION_BYTES[_codes(t, "dtype")], ACTIVATION_BYTES[_codes(t, "out_dtype")]
    # Broadcast inputs are small: one full input and the outputs are sure.
    return np.asarray(t["elements"] * (np.minimum(t["inputs"], 1.0) * read + t["outputs"] * written))


def _copy(t: OpTable) -> Floats:
    both = ACTIVATION_BYTES[_codes(t, "dtype")] + ACTIVATION_BYTES[_codes(t, "out_dtype")]
    return np.asarray(t["elements"] * both)


def _gather(t: OpTable) -> Floats:
    # The rows that are read may all be the same one; the result is written whole.
    return np.asarray(t["rows"] * t["dim"] * ACTIVATION_BYTES[_codes(t, "dtype")])


def _conv2d(t: OpTable) -> Floats:
    code = _codes(t, "dtype")
    geometry = (t["stride"], t["padding"], t["dilation"])
    out_h = output_size(t["height"], t["kernel_h"], *geometry)
    out_w = output_size(t["width"], t["kernel_w"], *geometry)
    read_h = np.minimum(t["height"], out_h * t["kernel_h"])  # steps longer than the filter skip rows
    read_w = np.minimum(t["width"], out_w * t["kernel_w"])
    image = t["in_channels"] * read_h * read_w * ACTIVATION_BYTES[code]
    result = t["out_channels"] * out_h * out_w * OUTPUT_BYTES[code]
    filters = t["in_channels"] / t["groups"] * t["out_channels"] * t["kernel_h"] * t["kernel_w"] * WEIGHT_BYTES[code]
    return np.asarray(t["batch_size"] * (image + result) + filters)


def _gdn(t: OpTable) -> Floats:
    keys, values = t["num_k_heads"] * t["head_k_dim"], t["num_v_heads"] * t["head_v_dim"]
    return _recurrent(t, channels=2.0 * keys + values, values=values)


def _mamba2(t: OpTable) -> Floats:
    values = t["nheads"] * t["head_dim"]
    return _recurrent(t, channels=values + 2.0 * t["n_groups"] * t["d_state"], values=values)


def _recurrent(t: OpTable, channels: Floats, values: Floats) -> Floats:
    """The short convolution reads and writes all channels; the other kernels read them and write values. [B]"""
    words = kind(t.kind).column("kernel_source").choices
    convolves = np.array([word.startswith("causal_conv1d") for word in words])[_codes(t, "kernel_source")]
    tokens = t["batch_size"] * t["seq_len"]
    return np.asarray(2.0 * tokens * (channels + np.where(convolves, channels, values)))  # 16 bits each


_TOUCHED: Mapping[str, Callable[[OpTable], Floats]] = MappingProxyType(
    {
        "gemm": _gemm,
        "batched_gemm": _gemm,
        "context_attention": _causal,
        "generation_attention": _causal,
        "encoder_attention": _encoder,
        "moe": _moe,
        "mla_context": _latent,
        "mla_generation": _latent,
        "mla_module_context": _mla_module,
        "mla_module_generation": _mla_module,
        "dsa_module_context": _dsa_module,
        "dsa_module_generation": _dsa_module,
        "mla_bmm": _mla_bmm,
        "quantize": _quantize,
        "row_reduction": _row_reduction,
        "elementwise": _elementwise,
        "copy": _copy,
        "gather": _gather,
        "conv2d": _conv2d,
        "linear_attention_gdn": _gdn,
        "linear_attention_mamba2": _mamba2,
    }
)
