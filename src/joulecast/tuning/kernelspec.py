"""A Triton kernel as it is tuned: its arguments, launch grid, space of configurations, and what its result must be."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt

from joulecast.errors import InputError, MissingExtraError, shortened
from joulecast.tuning.space import Config, Space, Value

#: Options of a launch that are no parameters of the kernel.
LAUNCH_OPTIONS = ("num_warps", "num_stages", "num_ctas", "maxnreg")

#: Bytes of an element, by Triton's name of its type.
ELEMENT_BYTES = {
    "fp64": 8, "fp32": 4, "fp16": 2, "bf16": 2, "fp8e4nv": 1, "fp8e5": 1,
    "i64": 8, "i32": 4, "i16": 2, "i8": 1, "i1": 1, "u8": 1,
}  # fmt: skip


@dataclass(frozen=True)
class Tensor:
    """A tensor that a kernel is given.

    Attributes
    ----------
    shape : tuple of int
    dtype : str
        As Triton names it: ``fp16``, ``bf16``, ``fp32``, ``i32``, ...
    output : bool
        Whether the kernel writes it, so that it is compared with the reference.
    values : ndarray or None
        What it holds, for indices; None for random numbers (zeros where it is written).
    """

    shape: tuple[int, ...]
    dtype: str
    output: bool = False
    values: npt.NDArray[Any] | None = None

    def __post_init__(self) -> None:
        if self.dtype not in ELEMENT_BYTES:
            raise InputError(f"no tensor of {shortened(self.dtype)!r}: one of {', '.join(ELEMENT_BYTES)}")
        if any(size < 1 for size in self.shape):
            raise InputError(f"a tensor has sizes of 1 or more, not {shortened(self.shape)}")

    @property
    def bytes(self) -> float:
        """Size in memory. [B]"""
        return float(math.prod(self.shape)) * ELEMENT_BYTES[self.dtype]


Argument = Tensor | int | float | bool | None


#: Set in the environment of the process that interprets kernels.
INTERPRETS = "JOULECAST_INTERPRETS"


@dataclass(frozen=True)
class KernelSpec:
    """What is tuned.

    Attributes
    ----------
    name : str
    kernel : triton.runtime.JITFunction
    space : Space
        Values of the kernel's ``tl.constexpr`` parameters and of `LAUNCH_OPTIONS`.
    arguments : mapping, or callable
        Value of each other parameter by name; a function of the configuration where they depend on it.
    grid : callable
        Launch grid of a configuration.
    reference : callable or None
        Takes the input tensors by name (torch), gives those that are written by name.
    default : mapping
        The configuration that savings are told against.
    problem : mapping of str to value
        Sizes, for names of results; plain JSON values.
    constants : mapping of str to value
        Constexprs that are not tuned.
    tolerance : float
        Largest error over the largest magnitude of the reference.
    family : str
        Kernel family whose fitted efficiencies price it.
    footprint : callable or None
        ``(config) -> (bytes of shared memory, accumulator registers a thread)``, to prune before anything is compiled.
    rereads : callable or None
        ``(config, blocks at a time) -> bytes`` that are read again by later waves, beyond the first time; None for all
        that is read more than once. [B]
    finish : callable or None
        ``(outputs, config) -> outputs``: what is left to do after the kernel before outputs are compared.
    small : callable or None
        The same kernel on a problem small enough to be interpreted.
    """

    name: str
    kernel: Any
    space: Space
    arguments: Mapping[str, Argument] | Callable[[Config], Mapping[str, Argument]]
    grid: Callable[[Config], tuple[int, ...]]
    reference: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None
    default: Config = field(default_factory=dict)
    problem: Mapping[str, Value] = field(default_factory=dict)
    constants: Mapping[str, Value] = field(default_factory=dict)
    tolerance: float = 0.02
    family: str = "gemm"
    footprint: Callable[[Config], tuple[float, float]] | None = None
    rereads: Callable[[Config, float], float] | None = None
    finish: Callable[[Mapping[str, Any], Config], Mapping[str, Any]] | None = None
    small: Callable[[], KernelSpec] | None = None

    def arguments_of(self, config: Config) -> Mapping[str, Argument]:
        """Value of each parameter that is no constexpr, by name."""
        return self.arguments(config) if callable(self.arguments) else self.arguments

    def constexprs(self, config: Config) -> dict[str, Value]:
        """Value of each constexpr parameter, by name."""
        chosen = {name: value for name, value in config.items() if name not in LAUNCH_OPTIONS}
        return {**self.constants, **chosen}

    def options(self, config: Config) -> dict[str, int]:
        """Launch options, with Triton's defaults where the space has none."""
        options = {"num_warps": 4, "num_stages": 3}
        return options | {name: int(config[name]) for name in LAUNCH_OPTIONS if name in config}

    def blocks(self, config: Config) -> float:
        """Thread blocks of a launch."""
        return float(math.prod(self.grid(config)))

    @property
    def dtype(self) -> str:
        """Format of the first tensor that holds numbers."""
        tensors = [one for one in self.arguments_of(self.baseline).values() if isinstance(one, Tensor)]
        return next((one.dtype for one in tensors if one.dtype[0] in "fb"), "fp32")

    @property
    def baseline(self) -> Config:
        """`default`, or the first configuration of the space where there is none."""
        if self.default:
            return self.default
        first = next(self.space.enumerated(), None)
        if first is None:
            raise InputError(f"{self.name}: no configuration fulfils the constraints: loosen one of them")
        return self.space.config(first)

    @property
    def source_hash(self) -> str:
        """The same for the same kernel source."""
        return hashlib.sha256(str(self.kernel.cache_key).encode()).hexdigest()[:16]


