"""Reads and writes coefficient files: one TOML a GPU, written by the calibration and read by predictions."""

from __future__ import annotations

import json
import string
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, asdict, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from joulecast.coefficients import places
from joulecast.coefficients.roots import kept
from joulecast.coefficients.schema import (
    PROVENANCES,
    SCHEMA,
    Calibration,
    GpuCoefficients,
    HostCoefficients,
    ModelEnergy,
    PowerCoefficients,
    TimeCoefficients,
)
from joulecast.errors import InputError, UnknownNameError, shortened

Record = TypeVar("Record", TimeCoefficients, PowerCoefficients, HostCoefficients, Calibration, ModelEnergy)

#: Letters of which TOML keys need no quotes.
_BARE = string.ascii_letters + string.digits + "_-"


def shipped() -> tuple[str, ...]:
    """Names of the GPUs that coefficients are shipped for."""
    return places.gpus_in(places.shipped_folder())


def known() -> tuple[str, ...]:
    """Names of the GPUs that there are coefficients for, shipped or the user's."""
    return tuple(sorted({name for folder in places.folders() for name in places.gpus_in(folder)}))


@kept()
def load(gpu_name: str) -> GpuCoefficients | None:
    """Coefficients of the GPU called `gpu_name`, or None where it was never calibrated.

    What the user's folder has wins over what is shipped, key by key.

    Raises
    ------
    InputError
        If the user's file can't be used.
    """
    merged: GpuCoefficients | None = None
    for folder in reversed(places.folders()):
        path = folder / f"{gpu_name}.toml"
        if not path.is_file():
            continue
        one = read(path)
        if one.gpu != gpu_name:
            raise InputError(f"{path} holds coefficients of {shortened(one.gpu)!r}: call it {shortened(one.gpu)}.toml")
        merged = one if merged is None else overlaid(merged, one)
    return merged


@kept()
def own_file(gpu_name: str) -> Path | None:
    """The user's file of the GPU called `gpu_name`, if there is one."""
    folder = places.users_folder()
    path = None if folder is None or folder == places.shipped_folder() else folder / f"{gpu_name}.toml"
    return path if path is not None and path.is_file() else None


def overlaid(base: GpuCoefficients, above: GpuCoefficients) -> GpuCoefficients:
    """`base` with everything that `above` has in its place."""
    return GpuCoefficients(
        above.gpu,
        MappingProxyType({**base.time, **above.time}),
        above.power or base.power,
        above.host or base.host,
        above.calibration or base.calibration,
        above.model_energy or (None if above.power else base.model_energy),  # it goes with the energies
    )


