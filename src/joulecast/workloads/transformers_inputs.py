"""Inputs for models of transformers, made from the config and from what the model's forward takes."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from joulecast.workloads.transformers_layouts import attribute, other_layouts, part
from joulecast.workloads.transformers_repairs import placeholder


@dataclass(frozen=True)
class Sizes:
    """What is asked of the inputs.

    Attributes
    ----------
    batch, tokens, decoder_tokens : int
    image_size : int or None
        Rows and columns of an image; the model's own where None.
    frames : int
        Frames of audio features; samples are 320 each.
    past : int or None
        Tokens before those, whose keys and values a model is handed; as many as `tokens` where None.
    """

    batch: int = 1
    tokens: int = 64
    decoder_tokens: int = 1
    image_size: int | None = None
    frames: int = 512
    past: int | None = None


def forward_names(model: Any) -> list[str]:
    """Parameters of a model's forward, in order."""
    names = list(inspect.signature(model.forward).parameters)
    return [one for one in names if one not in ("self", "args", "kwargs")]


def required_names(model: Any) -> list[str]:
    """Those of `forward_names` that have no default."""
    return [
        name
        for name, one in inspect.signature(model.forward).parameters.items()
        if one.default is inspect.Parameter.empty and one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)
    ]


def attempts(model: Any, config: Any, sizes: Sizes) -> list[dict[str, Any]]:
    """Inputs to try, the most complete first: all that the model takes, its main input, text alone.

    Parameters
    ----------
    model : PreTrainedModel
    config : PretrainedConfig
    sizes : Sizes

    Returns
    -------
    list of mapping
        Keyword arguments of the model's forward, tensors on the CPU of which integers have values.
    """
    names = forward_names(model)
    makers = input_makers(config, sizes)
    main = getattr(model, "main_input_name", "input_ids")
    main = main if isinstance(main, str) else main[0]
    required = required_names(model)
    groups: list[list[str]] = []
    rich = [name for name in names if name in makers and name not in _OPTIONAL]
    if any(one in names for one in _SOUND):  # then it stands for any of them
        rich = [name for name in rich if name != "inputs"]
    if placeholder(config) is not None and "pixel_values" in rich:
        groups.append([name for name in rich if name in ("input_ids", "pixel_values", "image_grid_thw", "image_sizes")])
    groups += [
        _one_of_each(rich, main),
        [name for name in names if name in required or name == main],
        [main, *required],
        ["pixel_values"], ["input_features"], ["input_values"],
        ["input_ids", "pixel_values"], ["input_ids", "decoder_input_ids"], ["input_ids"], ["inputs_embeds"],
    ]  # fmt: skip
    out: list[dict[str, Any]] = []
    seen: list[list[str]] = []
    for group in groups:
        chosen = [name for name in dict.fromkeys(group) if name in names and name in makers]
        missing = [name for name in required if name not in chosen and name in makers]
        chosen += missing
        if not chosen or sorted(chosen) in seen:
            continue
        seen.append(sorted(chosen))
        made = {name: makers[name]() for name in chosen}
        out.append(_fitted(made, config))
    others = [again for made in out[:2] for again in other_layouts(made, config)]
    bare = [not any(name in made for name in (*_SOUND, *_PICTURE)) for made in out]
    whole = [made for made, alone in zip(out, bare, strict=True) if not alone]
    return [*whole, *others, *(made for made, alone in zip(out, bare, strict=True) if alone)]


#: Inputs that change what runs little, or that are made by the model itself.
_OPTIONAL = frozenset(
    {"attention_mask", "inputs_embeds", "decoder_inputs_embeds", "position_ids", "token_type_ids", "pixel_mask",
     "decoder_attention_mask", "labels", "pixel_values_videos", "video_grid_thw", "input_boxes", "input_points",
     "mask_labels", "class_labels", "second_per_grid_ts", "encoder_hidden_states", "noise",
     "aspect_ratio_ids", "aspect_ratio_mask", "cross_attention_mask"}
)  # fmt: skip

#: Tokens of what is to be found in a picture, and of how many such names one is to be chosen.
_NAMED, _CHOICES = 16, 4

