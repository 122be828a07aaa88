"""`triton_autotune`: as ``triton.autotune``, with energy as its objective."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from joulecast.errors import InfeasibleError, InputError
from joulecast.meters.judge import judged
from joulecast.meters.reading import Meter
from joulecast.tuning.kernelspec import need_triton

#: Of calls. Not their identities: Python gives those of what is gone anew, and meters know kernels by name.
_NUMBERS = itertools.count(1)

#: Launches between two looks at the clock of the device where no graph can be captured.
_LAUNCHES = 64


class Score(float):
    """What a configuration came to: compares by the outcome of the whole race, which is known when all have run."""

    race: Race
    time_s: float
    energy_j: float

    @classmethod
    def of(cls, race: Race, time_s: float, energy_j: float) -> Score:
        """A score in a race; as a number it is what is minimised."""
        made = cls(energy_j if race.objective == "energy" else time_s)
        made.race, made.time_s, made.energy_j = race, time_s, energy_j
        race.scores.append(made)
        return made

    def _rank(self) -> tuple[int, float]:
        return (0, 0.0) if self is self.race.winner() else (1, float(self))

    def __lt__(self, other: object) -> bool:
        if isinstance(other, Score) and other.race is self.race:
            return self._rank() < other._rank()
        return float(self) < float(other)  # type: ignore[arg-type]

    def __gt__(self, other: object) -> bool:
        if isinstance(other, Score) and other.race is self.race:
            return self._rank() > other._rank()
        return float(self) > float(other)  # type: ignore[arg-type]

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Score):
            return self is other
        return float(self) == other

    def __hash__(self) -> int:
        return id(self)


class Race:
    """The configurations of one tuning.

    Parameters
    ----------
    objective : str
        ``energy`` or ``time``.
    slack : float
        How much slower than the fastest a configuration may be. [share]
    close : float
        Share of energy that readings can't tell apart; among configurations so near the fastest wins.
    """

    def __init__(self, objective: str, slack: float, close: float) -> None:
        self.objective, self.slack, self.close = objective, slack, close
        self.scores: list[Score] = []

    @property
    def fastest_s(self) -> float:
        """Shortest time so far; infinity before one ran. [s]"""
        return min((one.time_s for one in self.scores), default=math.inf)

    def winner(self) -> Score | None:
        """Of least energy within the slack of the fastest, or the fastest of those that can't be told from it."""
        if not self.scores:
            return None
        if self.objective == "time":
            return min(self.scores, key=lambda one: one.time_s)
        limit = self.fastest_s * (1.0 + self.slack)
        eligible = [one for one in self.scores if one.time_s <= limit and math.isfinite(one.energy_j)]
        if not eligible:
            return min(self.scores, key=lambda one: one.time_s)
        least = min(one.energy_j for one in eligible)
        return min((one for one in eligible if one.energy_j <= least * (1.0 + self.close)), key=lambda one: one.time_s)


