"""Nsight Systems' SQLite exports as columns; the database is only ever read."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import quote

import numpy as np

from joulecast.errors import InputError, shortened
from joulecast.traces.names import parsed
from joulecast.workloads.files import named
from joulecast.workloads.profile import (
    ANNOTATION,
    COPY,
    KERNEL,
    OPERATOR,
    SET,
    Activities,
    Device,
    Ints,
    Names,
    Operators,
    Profile,
    Signature,
    Table,
    innermost,
    parents,
)
from joulecast.workloads.trace_stream import Progress

#: Rows fetched at a time.
_CHUNK = 50_000

#: Kinds of NVTX events that are ranges: pushed and popped, and started and ended.
_RANGES = (59, 60)

_COPY_KINDS = {
    1: "HtoD", 2: "DtoH", 3: "HtoA", 4: "AtoH", 5: "AtoA", 6: "AtoD", 7: "DtoA", 8: "DtoD", 9: "HtoH", 10: "PtoP",
    11: "unified HtoD", 12: "unified DtoH", 13: "unified DtoD",
}  # fmt: skip

#: Formats of operands by kernel names, as PyTorch's profiler spells element types; tf32 is told apart later.
_SPELLED = {"fp16": "c10::Half", "bf16": "c10::BFloat16", "fp64": "double"}

#: PyTorch's NVTX ranges of operators: ``aten::mm, seq = 7, sizes = [[8, 4], [4, 2]]``.
_SIZES = re.compile(r"sizes = (\[[\[\], \d]*\])")
_SEQUENCE = re.compile(r"seq = (\d{1,18})\b")

#: Columns that hold words; all others hold whole numbers.
_WORDS = frozenset(("value", "text", "name"))

#: What an activity can't be without.
_SPAN = ("start", "end")


def read_nsight(path: str | Path, progress: Progress | None = None) -> Profile:
    """Read an Nsight Systems report that was exported with ``nsys export --type sqlite``.

    Parameters
    ----------
    path : str or Path
    progress : callable, optional
        Given the share of the tables that was read.

    Returns
    -------
    Profile
        NVTX ranges stand for operators and annotations; those of ``torch.autograd.profiler.emit_nvtx`` with shapes
        give those too, without element types.

    Raises
    ------
    InputError
        If it is no such database.
    """
    name = named(path)
    with _opened(Path(path), name) as database:
        return _Reader(database, name).profile(progress or (lambda share: None))  # noqa: ARG005


@contextmanager
def _opened(path: Path, name: str) -> Iterator[sqlite3.Connection]:
    """A connection that can't write, and leaves no file beside the database."""
    database = None
    try:
        database = sqlite3.connect(f"file:{quote(str(path.absolute()))}?mode=ro&immutable=1", uri=True)
        database.execute("pragma query_only = on")
        yield database
    except sqlite3.DatabaseError as error:
        raise InputError(f"{name} is a damaged SQLite file ({shortened(error)}): export the report again") from None
    finally:
        if database is not None:
            database.close()


