"""Opens measured tables for an audit: tells their format by content, and maps findings to the rows of the file."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from joulecast.calibration import audit_readings as readings
from joulecast.calibration.audit import audit_batch
from joulecast.calibration.findings import Audit, Finding
from joulecast.calibration.tables import measured_frame, neusight_frame
from joulecast.errors import InputError, UnknownNameError, shortened
from joulecast.gpus import Gpu, load_gpu
from joulecast.workloads.files import named
from joulecast.workloads.frames import numbers, read_frame
from joulecast.workloads.kinds import KINDS
from joulecast.workloads.table import Workload

if TYPE_CHECKING:
    import polars as pl

_ROW = "__row"
_TIMES = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_ENERGIES = {"j": 1.0, "mj": 1e-3, "uj": 1e-6, "kj": 1e3}
_POWERS = {"w": 1.0, "mw": 1e-3, "kw": 1e3}
#: What a quantity may be called before its unit: ``time_ms``, ``Latency_us``, ``energy_mJ``.
_CALLED = {
    "time": (("time", "latency", "duration", "runtime"), _TIMES),
    "energy": (("energy",), _ENERGIES),
    "power": (("power",), _POWERS),
    "limit": (("power_limit", "power_cap", "nvml_pwr_limit", "limit"), _POWERS),
    "window": (("power_window", "power_window_est", "window", "power_window_s_est"), _TIMES),
}
#: Columns of kernel tables beside those of the kinds of operation.
_KERNEL_COLUMNS = {
    "gpu", "device_name", "framework", "framework_version", "timing_mode", "launch_mode", "operand_init", "op",
    "kernel_source", "latency_ms", "power_w", "power_limit_w", "power_quality", "power_settled_frac_est",
    "power_window_s_est", "power_samples_min", "num_tokens", "message_elements",
}  # fmt: skip
_FILLED = {"framework": "", "framework_version": "", "timing_mode": "", "launch_mode": "", "operand_init": "",
           "kernel_source": ""}  # fmt: skip
_NEUSIGHT_OPS = {"bmm", "linear", "conv", "softmax", "ln"}
_PASS_COLUMNS = {"model", "precision", "batch", "seq_len", "time_ms", "gpu"}
#: The catalogue's names of the models that published passes name in short.
_MODELS = {
    "bert-large": "bert-large-uncased", "opt-1.3b": "facebook/opt-1.3b", "qwen2-1.5b": "Qwen/Qwen2-1.5B",
    "vit-large": "google/vit-large-patch16-224", "mobilevit-small": "apple/mobilevit-small", "gpt2": "gpt2",
}  # fmt: skip


@dataclass(frozen=True)
class AuditedTable:
    """One file and what its audit found; rows count from 0, as in the file, a header left out.

    Attributes
    ----------
    name : str
    format : str
        ``kernels``, ``neusight``, ``passes`` or ``readings``.
    audit : Audit
    unused : tuple of str
        Columns that no check looks at.
    left_out : int
        Rows that nothing could be said of (failed configurations, operators that no kind describes).
    weak_power : int
        Rows whose table says itself that the window of their power was too short; their times are good.
    """

    name: str
    format: str
    audit: Audit
    unused: tuple[str, ...]
    left_out: int
    weak_power: int = 0


def table_files(path: Path) -> list[Path]:
    """The files to audit: `path` itself, or the CSV and parquet files in and under it.

    Raises
    ------
    InputError
        If there are none.
    """
    if not os.path.lexists(path):
        raise InputError(f"no such file or folder: {named(path)}")
    if not path.is_dir():
        return [path]
    found = sorted(one for one in path.rglob("*") if one.suffix.lower() in (".csv", ".parquet") and one.is_file())
    if not found:
        raise InputError(f"{named(path)} holds no measured tables: CSV and parquet files are read")
    return found


def audit_file(path: Path, gpu: str | None = None, name: str | None = None) -> AuditedTable:
    """Audit one file.

    Parameters
    ----------
    path : Path
        CSV or parquet, told by content.
    gpu : str, optional
        Name of the GPU where the table does not tell it.
    name : str, optional
        What to call the table; its path by default.

    Returns
    -------
    AuditedTable

    Raises
    ------
    InputError
        If it can't be read, is in no format that is known, or names a GPU that is not in the catalogue.
    """
    import polars as pl

    frame = read_frame(path)
    name = named(path) if name is None else name
    if not frame.height:
        raise InputError(f"{name} has no rows")
    frame = frame.with_row_index(_ROW)
    columns = set(frame.columns)
    ops = set(frame["op"].cast(str).drop_nulls().unique().to_list()) if "op" in columns else set()
    try:
        if ops & set(KINDS):
            return _kernels(name, frame, gpu)
        if ops & _NEUSIGHT_OPS or (ops and {"b", "h", "latency_ms", "gpu"} <= columns):
            return _neusight(name, frame)
        if ops and "latency_ms" in columns:
            raise UnknownNameError("operation", sorted(ops)[0], KINDS)
        if columns >= _PASS_COLUMNS:
            return _passes(name, frame, path.parent / "traces")
        if _find(frame, "time"):
            return _readings(name, frame, gpu or _by_manifest(path))
    except InputError as error:
        raise InputError(f"{name}: {error}") from None
    except (pl.exceptions.PolarsError, ValueError) as error:  # a column of words where numbers belong, or none
        why = shortened(str(error).strip().split("\n", 1)[0], 100)
        raise InputError(f"{name}: its columns are not what a table of this kind has: {why}") from None
    known = ", ".join(sorted(ops)[:3])
    raise InputError(
        f"{name} is no table of measurements: it needs a column op with operations that are known"
        f"{f' (not {shortened(known, 40)})' if known else ''}, or a column time_ms (and energy_j, power_w)"
    )


def _kernels(name: str, frame: pl.DataFrame, gpu: str | None) -> AuditedTable:
    frame = kernel_frame(frame, gpu)
    findings: list[Finding] = []
    used = set(_KERNEL_COLUMNS)
    seen = 0
    for kind_name, part in kernel_parts(frame):
        used |= set(KINDS[kind_name].names)
        for batch in measured_frame(part, kind_name):
            findings += _moved(audit_batch(batch), part)
        findings += _energies(part)
        seen += part.height
    audit = Audit(frame.height, tuple(findings))
    unused = _unused(frame, used | _quantities(frame))
    return AuditedTable(name, "kernels", audit, unused, frame.height - seen, _weak(frame))


def kernel_frame(frame: pl.DataFrame, gpu: str | None) -> pl.DataFrame:
    """A table of kernels in the columns and units of `measured_frame`; `gpu` where it does not tell its own."""
    import polars as pl

    frame = _numeric(frame, "latency_ms", "time", 1e-3)
    frame = _numeric(frame, "power_w", "power", 1.0)
    if "gpu" not in frame.columns:
        if gpu is None:
            raise InputError("it has no column gpu: name the GPU with --gpu")
        frame = frame.with_columns(gpu=pl.lit(gpu))
    frame = frame.with_columns(**{k: pl.lit(v) for k, v in _FILLED.items() if k not in frame.columns})
    frame = frame.with_columns(pl.col(k).fill_null("") for k in _FILLED)
    if "power_limit_w" in frame.columns:
        frame = frame.with_columns(numbers(frame, "power_limit_w"))
    return frame


def kernel_parts(frame: pl.DataFrame) -> Iterator[tuple[str, pl.DataFrame]]:
    """Rows of a `kernel_frame` under like conditions, with the kind of their operation."""
    split = ["op", "gpu", *_FILLED, *(["power_limit_w"] if "power_limit_w" in frame.columns else [])]
    for key, part in frame.group_by(split, maintain_order=True):
        if str(key[0]) in KINDS:
            yield str(key[0]), part


def _weak(frame: pl.DataFrame) -> int:
    """Rows whose own table grades their power as mostly another kernel's, for the window was too short."""
    return int(frame["power_quality"].is_in(["C", "D"]).sum()) if "power_quality" in frame.columns else 0


