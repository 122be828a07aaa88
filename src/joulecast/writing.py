"""Files that are written whole or not at all: a reader sees the old one or the new one, never a part."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from joulecast.errors import InputError, shortened

#: What a name begins and ends with while it is written; nothing else is called so.
UNFINISHED = (".joulecast-", ".tmp")


def check_writable(path: Path) -> None:
    """Refuse a file that can't be written, before anything is done for it.

    Raises
    ------
    InputError
        If the folder is missing or closed to us, or `path` is a folder or a device.
    """
    name = shortened(path)
    with told(path):
        if path.exists() and not path.is_file():
            raise InputError(f"can't write to {name}: it is no ordinary file")
        if not path.parent.is_dir():
            raise InputError(f"can't write to {name}: its folder does not exist")
        if not os.access(path.resolve().parent, os.W_OK):
            raise InputError(f"can't write to {name}: its folder can't be written to")


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """A file that takes the place of `path` once the context ends, and is gone where it fails.

    Raises
    ------
    InputError
        If `path` can't be written (`check_writable`), or writing fails.
    """
    check_writable(path)
    with told(path):
        target = path.resolve()
        descriptor, temporary = tempfile.mkstemp(dir=target.parent, prefix=UNFINISHED[0], suffix=UNFINISHED[1])
        try:
            with os.fdopen(descriptor, "wb") as file:
                yield file
            Path(temporary).chmod(0o666 & ~_umask())
            Path(temporary).replace(target)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise


@contextmanager
def unfinished_folder(path: Path) -> Iterator[Path]:
    """A folder beside `path` for parts of it, which is gone when the context ends, or the program."""
    with tempfile.TemporaryDirectory(
        dir=path.resolve().parent, prefix=UNFINISHED[0], suffix=UNFINISHED[1], ignore_cleanup_errors=True
    ) as folder:
        yield Path(folder)


def write_atomic(path: Path, content: str | bytes) -> None:
    """Write `content` to `path`; see `whole_file`."""
    write_stream(path, [content.encode("utf-8") if isinstance(content, str) else content])


def write_stream(path: Path, pieces: Iterable[bytes]) -> None:
    """As `write_atomic`, piece by piece: what is written need not be held whole."""
    with whole_file(path) as file:
        file.writelines(pieces)


@contextmanager
def told(path: Path) -> Iterator[None]:
    """What the system says against writing `path`, as an `InputError`."""
    try:
        yield
    except InputError:
        raise
    except (OSError, ValueError) as error:
        raise InputError(f"can't write to {shortened(path)}: {getattr(error, 'strerror', None) or error}") from None


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
