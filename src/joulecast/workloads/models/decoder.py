"""Decoder language models: the operations that a description of one stands for."""

from __future__ import annotations

from typing import Any

from joulecast.bounds.dtypes import dtype
from joulecast.workloads.config import Config
from joulecast.workloads.models.attention import emit_attention, emit_mla
from joulecast.workloads.models.description import Decoder, Moe
from joulecast.workloads.models.net import ACTIVATION_FLOP, Net, decode_steps, token_counts
from joulecast.workloads.request import Request
from joulecast.workloads.table import Workload


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
    windows = model.layer_windows
    held = sum(count * (min(window, length) if window else length) for window, count in windows)
    net.kv_cache_bytes = float(request.batch * held * model.cached_elements * cache_bytes)
    return net.build(info=_info(model, prompt, cache_bytes), notes=tuple(notes))


def _info(model: Decoder, prompt: int, cache_bytes: float) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "family": model.family,
        "prompt_tokens": prompt,
        "vocab_size": model.vocab_size,
        "tied_embeddings": model.tied,
        "hidden_size": model.hidden_size,
        "num_layers": model.num_layers,
        "num_heads": model.num_heads,
        "num_kv_heads": model.num_kv_heads,
        "kv_bytes_per_token": model.num_layers * model.cached_elements * cache_bytes,
    }
    if model.limit is not None:
        facts["max_tokens"] = model.limit
    if model.moe:
        facts |= {"num_experts": model.moe.num_experts, "topk": model.moe.topk}
    return facts


def _emit_pass(net: Net, model: Decoder, queries: int, past: int) -> None:
    """One pass over `queries` new tokens a sequence, after `past` cached ones; decoding where there are any."""
    tokens = net.request.batch * queries
    hidden = model.hidden_size
    _emit_embeddings(net, model, tokens, queries)
    rotated = model.mla.rope_dim if model.mla else model.rotary_dim
    if rotated:
        net.elementwise("rope_table", "rotary", queries * rotated, count=model.rope_tables)
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
        emit_mla(net, model, model.mla, queries, past)
    else:
        emit_attention(net, model, queries, past)
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


def _emit_embeddings(net: Net, model: Decoder, tokens: int, queries: int) -> None:
    hidden = model.hidden_size
    width = model.embedding_dim or hidden
    net.embedding("embeddings.tokens", tokens, width, model.vocab_size)
    if model.scaled_embedding:
        net.elementwise("mul", "embeddings.scale", tokens * width)
    if width != hidden:
        net.linear("embeddings.project_in", tokens, width, hidden)
    if model.position_rows and model.counted_positions:
        net.embedding("embeddings.positions", tokens, hidden, model.position_rows)
        net.elementwise("add", "embeddings.add", tokens * hidden, inputs=2)
    elif model.position_rows:
        net.positions("embeddings.positions", "embeddings.add", queries, hidden, model.position_rows)
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
    experts = moe.num_experts
    router: dict[str, Any] = {"bias": moe.router_bias, "count": count, "head": True, "wide": moe.wide_router}
    net.linear(f"{path}.router", tokens, hidden, experts, **router)
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
