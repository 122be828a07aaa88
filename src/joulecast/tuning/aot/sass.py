"""Reads the machine code of a kernel: instructions by class, loops by their backward branches, registers and spills."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_INSTRUCTION = re.compile(r"/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Za-z0-9_.]*)([^;]*);")
_TARGET = re.compile(r"0x([0-9a-f]+)\s*$")
_USAGE = re.compile(r"REG:(\d+) STACK:(\d+)")

#: Bytes of a thread for one access, by the width in the instruction's name.
_WIDTHS = {"128": 16, "64": 8, "U16": 2, "S16": 2, "U8": 1, "S8": 1}

#: FLOP of one warp's matrix instruction m x n x k, from its name such as HMMA.16816.
_SHAPES = {"16816": (16, 8, 16), "1688": (16, 8, 8), "1684": (16, 8, 4), "16832": (16, 8, 32), "16864": (16, 8, 64),
           "884": (8, 8, 4), "8816": (8, 8, 16), "8832": (8, 8, 32)}  # fmt: skip

#: Classes that `Counts` keeps beside the total.
_MEMORY = {"LDG": "global_load", "LDGSTS": "async_copy", "STG": "global_store", "LDS": "shared", "STS": "shared",
           "LDL": "spill", "STL": "spill", "RED": "global_store", "ATOMG": "global_store"}  # fmt: skip


@dataclass
class Counts:
    """What one warp does in a stretch of code.

    Attributes
    ----------
    instructions : float
        All of them.
    matrix : float
        Matrix instructions.
    matrix_flop : float
        Theirs, of one warp. [FLOP]
    special : float
        Special functions (MUFU).
    barriers : float
    global_loads, async_copies, global_stores, shared_accesses, spills : float
        Accesses.
    global_load_bytes, async_copy_bytes, global_store_bytes, shared_bytes, spill_bytes : float
        Theirs, of one thread. [B]
    """

    instructions: float = 0.0
    matrix: float = 0.0
    matrix_flop: float = 0.0
    special: float = 0.0
    barriers: float = 0.0
    global_loads: float = 0.0
    global_load_bytes: float = 0.0
    async_copies: float = 0.0
    async_copy_bytes: float = 0.0
    global_stores: float = 0.0
    global_store_bytes: float = 0.0
    shared_accesses: float = 0.0
    shared_bytes: float = 0.0
    spills: float = 0.0
    spill_bytes: float = 0.0

    def add(self, other: Counts, times: float = 1.0) -> None:
        """Add `other`, done `times` times."""
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + times * value)


@dataclass
class Loop:
    """A loop of the machine code.

    Attributes
    ----------
    first, last : int
        Addresses of its first instruction and of the branch back.
    own : Counts
        Of one iteration, without loops inside.
    parent : int
        Place of the loop around it; -1 at the outermost level.
    """

    first: int
    last: int
    own: Counts = field(default_factory=Counts)
    parent: int = -1


@dataclass
class Code:
    """Machine code of a kernel, counted.

    Attributes
    ----------
    straight : Counts
        Outside of loops.
    loops : list of Loop
        In the order of their addresses, the outer before the inner.
    registers, stack : int
        Of a thread. [1, B]
    """

    straight: Counts
    loops: list[Loop]
    registers: int = 0
    stack: int = 0


def read_sass(text: str, usage: str = "") -> Code:
    """Counts of the disassembly of one kernel.

    Parameters
    ----------
    text : str
        What ``cuobjdump -sass`` prints.
    usage : str
        What ``cuobjdump -res-usage`` prints.

    Returns
    -------
    Code
    """
    rows = [(int(one[1], 16), one[2], one[3]) for one in _INSTRUCTION.finditer(text)]
    spans: dict[int, int] = {}
    for address, name, rest in rows:
        target = _TARGET.search(rest) if name.split(".")[0] == "BRA" else None
        if target is not None and int(target[1], 16) < address:
            spans[int(target[1], 16)] = max(spans.get(int(target[1], 16), 0), address)
    loops = [Loop(first, last) for first, last in sorted(spans.items(), key=lambda one: (one[0], -one[1]))]
    # What stands after the last EXIT is not part of the main path: slow paths of divisions, and the trap at the end.
    for place, loop in enumerate(loops):
        around = [at for at, one in enumerate(loops[:place]) if one.first <= loop.first and loop.last <= one.last]
        loop.parent = around[-1] if around else -1
    code = Code(Counts(), loops)
    for address, name, rest in rows:
        inside = [one for one in loops if one.first <= address <= one.last]
        _count(inside[-1].own if inside else code.straight, name, rest)
    found = _USAGE.search(usage)
    if found:
        code.registers, code.stack = int(found[1]), int(found[2])
    return code


def _count(into: Counts, name: str, rest: str) -> None:
    parts = name.split(".")
    kind = parts[0]
    if kind == "NOP" or (kind == "BRA" and not rest.strip()):
        return
    into.instructions += 1
    if kind in ("HMMA", "IMMA", "QMMA", "DMMA"):
        into.matrix += 1
        m, n, k = _SHAPES.get(parts[1], (0, 0, 0))
        into.matrix_flop += 2.0 * m * n * k
    elif kind in ("HGMMA", "IGMMA", "QGMMA"):
        into.matrix += 1
        m, n, k = (int(size) for size in parts[1].split("x"))
        into.matrix_flop += 2.0 * m * n * k / 4.0  # four warps share one
        if "gdesc" in rest:  # operands come from shared memory, once for the four warps
            held = rest.count("gdesc")
            into.shared_bytes += (n * k * 2.0 + (m * k * 2.0 if held and not _left_in_registers(rest) else 0.0)) / 128.0
            into.shared_accesses += 1
    elif kind == "UTCHMMA" or kind.startswith("UTC"):
        into.matrix += 1
    elif kind == "MUFU":
        into.special += 1
    elif kind in ("BAR", "WARPSYNC", "SYNCS"):
        into.barriers += 1
    elif kind in ("LDSM", "STSM", "LDMATRIX"):
        into.shared_accesses += 1
        into.shared_bytes += 4.0 * int(parts[-1] if parts[-1] in ("2", "4") else "1")
    elif kind in _MEMORY:
        width = float(next((_WIDTHS[part] for part in parts[1:] if part in _WIDTHS), 4))
        match _MEMORY[kind]:
            case "global_load":
                into.global_loads, into.global_load_bytes = into.global_loads + 1, into.global_load_bytes + width
            case "async_copy":
                into.async_copies, into.async_copy_bytes = into.async_copies + 1, into.async_copy_bytes + width
                into.shared_accesses, into.shared_bytes = into.shared_accesses + 1, into.shared_bytes + width
            case "global_store":
                into.global_stores, into.global_store_bytes = into.global_stores + 1, into.global_store_bytes + width
            case "shared":
                into.shared_accesses, into.shared_bytes = into.shared_accesses + 1, into.shared_bytes + width
            case _:
                into.spills, into.spill_bytes = into.spills + 1, into.spill_bytes + width


def _left_in_registers(rest: str) -> bool:
    """Whether the left operand of a warp-group product comes from registers: three register operands beside it."""
    return len(re.findall(r"\bR\d+", rest.split("gdesc")[0])) > 1
