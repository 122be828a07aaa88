"""A `Prediction` as plain rows, by names with units: what JSON and CSV print."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from joulecast.cli import footprint
from joulecast.scenarios import summary
from joulecast.scenarios.footprint import Site
from joulecast.scenarios.prediction import FIGURES, PhasePrediction, Prediction

#: Interval of the figures that carry one.
INTERVAL_LEVEL = 0.9


@dataclass(frozen=True)
class Outcome:
    """What came of one GPU (at one clock and limit, if several were asked for): a prediction, or why there is none."""

    gpu: str
    prediction: Prediction | None = None
    error: str | None = None
    asked: Mapping[str, float | None] = field(default_factory=dict)


def total_row(prediction: Prediction, site: Site | None) -> dict[str, Any]:
    """The figures over all phases, by name with unit."""
    phases = prediction.phases
    return {
        "phase": "total",
        "passes": None,
        **_figures(prediction, site, prediction.gpu_count),
        "tokens_in": summary.total(phase.tokens_in for phase in phases),
        "tokens_out": summary.total(phase.tokens_out for phase in phases),
        "bound_by": prediction.bound_by,
        "clock_mhz": prediction.clock_mhz,
        "throttled": any(phase.throttled for phase in phases),
        "gpu_time_s": summary.total(phase.gpu_time_s for phase in phases),
        "host_time_s": summary.total(phase.host_time_s for phase in phases),
        "idle_share": summary.over_time(prediction, "idle_share"),
        "flop": summary.total(phase.flop for phase in phases),
        "dram_bytes": summary.total(phase.dram_bytes for phase in phases),
        "peak_flop_share": summary.over_time(prediction, "peak_flop_share"),
        "peak_dram_share": summary.over_time(prediction, "peak_dram_share"),
        "bubble_share": summary.over_time(prediction, "bubble_share"),
    }


def phase_row(phase: PhasePrediction, site: Site | None, gpu_count: int = 1, offset_s: float = 0.0) -> dict[str, Any]:
    """The figures of one phase, by the same names as `total_row`; it begins `offset_s` after the whole."""
    own = ("tokens_in", "tokens_out", "bound_by", "clock_mhz", "throttled", "gpu_time_s", "host_time_s", "idle_share")
    work = ("flop", "dram_bytes", "peak_flop_share", "peak_dram_share", "bubble_share")
    return {
        "phase": phase.phase,
        "passes": phase.passes,
        **_figures(phase, site, gpu_count, offset_s),
        **{name: getattr(phase, name) for name in (*own, *work)},
    }


def _figures(
    part: Prediction | PhasePrediction, site: Site | None, gpu_count: int, offset_s: float = 0.0
) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for figure in FIGURES:
        lower, upper = part.intervals[figure]
        found |= {figure: getattr(part, figure), f"{figure}_lower": lower, f"{figure}_upper": upper}
    found["tokens_per_s"] = part.tokens_per_s
    found["energy_per_token_j"] = part.energy_per_token_j
    found["energy_per_million_tokens_j"] = summary.energy_per_million_tokens_j(part)
    if site is not None:
        found |= footprint.figures(part, site, gpu_count, offset_s)
    return found


def document(outcomes: Sequence[Outcome], workload: str, site: Site | None, *, kernels: bool) -> dict[str, Any]:
    """The JSON document of ``joulecast predict --json``."""
    from joulecast import __version__

    best = marks(outcomes)
    return {
        "schema": "joulecast.predict/1",
        "joulecast": __version__,
        "workload": workload,
        "interval_level": INTERVAL_LEVEL,
        "predictions": [_document_of(one, site, kernels, mark) for one, mark in zip(outcomes, best, strict=True)],
    }


def marks(outcomes: Sequence[Outcome]) -> list[dict[str, bool]]:
    """Which points of each GPU are its fastest and its least energy; empty where one point was asked for."""
    found: list[dict[str, bool]] = []
    for outcome in outcomes:
        mine = [one.prediction for one in outcomes if one.asked and one.gpu == outcome.gpu and one.prediction]
        if not outcome.asked:
            found.append({})
        elif outcome.prediction is None:
            found.append({"fastest": False, "fewest_joules": False})
        else:
            fast, thrifty = summary.fastest(mine), summary.thriftiest(mine)
            found.append({"fastest": outcome.prediction is fast, "fewest_joules": outcome.prediction is thrifty})
    return found


def _document_of(outcome: Outcome, site: Site | None, kernels: bool, mark: dict[str, bool]) -> dict[str, Any]:
    p = outcome.prediction
    if p is None:
        return {"gpu": outcome.gpu, **outcome.asked, "error": outcome.error}
    found = {
        "gpu": p.gpu,
        "error": None,
        **outcome.asked,
        **mark,
        "gpu_count": p.gpu_count,
        "power_limit_w": p.power_limit_w,
        **summary.per_gpu(p),
        "question": dict(p.info),
        "total": total_row(p, site),
        "phases": _phase_rows(p, site),
        "memory": {
            "weights_gb": p.memory.weights_gb,
            "kv_cache_gb": p.memory.kv_cache_gb,
            "activations_gb": p.memory.activations_gb,
            "framework_gb": p.memory.framework_gb,
            "needed_gb": p.memory.needed_gb,
            "available_gb": p.memory.available_gb,
            "fits": p.memory.fits,
        },
        "energy_by_family_j": dict(p.families),
        "energy_by_module_j": dict(p.modules),
        "energy_by_layer_j": dict(p.layers),
        "launches": p.launches,
        "provenance": dict(p.provenance),
        "unpriced_share": dict(p.unpriced),
        "notes": list(p.notes),
        "warnings": list(p.warnings),
    }
    if site is not None:
        found["footprint"] = footprint.described(site)
    if kernels:
        found["kernels"] = kernel_rows(p)
    return found


def csv_rows(outcomes: Sequence[Outcome], workload: str, site: Site | None) -> list[dict[str, Any]]:
    """One row a GPU and phase, with its total last; one row with the reason where there is no prediction."""
    rows: list[dict[str, Any]] = []
    for outcome, mark in zip(outcomes, marks(outcomes), strict=True):
        p = outcome.prediction
        if p is None:
            rows.append({"workload": workload, "gpu": outcome.gpu, "error": outcome.error, **outcome.asked})
            continue
        shared = {"workload": p.workload, "gpu": p.gpu, "gpu_count": p.gpu_count}
        memory = {
            "power_limit_w": p.power_limit_w,
            "memory_needed_gb": p.memory.needed_gb,
            "memory_available_gb": p.memory.available_gb,
            "fits": p.memory.fits,
            "error": None,
            **{name: value for name, value in outcome.asked.items() if name != "power_limit_w"},
            **mark,
        }
        rows += [{**shared, **row, **memory} for row in (*_phase_rows(p, site), total_row(p, site))]
    return rows


def _phase_rows(prediction: Prediction, site: Site | None) -> list[dict[str, Any]]:
    count = prediction.gpu_count
    return [phase_row(phase, site, count, begins_s) for phase, begins_s in footprint.phases(prediction)]


def kernel_rows(prediction: Prediction) -> list[dict[str, Any]]:
    """The launch list, one mapping a row."""
    columns = {name: column.tolist() for name, column in prediction.kernels.items()}
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def kernel_csv_rows(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """The launch lists of all GPUs, each row with its GPU."""
    return [
        {"gpu": outcome.prediction.gpu, **outcome.asked, **row}
        for outcome in outcomes
        if outcome.prediction is not None
        for row in kernel_rows(outcome.prediction)
    ]
