"""JSON that other programs read, and folders that several processes add to."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from joulecast.writing import write_atomic


def write_json(path: Path, document: Any) -> None:
    """Write `document` as JSON to `path`, whole or not at all.

    Raises
    ------
    InputError
        If it can't be written.
    """
    write_atomic(path, json.dumps(document, indent=2, default=float) + "\n")


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