def _energies(part: pl.DataFrame) -> list[Finding]:
    """Energies of kernels, where the table has them, against power and time."""
    if _find(part, "energy") is None:
        return []
    reading = _readings_of(part, load_gpu(str(part["gpu"][0])))
    return _moved(Audit(part.height, tuple(readings.audit_energy(reading))), part)


def _neusight(name: str, frame: pl.DataFrame) -> AuditedTable:
    used = {"op", "gpu", "latency_ms", "b", "m", "n", "k", "h", "in_channels", "out_channels", "kernel_size",
            "input_size", "stride", "padding"}  # fmt: skip
    findings: list[Finding] = []
    seen = 0
    for _, part in frame.group_by(["gpu", "op"], maintain_order=True):
        for batch in neusight_frame(part):
            findings += _moved(audit_batch(batch), part)
            seen += part.height
    audit = Audit(frame.height, tuple(findings))
    return AuditedTable(name, "neusight", audit, _unused(frame, used), frame.height - seen)


def _passes(name: str, frame: pl.DataFrame, traces: Path) -> AuditedTable:
    """Whole passes of models: readings, and the arithmetic of the trace or of the model itself."""
    findings: list[Finding] = []
    workloads: dict[tuple[Any, ...], Workload | None] = {}
    unknown = 0
    for (gpu_name,), part in frame.group_by(["gpu"], maintain_order=True):
        gpu = load_gpu(str(gpu_name))
        reading = _readings_of(part, gpu)
        least, labels = np.full(part.height, np.nan), []
        for i, row in enumerate(part.iter_rows(named=True)):
            key = tuple(row.get(k) for k in ("trace", "model", "precision", "batch", "seq_len"))
            if key not in workloads:
                workloads[key] = _workload(row, traces)
            workload = workloads[key]
            labels.append(f"{row['model']} {row['precision']} batch {row['batch']} length {row['seq_len']}")
            if workload is not None:
                clock = row.get("clock_target_mhz")
                fits = isinstance(clock, int | float) and gpu.clock_min_mhz <= clock <= gpu.clock_max_mhz
                least[i] = readings.least_pass_s(workload, gpu, float(clock) if fits and clock is not None else None)
        unknown += int(np.isnan(least).sum())
        audit = readings.audit_readings(reading)
        # passes are bound by their host as well: only what is too fast is wrong
        extra = readings.too_fast_passes(reading.time_s, least, labels)
        findings += _moved(Audit(part.height, (*audit.findings, *extra)), part)
    used = _PASS_COLUMNS | {"trace", "clock_target_mhz"} | _quantities(frame)
    return AuditedTable(name, "passes", Audit(frame.height, tuple(findings)), _unused(frame, used), unknown)


