"""Attention of decoder language models: grouped heads, windows, and latent attention."""

from __future__ import annotations

from typing import Any

from joulecast.workloads.models.description import Decoder, Mla
from joulecast.workloads.models.net import Net


def emit_attention(net: Net, model: Decoder, queries: int, past: int) -> None:
    """Attention of all layers on `queries` new tokens a sequence, after `past` cached ones."""
    request = net.request
    tokens = request.batch * queries
    layers, hidden, dim = model.num_layers, model.hidden_size, model.head_dim
    wide, narrow = model.num_heads * dim, model.num_kv_heads * dim
    path = "layers.*.attention"
    if model.fused_qkv:
        fused = wide + 2 * narrow
        net.linear(f"{path}.qkv_proj", tokens, hidden, fused, bias=model.qkv_bias, count=layers, shard="out")
    else:
        for name, outputs in (("q_proj", wide), ("k_proj", narrow), ("v_proj", narrow)):
            net.linear(f"{path}.{name}", tokens, hidden, outputs, bias=model.qkv_bias, count=layers, shard="out")
    if model.scaled_query:
        net.elementwise("scale", f"{path}.scale", tokens * wide, count=layers, shard="out")
    if model.qk_norm:
        whole = model.qk_norm == "full"
        for name, heads in (("q_norm", model.num_heads), ("k_norm", model.num_kv_heads)):
            rows, width = (tokens, heads * dim) if whole else (tokens * heads, dim)
            net.norm(model.norm, f"{path}.{name}", rows, width, count=layers, shard="out")
    if model.rotary_dim:
        share = model.rotary_dim / dim
        op = model.rope if share == 1 else "rope_partial"
        net.elementwise(op, f"{path}.rope", tokens * (wide + narrow), count=layers, shard="out", flop=3 * share)
    cache: dict[str, Any] = {"shard": "out", "out_dtype": request.cache_dtype, "parts": 2}
    net.copy(f"{path}.cache_append", 2 * tokens * narrow, count=layers, **cache)
    if model.sinks:
        net.weight(model.num_heads, stored=layers)
    for window, count in _seen(model, past + queries):
        net.op(
            "generation_attention" if past else "context_attention",
            f"{path}.sliding" if window else f"{path}.core",
            count=count,
            shard="out",
            batch_size=request.batch,
            query_len=queries,
            past_len=past,
            num_heads=model.num_heads,
            num_kv_heads=model.num_kv_heads,
            head_dim=dim,
            window_size=window,
            attn_dtype=request.attention_dtype,
            kv_cache_dtype=request.cache_dtype,
        )
    net.linear(f"{path}.o_proj", tokens, wide, hidden, bias=model.out_bias, count=layers, shard="in")


def _seen(model: Decoder, keys: int) -> list[tuple[int, int]]:
    """Windows that bind at `keys` keys, with their layers; the rest together as 0."""
    counts: dict[int, int] = {}
    for window, count in model.layer_windows:
        binding = window if window < keys else 0
        counts[binding] = counts.get(binding, 0) + count
    return sorted(counts.items(), reverse=True)


def emit_mla(net: Net, model: Decoder, mla: Mla, queries: int, past: int) -> None:
    """Latent attention: keys and values unfolded in prefill, folded into queries and outputs in decoding."""
    request = net.request
    tokens = request.batch * queries
    layers, hidden, heads = model.num_layers, model.hidden_size, model.num_heads
    key_dim = mla.nope_dim + mla.rope_dim
    path = "layers.*.attention"
    if mla.q_rank:
        net.linear(f"{path}.q_a_proj", tokens, hidden, mla.q_rank, bias=model.qkv_bias, count=layers)
        net.norm(model.norm, f"{path}.q_a_norm", tokens, mla.q_rank, count=layers)
        net.linear(f"{path}.q_b_proj", tokens, mla.q_rank, heads * key_dim, count=layers, shard="out")
    else:
        net.linear(f"{path}.q_proj", tokens, hidden, heads * key_dim, count=layers, shard="out")
    net.linear(f"{path}.kv_a_proj", tokens, hidden, mla.kv_rank + mla.rope_dim, bias=model.qkv_bias, count=layers)
    net.norm(model.norm, f"{path}.kv_a_norm", tokens, mla.kv_rank, count=layers)
    net.elementwise("rope", f"{path}.rope", tokens * (heads + 1) * mla.rope_dim, count=layers, shard="out", flop=3)
    width = mla.kv_rank + mla.rope_dim
    net.copy(f"{path}.cache_append", tokens * width, count=layers, out_dtype=request.cache_dtype, parts=2)
    formats = {"attn_dtype": request.attention_dtype, "kv_cache_dtype": request.cache_dtype}
    if past:
        _emit_absorbed(net, model, mla, past, formats)
    else:
        net.linear(
            f"{path}.kv_b_proj", tokens, mla.kv_rank, heads * (mla.nope_dim + mla.value_dim), count=layers, shard="out"
        )
        net.copy(f"{path}.concat", 2 * tokens * heads * key_dim, count=layers, shard="out", parts=2)
        net.op(
            "context_attention",
            f"{path}.core",
            count=layers,
            shard="out",
            batch_size=request.batch,
            query_len=queries,
            num_heads=heads,
            head_dim=key_dim,
            value_dim=mla.value_dim,
            **formats,
        )
    net.linear(f"{path}.o_proj", tokens, heads * mla.value_dim, hidden, bias=model.out_bias, count=layers, shard="in")


def _emit_absorbed(net: Net, model: Decoder, mla: Mla, past: int, formats: dict[str, str]) -> None:
    """Decoding in the latent space; by the kinds made for DeepSeek's widths where the model has them."""
    batch, layers, heads = net.request.batch, model.num_layers, model.num_heads
    path = "layers.*.attention"
    usual = (mla.kv_rank, mla.nope_dim, mla.rope_dim, mla.value_dim) == (512, 128, 64, 128)

    def fold(name: str, stage: str, inputs: int, outputs: int) -> None:
        if usual:
            columns: dict[str, Any] = {"num_tokens": batch, "num_heads": heads, "bmm_stage": stage}
            net.op("mla_bmm", f"{path}.{name}", count=layers, shard="out", dtype=net.request.gemm_dtype, **columns)
        else:
            columns = {"batch": heads, "m": batch, "n": outputs, "k": inputs}
            net.op("batched_gemm", f"{path}.{name}", count=layers, shard="out", dtype=net.request.gemm_dtype, **columns)

    fold("absorb_key", "pre", mla.nope_dim, mla.kv_rank)
    shape: dict[str, Any] = {"batch_size": batch, "query_len": 1, "past_len": past, "num_heads": heads}
    if usual:
        net.op("mla_generation", f"{path}.core", count=layers, shard="out", **shape, **formats)
    else:
        latent = {"num_kv_heads": 1, "head_dim": mla.kv_rank + mla.rope_dim, "value_dim": mla.kv_rank}
        net.op("generation_attention", f"{path}.core", count=layers, shard="out", **shape, **latent, **formats)
    fold("absorb_value", "post", mla.kv_rank, mla.value_dim)
