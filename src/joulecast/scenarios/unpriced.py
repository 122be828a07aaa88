"""Operations that no kind describes: told with their share of the bytes, and what that does to an answer."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from joulecast.errors import InputError, shortened
from joulecast.workloads.table import Workload

#: Share of the bytes that may be unpriced before a warning says so, and intervals widen.
UNPRICED_TOLD = 0.02


def nothing_priced(workload: Workload) -> InputError:
    """What to say of a workload without an operation that can be priced."""
    if not workload.unpriced:
        return InputError(f"{workload.name} has no operations to price")
    names = shortened(", ".join(sorted(workload.unpriced)), 120)
    hint = "; @jc.op_cost prices operators of your own" if workload.info.get("source") == "pytorch" else ""
    return InputError(f"{workload.name} runs only operators that can't be priced: {names}{hint}")


def unpriced_warnings(name: str, shares: Mapping[str, float], strict: bool) -> list[str]:
    """What to say of operations that are not priced, by their shares of the bytes.

    Raises
    ------
    InputError
        If there are some and `strict` refuses them.
    """
    if shares and strict:
        raise InputError(f"strict: {name} runs operators that can't be priced: {', '.join(sorted(shares))}")
    total = sum(shares.values())
    if total <= UNPRICED_TOLD:
        return []
    listed = ", ".join(f"{one} {share:.1%}" for one, share in sorted(shares.items(), key=lambda item: -item[1])[:6])
    return [f"operators that can't be priced move {total:.1%} of the bytes ({listed}): intervals are wider for them"]


def unpriced_width(shares: Mapping[str, float]) -> float:
    """What to add to the half-width of a time, in natural logarithms: the time that the bytes left out may take."""
    total = sum(shares.values())
    return float(-np.log1p(-min(total, 0.99))) if total > UNPRICED_TOLD else 0.0
