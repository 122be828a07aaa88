"""Reads measured kernel tables into one tidy form: `Measured`, a batch of rows taken under like conditions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from joulecast.calibration.drift import drift_s
from joulecast.errors import InputError, shortened
from joulecast.gpus import resolve
from joulecast.kernels.work import Conditions
from joulecast.workloads.files import named
from joulecast.workloads.frames import numbers, read_frame
from joulecast.workloads.kinds import KINDS
from joulecast.workloads.table import OpTable, op_table

if TYPE_CHECKING:
    import polars as pl

Floats = npt.NDArray[np.float64]

QUALITIES = ("A", "B", "C", "D", "")


@dataclass(frozen=True)
class Measured:
    """Measured operations of one kind, GPU, engine and way of timing.

    Attributes
    ----------
    gpu : str
        Name in the catalogue.
    table : OpTable
    time_s, power_w : ndarray, shape (n,)
        Time of an operation; board power, NaN where not read. [s, W]
    conditions : Conditions
    version : str
        Of the framework.
    timing_mode : str
        ``burst`` (clocks held) or ``sustained`` (at the clock that the cap allows).
    launch_mode : str
        ``cuda_graph``, ``eager`` or ``cuda_graph_or_eager``.
    operand_init : str
        What the operands held.
    power_limit_w : float
        Board power limit; NaN where not read. [W]
    quality : ndarray of int
        Trust in `power_w`, an index into `QUALITIES`.
    clock_mhz : ndarray, shape (n,), optional
        Core clock of each row, where it was found out. [MHz]
    """

    gpu: str
    table: OpTable
    time_s: Floats
    power_w: Floats
    conditions: Conditions
    version: str
    timing_mode: str
    launch_mode: str
    operand_init: str
    power_limit_w: float
    quality: npt.NDArray[np.intp]
    clock_mhz: Floats | None = None

    def __len__(self) -> int:
        return len(self.time_s)

    @property
    def host_bound(self) -> bool:
        """Whether a host started each operation by itself within the time; collectives' tests queue theirs up."""
        return self.launch_mode == "eager" and self.conditions.engine != "nccl"

    def take(self, rows: Any) -> Measured:
        """The rows at `rows` (indices or mask)."""
        return Measured(
            **{
                **self.__dict__,
                "table": self.table.take(rows),
                "time_s": self.time_s[rows],
                "power_w": self.power_w[rows],
                "quality": self.quality[rows],
                "clock_mhz": None if self.clock_mhz is None else self.clock_mhz[rows],
            }
        )


_SPLIT = ("framework", "framework_version", "timing_mode", "launch_mode", "operand_init", "kernel_source")


def read_kernel_tables(folder: Path, kinds: tuple[str, ...] | None = None) -> Iterator[Measured]:
    """All measured kernels under a data folder (``aiconfigurator``, ``neusight``, ``e2e/vidur`` beside each other).

    Parameters
    ----------
    folder : Path
        The folder that holds the sources' folders.
    kinds : tuple of str, optional
        Only these kinds of operation.

    Yields
    ------
    Measured

    Raises
    ------
    InputError
        If the folder holds none of the sources.
    """
    readers = {"aiconfigurator": _aiconfigurator, "neusight": _neusight, "e2e/vidur": _vidur}
    present = [(reader, folder / name) for name, reader in readers.items() if (folder / name).is_dir()]
    if not present:
        raise InputError(f"no measured tables in {folder}: it should hold {', '.join(readers)}")
    for reader, path in present:
        for batch in reader(path):
            if kinds is None or batch.table.kind in kinds:
                yield batch


def _aiconfigurator(folder: Path) -> Iterator[Measured]:
    for path in sorted(folder.glob("*/*.parquet")):
        with _told_of(path) as frame:
            kind_name = str(frame["op"][0]) if frame.height else ""
            batches = list(measured_frame(frame, kind_name)) if kind_name in KINDS else []
        yield from map(as_written, batches)


#: Whole modules that TensorRT-LLM's benchmark builds without a checkpoint: their inputs are random and labelled so.
_MODULES = frozenset({"mla_module_context", "mla_module_generation", "dsa_module_context", "dsa_module_generation"})


