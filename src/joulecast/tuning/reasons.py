"""Reasons that differ in their numbers alone, counted together and told with the span of each number."""

from __future__ import annotations

import re
from collections.abc import Mapping

#: A number by itself: not one that is part of a name, such as H100-SXM-80GB, or of a version.
_NUMBER = re.compile(r"(?<![\w.-])\d+(?:,\d{3})*(?:\.\d+)?(?:e[+-]?\d+)?(?![\w-]|\.\d)")


def grouped(counts: Mapping[str, int]) -> dict[str, int]:
    """Counts by reason, the most frequent first, those that differ in numbers alone as one.

    Parameters
    ----------
    counts : mapping of str to int
        By the whole reason.

    Returns
    -------
    dict of str to int
        ``needs 232 to 512 KiB a block, the GPU has 227``: a number that is always the same stands as it is.
    """
    alike: dict[str, dict[str, int]] = {}
    for reason, count in counts.items():
        alike.setdefault(_NUMBER.sub("#", reason), {})[reason] = count
    told = {_told(list(several)): sum(several.values()) for several in alike.values()}
    return dict(sorted(told.items(), key=lambda one: -one[1]))


def _told(several: list[str]) -> str:
    """One reason for several with other numbers in the same places."""
    spans = iter(zip(*(_NUMBER.findall(reason) for reason in several), strict=True))
    return _NUMBER.sub(lambda _: _span(next(spans)), several[0])


def _span(numbers: tuple[str, ...]) -> str:
    low, high = (end(numbers, key=lambda text: float(text.replace(",", ""))) for end in (min, max))
    return low if low == high else f"{low} to {high}"