_SOUND = ("input_features", "input_values", "audio_values", "input_audio_features")
_PICTURE = ("pixel_values", "pixel_values_images", "flattened_patches", "pixel_values_videos")


def _one_of_each(names: list[str], main: str) -> list[str]:
    """Each kind of input once: text, picture, sound."""
    out: list[str] = [main] if main in names else []
    for group in (_SOUND, _PICTURE):
        if any(one in out for one in group):
            continue
        out += [one for one in names if one in group][:1]
    return out + [one for one in names if one not in out and one not in _SOUND and one not in _PICTURE]


def input_makers(config: Any, sizes: Sizes) -> dict[str, Callable[[], Any]]:
    """How to make each input that a model of transformers may take, by its name."""
    text = part(config, "text_config", "text", "decoder", "language_config", "llm_config")
    vision = part(config, "vision_config", "vision", "backbone_config", "vq_config", "encoder")
    audio = part(config, "audio_config", "speech_config", "audio_encoder_config", "encoder_config", "encoder")
    batch, tokens = sizes.batch, sizes.tokens
    limit = attribute(text, "max_position_embeddings", "n_positions", "max_seq_len", "max_length")
    if isinstance(limit, int) and limit > 8:
        tokens = min(tokens, limit)
    hidden = attribute(text, "hidden_size", "d_model", "n_embd", "dim", default=64)
    size = sizes.image_size or _image_size(vision, config)
    channels = attribute(vision, "num_channels", "in_channels", "in_chans", default=3)
    mels = attribute(
        audio,
        "num_mel_bins",
        "feature_size",
        "n_mels",
        "input_dim",
        "num_mel_channels",
        "input_feat_per_channel",
        "num_chroma",
        default=80,
    )
    frames = _frames(audio, sizes)

    def ids(length: int) -> Callable[[], Tensor]:
        return lambda: _ordinary(config, text, batch, length)

    height, width = size if isinstance(size, tuple) else (size, size)
    codebooks = attribute(part(config, "decoder"), "num_codebooks", default=1) if part(config, "decoder") else 1
    side = _side(vision)
    videos = attribute(vision, "num_frames", "frames_per_clip", default=8)
    makers: dict[str, Callable[[], Any]] = {
        "input_ids": ids(tokens),
        "decoder_input_ids": lambda: ids(max(sizes.decoder_tokens, 1))().repeat(codebooks, 1),
        "attention_mask": lambda: torch.ones(batch, tokens, dtype=torch.int64),
        "inputs_embeds": lambda: torch.zeros(batch, tokens, hidden),
        "pixel_values": lambda: _pixels(config, vision, batch, channels, height, width),
        "pixel_values_images": lambda: torch.zeros(batch, channels, height, width),
        "pixel_values_videos": lambda: torch.zeros(batch, videos, channels, height, width),
        "video": lambda: torch.zeros(batch, videos, channels, height, width),
        "flattened_patches": lambda: torch.zeros(
            batch, 128, 2 + channels * attribute(vision, "patch_size", default=16) ** 2
        ),
        "input_features": lambda: _features(config, audio, batch, mels, frames),
        "input_values": lambda: _samples(config, batch, mels, frames),
        "audio_values": lambda: torch.zeros(batch, 1, 16384),
        "bbox": lambda: torch.zeros(batch, tokens, 4, dtype=torch.int64),
        "visual_feats": lambda: torch.zeros(batch, 36, attribute(config, "visual_feat_dim", default=2048)),
        "visual_pos": lambda: torch.zeros(batch, 36, 4),
        "visual_embeds": lambda: torch.zeros(batch, 36, attribute(config, "visual_embedding_dim", default=512)),
        "image_grid_thw": lambda: torch.tensor([[1, 16, 16]] * batch),
        "grid_thw": lambda: torch.tensor([[1, 16, 16]] * batch),
        "image_sizes": lambda: torch.tensor([[height, width]] * batch),
        "past_values": lambda: torch.zeros(batch, *_series(config)),
        "past_time_features": lambda: torch.zeros(
            batch, _series(config)[0], attribute(config, "num_time_features", default=1) or 1
        ),
        "past_observed_mask": lambda: torch.ones(batch, *_series(config)),
        "query_embeds": lambda: torch.zeros(batch, 32, hidden),
        "latents": lambda: torch.zeros(batch, attribute(config, "hidden_size", default=hidden), 16),
        "audio_mel": lambda: torch.zeros(batch, frames, mels),
        "audio_mel_mask": lambda: torch.zeros(batch, frames, dtype=torch.bool),
        "input_features_mask": lambda: torch.ones(batch, frames, dtype=torch.int64),
        "merge_sizes": lambda: torch.ones(batch, dtype=torch.int64),
        "spatial_shapes": lambda: torch.tensor([[16, 16]] * batch),
        "pixel_attention_mask": lambda: torch.ones(batch, 256, dtype=torch.int64),
        "pixel_position_ids": lambda: _places(batch, side),
        "image_position_ids": lambda: _places(batch, side),
        "target_sizes": lambda: torch.tensor([[16, 16]] * batch),
        "state": lambda: torch.zeros(batch, attribute(config, "max_state_dim", "state_dim", default=32)),
        "prompt_pixel_values": lambda: torch.zeros(batch, channels, height, width),
        "prompt_masks": lambda: torch.zeros(batch, channels, height, width),
        "input_boxes": lambda: torch.zeros(batch, 1, 4),
        "input_points": lambda: torch.zeros(batch, 1, 1, 2),
        "pixel_mask": lambda: torch.ones(batch, height, width, dtype=torch.int64),
        "input_embeddings": lambda: torch.zeros(batch, tokens, hidden),
        "hidden_states": lambda: torch.zeros(batch, tokens, hidden),
        "spectrogram": lambda: torch.zeros(batch, frames, mels),
        "text_input_ids": ids(tokens),
        "tasks_input_ids": ids(_NAMED),
        "tasks_attention_mask": lambda: torch.ones(batch, _NAMED, dtype=torch.int64),
        "classes_input_ids": lambda: _ordinary(config, text, batch * _CHOICES, _NAMED),
        "classes_attention_mask": lambda: torch.ones(batch * _CHOICES, _NAMED, dtype=torch.int64),
        "classes_structure": lambda: torch.full((batch,), _CHOICES, dtype=torch.int64),
        "task_inputs": ids(attribute(config, "task_seq_len", default=77)),
        "states": lambda: torch.zeros(batch, 8, attribute(config, "state_dim", default=17)),
        "actions": lambda: torch.zeros(
            batch,
            attribute(config, "chunk_size", default=8),
            attribute(config, "act_dim", "max_action_dim", default=4),
        ),
        "rewards": lambda: torch.zeros(batch, 8, 1),
        "returns_to_go": lambda: torch.zeros(batch, 8, 1),
        "timesteps": lambda: torch.arange(8).repeat(batch, 1),
        "input_nodes": lambda: torch.zeros(batch, 8, 1, dtype=torch.int64),
        "image_embeds_position_mask": lambda: torch.tensor(
            [[0, *([1] * min(64, tokens - 1))] + [0] * max(tokens - 65, 0)] * batch
        ),
        "qformer_input_ids": lambda: torch.ones(batch, 8, dtype=torch.int64),
        "entity_ids": lambda: torch.zeros(batch, 4, dtype=torch.int64),
        "entity_position_ids": lambda: torch.zeros(batch, 4, 4, dtype=torch.int64),
        "speaker_embeddings": lambda: torch.zeros(batch, attribute(config, "speaker_embedding_dim", default=512)),
        "codebook_idx": lambda: 1,
        "inputs": lambda: torch.zeros(batch, tokens, hidden),
        "noise_embeds": lambda: torch.zeros(batch, tokens, hidden),
        "context_hidden_states": lambda: torch.zeros(batch, tokens, hidden),
        "encoder_hidden_states": lambda: torch.zeros(
            batch, tokens, attribute(config, "encoder_hidden_size", "cross_attention_dim", default=hidden)
        ),
        "image_attention_mask": lambda: torch.ones(batch, tokens, 1, dtype=torch.int64),
        "feature_attention_mask": lambda: torch.ones(batch, frames, dtype=torch.int64),
        "noise": lambda: makers["actions"](),
        "shared_kv_states": lambda: _shared_cache(text, batch, sizes.past or tokens),
        "timestep": lambda: torch.ones(batch),
        "aspect_ratio_ids": lambda: torch.ones(batch, 1, dtype=torch.int64),
        "aspect_ratio_mask": lambda: torch.ones(batch, 1, _tiles(vision), dtype=torch.int64),
        "cross_attention_mask": lambda: torch.ones(batch, tokens, 1, _tiles(vision), dtype=torch.int64),
    }
    return makers


