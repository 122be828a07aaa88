"""What a file of measurements is, by its first bytes and never by its name."""

from __future__ import annotations

import stat
from pathlib import Path

from joulecast.errors import InputError, shortened

#: Beginnings of files that people give by mistake, with what they are.
_OTHERS = (
    (b"SQLite format 3\x00", "an SQLite database (a log of a search, or a profiler's export)"),
    (b"ARROW1", "an Arrow file"),
    (b"\x1f\x8b", "compressed with gzip: unpack it first"),
    (b"\x28\xb5\x2f\xfd", "compressed with zstd: unpack it first"),
    (b"PK\x03\x04", "a zip archive, as spreadsheets are: save it as CSV"),
    (b"\xff\xfe", "text in UTF-16: save it as UTF-8"),
    (b"\xfe\xff", "text in UTF-16: save it as UTF-8"),
)


def content_of(path: Path, what: str, *forms: str) -> str:
    """Which of `forms` a file has: ``parquet`` or ``CSV``.

    Parameters
    ----------
    path : Path
    what : str
        For messages, such as ``a recorded space``.
    *forms : str
        That are read.

    Returns
    -------
    str

    Raises
    ------
    InputError
        If there is no such file, or it is something else.
    """
    name = shortened(path)
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise InputError(f"{name} is no regular file: {what} is {' or '.join(forms)}")
        with path.open("rb") as file:
            head = file.read(4096)
    except FileNotFoundError:
        raise InputError(f"no file {name}") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL inside the name
        raise InputError(f"can't read {name}: {getattr(error, 'strerror', None) or error}") from None
    found = _form(head)
    if found in forms:
        return found
    raise InputError(f"{name} is {found}; {what} is {' or '.join(forms)}")


def _form(head: bytes) -> str:
    if head.startswith(b"PAR1"):
        return "parquet"
    for magic, told in _OTHERS:
        if head.startswith(magic):
            return told
    first = head.removeprefix(b"\xef\xbb\xbf").lstrip()[:1]
    if not first:
        return "empty"
    if first in b"{[":
        return "JSON"
    return "a binary file" if b"\x00" in head else "CSV"
