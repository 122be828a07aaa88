"""Stored results: errors of an earlier run, to tell where a later one got worse."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from joulecast.errors import InputError
from joulecast.workloads.files import named, parse_json, read_bytes

SCHEMA = "joulecast.accuracy-baseline/1"

#: How much an error may grow before it counts as worse: this many points, and this share of what it was.
TOLERANCE_POINTS = 0.005
TOLERANCE_SHARE = 0.05

#: Share by which the number of rows may differ for two errors to be compared: they must be of the same rows.
ROWS_SHARE = 0.02


@dataclass(frozen=True)
class Change:
    """One error that differs from the stored one by more than the tolerance."""

    key: str
    before: float
    after: float


@dataclass(frozen=True)
class Comparison:
    """New results beside stored ones.

    Attributes
    ----------
    compared : int
        Errors that stand in both and are of the same rows.
    worse, better : tuple of Change
        Those that grew, or fell, by more than the tolerance; the largest change first.
    """

    compared: int
    worse: tuple[Change, ...]
    better: tuple[Change, ...]


def stored_path() -> Path:
    """Where the results are that come with the package."""
    return Path(str(resources.files("joulecast.validation") / "baseline.json"))


def flat(document: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Mean error, number of rows and coverage of everything in a document that is worth watching, by key."""
    out: dict[str, dict[str, float]] = {}
    for row in document.get("by_gpu", ()):
        for quantity in ("time", "power_a", "power_ab"):
            _keep(out, f"kernels/{row['protocol']}/{row['title']}/{row['gpu']}/{quantity}", row.get(quantity))
    passes = document.get("passes") or {}
    for row in passes.get("datasets", ()):
        for quantity in ("time", "power", "energy", "held_time", "held_power", "held_energy"):
            _keep(out, f"passes/{row['dataset']}/{quantity}", row.get(quantity))
    for kind in ("host_bound", "host_bound_steady"):
        for row in passes.get(kind, ()):
            for quantity in ("time", "power", "energy"):
                _keep(out, f"passes/{row['dataset']}/{kind}/{quantity}", row.get(quantity))
    for name, tables in (document.get("runs") or {}).items():
        for row in (*tables["groups"], *tables["total"]):
            for quantity in ("time", "throughput", "power", "energy"):
                group = row["group"] if "left_out" not in row else f"{row['group']}/{row['left_out']} left out"
                _keep(out, f"{name}/{group}/{quantity}", row.get(quantity))
    for row in (document.get("slowdown") or {}).get("total", ()):
        key = f"slowdown/{row['gpu']}/{row['engine']}"
        out[key] = {"rows": row["rows"], "mean": round(row["error"], 5)}
    throttled = passes.get("throttled") or {}
    for quantity in ("clock", "time", "power", "energy"):
        _keep(out, f"passes/throttled/{quantity}", throttled.get(quantity))
    return out


def _keep(out: dict[str, dict[str, float]], key: str, found: Mapping[str, Any] | None) -> None:
    if found and found["rows"]:
        out[key] = {"rows": found["rows"], "mean": round(found["mean"], 5)}
        if math.isfinite(found["coverage"]):
            out[key]["coverage"] = round(found["coverage"], 4)


def read(path: Path) -> dict[str, Any] | None:
    """Stored results, or None where there is no such file.

    Raises
    ------
    InputError
        If the file is none of ours.
    """
    if not path.exists():
        return None
    name = named(path)
    try:
        document = parse_json(read_bytes(path), name)
    except InputError as error:
        raise InputError(f"can't read stored results: {error}") from None
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise InputError(f"{name} holds no stored results: its schema is not {SCHEMA}")
    errors = document.get("errors")
    good = isinstance(errors, dict) and all(
        isinstance(one, dict) and _is_number(one.get("rows")) and _is_number(one.get("mean")) for one in errors.values()
    )
    if not good:
        raise InputError(f"{name} is damaged: errors must have rows and a mean each")
    return document


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def compare(new: Mapping[str, Mapping[str, float]], stored: Mapping[str, Mapping[str, float]]) -> Comparison:
    """Compare errors by key; those of other rows than the stored ones are passed over."""
    both = [key for key in new if key in stored and _same_rows(new[key]["rows"], stored[key]["rows"])]
    changes = [Change(key, stored[key]["mean"], new[key]["mean"]) for key in both]
    worse = [one for one in changes if one.after > grown(one.before)]
    better = [one for one in changes if one.before > grown(one.after)]
    return Comparison(len(both), _largest_first(worse), _largest_first(better))


def grown(error: float) -> float:
    """The most that an error may grow to without counting as worse."""
    return error * (1 + TOLERANCE_SHARE) + TOLERANCE_POINTS


def _same_rows(a: float, b: float) -> bool:
    return abs(a - b) <= ROWS_SHARE * max(a, b)


def _largest_first(changes: Sequence[Change]) -> tuple[Change, ...]:
    return tuple(sorted(changes, key=lambda one: abs(one.after - one.before), reverse=True))


def updated(
    stored: Mapping[str, Any] | None, new: Mapping[str, Mapping[str, float]], settings: Mapping[str, Any], whole: bool
) -> dict[str, Any]:
    """The document to store: new errors, and of the stored ones those that a partial run did not look at."""
    old = {} if whole or stored is None else dict(stored["errors"])
    errors = {**old, **new}
    return {"schema": SCHEMA, "settings": dict(settings), "errors": {key: errors[key] for key in sorted(errors)}}
