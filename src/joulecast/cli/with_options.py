"""Options that ``--with`` gives: by the name of a flag or of an argument in Python, numbers where they are numbers."""

from __future__ import annotations

import math

from joulecast.cli.flags import fields_by_flag
from joulecast.cli.run_flags import Formats, Sizes, States, Ways
from joulecast.cli.train_flags import Batches, Length, Spread, Training
from joulecast.errors import InputError

#: Arguments in Python by the names of flags.
_OF_FLAGS = fields_by_flag(Sizes, Formats, Ways, States, Batches, Length, Training, Spread)

#: What is asked for in another way than by ``--with``.
_ELSEWHERE = {
    "source": "MODEL", "gpu": "--gpu", "training": "--train", "train": "--train", "slack": "--slack",
    "changes": "--set", "set": "--set", "site": "the flags of a footprint",
}  # fmt: skip


def argument(name: str) -> str:
    """The argument in Python that ``--with NAME=`` means: ``power-limit`` and ``power_limit_w`` are the same.

    Raises
    ------
    InputError
        For what is asked for in another way.
    """
    word = name.strip().lstrip("-").lower().replace("-", "_")
    if word in _ELSEWHERE:
        raise InputError(f"--with can't give {word}: that is asked for by {_ELSEWHERE[word]}")
    return _OF_FLAGS.get(word, word)


def value(word: str) -> bool | int | float | str:
    """True or false, a finite number, else the word as it is spelt among options: lower case, with underscores."""
    if word.lower() in ("true", "false"):
        return word.lower() == "true"
    try:
        found = float(word) if word.isascii() and "_" not in word else math.nan
    except ValueError:
        found = math.nan
    return number(found) if math.isfinite(found) else word.strip().lower().replace("-", "_")


def number(found: float) -> float | int:
    """A whole number as one."""
    return int(found) if found == int(found) else found
