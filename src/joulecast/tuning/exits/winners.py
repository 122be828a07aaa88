"""The file of winners: configurations to use, each with the evidence for it, found again by what they are for."""

from __future__ import annotations

import json
import math
import os
import platform
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from joulecast.errors import InputError, shortened
from joulecast.tuning.clocked import CLOCK, LIMIT, kernel_part
from joulecast.tuning.exits.files import alone_in, write_json
from joulecast.tuning.result import TuningResult

SCHEMA = "joulecast.winners/1"

#: A size in a key.
_COUNT = re.compile(r"[0-9]{1,15}")

#: Clock policy of a search that leaves clocks to the driver.
DRIVER = "driver"


def bucket_of(problem: Mapping[str, Any]) -> str:
    """Sizes as a key: each rounded up to a power of two, since kernels for like sizes are alike."""
    parts = []
    for name, value in sorted(problem.items()):
        if isinstance(value, bool) or not isinstance(value, int):
            parts.append(f"{name}={value}")
        else:
            parts.append(f"{name}={1 << max(value - 1, 0).bit_length() if value > 0 else 0}")
    return ",".join(parts)


def policy_of(clock_mhz: Any, power_limit_w: Any) -> str:
    """Clock policy as a key: ``driver``, or what was set."""
    parts = []
    if isinstance(clock_mhz, int | float):
        parts.append(f"{clock_mhz:g} MHz")
    if isinstance(power_limit_w, int | float):
        parts.append(f"{power_limit_w:g} W")
    return ", ".join(parts) or DRIVER


@dataclass(frozen=True)
class Winner:
    """A configuration to use.

    Attributes
    ----------
    operator, bucket, dtype, device, clock_policy : str
        What it is for.
    config : mapping
    evidence : mapping
        How it was found; plain JSON values.
    """

    operator: str
    bucket: str
    dtype: str
    device: str
    clock_policy: str
    config: Mapping[str, Any]
    evidence: Mapping[str, Any]

    @property
    def key(self) -> tuple[str, str, str, str, str]:
        """What it is found by."""
        return self.operator, self.bucket, self.dtype, self.device, self.clock_policy


def winner_of(found: TuningResult) -> Winner:
    """The winner of a search.

    Raises
    ------
    InputError
        If the search was of no kernel that can be used: a recorded space.
    """
    question = found.question
    if "kernel" not in question:
        raise InputError("only a kernel that was built here has a winner to use: a recorded space has none")
    points = {json.dumps(dict(point.config), sort_keys=True): point for point in found.points}
    chosen = points[json.dumps(dict(found.chosen), sort_keys=True)]
    base = points[json.dumps(dict(found.baseline), sort_keys=True)]
    saving = found.to_dict()["saving"]
    problem = question["problem"]
    evidence = {
        "verdict": found.verdict,
        "measured": found.facts.name not in ("model", "replay"),
        "objective": found.objective,
        "slack": found.slack,
        "problem": dict(problem),
        "baseline": dict(found.baseline),
        "saving": saving,
        "time_s": chosen.time_s,
        "energy_j": chosen.energy_j,
        "baseline_time_s": base.time_s,
        "baseline_energy_j": base.energy_j,
        "readings": found.energy_readings,
        "duty": found.duty,
        "meter": found.facts.name,
        "method": found.facts.method,
        "versions": {**dict(found.facts.versions), "triton": question["triton"], "python": platform.python_version()},
        "clocks_mhz": found.clock_mhz,
        "power_cap_w": found.facts.cap_w,
        "temperature_c": found.temperature_c,
        "source_hash": question["source"],
        "strategy": found.strategy,
        "notes": list(found.notes),
        "found_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    return Winner(
        question["kernel"], bucket_of({name: value for name, value in problem.items() if name != "dtype"}),
        question["dtype"], question["device"],
        policy_of(found.chosen.get(CLOCK, question["clock_mhz"]), found.chosen.get(LIMIT, question["power_limit_w"])),
        kernel_part(found.chosen), evidence,
    )  # fmt: skip


