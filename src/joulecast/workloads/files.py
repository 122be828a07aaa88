"""Reading a user's file without trusting it: size limits, text, JSON, and what a file is, told by content."""

from __future__ import annotations

import json
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from joulecast.errors import InputError, shortened

#: Larger files are refused before they are read. [B]
MAX_BYTES = 512 * 2**20

#: First bytes of formats that are recognised only to be refused, with what to do instead.
_REFUSED_MAGIC: tuple[tuple[bytes, str], ...] = (
    (
        b"PK\x03\x04",
        "a zip archive (a PyTorch checkpoint, .npz, or a .pt2 cut short?); checkpoints are never opened, give the "
        "model's config.json",
    ),
    (b"\x80\x02", "a Python pickle (a PyTorch checkpoint?); pickles are never opened, give the model's config.json"),
    (b"\x80\x03", "a Python pickle; pickles are never opened, give the model's config.json"),
    (b"\x80\x04", "a Python pickle; pickles are never opened, give the model's config.json"),
    (b"\x80\x05", "a Python pickle; pickles are never opened, give the model's config.json"),
    (b"\x89HDF", "an HDF5 file (Keras weights?); give the model's config.json"),
    (b"GGUF", "a GGUF checkpoint; give the config.json of the model it was made from"),
    (b"\x1f\x8b", "compressed with gzip; unpack it first"),
    (b"\x28\xb5\x2f\xfd", "compressed with zstd; unpack it first"),
    (b"\x93NUMPY", "a NumPy array; write it as an operation list (CSV, parquet or JSON)"),
    (b"%PDF", "a PDF document"),
    (b"SQLite format 3", "an SQLite database; an Nsight Systems export is read by `joulecast attribute`"),
)


def read_bytes(path: str | Path) -> bytes:
    """The whole of a regular file.

    Raises
    ------
    InputError
        If there is no such file, it can't be read, is not a regular file, is empty or exceeds `MAX_BYTES`.
    """
    path = Path(path)
    try:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            raise InputError(f"{named(path)} is a folder, not a file")
        if not stat.S_ISREG(status.st_mode):
            raise InputError(f"{named(path)} is not a regular file")
        if status.st_size > MAX_BYTES:
            size_mb = status.st_size / 2**20
            raise InputError(f"{named(path)} has {size_mb:,.0f} MiB; at most {MAX_BYTES // 2**20} MiB are read")
        data = path.read_bytes()
    except InputError:
        raise
    except FileNotFoundError:
        raise InputError(f"no such file: {named(path)}") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL inside the name
        reason = getattr(error, "strerror", None) or "not a usable file name"
        raise InputError(f"can't read {named(path)}: {reason}") from None
    if not data:
        raise InputError(f"{named(path)} is empty")
    return data


def named(path: str | Path) -> str:
    """A path as it is quoted in messages: one printable line."""
    return shortened(Path(path), 120)


def text_of(data: bytes, name: str) -> str:
    """`data` as text; `InputError` where it is not UTF-8."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{name} is not UTF-8 text (byte {error.start}); save it as UTF-8") from None


def parse_json(data: bytes, name: str) -> Any:
    """The JSON value in `data`.

    Raises
    ------
    InputError
        For text that is not UTF-8, malformed or truncated JSON, a name given twice in one object,
        a number too long, or nesting too deep to follow.
    """
    text = text_of(data, name)
    try:
        return json.loads(text, object_pairs_hook=_object)
    except _DuplicateKeyError as error:
        raise InputError(f"{name}: {shortened(error.args[0])!r} is given twice in one object") from None
    except json.JSONDecodeError as error:
        unclosed = error.msg.startswith("Unterminated string")  # told of at its start
        ended = " (the file ends too early)" if unclosed or error.pos >= len(text.rstrip()) else ""
        what = error.msg.removesuffix(" starting at")
        raise InputError(f"{name} is not valid JSON: {what}, line {error.lineno} column {error.colno}{ended}") from None
    except RecursionError:
        raise InputError(f"{name} nests too deeply to be a description of a model") from None
    except ValueError:  # an integer of thousands of digits
        raise InputError(f"{name} holds a number with too many digits") from None


class _DuplicateKeyError(Exception):
    """A name that stands twice in one JSON object."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise _DuplicateKeyError(key)
            seen.add(key)
    return out


def content_of(data: bytes, name: str) -> str:
    """What a file's first bytes say it is: ``parquet``, ``json`` or ``text``.

    Raises
    ------
    InputError
        For formats that are known and not read (checkpoints, archives), a damaged ONNX model, and other binary files.
    """
    if data.startswith(b"PAR1"):
        return "parquet"
    for magic, what in _REFUSED_MAGIC:
        if data.startswith(magic):
            raise InputError(f"{name} is {what}")
    if len(data) > 9 and data[8:9] == b"{" and 2 <= int.from_bytes(data[:8], "little") < 2**32:
        raise InputError(f"{name} is a safetensors checkpoint; give the config.json beside it")
    if data[:1] == b"\x08" and b"\x00" < data[1:2] < b"\x20":
        raise InputError(f"{name} begins like an ONNX model and goes on like none: it is damaged, or another format")
    first = data[:4096].removeprefix(b"\xef\xbb\xbf").lstrip()[:1]
    if first in (b"{", b"["):
        return "json"
    if b"\x00" in data[:4096]:
        raise InputError(f"{name} is a binary file of no known format")
    return "text"


def content_of_json(value: Any, name: str) -> str:
    """What a JSON value describes: ``config``, ``oplist`` or ``energaizer``.

    Raises
    ------
    InputError
        For profiler traces, and for anything else.
    """
    if isinstance(value, Mapping):
        if "traceEvents" in value:
            raise InputError(f"{name} is a profiler (Chrome) trace: give the path of its file")
        if "joulecast" in value or "operations" in value:
            return "oplist"
        if any(key in value for key in ("model_type", "architectures", "architecture")):
            return "config"
    elif isinstance(value, list):
        if not value:
            raise InputError(f"{name} is an empty list: no operations in it")
        first = value[0]
        if isinstance(first, Mapping):
            if "ph" in first and "op" not in first:
                raise InputError(f"{name} is a profiler (Chrome) trace: give the path of its file")
            return "oplist"
        if isinstance(first, list) and len(first) == 2 and isinstance(first[0], Mapping) and isinstance(first[1], list):
            return "energaizer"
    raise InputError(
        f"{name} is JSON, but neither a Hugging Face config (no model_type), an operation list (no operations) "
        "nor an EnergAIzer trace (a list of [descriptor, tags])"
    )
