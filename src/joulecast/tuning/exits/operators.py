"""Built-in operators as custom operators of PyTorch, each launch with the winner of its sizes."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from joulecast.errors import InputError, UnknownNameError
from joulecast.tuning.exits.winners import DRIVER, Winner, best_for, read_winners
from joulecast.tuning.kernelspec import KernelSpec, Tensor, need_torch
from joulecast.tuning.operators import operator as make

#: Operators that can be registered, with the names of their tensors in and out.
OPERATORS: Mapping[str, tuple[tuple[str, ...], str]] = {
    "matmul": (("a", "b"), "c"),
    "softmax": (("x",), "y"),
    "rms_norm": (("x", "weight"), "y"),
    "layer_norm": (("x", "weight", "bias"), "y"),
}

_DTYPES = {"torch.float16": "fp16", "torch.bfloat16": "bf16"}


@dataclass(frozen=True)
class Plan:
    """How an operator is launched for some sizes.

    Attributes
    ----------
    spec : KernelSpec
    config : mapping
    source : str
        ``winner``, or why the default is taken.
    """

    spec: KernelSpec
    config: Mapping[str, Any]
    source: str


def plan_for(
    operator: str, sizes: Mapping[str, int], dtype: str, device: str, winners: list[Winner], policy: str = DRIVER
) -> Plan:
    """The configuration for a problem: a winner of like sizes where it fits and is of today's source, else the default.

    Parameters
    ----------
    operator : str
    sizes : mapping
    dtype : str
    device : str
        As the driver names it.
    winners : list of Winner
    policy : str
        Clock policy that is in force.
    """
    spec = make(operator, **sizes, dtype=dtype)
    found = best_for(winners, operator, dict(sizes), dtype, device, policy)
    if found is None:
        return Plan(spec, spec.baseline, "no winner of such sizes")
    if found.evidence.get("source_hash") != spec.source_hash:
        return Plan(spec, spec.baseline, "the winner is of another source of the kernel")
    try:
        code = spec.space.code(found.config)
    except InputError:
        return Plan(spec, spec.baseline, "the winner is not in the space of these sizes")
    if not spec.space.holds(code):
        return Plan(spec, spec.baseline, "the winner is not in the space of these sizes")
    return Plan(spec, dict(found.config), "winner")


def torch_operator(
    operator: str, winners: str | os.PathLike[str], *, policy: str = DRIVER, namespace: str = "joulecast"
) -> Callable[..., Any]:
    """Register a built-in operator with PyTorch, as ``torch.ops.joulecast.matmul`` and the like.

    Parameters
    ----------
    operator : str
        One of `OPERATORS`.
    winners : path
        Read once, here.
    policy : str
        Clock policy that is in force, as in the file.
    namespace : str

    Returns
    -------
    callable
        Takes and gives tensors: ``matmul(x, w)`` is ``x @ w.t()``. On a CUDA device it launches the Triton kernel with
        the winner of the nearest sizes, or its default configuration; elsewhere PyTorch computes it.

    Raises
    ------
    InputError
        For another operator, or a file that is no file of winners.
    """
    torch = need_torch()
    if operator not in OPERATORS:
        raise UnknownNameError("operator for torch", operator, OPERATORS)
    held = read_winners(winners)

    @lru_cache(maxsize=4096)
    def plan(shape: tuple[tuple[int, ...], ...], dtype: str, device: str) -> Plan:
        return plan_for(operator, _sizes(operator, shape), dtype, device, held, policy)

    def compute(tensors: tuple[Any, ...]) -> Any:
        _fitting(operator, tensors)
        dtype = _DTYPES.get(str(tensors[0].dtype))
        mixed = any(one.dtype != tensors[0].dtype for one in tensors)
        if tensors[0].device.type != "cuda" or dtype is None or mixed or 0 in _out_shape(operator, tensors):
            return _by_torch(torch, operator, tensors)
        name = torch.cuda.get_device_name(tensors[0].device)
        chosen = plan(tuple(tuple(one.shape) for one in tensors), dtype, name)
        return launched(torch, chosen, operator, tensors)

    def run(*tensors: Any) -> Any:
        return compute(tensors)

    takes = ", ".join(f"Tensor {name}" for name in OPERATORS[operator][0])
    registered = torch.library.custom_op(
        f"{namespace}::{operator}", run, mutates_args=(), schema=f"({takes}) -> Tensor"
    )

    def fake(*tensors: Any) -> Any:
        _fitting(operator, tensors)
        return tensors[0].new_empty(_out_shape(operator, tensors))

    registered.register_fake(fake)
    registered.plan = plan
    found: Callable[..., Any] = registered
    return found


def launched(torch: Any, plan: Plan, operator: str, tensors: tuple[Any, ...]) -> Any:
    """Launch the kernel of a plan on tensors; what it writes."""
    inputs, output = OPERATORS[operator]
    out = torch.empty(_out_shape(operator, tensors), dtype=tensors[0].dtype, device=tensors[0].device)
    numbers = {
        name: value for name, value in plan.spec.arguments_of(plan.config).items() if not isinstance(value, Tensor)
    }
    given = dict(zip(inputs, (one.contiguous() for one in tensors), strict=True)) | {output: out}
    if operator == "rms_norm":
        given["bias"] = given["weight"]  # not read
    options = {**plan.spec.constexprs(plan.config), **plan.spec.options(plan.config)}
    plan.spec.kernel[plan.spec.grid(plan.config)](**given, **numbers, **options)
    return out


def _fitting(operator: str, tensors: tuple[Any, ...]) -> None:
    """Refuse tensors that do not go together, on every device and while a graph is traced.

    Raises
    ------
    InputError
    """
    first, names = tensors[0], OPERATORS[operator][0]
    if any(one.device != first.device for one in tensors):
        told = ", ".join(f"{name} on {one.device}" for name, one in zip(names, tensors, strict=True))
        raise InputError(f"{operator} takes tensors on one device, not {told}")
    width = first.shape[-1] if first.ndim else 0
    if operator == "matmul":
        fits = first.ndim >= 1 and tensors[1].ndim == 2 and tensors[1].shape[1] == width
        right = "a[..., k] and b[n, k]"
        if fits and tensors[1].dtype != first.dtype:
            raise InputError(f"matmul takes tensors of one format, not {first.dtype} and {tensors[1].dtype}")
    else:
        fits = first.ndim >= 1 and all(one.ndim == 1 and one.shape[0] == width for one in tensors[1:])
        right = " and ".join([f"{names[0]}[..., n]", *(f"{name}[n]" for name in names[1:])])
    if not fits:
        told = " and ".join(f"{name}{list(one.shape)}" for name, one in zip(names, tensors, strict=True))
        raise InputError(f"{operator} takes {right}, not {told}")


def _sizes(operator: str, shapes: tuple[tuple[int, ...], ...]) -> dict[str, int]:
    first = shapes[0]
    if operator == "matmul":
        return {"m": _rows(first), "n": shapes[1][0], "k": first[-1]}
    return {"rows": _rows(first), "columns": first[-1]}


def _rows(shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape[:-1]:
        count *= size
    return count


def _out_shape(operator: str, tensors: tuple[Any, ...]) -> tuple[int, ...]:
    shape = tuple(tensors[0].shape)
    return (*shape[:-1], tensors[1].shape[0]) if operator == "matmul" else shape


def _by_torch(torch: Any, operator: str, tensors: tuple[Any, ...]) -> Any:
    functional = torch.nn.functional
    if operator == "matmul":
        return functional.linear(tensors[0], tensors[1])
    if operator == "softmax":
        return tensors[0].softmax(dim=-1)
    width = (tensors[0].shape[-1],)
    if operator == "rms_norm":
        return functional.rms_norm(tensors[0], width, tensors[1], eps=1e-6)
    return functional.layer_norm(tensors[0], width, tensors[1], tensors[2], eps=1e-6)
