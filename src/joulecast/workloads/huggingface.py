"""Hugging Face configs as workloads: ``config.json`` of the families in `joulecast.workloads.models`."""

from __future__ import annotations

import difflib
import os
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from joulecast.errors import InputError, MissingExtraError, shortened
from joulecast.workloads.config import Config, MissingKeyError
from joulecast.workloads.files import named, parse_json, read_bytes
from joulecast.workloads.models import builder, model_types
from joulecast.workloads.request import Request
from joulecast.workloads.table import Workload

#: Configs are a few kilobytes; a larger file is something else.
LARGEST_FILE_BYTES = 5_000_000

#: Methods of quantisation that a model's builder takes from the config itself.
_READ_BY_BUILDERS = ("mxfp4",)


def from_config(config: Mapping[str, Any], request: Request | None = None, name: str = "", **options: Any) -> Workload:
    """The workload of a model from its config.

    Parameters
    ----------
    config : mapping
        Keys and values as in a ``config.json``; ``model_type`` says the architecture. Keys that no
        operation depends on are passed over.
    request : Request, optional
        What is asked of the model; else made of `options`.
    name : str, optional
        What to call it; ``_name_or_path`` or the model type otherwise.
    **options
        Fields of `Request`.

    Returns
    -------
    Workload

    Raises
    ------
    InputError
        For a model type without a builder, a key that is missing or holds the wrong thing, or a
        request beyond what the model takes.
    """
    asked = Request.of(request, **options)
    if not isinstance(config, Mapping):
        raise InputError(f"a model's config must be a mapping of keys to values, got {type(config).__name__}")
    model_type = config.get("model_type")
    if model_type is None and isinstance(config.get("architecture"), str):
        from joulecast.workloads.catalogue import entry

        found = entry(config["architecture"])
        return from_config(found.config, asked, name or found.name)
    if not isinstance(model_type, str) or not model_type:
        whose = shortened(name or "the model")
        raise InputError(f"config of {whose}: model_type is missing, which says the architecture")
    given = config.get("_name_or_path")
    called = name or (given if isinstance(given, str) and given else model_type)
    build = builder(model_type)
    if build is None:
        return _through_transformers(config, asked, model_type, called)
    checked, notes = Config(config, called), tuple[str, ...]()
    try:
        workload = build(checked, asked)
    except MissingKeyError as error:
        checked, notes = _completed(config, called, error)
        try:
            workload = build(checked, asked)
        except MissingKeyError:
            return _through_transformers(config, asked, model_type, called)
    if asked.image_size is not None and "image_size" not in workload.info:
        raise InputError(f"image_size does not apply to {workload.name}, which takes no images")
    return replace(workload, notes=(*workload.notes, *_stored_otherwise(checked, asked), *notes))


def read_config(path: str | Path) -> dict[str, Any]:
    """The config in a file, or in the ``config.json`` of a folder.

    Raises
    ------
    InputError
        If there is none, or the file is too large, no JSON, or no mapping.
    """
    file = Path(path)
    if os.path.isdir(file):  # noqa: PTH112 - False, not an error, for an odd name
        file = file / "config.json"
    data = read_bytes(file)
    if len(data) > LARGEST_FILE_BYTES:
        raise InputError(f"{named(file)} has {len(data) / 1e6:.1f} MB: too large for a config, which has some kB")
    config = parse_json(data, named(file))
    if not isinstance(config, dict):
        raise InputError(f"{named(file)} must hold a JSON object of keys and values, holds {type(config).__name__}")
    return config


def from_file(path: str | Path, request: Request | None = None, **options: Any) -> Workload:
    """The workload of the model whose config is at `path`; see `read_config` and `from_config`."""
    config = read_config(path)
    given = config.get("_name_or_path")
    place = Path(path)
    name = given if isinstance(given, str) and given else (place.stem if place.suffix else place.name)
    return from_config(config, request, name, **options)


def _stored_otherwise(config: Config, asked: Request) -> tuple[str, ...]:
    """A note where the checkpoint holds its weights in fewer bits than they are priced in."""
    stored = config.sub("quantization_config")
    method = stored.word("quant_method")
    wide = asked.weight_dtype is None and asked.dtype in ("fp64", "fp32", "tf32", "fp16", "bf16")
    if not stored.values or not wide or method in _READ_BY_BUILDERS:
        return ()
    if method in ("fp8", "fbgemm_fp8"):
        way = "dtype='fp8_block'" if "weight_block_size" in stored else "dtype='fp8'"
    else:
        narrow = stored.flag("load_in_4bit") or stored.values.get("bits") == 4
        way = "weight_dtype='int4'" if narrow else "another dtype or weight_dtype"
    return (f"the checkpoint's weights are quantised ({method or 'method not told'}): {way} prices them so",)


def _completed(config: Mapping[str, Any], called: str, missing: MissingKeyError) -> tuple[Config, tuple[str, ...]]:
    """The config with what it leaves out as transformers' class of its type has it, and a note of that."""
    from joulecast.workloads.transformers_models import default_values

    try:
        defaults = default_values(str(config["model_type"]))
    except MissingExtraError as error:
        raise InputError(f"{missing}; transformers' own default for it: {error}") from None
    if not defaults:
        raise missing
    completed = Config(config, called, defaults)
    left = str(missing).rpartition(": ")[2].removesuffix(" is missing")
    given = sum(value is not None and key in defaults for key, value in config.items() if key != "model_type")
    what = f"{left} and what else it leaves out" if given else "its sizes"
    return completed, (f"the config leaves out {what}: transformers' defaults for {config['model_type']} are taken",)


def _through_transformers(config: Mapping[str, Any], asked: Request, model_type: str, called: str) -> Workload:
    """The model by the classes of transformers; where that is not installed, what is read without it is told."""
    from joulecast.workloads.transformers_models import from_transformers, known_types

    types = known_types()
    if types and model_type not in types:
        _refuse_type(model_type, called, f", and the {len(types)} of the installed transformers", types)
    try:
        return from_transformers(config, asked, called)
    except MissingExtraError as error:
        _refuse_type(model_type, called, f"; any other that transformers has: {error}")


def _refuse_type(model_type: str, name: str, more: str = "", others: Collection[str] = ()) -> NoReturn:
    known = model_types()
    near = difflib.get_close_matches(model_type.lower(), [*known, *others], n=2, cutoff=0.6)
    hint = f"nearest: {' or '.join(near)}; " if near else ""
    whose = "" if name == model_type else f" of {shortened(name, 60)}"
    raise InputError(
        f"model type {shortened(model_type, 40)!r}{whose} is not supported; {hint}supported: {', '.join(known)}{more}"
    )
