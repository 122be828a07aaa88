"""Shares in per cent and markdown tables, as pages of scores show them."""

from __future__ import annotations

from collections.abc import Sequence

from joulecast.reports.text import ABSENT


def percent(share: float | None, *, sign: bool = False) -> str:
    """A share in per cent with one digit: ``3.2 %``; with `sign`, ``+3.2 %``."""
    if share is None or share != share:
        return ABSENT
    return f"{100 * share:+.1f} %" if sign else f"{100 * share:.1f} %"


def whole_percent(share: float | None) -> str:
    """A share in whole per cent: ``91 %``."""
    return ABSENT if share is None or share != share else f"{100 * share:.0f} %"


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]], align: str) -> str:
    """A markdown table; `align` has one letter a column, ``l`` or ``r``."""
    rule = ["---" if letter == "l" else "---:" for letter in align]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, rule, *rows))
