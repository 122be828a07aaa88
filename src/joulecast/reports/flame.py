"""Flame graphs: a quantity by stack, as one SVG picture or an HTML page that needs nothing else."""

from __future__ import annotations

import html
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from joulecast import writing
from joulecast.errors import InputError, shortened
from joulecast.reports import text

WIDTH, ROW, MARGIN, HEAD = 1200.0, 19.0, 10.0, 58.0

#: Narrower frames are left out; their parents still show what they hold. [pixels]
NARROWEST = 0.4

#: Width of a letter of the font used. [pixels]
_LETTER = 6.6

#: Fills of frames by what they are, each light enough for black text on it.
_IDLE, _ROOT = "#d9d9d9", "#e8e8e8"
_HUES = ((22, 88, 78), (35, 92, 74), (46, 90, 72), (12, 80, 82))


@dataclass
class _Frame:
    name: str
    value: float = 0.0
    children: dict[str, _Frame] = field(default_factory=dict)


def write_flame(path: Path, stacks: Mapping[tuple[str, ...], float], *, title: str, unit: str) -> None:
    """Write the flame graph of `stacks` to `path`: ``.svg`` a picture, ``.html`` a page that zooms and searches.

    Parameters
    ----------
    path : Path
    stacks : mapping of tuple of str to float
        Value of each stack, outermost first.
    title : str
    unit : str
        ``J`` is shown with the prefix that reads best.

    Raises
    ------
    InputError
        For another ending, or where there is nothing to draw.
    """
    check_flame(path)
    picture = svg(stacks, title=title, unit=unit)
    writing.write_atomic(path, picture if path.suffix.lower() == ".svg" else _page(picture, title))


def check_flame(path: Path) -> None:
    """Refuse a file that no flame graph can be written to, before it is worked out.

    Raises
    ------
    InputError
        For an ending that is neither ``.svg`` nor ``.html``, or where it can't be written.
    """
    if path.suffix.lower() not in (".svg", ".html", ".htm"):
        raise InputError(f"can't draw a flame graph to {shortened(path)}: end it in .svg or .html")
    writing.check_writable(path)


def svg(stacks: Mapping[tuple[str, ...], float], *, title: str, unit: str) -> str:
    """The flame graph as SVG text; widest frames left, the outermost row on top."""
    root = _tree(stacks)
    if root.value <= 0:
        raise InputError("there is no energy to draw")
    boxes: list[str] = []
    depth = _draw(root, 0, MARGIN, WIDTH - 2 * MARGIN, root.value, unit, boxes)
    height = HEAD + (depth + 1) * ROW + MARGIN
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:g} {height:g}" width="{WIDTH:g}" '
        f'height="{height:g}" font-family="ui-monospace,Menlo,Consolas,monospace" font-size="11">\n'
        f'<rect width="100%" height="100%" fill="#ffffff"/>\n'
        f'<text x="{MARGIN:g}" y="24" font-size="16" font-weight="bold" fill="#222">{html.escape(title)}</text>\n'
        f'<text x="{MARGIN:g}" y="43" fill="#555">width: share of {_shown(root.value, unit)}; rows: who called whom, '
        "kernels last; grey: nothing ran</text>\n" + "\n".join(boxes) + "\n</svg>\n"
    )


def _tree(stacks: Mapping[tuple[str, ...], float]) -> _Frame:
    root = _Frame("all")
    for stack, value in stacks.items():
        if value <= 0:
            continue
        root.value += value
        place = root
        for name in stack:
            place = place.children.setdefault(name, _Frame(name))
            place.value += value
    return root


def _draw(root: _Frame, row: int, x: float, width: float, total: float, unit: str, boxes: list[str]) -> int:
    """Add a frame and what it holds; the deepest row drawn. Without recursion: stacks may be deep."""
    deepest = row
    waiting = [(root, row, x, width)]
    while waiting:
        frame, row, x, width = waiting.pop()
        deepest = max(deepest, row)
        boxes.append(_box(frame, row, x, width, total, unit))
        at = x
        for child in sorted(frame.children.values(), key=lambda one: -one.value):
            wide = width * child.value / frame.value
            if wide >= NARROWEST:
                waiting.append((child, row + 1, at, wide))
            at += wide
    return deepest


