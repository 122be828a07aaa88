"""Writes files whole or not at all."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from joulecast.errors import InputError, shortened


def write_json(path: Path, document: Any) -> None:
    """Write `document` as JSON to `path`, in one step.

    Raises
    ------
    InputError
        If it can't be written.
    """
    text = json.dumps(document, indent=2, default=float) + "\n"
    try:
        descriptor, unfinished = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}")
    except OSError as error:
        raise InputError(f"can't write {shortened(path)}: {error.strerror}") from None
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        Path(unfinished).chmod(0o644)
        Path(unfinished).replace(path.resolve())
    except BaseException as error:
        Path(unfinished).unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise InputError(f"can't write {shortened(path)}: {error.strerror}") from None
        raise


@contextlib.contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Wait until no other process changes files of a folder in this way: what two add at once are both kept."""
    import fcntl

    descriptor = None
    with contextlib.suppress(OSError):  # a file system that knows no locks
        descriptor = os.open(folder, os.O_RDONLY)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)
