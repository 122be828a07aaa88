"""What an attention mask lets through: causal, a sliding window, or some number of keys a query."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.utils._python_dispatch import _disable_current_modes

#: An additive mask hides what it lowers by this much or more.
_HIDDEN = -1e3

#: Queries of a longer mask that are looked at, spread evenly.
_LOOKED_AT = 512


@dataclass(frozen=True)
class Seen:
    """What queries see.

    Attributes
    ----------
    causal : bool
        Whether each query sees the keys up to its own place, the last query the last key.
    window : int
        Keys that a query sees at most, itself among them, in a causal mask; 0 for all before it.
    keys : int
        Keys that a query sees on average, where the mask is not causal.
    past : int or None
        Keys before the first query, where the mask is causal.
    """

    causal: bool
    window: int = 0
    keys: int = 0
    past: int | None = None


def is_mask(value: torch.Tensor) -> bool:
    """Whether a tensor holds words, or nothing but zeros and numbers that hide."""
    if value.dtype is torch.bool:
        return True
    if value.layout is not torch.strided:
        return False
    with _disable_current_modes():
        return value.dtype.is_floating_point and bool(((value == 0) | (value <= _HIDDEN)).all())


def seen_through(mask: torch.Tensor, queries: int, keys: int) -> Seen | None:
    """What the mask `mask` (True or 0 lets through) shows of `keys` keys to `queries` queries.

    Returns
    -------
    Seen or None
        None where the mask has other sizes.
    """
    with _disable_current_modes():  # what is looked up here is not part of a program that is being recorded
        return _seen_through(mask, queries, keys)


def _seen_through(mask: torch.Tensor, queries: int, keys: int) -> Seen | None:
    if mask.dim() < 2 or mask.shape[-1] != keys or mask.shape[-2] not in (1, queries):
        return None
    while mask.dim() > 2:  # padding differs between sequences; the first stands for all
        mask = mask[0]
    shown = mask if mask.dtype is torch.bool else mask > _HIDDEN
    shown = shown.expand(queries, keys)
    rows = torch.arange(queries)
    if queries > _LOOKED_AT:
        rows = torch.linspace(0, queries - 1, _LOOKED_AT).long()
    shown = shown[rows].long()
    count = shown.sum(-1)
    if int(count.sum()) == 0:
        return Seen(False, keys=keys)
    place = torch.arange(1, keys + 1)
    last = (shown * place).amax(-1)
    first = keys + 1 - (shown * place.flip(0)).amax(-1)
    unbroken = bool(((last - first + 1) == count).all())
    past = int(last[0]) - 1
    if unbroken and queries > 1 and bool((last == rows + past + 1).all()):
        if bool((first == 1).all()):
            return Seen(True, past=past)
        window = int(count.max())
        if bool((first == torch.clamp(last - window + 1, min=1)).all()):
            return Seen(True, window=window, past=past)
    return Seen(False, keys=max(1, min(keys, round(float(count.double().mean())))))
