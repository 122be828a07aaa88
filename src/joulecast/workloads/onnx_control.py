"""Operators that hold graphs of their own: branches, loops and scans."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from joulecast.workloads.onnx_values import BOOL, INT64, Value

if TYPE_CHECKING:
    from joulecast.workloads.onnx_graph import Scope, Walk

#: Trips of a loop that are believed: exporters write the largest number where they mean any.
_MOST_TRIPS = 1_000_000

Control = Callable[["Walk", Any, list["Value | None"], "Scope"], list["Value | None"]]


def branch(walk: Walk, node: Any, ins: list[Value | None], scope: Scope) -> list[Value | None]:
    """The branch that is taken, where that is known; else the one with more operators."""
    graphs = {one.name: one.g for one in node.attribute}
    then, other = graphs.get("then_branch"), graphs.get("else_branch")
    if then is None or other is None:
        return []
    known = ins[0].ints() if ins and ins[0] is not None else None
    if known:
        taken = then if known[0] else other
    else:
        walk.assumed.add("of branches on values that are not known, the one with more operators is taken")
        taken = max((then, other), key=_size)
    return list(walk.subgraph(taken, scope))


def _size(graph: Any) -> int:
    return sum(1 + sum(_size(one.g) for one in node.attribute if one.HasField("g")) for node in graph.node)


def loop(walk: Walk, node: Any, ins: list[Value | None], scope: Scope) -> list[Value | None]:
    """A body that runs as often as the loop says; once where that depends on values."""
    body = next((one.g for one in node.attribute if one.name == "body"), None)
    if body is None:
        return []
    asked = ins[0].ints() if ins and ins[0] is not None else None
    trips = asked[0] if asked and 0 <= asked[0] <= _MOST_TRIPS else None
    started = ins[1].ints() if len(ins) > 1 and ins[1] is not None else None
    if started == [0]:
        trips = 0
    if trips is None:
        walk.assumed.add("the body of a loop whose turns depend on values is counted once")
    carried = [None if one is None else replace(one, data=None, fixed=False) for one in ins[2:]]
    counter = walk.new((), INT64, data=np.array(0, dtype=np.int64) if trips == 1 else None)
    results = _repeated(walk, body, scope, [counter, walk.new((), BOOL), *carried], 1 if trips is None else trips)
    held, rows = results[1 : 1 + len(carried)], results[1 + len(carried) :]
    many = 1 if trips is None else trips
    if trips == 0:
        held = [one for one in ins[2:] if one is not None]
    return [*held, *(walk.new((many, *one.shape), one.elem) for one in rows)]


def scan(walk: Walk, node: Any, ins: list[Value | None], scope: Scope) -> list[Value | None]:
    """A body that runs for each slice of its inputs."""
    body = next((one.g for one in node.attribute if one.name == "body"), None)
    count = next((int(one.i) for one in node.attribute if one.name == "num_scan_inputs"), 0)
    if body is None or not 0 < count <= len(ins):
        return []
    axes = next((list(one.ints) for one in node.attribute if one.name == "scan_input_axes"), None) or [0] * count
    states, sliced = ins[: len(ins) - count], ins[len(ins) - count :]
    trips, given = 1, []
    for one, axis in zip(sliced, axes, strict=False):
        if one is None or not one.shape:
            given.append(one)
            continue
        at = axis % len(one.shape)
        trips = one.shape[at]
        given.append(walk.new((*one.shape[:at], *one.shape[at + 1 :]), one.elem))
    carried = [None if one is None else replace(one, data=None, fixed=False) for one in states]
    results = _repeated(walk, body, scope, [*carried, *given], min(trips, _MOST_TRIPS))
    outs: list[Value | None] = list(results[: len(states)])
    outs += [walk.new((trips, *one.shape), one.elem) for one in results[len(states) :]]
    return outs


def _repeated(walk: Walk, body: Any, scope: Scope, given: list[Value | None], trips: int) -> list[Value]:
    before = walk.times
    walk.times = before * max(trips, 0)
    results = walk.subgraph(body, scope, given)
    walk.times = before
    return results


def mapped(walk: Walk, node: Any, ins: list[Value | None], scope: Scope) -> list[Value | None]:
    """A body that runs for each item of a sequence."""
    body = next((one.g for one in node.attribute if one.name == "body"), None)
    first = ins[0] if ins else None
    if body is None or first is None or not first.items:
        return []
    given = [one.items[0] if one is not None and one.items else one for one in ins]
    results = _repeated(walk, body, scope, given, len(first.items))
    return [walk.new((), one.elem, items=(one,) * len(first.items)) for one in results]


#: Operators on sequences whose items are known one by one.
SEQUENCES = frozenset({"SequenceConstruct", "SequenceInsert", "SplitToSequence", "SequenceAt", "SequenceEmpty"})


def sequence(walk: Walk, op: str, attrs: Mapping[str, Any], ins: list[Value | None]) -> list[Value | None] | None:
    """Sequences whose items are known one by one."""
    given = [one for one in ins if one is not None]
    if op == "SequenceConstruct":
        return [walk.new((), given[0].elem, items=tuple(given))] if given else None
    if op == "SequenceEmpty":
        return [walk.new((), 1, items=())]
    first = given[0] if given else None
    if op == "SequenceInsert" and first is not None and first.items is not None and len(given) > 1:
        place = given[2].ints() if len(given) > 2 else None
        at = place[0] if place else len(first.items)
        return [walk.new((), given[1].elem, items=(*first.items[:at], given[1], *first.items[at:]))]
    if op == "SequenceAt" and first is not None and first.items:
        place = given[1].ints() if len(given) > 1 else None
        at = place[0] if place and -len(first.items) <= place[0] < len(first.items) else 0
        return [first.items[at]]
    if op == "SplitToSequence" and first is not None and first.shape:
        axis = int(attrs.get("axis", 0)) % len(first.shape)
        sizes = given[1].ints() if len(given) > 1 else [1] * min(first.shape[axis], 4096)
        if sizes is None:
            return None
        if len(sizes) == 1 and len(given) > 1 and not given[1].shape and sizes[0]:
            sizes = [sizes[0]] * -(-first.shape[axis] // sizes[0])
        shape = first.shape
        items = [walk.new((*shape[:axis], size, *shape[axis + 1 :]), first.elem) for size in sizes]
        out = walk.new((), first.elem, items=tuple(items))
        walk.copied(first, items, attrs)
        return [out]
    return None


#: Operators that hold graphs, by name.
CONTROL: Mapping[str, Control] = {"If": branch, "Loop": loop, "Scan": scan, "SequenceMap": mapped}
