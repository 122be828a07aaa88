"""Steps of power and work over time as a trace that Perfetto and Chrome's tracing page open."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

#: Processes and threads of the trace.
GPU, MODEL = 1, 2
_PID = 1

#: Counter of all modules, a series each.
BUSY = "busy [%]"

_PIECE = 1 << 16

Event = Mapping[str, Any]


def written(events: Iterable[Event], facts: Mapping[str, Any]) -> Iterator[bytes]:
    """The JSON object of the trace event format, piece by piece.

    Parameters
    ----------
    events : iterable of mapping
    facts : mapping
        Goes to ``otherData``.
    """
    encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode
    head = json.dumps({"displayTimeUnit": "ms", "otherData": dict(facts)}, ensure_ascii=False)
    held = [head[:-1], ', "traceEvents": [\n']
    size, first = 0, True
    for event in events:
        text = encode(event)
        held += [text] if first else [",\n", text]
        first = False
        size += len(text)
        if size > _PIECE:
            yield "".join(held).encode("utf-8")
            held, size = [], 0
    held.append("\n]}\n")
    yield "".join(held).encode("utf-8")


def events(
    steps: Mapping[str, Sequence[Any]],
    meter: Mapping[str, Sequence[float]],
    *,
    process: str,
    meter_name: str,
    duties: Mapping[str, str],
) -> Iterator[Event]:
    """Slices for kernels and for the model's layers, counters for power, clock and duty.

    Parameters
    ----------
    steps : mapping of str to sequence
        One entry for each step, in order: ``start_s``, ``duration_s``, ``power_w``, ``clock_mhz``, ``energy_j``,
        ``what`` (``launch``, ``wait``, ``pass`` or ``rest``), ``phase``, ``pass_number``, ``passes``, ``layer``,
        ``op``, ``family``, ``shape``, ``bound_by``, ``kernels``, and the columns of `duties`.
    meter : mapping of str to sequence
        ``at_s`` and ``power_w``.
    process, meter_name : str
        What the tracks belong to, and what the meter's track is called.
    duties : mapping of str to str
        Name of each module by its column.

    Yields
    ------
    mapping
        Events in the trace event format: ``M`` (names), ``X`` (slices, ``ts`` and ``dur`` in microseconds) and ``C``
        (counters). A counter holds until its next value.
    """
    yield _name("process_name", process)
    for thread, name in ((MODEL, "model"), (GPU, "kernels")):
        yield _name("thread_name", name, thread)
        yield {"ph": "M", "name": "thread_sort_index", "pid": _PID, "tid": thread, "args": {"sort_index": -thread}}
    yield from _kernels(steps)
    yield from _layers(steps)
    last: list[float] = []
    yield from _counter("power [W]", "W", steps["start_s"], steps["power_w"])
    yield from _counter("clock [MHz]", "MHz", steps["start_s"], steps["clock_mhz"])
    for at, *busy in zip(steps["start_s"], *_percents(steps, duties), strict=True):
        if busy != last:
            yield _count(BUSY, dict(zip(duties.values(), busy, strict=True)), at)
            last = busy
    end_s = steps["start_s"][-1] + steps["duration_s"][-1]
    yield _count("power [W]", {"W": 0.0}, end_s)
    yield _count(BUSY, dict.fromkeys(duties.values(), 0.0), end_s)
    yield from _counter(meter_name, "W", meter["at_s"], meter["power_w"])


def _kernels(steps: Mapping[str, Sequence[Any]]) -> Iterator[Event]:
    columns = ("what", "start_s", "duration_s", "op", "family", "power_w", "energy_j", "phase", "layer", "shape",
               "bound_by", "pass_number", "passes", "kernels")  # fmt: skip
    for what, start, length, op, family, power, energy, phase, layer, shape, bound, number, passes, kernels in zip(
        *(steps[name] for name in columns), strict=True
    ):
        if what == "wait":
            continue
        facts: dict[str, Any] = {"power_w": _short(power), "energy_j": _short(energy), "phase": phase}
        if what == "pass":
            facts |= {"pass": number, "passes": passes}
            name = f"{phase}: pass {number}" if passes == 1 else f"{phase}: passes {number} to {number + passes - 1}"
        elif what == "rest":
            name = "other microbatches"
        else:
            facts |= {"layer": layer, "shape": shape, "bound_by": bound, "kernels": _short(kernels)}
            name = op
        yield {
            "ph": "X", "name": name, "cat": family or what, "pid": _PID, "tid": GPU,
            **_span(start, start + length), "args": facts,
        }  # fmt: skip


def _layers(steps: Mapping[str, Sequence[Any]]) -> Iterator[Event]:
    """Phases, passes and parts of the layer path, nested; each from its first launch to its last."""
    open_: list[tuple[str, float]] = []
    last_end = 0.0
    columns = ("what", "start_s", "duration_s", "phase", "pass_number", "layer")
    for what, start, length, phase, number, layer in zip(*(steps[name] for name in columns), strict=True):
        if what == "wait":
            continue
        names = [phase] if what in ("pass", "rest") else [phase, f"pass {number}", *filter(None, layer.split("."))]
        same = 0
        while same < min(len(names), len(open_)) and names[same] == open_[same][0]:
            same += 1
        yield from _closed(open_, same, last_end)
        open_ += [(name, start) for name in names[same:]]
        last_end = start + length
    yield from _closed(open_, 0, last_end)


def _closed(open_: list[tuple[str, float]], keep: int, end_s: float) -> Iterator[Event]:
    while len(open_) > keep:
        name, start = open_.pop()
        yield {"ph": "X", "name": name, "cat": "model", "pid": _PID, "tid": MODEL, **_span(start, end_s)}


def _counter(name: str, unit: str, at_s: Sequence[float], values: Sequence[float]) -> Iterator[Event]:
    """Values where they change."""
    last: float | None = None
    for at, value in zip(at_s, values, strict=True):
        shown = _short(value)
        if shown != last:
            yield _count(name, {unit: shown}, at)
            last = shown


def _count(name: str, values: Mapping[str, float], at_s: float) -> Event:
    return {"ph": "C", "name": name, "pid": _PID, "ts": _us(at_s), "args": values}


def _percents(steps: Mapping[str, Sequence[Any]], duties: Mapping[str, str]) -> list[list[float]]:
    """Duty of each module in percent."""
    return [[round(100.0 * value, 1) for value in steps[column]] for column in duties]


def _name(what: str, name: str, thread: int | None = None) -> Event:
    of = {} if thread is None else {"tid": thread}
    return {"ph": "M", "name": what, "pid": _PID, **of, "args": {"name": name}}


def _span(start_s: float, end_s: float) -> dict[str, float]:
    """Both ends to the nanosecond, so that what follows begins where this ends and no slice leaves its parent."""
    return {"ts": _us(start_s), "dur": round(_us(end_s) - _us(start_s), 3)}


def _us(at_s: float) -> float:
    """Microseconds, to the nanosecond."""
    return round(at_s * 1e6, 3)


def _short(value: float) -> float:
    return float(f"{value:.5g}")
