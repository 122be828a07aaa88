"""Figures as JSON and CSV for machines, and bytes as gzip."""

from __future__ import annotations

import csv
import io
import json
import math
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any


def to_json(document: Any) -> str:
    """`document` as JSON text; NaN and infinities, which JSON lacks, as null. NumPy scalars and arrays are taken."""
    return json.dumps(_plain(document), ensure_ascii=False, indent=2, allow_nan=False) + "\n"


def to_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """`rows` as CSV text under the union of their columns, in order of appearance; what is absent is empty."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, restval="", lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: _cell(value) for name, value in row.items()})
    return out.getvalue()


def gzipped(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """`pieces` as a gzip file, the same each time: without name and time."""
    packer = zlib.compressobj(6, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
    for piece in pieces:
        yield packer.compress(piece)
    yield packer.flush()


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):  # NumPy scalars and arrays
        value = value.tolist()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, str | int | bool):
        return value
    return str(value)


def _cell(value: Any) -> Any:
    value = _plain(value)
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return "; ".join(str(item) for item in value)
    return value
