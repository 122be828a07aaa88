"""`flex_attention` recorded as the one kernel that a compiler makes of it, with the blocks that its mask lets in."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from joulecast.workloads.pytorch_macros import Macro, Macros, whole
from joulecast.workloads.pytorch_masks import seen_through
from joulecast.workloads.pytorch_shapes import attention, attention_gradient
from joulecast.workloads.pytorch_values import Values, has_no_data

_MODULE = "torch.nn.attention.flex_attention"
_INJECTED = "_recorded_flex_attention"
_NAMES = ("query", "key", "value", "score_mod", "block_mask", "scale", "enable_gqa", "return_lse")


@contextmanager
def flex_recorded(mode: Macros) -> Iterator[None]:
    """`flex_attention` on tensors without data is recorded while the context lasts.

    Programs have the function under names of their own, compiled or not, so that its code is exchanged and not its
    name. It is left alone where nothing has imported it.
    """
    module = sys.modules.get(_MODULE)
    if module is None:
        yield
        return
    function = module.flex_attention
    code = function.__code__
    kept = type(function)(code, function.__globals__, function.__name__, function.__defaults__)
    kept.__kwdefaults__ = function.__kwdefaults__
    function.__globals__[_INJECTED] = _recorded(mode, kept)
    function.__code__ = _stand_in.__code__
    try:
        yield
    finally:
        function.__code__ = code
        del function.__globals__[_INJECTED]


def _stand_in(*args: Any, **kwargs: Any) -> Any:
    """What `flex_attention` runs; the name is looked up in its own module."""
    return _recorded_flex_attention(*args, **kwargs)  # type: ignore[name-defined]  # noqa: F821


def _recorded(mode: Macros, original: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        given = dict(zip(_NAMES, args, strict=False)) | kwargs
        q, k, v = given["query"], given["key"], given["value"]
        if not has_no_data(q) or mode.recorder.suspended or q.dim() != 4:
            return original(*args, **kwargs)
        out = whole(mode.recorder, _attention(mode.recorder.values, q, k, v, given.get("block_mask")), q, k, v)
        with mode.recorder.pause():
            sums = q.new_empty(q.shape[:-1], dtype=torch.float32)
        if given.get("return_aux") is not None:
            return out, sys.modules[_MODULE].AuxOutput(lse=sums, max_scores=sums)
        return (out, sums) if given.get("return_lse") else out

    return call


def _attention(values: Values, q: Tensor, k: Tensor, v: Tensor, mask: Any) -> Macro:
    details: dict[str, Any] = {"causal": False}
    blocks = None if mask is None else _blocks(values, mask)
    if blocks is not None:
        side = mask.BLOCK_SIZE[1]
        seen = seen_through(blocks, *blocks.shape)
        if seen is not None and seen.causal:
            past = max(k.shape[-2] - q.shape[-2], 0) if seen.past else 0
            details = {"causal": True, "window": seen.window * side, "past": past}
        elif seen is not None:
            details["keys"] = min(seen.keys * side, k.shape[-2])
    forward = attention(q, k, v, **details)

    def run(tensors: Any) -> Tensor:
        shape = (q.shape[0], q.shape[2], q.shape[1], v.shape[-1])
        return tensors[0].new_empty(shape).transpose(1, 2)

    return Macro("flex_attention", run, forward, attention_gradient(forward))


def _blocks(values: Values, mask: Any) -> Tensor | None:
    """Which blocks of keys those of queries see, of the first head of the first sequence; None where not known."""
    parts = [(mask.kv_num_blocks, mask.kv_indices), (mask.full_kv_num_blocks, mask.full_kv_indices)]
    seen: Tensor | None = None
    for numbers, places in parts:
        if numbers is None:
            continue
        count, place = values.of(numbers), values.of(places)
        if count is None or place is None:
            return None
        with _disable_current_modes():
            count, place = count[0, 0].long(), place[0, 0].long()
            chosen = torch.arange(place.shape[-1]) < count[:, None]
            found = torch.zeros(place.shape, dtype=torch.bool).scatter(1, place, chosen)
            seen = found if seen is None else seen | found
    return seen
