"""A `Prediction` as plain rows, by names with units: what JSON and CSV print."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from joulecast.scenarios import summary
from joulecast.scenarios.prediction import FIGURES, PhasePrediction, Prediction

#: Interval of the figures that carry one.
INTERVAL_LEVEL = 0.9


@dataclass(frozen=True)
class Money:
    """Price of electricity and its currency."""

    price_per_kwh: float
    currency: str


@dataclass(frozen=True)
class Outcome:
    """What came of one GPU: a prediction, or the reason why there is none."""

    gpu: str
    prediction: Prediction | None = None
    error: str | None = None


def total_row(prediction: Prediction, money: Money | None) -> dict[str, Any]:
    """The figures over all phases, by name with unit."""
    figures: dict[str, Any] = {"phase": "total", "passes": None}
    for figure in FIGURES:
        figures |= _with_interval(figure, getattr(prediction, figure), prediction.intervals)
    tokens: dict[str, Any] = {
        "tokens_in": sum(phase.tokens_in for phase in prediction.phases),
        "tokens_out": sum(phase.tokens_out for phase in prediction.phases),
        "tokens_per_s": prediction.tokens_per_s,
        "energy_per_token_j": prediction.energy_per_token_j,
        "energy_per_million_tokens_j": summary.energy_per_million_tokens_j(prediction),
    }
    if money is not None:
        tokens["cost_per_million_tokens"] = summary.cost_per_million_tokens(prediction, money.price_per_kwh)
        tokens["currency"] = money.currency
    return {
        **figures,
        **tokens,
        "bound_by": prediction.bound_by,
        "clock_mhz": prediction.clock_mhz,
        "throttled": any(phase.throttled for phase in prediction.phases),
        "gpu_time_s": sum(phase.gpu_time_s for phase in prediction.phases),
        "host_time_s": sum(phase.host_time_s for phase in prediction.phases),
        "idle_share": summary.over_time(prediction, "idle_share"),
        "flop": summary.total_flop(prediction),
        "dram_bytes": summary.total_dram_bytes(prediction),
        "peak_flop_share": summary.over_time(prediction, "peak_flop_share"),
        "peak_dram_share": summary.over_time(prediction, "peak_dram_share"),
    }


def phase_row(phase: PhasePrediction) -> dict[str, Any]:
    """The figures of one phase, by the same names as `total_row`."""
    figures: dict[str, Any] = {"phase": phase.phase, "passes": phase.passes}
    for figure in FIGURES:
        figures |= _with_interval(figure, getattr(phase, figure), phase.intervals)
    return {
        **figures,
        "tokens_in": phase.tokens_in,
        "tokens_out": phase.tokens_out,
        "tokens_per_s": phase.tokens_per_s,
        "energy_per_token_j": phase.energy_per_token_j,
        "bound_by": phase.bound_by,
        "clock_mhz": phase.clock_mhz,
        "throttled": phase.throttled,
        "gpu_time_s": phase.gpu_time_s,
        "host_time_s": phase.host_time_s,
        "idle_share": phase.idle_share,
        "flop": phase.flop,
        "dram_bytes": phase.dram_bytes,
        "peak_flop_share": phase.peak_flop_share,
        "peak_dram_share": phase.peak_dram_share,
    }


def document(outcomes: Sequence[Outcome], workload: str, money: Money | None, *, kernels: bool) -> dict[str, Any]:
    """The JSON document of ``joulecast predict --json``."""
    from joulecast import __version__

    return {
        "schema": "joulecast.predict/1",
        "joulecast": __version__,
        "workload": workload,
        "interval_level": INTERVAL_LEVEL,
        "predictions": [_document_of(outcome, money, kernels) for outcome in outcomes],
    }


def _document_of(outcome: Outcome, money: Money | None, kernels: bool) -> dict[str, Any]:
    p = outcome.prediction
    if p is None:
        return {"gpu": outcome.gpu, "error": outcome.error}
    found = {
        "gpu": p.gpu,
        "error": None,
        "gpu_count": p.gpu_count,
        "power_limit_w": p.power_limit_w,
        "question": dict(p.info),
        "total": total_row(p, money),
        "phases": [phase_row(phase) for phase in p.phases],
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
    if kernels:
        found["kernels"] = kernel_rows(p)
    return found


def csv_rows(outcomes: Sequence[Outcome], workload: str, money: Money | None) -> list[dict[str, Any]]:
    """One row a GPU and phase, with its total last; one row with the reason where there is no prediction."""
    rows: list[dict[str, Any]] = []
    for outcome in outcomes:
        p = outcome.prediction
        if p is None:
            rows.append({"workload": workload, "gpu": outcome.gpu, "error": outcome.error})
            continue
        shared = {"workload": p.workload, "gpu": p.gpu, "gpu_count": p.gpu_count}
        memory = {
            "power_limit_w": p.power_limit_w,
            "memory_needed_gb": p.memory.needed_gb,
            "memory_available_gb": p.memory.available_gb,
            "fits": p.memory.fits,
            "error": None,
        }
        rows += [{**shared, **row, **memory} for row in (*map(phase_row, p.phases), total_row(p, money))]
    return rows


def kernel_rows(prediction: Prediction) -> list[dict[str, Any]]:
    """The launch list, one mapping a row."""
    columns = {name: column.tolist() for name, column in prediction.kernels.items()}
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def kernel_csv_rows(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """The launch lists of all GPUs, each row with its GPU."""
    return [
        {"gpu": outcome.prediction.gpu, **row}
        for outcome in outcomes
        if outcome.prediction is not None
        for row in kernel_rows(outcome.prediction)
    ]


def _with_interval(figure: str, value: float, intervals: Mapping[str, tuple[float, float]]) -> dict[str, float]:
    lower, upper = intervals[figure]
    return {figure: value, f"{figure}_lower": lower, f"{figure}_upper": upper}
