"""Versions of an engine: kernels of another version than the one that coefficients are named after go by a longer name.

What an engine is called without a version is the version that was timed with clocks held, else its latest. Another
version's kernels may be others altogether (block-scaled fp8 products of one release of TensorRT-LLM on B200 take 1.7
times what they take in a later one), so nothing of one version is mixed with, or taken for, another's.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Any

_BETWEEN = " "


def with_version(engine: str, version: str) -> str:
    """Name of one version's kernels, such as ``trtllm 1.3.0rc15``."""
    return f"{engine}{_BETWEEN}{version}" if version else engine


def without_version(name: str) -> str:
    """The engine that a name is of."""
    return name.split(_BETWEEN, 1)[0]


def stood_in(key: str, known: Container[str]) -> bool:
    """Whether ``family/engine/group`` is of a version that its engine is not named after, though another is.

    Such kernels stand for themselves alone: who asks for the engine's is told of those that it is named after.
    """
    family, name, group = key.split("/", 2)
    return _BETWEEN in name and f"{family}/{without_version(name)}/{group}" in known


def named(engine: str, version: str, family: str, groups: Iterable[str], known: Container[str]) -> list[str]:
    """Name under which the kernels of each group are kept: the version's own where it is `known`, else the engine's.

    Parameters
    ----------
    engine, version, family : str
    groups : iterable of str
    known : container of str
        Keys ``family/engine/group`` of what was measured.
    """
    own = with_version(engine, version)
    return [own if version and f"{family}/{own}/{group}" in known else engine for group in groups]


def order(version: str) -> tuple[tuple[int, Any], ...]:
    """Key that sorts versions by age: numbers by size, candidates for a release before it."""
    parts: list[tuple[int, Any]] = []
    for part in version.replace("-", ".").split("."):
        digits = "".join(one if one.isdigit() else " " for one in part).split()
        numbers = tuple(int(one) for one in digits)
        parts.append((0 if len(digits) > 1 or not part.isdigit() else 1, numbers))
    return tuple(parts)
