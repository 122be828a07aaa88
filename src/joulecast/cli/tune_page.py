"""What `joulecast tune` found, for people and as a picture."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from joulecast import writing
from joulecast.reports import plots, text, tuning_plot
from joulecast.reports.tables import Block, Facts, Table
from joulecast.tuning.result import Point, TuningResult

#: Rows of the front that a page shows.
_FRONT = 8


def page(found: TuningResult) -> list[Block]:
    """The page."""
    chosen, baseline = _point(found, found.chosen), _point(found, found.baseline)
    rows = [("chosen", chosen)]
    if found.baseline != found.chosen:
        rows.append(("baseline", baseline))
    if found.fastest not in (found.chosen, found.baseline):
        rows.append(("fastest", _point(found, found.fastest)))
    if found.candidate is not None and found.candidate not in (found.chosen, found.baseline, found.fastest):
        rows.append(("candidate", _point(found, found.candidate)))
    blocks: list[Block] = [Facts((("result", (found.verdict,)),)), _table("", rows)]
    front = found.front
    if len(front) > 1:
        blocks.append(_table("front", [("", point) for point in front[:_FRONT]]))
    return [*blocks, Facts(tuple(_evidence(found)), "dim", 12)]


def document(found: TuningResult) -> dict[str, Any]:
    """The JSON document."""
    return found.to_dict()


def rows(found: TuningResult) -> list[dict[str, Any]]:
    """One mapping a configuration that was timed."""
    return [
        {
            **dict(point.config), "time_s": point.time_s, "energy_j": point.energy_j, "readings": point.readings,
            "within_slack": point.within_slack, "on_front": point.on_front,
            "chosen": dict(point.config) == dict(found.chosen),
        }
        for point in found.points
    ]  # fmt: skip


def draw(found: TuningResult, path: Path) -> None:
    """Write the picture of time against energy, whole or not at all."""
    read = [point for point in found.points if point.energy_j is not None]
    middle = sorted(point.time_s for point in read)[len(read) // 2] if read else 1.0
    factor, unit = (1e3, "ms") if middle >= 1e-3 else (1e6, "µs")
    energies = sorted(point.energy_j for point in read if point.energy_j is not None)
    joule, joule_unit = (1e3, "mJ") if energies and energies[len(energies) // 2] < 1.0 else (1.0, "J")
    limit = _point(found, found.fastest).time_s * (1.0 + found.slack) * factor
    drawn = [
        {
            "time": point.time_s * factor,
            "energy": (point.energy_j or 0.0) * joule,
            "kind": _kind(found, point),
            "front": point.on_front,
            "error": (point.error_j or 0.0) * joule,
            "label": _label(found, point),
        }
        for point in read
    ]
    subtitle = [found.verdict, f"chosen: {described(found.chosen)}"]
    if found.baseline != found.chosen:
        subtitle.append(f"baseline: {described(found.baseline)}")
    subtitle.append(", ".join(found.effort))
    name = str(found.facts.device)
    chart = tuning_plot.time_energy(drawn, limit, (unit, joule_unit), title=name, subtitle=subtitle)
    writing.write_atomic(path, plots.written(chart, path.suffix.lower().removeprefix(".")))


def described(config: Mapping[str, Any]) -> str:
    """A configuration in a line."""
    return " ".join(f"{name}={value}" for name, value in config.items())


def _table(head: str, rows: list[tuple[str, Point]]) -> Table:
    """Points in a table; a column without any figure is left out."""
    heads = (head, "time", "energy", "power", "readings", "configuration")
    cells = [_cells(name, point) for name, point in rows]
    kept = [at for at in range(len(heads)) if at == 0 or any(row[at] for row in cells)]
    return Table(
        tuple(heads[at] for at in kept), tuple(tuple(row[at] for at in kept) for row in cells),
        "".join("lrrrrl"[at] for at in kept), elastic=len(kept) - 1,
    )  # fmt: skip


def _kind(found: TuningResult, point: Point) -> str:
    if dict(point.config) == dict(found.chosen):
        return "chosen"
    if dict(point.config) == dict(found.baseline):
        return "baseline"
    return "on the front" if point.on_front else "other"


def _label(found: TuningResult, point: Point) -> str:
    kind = _kind(found, point)
    if kind == "chosen" and found.chosen == found.baseline:
        return "chosen: the baseline"
    return kind if kind in ("baseline", "chosen") else ""


def _point(found: TuningResult, config: Mapping[str, Any]) -> Point:
    return next(point for point in found.points if dict(point.config) == dict(config))


def _cells(name: str, point: Point) -> tuple[str, ...]:
    energy = point.energy_j
    return (
        name,
        text.duration(point.time_s),
        "" if energy is None else text.energy(energy),
        "" if energy is None else text.power(energy / point.time_s),
        text.whole(point.readings) if point.readings else "",
        described(point.config),
    )


def _evidence(found: TuningResult) -> list[tuple[str, tuple[str, ...]]]:
    facts = found.facts
    slack = "" if found.objective == "time" else f", slack {found.slack:.1%}"
    items: list[tuple[str, tuple[str, ...]]] = [
        ("search", (f"{found.strategy}{slack}:", *(f"{part}," for part in found.effort[:-1]), found.effort[-1])),
    ]
    if found.answered_by_log:
        items.append(("log", (f"{found.answered_by_log} answers came from the log",)))
    if found.objective == "energy":
        items.append(("meter", (f"{facts.name}: {facts.method}",)))
        conditions = []
        if found.temperature_c is not None:
            conditions.append(_range(found.temperature_c, "°C"))
        if found.clock_mhz is not None:
            conditions.append(_range(found.clock_mhz, "MHz"))
        if facts.cap_w is not None:
            conditions.append(f"cap {facts.cap_w:.0f} W")
        if found.duty is not None and facts.name != "replay":
            conditions.append(f"duty {found.duty:.0%}")
        if conditions:
            items.append(("conditions", (", ".join(conditions),)))
    for name, one in found.model.items():
        near = f", near-fastest rank {one.near_rank:.2f}" if one.near_rank == one.near_rank else ""
        said = f"R² {one.r2:.2f}, error {one.mape:.1%}, rank {one.rank:.2f}{near}, regret {one.regret:.1%}"
        items.append(("model", (f"{name}: {said}",)))
    items += [("refused", (f"{count} readings: {reason}",)) for reason, count in found.refused.items()]
    failed = sum(found.failed.values())
    if failed:
        first = max(found.failed, key=lambda reason: found.failed[reason])
        items.append(("failed", (f"{failed} configurations, mostly {first}",)))
    items += [("note", (note,)) for note in (*facts.notes, *found.notes)]
    return items


def _range(ends: tuple[float, float], unit: str) -> str:
    low, high = (f"{end:,.0f}" for end in ends)
    return f"{low} {unit}" if low == high else f"{low} to {high} {unit}"
