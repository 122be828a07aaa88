"""What a kernel asks for on one problem: bytes, arithmetic and trips of each loop, by walking its intermediate code."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from joulecast.tuning.aot.ttir import Function, Operation, bits_of, shape_of

#: Blocks that are walked at most, spread evenly over the grid: trips and masks differ from block to block.
WALKED = 24

_FLOATS = {
    "arith.addf": 1, "arith.subf": 1, "arith.mulf": 1, "arith.negf": 1, "arith.maximumf": 1, "arith.maxnumf": 1,
    "arith.minimumf": 1, "arith.minnumf": 1, "arith.truncf": 1, "arith.extf": 1, "arith.cmpf": 1, "math.fma": 2,
    "arith.sitofp": 1, "tt.fp_to_fp": 1, "math.absf": 1,
}  # fmt: skip
_SPECIAL = frozenset({
    "math.exp", "math.exp2", "math.log", "math.log2", "math.sqrt", "math.rsqrt", "math.sin", "math.cos", "math.tanh",
    "math.erf", "arith.divf", "tt.precise_sqrt", "tt.precise_divf",
})  # fmt: skip


@dataclass
class Asked:
    """Sums over the whole grid.

    Attributes
    ----------
    read_bytes, written_bytes : dict of str to float
        By parameter, lanes that are masked off left out. [B]
    tensor_flop, float_flop : float
        Of matrix instructions, and of other arithmetic on floats. [FLOP]
    special : float
        Special functions.
    trips : list of float
        Of each loop in the order of the text, mean over blocks of all its iterations.
    loop_flop, loop_bytes : list of float
        Of one iteration of each loop in one block, loops inside left out. [FLOP, B]
    loop_parents : list of int
        Loop around each; -1 at the outermost level.
    unknown : int
        Loops and branches whose bounds depend on what is not known; taken as once.
    """

    read_bytes: dict[str, float] = field(default_factory=dict)
    written_bytes: dict[str, float] = field(default_factory=dict)
    tensor_flop: float = 0.0
    float_flop: float = 0.0
    special: float = 0.0
    trips: list[float] = field(default_factory=list)
    loop_flop: list[float] = field(default_factory=list)
    loop_bytes: list[float] = field(default_factory=list)
    loop_parents: list[int] = field(default_factory=list)
    unknown: int = 0


@dataclass(frozen=True)
class Pointer:
    """An address: a parameter, and offsets in elements from it."""

    parameter: str
    offset: Any


def asked_of(
    function: Function, scalars: Mapping[str, Any], grid: Sequence[int], tables: Mapping[str, Any] | None = None
) -> Asked:
    """What a launch asks for.

    Parameters
    ----------
    function : Function
    scalars : mapping
        Numbers that parameters have.
    grid : sequence of int
    tables : mapping of str to ndarray, optional
        What index tensors hold.

    Returns
    -------
    Asked
    """
    sizes = [int(size) for size in (*grid, 1, 1)[:3]]
    total = math.prod(sizes)
    chosen = np.unique(np.linspace(0, total - 1, min(WALKED, total)).round().astype(np.int64))
    out = Asked()
    _outline(function.body, out, -1)
    for linear in chosen.tolist():
        block = (linear % sizes[0], linear // sizes[0] % sizes[1], linear // (sizes[0] * sizes[1]))
        _Walk(function, scalars, block, sizes, tables or {}, out, 1.0 / len(chosen)).run()
    scale = float(total)
    for held in (out.read_bytes, out.written_bytes):
        for name in held:
            held[name] *= scale
    out.tensor_flop *= scale
    out.float_flop *= scale
    out.special *= scale
    out.unknown = round(out.unknown / len(chosen))
    return out


def _outline(body: list[Operation], out: Asked, parent: int) -> None:
    for one in body:
        if one.name in ("scf.for", "scf.while"):
            place = len(out.trips)
            out.trips.append(0.0)
            out.loop_flop.append(0.0)
            out.loop_bytes.append(0.0)
            out.loop_parents.append(parent)
            for region in one.regions:
                _outline(region, out, place)
        elif not one.name.startswith("tt.reduce") and not one.name.startswith("tt.scan"):
            for region in one.regions:
                _outline(region, out, parent)


class _Walk:
    """One block: values are found where they are needed, each once."""

    def __init__(
        self, function: Function, scalars: Mapping[str, Any], block: tuple[int, ...], grid: Sequence[int],
        tables: Mapping[str, Any], out: Asked, share: float,
    ) -> None:  # fmt: skip
        self.function, self.block, self.grid, self.tables, self.out, self.share = (
            function, block, grid, tables, out, share)  # fmt: skip
        self.known: dict[str, Any] = {}
        for name in function.parameters:
            plain = name.removeprefix("%")
            self.known[name] = scalars[plain] if plain in scalars else Pointer(plain, 0)
        self.makers: dict[str, tuple[Operation, int]] = {}
        self._loops = iter(range(len(out.trips)))

    def run(self) -> None:
        self._body(self.function.body, self.share, -1)

    def _body(self, body: list[Operation], times: float, loop: int) -> None:
        for one in body:
            for place, name in enumerate(one.results):
                self.makers[name] = (one, place)
            if one.name == "scf.for":
                self._for(one, times)
            elif one.name == "scf.while":
                place = next(self._loops)
                self.out.unknown += 1
                self.out.trips[place] += times
                for region in one.regions:
                    self._body(region, times, place)
            elif one.name == "scf.if":
                self._if(one, times, loop)
            else:
                self._count(one, times, loop)

    def _for(self, one: Operation, times: float) -> None:
        place = next(self._loops)
        lower, upper, step = (self._value(name) for name in one.operands[:3])
        if lower is None or upper is None or not step:
            self.out.unknown += 1
            trips = 1
        else:
            trips = max(-(-(int(upper) - int(lower)) // int(step)), 0)
        self.out.trips[place] += times * trips
        self.known[one.arguments[0]] = lower
        for name, start in zip(one.arguments[1:], one.operands[3:], strict=True):
            self.known[name] = self._value(start)
        self._body(one.regions[0], times * trips, place)

    def _if(self, one: Operation, times: float, loop: int) -> None:
        condition = self._value(one.operands[0]) if one.operands else None
        if condition is None:
            self.out.unknown += 1
            for region in one.regions:
                self._body(region, times / len(one.regions), loop)
            return
        for place, region in enumerate(one.regions):
            taken = bool(condition) == (place == 0)
            self._body(region, times if taken else 0.0, loop)

    def _count(self, one: Operation, times: float, loop: int) -> None:
        out = self.out
        if one.name in ("tt.load", "tt.store") or one.name.startswith("tt.atomic"):
            self._access(one, times, loop)
        elif one.name in ("tt.dot", "tt.dot_scaled"):
            types = re.findall(r"tensor<[^>]+>", one.text)
            left, result = shape_of(types[0])[0], shape_of(types[-1])[0]
            flop = 2.0 * math.prod(result) * left[-1]
            out.tensor_flop += flop * times
            if loop >= 0 and out.loop_flop[loop] >= 0:
                out.loop_flop[loop] += flop * self.share
        elif one.name in _FLOATS or one.name in _SPECIAL:
            numbers = math.prod(shape_of(one.text.rsplit(":", 1)[-1])[0])
            if one.name in _SPECIAL:
                out.special += numbers * times
            else:
                out.float_flop += _FLOATS[one.name] * numbers * times
        elif one.name in ("tt.reduce", "tt.scan"):
            types = re.findall(r"tensor<[^>]+>", one.text)
            work = sum(1 for part in one.regions[0] if part.name in _FLOATS)
            out.float_flop += work * math.prod(shape_of(types[0])[0]) * times if types else 0.0

    def _access(self, one: Operation, times: float, loop: int) -> None:
        shape, element = shape_of(one.text.rsplit(":", 1)[-1] if one.name in ("tt.load", "tt.store") else one.text)
        size = math.prod(shape) * bits_of(element) / 8.0
        masked = len(one.operands) > (1 if one.name == "tt.load" else 2)
        mask = self._value(one.operands[1 if one.name == "tt.load" else 2]) if masked else None
        size *= 1.0 if mask is None else float(np.mean(mask))
        pointer = self._value(one.operands[0])
        name = pointer.parameter if isinstance(pointer, Pointer) else "?"
        writes = one.name != "tt.load"
        held = self.out.written_bytes if writes else self.out.read_bytes
        held[name] = held.get(name, 0.0) + size * times
        if one.name.startswith("tt.atomic"):
            self.out.read_bytes[name] = self.out.read_bytes.get(name, 0.0) + size * times
        if loop >= 0:
            self.out.loop_bytes[loop] += size * self.share

    def _value(self, name: str) -> Any:
        if name in self.known:
            return self.known[name]
        made = self.makers.get(name)
        if made is None:
            return None
        self.known[name] = None  # what depends on itself is not known
        if made[0].name not in ("scf.for", "scf.if", "scf.while", "tt.reduce", "tt.scan"):
            self.known[name] = self._evaluated(made[0])
        return self.known[name]

    def _evaluated(self, one: Operation) -> Any:
        kind = one.name
        if kind == "arith.constant":
            return _constant(one.text)
        if kind == "tt.get_program_id":
            return self.block["xyz".index(one.text.split()[1])]
        if kind == "tt.get_num_programs":
            return self.grid["xyz".index(one.text.split()[1])]
        if kind == "tt.make_range":
            start, end = (int(re.search(rf"{word} = (\d+)", one.text)[1]) for word in ("start", "end"))  # type: ignore[index]
            return np.arange(start, end)
        values = [self._value(name) for name in one.operands]
        if kind == "tt.load":
            return self._loaded(values)
        if any(value is None for value in values):
            return None
        try:
            return _apply(kind, one.text, values)
        except (TypeError, ValueError, ZeroDivisionError, IndexError):
            return None

    def _loaded(self, values: list[Any]) -> Any:
        pointer = values[0] if values else None
        if not isinstance(pointer, Pointer) or pointer.parameter not in self.tables:
            return None
        table = np.ravel(self.tables[pointer.parameter])
        found = table[np.clip(np.asarray(pointer.offset), 0, len(table) - 1)]
        return found if np.ndim(found) else int(found)


_COMPARE = {"eq": np.equal, "ne": np.not_equal, "slt": np.less, "sle": np.less_equal, "sgt": np.greater,
            "sge": np.greater_equal, "ult": np.less, "ule": np.less_equal, "ugt": np.greater,
            "uge": np.greater_equal}  # fmt: skip


def _truncated(left: Any, right: Any) -> Any:
    """Integer division towards zero, as the machine does it."""
    quotient = np.abs(left) // np.abs(right)
    return np.where((np.asarray(left) < 0) == (np.asarray(right) < 0), quotient, -quotient)[()]


_BINARY: Mapping[str, Any] = {
    "arith.addi": np.add, "arith.subi": np.subtract, "arith.muli": np.multiply, "arith.divsi": _truncated,
    "arith.divui": _truncated, "arith.remsi": np.fmod, "arith.remui": np.fmod, "arith.minsi": np.minimum,
    "arith.maxsi": np.maximum, "arith.minui": np.minimum, "arith.maxui": np.maximum, "arith.andi": np.bitwise_and,
    "arith.ori": np.bitwise_or, "arith.xori": np.bitwise_xor, "arith.shli": np.left_shift,
    "arith.shrsi": np.right_shift, "arith.shrui": np.right_shift,
    "arith.ceildivsi": lambda left, right: -((-left) // right),
}  # fmt: skip
_SAME = frozenset({"arith.extsi", "arith.extui", "arith.trunci", "arith.index_cast", "tt.bitcast", "arith.bitcast",
                   "arith.index_castui"})  # fmt: skip


def _apply(kind: str, text: str, values: list[Any]) -> Any:
    if kind == "tt.addptr":
        return Pointer(values[0].parameter, np.add(values[0].offset, values[1]))
    if kind in ("tt.splat", "tt.broadcast", "tt.expand_dims", "tt.reshape", "tt.trans"):
        if isinstance(values[0], Pointer):
            return Pointer(values[0].parameter, _shaped(kind, text, values[0].offset))
        return _shaped(kind, text, values[0])
    if kind in _SAME:
        return values[0]
    if kind == "arith.cmpi":
        return _COMPARE[text.split()[1].rstrip(",")](values[0], values[1])
    if kind == "arith.select":
        if any(isinstance(value, Pointer) for value in values):
            return values[1]
        return np.where(values[0], values[1], values[2])[()]
    if kind in _BINARY:
        return _BINARY[kind](values[0], values[1])
    return None


def _shaped(kind: str, text: str, value: Any) -> Any:
    shape = shape_of(text.rsplit("->", 1)[-1])[0]
    if kind == "tt.expand_dims":
        return np.expand_dims(value, int(re.search(r"axis = (\d+)", text)[1]))  # type: ignore[index]
    if kind == "tt.reshape":
        return np.reshape(value, shape)
    if kind == "tt.trans":
        order = re.search(r"order = array<i32: ([\d, ]+)>", text)
        return np.transpose(value, [int(axis) for axis in order[1].split(",")] if order else None)
    return np.broadcast_to(value, shape)


def _constant(text: str) -> Any:
    body = text.removeprefix("arith.constant ").strip()
    if body.startswith(("true", "false")):
        return body.startswith("true")
    found = re.match(r"dense<([^>]*)>\s*:\s*(.*)|(-?[\d.eE+x-]+)\s*:\s*(.*)", body)
    if found is None:
        return None
    number, kind = (found[1], found[2]) if found[1] is not None else (found[3], found[4])
    shape, element = shape_of(kind)
    try:
        if number in ("true", "false"):
            value: Any = number == "true"
        elif element[0] == "f" or element == "bf16":
            value = float(number)
        else:
            value = int(number)
    except ValueError:
        return None
    return np.broadcast_to(value, shape) if shape else value