def read_winners(path: str | os.PathLike[str]) -> list[Winner]:
    """Winners of a file.

    Raises
    ------
    InputError
        If it can't be read or is no file of winners.
    """
    file = Path(path)
    try:
        held = json.loads(file.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise InputError(f"can't read the winners {shortened(file)}: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise InputError(f"{shortened(file)} is no JSON") from None
    schema = held.get("schema") if isinstance(held, dict) else None
    if schema != SCHEMA or not isinstance(held.get("winners"), list):
        kind, _, other = str(schema).partition("/")
        if kind == SCHEMA.partition("/")[0] and schema != SCHEMA:
            raise InputError(f"{shortened(file)} is of another version of joulecast: its schema is version "
                             f"{shortened(other)}, this one reads {SCHEMA.partition('/')[2]}")  # fmt: skip
        raise InputError(f"{shortened(file)} is no file of winners: its schema is not {SCHEMA}")
    return [_winner(one, file) for one in held["winners"]]


def _winner(held: Any, file: Path) -> Winner:
    names, tables = ("operator", "bucket", "dtype", "device", "clock_policy"), ("config", "evidence")
    if not isinstance(held, dict):
        held = {}
    good = all(isinstance(held.get(name), str) for name in names) and all(
        isinstance(held.get(name), dict) for name in tables
    )
    if not good:
        raise InputError(f"{shortened(file)}: a winner needs operator, bucket, dtype, device, clock_policy, config "
                         "and evidence")  # fmt: skip
    return Winner(*(held[name] for name in (*names, *tables)))


def add_winner(path: str | os.PathLike[str], found: TuningResult) -> Winner:
    """Put the winner of a search in a file, in place of an older one for the same; gives it.

    A prediction never takes the place of a measurement.

    Raises
    ------
    InputError
        If the file is there and no file of winners, or a measured winner is there and this one is predicted.
    """
    new = winner_of(found)
    with alone_in(Path(path).parent):
        held = read_winners(path) if Path(path).exists() else []
        for one in held:
            if one.key == new.key and one.evidence.get("measured") and not new.evidence["measured"]:
                raise InputError(f"{shortened(path)} holds a measured winner for {new.operator} {new.bucket} on "
                                 f"{new.device}: a predicted one does not take its place")  # fmt: skip
        kept = [one for one in held if one.key != new.key] + [new]
        rows = [
            {
                "operator": one.operator, "bucket": one.bucket, "dtype": one.dtype, "device": one.device,
                "clock_policy": one.clock_policy, "config": dict(one.config), "evidence": dict(one.evidence),
            }
            for one in sorted(kept, key=lambda one: one.key)
        ]  # fmt: skip
        write_json(Path(path), {"schema": SCHEMA, "winners": rows})
    return new


def usable(winners: Sequence[Winner], operator: str, device: str | None, policy: str) -> list[Winner]:
    """Winners of an operator on a device (None for any) at a clock policy, those to be believed most last."""
    found = [
        one
        for one in winners
        if one.operator == operator and one.clock_policy == policy and (device is None or same(one.device, device))
    ]
    return sorted(found, key=_trust)


def _trust(one: Winner) -> tuple[bool, str]:
    return bool(one.evidence.get("measured")), str(one.evidence.get("found_at", ""))


def whole_numbers(one: Winner, held: Any, names: Sequence[str]) -> dict[str, int]:
    """Entries of a winner's table that must be positive whole numbers.

    Raises
    ------
    InputError
        Naming the first that is none.
    """
    found = {name: held.get(name) if isinstance(held, Mapping) else None for name in names}
    for name, value in found.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise InputError(f"the winner of {shortened(one.operator)} for {shortened(one.bucket)} on "
                             f"{shortened(one.device)} has no {name} that is a positive whole number")  # fmt: skip
    return found  # type: ignore[return-value]


def best_for(
    winners: list[Winner], operator: str, problem: Mapping[str, Any], dtype: str, device: str, policy: str = DRIVER
) -> Winner | None:
    """The winner for a problem: of its own bucket, else of the nearest one of the same operator, format and device.

    Nearest by the sum of differences of base-2 logarithms, at most 2 in all, and of those alike one that was measured
    rather than predicted; None where there is none so near.
    """
    alike = [
        one
        for one in winners
        if (one.operator, one.dtype, one.clock_policy) == (operator, dtype, policy) and same(one.device, device)
    ]
    wanted = _logs(bucket_of(problem))
    near = []
    for place, one in enumerate(alike):
        held = _logs(one.bucket)
        if set(held) == set(wanted) and all(isinstance(held[n], str) == isinstance(wanted[n], str) for n in held):
            words = [held[n] == wanted[n] for n in held if isinstance(held[n], str)]
            apart = sum(abs(held[n] - wanted[n]) for n in held if not isinstance(held[n], str))
            if all(words) and apart <= 2.0:
                near.append((apart, not one.evidence.get("measured"), place))
    return alike[min(near)[2]] if near else None


def same(one: str, other: str) -> bool:
    """Whether two names are of the same device: the catalogue's and the driver's spelling of it are."""
    if one == other:
        return True
    from joulecast.gpus import resolve

    try:
        return resolve(one)[0].name == resolve(other)[0].name
    except InputError:
        return False


def is_catalogued(device: str) -> bool:
    """Whether a name is the catalogue's own, which no driver tells."""
    from joulecast.gpus import resolve

    try:
        return resolve(device)[0].name == device
    except InputError:
        return False


def _logs(bucket: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for part in bucket.split(","):
        name, _, value = part.partition("=")
        found[name] = math.log2(max(int(value), 1)) if _COUNT.fullmatch(value) else value
    return found
