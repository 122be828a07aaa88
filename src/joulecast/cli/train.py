"""`joulecast train`: hours, kilowatt-hours, watts and memory of training a model, before it starts."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from joulecast.cli import flags, footprint_options, options
from joulecast.cli.flags import option, spread, switch
from joulecast.cli.footprint_options import FootprintFlags
from joulecast.cli.idle_options import refuse_idle
from joulecast.cli.output import Answer, chosen_format, give
from joulecast.cli.train_flags import Batches, Length, Spread, Training
from joulecast.workloads.onnx_dims import sized


def train(
    *,
    source: options.Source,
    gpu: Annotated[str, option("--gpu", "NAME", "GPU, all alike.")],
    batches: Batches,
    dim: options.Dims = None,
    length: Length,
    training: Training,
    spread_out: Spread,
    stage_clocks: Annotated[bool, switch("--stage-clocks", "Plan a clock for each pipeline stage.")] = False,
    set_: options.Changes = None,
    footprint: FootprintFlags,
    ignore_memory: Annotated[bool, switch("--ignore-memory", "Price it even if it does not fit.")] = False,
    coefficients: options.Coefficients = None,
    json: options.Json = False,
    csv: options.Csv = False,
    output: options.Output = None,
) -> None:
    """Time, power, energy and memory of training a model.

    joulecast train meta-llama/Llama-3.1-8B --gpu h100 --gpus 64 --zero 3 --precision bf16 --checkpointing full
    --sequence 8192 --global-batch 512 --tokens 1e12
    """
    form = chosen_format(json, csv, output)
    options.use_coefficients(coefficients)
    asked: dict[str, Any] = {
        **flags.read(batches),
        **flags.read(length),
        **flags.read(training),
        **flags.read(spread_out),
        "changes": options.changes(set_) or None,
        "ignore_memory": ignore_memory or None,
        "site": footprint_options.site(footprint),
    }
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


#: Options of a run that clocks of stages do not depend on, or take all.
_OF_A_RUN = frozenset(
    {"site", "tokens", "samples", "steps", "epochs", "ignore_memory", "host_us_per_launch", "input_samples_per_s",
     "copied_in"}
)  # fmt: skip


def add_to(app: typer.Typer) -> None:
    """Add the verb to the command line."""
    app.command("train")(spread(train))
