"""Evaluates points of inference: GPU, what-ifs, way of running, workload, host, clock and limit, many at once."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from joulecast.coefficients.schema import PROVENANCES
from joulecast.errors import InputError
from joulecast.gpus import Gpu, load_gpu
from joulecast.lowering.execution import Execution
from joulecast.lowering.lower import Lowered, for_gpu
from joulecast.physics.timeline import Passes
from joulecast.scenarios.footprint import Site, account
from joulecast.scenarios.memory import memory_need
from joulecast.scenarios.pricing import host_of, passes_of, priced_rows, tokens_out
from joulecast.scenarios.sweep.chunk import Chunk, Reasons
from joulecast.scenarios.sweep.merged import Merged, compact, merged
from joulecast.scenarios.sweep.settings import clocks_of, limits_of
from joulecast.scenarios.sweep.settle import BOUND_WORDS, Phases, settled
from joulecast.scenarios.sweep.space import Space
from joulecast.workloads.sources import open_workload
from joulecast.workloads.table import Workload

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.intp]

SET = "set."
EXECUTION = tuple(one.name for one in fields(Execution))
RUN = ("host_us_per_launch", "clock_mhz", "power_limit_w")

#: Figures that `joulecast.scenarios.sweep.settle.settled` gives.
_SETTLED = (
    *(f"{name}{end}" for name in ("time_s", "power_w", "energy_j") for end in ("", "_lower", "_upper")),
    "clock_mhz", "throttled", "bound_by", "idle_share",
)  # fmt: skip

#: Operations of workloads that are priced together.
_ROWS_AT_ONCE = 20_000

#: Operations of lowered workloads that are remembered, for the next GPU.
_ROWS_KEPT = 400_000


@dataclass
class _Kept:
    """What was made before: opened and lowered workloads, GPUs."""

    lowered: OrderedDict[Any, Lowered | str] = field(default_factory=OrderedDict)
    rows: int = 0
    gpus: OrderedDict[Any, Gpu | str] = field(default_factory=OrderedDict)


@dataclass(frozen=True)
class InferenceEvaluator:
    """Points of ``joulecast sweep``.

    Attributes
    ----------
    source : str, Path, Workload, mapping or list
        What is swept.
    space : Space
        Its axes, slowest first: ``gpu``, fields of it (``set.sm_count``), fields of `Execution`, what is asked of the
        model, then `RUN`.
    site : Site
        For money and carbon.
    ignore_memory : bool
        Whether points that do not fit are priced all the same.
    """

    source: Any
    space: Space
    site: Site = Site()  # noqa: RUF009 - frozen
    ignore_memory: bool = False
    _kept: _Kept = field(default_factory=_Kept, repr=False, compare=False)

    def __reduce__(self) -> Any:
        return InferenceEvaluator, (self.source, self.space, self.site, self.ignore_memory)

    @property
    def words(self) -> Mapping[str, Sequence[str]]:
        """Columns that hold codes, with what these mean."""
        return {"bound_by": BOUND_WORDS, "provenance": PROVENANCES, "power_provenance": PROVENANCES}

    def evaluate(self, start: int, stop: int) -> Chunk:
        """Figures of the points from `start` to before `stop`."""
        n = stop - start
        codes = self.space.codes(np.arange(start, stop, dtype=np.int64))
        outer = self.space.part(self._names(lambda name: name not in self.asked and name not in RUN[1:]), codes)
        reasons = Reasons(n)
        columns: dict[str, npt.NDArray[Any]] = {name: np.full(n, np.nan) for name in _columns(self.site)}
        columns["throttled"] = np.zeros(n, dtype=np.bool_)
        for name in (*self.words, "gpu_count"):
            columns[name] = np.zeros(n, dtype=np.int16)
        cuts = np.flatnonzero(np.diff(outer, prepend=outer[0] - 1, append=outer[-1] + 1))
        for first, last in pairwise(cuts):
            self._alike(np.arange(first, last), codes, columns, reasons)
        columns["reason"] = reasons.codes
        return Chunk(start, columns, tuple(reasons.known))

    @property
    def asked(self) -> tuple[str, ...]:
        """Axes of what is asked of the model."""
        return self._names(lambda name: name not in (*EXECUTION, *RUN, "gpu") and not name.startswith(SET))

    def _names(self, wanted: Callable[[str], bool]) -> tuple[str, ...]:
        return tuple(axis.name for axis in self.space.axes if wanted(axis.name))

    def _values(self, names: Sequence[str], codes: Mapping[str, Any], row: int) -> dict[str, Any]:
        found = {name: self.space.axis(name).values[codes[name][row]] for name in names}
        return {name: value for name, value in found.items() if value is not None}

    def _alike(self, rows: Ints, codes: Mapping[str, Ints], columns: dict[str, Any], reasons: Reasons) -> None:
        """Points of one GPU, one way of running and one host."""
        gpu = self._gpu(codes, int(rows[0]))
        if isinstance(gpu, str):
            reasons.say(rows, gpu)
            return
        how = self._values(self._names(lambda name: name in EXECUTION), codes, int(rows[0]))
        try:
            execution = Execution(**how)
        except InputError as error:
            reasons.say(rows, str(error))
            return
        columns["gpu_count"][rows] = execution.gpu_count
        for name, resolved in (("clock_mhz", clocks_of), ("power_limit_w", limits_of)):
            values, wrong, why = resolved(self.space.axis(name).values, gpu)
            columns[_ASKED[name]][rows] = values[codes[name][rows]]
            reasons.say(rows[wrong[codes[name][rows]]], why)
        which = (
            self.space.part(self.asked, {name: codes[name][rows] for name in self.asked}) if self.asked else rows * 0
        )
        _, firsts, workload = np.unique(which, return_index=True, return_inverse=True)
        questions = [self._lowered(execution, codes, int(rows[first])) for first in firsts]
        fitting: list[tuple[int, Lowered]] = []
        for place, lowered in enumerate(questions):
            its = rows[workload == place] if len(questions) > 1 else rows
            if isinstance(lowered, str):
                reasons.say(its, lowered)
                continue
            need = memory_need(lowered.workload, gpu, execution)
            columns["memory_needed_gb"][its], columns["memory_available_gb"][its] = need.needed_gb, need.available_gb
            columns["tokens_out"][its] = tokens_out(lowered.workload)
            if need.fits or self.ignore_memory:
                fitting.append((place, lowered))
            else:
                reasons.say(its, f"does not fit the memory of {gpu.name.split('+')[0]}")
        host = self._values(("host_us_per_launch",), codes, int(rows[0])).get("host_us_per_launch")
        while fitting:
            block, fitting = _block(fitting)
            self._priced(block, gpu, execution, host, rows, workload, columns, reasons)

    def _priced(
        self, block: list[tuple[int, Lowered]], gpu: Gpu, execution: Execution, host: float | None,
        rows: Ints, workload: Ints, columns: dict[str, Any], reasons: Reasons,
    ) -> None:  # fmt: skip
        """Points of some workloads, priced together; those that can't be are told apart by halves."""
        places = np.array([place for place, _ in block])
        its = rows[np.isin(workload, places) & (reasons.codes[rows] == 0)]
        if not its.size:
            return
        try:
            together = merged([lowered for _, lowered in block])
            ready = for_gpu(together.lowered, gpu)
            priced = priced_rows(ready, gpu)
        except InputError as error:
            if len(block) == 1:
                reasons.say(its, str(error))
                return
            for half in (block[: len(block) // 2], block[len(block) // 2 :]):
                self._priced(half, gpu, execution, host, rows, workload, columns, reasons)
            return
        costs = host_of(gpu, host)
        passes = replace(passes_of(ready, priced, np.arange(len(priced.priced)), costs), phase_of=together.phase_of)
        phases = Phases(priced, together.workload_of, execution, gpu)
        place = np.searchsorted(places, workload[its - rows[0]])
        found = settled(phases, passes, place, columns["clock_asked_mhz"][its], columns["power_limit_w"][its])
        for name, column in found.items():
            columns[name][its] = column
        columns["provenance"][its] = _worst(together, passes, priced.priced.provenance)[place]
        columns["power_provenance"][its] = PROVENANCES.index(priced.priced.power.provenance)
        _add_derived(columns, its, self.site)

    def _gpu(self, codes: Mapping[str, Ints], row: int) -> Gpu | str:
        """The GPU of a point, or why there is none."""
        names = self._names(lambda name: name == "gpu" or name.startswith(SET))
        values = self._values(names, codes, row)
        key = tuple(values.items())
        kept = self._kept.gpus
        if key not in kept:
            changes = {name.removeprefix(SET): value for name, value in values.items() if name != "gpu"}
            try:
                kept[key] = load_gpu(values["gpu"], changes)
            except InputError as error:
                kept[key] = str(error)
            if len(kept) > 64:
                kept.popitem(last=False)
        return kept[key]

    def _lowered(self, execution: Execution, codes: Mapping[str, Ints], row: int) -> Lowered | str:
        """The workload of a point, opened and lowered for any GPU, or why it can't be."""
        values = self._values(self.asked, codes, row)
        key = (execution, *values.items())
        kept = self._kept
        if key not in kept.lowered:
            try:
                lowered: Lowered | str = compact(self.open(values), execution)
            except InputError as error:
                lowered = str(error)
            kept.lowered[key] = lowered
            kept.rows += _rows(lowered)
            while kept.rows > _ROWS_KEPT and len(kept.lowered) > 1:
                kept.rows -= _rows(kept.lowered.popitem(last=False)[1])
        return kept.lowered[key]

    def open(self, asked: Mapping[str, Any]) -> Workload:
        """The workload of what is asked of the model."""
        return open_workload(self.source, **asked)


_ASKED = {"clock_mhz": "clock_asked_mhz", "power_limit_w": "power_limit_w"}


def _columns(site: Site) -> tuple[str, ...]:
    money = ("cost",) if site.price_per_kwh is not None else ()
    carbon = ("carbon_g_co2e",) if site.g_co2e_per_kwh is not None else ()
    return (
        "clock_asked_mhz", "power_limit_w", *_SETTLED, "tokens_out", "tokens_per_s", "energy_per_token_j", "edp_js",
        "ed2p_js2", "memory_needed_gb", "memory_available_gb", *money, *carbon,
    )  # fmt: skip


def _add_derived(columns: dict[str, Any], rows: Ints, site: Site) -> None:
    """Figures that follow from time, energy and tokens."""
    time_s, energy_j, tokens = (columns[name][rows] for name in ("time_s", "energy_j", "tokens_out"))
    columns["tokens_per_s"][rows] = tokens / time_s
    columns["energy_per_token_j"][rows] = energy_j / np.maximum(tokens, 1e-300)
    columns["edp_js"][rows] = energy_j * time_s
    columns["ed2p_js2"][rows] = energy_j * time_s**2
    if site.price_per_kwh is not None or site.g_co2e_per_kwh is not None:
        counted = account(energy_j, time_s, site, gpu_count=columns["gpu_count"][rows])
        if counted.cost is not None:
            columns["cost"][rows] = counted.cost
        if counted.carbon_g_co2e is not None:
            columns["carbon_g_co2e"][rows] = counted.carbon_g_co2e


def _rows(lowered: Lowered | str) -> int:
    return 1 if isinstance(lowered, str) else 20 + sum(len(table) for table in lowered.tables.values())


def _block(parts: list[tuple[int, Lowered]]) -> tuple[list[tuple[int, Lowered]], list[tuple[int, Lowered]]]:
    """The first of `parts` that are priced together, and the others."""
    total = 0
    for end, (_, lowered) in enumerate(parts):
        total += _rows(lowered)
        if end and total > _ROWS_AT_ONCE:
            return parts[:end], parts[end:]
    return parts, []


def _worst(together: Merged, passes: Passes, provenance: Ints) -> Ints:
    """The least certain provenance of each workload's times."""
    workload = together.workload_of[together.phase_of[passes.pass_of]]
    worst = np.zeros(int(together.workload_of[-1]) + 1, dtype=np.intp)
    np.maximum.at(worst, workload, provenance)
    return worst
