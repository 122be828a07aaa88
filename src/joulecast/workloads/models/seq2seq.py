"""Encoder-decoder models: T5 and Whisper.

A prefill pass runs the encoder and the decoder's first tokens; each decoding step runs the decoder on one
token, against its own cache and the encoder's keys and values, which the prefill has left.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from joulecast.bounds.dtypes import dtype
from joulecast.errors import InputError
from joulecast.workloads.config import Config
from joulecast.workloads.models.net import Net, activation, decode_steps, token_counts
from joulecast.workloads.request import Request
from joulecast.workloads.table import Workload


@dataclass(frozen=True)
class Stack:
    """What encoder and decoder of a model have in common, for one of them.

    Attributes
    ----------
    hidden, layers, heads, head_dim, inter : int
    norm : str
        ``rms_norm`` (no bias) or ``layer_norm``.
    bias : bool
        Biases in all dense layers but the key projection.
    gated : bool
    activation : str
    laid_out : bool
        Queries scaled by themselves, and queries, keys and values copied so that a head's rows lie together.
    """

    hidden: int
    layers: int
    heads: int
    head_dim: int
    inter: int
    norm: str
    bias: bool
    gated: bool
    activation: str
    laid_out: bool = False

    @property
    def width(self) -> int:
        """Features of all heads together."""
        return self.heads * self.head_dim


def _t5(config: Config, request: Request) -> Workload:
    hidden, vocab = config.size("d_model"), config.size("vocab_size")
    prompt = token_counts(config, request, None)
    feed = config.word("feed_forward_proj", "relu")
    gated = feed.startswith("gated-")
    named = Config({"act": feed.removeprefix("gated-")}, config.name)
    layers = config.layers("num_layers")
    stack = Stack(
        hidden=hidden,
        layers=layers,
        heads=config.size("num_heads"),
        head_dim=config.size("d_kv"),
        inter=config.size("d_ff"),
        norm="rms_norm",
        bias=False,
        gated=gated,
        activation=activation(named, "act"),
    )
    decoder_layers = config.size("num_decoder_layers", default=layers, maximum=2**14)
    decoder = Stack(**{**stack.__dict__, "layers": decoder_layers})
    buckets = config.size("relative_attention_num_buckets", default=32)
    tied = config.flag("tie_word_embeddings", True)

    net = Net(config.name, request)
    start = request.decoder_tokens
    net.begin_pass("prefill", tokens=request.batch * (prompt + start))
    tokens = request.batch * prompt
    net.embedding("encoder.embeddings", tokens, hidden, vocab)
    net.embedding("encoder.position_bias", prompt * prompt, stack.heads, buckets)
    _emit_encoder(net, stack, prompt)

    def decode(queries: int, past: int) -> None:
        rows = request.batch * queries
        net.embedding("decoder.embeddings", rows, hidden, vocab, stored=0)
        net.embedding("decoder.position_bias", queries * (past + queries), stack.heads, buckets)
        _emit_decoder(net, decoder, queries, past, prompt)
        if request.logits != "none":
            scored = rows if request.logits == "all" else request.batch
            if tied:
                net.elementwise("scale", "lm_head.scale", scored * hidden)
            net.linear("lm_head", scored, hidden, vocab, stored=0 if tied else 1, shard="out", head=True)

    decode(start, 0)
    for past, repeats in decode_steps(start, request.generate_tokens):
        net.begin_pass("decode", repeats=repeats, tokens=request.batch)
        decode(1, past)
    return _finish(net, config, decoder, prompt, start, vocab, {"prompt_tokens": prompt, "max_tokens": None})


def _whisper(config: Config, request: Request) -> Workload:
    hidden, vocab = config.size("d_model"), config.size("vocab_size")
    frames = config.size("max_source_positions", default=1500)
    mels = config.size("num_mel_bins", default=80)
    limit = config.size("max_target_positions", default=448)
    prompt = token_counts(config, request, limit, default=4)
    act = activation(config, "activation_function", default="gelu")

    def stack(layers: str, heads: str, inter: str) -> Stack:
        count = config.size(heads)
        dim = max(1, hidden // count)
        return Stack(
            hidden, config.layers(layers), count, dim, config.size(inter), "layer_norm", True, False, act, True
        )

    encoder = stack("encoder_layers", "encoder_attention_heads", "encoder_ffn_dim")
    decoder = stack("decoder_layers", "decoder_attention_heads", "decoder_ffn_dim")
    net = Net(config.name, request)
    batch = request.batch
    net.begin_pass("prefill", tokens=batch * (frames + prompt))
    # Convolutions over time, as images of one row; the padding of that axis alone is part of the width.
    for name, inputs, width, stride in (("conv1", mels, 2 * frames, 1), ("conv2", hidden, 2 * frames, 2)):
        net.conv(f"encoder.{name}", batch, (inputs, hidden), (1, width + 2), (1, 3), stride=stride, bias=True)
        net.elementwise(act, f"encoder.{name}.activation", batch * hidden * width // stride)
    net.weight(frames * hidden)
    net.elementwise("add", "encoder.positions", batch * frames * hidden, inputs=2)
    _emit_encoder(net, encoder, frames)

    def decode(queries: int, past: int) -> None:
        rows = batch * queries
        net.embedding("decoder.embeddings", rows, hidden, vocab)
        net.embedding("decoder.positions", rows, hidden, limit)
        net.elementwise("add", "decoder.add", rows * hidden, inputs=2)
        _emit_decoder(net, decoder, queries, past, frames)
        if request.logits != "none":
            scored = rows if request.logits == "all" else batch
            net.linear("lm_head", scored, hidden, vocab, stored=0, shard="out", head=True)

    decode(prompt, 0)
    for past, repeats in decode_steps(prompt, request.generate_tokens):
        net.begin_pass("decode", repeats=repeats, tokens=batch)
        decode(1, past)
    return _finish(net, config, decoder, frames, prompt, vocab, {"prompt_tokens": prompt, "max_tokens": limit})


def _finish(
    net: Net, config: Config, decoder: Stack, source: int, start: int, vocab: int, facts: dict[str, Any]
) -> Workload:
    request = net.request
    if start + request.generate_tokens > 2**31:
        raise InputError("decoder_tokens and generate_tokens together exceed any length")
    net.stream_elements = request.batch * source * decoder.hidden
    each = 2 * decoder.width * decoder.layers * dtype(request.cache_dtype).activation_bytes
    net.kv_cache_bytes = float(request.batch * (source + start + request.generate_tokens) * each)
    return net.build(
        info={
            "family": config.word("model_type"),
            "vocab_size": vocab,
            "hidden_size": decoder.hidden,
            "num_layers": decoder.layers,
            "num_heads": decoder.heads,
            "num_kv_heads": decoder.heads,
            "encoder_tokens": source,
            "kv_bytes_per_token": each,
            **{name: value for name, value in facts.items() if value is not None},
        }
    )


def _emit_encoder(net: Net, stack: Stack, length: int) -> None:
    rows = net.request.batch * length
    path = "encoder.layers.*"
    _emit_norm(net, stack, f"{path}.attention_norm", rows)
    _emit_qkv(net, stack, f"{path}.attention", rows, rows)
    _emit_cross(net, stack, f"{path}.attention", length, length)
    _emit_out(net, stack, f"{path}.attention", rows)
    _emit_mlp(net, stack, path, rows)
    _emit_norm(net, stack, "encoder.final_norm", rows, count=1)


def _emit_decoder(net: Net, stack: Stack, queries: int, past: int, source: int) -> None:
    """The decoder on `queries` tokens after `past` cached ones; the source's keys and values come with the first."""
    request = net.request
    rows = request.batch * queries
    path = "decoder.layers.*"
    _emit_norm(net, stack, f"{path}.attention_norm", rows)
    _emit_qkv(net, stack, f"{path}.attention", rows, rows)
    net.copy(
        f"{path}.attention.cache_append",
        2 * rows * stack.width,
        count=stack.layers,
        shard="out",
        out_dtype=request.cache_dtype,
    )
    net.op(
        "generation_attention" if past else "context_attention",
        f"{path}.attention.core",
        count=stack.layers,
        shard="out",
        batch_size=request.batch,
        query_len=queries,
        past_len=past,
        num_heads=stack.heads,
        head_dim=stack.head_dim,
        attn_dtype=request.attention_dtype,
        kv_cache_dtype=request.cache_dtype,
    )
    _emit_out(net, stack, f"{path}.attention", rows)
    _emit_norm(net, stack, f"{path}.cross_norm", rows)
    _emit_qkv(net, stack, f"{path}.cross", rows, 0 if past else request.batch * source)
    _emit_cross(net, stack, f"{path}.cross", queries, source)
    _emit_out(net, stack, f"{path}.cross", rows)
    _emit_mlp(net, stack, path, rows)
    _emit_norm(net, stack, "decoder.final_norm", rows, count=1)


