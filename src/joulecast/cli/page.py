"""A `Prediction` as a page for people: blocks of tables and facts that fit 80 columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from joulecast.cli import footprint
from joulecast.cli.rows import Outcome, kernel_rows
from joulecast.reports import text
from joulecast.reports.tables import Block, Facts, Heading, Table
from joulecast.scenarios import summary
from joulecast.scenarios.footprint import Site
from joulecast.scenarios.prediction import PhasePrediction, Prediction
from joulecast.scenarios.training.prediction import TrainingPrediction

#: Narrow spelling of what bounds a phase.
_SHORT_BOUND = {"special functions": "SFU", "shared memory": "shared mem"}


def single(prediction: Prediction, site: Site | None, *, top: int, kernels: bool) -> list[Block]:
    """The page of one prediction."""
    blocks: list[Block] = [
        Heading(question(prediction.workload, prediction.info), _hardware(prediction)),
        _figures_table(prediction),
        _bounds_table(prediction.phases),
        _energy_facts(prediction, top),
        *([] if site is None else [footprint.facts(prediction, site, unit_of(prediction))]),
        _closing_facts(prediction),
    ]
    if kernels:
        blocks += [Heading("launches"), kernel_table(prediction)]
    return blocks + remarks([prediction])


def comparison(outcomes: Sequence[Outcome], site: Site | None, *, kernels: bool) -> list[Block]:
    """Several GPUs side by side, those without an answer with their reason."""
    answered = [outcome.prediction for outcome in outcomes if outcome.prediction is not None]
    blocks: list[Block] = []
    if answered:
        unit = unit_of(answered[0])
        fast, thrifty = summary.fastest(answered), summary.thriftiest(answered)
        blocks += [
            Heading(question(answered[0].workload, answered[0].info)),
            _side_figures(outcomes, unit),
            _side_costs(answered, unit, site),
        ]
        if len(answered) > 1:
            blocks.append(Facts((("fastest", (gpu_label(fast),)), ("fewest joules", (gpu_label(thrifty),)))))
    for p in answered if kernels else ():
        blocks += [Heading(f"launches on {p.gpu}"), kernel_table(p)]
    if site is not None:
        blocks.append(footprint.remarks(site))
    return blocks + remarks(answered)


def kernel_table(prediction: Prediction) -> Table:
    """The launch list for people; what is cut on a narrow terminal stands last."""
    rows = tuple(
        (
            text.duration(row["time_s"]),
            text.energy(row["energy_j"]),
            text.whole(row["launches"]),
            str(row["op"]),
            str(row["layer"]) or "model",
            short_bound(str(row["bound_by"])),
            str(row["phase"]),
            str(row["shape"]),
        )
        for row in kernel_rows(prediction)
    )
    headers = ("time", "energy", "launches", "op", "layer", "bound by", "phase", "shape")
    return Table(headers, rows, "rrrlllll", elastic=4)


def question(workload: str, info: Mapping[str, Any]) -> str:
    """What was asked, in one line: name and facts of a prediction."""
    parts = [workload.rsplit("/", 1)[-1]]
    parts += [str(info["dtype"])] if info.get("dtype") else []
    for what, name in (("weight_dtype", "weights"), ("kv_cache_dtype", "KV cache"), ("attn_dtype", "attention")):
        if info.get(what) not in (None, info.get("dtype")):
            parts.append(f"{name} {info[what]}")
    parts += [f"batch {text.whole(info['batch'])}"] if info.get("batch") else []
    if info.get("prompt_tokens"):
        prompt = text.whole(info["prompt_tokens"])
        generated = info.get("generate_tokens")
        parts.append(f"{prompt} + {text.whole(generated)} tokens" if generated else f"{prompt} tokens")
    if info.get("image_size"):
        parts.append(f"image {info['image_size']}")
    return " · ".join(parts)


def _hardware(prediction: Prediction) -> str:
    clock = f"{text.whole(prediction.clock_mhz)} MHz"
    return f"{gpu_label(prediction)} · {clock} · {text.whole(prediction.power_limit_w)} W limit"


def gpu_label(prediction: Prediction) -> str:
    """Name of the GPU, with how many there are."""
    many = f"{prediction.gpu_count} x " if prediction.gpu_count > 1 else ""
    return many + prediction.gpu


def unit_of(prediction: Prediction) -> str:
    """What is counted: tokens or images."""
    return str(prediction.info.get("unit") or ("image" if prediction.info.get("image_size") else "token"))


def half(figures: PhasePrediction | Prediction, figure: str) -> str:
    """Half the interval of a figure, as people read it."""
    return text.plus_minus(summary.relative_half_width(getattr(figures, figure), figures.intervals[figure]))


def _figures_table(prediction: Prediction) -> Table:
    named: list[tuple[str, PhasePrediction | Prediction]] = [(phase.phase, phase) for phase in prediction.phases]
    if len(named) > 1:
        named.append(("total", prediction))
    rows = tuple(
        (
            name,
            text.duration(figures.time_s),
            half(figures, "time_s"),
            text.power(figures.power_w),
            half(figures, "power_w"),
            text.energy(figures.energy_j),
            half(figures, "energy_j"),
            text.significant(figures.tokens_per_s),
            text.significant(figures.energy_per_token_j),
        )
        for name, figures in named
    )
    unit = unit_of(prediction)
    headers = ("", "time", "", "power", "", "energy", "", f"{unit}s/s", f"J/{unit}")
    styles = tuple("bold" if name == "total" else "" for name, _ in named)
    return Table(headers, rows, "lrmrmrmrr", styles)


def _bounds_table(phases: Sequence[PhasePrediction]) -> Table:
    rows = tuple(
        (
            phase.phase,
            short_bound(phase.bound_by),
            f"{text.whole(phase.clock_mhz)} MHz",
            text.amount(phase.flop, "FLOP"),
            text.percent(phase.peak_flop_share),
            text.percent(phase.peak_dram_share),
            text.percent(phase.idle_share),
        )
        for phase in phases
    )
    headers = ("", "bound by", "clock", "work", "of peak", "of DRAM rate", "idle")
    return Table(headers, rows, "llrrrrr")


def _side_figures(outcomes: Sequence[Outcome], unit: str) -> Table:
    rows: list[tuple[str, ...]] = []
    for outcome in outcomes:
        p = outcome.prediction
        if p is None:
            rows.append((outcome.gpu, f"no answer: {outcome.error}"))
            continue
        row = (
            text.in_middle(gpu_label(p), 26),
            text.duration(p.time_s),
            half(p, "time_s"),
            text.power(p.power_w),
            text.energy(p.energy_j),
            half(p, "energy_j"),
            text.significant(p.tokens_per_s),
        )
        rows.append(row)
    headers = ("", "time", "", "power", "energy", "", f"{unit}s/s")
    return Table(headers, tuple(rows), "lrmrrmr", tuple("" if o.prediction else "red" for o in outcomes))


def _side_costs(predictions: Sequence[Prediction], unit: str, site: Site | None) -> Table:
    rows = []
    for p in predictions:
        row = [
            text.in_middle(gpu_label(p), 17),
            text.significant(p.energy_per_token_j),
            text.energy(summary.energy_per_million_tokens_j(p)),
        ]
        if site is not None:
            row += footprint.side_cells(p, site)
        needed, available = text.gigabytes(p.memory.needed_gb), text.gigabytes(p.memory.available_gb)
        row += [short_bound(p.bound_by), f"{needed}/{available}" if p.memory.fits else f"{needed} > {available}"]
        rows.append(tuple(row))
    cost = () if site is None else footprint.side_headers(site)
    headers = ("", f"J/{unit}", f"{'energy' if unit == 'token' else 'J'}/M", *cost, "bound by", "memory, GB")
    styles = tuple("" if p.memory.fits else "red" for p in predictions)
    return Table(headers, tuple(rows), f"lrr{'r' * len(cost)}lr", styles)


def _energy_facts(prediction: Prediction, top: int) -> Facts:
    items = [
        ("  by family", share_texts({_spelled(name): joules for name, joules in prediction.families.items()}, 8)),
        ("  by module", share_texts(prediction.modules, 10)),
    ]
    if top:
        items.append(("  by layer", share_texts(prediction.layers, top)))
    if prediction.tokens_out:
        per_million = text.energy(summary.energy_per_million_tokens_j(prediction))
        items.append((f"  per M {unit_of(prediction)}s", (per_million,)))
    return Facts(tuple(items), title="where the joules go", label_width=16)


def share_texts(parts: Mapping[str, float], most: int) -> tuple[str, ...]:
    """The largest shares; the rest, if it is more than one, together."""
    found = list(summary.shares(parts).items())
    most = most if len(found) > most + 1 else len(found)
    shown = [f"{name or 'model'} {text.percent(share)}" for name, share in found[:most]]
    if found[most:]:
        shown.append(f"{len(found) - most} others {text.percent(summary.total(share for _, share in found[most:]))}")
    return tuple(shown)


def _spelled(name: str) -> str:
    """Names of families as people read them: ``row reduction``."""
    return name.replace("_", " ")


def _closing_facts(prediction: Prediction) -> Facts:
    m = prediction.memory
    verdict = "fits" if m.fits else f"does not fit by {text.gigabytes(summary.memory_shortfall_gb(prediction))} GB"
    parts = [
        (name, value)
        for name, value in (
            ("weights", m.weights_gb),
            ("KV cache", m.kv_cache_gb),
            ("activations", m.activations_gb),
            ("framework", m.framework_gb),
        )
        if value >= 0.05
    ]
    made_of = ", ".join(f"{name} {text.gigabytes(value)}" for name, value in parts)
    each = " a GPU" if prediction.gpu_count > 1 else ""
    items = [
        (
            "memory",
            (f"{text.gigabytes(m.needed_gb)} of {text.gigabytes(m.available_gb)} GB{each}: {verdict}", f"({made_of})"),
        ),
        *_each_gpu(prediction),
        ("provenance", provenance_texts(prediction.provenance)),
        ("±", ("half of the 90 % interval",)),
    ]
    if prediction.unpriced:
        items.append(
            ("not priced", tuple(f"{name} {text.percent(share)}" for name, share in prediction.unpriced.items()))
        )
    return Facts(tuple(items), label_width=16)


def _each_gpu(prediction: Prediction) -> list[tuple[str, tuple[str, ...]]]:
    """One GPU of several, and how long pipeline stages wait for each other."""
    if prediction.gpu_count == 1:
        return []
    one = summary.per_gpu(prediction)
    pieces = [f"{text.power(one['power_per_gpu_w'])},", f"{text.energy(one['energy_per_gpu_j'])},"]
    pieces.append(f"{text.significant(one['tokens_per_s_per_gpu'])} {unit_of(prediction)}s/s")
    bubble = summary.over_time(prediction, "bubble_share")
    items = [("each GPU", tuple(pieces))]
    if bubble > 0:
        items.append(("pipeline", (f"stages wait for each other {text.percent(bubble)} of the time",)))
    return items


def provenance_texts(provenance: Mapping[str, str]) -> tuple[str, ...]:
    """Families of the same provenance together: ``gemm, attention: fitted``."""
    together: dict[str, list[str]] = {}
    for what, source in provenance.items():
        together.setdefault(source, []).append(what)
    ends = len(together) - 1
    return tuple(
        f"{', '.join(map(_spelled, names))}: {source}{';' if i < ends else ''}"
        for i, (source, names) in enumerate(together.items())
    )


def remarks(predictions: Sequence[Prediction | TrainingPrediction]) -> list[Block]:
    """Notes and warnings, each once."""
    notes = list(dict.fromkeys(note for p in predictions for note in p.notes))
    warnings = list(dict.fromkeys(warning for p in predictions for warning in p.warnings))
    blocks: list[Block] = []
    if notes:
        blocks.append(Facts(tuple(("note", (note,)) for note in notes), "dim"))
    if warnings:
        blocks.append(Facts(tuple(("warning", (warning,)) for warning in warnings), "yellow"))
    return blocks


def short_bound(bound_by: str) -> str:
    """What bounds, in few letters."""
    for long, short in _SHORT_BOUND.items():
        bound_by = bound_by.replace(long, short)
    return bound_by
