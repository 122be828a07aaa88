"""`tune`: one kernel from its spec to the configuration to use, measured on a GPU or predicted without one."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from joulecast.errors import InfeasibleError, InputError
from joulecast.gpus import Gpu, load_gpu
from joulecast.meters.reading import Meter
from joulecast.tuning.aot.built import Built
from joulecast.tuning.aot.cache import Cache
from joulecast.tuning.kernelspec import KernelSpec, checked
from joulecast.tuning.log import key_of
from joulecast.tuning.result import Point, TuningResult
from joulecast.tuning.space import Code, Config, Space
from joulecast.tuning.triton_evaluator import TritonEvaluator
from joulecast.tuning.tune import search

#: Meters that `tune` knows by name.
METERS = ("model", "nvml", "zeus", "external")

#: Rounds of the search by prediction: a random start, then neighbours of the best so far.
_ROUNDS = 4

Telling = Callable[[str, float], None]


@dataclass(frozen=True)
class PredictedResult(TuningResult):
    """A `TuningResult` that no meter stands behind: physics priced compiled kernels."""

    @property
    def verdict(self) -> str:
        """The answer in a line."""
        by = {key_of(point.config): point for point in self.points}
        chosen, base = by[key_of(self.chosen)], by[key_of(self.baseline)]
        if self.objective == "time" or key_of(self.chosen) == key_of(self.baseline):
            return "predicted, not measured: no other within the slack promises less energy than the baseline"
        assert chosen.energy_j is not None
        assert base.energy_j is not None
        energy, time_ = chosen.energy_j / base.energy_j - 1.0, chosen.time_s / base.time_s - 1.0
        return f"predicted, not measured: {energy:+.1%} energy, {time_:+.1%} time against the baseline"

    def to_dict(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        return {**super().to_dict(), "measured": False}


def tune_kernel(
    spec: KernelSpec,
    gpu: str | Gpu,
    *,
    meter: str | Meter = "model",
    configs: int = 200,
    slack: float = 0.02,
    objective: str = "energy",
    baseline: Config | None = None,
    clock_mhz: float | None = None,
    power_limit_w: float | None = None,
    residency: str = "loop",
    check: str = "winners",
    cache: str | os.PathLike[str] | None = None,
    workers: int = 0,
    timeout_s: float = 60.0,
    seed: int = 0,
    tell: Telling | None = None,
    **options: Any,
) -> TuningResult:
    """Find the configuration of a kernel to use on a GPU.

    Parameters
    ----------
    spec : KernelSpec
    gpu : str or Gpu
        Compiled for, and priced on.
    meter : str or Meter
        ``model`` (no GPU: predicted), ``nvml`` and ``zeus`` (the GPU here), or a meter of your own.
    configs : int
        Compiled at most.
    slack : float
        How much slower than the fastest a configuration may be. [share]
    objective : str
        ``energy`` or ``time``.
    baseline : mapping, optional
        What savings are told against; the fastest found where it is not given.
    clock_mhz, power_limit_w : float, optional
        [MHz, W]
    residency : str
        For predictions: ``loop`` (the same tensors again and again) or ``stream`` (what is read comes from DRAM).
    check : str
        What is tested against the reference: ``winners``, ``all`` or ``none``.
    cache : path, optional
        Of compiled configurations; default in the user's folder of caches.
    workers : int
        Processes that compile; 0 for one a processor.
    timeout_s : float
        For one compilation. [s]
    seed : int
    tell : callable, optional
        Takes what is being done and the share that is done.
    **options
        Of `joulecast.tuning.tune.search`, for a meter that measures.

    Returns
    -------
    TuningResult
        A `PredictedResult` for the model meter.

    Raises
    ------
    InputError
        For anything that can't be used as given.
    InfeasibleError
        If no configuration can be launched, or none is right.
    """
    checked(spec)
    if check not in ("winners", "all", "none"):
        raise InputError(f"check is winners, all or none, not {check!r}")
    if residency not in ("loop", "stream"):
        raise InputError(f"residency is loop or stream, not {residency!r}")
    if configs < 1:
        raise InputError(f"configs must be 1 or more, not {configs}")
    if not 0.0 <= slack <= 10.0:
        raise InputError(f"the slack is a share such as 0.05, not {slack}")
    listening = tell or _silent
    described = load_gpu(gpu)
    counting, torch = _meter(meter, options)
    kept = Cache(None if cache is None else os.fspath(cache))
    evaluator = TritonEvaluator(
        spec, described, kept, counting, torch, clock_mhz, power_limit_w, residency,
        "none" if check == "none" or (counting is None and check == "winners") else "all",
        workers, timeout_s, listening,
    )  # fmt: skip
    if baseline is not None:
        spec.space.code(baseline)
    begun = time.perf_counter()
    try:
        ready = _promising(evaluator, configs, np.random.default_rng(seed), baseline)
        if not ready:
            why = max(evaluator.report.reasons, key=lambda reason: evaluator.report.reasons[reason], default="")
            raise InfeasibleError(f"no configuration of {spec.name} can be launched on {described.name}: {why}")
        if counting is None:
            return _predicted(evaluator, ready, slack, objective, baseline, check, begun)
        return search(
            evaluator, Space.of_list(ready), slack=slack, objective=objective, baseline=baseline, seed=seed,
            tell=listening, **options,
        )  # fmt: skip
    finally:
        kept.close()


def is_kernel(source: Any) -> bool:
    """Whether `source` means a kernel: a spec, a function under ``@triton.jit``, an operator, or module:attribute."""
    if isinstance(source, str):
        from joulecast.tuning.operators import NAMES

        file = os.path.exists(source)  # noqa: PTH110 - any text may be asked for
        return not file and (source.replace("-", "_") in NAMES or ":" in source or _a_word(source))
    return isinstance(source, KernelSpec) or (hasattr(source, "params") and hasattr(source, "arg_names"))


def _a_word(text: str) -> bool:
    """Whether a text can only have meant an operator: no file is called so."""
    return text.replace("-", "_").isidentifier()


def tuned(source: Any, space: Any, options: dict[str, Any]) -> TuningResult:
    """`tune_kernel` of anything that `is_kernel`, with the arguments of a spec among `options` where one is made.

    Raises
    ------
    InputError
        For arguments that do not go with such a source.
    """
    from joulecast.tuning.operators import operator
    from joulecast.tuning.user_kernel import imported, kernel_spec

    gpu = options.pop("gpu", None)
    if gpu is None:
        raise InputError("tune needs a GPU to compile the kernel for, such as gpu='h100'")
    sizes = options.pop("sizes", {})
    if isinstance(source, KernelSpec | str):
        if space is not None:
            raise InputError("an operator and a spec bring their own space: leave it out")
        if isinstance(source, str) and ":" not in source:
            return tune_kernel(operator(source, **sizes), gpu, **options)
        if sizes:
            raise InputError("sizes are of built-in operators: a kernel of your own has its sizes in its spec")
        return tune_kernel(imported(source) if isinstance(source, str) else source, gpu, **options)
    if space is None or "args" not in options or "grid" not in options:
        raise InputError("tuning a kernel of your own needs space=..., args=... and grid=...")
    made = {name: options.pop(name) for name in _OF_A_SPEC if name in options}
    return tune_kernel(kernel_spec(source, space=space, **made), gpu, **options)


#: Arguments that describe a kernel rather than its tuning.
_OF_A_SPEC = (
    "args", "grid", "outputs", "reference", "constraints", "default", "constants", "tolerance", "small", "name",
)  # fmt: skip


def _meter(meter: str | Meter, options: dict[str, Any]) -> tuple[Meter | None, Any]:
    """The meter, and torch with a GPU where it measures."""
    if not isinstance(meter, str):
        from joulecast.tuning.gpu_load import need_gpu

        return meter, need_gpu()
    if meter not in METERS:
        from joulecast.errors import UnknownNameError

        raise UnknownNameError("meter", meter, METERS)
    if meter == "model":
        if options:
            raise InputError(f"{', '.join(sorted(options))} is of a search that measures: the model meter does not")
        return None, None
    from joulecast.tuning.gpu_load import need_gpu

    torch = need_gpu()
    if meter == "zeus":
        from joulecast.meters.zeus import ZeusMeter

        return ZeusMeter(), torch
    if meter == "external":
        raise InputError("the external meter needs its file: give joulecast.meters.external.ExternalMeter(path)")
    from joulecast.meters.nvml import nvml_meter

    return nvml_meter(), torch


def _promising(
    evaluator: TritonEvaluator, count: int, rng: np.random.Generator, baseline: Config | None
) -> list[Config]:
    """Configurations that can be launched, `count` compiled at most: a random start, then about the best of those."""
    space = evaluator.spec.space
    pool = space.pool(rng)
    order = [pool[int(place)] for place in rng.permutation(len(pool))]
    first = [space.code(evaluator.spec.baseline), *([] if baseline is None else [space.code(baseline)])]
    seen: dict[Code, Config] = {}
    rounds = 1 if len(order) <= count else _ROUNDS
    for number in range(rounds):
        share = count if number == rounds - 1 else int(count * (0.5 + 0.5 * number / rounds))
        near = _near(evaluator, space, seen) if number else []
        wanted = [code for code in dict.fromkeys([*first, *near, *order]) if code not in seen]
        batch = wanted[: max(share - len(seen), 0)]
        evaluator.built([space.config(code) for code in batch])
        seen.update({code: space.config(code) for code in batch})
    return [config for config in seen.values() if isinstance(evaluator.built([config])[0], Built)]


def _near(evaluator: TritonEvaluator, space: Space, seen: Mapping[Code, Config]) -> list[Code]:
    """Neighbours of those that are predicted to be fast, or to use little energy, the best first."""
    configs = list(seen.values())
    time_s, power_w = evaluator.prior(configs) or (np.ones(0), np.ones(0))
    codes = list(seen)
    best = [*np.argsort(time_s * power_w, kind="stable")[:6], *np.argsort(time_s, kind="stable")[:6]]
    return [beside for place in best for beside in space.neighbours(codes[int(place)], adjacent=True)]


def _predicted(
    evaluator: TritonEvaluator, configs: Sequence[Config], slack: float, objective: str, baseline: Config | None,
    check: str, begun: float,
) -> PredictedResult:  # fmt: skip
    left = list(configs)
    notes = [f"{evaluator.report.compiled} compiled, {evaluator.report.cached} from the cache, "
             f"{evaluator.report.pruned} pruned before"]  # fmt: skip
    failed: dict[str, int] = dict(evaluator.report.reasons)
    while True:
        time_s, power_w = evaluator.prior(left) or (np.ones(0), np.ones(0))
        energy_j = time_s * power_w
        fastest = int(np.argmin(time_s))
        limit = time_s[fastest] * (1.0 + slack)
        eligible = np.flatnonzero(time_s <= limit)
        best = int(eligible[np.argmin(energy_j[eligible])]) if objective == "energy" else fastest
        told = _wrong(evaluator, [left[best], left[fastest]]) if check == "winners" else {}
        bad = [config for config in (left[best], left[fastest]) if told.get(key_of(config))]
        if not bad:
            break
        for config in bad:
            failed[f"correctness: {told[key_of(config)]}"] = failed.get(f"correctness: {told[key_of(config)]}", 0) + 1
        left = [config for config in left if not told.get(key_of(config))]
        if not left:
            raise InfeasibleError(f"no configuration of {evaluator.spec.name} is right: {told[key_of(bad[0])]}")
    if check != "none" and evaluator.spec.reference is not None:
        untested = check == "winners" and any(one is None for one in told.values())
        notes.append("the chosen one was not tested in time" if untested else "tested against the reference on the CPU")
    bounds = evaluator.told(left[best])["bound_by"]
    notes.append(f"predicted to be bound by {bounds} at {evaluator.told(left[best])['clock_mhz']:.0f} MHz")
    order = np.argsort(time_s, kind="stable")
    points, least = [], np.inf
    for place in order.tolist():
        on_front = bool(energy_j[place] < least)
        least = min(least, energy_j[place])
        points.append(
            Point(left[place], float(time_s[place]), float(energy_j[place]), 0, bool(time_s[place] <= limit), on_front)
        )
    base = left[fastest] if baseline is None else baseline
    if key_of(base) not in {key_of(one) for one in left}:
        raise InfeasibleError(f"the baseline {dict(base)} can't be launched on {evaluator.gpu.name}")
    clocks = [evaluator.told(config)["clock_mhz"] for config in left]
    return PredictedResult(
        evaluator.question, "prediction", objective, slack, left[best], base, left[fastest],
        left[best] if key_of(left[best]) != key_of(base) else None, None, float(time_s[best] / time_s[fastest]),
        tuple(points), evaluator.facts, 0, 0, 0, len(eligible), {}, failed, None,
        (min(clocks), max(clocks)), None, {}, time.perf_counter() - begun, 0.0, tuple(notes),
    )  # fmt: skip


def _wrong(evaluator: TritonEvaluator, configs: Sequence[Config]) -> dict[str, str | None]:
    return {key_of(config): told for config, told in evaluator.verified(configs)}


def _silent(what: str, share: float) -> None:
    """Nobody listens."""
