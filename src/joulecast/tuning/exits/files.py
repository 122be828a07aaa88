"""Writes files whole or not at all."""

from __future__ import annotations

import json
import os
import tempfile
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
        Path(unfinished).replace(path)
    except OSError as error:
        Path(unfinished).unlink(missing_ok=True)
        raise InputError(f"can't write {shortened(path)}: {error.strerror}") from None
