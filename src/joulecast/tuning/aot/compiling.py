"""Compiles one configuration ahead of time for a GPU that need not be there; runs in a process of its own."""

from __future__ import annotations

import subprocess
import tempfile
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from joulecast.errors import InputError
from joulecast.tuning.aot.sass import Code, Counts, Loop, read_sass
from joulecast.tuning.aot.ttir import stripped
from joulecast.tuning.kernelspec import Argument, KernelSpec, Tensor, need_triton
from joulecast.tuning.space import Config

#: A bound for what hangs: the pool's on processor time comes first.
_TOOL_SECONDS = 1200.0


@dataclass(frozen=True)
class Compiled:
    """A compiled configuration, as far as it is looked at.

    Attributes
    ----------
    shared_bytes : int
        Shared memory of a block. [B]
    warps : int
        Of a block, those that the compiler adds included.
    code : Code
        Machine code, counted.
    ttir : str
        Triton's intermediate code.
    """

    shared_bytes: int
    warps: int
    code: Code
    ttir: str

    def packed(self) -> dict[str, Any]:
        """As plain JSON values."""
        loops = [[loop.first, loop.last, loop.parent, asdict(loop.own)] for loop in self.code.loops]
        return {
            "shared": self.shared_bytes, "warps": self.warps, "registers": self.code.registers,
            "stack": self.code.stack, "straight": asdict(self.code.straight), "loops": loops,
            "ttir": zlib.compress(self.ttir.encode(), 6).hex(),
        }  # fmt: skip

    @classmethod
    def unpacked(cls, held: Mapping[str, Any]) -> Compiled:
        """From what `packed` gave."""
        loops = [Loop(first, last, Counts(**own), parent) for first, last, parent, own in held["loops"]]
        code = Code(Counts(**held["straight"]), loops, held["registers"], held["stack"])
        return cls(held["shared"], held["warps"], code, zlib.decompress(bytes.fromhex(held["ttir"])).decode())


def signature_of(
    spec: KernelSpec, config: Config
) -> tuple[dict[str, str], dict[tuple[int, ...], Any], dict[tuple[int, ...], list[list[Any]]]]:
    """Types, constants and known divisibilities of the parameters: what a launch with these arguments would find.

    Returns
    -------
    signature, constants, attributes : dict
        As ``triton.compiler.ASTSource`` takes them.
    """
    arguments, chosen = spec.arguments_of(config), spec.constexprs(config)
    signature: dict[str, str] = {}
    constants: dict[tuple[int, ...], Any] = {}
    attributes: dict[tuple[int, ...], list[list[Any]]] = {}
    for place, parameter in enumerate(spec.kernel.params):
        name = parameter.name
        if parameter.is_constexpr:
            signature[name] = "constexpr"
            constants[(place,)] = chosen.get(name, parameter.default)
            continue
        value: Argument = arguments.get(name, parameter.default)
        specialised = not parameter.do_not_specialize
        if isinstance(value, Tensor):
            signature[name] = f"*{value.dtype}"
            attributes[(place,)] = [["tt.divisibility", 16]]
        elif value is None or (isinstance(value, int) and value == 1 and specialised and not isinstance(value, bool)):
            signature[name] = "constexpr"
            constants[(place,)] = value
        elif isinstance(value, bool):
            signature[name] = "u1"
        elif isinstance(value, int):
            signature[name] = "i32" if -(2**31) <= value < 2**31 else "i64"
            if value % 16 == 0 and specialised:
                attributes[(place,)] = [["tt.divisibility", 16]]
        else:
            signature[name] = "fp32"
    return signature, constants, attributes


def compiled_for(spec: KernelSpec, config: Config, capability: int) -> Compiled:
    """Compile `config` for compute capability `capability`.

    Raises
    ------
    InputError
        If the compiler refuses it, with its reason.
    """
    triton = need_triton()
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    signature, constants, attributes = signature_of(spec, config)
    source = ASTSource(spec.kernel, signature, constants, attributes)
    try:
        made = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=spec.options(config))
    except Exception as error:  # whatever the compiler raises
        raise InputError(_told(error)) from None
    usage, sass = disassembled(made.asm["cubin"])
    added = int(getattr(made.metadata, "num_warps", 4))
    return Compiled(int(made.metadata.shared), added, read_sass(sass, usage), stripped(made.asm["ttir"]))


def _told(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if "error" in line.lower() or "Error" in line]
    return f"{type(error).__name__}: {(telling or lines or [''])[-1][:160]}"


@cache
def _cuobjdump() -> str:
    import triton

    inside = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    return str(inside) if inside.is_file() else "cuobjdump"


def disassembled(cubin: bytes) -> tuple[str, str]:
    """Resource usage and disassembly of a compiled kernel, as the tools print them.

    Raises
    ------
    InputError
        If there is no ``cuobjdump``, or it fails.
    """
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        return _tool("-res-usage", file.name), _tool("-sass", file.name)


def _tool(flag: str, path: str) -> str:
    try:
        done = subprocess.run([_cuobjdump(), flag, path], capture_output=True, text=True, timeout=_TOOL_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InputError(f"can't disassemble: {type(error).__name__} of cuobjdump, which comes with triton") from None
    if done.returncode != 0:
        raise InputError(f"can't disassemble: {done.stderr.strip()[:160]}")
    return done.stdout