def _workload(row: dict[str, Any], traces: Path) -> Workload | None:
    """What a pass computes: its trace, else the model by name; None where neither is known."""
    from joulecast.workloads.energaizer import as_precision, read_trace
    from joulecast.workloads.sources import open_workload

    precision = str(row["precision"])
    file = traces / Path(str(row.get("trace") or "none")).name
    if row.get("trace") and file.is_file():
        trace = read_trace(file)
        return as_precision(trace, precision) if precision == "fp32" else trace
    model = str(row["model"])
    try:
        tokens: dict[str, Any] = {"prompt_tokens": int(row["seq_len"])} if row.get("seq_len") else {}
        return open_workload(_MODELS.get(model, model), batch=int(row["batch"]), dtype=precision, **tokens)
    except (InputError, ValueError, TypeError):
        return None


def _readings(name: str, frame: pl.DataFrame, gpu: str | None) -> AuditedTable:
    findings: list[Finding] = []
    by_row = "gpu" in frame.columns
    groups = frame.group_by(["gpu"], maintain_order=True) if by_row else [((None,), frame)]
    left_out = 0
    for (told,), part in groups:
        named_gpu = told or gpu
        reading = _readings_of(part, load_gpu(str(named_gpu)) if named_gpu else None)
        left_out += int(reading.failed.sum())
        findings += _moved(readings.audit_readings(reading), part)
    used = {"gpu", "error", "times_ms", "launch_energy_J"} | _quantities(frame)
    return AuditedTable(name, "readings", Audit(frame.height, tuple(findings)), _unused(frame, used), left_out)


