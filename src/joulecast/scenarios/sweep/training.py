"""Evaluates points of training: recipes, batches, layouts, clocks and limits of one model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from joulecast.coefficients.schema import PROVENANCES
from joulecast.errors import JoulecastError, UnknownNameError, shortened
from joulecast.gpus import Gpu, load_gpu
from joulecast.lowering.recipe import Recipe
from joulecast.scenarios.footprint import Site, checked_site
from joulecast.scenarios.sweep.chunk import Chunk, Reasons
from joulecast.scenarios.sweep.footprints import add_footprint, footprint_figures
from joulecast.scenarios.sweep.sensitivity import At, Elasticity, elasticities
from joulecast.scenarios.sweep.settings import (
    CLOCKS,
    LIMITS,
    SET,
    change_axes,
    clocks_of,
    described_axes,
    gpu_axis,
    limits_of,
    spread,
)
from joulecast.scenarios.sweep.space import Share, Space, axis
from joulecast.scenarios.sweep.store import coefficients_in_use
from joulecast.scenarios.training.prediction import PARTS, TrainingPrediction
from joulecast.scenarios.training.question import LAYOUT, MODEL, RECIPE, RUN, forward_pass, told_apart
from joulecast.scenarios.training.train import train
from joulecast.workloads.table import Workload

#: Axes whose values share a step of one micro-batch: they turn fastest, clocks and limits last.
_SHARED = ("pp", "zero", "shard_group", "schedule", "chunks", "gpus", "gpus_per_node", "node_link_gb_s", "accumulate",
           "global_batch", "input_samples_per_s", "clock_mhz", "power_limit_w")  # fmt: skip

#: Axes that change how much a step does.
_WORK = ("micro_batch", "sequence_tokens", "image_size", "gpus", "tp", "pp", "cp", "accumulate", "global_batch")

_RUN = tuple(name for name in RUN if name not in ("changes", "site", "scales", "ignore_memory", "exclude"))

#: Options of which one value is a list.
_LISTS = ("lora_targets", "stage_layers")

OPTIONS = (*MODEL, *RECIPE, *LAYOUT, *_RUN)

_WORDS = ("communication", "bubble", "input", "host", *(f"GPU, {name}" for name in PARTS[:4]))
BOUND_WORDS = (*_WORDS, *(f"{word}, cap" for word in _WORDS))

_FIGURES = (
    "time_s", "time_s_lower", "time_s_upper", "power_w", "power_w_lower", "power_w_upper", "energy_j",
    "energy_j_lower", "energy_j_upper", "clock_asked_mhz", "power_limit_w", "step_time_s", "step_energy_j", "clock_mhz",
    "throttled", "bound_by", "tokens_per_s", "energy_per_token_j", "edp_js", "ed2p_js2", "mfu", "hfu",
    "samples_per_step", "micro_batches", "communication_share", "bubble_share", "memory_needed_gb",
    "memory_available_gb", "gpu_count",
)  # fmt: skip


@dataclass(frozen=True)
class TrainingEvaluator:
    """Points of ``joulecast sweep --train``.

    Attributes
    ----------
    source : str, Path, Workload, mapping or list
    space : Space
        ``gpu``, fields of it (``set.sm_count``) and any of `OPTIONS`; those that share a step of one micro-batch turn
        fastest.
    site : Site
    ignore_memory : bool
    """

    source: Any
    space: Space
    site: Site = Site()  # noqa: RUF009 - frozen
    ignore_memory: bool = False
    _opened: dict[Any, Workload] = field(default_factory=dict, repr=False, compare=False)

    def __reduce__(self) -> Any:
        return TrainingEvaluator, (self.source, self.space, self.site, self.ignore_memory)

    @property
    def words(self) -> Mapping[str, Sequence[str]]:
        """Columns that hold codes, with what these mean."""
        return {"bound_by": BOUND_WORDS, "provenance": PROVENANCES, "power_provenance": PROVENANCES}

    @property
    def unit(self) -> int:
        """Points that share a step of one micro-batch."""
        sizes = [len(one.values) for one in self.space.axes if one.name in _SHARED]
        return int(np.prod(sizes)) if sizes else 1

    @property
    def figures(self) -> tuple[str, ...]:
        """Names of the figures of each point."""
        return (*_FIGURES, "provenance", "power_provenance", *footprint_figures(self.site))

    @property
    def asked(self) -> tuple[str, ...]:
        """Axes along which points do different work: all that change a step, where no length of the run is given."""
        names = [one.name for one in self.space.axes]
        if set(names) & {"steps", "samples", "tokens"}:
            return ()
        return tuple(name for name in names if name in _WORK)

    def options_at(self, point: int) -> dict[str, Any]:
        """What is asked at a point, the GPU among it, as it is set there."""
        places = self.space.codes(np.array([point], dtype=np.int64))
        found = {one.name: one.values[int(places[one.name][0])] for one in self.space.axes}
        changes = {name.removeprefix(SET): found.pop(name) for name in list(found) if name.startswith(SET)}
        if changes:
            found["gpu"] = load_gpu(found["gpu"], changes)
        for name, resolved in (("clock_mhz", clocks_of), ("power_limit_w", limits_of)):
            if isinstance(found[name], Share):
                found[name] = float(resolved([found[name]], load_gpu(found["gpu"]))[0][0])
        return {name: value for name, value in found.items() if value is not None}

    def predicted(self, point: int) -> TrainingPrediction:
        """A point as `joulecast.train` tells it.

        Raises
        ------
        JoulecastError
            If it can't be run.
        """
        asked = self.options_at(point)
        gpu = asked.pop("gpu")
        model, recipe, layout, run = told_apart(asked)
        return train(self.opened(model, recipe), gpu, recipe, layout, ignore_memory=self.ignore_memory, **run)

    def opened(self, model: Mapping[str, Any], recipe: Recipe) -> Workload:
        """The forward pass of a model as it is asked for; kept, for the next point."""
        key = (recipe.precision, *sorted(model.items()))
        if key not in self._opened:
            self._opened[key] = forward_pass(self.source, model, recipe)
        return self._opened[key]

    def evaluate(self, start: int, stop: int) -> Chunk:
        """Figures of the points from `start` to before `stop`."""
        n = stop - start
        reasons = Reasons(n)
        columns: dict[str, npt.NDArray[Any]] = {name: np.full(n, np.nan) for name in self.figures}
        columns["throttled"] = np.zeros(n, dtype=np.bool_)
        for name in (*self.words, "gpu_count"):
            columns[name] = np.zeros(n, dtype=np.int64)
        for row in range(n):
            try:
                found = self.predicted(start + row)
            except JoulecastError as error:
                reasons.say(np.array([row]), _without_numbers(error))
                continue
            for name, value in _figures(found).items():
                columns[name][row] = value
        add_footprint(columns, np.flatnonzero(reasons.codes == 0), self.site)
        columns["reason"] = reasons.codes
        return Chunk(start, columns, tuple(reasons.known))


def _without_numbers(error: JoulecastError) -> str:
    """The reason of a point, alike for points that differ in figures alone."""
    text = str(error)
    if " does not fit " in text:
        return text.partition(" by ")[0]
    return shortened(text, 160)


def _figures(p: TrainingPrediction) -> dict[str, Any]:
    runs = p.steps or 1.0
    time_s, energy_j = p.step_time_s * runs, p.step_energy_j * runs
    bounds = {
        f"{name}_{end}": value * (1.0 if name == "power_w" else runs) * (p.gpus if name == "power_w" else 1.0)
        for name in ("time_s", "power_w", "energy_j")
        for end, value in zip(("lower", "upper"), p.interval(name), strict=True)
    }
    tokens = p.global_batch * p.tokens_per_sample * runs
    return {
        **bounds,
        "time_s": time_s,
        "power_w": p.power_w * p.gpus,
        "energy_j": energy_j,
        "step_time_s": p.step_time_s,
        "step_energy_j": p.step_energy_j,
        "clock_mhz": p.clock_mhz,
        "throttled": p.throttled,
        "bound_by": BOUND_WORDS.index(p.bound_by),
        "tokens_per_s": p.tokens_per_s,
        "energy_per_token_j": energy_j / tokens,
        "edp_js": energy_j * time_s,
        "ed2p_js2": energy_j * time_s**2,
        "mfu": p.mfu,
        "hfu": p.hfu,
        "samples_per_step": p.global_batch,
        "micro_batches": p.micro_batches,
        "communication_share": p.parts_s["communication"] / p.step_time_s,
        "bubble_share": p.parts_s["bubble"] / p.step_time_s,
        "memory_needed_gb": p.memory.needed_gb,
        "memory_available_gb": p.memory.available_gb,
        "gpu_count": p.gpus,
        "clock_asked_mhz": p.info["clock_asked_mhz"],
        "power_limit_w": p.info["power_limit_w"],
        "provenance": max(PROVENANCES.index(one) for name, one in p.provenance.items() if name != "power"),
        "power_provenance": PROVENANCES.index(p.provenance["power"]),
    }


def elasticities_of_training(evaluator: TrainingEvaluator, point: int) -> tuple[Elasticity, ...]:
    """What 1 % more of each number of the hardware changes in a step at a point."""
    asked = evaluator.options_at(point)
    gpu = load_gpu(asked.pop("gpu"))
    here = evaluator.predicted(point).info
    layout = told_apart(asked)[2]
    others = {name: asked.get(name) for name in ("host_us_per_launch", "input_samples_per_s")}
    if layout.nodes > 1:
        others["node_link_gb_s"] = layout.link_gb_s(gpu)

    def ask(gpu: Gpu, **changed: Any) -> tuple[float, float, float]:
        model, recipe, its, run = told_apart({**asked, **changed})
        found = train(evaluator.opened(model, recipe), gpu, recipe, its, **{**run, "ignore_memory": True})
        return found.step_time_s, found.step_energy_j, found.power_w

    return elasticities(At(gpu, here["clock_asked_mhz"], here["power_limit_w"], others), ask)


def training(
    source: Any,
    *,
    gpu: Any,
    changes: Mapping[str, Any] | None = None,
    site: Site | None = None,
    ignore_memory: bool = False,
    **options: Any,
) -> TrainingEvaluator:
    """The points of a sweep over training, ready to be evaluated; each option one value or several.

    Parameters
    ----------
    source : str, Path, Workload, mapping or list
        As for `joulecast.train`.
    gpu : str, Path, Gpu, or several
    changes : mapping, optional
        Fields of the GPU to one value or several.
    site : Site, optional
        For money and carbon.
    ignore_memory : bool
        Price what does not fit all the same.
    **options
        Any of `OPTIONS`, one value or several.

    Returns
    -------
    TrainingEvaluator

    Raises
    ------
    InputError
        For what no point could use: an unknown model, GPU or option, no values, too many points.
    """
    for name in options:
        if name not in OPTIONS:
            raise UnknownNameError("option of train", name, OPTIONS)
    first = gpu_axis(gpu)
    given = {name: value for name, value in options.items() if value is not None}
    slow = [axis(name, _values(name, value)) for name, value in given.items() if name not in _SHARED]
    always = {"clock_mhz": CLOCKS, "power_limit_w": LIMITS}
    given |= {name: spread(given[name], count) for name, count in always.items() if name in given}
    fast = [axis(name, _values(name, given.get(name))) for name in _SHARED if name in given or name in always]
    space = Space((first, *change_axes(changes), *slow, *fast)).checked()
    evaluator = TrainingEvaluator(source, space, checked_site(site), ignore_memory)
    _checked(evaluator)
    return evaluator


def _values(name: str, value: Any) -> Any:
    """A list that is one value stays one; several of them are a list of lists."""
    if name not in _LISTS or value is None or isinstance(value, str):
        return value
    of_lists = all(isinstance(one, list | tuple) for one in value)
    return [tuple(one) for one in value] if of_lists else [tuple(value)]


def _checked(evaluator: TrainingEvaluator) -> None:
    """Refuse options that no point could use: each value must make a recipe, a layout or a workload by itself."""
    for one in evaluator.space.axes:
        if one.name == "gpu" or one.name.startswith(SET) or one.name in LAYOUT:
            continue
        for value in one.values:
            if value is not None and not isinstance(value, Share):
                told_apart({one.name: value})
    asked = evaluator.options_at(0)
    asked.pop("gpu")
    model, recipe, _, _ = told_apart({name: value for name, value in asked.items() if name not in LAYOUT})
    forward_pass(evaluator.source, model, recipe)


def description(evaluator: TrainingEvaluator) -> dict[str, Any]:
    """All that the answers follow from, as plain values: what a folder of chunks must agree with."""
    return {
        "sweep": "training",
        "source": repr(evaluator.source),
        **described_axes(evaluator.space),
        "site": repr(evaluator.site),
        "ignore_memory": evaluator.ignore_memory,
        "coefficients": coefficients_in_use(),
    }
