"""`joulecast train`: hours, kilowatt-hours, watts and memory of training a model, before it starts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from joulecast.cli import footprint_options, options
from joulecast.cli.idle_options import refuse_idle
from joulecast.cli.output import Answer, chosen_format, give
from joulecast.workloads.onnx_dims import sized


def _option(flag: str, metavar: str, help: str, panel: str) -> Any:
    return typer.Option(flag, metavar=metavar, help=help, show_default=False, rich_help_panel=panel)


_JOB, _RECIPE, _LAYOUT = "The job", "How it is trained", "How it is spread"


def train(
    source: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="A hub name, config.json, ONNX model, operation list or trace.", show_default=False
        ),
    ],
    gpu: Annotated[str, _option("--gpu", "NAME", "GPU, all alike.", _JOB)],
    micro_batch: Annotated[str | None, _option("--micro-batch", "N", "Samples at once on a GPU [1].", _JOB)] = None,
    global_batch: Annotated[str | None, _option("--global-batch", "N", "Samples of one update.", _JOB)] = None,
    sequence: Annotated[str | None, _option("--sequence", "TOKENS", "Tokens a sample.", _JOB)] = None,
    image_size: Annotated[str | None, _option("--image-size", "PIXELS", "Edge of the image.", _JOB)] = None,
    dim: options.Dims = None,
    tokens: Annotated[str | None, _option("--tokens", "N", "Tokens of the data set, such as 15e12.", _JOB)] = None,
    samples: Annotated[str | None, _option("--samples", "N", "Samples of the data set.", _JOB)] = None,
    epochs: Annotated[str | None, _option("--epochs", "N", "Times through the data set [1].", _JOB)] = None,
    steps: Annotated[str | None, _option("--steps", "N", "Updates, instead of a data set.", _JOB)] = None,
    precision: Annotated[
        str | None, _option("--precision", "NAME", "fp32, tf32, amp_fp16, amp_bf16, bf16 or fp8 [amp_bf16].", _RECIPE)
    ] = None,
    optimizer: Annotated[
        str | None, _option("--optimizer", "NAME", "sgd, momentum, adam, adamw or adamw_8bit [adamw].", _RECIPE)
    ] = None,
    update: Annotated[str | None, _option("--update", "HOW", "fused, foreach or per_tensor [fused].", _RECIPE)] = None,
    master_weights: Annotated[
        bool, typer.Option("--master-weights", help="Keep an fp32 copy of 16-bit weights.", rich_help_panel=_RECIPE)
    ] = False,
    clip: Annotated[
        bool, typer.Option("--clip-gradients", help="Limit the gradients' norm.", rich_help_panel=_RECIPE)
    ] = False,
    checkpointing: Annotated[
        str | None, _option("--checkpointing", "HOW", "none, selective or full [none].", _RECIPE)
    ] = None,
    checkpointed_layers: Annotated[
        str | None, _option("--checkpointed-layers", "N", "Layers that it holds for [all].", _RECIPE)
    ] = None,
    trainable: Annotated[str | None, _option("--trainable", "WHAT", "all, lora or head [all].", _RECIPE)] = None,
    frozen_layers: Annotated[
        str | None, _option("--frozen-layers", "N", "First layers that do not learn [0].", _RECIPE)
    ] = None,
    channels_last: Annotated[
        bool, typer.Option("--channels-last", help="Channels of a pixel lie together.", rich_help_panel=_RECIPE)
    ] = False,
    autotuned: Annotated[
        bool, typer.Option("--autotuned", help="Convolutions try kernels out first.", rich_help_panel=_RECIPE)
    ] = False,
    fused_norms: Annotated[
        bool, typer.Option("--fused-norms", help="Batch norm and activation are one kernel.", rich_help_panel=_RECIPE)
    ] = False,
    direct_groups: Annotated[
        bool,
        typer.Option("--direct-groups", help="Grouped convolutions as by cuDNN up to 8.0.", rich_help_panel=_RECIPE),
    ] = False,
    lora_rank: Annotated[str | None, _option("--lora-rank", "N", "Rank of what LoRA adds [16].", _RECIPE)] = None,
    weight_dtype: Annotated[
        str | None, _option("--weight-dtype", "NAME", "Format of frozen weights, such as int4.", _RECIPE)
    ] = None,
    attention: Annotated[str | None, _option("--attention", "KIND", "fused or eager [fused].", _RECIPE)] = None,
    launch: Annotated[
        str | None, _option("--launch", "MODE", "eager, compiled or cuda_graph [eager].", _RECIPE)
    ] = None,
    gpus: Annotated[str | None, _option("--gpus", "N", "GPUs of the job [1].", _LAYOUT)] = None,
    tp: Annotated[str | None, _option("--tp", "N", "Tensor-parallel GPUs [1].", _LAYOUT)] = None,
    pp: Annotated[str | None, _option("--pp", "N", "Pipeline stages [1].", _LAYOUT)] = None,
    cp: Annotated[str | None, _option("--cp", "N", "Context-parallel GPUs [1].", _LAYOUT)] = None,
    ep: Annotated[str | None, _option("--ep", "N", "Expert-parallel GPUs [1].", _LAYOUT)] = None,
    zero: Annotated[str | None, _option("--zero", "0-3", "States, gradients, weights sharded [0].", _LAYOUT)] = None,
    shard_group: Annotated[
        str | None, _option("--shard-group", "N", "GPUs that share them (hybrid sharding).", _LAYOUT)
    ] = None,
    single_process: Annotated[
        bool, typer.Option("--single-process", help="One process drives all (DataParallel).", rich_help_panel=_LAYOUT)
    ] = False,
    sequence_parallel: Annotated[
        bool, typer.Option("--sequence-parallel", help="Divide norms along the sequence.", rich_help_panel=_LAYOUT)
    ] = False,
    schedule: Annotated[
        str | None, _option("--schedule", "NAME", "1f1b, gpipe or interleaved [1f1b].", _LAYOUT)
    ] = None,
    chunks: Annotated[
        str | None, _option("--chunks", "N", "Pieces a stage of an interleaved pipeline.", _LAYOUT)
    ] = None,
    gpus_per_node: Annotated[str | None, _option("--gpus-per-node", "N", "GPUs of a node [8].", _LAYOUT)] = None,
    node_link: Annotated[str | None, _option("--node-link", "GB/S", "Network of a node for each GPU.", _LAYOUT)] = None,
    stage_clocks: Annotated[
        bool, typer.Option("--stage-clocks", help="Plan a clock for each pipeline stage.", rich_help_panel=_LAYOUT)
    ] = False,
    stage_layers: Annotated[
        str | None, _option("--stage-layers", "N,N,...", "Layers of each stage [even].", _LAYOUT)
    ] = None,
    clock: Annotated[str | None, _option("--clock", "MHZ", "Core clock.", _LAYOUT)] = None,
    power_limit: Annotated[str | None, _option("--power-limit", "W", "Power limit of one GPU.", _LAYOUT)] = None,
    host_us: Annotated[str | None, _option("--host-us-per-launch", "US", "Host time a launch.", _LAYOUT)] = None,
    input_rate: Annotated[
        str | None, _option("--input-rate", "N", "Samples a second that the input delivers.", _LAYOUT)
    ] = None,
    copied_in: Annotated[
        bool,
        typer.Option("--copied-in", help="Steps wait for copies of unpinned batches.", rich_help_panel=_LAYOUT),
    ] = False,
    set_: options.Changes = None,
    price: footprint_options.Price = None,
    currency: footprint_options.Currency = "USD",
    carbon: footprint_options.Carbon = None,
    region: footprint_options.Region = None,
    pue: footprint_options.Pue = None,
    host_w: footprint_options.HostW = None,
    host_share: footprint_options.HostShare = None,
    start: footprint_options.Start = None,
    ignore_memory: Annotated[bool, typer.Option("--ignore-memory", help="Price it even if it does not fit.")] = False,
    coefficients: options.Coefficients = None,
    json: options.Json = False,
    csv: options.Csv = False,
    output: Annotated[
        Path | None,
        typer.Option("--output", metavar="FILE", help="Write to FILE: .json, .csv or .txt.", show_default=False),
    ] = None,
) -> None:
    """Time, power, energy and memory of training a model.

    joulecast train meta-llama/Llama-3.1-8B --gpu h100 --gpus 64 --zero 3 --precision bf16 --checkpointing full
    --sequence 8192 --global-batch 512 --tokens 1e12
    """
    form = chosen_format(json, csv, output)
    options.use_coefficients(coefficients)
    whole = options.whole
    asked: dict[str, Any] = {
        "micro_batch": whole("--micro-batch", micro_batch),
        "global_batch": whole("--global-batch", global_batch, example="512"),
        "sequence_tokens": whole("--sequence", sequence, example="4096"),
        "image_size": whole("--image-size", image_size, example="224"),
        "tokens": options.large("--tokens", tokens, example="15e12"),
        "samples": options.large("--samples", samples, example="1281167"),
        "epochs": options.real("--epochs", epochs, "times", example="3"),
        "steps": options.large("--steps", steps, example="10000"),
        "precision": options.word(precision),
        "optimizer": options.word(optimizer),
        "update": options.word(update),
        "master_weights": master_weights or None,
        "clip_gradients": clip or None,
        "channels_last": channels_last or None,
        "autotuned": autotuned or None,
        "fused_norms": fused_norms or None,
        "direct_groups": direct_groups or None,
        "checkpointing": options.word(checkpointing),
        "checkpointed_layers": whole("--checkpointed-layers", checkpointed_layers),
        "trainable": options.word(trainable),
        "frozen_layers": whole("--frozen-layers", frozen_layers, minimum=0),
        "lora_rank": whole("--lora-rank", lora_rank, example="16"),
        "weight_dtype": weight_dtype,
        "attention": options.word(attention),
        "launch_mode": options.word(launch),
        **{
            name: whole(f"--{name.replace('_', '-')}", text, minimum=0 if name == "zero" else 1)
            for name, text in (
                ("gpus", gpus), ("tp", tp), ("pp", pp), ("cp", cp), ("ep", ep), ("zero", zero),
                ("shard_group", shard_group), ("chunks", chunks), ("gpus_per_node", gpus_per_node),
            )
        },
        "sequence_parallel": sequence_parallel or None,
        "single_process": single_process or None,
        "stage_layers": _stages(stage_layers),
        "schedule": options.word(schedule),
        "node_link_gb_s": options.real("--node-link", node_link, "GB/s", example="50"),
        "clock_mhz": options.real("--clock", clock, "MHz", example="1410"),
        "power_limit_w": options.real("--power-limit", power_limit, "W", example="300"),
        "host_us_per_launch": options.real("--host-us-per-launch", host_us, "µs", zero=True, example="5"),
        "input_samples_per_s": options.real("--input-rate", input_rate, "samples a second", example="2500"),
        "copied_in": copied_in or None,
        "changes": options.changes(set_) or None,
        "ignore_memory": ignore_memory or None,
        "site": footprint_options.site(
            price=price, currency=currency, carbon=carbon, region=region, pue=pue, host_w=host_w,
            host_share=host_share, start=start,
        ),
    }  # fmt: skip

    refuse_idle({name: (value,) for name, value in asked.items() if value is not None and name != "site"})

    import joulecast as jc
    from joulecast.cli import training_page

    model = sized(source, options.dims(dim))
    prediction = jc.train(model, gpu, **asked)
    plans = None
    if stage_clocks:
        several = {name: value for name, value in asked.items() if name not in _OF_A_RUN and value is not None}
        plans = jc.stage_clocks(model, gpu, **several)
    give(
        Answer(
            lambda: training_page.page(prediction, plans),
            lambda: training_page.document(prediction, plans),
            lambda: [training_page.row(prediction)],
        ),
        form,
        output,
    )


def _stages(text: str | None) -> list[int] | None:
    """Layers of each stage, told by commas."""
    if text is None:
        return None
    return [options.whole("--stage-layers", one, example="each of 8,8,8,6") or 0 for one in text.split(",")]


#: Options of a run that clocks of stages do not depend on, or take all.
_OF_A_RUN = frozenset(
    {"site", "tokens", "samples", "steps", "epochs", "ignore_memory", "host_us_per_launch", "input_samples_per_s",
     "copied_in"}
)  # fmt: skip


def add_to(app: typer.Typer) -> None:
    """Add the verb to the command line."""
    app.command("train")(train)
