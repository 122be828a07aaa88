"""How tokens spread over the experts of a mixture: experts that are hit, and whole tiles of tokens for each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from joulecast.kernels.work import Floats
from joulecast.workloads.kinds import ROUTINGS

#: Exponent of the power law of each routing; 0 where every expert gets as much.
EXPONENTS = np.array([float(name.rsplit("_", 1)[1]) if name.startswith("power_law") else 0.0 for name in ROUTINGS])

#: Points that stand for the experts of a skewed routing, evenly spaced in rank.
_POINTS = (np.arange(16) + 0.5) / 16.0

#: Most of the tokens that one expert of a skewed routing gets.
_LARGEST_SHARE = 0.8


@dataclass(frozen=True)
class Routed:
    """Load of one GPU's experts; every array has shape (n,).

    Attributes
    ----------
    pairs : ndarray
        Pairs of token and expert that this GPU computes.
    hit : ndarray
        Experts with at least one token.
    tile : ndarray
        Tokens of a tile.
    tiles : ndarray
        Tiles of tokens, over all experts.
    largest : ndarray
        Pairs of the busiest expert.
    """

    pairs: Floats
    hit: Floats
    tile: Floats
    tiles: Floats
    largest: Floats


def coverage(tokens: Any, topk: Any, experts: Any) -> Floats:
    """Expected share of experts that `tokens` hit when each picks `topk` at random, ``1 - (1 - k / E)^T``."""
    miss = np.clip(1.0 - np.asarray(topk, dtype=np.float64) / np.asarray(experts), 0.0, 1.0)
    return np.asarray(1.0 - miss ** np.asarray(tokens))


def power_law(exponent: Floats, largest: Floats) -> Floats:
    """Loads of experts, relative to each other, at the points of a power law between 1 and `largest`.

    Parameters
    ----------
    exponent : ndarray, shape (n,)
        Of the density ``x^-exponent``; not 1.
    largest : ndarray, shape (n,)

    Returns
    -------
    ndarray, shape (n, 16)
        Quantiles, divided by their mean.
    """
    power = (1.0 - exponent)[:, None]
    top = np.maximum(largest, 1.0 + 1e-9)[:, None]
    x = (1.0 + _POINTS * (top**power - 1.0)) ** (1.0 / power)
    return np.asarray(x / x.mean(axis=1, keepdims=True))


def _even(pairs: Floats, experts: Floats, limits: tuple[float, float]) -> Routed:
    hit = np.minimum(experts, np.maximum(np.ceil(pairs), 1.0))
    load = np.maximum(pairs / hit, 1.0)
    tile = _tile(load, limits)
    return Routed(pairs, hit, tile, hit * np.ceil(load / tile), np.ceil(load))


def _tile(load: Floats, limits: tuple[float, float]) -> Floats:
    return np.clip(2.0 ** np.ceil(np.log2(np.maximum(load, 1.0))), *limits)


def route(
    tokens: Floats, topk: Floats, experts: Floats, spread: Floats, routing: Any, limits: tuple[float, float]
) -> Routed:
    """Load of the busiest GPU of an expert group.

    Parameters
    ----------
    tokens : ndarray
        Tokens of the group.
    topk, experts : ndarray
        Experts a token, and experts of the layer.
    spread : ndarray
        GPUs that the experts are spread over.
    routing : ndarray of int
        Index into `joulecast.workloads.kinds.ROUTINGS`.
    limits : tuple of float
        Least and most tokens of a tile.

    Returns
    -------
    Routed
        Even routing hits as many experts as it can. In a skewed one, loads are quantiles of a power law, and the
        busiest of several GPUs gets more than its share (extreme value of a sum of loads).
    """
    own = np.maximum(np.ceil(experts / spread), 1.0)
    topk = np.minimum(topk, experts)
    pairs = np.maximum(tokens * topk / spread, 1.0)
    even = _even(pairs, own, limits)
    exponent = EXPONENTS[routing]
    skewed = np.flatnonzero(exponent > 0)
    if not skewed.size:
        return even
    few = {name: value[skewed] for name, value in (("own", own), ("tokens", tokens), ("spread", spread))}
    relative = power_law(exponent[skewed], _LARGEST_SHARE * few["tokens"])
    variation = np.sqrt(np.maximum((relative**2).mean(axis=1) - 1.0, 0.0))
    extreme = 1.0 + variation * np.sqrt(2.0 * np.log(few["spread"]) / few["own"])
    busiest = np.minimum(pairs[skewed] * extreme, np.minimum(few["own"], topk[skewed]) * few["tokens"])
    load = np.minimum(relative * (busiest / few["own"])[:, None], few["tokens"][:, None])
    hit = np.maximum((few["own"] / 16.0) * np.minimum(load, 1.0).sum(axis=1), 1.0)
    hit = np.minimum(hit, np.maximum(busiest, 1.0))
    tile = _tile(busiest / hit, limits)
    whole = np.where(load >= 1.0, np.ceil(load / tile[:, None]), load)
    out = {name: getattr(even, name).copy() for name in Routed.__dataclass_fields__}
    out["pairs"][skewed], out["hit"][skewed], out["tile"][skewed] = busiest, hit, tile
    out["tiles"][skewed] = np.maximum((few["own"] / 16.0) * whole.sum(axis=1), hit)
    out["largest"][skewed] = np.maximum(load.max(axis=1), 1.0)
    return Routed(**out)
