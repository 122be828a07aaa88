"""How unlike two GPUs and two kernels are, and how much what one shows counts for the other."""

from __future__ import annotations

from functools import lru_cache

from joulecast.bounds.dtypes import CODES as _FORMATS
from joulecast.coefficients.versions import without_version
from joulecast.gpus import Gpu

#: Architectures in order of time and likeness; the distance between two is how far apart they stand.
GENERATIONS = {
    "maxwell": 0.0,
    "pascal": 1.0,
    "volta": 2.0,
    "turing": 2.6,
    "ampere": 3.5,
    "ada": 3.8,  # runs kernels that are built for Ampere
    "hopper": 5.0,
    "blackwell": 6.0,
    "rdna2": 11.0,
    "rdna3": 11.5,
    "cdna": 12.0,
    "cdna2": 12.5,
    "cdna3": 13.0,
}

#: Where parts of an architecture stand that have its name but not its kernels, by compute capability: graphics cards of
#: Blackwell's time have no tensor memory and run the instructions of Ada.
_GENERATION_OF = {"12.0": 4.4, "12.1": 4.4}

#: Formats whose kernels are nearly the same, and those that only have a step in common.
_LIKE_FORMATS = ({"fp16", "bf16"}, {"int8", "w8a8"}, {"nvfp4", "mxfp4"})
_RELATED_FORMATS = ({"fp8", "int8", "w8a8"}, {"fp8", "nvfp4", "mxfp4"}, {"w8a16", "w4a16"})
_LIKE_FORMAT, _RELATED_FORMAT, _OTHER_FORMAT = 0.05, 0.5, 1.3
_OTHER_KERNEL = 2.5

#: Formats whose kernels were measured as plugins of TensorRT engines: starting one takes 10 us that kernels of other
#: formats, launched by themselves, don't.
_PLUGIN_FORMATS = frozenset({"int8", "w8a8", "w8a16", "w4a16"})
_OTHER_START = 1.0

#: Engines that serve models by the same libraries' kernels, in graphs; others start each by itself or are older.
_LIKE_ENGINES = {"trtllm", "vllm"}
_LIKE_ENGINE, _OTHER_ENGINE = 0.6, 1.2
_OTHER_VERSION = 0.3

#: Kernels that GPUs run together, and how unlike they are between NVLink and the host's bus.
_OVER_LINKS = ("nccl", "custom_allreduce")
_OTHER_LINKS = 3.0


def generation(gpu: Gpu) -> float:
    """Place of a GPU in `GENERATIONS`, by the kernels that it runs. Dimensionless."""
    return _GENERATION_OF.get(gpu.compute_capability, GENERATIONS.get(gpu.architecture, 5.0))


def distance(a: Gpu, b: Gpu) -> float:
    """How unlike two GPUs are for the transfer of efficiencies; 0 for parts of one chip. Dimensionless."""
    generations = abs(generation(a) - generation(b))
    memory = 0.0 if a.dram_type.upper()[:3] == b.dram_type.upper()[:3] else 0.7
    size = 0.1 * abs(a.sm_count - b.sm_count) / max(a.sm_count, b.sm_count)
    return generations + memory + size


def group_distance(a: str, b: str) -> float:
    """How unlike two groups of one family are, such as ``gelu/fp32`` and ``gelu/bf16``. Dimensionless."""
    if a == b:
        return 0.0
    first, second = a.replace("@", "/").split("/"), b.replace("@", "/").split("/")
    total = _OTHER_KERNEL * 0.5 * abs(len(first) - len(second))
    for x, y in zip(first, second, strict=False):
        pair = {x, y}
        if x == y:
            continue
        if any(pair <= like for like in _LIKE_FORMATS):
            total += _LIKE_FORMAT
        elif any(pair <= like for like in _RELATED_FORMATS):
            total += _RELATED_FORMAT + (_OTHER_START if len(pair & _PLUGIN_FORMATS) == 1 else 0.0)
        else:
            total += _OTHER_FORMAT if x in _FORMATS and y in _FORMATS else _OTHER_KERNEL
            total += _OTHER_START if len(pair & _PLUGIN_FORMATS) == 1 else 0.0
    return total


def unlikeness(family: str, a: Gpu, first: tuple[str, str], b: Gpu, second: tuple[str, str]) -> float:
    """How unlike two kernels of a family are: by GPU, engine and group. Dimensionless.

    Parameters
    ----------
    family : str
    a, b : Gpu
        Where each runs; what-if changes of one GPU aside, another GPU is never at 0.
    first, second : tuple of (str, str)
        Engine and group of each.
    """
    return far_apart(kernel_distance(first, second), gpus_apart(family, a, b))


def gpus_apart(family: str, a: Gpu, b: Gpu) -> tuple[float, float] | None:
    """The part of `unlikeness` that the GPUs make, by links and all else; None for what-if changes of one GPU."""
    if a.plain_name == b.plain_name:
        return None
    links = _OTHER_LINKS if family in _OVER_LINKS and (a.nvlink_gb_s > 0) != (b.nvlink_gb_s > 0) else 0.0
    return links, distance(a, b)


def far_apart(kernels: float, gpus: tuple[float, float] | None) -> float:
    """`unlikeness` from its parts, `kernel_distance` and `gpus_apart`: of many kernels the latter is asked once."""
    return kernels if gpus is None else kernels + gpus[0] + gpus[1] + 1e-3


@lru_cache(maxsize=65536)
def kernel_distance(first: tuple[str, str], second: tuple[str, str]) -> float:
    """How unlike kernels of one family are by engine and group, whatever they run on. Dimensionless."""
    far = group_distance(first[1], second[1])
    if first[0] != second[0] and without_version(first[0]) == without_version(second[0]):
        far += _OTHER_VERSION
    elif first[0] != second[0]:
        far += _LIKE_ENGINE if {first[0], second[0]} <= _LIKE_ENGINES else _OTHER_ENGINE
    return far


def influence(unlike: float) -> float:
    """What one kernel counts, among several measured ones, for another that it is so unlike. Dimensionless.

    One of the same chip outweighs the next generation's by four orders; between two generations both count.
    """
    return float((unlike + 0.1) ** -4.0)


def correction_share(unlike: float) -> float:
    """Share of a learned correction that still holds for kernels so unlike those it was learnt from; 1 for the same.

    Whole GPUs left out of all fits are predicted best with all of it where their chip was measured, with half of it
    one generation on, and with hardly any of it for kernels of another kind.
    """
    return float(2.0**-unlike)
