"""Reads `.onnx` files as data: told by content, weights skipped where they stand, damage told in one line.

A model is a protobuf message whose bulk is weights. Only its structure is kept: the file is mapped, each tensor's
numbers are passed over unless they are few (shapes, scales, masks), and what remains is parsed. So a model of any size
is read in little memory, external weight files are never looked for, and a length that leads nowhere is found before
anything is built from it.
"""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from joulecast.errors import InputError, MissingExtraError
from joulecast.workloads.files import named

#: Numbers of a tensor that are kept: shapes, axes, scales; and masks, while there are not many. [B]
KEPT_BYTES, KEPT_MASK_BYTES, ALL_MASKS_BYTES = 1 << 12, 1 << 21, 64 << 20

#: All that is kept of a file, and all fields that are walked: beyond either it describes no model.
LARGEST_STRUCTURE_BYTES = 256 << 20
MOST_FIELDS = 2_000_000

#: Graphs within nodes within graphs.
DEEPEST = 60

_KEEP, _DROP, _DATA, _TEXT = "keep", "drop", "data", "text"

#: Fields by message: how each is treated, or of which message it is. What is not listed is kept, unknown or short.
_MESSAGES: Mapping[str, Mapping[int, str]] = {
    "model": {2: _TEXT, 6: _DROP, 7: "graph", 8: "import", 14: _DROP, 20: _DROP, 25: "function", 26: _DROP},
    "graph": {1: "node", 2: _TEXT, 5: "tensor", 10: _DROP, 11: "value", 12: "value", 13: _DROP, 14: _DROP,
              15: "sparse", 16: _DROP},
    "node": {1: _TEXT, 2: _TEXT, 3: _TEXT, 4: _TEXT, 5: "attribute", 6: _DROP, 7: _TEXT, 8: _TEXT, 9: "fact",
             10: _DROP},
    "attribute": {1: _TEXT, 5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 13: _DROP, 21: _TEXT, 22: "sparse",
                  23: "sparse"},
    "tensor": {4: _DATA, 5: _DATA, 6: _DATA, 7: _DATA, 8: _TEXT, 9: _DATA, 10: _DATA, 11: _DATA, 12: _DROP,
               13: _DROP, 16: _DROP},
    "sparse": {1: "tensor", 2: "tensor"},
    "function": {1: _TEXT, 4: _TEXT, 5: _TEXT, 6: _TEXT, 7: "node", 8: _DROP, 9: "import", 10: _TEXT,
                 11: "attribute", 12: _DROP, 13: _TEXT, 14: _DROP},
    "value": {1: _TEXT, 2: "type", 3: _DROP, 4: _DROP},
    "import": {1: _TEXT},
    "fact": {1: _TEXT, 2: _TEXT},
    "type": {1: "typed", 4: "holder", 5: _DROP, 6: _TEXT, 8: "typed", 9: "holder"},
    "typed": {2: "shape"},
    "holder": {1: "type"},
    "shape": {1: "dim"},
    "dim": {2: _TEXT, 3: _TEXT},
}  # fmt: skip

#: Wire types of the fields of a ModelProto, by which a file is known for one.
_MODEL_FIELDS = {1: 0, 2: 2, 3: 2, 4: 2, 5: 0, 6: 2, 7: 2, 8: 2, 14: 2, 20: 2, 25: 2, 26: 2}
_LARGEST_IR = 200


@dataclass
class _Budget:
    """What may still be walked and kept."""

    fields: int = MOST_FIELDS
    kept: int = LARGEST_STRUCTURE_BYTES
    masks: int = ALL_MASKS_BYTES

    def keeps(self, size: int) -> bool:
        """Whether the numbers of a tensor, `size` bytes of them, are kept."""
        if size <= KEPT_BYTES:
            return True
        if size > min(KEPT_MASK_BYTES, self.masks):
            return False
        self.masks -= size
        return True


class _DamagedError(Exception):
    """The bytes are no message; the text says in which way."""


def is_onnx(path: str | Path) -> bool:
    """Whether the file at `path` begins as an ONNX model does, whatever its name.

    A model begins with its version (a small number) and goes on with fields of a model alone; a file that is cut
    short is known too.
    """
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # noqa: PTH116 - a pipe would be waited for
            return False
        with open(path, "rb") as file:  # noqa: PTH123
            head = file.read(4096)
    except (OSError, ValueError):
        return False
    return _begins_as_model(head)


