"""`tune`: one kernel from its spec to the configuration to use, measured on a GPU or predicted without one."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from joulecast.bounds.ranges import check_clock_mhz, check_settable_w
from joulecast.errors import InfeasibleError, InputError, shortened
from joulecast.gpus import Gpu, load_gpu
from joulecast.meters.clocks import Settings
from joulecast.meters.device import Device
from joulecast.meters.reading import Meter
from joulecast.tuning.aot.built import Built
from joulecast.tuning.aot.cache import Cache
from joulecast.tuning.clocked import CLOCK, LIMIT, ClockedEvaluator, kernel_part, with_clocks
from joulecast.tuning.evaluator import Evaluator
from joulecast.tuning.kernelspec import KernelSpec, checked
from joulecast.tuning.predicted import AtClocks, predicted
from joulecast.tuning.reasons import grouped
from joulecast.tuning.result import TuningResult
from joulecast.tuning.space import Code, Config, Space
from joulecast.tuning.triton_evaluator import TritonEvaluator
from joulecast.tuning.tune import search

#: Meters that `tune` knows by name.
METERS = ("model", "nvml", "zeus", "external")

#: Rounds of the search by prediction: a random start, then neighbours of the best so far.
_ROUNDS = 4

Telling = Callable[[str, float], None]


def tune_kernel(
    spec: KernelSpec,
    gpu: str | Gpu,
    *,
    meter: str | Meter = "model",
    meter_file: str | os.PathLike[str] | None = None,
    configs: int = 200,
    slack: float = 0.02,
    objective: str = "energy",
    baseline: Config | None = None,
    clock_mhz: float | None = None,
    power_limit_w: float | None = None,
    clocks_mhz: Sequence[float] = (),
    power_limits_w: Sequence[float] = (),
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
        ``model`` (no GPU: predicted), ``nvml`` and ``zeus`` (the GPU here), ``external``, or a meter of your own.
    meter_file : path, optional
        That another program writes ``time_s,power_W`` to, for the external meter.
    configs : int
        Compiled at most.
    slack : float
        How much slower than the fastest a configuration may be. [share]
    objective : str
        ``energy`` or ``time``.
    baseline : mapping, optional
        What savings are told against; the fastest found where it is not given.
    clock_mhz, power_limit_w : float, optional
        Priced at; where a meter measures they are set, which needs the right to, and put back at any end. [MHz, W]
    clocks_mhz, power_limits_w : sequence of float
        Searched as one more tunable each (``core_clock_mhz``, ``power_limit_w``). [MHz, W]
    residency : str
        For predictions: ``loop`` (the same tensors again and again) or ``stream`` (what is read comes from DRAM).
    check : str
        What is tested against the reference: ``winners``, ``all`` or ``none``.
    cache : path, optional
        Of compiled configurations; default in the user's folder of caches.
    workers : int
        Processes that compile; 0 for one a processor.
    timeout_s : float
        Processor time for one compilation, and for one test in the interpreter. [s]
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
    clocks = asked_for("clocks_mhz", clocks_mhz, clock_mhz)
    limits = asked_for("power_limits_w", power_limits_w, power_limit_w)
    counting, torch = _meter(meter, meter_file, options, described)
    if counting is None:
        for clock in clocks:
            check_clock_mhz(clock, described.clock_min_mhz, described.clock_max_mhz, described.name)
        for limit in limits:
            check_settable_w(limit, described.power_limit_min_w, described.power_limit_max_w, described.name)
    with contextlib.ExitStack() as ends:
        settings = None
        if counting is not None and (clocks or limits):
            settings = Settings(_device(counting, torch))
            ends.enter_context(settings.held())
            settings.check(clocks, limits)  # before anything is compiled
        elif (own := getattr(counting, "device", None)) is not None:
            Settings(own).recover()  # else all would be measured at what a killed search had set
        top = clocks[-1] if clocks else None
        if top is not None:  # the GPU here may run faster than the catalogue knows: only prices are of its range
            top = min(max(top, described.clock_min_mhz), described.clock_max_mhz)
        kept = Cache(None if cache is None else os.fspath(cache))
        ends.callback(kept.close)
        evaluator = TritonEvaluator(
            spec, described, kept, counting, torch, top, limits[-1] if limits else None,
            residency, "none" if check == "none" or (counting is None and check == "winners") else "all",
            workers, timeout_s, listening,
        )  # fmt: skip
        begun = time.perf_counter()
        if baseline is not None:
            spec.space.code(kernel_part(baseline))
            baseline = _with_state(baseline, clocks, limits)
        ready = _promising(
            evaluator, configs, np.random.default_rng(seed), None if baseline is None else kernel_part(baseline)
        )
        if not ready:
            why = next(iter(grouped(evaluator.report.reasons)), "")
            raise InfeasibleError(f"no configuration of {spec.name} can be launched on {described.name}: {why}")
        space = with_clocks(Space.of_list(ready), _several(clocks), _several(limits))
        if counting is None:
            priced = evaluator if len(space.names) == len(ready[0]) else AtClocks(evaluator)
            everything = [space.config(code) for code in space.enumerated()]
            return predicted(priced, everything, slack, objective, baseline, check, begun)
        metered: Evaluator = evaluator if settings is None else ClockedEvaluator(evaluator, settings, clocks, limits)
        found = search(
            metered, space, slack=slack, objective=objective, baseline=baseline, seed=seed, tell=listening, **options
        )
    if settings is not None and settings.left:
        found = replace(found, notes=(*found.notes, settings.left))
    return found


def asked_for(name: str, several: Sequence[float], one: float | None) -> tuple[float, ...]:
    """Clocks or limits that are asked for, lowest first; empty where they are left to the driver.

    Raises
    ------
    InputError
        Where both one and several are given, or one is no positive number.
    """
    if one is not None and len(several):
        raise InputError(f"give {name} or one value for all, not both")
    values = tuple(sorted({float(value) for value in ([one] if one is not None else several)}))
    if any(not value > 0.0 or value == float("inf") for value in values):
        raise InputError(f"{name} must be positive numbers, not {shortened(values)}")
    return values


def _several(values: tuple[float, ...]) -> tuple[float, ...]:
    """Values of a tunable: one alone is none, it holds for all."""
    return values if len(values) > 1 else ()


def _with_state(baseline: Config, clocks: tuple[float, ...], limits: tuple[float, ...]) -> Config:
    """A baseline at the highest clock and limit, where it names none."""
    missing = {
        name: values[-1]
        for name, values in ((CLOCK, clocks), (LIMIT, limits))
        if len(values) > 1 and name not in baseline
    }
    return {**baseline, **missing}


def _device(meter: Meter, torch: Any) -> Device:
    """The device whose clocks are set: the meter's own, else the GPU that PyTorch uses."""
    own = getattr(meter, "device", None)
    if own is not None:
        return own  # type: ignore[no-any-return]
    from joulecast.meters.nvml import cuda_device

    return cuda_device(torch)


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


def _meter(
    meter: str | Meter, meter_file: str | os.PathLike[str] | None, options: dict[str, Any], gpu: Gpu
) -> tuple[Meter | None, Any]:
    """The meter, and torch with a GPU where it measures."""
    if meter_file is not None and meter != "external":
        raise InputError("a meter file is of the external meter: add meter external")
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

    if meter == "external":
        if meter_file is None:
            raise InputError("the external meter needs the file that it is written to: meter_file, or --meter-file")
        from joulecast.meters.external import ExternalMeter

        # A decade either way, for a host that is measured with its GPU and for a GPU that rests in part.
        external = ExternalMeter(os.fspath(meter_file), usual_w=(gpu.idle_w / 10.0, 10.0 * gpu.power_limit_max_w))
        external.look()  # before anything is compiled
        return external, need_gpu()
    torch = need_gpu()
    if meter == "zeus":
        from joulecast.meters.zeus import ZeusMeter

        return ZeusMeter(), torch
    from joulecast.meters.nvml import cuda_device, nvml_meter

    return nvml_meter(cuda_device(torch)), torch


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


def _silent(what: str, share: float) -> None:
    """Nobody listens."""
