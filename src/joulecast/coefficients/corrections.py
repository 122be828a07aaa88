"""Learned corrections of a family's time and power: plain arrays, written by the calibration, read by predictions."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from joulecast.coefficients import places
from joulecast.coefficients.roots import kept
from joulecast.errors import InputError
from joulecast.writing import write_atomic

SCHEMA = 1

Array = npt.NDArray[np.float32]


@dataclass(frozen=True)
class CorrectionModel:
    """A small network from features of a kernel to the natural logarithm of a factor, on time or on power.

    Hidden layers are shared by all GPUs, and so is the output `head`, which reads all of them. A GPU that was
    measured has an output of its own for each engine and group, which adds to the shared one.

    Attributes
    ----------
    family : str
    feature_names : tuple of str
    mean, scale : ndarray, shape (f,)
        Features are standardised as ``(x - mean) / scale``.
    low, high : ndarray, shape (f,)
        Range of the standardised features in the training data: the correction fades outside it.
    weights, biases : tuple of ndarray
        Of the hidden layers, shapes (inputs, outputs) and (outputs,); each is followed by ``max(0, x)``.
    head : ndarray, shape (h + 1,)
        Output weights of all hidden layers side by side and, last, the bias.
    own : mapping of str to ndarray, shape (h + 1,)
        Added to `head`, by ``gpu/engine/group``.
    parts : mapping of str to CorrectionModel
        Networks that serve one group alone, by its label, where there was enough to learn from; other groups use
        this one, which learnt from all.
    """

    family: str
    feature_names: tuple[str, ...]
    mean: Array
    scale: Array
    low: Array
    high: Array
    weights: tuple[Array, ...]
    biases: tuple[Array, ...]
    head: Array
    own: Mapping[str, Array] = field(default_factory=lambda: MappingProxyType({}))
    parts: Mapping[str, CorrectionModel] = field(default_factory=lambda: MappingProxyType({}))


@kept()
def load_correction(family: str) -> CorrectionModel | None:
    """Correction of the time of `family`, the user's or the shipped one, or None where it has none."""
    return _found(f"correction_{family}.npz")


@kept()
def load_power_correction(family: str) -> CorrectionModel | None:
    """The same of its power."""
    return _found(f"power_{family}.npz")


def forget() -> None:
    """Drop what was loaded, after files changed on disk."""
    load_correction.cache_clear()
    load_power_correction.cache_clear()


def _found(name: str) -> CorrectionModel | None:
    path = places.found(name)
    return None if path is None else read_correction(path)


def read_correction(path: Path) -> CorrectionModel:
    """Correction from a file that `write_correction` wrote.

    Raises
    ------
    InputError
        If the file is missing, is no such file, or is of another schema.
    """
    try:
        with np.load(path, allow_pickle=False) as data:
            return _from_arrays({name: data[name] for name in data.files}, str(path))
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise InputError(f"can't read a correction from {path}: {error}") from None


def write_correction(model: CorrectionModel, path: Path) -> None:
    """Write a correction atomically; its arrays are kept in half precision where that loses nothing that matters."""
    arrays: dict[str, Any] = {"schema": np.array(SCHEMA), "parts": np.array(sorted(model.parts), dtype=np.str_)}
    for place, one in enumerate((model, *(model.parts[group] for group in sorted(model.parts)))):
        arrays.update({f"{place}.{name}": value for name, value in _arrays(one).items()})
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    write_atomic(path, buffer.getvalue())


def _arrays(model: CorrectionModel) -> dict[str, Any]:
    out: dict[str, Any] = {
        "family": np.array(model.family),
        "feature_names": np.array(model.feature_names),
        "mean": model.mean, "scale": model.scale, "low": model.low, "high": model.high,
        "head": model.head,
        "keys": np.array(sorted(model.own), dtype=np.str_),
        "own": np.array([model.own[key] for key in sorted(model.own)], dtype=np.float16),
    }  # fmt: skip
    for index, (weight, bias) in enumerate(zip(model.weights, model.biases, strict=True)):
        out[f"weight{index}"], out[f"bias{index}"] = weight.astype(np.float16), bias
    return out


def _from_arrays(arrays: Mapping[str, Any], name: str) -> CorrectionModel:
    if int(arrays["schema"]) != SCHEMA:
        raise InputError(f"{name} has schema {arrays['schema']}; this version reads schema {SCHEMA}")
    groups = [str(group) for group in arrays["parts"]]
    whole, *parts = (_model(arrays, f"{place}.", name) for place in range(len(groups) + 1))
    return replace(whole, parts=MappingProxyType(dict(zip(groups, parts, strict=True))))


def _model(given: Mapping[str, Any], prefix: str, name: str) -> CorrectionModel:
    arrays = {key.removeprefix(prefix): value for key, value in given.items() if key.startswith(prefix)}
    layers = sum(key.startswith("weight") for key in arrays)

    def single(key: str) -> Array:
        value: Array = np.asarray(arrays[key], dtype=np.float32)
        if not np.isfinite(value).all():
            raise InputError(f"{name}: {key} holds a number that is not finite")
        return value

    own = {str(key): row for key, row in zip(arrays["keys"], single("own"), strict=True)}
    return CorrectionModel(
        family=str(arrays["family"]),
        feature_names=tuple(str(one) for one in arrays["feature_names"]),
        mean=single("mean"), scale=single("scale"), low=single("low"), high=single("high"),
        weights=tuple(single(f"weight{index}") for index in range(layers)),
        biases=tuple(single(f"bias{index}") for index in range(layers)),
        head=single("head"),
        own=MappingProxyType(own),
    )  # fmt: skip