def as_written(batch: Measured) -> Measured:
    """The batch with what its weights and caches held, where the label tells of the inputs alone.

    TensorRT-LLM's modules that read DRAM at 60 to 70 % of its peak draw 37 to 48 pJ a byte above static power on the
    B200, as unwritten caches (30 to 70) and constants (55 to 70) do; random operands take 60 to 170. A factor that is
    fitted for them alone comes out at 0.32 for cores and 0.10 for DRAM.
    """
    how = batch.conditions
    if batch.table.kind not in _MODULES or how.engine != "trtllm" or how.operands != "random":
        return batch
    held = "kv_cache_uninitialised"
    return replace(batch, operand_init=held, conditions=replace(how, operands=held))


def measured_frame(
    frame: pl.DataFrame, kind_name: str, names_of_own: Mapping[str, str] = MappingProxyType({})
) -> Iterator[Measured]:
    """Batches of one table in the columns of ``aiconfigurator`` (its README documents them).

    GPUs are named as in the catalogue, or as `names_of_own` calls those that are not in it.
    """
    import polars as pl

    if kind_name == "moe":
        frame = frame.with_columns(gated=(~pl.col("kernel_source").str.contains("nongated")).cast(pl.Int32))
    names = [name for name in KINDS[kind_name].names if name in frame.columns]
    split = ["gpu", *(name for name in _SPLIT if name in frame.columns)]
    for key, part in frame.group_by(split, maintain_order=True):
        meta = dict(zip(split, key, strict=True))
        n = part.height
        columns = {name: part[name].cast(pl.String).to_list() if part[name].dtype in (pl.String, pl.Categorical)
                   else part[name].to_numpy() for name in names}  # fmt: skip
        power = numbers(part, "power_w").to_numpy() if "power_w" in part.columns else np.full(n, np.nan)
        quality = (
            _graded(part["power_quality"].to_list())
            if "power_quality" in part.columns
            else np.full(n, len(QUALITIES) - 1)
        )
        limit: Any = numbers(part, "power_limit_w").drop_nulls() if "power_limit_w" in part.columns else []
        engine = str(meta["framework"]).replace("nccl-tests", "nccl")
        yield Measured(
            gpu=names_of_own.get(str(meta["gpu"])) or resolve(str(meta["gpu"]))[0].name,
            table=op_table(kind_name, columns, rows=n),
            time_s=part["latency_ms"].cast(pl.Float64).to_numpy() * 1e-3,
            power_w=power,
            conditions=Conditions(
                engine=engine,
                residency="loop",
                kernel_source=str(meta["kernel_source"]),
                operands=str(meta["operand_init"]),
                version=str(meta["framework_version"]),
            ),
            version=str(meta["framework_version"]),
            timing_mode=str(meta["timing_mode"]),
            launch_mode=str(meta["launch_mode"]),
            operand_init=str(meta["operand_init"]),
            power_limit_w=float(limit[0]) if len(limit) else float("nan"),
            quality=quality,
        )


def _graded(words: Sequence[Any]) -> npt.NDArray[np.intp]:
    for row, word in enumerate(words):
        if word is not None and word not in QUALITIES:
            raise InputError(f"power_quality must be A, B, C or D, row {row} has {shortened(repr(word), 40)}")
    return np.array([QUALITIES.index(word or "") for word in words], dtype=np.intp)


@contextmanager
def _told_of(path: Path) -> Iterator[pl.DataFrame]:
    """The table at `path`; what is wrong with its columns is told with its name."""
    import polars as pl

    try:
        yield read_frame(path)
    except InputError as error:
        raise error if named(path) in str(error) else InputError(f"{named(path)}: {error}") from None
    except (pl.exceptions.PolarsError, KeyError, ValueError) as error:
        why = shortened(str(error).strip().split("\n", 1)[0])
        raise InputError(f"{named(path)}: its columns are not what a table of {path.parent.name} has: {why}") from None


_ELEMENTWISE = {
    # operator: (op, inputs, FLOP an element)
    "add": ("add", 2, 1), "addu": ("add", 1, 1), "mul": ("mul", 2, 1), "mulu": ("mul", 1, 1),
    "div": ("div", 2, 1), "divu": ("div", 1, 1), "pow": ("pow", 2, 1), "powu": ("pow", 1, 1),
    "relu": ("relu", 1, 1), "gelu": ("gelu", 1, 8), "tanh": ("tanh", 1, 4),
}  # fmt: skip


