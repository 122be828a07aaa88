"""Triton kernels behind the evaluator's interface: compiled here, priced by physics or run on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from typing import Any

import numpy as np
import numpy.typing as npt

from joulecast.errors import InfeasibleError
from joulecast.gpus import Gpu
from joulecast.meters.reading import Meter, MeterFacts, Reading
from joulecast.tuning.aot.built import Built, Refused, Report, build
from joulecast.tuning.aot.cache import Cache
from joulecast.tuning.aot.targets import limits_of
from joulecast.tuning.correctness import NOT_TESTED, PATIENCE, TOO_LONG, constants_key, interpreted
from joulecast.tuning.evaluator import Check
from joulecast.tuning.kernelspec import KernelSpec, need_triton
from joulecast.tuning.log import key_of
from joulecast.tuning.pricing import Prices, prices
from joulecast.tuning.space import Config

Floats = npt.NDArray[np.float64]

#: Names of the columns of `TritonEvaluator.features`, all in base-2 logarithms.
FEATURES = (
    "registers", "shared memory", "resident blocks", "blocks", "waves", "instructions a warp", "matrix instructions",
    "shared bytes", "load width", "bytes read", "bytes written", "barriers", "trips", "predicted time",
    "predicted power", "DRAM bytes",
)  # fmt: skip


@dataclass
class TritonEvaluator:
    """One kernel on one GPU.

    Attributes
    ----------
    spec : KernelSpec
    gpu : Gpu
        Compiled for, and priced on.
    cache : Cache
    meter : Meter or None
        None for the model meter.
    torch : module or None
        With a CUDA device, where a meter measures.
    clock_mhz, power_limit_w : float or None
        That are asked for. [MHz, W]
    residency : str
        As `joulecast.tuning.pricing.prices` takes it.
    checks : str
        Whether each configuration is tested against the reference as it is built: ``all`` or ``none``.
    workers : int
        Processes that compile; 0 for one a processor.
    timeout_s : float
        Processor time for one compilation, and for one test in the interpreter. [s]
    tell : callable
        Takes what is being done and the share that is done.
    """

    spec: KernelSpec
    gpu: Gpu
    cache: Cache
    meter: Meter | None = None
    torch: Any = None
    clock_mhz: float | None = None
    power_limit_w: float | None = None
    residency: str = "loop"
    checks: str = "none"
    workers: int = 0
    timeout_s: float = 60.0
    tell: Callable[[str, float], None] = lambda what, share: None  # noqa: ARG005
    report: Report = field(default_factory=Report)

    def __post_init__(self) -> None:
        self._limits = limits_of(self.gpu)
        self._built: dict[str, Built | Refused] = {}
        self._prices: dict[str, tuple[float, float, float, float, bool, str, float, float]] = {}
        self._load: tuple[str, Any] | None = None
        self._prepared = False
        self._verdicts: dict[str, str | None] = {}

    @property
    def question(self) -> Mapping[str, Any]:
        """Kernel, source, sizes, device, clock policy, meter and versions."""
        return {
            "kernel": self.spec.name, "source": self.spec.source_hash, "problem": dict(self.spec.problem),
            "dtype": self.spec.dtype, "device": self.facts.device, "clock_mhz": self.clock_mhz or "default",
            "power_limit_w": self.power_limit_w or "default", "residency": self.residency, "checks": self.checks,
            "meter": self.facts.name, "triton": str(need_triton().__version__),
        }  # fmt: skip

    @property
    def facts(self) -> MeterFacts:
        """Of the meter."""
        if self.meter is not None:
            return self.meter.facts
        triton = str(need_triton().__version__)
        return MeterFacts(
            "model", self.gpu.name, "compiled code priced by physics: predicted, not measured",
            self.power_limit_w or self.gpu.power_limit_default_w, None, 0.0,
            (("joulecast", version("joulecast")), ("triton", triton)),
        )  # fmt: skip

    def at(self, clock_mhz: float | None, power_limit_w: float | None) -> TritonEvaluator:
        """The same kernels priced at another clock and limit, None for those of this one; nothing is built again."""
        made = replace(
            self,
            clock_mhz=self.clock_mhz if clock_mhz is None else clock_mhz,
            power_limit_w=self.power_limit_w if power_limit_w is None else power_limit_w,
        )
        made._built = self._built
        return made

    def built(self, configs: Sequence[Config]) -> list[Built | Refused]:
        """Each of `configs`, compiled and counted."""
        missing = {key_of(config): config for config in configs if key_of(config) not in self._built}
        if missing:
            found, report = build(
                self.spec, self._limits, list(missing.values()), cache=self.cache, workers=self.workers,
                timeout_s=self.timeout_s, tell=self.tell,
            )  # fmt: skip
            self._built.update(zip(missing, found, strict=True))
            self._add(report)
        held = [self._built[key_of(config)] for config in configs]
        unpriced = [one for one in held if isinstance(one, Built) and key_of(one.config) not in self._prices]
        if unpriced:
            self._price(unpriced)
        return held

    def check(self, configs: Sequence[Config]) -> list[Check]:
        """Pruned, compiled and, where asked for, tested against the reference."""
        found = self.built(configs)
        ready = [one for one in found if isinstance(one, Built)]
        verdicts: dict[str, str] = {}
        if self.checks == "all" and ready and self.spec.reference is not None:
            verdicts = {key_of(config): told or "" for config, told in self.verified([one.config for one in ready])}
        checks = []
        for one in found:
            if isinstance(one, Refused):
                checks.append(Check(False, one.stage, one.reason))
                continue
            told = verdicts.get(key_of(one.config), "")
            named = dict(zip(FEATURES, self._row(one), strict=True))
            checks.append(Check(not told, "correctness" if told else "", told, named))
        return checks

    def verified(self, configs: Sequence[Config]) -> list[tuple[Config, str | None]]:
        """Each of `configs` with what is wrong with its result: empty where right, None without a reference."""
        if self.spec.reference is None:
            return [(config, None) for config in configs]
        if self.torch is None:
            new = {constants_key(self.spec, config): config for config in configs}
            new = {key: config for key, config in new.items() if key not in self._verdicts}
            if new:
                told = interpreted(self.spec, list(new.values()), self.timeout_s)
                self._verdicts.update(zip(new, told, strict=True))
            return [(config, self._verdicts[constants_key(self.spec, config)]) for config in configs]
        from joulecast.tuning.gpu_load import right_on_gpu

        return [(config, right_on_gpu(self.spec, config, self.torch)) for config in configs]

    @property
    def endless(self) -> str:
        """Why every test so far came to no end, once all, or `PATIENCE` of them, did; else empty."""
        told = list(self._verdicts.values())
        tested = {constants_key(self.spec, one.config) for one in self._built.values() if isinstance(one, Built)}
        ended = [why for why in told if why and why.startswith((TOO_LONG, NOT_TESTED))]
        return ended[0] if len(ended) == len(told) >= min(PATIENCE, len(tested)) > 0 else ""

    def latency(self, config: Config, count: int) -> Floats:
        """Times of launches. [s]"""
        if self.torch is None:
            return np.full(count, self._price_of(config)[0])
        try:
            return np.array(self._loaded(config).times_s(count))
        except InfeasibleError:
            return np.zeros(0)

    def energy(self, config: Config, count: int) -> list[Reading]:
        """Readings of the meter; the model's are all the same."""
        if self.meter is None:
            time_s, power_w, energy_j, clock, throttled = self._price_of(config)[:5]
            assert power_w > 0
            return [Reading(energy_j, time_s, time_s, clock_mhz=clock, throttled=throttled)] * count
        load = self._loaded(config)
        if not self._prepared:
            self.meter.prepare(load)
            self._prepared = True
        return [self.meter.read(load) for _ in range(count)]

    def features(self, configs: Sequence[Config]) -> Floats | None:
        """Numbers of the compiled kernels, columns as `FEATURES`; zeros for those that can't be launched."""
        found = self.built(configs)
        return np.array([self._row(one) if isinstance(one, Built) else [0.0] * len(FEATURES) for one in found])

    def prior(self, configs: Sequence[Config]) -> tuple[Floats, Floats] | None:
        """Predicted time and power; infinite time for those that can't be launched. [s, W]"""
        found = self.built(configs)
        rows = [self._price_of(one.config)[:2] if isinstance(one, Built) else (np.inf, 1.0) for one in found]
        return np.array([row[0] for row in rows]), np.array([row[1] for row in rows])

    def told(self, config: Config) -> Mapping[str, Any]:
        """Predicted figures and what bounds a configuration, for reports."""
        names = ("time_s", "power_w", "energy_j", "clock_mhz", "throttled", "bound_by", "waves", "dram_bytes")
        return dict(zip(names, self._price_of(config), strict=True))

    def _loaded(self, config: Config) -> Any:
        key = key_of(config)
        if self._load is None or self._load[0] != key:
            from joulecast.tuning.gpu_load import GraphLoad

            self._load = None  # its memory first
            self._load = (key, GraphLoad(self.spec, config, self.torch))
        return self._load[1]

    def _price_of(self, config: Config) -> tuple[float, float, float, float, bool, str, float, float]:
        if key_of(config) not in self._prices and isinstance(self.built([config])[0], Refused):
            raise InfeasibleError(f"{dict(config)} can't be launched")
        return self._prices[key_of(config)]

    def _price(self, ready: Sequence[Built]) -> None:
        found: Prices = prices(
            self.spec, self.gpu, ready, clock_mhz=self.clock_mhz, power_limit_w=self.power_limit_w,
            residency=self.residency,
        )  # fmt: skip
        for place, one in enumerate(ready):
            self._prices[key_of(one.config)] = (
                float(found.time_s[place]), float(found.power_w[place]), float(found.energy_j[place]),
                float(found.clock_mhz[place]), bool(found.throttled[place]), found.bound_by[place],
                float(found.waves[place]), float(found.dram_bytes[place]),
            )  # fmt: skip

    def _row(self, one: Built) -> list[float]:
        run, asked, price = one.dynamic.counts, one.asked, self._prices[key_of(one.config)]
        loads = run.global_loads + run.async_copies
        width = (run.global_load_bytes + run.async_copy_bytes) / loads if loads else 0.0
        values = (
            one.compiled.code.registers, one.compiled.shared_bytes, one.resident, one.blocks, price[6],
            run.instructions, run.matrix, run.shared_bytes, width, sum(asked.read_bytes.values()),
            sum(asked.written_bytes.values()), run.barriers, sum(one.dynamic.trips), price[0] * 1e9, price[1], price[7],
        )  # fmt: skip
        return [float(np.log2(value + 1.0)) for value in values]

    def _add(self, report: Report) -> None:
        mine = self.report
        mine.pruned, mine.cached = mine.pruned + report.pruned, mine.cached + report.cached
        mine.compiled, mine.failed = mine.compiled + report.compiled, mine.failed + report.failed
        mine.compile_s += report.compile_s
        mine.reasons.update(report.reasons)
