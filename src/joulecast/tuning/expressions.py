"""Constraints written as text, such as ``BM * BN <= 16384 and num_warps in (4, 8)``: arithmetic and nothing else."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any

from joulecast.errors import InputError, shortened

_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda value, several: value in several,
    ast.NotIn: lambda value, several: value not in several,
}
_CALLS: dict[str, Callable[..., Any]] = {"min": min, "max": max, "abs": abs}
_LONGEST = 2000


def compiled(text: str, names: frozenset[str]) -> Callable[[Mapping[str, Any]], bool]:
    """A test of a configuration from its text; the text is parsed and walked, never executed.

    Parameters
    ----------
    text : str
        Comparisons and arithmetic over tunables, joined by ``and``, ``or``, ``not``; ``min``, ``max``, ``abs``.
    names : frozenset of str
        Tunables there are.

    Returns
    -------
    callable
        Takes a mapping from tunable to value. A division by zero fails the configuration.

    Raises
    ------
    InputError
        For anything else, naming what is not understood.
    """
    if len(text) > _LONGEST:
        raise InputError(f"a constraint is longer than {_LONGEST} characters: {shortened(text)}")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        message = f"can't read the constraint {shortened(text)!r}: write it such as 'BM * BN <= 16384'"
        raise InputError(message) from None
    _checked(tree, text, names)

    def test(config: Mapping[str, Any]) -> bool:
        try:
            return bool(_value(tree, config))
        except ZeroDivisionError:
            return False
        except TypeError:
            raise InputError(f"the constraint {shortened(text)!r} mixes words and numbers") from None

    return test


def _checked(node: ast.AST, text: str, names: frozenset[str]) -> None:
    for part in ast.walk(node):
        if isinstance(part, ast.Name):
            if part.id not in names and part.id not in _CALLS:
                known = ", ".join(sorted(names))
                raise InputError(f"the constraint {shortened(text)!r} names {part.id!r}, which is no tunable: {known}")
        elif isinstance(part, ast.Call):
            if not isinstance(part.func, ast.Name) or part.func.id not in _CALLS or part.keywords or not part.args:
                raise InputError(f"the constraint {shortened(text)!r} may call min, max and abs only")
        elif isinstance(part, ast.Constant):
            if not isinstance(part.value, bool | int | float | str):
                raise InputError(f"the constraint {shortened(text)!r} may hold numbers and words only")
        elif not isinstance(
            part,
            ast.BinOp | ast.UnaryOp | ast.BoolOp | ast.Compare | ast.Tuple | ast.List | ast.Load | ast.boolop
            | ast.USub | ast.UAdd | ast.Not
        ) and type(part) not in _BINARY and type(part) not in _COMPARE:  # fmt: skip
            raise InputError(f"the constraint {shortened(text)!r} may hold arithmetic and comparisons only")


def _value(node: ast.AST, config: Mapping[str, Any]) -> Any:
    match node:
        case ast.Constant():
            return node.value
        case ast.Name():
            return config[node.id]
        case ast.BinOp():
            return _BINARY[type(node.op)](_value(node.left, config), _value(node.right, config))
        case ast.UnaryOp():
            value = _value(node.operand, config)
            return not value if isinstance(node.op, ast.Not) else (-value if isinstance(node.op, ast.USub) else +value)
        case ast.BoolOp():
            if isinstance(node.op, ast.And):
                return all(_value(part, config) for part in node.values)
            return any(_value(part, config) for part in node.values)
        case ast.Compare():
            left = _value(node.left, config)
            for op, right_node in zip(node.ops, node.comparators, strict=True):
                right = _value(right_node, config)
                if not _COMPARE[type(op)](left, right):
                    return False
                left = right
            return True
        case ast.Tuple() | ast.List():
            return [_value(part, config) for part in node.elts]
        case ast.Call():
            assert isinstance(node.func, ast.Name)
            return _CALLS[node.func.id](*[_value(part, config) for part in node.args])
    raise InputError("a constraint may hold arithmetic and comparisons only")
