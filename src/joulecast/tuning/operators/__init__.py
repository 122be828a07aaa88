"""Built-in operators: Triton kernels with their spaces and references, found by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from joulecast.errors import InputError, UnknownNameError, shortened
from joulecast.tuning.kernelspec import KernelSpec, checked, need_triton

#: Module and builder of each operator.
NAMES: Mapping[str, tuple[str, str]] = {
    "matmul": ("matmul", "matmul"),
    "batched_matmul": ("matmul", "batched_matmul"),
    "gemv": ("matmul", "gemv"),
    "softmax": ("rows", "softmax"),
    "rms_norm": ("rows", "rms_norm"),
    "layer_norm": ("rows", "layer_norm"),
    "conv": ("convolution", "conv"),
    "attention_prefill": ("attention", "prefill"),
    "attention_decode": ("attention", "decode"),
    "fused_moe": ("moe", "fused_moe"),
}

#: Formats that the kernels are written for.
DTYPES = ("fp16", "bf16")

_LARGEST = 2**31 - 1


def builder(name: str) -> Callable[..., KernelSpec]:
    """The function that makes the spec of an operator from its sizes.

    Raises
    ------
    UnknownNameError
        For another name.
    MissingExtraError
        If Triton is not installed.
    """
    word = name.strip().lower().replace("-", "_")
    if word not in NAMES:
        raise UnknownNameError("operator", name, NAMES)
    need_triton()
    module, function = NAMES[word]
    found: Callable[..., KernelSpec] = getattr(import_module(f"{__name__}.{module}"), function)
    return found


def sizes_of(name: str) -> dict[str, Any]:
    """Sizes that an operator takes, with their defaults."""
    return {one.name: one.default for one in inspect.signature(builder(name)).parameters.values()}


def operator(name: str, **sizes: Any) -> KernelSpec:
    """The spec of a built-in operator.

    Parameters
    ----------
    name : str
        One of `NAMES`.
    **sizes
        As `sizes_of` lists them; the others take their defaults.

    Returns
    -------
    KernelSpec

    Raises
    ------
    InputError
        For an unknown operator or size, or a value that is no whole number of 1 or more.
    """
    make = builder(name)
    known = sizes_of(name)
    for size, value in sizes.items():
        if size not in known:
            raise UnknownNameError(f"size of {name}", size, known)
        if size == "dtype":
            if value not in DTYPES:
                raise UnknownNameError("format of tuned kernels", value, DTYPES)
        elif isinstance(known[size], bool):
            if value not in (0, 1):
                raise InputError(f"{size} of {name} is 0 or 1, not {shortened(value)}")
        elif isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _LARGEST:
            raise InputError(f"{size} of {name} is a whole number such as {known[size]}, not {shortened(value)}")
        elif value == 0 and size != "padding":
            raise InputError(f"{size} of {name} is at least 1")
    return checked(make(**sizes))
