"""A serving benchmark beside the prediction of it, metric by metric."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from joulecast.coefficients.engines import NEWEST, NONE, EngineSteps, engine_steps, load_engine_steps
from joulecast.coefficients.transfer import power_coefficients
from joulecast.errors import InputError, UnknownNameError
from joulecast.gpus import Gpu, load_gpu
from joulecast.lowering.execution import Execution
from joulecast.physics.power import static_power_w
from joulecast.scenarios.inference import predict_workload
from joulecast.scenarios.prediction import PhasePrediction, Prediction
from joulecast.validation.serving_files import METRICS, ServingResult
from joulecast.workloads.sources import open_workload

#: Tokens that come in one piece on the average, from which a reader is told that they do.
_SEVERAL = 1.15


@dataclass(frozen=True)
class Comparison:
    """Prediction and measurement of one run.

    Attributes
    ----------
    result : ServingResult
        With what was missing filled in.
    gpu : str
    batch : int
        Sequences at once that were priced.
    predicted, spread : mapping of str to float
        By metric: the figure, and half its 90 % interval relative to it.
    notes : tuple of str
        What the prediction leaves out.
    server : str
        Version of the engine whose own code is in it, or ``none``.
    """

    result: ServingResult
    gpu: str
    batch: int
    predicted: Mapping[str, float]
    spread: Mapping[str, float]
    notes: tuple[str, ...]
    server: str = NONE

    def rows(self) -> list[dict[str, Any]]:
        """One row a metric: ``metric``, ``unit``, ``predicted``, its interval, ``measured``, ``error``, definition."""
        out = []
        for name, (unit, definition) in METRICS.items():
            predicted, measured = self.predicted.get(name), self.result.measured.get(name)
            if predicted is None and measured is None:
                continue
            spread = self.spread.get(name)
            out.append(
                {
                    "metric": name,
                    "unit": unit,
                    "predicted": predicted,
                    "predicted_lower": None if predicted is None or spread is None else predicted / (1 + spread),
                    "predicted_upper": None if predicted is None or spread is None else predicted * (1 + spread),
                    "measured": measured,
                    "error": None if predicted is None or not measured else predicted / measured - 1,
                    "definition": definition,
                }
            )
        return out


def compare(
    result: ServingResult,
    *,
    model: str | None = None,
    gpu: str | None = None,
    dtype: str | None = None,
    batch: int | None = None,
    prompt_tokens: int | None = None,
    generate_tokens: int | None = None,
    tp: int | None = None,
    pp: int | None = None,
    ep: int | None = None,
    clock_mhz: float | None = None,
    power_limit_w: float | None = None,
    measured_power_w: float | None = None,
    server: str | None = None,
) -> Comparison:
    """Predict what a benchmark measured.

    Parameters
    ----------
    result : ServingResult
    model, gpu, dtype, batch, prompt_tokens, generate_tokens, tp, pp, ep : optional
        What the file does not tell, or tells otherwise.
    clock_mhz, power_limit_w : float, optional
        [MHz, W]
    measured_power_w : float, optional
        Mean power of all GPUs together over the run. [W]
    server : str, optional
        Version of the engine whose own code is added to each step, or ``none``; the newest that was measured by
        default. See `joulecast.coefficients.engines`.

    Returns
    -------
    Comparison

    Raises
    ------
    InputError
        Naming, in one line, everything that is missing.

    Notes
    -----
    A stream of requests is priced as a fixed batch of as many sequences as were in the engine at once, each with the
    mean lengths: while one request of ``n`` output tokens is served there are ``n - 1`` decoding steps of the batch,
    and every sequence of the batch is prefilled once.
    """
    filled = _filled(result, model, dtype, batch, prompt_tokens, generate_tokens, tp, pp, ep, measured_power_w)
    _ask_for_missing(filled, gpu)
    described = load_gpu(gpu or filled.gpu)
    asked = Execution("cuda_graph", engine=filled.engine, tp=filled.tp, pp=filled.pp, ep=filled.ep)
    most_w = _MOST_OF_LIMIT * described.power_limit_max_w * asked.gpu_count
    if measured_power_w is not None and measured_power_w > most_w:
        raise InputError(
            f"a measured power of {measured_power_w:,.0f} W is more than {asked.gpu_count} x {described.name} can draw"
        )
    size = max(round(filled.concurrency), 1)
    prompt, output = max(round(filled.input_tokens), 1), max(round(filled.output_tokens), 1)
    formats: dict[str, Any] = {"dtype": filled.dtype} if filled.dtype else {}

    def predicted(sequences: int, generated: int) -> Prediction:
        try:
            workload = open_workload(
                filled.model, batch=sequences, prompt_tokens=prompt, generate_tokens=generated, **formats
            )
        except UnknownNameError as error:
            raise InputError(f"{error} (give the model with --model)") from None
        return predict_workload(
            workload,
            described,
            execution=asked,
            clock_mhz=clock_mhz,
            power_limit_w=power_limit_w,
            ignore_memory=True,  # it was measured: what it held at once did fit
        )

    whole = predicted(size, output)
    steps, version = _server(server, filled.engine)
    waits = _Waits(steps, asked.gpu_count, _static_w(whole.clock_mhz, described) * asked.gpu_count)
    if filled.one_batch:
        figures, spread = _of_batch(whole, size, output, waits)
    else:
        figures, spread = _of_stream(whole, predicted(1, 1), size, prompt, output, waits)
    _at_pace(figures, spread, filled, described, whole.clock_mhz)
    if "energy_per_token_j" in filled.measured and "energy_at_pace_j" in figures:
        same = {**filled.measured, "energy_at_pace_j": filled.measured["energy_per_token_j"]}
        filled = replace(filled, measured=MappingProxyType(same))
    return Comparison(
        filled, described.name, size, MappingProxyType(figures), MappingProxyType(spread),
        (*_notes(filled, size, prompt, output), *_server_notes(version, steps, size, asked.gpu_count), *filled.notes,
         *whole.warnings),
        version,
    )  # fmt: skip


@dataclass(frozen=True)
class _Waits:
    """What an engine's own code takes of a step while its GPUs draw static power."""

    steps: EngineSteps
    gpus: int
    static_w: float

    def s(self, sequences: float) -> float:
        return self.steps.step_s(sequences, self.gpus)

    def spread(self, spread: float, kernel_s: float, waited_s: float) -> float:
        """Half an interval, relative to the sum: that of the kernels, and of the waits by their error left out."""
        whole = kernel_s + waited_s
        return math.hypot(spread * kernel_s, _HALF_OF_90 * self.steps.error * whole * (waited_s > 0)) / whole


