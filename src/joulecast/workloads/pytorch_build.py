"""Recorded operators become a workload: repeated layers counted, like operations of like layers together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from joulecast.workloads.events import Event, Recording
from joulecast.workloads.table import Memory, Workload, WorkloadBuilder

#: Phases in the order in which they are told.
PHASES = ("forward", "prefill", "decode", "backward", "optimizer")


def counts_of(events: Sequence[Event]) -> npt.NDArray[np.float64]:
    """How often each event runs, those included that stand for repeated layers."""
    counts = np.ones(len(events))
    for place in range(len(events) - 1, -1, -1):
        repeat = events[place].repeat
        if repeat is not None:
            counts[repeat[0] : repeat[1]] += counts[place]
    return counts


def workload_of(
    events: Sequence[Event],
    counts: Sequence[float] | npt.NDArray[np.float64],
    recorder: Recording,
    *,
    name: str,
    info: Mapping[str, Any],
    notes: tuple[str, ...] = (),
) -> Workload:
    """The workload of recorded events.

    Parameters
    ----------
    events : sequence of Event
    counts : ndarray
        How often each runs.
    recorder : Recording
        For weights and tokens.
    name : str
    info : mapping
    notes : tuple of str

    Returns
    -------
    Workload
        One pass a phase, in the order of `PHASES`.
    """
    merged: dict[str, dict[Any, list[Any]]] = {}
    unpriced: dict[str, float] = {}
    for event, count in zip(events, map(float, counts), strict=True):
        if event.unpriced_bytes:
            unpriced[event.op] = unpriced.get(event.op, 0.0) + count * event.unpriced_bytes
        rows = merged.setdefault(event.phase, {})
        for kind, columns in event.rows:
            own = columns.get("count", 1.0)
            key = (kind, event.path, tuple(sorted((k, v) for k, v in columns.items() if k != "count")))
            kept = rows.get(key)
            if kept is None:
                rows[key] = [kind, event.path, columns, count * own]
            else:
                kept[3] += count * own
    builder = WorkloadBuilder(name)
    for phase in sorted(merged, key=PHASES.index):
        builder.begin_pass(phase, tokens=recorder.tokens.get(phase, recorder.tokens.get("forward", 0.0)))
        for kind, path, columns, count in merged[phase].values():
            builder.add(kind, layer=path, count=count, **{k: v for k, v in columns.items() if k != "count"})
    if not builder.passes:
        builder.begin_pass("forward")
    return builder.build(
        memory=Memory(sum(recorder.weights.values()), 0.0, peak_bytes(events, counts, recorder)),
        parameters=float(sum(recorder.parameters.values())),
        info=MappingProxyType(dict(info)),
        notes=(*notes, *sorted(recorder.values.assumed)),
        unpriced=MappingProxyType(unpriced),
    )


def peak_bytes(
    events: Sequence[Event], counts: Sequence[float] | npt.NDArray[np.float64], recorder: Recording
) -> float:
    """Most bytes of results that are alive at once, each from its making to its last reading. [B]

    Results of repeated layers that are read in a backward pass are alive as often as the layer is repeated.
    """
    last: dict[int, int] = {}
    first_backward = next((i for i, one in enumerate(events) if one.phase == "backward"), len(events))
    for place, event in enumerate(events):
        for value, _, _ in event.reads:
            last[value] = place
    change = np.zeros(len(events) + 1)
    state: dict[int, int] = {}
    made: set[int] = set()
    for place, event in enumerate(events):
        if event.phase == "optimizer":
            state |= {value: size for value, _, size in event.reads if value not in made}
        for value, _, size in event.writes:
            if value in made:
                continue
            made.add(value)
            until = last.get(value, place)
            held = size * (counts[place] if until >= first_backward > place else 1.0)
            change[place] += held
            change[until + 1] -= held
    live = float(np.cumsum(change).max()) if len(events) else 0.0
    weights = sum(recorder.weights.values())
    return live + max(sum(state.values()) - weights, 0.0)
