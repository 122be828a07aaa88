"""The accuracy page: scores as markdown that reads at a glance, best known first, details below."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from joulecast.reports import noise, whole_runs
from joulecast.reports.figures import markdown, percent, whole_percent
from joulecast.reports.text import ABSENT, whole

Row = Mapping[str, Any]

#: Name of each plot's file, and what it shows.
PLOTS = {
    "error_by_gpu": "Mean error of the time of kernels whose shapes were left out of every fit, by family and GPU",
    "error_by_size": "Predicted over measured time against measured time, shapes left out: median and the middle 80 %",
    "time": "Predicted against measured time of kernels, shapes left out; colour counts rows, the line is equality",
    "power": "Predicted against measured power of kernels, shapes left out; colour counts rows, the line is equality",
    "error_of_unmeasured_gpu": "Mean error of the time of kernels on a GPU that was left out of every fit",
    "passes": "Mean error of whole passes, the model left out of every fit",
}

#: Title of each protocol's section and what a prediction knew in it.
PROTOCOLS = {
    "shapes": (
        "Shapes left out",
        "Everything is fitted again without a fifth of the shapes (chosen by a hash, the same for all GPUs, formats "
        "and engines), and scored on that fifth. Widths of intervals come from another fifth that the fit did not "
        "see either.",
    ),
    "gpus": (
        "GPU left out",
        "The GPU is predicted as if no board with its chip had ever been measured: efficiencies, energies and the "
        "learned correction come from other GPUs.",
    ),
    "older": (
        "Only older GPUs",
        "A GPU newer than Ampere is predicted from what was measured on Ampere and before.",
    ),
    "shipped": (
        "As shipped",
        "The coefficients that the package ships, which saw these rows or rows like them.",
    ),
}

#: What ways of timing mean for the clock.
WAYS = {"burst": "clock held", "sustained": "under load"}

_TRANSFER_HEAD = (
    "kernels", "GPU", "time", "bias", "in 90 % interval", "measured elsewhere", "their time", "one factor apart",
    "a sibling's", "power, A and B",
)  # fmt: skip

_LIKE_KERNELS = (
    "*Measured elsewhere*: share of the rows whose kernels (engine, format and variant) were measured on another GPU; "
    "then the error of those alone, and with one factor for each kernel and version of its framework put right; "
    "*a sibling's*: the error of the kernels that a GPU of the same chip was measured with. The other rows are of "
    "kernels that no other GPU was measured with: the nearest stand in for them."
)

HOSTS_TEXT = (
    "*Bound by the host*: starting the kernels is predicted to take 85 % of the time of the pass or more. *A host that "
    "was not slow*: without runs that other measured runs contradict; a pass of the same model that asks for more ran "
    "so much faster that no clock explains it. No prediction has a say in that."
)

#: Mean errors that the paper reports of its own predictions: time, power, energy.
PAPER = {
    "a100-900mhz": ("11.0 %", "8.0 %", ABSENT),
    "a10-900mhz": ("8.8 %", "8.2 %", ABSENT),
    "a100-clock-sweep": ("17 %", "6-9 %", "14 %"),
}

PASSES_TEXT = (
    "Each run is predicted from a fit on the other models of its GPU, for the clock that was asked for and under the "
    "board's power limit: where the limit throttles, clock, time and power are settled together. Runs are scored "
    "against the columns that are corrected for process start-up; failed runs are out. In brackets: against the "
    "columns as published."
)


def page(document: Row, plots: Mapping[str, str], sources: Sequence[Row]) -> str:
    """The whole page.

    Parameters
    ----------
    document : mapping
        As `joulecast validate --json` gives it.
    plots : mapping of str to str
        Path of each plot that was drawn, relative to the page, by its name in `PLOTS`.
    sources : sequence of mapping
        Where the measurements come from: ``folder``, ``what``, ``repository``, ``commit``, ``licence``.

    Returns
    -------
    str
        Markdown.
    """
    parts = [
        "# Accuracy",
        "How far predictions are from what was measured on real GPUs. Errors are ``|predicted / measured - 1|``; "
        "a GPU counts as much as any other, however many rows it has. This page is written by `joulecast validate`.",
    ]
    parts += _at_a_glance(document, plots)
    parts += _passes(document.get("passes") or {}, plots)
    parts += whole_runs.sections(document)
    parts += _transfer(document, plots)
    parts += _plots(plots, ("error_by_size", "time", "power"))
    parts += _families(document)
    parts += noise.slowdown(document.get("slowdown") or {})
    parts += noise.repeats(document.get("repeats", ()))
    parts += noise.carriers(document.get("carriers", ()))
    parts += _how(document["settings"], sources)
    return "\n\n".join(parts) + "\n"


def _at_a_glance(document: Row, plots: Mapping[str, str]) -> list[str]:
    found = [row for row in document.get("headline", ()) if row["protocol"] == "shapes"]
    if not found:
        return []
    floors: Row = document.get("floors") or {}
    timed = {(row["title"], row["timing"]): row for row in document.get("by_clock", ()) if row["protocol"] == "shapes"}
    rows = [
        (
            row["title"],
            whole(row["gpus"]),
            percent(row["time"]["mean"]),
            percent(floors.get(row["title"])),
            *(percent(_of(timed.get((row["title"], way), {}), "time", "mean")) for way in WAYS),
            percent(row["time"]["median"]),
            f"{percent(row['worst_mean'])} ({row['worst_gpu']})",
            whole_percent(row["time"]["coverage"]),
            percent(_of(row, "power_a", "mean")),
            percent(_of(row, "power_ab", "mean")),
        )
        for row in found
    ]
    head = ("kernels", "GPUs", "time", "repeats", *WAYS.values(), "median", "worst GPU", "in 90 % interval", "power, A",
            "power, A and B")  # fmt: skip
    return [
        "## Kernels at a glance",
        f"{PROTOCOLS['shapes'][1]} Power is scored where its reading had settled (quality A, and A and B). *Repeats*: "
        "what like measurements differ by from their mean, where there are any; no prediction could do better. *Clock "
        "held*: bursts alone; *under load*: rows whose clock the power limit may have lowered.",
        markdown(head, rows, "lrrrrrrlrrr"),
        *_plots(plots, ("error_by_gpu",), heading=""),
        *_products(document),
    ]


def _products(document: Row) -> list[str]:
    """Matrix products by format; nothing where none were scored."""
    found = [row for row in document.get("products", ()) if row["protocol"] == "shapes"]
    if not found:
        return []
    rows = []
    for gpu, group in dict.fromkeys((row["gpu"], row["group"]) for row in found):
        timed = {row["timing"]: row for row in found if (row["gpu"], row["group"]) == (gpu, group)}
        time = [percent(_of(timed.get(way, {}), "time", "mean")) for way in WAYS]
        power = [percent(_of(timed.get("sustained", {}), name, "mean")) for name in ("power_a", "power_ab")]
        rows.append((gpu, group, *time, *power))
    head = ("GPU", "format", *(f"time, {way}" for way in WAYS.values()), "power, A", "power, A and B")
    return ["Matrix products launched in graphs, by format:", markdown(head, rows, "llrrrr")]


def _passes(passes: Row, plots: Mapping[str, str]) -> list[str]:
    if not passes.get("datasets"):
        return []

    def cells(name: str, row: Row, raw: bool = True) -> tuple[str, ...]:
        figures = [
            percent(row[what]["mean"]) + (f" ({percent(row[f'raw_{what}']['mean'])})" if raw else "")
            for what in ("time", "power", "energy")
        ]
        return (name, whole(row["time"]["rows"]), *figures)

    rows = [cells(row["dataset"], row) for row in passes["datasets"]]
    rows += [cells(f"{row['dataset']}, bound by the host", row) for row in passes.get("host_bound", ())]
    rows += [
        cells(f"{row['dataset']}, bound by a host that was not slow", row)
        for row in passes.get("host_bound_steady", ())
    ]
    throttled = passes.get("throttled") or {}
    parts = [
        "## Whole passes",
        PASSES_TEXT,
        markdown(("runs", "number", "time", "power", "energy"), rows, "lrrrr"),
        HOSTS_TEXT,
        *_beside_the_paper(passes["datasets"]),
    ]
    if throttled.get("time"):
        parts.append(
            f"Of these, {whole(throttled['clock']['rows'])} runs were throttled by the power limit: the clock that "
            f"they settled at is predicted to {percent(throttled['clock']['mean'])} (mean; 90th percentile "
            f"{percent(throttled['clock']['p90'])}), their time to {percent(throttled['time']['mean'])} and their "
            f"power to {percent(throttled['power']['mean'])}."
        )
    parts += _plots(plots, ("passes",), heading="")
    models = [cells(f"{row['model']}, {row['dataset']}", row, raw=False) for row in passes["models"]]
    parts += ["By model:", markdown(("model", "runs", "time", "power", "energy"), models, "lrrrr")]
    worst = [
        (row["run"], *(percent(row[what], sign=True) for what in ("time", "power", "energy")))
        for row in passes["worst"]
    ]
    return [
        *parts,
        "The runs that are furthest off in energy:",
        markdown(("run", "time", "power", "energy"), worst, "lrrr"),
    ]


def _beside_the_paper(datasets: Sequence[Row]) -> list[str]:
    """What the paper that the runs come from reports of its own predictions, beside these."""
    rows = [
        (
            row["dataset"],
            *(percent(row[what]["mean"]) for what in ("raw_time", "raw_power", "raw_energy")),
            *PAPER[row["dataset"]],
        )
        for row in datasets
        if row["dataset"] in PAPER
    ]
    if not rows:
        return []
    head = ("runs, columns as published", "time", "power", "energy", "its time", "its power", "its energy")
    return [
        "Beside what EnergAIzer reports of itself (ISPASS 2026): over the clock sweep the paper gives 6 to 9 % of "
        "power by workload, and time and energy are those of its artifact run again. Like its figures, these here are "
        "against the columns as published; it has workloads of its own beside these models.",
        markdown(head, rows, "lrrrrrr"),
    ]


def _transfer(document: Row, plots: Mapping[str, str]) -> list[str]:
    parts: list[str] = []
    for protocol in ("gpus", "older"):
        found = [row for row in document.get("by_gpu", ()) if row["protocol"] == protocol and row["time"]["rows"]]
        if not found:
            continue
        title, text = PROTOCOLS[protocol]
        parts += [f"## {title}", text]
        if protocol == "gpus":
            parts += _plots(plots, ("error_of_unmeasured_gpu",), heading="")
        like = {
            (row["title"], row["gpu"]): row for row in document.get("transferred", ()) if row["protocol"] == protocol
        }
        rows = []
        for row in found:
            kernels = like.get((row["title"], row["gpu"]), {})
            rows.append(
                (
                    row["title"],
                    row["gpu"],
                    percent(row["time"]["mean"]),
                    percent(row["time"]["bias"], sign=True),
                    whole_percent(row["time"]["coverage"]),
                    whole_percent(kernels.get("share")),
                    percent(_of(kernels, "time", "mean")),
                    percent(_of(kernels, "offset", "mean")),
                    percent(_of(kernels, "sibling", "mean")),
                    percent(_of(row, "power_ab", "mean")),
                )
            )
        parts += [markdown(_TRANSFER_HEAD, rows, "llrrrrrrrr"), _LIKE_KERNELS]
    return parts


def _families(document: Row) -> list[str]:
    by_gpu = [row for row in document.get("by_gpu", ()) if row["protocol"] == "shapes"]
    if not by_gpu:
        return []
    by_engine = [row for row in document.get("by_engine", ()) if row["protocol"] == "shapes"]
    by_size = [row for row in document.get("by_size", ()) if row["protocol"] == "shapes"]
    parts = ["## Family by family, shapes left out"]
    for title in dict.fromkeys(row["title"] for row in by_gpu):
        rows = []
        for row in (row for row in by_gpu if row["title"] == title):
            rows.append(_detailed(row["gpu"], row))
            parted = [one for one in by_engine if (one["title"], one["gpu"]) == (title, row["gpu"])]
            if len(parted) > 1:
                rows += [_detailed(f"{row['gpu']}, {one['engine']}, {WAYS[one['timing']]}", one) for one in parted]
        rows += [_detailed(row["size"], row) for row in by_size if row["title"] == title]
        head = ("GPU, engine, clock; then measured time", "rows", "time", "median", "90th percentile", "bias",
                "in 90 % interval", "power, A", "power, A and B")  # fmt: skip
        parts += [f"### {title[0].upper()}{title[1:]}", markdown(head, rows, "lrrrrrrrr")]
    return parts


def _detailed(name: str, row: Row) -> tuple[str, ...]:
    time = row["time"]
    return (
        name,
        whole(time["rows"]),
        percent(time["mean"]),
        percent(time["median"]),
        percent(time["p90"]),
        percent(time["bias"], sign=True),
        whole_percent(time["coverage"]),
        percent(_of(row, "power_a", "mean")),
        percent(_of(row, "power_ab", "mean")),
    )


def _how(settings: Row, sources: Sequence[Row]) -> list[str]:
    rows = [(row["folder"], row["what"], row["repository"], row["commit"], row["licence"]) for row in sources]
    protocols = [f"- **{title}**: {text}" for title, text in PROTOCOLS.values()]
    return [
        "## How this was scored",
        "\n".join(protocols),
        "Rows timed in bursts are predicted at the highest clock, held; rows timed under load at the clock that the "
        "power limit allows. Rows whose kernels a host started one by one carry the host's time, and so does their "
        f"prediction. At most {whole(settings['sample'])} rows of each batch (one GPU, operation, engine, version and "
        "way of timing) are scored, drawn with a fixed seed. A correction that is trained again sees at most "
        f"{whole(3 * settings['train_rows'])} rows of each GPU and engine where the GPU or one with its chip was "
        f"measured, and {whole(settings['train_rows'] // 4)} where neither was.",
        "## Where the measurements come from",
        "The tables are public measurements, brought to tidy columns; no measured row is part of joulecast.",
        markdown(("folder", "what", "repository", "commit", "licence"), rows, "lllll"),
        "## Reproduce",
        "```sh\njoulecast validate --data DATA                    # scores, and says what got worse\n"
        "joulecast validate --data DATA --ablation --write docs/accuracy.md --update-baseline\n"
        "joulecast validate --data my_table.parquet        # a table of your own, in the columns of aiconfigurator\n"
        "joulecast validate                                # the stored results\n```",
        f"joulecast {settings['version']}, seed {settings['seed']}.",
    ]


def _plots(plots: Mapping[str, str], names: Iterable[str], heading: str = "## Where errors sit") -> list[str]:
    drawn = [f"![{PLOTS[name]}]({plots[name]})\n\n*{PLOTS[name]}.*" for name in names if name in plots]
    return [heading, *drawn] if drawn and heading else drawn


def _of(row: Row, part: str, name: str) -> float | None:
    found = row.get(part)
    return found[name] if found else None
