"""PyTorch's profiler traces (Kineto's Chrome JSON, plain or gzip) as columns, whatever their size."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from joulecast.errors import shortened
from joulecast.workloads.profile import (
    ANNOTATION,
    COPY,
    KERNEL,
    MODULE,
    OPERATOR,
    SET,
    Activities,
    Device,
    Floats,
    Ints,
    Names,
    Operators,
    Profile,
    Signature,
    Table,
    innermost,
    nested_order,
    parents,
)
from joulecast.workloads.trace_stream import EventStream, Progress

#: Categories of events, by the name each version of the profiler gives them (case aside).
_ON_GPU = {
    "kernel": KERNEL, "gpu_memcpy": COPY, "memcpy": COPY, "gpu_memset": SET, "memset": SET, "concurrent_kernel": KERNEL,
}  # fmt: skip
_ON_HOST = {"cpu_op": OPERATOR, "operator": OPERATOR, "user_annotation": ANNOTATION, "python_function": MODULE}
_LAUNCHES = {"cuda_runtime", "cuda_driver", "runtime", "hip_runtime", "privateuse1_runtime"}

#: Calls of the runtime that start something on the GPU.
_STARTS = re.compile(r"launch|memcpy|memset|graph|module", re.IGNORECASE)

_COLLECTIVE_FACTS = ("Collective name", "In msg nelems", "Out msg nelems", "Group size", "dtype")
_MODULE_PREFIX = "nn.Module: "


def read_kineto(path: str | Path, progress: Progress | None = None) -> Profile:
    """Read a PyTorch profiler trace.

    Parameters
    ----------
    path : str or Path
        Chrome JSON, plain or gzip. It is streamed: memory follows the number of kernels and operators, not the file.
    progress : callable, optional
        Given the share of the file that was read.

    Returns
    -------
    Profile
        What was whole of a damaged file, with a note that says so.

    Raises
    ------
    InputError
        If the file can't be read or is no such trace.
    """
    stream = EventStream(path, progress)
    builder = _Builder()
    for event in stream:
        builder.add(event)
    return builder.profile(stream)


class _Builder:
    def __init__(self) -> None:
        self.names = Names()
        self.threads = Names()
        self.signatures: dict[Any, int] = {}
        self.signature_of: list[Signature] = []
        self.gpu = Table(
            name="q", category="q", device="q", stream="q", start="d", time="d", correlation="q", external="q",
            gx="d", gy="d", gz="d", bx="d", by="d", bz="d", moved="d",
        )  # fmt: skip
        self.host = Table(
            name="q", kind="q", thread="q", start="d", time="d", signature="q", external="q", sequence="q", forward="q"
        )
        self.launch = Table(correlation="q", thread="q", at="d")
        self.broken = 0
        self.origin_us = 0.0

    def add(self, event: Mapping[str, Any]) -> None:
        if event.get("ph") != "X":
            return
        category = str(event.get("cat", "")).lower()
        args = event.get("args")
        args = args if isinstance(args, dict) else {}
        try:
            if category in _ON_GPU:
                self._on_gpu(event, args, _ON_GPU[category])
            elif category in _ON_HOST:
                self._on_host(event, args, _ON_HOST[category])
            elif category in _LAUNCHES and _STARTS.search(str(event.get("name", ""))):
                self.launch.add(_whole(args.get("correlation")), self._thread(event), _micro(event["ts"]))
        except (KeyError, TypeError, ValueError, OverflowError):
            self.broken += 1

    def _on_gpu(self, event: Mapping[str, Any], args: Mapping[str, Any], category: int) -> None:
        grid, block = _three(args.get("grid")), _three(args.get("block"))
        device, stream = args.get("device", event.get("pid")), args.get("stream", event.get("tid"))
        row = (
            self.names.code(str(event["name"])), category, _whole(device, 0), _whole(stream, 0),
            _micro(event["ts"]), _duration(event.get("dur", 0)), _whole(args.get("correlation")),
            _whole(args.get("External id", args.get("external id"))), *grid, *block, _number(args.get("bytes")),
        )  # fmt: skip
        self.gpu.add(*row)

    def _on_host(self, event: Mapping[str, Any], args: Mapping[str, Any], kind: int) -> None:
        name = str(event["name"])
        if kind == MODULE and not name.startswith(_MODULE_PREFIX):
            return
        row = (
            self.names.code(name), kind, self._thread(event), _micro(event["ts"]), _duration(event.get("dur", 0)),
            self._signature(args), _whole(args.get("External id", args.get("external id"))),
            _whole(args.get("Sequence number")), _whole(args.get("Fwd thread id")),
        )  # fmt: skip
        self.host.add(*row)

    def _thread(self, event: Mapping[str, Any]) -> int:
        return self.threads.code(f"{event.get('pid')}/{event.get('tid')}")

    def _signature(self, args: Mapping[str, Any]) -> int:
        dims = args.get("Input Dims", args.get("Input dims"))
        if not dims and "Collective name" not in args:
            return -1
        types, concrete = args.get("Input type"), args.get("Concrete Inputs")
        extra = {name: args[name] for name in _COLLECTIVE_FACTS if name in args}
        key = json.dumps((dims, types, concrete, extra), sort_keys=True)
        code = self.signatures.get(key)
        if code is None:
            code = self.signatures[key] = len(self.signature_of)
            self.signature_of.append(Signature(_frozen(dims), _texts(types), _texts(concrete), MappingProxyType(extra)))
        return code

    def profile(self, stream: EventStream) -> Profile:
        starts = [column.min() for column in (self.gpu.column("start"), self.host.column("start")) if column.size]
        self.origin_us = float(min(starts, default=0.0))
        operators, external = self._operators()
        activities = self._activities(operators, external)
        origin = self.origin_us * 1e-6
        header = stream.header
        distributed = header.get("distributedInfo")
        distributed = distributed if isinstance(distributed, dict) else {}
        base = header.get("baseTimeNanoseconds")
        unix = origin + base * 1e-9 if isinstance(base, int | float) and not isinstance(base, bool) else None
        if unix is None and 1e9 < origin < 4e9:
            unix = origin  # older traces stamp events with the time of day itself
        return Profile(
            source=stream.name,
            format="pytorch",
            names=self.names.all(),
            activities=activities,
            operators=operators,
            signatures=tuple(self.signature_of),
            devices=_devices(header.get("deviceProperties")),
            origin_s=origin,
            rank=_optional_whole(distributed.get("rank")),
            world_size=_optional_whole(distributed.get("world_size")),
            unix_origin_s=unix,
            notes=tuple(self._notes(stream)),
        )

    def _operators(self) -> tuple[Operators, Ints]:
        host = self.host
        thread, start, time = host.column("thread"), self._seconds(host.column("start")), host.column("time") * 1e-6
        order = nested_order(thread, start, start + time)
        thread, start, time = thread[order], start[order], time[order]
        sequence, forward_thread = host.column("sequence")[order], host.column("forward")[order]
        kind = host.column("kind")[order]
        operators = Operators(
            name=host.column("name")[order],
            kind=kind,
            thread=thread,
            start_s=start,
            time_s=time,
            parent=parents(thread, start, start + time),
            signature=host.column("signature")[order],
            forward=_forward(kind, sequence, forward_thread, start),
        )
        return operators, host.column("external")[order]

    def _activities(self, operators: Operators, external: Ints) -> Activities:
        gpu = self.gpu
        order = np.argsort(gpu.column("start"), kind="stable")
        column = {name: gpu.column(name)[order] for name in gpu.names}
        correlation = column["correlation"]
        launches = np.argsort(self.launch.column("correlation"), kind="stable")
        known = self.launch.column("correlation")[launches]
        place = np.searchsorted(known, correlation)
        place = np.minimum(place, max(len(known) - 1, 0))
        found = (known[place] == correlation) & (correlation > 0) if len(known) else np.zeros(len(order), dtype=bool)
        launched = np.full(len(order), np.nan)
        operator = np.full(len(order), -1, dtype=np.int64)
        if found.any():
            rows = launches[place[found]]
            launched[found] = self._seconds(self.launch.column("at"))[rows]
            operator[found] = innermost(operators, self.launch.column("thread")[rows], launched[found])
        # without the call that started a kernel, the id it shares with its operator; older profilers put the
        # correlation there
        by_id = (operator < 0) & ~found & (column["external"] > 0) & (column["external"] != correlation)
        if by_id.any() and len(external):
            sorted_ids = np.argsort(external, kind="stable")
            spot = np.minimum(np.searchsorted(external[sorted_ids], column["external"][by_id]), len(external) - 1)
            hit = external[sorted_ids[spot]] == column["external"][by_id]
            operator[np.flatnonzero(by_id)[hit]] = sorted_ids[spot[hit]]
        return Activities(
            name=column["name"],
            category=column["category"],
            device=column["device"],
            stream=column["stream"],
            start_s=self._seconds(column["start"]),
            time_s=column["time"] * 1e-6,
            launched_s=launched,
            operator=operator,
            grid=np.stack([column[name] for name in ("gx", "gy", "gz")], axis=1),
            block=np.stack([column[name] for name in ("bx", "by", "bz")], axis=1),
            moved_bytes=column["moved"],
        )

    def _seconds(self, stamp_us: Floats) -> Floats:
        """Time since the first event; stamps of today in microseconds are whole numbers that float64 just holds."""
        return np.asarray((stamp_us - self.origin_us) * 1e-6)

    def _notes(self, stream: EventStream) -> list[str]:
        notes = []
        if stream.cut_short:
            notes.append(f"{stream.name} breaks off ({stream.cut_short}): what stands before that is counted")
        if stream.skipped + self.broken:
            lost = stream.skipped + self.broken
            notes.append(f"{stream.name}: {lost:,} damaged event{' is' if lost == 1 else 's are'} left out")
        return notes


def _forward(kind: Ints, sequence: Ints, forward_thread: Ints, start: Any) -> Ints:
    """For operators that autograd runs, the last operator of the forward pass with their sequence number."""
    out = np.full(len(kind), -1, dtype=np.int64)
    ahead = np.flatnonzero((sequence >= 0) & (forward_thread <= 0) & (kind == OPERATOR))
    back = np.flatnonzero((sequence >= 0) & (forward_thread > 0))
    if not (ahead.size and back.size):
        return out
    order = ahead[np.lexsort((start[ahead], sequence[ahead]))]
    place = np.searchsorted(sequence[order], sequence[back], side="right") - 1
    hit = (place >= 0) & (sequence[order[np.maximum(place, 0)]] == sequence[back])
    out[back[hit]] = order[place[hit]]
    return out


def _devices(properties: Any) -> Mapping[int, Device]:
    out = {}
    for one in properties if isinstance(properties, list) else ():
        if isinstance(one, dict) and isinstance(one.get("id"), int):
            major, minor = one.get("computeMajor"), one.get("computeMinor")
            out[one["id"]] = Device(
                one["id"],
                shortened(one.get("name", "")),
                _whole(one.get("numSms"), 0),
                max(_finite(one.get("totalGlobalMem")), 0.0),
                f"{major}.{minor}" if isinstance(major, int) and isinstance(minor, int) else "",
            )
    return MappingProxyType(out)


#: No activity runs longer than a year: such an event is damaged. [us]
_LONGEST_US = 365 * 86400e6

#: Nor was any recorded so far from 1970. [us]
_LATEST_US = 1000 * 365 * 86400e6


def _micro(value: Any) -> float:
    """A finite time stamp. [us]"""
    found = float(value)
    if not abs(found) <= _LATEST_US:
        raise ValueError
    return found


def _duration(value: Any) -> float:
    found = _micro(value)
    if not 0 <= found <= _LONGEST_US:
        raise ValueError
    return found


def _whole(value: Any, default: int = -1) -> int:
    if isinstance(value, bool) or value is None:
        return default
    try:
        found = int(value)
    except (TypeError, ValueError, OverflowError):
        return default
    return found if -(2**63) <= found < 2**63 else default


def _optional_whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _finite(value: Any) -> float:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else 0.0


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan


def _three(value: Any) -> tuple[float, float, float]:
    if isinstance(value, list) and len(value) == 3:
        return _number(value[0]), _number(value[1]), _number(value[2])
    return math.nan, math.nan, math.nan


def _frozen(value: Any) -> tuple[Any, ...]:
    if not isinstance(value, list):
        return ()
    return tuple(_frozen(one) if isinstance(one, list) else one for one in value)


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(str(one) for one in value) if isinstance(value, list) else ()
