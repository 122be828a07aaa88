"""A whole model: which operators take its energy, and what tuning those that matter would save of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from joulecast.errors import InfeasibleError, InputError
from joulecast.gpus import Gpu, load_gpu
from joulecast.scenarios.inference import predict_workload
from joulecast.scenarios.prediction import Prediction
from joulecast.tuning.kernel import tune_kernel
from joulecast.tuning.log import key_of
from joulecast.tuning.operators import operator
from joulecast.tuning.result import TuningResult
from joulecast.workloads.kinds import plain_op
from joulecast.workloads.sources import open_workload

SCHEMA = "joulecast.tune-model/1"

#: Format of weights that the built-in kernels compute in, by our name of it.
_DTYPES = {"fp16": "fp16", "bf16": "bf16", "w16": "bf16"}

_REDUCTIONS = ("softmax", "rms_norm", "layer_norm")


@dataclass(frozen=True)
class Part:
    """Operations of a model that are alike.

    Attributes
    ----------
    kind : str
        Kind of operation, as `joulecast.workloads.kinds` names it.
    operator : str
        Built-in operator that computes it; empty where there is none.
    sizes : mapping
        Of the operator.
    why : str
        Why it was not tuned; empty where it was.
    phases : tuple of str
    launches, time_s, energy_j : float
        Over the whole run, one GPU. [1, s, J]
    """

    kind: str
    operator: str
    sizes: Mapping[str, Any]
    why: str
    phases: tuple[str, ...]
    launches: float
    time_s: float
    energy_j: float


@dataclass(frozen=True)
class Gain:
    """A part that was tuned.

    Attributes
    ----------
    part : Part
    found : TuningResult
        With the operator's default configuration among its points.
    energy_ratio, time_ratio : float
        Of the chosen over the default configuration of the same kernel.
    over_fastest : float
        Energy of the chosen over that of the fastest.
    """

    part: Part
    found: TuningResult
    energy_ratio: float
    time_ratio: float
    over_fastest: float


@dataclass(frozen=True)
class ModelTuning:
    """What tuning a model's operators comes to.

    Attributes
    ----------
    model, gpu : str
    time_s, energy_j : float
        Of the model as `joulecast.predict` gives them. [s, J]
    parts : tuple of Part
        By energy, the most first.
    gains : tuple of Gain
    failed : mapping of str to str
        Operators that could not be tuned, with why.
    measured : bool
        Whether a meter measured the kernels.
    info : mapping
        Of the question, as `joulecast.scenarios.prediction.Prediction` has it.
    """

    model: str
    gpu: str
    time_s: float
    energy_j: float
    parts: tuple[Part, ...]
    gains: tuple[Gain, ...]
    failed: Mapping[str, str] = field(default_factory=dict)
    measured: bool = False
    info: Mapping[str, Any] = field(default_factory=dict)

    @property
    def saved_j(self) -> float:
        """Energy that the tuned parts save of their own, against the defaults of the same kernels. [J]"""
        return sum(gain.part.energy_j * (1.0 - gain.energy_ratio) for gain in self.gains)

    @property
    def saved_over_fastest_j(self) -> float:
        """The same against the fastest configurations: what choosing by energy instead of time saves. [J]"""
        return sum(gain.part.energy_j * (1.0 - gain.over_fastest) for gain in self.gains)

    @property
    def tuned_share(self) -> float:
        """Share of the model's energy in what was tuned."""
        return sum(gain.part.energy_j for gain in self.gains) / self.energy_j

    @property
    def verdict(self) -> str:
        """The answer in a line."""
        how = "measured" if self.measured else "predicted, not measured"
        if not self.gains:
            return "nothing was tuned: no operator that matters has a kernel here"
        return (
            f"{how}: tuned kernels take {self.saved_j / self.energy_j:.1%} less of the model's energy than default "
            f"tiles, {self.saved_over_fastest_j / self.energy_j:.1%} less than the fastest"
        )

    def to_dict(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        gains = {id(gain.part): gain for gain in self.gains}
        rows = []
        for part in self.parts:
            gain = gains.get(id(part))
            row: dict[str, Any] = {
                "kind": part.kind, "operator": part.operator or None, "sizes": dict(part.sizes),
                "why_not": part.why or None, "phases": list(part.phases), "launches": part.launches,
                "time_s": part.time_s, "energy_j": part.energy_j, "share": part.energy_j / self.energy_j,
            }  # fmt: skip
            if gain is not None:
                row |= {
                    "chosen": dict(gain.found.chosen), "fastest": dict(gain.found.fastest),
                    "energy_over_default": gain.energy_ratio, "time_over_default": gain.time_ratio,
                    "energy_over_fastest": gain.over_fastest,
                }  # fmt: skip
            rows.append(row)
        return {
            "schema": SCHEMA, "model": self.model, "gpu": self.gpu, "measured": self.measured,
            "question": dict(self.info), "verdict": self.verdict, "time_s": self.time_s, "energy_j": self.energy_j,
            "saved_j": self.saved_j, "saved_over_fastest_j": self.saved_over_fastest_j, "tuned_share": self.tuned_share,
            "operators": rows, "failed": dict(self.failed),
        }  # fmt: skip


def tune_model(
    source: Any,
    gpu: str | Gpu,
    *,
    top: int = 4,
    least_share: float = 0.02,
    configs: int = 40,
    slack: float = 0.02,
    meter: Any = "model",
    cache: str | os.PathLike[str] | None = None,
    workers: int = 0,
    timeout_s: float = 60.0,
    check: str = "winners",
    seed: int = 0,
    tell: Callable[[str, float], None] | None = None,
    **request: Any,
) -> ModelTuning:
    """List the operators of a model by energy, tune those that matter, and say what the whole gains.

    Parameters
    ----------
    source : str, Path or mapping
        As `joulecast.predict` takes it.
    gpu : str or Gpu
    top : int
        Operators that are tuned at most.
    least_share : float
        Share of the model's energy below which an operator is not tuned.
    configs, slack, meter, cache, workers, timeout_s, check, seed, tell
        Of `joulecast.tuning.kernel.tune_kernel`, for each operator.
    **request
        Of the model: ``batch``, ``prompt_tokens``, ``generate_tokens``, ``dtype``.

    Returns
    -------
    ModelTuning

    Raises
    ------
    InputError
        For anything that can't be used as given.

    Notes
    -----
    The ratio of two configurations of one kernel is applied to the energy that `joulecast.predict` gives the
    operator, whose kernel is the framework's own. Whether a Triton kernel beats that one is another question.
    """
    if top < 1 or not 0.0 <= least_share < 1.0:
        raise InputError("top is 1 or more, and least_share a share below 1, such as 0.02")
    described = load_gpu(gpu)
    predicted = predict_workload(open_workload(source, **request), described)
    parts = parts_of(predicted)
    matter = [part for part in parts if part.operator and part.energy_j >= least_share * predicted.energy_j]
    wanted = matter[:top]
    left_out = {True: f"beyond the first {top}", False: f"takes less than {least_share:.0%}"}
    parts = [
        part if part.why or part in wanted else replace(part, why=left_out[part in matter]) for part in parts
    ]  # fmt: skip
    gains, failed = [], {}
    for number, part in enumerate(wanted):

        def heard(what: str, share: float, number: int = number, part: Part = part) -> None:
            if tell is not None:
                tell(f"{part.operator}: {what}", (number + share) / len(wanted))

        try:
            gains.append(_tuned(part, described, {
                "configs": configs, "slack": slack, "meter": meter, "cache": cache, "workers": workers,
                "timeout_s": timeout_s, "check": check, "seed": seed, "tell": heard,
                "residency": "stream",
            }))  # fmt: skip
        except InfeasibleError as error:
            failed[f"{part.operator} {_text(part.sizes)}"] = str(error)
    measured = bool(gains) and all(gain.found.facts.name != "model" for gain in gains)
    return ModelTuning(
        predicted.workload, predicted.gpu, predicted.time_s, predicted.energy_j, tuple(parts), tuple(gains), failed,
        measured, predicted.info,
    )  # fmt: skip


def _tuned(part: Part, gpu: Gpu, options: Mapping[str, Any]) -> Gain:
    spec = operator(part.operator, **part.sizes)
    found = tune_kernel(spec, gpu, baseline=spec.baseline, **options)
    by = {key_of(point.config): point for point in found.points}
    chosen, default, fastest = (by[key_of(one)] for one in (found.chosen, found.baseline, found.fastest))
    energies = [chosen.energy_j, default.energy_j, fastest.energy_j]
    if energies[2] is None:  # of a measured search that never read it
        energies[2] = energies[0]
    mine, theirs, quickest = (float(one) for one in energies if one is not None)
    return Gain(part, found, mine / theirs, chosen.time_s / default.time_s, mine / quickest)


def parts_of(predicted: Prediction) -> list[Part]:
    """Operations of a prediction, those that a built-in operator computes alike put together, by energy."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    rows = predicted.kernels
    columns = [rows[name].tolist() for name in ("op", "shape", "phase", "launches", "time_s", "energy_j")]
    for kind, shape, phase, launches, time_s, energy_j in zip(*columns, strict=True):
        told = dict(word.partition("=")[::2] for word in str(shape).split())
        name, sizes, why = operator_for(str(kind), told)
        key = (name, tuple(sorted(sizes.items()))) if name else (str(kind), why)
        one = found.setdefault(key, {"kind": kind, "operator": name, "sizes": sizes, "why": why, "phases": {},
                                     "launches": 0.0, "time_s": 0.0, "energy_j": 0.0})  # fmt: skip
        one["phases"][phase] = None
        for figure, value in (("launches", launches), ("time_s", time_s), ("energy_j", energy_j)):
            one[figure] += value
    parts = [Part(**{**one, "phases": tuple(one["phases"])}) for one in found.values()]
    return sorted(parts, key=lambda part: -part.energy_j)


def operator_for(kind: str, told: Mapping[str, str]) -> tuple[str, dict[str, Any], str]:
    """Built-in operator, its sizes, and why there is none, for an operation of a kind and its columns as text."""
    dtype = _DTYPES.get(told.get("dtype", told.get("attn_dtype", "bf16")))
    if dtype is None:
        return "", {}, f"no kernel here computes in {told.get('dtype', told.get('attn_dtype'))}"

    def size(name: str, default: int = 1) -> int:
        return round(float(told.get(name, default)))

    if kind in ("gemm", "batched_gemm"):
        m, n, k, batch = size("m"), size("n"), size("k"), size("batch")
        if batch > 1:
            return "batched_matmul", {"batch": batch, "m": m, "n": n, "k": k, "dtype": dtype}, ""
        if m == 1:
            return "gemv", {"n": n, "k": k, "dtype": dtype}, ""
        return "matmul", {"m": m, "n": n, "k": k, "dtype": dtype}, ""
    if kind in ("context_attention", "generation_attention"):
        heads: dict[str, Any] = {
            "batch": size("batch_size"), "heads": size("num_heads"), "key_heads": size("num_kv_heads"),
            "head_dim": size("head_dim"), "dtype": dtype,
        }  # fmt: skip
        odd = size("value_dim", heads["head_dim"]) != heads["head_dim"] or size("window_size", 0) > 0
        if odd or heads["head_dim"] not in (16, 32, 64, 128, 256):
            return "", {}, "no attention kernel here has windows or such heads"
        if told.get("kv_cache_dtype", "bf16") not in _DTYPES:
            return "", {}, f"no kernel here reads a cache in {told['kv_cache_dtype']}"
        if kind == "context_attention":
            if size("past_len", 0):
                return "", {}, "no prefill kernel here goes on from a cache"
            return "attention_prefill", {**heads, "tokens": size("query_len")}, ""
        cached = size("past_len", 0) + size("query_len")
        # A cache grows token by token: kernels are tuned for the next power of two.
        return "attention_decode", {**heads, "cached": 1 << max(cached - 1, 0).bit_length()}, ""
    if kind == "row_reduction" and plain_op(told.get("op", "")) in _REDUCTIONS and size("inputs") == 1:
        return plain_op(told["op"]), {"rows": size("rows"), "columns": size("dim"), "dtype": dtype}, ""
    if kind == "conv2d":
        return _convolution(size, told, dtype)
    return "", {}, f"no kernel here computes {kind.replace('_', ' ')}"


def _convolution(size: Callable[..., Any], told: Mapping[str, str], dtype: str) -> tuple[str, dict[str, Any], str]:
    square = size("kernel_h") == size("kernel_w", int(size("kernel_h")))
    if size("groups") > 1 or size("dilation") > 1 or not square or told.get("channels_last") != "1":
        return "", {}, "no kernel here for grouped, dilated or channels-first convolutions"
    return "conv", {
        "batch": size("batch_size"), "channels": size("in_channels"), "filters": size("out_channels"),
        "height": size("height"), "width": size("width"), "kernel": size("kernel_h"), "stride": size("stride"),
        "padding": size("padding", 0), "dtype": dtype,
    }, ""  # fmt: skip


def _text(sizes: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in sizes.items())