def _neusight(folder: Path) -> Iterator[Measured]:
    for path in sorted(folder.glob("kernels_*.parquet")):
        with _told_of(path) as frame:
            batches = list(neusight_frame(frame))
        yield from batches


def neusight_frame(frame: pl.DataFrame) -> Iterator[Measured]:
    """Batches of one table in the columns of ``neusight``, by GPU and operator; other operators are left out."""
    import polars as pl

    def rows(kind_name: str, part: pl.DataFrame, columns: Mapping[str, Any]) -> Measured:
        return _plain(str(part["gpu"][0]), kind_name, part.height, columns, part["latency_ms"].to_numpy() * 1e-3,
                      "pytorch", "2.1.0", "eager")  # fmt: skip

    convert: dict[str, Callable[[pl.DataFrame], tuple[str, dict[str, Any]]]] = {
        "bmm": lambda t: ("batched_gemm", {"batch": t["b"], "m": t["m"], "n": t["k"], "k": t["n"]}),
        "linear": lambda t: ("gemm", {"m": t["b"] * t["m"], "n": t["k"], "k": t["n"]}),
        "softmax": lambda t: ("row_reduction", {"op": "softmax", "rows": t["b"], "dim": t["h"]}),
        "ln": lambda t: ("row_reduction", {"op": "layer_norm", "rows": t["b"], "dim": t["h"]}),
        "conv": lambda t: ("conv2d", {
            "batch_size": t["b"], "in_channels": t["in_channels"], "out_channels": t["out_channels"],
            "height": t["input_size"], "kernel_h": t["kernel_size"], "stride": t["stride"], "padding": t["padding"],
        }),
    }  # fmt: skip
    for (_, op), part in frame.group_by(["gpu", "op"], maintain_order=True):
        if op in convert:
            kind_name, columns = convert[str(op)](part)
        elif op in _ELEMENTWISE:
            name, inputs, flop = _ELEMENTWISE[str(op)]
            elements = part["b"].cast(pl.Int64) * part["h"]
            kind_name = "elementwise"
            columns = {"op": name, "elements": elements, "inputs": inputs, "flop_per_element": flop}
        else:
            continue
        columns = {k: v.to_numpy() if isinstance(v, pl.Series) else v for k, v in columns.items()}
        if kind_name == "conv2d":
            part = without_drift(part, columns)
        yield rows(kind_name, part, {**columns, "dtype": "fp32"})


#: GPUs of the nodes of ``vidur/collectives.parquet`` whose links the catalogue knows.
_VIDUR_NODES = {"a100_dgx": "A100-SXM-80GB", "h100_dgx": "H100-SXM-80GB"}

#: Reductions of smaller messages show how long ranks waited for each other (they differ by six within an octave). [B]
_LEAST_REDUCED = 2.0**21


def vidur_collectives(frame: pl.DataFrame) -> Iterator[Measured]:
    """Batches of collectives of ``vidur``, by node: those inside one node with links that the catalogue knows.

    Bytes are of one rank; groups that span nodes, pairs without a switch, and what is read twice are left out.
    """
    import polars as pl

    inside = frame.filter(
        (pl.col("num_workers") == pl.col("devices_per_node"))
        & pl.col("platform").is_in(list(_VIDUR_NODES))
        & ((pl.col("collective") == "send_recv") | (pl.col("message_bytes") >= _LEAST_REDUCED))
        & (pl.col("time_median_ms") > 0)
    )
    shape = ["platform", "collective", "num_workers", "message_bytes"]
    once = inside.group_by(shape, maintain_order=True).agg(pl.col("time_median_ms").median())
    for (platform,), part in once.group_by(["platform"], maintain_order=True):
        columns = {
            "collective": part["collective"].to_list(),
            "num_gpus": part["num_workers"].to_numpy(),
            "message_bytes": part["message_bytes"].to_numpy(),
            "dtype": "fp16",
        }
        time_s = part["time_median_ms"].cast(pl.Float64).to_numpy() * 1e-3
        yield _plain(_VIDUR_NODES[str(platform)], "nccl", part.height, columns, time_s, "nccl", "vidur", "eager")


