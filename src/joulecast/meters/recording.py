"""Recorded search spaces: tables of configurations with measured time and, for some, energy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from joulecast.bounds.plausibility import BOARD_W, CORE_CLOCK_MHZ, SHORTEST_KERNEL_S, mean_power_w
from joulecast.errors import InputError, shortened
from joulecast.meters.contents import content_of

Floats = npt.NDArray[np.float64]
Value = int | float | str | bool

#: Names of the columns that tell at which core clock and power limit a row was recorded. [MHz, W]
STATES = {"core clock": ("nvml_gr_clock", "core_clock_mhz", "clock_mhz"), "power limit": ("power_limit_w",)}

#: A launch that takes longer is no kernel's. [ms]
_LONGEST_MS = 1e6

#: Columns that hold what was measured or asked, not what can be chosen.
_MEASURED = frozenset({
    "time_ms", "time_n", "time_std_ms", "time_min_ms", "times_ms", "error", "energy_J", "power_W", "core_clock_MHz",
    "mem_clock_MHz", "temp_C", "num_regs", "launch_energy_J", "launch_core_MHz", "launch_temp_C", "timestamp",
    "session", "REPEAT", "nvml_pwr_limit", "nvml_mem_clock",
})  # fmt: skip


@dataclass(frozen=True)
class Recording:
    """A recorded space.

    Attributes
    ----------
    name : str
        Of the file, without its ending.
    configs : tuple of dict
        The tunables that vary, a configuration a row.
    constants : dict
        Tunables with one value.
    time_s : ndarray, shape (n,)
        Mean time of a launch; NaN where the configuration failed. [s]
    time_cv : ndarray, shape (n,)
        Coefficient of variation of single launches; 0 where not recorded.
    energy_j : ndarray, shape (n,), or None
        Of a launch; NaN where it is missing. [J]
    reasons : tuple of str
        Why a configuration failed; empty where it did not.
    launches_j : tuple of ndarray, or None
        Energies of single launches, where they were kept. [J]
    series : tuple of ndarray, or None
        Of repeats of one configuration, in the order they were read: energy [J], time [s], temperature [deg C].
    """

    name: str
    configs: tuple[dict[str, Value], ...]
    constants: dict[str, Value]
    time_s: Floats
    time_cv: Floats
    energy_j: Floats | None
    reasons: tuple[str, ...]
    launches_j: tuple[Floats, ...] | None = None
    series: tuple[Floats, Floats, Floats] | None = None

    @cached_property
    def rows(self) -> dict[tuple[Value, ...], int]:
        """Row of each configuration, by its values in the order of the tunables."""
        return {tuple(config.values()): row for row, config in enumerate(self.configs)}

    @property
    def names(self) -> tuple[str, ...]:
        """Of the tunables that vary."""
        return tuple(self.configs[0])

    @property
    def valid(self) -> npt.NDArray[np.bool_]:
        """Which rows ran, and have an energy where the space has energies."""
        ran = np.isfinite(self.time_s)
        return ran if self.energy_j is None else ran & np.isfinite(self.energy_j)

    def row(self, config: Mapping[str, Any]) -> int:
        """Row of a configuration.

        Raises
        ------
        InputError
            If it is not in the recording.
        """
        key = tuple(config.get(name) for name in self.names)
        try:
            return self.rows[key]  # type: ignore[index]
        except KeyError:
            raise InputError(f"{self.name} holds no configuration {shortened(dict(config))}") from None

    def only(self, **values: Value) -> Recording:
        """The part of the space where tunables have given values; these become constants.

        Raises
        ------
        InputError
            For a tunable or a value that the recording does not hold.
        """
        for name, value in values.items():
            if name not in self.names:
                raise InputError(f"{self.name} has no tunable {shortened(name)!r} that varies: {', '.join(self.names)}")
            held = sorted({config[name] for config in self.configs}, key=str)
            if value not in held:
                raise InputError(f"{self.name} holds no {name} = {shortened(value)}: {', '.join(map(str, held))}")
        keep = [row for row, config in enumerate(self.configs) if all(config[name] == v for name, v in values.items())]
        if not keep:
            raise InputError(f"{self.name} holds no configuration with {values}")
        if len(values) == len(self.names):
            raise InputError(f"{self.name}: every tunable is held at a value, which leaves nothing to search")
        left = self._rows(keep)
        return replace(
            left,
            configs=tuple({k: v for k, v in config.items() if k not in values} for config in left.configs),
            constants={**self.constants, **values},
        )

    def at(self, kind: str, values: Sequence[float]) -> Recording:
        """The part of the space at some of the clocks or power limits that were recorded; one alone is a constant.

        Parameters
        ----------
        kind : str
            ``core clock`` or ``power limit``.
        values : sequence of float
            [MHz, W]

        Raises
        ------
        InputError
            If they were not recorded.
        """
        column = next((name for name in STATES[kind] if name in self.names), None)
        if column is None:
            held = next((f": {self.constants[name]}" for name in STATES[kind] if name in self.constants), "")
            raise InputError(f"{self.name} was recorded at one {kind}{held}, or does not say at which")
        known = sorted({float(config[column]) for config in self.configs})
        for value in values:
            if value not in known:
                told = ", ".join(f"{one:g}" for one in known)
                raise InputError(f"{self.name} was not recorded at a {kind} of {value:g}: {told}")
        if len(values) == 1:
            return self.only(**{column: next(c[column] for c in self.configs if float(c[column]) == values[0])})
        return self._rows([row for row, config in enumerate(self.configs) if float(config[column]) in values])

    def _rows(self, keep: list[int]) -> Recording:
        return replace(
            self,
            configs=tuple(self.configs[row] for row in keep),
            time_s=self.time_s[keep],
            time_cv=self.time_cv[keep],
            energy_j=None if self.energy_j is None else self.energy_j[keep],
            reasons=tuple(self.reasons[row] for row in keep),
            launches_j=None if self.launches_j is None else tuple(self.launches_j[row] for row in keep),
        )


def read_recording(path: str | Path, *, session: str | int | None = None, variants: int = 20) -> Recording:
    """A recorded space from its parquet or CSV file.

    Parameters
    ----------
    path : path
        With ``time_ms`` and, for energies, ``energy_J``; other columns of whole numbers are tunables.
    session : str or int, optional
        Of a file of repeats: which session, by name or place.
    variants : int
        Of a file of repeats: how many configurations to make of the one that there is, all the same.

    Returns
    -------
    Recording

    Raises
    ------
    InputError
        If the file can't be read or is no recorded space.
    """
    import polars as pl

    file = Path(path)
    form = content_of(file, "a recorded space", "parquet", "CSV")
    try:
        table = pl.read_parquet(file) if form == "parquet" else pl.read_csv(file, infer_schema_length=None)
    except Exception as error:  # whatever the readers raise on a file that is damaged
        first = shortened(str(error).splitlines()[0])
        raise InputError(f"can't read {shortened(file)} as {form}: {first}") from None
    if "time_ms" not in table.columns:
        raise InputError(f"{shortened(file)} is no recorded space: it has no column time_ms")
    _in_units(table, shortened(file))
    name = file.stem
    if "REPEAT" in table.columns:
        return _repeats(table, name, session, variants)
    tunables = [c for c in table.columns if c not in _MEASURED and _chosen(table[c].dtype)]
    varying = [c for c in tunables if table[c].n_unique() > 1]
    if not varying:
        raise InputError(f"{shortened(file)} has no tunable that varies")
    _distinct(table, varying, shortened(file))
    time_s = _floats(table, "time_ms") * 1e-3
    spread = _floats(table, "time_std_ms") * 1e-3 if "time_std_ms" in table.columns else np.zeros(len(time_s))
    energy = _floats(table, "energy_J") if "energy_J" in table.columns else None
    if session is not None:
        raise InputError(f"{shortened(file)} holds no repeats: a session is of a file with a column REPEAT")
    errors = [""] * len(time_s) if "error" not in table.columns else [str(e or "") for e in table["error"].to_list()]
    ran = np.isfinite(time_s) & (time_s > 0)
    time_s = np.where(ran, time_s, np.nan)
    launches = None
    if "launch_energy_J" in table.columns:
        several = table["launch_energy_J"].to_list()
        if not all(isinstance(row, list) and row for row in several):
            raise InputError(f"{shortened(file)}: launch_energy_J must hold a list of numbers in each row")
        launches = tuple(np.asarray(row, dtype=np.float64) for row in several)
    return Recording(
        name,
        tuple(table.select(varying).to_dicts()),
        {c: table[c][0] for c in tunables if c not in varying},
        time_s,
        np.nan_to_num(spread / time_s),
        energy,
        tuple(error or ("" if ok else "no time was recorded") for error, ok in zip(errors, ran, strict=True)),
        launches,
    )


def _floats(table: Any, column: str) -> Floats:
    import polars as pl

    try:
        return np.asarray(table[column].cast(pl.Float64).fill_null(float("nan")).to_numpy(), dtype=np.float64)
    except pl.exceptions.PolarsError:
        raise InputError(f"the column {column} must hold plain numbers in the unit that it names") from None


def _in_units(table: Any, name: str) -> None:
    """Refuse a table of which a column is in another unit than its name says, by its middle value."""
    clocks, limits = (dict.fromkeys(STATES[kind]) for kind in ("core clock", "power limit"))
    ranges = dict.fromkeys((*clocks, "core_clock_MHz"), (*CORE_CLOCK_MHZ, "MHz"))
    ranges |= dict.fromkeys((*limits, "power_W", "nvml_pwr_limit"), (*BOARD_W, "W"))
    ranges["time_ms"] = (SHORTEST_KERNEL_S * 1e3, _LONGEST_MS, "ms")
    for column, (low, high, unit) in ranges.items():
        if column in table.columns and table[column].dtype.is_numeric():
            middle = _middle(_floats(table, column))
            if not low <= middle <= high:
                raise InputError(f"{name}: {column} is {middle:.3g} in the middle, which can't be in {unit}")
    if "energy_J" in table.columns:
        middle = _middle(mean_power_w(_floats(table, "energy_J"), _floats(table, "time_ms") * 1e-3))
        if not BOARD_W[0] <= middle <= BOARD_W[1]:
            said = f"energy_J over time_ms comes to {middle:,.3g} W in the middle, which no board draws"
            raise InputError(f"{name}: {said}: energies are in J, and times in ms")


def _middle(values: Floats) -> float:
    """Median of what is there; within every range where nothing is."""
    there = values[np.isfinite(values)]
    return float(np.median(there)) if len(there) else 100.0


def _chosen(dtype: Any) -> bool:
    """Whether a column of this type holds choices; fractions are taken for measurements."""
    import polars as pl

    return dtype.is_integer() or dtype in (pl.String, pl.Boolean) or isinstance(dtype, pl.Categorical | pl.Enum)


def _distinct(table: Any, tunables: list[str], name: str) -> None:
    """Refuse rows without a value of a tunable, and two rows of one configuration: which of them holds is not known."""
    for column in tunables:
        if table[column].null_count():
            raise InputError(f"{name}: row {int(table[column].is_null().arg_max()) + 1} has no {column}")
    twice = table.select(tunables).is_duplicated()
    if twice.any():
        first = table.row(int(twice.arg_max()), named=True)
        told = " ".join(f"{column}={first[column]}" for column in tunables)
        raise InputError(f"{name} holds {told} twice: rows must be different configurations "
                         "(columns of fractions are taken for measurements, not tunables)")  # fmt: skip


def _repeats(table: Any, name: str, session: str | int | None, variants: int) -> Recording:
    import polars as pl

    sessions = table["session"].unique(maintain_order=True).to_list() if "session" in table.columns else [name]
    chosen = sessions[session % len(sessions)] if isinstance(session, int) else (session or sessions[0])
    if chosen not in sessions:
        raise InputError(f"{name} holds no session {shortened(chosen)!r}: {', '.join(sessions)}")
    rows = table.filter(pl.col("session") == chosen) if "session" in table.columns else table
    if "energy_J" not in rows.columns or rows["energy_J"].null_count():
        raise InputError(f"{name}: each repeat needs its energy_J")
    energy, time = _floats(rows, "energy_J"), _floats(rows, "time_ms") * 1e-3
    temperature = _floats(rows, "temp_C") if "temp_C" in rows.columns else np.full(len(time), np.nan)
    return Recording(
        f"{name} ({chosen})",
        tuple({"variant": number} for number in range(variants)),
        {},
        np.full(variants, float(time.mean())),
        np.full(variants, float(time.std() / time.mean())),
        np.full(variants, float(energy.mean())),
        ("",) * variants,
        None,
        (energy, time, temperature),
    )
