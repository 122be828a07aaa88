"""`joulecast compare`: a serving benchmark's result beside the prediction of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from joulecast.cli import options
from joulecast.cli.flags import option
from joulecast.cli.output import Answer, chosen_format, give

if TYPE_CHECKING:
    from joulecast.reports.tables import Block
    from joulecast.validation.compare import Comparison

#: Names of metrics as people know them.
_SHORT = {
    "ttft_s": "TTFT", "tpot_s": "TPOT", "itl_s": "ITL", "e2el_s": "end to end", "request_throughput": "requests",
    "output_throughput": "output", "total_throughput": "input + output", "batch_latency_s": "batch latency",
    "prefill_s": "prefill", "decode_step_s": "decode step", "power_w": "power", "energy_per_token_j": "J/token",
    "energy_at_pace_j": "J/token, paced",
}  # fmt: skip


def compare(
    result: Annotated[
        Path, typer.Argument(metavar="RESULT", help="A benchmark's JSON or JSON lines.", show_default=False)
    ],
    gpu: Annotated[str | None, option("--gpu", "NAME", "GPU it was measured on.")] = None,
    model: Annotated[str | None, option("--model", "NAME", "Model [what the file says].")] = None,
    dtype: Annotated[str | None, option("--dtype", "NAME", "Format of the model [what the file says].")] = None,
    batch: Annotated[str | None, option("--batch", "N", "Sequences at once [from the file].")] = None,
    prompt: Annotated[str | None, option("--prompt", "N", "Prompt tokens a request [from the file].")] = None,
    generate: Annotated[str | None, option("--generate", "N", "Output tokens a request [from the file].")] = None,
    tp: Annotated[str | None, option("--tp", "N", "Tensor-parallel GPUs [from the file, or 1].")] = None,
    pp: Annotated[str | None, option("--pp", "N", "Pipeline-parallel stages [from the file, or 1].")] = None,
    ep: Annotated[str | None, option("--ep", "N", "Expert-parallel GPUs [from the file, or 1].")] = None,
    clock: Annotated[str | None, option("--clock", "MHZ", "Core clock.")] = None,
    power_limit: Annotated[str | None, option("--power-limit", "W", "Power limit of one GPU.")] = None,
    power: Annotated[str | None, option("--measured-power", "W", "Mean power of all GPUs meanwhile.")] = None,
    server: Annotated[
        str | None,
        option("--server", "NAME", "Version whose own code is added to a step, or none [the newest measured]."),
    ] = None,
    coefficients: options.Coefficients = None,
    json: options.Json = False,
    csv: options.Csv = False,
    output: options.Output = None,
) -> None:
    """Prediction beside measurement, metric by metric: vLLM, SGLang, TensorRT-LLM.

    joulecast compare result.json --gpu h100 --model meta-llama/Llama-3.1-8B
    """
    form = chosen_format(json, csv, output)
    options.use_coefficients(coefficients)
    given = {
        "gpu": gpu,
        "model": model,
        "dtype": dtype,
        "batch": options.whole("--batch", batch),
        "prompt_tokens": options.whole("--prompt", prompt, example="1024"),
        "generate_tokens": options.whole("--generate", generate, example="128"),
        "tp": options.whole("--tp", tp),
        "pp": options.whole("--pp", pp),
        "ep": options.whole("--ep", ep),
        "clock_mhz": options.real("--clock", clock, "MHz", example="1410"),
        "power_limit_w": options.real("--power-limit", power_limit, "W", example="300"),
        "server": server,
        "measured_power_w": options.real("--measured-power", power, "W", example="450"),
    }

    from joulecast.validation.compare import compare as compared
    from joulecast.validation.serving_files import read_results

    found = [compared(one, **given) for one in read_results(result)]  # type: ignore[arg-type]
    give(
        Answer(
            lambda: [block for one in found for block in _page(one)],
            lambda: {"schema": "joulecast.comparison/1", "runs": [_document(one) for one in found]},
            lambda: [{"source": one.result.source, **row} for one in found for row in one.rows()],
        ),
        form,
        output,
    )


def add_to(app: typer.Typer) -> None:
    """Add the verb to the command line."""
    app.command("compare")(compare)


def _page(found: Comparison) -> list[Block]:
    from joulecast.reports import text
    from joulecast.reports.tables import Facts, Heading, Table

    shown = {"s": text.duration, "W": text.power, "J": text.energy}

    def figure(value: float | None, unit: str) -> str:
        return shown[unit](value) if unit in shown else f"{text.significant(value)} {unit if value else ''}".strip()

    rows = found.rows()
    lines = tuple(
        (
            _SHORT[row["metric"]],
            figure(row["predicted"], row["unit"]),
            text.plus_minus(found.spread.get(row["metric"])),
            figure(row["measured"], row["unit"]),
            "" if row["error"] is None else f"{100 * row['error']:+.0f} %",
        )
        for row in rows
    )
    result = found.result
    degrees = (("tp", result.tp), ("pp", result.pp), ("ep", result.ep))
    layout = " · ".join(f"{name} {value}" for name, value in degrees if value > 1)
    right = " · ".join(filter(None, (found.gpu, layout, f"{found.batch} at once")))
    return [
        Heading(f"{result.model.rsplit('/', 1)[-1]} · {result.tool}", right),
        Table(("", "predicted", "", "measured", "error"), lines, "lrmrr"),
        Facts(tuple((_SHORT[row["metric"]], (row["definition"],)) for row in rows), title="what they mean"),
        Facts(tuple(("note" if not place else "", (line,)) for place, line in enumerate(found.notes)), label_width=10),
    ]


def _document(found: Comparison) -> dict[str, Any]:
    result = found.result
    return {
        "source": result.source,
        "tool": result.tool,
        "model": result.model,
        "gpu": found.gpu,
        "dtype": result.dtype or None,
        "tp": result.tp,
        "pp": result.pp,
        "ep": result.ep,
        "batch": found.batch,
        "batch_from": result.concurrency_from,
        "server": found.server,
        "input_tokens": result.input_tokens,
        "output_tokens": result.output_tokens,
        "metrics": found.rows(),
        "notes": list(found.notes),
    }
