"""`Workload`: a columnar table of the operations of a model, with no GPU in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from joulecast.bounds.dtypes import DTYPES, dtype_code
from joulecast.errors import InputError, UnknownNameError, shortened
from joulecast.workloads.kinds import Column, kind

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]

#: How a tensor-parallel layout treats an operation: whole on every GPU, divided by its outputs, divided along its
#: reduction (an all-reduce of the result follows), along its reduction with the sum left to another operation
#: (``partial``), or, of a matrix multiply, by the rows of its result (``rows``).
SHARDS = ("none", "out", "in", "partial", "rows")


@dataclass(frozen=True)
class OpTable:
    """Operations of one kind: one array a column, all of one length.

    Attributes
    ----------
    kind : str
        Name in `joulecast.workloads.kinds.KINDS`.
    columns : mapping of str to ndarray, shape (n,)
        Sizes and reals as float64; formats and choices as small integer codes.
    """

    kind: str
    columns: Mapping[str, Array]

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, name: str) -> Array:
        return self.columns[name]

    def take(self, rows: Array | slice) -> OpTable:
        """The rows at `rows`: indices, a mask or a slice."""
        return replace(self, columns={name: column[rows] for name, column in self.columns.items()})

    def words(self, name: str) -> list[str]:
        """A format or choice column as words."""
        return [decode(kind(self.kind).column(name), code) for code in self.columns[name]]

    def distinct(self) -> tuple[OpTable, Array]:
        """The distinct rows, and for each row the index of its distinct one."""
        stacked = np.stack([np.asarray(column, dtype=np.float64) for column in self.columns.values()], axis=1)
        _, first, inverse = np.unique(stacked, axis=0, return_index=True, return_inverse=True)
        return self.take(first), inverse.reshape(-1)


@dataclass(frozen=True)
class Pass:
    """One kind of pass through the model: a prefill, a decoding step, a forward.

    Attributes
    ----------
    phase : str
        ``forward``, ``prefill`` or ``decode``.
    repeats : float
        How often it runs (decoding steps stand for `repeats` real ones near their context length).
    tokens : float
        Tokens (or images) that one such pass takes in, over the whole batch.
    """

    phase: str
    repeats: float
    tokens: float


@dataclass(frozen=True)
class Memory:
    """Bytes a model needs on one GPU before any layout divides them. [B]"""

    weights_bytes: float = 0.0
    kv_cache_bytes: float = 0.0
    activation_bytes: float = 0.0

    @property
    def total_bytes(self) -> float:
        """Sum of the parts. [B]"""
        return self.weights_bytes + self.kv_cache_bytes + self.activation_bytes


@dataclass(frozen=True)
class Workload:
    """The operations of a model, by kind; nothing in it depends on a GPU.

    Attributes
    ----------
    name : str
    tables : mapping of str to OpTable
        By kind. Beside the kind's own columns each table has ``count`` (how often the operation runs
        in one pass), ``order`` (position in the pass), ``pass_id`` (index into `passes`), ``layer``
        (index into `layers`) and ``shard`` (index into `SHARDS`).
    passes : tuple of Pass
    layers : tuple of str
        Paths such as ``layers.*.attention`` (a star where like layers are counted together).
    memory : Memory
    parameters : float
        Parameters of the model, shared ones once.
    info : mapping
        Facts for a reader: dtype, batch, prompt tokens, ...; plain values.
    notes : tuple of str
        What a reader should know (operations restored, assumptions made).
    unpriced : mapping of str to float
        Operations that no kind describes, with the bytes they move. [B]
    compiled : Workload or None
        The same passes as a compiler leaves them, where the source can tell; otherwise lowering's own rules apply.
    biased : tuple of str
        Layers whose matrix multiply adds a bias.
    """

    name: str
    tables: Mapping[str, OpTable]
    passes: tuple[Pass, ...]
    layers: tuple[str, ...] = ("",)
    memory: Memory = Memory()
    parameters: float = 0.0
    info: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    notes: tuple[str, ...] = ()
    unpriced: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    compiled: Workload | None = None
    biased: tuple[str, ...] = ()

    @property
    def operations(self) -> float:
        """Operations run in all passes, each counted as often as it runs."""
        repeats = np.array([one.repeats for one in self.passes])
        return float(sum((table["count"] * repeats[table["pass_id"]]).sum() for table in self.tables.values()))

    def flop(self, what: str = "all", *, phase: str | None = None, causal: str = "done") -> float:
        """FLOP of all passes together; see `joulecast.workloads.counting.flop`. [FLOP]"""
        from joulecast.workloads.counting import flop

        return flop(self, what, phase=phase, causal=causal)


#: Columns that every table of a workload has beside those of its kind.
COMMON = ("count", "order", "pass_id", "layer", "shard")


#: Elements of the activations that an operation reads, by kind, where zeros among them matter.
_READ_ELEMENTS: Mapping[str, Callable[[Mapping[str, Any]], float]] = {
    "gemm": lambda c: c["m"] * c["k"],
    "conv2d": lambda c: c["batch_size"] * c["in_channels"] * c["height"] * c.get("width", c["height"]),
}

#: Share of zeros in what a ReLU lets through, by the kind that reads it. Trained transformers leave 3 to 10 % of the
#: activations of their MLPs above zero, OPT 3 to 5 % (Z. Li et al., The Lazy Neuron Phenomenon, ICLR 2023; I. Mirzadeh
#: et al., ReLU Strikes Back, ICLR 2024); of the feature maps of convolutional networks about half is.
_ZEROS_AFTER_RELU = {"gemm": 0.9, "conv2d": 0.5}


class WorkloadBuilder:
    """Collects operations one by one (a few hundred: one row stands for all its like) into a `Workload`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.passes: list[Pass] = []
        self._rows: dict[str, list[dict[str, Any]]] = {}
        self._layers: dict[str, int] = {}
        self._order = 0
        self._rectified = 0.0

    def begin_pass(self, phase: str, *, repeats: float = 1, tokens: float = 0) -> int:
        """Start a pass; operations added from here on belong to it. Returns its index."""
        self.passes.append(Pass(phase, repeats, tokens))
        self._order = 0
        self._rectified = 0.0
        return len(self.passes) - 1

    def add(self, kind_name: str, *, layer: str = "", count: float = 1, shard: str = "none", **columns: Any) -> None:
        """Add one operation that runs `count` times a pass (once for each like layer, say)."""
        if not self.passes:
            self.begin_pass("forward")
        self._rows.setdefault(kind_name, []).append(
            {
                **self._with_zeros(kind_name, columns),
                "count": count,
                "order": self._order,
                "pass_id": len(self.passes) - 1,
                "layer": self._layers.setdefault(layer, len(self._layers)),
                "shard": SHARDS.index(shard),
            }
        )
        self._order += 1

    def _with_zeros(self, kind_name: str, columns: dict[str, Any]) -> dict[str, Any]:
        """What a ReLU lets through is zero in part, until something else writes a tensor of that size."""
        if kind_name == "elementwise":
            if columns.get("op") == "relu":
                self._rectified = float(columns["elements"])
            elif columns.get("elements") == self._rectified:
                self._rectified = 0.0
        read = _READ_ELEMENTS.get(kind_name)
        if read is not None and self._rectified and read(columns) == self._rectified:
            return {"zero_share": _ZEROS_AFTER_RELU[kind_name], **columns}
        return columns

    def build(self, **fields: Any) -> Workload:
        """The workload; `fields` are the remaining attributes of `Workload`."""
        tables = {}
        for kind_name, rows in self._rows.items():
            given = {name for row in rows for name in row}
            columns = {name: [row.get(name) for row in rows] for name in given if name not in COMMON}
            table = op_table(kind_name, columns, rows=len(rows))
            common: dict[str, Array] = {
                "count": np.array([row["count"] for row in rows], dtype=np.float64),
                "order": np.array([row["order"] for row in rows], dtype=np.int64),
                "pass_id": np.array([row["pass_id"] for row in rows], dtype=np.int64),
                "layer": np.array([row["layer"] for row in rows], dtype=np.int64),
                "shard": np.array([row["shard"] for row in rows], dtype=np.int64),
            }
            tables[kind_name] = OpTable(kind_name, {**table.columns, **common})
        layers = tuple(self._layers) or ("",)
        return Workload(name=self.name, tables=tables, passes=tuple(self.passes), layers=layers, **fields)


