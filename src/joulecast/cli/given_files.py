"""Refuses empty paths, to write over what is read, and two answers to one file, whatever the verb."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from joulecast.errors import InputError, shortened

#: Parameters of verbs that name a file to write.
WRITTEN = ("output", "timeline", "plot", "flame", "perfetto", "write", "winners", "log", "cache")


def guard(command: Any) -> None:
    """Let `command`, and all commands within it, look at their files before they do anything."""
    for inner in getattr(command, "commands", {}).values():
        guard(inner)
    if not hasattr(command, "commands"):
        parse = command.parse_args

        def parse_args(context: Any, words: list[str]) -> Any:
            given = tuple(words)  # parsing takes them out
            rest = parse(context, words)
            flags = {one.name: one.opts[0] if one.opts[0][0] == "-" else one.metavar for one in command.params}
            refuse_empty(given, context.params, flags)
            refuse_overwriting(context.params, flags)
            return rest

        command.parse_args = parse_args


def refuse_empty(words: Sequence[str], given: Mapping[str, Any], flags: Mapping[str, str]) -> None:
    """Refuse an empty text where a path belongs, which would be taken for the folder that one is in.

    Parameters
    ----------
    words : sequence of str
        What a verb was asked with, as it was written.
    given : mapping of str to object
        The same by the name of the parameter, paths as such.
    flags : mapping of str to str
        How each is spelt.

    Raises
    ------
    InputError
    """
    values = [word.partition("=")[2] if word.startswith("--") and "=" in word else word for word in words]
    if "" not in values or "." in values:
        return
    for name, value in given.items():
        paths = value if isinstance(value, list | tuple) else [value]
        if any(isinstance(one, Path) and str(one) == "." for one in paths):
            raise InputError(f"{flags[name]} is empty: give a path, or . for the folder that you are in")


def refuse_overwriting(given: Mapping[str, Any], flags: Mapping[str, str]) -> None:
    """Refuse a file to write that is read too, or written twice.

    Parameters
    ----------
    given : mapping of str to object
        What a verb was asked with, by the name of the parameter.
    flags : mapping of str to str
        How each is spelt.

    Raises
    ------
    InputError
    """
    named = [(name, path) for name, value in given.items() for path in _paths(value)]
    for name, path in named:
        if name not in WRITTEN or path == "-":
            continue
        place = os.path.realpath(path)
        for other, its_path in named:
            if other == name or os.path.realpath(its_path) != place:
                continue
            if other in WRITTEN:
                first, second = sorted((name, other), key=list(given).index)
                raise InputError(f"{flags[first]} and {flags[second]} name the same file: {shortened(path)}")
            if _is_file(place):
                raise InputError(
                    f"{flags[name]} would write over {shortened(path)}, which is read: give it another name"
                )


def _is_file(place: str) -> bool:
    try:
        return Path(place).is_file()
    except (OSError, ValueError):  # too long a name, or a folder that is closed to us
        return False


def _paths(value: Any) -> Iterator[str]:
    if isinstance(value, Path):
        value = str(value)
    if isinstance(value, str):
        if value and "\0" not in value:
            yield value
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _paths(one)
