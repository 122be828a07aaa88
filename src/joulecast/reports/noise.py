"""Sections of the accuracy page: what a power limit slows down, what repeats differ by, which rows carry an error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from joulecast.reports.figures import markdown, percent
from joulecast.reports.text import whole

Row = Mapping[str, Any]


def slowdown(found: Row) -> list[str]:
    """Slowdown of kernels at the power limit, measured and predicted; nothing where none was scored."""
    groups: Sequence[Row] = found.get("groups", ())
    if not groups:
        return []
    rows = [
        (row["gpu"], row["engine"], f"{row['title']}, {row['group']}", row["against"], whole(row["rows"]),
         percent(row["offset"] - 1, sign=True), percent(row["measured"], sign=True),
         percent(row["predicted"], sign=True), _points(row["error"]) if row["same"] else "other kernels")
        for row in groups
    ]  # fmt: skip
    rows += [
        (row["gpu"], row["engine"], "**all of the same kernels**", "", whole(row["rows"]), "",
         percent(row["measured"], sign=True), percent(row["predicted"], sign=True), f"**{_points(row['error'])}**")
        for row in found.get("total", ())
    ]  # fmt: skip
    head = ("GPU", "engine", "kernels", "bursts of", "rows at the limit", "offset", "slower by", "predicted", "error")
    return [
        "## Slower at the power limit",
        "Rows at the power limit beside bursts of the same shapes. What versions differ by (*offset*) is the median "
        "among rows that the limit does not slow down; where the middle half of those is spread by more than 10 %, the "
        "two ran other kernels, and nothing tells the limit's part from theirs. As shipped.",
        markdown(head, rows, "llllrrrrr"),
    ]


def repeats(found: Sequence[Row]) -> list[str]:
    """How far like measurements differ; nothing where there are none."""
    if not found:
        return []
    rows = [(row["kind"], row["gpu"], whole(row["rows"]), percent(row["time"]), percent(row["power"])) for row in found]
    return [
        "## What repeats differ by",
        "Some operations were measured more than once under like conditions. They differ by this much from their mean, "
        "so no prediction could have a lower mean error on them. Messages of as many bytes count as repeats whatever "
        "their format, and so do experts under the two power laws, each the mean of five random routings.",
        markdown(("operation", "GPU", "repeated rows", "time", "power, A and B"), rows, "llrrr"),
    ]


def carriers(found: Sequence[Row]) -> list[str]:
    """Which rows carry the errors; nothing where none were scored."""
    if not found:
        return []
    rows = [
        (row["title"], percent(row["mean"]), percent(row["without"]), percent(row["share"]),
         ", ".join(str(word) for word in row["what"]), percent(row["what_share"]))
        for row in found
    ]  # fmt: skip
    head = ("kernels", "time", "without the worst hundredth", "share of the error in those", "most of it", "its part")
    return [
        "## Which rows carry the error",
        "All rows of all GPUs alike, shapes left out: the mean error, what it is without the hundredth of the rows "
        "that are furthest off, and where those are.",
        markdown(head, rows, "lrrrlr"),
    ]


def _points(share: float) -> str:
    return f"{100 * share:.1f} points"
