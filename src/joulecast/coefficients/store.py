"""Reads and writes coefficient files: one TOML a GPU, written by the calibration and read by predictions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import Any

from joulecast.coefficients import places
from joulecast.coefficients.records import (
    Record,
    mapping,
    parse_toml,
    read_toml,
    record_of,
    toml_pairs,
    toml_text,
)
from joulecast.coefficients.roots import kept
from joulecast.coefficients.schema import (
    SCHEMA,
    Calibration,
    GpuCoefficients,
    HostCoefficients,
    ModelEnergy,
    PowerCoefficients,
    TimeCoefficients,
)
from joulecast.errors import InputError, shortened
from joulecast.writing import write_atomic


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
    return _coefficients(read_toml(path, "coefficients", SCHEMA), str(path))


def parse(text: str, name: str) -> GpuCoefficients:
    """Coefficients from the text of a file; `name` says which in messages."""
    return _coefficients(parse_toml(text, name, SCHEMA), name)


def _coefficients(data: Mapping[str, Any], name: str) -> GpuCoefficients:
    gpu = data.get("gpu")
    if not isinstance(gpu, str):
        raise InputError(f"{name}: gpu must be the name of a GPU, got {shortened(gpu)!r}")
    time = {}
    for key, values in mapping(data.get("time", {}), f"{name}: time").items():
        if key.count("/") < 2:
            raise InputError(f"{name}: time: {shortened(key)!r} must be named family/engine/group")
        what = f"{name}: time: {key}"
        time[key] = record_of(TimeCoefficients, values, what, lowest=_LOWEST)
        _check_sizes(time[key].message_factors, f"{what}: message_factors")
    if "model_factor" in mapping(data.get("power", {}), f"{name}: power"):
        raise InputError(f"{name}: what whole models take belongs in a table [model_energy] as factor, not in [power]")
    return GpuCoefficients(
        gpu,
        MappingProxyType(time),
        _maybe(PowerCoefficients, data, "power", name),
        _maybe(HostCoefficients, data, "host", name),
        _maybe(Calibration, data, "calibration", name),
        _maybe(ModelEnergy, data, "model_energy", name),
    )


def _maybe(record: type[Record], data: Mapping[str, Any], table: str, name: str) -> Record | None:
    """The record of a table that a file need not have."""
    return record_of(record, data[table], f"{name}: {table}", lowest=_LOWEST) if table in data else None


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
    write_atomic(path, text)


#: Numbers that something is divided by, or that are an exponent: none may be less than these.
_LOWEST = {
    **dict.fromkeys((f"{part}_efficiency" for part in ("tensor", "cuda", "sfu", "shared", "l2", "dram", "link")), 1e-6),
    "sharpness": 1.0,
    "scale": 1e-6,
    "factor": 0.1,
}


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
