"""Results of serving benchmarks as their tools write them: vLLM, SGLang and TensorRT-LLM, told apart by content."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from joulecast.errors import InputError, shortened
from joulecast.workloads.files import named, parse_json, read_bytes, text_of

#: Metrics in the order they are shown: name, unit, definition.
METRICS: Mapping[str, tuple[str, str]] = MappingProxyType({
    "ttft_s": ("s", "time to first token: from sending a request until its first token, queueing included; mean over "
                    "requests"),
    "tpot_s": ("s", "time per output token: (end-to-end latency - time to first token) / (output tokens - 1) of each "
                    "request; mean over requests"),
    "itl_s": ("s", "inter-token latency: gap between two pieces of output that follow each other; mean over all gaps "
                   "of all requests, so that long answers weigh more; equal to TPOT where each piece is one token and "
                   "all answers are as long"),
    "e2el_s": ("s", "end-to-end latency: from sending a request until its last token; mean over requests"),
    "request_throughput": ("1/s", "requests completed / duration of the benchmark"),
    "output_throughput": ("tokens/s", "output tokens of all requests / duration of the benchmark"),
    "total_throughput": ("tokens/s", "input and output tokens of all requests / duration of the benchmark"),
    "batch_latency_s": ("s", "latency of one batch: from its start until the last token of all its sequences; mean "
                             "over runs"),
    "prefill_s": ("s", "time of the prefill of one batch"),
    "decode_step_s": ("s", "time of one decoding step of one batch; median over steps"),
    "power_w": ("W", "mean power of all GPUs together over the benchmark"),
    "energy_per_token_j": ("J", "energy of all GPUs / output tokens"),
    "energy_at_pace_j": ("J", "the same at the measured pace: the predicted energy of the work, and static power over "
                              "the time that was measured, waits for the server in it"),
})  # fmt: skip


@dataclass(frozen=True)
class ServingResult:
    """One run of a benchmark.

    Attributes
    ----------
    source, tool : str
        File (and line), and which tool wrote it.
    engine : str
        Whose kernels: ``vllm`` or ``trtllm``.
    measured : mapping of str to float
        By name in `METRICS`, in their units.
    model, gpu, dtype : str
        Empty where the file does not tell.
    tp, pp, ep : int
    input_tokens, output_tokens : float
        Of a request, mean; 0 where unknown.
    concurrency : float
        Requests in the engine at once; 0 where unknown.
    concurrency_from : str
        ``limit``, ``mean``, ``Little's law`` or ``batch``.
    request_rate : float
        Requests sent a second; infinite where all are sent at once.
    notes : tuple of str
    """

    source: str
    tool: str
    engine: str
    measured: Mapping[str, float]
    model: str = ""
    gpu: str = ""
    dtype: str = ""
    tp: int = 1
    pp: int = 1
    ep: int = 1
    input_tokens: float = 0.0
    output_tokens: float = 0.0
    concurrency: float = 0.0
    concurrency_from: str = ""
    request_rate: float = math.inf
    notes: tuple[str, ...] = field(default=())

    @property
    def one_batch(self) -> bool:
        """Whether a fixed batch was run rather than a stream of requests."""
        return "batch_latency_s" in self.measured


def read_results(path: str | Path) -> tuple[ServingResult, ...]:
    """The runs in a file of results: a JSON object, or one a line.

    Parameters
    ----------
    path : str or Path

    Returns
    -------
    tuple of ServingResult

    Raises
    ------
    InputError
        If it is no JSON, or of no tool that is known.
    """
    name = named(path)
    data = read_bytes(path)
    values: list[tuple[str, Any]] = []
    lines = [line for line in text_of(data, name).splitlines() if line.strip()]
    if len(lines) > 1 and all(line.lstrip().startswith("{") and line.rstrip().endswith("}") for line in lines):
        values = [(f"{name}, line {number}", parse_json(line.encode(), f"{name}, line {number}"))
                  for number, line in enumerate(lines, 1)]  # fmt: skip
    else:
        value = parse_json(data, name)
        values = [(name, value)] if isinstance(value, Mapping) else [
            (f"{name}, entry {number}", one) for number, one in enumerate(value if isinstance(value, list) else [], 1)
        ]  # fmt: skip
    if not values:
        raise InputError(f"{name} holds no result")
    return tuple(_result(source, value) for source, value in values)


def _result(source: str, value: Any) -> ServingResult:
    if isinstance(value, Mapping):
        for fits, reader in _TOOLS:
            if fits(value):
                found = reader(source, value)
                if not found.measured:
                    raise InputError(f"{source}: a result of {found.tool} without a figure in it")
                impossible = _impossible(value)
                if impossible:
                    told = f"left out, for they can't be: {', '.join(impossible)}"
                    found = replace(found, notes=(*found.notes, told))
                return _with_power(found, value)
    raise InputError(
        f"{source} is no result of a serving benchmark that is known: vLLM (bench serve, latency, throughput), SGLang "
        "(bench_serving, bench_one_batch) and TensorRT-LLM (trtllm-bench reports) are read"
    )


#: Parts of the names of figures that are above zero, or zero.
_FIGURES = ("duration", "latency", "throughput", "_ms", "tokens", "completed", "power")


def _impossible(values: Mapping[str, Any]) -> list[str]:
    """Figures that are below zero, infinite or none."""
    return [
        f"{shortened(name, 40)} = {value:g}"
        for name, value in values.items()
        if isinstance(value, int | float) and any(part in name for part in _FIGURES) and _number(float(value)) is None
    ]


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or value is None:
        return None
    try:
        found = float(value)
    except (TypeError, ValueError):
        return None
    return found if math.isfinite(found) and found >= 0 else None


def _scaled(values: Mapping[str, Any], names: Mapping[str, tuple[tuple[str, float], ...]]) -> dict[str, float]:
    """Metrics from the first of their keys that holds a number, times its factor."""
    out = {}
    for metric, keys in names.items():
        for key, factor in keys:
            found = _number(values.get(key))
            if found:
                out[metric] = found * factor
                break
    return out


def _whole(values: Mapping[str, Any], *keys: str) -> int:
    for key in keys:
        found = _number(values.get(key))
        if found and found >= 1:
            return int(found)
    return 1


def _word(values: Mapping[str, Any], *keys: str) -> str:
    return next((str(values[key]) for key in keys if isinstance(values.get(key), str) and values[key].strip()), "")


def _rate(value: Any) -> float:
    found = _number(value)
    return found if found else math.inf


_SERVING = {
    "ttft_s": (("mean_ttft_ms", 1e-3), ("median_ttft_ms", 1e-3)),
    "tpot_s": (("mean_tpot_ms", 1e-3), ("median_tpot_ms", 1e-3)),
    "itl_s": (("mean_itl_ms", 1e-3), ("median_itl_ms", 1e-3)),
    "e2el_s": (("mean_e2el_ms", 1e-3), ("mean_e2e_latency_ms", 1e-3), ("median_e2el_ms", 1e-3)),
    "request_throughput": (("request_throughput", 1.0),),
    "output_throughput": (("output_throughput", 1.0),),
    "total_throughput": (("total_token_throughput", 1.0), ("total_throughput", 1.0)),
}


def _serving(source: str, values: Mapping[str, Any]) -> ServingResult:
    info = values.get("server_info")
    info = info if isinstance(info, Mapping) else {}
    sglang = "total_output_tokens_retokenized" in values or "sharegpt_output_len" in values or bool(info)
    sglang = sglang or str(values.get("backend", "")).startswith("sglang")
    completed = _number(values.get("completed")) or _number(values.get("num_prompts")) or 0.0
    measured = _scaled(values, _SERVING)
    given = [
        f"{key.upper()} is the median: the mean is not in the file"
        for key in ("ttft", "tpot", "itl")
        if f"{key}_s" in measured and not _number(values.get(f"mean_{key}_ms"))
    ]
    inputs = (_number(values.get("total_input_tokens")) or 0.0) / completed if completed else 0.0
    outputs = (_number(values.get("total_output_tokens")) or 0.0) / completed if completed else 0.0
    both = {**info, **values}
    found = ServingResult(
        source=source,
        tool="SGLang bench_serving" if sglang else "vLLM bench serve",
        engine="vllm",
        measured=MappingProxyType(measured),
        model=_word(both, "model_id", "model", "model_path", "served_model_name"),
        gpu=_word(both, "gpu", "gpu_name", "device_name", "accelerator"),
        dtype=_word(both, "dtype", "quantization").replace("auto", ""),
        tp=_whole(both, "tensor_parallel_size", "tp_size", "tp"),
        pp=_whole(both, "pipeline_parallel_size", "pp_size", "pp"),
        ep=_whole(both, "ep_size", "expert_parallel_size"),
        input_tokens=inputs,
        output_tokens=outputs,
        request_rate=_rate(values.get("request_rate")),
        notes=(*given, *(("SGLang's kernels are priced as vLLM's: none of its own were measured",) if sglang else ())),
    )
    return _concurrency(found, values, completed)


def _concurrency(found: ServingResult, values: Mapping[str, Any], completed: float) -> ServingResult:
    """Requests at once: as measured, by Little's law (rate x latency), or the limit that was set."""
    mean = _number(values.get("concurrency"))
    latency = found.measured.get("e2el_s")
    if latency is None and {"ttft_s", "tpot_s"} <= set(found.measured) and found.output_tokens:
        latency = found.measured["ttft_s"] + found.measured["tpot_s"] * (found.output_tokens - 1)
    limit = _number(values.get("max_concurrency"))
    if mean:
        return replace(found, concurrency=mean, concurrency_from="mean")
    if latency and "request_throughput" in found.measured:
        law = found.measured["request_throughput"] * latency
        return replace(found, concurrency=min(law, limit or completed or law), concurrency_from="Little's law")
    if limit:
        return replace(found, concurrency=limit, concurrency_from="limit")
    return found


