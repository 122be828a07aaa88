"""`predict_kernels`: arrays of shapes in, columns of time, power and energy out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from joulecast.bounds.ranges import check_clock_mhz, check_power_limit_w
from joulecast.coefficients.forecasts import forecasting
from joulecast.coefficients.schema import PROVENANCES
from joulecast.coefficients.transfer import host_coefficients
from joulecast.errors import InputError, UnknownNameError, shortened
from joulecast.gpus import Gpu, load_gpu
from joulecast.gpus.state import running_at
from joulecast.kernels.work import ENGINES, Conditions
from joulecast.physics.power import static_power_w
from joulecast.physics.price import price
from joulecast.physics.settled import BOUNDS, bound_by, half_widths, under_limit
from joulecast.physics.uncertainty import bounds
from joulecast.workloads.kinds import kind
from joulecast.workloads.table import OpTable, length_of, op_table

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

Array = npt.NDArray[Any]

#: Rows evaluated at a time: their arrays stay in the processor's cache and memory stays bounded.
CHUNK = 16_384

#: Columns recognised beside those of the operation, with their defaults and the words they may be.
SETTINGS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "framework": ("", ("", *ENGINES, "nccl-tests")),
    "framework_version": ("", ()),
    "kernel_source": ("", ()),
    "launch_mode": ("cuda_graph", ("cuda_graph", "eager", "cuda_graph_or_eager")),
    "timing_mode": ("sustained", ("sustained", "burst")),
    "operand_init": ("", ("", "random", "uninitialised", "constant", "kv_cache_uninitialised", "not_applicable")),
}

#: Whose kernels are priced where no framework is named.
DEFAULT_ENGINE = {"nccl": "nccl", "conv2d": "pytorch", "row_reduction": "pytorch", "elementwise": "pytorch",
                  "gather": "pytorch", "copy": "pytorch", "batched_gemm": "pytorch"}  # fmt: skip

#: Columns of the answer: words, and numbers that are NaN where a row can't run.
_TEXT = ("bound_by", "provenance", "note")
_NUMBERS = ("time_s", "time_s_lower", "time_s_upper", "power_w", "power_w_lower", "power_w_upper",
            "energy_j", "energy_j_lower", "energy_j_upper", "clock_mhz")  # fmt: skip


@dataclass(frozen=True)
class KernelTable:
    """Columns that `predict_kernels` gives back, by name, in the order of the rows that went in."""

    columns: Mapping[str, Array]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns."""
        return tuple(self.columns)

    def __getitem__(self, name: str) -> Array:
        if name not in self.columns:
            raise UnknownNameError("column", name, self.columns)
        return self.columns[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)

    def __len__(self) -> int:
        return len(self.columns["time_s"])

    def keys(self) -> tuple[str, ...]:
        """Names of the columns (so that ``dict(table)`` works)."""
        return self.names

    def to_polars(self) -> pl.DataFrame:
        """The columns as a polars data frame."""
        import polars as pl

        return pl.DataFrame(dict(self.columns))

    def to_pandas(self) -> pd.DataFrame:
        """The columns as a pandas data frame; needs the extra ``pandas``."""
        from joulecast.errors import MissingExtraError

        try:
            import pandas as pd
        except ImportError:
            raise MissingExtraError("to_pandas()", "pandas") from None
        return pd.DataFrame(dict(self.columns))


