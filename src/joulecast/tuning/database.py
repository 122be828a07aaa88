"""Opens the SQLite files of searches: nothing is written to a file that is somebody else's."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from joulecast.errors import InputError, shortened


def opened(path: str | Path, schema: str, version: int, what: str) -> sqlite3.Connection:
    """A connection that writes ahead, to a file that holds `schema` and nothing else.

    Parameters
    ----------
    path : path
        Made where there is none; ``:memory:`` keeps nothing.
    schema : str
        Statements that make the tables.
    version : int
        Of the tables and of what stands in them.
    what : str
        Such as ``log``, for messages.

    Raises
    ------
    InputError
        If the file is damaged, another program's or another version's, or can't be written.
    """
    name = shortened(path)
    try:
        if str(path) != ":memory:":
            if not Path(path).parent.is_dir():
                raise InputError(f"no folder {shortened(Path(path).parent)} to write the {what} in")
            if Path(path).is_dir() or (Path(path).exists() and not os.access(path, os.W_OK)):
                raise InputError(f"can't write the {what} {name}")
        base = sqlite3.connect(path, timeout=30.0)
    except (OSError, ValueError, sqlite3.Error) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"can't open {name} as a {what}: {getattr(error, 'strerror', None) or error}") from None
    try:
        (found,) = base.execute("PRAGMA user_version").fetchone()
        held = _columns(base)
        with sqlite3.connect(":memory:") as ours:
            ours.executescript(schema)
            right = _columns(ours)
        ours.close()
        if found not in (0, version) and set(right) <= set(held):
            raise InputError(f"the {what} {name} was written by another version of joulecast: take another file")
        if found not in (0, version) or any(right.get(table) != columns for table, columns in held.items()):
            raise InputError(f"{name} is no {what}: another program's data stand in it; take another file")
        base.execute("PRAGMA journal_mode=WAL")
        base.execute("PRAGMA synchronous=NORMAL")
        base.executescript(schema)
        base.execute(f"PRAGMA user_version={version}")
    except sqlite3.Error as error:
        base.close()
        raise InputError(f"can't use {name} as a {what}: {error}") from None
    except InputError:
        base.close()
        raise
    return base


def _columns(base: sqlite3.Connection) -> dict[str, list[str]]:
    """Names of the columns of each table."""
    tables = [name for (name,) in base.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    return {
        name: [column for (column,) in base.execute("SELECT name FROM pragma_table_info(?)", (name,))]
        for name in tables
        if not name.startswith("sqlite_")
    }
