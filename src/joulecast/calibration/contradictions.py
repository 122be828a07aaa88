"""Measured rows that contradict other rows of their batch: repeats that differ, more work in much less time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np

from joulecast.bounds import plausibility as bounds
from joulecast.calibration.findings import Finding, Floats, Rows, finding, time_text
from joulecast.calibration.tables import QUALITIES, Measured

#: Sizes along which work grows, by kind of operation: only rows that differ in one of them are compared.
GROWS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "gemm": ("m", "n", "k"),
        "batched_gemm": ("batch", "m", "n", "k"),
        "context_attention": ("batch_size", "query_len"),
        "generation_attention": ("batch_size", "past_len"),
        "encoder_attention": ("batch_size", "seq_len"),
        "moe": ("num_tokens",),
        "mla_context": ("batch_size", "query_len"),
        "mla_generation": ("batch_size", "past_len"),
        "mla_module_context": ("batch_size", "query_len"),
        "mla_module_generation": ("batch_size", "past_len"),
        "dsa_module_context": ("batch_size", "query_len"),
        "dsa_module_generation": ("batch_size", "past_len"),
        "mla_bmm": ("num_tokens",),
        "quantize": ("m", "k"),
        "linear_attention_gdn": ("batch_size", "seq_len"),
        "linear_attention_mamba2": ("batch_size", "seq_len"),
        "nccl": ("message_bytes",),
        "custom_allreduce": ("message_bytes",),
        "row_reduction": ("rows", "dim"),
        "elementwise": ("elements",),
        "copy": ("elements",),
        "gather": ("rows",),
        "conv2d": ("batch_size",),
    }
)

#: Repeats of the same work on another board or day differ by 14 %; beyond this they contradict each other.
_REPEAT_FACTOR = 2.0
_REPEAT_POWER_FACTOR = 1.5

#: Differences up to this are the clock's and the host's. [s]
_JITTER_S = 20e-6
_TRUSTED_POWER = tuple(QUALITIES.index(word) for word in ("A", "B", ""))


def repeats(m: Measured) -> list[Finding]:
    """The same operation under the same conditions, given twice or with results that can't both be."""
    _, group = m.table.distinct()
    if int(group.max()) + 1 == len(m):
        return []
    power = np.where(np.isin(m.quality, _TRUSTED_POWER), m.power_w, np.nan)
    keys = np.stack([group, m.time_s, np.nan_to_num(m.power_w, nan=-1.0)], axis=1)
    _, first, inverse = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    original = first[inverse.reshape(-1)]
    twice = (original != np.arange(len(m))) & ~np.isnan(m.power_w)  # bare times of few digits may well coincide
    found = finding("duplicate", twice, m.time_s, m.time_s[original], "s",
                    lambda i: f"the same operation, time and power as row {int(original[i])} of its batch")  # fmt: skip
    read = np.where(power > 0, power, np.nan)
    for what, values, factor, unit in (("time", m.time_s, _REPEAT_FACTOR, "s"),
                                       ("power", read, _REPEAT_POWER_FACTOR, "W")):  # fmt: skip
        rows, middle = bounds.disagreeing(group, values, factor)
        if what == "time":  # host and clock of tiny kernels
            real = np.abs(values[rows] - middle) > _JITTER_S
            rows, middle = rows[real], middle[real]
        at = {int(row): float(value) for row, value in zip(rows, middle, strict=True)}
        found += finding(
            "repeat", rows, values[rows], middle, unit,
            lambda i, what=what, values=values, at=at: f"repeats of the operation contradict each other: its {what} is "  # type: ignore[misc]
            f"{values[i] / at[i]:.3g} times the middle of theirs")  # fmt: skip
    return found


def against_growth(m: Measured) -> list[Finding]:
    """Much more work in much less time, along one size with all others alike.

    Rows whose neighbours do the same are kernels chosen badly, and kept.
    """
    columns = {name: np.asarray(column, dtype=np.float64) for name, column in m.table.columns.items()}
    axis_of: dict[tuple[int, int], str] = {}
    lines: dict[str, Rows] = {}
    for axis in GROWS.get(m.table.kind, ()):
        if columns[axis].min() < columns[axis].max():
            lines[axis] = _line_numbers([column for name, column in columns.items() if name != axis])
            pairs = zip(*bounds.against_growth(lines[axis], columns[axis], m.time_s), strict=True)
            axis_of |= {(int(slow), int(fast)): axis for slow, fast in pairs}
    if not axis_of:
        return []
    rows, others = bounds.blamed(*np.array(list(axis_of)).T)
    order = np.argsort(rows, kind="stable")
    rows, others = rows[order], others[order]
    borne = np.zeros(len(rows), dtype=bool)
    for axis, line in lines.items():
        borne |= bounds.borne_out(line, columns[axis], m.time_s, rows)
    against = dict(zip(rows.tolist(), others.tolist(), strict=True))

    def why(i: int) -> str:
        other = against[i]
        axis = axis_of[(i, other) if (i, other) in axis_of else (other, i)]
        here, there = columns[axis][i], columns[axis][other]
        slow, fast = time_text(float(m.time_s[i])), time_text(float(m.time_s[other]))
        return f"{slow} at {axis} = {here:g}, but {fast} at {there:g}, all else alike"

    found: list[Finding] = []
    excuse = "; its neighbours are alike: perhaps another kernel"
    for doubtful, mask, end in ((False, ~borne, ""), (True, borne, excuse)):
        found += finding(
            "growth",
            rows[mask],
            m.time_s[rows[mask]],
            m.time_s[others[mask]],
            "s",
            lambda i, end=end: why(i) + end,  # type: ignore[misc]
            doubtful,
        )
    return found


def _line_numbers(columns: Sequence[Floats]) -> Rows:
    """A number for each row, the same for rows that are alike in all `columns`."""
    number = np.zeros(len(columns[0]), dtype=np.intp)
    for column in columns:
        _, codes = np.unique(column, return_inverse=True)
        _, number = np.unique(number * (int(codes.max()) + 1) + codes.reshape(-1), return_inverse=True)
        number = number.reshape(-1).astype(np.intp)
    return number
