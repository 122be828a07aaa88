"""Decoders with mixtures of experts: Mixtral, Qwen MoE, gpt-oss, DeepSeek."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from joulecast.workloads.config import Config
from joulecast.workloads.models.description import Decoder, Mla, Moe
from joulecast.workloads.models.llama import decoder_builder, llama_like, qwen_windows, sliding_layers


def _moe(config: Config, num_experts: int, topk: int, inter_size: int, **others: Any) -> Moe:
    if topk > num_experts:
        raise config.error(f"num_experts_per_tok of {topk} exceeds the {num_experts} experts")
    layers = config.layers("num_hidden_layers")
    return Moe(num_experts, topk, inter_size, **{"num_layers": layers, **others})


def _mixtral(config: Config) -> Decoder:
    moe = _moe(
        config,
        config.size("num_local_experts", default=8),
        config.size("num_experts_per_tok", default=2),
        config.size("intermediate_size"),
    )
    return llama_like(config, moe=moe, windows=sliding_layers(config, lambda _: True))


def _sparse_layers(config: Config) -> int:
    """Layers with experts in a Qwen MoE: every ``decoder_sparse_step``-th that is not named as plain."""
    step = config.size("decoder_sparse_step", default=1)
    plain = set(config.sizes("mlp_only_layers", (), minimum=0))
    layers = config.layers("num_hidden_layers")
    return sum((index + 1) % step == 0 and index not in plain for index in range(layers))


def _qwen2_moe(config: Config) -> Decoder:
    moe = _moe(
        config,
        config.size("num_experts"),
        config.size("num_experts_per_tok"),
        config.size("moe_intermediate_size"),
        num_layers=_sparse_layers(config),
        shared_inter_size=config.size("shared_expert_intermediate_size", default=0, minimum=0),
        shared_gate=True,
    )
    return llama_like(config, moe=moe, qkv_bias=True, out_bias=False, windows=qwen_windows(config))


def _qwen3_moe(config: Config) -> Decoder:
    moe = _moe(
        config,
        config.size("num_experts"),
        config.size("num_experts_per_tok"),
        config.size("moe_intermediate_size"),
        num_layers=_sparse_layers(config),
    )
    return llama_like(config, moe=moe, qk_norm="head", windows=qwen_windows(config))


def _gpt_oss(config: Config) -> Decoder:
    packed = config.sub("quantization_config").word("quant_method") == "mxfp4"
    moe = _moe(
        config,
        config.size("num_local_experts", "num_experts"),
        config.size("num_experts_per_tok", "experts_per_token"),
        config.size("intermediate_size"),
        router_bias=True,
        bias=True,
        format="w4a16_mxfp4" if packed else "",
    )
    windows = sliding_layers(config, lambda index: index % 2 == 0)
    return llama_like(
        config,
        norm="rms_norm_wide",
        rope="rope_halves",
        moe=moe,
        sinks=True,
        qkv_bias=True,
        out_bias=True,
        windows=windows,
    )


def _deepseek(config: Config) -> Decoder:
    layers = config.layers("num_hidden_layers")
    dense = min(layers, config.size("first_k_dense_replace", default=0, minimum=0))
    step = config.size("moe_layer_freq", default=1)
    inter = config.size("moe_intermediate_size", default=1407)
    sigmoid = config.word("scoring_func") == "sigmoid" or config.word("model_type") != "deepseek_v2"
    mla = Mla(
        q_rank=config.size("q_lora_rank", default=0, minimum=0),
        kv_rank=config.size("kv_lora_rank", default=512),
        nope_dim=config.size("qk_nope_head_dim", default=128),
        rope_dim=config.size("qk_rope_head_dim", default=64),
        value_dim=config.size("v_head_dim", default=128),
    )
    moe = None
    if "n_routed_experts" in config:
        moe = _moe(
            config,
            config.size("n_routed_experts"),
            config.size("num_experts_per_tok"),
            inter,
            num_layers=sum(index % step == 0 for index in range(dense, layers)),
            shared_inter_size=inter * config.size("n_shared_experts", default=0, minimum=0),
            scoring="sigmoid" if sigmoid else "softmax",
            wide_router=True,
            score_bias=sigmoid,
        )
    return llama_like(config, mla=mla, moe=moe, head_dim=mla.nope_dim + mla.rope_dim, num_kv_heads=1)


_DECODERS: Mapping[str, tuple[Callable[[Config], Decoder], Mapping[str, Any]]] = {
    "mixtral": (_mixtral, {}),
    "qwen2_moe": (_qwen2_moe, {}),
    "qwen3_moe": (_qwen3_moe, {}),
    "gpt_oss": (_gpt_oss, {"head_dim": 64}),
    "deepseek_v2": (_deepseek, {}),
    "deepseek_v3": (_deepseek, {}),
    "kimi_k2": (_deepseek, {}),
}

BUILDERS = {name: decoder_builder(read, defaults) for name, (read, defaults) in _DECODERS.items()}