def _readings_of(part: pl.DataFrame, gpu: Gpu | None) -> readings.Readings:
    import polars as pl

    n = part.height

    def quantity(what: str) -> Any:
        found = _find(part, what)
        if found is None:
            return np.full(n, np.nan)
        column, scale = found
        return part[column].cast(pl.Float64, strict=False).fill_null(math.nan).to_numpy() * scale

    failed = part["error"].is_not_null().to_numpy() if "error" in part.columns else np.zeros(n, dtype=bool)
    lists = {"times_ms", "launch_energy_J"} <= set(part.columns)
    times, energies = (part[c].to_list() for c in ("times_ms", "launch_energy_J")) if lists else ([], [])
    return readings.Readings(
        gpu, quantity("time"), quantity("power"), quantity("energy"), quantity("limit"), quantity("window"), failed,
        tuple(np.array(one or [], dtype=np.float64) * 1e-3 for one in times),
        tuple(np.array(one or [], dtype=np.float64) for one in energies),
    )  # fmt: skip


def _find(frame: pl.DataFrame, what: str) -> tuple[str, float] | None:
    """The column that holds a quantity, and the size of its unit; the first that is called so."""
    names, units = _CALLED[what]
    spelled = {column.lower(): column for column in frame.columns}
    for name in names:
        for unit, size in units.items():
            if f"{name}_{unit}" in spelled and frame[spelled[f"{name}_{unit}"]].dtype.is_numeric():
                return spelled[f"{name}_{unit}"], size
        if name in spelled and name.startswith(("nvml", "power_window_s")):
            return spelled[name], 1.0
    return None


def _quantities(frame: pl.DataFrame) -> set[str]:
    return {found[0] for found in (_find(frame, what) for what in _CALLED) if found is not None}


def _numeric(frame: pl.DataFrame, column: str, what: str, size: float) -> pl.DataFrame:
    """`frame` with `column` as floats, made of another spelling of the quantity where it is missing."""
    import polars as pl

    found = _find(frame, what)
    if column not in frame.columns:
        if found is None:
            if what == "time":
                raise InputError("it has no column latency_ms (or time_ms, time_s, ...)")
            return frame
        return frame.with_columns((pl.col(found[0]).cast(pl.Float64) * (found[1] / size)).alias(column))
    return frame.with_columns(numbers(frame, column))


def _moved(audit: Audit, part: pl.DataFrame) -> list[Finding]:
    rows = part[_ROW].to_numpy().astype(np.intp)
    return [one.moved(rows) for one in audit.findings]


def _unused(frame: pl.DataFrame, used: set[str]) -> tuple[str, ...]:
    return tuple(column for column in frame.columns if column not in used and column != _ROW)


def _by_manifest(path: Path) -> str | None:
    """The GPU that a ``manifest.json`` beside the file names for it, if any."""
    manifest = path.parent / "manifest.json"
    try:
        entries = json.loads(manifest.read_bytes())
        return next((str(e["gpu"]) for e in entries if e.get("file") == path.name and e.get("gpu")), None)
    except (OSError, ValueError, AttributeError, TypeError, KeyError):
        return None


def audit_all(
    path: Path, files: list[Path], gpu: str | None = None, done: Callable[[int], None] = lambda _: None
) -> Iterator[AuditedTable | InputError]:
    """Audit the `files` of `path` one after the other; one that can't be read gives its error.

    `done` is told how many are audited.
    """
    for i, file in enumerate(files):
        try:
            yield audit_file(file, gpu, named(file.relative_to(path)) if file != path else None)
        except InputError as error:
            yield error
        done(i + 1)