def read(path: Path) -> GpuCoefficients:
    """Coefficients from a user's file.

    Raises
    ------
    InputError
        If the file is missing, is no TOML, is of another schema, or holds an impossible number.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"can't read coefficients from {path}: {error}") from None
    return parse(text, str(path))


def parse(text: str, name: str) -> GpuCoefficients:
    """Coefficients from the text of a file; `name` says which in messages."""
    try:
        data = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(f"{name} is no TOML: {error}") from None
    schema = data.get("schema")
    if schema != SCHEMA or isinstance(schema, bool):
        raise InputError(f"{name} has schema {shortened(schema)!r}; this version reads schema {SCHEMA}")
    gpu = data.get("gpu")
    if not isinstance(gpu, str):
        raise InputError(f"{name}: gpu must be the name of a GPU, got {shortened(gpu)!r}")
    time = {}
    for key, values in _mapping(data.get("time", {}), f"{name}: time").items():
        if key.count("/") < 2:
            raise InputError(f"{name}: time: {shortened(key)!r} must be named family/engine/group")
        time[key] = _fields(TimeCoefficients, values, f"{name}: time: {key}")
    if "model_factor" in _mapping(data.get("power", {}), f"{name}: power"):
        raise InputError(f"{name}: what whole models take belongs in a table [model_energy] as factor, not in [power]")
    return GpuCoefficients(
        gpu,
        MappingProxyType(time),
        _fields(PowerCoefficients, data["power"], f"{name}: power") if "power" in data else None,
        _fields(HostCoefficients, data["host"], f"{name}: host") if "host" in data else None,
        _fields(Calibration, data["calibration"], f"{name}: calibration") if "calibration" in data else None,
        _fields(ModelEnergy, data["model_energy"], f"{name}: model_energy") if "model_energy" in data else None,
    )


def dump(coefficients: GpuCoefficients) -> str:
    """The text of a coefficient file: TOML, numbers to five significant digits, keys sorted."""
    lines = [f"schema = {SCHEMA}", f"gpu = {toml_text(coefficients.gpu)}"]
    if coefficients.calibration is not None:
        values = asdict(coefficients.calibration)
        residuals = values.pop("residuals")
        lines += ["", "[calibration]", *toml_pairs(values), "", "[calibration.residuals]", *toml_pairs(residuals)]
    if coefficients.host is not None:
        lines += ["", "[host]", *toml_pairs(asdict(coefficients.host))]
    if coefficients.power is not None:
        values = asdict(coefficients.power)
        del values["model_factor"]
        tables = {key: values.pop(key) for key in ("tensor_pj", "cuda_pj", "family_spread90")}
        lines += ["", "[power]", *toml_pairs(values)]
        for key, table in tables.items():
            if table or key != "family_spread90":
                lines += ["", f"[power.{key}]", *toml_pairs(table)]
    if coefficients.model_energy is not None:
        lines += ["", "[model_energy]", *toml_pairs(asdict(coefficients.model_energy))]
    for key in sorted(coefficients.time):
        values = asdict(coefficients.time[key])
        del values["moved90"]
        if not values["message_factors"]:
            del values["message_factors"]
        lines += ["", f"[time.{toml_text(key)}]", *toml_pairs(values)]
    return "\n".join(lines) + "\n"


def write(coefficients: GpuCoefficients, path: Path) -> None:
    """Write a coefficient file atomically: a reader sees the old file or the new one, never a part.

    Raises
    ------
    InputError
        If the coefficients hold a number that no reader would take; the old file stays.
    """
    text = dump(coefficients)
    parse(text, str(path))
    places.write_whole(path, text.encode("utf-8"))


#: Numbers that something is divided by, or that are an exponent: none may be less than these.
_LOWEST = {
    **dict.fromkeys((f"{part}_efficiency" for part in ("tensor", "cuda", "sfu", "shared", "l2", "dram", "link")), 1e-6),
    "sharpness": 1.0,
    "scale": 1e-6,
    "factor": 0.1,
}


def _fields(record: type[Record], values: Any, name: str) -> Record:
    """A `record` of the checked `values` of one table of a file."""
    given = _mapping(values, name)
    checked: dict[str, Any] = {}
    known = {one.name: one for one in fields(record)}
    for key, value in given.items():
        if key not in known:
            raise UnknownNameError(f"entry of {name}", key, known)
        described = str(known[key].type)
        if described == "str":
            if not isinstance(value, str):
                raise InputError(f"{name}: {key} must be a text, got {shortened(value)!r}")
            if key == "provenance" and value not in PROVENANCES:
                raise UnknownNameError(f"provenance in {name}", value, PROVENANCES)
            checked[key] = value
        elif described.startswith("Mapping"):
            inner = _mapping(value, f"{name}: {key}")
            checked[key] = {word: _number(item, f"{name}: {key}: {word}") for word, item in inner.items()}
            if key == "message_factors":
                _check_sizes(checked[key], f"{name}: {key}")
        else:
            number = _number(value, f"{name}: {key}", _LOWEST.get(key, 0.0))
            checked[key] = int(number) if described == "int" else number
    needed = (key for key, one in known.items() if one.default is MISSING and one.default_factory is MISSING)
    missing = [key for key in needed if key not in checked]
    if missing:
        raise InputError(f"{name} lacks {', '.join(missing)}")
    return record(**checked)


def _check_sizes(factors: Mapping[str, float], name: str) -> None:
    """Raise `InputError` unless factors by size of message are above zero, for sizes that are numbers."""
    for size, factor in factors.items():
        try:
            known = 0 <= float(size) <= 64
        except ValueError:
            known = False
        if not known:
            raise InputError(f"{name}: sizes are logarithms to base 2 of bytes, such as 20, not {shortened(size)!r}")
        if factor <= 0:
            raise InputError(f"{name}: the factor at {size} must be above 0, got {factor:g}")


def _mapping(value: Any, name: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise InputError(f"{name} must be a table, got {shortened(value)!r}")
    return value


def _number(value: Any, name: str, lowest: float = 0.0) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not lowest <= value <= 1e12:
        raise InputError(f"{name} must be a number between {lowest:g} and 1e12, got {shortened(value)}")
    return float(value)


def toml_pairs(values: Mapping[str, Any]) -> list[str]:
    """Lines of a TOML table: numbers to five significant digits."""
    return [f"{toml_key(key)} = {_value(value)}" for key, value in values.items()]


def toml_key(key: str) -> str:
    """A key of a TOML table, quoted where it must be."""
    return toml_text(key) if key.strip(_BARE) else key


def _value(value: Any) -> str:
    if isinstance(value, str):
        return toml_text(value)
    if isinstance(value, float):
        rounded = float(f"{value:.5g}")
        return repr(rounded)
    if isinstance(value, Mapping):
        return "{ " + ", ".join(toml_pairs(value)) + " }"
    return str(value)


def toml_text(value: str) -> str:
    """A TOML string: JSON's, which leaves only DEL unescaped of what TOML wants escaped."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
