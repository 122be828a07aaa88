"""Names of kernels taken apart: family, library, tile, number format, layout and direction."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from joulecast.traces import patterns

#: Family of a kernel that no pattern fits.
UNRECOGNISED = "unrecognised"

_FUNCTIONS = tuple((re.compile(pattern), family, library) for pattern, family, library in patterns.FUNCTIONS)
_ANYWHERE = tuple((re.compile(pattern), family, library) for pattern, family, library in patterns.ANYWHERE)
_FORMATS = tuple((re.compile(pattern), name) for pattern, name in patterns.FORMATS)
_TILES = tuple(re.compile(pattern) for pattern in patterns.TILES)
_DIRECTIONS = tuple((re.compile(pattern), name) for pattern, name in patterns.DIRECTIONS)
_NAMESPACES = re.compile(r"^(?:at|native|c10|detail|cuda|fbgemm_gpu|anonymous namespace|internal|impl|std|epilogue)::")
_RESULT = re.compile(r"^(?:void |std::enable_if<.*?>::type )")
_CUBLAS = re.compile(r"^(volta|turing|ampere|hopper|maxwell|pascal|kepler|sm\d+_xmma|ada|blackwell)")
_ALIGN = re.compile(r"align[abc]?(\d+)")
_ELEMENTS = re.compile(r"(?:detail|std)::array<char ?\*, ?(\d+)")
_WORK = re.compile(r"(vectorized|unrolled|legacy|)_?elementwise_kernel<(\d+)(?:, (\d+))?")

#: Elements that a thread of PyTorch's vectorised and unrolled kernels works on.
_THREAD_WORK = 4


@dataclass(frozen=True)
class KernelName:
    """What the name of a kernel tells.

    Attributes
    ----------
    family : str
        One of `joulecast.traces.patterns.FAMILIES`, or `UNRECOGNISED`.
    library : str
        Whose kernel it is.
    dtype : str
        Format of the operands; empty where the name does not tell.
    accumulate : str
        Format of the sums of a matrix product; empty where there is none or it is not told.
    tile : tuple of int
        Rows, columns and depth of a block's tile; depth 0 where not told; empty without a tile.
    layout : str
        ``nn``, ``nt``, ``tn`` or ``tt`` of a matrix product; else empty.
    direction : str
        ``dgrad``, ``wgrad`` or ``backward``; empty for the forward pass.
    alignment : int
        Elements of the operands that a matrix product loads at a time; 0 where not told.
    tensors : int
        Tensors that an elementwise kernel reads and writes; 0 where not told.
    elements_per_thread : int
        Elements that each of its threads works on; 0 where not told.
    """

    family: str
    library: str = ""
    dtype: str = ""
    accumulate: str = ""
    tile: tuple[int, ...] = ()
    layout: str = ""
    direction: str = ""
    alignment: int = 0
    tensors: int = 0
    elements_per_thread: int = 0

    @property
    def bound(self) -> str:
        """``matrix``, ``memory`` or ``links``; empty where the kernel is not recognised."""
        return patterns.FAMILIES.get(self.family, "")


@lru_cache(maxsize=65536)
def parsed(name: str) -> KernelName:
    """What `name` tells; its family is `UNRECOGNISED` where no pattern fits."""
    whole = name.lower()
    function = function_name(whole)
    family, library = _family(function, whole)
    if family == UNRECOGNISED:
        return KernelName(UNRECOGNISED)
    matrix = patterns.FAMILIES[family] == "matrix" or family == "gemm reduction"
    dtype = next((word for pattern, word in _FORMATS if pattern.search(whole)), "")
    tensors, per_thread = _elementwise(whole) if family in ("elementwise", "copy", "random") else (0, 0)
    if _CUBLAS.match(function) and library == "BLAS":
        library = "cuBLAS"
    elif library == "BLAS":
        library = "CUTLASS" if "cutlass" in whole else "custom"
    return KernelName(
        family,
        library,
        dtype,
        _accumulator(whole, dtype) if matrix else "",
        _tile(whole) if matrix else (),
        _layout(whole) if family == "gemm" else "",
        next((word for pattern, word in _DIRECTIONS if pattern.search(whole)), ""),
        _alignment(whole) if matrix else 0,
        tensors,
        per_thread,
    )


def function_name(name: str) -> str:
    """The function that a demangled name is of, without result, namespaces common to all, and arguments."""
    text = _RESULT.sub("", name).strip()
    text = text.replace("(anonymous namespace)::", "").replace("<unnamed>::", "")
    while (shorter := _NAMESPACES.sub("", text)) != text:
        text = shorter
    found = re.match(r"[^<(\s]+", text)
    return found.group(0) if found else text


def short_name(name: str) -> str:
    """A kernel's name as people call it: its function, or what a wrapper wraps; copies and fills as they are."""
    if name.startswith(("Memcpy", "Memset")):
        return name
    function = function_name(name)
    if patterns.WRAPPERS.match(function.lower()):
        inner = re.search(r"<(?:[\w ]*\b(?:at|cuda|detail|cutlass|gemm|kernel|device)::)*(\w+)", name)
        return inner.group(1) if inner else function
    return function or name


def _family(function: str, whole: str) -> tuple[str, str]:
    if not patterns.WRAPPERS.match(function):
        for pattern, family, library in _FUNCTIONS:
            if pattern.search(function):
                finer = (name for coarse, told, name in patterns.REFINED if coarse == family and told.search(whole))
                return next(finer, family), library
    for pattern, family, library in _ANYWHERE:
        if pattern.search(whole):
            return family, library
    return UNRECOGNISED, ""


def _accumulator(whole: str, dtype: str) -> str:
    if re.search(r"(?<![a-z])h(884|1688|16816)", whole) or "f16f16_f16f16_f16" in whole:
        return "fp16"
    if dtype in ("int8", "int4"):
        return "int32"
    return "fp64" if dtype == "fp64" else "fp32" if dtype else ""


def _tile(whole: str) -> tuple[int, ...]:
    for pattern in _TILES:
        found = pattern.search(whole)
        if found:
            sizes = [int(one or 0) for one in found.groups()]
            return tuple((*sizes, 0)[:3])
    return ()


def _alignment(whole: str) -> int:
    found = _ALIGN.search(whole)
    return int(found.group(1)) if found else 0


def _layout(whole: str) -> str:
    tensile = patterns.TENSILE_LAYOUT.search(whole)
    if tensile:
        # A is i x l for "ailk": not transposed; B is l x j for "bljk": not transposed
        first, second = tensile.groups()
        return ("n" if first.startswith("ai") else "t") + ("n" if second.startswith("bl") else "t")
    found = patterns.LAYOUT.search(whole)
    return found.group(1) if found else ""


def _elementwise(whole: str) -> tuple[int, int]:
    """Tensors and elements a thread of PyTorch's elementwise kernels."""
    work = _WORK.search(whole)
    if not work:
        return 0, 0
    arrays = _ELEMENTS.search(whole)
    kind, first, second = work.groups()
    per_thread = int(second) if not kind and second else _THREAD_WORK
    if kind == "vectorized":
        per_thread = max(_THREAD_WORK, int(first))
    return int(arrays.group(1)) if arrays else 0, per_thread
