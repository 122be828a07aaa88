"""Gives a verb's answer in the form that was asked for: a page for people, JSON or CSV; to the screen or a file."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from joulecast import writing
from joulecast.errors import InputError, shortened
from joulecast.reports import files, tables

FORMATS = ("txt", "json", "csv")


@dataclass(frozen=True)
class Answer:
    """An answer in each form; only the one asked for is made.

    Attributes
    ----------
    page : callable
        Gives the blocks of the page for people.
    document : callable
        Gives the JSON document.
    rows : callable
        Gives the rows of the CSV table.
    """

    page: Callable[[], Sequence[tables.Block]]
    document: Callable[[], Any]
    rows: Callable[[], Sequence[Mapping[str, Any]]]


def chosen_format(json: bool, csv: bool, output: Path | None) -> str:
    """``txt``, ``json`` or ``csv``: by flag, else by the ending of `output`.

    Raises
    ------
    InputError
        If both flags are given, the ending is none of these, or `output` can't be written: told before anything is
        worked out, and before any other file is written.
    """
    if json and csv:
        raise InputError("--json and --csv exclude each other: give one")
    if output is not None:
        writing.check_writable(output)
    if json or csv:
        return "json" if json else "csv"
    if output is None:
        return "txt"
    ending = output.suffix.lower().removeprefix(".")
    if ending not in FORMATS:
        raise InputError(
            f"can't tell the format of {shortened(output)}: end it in .json, .csv or .txt, or give --json or --csv"
        )
    return ending


def give(answer: Answer, form: str, output: Path | None) -> None:
    """Write `answer` to the screen or, atomically, to the file `output`."""
    if form == "txt" and output is None:
        tables.show(answer.page(), sys.stdout)
        return
    if form == "json":
        text = files.to_json(answer.document())
    elif form == "csv":
        text = files.to_csv(answer.rows())
    else:
        text = tables.plain(answer.page()) + "\n"
    if output is None:
        tables.send(text, sys.stdout)
    else:
        writing.write_atomic(output, text)
