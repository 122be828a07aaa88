"""The ways in which models of transformers take a picture or a sound, to be tried one after the other."""

from __future__ import annotations

from typing import Any

import torch


def attribute(config: Any, *names: str, default: Any = None) -> Any:
    """The first of `names` that a config has, in itself or in its nested configs."""
    for name in names:
        try:
            value = getattr(config, name, None)
        except Exception:  # differs from layer to layer
            continue
        if value is not None:
            return value
    return default


def part(config: Any, *names: str) -> Any:
    """A nested config by its name, in the config or in that of the model it wraps, or the config itself."""
    for holder in (config, getattr(config, "vlm_config", None)):
        for name in names:
            found = getattr(holder, name, None)
            if found is not None and not isinstance(found, dict | str | int):
                return found
    return config


def other_layouts(made: dict[str, Any], config: Any) -> list[dict[str, Any]]:
    """`made` with its picture or sound laid out in the other ways that models take one."""
    vision = part(config, "vision_config", "vision")
    patch = attribute(vision, "patch_size", default=16)
    patch = patch if isinstance(patch, int) else 16
    out: list[dict[str, Any]] = []
    pixels = made.get("pixel_values")
    if isinstance(pixels, torch.Tensor) and pixels.dim() >= 2:
        batch = 1 if pixels.dim() == 2 else pixels.shape[0]
        channels = attribute(vision, "num_channels", "in_channels", "in_chans", default=3)
        size = pixels.shape[-1] if pixels.dim() > 3 else 16 * patch
        depth = attribute(vision, "temporal_patch_size", default=1)
        frames = attribute(config, "num_frames", default=8)
        shapes: list[tuple[int, ...]] = [
            (batch, channels, size, size), (batch, 1, channels, size, size), (batch, 8, channels, size, size),
            (batch, frames, channels, size, size),
            (batch, channels, 8, size, size), (batch, 256, channels * patch * patch),
            (256 * batch, channels * patch * patch), (256 * batch, channels * depth * patch * patch),
            (256 * batch, channels, patch, patch), (batch, channels, 1536, 1536),
            (batch, channels, 16 * patch, 16 * patch), (batch, channels, 1024, 1024),
            (batch, channels, 32 * patch, 32 * patch), (batch, 1, channels, 16 * patch, 16 * patch),
            (batch, 1, attribute(vision, "max_num_tiles", default=1), channels, size, size),
        ]  # fmt: skip
        merge = attribute(vision, "spatial_merge_size", "merge_size", default=0)
        if isinstance(merge, int) and merge:  # pieces as the language model takes them, colours last
            shapes.append((256 * batch, merge * patch, merge * patch, channels))
        for shape in dict.fromkeys(shapes):
            again = {**made, "pixel_values": torch.zeros(shape)}
            if len(shape) == 5 and "pixel_attention_mask" in made:  # which of the pictures are there
                again["pixel_attention_mask"] = torch.ones(shape[:2], dtype=torch.bool)
            out.append(again)
    states = made.get("hidden_states")
    if isinstance(states, torch.Tensor) and states.dim() == 3:
        out.append({**made, "hidden_states": torch.zeros(states.shape[0], states.shape[2], states.shape[1])})
        width = attribute(config, "in_channels", "channels", "latent_dim", "num_channels", default=1)
        out.append({**made, "hidden_states": torch.zeros(states.shape[0], width, 24000)})
        latent = attribute(config, "latent_channels", "z_channels", default=width)
        out.append({**made, "hidden_states": torch.zeros(states.shape[0], latent, 16, 16)})
    sound = made.get("input_values", made.get("input_features"))
    if isinstance(sound, torch.Tensor):
        name = "input_values" if "input_values" in made else "input_features"
        audio = part(config, "audio_config", "encoder_config", "audio_encoder_config")
        mels = attribute(audio, "num_mel_bins", "input_feat_size", "n_mels", "input_dim", "feature_size", default=80)
        mels, batch = mels if isinstance(mels, int) else 80, sound.shape[0]
        lengths = (1024, 3000, 512, 48000, 38400, 24000 * 4)
        layouts: list[tuple[int, ...]] = []
        for length in lengths:
            layouts += [(batch, length, mels), (batch, mels, length), (batch, length), (batch, 1, length)]
        layouts += [(batch, 512, 320), (batch, 512, 128), (batch, 1024, 640), (mels, 1024)]
        for shape in layouts:
            if shape == tuple(sound.shape):
                continue
            again = {**made, name: torch.zeros(shape)}
            for mask in ("input_features_mask", "padding_mask"):
                if mask in made:
                    long = max(shape[1:])
                    again[mask] = torch.ones(batch, long, dtype=torch.int64)
            out.append(again)
    return out