#: Half of a 90 % interval over the median of absolute errors, of normal ones.
_HALF_OF_90 = 2.44


def _server(server: str | None, engine: str) -> tuple[EngineSteps, str]:
    """Costs and name of the version that was asked for, else of the newest of the engine."""
    version = server or NEWEST.get(engine, NONE)
    if server is None and version not in load_engine_steps():
        version = NONE
    return engine_steps(version), version


def _static_w(clock_mhz: float, gpu: Gpu) -> float:
    return float(static_power_w(clock_mhz, gpu, power_coefficients(gpu)))


#: A mean power above this share of the board's limit is a slip: of a unit, or of what was measured.
_MOST_OF_LIMIT = 1.5


def _filled(
    result: ServingResult,
    model: str | None,
    dtype: str | None,
    batch: int | None,
    prompt_tokens: int | None,
    generate_tokens: int | None,
    tp: int | None,
    pp: int | None,
    ep: int | None,
    power_w: float | None,
) -> ServingResult:
    measured = dict(result.measured)
    if power_w is not None:
        measured["power_w"] = power_w
        if measured.get("output_throughput"):
            measured["energy_per_token_j"] = power_w / measured["output_throughput"]
    return replace(
        result,
        measured=MappingProxyType(measured),
        model=model or result.model,
        dtype=dtype or result.dtype,
        tp=tp or result.tp,
        pp=pp or result.pp,
        ep=ep or result.ep,
        input_tokens=prompt_tokens or result.input_tokens,
        output_tokens=generate_tokens or result.output_tokens,
        concurrency=batch or result.concurrency,
        concurrency_from="given" if batch else result.concurrency_from,
    )


def _ask_for_missing(result: ServingResult, gpu: str | None) -> None:
    lacking = [
        what
        for what, there in (
            ("the GPU (--gpu)", gpu or result.gpu),
            ("the model (--model)", result.model),
            ("the sequences at once (--batch)", result.concurrency),
            ("the prompt's length (--prompt)", result.input_tokens),
            ("the output's length (--generate)", result.output_tokens),
        )
        if not there
    ]
    if lacking:
        raise InputError(f"{result.source}, a result of {result.tool}, does not tell {', '.join(lacking)}: give it")


def _phase(prediction: Prediction, name: str) -> PhasePrediction | None:
    return next((one for one in prediction.phases if one.phase == name), None)


def _relative(phase: PhasePrediction | None, figure: str) -> float:
    """Half the interval of a figure of a phase, relative to it."""
    if phase is None:
        return 0.0
    lower, upper = phase.interval(figure)
    return math.sqrt(upper / lower) - 1 if lower > 0 else 0.0


def _of_batch(whole: Prediction, size: int, output: int, waits: _Waits) -> tuple[dict[str, float], dict[str, float]]:
    """Figures of a batch that is run from start to end."""
    prefill, decode = _phase(whole, "prefill"), _phase(whole, "decode")
    lower, upper = whole.interval("time_s")
    energy_lower, energy_upper = whole.interval("energy_j")
    waited_s = waits.s(size)
    all_s = waited_s * output
    energy_j = whole.energy_j + waits.static_w * all_s
    figures = {
        "batch_latency_s": whole.time_s + all_s,
        "power_w": energy_j / (whole.time_s + all_s),
        "energy_per_token_j": energy_j / (size * output),
    }
    spread = {
        "batch_latency_s": waits.spread(math.sqrt(upper / lower) - 1, whole.time_s, all_s),
        "energy_per_token_j": math.sqrt(energy_upper / energy_lower) - 1,
    }
    if prefill is not None:
        figures["prefill_s"] = prefill.time_s + waited_s
        spread["prefill_s"] = waits.spread(_relative(prefill, "time_s"), prefill.time_s, waited_s)
    if decode is not None:
        step_s = decode.time_s / decode.passes
        figures["decode_step_s"] = step_s + waited_s
        spread["decode_step_s"] = waits.spread(_relative(decode, "time_s"), step_s, waited_s)
    return figures, spread


