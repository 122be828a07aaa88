"""Vision transformers: ViT, and CLIP with its image and text towers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from joulecast.errors import InputError, shortened
from joulecast.workloads.config import Config
from joulecast.workloads.models.net import Net, activation, no_generation, token_counts
from joulecast.workloads.request import Request
from joulecast.workloads.table import Workload


@dataclass(frozen=True)
class Tower:
    """A stack of pre-norm transformer layers in numbers."""

    hidden: int
    layers: int
    heads: int
    inter: int
    activation: str
    qkv_bias: bool = True


def tower(config: Config) -> Tower:
    """The tower that a config describes."""
    return Tower(
        hidden=config.size("hidden_size"),
        layers=config.layers("num_hidden_layers"),
        heads=config.size("num_attention_heads"),
        inter=config.size("intermediate_size"),
        activation=activation(config, "hidden_act", default="gelu"),
        qkv_bias=config.flag("qkv_bias", True),
    )


def image_size(config: Config, request: Request) -> int:
    """Rows and columns of the image: as asked, or the model's own."""
    return request.image_size or config.size("image_size", default=224)


def image_notes(config: Config, request: Request) -> tuple[str, ...]:
    """A note where tokens were asked of a model that takes images."""
    if request.prompt_tokens is None:
        return ()
    return (f"{shortened(config.name)} takes images: prompt_tokens is not used",)


def classifier(net: Net, config: Config, features: int) -> None:
    """The head of an image classifier, unless no logits are asked for.

    Its classes are `num_labels`, `num_classes` or the entries of `id2label`, else ImageNet's 1,000.
    """
    if net.request.logits == "none":
        return
    labels = config.values.get("id2label")
    if isinstance(labels, Mapping) and labels and "num_labels" not in config:
        classes = len(labels)
    else:
        classes = config.size("num_labels", "num_classes", default=1000)
    net.linear("classifier", net.request.batch, features, classes, bias=True, head=True)