def predict_kernels(
    op: str,
    columns: Mapping[str, Any],
    gpu: str | Gpu,
    *,
    clock_mhz: float | None = None,
    power_limit_w: float | None = None,
    ignore_extra: bool = False,
    forecast_from: str | None = None,
    memory_clock_mhz: float | None = None,
    temperature_c: float | None = None,
) -> KernelTable:
    """Time, power and energy of single kernels, many shapes at once.

    Parameters
    ----------
    op : str
        A kind of operation, such as ``gemm`` (`joulecast.workloads.kinds.KINDS` lists them with their columns).
    columns : mapping of str to scalar or sequence, or data frame
        The operation's columns; scalars broadcast. Beside them, scalar or one a row:

        ``framework`` (whose kernels: ``trtllm``, ``vllm``, ``pytorch``, ``nccl``; default ``trtllm``, or
        ``pytorch`` for operations that only it was measured on), ``framework_version`` (where kernels of several were
        measured; default the one that was timed with clocks held, else the latest), ``kernel_source`` (which of its
        kernels; default its own choice), ``launch_mode`` (``cuda_graph``, the default, or ``eager``: each launch waits
        for its host),
        ``timing_mode`` (``sustained``: at the clock that the power limit allows, the default; ``burst``: the clock
        is held),
        ``operand_init`` (what the operands hold; default what they held where the engine's kernels were measured,
        ``random`` where they were not), ``power_limit_w`` [W].
    gpu : str or Gpu
        A name in the catalogue, a TOML file, or a description.
    clock_mhz : float, optional
        Core clock asked for; default the GPU's highest. [MHz]
    power_limit_w : float, optional
        Power limit; wins over the column; default the GPU's own. [W]
    ignore_extra : bool
        Pass over columns that no operation has (measured ones, say) instead of refusing them.
    forecast_from : str, optional
        ``ampere``: as if nothing had ever been measured on GPUs of later architectures.
    memory_clock_mhz : float, optional
        One of the GPU's steps; default the highest. [MHz]
    temperature_c : float, optional
        Of the GPU, for its leakage; default that of the measurements. [deg C]

    Returns
    -------
    KernelTable
        ``time_s``, ``power_w``, ``energy_j``, each with ``_lower`` and ``_upper`` (90 % interval), ``clock_mhz``,
        ``bound_by``, ``provenance``, ``note``. A row that can't run on the GPU is NaN, with its reason in ``note``.

    Raises
    ------
    InputError
        For an unknown operation, column, word or GPU, a value out of bounds, or columns of unlike length.
    """
    if forecast_from is not None:
        with forecasting(forecast_from):
            return predict_kernels(
                op, columns, gpu, clock_mhz=clock_mhz, power_limit_w=power_limit_w, ignore_extra=ignore_extra,
                memory_clock_mhz=memory_clock_mhz, temperature_c=temperature_c,
            )  # fmt: skip
    described = running_at(load_gpu(gpu), memory_clock_mhz=memory_clock_mhz, temperature_c=temperature_c)
    own, settings = _separated(op, columns, ignore_extra)
    lengths = [length_of(name, value) for name, value in {**own, **settings}.items()]
    n = max((length for length in lengths if length is not None), default=1)
    table = op_table(op, own, rows=n)
    asked = check_clock_mhz(clock_mhz, described.clock_min_mhz, described.clock_max_mhz, described.name)
    limits = _limits(described, settings.pop("power_limit_w", None), power_limit_w, n)
    out: dict[str, Array] = {name: np.full(n, np.nan) for name in _NUMBERS}
    out.update({name: np.full(n, "", dtype=object) for name in _TEXT})
    for rows, words in _batches(settings, n):
        first, inverse = _distinct(table, limits, rows)
        for start in range(0, first.size, CHUNK):
            part = first[start : start + CHUNK]
            chosen = slice(int(part[0]), int(part[-1]) + 1) if part[-1] - part[0] + 1 == part.size else part
            _fill(out, chosen, table.take(chosen), described, words, asked, limits[chosen])
        if inverse is not None:
            for column in out.values():
                column[rows] = column[first[inverse]]
    return KernelTable(out)


#: Rows looked at to see whether many are alike, and the share of them that must be for looking at all to pay.
_LOOKED_AT = 2048
_ALIKE = 0.2


