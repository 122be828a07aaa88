"""`joulecast predict`: time, power and energy of a workload on one GPU or several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from joulecast.cli import flags, footprint_options, options
from joulecast.cli import timeline as timelines
from joulecast.cli.flags import option, spread, switch
from joulecast.cli.footprint_options import FootprintFlags
from joulecast.cli.output import Answer, chosen_format, give
from joulecast.cli.run_flags import Formats, Sizes, States, Ways
from joulecast.cli.timeline import TimelineFlags
from joulecast.errors import InfeasibleError, InputError, JoulecastError, shortened

if TYPE_CHECKING:
    from joulecast.cli.rows import Outcome


def predict(
    *,
    gpu: Annotated[list[str], option("--gpu", "NAME[,NAME...]", "GPU, or several side by side.")],
    source: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL", help="A hub name, config.json, ONNX model, operation list or trace.", show_default=False
        ),
    ] = None,
    trace: Annotated[str | None, option("--trace", "FILE", "A profiler trace whose operators to price.")] = None,
    module: Annotated[
        str | None,
        option("--module", "PKG.MOD:FACTORY", "Your own code, which is imported and run: it returns (module, inputs)."),
    ] = None,
    strict: Annotated[bool, switch("--strict", "Refuse what can't be priced whole.")] = False,
    sizes: Sizes,
    dim: options.Dims = None,
    formats: Formats,
    ways: Ways,
    clock: Annotated[str | None, option("--clock", "MHZ", "Core clock; several: 900,1200 or 510:1410:90.")] = None,
    power_limit: Annotated[
        str | None, option("--power-limit", "W", "Limit of one GPU; several as for --clock.")
    ] = None,
    states: States,
    host_speed: Annotated[str | None, option("--host-speed", "N", "Beside the fitted host [1].")] = None,
    set_: options.Changes = None,
    footprint: FootprintFlags,
    over_time: TimelineFlags,
    ignore_memory: Annotated[bool, switch("--ignore-memory", "Price it even if it does not fit.")] = False,
    top: Annotated[str, typer.Option("--top", metavar="N", help="Layers to show.")] = "6",
    kernels: Annotated[bool, switch("--kernels", "List every launch.")] = False,
    forecast: options.ForecastFrom = None,
    coefficients: options.Coefficients = None,
    json: options.Json = False,
    csv: options.Csv = False,
    output: options.Output = None,
) -> None:
    """Time, power and energy of a model on a GPU.

    joulecast predict meta-llama/Llama-3.1-8B --gpu h100 --batch 8 --prompt 2048 --generate 256
    """
    form = chosen_format(json, csv, output)
    options.no_own_coefficients(forecast, coefficients)
    options.use_coefficients(coefficients)
    names = options.names("--gpu", gpu)
    layers = options.whole("--top", top, minimum=0, example="6") or 0
    model = {**flags.read(sizes), **flags.read(formats), "dims": options.dims(dim) or None}
    run = {
        **flags.read(ways),
        **flags.read(states),
        "host_speed": options.real("--host-speed", host_speed, "times the fitted host's", example="1.5"),
        "forecast_from": forecast,
        "changes": options.changes(set_) or None,
        "ignore_memory": ignore_memory or None,
        "strict": strict or None,
    }
    if run["overlap"] is not None and not any(run[name] not in (None, 1) for name in ("tp", "pp", "ep", "dp")):
        raise InputError("--overlap changes nothing without --tp, --pp, --ep or --dp of 2 or more")
    clocks = options.numbers("--clock", clock, "MHz") or (None,)
    limits = options.numbers("--power-limit", power_limit, "W", example="200:400:50") or (None,)
    points = _points(clocks, limits)
    site = footprint_options.site(footprint)
    timeline = timelines.asked(over_time)
    asked = _given(model)
    what = _source(source, trace, module, asked)
    workload, outcomes = _outcomes(what, names, points, asked, _given(run))

    from joulecast.cli import operating_points, rows
    from joulecast.cli import page as pages

    traced = None if timeline is None else timelines.of_outcomes(outcomes, timeline)

    def page() -> list[Any]:
        if traced is not None and outcomes[0].prediction is not None:
            blocks = pages.single(outcomes[0].prediction, site, top=layers, kernels=kernels)
            return [*blocks, timelines.facts(traced, timeline)]
        if len(points) > 1:
            return operating_points.page(outcomes, site)
        if len(outcomes) == 1 and outcomes[0].prediction is not None:
            return pages.single(outcomes[0].prediction, site, top=layers, kernels=kernels)
        return pages.comparison(outcomes, site, kernels=kernels)

    if traced is not None and timeline is not None:
        timelines.write(traced, timeline)
    give(
        Answer(
            page,
            lambda: timelines.document(rows.document(outcomes, workload, site, kernels=kernels), traced),
            lambda: rows.kernel_csv_rows(outcomes) if kernels else rows.csv_rows(outcomes, workload, site),
        ),
        form,
        output,
    )


def add_to(app: typer.Typer) -> None:
    """Add the verb to the command line."""
    app.command("predict")(spread(predict))


def _given(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


#: More points than this are work for `joulecast sweep`.
_MOST_POINTS = 2000


def _points(clocks: Sequence[float | None], limits: Sequence[float | None]) -> list[dict[str, Any]]:
    """Clocks and limits to predict at, each with each."""
    count = len(clocks) * len(limits)
    if count > _MOST_POINTS:
        raise InputError(f"{count:,} clocks and limits are more than {_MOST_POINTS:,}: take larger steps")
    return [_given({"clock_mhz": clock, "power_limit_w": limit}) for limit in limits for clock in clocks]


def _source(source: str | None, trace: str | None, module: str | None, model: dict[str, Any]) -> Any:
    """What to price: the model, the trace, or the workload of the user's own program."""
    if sum(one is not None for one in (source, trace, module)) != 1:
        raise InputError("give one of MODEL (a name or a file), --trace FILE and --module PKG.MOD:FACTORY")
    if module is not None:
        from joulecast.cli.programs import program_workload

        workload = program_workload(module, model)
        model.clear()
        return workload
    if trace is not None:
        from joulecast.cli.progress import bar
        from joulecast.traces.read import is_nsight, workload_of_nsight
        from joulecast.workloads.trace_stream import is_trace, opened
        from joulecast.workloads.trace_workload import workload_of_trace

        path = Path(trace).expanduser()
        opened(path)[0].close()
        if not is_trace(path) and not is_nsight(path):
            raise InputError(
                f"--trace takes a PyTorch profiler trace or an Nsight Systems SQLite export, which {shortened(path)} "
                "is not"
            )
        if model:
            return trace  # what is asked of it is refused where the file is opened
        with bar() as progress:
            read = workload_of_nsight if is_nsight(path) else workload_of_trace
            return read(path, lambda share: progress(f"reading {path.name}", share))
    return str(source)


