"""From what a person asks of a sweep to its space, checked before anything is evaluated."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import numpy as np

from joulecast.bounds.dtypes import dtype
from joulecast.bounds.ranges import number
from joulecast.coefficients.forecasts import checked_forecast, forecast_notes, forecasting
from joulecast.errors import InputError, UnknownNameError
from joulecast.gpus import Gpu, resolve
from joulecast.lowering.execution import Execution
from joulecast.scenarios.footprint import Site, checked_site
from joulecast.scenarios.inference import predict_workload
from joulecast.scenarios.prediction import Prediction
from joulecast.scenarios.pricing import host_of
from joulecast.scenarios.sweep.inference import EXECUTION, InferenceEvaluator, gpu_at
from joulecast.scenarios.sweep.sensitivity import At, Elasticity, elasticities
from joulecast.scenarios.sweep.settings import (
    CLOCKS,
    LIMITS,
    change_axes,
    clocks_of,
    described_axes,
    gpu_axis,
    limits_of,
    spread,
)
from joulecast.scenarios.sweep.space import Axis, Share, Space, axis
from joulecast.scenarios.sweep.store import coefficients_in_use
from joulecast.workloads.request import Request
from joulecast.workloads.table import Workload


@dataclass(frozen=True)
class Point:
    """A point of a sweep with all that `predict_workload` needs."""

    workload: Workload
    gpu: Gpu
    execution: Execution
    clock_mhz: float
    power_limit_w: float
    host_us_per_launch: float | None = None


def inference(
    source: Any,
    *,
    gpus: Any,
    changes: Mapping[str, Any] | None = None,
    clock_mhz: Any = None,
    power_limit_w: Any = None,
    host_us_per_launch: Any = None,
    memory_clock_mhz: Any = None,
    temperature_c: Any = None,
    forecast_from: str | None = None,
    ignore_memory: bool = False,
    site: Site | None = None,
    **options: Any,
) -> InferenceEvaluator:
    """The points of a sweep over inference, ready to be evaluated; each argument one value or several.

    Parameters
    ----------
    source : str, Path, Workload, mapping or list
        As for `joulecast.workload`.
    gpus : str, Path, Gpu, or several
    changes : mapping, optional
        Fields of the GPU to their values.
    clock_mhz, power_limit_w : float, None or several
        None is the GPU's own; ``"all"`` even steps over what each GPU can be set to. [MHz, W]
    host_us_per_launch : float, None or several
        [us]
    memory_clock_mhz, temperature_c : float, None or several
        [MHz, deg C]
    forecast_from : str, optional
    ignore_memory : bool
        Price what does not fit all the same.
    site : Site, optional
        For money and carbon.
    **options
        Fields of `Execution` (``launch_mode``, ``engine``, ``tp``, ...) and of a `Request` (``batch``, ``dtype``, ...).

    Returns
    -------
    InferenceEvaluator

    Raises
    ------
    InputError
        For what no point could use: an unknown model, GPU, field, format, word or option, no values, too many points.
    """
    how = [_axis(name, options.pop(name, getattr(Execution(), name)), _checked_execution) for name in EXECUTION]
    known = {one.name for one in fields(Request)}
    for name in options:
        if name not in known:
            raise UnknownNameError("option", name, (*known, *EXECUTION))
    asked = [_axis(name, value, _checked_request) for name, value in options.items() if value is not None]
    first = gpu_axis(gpus)
    space = Space(
        (
            first,
            *change_axes(changes),
            *(
                _axis(name, value, lambda name, value: number(value, name))
                for name, value in (("memory_clock_mhz", memory_clock_mhz), ("temperature_c", temperature_c))
                if value is not None
            ),
            *how,
            *asked,
            _axis("host_us_per_launch", host_us_per_launch, lambda _, value: _checked_host(first, value)),
            _axis("clock_mhz", spread(clock_mhz, CLOCKS), lambda _, value: _positive("clock", "MHz", value)),
            _axis(
                "power_limit_w", spread(power_limit_w, LIMITS), lambda _, value: _positive("power limit", "W", value)
            ),
        )
    ).checked()
    forecast = None if forecast_from is None else checked_forecast(forecast_from)
    evaluator = InferenceEvaluator(source, space, checked_site(site), ignore_memory, forecast)
    _first_workload(evaluator)
    return evaluator


def description(evaluator: InferenceEvaluator) -> dict[str, Any]:
    """All that the answers follow from, as plain values: what a folder of chunks must agree with."""
    with forecasting(evaluator.forecast_from):
        coefficients = coefficients_in_use()
    return {
        "sweep": "inference",
        **described_axes(evaluator.space),
        "workload": _hash_of(_first_workload(evaluator)),
        "site": repr(asdict(evaluator.site)),
        "ignore_memory": evaluator.ignore_memory,
        "forecast_from": evaluator.forecast_from,
        "coefficients": coefficients,
    }


def predicted(evaluator: InferenceEvaluator, point: int) -> Prediction:
    """A point as `predict` tells it: with its kernels, notes and warnings."""
    at = at_point(evaluator, point)
    with forecasting(evaluator.forecast_from):
        found = predict_workload(
            at.workload,
            at.gpu,
            execution=at.execution,
            clock_mhz=at.clock_mhz,
            power_limit_w=at.power_limit_w,
            host_us_per_launch=at.host_us_per_launch,
            ignore_memory=evaluator.ignore_memory,
        )
    return replace(found, notes=(*found.notes, *forecast_notes(evaluator.forecast_from)))


def elasticities_at(evaluator: InferenceEvaluator, point: int) -> tuple[Elasticity, ...]:
    """What 1 % more of each number of the hardware changes at a point."""
    at = at_point(evaluator, point)

    def ask(**changed: Any) -> tuple[float, float, float]:
        found = predict_workload(at.workload, execution=at.execution, ignore_memory=True, **changed)
        return found.time_s, found.energy_j, found.power_w

    here = At(at.gpu, at.clock_mhz, at.power_limit_w, {"host_us_per_launch": at.host_us_per_launch})
    with forecasting(evaluator.forecast_from):
        return elasticities(here, ask)


def _axis(name: str, values: Any, checked: Any) -> Axis:
    found = axis(name, values)
    return axis(
        name, [value if value is None or isinstance(value, Share) else checked(name, value) for value in found.values]
    )


def _positive(what: str, unit: str, value: Any) -> float:
    found = number(value, what, unit)
    if found <= 0:
        raise InputError(f"{what} must be above zero, got {found:g} {unit}")
    return found


def _checked_host(gpus: Axis, value: Any) -> float:
    host_of(resolve(gpus.values[0])[0], value)
    return float(value)


def _checked_execution(name: str, value: Any) -> Any:
    """A value of one field, in its own spelling; `ep` needs as many tensor-parallel GPUs."""
    return getattr(Execution(**{"tp": value, "ep": value} if name == "ep" else {name: value}), name)


def _checked_request(name: str, value: Any) -> Any:
    if name.endswith("dtype"):
        return dtype(value).name
    return getattr(Request(**{name: value}), name)


def _first_workload(evaluator: InferenceEvaluator) -> Workload:
    """A workload of the space: the first, or where that can't be made the last."""
    axes = [one for one in evaluator.space.axes if one.name in evaluator.asked]
    ends = [_given({one.name: one.values[place] for one in axes}) for place in (0, -1)]
    try:
        return evaluator.open(ends[0], Execution())
    except InputError:
        with suppress(InputError):
            return evaluator.open(ends[1], Execution())
        raise


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _hash_of(workload: Workload) -> str:
    """Of everything that its answers follow from."""
    known = hashlib.sha256(repr((workload.passes, workload.memory, sorted(workload.unpriced.items()))).encode("utf-8"))
    for name, table in sorted(workload.tables.items()):
        for column, values in sorted(table.columns.items()):
            known.update(f"{name}.{column}".encode())
            known.update(np.ascontiguousarray(values).tobytes())
    return known.hexdigest()


def at_point(evaluator: InferenceEvaluator, point: int) -> Point:
    """A point with all that predicting it alone needs."""
    space = evaluator.space
    places = {name: int(code[0]) for name, code in space.codes(np.array([point], dtype=np.int64)).items()}
    values = {one.name: one.values[places[one.name]] for one in space.axes}
    gpu = gpu_at(values)
    execution = Execution(**_given({name: values[name] for name in EXECUTION}))
    clock, limit = clocks_of([values["clock_mhz"]], gpu)[0][0], limits_of([values["power_limit_w"]], gpu)[0][0]
    return Point(
        workload=evaluator.open(_given({name: values[name] for name in evaluator.asked}), execution),
        gpu=gpu,
        execution=execution,
        clock_mhz=float(clock),
        power_limit_w=float(limit),
        host_us_per_launch=values["host_us_per_launch"],
    )
