"""The flags of a training job, by the names that `joulecast.train` knows them by."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated

from joulecast.cli import options
from joulecast.cli.flags import Flag, switch


def _whole(name: str, metavar: str, help: str, example: str = "8", minimum: int = 1) -> Flag:
    return Flag(name, metavar, help, partial(options.whole, minimum=minimum, example=example))


def _large(name: str, metavar: str, help: str, example: str) -> Flag:
    return Flag(name, metavar, help, partial(options.large, example=example))


def _real(name: str, metavar: str, help: str, unit: str, example: str, *, zero: bool = False) -> Flag:
    return Flag(name, metavar, help, partial(options.real, unit=unit, example=example, zero=zero))


def _word(name: str, metavar: str, help: str) -> Flag:
    return Flag(name, metavar, help, options.word)


def _stages(flag: str, text: str | None) -> list[int] | None:
    """Layers of each stage, told by commas."""
    if text is None:
        return None
    return [options.whole(flag, one, example="each of 8,8,8,6") or 0 for one in text.split(",")]


@dataclass(frozen=True)
class Batches:
    """What a step takes in."""

    micro_batch: Annotated[str | None, _whole("--micro-batch", "N", "Samples at once on a GPU [1].")] = None
    global_batch: Annotated[str | None, _whole("--global-batch", "N", "Samples of one update.", "512")] = None
    sequence_tokens: Annotated[str | None, _whole("--sequence", "TOKENS", "Tokens a sample.", "4096")] = None
    image_size: Annotated[str | None, _whole("--image-size", "PIXELS", "Edge of the image.", "224")] = None


@dataclass(frozen=True)
class Length:
    """How long it trains."""

    tokens: Annotated[str | None, _large("--tokens", "N", "Tokens of the data set, such as 15e12.", "15e12")] = None
    samples: Annotated[str | None, _large("--samples", "N", "Samples of the data set.", "1281167")] = None
    epochs: Annotated[str | None, _real("--epochs", "N", "Times through the data set [1].", "times", "3")] = None
    steps: Annotated[str | None, _large("--steps", "N", "Updates, instead of a data set.", "10000")] = None


@dataclass(frozen=True)
class Training:
    """How it is trained: fields of `joulecast.lowering.recipe.Recipe`, and how its operations are run."""

    precision: Annotated[
        str | None, _word("--precision", "NAME", "fp32, tf32, amp_fp16, amp_bf16, bf16 or fp8 [amp_bf16].")
    ] = None
    optimizer: Annotated[
        str | None, _word("--optimizer", "NAME", "sgd, momentum, adam, adamw or adamw_8bit [adamw].")
    ] = None
    update: Annotated[str | None, _word("--update", "HOW", "fused, foreach or per_tensor [fused].")] = None
    master_weights: Annotated[bool, switch("--master-weights", "Keep an fp32 copy of 16-bit weights.")] = False
    clip_gradients: Annotated[bool, switch("--clip-gradients", "Limit the gradients' norm.")] = False
    checkpointing: Annotated[str | None, _word("--checkpointing", "HOW", "none, selective or full [none].")] = None
    checkpointed_layers: Annotated[
        str | None, _whole("--checkpointed-layers", "N", "Layers that it holds for [all].")
    ] = None
    trainable: Annotated[str | None, _word("--trainable", "WHAT", "all, lora or head [all].")] = None
    frozen_layers: Annotated[
        str | None, _whole("--frozen-layers", "N", "First layers that do not learn [0].", minimum=0)
    ] = None
    channels_last: Annotated[bool, switch("--channels-last", "Channels of a pixel lie together.")] = False
    autotuned: Annotated[bool, switch("--autotuned", "Convolutions try kernels out first.")] = False
    fused_norms: Annotated[bool, switch("--fused-norms", "Batch norm and activation are one kernel.")] = False
    direct_groups: Annotated[bool, switch("--direct-groups", "Grouped convolutions as by cuDNN up to 8.0.")] = False
    lora_rank: Annotated[str | None, _whole("--lora-rank", "N", "Rank of what LoRA adds [16].", "16")] = None
    weight_dtype: Annotated[
        str | None, Flag("--weight-dtype", "NAME", "Format of frozen weights, such as int4.", options.as_given)
    ] = None
    attention: Annotated[str | None, _word("--attention", "KIND", "fused or eager [fused].")] = None
    launch_mode: Annotated[str | None, _word("--launch", "MODE", "eager, compiled or cuda_graph [eager].")] = None


@dataclass(frozen=True)
class Spread:
    """How it is spread: fields of `joulecast.scenarios.training.layout.Layout`, and what the GPUs run at."""

    gpus: Annotated[str | None, _whole("--gpus", "N", "GPUs of the job [1].")] = None
    tp: Annotated[str | None, _whole("--tp", "N", "Tensor-parallel GPUs [1].")] = None
    pp: Annotated[str | None, _whole("--pp", "N", "Pipeline stages [1].")] = None
    cp: Annotated[str | None, _whole("--cp", "N", "Context-parallel GPUs [1].")] = None
    ep: Annotated[str | None, _whole("--ep", "N", "Expert-parallel GPUs [1].")] = None
    zero: Annotated[str | None, _whole("--zero", "0-3", "States, gradients, weights sharded [0].", minimum=0)] = None
    shard_group: Annotated[str | None, _whole("--shard-group", "N", "GPUs that share them (hybrid sharding).")] = None
    single_process: Annotated[bool, switch("--single-process", "One process drives all (DataParallel).")] = False
    sequence_parallel: Annotated[bool, switch("--sequence-parallel", "Divide norms along the sequence.")] = False
    overlap: Annotated[
        str | None,
        _real("--overlap", "SHARE", "Of exchanges, beside multiplies [0].", "parts of one", "0.5", zero=True),
    ] = None
    schedule: Annotated[str | None, _word("--schedule", "NAME", "1f1b, gpipe or interleaved [1f1b].")] = None
    chunks: Annotated[str | None, _whole("--chunks", "N", "Pieces a stage of an interleaved pipeline.")] = None
    stage_layers: Annotated[str | None, Flag("--stage-layers", "N,N,...", "Layers of each stage [even].", _stages)] = (
        None
    )
    gpus_per_node: Annotated[str | None, _whole("--gpus-per-node", "N", "GPUs of a node [8].")] = None
    node_link_gb_s: Annotated[
        str | None, _real("--node-link", "GB/S", "Network of a node for each GPU.", "GB/s", "50")
    ] = None
    clock_mhz: Annotated[str | None, _real("--clock", "MHZ", "Core clock.", "MHz", "1410")] = None
    power_limit_w: Annotated[str | None, _real("--power-limit", "W", "Power limit of one GPU.", "W", "300")] = None
    host_us_per_launch: Annotated[
        str | None, _real("--host-us-per-launch", "US", "Host time a launch.", "µs", "5", zero=True)
    ] = None
    input_samples_per_s: Annotated[
        str | None,
        _real("--input-rate", "N", "Samples a second that the input delivers.", "samples a second", "2500"),
    ] = None
    copied_in: Annotated[bool, switch("--copied-in", "Steps wait for copies of unpinned batches.")] = False
