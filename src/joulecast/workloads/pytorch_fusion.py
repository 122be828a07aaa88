"""What a compiler makes of recorded operators: pointwise chains and reductions in one kernel each.

After the manner of PyTorch's inductor: a pointwise operator joins the kernel that made what it reads, a reduction
takes in the pointwise operators before and after it that walk the same elements, and only what others read is written
to memory. Multiplies, attention, convolutions, gathers and sorts stay kernels of libraries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from joulecast.bounds.dtypes import CODES, DTYPES
from joulecast.workloads.events import Event
from joulecast.workloads.pytorch_costs import Row

_REDUCED = frozenset({"softmax", "layer_norm", "rms_norm", "group_norm", "sum", "mean", "max"})

#: Reductions whose result has as many elements as they read, in order of what a group of several is called.
_WHOLE = ("softmax", "layer_norm", "group_norm", "rms_norm")

#: Longest row that a generated kernel holds in registers: it reads its tensors once, as a pointwise kernel does.
_HELD_ROW = 16384

#: Arithmetic an element of a reduction within a fused kernel. [FLOP]
_NORM_FLOP = 4

#: Most tensors that one kernel reads: beyond, a compiler splits it.
_MOST_READS = 12


@dataclass
class _Group:
    """Operators of one kernel in the making."""

    events: list[int]
    elements: float
    rows: float = 0.0
    level: int = 0
    reads: set[int] = field(default_factory=set)
    writes: set[int] = field(default_factory=set)


def fused_events(events: Sequence[Event], counts: npt.NDArray[np.float64]) -> tuple[list[Event], list[float]]:
    """Recorded events as a compiler's kernels, and how often each runs.

    Parameters
    ----------
    events : sequence of Event
    counts : ndarray
        How often each event runs.

    Returns
    -------
    list of Event, list of float
        Events that stay as they are, and one for each kernel of several, which runs as often as its last operator.
    """
    readers: dict[int, set[int]] = {}
    for place, event in enumerate(events):
        for value, _, _ in event.reads:
            readers.setdefault(value, set()).add(place)
    groups = _grouped(events, readers)
    member = {place: group for group in groups for place in group.events}
    out: list[Event] = []
    how_often: list[float] = []
    for place, event in enumerate(events):
        group = member.get(place)
        if group is None or len(group.events) == 1:
            out.append(event)
            how_often.append(float(counts[place]))
        elif place == group.events[-1]:
            out.append(_kernel(events, group, readers))
            how_often.append(float(counts[place]))
    return out, how_often


def _grouped(events: Sequence[Event], readers: Mapping[int, set[int]]) -> list[_Group]:
    """Groups of operators that become one kernel each.

    A value's level counts the kernels of libraries on the longest way to it: what joins a group may read nothing of
    a higher level than the group has, so that no group waits for what waits for it.
    """
    level: dict[int, int] = {}
    maker: dict[int, _Group] = {}
    groups: list[_Group] = []
    for place, event in enumerate(events):
        here = max((level.get(value, 0) for value, _, _ in event.reads), default=0)
        walked = _walk(event)
        if walked is None:
            for value, _, _ in event.writes:
                level[value] = here + (1 if event.rows or event.repeat else 0)
                maker.pop(value, None)
            continue
        elements, rows = walked
        candidates = [maker[value] for value, _, _ in event.reads if value in maker]
        joins = [
            one
            for one in {id(one): one for one in candidates}.values()
            if one.level == here
            and events[one.events[-1]].phase == event.phase
            and _fits(one, elements, rows)
            and (one.elements >= elements or _read_here_alone(events, one, place, readers))
            and len(one.reads) < _MOST_READS
        ]
        group = joins[-1] if joins else _Group([], elements, rows, here)
        if not joins:
            groups.append(group)
        for other in joins[:-1]:
            if other.rows and group.rows and other.rows != group.rows:
                continue
            group.events = sorted([*other.events, *group.events])
            group.rows = group.rows or other.rows
            group.elements = max(group.elements, other.elements)
            group.reads |= other.reads
            mine = {value for value in other.writes if maker.get(value) is other}
            maker.update(dict.fromkeys(mine, group))
            group.writes |= mine
            other.events = []
        group.events.append(place)
        group.elements = max(group.elements, elements)
        group.rows = group.rows or rows
        group.reads |= {value for value, _, _ in event.reads}
        for value, _, _ in event.writes:
            level[value] = here
            maker[value] = group
            group.writes.add(value)
    return [one for one in groups if one.events]


def _walk(event: Event) -> tuple[float, float] | None:
    """Elements that an operator walks and the rows it reduces them to (0: none); None for kernels of libraries."""
    if not event.rows or event.repeat is not None or event.op in ("topk", "sort") or len(event.rows) > 2:
        return None
    elements = rows = 0.0
    for kind, columns in event.rows:
        if columns.get("count", 1) != 1:
            return None
        if kind in ("elementwise", "copy"):
            elements = max(elements, float(columns["elements"]))
        elif kind == "row_reduction" and columns["op"] in _REDUCED:
            elements = max(elements, float(columns["rows"]) * float(columns["dim"]))
            rows = float(columns["rows"])
        else:
            return None
    return elements, rows


def _fits(group: _Group, elements: float, rows: float) -> bool:
    if rows and group.rows and rows != group.rows:
        return False
    if elements == group.elements:
        return True
    if group.rows:  # what is done with the sums themselves
        return not rows and elements == group.rows
    return group.elements < elements  # taken into a larger walk


def _read_here_alone(events: Sequence[Event], group: _Group, place: int, readers: Mapping[int, set[int]]) -> bool:
    """Whether nothing but the operator at `place` reads what a smaller group makes, so that it is worked out there."""
    inside = {*group.events, place}
    return all(readers.get(value, inside) <= inside for one in group.events for value, _, _ in events[one].writes)


def _kernel(events: Sequence[Event], group: _Group, readers: dict[int, set[int]]) -> Event:
    """One event for the operators of a group: bytes that cross its border, arithmetic of all."""
    inside = set(group.events)
    last = events[group.events[-1]]
    made = {value: (elements, size) for place in group.events for value, elements, size in events[place].writes}
    read = {value: size for place in group.events for value, _, size in events[place].reads if value not in made}
    written = {
        value: size for value, (_, size) in made.items() if readers.get(value, set()) - inside or value not in readers
    }
    kernel = Event("fused", [], last.path, last.phase)
    kernel.reads = tuple((value, 0, size) for value, size in read.items())
    kernel.writes = tuple((value, made[value][0], size) for value, size in written.items())
    kernel.shape = last.shape
    kernel.rows = [_row(events, group, sum(read.values()), sum(written.values()))]
    return kernel


def _row(events: Sequence[Event], group: _Group, read_bytes: float, written_bytes: float) -> Row:
    parts = [(kind, columns) for place in group.events for kind, columns in events[place].rows]
    flop = sum(
        float(columns.get("flop_per_element", 0)) * float(columns["elements"])
        for kind, columns in parts
        if kind == "elementwise"
    )
    words = [str(columns.get(name, "")) for name in ("dtype", "out_dtype") for _, columns in parts]
    narrow = min((one for one in words if one), key=lambda one: DTYPES[CODES[one]].activation_bytes)
    if narrow == "int8":  # a mask among numbers
        narrow = next((one for one in words if one and one != "int8"), narrow)
    size = group.elements * DTYPES[CODES[narrow]].activation_bytes
    if not group.rows:
        inputs = round(read_bytes / size)
        outputs = max(round(written_bytes / size), 1)
        return (
            "elementwise",
            {"op": "fused", "elements": group.elements, "inputs": inputs, "outputs": outputs,
             "flop_per_element": flop / group.elements, "dtype": narrow},
        )  # fmt: skip
    ops = [str(columns["op"]) for kind, columns in parts if kind == "row_reduction"]
    whole = next((op for op in _WHOLE if op in ops), "rms_norm" if written_bytes > size / 2 else "")
    inputs = max(round(read_bytes / size), 1)
    outputs = max(round(written_bytes / size), 1)
    dim = group.elements / group.rows
    if whole and inputs + outputs > 2 and dim <= _HELD_ROW:
        work = flop / group.elements + _NORM_FLOP * len(ops)
        return (
            "elementwise",
            {"op": "fused", "elements": group.elements, "inputs": inputs, "outputs": outputs,
             "flop_per_element": work, "dtype": narrow},
        )  # fmt: skip
    more = outputs - 1 if whole else 0
    columns = {"op": whole or ops[0], "rows": group.rows, "dim": dim, "inputs": inputs + more, "dtype": narrow}
    return ("row_reduction", columns)
