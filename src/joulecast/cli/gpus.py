"""`joulecast gpus`: the GPUs it knows, and where each number of one comes from."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from joulecast.cli import options
from joulecast.cli.output import Answer, chosen_format, give
from joulecast.reports import text
from joulecast.reports.tables import Block, Facts, Heading, Table


def list_gpus(
    context: typer.Context,
    json: options.Json = False,
    csv: options.Csv = False,
    output: options.Output = None,
) -> None:
    """The GPUs it knows by name; `gpus show NAME` tells all of one."""
    if context.invoked_subcommand is not None:
        return
    form = chosen_format(json, csv, output)
    rows = _catalogue()
    give(
        Answer(lambda: _list_page(rows), lambda: {"schema": "joulecast.gpus/1", "gpus": rows}, lambda: rows),
        form,
        output,
    )


def show(
    name: Annotated[str, typer.Argument(help="A name in any spelling, or a TOML file.", show_default=False)],
    set_: options.Changes = None,
    json: options.Json = False,
    csv: options.Csv = False,
    output: options.Output = None,
) -> None:
    """Every number of one GPU, with its source."""
    from joulecast.gpus import load_gpu, resolve
    from joulecast.gpus.describe import describe

    form = chosen_format(json, csv, output)
    _, note = resolve(name)
    gpu = load_gpu(name, options.changes(set_))
    rows = [dict(zip(("field", "value", "unit", "source"), row, strict=True)) for row in describe(gpu)]
    document = {"schema": "joulecast.gpu/1", "gpu": gpu.name, "note": note, "fields": rows}
    give(Answer(lambda: _show_page(gpu.name, note, rows), lambda: document, lambda: rows), form, output)


def add_to(app: typer.Typer) -> None:
    """Add the verb to the command line."""
    verb = typer.Typer(rich_markup_mode=None)
    verb.callback(invoke_without_command=True)(list_gpus)
    verb.command("show")(show)
    app.add_typer(verb, name="gpus", help="The GPUs it knows, and where each number comes from.")


def _catalogue() -> list[dict[str, Any]]:
    from joulecast.coefficients import store
    from joulecast.gpus import gpu_names, load_gpu

    calibrated = set(store.known())
    return [
        {
            "gpu": gpu.name,
            "architecture": gpu.architecture,
            "sm_count": gpu.sm_count,
            "boost_mhz": gpu.clock_boost_mhz,
            "dram_gib": gpu.dram_gib,
            "dram_type": gpu.dram_type,
            "dram_gb_s": gpu.dram_gb_s,
            "tensor_fp16_tflops": gpu.tensor_tflops.get("fp16"),
            "cuda_fp32_tflops": gpu.cuda_tflops.get("fp32"),
            "power_limit_default_w": gpu.power_limit_default_w,
            "calibrated": gpu.name in calibrated,
        }
        for gpu in map(load_gpu, gpu_names())
    ]


def _list_page(rows: list[dict[str, Any]]) -> list[Block]:
    cells = tuple(
        (
            row["gpu"],
            row["architecture"],
            text.whole(row["sm_count"]),
            text.whole(row["boost_mhz"]),
            text.significant(row["tensor_fp16_tflops"]),
            text.whole(row["dram_gib"]),
            text.whole(row["dram_gb_s"]),
            text.whole(row["power_limit_default_w"]),
            "yes" if row["calibrated"] else "",
        )
        for row in rows
    )
    headers = ("", "", "SMs", "MHz", "TFLOP/s", "GiB", "GB/s", "W", "fit")
    legend = Facts(
        (
            ("TFLOP/s", ("fp16 on tensor cores, dense",)),
            ("fit", ("coefficients from its own measured kernels; the others borrow those of a relative",)),
        ),
        "dim",
        10,
    )
    return [Table(headers, cells, "llrrrrrrl"), legend]


def _show_page(name: str, note: str, rows: list[dict[str, str]]) -> list[Block]:
    """Sources run long and repeat, so each stands once below, under its number."""
    sources = list(dict.fromkeys(row["source"] for row in rows if row["source"]))
    plain = [row for row in rows if row["field"] not in ("name", "aliases")]
    cells = []
    lists = []
    for row in plain:
        mark = f"[{sources.index(row['source']) + 1}]" if row["source"] else ""
        if len(row["value"]) > 24:
            lists.append((row["field"], (*row["value"].split(), row["unit"], mark)))
        else:
            cells.append((row["field"], row["value"], row["unit"], mark))
    blocks: list[Block] = [Heading(name), Table(("", "", "", ""), tuple(cells), "lrll")]
    aliases = [(row["field"], tuple(row["value"].split(", "))) for row in rows if row["field"] == "aliases"]
    if lists or aliases:
        blocks.append(Facts(tuple(lists + aliases), label_width=22))
    if note:
        blocks.append(Facts((("note", (note,)),), "dim"))
    blocks.append(Facts(tuple((f"[{i}]", (source,)) for i, source in enumerate(sources, 1)), "dim", 6))
    return blocks
