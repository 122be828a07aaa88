"""What a model says when it refuses inputs made for it, taken at its word: the inputs changed so that they fit."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Mapping
from typing import Any

import torch

from joulecast.workloads.transformers_layouts import attribute, part

#: Widths that a layer got and wanted, as PyTorch and transformers tell them.
_WIDTHS = (
    re.compile(r"reduction dim, but got \[\d+, (?P<got>\d+)\] X \[(?P<wanted>\d+), \d+\]"),
    re.compile(r"normalized_shape=\[(?P<wanted>\d+)\].*?got input of size.*?(?P<got>\d+)\]"),
    re.compile(
        r"dimension of length (?P<wanted>\d+) at -1! .*?broadcastable to (?:\[|torch.Size\(\[).*?(?P<got>\d+)\]"
    ),
    re.compile(r"to have (?P<wanted>\d+) channels, but got (?P<got>\d+) channels"),
    re.compile(r"suffix torch\.Size\(\[(?P<got>\d+), \d+\]\) does not match .*?\((?P<wanted>\d+), \d+\)"),
)

#: Lengths that an input has and that another has it go together with.
_LENGTHS = (
    re.compile(r"Expected (?P<got>\d+) in dimension \d+ but got (?P<wanted>\d+) for tensor"),
    re.compile(r"dimension of length (?P<wanted>\d+) at -2! .*?broadcastable to \[(?:\d+, )*(?P<got>\d+), \d+\]"),
    re.compile(r"tensor a \((?P<got>\d+)\) must match the size of tensor b \((?P<wanted>\d+)\) at non-singleton dim"),
)
#: Most places for pieces of images that a text is given.
_PLACES = 2**16

_PICTURE_SIZE = re.compile(r"\((\d+)\s*[*x]\s*(\d+)\) doesn't match model \((\d+)\s*[*x]\s*(\d+)\)")
_PICTURE_HEIGHT = re.compile(r"height \((\d+)\) doesn't match model \((\d+)\)")


def repaired(
    inputs: Mapping[str, Any], error: BaseException, config: Any, makers: Mapping[str, Callable[[], Any]], marks: bool
) -> dict[str, Any] | None:
    """Inputs changed as an error asks.

    Parameters
    ----------
    inputs : mapping
        What the model was called with.
    error : Exception
        What it raised.
    config : PretrainedConfig
    makers : mapping
        How to make each further input that its forward takes.
    marks : bool
        Whether places for pieces of an image are told apart in an input of their own.

    Returns
    -------
    mapping or None
        None where the error asks for nothing that is known.
    """
    count = image_tokens_asked(error)
    if count:
        text = part(config, "text_config", "text", "language_config", "llm_config")
        width = attribute(text, "hidden_size", "d_model")
        several = count // width if isinstance(width, int) and width > 1 and count % width == 0 else 0
        for places in (count, several):  # some count the elements of all pieces
            found = with_placeholders(inputs, config, places, marks) if places <= _PLACES else None
            if found is not None:
                return found
    return (
        _with_missing(inputs, error, makers)
        or _with_widths(inputs, error)
        or _with_size(inputs, str(error))
        or _with_lengths(inputs, str(error))
    )


def image_tokens_asked(error: BaseException) -> int | None:
    """How many places for pieces of an image a model asked for when it refused a text without them."""
    text = str(error)
    found = re.search(r"tokens: \d+, (?:features|length)[:=]?\s*(\d+)", text) or re.search(
        r"(?:features?|image)[^\d]{1,20}(\d+)", text
    )
    if found is None or "oken" not in text:
        return None
    count = int(found.group(1))
    return count if count > 0 else None


def placeholder(config: Any) -> int | None:
    """Index of the token that stands for a piece of an image; None where the config names none."""
    names = ("image_token_id", "image_token_index", "media_token_id", "video_token_id")
    found = (attribute(one, *names) for one in (config, getattr(config, "vlm_config", None)))
    return next((one for one in found if isinstance(one, int)), None)


def with_placeholders(inputs: Mapping[str, Any], config: Any, count: int, marks: bool = False) -> dict[str, Any] | None:
    """`inputs` with `count` places for pieces of an image in each text; None where the config names no such token.

    `marks`: whether the model wants the places told apart in an input of their own.
    """
    token = placeholder(config)
    if token is None or "input_ids" not in inputs or count < 1:
        return None
    ids = inputs["input_ids"]
    batch, length = ids.shape
    if int((ids == token).sum()) == batch * count:
        return None
    fresh = torch.full((batch, max(length, 8) + count), int(ids[0, 0]), dtype=torch.int64)
    fresh[:, 2 : 2 + count] = token
    marked = {"mm_token_type_ids": (fresh == token).long()} if marks else {}
    return {**inputs, "input_ids": fresh, **marked}


def _with_missing(
    inputs: Mapping[str, Any], error: BaseException, makers: Mapping[str, Callable[[], Any]]
) -> dict[str, Any] | None:
    """The first input that the error, or the line that raised it, names and that was not given."""
    text = str(error)
    if "None" not in text and "must be" not in text and "have to" not in text:
        return None
    frames = [one for one in traceback.extract_tb(error.__traceback__) if "transformers" in one.filename]
    if "NoneType" in text and frames:
        text = frames[-1].line or text
    for name in sorted(makers, key=len, reverse=True):
        if inputs.get(name) is None and re.search(rf"(?<![\w.]){name}\b", text):
            return {**inputs, name: makers[name]()}
    return None


def _with_widths(inputs: Mapping[str, Any], error: BaseException) -> dict[str, Any] | None:
    """The last axis of a picture or sound, or its only one of that length, as wide as asked.

    Of several inputs of the width that was got, the one is changed that the lines say that led to the error.
    """
    text = str(error)
    lines = " ".join(
        one.line or "" for one in traceback.extract_tb(error.__traceback__) if "transformers" in one.filename
    )
    named = sorted(inputs, key=lambda name: re.search(rf"(?<![\w.]){name}\b", lines) is None)
    for pattern in _WIDTHS:
        found = pattern.search(text)
        if found is None:
            continue
        got, wanted = int(found["got"]), int(found["wanted"])
        for name in named:
            one = inputs[name]
            if not isinstance(one, torch.Tensor) or not one.dtype.is_floating_point or one.dim() < 2:
                continue
            axes = [axis for axis in range(one.dim() - 1, 0, -1) if one.shape[axis] == got]
            width = wanted
            if not axes and "suffix" in text and one.shape[-1] % got == 0:
                axes, width = [one.dim() - 1], one.shape[-1] // got * wanted
            if axes and 0 < width <= 2**16:
                shape = list(one.shape)
                shape[axes[0]] = width
                return {**inputs, name: one.new_zeros(shape)}
    return None


def _with_size(inputs: Mapping[str, Any], text: str) -> dict[str, Any] | None:
    """Pictures scaled by what the model says it got and wanted."""
    found, tall = _PICTURE_SIZE.search(text), _PICTURE_HEIGHT.search(text)
    if found is not None:
        rows, columns, wanted_rows, wanted_columns = (int(one) for one in found.groups())
    elif tall is not None:
        rows, wanted_rows = columns, wanted_columns = int(tall[1]), int(tall[2])
    else:
        return None
    changed = dict(inputs)
    for name, one in inputs.items():
        if isinstance(one, torch.Tensor) and one.dtype.is_floating_point and one.dim() >= 4:
            size = (one.shape[-2] * wanted_rows // max(rows, 1), one.shape[-1] * wanted_columns // max(columns, 1))
            changed[name] = one.new_zeros((*one.shape[:-2], *size))
    return changed


def _with_lengths(inputs: Mapping[str, Any], text: str) -> dict[str, Any] | None:
    """Texts, sounds and their masks as long as what they go together with."""
    found = next((one for one in (pattern.search(text) for pattern in _LENGTHS) if one), None)
    if found is None:
        return None
    got, wanted = int(found["got"]), int(found["wanted"])
    changed = {
        name: one.index_select(1, torch.arange(wanted).remainder(got))
        for name, one in inputs.items()
        if isinstance(one, torch.Tensor) and one.dim() in (2, 3) and one.shape[1] == got
    }
    return {**inputs, **changed} if changed and 1 < got != wanted <= 2**16 else None
