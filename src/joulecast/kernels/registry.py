"""Finds the kernel families: every module of this package that defines ``FAMILY``."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from functools import cache

import joulecast.kernels
from joulecast.errors import UnknownNameError
from joulecast.kernels.work import Family


@cache
def families() -> Mapping[str, Family]:
    """The family that serves each kind of operation, by kind."""
    found: dict[str, Family] = {}
    for module in pkgutil.iter_modules(joulecast.kernels.__path__):
        if module.name in ("work", "registry"):
            continue
        family = getattr(importlib.import_module(f"{joulecast.kernels.__name__}.{module.name}"), "FAMILY", None)
        for one in family if isinstance(family, tuple) else (family,):
            if one is not None:
                found.update(dict.fromkeys(one.kinds, one))
    return found


def family_of(kind_name: str) -> Family:
    """The family that serves operations of kind `kind_name`; `UnknownNameError` if none does."""
    found = families().get(kind_name)
    if found is None:
        raise UnknownNameError("operation", kind_name, families())
    return found
