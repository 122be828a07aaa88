"""What an audit finds: rows, the bound that each breaks, and why."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Rows = npt.NDArray[np.intp]
Mask = npt.NDArray[np.bool_]

#: What is checked, in the order of reports.
CHECKS: Mapping[str, str] = MappingProxyType(
    {
        "not_positive": "zero, negative, NaN or missing",
        "unit": "off by a power of a thousand",
        "too_short": "shorter than any kernel",
        "peak_flop": "above peak arithmetic rate",
        "bandwidth": "above what L2 and DRAM deliver",
        "link": "above what the links deliver",
        "power_limit": "mean power above the limit",
        "idle": "power below the idle floor",
        "energy": "energy is not power x time",
        "window": "window too short for the meter",
        "duplicate": "rows given twice",
        "repeat": "repeats contradict each other",
        "growth": "more work in much less time",
    }
)


@dataclass(frozen=True)
class Finding:
    """Rows that fail one check.

    Attributes
    ----------
    check : str
        Key of `CHECKS`.
    rows : ndarray of int
        Indices into the audited rows.
    values, limits : ndarray
        What was found, and the bound that it breaks, both in `unit`.
    unit : str
    reasons : tuple of str
        One line a row.
    doubtful : bool
        Whether there is an innocent explanation: such rows are listed and kept.
    """

    check: str
    rows: Rows
    values: Floats
    limits: Floats
    unit: str
    reasons: tuple[str, ...]
    doubtful: bool = False

    def moved(self, rows: Rows) -> Finding:
        """The finding with its rows as indices into a larger table, of which row i here is ``rows[i]`` there."""
        return replace(self, rows=rows[self.rows])


@dataclass(frozen=True)
class Audit:
    """What an audit of `n` rows found.

    Attributes
    ----------
    n : int
    findings : tuple of Finding
    """

    n: int
    findings: tuple[Finding, ...]

    @property
    def flagged(self) -> Mask:
        """Rows that can't be, or contradict others: those to set aside."""
        return self._rows(doubtful=False)

    @property
    def doubted(self) -> Mask:
        """Rows with only doubtful findings."""
        return self._rows(doubtful=True) & ~self.flagged

    def _rows(self, doubtful: bool) -> Mask:
        mask = np.zeros(self.n, dtype=bool)
        for finding in self.findings:
            if finding.doubtful == doubtful:
                mask[finding.rows] = True
        return mask


def finding(
    check: str, where: Any, values: Any, limits: Any, unit: str, why: Callable[[int], str], doubtful: bool = False
) -> list[Finding]:
    """A finding at the rows of `where` (mask or indices), in a list; an empty one where there are none."""
    rows = np.asarray(where)
    rows = np.flatnonzero(rows) if rows.dtype == bool else rows.astype(np.intp)
    if not len(rows):
        return []
    picked = [np.broadcast_to(np.asarray(x, dtype=np.float64), where.shape)[rows] if _is_mask(where)
              else np.asarray(x, dtype=np.float64) for x in (values, limits)]  # fmt: skip
    return [Finding(check, rows, picked[0], picked[1], unit, tuple(why(int(row)) for row in rows), doubtful)]


def time_text(seconds: float) -> str:
    """`seconds` with four digits in the unit that reads best."""
    for size, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if abs(seconds) >= size:
            return f"{seconds / size:.4g} {unit}"
    return f"{seconds * 1e9:.4g} ns"


def _is_mask(where: Any) -> bool:
    return isinstance(where, np.ndarray) and where.dtype == bool
