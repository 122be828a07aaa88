"""Hugging Face configs as workloads: ``config.json`` of the families in `joulecast.workloads.models`."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from joulecast.errors import InputError, shortened
from joulecast.workloads.config import Config
from joulecast.workloads.models import builder, model_types
from joulecast.workloads.request import Request
from joulecast.workloads.table import Workload

#: Configs are a few kilobytes; a larger file is something else.
LARGEST_FILE_BYTES = 5_000_000


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
        from joulecast.workloads.catalogue import entry  # noqa: PLC0415 (the catalogue stands on this module)

        found = entry(config["architecture"])
        return from_config(found.config, asked, name or found.name)
    if not isinstance(model_type, str) or not model_type:
        raise InputError(f"config of {shortened(name or 'the model')}: model_type is missing, which says the architecture")
    given = config.get("_name_or_path")
    called = name or (given if isinstance(given, str) and given else model_type)
    build = builder(model_type)
    if build is None:
        _refuse_type(model_type, called)
    return build(Config(config, called), asked)


def read_config(path: str | Path) -> dict[str, Any]:
    """The config in a file, or in the ``config.json`` of a folder.

    Raises
    ------
    InputError
        If there is none, or the file is too large, no JSON, or no mapping.
    """
    file = Path(path)
    quoted = shortened(path)
    try:
        if file.is_dir():
            file = file / "config.json"
            if not file.is_file():
                raise InputError(f"folder {quoted} holds no config.json")
        size = file.stat().st_size
        if size > LARGEST_FILE_BYTES:
            raise InputError(f"{quoted} has {size / 1e6:.1f} MB: too large for a config, which has some kB")
        text = file.read_bytes()
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        reason = getattr(error, "strerror", None) or "not a valid path"
        raise InputError(f"can't read {quoted}: {reason}") from None
    return parse_config(text, quoted)


def parse_config(text: str | bytes, name: str) -> dict[str, Any]:
    """The config in a JSON text; `name` is for messages. Raises InputError if it isn't one."""

    def refuse(constant: str) -> NoReturn:
        raise InputError(f"{name} holds {constant}, which is no size")

    try:
        config = json.loads(text, parse_constant=refuse)
    except json.JSONDecodeError as error:
        raise InputError(
            f"{name} is no valid JSON: {error.msg} at line {error.lineno}, column {error.colno} (cut off?)"
        ) from None
    except InputError:
        raise
    except (ValueError, RecursionError):  # not UTF-8, digits without end, nesting without end
        raise InputError(f"{name} is no valid JSON config") from None
    if not isinstance(config, dict):
        raise InputError(f"{name} must hold a JSON object of keys and values, holds {type(config).__name__}")
    return config


def from_file(path: str | Path, request: Request | None = None, **options: Any) -> Workload:
    """The workload of the model whose config is at `path`; see `read_config` and `from_config`."""
    config = read_config(path)
    given = config.get("_name_or_path")
    place = Path(path)
    name = given if isinstance(given, str) and given else (place.stem if place.suffix else place.name)
    return from_config(config, request, name, **options)


def _refuse_type(model_type: str, name: str) -> NoReturn:
    known = model_types()
    near = difflib.get_close_matches(model_type.lower(), known, n=2, cutoff=0.6)
    hint = f"nearest: {' or '.join(near)}; " if near else ""
    whose = "" if name == model_type else f" of {shortened(name, 60)}"
    raise InputError(
        f"model type {shortened(model_type, 40)!r}{whose} is not supported: {hint}supported: {', '.join(known)}"
    )
