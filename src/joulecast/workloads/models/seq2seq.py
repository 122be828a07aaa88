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
        ``rms_norm_late`` (no bias) or ``layer_norm``.
    bias : bool
        Biases in all dense layers but the key projection.
    gated : bool
    activation : str
    position_bias : bool
        Scores get a bias by distance, laid out for each layer.
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
    position_bias: bool = False

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
        norm="rms_norm_late",
        bias=False,
        gated=gated,
        activation=activation(named, "act"),
        position_bias=True,
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
    _emit_position_bias(net, "encoder", prompt, prompt, stack.heads, buckets)
    _emit_encoder(net, stack, prompt)

    def decode(queries: int, past: int) -> None:
        rows = request.batch * queries
        net.embedding("decoder.embeddings", rows, hidden, vocab, stored=0)
        _emit_position_bias(net, "decoder", queries, past + queries, stack.heads, buckets)
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
    calls = {"module_calls": 11 * layers + 15 * decoder_layers + 13, "decode_module_calls": 15 * decoder_layers + 7}
    return _finish(net, config, decoder, prompt, start, vocab, {"prompt_tokens": prompt, "max_tokens": None, **calls})


def _emit_position_bias(net: Net, part: str, queries: int, keys: int, heads: int, buckets: int) -> None:
    """Buckets of the distances between queries and keys, and the bias of each from a learned table, once a pass."""
    layer, pairs = f"{part}.position_bias", queries * keys
    net.chain(layer, max(queries, keys), "0other 0other add")
    two_sided = "other:fp64>int8 cast:int8>fp64 mul add other" if part == "encoder" else "0other 2other other"
    net.chain(layer, pairs, f"2sub {two_sided} other:fp64>int8 cast:fp64>fp32 div:fp32 other:fp32 div:fp32 mul:fp32")
    net.chain(layer, pairs, "cast:fp32>fp64 add 0other 2other 2mask 2add")
    net.embedding(layer, pairs, heads, buckets)


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
    net.chain("encoder.position_ids", frames, "0other")
    net.positions("encoder.position_rows", "encoder.positions", frames, hidden, frames)
    _emit_encoder(net, encoder, frames)

    def decode(queries: int, past: int) -> None:
        rows = batch * queries
        net.embedding("decoder.embeddings", rows, hidden, vocab)
        net.chain("decoder.position_ids", queries, "0other add")
        net.op("copy", "decoder.position_ids", elements=rows, dtype="fp64")
        net.embedding("decoder.positions", rows, hidden, limit)
        net.elementwise("add", "decoder.add", rows * hidden, inputs=2)
        if queries > 1:  # the mask is made after a look at whether places follow each other
            net.chain("decoder.mask", rows, "sub 2sub other:fp64>int8 other:int8>fp64 other:fp64>int8")
            net.op("copy", "decoder.mask", elements=rows, dtype="fp64")
            net.reduction("max", "decoder.mask", 1, batch)
        _emit_decoder(net, decoder, queries, past, frames)
        if request.logits != "none":
            scored = rows if request.logits == "all" else batch
            net.linear("lm_head", scored, hidden, vocab, stored=0, shard="out", head=True)

    decode(prompt, 0)
    for past, repeats in decode_steps(prompt, request.generate_tokens):
        net.begin_pass("decode", repeats=repeats, tokens=batch)
        decode(1, past)
    calls = {
        "module_calls": 5 * encoder.layers + 7 * decoder.layers + 9,
        "decode_module_calls": 7 * decoder.layers + 6,
    }
    facts = {"prompt_tokens": prompt, "max_tokens": limit, **calls}
    return _finish(net, config, decoder, frames, prompt, vocab, facts)


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
    _emit_qkv(net, stack, f"{path}.attention", rows, rows, cached=False)
    if stack.position_bias:
        net.copy(f"{path}.attention.bias", length * length * stack.heads, count=stack.layers, shard="out")
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
        parts=2,
    )
    if stack.position_bias and queries > 1:
        bias = queries * (past + queries) * stack.heads
        net.copy(f"{path}.attention.bias", bias, count=stack.layers, shard="out")
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
    if not past:
        kept = 2 * request.batch * source * stack.width
        cache: dict[str, Any] = {"shard": "out", "out_dtype": request.cache_dtype, "parts": 2}
        net.copy(f"{path}.cross.cache", kept, count=stack.layers, **cache)
    _emit_cross(net, stack, f"{path}.cross", queries, source)
    _emit_out(net, stack, f"{path}.cross", rows)
    _emit_mlp(net, stack, path, rows)
    _emit_norm(net, stack, "decoder.final_norm", rows, count=1)


def _emit_norm(net: Net, stack: Stack, layer: str, rows: int, count: int | None = None) -> None:
    each = stack.layers if count is None else count
    net.norm(stack.norm, layer, rows, stack.hidden, bias=stack.norm == "layer_norm", count=each)


def _emit_qkv(net: Net, stack: Stack, path: str, rows: int, kv_rows: int, *, cached: bool = True) -> None:
    """Projections of queries, and of keys and values where `kv_rows` is not 0."""
    for name, count, bias in (("q_proj", rows, True), ("k_proj", kv_rows, False), ("v_proj", kv_rows, True)):
        if count:
            biased = bias and stack.bias
            net.linear(f"{path}.{name}", count, stack.hidden, stack.width, bias=biased, count=stack.layers, shard="out")
            if stack.laid_out and name == "q_proj":
                net.elementwise("mul", f"{path}.scale", count * stack.width, count=stack.layers, shard="out")
            # a single token's heads lie together as they are, and what is cached is laid out there
            if stack.laid_out and count > net.request.batch and (name == "q_proj" or not cached):
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