def _distinct(
    table: OpTable, limits: npt.NDArray[np.float64], rows: npt.NDArray[np.intp]
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp] | None]:
    """One of each of the rows that are alike, and which it is for each row; all of them where few are."""
    if rows.size < _LOOKED_AT:
        return rows, None
    some = rows[:: rows.size // _LOOKED_AT]
    if np.unique(_marks(table, limits, some)).size > (1 - _ALIKE) * some.size:
        return rows, None
    _, first, inverse = np.unique(_marks(table, limits, rows), return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty_like(order)
    rank[order] = np.arange(order.size)
    return rows[first[order]], rank[inverse]


def _marks(table: OpTable, limits: npt.NDArray[np.float64], rows: npt.NDArray[np.intp]) -> npt.NDArray[np.uint64]:
    """A mark of 64 bits of each row: like rows share it, and of a million unlike ones hardly any two do."""
    mark = np.zeros(rows.size, dtype=np.uint64)
    for column in (*table.columns.values(), limits):
        mark ^= np.asarray(column[rows], dtype=np.float64).view(np.uint64)
        mark *= np.uint64(0x9E3779B97F4A7C15)
        mark ^= mark >> np.uint64(29)
    return mark


def _separated(op: str, columns: Mapping[str, Any], ignore_extra: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    described = kind(op)
    if not isinstance(columns, Mapping):
        if hasattr(columns, "collect"):  # a lazy frame: what it would run, and its errors, are the caller's
            raise InputError(f"columns of {op} must be a mapping or a data frame: collect() the lazy frame first")
        names = getattr(columns, "column_names", getattr(columns, "columns", None))  # a table, or a data frame
        if names is None:
            raise InputError(f"columns of {op} must be a mapping of names to values, or a data frame")
        columns = {name: columns[name] for name in names}
    own, settings = {}, {}
    for name, value in columns.items():
        if name in described.names:
            own[name] = value
        if name in SETTINGS or name == "power_limit_w":
            settings[name] = value
        elif name not in described.names and not ignore_extra:
            known = (*described.names, *SETTINGS, "power_limit_w")
            raise UnknownNameError(f"column of {op}", name, known)
    return own, settings


def _limits(gpu: Gpu, column: Any, argument: float | None, n: int) -> npt.NDArray[np.float64]:
    value = column if argument is None else argument
    if value is None:
        return np.full(n, gpu.power_limit_default_w)
    length = length_of("power_limit_w", value) if argument is None else None
    if length is None:
        return np.full(n, check_power_limit_w(value, gpu.idle_w, gpu.name, gpu.power_limit_min_w))
    if length not in (1, n):
        raise InputError(f"column power_limit_w has {length} rows where {n} are expected")
    try:
        values = np.array(value, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"column power_limit_w must hold numbers of W, got {shortened(value)}") from None
    values[np.isnan(values)] = gpu.power_limit_default_w
    bad = values[~(np.isfinite(values) & ((values > gpu.idle_w) | (values >= gpu.power_limit_min_w)))]
    if bad.size:
        check_power_limit_w(bad[0], gpu.idle_w, gpu.name, gpu.power_limit_min_w)
    return np.broadcast_to(values, (n,))


def _batches(settings: Mapping[str, Any], n: int) -> Iterator[tuple[npt.NDArray[np.intp], dict[str, str]]]:
    """Rows that share all their settings, with those settings."""
    code = np.zeros(n, dtype=np.int64)
    words: list[tuple[str, list[str]]] = []
    for name, (default, choices) in SETTINGS.items():
        value = settings.get(name)
        length = length_of(name, value)
        if value is None or length is None:
            values, index = [default if value is None else str(value)], np.zeros(n, dtype=np.int64)
        else:
            if length not in (1, n):
                raise InputError(f"column {name} has {length} rows where {n} are expected")
            texts = np.array([default if item is None else str(item) for item in value], dtype=np.str_)
            found, index = np.unique(texts, return_inverse=True)
            values, index = found.tolist(), np.broadcast_to(index, (n,))
        for word in values:
            if choices and word not in choices:
                raise UnknownNameError(name, word, (choice for choice in choices if choice))
        code = code * len(values) + index
        words.append((name, values))
    for one in np.unique(code):
        rest, picked = int(one), {}
        for name, values in reversed(words):
            rest, place = divmod(rest, len(values))
            picked[name] = values[place]
        yield np.flatnonzero(code == one), picked


def _fill(
    out: Mapping[str, Array], rows: Any, table: OpTable, gpu: Gpu, words: Mapping[str, str], clock_mhz: float,
    limit_w: npt.NDArray[np.float64],
) -> None:  # fmt: skip
    """Evaluate one chunk and write it into `out` at `rows`."""
    engine = words["framework"].replace("nccl-tests", "nccl") or DEFAULT_ENGINE.get(table.kind, "trtllm")
    conditions = Conditions(
        engine=engine, residency="loop", kernel_source=words["kernel_source"], operands=words["operand_init"],
        version=words["framework_version"],
    )  # fmt: skip
    priced = price(table, gpu, conditions)
    held = words["timing_mode"] == "burst"
    # NCCL's own tests pipeline their launches
    hosted = words["launch_mode"] == "eager" and engine != "nccl"
    if hosted:
        fallback_us = host_coefficients(gpu).eager_us
        priced = replace(priced, host_us=np.where(priced.host_us > 0, priced.host_us, fallback_us))
    settled = under_limit(priced, clock_mhz, np.inf if held else limit_w, hosted=hosted)
    spreads = dict(zip(("time_s", "power_w", "energy_j"), half_widths(priced, settled), strict=True))
    floor_w = float(static_power_w(gpu.clock_min_mhz, gpu, priced.power))
    for name, values in (("time_s", settled.time_s), ("power_w", settled.power_w), ("energy_j", settled.energy_j)):
        lower, upper = bounds(values, spreads[name])
        if name == "power_w":
            lower = np.maximum(lower, np.minimum(floor_w, values))
        out[name][rows], out[f"{name}_lower"][rows], out[f"{name}_upper"][rows] = values, lower, upper
    out["clock_mhz"][rows] = settled.clock_mhz
    names = np.array([*BOUNDS, *(f"{bound}, cap" for bound in BOUNDS)], dtype=object)
    out["bound_by"][rows] = names[bound_by(priced, settled.clock_mhz) + len(BOUNDS) * settled.throttled]
    out["provenance"][rows] = np.array(PROVENANCES, dtype=object)[priced.provenance]
    place = np.arange(len(out["time_s"]))[rows]
    over = settled.throttled & (settled.power_w > limit_w)
    if over.any():
        out["note"][place[over]] = "the power limit is exceeded even at the lowest clock"
    if priced.work.reasons:
        bad = place[list(priced.work.reasons)]
        for name in _NUMBERS:
            out[name][bad] = np.nan
        out["bound_by"][bad] = ""
        out["provenance"][bad] = ""
        out["note"][bad] = np.array([shortened(reason, 200) for reason in priced.work.reasons.values()], dtype=object)
