"""`--module package.module:factory`: the user's own code, imported on their word, gives a PyTorch module."""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import sys
from typing import TYPE_CHECKING, Any

from joulecast.errors import InputError, JoulecastError, shortened

if TYPE_CHECKING:
    from joulecast.workloads.table import Workload

_PLACE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")

#: Options of a model that a recorded program takes too, and what they are called there.
_TAKEN = {"dtype": "dtype"}


def program_workload(place: str, options: dict[str, Any]) -> Workload:
    """The workload of what a factory of the user's makes.

    Parameters
    ----------
    place : str
        ``package.module:factory``, importable from the current folder. The factory takes nothing and returns a module
        and its inputs, ``(module, inputs)``: a tensor, several in a tuple, or named ones in a mapping.
    options : mapping
        Options of a model; of them only ``dtype`` means anything here.

    Returns
    -------
    Workload

    Raises
    ------
    InputError
        If there is no such factory, it fails, or it returns something else.
    """
    if not _PLACE.fullmatch(place):
        raise InputError(f"--module takes package.module:factory, not {shortened(place)!r}")
    for name in options:
        if name not in _TAKEN:
            raise InputError(f"--module takes its shapes from the factory's inputs: {name} can't be asked of it")
    # The answer owns standard output: what the user's code prints goes beside it.
    with contextlib.redirect_stdout(sys.stderr):
        try:
            return _recorded(place, options)
        except SystemExit as error:
            code = shortened(repr(error.code), 40)
            raise InputError(f"{shortened(place)} ends Python before there is a model: sys.exit({code})") from None


def _recorded(place: str, options: dict[str, Any]) -> Workload:
    made = _made(place)
    module, inputs = made if isinstance(made, tuple) and len(made) == 2 else (made, None)

    from joulecast.workloads.pytorch import is_module, trace_module

    if not is_module(module):
        kind = type(module).__name__
        raise InputError(f"{shortened(place)} must return a PyTorch module and its inputs, returned {shortened(kind)}")
    if inputs is None:
        raise InputError(f"{shortened(place)} returned a module without inputs: return (module, inputs)")
    settings = {_TAKEN[name]: value for name, value in options.items()}
    name = place.rpartition(":")[2]
    if isinstance(inputs, dict):
        return trace_module(module, kwargs=inputs, name=name, **settings)
    return trace_module(module, *(inputs if isinstance(inputs, tuple | list) else (inputs,)), name=name, **settings)


def _made(place: str) -> Any:
    """What the factory returns; the current folder is looked in first, as Python does for a script."""
    module_name, _, function_name = place.partition(":")
    here = os.getcwd()  # noqa: PTH109
    sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except JoulecastError:
        raise
    except Exception as error:
        raise InputError(f"importing {shortened(module_name)} failed: {_told(error)}") from error
    finally:
        sys.path.remove(here)
    factory = getattr(module, function_name, None)
    if not callable(factory):
        raise InputError(f"{shortened(module_name)} has no function {shortened(function_name)}")
    try:
        return factory()
    except JoulecastError:
        raise
    except Exception as error:
        raise InputError(f"{shortened(place)} failed: {_told(error)}") from error


def _told(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    hint = "; no GPU is needed: leave tensors on the CPU or on 'meta'" if "CUDA" in str(error) else ""
    return f"{type(error).__name__}: {shortened(lines[0] if lines else 'no message', 160)}{hint}"