def checked(spec: KernelSpec) -> KernelSpec:
    """`spec`, if its parts fit each other.

    Raises
    ------
    InputError
        Naming what does not: no Triton kernel, parameters without a value, tunables that are no parameters.
    """
    kernel = spec.kernel
    if interpreting():
        return spec  # its module is imported for the kernel alone
    if type(kernel).__name__ == "InterpretedFunction":
        raise InputError(f"{spec.name}: unset TRITON_INTERPRET: what is interpreted can't be compiled")
    if not hasattr(kernel, "params") or not hasattr(kernel, "arg_names"):
        raise InputError(f"{spec.name}: the kernel must be a function under @triton.jit, not {type(kernel).__name__}")
    constexpr = {one.name for one in kernel.params if one.is_constexpr}
    plain = [one.name for one in kernel.params if not one.is_constexpr]
    tuned = set(spec.space.names) - set(LAUNCH_OPTIONS)
    strange = tuned - constexpr
    if strange:
        raise InputError(f"{spec.name}: {', '.join(sorted(strange))} is no tl.constexpr parameter of the kernel "
                         f"({', '.join(sorted(constexpr)) or 'it has none'}) and no launch option")  # fmt: skip
    has_default = {one.name for one in kernel.params if one.has_default}
    missing = constexpr - tuned - set(spec.constants) - has_default
    if missing:
        raise InputError(f"{spec.name}: give {', '.join(sorted(missing))} a place in the space or a constant value")
    if not 0.0 <= spec.tolerance < 1.0:
        raise InputError(f"{spec.name}: the tolerance is a share such as 0.02, not {spec.tolerance}")
    given = spec.arguments_of(spec.baseline)
    without = [name for name in plain if name not in given and name not in has_default]
    if without:
        raise InputError(f"{spec.name}: give a value for {', '.join(without)} among the arguments")
    extra = set(given) - set(plain)
    if extra:
        raise InputError(f"{spec.name}: {', '.join(sorted(extra))} is no parameter of the kernel: {', '.join(plain)}")
    for name, value in given.items():
        if not isinstance(value, Tensor | int | float | bool | None):
            raise InputError(f"{spec.name}: argument {name} must be a tensor or a number, not {type(value).__name__}")
    for name in LAUNCH_OPTIONS:
        if name in spec.space.names:
            values = spec.space.tunables[spec.space.names.index(name)].values
            bad = [v for v in values if not isinstance(v, int) or v < 1 or (name == "num_warps" and v & (v - 1))]
            if bad:
                what = "powers of two such as 4" if name == "num_warps" else "whole numbers of 1 or more"
                raise InputError(f"{spec.name}: {name} takes {what}, not {shortened(bad[0])}")
    spec.space.code(spec.baseline)
    _grid_of(spec)
    return spec


def _grid_of(spec: KernelSpec) -> None:
    try:
        grid = tuple(int(size) for size in spec.grid(spec.baseline))
    except Exception as error:  # a user's function may raise anything
        raise InputError(f"{spec.name}: the grid can't be computed: {shortened(error)}") from None
    if not 1 <= len(grid) <= 3 or min(grid) < 1:
        raise InputError(f"{spec.name}: a grid has one to three sizes of 1 or more, not {grid}")


def interpreting() -> bool:
    """Whether this is the process that `joulecast.tuning.correctness` starts to run kernels in Triton's interpreter."""
    return INTERPRETS in os.environ


def need_triton() -> Any:
    """The ``triton`` module, ready to compile for a GPU that is not there.

    Raises
    ------
    MissingExtraError
        If it is not installed.
    """
    # Triton 3.9 warns unless this is set, and later versions default otherwise: it changes code.
    os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
    try:
        import triton
    except ImportError:
        raise MissingExtraError("tuning Triton kernels", "tune") from None
    return triton


def need_torch() -> Any:
    """The ``torch`` module.

    Raises
    ------
    MissingExtraError
        If it is not installed.
    """
    try:
        import torch
    except ImportError:
        raise MissingExtraError("checking a kernel against its reference", "torch") from None
    return torch
