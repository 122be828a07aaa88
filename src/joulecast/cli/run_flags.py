"""The flags of an inference, by the names that `joulecast.predict` and `joulecast.workload` know them by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated

from joulecast.cli import options
from joulecast.cli.flags import Flag
from joulecast.lowering.execution import ATTENTIONS, LAUNCH_MODES


def _whole(name: str, metavar: str, help: str, example: str = "8", several: str = "1,8,32", minimum: int = 1) -> Flag:
    return Flag(
        name, metavar, help, partial(options.whole, minimum=minimum, example=example),
        partial(options.wholes, minimum=minimum, example=several),
    )  # fmt: skip


def _real(name: str, metavar: str, help: str, unit: str, example: str, several: str, *, zero: bool = False) -> Flag:
    return Flag(
        name, metavar, help, partial(options.real, unit=unit, zero=zero, example=example),
        partial(options.numbers, unit=unit, zero=zero, example=several),
    )  # fmt: skip


def _word(name: str, metavar: str, help: str, choices: Sequence[str] | None = None) -> Flag:
    """One word of `choices`, or any: then the library says whether it knows it."""
    one = options.as_given if choices is None else partial(options.one_of, choices=choices)
    return Flag(name, metavar, help, one, options.words)


@dataclass(frozen=True)
class Sizes:
    """How much a model is asked for at once."""

    batch: Annotated[str | None, _whole("--batch", "N", "Sequences or images at once [1].")] = None
    prompt_tokens: Annotated[str | None, _whole("--prompt", "N", "Prompt tokens a sequence.", "2048", "512,2048")] = (
        None
    )
    generate_tokens: Annotated[
        str | None, _whole("--generate", "N", "Tokens to generate a sequence.", "256", "64,256", minimum=0)
    ] = None
    image_size: Annotated[str | None, _whole("--image-size", "PIXELS", "Edge of the image.", "224", "224,384")] = None


@dataclass(frozen=True)
class Formats:
    """Formats of its numbers."""

    dtype: Annotated[str | None, _word("--dtype", "NAME", "Format of the model [bf16].")] = None
    weight_dtype: Annotated[str | None, _word("--weight-dtype", "NAME", "Format of the weights.")] = None
    kv_cache_dtype: Annotated[str | None, _word("--kv-dtype", "NAME", "Format of the KV cache.")] = None
    attn_dtype: Annotated[str | None, _word("--attn-dtype", "NAME", "Format of attention.")] = None


@dataclass(frozen=True)
class Ways:
    """How it is run: fields of `joulecast.lowering.execution.Execution`."""

    attention: Annotated[str | None, _word("--attention", "KIND", "fused or eager [fused].", ATTENTIONS)] = None
    launch_mode: Annotated[
        str | None, _word("--launch", "MODE", "eager, compiled or cuda_graph [eager].", LAUNCH_MODES)
    ] = None
    engine: Annotated[str | None, _word("--engine", "NAME", "Whose kernels run.")] = None
    tp: Annotated[str | None, _whole("--tp", "N", "Tensor-parallel GPUs [1].")] = None
    pp: Annotated[str | None, _whole("--pp", "N", "Pipeline-parallel stages [1].")] = None
    ep: Annotated[str | None, _whole("--ep", "N", "Expert-parallel GPUs [1].")] = None
    dp: Annotated[str | None, _whole("--dp", "N", "Replicas, which share the batch [1].")] = None
    microbatches: Annotated[str | None, _whole("--microbatches", "N", "At once in a pipeline [1].")] = None
    overlap: Annotated[
        str | None,
        _real(
            "--overlap", "SHARE", "Of collectives, beside other work [0].", "parts of one", "0.5", "0,0.5", zero=True
        ),
    ] = None


@dataclass(frozen=True)
class States:
    """What the GPU and its host run at, beside clock and limit."""

    memory_clock_mhz: Annotated[
        str | None, _real("--memory-clock", "MHZ", "Memory clock, one of its steps.", "MHz", "5001", "1215,1593")
    ] = None
    temperature_c: Annotated[
        str | None,
        _real("--temperature", "C", "Of the GPU, for its leakage.", "degrees Celsius", "80", "40,70", zero=True),
    ] = None
    host_us_per_launch: Annotated[
        str | None, _real("--host-us-per-launch", "US", "Host time a launch.", "µs", "5", "2,5", zero=True)
    ] = None