def op_table(kind_name: str, columns: Mapping[str, Any], *, rows: int | None = None) -> OpTable:
    """Checked columns of one kind from scalars and sequences that broadcast.

    Parameters
    ----------
    kind_name : str
        The kind of operation.
    columns : mapping of str to scalar or sequence
        Sizes as numbers, formats and choices as words (or numpy arrays of words). A missing column,
        or a None inside one, takes the column's default.
    rows : int, optional
        Number of rows; otherwise the length of the longest column.

    Returns
    -------
    OpTable

    Raises
    ------
    InputError
        For an unknown or missing column, a length that does not match, a value out of its bounds, or sizes that
        contradict each other (the column and the first bad row are named).
    """
    described = kind(kind_name)
    for name in columns:
        described.column(name)
    lengths = {name: length for name, value in columns.items() if (length := length_of(name, value)) is not None}
    n = rows if rows is not None else max(lengths.values(), default=1)
    for name, length in lengths.items():
        if length not in (1, n):
            raise InputError(f"column {name} of {kind_name} has {length} rows where {n} are expected")
    out: dict[str, Array] = {}
    for column in described.columns:
        value = columns.get(column.name)
        if value is None:
            out[column.name] = _default(described.name, column, out, n)
            continue
        coded, missing = _encoded(described.name, column, value)
        coded = np.ascontiguousarray(np.broadcast_to(coded, (n,)))
        if missing is not None and missing.any():
            if column.default is None and not missing.all():
                row = int(np.argmax(missing))
                raise InputError(f"{kind_name} needs its {column.name} in every row: row {row} has none")
            coded = np.where(missing, _default(described.name, column, out, n), coded)
        out[column.name] = coded
    for rule in described.rules:
        sizes = [out[name] for name in rule.columns]
        broken = ~rule.holds(*sizes)
        if broken.any():
            row = int(np.argmax(broken))
            got = ", ".join(f"{name} {one[row]:g}" for name, one in zip(rule.columns, sizes, strict=True))
            raise InputError(f"{kind_name}: {rule.text}, got {got} in row {row}")
    return OpTable(described.name, out)