def _emit_norm(net: Net, stack: Stack, layer: str, rows: int, count: int | None = None) -> None:
    each = stack.layers if count is None else count
    net.norm(stack.norm, layer, rows, stack.hidden, bias=stack.norm == "layer_norm", count=each)


def _emit_qkv(net: Net, stack: Stack, path: str, rows: int, kv_rows: int) -> None:
    """Projections of queries, and of keys and values where `kv_rows` is not 0."""
    for name, count, bias in (("q_proj", rows, True), ("k_proj", kv_rows, False), ("v_proj", kv_rows, True)):
        if count:
            biased = bias and stack.bias
            net.linear(f"{path}.{name}", count, stack.hidden, stack.width, bias=biased, count=stack.layers, shard="out")
            if stack.laid_out and name == "q_proj":
                net.elementwise("mul", f"{path}.scale", count * stack.width, count=stack.layers, shard="out")
            if stack.laid_out and count > net.request.batch:  # a single token's heads lie together as they are
                net.copy(f"{path}.{name}_heads", count * stack.width, count=stack.layers, shard="out")


def _emit_cross(net: Net, stack: Stack, path: str, queries: int, keys: int) -> None:
    """Attention that sees all keys: within an encoder, or from a decoder to its source."""
    net.op(
        "encoder_attention",
        f"{path}.core",
        count=stack.layers,
        shard="out",
        batch_size=net.request.batch,
        seq_len=queries,
        kv_len=keys,
        num_heads=stack.heads,
        head_dim=stack.head_dim,
        attn_dtype=net.request.attention_dtype,
    )