def _begins_as_model(head: bytes) -> bool:
    """Fields in any order up to the graph or the end of `head`; the version and one field beside it are there."""
    seen: set[int] = set()
    at = 0
    while at < len(head) and not {1, 7} <= seen:
        try:
            key, at = _varint(head, at, len(head))
            number, wire = key >> 3, key & 7
            if _MODEL_FIELDS.get(number) != wire:
                return False
            size, at = _varint(head, at, len(head))
        except _DamagedError:
            break
        if number == 1 and not 0 < size <= _LARGEST_IR:
            return False
        seen.add(number)
        at += size if wire == 2 else 0
    return 1 in seen and len(seen) > 1


def read_model(path: str | Path) -> Any:
    """The model at `path` as an ``onnx.ModelProto`` without the numbers of its weights.

    Parameters
    ----------
    path : str or Path

    Returns
    -------
    onnx.ModelProto

    Raises
    ------
    InputError
        If the file is damaged, cut short, too deeply nested, or no model.
    MissingExtraError
        Without the onnx package.
    """
    try:
        import onnx
    except ImportError:
        raise MissingExtraError("an ONNX model", "onnx") from None
    name = named(path)
    try:
        slim = _slimmed(path, name)
    except _DamagedError as error:
        raise InputError(f"{name} is no ONNX model, or is damaged: {error}") from None
    model = onnx.ModelProto()
    try:
        model.ParseFromString(slim)
    except Exception as error:  # protobuf's own, whose class is another in each of its versions
        raise InputError(f"{name} is no ONNX model, or is damaged: {type(error).__name__}") from None
    if not model.HasField("graph") or not (model.graph.node or model.graph.output):
        raise InputError(f"{name} is an ONNX model without a graph")
    return model


def _slimmed(path: str | Path, name: str) -> bytes:
    """The file's message without the numbers of large tensors, without texts for people."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or not status.st_size:
                raise InputError(f"{name} is empty or not a regular file")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                out: list[Any] = []
                _walk(data, 0, len(data), "model", out, 0, _Budget())
                return b"".join(out)
    except OSError as error:
        raise InputError(f"can't read {name}: {error.strerror or 'it is not a usable file'}") from None


def _walk(data: Any, at: int, end: int, message: str, out: list[Any], depth: int, budget: _Budget) -> None:
    """Append the fields of one message to `out`, each part as bytes."""
    if depth > DEEPEST:
        raise _DamagedError("it nests too deeply")
    described = _MESSAGES[message]
    while at < end:
        budget.fields -= 1
        if budget.fields < 0:
            raise _DamagedError(f"it has more than {MOST_FIELDS:,} fields")
        start = at
        key, at = _varint(data, at, end)
        number, wire = key >> 3, key & 7
        if not number:
            raise _DamagedError(f"there is no field 0 (byte {start:,})")
        inside = at
        at = _past(data, inside, end, wire)
        treated = described.get(number, _KEEP)
        if treated is _DROP or (treated is _DATA and not budget.keeps(at - start)):
            continue
        if wire == 2 and treated in _MESSAGES:
            size, inside = _varint(data, inside, end)
            part: list[Any] = []
            _walk(data, inside, inside + size, treated, part, depth + 1, budget)
            body = b"".join(part)
            out += (_encoded(key), _encoded(len(body)), body)
            continue
        if treated is _TEXT:
            _check_text(data, inside, at, wire)
        budget.kept -= at - start
        if budget.kept < 0:
            raise _DamagedError(f"its structure is larger than {LARGEST_STRUCTURE_BYTES >> 20} MiB")
        out.append(data[start:at])


def _check_text(data: Any, at: int, end: int, wire: int) -> None:
    """Names are UTF-8 text."""
    if wire != 2:
        raise _DamagedError(f"there is no name at byte {at:,}")
    _, at = _varint(data, at, end)
    try:
        bytes(data[at:end]).decode("utf-8")
    except UnicodeDecodeError:
        raise _DamagedError(f"the name at byte {at:,} is no text") from None


def _past(data: Any, at: int, end: int, wire: int) -> int:
    """Where the field whose value begins at `at` ends."""
    if wire == 0:
        _, at = _varint(data, at, end)
    elif wire == 1:
        at += 8
    elif wire == 5:
        at += 4
    elif wire == 2:
        size, at = _varint(data, at, end)
        at += size
    else:
        raise _DamagedError(f"byte {at:,} begins no field")
    if at > end:
        raise _DamagedError("the file ends too early" if end == len(data) else f"a field ends beyond byte {end:,}")
    return at


def _varint(data: Any, at: int, end: int) -> tuple[int, int]:
    """A number of 7 bits a byte, and where it ends."""
    value = shift = 0
    while True:
        if at >= end:
            raise _DamagedError("the file ends too early")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise _DamagedError(f"byte {at:,} begins no field")


def _encoded(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