def _of_stream(
    whole: Prediction, one: Prediction, size: int, prompt: int, output: int, waits: _Waits
) -> tuple[dict[str, float], dict[str, float]]:
    """Figures of a stream of requests, `size` at once."""
    prefill, decode = _phase(one, "prefill") or one.phases[0], _phase(whole, "decode")
    step_s = decode.time_s / decode.passes if decode is not None else 0.0
    step_j = decode.energy_j / decode.passes if decode is not None else 0.0
    # prompts are taken in beside decoding sequences: a step of the server's for each token, none for a prompt
    waited_s = waits.s(size)
    kernel_s, step_s = step_s, step_s + waited_s
    step_j += waits.static_w * waited_s
    ttft = prefill.time_s + step_s
    served = (output - 1) * step_s + size * prefill.time_s
    energy = (output - 1) * step_j / size + prefill.energy_j
    figures = {
        "ttft_s": ttft,
        "e2el_s": served,
        "request_throughput": size / served,
        "output_throughput": size * output / served,
        "total_throughput": size * (prompt + output) / served,
        "power_w": energy * size / served,
        "energy_per_token_j": energy / output,
    }
    slow = max(_relative(prefill, "time_s"), _relative(decode, "time_s"))
    slow = waits.spread(slow, served - (output - 1) * waited_s, (output - 1) * waited_s)
    spread = dict.fromkeys(figures, slow)
    spread["ttft_s"] = waits.spread(_relative(prefill, "time_s"), prefill.time_s + kernel_s, waited_s)
    spread["energy_per_token_j"] = max(_relative(prefill, "energy_j"), _relative(decode, "energy_j"))
    spread["power_w"] = max(_relative(prefill, "power_w"), _relative(decode, "power_w"))
    if output > 1:
        figures["tpot_s"] = figures["itl_s"] = max(served - ttft, step_s) / (output - 1)
        spread["tpot_s"] = spread["itl_s"] = slow
    return figures, spread


def _at_pace(
    figures: dict[str, float], spread: dict[str, float], result: ServingResult, gpu: Gpu, clock_mhz: float
) -> None:
    """Energy a token where the server took longer than the GPUs need: they draw static power meanwhile."""
    measured = result.measured.get("output_throughput")
    predicted = figures.get("output_throughput")
    if not measured or not predicted or measured >= predicted:
        return
    static_w = _static_w(clock_mhz, gpu) * result.tp * result.pp
    figures["energy_at_pace_j"] = figures["energy_per_token_j"] + static_w * (1 / measured - 1 / predicted)
    spread["energy_at_pace_j"] = spread["energy_per_token_j"]


def _server_notes(version: str, steps: EngineSteps, size: int, gpus: int) -> list[str]:
    """What of the prediction is the server's."""
    if version == NONE:
        return ["the server's own code is not in it; --server adds what that of a version takes"]
    each = 1e3 * steps.step_s(size, gpus)
    return [
        f"{each:.1f} ms of each step are the server's own code, while GPUs wait: {version}, fitted on {steps.rows} "
        f"served runs; --server takes another, or none"
    ]


def _notes(result: ServingResult, size: int, prompt: int, output: int) -> list[str]:
    if result.one_batch:
        return []
    how = _HOW.get(result.concurrency_from, result.concurrency_from)
    out = [
        f"priced as a fixed batch of {size} sequences ({how}) of {prompt:,} + {output:,} tokens, the mean lengths; "
        "CUDA graphs; spread of lengths, prefix caching and speculative decoding are not in it",
        "TTFT is the prefill of one prompt and the decoding step it waits for; time in a queue is not in it",
    ]
    several = result.measured.get("itl_s", 0.0) / (result.measured.get("tpot_s") or math.inf)
    if several > _SEVERAL:
        out.append(
            f"ITL is {several:.2f} times TPOT: that many tokens come in one piece (speculative decoding, or a stream "
            "that is sent in pieces); the prediction is of one token at a time, beside TPOT"
        )
    if "itl_s" in result.measured and "tpot_s" not in result.measured:
        out.append("TPOT is not in the file: with one token a piece and answers of like length it equals ITL")
    if "tpot_s" in result.measured and "itl_s" not in result.measured:
        out.append("ITL is not in the file: with one token a piece and answers of like length it equals TPOT")
    queued = result.measured.get("ttft_s", 0.0) > 3 * result.measured.get("tpot_s", math.inf) * max(size, 1)
    if queued and result.request_rate == math.inf:
        out.append("all requests were sent at once: most of the measured TTFT is time in the queue")
    return out


_HOW = {
    "limit": "the limit that was set",
    "mean": "as measured, the mean",
    "Little's law": "rate times latency, by Little's law",
    "given": "as given",
}
