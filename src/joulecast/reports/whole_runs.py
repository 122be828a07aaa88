"""Scores of runs of whole models that are no single pass, and of passes without each mechanism: page and terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from joulecast.reports.figures import markdown, percent
from joulecast.reports.tables import Block, Heading, Table
from joulecast.reports.text import whole

Row = Mapping[str, Any]

#: Title of each part, and what was fitted on what.
PARTS = {
    "generations": (
        "Answers generated one at a time",
        "Chat answers of 7 and 13 billion parameter models in eager PyTorch, fp16, batch 1 (ML.ENERGY leaderboard, "
        "first version; all tasks). Costs of the host, factors on kernel times and energies are fitted on the other "
        "models of the GPU. Most of the models are LLaMA trained further, so the second rows leave out every model "
        "of the same shape. Prompts are not published and taken to be short.",
    ),
    "engines": (
        "Serving engines, offline",
        "vLLM and TensorRT-LLM of 2024 with fixed batches and lengths, fp16, one to four GPUs (LLM-Inference-Bench). "
        "Kernels are the shipped ones, which saw no run of this set: those of newer versions of the engines. Three "
        "numbers are fitted for each machine and engine on the other models: what the engine's host adds to a step, "
        "to each sequence in it, and to a step on several GPUs. A batch whose cache does not fit runs in waves. Runs "
        "faster than the memory gives the weights once a step are set aside. Power "
        "is of one model alone, and nothing of it was fitted.",
    ),
    "pipelines": (
        "Pipelines at batch 1",
        "A thousand samples one after the other through Hugging Face pipelines in fp32 on one A100-SXM-80GB of eight "
        "(Power Hungry Processing). Fitted without the models of the shape that is scored: speed of the host, cost of "
        "a sample and of a generated token beside the model, lengths of prompts, and tokens that each task generates, "
        "none of which is published. The meter read eight GPUs, and it ran while models were loaded, which durations "
        "do not count: power is what it read less seven idle GPUs (their idle power fitted task by task) and eight "
        "for as long as loading took (a start and a time for each GB of the files, fitted). Readings that hold more "
        "of loading than of running, those above what one GPU can draw, and those shorter than a period of the meter "
        "are set aside. Models that the catalogue does not know (diffusion, detection, captioning) are not scored.",
    ),
    "training": (
        "Training",
        "Steps of networks, each predicted without its own network (or GPU) in any fit. MPT decoders under FSDP: "
        "scales of time by GPU and precision, networks left out. NVIDIA's DeepLearningExamples (DLE; BERT and "
        "ResNet-50, 1-16 GPUs, rows whose shapes are stated; BERT in PyTorch and PaddlePaddle left out, "
        "whose sequences of 512 take fewer seconds a token than those of 128 and so can't all be that long): "
        "scales by framework, the other GPU generation left out. "
        "torchvision: families of networks left out; scales of all machines, from them those of the machine, from "
        "them those of its precision; what old libraries' gradients of grouped convolutions take is one number for "
        "all GPUs, found on ResNeXts (steps on any one GPU tell it, too). On 2-4 GPUs of one process: scales of the "
        "machine's steps on one GPU; what replicas cost the host was found on the A100s. timm: scales of all, families "
        "left out. Zeus: ratios of time "
        "and energy to the highest power limit, and power; static power, energies, voltage and how power swings within "
        "a step fitted on each GPU's other networks, those of the recommender, which waits for its input, on other "
        "GPUs that wait. That power swings, and how slow the driver's control loop is beside (12 ms), was seen on "
        "these rows; by how much power swings before any fit are the operations' own energies apart. Steps that are "
        "1.8 times off count nothing in fits, which was found on torchvision's (fp16 that takes four times fp32). "
        "Perseus: pipelines under clock plans and power limits, ratios to the highest; what each rank computes and "
        "what an iteration takes beside is measured once, at the highest; what waiting draws, energies, voltages, "
        "swing and the share of memory are fitted on the GPU's other models. Its stage clock sweeps: nothing fitted. "
        "MLPerf: steps and power of nodes of eight H100s; scales of time, what the host draws and a factor on energies "
        "fitted on the other benchmarks. del Rey: Keras networks, an image; the rate of the input is that of the "
        "machine's smallest network, factors on times and energies are fitted on the other machine. 'Repeats about "
        "their median' is how far runs of one and the same job are apart, which no prediction gets below. "
        "'Configurations measured' are mean errors of the rest of a GPU's runs after a fit to ten of them, chosen at "
        "random. 'Nothing fitted' is what is predicted out of the box.",
    ),
}

#: What each mechanism is called.
MECHANISMS = {
    "": "everything",
    "host": "no host: launches cost nothing",
    "module_calls": "module calls without weights cost nothing",
    "bandwidth_of_clock": "DRAM rate independent of the core clock",
    "throttle": "power limit does not throttle",
    "l2": "no L2 traffic",
    "correction": "no learned correction",
    "voltage": "one voltage at all clocks",
}

_QUANTITIES = {
    "generations": ("time", "power", "energy"),
    "engines": ("throughput", "power"),
    "pipelines": ("time", "power", "energy"),
    "training": ("time", "power", "energy"),
}

_STATISTIC = {"generations": "mean", "engines": "median", "pipelines": "median", "training": "mean"}


def sections(document: Row) -> list[str]:
    """Sections of the page, as markdown."""
    parts: list[str] = []
    for name, tables in (document.get("runs") or {}).items():
        title, text = PARTS[name]
        parts += [f"## {title}", text, _markdown(name, [*tables["groups"], *tables["total"]]), *_floor(tables)]
        parts += _memory(tables)
        parts += ["By model:", _markdown(name, tables["models"])]
    return parts + ablation(document.get("ablation") or ())


def ablation(rows: Sequence[Row]) -> list[str]:
    """The section on what each mechanism earns."""
    if not rows:
        return []
    datasets = list(dict.fromkeys(row["dataset"] for row in rows))
    return [
        "## What each mechanism earns",
        "Whole passes again, each mechanism left out of fits and predictions alike: mean errors of time / power / "
        "energy. What is left out is made up for by the others as far as the fit can.",
        markdown(("with", *datasets), _ablated(rows, datasets), "l" + "r" * len(datasets)),
    ]


def blocks(document: Row) -> list[Block]:
    """The same for a terminal."""
    out: list[Block] = []
    for name, tables in (document.get("runs") or {}).items():
        rows = _cells(name, [*tables["groups"], *tables["total"]])
        out += [Heading(PARTS[name][0].lower()), Table(_head(name), tuple(rows), _align(name), elastic=0)]
    found = document.get("ablation") or ()
    if found:
        datasets = list(dict.fromkeys(row["dataset"] for row in found))
        table = Table(("with", *datasets), tuple(_ablated(found, datasets)), "l" + "r" * len(datasets), elastic=0)
        out += [Heading("passes without a mechanism: time / power / energy"), table]
    return out


def _ablated(rows: Sequence[Row], datasets: Sequence[str]) -> list[tuple[str, ...]]:
    found = {(row["without"], row["dataset"]): row for row in rows}

    def cell(name: str, dataset: str) -> str:
        row = found.get((name, dataset))
        if row is None:
            return ""
        figures = " / ".join(percent(row[what]["mean"])[:-2] for what in ("time", "power", "energy")) + " %"
        return figures + (f", clock {percent(row['clock']['mean'])}" if "clock" in row else "")

    names = dict.fromkeys(row["without"] for row in rows)
    return [(MECHANISMS[name], *(cell(name, dataset) for dataset in datasets)) for name in names]


def _memory(tables: Row) -> list[str]:
    found = tables.get("memory")
    if not found or not found["rows"]:
        return []
    return [
        f"Memory: the largest batch that fits, found by halving (timm, RTX 3090, {found['rows']} rows), is right "
        f"in {percent(found['right'])}, and right or off by one halving in {percent(found['within_one'])}."
    ]


def _head(name: str) -> tuple[str, ...]:
    return ("runs", "number", *(f"{what}, {_STATISTIC[name]}" for what in _QUANTITIES[name]), "power read")


def _align(name: str) -> str:
    return "lr" + "r" * len(_QUANTITIES[name]) + "r"


def _cells(name: str, rows: Sequence[Row]) -> list[tuple[str, ...]]:
    def label(row: Row) -> str:
        if row["group"] == row.get("left_out"):
            return f"all, {row['left_out']} left out"
        return f"{row['group']}, {row['left_out']} left out" if "left_out" in row else str(row["group"])

    return [
        (
            label(row),
            whole(row["time"]["rows"]),
            *(percent(row[what][_STATISTIC[name]]) for what in _QUANTITIES[name]),
            whole(row["power"]["rows"]),
        )
        for row in rows
    ]


def _markdown(name: str, rows: Sequence[Row]) -> str:
    return markdown(_head(name), _cells(name, rows), _align(name))


def _floor(tables: Row) -> list[str]:
    told = [
        f"Power of like runs (one model, different tasks) lies {percent(row['power'])} from their mean: nothing could "
        "be predicted nearer without knowing more."
        for row in tables.get("like_runs", ())
        if row["rows"]
    ]
    like = [row for row in tables.get("of_its_like", ()) if row["rows"]]
    if like:
        errors = " and ".join(f"{percent(row['power'])} of {row['rows']} runs" for row in like)
        told.append(
            f"The median of the measured runs of other models of its shape misses the power by {errors} (with those "
            "that are contradicted, and without)."
        )
    return told
