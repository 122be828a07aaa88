"""TOML to `Gpu`: the one format of the catalogue's files and of a user's own."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from joulecast.bounds.limits import GPU_RANGES, MATHS, check_gpu
from joulecast.errors import InputError, UnknownNameError, shortened
from joulecast.gpus.gpu import Gpu

MAX_FILE_BYTES = 1_000_000
# Names appear in paths and tables: nothing that could lead elsewhere.
PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._+=(),-]{0,79}\Z")

# Where each number of the file goes: table -> key -> field of `Gpu`.
LAYOUT: Mapping[str, Mapping[str, str]] = {
    "sm": {
        "count": "sm_count",
        "warps": "warps_per_sm",
        "shared_memory_kib": "shared_memory_kib",
        "registers_kib": "registers_kib",
        "l1_kib": "l1_kib",
        "sfu_per_clk": "sfu_per_clk_sm",
    },
    "clocks": {
        "min_mhz": "clock_min_mhz",
        "base_mhz": "clock_base_mhz",
        "boost_mhz": "clock_boost_mhz",
        "max_mhz": "clock_max_mhz",
        "step_mhz": "clock_step_mhz",
        "rate_mhz": "rate_clock_mhz",
        "memory_mhz": "memory_clocks_mhz",
    },
    "memory": {
        "l2_mib": "l2_mib",
        "l2_gb_s": "l2_gb_s",
        "dram_gib": "dram_gib",
        "dram_type": "dram_type",
        "dram_gb_s": "dram_gb_s",
    },
    "links": {"pcie_gb_s": "pcie_gb_s", "nvlink_gb_s": "nvlink_gb_s"},
    "power": {
        "limit_default_w": "power_limit_default_w",
        "limit_min_w": "power_limit_min_w",
        "limit_max_w": "power_limit_max_w",
        "idle_w": "idle_w",
    },
    "voltage": {"points_mv": "voltage_points", "idle_points_w": "idle_points"},
}
RATE_TABLES = ("tensor_tflops", "tensor_sparse_tflops", "cuda_tflops")
CAPABILITIES: Mapping[str, tuple[re.Pattern[str], str]] = MappingProxyType(
    {
        "nvidia": (re.compile(r"[0-9]{1,2}\.[0-9]", re.ASCII), "8.0"),
        "amd": (re.compile(r"gfx[0-9]{1,2}[0-9a-f]{2}", re.ASCII), "gfx942"),
    }
)

TEXT_FIELDS = ("name", "vendor", "architecture", "compute_capability")
NAME_LISTS = ("aliases", "shorthand")
VENDORS = ("nvidia", "amd")
_TOP_LEVEL = (*TEXT_FIELDS, *NAME_LISTS, "process_nm", "source", *LAYOUT, *RATE_TABLES)


class _Entry(NamedTuple):
    value: Any
    source: str


def read_gpu_file(path: Path) -> Gpu:
    """The GPU that the TOML file at `path` describes.

    Parameters
    ----------
    path : Path
        A file of at most 1 MB, UTF-8, in the catalogue's format.

    Raises
    ------
    InputError
        If it can't be read, is no TOML, or describes no possible GPU; one line that names the file.
    """
    shown = shortened(path)
    try:
        if path.exists() and not path.is_file():
            raise InputError(f"can't read the GPU file {shown}: it is no regular file")
        with path.open("rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
    except InputError:
        raise
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"can't read the GPU file {shown}: {shortened(reason)}") from None
    if len(raw) > MAX_FILE_BYTES:
        raise InputError(f"the GPU file {shown} is over {MAX_FILE_BYTES // 1_000_000} MB: that is no GPU description")
    try:
        text = raw.decode("utf-8-sig")  # some editors begin files with a mark
    except UnicodeDecodeError:
        raise InputError(f"the GPU file {shown} is not UTF-8 text") from None
    try:
        return read_gpu_text(text, default_source=f"the file {path.name}")
    except InputError as error:
        raise InputError(f"the GPU file {shown}: {error}") from None


def read_gpu_text(text: str, default_source: str) -> Gpu:
    """The GPU that TOML `text` describes.

    Parameters
    ----------
    text : str
        A description in the catalogue's format.
    default_source : str
        Source of the numbers for which neither their own entry, nor their table, nor the file names one.

    Raises
    ------
    InputError
        If the text is no TOML, has keys that aren't known, lacks a field, or describes no possible GPU.
    """
    try:
        document = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        raise InputError(f"no valid TOML: {shortened(error, 120)}") from None
    for key in document:
        if key not in _TOP_LEVEL:
            raise UnknownNameError("key of a GPU description", key, _TOP_LEVEL)
    source = _text(document, "source", default_source)
    entries = dict(_top_level(document, source))
    for table, keys in LAYOUT.items():
        for key, entry in _table(document, table, keys, source).items():
            entries[keys[key]] = entry
    for table in RATE_TABLES:
        rates = _table(document, table, dict.fromkeys(MATHS, ""), source)
        entries[table] = _Entry({key: entry.value for key, entry in rates.items()}, "")
        entries.update({f"{table}.{key}": entry for key, entry in rates.items()})
    return _build(entries, _names(document))


def _top_level(document: Mapping[str, Any], source: str) -> Mapping[str, _Entry]:
    entries: dict[str, _Entry] = {}
    for field in TEXT_FIELDS:
        entries[field] = _Entry(_text(document, field, None), "")
    if not PLAIN_NAME.match(entries["name"].value):
        raise InputError("name must be 1 to 80 letters, digits, spaces and any of . _ + = ( ) , -")
    if entries["vendor"].value not in VENDORS:
        raise InputError(f"vendor must be nvidia or amd, not {shortened(repr(entries['vendor'].value), 40)}")
    if "process_nm" in document:
        entries["process_nm"] = _entry("process_nm", document["process_nm"], source)
    return entries


def _text(document: Mapping[str, Any], key: str, default: str | None) -> str:
    value = document.get(key, default)
    if value is None:
        raise InputError(f"{key} is missing: it must be a text")
    if not isinstance(value, str) or not value.isprintable():
        raise InputError(f"{key} must be a text of one line, not {shortened(repr(value), 40)}")
    return value


def _names(document: Mapping[str, Any]) -> tuple[str, ...]:
    names: list[str] = []
    for key in NAME_LISTS:
        given = document.get(key, [])
        if not isinstance(given, list) or not all(isinstance(name, str) for name in given):
            raise InputError(f"{key} must be a list of texts")
        names.extend(given)
    return tuple(names)


def _table(document: Mapping[str, Any], table: str, known: Mapping[str, str], source: str) -> dict[str, _Entry]:
    """The entries of one table, each with its source; empty if the file has no such table."""
    content = document.get(table, {})
    if not isinstance(content, dict):
        raise InputError(f"[{table}] must be a table")
    inner = _text(content, "source", source)
    entries = {}
    for key, value in content.items():
        if key == "source":
            continue
        if key not in known:
            raise UnknownNameError(f"key in [{table}]", key, [*known, "source"])
        entries[key] = _entry(f"{table}.{key}", value, inner)
    return entries


def _entry(field: str, value: Any, source: str) -> _Entry:
    if not isinstance(value, dict):
        return _Entry(value, source)
    if "value" not in value or not set(value) <= {"value", "source"}:
        raise InputError(f'{field} must be a value, or {{ value = ..., source = "..." }}')
    return _Entry(value["value"], _text(value, "source", source))


def _build(entries: Mapping[str, _Entry], aliases: tuple[str, ...]) -> Gpu:
    values = {field: entry.value for field, entry in entries.items() if "." not in field}
    if not isinstance(values.get("dram_type"), str):
        raise InputError("memory.dram_type is missing: it must be a text such as HBM3")
    sources = {field: entry.source for field, entry in entries.items() if entry.source}
    return gpu_from_values({**values, "aliases": aliases, "sources": sources})


def gpu_from_values(values: Mapping[str, Any]) -> Gpu:
    """The `Gpu` with these fields, if they describe a possible one.

    Parameters
    ----------
    values : mapping of str to object
        A value for each field of `Gpu`; plain lists and dicts are frozen here.

    Raises
    ------
    InputError
        If a field is missing, out of range or contradicts another.
    """
    check_gpu(values, name=str(values["name"]))
    shape, example = CAPABILITIES[values["vendor"]]
    if not shape.fullmatch(values["compute_capability"]):
        raise InputError(
            f"compute_capability of a GPU of {values['vendor']} is such as {example}, "
            f"not {shortened(repr(values['compute_capability']), 40)}"
        )
    frozen: dict[str, Any] = dict(values)
    for field in GPU_RANGES:
        frozen[field] = float(values[field])
    frozen["sm_count"] = int(values["sm_count"])
    for table in RATE_TABLES:
        frozen[table] = MappingProxyType({key: float(rate) for key, rate in values.get(table, {}).items()})
    for field in ("voltage_points", "idle_points"):
        frozen[field] = tuple((float(clock), float(value)) for clock, value in values.get(field, ()))
    frozen["memory_clocks_mhz"] = tuple(float(clock) for clock in values.get("memory_clocks_mhz", ()))
    frozen["sources"] = MappingProxyType(dict(values.get("sources", {})))
    return Gpu(**frozen)
