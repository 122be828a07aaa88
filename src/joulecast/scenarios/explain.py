"""What bounds a run, and what small changes to it would save: the same question asked again with one thing changed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from joulecast.bounds.ranges import number
from joulecast.errors import InputError, JoulecastError

#: What a change asks of the one who makes it, cheapest first.
EFFORTS = ("GPU setting", "software", "batch or layout", "numerics")

#: Savings of energy below this share are within what a prediction can't tell.
LEAST_SAVING = 0.01


@dataclass(frozen=True)
class Outcome:
    """A run as far as changes are compared.

    Attributes
    ----------
    time_s, energy_j : float
        [s, J]
    work : float
        What the run gets done: tokens, images, samples.
    bound_by : mapping of str to float
        Share of the time by what bounds it.
    """

    time_s: float
    energy_j: float
    work: float
    bound_by: Mapping[str, float]

    @property
    def time_each_s(self) -> float:
        """Time for each unit of work. [s]"""
        return self.time_s / self.work

    @property
    def energy_each_j(self) -> float:
        """Energy for each unit of work. [J]"""
        return self.energy_j / self.work


@dataclass(frozen=True)
class Change:
    """One thing to do otherwise.

    Attributes
    ----------
    lever : str
        What is changed; of several values of one lever the best is told.
    says : str
        The change in words.
    options : mapping
        Options of the question that change.
    effort : int
        Index into `EFFORTS`.
    caution : str
        What to beware of; empty for nothing.
    """

    lever: str
    says: str
    options: Mapping[str, Any]
    effort: int
    caution: str = ""


@dataclass(frozen=True)
class Advice:
    """A change with what it gives.

    Attributes
    ----------
    change : Change
    outcome : Outcome
    time_ratio, energy_ratio : float
        Time and energy for each unit of work, over those without the change.
    """

    change: Change
    outcome: Outcome
    time_ratio: float
    energy_ratio: float


@dataclass(frozen=True)
class Explanation:
    """What bounds a run, and what would save energy.

    Attributes
    ----------
    base : Outcome
    advice : tuple of Advice
        Changes that save at least `LEAST_SAVING` within the slack, cheapest first, then by saving.
    tried : int
        Changes that were asked for.
    refused : mapping of str to str
        Changes that can't be made, with why.
    """

    base: Outcome
    advice: tuple[Advice, ...]
    tried: int
    refused: Mapping[str, str]


def explain(
    ask: Callable[[Mapping[str, Any]], Outcome], changes: Iterable[Change], *, slack: float = 0.05
) -> Explanation:
    """Ask the question as it is and with each change, and tell what saves.

    Parameters
    ----------
    ask : callable
        ``(options that change) -> Outcome``.
    changes : iterable of Change
    slack : float
        Share by which a unit of work may take longer.

    Returns
    -------
    Explanation

    Raises
    ------
    InputError
        If `slack` is negative, or the question itself can't be answered.
    """
    slack = number(slack, "slack")
    if not 0 <= slack <= 10:
        raise InputError(f"slack must be between 0 and 10, such as 0.05 for 5 %, got {slack:g}")
    base = ask({})
    best: dict[str, Advice] = {}
    refused: dict[str, str] = {}
    tried = 0
    for change in changes:
        tried += 1
        try:
            outcome = ask(change.options)
        except JoulecastError as error:
            refused[change.says] = str(error)
            continue
        found = Advice(
            change, outcome, outcome.time_each_s / base.time_each_s, outcome.energy_each_j / base.energy_each_j
        )
        if found.time_ratio > 1 + slack or found.energy_ratio > 1 - LEAST_SAVING:
            continue
        held = best.get(change.lever)
        if held is None or found.energy_ratio < held.energy_ratio:
            best[change.lever] = found
    advice = sorted(best.values(), key=lambda one: (one.change.effort, one.energy_ratio))
    return Explanation(base, tuple(advice), tried, refused)


def gpu_changes(limits_w: Iterable[float], clocks_mhz: Iterable[float]) -> list[Change]:
    """Lower power limits and clocks."""
    caps = [Change("power limit", f"power limit {watts:.0f} W", {"power_limit_w": watts}, 0) for watts in limits_w]
    locks = [Change("clock", f"clock {mhz:.0f} MHz", {"clock_mhz": mhz}, 0) for mhz in clocks_mhz]
    return caps + locks


def inference_changes(asked: Mapping[str, Any], batch: int, formats: Iterable[str]) -> list[Change]:
    """What may be changed of an inference.

    Parameters
    ----------
    asked : mapping
        Options of the question, as `joulecast.predict` takes them.
    batch : int
        Sequences or images at once.
    formats : iterable of str
        Narrower formats of weights that the GPU computes in.
    """
    out: list[Change] = []
    mode = asked.get("launch_mode", "eager")
    for name, says in (("compiled", "compile the model"), ("cuda_graph", "compile it, CUDA graphs")):
        if ("eager", "compiled", "cuda_graph").index(mode) < ("eager", "compiled", "cuda_graph").index(name):
            out.append(Change("launches", says, {"launch_mode": name}, 1))
    if asked.get("attention") == "eager":
        out.append(Change("attention", "fused attention", {"attention": "fused"}, 1))
    if asked.get("engine", "pytorch") == "pytorch" and mode != "cuda_graph":
        options = {"engine": "vllm", "launch_mode": "cuda_graph"}
        out.append(Change("engine", "a serving engine (vLLM), CUDA graphs", options, 1))
    out += [
        Change("batch", f"batch {batch * times}", {"batch": batch * times}, 2, "each answer takes longer")
        for times in (2, 4, 8)
    ]
    out += [
        Change("weights", f"weights in {name}", {"weight_dtype": name}, 3, "check the answers' quality")
        for name in formats
    ]
    return out


def training_changes(asked: Mapping[str, Any], micro_batch: int) -> list[Change]:
    """What may be changed of a training run.

    Parameters
    ----------
    asked : mapping
        Options of the question, as `joulecast.train` takes them.
    micro_batch : int
        Samples at once on a GPU.
    """
    out: list[Change] = []
    precision = asked.get("precision", "amp_bf16")
    narrower = {
        "fp32": ("tf32", "amp_bf16", "bf16"), "tf32": ("amp_bf16", "bf16"), "amp_fp16": ("bf16", "fp8"),
        "amp_bf16": ("bf16", "fp8"), "bf16": ("fp8",),
    }  # fmt: skip
    out += [
        Change("precision", f"precision {name}", {"precision": name}, 3, "check that it converges alike")
        for name in narrower.get(precision, ())
    ]
    if asked.get("launch_mode", "eager") == "eager":
        out.append(Change("launches", "compile the model", {"launch_mode": "compiled"}, 1))
    if asked.get("update", "fused") != "fused":
        out.append(Change("update", "a fused optimizer", {"update": "fused"}, 1))
    if asked.get("attention") == "eager":
        out.append(Change("attention", "fused attention", {"attention": "fused"}, 1))
    less = {"full": ("selective", "none"), "selective": ("none",)}
    out += [
        Change("checkpointing", f"checkpointing {name}", {"checkpointing": name}, 1)
        for name in less.get(asked.get("checkpointing", "none"), ())
    ]
    total = asked.get("global_batch")
    for times in (2, 4):
        fits = total is None or int(total) % (micro_batch * times) == 0
        if fits:
            caution = "" if total is not None else "the batch of an update grows with it"
            options = {"micro_batch": micro_batch * times}
            out.append(Change("micro-batch", f"micro-batch {micro_batch * times}", options, 2, caution))
    for name in ("tp", "pp"):
        degree = int(asked.get(name) or 1)
        if degree > 1:
            out.append(Change(name, f"{name} {degree // 2}", {name: degree // 2}, 2))
    if int(asked.get("gpus") or 1) > 1 and int(asked.get("zero") or 0) == 3:
        out.append(Change("sharding", "zero 1 (weights whole on each GPU)", {"zero": 1}, 2))
    return out