def without_drift(part: pl.DataFrame, columns: Mapping[str, Any]) -> pl.DataFrame:
    """Convolutions of one GPU with what its sweep got slower by taken out.

    The sweep's order has nothing to do with size, and still its last rows took 0.3 (V100) to 0.8 ms (P100, P4) longer
    than its first ones, small ones and large ones alike.
    """
    import polars as pl

    names = ("batch_size", "in_channels", "out_channels", "height", "height")
    multiplies = np.prod([np.asarray(columns[name], dtype=np.float64) for name in names], axis=0)
    drift_ms = drift_s(part["latency_ms"].cast(pl.Float64).to_numpy() * 1e-3, multiplies) * 1e3
    return part.with_columns(latency_ms=pl.col("latency_ms") - pl.Series(drift_ms))


def _vidur(folder: Path) -> Iterator[Measured]:
    collectives = folder / "collectives.parquet"
    if collectives.exists():
        with _told_of(collectives) as frame:
            batches = list(vidur_collectives(frame))
        yield from batches
    path = folder / "dense_ops.parquet"
    if path.exists():
        with _told_of(path) as frame:
            batches = list(_vidur_dense(frame))
        yield from batches


def _vidur_dense(frame: pl.DataFrame) -> Iterator[Measured]:
    import polars as pl

    table = frame.with_columns(pl.col("gpu", "op", "model_id").cast(pl.String))
    shape = [name for name in table.columns if not name.startswith("time_")]
    table = table.group_by(shape, maintain_order=True).agg(pl.col("time_median_ms").median())
    for (gpu, op), part in table.group_by(["gpu", "op"], maintain_order=True):
        t = {name: part[name].cast(pl.Float64).to_numpy() for name in shape if name not in ("gpu", "op", "model_id")}
        tokens, hidden, tp = t["num_tokens"], t["hidden_size"], t["tp"]
        head_dim = hidden / t["n_head"]
        kv_heads = np.ceil(t["n_kv_head"] / tp)
        inner = t["intermediate_size"] / tp
        gates = 1 + t["use_gated_mlp"]
        known: dict[str, tuple[str, dict[str, Any]]] = {
            "attn_pre_proj": (
                "gemm", {"m": tokens, "n": (t["n_head"] / tp + 2 * kv_heads) * head_dim, "k": hidden}),
            "attn_post_proj": ("gemm", {"m": tokens, "n": hidden, "k": hidden / tp}),
            "mlp_up_proj": ("gemm", {"m": tokens, "n": inner * gates, "k": hidden}),
            "mlp_down_proj": ("gemm", {"m": tokens, "n": hidden, "k": inner}),
            "add": ("elementwise", {"op": "add", "elements": tokens * hidden, "inputs": 2}),
            "mlp_act": ("elementwise", {
                "op": "glu", "elements": tokens * inner, "inputs": gates, "flop_per_element": 6}),
            "attn_rope": ("elementwise", {
                "op": "rope", "elements": tokens * (t["n_head"] / tp + kv_heads) * head_dim, "flop_per_element": 6}),
            "input_layernorm": ("row_reduction", {"op": "rms_norm", "rows": tokens, "dim": hidden}),
            "post_attention_layernorm": ("row_reduction", {"op": "rms_norm", "rows": tokens, "dim": hidden}),
            "emb": ("gather", {"rows": tokens, "dim": hidden, "table_rows": np.ceil(t["vocab_size"] / tp)}),
        }  # fmt: skip
        if op not in known:
            continue
        kind_name, columns = known[str(op)]
        columns = {k: np.floor(v) if isinstance(v, np.ndarray) else v for k, v in columns.items()}
        time_s = part["time_median_ms"].cast(pl.Float64).to_numpy() * 1e-3
        columns["dtype"] = "fp16"
        yield _plain(str(gpu), kind_name, part.height, columns, time_s, "pytorch", "vidur", "cuda_graph")


def _plain(
    gpu: str, kind_name: str, n: int, columns: Mapping[str, Any], time_s: Floats,
    engine: str, version: str, launch_mode: str,
) -> Measured:  # fmt: skip
    """Rows without power, timed in short bursts."""
    return Measured(
        gpu=resolve(gpu)[0].name,
        table=op_table(kind_name, columns, rows=n),
        time_s=time_s,
        power_w=np.full(n, np.nan),
        conditions=Conditions(engine=engine, residency="loop", version=version),
        version=version,
        timing_mode="burst",
        launch_mode=launch_mode,
        operand_init="random",
        power_limit_w=float("nan"),
        quality=np.full(n, len(QUALITIES) - 1),
    )
