"""`joulecast sweep`: a model at every combination of GPUs, clocks, limits, batches, layouts and what-ifs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from joulecast.cli import flags, footprint_options, options, sweep_options
from joulecast.cli.flags import SEVERAL, option, spread, switch
from joulecast.cli.footprint_options import FootprintFlags
from joulecast.cli.output import Answer, give
from joulecast.cli.run_flags import Formats, Sizes, States, Ways
from joulecast.errors import InfeasibleError, InputError
from joulecast.workloads.onnx_dims import sized

if TYPE_CHECKING:
    from joulecast.scenarios.sweep.chunk import Evaluator
    from joulecast.scenarios.sweep.collect import Findings
    from joulecast.scenarios.sweep.inference import InferenceEvaluator
    from joulecast.scenarios.sweep.objectives import Limits, Objective
    from joulecast.scenarios.sweep.store import Store
    from joulecast.scenarios.sweep.training import TrainingEvaluator


def sweep(
    *,
    source: options.Source,
    gpu: Annotated[list[str], option("--gpu", "NAME[,NAME...]", "GPUs.")],
    training: Annotated[bool, switch("--train", "Of training: options of train by --with.")] = False,
    with_: Annotated[
        list[str] | None,
        option("--with", "OPTION=VALUES", "With --train: zero=1,3 or tp=1,2,4 or precision=bf16,fp8 or tokens=1e12."),
    ] = None,
    sizes: Annotated[Sizes, SEVERAL],
    dim: options.Dims = None,
    formats: Annotated[Formats, SEVERAL],
    ways: Annotated[Ways, SEVERAL],
    clock: Annotated[str | None, option("--clock", "MHZ,...", "Core clocks: 900,1200 or 510:1410:90 or all.")] = None,
    power_limit: Annotated[str | None, option("--power-limit", "W,...", "Limits of one GPU, as for --clock.")] = None,
    states: Annotated[States, SEVERAL],
    set_: Annotated[
        list[str] | None,
        option("--set", "FIELD=VALUES", "Numbers of the GPU: sm_count=108,128 or dram_gb_s=2000:4000:500."),
    ] = None,
    ignore_memory: Annotated[bool, switch("--ignore-memory", "Price what does not fit.")] = False,
    forecast_from: options.ForecastFrom = None,
    max_time: Annotated[str | None, option("--max-time", "TIME", "In s, or as 36h or 5d.")] = None,
    finish_by: Annotated[str | None, option("--finish-by", "TIME", "From --start or now: 2026-12-04T17:00.")] = None,
    max_power: Annotated[str | None, option("--max-power", "W", "Mean, of all GPUs.")] = None,
    max_energy: Annotated[str | None, option("--max-energy", "J", "Of all GPUs.")] = None,
    min_throughput: Annotated[str | None, option("--min-throughput", "N", "Tokens (images) a second.")] = None,
    max_cost: Annotated[str | None, option("--max-cost", "MONEY", "With --price.")] = None,
    max_carbon: Annotated[str | None, option("--max-carbon", "G", "g CO2e, with --carbon or --region.")] = None,
    front: Annotated[str | None, option("--front", "A,B", "Two objectives to trade [time,energy].")] = None,
    sensitivity: Annotated[bool, switch("--sensitivity", "What 1 % more of each number gives.")] = False,
    footprint: FootprintFlags,
    run_on: Annotated[str | None, option("--run-on", "WHERE", "local or ray [local].")] = None,
    ray_address: Annotated[str | None, option("--ray-address", "ADDRESS", "Of a Ray cluster.")] = None,
    workers: Annotated[str | None, option("--workers", "N", "Processes [by size, a CPU each].")] = None,
    resume: Annotated[Path | None, option("--resume", "DIR", "Keep finished chunks there, go on from them.")] = None,
    coefficients: options.Coefficients = None,
    json: options.Json = False,
    csv: Annotated[bool, switch("--csv", "Print all points as CSV.")] = False,
    output: Annotated[Path | None, option("--output", "FILE", "All points: .parquet, .csv or .json.")] = None,
    plot: Annotated[Path | None, option("--plot", "FILE", "Chart: .svg, .png or .html.")] = None,
) -> None:
    """Best of many: every combination of the values given, and what stands out.

    joulecast sweep bert-large-uncased --gpu a100,h100 --batch 1,8,32 --clock all
    """
    if json and csv:
        raise InputError("--json and --csv exclude each other: give one")
    options.no_own_coefficients(forecast_from, coefficients)
    options.use_coefficients(coefficients)
    how = flags.read_several(ways)
    how["engine"], where = sweep_options.engines_and_runner(how["engine"], run_on, ray_address)
    asked = sweep_options.Asked(
        model={**flags.read_several(sizes), **flags.read_several(formats)},
        run={
            **how,
            "clock_mhz": sweep_options.all_or_numbers("--clock", clock, "MHz", "510:1410:90"),
            "power_limit_w": sweep_options.all_or_numbers("--power-limit", power_limit, "W", "200:400:50"),
            **flags.read_several(states),
            "changes": sweep_options.changes(set_),
            "forecast_from": forecast_from,
            "ignore_memory": ignore_memory,
        },
        limits={
            "max_time_s": sweep_options.longest(max_time, finish_by, footprint.start),
            "max_power_w": options.real("--max-power", max_power, "W", example="300"),
            "max_energy_j": options.real("--max-energy", max_energy, "J", example="1000"),
            "min_tokens_per_s": options.real("--min-throughput", min_throughput, "tokens a second", example="1000"),
            "max_cost": options.real("--max-cost", max_cost, "money", example="0.10"),
            "max_carbon_g": options.real("--max-carbon", max_carbon, "g CO2e", example="50"),
        },
    )
    site = footprint_options.site(footprint, deadline=finish_by is not None)
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
    app.command("sweep")(spread(sweep))
