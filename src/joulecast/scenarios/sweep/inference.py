"""Evaluates points of inference: GPU, what-ifs, way of running, workload, host, clock and limit, many at once."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from joulecast.coefficients.forecasts import forecasting
from joulecast.coefficients.schema import PROVENANCES
from joulecast.errors import InputError
from joulecast.gpus import Gpu, load_gpu
from joulecast.gpus.state import running_at
from joulecast.lowering.execution import Execution, share_of_batch
from joulecast.lowering.lower import for_gpu
from joulecast.physics.timeline import Passes
from joulecast.scenarios.footprint import Site
from joulecast.scenarios.memory import memory_need, without_operations
from joulecast.scenarios.pricing import host_of, passes_of, priced_rows, tokens_out
from joulecast.scenarios.sweep.chunk import Chunk, Reasons
from joulecast.scenarios.sweep.footprints import add_footprint, footprint_figures
from joulecast.scenarios.sweep.merged import Merged, merged
from joulecast.scenarios.sweep.settings import SET, clocks_of, limits_of
from joulecast.scenarios.sweep.settle import BOUND_WORDS, Phases, settled
from joulecast.scenarios.sweep.space import Space
from joulecast.workloads.sources import open_workload
from joulecast.workloads.table import Workload

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.intp]

EXECUTION = tuple(one.name for one in fields(Execution))
RUN = ("host_us_per_launch", "clock_mhz", "power_limit_w")

#: What a GPU runs at beside its core clock; points that share it are priced together.
STATE = ("memory_clock_mhz", "temperature_c")

#: Figures that `joulecast.scenarios.sweep.settle.settled` gives.
_SETTLED = (
    *(f"{name}{end}" for name in ("time_s", "power_w", "energy_j") for end in ("", "_lower", "_upper")),
    "clock_mhz", "throttled", "bound_by", "idle_share",
)  # fmt: skip

#: Workloads that are opened, lowered and priced together.
_TOGETHER = 32

#: Points that a unit of a sweep has at most.
_UNIT = 4096

#: Operations of lowered workloads that are remembered, for the next GPU.
_ROWS_KEPT = 300_000


@dataclass(frozen=True)
class _Block:
    """Workloads without their tables (texts where there is none), and all of them lowered as one."""

    first: int
    workloads: list[Workload | str]
    merged: Merged

    @property
    def rows(self) -> int:
        """Its operations."""
        return 100 + sum(len(table) for table in self.merged.lowered.tables.values())


@dataclass
class _Kept:
    """What was made before: lowered workloads, GPUs."""

    blocks: OrderedDict[Any, _Block] = field(default_factory=OrderedDict)
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
        Its axes, slowest first: ``gpu``, fields of it (``set.sm_count``), `STATE`, fields of `Execution`, what is
        asked of the model, then `RUN`.
    site : Site
        For money and carbon.
    ignore_memory : bool
        Whether points that do not fit are priced all the same.
    forecast_from : str, optional
        As for `joulecast.predict`.
    """

    source: Any
    space: Space
    site: Site = Site()  # noqa: RUF009 - frozen
    ignore_memory: bool = False
    forecast_from: str | None = None
    _kept: _Kept = field(default_factory=_Kept, repr=False, compare=False)

    def __reduce__(self) -> Any:
        return InferenceEvaluator, (self.source, self.space, self.site, self.ignore_memory, self.forecast_from)

    @property
    def words(self) -> Mapping[str, Sequence[str]]:
        """Columns that hold codes, with what these mean."""
        return {"bound_by": BOUND_WORDS, "provenance": PROVENANCES, "power_provenance": PROVENANCES}

    @property
    def unit(self) -> int:
        """Points that are priced together: all workloads of a GPU, else as many as are lowered together, else one."""
        clocks = math.prod(len(self.space.axis(name).values) for name in RUN[1:])
        workloads = math.prod(len(self.space.axis(name).values) for name in self.asked)
        return next((one for one in (workloads * clocks, _TOGETHER * clocks) if one <= _UNIT), clocks)

    @property
    def figures(self) -> tuple[str, ...]:
        """Names of the figures of each point."""
        return _columns(self.site)

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
        with forecasting(self.forecast_from):
            for first, last in pairwise(cuts):
                self._alike(np.arange(first, last), codes, columns, reasons)
        columns["reason"] = reasons.codes
        return Chunk(start, columns, tuple(reasons.known))

    @property
    def asked(self) -> tuple[str, ...]:
        """Axes of what is asked of the model."""
        return self._names(lambda name: name not in (*EXECUTION, *RUN, *STATE, "gpu") and not name.startswith(SET))

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
        host = self._values(("host_us_per_launch",), codes, int(rows[0])).get("host_us_per_launch")
        asked = (
            self.space.part(self.asked, {name: codes[name][rows] for name in self.asked}) if self.asked else rows * 0
        )
        for number in np.unique(asked // _TOGETHER).tolist():
            these = asked // _TOGETHER == number
            block = self._block(execution, number)
            self._fitted(block, gpu, execution, rows[these], asked[these] % _TOGETHER, columns, reasons)
            self._priced(block, gpu, execution, host, rows[these], asked[these] % _TOGETHER, columns, reasons)

    def _fitted(
        self, block: _Block, gpu: Gpu, execution: Execution, rows: Ints, place: Ints, columns: dict[str, Any],
        reasons: Reasons,
    ) -> None:  # fmt: skip
        """What the workloads of points need of memory; those that can't be run say why."""
        count, replicas = len(block.workloads), execution.dp * execution.microbatches
        needed, available, tokens = np.full((3, count), np.nan)
        unfit = np.zeros(count, dtype=np.bool_)
        for one in np.unique(place).tolist():
            workload = block.workloads[one]
            if one in block.merged.reasons or isinstance(workload, str):
                reasons.say(rows[place == one], block.merged.reasons[one])
                continue
            need = memory_need(workload, gpu, execution)
            needed[one], available[one] = need.needed_gb, need.available_gb
            tokens[one] = tokens_out(workload) * replicas
            unfit[one] = not (need.fits or self.ignore_memory)
        columns["memory_needed_gb"][rows], columns["memory_available_gb"][rows] = needed[place], available[place]
        columns["tokens_out"][rows] = tokens[place]
        reasons.say(rows[unfit[place]], f"does not fit the memory of {gpu.plain_name}")

    def _priced(
        self, block: _Block, gpu: Gpu, execution: Execution, host: float | None, rows: Ints, place: Ints,
        columns: dict[str, Any], reasons: Reasons,
    ) -> None:  # fmt: skip
        """Points of workloads that are priced together; those that can't be are told apart one by one."""
        free = reasons.codes[rows] == 0
        rows, place = rows[free], place[free]
        if not rows.size:
            return
        together = block.merged
        try:
            ready = for_gpu(together.lowered, gpu)
            priced = priced_rows(ready, gpu)
        except InputError as error:
            for one in np.unique(place).tolist():
                if len(together.places) == 1:
                    reasons.say(rows, str(error))
                    return
                its = place == one
                part = _Block(block.first + one, block.workloads[one : one + 1],
                              merged([self._opened(block.first + one, execution)], execution))  # fmt: skip
                self._priced(part, gpu, execution, host, rows[its], place[its] * 0, columns, reasons)
            return
        costs = host_of(gpu, host)
        passes = replace(passes_of(ready, priced, np.arange(len(priced.priced)), costs), phase_of=together.phase_of)
        phases = Phases(priced, together.workload_of, execution, gpu, costs.provenance)
        workload = np.array([together.places.get(one, -1) for one in range(len(block.workloads))])[place]
        found = settled(phases, passes, workload, columns["clock_asked_mhz"][rows], columns["power_limit_w"][rows])
        for name, column in found.items():
            columns[name][rows] = column
        columns["provenance"][rows] = _worst(together, passes, priced.priced.provenance)[workload]
        columns["power_provenance"][rows] = PROVENANCES.index(priced.priced.power.provenance)
        _add_derived(columns, rows, self.site)

    def _gpu(self, codes: Mapping[str, Ints], row: int) -> Gpu | str:
        """The GPU of a point, or why there is none."""
        names = self._names(lambda name: name in ("gpu", *STATE) or name.startswith(SET))
        values = self._values(names, codes, row)
        key = tuple(values.items())
        kept = self._kept.gpus
        if key not in kept:
            try:
                kept[key] = gpu_at(values)
            except InputError as error:
                kept[key] = str(error)
            if len(kept) > 64:
                kept.popitem(last=False)
        return kept[key]

    def _block(self, execution: Execution, number: int) -> _Block:
        """Workloads that follow one another in the space, opened and lowered together."""
        kept, key = self._kept.blocks, (execution, number)
        if key not in kept:
            first, last = number * _TOGETHER, math.prod(len(self.space.axis(name).values) for name in self.asked)
            workloads = [self._opened(one, execution) for one in range(first, min(first + _TOGETHER, last))]
            kept[key] = _Block(first, [one if isinstance(one, str) else without_operations(one) for one in workloads],
                               merged(workloads, execution))  # fmt: skip
            self._kept.rows += kept[key].rows
            while self._kept.rows > _ROWS_KEPT and len(kept) > 1:
                self._kept.rows -= kept.popitem(last=False)[1].rows
        return kept[key]

    def _opened(self, number: int, execution: Execution) -> Workload | str:
        """A workload by its number among all that are asked of the model, or why it can't be."""
        places = (
            np.unravel_index(number, tuple(len(self.space.axis(name).values) for name in self.asked))
            if self.asked
            else ()
        )
        values = {name: self.space.axis(name).values[place] for name, place in zip(self.asked, places, strict=True)}
        try:
            return self.open({name: value for name, value in values.items() if value is not None}, execution)
        except InputError as error:
            return str(error)

    def open(self, asked: Mapping[str, Any], execution: Execution) -> Workload:
        """The workload of what is asked of the model: its batch is divided over replicas and microbatches."""
        parts = execution.dp * execution.microbatches
        if asked.get("batch") is not None and parts > 1 and not isinstance(self.source, Workload):
            asked = {**asked, "batch": share_of_batch(asked["batch"], execution.dp, execution.microbatches)}
        return open_workload(self.source, **asked)


def gpu_at(values: Mapping[str, Any]) -> Gpu:
    """The GPU of a point: ``gpu``, fields of it, and `STATE`, as far as they are given."""
    changes = {name.removeprefix(SET): value for name, value in values.items() if name.startswith(SET)}
    return running_at(load_gpu(values["gpu"], changes), **{name: values.get(name) for name in STATE})


_ASKED = {"clock_mhz": "clock_asked_mhz", "power_limit_w": "power_limit_w"}


def _columns(site: Site) -> tuple[str, ...]:
    return (
        "clock_asked_mhz", "power_limit_w", *_SETTLED, "tokens_out", "tokens_per_s", "energy_per_token_j", "edp_js",
        "ed2p_js2", "memory_needed_gb", "memory_available_gb", *footprint_figures(site),
    )  # fmt: skip


def _add_derived(columns: dict[str, Any], rows: Ints, site: Site) -> None:
    """Figures that follow from time, energy and tokens."""
    time_s, energy_j, tokens = (columns[name][rows] for name in ("time_s", "energy_j", "tokens_out"))
    counted = np.where(tokens > 0, tokens, np.nan)
    columns["tokens_per_s"][rows] = counted / time_s
    columns["energy_per_token_j"][rows] = energy_j / counted
    columns["edp_js"][rows] = energy_j * time_s
    columns["ed2p_js2"][rows] = energy_j * time_s**2
    add_footprint(columns, rows, site)


def _worst(together: Merged, passes: Passes, provenance: Ints) -> Ints:
    """The least certain provenance of each workload's times."""
    workload = together.workload_of[together.phase_of[passes.pass_of]]
    worst = np.zeros(int(together.workload_of[-1]) + 1, dtype=np.intp)
    np.maximum.at(worst, workload, provenance)
    return worst