def _ordinary(config: Any, text: Any, batch: int, length: int) -> Tensor:
    """Indices that mean nothing: no padding, no end, no image or sound."""
    vocab = attribute(text, "vocab_size", default=attribute(config, "vocab_size", default=128))
    vocab = vocab if isinstance(vocab, int) else 128
    special = {
        value
        for one in (config, text)
        for key, value in getattr(one, "__dict__", {}).items()
        if key.endswith(("_token_id", "token_index")) and isinstance(value, int)
    }
    free = next((one for one in range(min(5, vocab - 1), vocab) if one not in special), 0)
    return torch.full((batch, length), free, dtype=torch.int64)


def _fitted(made: dict[str, Any], config: Any) -> dict[str, Any]:
    """Inputs that go together: patches in rows of a grid, a text that has a place for each of them."""
    vision = part(config, "vision_config", "vision")
    grid = next((made[name] for name in ("image_grid_thw", "grid_thw") if name in made), None)
    patches = next((name for name in ("pixel_values", "hidden_states") if name in made), None)
    if "spatial_shapes" in made or "pixel_position_ids" in made:
        size = attribute(vision, "patch_size", default=16)
        pieces = 256 if "spatial_shapes" in made else _side(vision) ** 2
        made["pixel_values"] = torch.zeros(1, pieces, attribute(vision, "num_channels", default=3) * size * size)
    if grid is not None and patches is not None:
        patch = attribute(vision, "patch_size", "spatial_patch_size", default=14)
        depth = attribute(vision, "temporal_patch_size", default=1)
        width = attribute(vision, "in_channels", "in_chans", "num_channels", default=3) * depth * patch * patch
        made[patches] = torch.zeros(int(grid.prod(-1).sum()), width)
    return made