def _box(frame: _Frame, row: int, x: float, width: float, total: float, unit: str) -> str:
    letters = int((width - 6) / _LETTER)
    label = _label(frame.name, letters)
    y = HEAD + row * ROW
    told = f"{frame.name}: {_shown(frame.value, unit)}, {text.percent(frame.value / total)}"
    words = f'<text x="{x + 3:.2f}" y="{y + 13:.1f}">{html.escape(label)}</text>' if label else ""
    return (
        f'<g data-name="{html.escape(frame.name)}" data-x="{x:.3f}" data-w="{width:.3f}" data-row="{row}">'
        f"<title>{html.escape(told)}</title>"
        f'<rect x="{x:.2f}" y="{y:.1f}" width="{max(width - 0.4, 0.3):.2f}" height="{ROW - 1:.1f}" rx="1.5" '
        f'fill="{_fill(frame.name, row)}"/>{words}</g>'
    )


def _label(name: str, letters: int) -> str:
    """As much of a name as has room: its middle goes where both ends would still tell, else its end."""
    if letters >= len(name) or letters >= 16:
        return text.in_middle(name, letters)
    return name[: letters - 1] + "…" if letters >= 4 else ""


def _fill(name: str, row: int) -> str:
    if row == 0:
        return _ROOT
    if name == "(idle)":
        return _IDLE
    mark = zlib.crc32(name.encode())
    hue, saturation, lightness = _HUES[mark % len(_HUES)]
    return f"hsl({hue + (mark >> 8) % 9 - 4},{saturation}%,{lightness + (mark >> 16) % 7 - 3}%)"


def _shown(value: float, unit: str) -> str:
    return text.energy(value) if unit == "J" else f"{text.significant(value)} {unit}"


_SCRIPT = """
const svg = document.querySelector("svg"), frames = [...svg.querySelectorAll("g")];
const margin = %(margin)g, full = %(full)g, letter = %(letter)g;
const cut = (name, n) => name.length <= n ? name : n < 4 ? "" : n < 16 ? name.slice(0, n - 1) + "\\u2026"
  : name.slice(0, (n - 1) >> 1) + "\\u2026" + name.slice(name.length - (n - 1 - ((n - 1) >> 1)));
function zoom(to) {
  const x0 = +to.dataset.x, w0 = +to.dataset.w, row0 = +to.dataset.row;
  for (const g of frames) {
    const x = +g.dataset.x, w = +g.dataset.w, above = +g.dataset.row < row0;
    const hidden = above ? x > x0 + 1e-3 || x + w < x0 + w0 - 1e-3 : x < x0 - 1e-3 || x + w > x0 + w0 + 1e-3;
    g.style.display = hidden ? "none" : "";
    if (hidden) continue;
    const left = above ? margin : margin + (x - x0) / w0 * full, wide = above ? full : w / w0 * full;
    const rect = g.querySelector("rect");
    rect.setAttribute("x", left); rect.setAttribute("width", Math.max(wide - 0.4, 0.3));
    rect.style.opacity = above ? 0.6 : 1;
    let words = g.querySelector("text");
    if (!words) {
      words = document.createElementNS("http://www.w3.org/2000/svg", "text");
      words.setAttribute("y", +rect.getAttribute("y") + 13); g.append(words);
    }
    words.setAttribute("x", left + 3); words.textContent = cut(g.dataset.name, Math.floor((wide - 6) / letter));
  }
}
for (const g of frames) { g.style.cursor = "pointer"; g.addEventListener("click", () => zoom(g)); }
document.getElementById("back").addEventListener("click", () => zoom(frames[0]));
document.getElementById("find").addEventListener("input", event => {
  const wanted = event.target.value.toLowerCase();
  for (const g of frames)
    g.querySelector("rect").style.stroke =
      wanted && g.dataset.name.toLowerCase().includes(wanted) ? "#1446c8" : "none";
});
"""


def _page(picture: str, title: str) -> str:
    script = _SCRIPT % {"margin": MARGIN, "full": WIDTH - 2 * MARGIN, "letter": _LETTER}
    return (
        f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>{html.escape(title)}</title>\n'
        "<style>body{margin:12px;font:13px system-ui,sans-serif;background:#fff;color:#222}"
        "svg{max-width:100%;height:auto}g:hover rect{stroke:#222}"
        "input,button{font:inherit;padding:3px 8px;margin-right:8px}</style>\n"
        '<p><button id="back">Whole</button><input id="find" placeholder="Find a name" aria-label="Find a name">'
        "Click a frame to look into it.</p>\n"
        f"{picture}<script>{script}</script></html>\n"
    )