class CallLoad:
    """A `joulecast.meters.reading.Load` of a call that launches a kernel: a CUDA graph where one can be captured."""

    def __init__(self, call: Callable[[], Any], torch: Any = None, name: str = "a kernel") -> None:
        self._call, self._torch, self._graph = call, torch, None
        self._name = f"{name} {next(_NUMBERS)}"
        if torch is not None:
            call()
            torch.cuda.synchronize()
            try:
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    for _ in range(_LAUNCHES):
                        call()
                self._graph = graph
            except RuntimeError:  # something in the call can't be captured: launched one by one
                torch.cuda.synchronize()

    @property
    def name(self) -> str:
        """Of the kernel, with this call's own number: readings of calls are never mixed."""
        return self._name

    def launches_of(self, launches: int) -> int:
        """Launches of whole graphs."""
        return math.ceil(launches / _LAUNCHES) * _LAUNCHES if self._graph is not None else launches

    def run(self, launches: int) -> float | None:
        """Launch so many; time by the device's events, None without a device. [s]"""
        if self._torch is None:
            for _ in range(launches):
                self._call()
            return None
        cuda = self._torch.cuda
        begin, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
        begin.record()
        if self._graph is not None:
            for _ in range(self.launches_of(launches) // _LAUNCHES):
                self._graph.replay()
        else:
            for _ in range(launches):
                self._call()
        end.record()
        cuda.synchronize()
        return float(begin.elapsed_time(end)) * 1e-3


class EnergyBench:
    """A ``do_bench`` for ``triton.autotune``.

    Parameters
    ----------
    objective, slack, close
        As `Race`.
    meter : Meter or None
        None for NVML's.
    timer : callable or None
        Takes a call, gives the time of a launch; None for ``triton.testing.do_bench``. [s]
    readings : int
        Of energy for each configuration; their median counts.
    timing : mapping
        Of ``triton.testing.do_bench``: ``warmup`` and ``rep``.
    """

    def __init__(
        self, objective: str = "energy", slack: float = 0.02, close: float = 0.01, meter: Meter | None = None,
        timer: Callable[[Callable[[], Any]], float] | None = None, readings: int = 3,
        timing: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        if objective not in ("energy", "time"):
            raise InputError(f"the objective is energy or time, not {objective!r}")
        if not 0.0 <= slack <= 10.0 or not 0.0 <= close < 1.0 or readings < 1:
            raise InputError("slack and close are shares such as 0.02, and readings is 1 or more")
        self.objective, self.slack, self.close = objective, slack, close
        self._meter, self._timer, self._readings = meter, timer, readings
        self._timing = dict(timing or {})
        self._ready = False
        self.refused: list[str] = []
        self.new_race()

    def new_race(self) -> None:
        """What is benchmarked from here on is compared with itself alone."""
        self.race = Race(self.objective, self.slack, self.close)

    def __call__(self, call: Callable[[], Any], quantiles: Sequence[float] = (0.5, 0.2, 0.8)) -> list[Score]:
        """Benchmark one configuration; energy is read only where its time is within the slack of the best so far."""
        time_s = self._time(call)
        energy = math.inf
        if self.objective == "energy" and time_s <= self.race.fastest_s * (1.0 + self.slack):
            energy = self._energy(call)
        score = Score.of(self.race, time_s, energy)
        return [score] * len(quantiles)

    def _time(self, call: Callable[[], Any]) -> float:
        if self._timer is not None:
            return float(self._timer(call))
        import triton.testing

        return float(triton.testing.do_bench(call, return_mode="median", **self._timing)) * 1e-3

    def _energy(self, call: Callable[[], Any]) -> float:
        torch = None
        if self._meter is None:
            from joulecast.meters.nvml import cuda_device, nvml_meter
            from joulecast.tuning.gpu_load import need_gpu

            torch = need_gpu()
            self._meter = nvml_meter(cuda_device(torch))
        elif self._timer is None:
            from joulecast.tuning.gpu_load import need_gpu

            torch = need_gpu()
        load = CallLoad(call, torch)
        if not self._ready:
            self._meter.prepare(load)
            self._ready = True
        good = []
        for _ in range(3 * self._readings):
            reading = judged(self._meter.read(load), self._meter.facts)
            if reading.refused:
                self.refused.append(reading.refused)
            else:
                good.append(reading.energy_j)
            if len(good) == self._readings:
                return sorted(good)[len(good) // 2]
        raise InfeasibleError(f"the meter's readings are refused: {self.refused[-1]}")


def triton_autotune(
    configs: Sequence[Any], key: Sequence[str], *, objective: str = "energy", slack: float = 0.02,
    close: float = 0.01, meter: Meter | None = None, timer: Callable[[Callable[[], Any]], float] | None = None,
    readings: int = 3, **options: Any,
) -> Callable[[Any], Any]:  # fmt: skip
    """A drop-in for ``triton.autotune`` that chooses by energy.

    Parameters
    ----------
    configs, key
        As for ``triton.autotune``.
    objective : str
        ``energy`` (default) or ``time``.
    slack : float
        How much slower than the fastest a configuration may be. [share]
    close : float
        Share of energy that readings can't tell apart; among configurations so near the fastest wins.
    meter : Meter, optional
        Default NVML's energy counter, over windows of a second and more.
    timer : callable, optional
        Takes a call, gives the time of a launch. [s]
    readings : int
        Of energy for each configuration within the slack.
    **options
        Others of ``triton.autotune``, such as ``prune_configs_by``; ``warmup`` and ``rep`` are of the timer. Nothing is
        kept in Triton's cache of results, where energies would be taken for times.

    Returns
    -------
    callable
        A decorator.

    Raises
    ------
    InputError
        For values that can't be used, or a Triton whose ``autotune`` takes no ``do_bench``.

    Notes
    -----
    A choice, not a claim: whether it saves is for `joulecast.tune`, which measures the winner again.
    """
    triton = need_triton()
    if "do_bench" in options:
        raise InputError("triton_autotune brings its own do_bench: give timer and meter instead")
    if options.get("cache_results"):
        raise InputError("cache_results keeps no energies: leave it out, and keep winners with joulecast.tune")
    timing = {name: options.pop(name) for name in ("warmup", "rep") if options.get(name) is not None}
    options.pop("use_cuda_graph", None)  # energy is read over a graph wherever one can be captured
    bench = EnergyBench(objective, slack, close, meter, timer, readings, timing)
    try:
        decorate = triton.autotune(configs=list(configs), key=list(key), do_bench=bench, **options)
    except TypeError as error:
        raise InputError(f"this Triton's autotune does not take these options: {error}") from None

    def decorated(kernel: Any) -> Any:
        tuner = decorate(kernel)
        if tuner.do_bench is not bench:
            raise InputError("this Triton's autotune brings a do_bench of its own with these options: leave them out")
        tuner.cache_results = False  # which TRITON_CACHE_AUTOTUNING asks for
        run = tuner.run

        def run_in_a_race(*args: Any, **given: Any) -> Any:
            bench.new_race()  # sizes of another key are compared among themselves
            return run(*args, **given)

        tuner.run = run_in_a_race
        tuner.energy_bench = bench
        return tuner

    return decorated