def _vllm_latency(source: str, values: Mapping[str, Any]) -> ServingResult:
    measured = _scaled(values, {"batch_latency_s": (("avg_latency", 1.0),)})
    batch = _number(values.get("batch_size"))
    return ServingResult(
        source, "vLLM bench latency", "vllm", MappingProxyType(measured), model=_word(values, "model", "model_id"),
        gpu=_word(values, "gpu", "gpu_name"), tp=_whole(values, "tensor_parallel_size"),
        input_tokens=_number(values.get("input_len")) or 0.0, output_tokens=_number(values.get("output_len")) or 0.0,
        concurrency=batch or 0.0, concurrency_from="batch",
    )  # fmt: skip


def _vllm_throughput(source: str, values: Mapping[str, Any]) -> ServingResult:
    measured = _scaled(
        values,
        {"request_throughput": (("requests_per_second", 1.0),), "total_throughput": (("tokens_per_second", 1.0),)},
    )
    return ServingResult(
        source, "vLLM bench throughput", "vllm", MappingProxyType(measured), model=_word(values, "model", "model_id"),
        gpu=_word(values, "gpu", "gpu_name"), tp=_whole(values, "tensor_parallel_size"),
        input_tokens=_number(values.get("input_len")) or 0.0, output_tokens=_number(values.get("output_len")) or 0.0,
    )  # fmt: skip


