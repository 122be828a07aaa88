"""Kernels of the user's own: specs from plain arguments, or imported by name."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from joulecast.errors import InputError, shortened
from joulecast.tuning.kernelspec import LAUNCH_OPTIONS, Argument, KernelSpec, Tensor, checked, need_triton
from joulecast.tuning.space import Config, Constraint, Space, Value

_DTYPES = {"float64": "fp64", "float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "int64": "i64", "int32": "i32",
           "int16": "i16", "int8": "i8", "uint8": "u8", "bool": "i1", "float8_e4m3fn": "fp8e4nv",
           "float8_e5m2": "fp8e5"}  # fmt: skip


def kernel_spec(
    kernel: Any,
    *,
    space: Mapping[str, Sequence[Value]] | Space,
    args: Mapping[str, Any],
    grid: Callable[[Config], tuple[int, ...]] | tuple[int, ...],
    outputs: Sequence[str] = (),
    reference: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None,
    constraints: Sequence[str | Constraint | Callable[[Config], bool]] = (),
    default: Config | None = None,
    constants: Mapping[str, Value] | None = None,
    tolerance: float = 0.02,
    small: Mapping[str, Any] | None = None,
    name: str | None = None,
) -> KernelSpec:
    """The spec of a kernel of your own.

    Parameters
    ----------
    kernel : triton.runtime.JITFunction
        A function under ``@triton.jit``, defined at the top of a module.
    space : mapping or Space
        Values of its ``tl.constexpr`` parameters, ``num_warps`` and ``num_stages``.
    args : mapping of str to tensor, (shape, dtype), int or float
        Value of each other parameter; a tensor may be on the device ``meta``: only its shape and format are taken.
    grid : callable or tuple
        Launch grid; a function of the configuration where it depends on it.
    outputs : sequence of str
        Tensors that the kernel writes.
    reference : callable, optional
        Takes the input tensors by name, gives the outputs by name.
    constraints : sequence
        As `Space.of` takes them, such as ``"BLOCK_M * BLOCK_N <= 16384"``.
    default : mapping, optional
        The configuration in use today.
    constants : mapping, optional
        Constexprs that are not tuned.
    tolerance : float
        Largest error over the largest magnitude of the reference.
    small : mapping, optional
        `args` and ``grid`` of a small problem to test on in Triton's interpreter; needed where `args` are large.
    name : str, optional

    Returns
    -------
    KernelSpec

    Raises
    ------
    InputError
        Naming what does not fit.
    """
    need_triton()
    called = name or str(getattr(kernel, "__name__", "kernel"))
    made = space if isinstance(space, Space) else Space.of(space, constraints)
    values = {str(one): _argument(called, str(one), value, one in outputs) for one, value in args.items()}
    unknown = [one for one in outputs if one not in values]
    if unknown:
        raise InputError(f"{called}: output {shortened(unknown[0])} is none of its arguments")
    if reference is not None and not outputs:
        raise InputError(f"{called}: name the tensors that it writes in outputs, so that they can be compared")
    if not callable(grid) and not isinstance(grid, tuple | list):
        raise InputError(f"{called}: the grid is a function of the configuration or a tuple")
    launch = grid if callable(grid) else (lambda config: tuple(grid))  # noqa: ARG005
    sizes: dict[str, Value] = {one: value for one, value in values.items() if isinstance(value, int | float)}
    sizes |= {one: "x".join(map(str, value.shape)) for one, value in values.items() if isinstance(value, Tensor)}

    def on_small() -> KernelSpec:
        assert small is not None
        return kernel_spec(
            kernel, space=made, args={one: value for one, value in small.items() if one != "grid"},
            grid=small.get("grid", grid), outputs=outputs, reference=reference, default=default, constants=constants,
            tolerance=tolerance, name=called,
        )  # fmt: skip

    return checked(
        KernelSpec(
            name=called,
            kernel=kernel,
            space=made,
            arguments=values,
            grid=launch,
            reference=reference,
            default=dict(default or {}),
            problem=sizes,
            constants=dict(constants or {}),
            tolerance=tolerance,
            small=None if small is None else on_small,
        )
    )  # fmt: skip


def _argument(kernel: str, name: str, value: Any, output: bool) -> Argument:
    if isinstance(value, Tensor) or value is None or isinstance(value, bool | int | float):
        return value
    shape, dtype = (value if isinstance(value, tuple) and len(value) == 2 else
                    (getattr(value, "shape", None), getattr(value, "dtype", None)))  # fmt: skip
    word = str(dtype).removeprefix("torch.")
    if shape is None or dtype is None:
        raise InputError(f"{kernel}: argument {name} must be a tensor, (shape, dtype) or a number, "
                         f"not {type(value).__name__}")  # fmt: skip
    word = _DTYPES.get(word, word)
    try:
        sizes = tuple(int(size) for size in shape)
    except (TypeError, ValueError):
        raise InputError(f"{kernel}: the shape of {name} must be whole numbers, not {shortened(shape)}") from None
    held = None
    if word.startswith("i") and getattr(value, "device", None) is not None and value.device.type == "cpu":
        held = value.numpy()  # indices decide which bytes move
    return Tensor(sizes, word, output, held)


def imported(where: str) -> KernelSpec:
    """The spec at ``module:attribute``; the module is the user's own code and runs as it is imported.

    Parameters
    ----------
    where : str
        The attribute is a `KernelSpec`, or a function without arguments that makes one.

    Raises
    ------
    InputError
        If there is no such module or attribute, or it is something else.
    """
    need_triton()
    module, _, attribute = where.partition(":")
    if not module or not attribute.isidentifier() or not all(part.isidentifier() for part in module.split(".")):
        raise InputError(f"a kernel of your own is module:attribute, such as my.kernels:spec, not {shortened(where)!r}")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        found = getattr(importlib.import_module(module), attribute)
    except AttributeError:
        raise InputError(f"{module} has no {attribute}") from None
    except (Exception, SystemExit) as error:  # the user's module may raise anything, or leave
        raise InputError(f"can't import {module}: {type(error).__name__}: {shortened(error)}") from None
    if callable(found) and not hasattr(found, "params"):
        try:
            found = found()
        except InputError:
            raise
        except (Exception, SystemExit) as error:  # the user's function may raise anything, or leave
            raise InputError(f"{where} fails: {type(error).__name__}: {shortened(error)}") from None
    if not isinstance(found, KernelSpec):
        raise InputError(f"{where} is no kernel spec: make it with joulecast.kernel_spec(kernel, space=..., args=...)")
    return checked(found)


def launch_options(config: Config) -> tuple[dict[str, Value], dict[str, Value]]:
    """Constexprs and launch options of a configuration."""
    options = {name: value for name, value in config.items() if name in LAUNCH_OPTIONS}
    return {name: value for name, value in config.items() if name not in options}, options
