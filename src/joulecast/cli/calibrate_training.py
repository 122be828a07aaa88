"""`joulecast calibrate --training`: scales of a training stack, for people and programs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from math import isfinite
from typing import TYPE_CHECKING, Any

from joulecast.reports import text
from joulecast.reports.tables import Block, Facts, Heading, Table

if TYPE_CHECKING:
    from joulecast.calibration.training_fit import TrainingCalibration
    from joulecast.coefficients.training import Scales

#: Scales in the order of the page, and what each is on.
_MEANING = {
    "multiply": "time of matrix multiplies",
    "convolution": "time of convolutions",
    "gradient": "time of gradients of convolutions",
    "attention": "time of attention",
    "memory": "time of norms, activations, optimizer",
    "host": "time of the host",
    "communication": "time of exchanges",
    "copying": "time of copying batches in",
    "energy": "energy of the work",
    "static": "power of the clocked GPU, idle",
    "voltage_floor": "voltage at low clocks, over highest",
    "voltage_knee": "clock where it starts to rise, over highest",
    "limit_share": "power that throttling settles at, over limit",
    "power_swing": "how power swings within a step",
}


def rows(found: TrainingCalibration) -> list[dict[str, Any]]:
    """One mapping a scope."""
    return [{"scope": scope, **asdict(one)} for scope, one in found.scales.scopes.items()]


def document(found: TrainingCalibration) -> dict[str, Any]:
    """The JSON document."""

    def pair(values: tuple[float, float]) -> dict[str, float | None]:
        return {name: value if isfinite(value) else None for name, value in zip(("time", "power"), values, strict=True)}

    return {
        "schema": "joulecast.calibrate_training/1",
        "steps": found.runs,
        "configurations": found.configurations,
        "networks": found.networks,
        "scales": {scope: asdict(one) for scope, one in found.scales.scopes.items()},
        "errors": {
            "before": pair(found.before),
            "configuration_left_out": pair(found.configuration),
            "network_left_out": pair(found.network),
        },
        "curve": [
            {name: value if isfinite(value) else None for name, value in asdict(one).items()} for one in found.curve
        ],
        "warnings": list(found.warnings),
        "not_predicted": list(found.refused),
        "files": [] if found.path is None else [str(found.path)],
    }


def page(found: TrainingCalibration) -> list[Block]:
    """The page for people."""
    scopes = found.scales.scopes
    cells = tuple(
        (name, *(_value(one, name) for one in scopes.values()), meaning)
        for name, meaning in _MEANING.items()
        if any(_value(one, name) for one in scopes.values())
    )
    errors = tuple(
        (what, _percent(values[0]), _percent(values[1]))
        for what, values in (
            ("before", found.before),
            ("each configuration left out", found.configuration),
            ("each network left out", found.network),
        )
    )
    counts = ", ".join(
        f"{text.whole(number)} {what}{'s' * (number != 1)}"
        for number, what in (
            (found.runs, "step"),
            (found.configurations, "configuration"),
            (found.networks, "network"),
        )
    )
    blocks: list[Block] = [
        Heading("scales", counts),
        Table(("", *scopes, ""), cells, "l" + "r" * len(scopes) + "l", elastic=1 + len(scopes)),
        Table(("mean error", "time", "power"), errors, "lrr"),
    ]
    if found.curve:
        points = tuple(
            (text.whole(one.configurations), _percent(one.time), _percent(one.worst_time), _percent(one.power))
            for one in found.curve
        )
        blocks.append(Table(("measured", "time", "worst choice", "power"), points, "rrrr"))
    blocks.append(Facts(tuple(_remarks(found)), "dim", 14))
    return blocks


def _value(scales: Scales, name: str) -> str:
    if name in scales.unknown.split(", "):
        return ""
    return f"{getattr(scales, name):.2f}"


def _percent(value: float) -> str:
    return text.percent(value) if isfinite(value) else ""


def _remarks(found: TrainingCalibration) -> Iterator[tuple[str, tuple[str, ...]]]:
    for warning in found.warnings:
        yield "warning", (warning,)
    for refused in found.refused[:3]:
        yield "not predicted", (refused,)
    if len(found.refused) > 3:
        yield "", (f"{len(found.refused) - 3} more: --json gives all",)
    if found.path is not None:
        yield "written", (str(found.path),)
