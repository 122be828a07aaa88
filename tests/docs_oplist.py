"""The reference part of ``docs/operation-list.md``, made from the kinds of operation; ``--write`` renews it there."""

from __future__ import annotations

import sys
from pathlib import Path

from joulecast.workloads.kinds import KINDS, REQUIRED, Column, Kind

PAGE = Path(__file__).resolve().parents[1] / "docs" / "operation-list.md"
BEGIN, END = "<!-- reference: begin -->\n", "<!-- reference: end -->\n"


def reference() -> str:
    """Markdown tables of the columns of every kind."""
    return "\n".join(_of_kind(one) for one in KINDS.values())


def shown(page: str) -> str:
    """The reference that a page holds now."""
    return page.split(BEGIN, 1)[1].split(END, 1)[0]


def _of_kind(one: Kind) -> str:
    lines = [f"### {one.name}", "", "| column | holds | default | meaning |", "|---|---|---|---|"]
    lines += [f"| `{column.name}` | {_holds(column)} | {_default(column)} | {column.help} |" for column in one.columns]
    if one.rules:
        lines += ["", f"In each row {'; '.join(rule.text for rule in one.rules)}."]
    return "\n".join(lines) + "\n"


def _holds(column: Column) -> str:
    if column.type == "choice":
        return ", ".join(f"`{choice}`" for choice in column.choices)
    if column.type == "dtype":
        return "number format"
    whole = "whole number" if column.type == "size" else "number"
    top = f" to {column.maximum:g}" if column.maximum < 2**40 else " or more"
    return f"{whole}, {column.minimum:g}{top}"


def _default(column: Column) -> str:
    if column.default is REQUIRED:
        return "required"
    return f"`{column.default}`" if isinstance(column.default, str) else f"{column.default:,.0f}"


if __name__ == "__main__" and "--write" in sys.argv:
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(text.replace(shown(text), reference()), encoding="utf-8")
