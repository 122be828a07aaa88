"""Which folder stands for the package's own coefficients: what is shipped, or a forecast's; caches apart for each."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache, update_wrapper
from importlib import resources
from pathlib import Path
from typing import Any, Generic, ParamSpec, TypeVar

Given = ParamSpec("Given")
Found = TypeVar("Found")

#: Names the folder that stands for the package's own in processes that a rebuild of a forecast starts.
ROOT_ENVIRONMENT = "JOULECAST_ROOT_COEFFICIENTS"


def package_folder() -> Path:
    """The folder of the files that the package ships."""
    return Path(str(resources.files("joulecast.coefficients") / "data"))


_root: ContextVar[Path | None] = ContextVar("root", default=None)
_of_process = os.environ.get(ROOT_ENVIRONMENT)


def root() -> Path | None:
    """The folder that stands for the package's own, or None where it is that."""
    chosen = _root.get()
    return chosen if chosen is not None or not _of_process else Path(_of_process)


@contextmanager
def rooted(folder: Path) -> Iterator[None]:
    """Within the context nothing is looked up but in `folder`: neither shipped files nor the user's."""
    token = _root.set(folder)
    try:
        yield
    finally:
        _root.reset(token)


class Kept(Generic[Given, Found]):
    """A function whose answers are kept, apart for each root."""

    def __init__(self, function: Callable[Given, Found], most: int | None) -> None:
        self._function, self._most = function, most
        self._by_root: dict[Path | None, Any] = {}
        update_wrapper(self, function)

    def __call__(self, *args: Given.args, **kwargs: Given.kwargs) -> Found:
        """The answer, from memory where it was asked for before under the same root."""
        where = root()
        answers: Any = self._by_root.get(where)
        if answers is None:
            answers = self._by_root[where] = lru_cache(self._most)(self._function)
        found: Found = answers(*args, **kwargs)
        return found

    def cache_clear(self) -> None:
        """Forget all answers."""
        self._by_root.clear()


def kept(most: int | None = None) -> Callable[[Callable[Given, Found]], Kept[Given, Found]]:
    """Keep at most `most` answers of a function for each root."""
    return lambda function: Kept(function, most)
