"""Brings scored rows together: one document of plain tables that pages, plots and stored results are made from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from joulecast.coefficients.likeness import GENERATIONS
from joulecast.gpus import load_gpu
from joulecast.validation.metrics import SIZE_NAMES, Band, bands, density, metrics
from joulecast.validation.passes import ScoredPass, worst

if TYPE_CHECKING:
    import polars as pl

SCHEMA = "joulecast.accuracy/1"

#: What a kind of operation is called on the page; kinds that share a name are scored together.
TITLES: Mapping[str, str] = {
    "gemm": "gemm",
    "batched_gemm": "batched gemm",
    "context_attention": "context attention",
    "generation_attention": "generation attention",
    "encoder_attention": "encoder attention",
    "moe": "mixture of experts",
    "mla_context": "MLA kernels",
    "mla_generation": "MLA kernels",
    "mla_bmm": "MLA kernels",
    "mla_module_context": "MLA and DSA modules",
    "mla_module_generation": "MLA and DSA modules",
    "dsa_module_context": "MLA and DSA modules",
    "dsa_module_generation": "MLA and DSA modules",
    "linear_attention_gdn": "GDN",
    "linear_attention_mamba2": "Mamba-2",
    "quantize": "quantise",
    "nccl": "NCCL",
    "custom_allreduce": "custom all-reduce",
    "conv2d": "convolution, fp32",
    "row_reduction": "row reductions",
    "elementwise": "elementwise",
    "gather": "gather",
    "copy": "copy",
}

#: Columns that rows are told apart by in the finest table.
DETAIL = ("protocol", "title", "gpu", "kind", "group", "engine", "version", "timing", "launch", "operands")
_BY_GPU = ("protocol", "title", "gpu")


def titled(rows: pl.DataFrame) -> pl.DataFrame:
    """`rows` (see `joulecast.validation.kernels.scored`) with a column ``title``."""
    import polars as pl

    plain = pl.col("kind").replace_strict(TITLES, default=pl.col("kind"), return_dtype=pl.String)
    return rows.with_columns(
        title=pl.when((pl.col("source") == "vidur") & (pl.col("kind") != "nccl"))
        .then(pl.lit("dense operators, PyTorch"))
        .when((pl.col("source") == "neusight") & (pl.col("kind") != "conv2d"))
        .then(pl.lit("fp32 operators, PyTorch"))
        .when((pl.col("kind") == "gemm") & (pl.col("launch") == "eager"))
        .then(pl.lit("gemm, started one by one"))
        .otherwise(plain)
    )


def figures(rows: pl.DataFrame) -> dict[str, Any]:
    """Metrics of time, and of power where readings are trusted (quality A; A and B), of a table of scored rows."""
    import polars as pl

    time = metrics(rows["predicted_s"].to_numpy(), rows["measured_s"].to_numpy(), rows["half_s"].to_numpy())
    out: dict[str, Any] = {"time": time.as_dict()}
    for name, qualities in (("power_a", ["A"]), ("power_ab", ["A", "B"])):
        read = rows.filter(pl.col("quality").is_in(qualities) & pl.col("measured_w").is_finite())
        if read.height:
            w = metrics(read["predicted_w"].to_numpy(), read["measured_w"].to_numpy(), read["half_w"].to_numpy())
            out[name] = w.as_dict()
    return out


def table(rows: pl.DataFrame, by: Sequence[str]) -> list[dict[str, Any]]:
    """`figures` of each group of rows that share the columns `by`, in the order of those."""
    parts = rows.group_by(list(by), maintain_order=True)
    found = [{**dict(zip(by, key, strict=True)), **figures(part)} for key, part in parts]
    return sorted(found, key=lambda row: [str(row[name]) for name in by])


def transferred(rows: pl.DataFrame) -> list[dict[str, Any]]:
    """Errors of GPUs that were left out, with the kernels that other GPUs have told apart from those that none has.

    Returns
    -------
    list of dict
        One for each protocol, title and GPU: ``share`` of the rows whose engine and format were measured elsewhere,
        and metrics of their time as predicted (``time``) and with one factor for each kernel, format and version put
        right (``offset``): versions of a framework are different kernels, whose offsets no other GPU tells; and of the
        rows whose kernels a GPU of the same chip was measured with (``sibling``), where there are any.
    """
    import polars as pl

    kernel = ["protocol", "gpu", "kind", "group", "engine", "version", "timing", "launch"]
    out: list[dict[str, Any]] = []
    left_out = rows.filter(pl.col("protocol").is_in(["gpus", "older"]))
    ratio = pl.col("predicted_s") / pl.col("measured_s")
    right = left_out.with_columns(right_s=pl.col("predicted_s") / ratio.median().over(kernel))
    for key, part in right.group_by(["protocol", "title", "gpu"], maintain_order=True):
        known = part.filter(pl.col("elsewhere"))
        measured = known["measured_s"].to_numpy()
        out.append(
            {
                **dict(zip(("protocol", "title", "gpu"), key, strict=True)),
                "share": known.height / part.height,
                "time": metrics(known["predicted_s"].to_numpy(), measured).as_dict(),
                "offset": metrics(known["right_s"].to_numpy(), measured).as_dict(),
            }
        )
        near = part.filter(pl.col("on_sibling"))
        if near.height:
            out[-1]["sibling"] = metrics(near["predicted_s"].to_numpy(), near["measured_s"].to_numpy()).as_dict()
    return sorted(out, key=lambda row: [str(row[name]) for name in ("protocol", "title", "gpu")])


def headline(by_gpu: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """For each protocol and title: the mean of each error over GPUs, each GPU counting alike, and the worst GPU."""
    out: list[dict[str, Any]] = []
    for protocol, title in dict.fromkeys((row["protocol"], row["title"]) for row in by_gpu):
        rows = [row for row in by_gpu if (row["protocol"], row["title"]) == (protocol, title)]
        timed = [row for row in rows if row["time"]["rows"]]
        if not timed:
            continue
        last = max(timed, key=lambda row: row["time"]["mean"])
        one: dict[str, Any] = {
            "protocol": protocol,
            "title": title,
            "gpus": len(timed),
            "time": _over_gpus([row["time"] for row in timed]),
            "worst_gpu": last["gpu"],
            "worst_mean": last["time"]["mean"],
        }
        for name in ("power_a", "power_ab"):
            read = [row[name] for row in rows if name in row and row[name]["rows"]]
            if read:
                one[name] = _over_gpus(read)
        out.append(one)
    return out


def _over_gpus(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    names = ("mean", "median", "p90", "bias", "coverage")
    return {
        "rows": sum(one["rows"] for one in found),
        **{name: float(np.mean([one[name] for one in found])) for name in names},
    }


def by_clock(rows: pl.DataFrame) -> list[dict[str, Any]]:
    """`headline` of each way of timing alone (``timing``): what bursts show, and what the power limit has a say in."""
    parts = rows.group_by(["timing"], maintain_order=True)
    found = [
        {**one, "timing": timing} for (timing,), part in parts for one in headline(table(part, _BY_GPU))
    ]  # fmt: skip
    return sorted(found, key=lambda row: [str(row[name]) for name in ("protocol", "title", "timing")])


def products(rows: pl.DataFrame) -> list[dict[str, Any]]:
    """`figures` of matrix products that are launched in graphs, by GPU, format and way of timing."""
    import polars as pl

    return table(rows.filter(pl.col("title") == TITLES["gemm"]), (*_BY_GPU, "group", "timing"))


def by_age(names: Sequence[str]) -> list[str]:
    """GPUs from the oldest architecture to the newest."""
    return sorted(names, key=lambda name: (GENERATIONS.get(load_gpu(name).architecture, np.inf), name))


def kernel_tables(rows: pl.DataFrame) -> dict[str, Any]:
    """All tables of kernels: headline, by GPU, by size, and the finest."""
    import polars as pl

    if not rows.height:
        empty = ("gpus", "headline", "by_clock", "products", "by_gpu", "by_engine", "by_size", "transferred", "detail")
        return {name: [] for name in empty}
    rows = titled(rows)
    by_gpu = table(rows, _BY_GPU)
    sized = rows.with_columns(size=pl.Series(np.array(SIZE_NAMES)[rows["size"].to_numpy()]))
    order = {name: place for place, name in enumerate(SIZE_NAMES)}
    by_size = table(sized, ("protocol", "title", "size"))
    return {
        "gpus": by_age(rows["gpu"].unique().to_list()),
        "headline": headline(by_gpu),
        "by_clock": by_clock(rows),
        "products": products(rows),
        "by_gpu": by_gpu,
        "by_engine": table(rows, ("protocol", "title", "gpu", "engine", "timing")),
        "by_size": sorted(by_size, key=lambda row: (row["protocol"], row["title"], order[row["size"]])),
        "transferred": transferred(rows),
        "detail": table(rows, DETAIL),
    }


def plot_tables(rows: pl.DataFrame) -> dict[str, Any]:
    """Binned statistics to draw, of shapes left out: never single rows.

    Returns
    -------
    dict
        ``bands``: ratio of predicted to measured time against measured time, by title; ``time_density`` and
        ``power_density``: rows in each cell of measured against predicted.
    """
    import polars as pl

    if not rows.height:
        return {"bands": [], "time_density": [], "power_density": []}
    chosen = titled(rows.filter(pl.col("protocol") == "shapes"))
    drawn: list[dict[str, Any]] = []
    for (title,), part in chosen.group_by(["title"], maintain_order=True):
        measured = part["measured_s"].to_numpy()
        found: list[Band] = bands(measured, part["predicted_s"].to_numpy(), measured)
        drawn += [{"title": title, **one.__dict__} for one in found]
    read = chosen.filter(pl.col("quality").is_in(["A", "B"]) & pl.col("measured_w").is_finite())
    cells = {
        "time_density": density(chosen["predicted_s"].to_numpy(), chosen["measured_s"].to_numpy()),
        "power_density": density(read["predicted_w"].to_numpy(), read["measured_w"].to_numpy(), bins_per_decade=24),
    }
    named = {name: [{"measured": x, "predicted": y, "rows": n} for x, y, n in found] for name, found in cells.items()}
    return {"bands": drawn, **named}


def pass_tables(scored: Sequence[ScoredPass]) -> dict[str, Any]:
    """All tables of whole passes.

    Returns
    -------
    dict
        ``datasets`` and ``models``: errors of time, power and energy predicted for the clock asked for under the
        board's power limit, the same at the clock that each run had (``held_``), and against the published columns
        (``raw_``); ``throttled``: error of the settled clock; ``host_bound``, and those of them
        whose host was not slow (``host_bound_steady``); ``worst``: runs with the largest
        errors of energy, by label, errors only.
    """
    datasets = list(dict.fromkeys(one.dataset for one in scored))
    models = sorted({(one.dataset, one.run.model) for one in scored})
    return {
        "datasets": [
            {"dataset": name, **pass_figures([one for one in scored if one.dataset == name])} for name in datasets
        ],
        "models": [
            {
                "dataset": name,
                "model": model,
                **pass_figures([one for one in scored if (one.dataset, one.run.model) == (name, model)]),
            }
            for name, model in models
        ],
        "host_bound": _by_dataset([one for one in scored if one.host_bound]),
        "host_bound_steady": _by_dataset([one for one in scored if one.host_bound and not one.slow_host]),
        "throttled": _throttled(scored),
        "worst": [
            {
                "run": one.run.label,
                "time": one.time_s / one.run.time_s - 1,
                "power": one.power_w / one.run.power_w - 1,
                "energy": one.time_s * one.power_w / (one.run.time_s * one.run.power_w) - 1,
            }
            for one in worst(scored)
        ],
    }


def _by_dataset(scored: Sequence[ScoredPass]) -> list[dict[str, Any]]:
    """`pass_figures` of each data set, then of all where there are several."""
    names = list(dict.fromkeys(one.dataset for one in scored))
    rows = [{"dataset": name, **pass_figures([one for one in scored if one.dataset == name])} for name in names]
    return [*rows, {"dataset": "all sets", **pass_figures(scored)}] if len(names) > 1 else rows


def pass_figures(scored: Sequence[ScoredPass]) -> dict[str, Any]:
    """Metrics of some whole passes."""

    def column(name: str, of_run: bool = False) -> Any:
        return np.array([getattr(one.run if of_run else one, name) for one in scored], dtype=np.float64)

    time_s, power_w = column("time_s", True), column("power_w", True)
    raw_s, raw_w = column("time_raw_s", True), column("power_raw_w", True)
    found = {}
    for start, times, powers in (
        ("", column("time_s"), column("power_w")),
        ("held_", column("held_time_s"), column("held_power_w")),
    ):
        found[f"{start}time"] = metrics(times, time_s)
        found[f"{start}power"] = metrics(powers, power_w)
        found[f"{start}energy"] = metrics(times * powers, time_s * power_w)
    found["raw_time"] = metrics(column("time_s"), raw_s)
    found["raw_power"] = metrics(column("power_w"), raw_w)
    found["raw_energy"] = metrics(column("time_s") * column("power_w"), raw_s * raw_w)
    return {name: one.as_dict() for name, one in found.items()}


def _throttled(scored: Sequence[ScoredPass]) -> dict[str, Any]:
    few = [one for one in scored if one.throttled]
    predicted = [one.clock_mhz for one in few]
    measured = [one.run.clock_mhz for one in few]
    return {"clock": metrics(predicted, measured).as_dict(), **(pass_figures(few) if few else {})}