def _shared_cache(text: Any, batch: int, tokens: int) -> dict[str, tuple[Tensor, Tensor]]:
    """Keys and values that layers of each kind read instead of making their own."""
    made: dict[str, tuple[Tensor, Tensor]] = {}
    layers = attribute(text, "per_layer_config")
    for place, kind in enumerate(attribute(text, "layer_types", default=())):
        layer = text if layers is None else layers[place]
        shape = (batch, attribute(layer, "num_key_value_heads", default=1), tokens)
        made[kind] = (torch.zeros(*shape, layer.head_dim), torch.zeros(*shape, layer.head_dim))
    return made


def _tiles(vision: Any) -> int:
    """Tiles that a picture is cut into at most."""
    return int(attribute(vision, "max_num_tiles", default=1))


def _side(vision: Any) -> int:
    """Rows and columns of patches: 16, or as many below that a model can pool."""
    pooled = attribute(vision, "pooling_kernel_size", default=1)
    return 16 - 16 % pooled if isinstance(pooled, int) and 0 < pooled <= 16 else 16


def _places(batch: int, side: int) -> Tensor:
    """Row and column of each of the patches in a square."""
    rows, columns = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    return torch.stack([columns.flatten(), rows.flatten()], -1).repeat(batch, 1, 1)


def _image_size(vision: Any, config: Any) -> tuple[int, int]:
    size = attribute(vision, "image_size", "img_size", "input_size", "crop_size", "size")
    for nested in (config, *(getattr(vision, "__dict__", {}).values()), *(getattr(config, "__dict__", {}).values())):
        if size is None and (nested is config or hasattr(nested, "model_type")):
            size = attribute(nested, "image_size", "img_size", "max_img_size")
    if isinstance(size, dict):
        size = size.get("height") or size.get("shortest_edge") or 224
    if isinstance(size, list | tuple):
        return (int(size[0]), int(size[1] if len(size) > 1 else size[0]))
    return (int(size), int(size)) if isinstance(size, int) and 0 < size <= 4096 else (224, 224)


