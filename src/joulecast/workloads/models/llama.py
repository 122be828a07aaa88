"""Decoders with RMS norms and gated MLPs: Llama, Mistral, Qwen, Gemma, Phi-3, OLMo 2."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from joulecast.workloads.config import Config
from joulecast.workloads.models.decoder import decoder_workload
from joulecast.workloads.models.description import Decoder
from joulecast.workloads.models.net import activation
from joulecast.workloads.request import Request
from joulecast.workloads.table import Workload


def llama_like(config: Config, **others: Any) -> Decoder:
    """A Llama from its config; `others` are the fields in which a model of that kind differs."""
    hidden = config.size("hidden_size")
    heads = config.size("num_attention_heads")
    head_dim = config.size("head_dim", default=max(1, hidden // heads))
    layers = config.layers("num_hidden_layers")
    kv_heads = config.size("num_key_value_heads", default=heads)
    if heads % kv_heads:
        raise config.error(f"{heads} query heads do not divide over {kv_heads} key and value heads")
    bias = config.flag("attention_bias")
    fields: dict[str, Any] = {
        "family": config.word("model_type"),
        "vocab_size": config.size("vocab_size"),
        "hidden_size": hidden,
        "num_layers": layers,
        "num_heads": heads,
        "num_kv_heads": kv_heads,
        "head_dim": head_dim,
        "inter_size": config.size("intermediate_size"),
        "limit": token_limit(config),
        "qkv_bias": bias,
        "out_bias": bias,
        "rotary_dim": int(head_dim * config.real("partial_rotary_factor", 1.0, maximum=1.0)),
        "activation": activation(config, "hidden_act", "hidden_activation", default="silu"),
        "mlp_bias": config.flag("mlp_bias"),
        "tied": config.flag("tie_word_embeddings"),
    }
    return Decoder(**{**fields, **others})


def token_limit(config: Config, default: int | None = None) -> int | None:
    """Most tokens a sequence: learned or trained positions, stretched where rotary scaling says so."""
    if default is None and "max_position_embeddings" not in config:
        return None
    limit = config.size("max_position_embeddings", default=default)
    scaling = config.sub("rope_scaling")
    kind = scaling.word("rope_type") or scaling.word("type")
    factor = scaling.real("factor", 1.0)
    if kind in ("linear", "dynamic", "yarn") and factor >= 1:
        # YaRN names the length before the stretch; a config may hold the stretched one already.
        before = scaling.size("original_max_position_embeddings", default=limit)
        limit = max(limit, int(before * factor))
    return limit


def sliding_layers(config: Config, is_sliding: Callable[[int], bool], default: int = 0) -> tuple[tuple[int, int], ...]:
    """(window, layers) pairs: `layer_types` of the config where it has them, else `is_sliding` of the layer's index."""
    layers = config.layers("num_hidden_layers", "n_layer")
    window = config.size("sliding_window", default=default, minimum=0)
    types = config.words("layer_types")
    if types and len(types) != layers:
        raise config.error(f"layer_types has {len(types)} entries for {layers} layers")
    sliding = sum(kind == "sliding_attention" for kind in types) if types else sum(map(is_sliding, range(layers)))
    if not window or not sliding:
        return ((0, layers),)
    return tuple(pair for pair in ((window, sliding), (0, layers - sliding)) if pair[1])


def _llama(config: Config) -> Decoder:
    return llama_like(config)


def _mistral(config: Config) -> Decoder:
    return llama_like(config, windows=sliding_layers(config, lambda _: True))


def _qwen2(config: Config) -> Decoder:
    return llama_like(config, qkv_bias=True, out_bias=False, windows=qwen_windows(config))


def _qwen3(config: Config) -> Decoder:
    return llama_like(config, qk_norm="head", windows=qwen_windows(config))


def qwen_windows(config: Config) -> tuple[tuple[int, int], ...]:
    """Qwen's windows: off unless ``use_sliding_window``, then on the layers from ``max_window_layers`` up."""
    if not config.flag("use_sliding_window"):
        return ()
    first = config.size("max_window_layers", default=28, minimum=0)
    return sliding_layers(config, lambda index: index >= first)


_GEMMA = {"tie_word_embeddings": True, "hidden_act": "gelu_pytorch_tanh", "head_dim": 256}


