"""Frozen records of numbers from the tables of a TOML file, checked, and back."""

from __future__ import annotations

import json
import string
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from joulecast.coefficients.schema import PROVENANCES
from joulecast.errors import InputError, UnknownNameError, shortened

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Record = TypeVar("Record", bound="DataclassInstance")

_NOTHING: Mapping[str, Any] = MappingProxyType({})

#: Letters of which TOML keys need no quotes.
_BARE = string.ascii_letters + string.digits + "_-"


def read_toml(path: Path, what: str, schema: int) -> dict[str, Any]:
    """What a TOML file of ours holds beside the number of its schema.

    Raises
    ------
    InputError
        If it is missing, is no TOML, or is of another schema.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"can't read {what} from {path}: {error}") from None
    return parse_toml(text, str(path), schema)


def parse_toml(text: str, name: str, schema: int) -> dict[str, Any]:
    """As `read_toml`, from the text of a file; `name` says which in messages."""
    try:
        data = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(f"{name} is no TOML: {error}") from None
    found = data.pop("schema", None)
    if found != schema or isinstance(found, bool):
        raise InputError(f"{name} has schema {shortened(found)!r}; this version reads schema {schema}")
    return data


def record_of(
    record: type[Record],
    values: Any,
    name: str,
    *,
    lowest: Mapping[str, float] = _NOTHING,
    lengths: Mapping[str, int] = _NOTHING,
    made: Mapping[str, Any] = _NOTHING,
) -> Record:
    """A frozen `record` of the checked values of one table.

    Parameters
    ----------
    record : type
        A dataclass of texts, numbers, mappings of texts to numbers and tuples of numbers.
    values : mapping
        As the file has them.
    name : str
        Of the table, for messages.
    lowest : mapping of str to float
        Least value of fields that may not be as low as 0.
    lengths : mapping of str to int
        How many numbers each field that is a tuple holds.
    made : mapping
        Fields that the table does not give.

    Raises
    ------
    InputError
        For a value of the wrong type, a number out of bounds, and a field that is needed and not there.
    UnknownNameError
        For an entry that is no field, or a provenance that is none.
    """
    known = {one.name: one for one in fields(record) if one.name not in made}
    checked: dict[str, Any] = {}
    for key, value in mapping(values, name).items():
        if key not in known:
            raise UnknownNameError(f"entry of {name}", key, known)
        what, kind = f"{name}: {key}", str(known[key].type)
        if kind == "str":
            checked[key] = _text(value, key, name)
        elif key in lengths:
            if not isinstance(value, list) or len(value) != lengths[key]:
                raise InputError(f"{what} must hold {lengths[key]} numbers, got {shortened(value)}")
            checked[key] = tuple(number(one, what) for one in value)
        elif kind.startswith("Mapping"):
            checked[key] = {word: number(item, f"{what}: {word}") for word, item in mapping(value, what).items()}
        else:
            found = number(value, what, lowest.get(key, 0.0))
            checked[key] = int(found) if kind == "int" else found
    needed = (key for key, one in known.items() if one.default is MISSING and one.default_factory is MISSING)
    missing = [key for key in needed if key not in checked]
    if missing:
        raise InputError(f"{name} lacks {', '.join(missing)}")
    try:
        return record(**checked, **made)
    except InputError as error:  # of the record's own checks, which don't know where it stands
        raise InputError(f"{name}: {error}") from None


def mapping(value: Any, name: str) -> Mapping[str, Any]:
    """`value`, if it is a table."""
    if not isinstance(value, Mapping):
        raise InputError(f"{name} must be a table, got {shortened(value)!r}")
    return value


def number(value: Any, name: str, lowest: float = 0.0) -> float:
    """`value`, if it is a number from `lowest` to 1e12."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not lowest <= value <= 1e12:
        raise InputError(f"{name} must be a number between {lowest:g} and 1e12, got {shortened(value)}")
    return float(value)


def _text(value: Any, key: str, name: str) -> str:
    if not isinstance(value, str):
        raise InputError(f"{name}: {key} must be a text, got {shortened(value)!r}")
    if key == "provenance" and value not in PROVENANCES:
        raise UnknownNameError(f"provenance in {name}", value, PROVENANCES)
    return value


def toml_pairs(values: Mapping[str, Any], digits: int = 5) -> list[str]:
    """Lines of a TOML table: numbers to so many significant digits."""
    return [f"{toml_key(key)} = {_value(value, digits)}" for key, value in values.items()]


def toml_key(key: str) -> str:
    """A key of a TOML table, quoted where it must be."""
    return toml_text(key) if key.strip(_BARE) else key


def toml_text(value: str) -> str:
    """A TOML string: JSON's, which leaves only DEL unescaped of what TOML wants escaped."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _value(value: Any, digits: int) -> str:
    if isinstance(value, str):
        return toml_text(value)
    if isinstance(value, float):
        return repr(float(f"{value:.{digits}g}"))
    if isinstance(value, Mapping):
        return "{ " + ", ".join(toml_pairs(value, digits)) + " }"
    if isinstance(value, tuple | list):
        return "[" + ", ".join(_value(one, digits) for one in value) + "]"
    return str(value)