def _sglang_batch(source: str, values: Mapping[str, Any]) -> ServingResult:
    names = {
        "batch_latency_s": (("total_latency", 1.0), ("latency", 1.0)),
        "prefill_s": (("prefill_latency", 1.0), ("ttft", 1.0)),
        "decode_step_s": (("median_decode_latency", 1.0),),
    }
    return ServingResult(
        source, "SGLang bench_one_batch", "vllm", MappingProxyType(_scaled(values, names)),
        model=_word(values, "model", "model_path", "run_name"), gpu=_word(values, "gpu", "gpu_name"),
        tp=_whole(values, "tp_size", "tp"), input_tokens=_number(values.get("input_len")) or 0.0,
        output_tokens=_number(values.get("output_len")) or 0.0, concurrency=_number(values.get("batch_size")) or 0.0,
        concurrency_from="batch",
        notes=("SGLang's kernels are priced as vLLM's: none of its own were measured",),
    )  # fmt: skip


def _trtllm(source: str, values: Mapping[str, Any]) -> ServingResult:
    engine, world, asked = (_part(values, name) for name in ("engine", "world_info", "request_info"))
    figures = {**_part(values, "performance"), **_part(values, "streaming_metrics")}
    measured = _scaled(
        figures,
        {
            "ttft_s": (("avg_ttft_ms", 1e-3),),
            "tpot_s": (("avg_tpot_ms", 1e-3),),
            "e2el_s": (("avg_request_latency_ms", 1e-3),),
            "request_throughput": (("request_throughput_req_s", 1.0),),
            "output_throughput": (("system_output_throughput_tok_s", 1.0),),
            "total_throughput": (("system_total_throughput_tok_s", 1.0),),
        },
    )
    mean = _number(asked.get("avg_num_concurrent_requests"))
    found = ServingResult(
        source,
        "TensorRT-LLM trtllm-bench",
        "trtllm",
        MappingProxyType(measured),
        model=_word(engine, "model", "model_path"),
        gpu=_word(_part(values, "machine"), "name"),
        dtype=_trt_dtype(engine),
        tp=_whole(world, "tp_size"),
        pp=_whole(world, "pp_size"),
        ep=_whole(world, "ep_size"),
        input_tokens=_number(asked.get("avg_input_length")) or 0.0,
        output_tokens=_number(asked.get("avg_output_length")) or 0.0,
        request_rate=_rate(world.get("issue_rate")),
    )
    if mean:
        return replace(found, concurrency=mean, concurrency_from="mean")
    return _concurrency(found, {}, _number(asked.get("num_requests")) or 0.0)