def emit_layers(net: Net, model: Tower, path: str, batch: int, length: int, *, causal: bool = False) -> None:
    """Pre-norm transformer layers over `batch` sequences of `length` tokens."""
    request = net.request
    rows, hidden, count = batch * length, model.hidden, model.layers
    net.norm("layer_norm", f"{path}.attention_norm", rows, hidden, bias=True, count=count)
    for name in ("q_proj", "k_proj", "v_proj"):
        net.linear(f"{path}.attention.{name}", rows, hidden, hidden, bias=model.qkv_bias, count=count, shard="out")
    shape: dict[str, Any] = {
        "batch_size": batch,
        "num_heads": model.heads,
        "head_dim": max(1, hidden // model.heads),
        "attn_dtype": request.attention_dtype,
    }
    core = f"{path}.attention.core"
    if causal:
        net.op("context_attention", core, count=count, shard="out", query_len=length, **shape)
    else:
        net.op("encoder_attention", core, count=count, shard="out", seq_len=length, **shape)
    net.linear(f"{path}.attention.o_proj", rows, hidden, hidden, bias=True, count=count, shard="in")
    net.elementwise("add", f"{path}.attention_residual", rows * hidden, inputs=2, count=count)
    net.norm("layer_norm", f"{path}.mlp_norm", rows, hidden, bias=True, count=count)
    net.linear(f"{path}.mlp.up_proj", rows, hidden, model.inter, bias=True, count=count, shard="out")
    net.elementwise(model.activation, f"{path}.mlp.activation", rows * model.inter, count=count, shard="out")
    net.linear(f"{path}.mlp.down_proj", rows, model.inter, hidden, bias=True, count=count, shard="in")
    net.elementwise("add", f"{path}.mlp_residual", rows * hidden, inputs=2, count=count)


def _emit_patches(net: Net, config: Config, path: str, size: int, hidden: int, *, bias: bool) -> int:
    """Patches, the class token and positions; returns the tokens an image."""
    request, patch = net.request, config.size("patch_size", default=16)
    if size < patch:
        raise InputError(f"an image of {size} x {size} is smaller than a patch of {shortened(config.name)}, {patch}")
    channels = config.size("num_channels", default=3)
    rows, columns = net.conv(
        f"{path}.patches", request.batch, (channels, hidden), (size, size), (patch, patch), stride=patch, bias=bias
    )
    length = rows * columns + 1
    net.copy(f"{path}.concat", request.batch * length * hidden)
    # Positions are learned at the model's own image size and interpolated to others.
    own = (config.size("image_size", default=224) // patch) ** 2 + 1
    net.weight((own + 1) * hidden)
    net.add_alike(f"{path}.positions", length * hidden)
    return length


def _vit(config: Config, request: Request) -> Workload:
    no_generation(config, request, "a vision model")
    model, size = tower(config), image_size(config, request)
    net = Net(config.name, request)
    batch, hidden = request.batch, model.hidden
    net.begin_pass("forward", tokens=batch)
    length = _emit_patches(net, config, "embeddings", size, hidden, bias=True)
    emit_layers(net, model, "layers.*", batch, length)
    net.norm("layer_norm", "final_norm", batch * length, hidden, bias=True)
    # The checkpoint's own head: a classifier, or the bare model's pooler.
    if any(name.endswith("ForImageClassification") for name in config.words("architectures")):
        classifier(net, config, hidden)
    else:
        pooled = config.size("pooler_output_size", default=hidden)
        if request.pooler:
            net.linear("pooler", batch, hidden, pooled, bias=True)
            net.elementwise("tanh", "pooler.activation", batch * pooled)
        else:
            net.weight(hidden * pooled + pooled, format=request.gemm_dtype)
    net.stream_elements = batch * length * hidden
    return net.build(info={**_facts(config, model, size), "image_tokens": length}, notes=image_notes(config, request))


def _facts(config: Config, model: Tower, size: int) -> dict[str, Any]:
    return {
        "family": config.word("model_type"),
        "image_size": size,
        "hidden_size": model.hidden,
        "num_layers": model.layers,
        "num_heads": model.heads,
        "num_kv_heads": model.heads,
        "kv_bytes_per_token": 0.0,
    }


_CLIP_TEXT = {
    "vocab_size": 49408, "hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 12,
    "num_attention_heads": 8, "max_position_embeddings": 77, "hidden_act": "quick_gelu",
}  # fmt: skip
_CLIP_VISION = {
    "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12,
    "image_size": 224, "patch_size": 32, "num_channels": 3, "hidden_act": "quick_gelu",
}  # fmt: skip


def _clip(config: Config, request: Request) -> Workload:
    no_generation(config, request, "an encoder of text and images")
    text_config = config.sub("text_config", _CLIP_TEXT)
    vision_config = config.sub("vision_config", _CLIP_VISION)
    text, vision = tower(text_config), tower(vision_config)
    joint = config.size("projection_dim", default=512)
    limit = text_config.size("max_position_embeddings")
    prompt = token_counts(config, request, limit)
    size = image_size(vision_config, request)
    vocab = text_config.size("vocab_size")
    net = Net(config.name, request)
    batch = request.batch
    net.begin_pass("forward", tokens=batch)

    patches = _emit_patches(net, vision_config, "vision.embeddings", size, vision.hidden, bias=False)
    net.norm("layer_norm", "vision.input_norm", batch * patches, vision.hidden, bias=True)
    emit_layers(net, vision, "vision.layers.*", batch, patches)
    net.norm("layer_norm", "vision.final_norm", batch, vision.hidden, bias=True)
    net.linear("vision.projection", batch, vision.hidden, joint)

    rows = batch * prompt
    net.embedding("text.embeddings", rows, text.hidden, vocab)
    net.positions("text.positions", "text.add", prompt, text.hidden, limit)
    emit_layers(net, text, "text.layers.*", batch, prompt, causal=True)
    net.norm("layer_norm", "text.final_norm", rows, text.hidden, bias=True)
    net.chain("text.last_token", rows, "cast:fp64>fp32 other:fp32>int8 cast:int8>fp32")
    net.reduction("max", "text.last_token", batch, prompt)
    net.op("gather", "text.last_token", rows=batch, dim=text.hidden, table_rows=rows, dtype=net.act)
    net.linear("text.projection", batch, text.hidden, joint)

    for name in ("vision", "text"):
        net.elementwise("pow", f"{name}.length", batch * joint)
        net.reduction("sum", f"{name}.length", batch, joint)
        net.elementwise("pow", f"{name}.length", batch)
        net.elementwise("div", f"{name}.length", batch * joint)
    net.weight(1)
    net.linear("similarity", batch, joint, batch, stored=0, head=True)
    net.elementwise("exp", "similarity.scale", 1, flop=8)
    net.elementwise("mul", "similarity.scale", batch * batch)
    net.stream_elements = batch * max(patches * vision.hidden, prompt * text.hidden)
    facts = _facts(config, vision, size)
    return net.build(
        info={
            **facts,
            "image_tokens": patches,
            "prompt_tokens": prompt,
            "vocab_size": vocab,
            "max_tokens": limit,
            "module_calls": 6 * (vision.layers + text.layers) + 13,
        }
    )


BUILDERS = {"vit": _vit, "clip": _clip}