def _outcomes(
    source: Any, names: list[str], points: list[dict[str, Any]], model: dict[str, Any], run: dict[str, Any]
) -> tuple[str, list[Outcome]]:
    """What comes of each GPU and point; a wrong name fails at once, what can't be run only by itself."""
    import joulecast as jc
    from joulecast.cli.rows import Outcome
    from joulecast.gpus import resolve
    from joulecast.lowering.execution import share_of_batch

    resolved = [resolve(name) for name in names]
    if "batch" in model:
        model["batch"] = share_of_batch(model["batch"], run.get("dp", 1), run.get("microbatches", 1))
    workload = jc.workload(source, **model)
    outcomes: list[Outcome] = []
    failures: list[JoulecastError] = []
    for (name, (gpu, note)), point in product(zip(names, resolved, strict=True), points):
        asked: dict[str, float | None] = {}
        if len(points) > 1:
            asked = {"clock_asked_mhz": point.get("clock_mhz"), "power_limit_w": point.get("power_limit_w")}
        try:
            prediction = jc.predict(workload, name, **run, **point)
        except JoulecastError as error:
            outcomes.append(Outcome(gpu.name, error=str(error), asked=asked))
            failures.append(error)
        else:
            if asked:
                asked["clock_asked_mhz"] = asked["clock_asked_mhz"] or gpu.clock_max_mhz
                asked["power_limit_w"] = prediction.power_limit_w
            noted = replace(prediction, notes=(*filter(None, [note]), *prediction.notes))
            outcomes.append(Outcome(gpu.name, noted, asked=asked))
    if len(failures) == 1 == len(outcomes):
        raise failures[0]
    if len(failures) == len(outcomes):
        reasons = "; ".join(dict.fromkeys(f"{outcome.gpu}: {outcome.error}" for outcome in outcomes))
        what = "GPUs" if len(points) == 1 else "GPUs, clocks and limits"
        raise InfeasibleError(f"none of the {what} can run it: {shortened(reasons, 600)}")
    return workload.name, outcomes
