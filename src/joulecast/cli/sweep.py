"""`joulecast sweep`: a model at every combination of GPUs, clocks, limits, batches, layouts and what-ifs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from joulecast.cli import footprint_options, options, sweep_options
from joulecast.cli.output import Answer, give
from joulecast.errors import InfeasibleError, InputError
from joulecast.workloads.onnx_dims import sized

if TYPE_CHECKING:
    from joulecast.scenarios.sweep.chunk import Evaluator
    from joulecast.scenarios.sweep.collect import Findings
    from joulecast.scenarios.sweep.inference import InferenceEvaluator
    from joulecast.scenarios.sweep.objectives import Limits, Objective
    from joulecast.scenarios.sweep.store import Store
    from joulecast.scenarios.sweep.training import TrainingEvaluator

_LIMIT, _RUN = "What points must keep to", "How it runs"


def _option(flag: str, metavar: str, help: str, panel: str | None = None) -> Any:
    return typer.Option(flag, metavar=metavar, help=help, show_default=False, rich_help_panel=panel)


def sweep(
    source: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="A hub name, config.json, ONNX model, operation list or trace.", show_default=False
        ),
    ],
    gpu: Annotated[list[str], _option("--gpu", "NAME[,NAME...]", "GPUs.")],
    training: Annotated[bool, typer.Option("--train", help="Of training: options of train by --with.")] = False,
    with_: Annotated[
        list[str] | None,
        _option("--with", "OPTION=VALUES", "With --train: zero=1,3 or tp=1,2,4 or precision=bf16,fp8 or tokens=1e12."),
    ] = None,
    batch: Annotated[str | None, _option("--batch", "N,...", "Sequences or images at once [1].")] = None,
    prompt: Annotated[str | None, _option("--prompt", "N,...", "Prompt tokens a sequence.")] = None,
    generate: Annotated[str | None, _option("--generate", "N,...", "Tokens to generate a sequence.")] = None,
    image_size: Annotated[str | None, _option("--image-size", "PIXELS,...", "Edge of the image.")] = None,
    dim: options.Dims = None,
    dtype: Annotated[str | None, _option("--dtype", "NAME,...", "Format of the model [bf16].")] = None,
    weight_dtype: Annotated[str | None, _option("--weight-dtype", "NAME,...", "Format of the weights.")] = None,
    kv_dtype: Annotated[str | None, _option("--kv-dtype", "NAME,...", "Format of the KV cache.")] = None,
    attn_dtype: Annotated[str | None, _option("--attn-dtype", "NAME,...", "Format of attention.")] = None,
    attention: Annotated[str | None, _option("--attention", "KIND,...", "fused or eager [fused].")] = None,
    launch: Annotated[str | None, _option("--launch", "MODE,...", "eager, compiled or cuda_graph [eager].")] = None,
    engine: Annotated[str | None, _option("--engine", "NAME,...", "Whose kernels run.")] = None,
    tp: Annotated[str | None, _option("--tp", "N,...", "Tensor-parallel GPUs [1].")] = None,
    pp: Annotated[str | None, _option("--pp", "N,...", "Pipeline-parallel stages [1].")] = None,
    ep: Annotated[str | None, _option("--ep", "N,...", "Expert-parallel GPUs [1].")] = None,
    dp: Annotated[str | None, _option("--dp", "N,...", "Replicas, which share the batch [1].")] = None,
    microbatches: Annotated[str | None, _option("--microbatches", "N,...", "At once in a pipeline [1].")] = None,
    overlap: Annotated[str | None, _option("--overlap", "SHARE,...", "Of collectives, beside other work [0].")] = None,
    clock: Annotated[str | None, _option("--clock", "MHZ,...", "Core clocks: 900,1200 or 510:1410:90 or all.")] = None,
    power_limit: Annotated[str | None, _option("--power-limit", "W,...", "Limits of one GPU, as for --clock.")] = None,
    memory_clock: Annotated[str | None, _option("--memory-clock", "MHZ,...", "Memory clocks, of its steps.")] = None,
    temperature: Annotated[str | None, _option("--temperature", "C,...", "Of the GPU, for its leakage.")] = None,
    host_us: Annotated[str | None, _option("--host-us-per-launch", "US,...", "Host time a launch.")] = None,
    set_: Annotated[
        list[str] | None,
        _option("--set", "FIELD=VALUES", "Numbers of the GPU: sm_count=108,128 or dram_gb_s=2000:4000:500."),
    ] = None,
    ignore_memory: Annotated[bool, typer.Option("--ignore-memory", help="Price what does not fit.")] = False,
    forecast_from: options.ForecastFrom = None,
    max_time: Annotated[str | None, _option("--max-time", "TIME", "In s, or as 36h or 5d.", _LIMIT)] = None,
    finish_by: Annotated[
        str | None, _option("--finish-by", "TIME", "From --start or now: 2026-12-04T17:00.", _LIMIT)
    ] = None,
    max_power: Annotated[str | None, _option("--max-power", "W", "Mean, of all GPUs.", _LIMIT)] = None,
    max_energy: Annotated[str | None, _option("--max-energy", "J", "Of all GPUs.", _LIMIT)] = None,
    min_throughput: Annotated[str | None, _option("--min-throughput", "N", "Tokens (images) a second.", _LIMIT)] = None,
    max_cost: Annotated[str | None, _option("--max-cost", "MONEY", "With --price.", _LIMIT)] = None,
    max_carbon: Annotated[
        str | None, _option("--max-carbon", "G", "g CO2e, with --carbon or --region.", _LIMIT)
    ] = None,
    front: Annotated[str | None, _option("--front", "A,B", "Two objectives to trade [time,energy].")] = None,
    sensitivity: Annotated[bool, typer.Option("--sensitivity", help="What 1 % more of each number gives.")] = False,
    price: footprint_options.Price = None,
    currency: footprint_options.Currency = "USD",
    carbon: footprint_options.Carbon = None,
    region: footprint_options.Region = None,
    pue: footprint_options.Pue = None,
    host_w: footprint_options.HostW = None,
    host_share: footprint_options.HostShare = None,
    start: footprint_options.Start = None,
    run_on: Annotated[str | None, _option("--run-on", "WHERE", "local or ray [local].", _RUN)] = None,
    ray_address: Annotated[str | None, _option("--ray-address", "ADDRESS", "Of a Ray cluster.", _RUN)] = None,
    workers: Annotated[str | None, _option("--workers", "N", "Processes [by size, a CPU each].", _RUN)] = None,
    resume: Annotated[
        Path | None, _option("--resume", "DIR", "Keep finished chunks there, go on from them.", _RUN)
    ] = None,
    coefficients: options.Coefficients = None,
    json: options.Json = False,
    csv: Annotated[bool, typer.Option("--csv", help="Print all points as CSV.")] = False,
    output: Annotated[Path | None, _option("--output", "FILE", "All points: .parquet, .csv or .json.")] = None,
    plot: Annotated[Path | None, _option("--plot", "FILE", "Chart: .svg, .png or .html.")] = None,
) -> None:
    """Best of many: every combination of the values given, and what stands out.

    joulecast sweep bert-large-uncased --gpu a100,h100 --batch 1,8,32 --clock all
    """
    if json and csv:
        raise InputError("--json and --csv exclude each other: give one")
    options.no_own_coefficients(forecast_from, coefficients)
    options.use_coefficients(coefficients)
    engines, where = sweep_options.engines_and_runner(engine, run_on, ray_address)
    asked = sweep_options.Asked(
        model={
            "batch": sweep_options.wholes("--batch", batch),
            "prompt_tokens": sweep_options.wholes("--prompt", prompt, example="512,2048"),
            "generate_tokens": sweep_options.wholes("--generate", generate, minimum=0, example="64,256"),
            "image_size": sweep_options.wholes("--image-size", image_size, example="224,384"),
            "dtype": sweep_options.words("--dtype", dtype),
            "weight_dtype": sweep_options.words("--weight-dtype", weight_dtype),
            "kv_cache_dtype": sweep_options.words("--kv-dtype", kv_dtype),
            "attn_dtype": sweep_options.words("--attn-dtype", attn_dtype),
        },
        run={
            "attention": sweep_options.words("--attention", attention),
            "launch_mode": sweep_options.words("--launch", launch),
            "engine": engines,
            "tp": sweep_options.wholes("--tp", tp),
            "pp": sweep_options.wholes("--pp", pp),
            "ep": sweep_options.wholes("--ep", ep),
            "dp": sweep_options.wholes("--dp", dp),
            "microbatches": sweep_options.wholes("--microbatches", microbatches),
            "overlap": options.numbers("--overlap", overlap, "time over time", zero=True, example="0,0.5"),
            "clock_mhz": sweep_options.all_or_numbers("--clock", clock, "MHz", "510:1410:90"),
            "power_limit_w": sweep_options.all_or_numbers("--power-limit", power_limit, "W", "200:400:50"),
            "memory_clock_mhz": options.numbers("--memory-clock", memory_clock, "MHz", example="1215"),
            "temperature_c": options.numbers("--temperature", temperature, "degrees C", example="40,70"),
            "host_us_per_launch": options.numbers("--host-us-per-launch", host_us, "µs", zero=True, example="2,5"),
            "changes": sweep_options.changes(set_),
            "forecast_from": forecast_from,
            "ignore_memory": ignore_memory,
        },
        limits={
            "max_time_s": sweep_options.longest(max_time, finish_by, start),
            "max_power_w": options.real("--max-power", max_power, "W", example="300"),
            "max_energy_j": options.real("--max-energy", max_energy, "J", example="1000"),
            "min_tokens_per_s": options.real("--min-throughput", min_throughput, "tokens a second", example="1000"),
            "max_cost": options.real("--max-cost", max_cost, "money", example="0.10"),
            "max_carbon_g": options.real("--max-carbon", max_carbon, "g CO2e", example="50"),
        },
    )
    site = footprint_options.site(
        price=price, currency=currency, carbon=carbon, region=region, pue=pue, host_w=host_w, host_share=host_share,
        start=start, deadline=finish_by is not None,
    )  # fmt: skip
    sweep_options.check_files(output, plot)
    model = sized(source, options.dims(dim))

    from joulecast.cli import sweep_page, sweep_plots
    from joulecast.scenarios.sweep import question
    from joulecast.scenarios.sweep import training as training_question
    from joulecast.scenarios.sweep.objectives import Limits, check_limits
    from joulecast.scenarios.sweep.result import none_feasible
    from joulecast.scenarios.sweep.store import open_store

    evaluator: InferenceEvaluator | TrainingEvaluator
    if training:
        evaluator = sweep_options.of_training(model, options.names("--gpu", gpu), site, asked, with_)
        fingerprint = training_question.description(evaluator)
    else:
        if with_:
            raise InputError("--with gives options of train: give --train with it")
        evaluator = question.inference(model, gpus=options.names("--gpu", gpu), site=site, **asked.given())
        fingerprint = question.description(evaluator)
    pair = sweep_options.pair(front, evaluator)
    processes = sweep_options.workers(workers, len(evaluator.space))
    store = None if resume is None else open_store(resume, fingerprint)
    limits = Limits(**asked.limits)
    check_limits(limits, evaluator.figures)
    found = _surveyed(evaluator, pair, limits, store, where, processes, ray_address, output, csv)
    if not found.feasible:
        raise InfeasibleError(none_feasible(found.reasons))
    told = sweep_page.Told(
        evaluator,
        found,
        pair,
        sweep_page.best_predicted(evaluator, found),
        sweep_page.sensitivities(evaluator, found) if sensitivity else (),
    )
    if plot is not None:
        sweep_plots.draw(told, plot)
    if not csv:
        give(
            Answer(lambda: sweep_page.page(told), lambda: sweep_page.document(told), list),
            "json" if json else "txt",
            None,
        )


def _surveyed(
    evaluator: Evaluator, pair: tuple[Objective, Objective], limits: Limits, store: Store | None, where: str,
    processes: int, address: str | None, output: Path | None, csv: bool,
) -> Findings:  # fmt: skip
    """All points evaluated, those asked for written out, and what stands out among them."""
    from joulecast.cli.progress import bar
    from joulecast.reports.columns import csv_pieces, write_columns
    from joulecast.reports.tables import send
    from joulecast.scenarios.sweep.collect import Collector
    from joulecast.scenarios.sweep.objectives import kept_to, objectives_of
    from joulecast.scenarios.sweep.run import run
    from joulecast.scenarios.sweep.table import points_of

    total = len(evaluator.space)
    collector: Collector | None = None

    def tables(tell: Callable[[str, float], None], *, needed: bool) -> Iterator[Any]:
        nonlocal collector
        tell(f"{total:,} points", 0.0)
        for whole in run(evaluator, store=store, workers=processes, on=where, address=address):
            chunk = kept_to(whole, limits)
            if collector is None:
                collector = Collector(objectives_of(tuple(chunk.columns)), pair)
            collector.add(chunk)
            done = chunk.start + len(chunk)
            tell(f"{done:,} of {total:,} points", done / total)
            yield points_of(evaluator, chunk) if needed else None

    with bar() as tell:
        if output is not None:
            write_columns(output, tables(tell, needed=True))
        elif csv:
            for piece in csv_pieces(tables(tell, needed=True)):
                send(piece.decode("utf-8"), sys.stdout)
        else:
            for _ in tables(tell, needed=False):
                pass
    assert collector is not None
    return collector.findings()


def add_to(app: typer.Typer) -> None:
    """Add the verb to the command line."""
    app.command("sweep")(sweep)
