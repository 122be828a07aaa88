"""The errors that joulecast raises: one clear line each, saying what is wrong and what would be right."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable


class JoulecastError(Exception):
    """Base of every error that joulecast raises on purpose; its text is one line for a person."""


class InputError(JoulecastError, ValueError):
    """Something the caller gave (a name, file, value, shape or unit) can't be used."""


#: Where long lists of names are shown.
_LISTED = {
    "GPU": "joulecast gpus", "GPU field": "joulecast gpus show NAME", "model": "joulecast models",
    "option of predict": "joulecast predict --help", "option of train": "joulecast train --help",
    "region": "joulecast.scenarios.grid.regions()",
}  # fmt: skip


class UnknownNameError(InputError):
    """A name that no table knows; the text suggests the nearest ones."""

    def __init__(self, what: str, name: object, known: Iterable[str]) -> None:
        choices = sorted(set(known))
        text = str(name)
        lowered = {choice.lower(): choice for choice in choices}
        near = [lowered[hit] for hit in difflib.get_close_matches(text.lower(), list(lowered), n=3, cutoff=0.5)]
        if near:
            hint = "did you mean " + " or ".join(near) + "?"
        elif len(choices) <= 20:
            hint = "known: " + ", ".join(choices)
        else:
            hint = f"{len(choices)} are known" + (f", {_LISTED[what]} lists them" if what in _LISTED else "")
        super().__init__(f"unknown {what} {shortened(text)!r}: {hint}")
        self.name = text
        self.near = tuple(near)


class InfeasibleError(JoulecastError):
    """The question is well put but has no answer: the model does not fit, no design point meets the limits."""


class MissingExtraError(JoulecastError):
    """An optional part is not installed; the text is the line that installs it."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} needs an optional part: pip install 'joulecast[{extra}]'")
        self.extra = extra


def visible(text: str) -> str:
    """`text` without what steers a terminal (escapes, line ends, turned writing): a mark stands for each."""
    return text if text.isprintable() else "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def shortened(value: object, limit: int = 80) -> str:
    """`value` as one printable line of at most `limit` characters, for quoting in a message.

    A path keeps its end, which names the file; anything else its beginning.
    """
    text = visible(str(value))
    if len(text) <= limit:
        return text
    if isinstance(value, os.PathLike):
        return "\N{HORIZONTAL ELLIPSIS}" + text[len(text) - limit + 1 :]
    return text[: limit - 1] + "\N{HORIZONTAL ELLIPSIS}"
