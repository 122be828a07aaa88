"""What custom operators cost: a small registry for users, asked before our own table.

An entry is a function of the operator's arguments and result that returns operations, each a mapping of the columns
of its kind (`joulecast.workloads.kinds`) with the kind's name beside them. Shapes alone are looked at.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from joulecast.errors import InputError, shortened
from joulecast.workloads.kinds import kind

Row = tuple[str, dict[str, Any]]
CostFunction = Callable[..., Any]

_COSTS: dict[str, CostFunction] = {}
_NAME = re.compile(r"[A-Za-z_]\w*::[A-Za-z_]\w*")


def op_cost(name: str) -> Callable[[CostFunction], CostFunction]:
    """Say what an operator of your own costs, as a decorator.

    Parameters
    ----------
    name : str
        The operator as ``library::name``, without overload.

    Returns
    -------
    callable
        Registers the decorated function and returns it. It is called with the operator's arguments as they were
        passed and the result as ``out``; it returns one mapping or several, such as
        ``{"kind": "gemm", "m": 8, "n": 4096, "k": 4096, "dtype": "bf16"}``. An empty list means that it runs nothing
        on the GPU.

    Raises
    ------
    InputError
        If `name` is no ``library::name``.

    Examples
    --------
    >>> @op_cost("mylib::fused_add_norm")
    ... def cost(x, residual, weight, *, out):
    ...     rows, dim = x.numel() // x.shape[-1], x.shape[-1]
    ...     return [
    ...         {"kind": "elementwise", "op": "add", "elements": x.numel(), "inputs": 2, "dtype": "bf16"},
    ...         {"kind": "row_reduction", "op": "layer_norm", "rows": rows, "dim": dim, "dtype": "bf16"},
    ...     ]
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InputError(f"an operator is named library::name, such as mylib::fused_norm, not {shortened(name)!r}")

    def register(function: CostFunction) -> CostFunction:
        if not callable(function):
            raise InputError(f"op_cost({name!r}) decorates a function, not {shortened(repr(function), 40)}")
        _COSTS[name] = function
        return function

    return register


def forget_op_cost(name: str) -> None:
    """Take an operator out of the registry; nothing happens where it is not in it."""
    _COSTS.pop(name, None)


def registered_cost(name: str) -> CostFunction | None:
    """The cost function of the operator called `name`, if a user gave one."""
    return _COSTS.get(name)


def rows_of(name: str, function: CostFunction, args: Any, kwargs: Mapping[str, Any], out: Any) -> list[Row]:
    """Operations that a user's cost function gives, checked by name.

    Raises
    ------
    InputError
        If it returns anything but mappings with a kind, or raises.
    """
    try:
        given = function(*args, out=out, **kwargs)
    except Exception as error:
        raise InputError(f"the cost function of {name} failed: {type(error).__name__}: {shortened(error)}") from error
    items: Iterable[Any] = (given,) if isinstance(given, Mapping) else given
    rows: list[Row] = []
    try:
        for item in items:
            columns = dict(item)
            described = kind(columns.pop("kind"))
            for column in columns:
                described.column(column)
            rows.append((described.name, columns))
    except (TypeError, KeyError, ValueError) as error:
        raise InputError(
            f"the cost function of {name} must return mappings with a kind and its columns: {shortened(error)}"
        ) from error
    return rows
