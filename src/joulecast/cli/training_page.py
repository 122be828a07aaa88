"""A `TrainingPrediction` as a page for people, as a JSON document and as a row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from joulecast.cli.page import provenance_texts, share_texts
from joulecast.reports import text
from joulecast.reports.tables import Block, Facts, Heading, Table
from joulecast.scenarios import summary
from joulecast.scenarios.training.prediction import DEFINITIONS, TrainingPrediction

if TYPE_CHECKING:
    from joulecast.scenarios.training.stages import StagePlans


def page(p: TrainingPrediction, plans: StagePlans | None = None) -> list[Block]:
    """The page of one training job."""
    return [
        Heading(_question(p), _hardware(p)),
        _figures(p),
        _parts(p),
        *([] if plans is None else _stage_clocks(plans)),
        _closing(p),
        *_footprint(p),
        *_remarks(p),
    ]


def document(p: TrainingPrediction, plans: StagePlans | None = None) -> dict[str, Any]:
    """The JSON document of ``joulecast train --json``."""
    from joulecast import __version__

    return {
        "joulecast": __version__,
        **row(p),
        "parts_s": dict(p.parts_s),
        "modules_j": dict(p.modules),
        "memory_gb": {**p.memory.parts, "needed": p.memory.needed_gb, "available": p.memory.available_gb},
        "provenance": dict(p.provenance),
        "definitions": dict(DEFINITIONS),
        "asked": {name: value for name, value in p.info.items() if isinstance(value, str | int | float | None)},
        "warnings": list(p.warnings),
        "notes": list(p.notes),
        "stage_clocks": None
        if plans is None
        else [
            {"clock_mhz": list(plan.clock_mhz), "time_s": plan.time_s, "pipeline_energy_j": plan.energy_j}
            for plan in plans.planned
        ],
    }


def row(p: TrainingPrediction) -> dict[str, Any]:
    """The figures by name with unit."""
    found: dict[str, Any] = {
        "workload": p.workload,
        "gpu": p.gpu,
        "gpus": p.gpus,
        "nodes": p.nodes,
        "micro_batch": p.micro_batch,
        "micro_batches": p.micro_batches,
        "global_batch": p.global_batch,
    }
    for name, value in (("time_s", p.step_time_s), ("power_w", p.power_w), ("energy_j", p.step_energy_j)):
        lower, upper = p.intervals[name]
        ours = name if name == "power_w" else f"step_{name}"
        found |= {ours: value, f"{ours}_lower": lower, f"{ours}_upper": upper}
    found |= {
        "peak_power_w": p.peak_power_w,
        "clock_mhz": p.clock_mhz,
        "throttled": p.throttled,
        "bound_by": p.bound_by,
        "samples_per_s": p.samples_per_s,
        "tokens_per_s": p.tokens_per_s,
        "sample_energy_j": p.sample_energy_j,
        "mfu": p.mfu,
        "hfu": p.hfu,
        "memory_gb": p.memory.needed_gb,
        "fits": p.memory.fits,
        "steps": p.steps,
        "run_time_s": p.run_time_s,
        "run_energy_j": p.run_energy_j,
    }
    if p.footprint is not None:
        f = p.footprint
        found |= {"site_energy_j": float(f.energy_j)}
        found |= {"cost": None if f.cost is None else float(f.cost), "currency": f.currency}
        found |= {"carbon_g_co2e": None if f.carbon_g_co2e is None else float(f.carbon_g_co2e)}
    return found


def _question(p: TrainingPrediction) -> str:
    info = p.info
    parts = [p.workload.rsplit("/", 1)[-1], str(info["precision"]), str(info["optimizer"])]
    if info["trainable"] != "all":
        parts.append(f"{info['trainable']} alone")
    if info["checkpointing"] != "none":
        parts.append(f"{info['checkpointing']} checkpointing")
    parts.append(f"batch {text.whole(p.global_batch)}")
    if p.tokens_per_sample > 1:
        parts[-1] += f" x {text.whole(p.tokens_per_sample)} tokens"
    return " · ".join(parts)


def _hardware(p: TrainingPrediction) -> str:
    many = f"{text.whole(p.gpus)} x " if p.gpus > 1 else ""
    degrees = ("dp", "tp", "pp", "cp", "ep", "zero")
    layout = [f"{name} {p.info[name]}" for name in degrees if p.info[name] > (0 if name == "zero" else 1)]
    clock = f"{text.whole(p.clock_mhz)} MHz"
    return " · ".join([f"{many}{p.gpu}", *([", ".join(layout)] if layout else []), clock,
                       f"{text.whole(p.info['power_limit_w'])} W limit"])  # fmt: skip


def _half(p: TrainingPrediction, name: str, value: float) -> str:
    return text.plus_minus(summary.relative_half_width(value, p.intervals[name]))


def _figures(p: TrainingPrediction) -> Table:
    time, energy = _half(p, "time_s", p.step_time_s), _half(p, "energy_j", p.step_energy_j)
    power = _half(p, "power_w", p.power_w)
    rows = [
        ("step", text.duration(p.step_time_s), time, text.power(p.power_w * p.gpus), power,
         text.energy(p.step_energy_j), energy),
    ]  # fmt: skip
    if p.run_time_s is not None:
        total = text.power(p.power_w * p.gpus)
        rows.append(("run", text.duration(p.run_time_s), time, total, power, text.energy(p.run_energy_j), energy))
    return Table(("", "time", "", "power", "", "energy", ""), tuple(rows), "lrmrmrm", ("", "bold")[: len(rows)])


def _parts(p: TrainingPrediction) -> Facts:
    unit = "token" if p.tokens_per_sample > 1 else "image"
    per_s = p.tokens_per_s
    each_j = p.sample_energy_j / p.tokens_per_sample
    power = f"{text.power(p.power_w)} a GPU, {text.power(p.peak_power_w)} in its hungriest part"
    if p.nodes > 1:
        power += f"; {text.power(p.power_w * p.gpus / p.nodes)} of GPUs a node"
    items = [
        ("  by part", share_texts({name: value for name, value in p.parts_s.items() if value > 0}, 8)),
        ("  by module", share_texts({name: value for name, value in p.modules.items() if value > 0}, 10)),
        ("  bound by", (p.bound_by,)),
        ("  power", (power,)),
        (
            "  rate",
            (
                f"{text.significant(per_s)} {unit}s/s",
                f"{text.significant(each_j)} J {'an' if unit == 'image' else 'a'} {unit}",
            ),
        ),
        ("  MFU, HFU", (f"{text.percent(p.mfu)}, {text.percent(p.hfu)}",)),
    ]
    if p.steps is not None:
        items.append(("  steps", (text.whole(p.steps),)))
    return Facts(tuple(items), title="where time and joules go", label_width=16)


def _stage_clocks(plans: StagePlans) -> list[Block]:
    """Clocks by stage, for an iteration as fast as can be and for slower ones."""
    fastest = plans.uniform[-1]
    shown = [plan for plan in plans.planned[::3] if plan.energy_j < fastest.energy_j][:6]
    rows = [("all at the highest", text.duration(fastest.time_s), text.energy(fastest.energy_j), "")]
    for plan in shown:
        clocks = [text.whole(clock) for clock in plan.clock_mhz]
        named = ", ".join(clocks if len(clocks) <= 4 else [*clocks[:2], "...", clocks[-1]])
        rows.append((f"{named} MHz", text.duration(plan.time_s), text.energy(plan.energy_j),
                     text.percent(1 - plan.energy_j / fastest.energy_j)))  # fmt: skip
    return [Table(("clocks by stage", "iteration", "a pipeline", "saves"), tuple(rows), "lrrr")]


def _closing(p: TrainingPrediction) -> Facts:
    m = p.memory
    made_of = ", ".join(f"{name} {text.gigabytes(value)}" for name, value in m.parts.items() if value >= 0.05)
    verdict = "fits" if m.fits else f"does not fit by {text.gigabytes(m.needed_gb - m.available_gb)} GB"
    each = " a GPU" if p.gpus > 1 else ""
    return Facts(
        (
            ("memory", (f"{text.gigabytes(m.needed_gb)} of {text.gigabytes(m.available_gb)} GB{each}: {verdict}",
                        f"({made_of})")),
            ("provenance", provenance_texts(p.provenance)),
            ("±", ("half of the 90 % interval",)),
        ),
        label_width=16,
    )  # fmt: skip


def _footprint(p: TrainingPrediction) -> list[Block]:
    f = p.footprint
    if f is None:
        return []
    of = "of the run" if p.steps is not None else "of a step"
    items: list[tuple[str, tuple[str, ...]]] = [(f"  energy {of}", (text.energy(float(f.energy_j)),))]
    if f.cost is not None:
        items.append(("  cost", (f"{text.significant(float(f.cost))} {f.currency}",)))
    if f.carbon_g_co2e is not None:
        carbon = float(f.carbon_g_co2e)
        items.append(("  carbon", (text.amount(carbon, "g CO2e"), f"({f.carbon_source})")))
    items += [("", (note,)) for note in f.notes]
    return [Facts(tuple(items), title="footprint", label_width=20)]


def _remarks(p: TrainingPrediction) -> list[Block]:
    blocks: list[Block] = []
    if p.notes:
        blocks.append(Facts(tuple(("note", (note,)) for note in p.notes), "dim"))
    if p.warnings:
        blocks.append(Facts(tuple(("warning", (one,)) for one in p.warnings), "yellow"))
    return blocks
