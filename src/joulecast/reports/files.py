"""Figures as JSON and CSV for machines, and files that are written whole or not at all."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from joulecast.errors import InputError, shortened


def to_json(document: Any) -> str:
    """`document` as JSON text; NaN and infinities, which JSON lacks, as null. NumPy scalars and arrays are taken."""
    return json.dumps(_plain(document), ensure_ascii=False, indent=2, allow_nan=False) + "\n"


def to_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """`rows` as CSV text under the union of their columns, in order of appearance; what is absent is empty."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, restval="", lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: _cell(value) for name, value in row.items()})
    return out.getvalue()


def write_atomic(path: Path, content: str | bytes) -> None:
    """Write `content` to `path` so that a reader sees the old file or the new one, never a part.

    Raises
    ------
    InputError
        If the folder is missing, `path` is a folder or a device, or writing fails.
    """
    write_stream(path, [content.encode("utf-8") if isinstance(content, str) else content])


def check_writable(path: Path) -> None:
    """Refuse a file that can't be written, before anything is done for it.

    Raises
    ------
    InputError
        If the folder is missing or closed to us, or `path` is a folder or a device.
    """
    name = shortened(path)
    try:
        if path.exists() and not path.is_file():
            raise InputError(f"can't write to {name}: it is no ordinary file")
        if not path.parent.is_dir():
            raise InputError(f"can't write to {name}: its folder does not exist")
        if not os.access(path.resolve().parent, os.W_OK):
            raise InputError(f"can't write to {name}: its folder can't be written to")
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"can't write to {name}: {getattr(error, 'strerror', None) or error}") from None


def write_stream(path: Path, pieces: Iterable[bytes]) -> None:
    """As `write_atomic`, piece by piece: what is written need not be held whole."""
    check_writable(path)
    name = shortened(path)
    try:
        target = path.resolve()
        descriptor, temporary = tempfile.mkstemp(dir=target.parent, prefix=".joulecast-", suffix=".tmp")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.writelines(pieces)
            Path(temporary).chmod(0o666 & ~_umask())
            Path(temporary).replace(target)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"can't write to {name}: {getattr(error, 'strerror', None) or error}") from None


def gzipped(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """`pieces` as a gzip file, the same each time: without name and time."""
    packer = zlib.compressobj(6, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
    for piece in pieces:
        yield packer.compress(piece)
    yield packer.flush()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):  # NumPy scalars and arrays
        value = value.tolist()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, str | int | bool):
        return value
    return str(value)


def _cell(value: Any) -> Any:
    value = _plain(value)
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return "; ".join(str(item) for item in value)
    return value
