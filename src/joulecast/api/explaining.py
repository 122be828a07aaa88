"""`explain`: what bounds a run, and what would make it cheaper."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from inspect import signature
from typing import TYPE_CHECKING, Any

from joulecast.api.inference import predict
from joulecast.api.training import train
from joulecast.errors import UnknownNameError
from joulecast.gpus import Gpu, load_gpu
from joulecast.lowering.execution import share_of_batch
from joulecast.lowering.formats import has_format
from joulecast.workloads.request import Request
from joulecast.workloads.sources import open_workload
from joulecast.workloads.table import Workload

if TYPE_CHECKING:
    from joulecast.scenarios.explain import Change, Explanation, Outcome


def explain(source: Any, gpu: str | Gpu, *, training: bool = False, slack: float = 0.05, **options: Any) -> Explanation:
    """What bounds a run, and what the cheapest changes to it would save.

    Parameters
    ----------
    source : str, Path, Workload, mapping or list
        As for `workload`.
    gpu : str or Gpu
    training : bool
        Whether `options` are those of `train`; else those of `predict`.
    slack : float
        Share by which a token (image, sample) may take longer for a change to be told.
    **options
        The question.

    Returns
    -------
    Explanation

    Raises
    ------
    InputError
        For anything that can't be used as given.
    """
    from joulecast.scenarios import explain as explaining

    if training:
        return explaining.explain(
            lambda new: _trained(source, gpu, {**options, **new}), _changes(gpu, options, training=True), slack=slack
        )
    ready = isinstance(source, Workload)
    unknown = set(options) - _REQUEST - set(signature(predict).parameters)
    if unknown and not ready:
        raise UnknownNameError("option of predict", min(unknown), {*_REQUEST, *signature(predict).parameters} - _ASIDE)
    model = {name: options[name] for name in options if name in _REQUEST}
    if "batch" in model:
        model["batch"] = share_of_batch(model["batch"], options.get("dp", 1), options.get("microbatches", 1))
    kept = source if ready else open_workload(source, **model)

    def ask(new: Mapping[str, Any]) -> explaining.Outcome:
        now = {**options, **new}
        same = not set(new) & _REQUEST
        run = {name: value for name, value in now.items() if name not in _REQUEST}
        return _predicted(kept, gpu, run) if same else _predicted(source, gpu, now)

    changes = _changes(gpu, options, training=False)
    if ready:
        changes = (one for one in changes if not {"batch", "weight_dtype"} & set(one.options))
    return explaining.explain(ask, changes, slack=slack)


def _changes(gpu: str | Gpu, options: Mapping[str, Any], *, training: bool) -> Iterator[Change]:
    """What to try, made once the question itself has been answered: its options are known to be usable by then."""
    from joulecast.scenarios import explain as explaining

    described = load_gpu(gpu, options.get("changes"))
    limit_w = float(options.get("power_limit_w") or described.power_limit_default_w)
    clock = float(options.get("clock_mhz") or described.clock_max_mhz)
    lowest_w = max(described.power_limit_min_w, 0.35 * limit_w)
    limits = [limit_w - (limit_w - lowest_w) * at / 12 for at in range(1, 13)]
    clocks = [clock - (clock - max(described.clock_min_mhz, 0.45 * clock)) * at / 12 for at in range(1, 13)]
    yield from explaining.gpu_changes(limits, clocks)
    if training:
        yield from explaining.training_changes(options, int(options.get("micro_batch") or 1))
        return
    narrow = [name for name in ("fp8", "w4a16", "nvfp4") if has_format(described, name)]
    yield from explaining.inference_changes(options, int(options.get("batch") or 1), narrow)


#: Arguments of `predict` that are no options of a run.
_ASIDE = frozenset({"source", "gpu", "options"})

#: Options that ask for another workload.
_REQUEST = frozenset({*(one.name for one in fields(Request)), "dims"})


def _predicted(source: Any, gpu: str | Gpu, options: Mapping[str, Any]) -> Outcome:
    from joulecast.scenarios.explain import Outcome

    p = predict(source, gpu, **options)
    bound: dict[str, float] = {}
    for phase in p.phases:
        bound[phase.bound_by] = bound.get(phase.bound_by, 0.0) + phase.time_s / p.time_s
    return Outcome(p.time_s, p.energy_j, p.tokens_out or 1.0, bound)


def _trained(source: Any, gpu: str | Gpu, options: Mapping[str, Any]) -> Outcome:
    from joulecast.scenarios.explain import Outcome

    p = train(source, gpu, **options)
    return Outcome(p.step_time_s, p.step_energy_j, p.global_batch * p.tokens_per_sample,
                   {name: value / p.step_time_s for name, value in p.parts_s.items() if value > 0})  # fmt: skip