def _trt_dtype(engine: Mapping[str, Any]) -> str:
    quantised = _word(engine, "quantization").lower().replace("-", "_")
    known = {
        "fp8": "fp8",
        "nvfp4": "nvfp4",
        "w8a16": "w8a16",
        "w4a16": "w4a16",
        "w4a16_awq": "w4a16",
        "int8_sq": "w8a8",
    }
    return known.get(quantised) or _word(engine, "dtype")


def _part(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = values.get(name)
    return part if isinstance(part, Mapping) else {}


def _with_power(found: ServingResult, values: Mapping[str, Any]) -> ServingResult:
    """Power and energy where they stand beside the figures."""
    measured = dict(found.measured)
    both = {**_part(values, "energy"), **values}
    named_ = {
        "power_w": (("power_w", 1.0), ("mean_power_w", 1.0), ("avg_power_w", 1.0), ("average_power_w", 1.0)),
        "energy_per_token_j": tuple(
            (name, 1.0) for name in ("energy_per_token_j", "joules_per_token", "energy_per_output_token_j")
        ),
    }  # fmt: skip
    measured |= _scaled(both, named_)
    total = _number(both.get("energy_j")) or _number(both.get("total_energy_j")) or _number(both.get("energy_joules"))
    tokens = _number(values.get("total_output_tokens"))
    if total and tokens and "energy_per_token_j" not in measured:
        measured["energy_per_token_j"] = total / tokens
    if measured.get("power_w") and measured.get("output_throughput"):
        measured.setdefault("energy_per_token_j", measured["power_w"] / measured["output_throughput"])
    return replace(found, measured=MappingProxyType({name: measured[name] for name in METRICS if name in measured}))


_Fits = Callable[[Mapping[str, Any]], bool]
_TOOLS: tuple[tuple[_Fits, Callable[[str, Mapping[str, Any]], ServingResult]], ...] = (
    (lambda v: "request_info" in v and ("performance" in v or "latency" in v), _trtllm),
    (lambda v: any(key.endswith(("_ttft_ms", "_itl_ms", "_tpot_ms", "_e2el_ms")) for key in v), _serving),
    (lambda v: "avg_latency" in v, _vllm_latency),
    (lambda v: "requests_per_second" in v, _vllm_throughput),
    (lambda v: "batch_size" in v and any(key in v for key in ("total_latency", "latency")), _sglang_batch),
)

__all__ = ["METRICS", "ServingResult", "read_results"]