def _emit_out(net: Net, stack: Stack, path: str, rows: int) -> None:
    net.linear(f"{path}.o_proj", rows, stack.width, stack.hidden, bias=stack.bias, count=stack.layers, shard="in")
    net.elementwise("add", f"{path}_residual", rows * stack.hidden, inputs=2, count=stack.layers)


def _emit_mlp(net: Net, stack: Stack, path: str, rows: int) -> None:
    _emit_norm(net, stack, f"{path}.mlp_norm", rows)
    for name in ("gate_proj", "up_proj") if stack.gated else ("up_proj",):
        net.linear(
            f"{path}.mlp.{name}", rows, stack.hidden, stack.inter, bias=stack.bias, count=stack.layers, shard="out"
        )
    if stack.gated:
        net.glu(stack.activation, f"{path}.mlp.glu", rows * stack.inter, count=stack.layers)
    else:
        net.elementwise(stack.activation, f"{path}.mlp.activation", rows * stack.inter, count=stack.layers, shard="out")
    net.linear(
        f"{path}.mlp.down_proj", rows, stack.inter, stack.hidden, bias=stack.bias, count=stack.layers, shard="in"
    )
    net.elementwise("add", f"{path}.mlp_residual", rows * stack.hidden, inputs=2, count=stack.layers)


BUILDERS = {"t5": _t5, "mt5": _t5, "whisper": _whisper}
