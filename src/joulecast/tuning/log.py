"""The log of a search: every outcome is on the disk before the next is measured, so that any stop can be resumed."""

from __future__ import annotations

import hashlib
import json
import sqlite3
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from joulecast.errors import InputError, shortened
from joulecast.tuning.database import opened
from joulecast.tuning.space import Config

_SCHEMA = """
CREATE TABLE IF NOT EXISTS questions (id TEXT PRIMARY KEY, question TEXT NOT NULL, since REAL NOT NULL);
CREATE TABLE IF NOT EXISTS outcomes (
    question TEXT NOT NULL, stage TEXT NOT NULL, config TEXT NOT NULL, ordinal INTEGER NOT NULL,
    outcome TEXT NOT NULL, at REAL NOT NULL, PRIMARY KEY (question, stage, config, ordinal)
) WITHOUT ROWID;
"""

#: Of the tables and of what stands in them.
_VERSION = 1


def fingerprint(question: Mapping[str, Any]) -> str:
    """The same for questions that are the same, whatever the order of their entries."""
    text = json.dumps(question, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def key_of(config: Config) -> str:
    """A configuration as text that does not depend on the order of its entries."""
    return json.dumps(dict(config), sort_keys=True, separators=(",", ":"))


class Log:
    """Outcomes of one question, in an SQLite file that several processes may write.

    Parameters
    ----------
    path : path
        Made where there is none; ``:memory:`` keeps nothing.
    question : mapping
        What is asked; outcomes of other questions in the same file are not seen.

    Raises
    ------
    InputError
        If the file is no such log, or can't be written.

    Notes
    -----
    Write-ahead logging with one transaction an outcome: a process that is killed loses the measurement it was
    making and nothing else. After a loss of power the newest transactions may be missing; the file stays sound.
    """

    def __init__(self, path: str | Path, question: Mapping[str, Any]) -> None:
        self.question = fingerprint(question)
        self._path = path
        self._base = opened(path, _SCHEMA, _VERSION, "log")
        try:
            with self._base:
                self._base.execute(
                    "INSERT OR IGNORE INTO questions VALUES (?, ?, ?)",
                    (self.question, json.dumps(question, sort_keys=True, default=str), time.time()),
                )
            rows = self._base.execute(
                "SELECT stage, config, ordinal, outcome FROM outcomes WHERE question = ?", (self.question,)
            ).fetchall()
        except sqlite3.Error as error:
            self._base.close()
            raise InputError(f"can't use {shortened(path)} as a log: {shortened(error)}") from None
        try:
            self._held = {(stage, config, ordinal): json.loads(outcome) for stage, config, ordinal, outcome in rows}
        except ValueError:
            raise self.unusable() from None

    def unusable(self) -> InputError:
        """What to raise where an outcome is none of this version's: it was damaged, or written by a later version."""
        told = "holds outcomes that this version of joulecast did not write"
        return InputError(f"the log {shortened(self._path)} {told}: take another file")

    def find(self, stage: str, config: Config | str, ordinal: int = 0) -> Any:
        """What was logged, as plain JSON values; None where nothing was."""
        return self._held.get((stage, config if isinstance(config, str) else key_of(config), ordinal))

    def write(self, stage: str, config: Config | str, outcome: Any, ordinal: int = 0) -> None:
        """Keep an outcome; it is on the disk when this returns.

        Raises
        ------
        InputError
            If the file can't be written any more.
        """
        key = config if isinstance(config, str) else key_of(config)
        row = (self.question, stage, key, ordinal, json.dumps(outcome), time.time())
        try:
            with self._base:
                self._base.execute("INSERT OR REPLACE INTO outcomes VALUES (?, ?, ?, ?, ?, ?)", row)
        except sqlite3.Error as error:
            raise InputError(f"can't write to the log {shortened(self._path)}: {error}") from None
        self._held[stage, key, ordinal] = outcome

    def __len__(self) -> int:
        return len(self._held)

    def close(self) -> None:
        """Close the file; what was written stays."""
        self._base.close()

    def __enter__(self) -> Log:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
