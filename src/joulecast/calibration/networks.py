"""Reads measured steps of convolutional networks and tabulates what their kernels should take."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from joulecast.calibration.kernels import joined_work
from joulecast.calibration.time_fit import take_work
from joulecast.errors import InputError
from joulecast.gpus import Gpu, load_gpu
from joulecast.kernels.work import Conditions, KernelWork
from joulecast.lowering.execution import Execution
from joulecast.lowering.lower import lower
from joulecast.physics.host import MODULES, operations_started
from joulecast.physics.price import price
from joulecast.physics.priced import concatenated
from joulecast.physics.timeline import Passes, run_phase
from joulecast.workloads.catalogue import from_name
from joulecast.workloads.table import COMMON, OpTable, Workload

Floats = npt.NDArray[np.float64]

#: Networks as the sources name them, by the catalogue's names; the family is left out together.
NETWORKS: Mapping[str, tuple[str, str]] = {
    **{f"resnet{n}": (f"microsoft/resnet-{n}", "resnet") for n in (18, 34, 50, 101, 152)},
    **{f"vgg{n}": (f"vgg{n}", "vgg") for n in (11, 13, 16, 19)},
    **{f"vgg{n}_bn": (f"vgg{n}-bn", "vgg") for n in (11, 13, 16, 19)},
    "resnext50_32x4d": ("resnext50", "resnext"),
    "resnext101_32x8d": ("resnext101", "resnext"),
    "wide_resnet50_2": ("wide-resnet50-2", "resnet"),
    "mobilenet_v2": ("mobilenet-v2", "mobilenet"),
    "mobilenetv2_050": ("mobilenetv2-050", "mobilenet"),
    "mobilenetv2_100": ("mobilenet-v2", "mobilenet"),
    "mobilenetv2_140": ("mobilenetv2-140", "mobilenet"),
    "squeezenet1_0": ("squeezenet1-0", "squeezenet"),
    "squeezenet1_1": ("squeezenet1-1", "squeezenet"),
    "convmixer_768_32": ("convmixer-768-32", "convmixer"),
    "convmixer_1536_20": ("convmixer-1536-20", "convmixer"),
    "convmixer_1024_20_ks9_p14": ("convmixer-1024-20", "convmixer"),
}

#: Arithmetic of "FP32" where the framework of the source let convolutions use tensor cores.
_TF32_ARCHITECTURES = ("ampere",)

#: Oldest framework whose rows are taken: kernels of libraries before it differ.
_OLDEST_PYTORCH = 200


@dataclass(frozen=True)
class MeasuredNetwork:
    """Median time of one eager inference step of a network.

    Attributes
    ----------
    source, network, family : str
        Which table, the network in the table's words, and its family.
    gpu : str
    precision : str
        Format of activations and weights.
    workload : Workload
    channels_last : bool
        How feature maps lie in memory.
    time_s : float
    copied_bytes : float
        What the timed step copies to the GPU first. [B]
    """

    source: str
    network: str
    family: str
    gpu: str
    precision: str
    workload: Workload
    channels_last: bool
    time_s: float
    copied_bytes: float

    @property
    def waits_for_host(self) -> bool:
        """Whether batches of the source are small enough for steps to wait for the host."""
        return self.source == "torchvision"


def read_networks(folder: Path) -> list[MeasuredNetwork]:
    """Measured inference steps of the networks of `NETWORKS` on one GPU, medians of like rows.

    Parameters
    ----------
    folder : Path
        Holds ``torchvision_step_times.csv`` and ``timm_inference.parquet``.

    Returns
    -------
    list of MeasuredNetwork

    Raises
    ------
    InputError
        If a table is missing.
    """
    return [*_torchvision(_there(folder / "torchvision_step_times.csv")),
            *_timm(_there(folder / "timm_inference.parquet"))]  # fmt: skip


def _torchvision(path: Path) -> Iterator[MeasuredNetwork]:
    import polars as pl

    table = pl.read_csv(path, infer_schema_length=None).filter(
        (pl.col("mode") == "inference")
        & (pl.col("gpu_count") == 1)
        & pl.col("precision").is_in(["FP32", "FP16"])
        & pl.col("model").is_in(list(NETWORKS))
    )
    # a GPU measured in several computers: those where most networks ran, runs that were copied once
    computer = ["gpu", "precision", "source_path"]
    like = ["gpu", "precision", "model", "batch_per_gpu", "image_size_px"]
    table = (
        table.with_columns(ran=pl.len().over(computer))
        .filter(pl.col("ran") == pl.col("ran").max().over("gpu", "precision"))
        .unique([*like, "step_time_median_ms"])
    )
    for row in table.group_by(like).agg(pl.col("step_time_median_ms").median()).sort(like).iter_rows(named=True):
        gpu = load_gpu(row["gpu"])
        wide = "tf32" if gpu.architecture in _TF32_ARCHITECTURES else "fp32"
        dtype = "fp16" if row["precision"] == "FP16" else wide
        images, side = row["batch_per_gpu"], row["image_size_px"]
        copied = images * 3.0 * side**2 * (2.0 if dtype == "fp16" else 4.0)
        seconds = row["step_time_median_ms"] * 1e-3
        yield _network("torchvision", row["model"], gpu, dtype, (images, side), False, seconds, copied)


def _timm(path: Path) -> Iterator[MeasuredNetwork]:
    import polars as pl

    table = (
        pl.read_parquet(path)
        .with_columns(
            network=pl.col("model").str.split(".").list.first(),
            version=pl.col("pytorch").cast(pl.Int64),
        )
        .filter(
            pl.col("network").is_in(list(NETWORKS)) & ~pl.col("torch_compile") & (pl.col("version") >= _OLDEST_PYTORCH)
        )
    )
    like = ["gpu", "network", "image_size_px", "memory_format", "batch_size"]
    for row in table.group_by(like).agg(pl.col("infer_step_time_ms").median()).sort(like).iter_rows(named=True):
        last, seconds = row["memory_format"] == "nhwc", row["infer_step_time_ms"] * 1e-3
        size = (int(row["batch_size"]), row["image_size_px"])
        yield _network("timm", row["network"], load_gpu(row["gpu"]), "fp16", size, last, seconds, 0.0)


def _there(path: Path) -> Path:
    if not path.is_file():
        raise InputError(f"no {path.name} in {path.parent}")
    return path


def _network(
    source: str,
    network: str,
    gpu: Gpu,
    dtype: str,
    size: tuple[int, int],
    channels_last: bool,
    time_s: float,
    copied_bytes: float,
) -> MeasuredNetwork:
    name, family = NETWORKS[network]
    workload = from_name(name, batch=size[0], image_size=size[1], dtype=dtype)
    # both sources let the library try its kernels out
    workload = with_convolutions(workload, channels_last=float(channels_last), autotuned=1.0)
    return MeasuredNetwork(source, network, family, gpu.name, dtype, workload, channels_last, time_s, copied_bytes)


def with_convolutions(workload: Workload, **columns: float) -> Workload:
    """`workload` with the same `columns` in all its convolutions."""
    conv = workload.tables["conv2d"]
    changed = {name: np.full(len(conv), value) for name, value in columns.items()}
    return replace(workload, tables={**workload.tables, "conv2d": OpTable("conv2d", {**conv.columns, **changed})})


@dataclass(frozen=True)
class Kernels:
    """Kernels of one key in all the steps of a table.

    Attributes
    ----------
    key : str
        ``family/engine/group``.
    work : KernelWork
    count : ndarray, shape (n,)
        Runs of each in its step.
    step : ndarray of int, shape (n,)
        Which step each belongs to.
    factor : ndarray, shape (n,)
        What is learned of other GPUs' kernels, on the time of each: predictions have it, so fits do.
    clock_mhz : ndarray, shape (n,)
        Core clock of the step. [MHz]
    """

    key: str
    work: KernelWork
    count: Floats
    step: npt.NDArray[np.intp]
    factor: Floats
    clock_mhz: Floats


@dataclass(frozen=True)
class NetworkTable:
    """What the fits need of `r` steps on one GPU.

    Attributes
    ----------
    gpu : Gpu
    kernels : tuple of Kernels
    launches, modules, copied_bytes, time_s : ndarray, shape (r,)
    """

    gpu: Gpu
    kernels: tuple[Kernels, ...]
    launches: Floats
    modules: Floats
    copied_bytes: Floats
    time_s: Floats

    def take(self, rows: npt.NDArray[np.bool_]) -> NetworkTable:
        """The steps where `rows` is true."""
        number = np.cumsum(rows) - 1
        kept = []
        for one in self.kernels:
            few = np.flatnonzero(rows[one.step])
            if few.size:
                step = number[one.step[few]]
                work = take_work(one.work, few)
                kept.append(Kernels(one.key, work, one.count[few], step, one.factor[few], one.clock_mhz[few]))
        names = ("launches", "modules", "copied_bytes", "time_s")
        return replace(self, kernels=tuple(kept), **{name: getattr(self, name)[rows] for name in names})


def tabulate_networks(runs: Sequence[MeasuredNetwork]) -> NetworkTable:
    """Lower the steps of one GPU and work out what their kernels ask of it.

    Each step is at the clock that the power limit lets it have, but no lower than the boost clock, which boards
    are rated to hold.
    """
    gpu = load_gpu(runs[0].gpu)
    conditions = Conditions(engine="pytorch", residency="stream")
    parts: dict[str, list[Kernels]] = {}
    launches, modules = np.zeros(len(runs)), np.zeros(len(runs))
    for step, run in enumerate(runs):
        tables = lower(run.workload, gpu, Execution(launch_mode="eager")).tables.values()
        plain = [OpTable(t.kind, {k: v for k, v in t.columns.items() if k not in COMMON}) for t in tables]
        priced = [price(table, gpu, conditions) for table in plain]
        factors = [
            part.times.scale / price(table, gpu, conditions, corrections={}).times.scale
            for table, part in zip(plain, priced, strict=True)
        ]
        count = np.concatenate([table["count"] for table in tables])
        phase = Passes(concatenated(priced), count, np.zeros(len(count), dtype=np.intp), np.ones(1), np.zeros(1))
        settled = run_phase(phase, gpu.clock_max_mhz, gpu.power_limit_default_w).clock_mhz
        clock = max(settled, gpu.clock_boost_mhz)
        for table, part, factor in zip(tables, priced, factors, strict=True):
            modules[step] += float(table["count"].sum()) if table.kind in MODULES else 0.0
            launches[step] += float(table["count"] @ operations_started(part.work.launches))
            for code, group in enumerate(part.work.groups):
                rows = np.flatnonzero(part.work.group == code)
                key = f"{part.work.family}/pytorch/{group}"
                work = replace(take_work(part.work, rows), group=np.zeros(len(rows), dtype=np.intp), groups=(group,))
                parts.setdefault(key, []).append(
                    Kernels(
                        key,
                        work,
                        table["count"][rows],
                        np.full(len(rows), step),
                        factor[rows],
                        np.full(len(rows), clock),
                    )
                )
    return NetworkTable(
        gpu=gpu,
        kernels=tuple(_together(members) for members in parts.values()),
        launches=launches,
        modules=modules,
        copied_bytes=np.array([run.copied_bytes for run in runs]),
        time_s=np.array([run.time_s for run in runs]),
    )


def _together(members: list[Kernels]) -> Kernels:
    return Kernels(
        members[0].key,
        joined_work([one.work for one in members]),
        *(np.concatenate([getattr(one, name) for one in members]) for name in ("count", "step", "factor", "clock_mhz")),
    )
