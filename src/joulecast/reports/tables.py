"""Plain tables and lists of facts become lines of a terminal or of a pipe: the same text, with or without colour.

Names come from files that others wrote, so nothing in a line may steer the terminal.
"""

from __future__ import annotations

import os
import shutil
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import IO

from joulecast.errors import visible
from joulecast.reports.text import in_middle

#: A piece of a line and its style, in rich's words; empty for none.
Span = tuple[str, str]
Line = tuple[Span, ...]

#: Narrowest and widest page that lists are wrapped to.
NARROWEST, WIDEST = 40, 120

#: Columns that an elastic column keeps; what is still too wide is cut at the right.
LEAST_ELASTIC = 22

#: Spelling of what plain ASCII lacks, one character each so that columns stay in line.
_ASCII = str.maketrans({"±": "~", "·": "-", "µ": "u", "…": "~", "×": "x", "–": "-", "−": "-"})


@dataclass(frozen=True)
class Table:
    """Rows under headers.

    Attributes
    ----------
    headers : tuple of str
    rows : tuple of tuple of str
        A row shorter than the headers is one whose last cell runs over the columns that are left.
    align : str
        One letter a column: ``l`` left, ``r`` right, ``m`` left and close to the column before it.
    styles : tuple of str
        Style of each row, in rich's words; may be empty.
    elastic : int or None
        Column that is cut in its middle where the table is wider than the page of a terminal.
    """

    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    align: str
    styles: tuple[str, ...] = ()
    elastic: int | None = None

    def lines(self, width: int, *, cut: bool = False) -> list[Line]:
        """The lines at `width` columns; only with `cut` may the elastic column be shortened."""
        cells = [self.headers, *self.rows]
        columns = len(self.headers)
        # The last cell of a short row runs on, so it does not widen its column.
        sizes = [
            max((len(row[i]) for row in cells if i < len(row) and (len(row) == columns or i < len(row) - 1)), default=0)
            for i in range(columns)
        ]
        if cut and self.elastic is not None:
            over = sum(sizes) + 2 * (columns - 1) - width
            sizes[self.elastic] = max(sizes[self.elastic] - max(over, 0), min(sizes[self.elastic], LEAST_ELASTIC))
        styles = ("bold" if any(self.headers) else "", *(self.styles or ("",) * len(self.rows)))
        lines: list[Line] = []
        for row, style in zip(cells, styles, strict=True):
            runs_on = len(row) < columns
            text = self._joined(row, sizes)
            if runs_on:
                pieces = _folded(text, width, sizes[0] + 2)
            else:
                pieces = [text[: width - 1] + "…" if cut and self.elastic is not None and len(text) > width else text]
            lines += [((piece, style),) for piece in pieces]
        return lines if any(self.headers) else lines[1:]

    def _joined(self, row: tuple[str, ...], sizes: list[int]) -> str:
        parts = []
        for i, cell in enumerate(row):
            gap = "" if i == 0 else " " if self.align[i] == "m" else "  "
            if len(row) < len(sizes) and i == len(row) - 1:
                parts.append(gap + cell)
                continue
            shown = in_middle(cell, sizes[i]) if i == self.elastic else cell
            parts.append(gap + (shown.rjust(sizes[i]) if self.align[i] == "r" else shown.ljust(sizes[i])))
        return "".join(parts).rstrip()


@dataclass(frozen=True)
class Facts:
    """Labels with values beside them, wrapped under themselves.

    Attributes
    ----------
    items : tuple of (str, tuple of str)
        A label and its pieces; lines break between pieces, and between words of a piece that is too long.
    style : str
        Style of the values.
    label_width : int
        Columns that the labels take, the gap included.
    title : str
        A line above; empty for none.
    """

    items: tuple[tuple[str, tuple[str, ...]], ...]
    style: str = ""
    label_width: int = 16
    title: str = ""

    def lines(self, width: int, *, cut: bool = False) -> list[Line]:  # noqa: ARG002  (blocks are alike)
        """The lines at `width` columns."""
        lines: list[Line] = [((self.title, "bold"),)] if self.title else []
        for label, pieces in self.items:
            room = max(width - self.label_width, 20)
            head = label.ljust(self.label_width)
            for text in _packed(pieces, room):
                lines.append(((head, "cyan"), (text, self.style)))
                head = " " * self.label_width
        return lines


@dataclass(frozen=True)
class Heading:
    """A line of its own: what stands left and what stands right, on two lines where one is too short."""

    left: str
    right: str = ""
    style: str = "bold"

    def lines(self, width: int, *, cut: bool = False) -> list[Line]:  # noqa: ARG002  (blocks are alike)
        """The lines at `width` columns."""
        page = min(width, 80)
        if self.right and len(self.left) + len(self.right) + 3 <= page:
            gap = page - len(self.left) - len(self.right)
            return [((self.left, self.style), (" " * gap, ""), (self.right, ""))]
        folded = [
            ((piece, style),)
            for text, style in ((self.left, self.style), (self.right, ""))
            for piece in _folded(text, width)
        ]
        return [line for line in folded if line[0][0]]


Block = Table | Facts | Heading


def page_width(stream: IO[str]) -> int:
    """Columns to write for `stream`: ``$COLUMNS`` or the terminal's, 80 for a pipe."""
    if _is_terminal(stream) or os.environ.get("COLUMNS"):
        return min(max(shutil.get_terminal_size((80, 24)).columns, NARROWEST), WIDEST)
    return 80


def plain(blocks: Iterable[Block], width: int = 80) -> str:
    """The blocks as text without colour, a blank line between them, nothing cut."""
    return "\n\n".join(
        "\n".join(visible("".join(text for text, _ in line)).rstrip() for line in block.lines(width))
        for block in blocks
    )


def show(blocks: Sequence[Block], stream: IO[str]) -> None:
    """Write the blocks to `stream`: with colour to a terminal, as plain text to a pipe."""
    width = page_width(stream)
    if not _is_terminal(stream):
        stream.write(printable(plain(blocks, width) + "\n", stream))
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(file=stream, highlight=False, markup=False, emoji=False)
    for i, block in enumerate(blocks):
        if i:
            console.print()
        for line in block.lines(width, cut=True):
            text = Text.assemble(*((printable(visible(piece), stream), style) for piece, style in line))
            text.rstrip()
            console.print(text, soft_wrap=True)


def printable(text: str, stream: IO[str]) -> str:
    """`text` in characters that `stream` can encode."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    try:
        text.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return text.translate(_ASCII).encode("ascii", "replace").decode("ascii")
    return text


def send(text: str, stream: IO[str]) -> None:
    """Write JSON or CSV to `stream`; in UTF-8 where its own encoding lacks a character."""
    try:
        stream.write(text)
    except UnicodeEncodeError:
        stream.flush()
        stream.buffer.write(text.encode("utf-8"))  # type: ignore[attr-defined]


def _is_terminal(stream: IO[str]) -> bool:
    return bool(getattr(stream, "isatty", lambda: False)())


def _packed(pieces: Sequence[str], room: int) -> list[str]:
    lines: list[str] = []
    current = ""
    for piece in pieces:
        joined = f"{current}  {piece}" if current else piece
        if len(joined) <= room:
            current = joined
            continue
        if current:
            lines.append(current)
        *full, current = _folded(piece, room)
        lines += full
    return [*lines, current]


def _folded(text: str, width: int, indent: int = 0) -> list[str]:
    if not width or len(text) <= width:
        return [text]
    return textwrap.wrap(
        text,
        width,
        subsequent_indent=" " * indent,
        drop_whitespace=True,
        replace_whitespace=False,
        break_on_hyphens=False,
    )
