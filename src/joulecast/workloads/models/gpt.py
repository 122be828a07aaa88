"""Decoders with layer norms: GPT-2, GPT-J, GPT-NeoX, OPT, BLOOM, Falcon, MPT, Phi-2, StarCoder2, StableLM."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from joulecast.workloads.config import Config
from joulecast.workloads.models.description import Decoder
from joulecast.workloads.models.llama import decoder_builder, llama_like, sliding_layers, token_limit
from joulecast.workloads.models.net import activation


def _plain(config: Config, **others: Any) -> Decoder:
    """A decoder with layer norms, plain MLPs of four times the width and all biases, but for `others`."""
    hidden = config.size("hidden_size", "n_embd", "n_embed", "d_model")
    heads = config.size("num_attention_heads", "n_head", "n_heads")
    layers = config.layers("num_hidden_layers", "n_layer", "n_layers")
    fields: dict[str, Any] = {
        "family": config.word("model_type"),
        "vocab_size": config.size("vocab_size"),
        "hidden_size": hidden,
        "num_layers": layers,
        "num_heads": heads,
        "num_kv_heads": heads,
        "head_dim": max(1, hidden // heads),
        "inter_size": config.size("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", default=4 * hidden),
        "limit": None,
        "norm": "layer_norm",
        "norm_bias": True,
        "qkv_bias": True,
        "out_bias": True,
        "mlp_bias": True,
        "gated": False,
        "activation": "gelu",
        "tied": config.flag("tie_word_embeddings", True),
    }
    return Decoder(**{**fields, **others})


def _gpt2(config: Config) -> Decoder:
    rows = config.size("n_positions", "max_position_embeddings", default=1024)
    act = activation(config, "activation_function", default="gelu_new")
    return _plain(config, fused_qkv=True, position_rows=rows, limit=rows, activation=act)


def _gptj(config: Config) -> Decoder:
    hidden = config.size("n_embd", "hidden_size")
    return _plain(
        config,
        norms="shared",
        qkv_bias=False,
        out_bias=False,
        rotary_dim=config.size("rotary_dim", default=hidden // config.size("n_head", "num_attention_heads"), minimum=0),
        limit=config.size("n_positions", "max_position_embeddings", default=2048),
        tied=config.flag("tie_word_embeddings"),
        head_bias=True,
        activation=activation(config, "activation_function", default="gelu_new"),
    )


def _gpt_neox(config: Config) -> Decoder:
    head_dim = config.size("hidden_size") // config.size("num_attention_heads")
    bias = config.flag("attention_bias", True)
    return _plain(
        config,
        norms="parallel" if config.flag("use_parallel_residual", True) else "pre",
        fused_qkv=True,
        qkv_bias=bias,
        out_bias=bias,
        rotary_dim=int(head_dim * config.real("rotary_pct", 0.25, maximum=1.0)),
        limit=token_limit(config, 2048),
        tied=config.flag("tie_word_embeddings"),
        activation=activation(config, "hidden_act", default="gelu"),
    )


def _opt(config: Config) -> Decoder:
    hidden = config.size("hidden_size")
    limit = config.size("max_position_embeddings", default=2048)
    width = config.size("word_embed_proj_dim", default=hidden)
    before = config.flag("do_layer_norm_before", True)
    bias = config.flag("enable_bias", True)
    return _plain(
        config,
        norms="pre" if before else "post_add",
        final_norm=before,
        position_rows=limit + 2,  # the first two rows stand for padding
        counted_positions=True,
        limit=limit,
        scaled_query=True,
        embedding_dim=0 if width == hidden else width,
        norm_bias=config.flag("layer_norm_elementwise_affine", True),
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=bias,
        activation=activation(config, "activation_function", default="relu"),
    )


def _bloom(config: Config) -> Decoder:
    return _plain(config, fused_qkv=True, embedding_norm=True, activation="gelu_new")


def _falcon(config: Config) -> Decoder:
    hidden = config.size("hidden_size")
    heads = config.size("num_attention_heads", "n_head")
    grouped = config.flag("new_decoder_architecture")
    single = config.flag("multi_query", True)
    kv_heads = config.size("num_kv_heads", "n_head_kv", default=heads) if grouped else 1 if single else heads
    bias = config.flag("bias")
    if grouped:
        norms = "parallel" if config.size("num_ln_in_parallel_attn", default=2) == 2 else "shared"
    else:
        norms = "shared" if config.flag("parallel_attn", True) else "pre"
    alibi = config.flag("alibi")
    return _plain(
        config,
        norms=norms,
        num_kv_heads=kv_heads,
        fused_qkv=True,
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=bias,
        rotary_dim=0 if alibi else hidden // heads,
        limit=None if alibi else token_limit(config, 2048),
    )


def _mpt(config: Config) -> Decoder:
    hidden = config.size("d_model")
    attention = config.sub("attn_config")
    alibi = attention.flag("alibi", True)
    rows = config.size("max_seq_len", default=2048)
    bias = not config.flag("no_bias", True)
    return _plain(
        config,
        fused_qkv=True,
        norm_bias=False,
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=bias,
        inter_size=hidden * config.size("expansion_ratio", default=4),
        position_rows=0 if alibi else rows,
        limit=None if alibi else rows,
    )


def _phi(config: Config) -> Decoder:
    heads = config.size("num_attention_heads")
    head_dim = config.size("hidden_size") // heads
    return _plain(
        config,
        norms="shared",
        num_kv_heads=config.size("num_key_value_heads", default=heads),
        rotary_dim=int(head_dim * config.real("partial_rotary_factor", 0.5, maximum=1.0)),
        limit=token_limit(config, 2048),
        tied=config.flag("tie_word_embeddings"),
        head_bias=True,
        activation=activation(config, "hidden_act", default="gelu_new"),
    )


def _starcoder2(config: Config) -> Decoder:
    bias = config.flag("use_bias", True)
    return llama_like(
        config,
        norm="layer_norm",
        norm_bias=True,
        gated=False,
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=bias,
        windows=sliding_layers(config, lambda _: True),
        activation=activation(config, "hidden_act", default="gelu_pytorch_tanh"),
        tied=config.flag("tie_word_embeddings", True),
    )


def _stablelm(config: Config) -> Decoder:
    return llama_like(
        config,
        norm="layer_norm",
        norm_bias=True,
        norms="shared" if config.flag("use_parallel_residual") else "pre",
        qkv_bias=config.flag("use_qkv_bias"),
        out_bias=False,
    )


_DECODERS: Mapping[str, tuple[Callable[[Config], Decoder], Mapping[str, Any]]] = {
    "gpt2": (_gpt2, {"vocab_size": 50257}),
    "gptj": (_gptj, {"vocab_size": 50400}),
    "gpt_neox": (_gpt_neox, {}),
    "opt": (_opt, {"vocab_size": 50272}),
    "bloom": (_bloom, {"vocab_size": 250880}),
    "falcon": (_falcon, {"vocab_size": 65024}),
    "RefinedWebModel": (_falcon, {"vocab_size": 65024}),
    "mpt": (_mpt, {"vocab_size": 50368}),
    "phi": (_phi, {}),
    "starcoder2": (_starcoder2, {"vocab_size": 49152}),
    "stablelm": (_stablelm, {"partial_rotary_factor": 0.25}),
}

BUILDERS = {name: decoder_builder(read, defaults) for name, (read, defaults) in _DECODERS.items()}
