"""Trains the correction of a family: one small network for all GPUs, and an output of its own for each measured one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from joulecast.coefficients.corrections import CorrectionModel
from joulecast.coefficients.schema import TimeCoefficients
from joulecast.gpus import Gpu
from joulecast.kernels.work import KernelWork
from joulecast.physics.correction import (
    DISTANCE_FEATURES,
    aligned,
    correction_features,
    feature_names,
    in_deviations,
)
from joulecast.physics.timing import duration_s, module_times, parameters_by_row

Floats = npt.NDArray[np.float64]
Singles = npt.NDArray[np.float32]


_HIDDEN_WEIGHT = 0.3

#: Weight of a shared output that lies above rows that it may lie above.
_ABOVE_WEIGHT = 0.15

#: Steps that training takes at least, however few the rows.
FEWEST_STEPS = 2000

#: Share of the hidden weights that is forgotten at each step, over the learning rate: what no row asks for fades.
#: (For times 0.1 does best on shapes that were left out, over products, attention and experts.)
FORGOTTEN = 0.1


@dataclass(frozen=True)
class CorrectionBatch:
    """Measured operations that a correction learns from.

    Attributes
    ----------
    work : KernelWork
    gpu : Gpu
    engine : str
    per_group : list of TimeCoefficients
        Efficiencies of each group of `work`, as they will be when the correction is used.
    time_s : ndarray, shape (n,)
        Measured times. [s]
    clock_mhz : float or ndarray, shape (n,)
        Core clock of each row. [MHz]
    weight : float
        Weight of each row.
    """

    work: KernelWork
    gpu: Gpu
    engine: str
    per_group: list[TimeCoefficients]
    time_s: Floats
    clock_mhz: float | Floats
    weight: float = 1.0


@dataclass(frozen=True)
class TrainingRows:
    """What a network learns from: rows of one GPU and engine.

    Attributes
    ----------
    features : ndarray, shape (n, f)
    names : tuple of str
        Of the features.
    target : ndarray, shape (n,)
        Natural logarithm of the factor.
    key : ndarray of int, shape (n,)
        Index into `keys`.
    keys : tuple of str
        ``gpu/engine/group``, one for each output of its own.
    weight : ndarray, shape (n,)
    common : bool
        Whether they tell of what all GPUs share, not only of their own outputs.
    at_least : bool
        Whether what all share may lie above the targets of these rows, though not below.
    """

    features: Singles
    names: tuple[str, ...]
    target: Singles
    key: npt.NDArray[np.intp]
    keys: tuple[str, ...]
    weight: Singles
    common: bool = True
    at_least: bool = False

    def take(self, rows: Any) -> TrainingRows:
        """The rows at `rows` (indices or mask)."""
        cut = {name: getattr(self, name)[rows] for name in ("features", "target", "key", "weight")}
        return replace(self, **cut)


def fit_correction(
    batches: Sequence[CorrectionBatch],
    *,
    hidden: tuple[int, ...] = (96, 64),
    epochs: int = 60,
    most_rows: int = 20000,
    shared_share: float = 0.3,
    own_strength: float = 1e-4,
    rate: float = 8e-3,
    forgotten: float = FORGOTTEN,
    members: int = 1,
    seed: int = 0,
) -> CorrectionModel:
    """The correction that brings predicted times closest to measured ones.

    Parameters
    ----------
    batches : sequence of CorrectionBatch
        All of one family.
    hidden : tuple of int
        Widths of the hidden layers.
    epochs : int
        Passes over the rows; more where they are few.
    most_rows : int
        A random sample of so many rows a batch is used.
    shared_share : float
        Share of the rows that train the shared output alone, as on a GPU that was never measured.
    own_strength : float
        Penalty on the square of the outputs that GPUs have of their own.
    rate : float
        Highest learning rate.
    forgotten : float
        Share of the hidden weights that decays at each step, over the learning rate.
    members : int
        Networks that are trained from different starts; the correction is their mean, as one network of their layers.
    seed : int
        Same seed and rows, same model.

    Returns
    -------
    CorrectionModel
    """
    if not batches:
        raise ValueError("a correction needs at least one batch of measured rows")
    generator = np.random.default_rng(seed)
    return fit_rows(
        batches[0].work.family, [_rows(batch, most_rows, generator) for batch in batches], generator,
        hidden=hidden, epochs=epochs, shared_share=shared_share, own_strength=own_strength, rate=rate,
        forgotten=forgotten, members=members,
    )  # fmt: skip


def fit_rows(
    family: str, parts: Sequence[TrainingRows], generator: np.random.Generator, *, hidden: tuple[int, ...] = (96, 64),
    epochs: int = 60, shared_share: float = 0.3, own_strength: float = 1e-4, rate: float = 8e-3,
    forgotten: float = FORGOTTEN, members: int = 1,
) -> CorrectionModel:  # fmt: skip
    """The network of `family` that comes closest to the targets of all `parts`; arguments as of `fit_correction`."""
    names = tuple(dict.fromkeys(name for part in parts for name in part.names))
    keys = {name: index for index, name in enumerate(dict.fromkeys(name for part in parts for name in part.keys))}
    features = np.concatenate([aligned(part.features, part.names, names) for part in parts])
    target, weight = (np.concatenate([getattr(part, name) for part in parts]) for name in ("target", "weight"))
    key = np.concatenate([np.array([keys[name] for name in part.keys], dtype=np.intp)[part.key] for part in parts])
    mean = features.mean(axis=0)
    spread = features.std(axis=0)
    scale = np.maximum(spread, 1e-2).astype(np.float32)
    unseen = [names.index(name) for name in DISTANCE_FEATURES]
    scale[unseen] = 1.0  # doublings: how few GPUs were measured must not make others look farther
    z = in_deviations(features, mean, scale)
    low, high = z.min(axis=0), z.max(axis=0)
    z[:, unseen] = 0.0
    common = np.concatenate([np.full(len(part.target), part.common) for part in parts])
    at_least = np.concatenate([np.full(len(part.target), part.at_least) for part in parts])
    trained = _together(
        [
            _train(z, target, key, weight / weight.mean(), common, at_least, len(keys), hidden=hidden, epochs=epochs,
                   shared_share=shared_share, own_strength=own_strength, rate=rate, forgotten=forgotten,
                   generator=generator)
            for _ in range(members)
        ]
    )  # fmt: skip
    layers = len(hidden)
    trained[0][unseen] = 0.0
    head, own = trained[2 * layers], trained[2 * layers + 1]
    return CorrectionModel(
        family=family,
        feature_names=names,
        mean=mean, scale=scale, low=low, high=high,
        weights=tuple(trained[0 : 2 * layers : 2]), biases=tuple(trained[1 : 2 * layers : 2]), head=head,
        own=MappingProxyType({name: own[index] for name, index in keys.items()}),
    )  # fmt: skip


def _rows(batch: CorrectionBatch, most_rows: int, generator: np.random.Generator) -> TrainingRows:
    """(A sample of) the rows of a batch."""
    times = module_times(batch.work, batch.gpu, parameters_by_row(batch.per_group, batch.work.group))
    plain = duration_s(times, batch.gpu, batch.clock_mhz)
    kernel_s, hidden = _kernel_s(batch)
    with np.errstate(divide="ignore", invalid="ignore"):
        target = np.log(kernel_s / plain)
    # a kernel that its host hides is only known to be no longer than what was seen
    target = np.where(hidden, np.minimum(target, 0.0), target)
    good = np.isfinite(target)
    good[list(batch.work.reasons)] = False
    rows = np.flatnonzero(good)
    if rows.size > most_rows:
        rows = generator.choice(rows, most_rows, replace=False)
    return TrainingRows(
        features=correction_features(batch.work, times, batch.gpu)[rows],
        names=feature_names(batch.work),
        target=np.clip(target[rows], -2.0, 2.0).astype(np.float32),
        key=batch.work.group[rows],
        keys=tuple(f"{batch.gpu.name}/{batch.engine}/{group}" for group in batch.work.groups),
        weight=(batch.weight * np.where(hidden[rows], _HIDDEN_WEIGHT, 1.0)).astype(np.float32),
    )


def _kernel_s(batch: CorrectionBatch) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """Time of the kernels alone without the host that started them [s], and whether it is only an upper bound."""
    host, lead = (
        np.array([getattr(one, name) for one in batch.per_group])[batch.work.group] * 1e-6
        for name in ("host_us", "host_lead_us")
    )
    host = host * batch.work.host_steps
    hidden = batch.time_s <= 1.1 * np.maximum(host, lead)
    reached = batch.time_s * np.maximum(1.0 - (host / batch.time_s) ** 8, 0.0) ** 0.125
    bound = np.maximum(0.85 * batch.time_s - lead, 0.1 * batch.time_s)
    return np.where(hidden, bound, np.maximum(reached - lead, 0.02 * batch.time_s)), hidden


def _train(
    z: Singles, target: Singles, key: Any, weight: Singles, common: Any, at_least: Any, keys: int, *,
    hidden: tuple[int, ...], epochs: int,
    shared_share: float, own_strength: float, rate: float, forgotten: float, generator: np.random.Generator,
) -> list[Singles]:  # fmt: skip
    """Adam on a robust loss with a cosine schedule: weight and bias of each layer, shared output, own outputs.

    Weights of hidden layers decay apart from the loss (I. Loshchilov and F. Hutter, Decoupled weight decay
    regularization, 2019).
    """
    widths = (z.shape[1], *hidden)
    values: list[Singles] = []
    for inputs, outputs in pairwise(widths):
        values.append((generator.standard_normal((inputs, outputs)) * np.sqrt(2.0 / inputs)).astype(np.float32))
        values.append(np.zeros(outputs, dtype=np.float32))
    values.append(np.zeros(sum(hidden) + 1, dtype=np.float32))
    values.append(np.zeros((keys, sum(hidden) + 1), dtype=np.float32))
    first = [np.zeros_like(value) for value in values]
    second = [np.zeros_like(value) for value in values]
    batch = int(np.clip(len(z) // 32, 64, 1024))
    each = max(1, len(z) // batch)
    epochs = max(epochs, -(-FEWEST_STEPS // each))
    steps = epochs * each
    step = 0
    for _ in range(epochs):
        order = generator.permutation(len(z))
        for start in range(0, each * batch, batch):
            rows = order[start : start + batch]
            alone = (generator.random(rows.size) < shared_share) & common[rows]
            slopes = _gradient(
                values, z[rows], target[rows], key[rows], weight[rows], alone,
                alone | (common[rows] & ~at_least[rows]), alone & at_least[rows], own_strength,
            )  # fmt: skip
            step += 1
            warm = min(1.0, step / 200.0)
            speed = rate * warm * (0.5 + 0.5 * np.cos(np.pi * step / steps)) + 1e-6
            for place in range(0, 2 * len(hidden), 2):
                values[place] *= np.float32(1.0 - forgotten * speed)
            for value, slope, one, two in zip(values, slopes, first, second, strict=True):
                one += 0.1 * (slope - one)
                two += 0.002 * (np.square(slope) - two)
                value -= np.float32(speed) * (one / (1 - 0.9**step)) / (np.sqrt(two / (1 - 0.998**step)) + 1e-8)
    return values


def _together(found: Sequence[list[Singles]]) -> list[Singles]:
    """The mean of several networks of like layers (as `_train` gives them) as one, whose layers hold theirs apart."""
    first = found[0]
    if len(found) == 1:
        return first
    layers, share = (len(first) - 2) // 2, np.float32(1.0 / len(found))
    out: list[Singles] = []
    for place in range(0, 2 * layers, 2):
        parts = [one[place] for one in found]
        if place == 0:
            out.append(np.concatenate(parts, axis=1))
        else:
            rows, columns = parts[0].shape
            apart = np.zeros((len(parts) * rows, len(parts) * columns), dtype=np.float32)
            for index, part in enumerate(parts):
                apart[index * rows : (index + 1) * rows, index * columns : (index + 1) * columns] = part
            out.append(apart)
        out.append(np.concatenate([one[place + 1] for one in found]))
    ends = np.cumsum([first[place].size for place in range(1, 2 * layers, 2)])[:-1]
    for place in (-2, -1):
        split = [np.split(one[place][..., :-1], ends, axis=-1) for one in found]
        bias = sum((one[place][..., -1:] for one in found[1:]), start=first[place][..., -1:])
        out.append(np.concatenate([*(part[layer] for layer in range(layers) for part in split), bias], axis=-1) * share)
    return out


def _gradient(
    values: list[Singles],
    z: Singles,
    target: Singles,
    key: Any,
    weight: Singles,
    alone: Any,
    common: Any,
    at_least: Any,
    own_strength: float,
) -> list[Singles]:
    layers = (len(values) - 2) // 2
    head, own = values[-2], values[-1]
    activations = [z]
    for index in range(layers):
        activations.append(np.maximum(activations[-1] @ values[2 * index] + values[2 * index + 1], 0.0))
    last = np.concatenate([*activations[1:], np.ones((len(z), 1), dtype=np.float32)], axis=1)
    used = own[key]
    used[alone] = 0.0
    used += head
    output = np.einsum("ij,ij->i", last, used)
    miss = output - target
    # relative error counts by its size beyond a few percent, by its square within
    slope = weight * miss / np.sqrt(1.0 + np.square(miss / 0.05)) / len(z)
    slope *= np.where(at_least & (miss > 0), np.float32(_ABOVE_WEIGHT), np.float32(1.0))
    weighted = last * slope[:, None]
    chosen = np.zeros((len(own), len(z)), dtype=np.float32)
    chosen[key, np.arange(len(z))] = ~alone
    slopes: list[Singles] = [
        common.astype(np.float32) @ weighted,
        chosen @ weighted + np.float32(own_strength) * own / len(own),
    ]
    used *= slope[:, None]
    found: list[Singles] = []
    back: Any = 0.0
    end = used.shape[1] - 1
    for index in reversed(range(layers)):
        width = values[2 * index + 1].size
        back = (back + used[:, end - width : end]) * (activations[index + 1] > 0)
        end -= width
        found += [back.sum(axis=0), activations[index].T @ back]
        if index:
            back = back @ values[2 * index].T
    return [*reversed(found), *slopes]
