"""A sweep for people and as JSON: what is best, the front, what could not be, and what more hardware would give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np

from joulecast.cli import footprint
from joulecast.cli import page as pages
from joulecast.coefficients.schema import PROVENANCES
from joulecast.reports import text
from joulecast.reports.tables import Block, Facts, Heading, Table
from joulecast.scenarios.prediction import Prediction
from joulecast.scenarios.sweep.collect import Findings
from joulecast.scenarios.sweep.inference import InferenceEvaluator
from joulecast.scenarios.sweep.objectives import Objective
from joulecast.scenarios.sweep.question import elasticities_at, predicted
from joulecast.scenarios.sweep.sensitivity import Elasticity
from joulecast.scenarios.sweep.settings import SET
from joulecast.scenarios.sweep.space import Axis, Share
from joulecast.scenarios.sweep.table import Points, table
from joulecast.scenarios.sweep.training import TrainingEvaluator, elasticities_of_training
from joulecast.scenarios.training.prediction import TrainingPrediction

#: Points of the front and reasons that the page shows; all stand in the JSON document.
_FRONT_SHOWN, _REASONS_SHOWN, _SENSITIVITY_SHOWN = 12, 6, 8

#: What people call axes, and the unit of their values.
_TITLES = {
    "gpu": ("GPUs", ""), "batch": ("batch", ""), "prompt_tokens": ("prompt", ""), "generate_tokens": ("generate", ""),
    "image_size": ("image", ""), "dtype": ("format", ""), "weight_dtype": ("weights", ""),
    "kv_cache_dtype": ("KV cache", ""), "attn_dtype": ("attention in", ""), "launch_mode": ("launch", ""),
    "attention": ("attention", ""), "engine": ("engine", ""), "clock_mhz": ("clock", "MHz"),
    "power_limit_w": ("limit", "W"), "host_us_per_launch": ("host", "µs a launch"),
    "memory_clock_mhz": ("memory clock", "MHz"), "temperature_c": ("temperature", "°C"),
    "micro_batch": ("micro-batch", ""), "global_batch": ("global batch", ""), "gpus": ("GPUs", ""),
    "sequence_tokens": ("sequence", ""), "precision": ("precision", ""), "optimizer": ("optimizer", ""),
    "checkpointing": ("checkpointing", ""), "sequence_parallel": ("sequence parallel", ""), "zero": ("zero", ""),
    "tokens": ("tokens", ""), "samples": ("samples", ""), "steps": ("steps", ""),
}  # fmt: skip


@dataclass(frozen=True)
class Told:
    """A sweep with all that is told of it."""

    evaluator: InferenceEvaluator | TrainingEvaluator
    found: Findings
    pair: tuple[Objective, Objective]
    best: Mapping[int, Prediction | TrainingPrediction]
    sensitivity: Sequence[tuple[str, tuple[Elasticity, ...]]] = ()


def sensitivities(
    evaluator: InferenceEvaluator | TrainingEvaluator, found: Findings
) -> list[tuple[str, tuple[Elasticity, ...]]]:
    """Elasticities at the fastest point and at that of least energy."""
    points = {name: found.best[name] for name in ("time", "energy") if name in found.best}
    done = {
        point: elasticities_of_training(evaluator, point)
        if isinstance(evaluator, TrainingEvaluator)
        else elasticities_at(evaluator, point)
        for point in sorted(set(points.values()))
    }
    return [(name, done[point]) for name, point in points.items()]


def best_predicted(
    evaluator: InferenceEvaluator | TrainingEvaluator, found: Findings
) -> dict[int, Prediction | TrainingPrediction]:
    """The points that are best at something as `predict` or `train` tells them, with notes and warnings."""
    alone = evaluator.predicted if isinstance(evaluator, TrainingEvaluator) else partial(predicted, evaluator)
    return {point: alone(point) for point in dict.fromkeys(found.best.values())}


def points_kept(told: Told, points: Any) -> Points:
    """Some of the points that stand out, as a table."""
    wanted = np.asarray(points, dtype=np.int64)
    return table(told.evaluator, wanted, told.found.rows(wanted))


def page(told: Told) -> list[Block]:
    """The page of a sweep."""
    found = told.found
    labels = _labels(told)
    front = _front_shown(told)
    blocks: list[Block] = [_heading(told), _asked(told)]
    blocks.append(_best_table(told, labels))
    x, y = told.pair
    whole = f"front: {x.title} against {y.title}, {_points(found.front.size)}"
    some = f", {front.size} of them here" if front.size < found.front.size else ""
    blocks.append(Heading(whole + some))
    if front.size:
        blocks.append(_front_table(told, front, labels))
    blocks.append(
        Facts(tuple((f"  {number}", (what,)) for what, number in labels.items()), label_width=7, title="points")
    )
    blocks += [_sensitivity_table(*one) for one in told.sensitivity]
    if found.reasons:
        blocks.append(_reasons(found))
    return [*blocks, _provenance(told), *pages.remarks(list(told.best.values()))]


def document(told: Told) -> dict[str, Any]:
    """The JSON document of ``joulecast sweep --json``."""
    from joulecast import __version__

    found, site = told.found, told.evaluator.site
    best = points_kept(told, list(found.best.values())).rows() if found.best else []
    priced = site.price_per_kwh is not None or site.g_co2e_per_kwh is not None
    return {
        "schema": "joulecast.sweep/1",
        "joulecast": __version__,
        "source": str(told.evaluator.source),
        "interval_level": 0.9,
        "axes": {axis.name: [_value(value) for value in axis.values] for axis in told.evaluator.space.axes},
        "points": found.points,
        "feasible": found.feasible,
        "throttled": found.throttled,
        "infeasible": [{"reason": reason, "points": count} for reason, count in found.reasons.items()],
        "best": {
            name: {**row, "notes": list(told.best[point].notes), "warnings": list(told.best[point].warnings)}
            for (name, point), row in zip(found.best.items(), best, strict=True)
        },
        "front": {"objectives": [one.name for one in told.pair], "points": points_kept(told, found.front).rows()},
        "sensitivity": {name: [asdict(one) for one in some] for name, some in told.sensitivity},
        "site": footprint.described(site) if priced else None,
    }


def coordinates(told: Told, row: Mapping[str, Any]) -> str:
    """What tells a point from the others, in words."""
    varied = {axis.name for axis in told.evaluator.space.varied}
    parts = [str(row["gpu"])]
    if "clock_mhz" in varied:
        parts.append(f"{text.whole(row['clock_asked_mhz'])} MHz")
    if "power_limit_w" in varied:
        parts.append(f"{text.whole(row['power_limit_w'])} W limit")
    for axis in told.evaluator.space.varied:
        if axis.name in ("gpu", "clock_mhz", "power_limit_w"):
            continue
        title, unit = _TITLES.get(axis.name, (axis.name.removeprefix(SET), ""))
        value = row[axis.name]
        shown = "default" if value is None else _number(value) if isinstance(value, int | float) else str(value)
        plain = isinstance(value, str) and axis.name not in ("checkpointing", "schedule")
        parts.append(shown if plain else f"{title} {shown} {unit}".strip())
    return " · ".join(parts)


def _number(value: float) -> str:
    return f"{value:,.6g}" if value != int(value) else text.whole(value)


def _value(value: Any) -> Any:
    if isinstance(value, Share):
        return {"share_of_range": value.of_range}
    return getattr(value, "name", value)


def _heading(told: Told) -> Heading:
    count = f"{_points(told.found.points)}, {text.whole(told.found.feasible)} feasible"
    return Heading(str(told.evaluator.source).rsplit("/", 1)[-1], count)


def _points(count: int) -> str:
    return f"{text.whole(count)} point" + ("" if count == 1 else "s")


def _listed(pieces: Sequence[str]) -> tuple[str, ...]:
    """Pieces of a list, apart by semicolons."""
    return (*(f"{piece};" for piece in pieces[:-1]), *pieces[-1:])


def _asked(told: Told) -> Facts:
    pieces = []
    for axis in told.evaluator.space.axes:
        values = [value for value in axis.values if value is not None]
        if not values or (axis.name not in _TITLES and len(values) == 1 and not axis.name.startswith(SET)):
            continue
        if axis.name in ("attention", "engine", "launch_mode") and len(values) == 1:
            continue
        pieces.append(_axis_words(axis, values))
    kept = f"{text.whole(told.found.throttled)} of the feasible throttle under their limit"
    return Facts(
        (("  asked", _listed(pieces)), *([("  throttled", (kept,))] if told.found.throttled else [])), label_width=16
    )


def _axis_words(axis: Axis, values: list[Any]) -> str:
    title, unit = _TITLES.get(axis.name, (axis.name.removeprefix(SET), ""))
    if isinstance(values[0], Share):
        return f"{title}: {len(values)} over each range"
    words = [
        getattr(value, "name", None) or (_number(value) if isinstance(value, int | float) else str(value))
        for value in values
    ]
    if len(words) > 4:
        words = [words[0], "...", words[-1], f"({len(values)})"]
    return f"{title}: {' '.join(words) if len(values) > 4 else ', '.join(words)} {unit}".strip()


def _labels(told: Told) -> dict[str, int]:
    """Numbers by which the tables name points, by their coordinates."""
    found = told.found
    shown = [*found.best.values(), *_front_shown(told).tolist()]
    numbered: dict[str, int] = {}
    for row in points_kept(told, shown).rows():
        numbered.setdefault(coordinates(told, row), len(numbered) + 1)
    return numbered


#: Points of a front that are so near in both objectives are told as one: limits are solved for to less than that.
_ALIKE = 1e-3


def _front_shown(told: Told) -> Any:
    """Points of the front that the page shows: its ends and even steps between, none nearly the same as another."""
    front = told.found.front
    if not front.size:  # of tokens, and the workload counts none
        return front
    figures = told.found.rows(front)
    x, y = (figures[one.column] for one in told.pair)
    apart = [0]
    for place in range(1, front.size):
        last = apart[-1]
        if abs(x[place] - x[last]) > _ALIKE * abs(x[last]) or abs(y[place] - y[last]) > _ALIKE * abs(y[last]):
            apart.append(place)
    front = front[apart]
    return front[np.unique(np.linspace(0, front.size - 1, min(front.size, _FRONT_SHOWN)).round().astype(int))]


_HEADERS = ("time", "", "power", "energy", "", "J/token", "tokens/s", "bound by")
_ALIGN = "rmrrmrrl"


def _figures(row: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        text.duration(row["time_s"]),
        _half(row, "time_s"),
        text.power(row["power_w"]),
        text.energy(row["energy_j"]),
        _half(row, "energy_j"),
        text.significant(row["energy_per_token_j"]),
        text.significant(row["tokens_per_s"]),
        pages.short_bound(str(row["bound_by"])),
    )


def _half(row: Mapping[str, Any], figure: str) -> str:
    return text.plus_minus((row[f"{figure}_upper"] - row[f"{figure}_lower"]) / (2 * row[figure]))


_BEST = {
    "time": "fastest", "energy": "fewest joules", "power": "fewest watts", "edp": "energy x time",
    "ed2p": "energy x time²", "energy_per_token": "least J/token", "throughput": "most tokens/s",
    "cost": "cheapest", "carbon": "least carbon",
}  # fmt: skip


def _best_table(told: Told, labels: Mapping[str, int]) -> Table:
    """A row for each point that is best at something, with all that it is best at."""
    at: dict[int, list[str]] = {}
    for name, point in told.found.best.items():
        at.setdefault(point, []).append(_BEST[name])
    rows = []
    for row, names in zip(points_kept(told, list(at)).rows(), at.values(), strict=True):
        number = str(labels[coordinates(told, row)])
        rows.append((number, *_figures(row)))
        rows.append(("", ", ".join(names)))
    return Table(
        ("", *_HEADERS), tuple(rows), "r" + _ALIGN, tuple("" if i % 2 == 0 else "cyan" for i in range(len(rows)))
    )


#: Narrow titles of objectives that no column of the page shows anyway.
_EXTRA = {"edp": "J s", "ed2p": "J s²", "cost": "cost", "carbon": "g CO2e"}


def _front_table(told: Told, front: Any, labels: Mapping[str, int]) -> Table:
    extra = [one for one in told.pair if one.name in _EXTRA]
    shown = 5 if extra else len(_HEADERS)  # what else the front is of takes the room of what a token takes
    rows = tuple(
        (
            str(labels[coordinates(told, row)]),
            *_figures(row)[:shown],
            *(text.significant(row[one.column]) for one in extra),
        )
        for row in points_kept(told, front).rows()
    )
    headers = ("", *_HEADERS[:shown], *(_EXTRA[one.name] for one in extra))
    return Table(headers, rows, "r" + _ALIGN[:shown] + "r" * len(extra))


def _sensitivity_table(name: str, found: Sequence[Elasticity]) -> Table:
    rows = tuple(
        (
            one.title,
            f"{_number(one.value)} {one.unit}" if one.unit or one.value != 1 else "",
            *(_signed(getattr(one, figure)) for figure in ("time", "energy", "power")),
        )
        for one in found[:_SENSITIVITY_SHOWN]
    )
    return Table((f"1 % more, at the {_BEST[name]}", "now", "time", "energy", "power"), rows, "lrrrr")


_PROVENANCE = ("provenance", "power_provenance")


def _provenance(told: Told) -> Facts:
    """Where the figures of the best points come from, the least certain of each."""
    rows = points_kept(told, list(told.best)).rows()
    pieces = []
    for gpu in dict.fromkeys(row["gpu"] for row in rows):
        mine = [row for row in rows if row["gpu"] == gpu]
        found = [max((row[name] for row in mine), key=PROVENANCES.index) for name in _PROVENANCE]
        pieces.append(f"{gpu}: times {found[0]}, power {found[1]}")
    return Facts((("provenance", _listed(pieces)), ("±", ("half of the 90 % interval",))), label_width=16)


def _signed(value: float) -> str:
    return "0 %" if abs(value) < 0.005 else f"{value:+.2f} %".replace("-", "−")


def _reasons(found: Findings) -> Facts:
    shown = list(found.reasons.items())[:_REASONS_SHOWN]
    items = [(f"  {text.whole(count)}", (reason,)) for reason, count in shown]
    if len(found.reasons) > len(shown):
        rest = sum(list(found.reasons.values())[_REASONS_SHOWN:])
        items.append((f"  {text.whole(rest)}", (f"for {len(found.reasons) - len(shown)} reasons more: see --output",)))
    return Facts(tuple(items), "yellow", title="infeasible", label_width=12)