class _Reader:
    def __init__(self, database: sqlite3.Connection, name: str) -> None:
        self.database, self.source, self.damaged = database, name, 0
        rows = database.execute("select name from sqlite_master where type = 'table'")
        self.tables = {str(row[0]) for row in rows}
        if not self.tables & {"StringIds", "TARGET_INFO_SYSTEM_ENV", "CUPTI_ACTIVITY_KIND_KERNEL"}:
            known = ", ".join(sorted(self.tables)[:4])
            raise InputError(
                f"{name} is an SQLite file but no Nsight Systems export (tables: {shortened(known, 60) or 'none'})"
            )
        self.names = Names()
        self.threads = Names()
        self.texts: dict[int, str] = {}
        self.signatures: dict[Any, int] = {}
        self.signature_of: list[Signature] = []

    def profile(self, progress: Progress) -> Profile:
        for code, value in self._rows("StringIds", "id", "value", needed=("id",)):
            self.texts[int(code)] = str(value)
        gpu = Table(
            name="q", category="q", device="q", stream="q", start="d", time="d", correlation="q",
            gx="d", gy="d", gz="d", bx="d", by="d", bz="d", moved="d",
        )  # fmt: skip
        progress(0.1)
        self._kernels(gpu)
        progress(0.4)
        self._moves(gpu)
        whole = self._graphs(gpu)
        host = Table(name="q", kind="q", thread="q", start="d", time="d", signature="q", sequence="q")
        progress(0.5)
        self._ranges(host)
        progress(0.8)
        starts = [column.min() for column in (gpu.column("start"), host.column("start")) if column.size]
        origin = float(min(starts, default=0.0))
        operators = self._operators(host, origin)
        activities = self._activities(gpu, operators, origin)
        operators = self._in_formats(operators, activities)
        notes = [] if len(host) else ["no NVTX ranges were recorded: operators, layers and steps can't be told"]
        if whole:
            notes.append(
                f"{whole:,} CUDA graphs were traced as wholes: their kernels can't be told apart (nsys profile "
                "--cuda-graph-trace=node)"
            )
        devices, unix_s = self._devices(), self._unix(origin)
        if self.damaged:
            notes.insert(0, f"{self.damaged:,} damaged row{'s are' if self.damaged > 1 else ' is'} left out")
        return Profile(
            source=self.source,
            format="nsight",
            names=self.names.all(),
            activities=activities,
            operators=operators,
            signatures=tuple(self.signature_of),
            devices=devices,
            origin_s=origin * 1e-9,
            unix_origin_s=unix_s,
            notes=tuple(notes),
        )

    def _rows(self, table: str, *columns: str, needed: tuple[str, ...] = ()) -> Iterator[tuple[Any, ...]]:
        """Rows of a table; columns that it lacks, and the table itself where it lacks, are None and nothing.

        Rows that lack what is `needed`, or whose numbers are none, are damaged: they are counted and left out.
        """
        if table not in self.tables:
            return
        have = {str(row[1]) for row in self.database.execute(f'pragma table_info("{table}")')}
        wanted = ", ".join(f'"{column}"' if column in have else "null" for column in columns)
        whole = [f"typeof(\"{column}\") = 'integer'" for column in needed if column in have]
        whole += ["0" for column in needed if column not in have]
        whole += [
            f"typeof(\"{column}\") in ('integer', 'null')"
            for column in columns
            if column in have and column not in needed and column not in _WORDS
        ]
        sound = " and ".join(whole) or "1"  # names are ours
        self.damaged += int(self.database.execute(f'select count(*) from "{table}" where not ({sound})').fetchone()[0])
        cursor = self.database.execute(f'select {wanted} from "{table}" where {sound}')
        while rows := cursor.fetchmany(_CHUNK):
            yield from rows

    def _text(self, code: Any, default: str = "") -> str:
        return self.texts.get(int(code), default) if code is not None else default

    def _kernels(self, gpu: Table) -> None:
        columns = (
            "start", "end", "deviceId", "streamId", "correlationId", "demangledName", "shortName",
            "gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ",
        )  # fmt: skip
        for start, end, device, stream, correlation, full, short, *shape in self._rows(
            "CUPTI_ACTIVITY_KIND_KERNEL", *columns, needed=_SPAN
        ):
            name = self._text(full) or self._text(short) or "(unnamed kernel)"
            sizes = [float("nan") if one is None else float(one) for one in shape]
            gpu.add(
                self.names.code(name), KERNEL, device or 0, stream or 0, start, max(end - start, 0),
                -1 if correlation is None else correlation, *sizes, float("nan"),
            )  # fmt: skip

    def _moves(self, gpu: Table) -> None:
        shared = ("start", "end", "deviceId", "streamId", "correlationId", "bytes")
        nothing = [float("nan")] * 6
        for table, category, extra in (
            ("CUPTI_ACTIVITY_KIND_MEMCPY", COPY, "copyKind"),
            ("CUPTI_ACTIVITY_KIND_MEMSET", SET, "memKind"),
        ):
            for start, end, device, stream, correlation, moved, kind in self._rows(table, *shared, extra, needed=_SPAN):
                name = f"Memcpy {_COPY_KINDS.get(kind, '')}".strip() if category == COPY else "Memset"
                gpu.add(
                    self.names.code(name), category, device or 0, stream or 0, start, max(end - start, 0),
                    -1 if correlation is None else correlation, *nothing, float("nan") if moved is None else moved,
                )  # fmt: skip

    def _graphs(self, gpu: Table) -> int:
        """Graphs that were traced as wholes, each as one kernel of no known kind; how many."""
        name, nothing = self.names.code("CUDA graph"), [float("nan")] * 7
        before = len(gpu)
        for start, end, device, stream, correlation in self._rows(
            "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
            "start",
            "end",
            "deviceId",
            "streamId",
            "correlationId",
            needed=_SPAN,
        ):
            at = -1 if correlation is None else correlation
            gpu.add(name, KERNEL, device or 0, stream or 0, start, max(end - start, 0), at, *nothing)
        return len(gpu) - before

    def _ranges(self, host: Table) -> None:
        for start, end, kind, text, code, thread in self._rows(
            "NVTX_EVENTS", "start", "end", "eventType", "text", "textId", "globalTid", needed=("start",)
        ):
            if end is None or (kind is not None and kind not in _RANGES):
                continue
            words = str(text) if text is not None else self._text(code)
            if not words:
                continue
            name, signature, sequence = self._range(words)
            host.add(
                self.names.code(name), OPERATOR if "::" in name and " " not in name else ANNOTATION,
                self.threads.code(str(thread)), start, max(end - start, 0), signature, sequence,
            )  # fmt: skip

    def _range(self, words: str) -> tuple[str, int, int]:
        """Name of a range, index of its signature, and its sequence number."""
        name, comma, _ = words.partition(", ")
        sizes, sequence = _SIZES.search(words), _SEQUENCE.search(words)
        if not comma or not (sizes or sequence):
            return words, -1, -1
        code = -1
        if sizes and sizes.group(1) not in self.signatures:
            dims = _shapes(sizes.group(1))
            self.signatures[sizes.group(1)] = len(self.signature_of)
            types = tuple("float" if one else "" for one in dims)
            self.signature_of.append(Signature(dims, types))
        if sizes:
            code = self.signatures[sizes.group(1)]
        return name, code, int(sequence.group(1)) if sequence else -1

    def _operators(self, host: Table, origin: float) -> Operators:
        thread = host.column("thread")
        start, time = (host.column("start") - origin) * 1e-9, host.column("time") * 1e-9
        order = np.lexsort((-(start + time), start, thread))
        thread, start, time = thread[order], start[order], time[order]
        return Operators(
            name=host.column("name")[order],
            kind=host.column("kind")[order],
            thread=thread,
            start_s=start,
            time_s=time,
            parent=parents(thread, start, start + time),
            signature=host.column("signature")[order],
            forward=np.full(len(order), -1, dtype=np.int64),
        )

    def _in_formats(self, operators: Operators, activities: Activities) -> Operators:
        """The operators with element types, which are not recorded, as the kernels that they started have them."""
        names = self.names.all()
        spelled: dict[int, str] = {}
        signature, parent = operators.signature.copy(), operators.parent.tolist()
        done: set[int] = set()
        for name, row in zip(activities.name.tolist(), activities.operator.tolist(), strict=True):
            if name not in spelled:
                spelled[name] = _SPELLED.get(parsed(names[name]).dtype, "")
            place = row if spelled[name] else -1
            while place >= 0 and place not in done:
                done.add(place)
                if signature[place] >= 0:
                    signature[place] = self._typed(int(signature[place]), spelled[name])
                place = parent[place]
        return replace(operators, signature=signature)

    def _typed(self, code: int, spelled: str) -> int:
        """Index of the signature `code` with element types that are spelled so."""
        key = (code, spelled)
        if key not in self.signatures:
            plain = self.signature_of[code]
            self.signatures[key] = len(self.signature_of)
            self.signature_of.append(replace(plain, types=tuple(spelled if one else "" for one in plain.types)))
        return self.signatures[key]

    def _activities(self, gpu: Table, operators: Operators, origin: float) -> Activities:
        order = np.argsort(gpu.column("start"), kind="stable")
        column = {name: gpu.column(name)[order] for name in gpu.names}
        launched = np.full(len(order), np.nan)
        operator = np.full(len(order), -1, dtype=np.int64)
        calls = Table(correlation="q", thread="q", at="d")
        for correlation, thread, start in self._rows(
            "CUPTI_ACTIVITY_KIND_RUNTIME", "correlationId", "globalTid", "start", needed=("start",)
        ):
            if correlation is not None:
                calls.add(correlation, self.threads.code(str(thread)), start)
        if len(calls):
            rows = np.argsort(calls.column("correlation"), kind="stable")
            known = calls.column("correlation")[rows]
            place = np.minimum(np.searchsorted(known, column["correlation"]), len(known) - 1)
            hit: Ints = np.flatnonzero(known[place] == column["correlation"])
            at = rows[place[hit]]
            launched[hit] = (calls.column("at")[at] - origin) * 1e-9
            operator[hit] = innermost(operators, calls.column("thread")[at], launched[hit])
        return Activities(
            name=column["name"],
            category=column["category"],
            device=column["device"],
            stream=column["stream"],
            start_s=(column["start"] - origin) * 1e-9,
            time_s=column["time"] * 1e-9,
            launched_s=launched,
            operator=operator,
            grid=np.stack([column[name] for name in ("gx", "gy", "gz")], axis=1),
            block=np.stack([column[name] for name in ("bx", "by", "bz")], axis=1),
            moved_bytes=column["moved"],
        )

    def _devices(self) -> MappingProxyType[int, Device]:
        out = {}
        for number, name, count, memory, major, minor in self._rows(
            "TARGET_INFO_GPU", "id", "name", "smCount", "totalMemory", "computeMajor", "computeMinor"
        ):
            if number is not None:
                capability = f"{major}.{minor}" if major is not None and minor is not None else ""
                out[int(number)] = Device(
                    int(number), shortened(name or ""), int(count or 0), float(memory or 0), capability
                )
        return MappingProxyType(out)

    def _unix(self, origin: float) -> float | None:
        """Time of day of the first event, where the session's start is told."""
        for (start,) in self._rows("TARGET_INFO_SESSION_START_TIME", "utcEpochNs"):
            if start is not None:
                return (float(start) + origin) * 1e-9
        return None


def _shapes(text: str) -> tuple[Any, ...]:
    """``[[8, 4], [], [4]]`` as tuples."""
    import json

    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return ()
    return tuple(tuple(one) if isinstance(one, list) and all(isinstance(i, int) for i in one) else () for one in value)