def _pixels(config: Any, vision: Any, batch: int, channels: int, height: int, width: int) -> Tensor:
    kind = str(getattr(config, "model_type", ""))
    if any(one in kind for one in ("videomae", "timesformer", "vivit", "vjepa", "x_clip", "xclip", "video")):
        frames = attribute(vision, "num_frames", "frames_per_clip", default=attribute(config, "num_frames", default=8))
        return torch.zeros(batch, frames, channels, height, width)
    if any(
        one in kind for one in ("idefics", "smolvlm", "mllama", "llava_next", "llava_onevision", "mantis", "udop_x")
    ):
        return torch.zeros(batch, 1, channels, height, width)
    if "superglue" in kind or "lightglue" in kind or "loftr" in kind:
        return torch.zeros(batch, 2, channels, height, width)
    return torch.zeros(batch, channels, height, width)


def _frames(audio: Any, sizes: Sizes) -> int:
    source = attribute(audio, "max_source_positions")
    if isinstance(source, int) and 0 < source <= 4096:
        return 2 * source  # two frames a position, of which the model takes all or none
    longest = attribute(audio, "max_length", "spectrogram_length")
    return int(longest) if isinstance(longest, int) and 64 <= longest <= 4096 else sizes.frames


def _features(config: Any, audio: Any, batch: int, mels: int, frames: int) -> Tensor:
    kind = str(getattr(config, "model_type", ""))
    if "clap" in kind:
        return torch.zeros(batch, 1, 1001, attribute(audio, "num_mel_bins", default=64))
    if any(
        one in kind
        for one in (
            "whisper",
            "audio_flamingo",
            "qwen2_audio",
            "omni",
            "voxtral",
            "glmasr",
            "audioflamingo",
            "ultravox",
            "musicflamingo",
        )
    ):
        return torch.zeros(batch, mels, frames)
    feature_size = attribute(audio, "feature_projection_input_dim", "input_dim", "num_mel_bins", default=mels)
    return torch.zeros(batch, frames, feature_size)


def _samples(config: Any, batch: int, mels: int, frames: int) -> Tensor:
    kind = str(getattr(config, "model_type", ""))
    if any(one in kind for one in ("encodec", "dac", "mimi", "xcodec", "snac", "higgs")):
        return torch.zeros(batch, attribute(config, "audio_channels", default=1), 24000)
    if "audio-spectrogram" in kind or kind == "ast":
        return torch.zeros(batch, frames, mels)
    if "speecht5" in kind or "pop2piano" in kind:
        return torch.zeros(batch, 16000)
    if "patchtst" in kind:
        return torch.zeros(batch, *_series(config))
    return torch.zeros(batch, 320 * min(frames, 100))


def _series(config: Any) -> tuple[int, ...]:
    length = attribute(config, "context_length", "prediction_length", default=64)
    lags = attribute(config, "lags_sequence", default=[0])
    channels = attribute(config, "num_input_channels", "input_size", default=1)
    length = int(length) + (max(lags) if isinstance(lags, list | tuple) and lags else 0)
    return (length, channels) if channels > 1 or "patch" in str(getattr(config, "model_type", "")) else (length,)


def float_inputs(inputs: dict[str, Any], dtype: Any) -> dict[str, Any]:
    """`inputs` with their floating-point tensors in `dtype`."""

    def cast(one: Any) -> Any:
        return one.to(dtype) if isinstance(one, torch.Tensor) and one.dtype.is_floating_point else one

    made = {name: tree_map(cast, one) for name, one in inputs.items()}
    for name in {*_PICTURE, *_SOUND} & made.keys():  # one of zeros would be padding
        if made[name].dtype.is_floating_point:
            made[name] = torch.full_like(made[name], 0.5)
    return made
