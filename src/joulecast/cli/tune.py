"""`joulecast tune`: configurations of a kernel that are as fast and use fewer joules."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated, Any

import typer

from joulecast.cli import options, progress
from joulecast.cli.flags import option
from joulecast.cli.output import Answer, chosen_format, give
from joulecast.errors import InputError, shortened


def tune(
    what: Annotated[
        str | None,
        typer.Argument(
            metavar="[KERNEL]",
            help="matmul, softmax, ...; or your.module:spec, which is imported.",
            show_default=False,
        ),
    ] = None,
    gpu: Annotated[str | None, option("--gpu", "NAME", "GPU to compile for.")] = None,
    meter: Annotated[str | None, option("--meter", "NAME", "model (no GPU: predicted), nvml, zeus, external.")] = None,
    size: Annotated[list[str] | None, option("--size", "NAME=N", "Of the operator, such as m=16,n=4096.")] = None,
    configs: Annotated[str | None, option("--configs", "N", "Compile at most so many [200].")] = None,
    check: Annotated[str | None, option("--check", "WHAT", "Test winners, all or none against torch.")] = None,
    meter_file: Annotated[
        Path | None, option("--meter-file", "CSV", "Of the external meter: time_s,power_W as it is written.")
    ] = None,
    clocks: Annotated[
        str | None,
        typer.Option(
            "--clocks",
            "--clock",
            metavar="MHZ",
            show_default=False,
            help="Core clocks to search: 1200,1500 or 900:1800:150; one holds for all.",
        ),
    ] = None,
    power_limits: Annotated[
        str | None,
        typer.Option(
            "--power-limits",
            "--power-limit",
            metavar="W",
            show_default=False,
            help="Power limits to search, spelt like the clocks.",
        ),
    ] = None,
    residency: Annotated[
        str | None, option("--residency", "WHAT", "loop (default) or stream: what is read is in DRAM.")
    ] = None,
    workers: Annotated[str | None, option("--workers", "N", "Processes that compile [one a processor].")] = None,
    timeout: Annotated[str | None, option("--timeout", "S", "Processor time for one compilation or test [60].")] = None,
    cache: Annotated[Path | None, option("--cache", "FILE", "Of what was compiled.")] = None,
    winners: Annotated[Path | None, option("--winners", "FILE", "Add the winner to this JSON file.")] = None,
    model: Annotated[str | None, option("--model", "NAME", "Tune the operators of a model that matter.")] = None,
    batch: Annotated[str | None, option("--batch", "N", "Of the model [1].")] = None,
    prompt: Annotated[str | None, option("--prompt", "N", "Its prompt tokens a sequence.")] = None,
    generate: Annotated[str | None, option("--generate", "N", "Tokens to generate a sequence.")] = None,
    top: Annotated[str | None, option("--top", "N", "Operators of the model to tune [4].")] = None,
    replay: Annotated[Path | None, option("--replay", "FILE", "A recorded space: parquet or CSV.")] = None,
    strategy: Annotated[
        str, typer.Option("--strategy", metavar="NAME", help="race, paper, measure-all or random.")
    ] = "race",
    slack: Annotated[
        str, typer.Option("--slack", metavar="SHARE", help="How much slower than the fastest is allowed.")
    ] = "0.02",
    objective: Annotated[str, typer.Option("--objective", metavar="WHAT", help="energy or time.")] = "energy",
    baseline: Annotated[list[str] | None, option("--baseline", "NAME=VALUE", "Tell savings against this.")] = None,
    where: Annotated[list[str] | None, option("--where", "NAME=VALUE", "Hold a tunable at a value.")] = None,
    noise: Annotated[
        str, typer.Option("--noise", metavar="SHARE", help="Of a replayed reading, or recorded.")
    ] = "recorded",
    session: Annotated[str | None, option("--session", "NAME", "Of recorded repeats.")] = None,
    evaluations: Annotated[str | None, option("--evaluations", "N", "Time at most so many.")] = None,
    readings: Annotated[str | None, option("--readings", "N", "Read energy about so often.")] = None,
    set_: Annotated[list[str] | None, option("--set", "NAME=VALUE", "A setting of the strategy.")] = None,
    log: Annotated[Path | None, option("--log", "FILE", "Keep every outcome; go on from it.")] = None,
    seed: Annotated[str, typer.Option("--seed", metavar="N", help="Of what is drawn at random.")] = "0",
    plot: Annotated[Path | None, option("--plot", "FILE", "Time against energy: .svg, .png or .html.")] = None,
    json: options.Json = False,
    csv: options.Csv = False,
    output: options.Output = None,
) -> None:
    """Configurations of a kernel that are as fast and use fewer joules.

    joulecast tune matmul --gpu h100 --size m=16,n=4096,k=4096 --meter model

    joulecast tune --model Qwen/Qwen2.5-7B --batch 1 --gpu h100

    joulecast tune --replay space.parquet --slack 0.05 --log search.db
    """
    form = chosen_format(json, csv, output)
    if sum(one is not None for one in (what, replay, model)) != 1:
        raise InputError("give one of: a kernel to tune, such as matmul; --model; --replay with a recorded space")
    share = options.real("--slack", slack, "share", zero=True, example="0.05")
    cv = noise if noise == "recorded" else options.real("--noise", noise, "share", zero=True, example="0.023")
    budget = options.whole("--evaluations", evaluations, example="300")
    reads = options.whole("--readings", readings, minimum=40, example="300")
    start = options.whole("--seed", seed, minimum=0, example="0")
    at = {
        "clocks_mhz": options.numbers("--clocks", clocks, "MHz") or (),
        "power_limits_w": options.numbers("--power-limits", power_limits, "W", example="200:400:50") or (),
    }
    from joulecast.cli import tune_kernel, tune_page
    from joulecast.reports import plots
    from joulecast.tuning.tune import replay as search

    if plot is not None:
        plots.the_altair()
        _drawable(plot)
    of_kernels: dict[str, Any] = {
        "--gpu": gpu, "--meter": meter, "--meter-file": meter_file, "--configs": configs, "--check": check,
        "--residency": residency, "--workers": workers, "--timeout": timeout, "--cache": cache, "--size": size,
    }  # fmt: skip
    of_models: dict[str, Any] = {"--batch": batch, "--prompt": prompt, "--generate": generate, "--top": top}
    if model is None:
        _refuse(of_models, "of models: it goes with --model")
    if replay is not None:
        _refuse(of_kernels, "of kernels that are built here: not with --replay")
        _refuse({"--winners": winners}, "of kernels that are built here: a recorded space has no winner to use")
    given: dict[str, Any] = {
        "where": _values(options.pairs("--where", where, example="num_warps=4")),
        "baseline": _values(options.pairs("--baseline", baseline, example="num_warps=4")) or None,
        "settings": _values(options.pairs("--set", set_, example="first=8")),
        "noise": cv, "session": session, "slack": share, "objective": options.one_of(
            "--objective", objective, ("energy", "time")
        ),
        "strategy_name": strategy, "evaluations": budget, "readings": reads, "log": log, "seed": start,
    }  # fmt: skip
    told = None if noise == "recorded" else noise
    if given["objective"] == "time":
        of_energy = {"--readings": readings, "--plot": plot, "--noise": told, "--slack": slack != "0.02"}
        _refuse(of_energy, "of energy: the objective time asks for none")
    if what is not None or model is not None:
        _refuse({"--where": where, "--session": session, "--noise": told}, "of recorded spaces: not with a kernel")
        tune_kernel.writable(winners)
        flags = {"meter": meter, "meter_file": meter_file, "size": size, "configs": configs, "check": check,
                 "residency": residency, "workers": workers, "timeout": timeout, "cache": cache}  # fmt: skip
    if model is not None:
        _refuse({"--strategy": strategy != "race", "--objective": given["objective"] == "time", "--baseline": baseline,
                 "--evaluations": evaluations, "--readings": readings, "--set": set_, "--log": log, "--plot": plot,
                 "--winners": winners, "--residency": residency, "--meter-file": meter_file},
                "of one kernel: not with --model")  # fmt: skip
        if clocks or power_limits:
            raise InputError("--clocks and --power-limits are of one kernel: a clock takes longer to change than a "
                             "kernel to run; joulecast sweep --clock prices a whole model at several")  # fmt: skip
        flags |= {"batch": batch, "prompt": prompt, "generate": generate, "top": top}
        with progress.bar() as tell:
            whole = tune_kernel.run_model(model, gpu, flags, given, tell)
        give(Answer(lambda: tune_kernel.model_page(whole), whole.to_dict, lambda: tune_kernel.model_rows(whole)),
             form, output)  # fmt: skip
        return
    with progress.bar() as tell:
        if what is not None:
            found = tune_kernel.run(what, gpu, {**flags, **at}, given, tell)
        else:
            found = search(replay, tell=tell, **given, **at)  # type: ignore[arg-type]
    answer = Answer(
        lambda: tune_page.page(found), lambda: tune_page.document(found), lambda: tune_page.rows(found)
    )  # fmt: skip
    with contextlib.ExitStack() as ends:  # last come, first done; where one fails, the others are done all the same
        ends.callback(give, answer, form, output)
        if plot is not None:
            ends.callback(tune_page.draw, found, plot)
        if winners is not None:
            from joulecast.tuning.exits.winners import add_winner

            ends.callback(add_winner, winners, found)


def add_to(app: typer.Typer) -> None:
    """Add the verb to the command line."""
    app.command("tune")(tune)


def _values(texts: dict[str, str]) -> dict[str, Any]:
    """Values as numbers where they are spelt as such."""
    made: dict[str, Any] = {}
    for name, value in texts.items():
        try:
            made[name] = int(value)
        except ValueError:
            try:
                made[name] = float(value)
            except ValueError:
                made[name] = {"true": True, "false": False}.get(value.lower(), value)
    return made


def _refuse(flags: dict[str, Any], why: str) -> None:
    """Refuse flags that would change nothing."""
    given = [flag for flag, value in flags.items() if value or value == ""]
    if given:
        raise InputError(f"{', '.join(given)} is {why}")


def _drawable(path: Path) -> None:
    if path.suffix.lower() not in (".svg", ".png", ".html"):
        raise InputError(f"can't draw {shortened(path)}: end it in .svg, .png or .html")
    from joulecast.writing import check_writable

    check_writable(path)
