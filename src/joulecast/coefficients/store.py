"""Reads and writes coefficient files: one TOML a GPU, written by the calibration and read by predictions."""

from __future__ import annotations

import math
import os
import tempfile
import tomllib
from collections.abc import Mapping
from dataclasses import asdict
from functools import cache
from importlib import resources
from pathlib import Path
from types import MappingProxyType
from typing import Any

from joulecast.coefficients.schema import (
    SCHEMA,
    GpuCoefficients,
    HostCoefficients,
    PowerCoefficients,
    TimeCoefficients,
)
from joulecast.errors import InputError


def shipped() -> tuple[str, ...]:
    """Names of the GPUs that coefficients are shipped for."""
    folder = resources.files("joulecast.coefficients") / "data"
    return tuple(sorted(item.name[:-5] for item in folder.iterdir() if item.name.endswith(".toml")))


@cache
def load(gpu_name: str) -> GpuCoefficients | None:
    """Shipped coefficients of the GPU called `gpu_name`, or None where it was never calibrated."""
    path = resources.files("joulecast.coefficients") / "data" / f"{gpu_name}.toml"
    if not path.is_file():
        return None
    return parse(path.read_text(encoding="utf-8"), f"coefficients of {gpu_name}")


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
    if data.get("schema") != SCHEMA:
        raise InputError(f"{name} has schema {data.get('schema')!r}; this version reads schema {SCHEMA}")
    _check_numbers(data, name)
    try:
        time = {key: TimeCoefficients(**values) for key, values in data.get("time", {}).items()}
        power = PowerCoefficients(**data["power"]) if "power" in data else None
        host = HostCoefficients(**data["host"]) if "host" in data else None
        return GpuCoefficients(str(data["gpu"]), MappingProxyType(time), power, host)
    except (TypeError, KeyError, AttributeError) as error:
        raise InputError(f"{name} does not hold what schema {SCHEMA} asks for: {error}") from None


def dump(coefficients: GpuCoefficients) -> str:
    """The text of a coefficient file: TOML, numbers to five significant digits, keys sorted."""
    lines = [f"schema = {SCHEMA}", f"gpu = {_text(coefficients.gpu)}"]
    if coefficients.host is not None:
        lines += ["", "[host]", *_pairs(asdict(coefficients.host))]
    if coefficients.power is not None:
        values = asdict(coefficients.power)
        tables = {key: values.pop(key) for key in ("tensor_pj", "cuda_pj")}
        lines += ["", "[power]", *_pairs(values)]
        for key, table in tables.items():
            lines += ["", f"[power.{key}]", *_pairs(table)]
    for key in sorted(coefficients.time):
        lines += ["", f"[time.{_text(key)}]", *_pairs(asdict(coefficients.time[key]))]
    return "\n".join(lines) + "\n"


def write(coefficients: GpuCoefficients, path: Path) -> None:
    """Write a coefficient file atomically: a reader sees the old file or the new one, never a part."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".tmp")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(dump(coefficients))
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _check_numbers(value: Any, name: str) -> None:
    if isinstance(value, Mapping):
        for key, item in value.items():
            _check_numbers(item, f"{name}: {key}")
    elif isinstance(value, float) and not (math.isfinite(value) and value >= 0):
        raise InputError(f"{name} must be a finite number of zero or more, got {value}")


def _pairs(values: Mapping[str, Any]) -> list[str]:
    return [f"{key} = {_value(value)}" for key, value in values.items()]


def _value(value: Any) -> str:
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, float):
        rounded = float(f"{value:.5g}")
        return repr(rounded)
    return str(value)


def _text(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
