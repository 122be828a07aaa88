"""Reads Triton's own intermediate code into a tree of operations: what a kernel asks for, before a GPU is in it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_LOC = re.compile(r"\s+loc\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)")
_RESULTS = re.compile(r"^(%[\w$.-]+)(?::(\d+))?\s*=\s*(.*)$")
_NAME = re.compile(r'^"?([\w.]+)"?')
_VALUE = re.compile(r"%[\w$.-]+(?:#\d+)?")
_TENSOR = re.compile(r"tensor<((?:\d+x)*)(!tt\.ptr<[^>]+>|[\w]+)")
_POINTER = re.compile(r"!tt\.ptr<(\w+)")

#: Bits of an element by MLIR's name of its type.
_BITS = {"f64": 64, "f32": 32, "tf32": 32, "f16": 16, "bf16": 16, "i64": 64, "i32": 32, "i16": 16, "i8": 8, "i1": 8}


@dataclass
class Operation:
    """One operation.

    Attributes
    ----------
    name : str
        Such as ``tt.load``.
    results : tuple of str
        Names, made unique.
    operands : tuple of str
        Values it reads, made unique, in the order they are written.
    text : str
        As it is written, without locations.
    regions : list of list of Operation
        Bodies of loops, branches and reductions.
    arguments : tuple of str
        Of a loop's body: the counter, then what is carried.
    """

    name: str
    results: tuple[str, ...]
    operands: tuple[str, ...]
    text: str
    regions: list[list[Operation]] = field(default_factory=list)
    arguments: tuple[str, ...] = ()


@dataclass
class Function:
    """A kernel: names of its parameters as the source has them, and its operations."""

    parameters: tuple[str, ...]
    body: list[Operation]


def stripped(text: str) -> str:
    """The code without locations, which say where in a file each line comes from."""
    lines = [_LOC.sub("", line) for line in text.splitlines() if not line.startswith("#")]
    return "\n".join(line for line in lines if line.strip())


def shape_of(type_text: str) -> tuple[tuple[int, ...], str]:
    """Shape and element of a type such as ``tensor<128x64xf16>``; a scalar has no shape."""
    found = _TENSOR.search(type_text)
    if found is None:
        return (), type_text.strip()
    return tuple(int(size) for size in found[1].split("x") if size), found[2]


def bits_of(element: str) -> int:
    """Bits of an element, or of what a pointer points to."""
    pointed = _POINTER.search(element)
    name = pointed[1] if pointed else element
    return _BITS.get(name, 8 if name.startswith("f8") else 32)


def read_ttir(text: str) -> Function:
    """The kernel in a module.

    Raises
    ------
    ValueError
        If there is no public function, or its text has a form that is not known.
    """
    lines = [line.strip() for line in stripped(text).splitlines()]
    begin = next((at for at, line in enumerate(lines) if line.startswith("tt.func public")), None)
    if begin is None:
        raise ValueError("no public function in the intermediate code")
    header = lines[begin].split("(", 1)[1]
    parameters = tuple(found[1] for found in re.finditer(r"(%[\w$.-]+): ", header))
    reader = _Reader(lines, begin + 1)
    for name in parameters:
        reader.scopes[-1][name] = name
    return Function(parameters, reader.block())


class _Reader:
    """Walks lines; names are made unique as scopes may use one twice."""

    def __init__(self, lines: list[str], at: int) -> None:
        self.lines, self.at = lines, at
        self.scopes: list[dict[str, str]] = [{}]
        self._made = 0

    def block(self) -> list[Operation]:
        """Operations up to the brace that closes this block; stands on that line afterwards."""
        found: list[Operation] = []
        while self.at < len(self.lines):
            line = self.lines[self.at]
            if line.startswith("}"):
                return found
            self.at += 1
            if line.startswith("^"):
                for name in re.findall(r"(%[\w$.-]+):", line):
                    self._define(name, 1)
                continue
            found.append(self._operation(line))
        raise ValueError("the intermediate code ends inside a block")

    def _define(self, name: str, count: int) -> tuple[str, ...]:
        self._made += 1
        unique = f"{name}@{self._made}"
        self.scopes[-1][name] = unique
        for place in range(count):
            self.scopes[-1][f"{name}#{place}"] = unique if count == 1 else f"{unique}#{place}"
        return tuple(unique if count == 1 else f"{unique}#{place}" for place in range(count))

    def _resolve(self, name: str) -> str:
        for scope in reversed(self.scopes):
            if name in scope:
                return scope[name]
        return name

    def _operation(self, line: str) -> Operation:
        match = _RESULTS.match(line)
        own, count, rest = (match[1], int(match[2] or 1), match[3]) if match else ("", 0, line)
        named = _NAME.match(rest)
        if named is None:
            raise ValueError(f"can't read {line[:80]!r}")
        name = named[1]
        if name == "scf.for":
            made = self._loop(rest)
        else:
            operands = tuple(self._resolve(value) for value in _VALUE.findall(rest))
            made = Operation(name, (), operands, rest)
            if line.endswith("{"):
                self._regions(made)
        if own:
            made.results = self._define(own, count)
        return made

    def _loop(self, rest: str) -> Operation:
        head = re.match(r"scf\.for\s+(?:unsigned\s+)?(%[\w$.-]+) = (%\S+) to (%\S+) step (%\S+)", rest)
        if head is None:
            raise ValueError(f"can't read {rest[:80]!r}")
        bounds = tuple(self._resolve(one) for one in head.groups()[1:])
        carried = re.findall(r"(%[\w$.-]+) = (%[\w$.#-]+)", rest[head.end() :].split("->")[0])
        starts = tuple(self._resolve(start) for _, start in carried)
        made = Operation("scf.for", (), (*bounds, *starts), rest)
        self.scopes.append({})
        names = [self._define(head[1], 1)[0], *(self._define(name, 1)[0] for name, _ in carried)]
        made.arguments = tuple(names)
        made.regions.append(self.block())
        self.scopes.pop()
        self.at += 1
        return made

    def _regions(self, made: Operation) -> None:
        """Bodies in braces; ``} else {`` and ``}, {`` begin another."""
        while True:
            self.scopes.append({})
            made.regions.append(self.block())
            self.scopes.pop()
            line = self.lines[self.at]
            self.at += 1
            if not line.endswith("{"):
                made.text += " " + line  # types of a reduction stand behind its body
                return
