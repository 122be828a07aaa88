"""Caches of keys and values that layers write to: what a layer that is not run would have written is written for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from joulecast.workloads.pytorch_values import empty_like_layout

#: Layers of a cache that hold keys and values and nothing else.
_PLAIN = ("DynamicLayer", "DynamicSlidingWindowLayer")


def is_cache(value: Any) -> bool:
    """Whether a value is a cache with a layer for each layer of a model."""
    return isinstance(getattr(value, "layers", None), list) and callable(getattr(value, "update", None))


def layer_index(module: Any) -> int | None:
    """The number by which a layer knows its place in a cache."""
    for one in module.modules():
        index = getattr(one, "layer_idx", None)
        if isinstance(index, int) and not isinstance(index, bool):
            return index
    return None


def held_in(cache: Any, index: int) -> Any:
    """What a cache holds for a layer, as far as it matters how the layer runs; None where that can't be told."""
    if index >= len(cache.layers):
        return ("empty", len(cache.layers) == index)
    layer = cache.layers[index]
    if type(layer).__name__ not in _PLAIN:
        return None
    keys = getattr(layer, "keys", None)
    window = getattr(layer, "sliding_window", None)
    return (type(layer).__name__, window, tuple(keys.shape) if isinstance(keys, torch.Tensor) else None)


@dataclass
class Written:
    """What a layer wrote to a cache: arguments of its updates, the place apart."""

    updates: list[tuple[Any, Any, tuple[Any, ...], dict[str, Any]]] = field(default_factory=list)

    def again(self, cache: Any, index: int) -> None:
        """Write as much for the layer at `index`."""
        for keys, values, args, kwargs in self.updates:
            cache.update(empty_like_layout(keys, keys), empty_like_layout(values, values), index, *args, **kwargs)


@contextmanager
def watched(cache: Any, index: int) -> Iterator[Written]:
    """Note what is written to `cache` for the layer at `index` while the context lasts."""
    written = Written()
    update = cache.update

    def noted(keys: Any, values: Any, layer_idx: int, *args: Any, **kwargs: Any) -> Any:
        if layer_idx == index:
            written.updates.append((keys, values, args, kwargs))
        return update(keys, values, layer_idx, *args, **kwargs)

    cache.update = noted
    try:
        yield written
    finally:
        del cache.update
