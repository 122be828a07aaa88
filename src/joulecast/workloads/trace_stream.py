"""Reads the events of a Chrome trace one by one, so that a trace of any size fits in little memory."""

from __future__ import annotations

import codecs
import gzip
import json
import re
import stat
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from joulecast.errors import InputError
from joulecast.workloads.files import named

#: Bytes read at a time, and the most characters that one event or header value may have.
CHUNK_BYTES = 1 << 20
MOST_CHARACTERS = 1 << 24

GZIP_MAGIC = b"\x1f\x8b"

Progress = Callable[[float], None]

_SPACE = re.compile(r"[\s,]*")
_NEXT_EVENT = re.compile(r'\}\s*,\s*(?=\{\s*"(?:ph|name|cat|pid|ts|args)")')
_BARE_WORDS = re.compile(r"(?<=[:,\[])\s*-?(?:inf|nan)(?:inity)?(?=\s*[,}\]])", re.IGNORECASE)


class EventStream:
    """The events of one file, and what stands beside them.

    Attributes
    ----------
    header : dict
        Values of the outermost object other than the events; those after the events only once all are read.
    skipped : int
        Events so far that are no valid JSON and were passed over.
    cut_short : str
        Why the events end before the file says so; empty where they don't.
    """

    def __init__(self, path: str | Path, progress: Progress | None = None) -> None:
        self.path = Path(path)
        self.name = named(self.path)
        self.header: dict[str, Any] = {}
        self.skipped = 0
        self.cut_short = ""
        self._progress = progress
        self._text = ""
        self._at = 0
        self._ended = False
        self._decode = json.JSONDecoder().raw_decode

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield the events in the order of the file.

        Raises
        ------
        InputError
            If the file can't be read, or is no Chrome trace.
        """
        raw, size = opened(self.path)
        with raw:
            start = raw.read(2)
            raw.seek(0)
            source: Any = gzip.GzipFile(fileobj=raw) if start == GZIP_MAGIC else raw
            self._reader = _Reader(source, raw, size, self._progress)
            yield from self._events()
            if self._progress is not None:
                self._progress(1.0)

    def _events(self) -> Iterator[dict[str, Any]]:
        first = self._peek()
        if first == "[":
            self._at += 1
            yield from self._array()
            return
        if first != "{":
            raise InputError(f"{self.name} is no profiler trace: it is not JSON{self._why()}")
        self._at += 1
        found = False
        while (mark := self._peek()) == '"':
            key, _ = self._value()
            if self._peek() != ":":
                break
            self._at += 1
            opening = self._peek()
            if key == "traceEvents" and opening == "[":
                self._at += 1
                found = True
                yield from self._array()
                if self.cut_short:
                    return
            else:
                value, whole = self._value()
                if not whole:
                    break
                if isinstance(key, str):
                    self.header[key] = value
        if not found:
            if mark == "}":
                raise InputError(f"{self.name} is JSON, but no profiler trace: it has no traceEvents")
            raise InputError(f"{self.name} is damaged: its JSON breaks off or is broken before any event{self._why()}")

    def _array(self) -> Iterator[dict[str, Any]]:
        while True:
            mark = self._peek()
            if mark == "]":
                self._at += 1
                return
            if mark == "":
                self.cut_short = self._reader.trouble or "the file ends too early"
                return
            value, whole = self._value()
            if whole:
                if isinstance(value, dict):
                    yield value
                else:
                    self.skipped += 1
                continue
            value = self._repaired()
            if value is None and self.cut_short:
                return
            if value:
                yield value

    def _value(self) -> tuple[Any, bool]:
        """The JSON value at the place, and whether there is a whole one; reads on as far as it takes."""
        while True:
            try:
                value, end = self._decode(self._text, self._at)
            except (ValueError, RecursionError):
                end = -1
            # a number at the very end of what was read may go on
            if end >= 0 and (end < len(self._text) or self._ended):
                self._at = end
                return value, True
            if self._ended or len(self._text) - self._at > MOST_CHARACTERS:
                return None, False
            self._more()

    def _repaired(self) -> dict[str, Any] | None:
        """The broken event at the place with its bare words mended; empty where it is lost, None where all ends."""
        while not (found := _NEXT_EVENT.search(self._text, self._at)) and not self._ended:
            if len(self._text) - self._at > MOST_CHARACTERS:
                break
            self._more()
        end = found.start() + 1 if found else len(self._text)
        mended = _BARE_WORDS.sub(" null", self._text[self._at : end])
        try:
            value, length = self._decode(mended.lstrip(), 0)
        except (ValueError, RecursionError):
            value, length = {}, 0
        if not length:
            self.skipped += 1
        if found:
            self._at = found.end()
        elif length:
            self._at = end
            self._text = self._text[: self._at] + mended.lstrip()[length:]
        else:
            self.skipped -= 1
            self.cut_short = self._reader.trouble or "the file ends too early"
            return None
        return value if isinstance(value, dict) else {}

    def _peek(self) -> str:
        """The next character that is no space or comma; empty at the end."""
        while True:
            found = _SPACE.match(self._text, self._at)
            self._at = found.end() if found else self._at
            if self._at < len(self._text):
                return self._text[self._at]
            if self._ended:
                return ""
            self._more()

    def _more(self) -> None:
        chunk = self._reader.read(max(CHUNK_BYTES, len(self._text) - self._at))
        if chunk is None:
            self._ended = True
            return
        self._text = self._text[self._at :] + chunk
        self._at = 0

    def _why(self) -> str:
        return f" ({self._reader.trouble})" if self._reader.trouble else ""


class _Reader:
    """Text of a file, chunk by chunk; what goes wrong on the way is kept as `trouble` and ends it."""

    def __init__(self, source: Any, raw: IO[bytes], size: int, progress: Progress | None) -> None:
        self.trouble = ""
        self._source, self._raw, self._size, self._progress = source, raw, size, progress
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")("replace")

    def read(self, length: int) -> str | None:
        pieces: list[bytes] = []
        while length > 0 and not self.trouble:
            try:
                data = self._source.read1(length)  # one block at a time: what was whole before a fault is kept
            except EOFError:
                self.trouble = "the compressed file ends too early"
            except (OSError, zlib.error):
                self.trouble = "the compressed data is damaged"
            else:
                if not data:
                    break
                pieces.append(data)
                length -= len(data)
        if self._progress is not None:
            self._progress(self._raw.tell() / self._size)
        return self._decoder.decode(b"".join(pieces)) if pieces else None


#: Of a file's beginning, how much is looked at to tell a trace: what stands before its events fits in it. [B]
_HEAD_BYTES = 1 << 18


def is_trace(path: str | Path) -> bool:
    """Whether a file begins as a Chrome trace, plain or gzip; False where it can't be read."""
    try:
        if not stat.S_ISREG(Path(path).stat().st_mode):  # a pipe would be waited for
            return False
        with Path(path).open("rb") as file:
            head = file.read(_HEAD_BYTES)
    except (OSError, ValueError):
        return False
    if head.startswith(GZIP_MAGIC):
        try:
            head = zlib.decompressobj(31).decompress(head, _HEAD_BYTES)
        except zlib.error:
            return False
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if text[:1] == b"{":
        return b'"traceEvents"' in text
    return re.match(rb"\[\s*\{", text) is not None and re.search(rb'"ph"\s*:\s*"[A-Za-z]"', text[:4096]) is not None


def opened(path: Path) -> tuple[IO[bytes], int]:
    """A regular file opened for reading, and its size. [B]

    Raises
    ------
    InputError
        If there is no such file, it can't be read, is not a regular file, or is empty.
    """
    name = named(path)
    try:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            raise InputError(f"{name} is a folder, not a file")
        if not stat.S_ISREG(status.st_mode):
            raise InputError(f"{name} is not a regular file")
        if not status.st_size:
            raise InputError(f"{name} is empty")
        return path.open("rb"), status.st_size
    except FileNotFoundError:
        raise InputError(f"no such file: {name}") from None
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"can't read {name}: {getattr(error, 'strerror', None) or 'not a usable name'}") from None