def _gemma(config: Config) -> Decoder:
    return llama_like(config, norm="rms_norm_unit", scaled_embedding=True, activation="gelu")


def _gemma2(config: Config) -> Decoder:
    return llama_like(
        config,
        norm="rms_norm_unit",
        activation="gelu",
        scaled_embedding=True,
        norms="sandwich",
        capped_logits="final_logit_softcapping" in config,
        windows=sliding_layers(config, lambda index: index % 2 == 0, default=4096),
    )


_GEMMA3_TEXT = {
    "vocab_size": 262208, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
    "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "max_position_embeddings": 131072,
    "sliding_window": 4096, "tie_word_embeddings": True, "hidden_activation": "gelu_pytorch_tanh",
}  # fmt: skip
_SIGLIP = {
    "hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27, "image_size": 896, "patch_size": 14,
    "num_channels": 3,
}  # fmt: skip


def _gemma3_text(config: Config, extra_parameters: int = 0, notes: tuple[str, ...] = ()) -> Decoder:
    pattern = config.size("sliding_window_pattern", "_sliding_window_pattern", default=6)
    return llama_like(
        config,
        family="gemma3",
        norm="rms_norm_unit",
        norms="sandwich",
        qk_norm="head",
        rope_tables=2,
        scaled_embedding=True,
        # The scaled positions are in the config's limit already, unlike elsewhere.
        limit=config.size("max_position_embeddings"),
        windows=sliding_layers(config, lambda index: (index + 1) % pattern != 0),
        extra_parameters=extra_parameters,
        notes=notes,
    )


def _gemma3(config: Config) -> Decoder:
    text = config.sub("text_config", _GEMMA3_TEXT)
    if "vision_config" not in config:
        return _gemma3_text(text)
    extra = _siglip_parameters(config.sub("vision_config", _SIGLIP), text.size("hidden_size"))
    return _gemma3_text(text, extra, ("language model only: its image encoder is counted in memory and not run",))


def _siglip_parameters(vision: Config, text_hidden: int) -> int:
    """Parameters of Gemma 3's image encoder and of the projection to the language model's width."""
    width, inter = vision.size("hidden_size"), vision.size("intermediate_size")
    patch = vision.size("patch_size")
    positions = (vision.size("image_size") // patch) ** 2
    embeddings = width * (vision.size("num_channels") * patch**2 + 1 + positions)
    layer = 4 * (width**2 + width) + 2 * width * inter + inter + width + 4 * width
    return embeddings + vision.layers("num_hidden_layers") * layer + 2 * width + width * (text_hidden + 1)


def _phi3(config: Config) -> Decoder:
    return llama_like(config, fused_qkv=True, fused_gate_up=True, windows=sliding_layers(config, lambda _: True))


def _olmo2(config: Config) -> Decoder:
    return llama_like(config, norm="rms_norm_wide", norms="post", qk_norm="full", rope="rope_wide")


_DECODERS: Mapping[str, tuple[Callable[[Config], Decoder], Mapping[str, Any]]] = {
    "llama": (_llama, {"vocab_size": 32000, "max_position_embeddings": 2048}),
    "aquila": (_llama, {}),
    "mistral": (_mistral, {"max_position_embeddings": 131072}),
    "qwen2": (_qwen2, {}),
    "qwen3": (_qwen3, {"head_dim": 128}),
    "gemma": (_gemma, _GEMMA),
    "gemma2": (_gemma2, _GEMMA),
    "gemma3": (_gemma3, {}),
    "gemma3_text": (_gemma3_text, _GEMMA3_TEXT),
    "phi3": (_phi3, {}),
    "olmo2": (_olmo2, {}),
}


def decoder_builder(
    read: Callable[[Config], Decoder], defaults: Mapping[str, Any]
) -> Callable[[Config, Request], Workload]:
    """A builder of workloads from a reader of configs and the values of keys that configs leave out."""

    def build(config: Config, request: Request) -> Workload:
        filled = Config(config.values, config.name, defaults)
        return decoder_workload(read(filled), config, request)

    return build


BUILDERS = {name: decoder_builder(read, defaults) for name, (read, defaults) in _DECODERS.items()}
