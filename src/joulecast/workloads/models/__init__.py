"""Architectures: each module turns the configs of some model types into workloads.

A module has a mapping ``BUILDERS`` from model type (as in a Hugging Face config) to a function of a
`Config` and a `Request` that gives a `Workload`. A new architecture is a new module, and its name here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module

from joulecast.workloads.config import Config
from joulecast.workloads.request import Request
from joulecast.workloads.table import Workload

Builder = Callable[[Config, Request], Workload]

#: Modules with builders, most used first.
MODULES = ("llama", "gpt", "mixture", "bert", "seq2seq", "vision", "convolutional", "mobilevit", "mobilenet")


def builder(model_type: str) -> Builder | None:
    """The builder of workloads for `model_type`; None if there is none. Modules load as they are needed."""
    for module in MODULES:
        found = _builders(module).get(model_type)
        if found is not None:
            return found
    return None


def model_types() -> tuple[str, ...]:
    """All model types that have a builder."""
    return tuple(sorted((name for module in MODULES for name in _builders(module)), key=str.lower))


@cache
def _builders(module: str) -> dict[str, Builder]:
    found: dict[str, Builder] = import_module(f"joulecast.workloads.models.{module}").BUILDERS
    return found