def trusted_table(kind_name: str, columns: Mapping[str, Any], rows: int) -> OpTable:
    """A table of `rows` rows from columns that our own code made: no check, words still encoded, defaults filled."""
    out: dict[str, Array] = {}
    for column in kind(kind_name).columns:
        value = columns.get(column.name)
        if value is None:
            out[column.name] = _default(kind_name, column, out, rows)
            continue
        if isinstance(value, str):
            value = encode(column, value)
        if not (isinstance(value, np.ndarray) and value.shape == (rows,)):
            value = np.full(rows, value, dtype=np.int16 if column.type in ("dtype", "choice") else np.float64)
        out[column.name] = value
    return OpTable(kind_name, out)


def encode(column: Column, word: str) -> int:
    """The code by which `column` holds `word`."""
    if column.type == "dtype":
        return dtype_code(word)
    if word in column.choices:
        return column.choices.index(word)
    raise UnknownNameError(column.name, word, column.choices)


def decode(column: Column, code: Any) -> str:
    """The word that `column` holds as `code`."""
    return DTYPES[int(code)].name if column.type == "dtype" else column.choices[int(code)]


def length_of(name: str, value: Any) -> int | None:
    """Rows of the column `name`; None where its value is a scalar that stands for all rows.

    Raises
    ------
    InputError
        If `value` holds sequences within sequences.
    """
    if isinstance(value, str | bytes) or not hasattr(value, "__len__"):
        return None
    try:
        dimensions = np.ndim(value)
    except ValueError:  # rows of unlike length
        dimensions = 2
    if dimensions > 1:
        raise InputError(f"column {shortened(name)} must hold one value a row, not a list or table in each")
    return len(value) if dimensions else None


def _default(kind_name: str, column: Column, done: Mapping[str, Array], n: int) -> Array:
    if column.default is None:
        raise InputError(f"{kind_name} needs a column {column.name} ({column.help})")
    if isinstance(column.default, str) and column.default in done:
        return done[column.default]
    if column.type in ("dtype", "choice"):
        return np.full(n, encode(column, str(column.default)), dtype=np.int16)
    return np.full(n, float(column.default))


def _encoded(kind_name: str, column: Column, value: Any) -> tuple[Array, Array | None]:
    """`value` as an array of numbers or codes, and a mask of the rows left out (None)."""
    if column.type in ("dtype", "choice"):
        return _encoded_words(column, value)
    try:
        raw = np.asarray(value)
        if raw.dtype.kind not in "iufbOUS":
            raise TypeError(f"{raw.dtype} holds no real numbers")
        if raw.dtype == object:
            missing = np.array([item is None for item in raw.reshape(-1)])
            numbers = np.array([0.0 if item is None else float(item) for item in raw.reshape(-1)])
        elif raw.dtype.kind in "iufb":
            missing, numbers = None, raw.astype(np.float64).reshape(-1)
        else:
            missing, numbers = None, np.array([float(item) for item in raw.reshape(-1)])
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"column {column.name} of {kind_name} must hold numbers, got {shortened(value)}") from None
    checked = numbers if missing is None else numbers[~missing]
    _check_numbers(kind_name, column, checked)
    return numbers, missing


def _check_numbers(kind_name: str, column: Column, numbers: Floats) -> None:
    bad = ~((numbers >= column.minimum) & (numbers <= column.maximum))
    what = f"between {column.minimum:g} and {column.maximum:g}"
    if column.type == "size" and not bad.any():
        bad = numbers != np.floor(numbers)
        what = "a whole number"
    if bad.any():
        row = int(np.argmax(bad))
        raise InputError(f"{column.name} of {kind_name} must be {what}, got {numbers[row]:g} in row {row}")


def _encoded_words(column: Column, value: Any) -> tuple[Array, Array | None]:
    if length_of(column.name, value) is None:
        return np.array([encode(column, str(value))], dtype=np.int16), None
    if isinstance(value, np.ndarray) and value.dtype.kind in "iu":
        limit = len(DTYPES) if column.type == "dtype" else len(column.choices)
        if value.size and (int(value.min()) < 0 or int(value.max()) >= limit):
            raise InputError(f"{column.name} holds codes outside 0 to {limit - 1}")
        return value.astype(np.int16), None
    codes: dict[object, int] = {None: -1}
    items: Sequence[Any] = value.tolist() if hasattr(value, "tolist") else list(value)
    out = np.empty(len(items), dtype=np.int16)
    for row, item in enumerate(items):
        code = codes.get(item)
        if code is None:
            code = codes[item] = encode(column, str(item))
        out[row] = code
    missing = out < 0
    return out, missing if missing.any() else None
