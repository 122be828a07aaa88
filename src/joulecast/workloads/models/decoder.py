"""Decoder language models: one description of all of them, and the operations that it stands for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from joulecast.bounds.dtypes import dtype
from joulecast.workloads.config import Config
from joulecast.workloads.models.net import ACTIVATION_FLOP, Net, decode_steps, token_counts
from joulecast.workloads.request import Request
from joulecast.workloads.table import Workload


@dataclass(frozen=True)
class Mla:
    """Multi-head latent attention: keys and values are kept as one latent vector a token."""

    q_rank: int
    kv_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int


@dataclass(frozen=True)
class Moe:
    """A mixture of experts in place of the MLP of `num_layers` layers.

    Attributes
    ----------
    num_experts, topk, inter_size : int
    num_layers : int
        Layers that have it; the others have the plain MLP.
    shared_inter_size : int
        Width of the experts that every token passes, together; 0 for none.
    shared_gate : bool
        Whether their output is scaled by a learned gate.
    scoring : str
        ``softmax`` or ``sigmoid`` of the router's scores.
    router_bias, score_bias, bias : bool
        Bias of the router, correction bias of the selection, biases of the experts.
    format : str
        Format in which the checkpoint holds the experts, where it is another than the model's.
    """

    num_experts: int
    topk: int
    inter_size: int
    num_layers: int
    shared_inter_size: int = 0
    shared_gate: bool = False
    scoring: str = "softmax"
    router_bias: bool = False
    score_bias: bool = False
    bias: bool = False
    format: str = ""


@dataclass(frozen=True)
class Decoder:
    """A decoder language model in numbers.

    Attributes
    ----------
    family : str
        The model type.
    vocab_size, hidden_size, num_layers, num_heads, num_kv_heads, head_dim, inter_size : int
    limit : int or None
        Most tokens a sequence; None where positions are not bounded.
    norm : str
        ``rms_norm`` or ``layer_norm``.
    norms : str
        Where norms stand: ``pre`` (before attention and MLP), ``post_add`` (after each residual sum),
        ``post`` (after attention and MLP), ``sandwich`` (both sides), ``shared`` (one for both, which run
        side by side), ``parallel`` (one each, side by side).
    qk_norm : str
        Norm of queries and keys: none, ``head`` or ``full`` (over all heads together).
    windows : tuple of (int, int)
        (keys that a query sees, number of layers); 0 keys: all before it.
    rotary_dim : int
        Width of a head that is rotated; 0 for none.
    position_rows : int
        Rows of the table of learned positions; 0 for none.
    embedding_dim : int
        Width of the vocabulary vectors where it differs from `hidden_size` (projected both ways); else 0.
    extra_parameters : int
        Parameters that are stored and not run here (an image encoder).
    """

    family: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    inter_size: int
    limit: int | None
    norm: str = "rms_norm"
    norm_bias: bool = False
    norms: str = "pre"
    final_norm: bool = True
    qk_norm: str = ""
    fused_qkv: bool = False
    qkv_bias: bool = False
    out_bias: bool = False
    scaled_query: bool = False
    sinks: bool = False
    rotary_dim: int = 0
    windows: tuple[tuple[int, int], ...] = ()
    activation: str = "silu"
    gated: bool = True
    fused_gate_up: bool = False
    mlp_bias: bool = False
    moe: Moe | None = None
    mla: Mla | None = None
    position_rows: int = 0
    embedding_dim: int = 0
    embedding_norm: bool = False
    scaled_embedding: bool = False
    tied: bool = False
    head_bias: bool = False
    capped_logits: bool = False
    extra_parameters: int = 0
    notes: tuple[str, ...] = ()


def decoder_workload(model: Decoder, config: Config, request: Request) -> Workload:
    """Prefill and decoding of a decoder language model as a workload.

    Parameters
    ----------
    model : Decoder
    config : Config
        Where it came from, for messages.
    request : Request

    Returns
    -------
    Workload
        One ``prefill`` pass, and where tokens are generated a few ``decode`` passes (`decode_steps`).

    Raises
    ------
    InputError
        If the tokens exceed the model's limit.
    """
    prompt = token_counts(config, request, model.limit)
    net = Net(config.name, request)
    notes = list(model.notes)
    if model.moe and model.moe.format and request.weight_dtype is None and request.dtype in ("bf16", "fp16"):
        net.expert_dtype = model.moe.format
        notes.append(
            f"experts in {model.moe.format}, as the checkpoint holds them;"
            f" weight_dtype={request.dtype!r} prices them unpacked"
        )
    net.begin_pass("prefill", tokens=request.batch * prompt)
    _emit_pass(net, model, prompt, 0)
    net.weight(model.extra_parameters)
    for past, repeats in decode_steps(prompt, request.generate_tokens):
        net.begin_pass("decode", repeats=repeats, tokens=request.batch)
        _emit_pass(net, model, 1, past)
    net.stream_elements = request.batch * prompt * model.hidden_size
    length = prompt + request.generate_tokens
    cache_bytes = dtype(request.cache_dtype).activation_bytes
    windows = [(window, count) for window, count in _windows(model)]
    held = sum(count * (min(window, length) if window else length) for window, count in windows)
    net.kv_cache_bytes = float(request.batch * held * _cached_elements(model) * cache_bytes)
    return net.build(info=_info(model, prompt, cache_bytes), notes=tuple(notes))


def _info(model: Decoder, prompt: int, cache_bytes: float) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "family": model.family,
        "prompt_tokens": prompt,
        "vocab_size": model.vocab_size,
        "hidden_size": model.hidden_size,
        "num_layers": model.num_layers,
        "num_heads": model.num_heads,
        "num_kv_heads": model.num_kv_heads,
        "kv_bytes_per_token": model.num_layers * _cached_elements(model) * cache_bytes,
    }
    if model.limit is not None:
        facts["max_tokens"] = model.limit
    if model.moe:
        facts |= {"num_experts": model.moe.num_experts, "topk": model.moe.topk}
    return facts


def _cached_elements(model: Decoder) -> int:
    """Elements that one token leaves in the cache of one layer."""
    if model.mla:
        return model.mla.kv_rank + model.mla.rope_dim
    return 2 * model.num_kv_heads * model.head_dim


def _windows(model: Decoder) -> tuple[tuple[int, int], ...]:
    return model.windows or ((0, model.num_layers),)


def _emit_pass(net: Net, model: Decoder, queries: int, past: int) -> None:
    """One pass over `queries` new tokens a sequence, after `past` cached ones; decoding where there are any."""
    tokens = net.request.batch * queries
    hidden = model.hidden_size
    _emit_embeddings(net, model, tokens)
    layers = model.num_layers
    side_by_side = model.norms in ("shared", "parallel")

    def norm(layer: str) -> None:
        net.norm(model.norm, f"layers.*.{layer}", tokens, hidden, bias=model.norm_bias, count=layers)

    def residual(layer: str) -> None:
        net.elementwise("add", f"layers.*.{layer}", tokens * hidden, inputs=2, count=layers)

    if model.norms in ("pre", "sandwich", "shared", "parallel"):
        norm("attention_norm")
    if model.norms == "parallel":
        norm("mlp_norm")
    if model.mla:
        _emit_mla(net, model, model.mla, queries, past)
    else:
        _emit_attention(net, model, queries, past)
    if model.norms in ("post", "sandwich"):
        norm("attention_post_norm")
    if not side_by_side:
        residual("attention_residual")
    if model.norms == "post_add":
        norm("attention_norm")
    if model.norms in ("pre", "sandwich"):
        norm("mlp_norm")
    dense_layers = layers - (model.moe.num_layers if model.moe else 0)
    if dense_layers:
        _emit_mlp(net, model, "layers.*.mlp", tokens, model.inter_size, dense_layers)
    if model.moe and model.moe.num_layers:
        _emit_moe(net, model, model.moe, tokens)
    if model.norms in ("post", "sandwich"):
        norm("mlp_post_norm")
    if side_by_side:
        residual("attention_residual")
    residual("mlp_residual")
    if model.norms == "post_add":
        norm("mlp_norm")
    _emit_head(net, model, tokens, tokens if net.request.logits == "all" else net.request.batch)


def _emit_embeddings(net: Net, model: Decoder, tokens: int) -> None:
    hidden = model.hidden_size
    width = model.embedding_dim or hidden
    net.embedding("embeddings.tokens", tokens, width, model.vocab_size)
    if model.scaled_embedding:
        net.elementwise("mul", "embeddings.scale", tokens * width)
    if width != hidden:
        net.linear("embeddings.project_in", tokens, width, hidden)
    if model.position_rows:
        net.embedding("embeddings.positions", tokens, hidden, model.position_rows)
        net.elementwise("add", "embeddings.add", tokens * hidden, inputs=2)
    if model.embedding_norm:
        net.norm(model.norm, "embeddings.norm", tokens, hidden, bias=model.norm_bias)


def _emit_head(net: Net, model: Decoder, tokens: int, scored: int) -> None:
    hidden = model.hidden_size
    if model.final_norm:
        net.norm(model.norm, "final_norm", tokens, hidden, bias=model.norm_bias)
    width = model.embedding_dim or hidden
    if width != hidden:
        net.linear("project_out", tokens, hidden, width)
    if net.request.logits == "none":
        return
    stored = 0 if model.tied else 1
    vocab = model.vocab_size
    net.linear("lm_head", scored, width, vocab, bias=model.head_bias, stored=stored, shard="out", head=True)
    if model.capped_logits:
        net.elementwise("tanh", "lm_head.cap", scored * model.vocab_size, shard="out", flop=ACTIVATION_FLOP["tanh"] + 2)


def _emit_attention(net: Net, model: Decoder, queries: int, past: int) -> None:
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
        rotated = tokens * (model.num_heads + model.num_kv_heads) * model.rotary_dim
        net.elementwise("rope", f"{path}.rope", rotated, count=layers, shard="out", flop=3)
    net.copy(f"{path}.cache_append", 2 * tokens * narrow, count=layers, shard="out", out_dtype=request.cache_dtype)
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
    for window, count in _windows(model):
        binding = window if window < keys else 0
        counts[binding] = counts.get(binding, 0) + count
    return sorted(counts.items(), reverse=True)


def _emit_mla(net: Net, model: Decoder, mla: Mla, queries: int, past: int) -> None:
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
    net.copy(f"{path}.cache_append", tokens * (mla.kv_rank + mla.rope_dim), count=layers, out_dtype=request.cache_dtype)
    formats = {"attn_dtype": request.attention_dtype, "kv_cache_dtype": request.cache_dtype}
    if past:
        _emit_absorbed(net, model, mla, past, formats)
    else:
        net.linear(
            f"{path}.kv_b_proj", tokens, mla.kv_rank, heads * (mla.nope_dim + mla.value_dim), count=layers, shard="out"
        )
        net.copy(f"{path}.concat", 2 * tokens * heads * key_dim, count=layers, shard="out")
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


def _emit_mlp(net: Net, model: Decoder, path: str, tokens: int, inter: int, count: int) -> None:
    hidden, bias = model.hidden_size, model.mlp_bias
    if model.gated and model.fused_gate_up:
        net.linear(f"{path}.gate_up_proj", tokens, hidden, 2 * inter, bias=bias, count=count, shard="out")
    else:
        for name in ("gate_proj", "up_proj") if model.gated else ("up_proj",):
            net.linear(f"{path}.{name}", tokens, hidden, inter, bias=bias, count=count, shard="out")
    if model.gated:
        net.glu(model.activation, f"{path}.glu", tokens * inter, count=count)
    else:
        net.elementwise(model.activation, f"{path}.activation", tokens * inter, count=count, shard="out")
    net.linear(f"{path}.down_proj", tokens, inter, hidden, bias=bias, count=count, shard="in")


def _emit_moe(net: Net, model: Decoder, moe: Moe, tokens: int) -> None:
    hidden, count, path = model.hidden_size, moe.num_layers, "layers.*.moe"
    net.linear(f"{path}.router", tokens, hidden, moe.num_experts, bias=moe.router_bias, count=count, head=True)
    if moe.score_bias:
        net.weight(moe.num_experts, stored=count)
    if moe.scoring == "sigmoid":
        net.elementwise("sigmoid", f"{path}.scores", tokens * moe.num_experts, count=count)
    else:
        net.reduction("softmax", f"{path}.scores", tokens, moe.num_experts, count=count)
    net.reduction("max", f"{path}.topk", tokens, moe.num_experts, count=count)
    net.experts(
        f"{path}.experts",
        tokens,
        hidden,
        moe.inter_size,
        topk=moe.topk,
        experts=moe.num_experts,
        bias=moe.bias,
        count=count,
    )
    if moe.shared_inter_size:
        _emit_mlp(net, model, f"{path}.shared", tokens, moe.shared_inter_size, count)
        if moe.shared_gate:
            net.linear(f"{path}.shared_gate", tokens, hidden, 1, count=count, head=True)
            net.elementwise("mul", f"{path}.shared_scale", tokens * hidden, count=count)
        net.elementwise("add", f"{path}.add", tokens * hidden, inputs=2, count=count)
