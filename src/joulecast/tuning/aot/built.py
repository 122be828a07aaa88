"""From configurations to what can be launched: pruned by the target's limits, compiled, counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from joulecast.errors import InputError
from joulecast.tuning.aot.asked import Asked, asked_of
from joulecast.tuning.aot.cache import Cache, key_of
from joulecast.tuning.aot.compiling import Compiled, compiled_for
from joulecast.tuning.aot.dynamic import Dynamic, dynamic_of
from joulecast.tuning.aot.pool import run_jobs
from joulecast.tuning.aot.targets import Limits
from joulecast.tuning.aot.ttir import Function, read_ttir
from joulecast.tuning.kernelspec import KernelSpec, Tensor
from joulecast.tuning.space import Config

#: Bytes that a thread may spill inside loops, all iterations together, over the bytes it loads there.
MOST_SPILLED = 0.02

#: Accumulator registers of a thread above which a kernel is sure to spill.
MOST_ACCUMULATORS = 200.0


@dataclass(frozen=True)
class Built:
    """A configuration that can be launched.

    Attributes
    ----------
    config : mapping
    compiled : Compiled
    asked : Asked
        Of a launch.
    dynamic : Dynamic
        Of one warp of an average block.
    blocks : float
        Of a launch.
    resident : int
        Blocks that an SM holds at a time.
    """

    config: Config
    compiled: Compiled
    asked: Asked
    dynamic: Dynamic
    blocks: float
    resident: int


@dataclass(frozen=True)
class Refused:
    """A configuration that can't be launched, or is not worth it: `stage` of `joulecast.tuning.evaluator.STAGES`."""

    config: Config
    stage: str
    reason: str


@dataclass
class Report:
    """Where the time of a build went.

    Attributes
    ----------
    pruned, cached, compiled, failed : int
        Configurations refused before compiling, answered by the cache, compiled, and refused by the compiler.
    compile_s : float
        Processor time over compiled configurations. [s]
    reasons : Counter of str
        Configurations that can't be launched, by stage and whole reason.
    """

    pruned: int = 0
    cached: int = 0
    compiled: int = 0
    failed: int = 0
    compile_s: float = 0.0
    reasons: Counter[str] = field(default_factory=Counter)


def build(
    spec: KernelSpec,
    limits: Limits,
    configs: Sequence[Config],
    *,
    cache: Cache,
    workers: int = 0,
    timeout_s: float = 60.0,
    tell: Callable[[str, float], None] = lambda what, share: None,  # noqa: ARG005
) -> tuple[list[Built | Refused], Report]:
    """Build each of `configs`.

    Parameters
    ----------
    spec : KernelSpec
    limits : Limits
    configs : sequence of mapping
    cache : Cache
    workers : int
        Processes that compile; 0 for one a processor.
    timeout_s : float
        Processor time for one compilation. [s]
    tell : callable
        Takes what is being done and the share that is done.

    Returns
    -------
    found : list of Built or Refused
        In the order of `configs`.
    report : Report
    """
    report = Report()
    found: list[Built | Refused | None] = [None] * len(configs)
    jobs: list[tuple[list[int], str]] = []
    place_of: dict[str, int] = {}
    source = spec.source_hash
    for place, config in enumerate(configs):
        reason = hopeless(spec, limits, config)
        if reason:
            found[place] = Refused(config, "prune", reason)
            report.pruned += 1
            continue
        key = key_of(spec, config, limits.capability, source)
        held = cache.find(key, timeout_s)
        if held is not None:
            report.cached += 1
            found[place] = _looked_at(spec, limits, config, held)
        elif key in place_of:
            jobs[place_of[key]][0].append(place)
        else:
            place_of[key] = len(jobs)
            jobs.append(([place], key))

    def work(job: tuple[list[int], str]) -> Compiled:
        return compiled_for(spec, configs[job[0][0]], limits.capability)

    running = run_jobs(work, jobs, workers=workers, timeout_s=timeout_s)
    for done, outcome in enumerate(running, 1):
        places, key = jobs[outcome.place]
        value: Compiled | str = outcome.value if outcome.value is not None else f"compiler: {outcome.failure}"
        if outcome.late != "wall" and not outcome.lost:  # these say something of the machine, not of the kernel
            cache.keep(key, value, timeout_s if outcome.late else None)
        report.compiled += 1
        report.failed += isinstance(value, str)
        report.compile_s += outcome.seconds
        for place in places:
            found[place] = _looked_at(spec, limits, configs[place], value)
        tell("compiling", done / len(jobs))
    whole = [one for one in found if one is not None]
    for one in whole:
        if isinstance(one, Refused):
            report.reasons[f"{one.stage}: {one.reason}"] += 1
    return whole, report


def hopeless(spec: KernelSpec, limits: Limits, config: Config) -> str:
    """Why a configuration need not be compiled; empty where it may be worth it."""
    warps = spec.options(config)["num_warps"]
    shared, accumulators = spec.footprint(config) if spec.footprint is not None else (0.0, 0.0)
    if accumulators > MOST_ACCUMULATORS:
        return f"{accumulators:.0f} results a thread can't stay in registers"
    return limits.refusal(warps, shared)


def _looked_at(spec: KernelSpec, limits: Limits, config: Config, held: Compiled | str) -> Built | Refused:
    if isinstance(held, str):
        return Refused(config, "compile", held)
    code = held.code
    reason = limits.refusal(held.warps, held.shared_bytes, code.registers)
    if reason:
        return Refused(config, "prune", reason)
    resident = limits.occupancy(held.warps, code.registers, held.shared_bytes)
    if resident < 1:
        return Refused(config, "prune", f"no block fits an SM of {limits.gpu.name}")
    asked = counted(spec, held, config)
    dynamic = dynamic_of(code, asked, held.warps)
    spilled = dynamic.in_loops.spill_bytes
    moved = dynamic.in_loops.global_load_bytes + dynamic.in_loops.async_copy_bytes + dynamic.in_loops.shared_bytes
    if spilled > MOST_SPILLED * max(moved, 1.0):
        return Refused(config, "prune", f"spills {spilled:.0f} bytes a thread in its loops")
    return Built(config, held, asked, dynamic, spec.blocks(config), resident)


@cache
def _read(ttir: str) -> Function:
    return read_ttir(ttir)


def counted(spec: KernelSpec, compiled: Compiled, config: Config) -> Asked:
    """What a launch of a configuration asks for.

    Raises
    ------
    InputError
        If the intermediate code has a form that is not known.
    """
    arguments = spec.arguments_of(config)
    defaults = {one.name: one.default for one in spec.kernel.params if one.has_default}
    scalars: dict[str, Any] = {
        name: value for name, value in {**defaults, **arguments}.items() if isinstance(value, int | float)
    }
    tables = {name: one.values for name, one in arguments.items() if isinstance(one, Tensor) and one.values is not None}
    try:
        return asked_of(_read(compiled.ttir), scalars, spec.grid(config), tables)
    except ValueError as error:
        raise InputError(f"{spec.name}: can't count what it does: {error}") from None
