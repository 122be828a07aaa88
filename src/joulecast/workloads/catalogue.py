"""The catalogue of models: their configs by hub name and short alias, one TOML file a family."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from joulecast.errors import UnknownNameError
from joulecast.workloads.huggingface import from_config
from joulecast.workloads.request import Request
from joulecast.workloads.table import Workload

_DATA = Path(__file__).parent / "models" / "data"
_OWN_KEYS = ("aliases", "source", "like")


@dataclass(frozen=True)
class Entry:
    """A model of the catalogue.

    Attributes
    ----------
    name : str
        Its name on the Hugging Face hub.
    aliases : tuple of str
        Other names it answers to.
    config : mapping
        What its ``config.json`` says about its shape.
    source : str
        Where the numbers are from.
    """

    name: str
    aliases: tuple[str, ...]
    config: Mapping[str, Any]
    source: str

    @property
    def family(self) -> str:
        """The model type."""
        return str(self.config["model_type"])

    @property
    def parameters(self) -> float:
        """Number of parameters, shared ones once."""
        return from_config(self.config, Request(), self.name).parameters


def catalogue() -> list[Entry]:
    """All models, in the order of their families' files."""
    return list(_entries().values())


def entry(name: str) -> Entry:
    """The model called `name` (hub name with or without its owner, or alias; upper and lower case alike).

    Raises
    ------
    UnknownNameError
        If there is none; the text names the nearest.
    """
    found = _index().get(_plain(name))
    if found is None:
        shown = {alias for one in catalogue() for alias in (one.name, *one.aliases)}
        raise UnknownNameError("model", name, shown)
    return _entries()[found]


def from_name(name: str, request: Request | None = None, **options: Any) -> Workload:
    """The workload of a model of the catalogue.

    Parameters
    ----------
    name : str
        See `entry`.
    request : Request, optional
        What is asked of it; else made of `options`, the fields of `Request`.

    Returns
    -------
    Workload

    Raises
    ------
    UnknownNameError
        For a name that is not in the catalogue.
    InputError
        For a request beyond what the model takes.
    """
    asked = Request.of(request, **options)
    found = entry(name)
    return from_config(found.config, asked, found.name)


@cache
def _entries() -> dict[str, Entry]:
    raw: dict[str, dict[str, Any]] = {}
    for file in sorted(_DATA.glob("*.toml")):
        raw |= tomllib.loads(file.read_text(encoding="utf-8"))
    return {
        name: Entry(
            name,
            tuple(values.get("aliases", ())),
            MappingProxyType({key: value for key, value in _resolved(raw, name).items() if key not in _OWN_KEYS}),
            str(_resolved(raw, name)["source"]),
        )
        for name, values in raw.items()
    }


def _resolved(raw: Mapping[str, dict[str, Any]], name: str) -> dict[str, Any]:
    """The values of `name` over those of the model that it is like; nested configs likewise."""
    values = raw[name]
    if "like" not in values:
        return values
    merged = dict(_resolved(raw, values["like"]))
    for key, value in values.items():
        merged[key] = {**merged.get(key, {}), **value} if isinstance(value, dict) else value
    return merged


@cache
def _index() -> dict[str, str]:
    """Names as people write them to hub names; a name without its owner yields to one that is written out."""
    index: dict[str, str] = {}
    for one in _entries().values():
        for alias in (one.name, *one.aliases):
            index[_plain(alias)] = one.name
    for one in _entries().values():
        for alias in (one.name, *one.aliases):
            short = alias.rpartition("/")[2]
            index.setdefault(_plain(short), one.name)
            index.setdefault(_plain(short.partition(".")[0]), one.name) if alias.startswith("timm/") else None
    return index


def _plain(name: str) -> str:
    return str(name).strip().lower().replace("_", "-").replace(" ", "-")
