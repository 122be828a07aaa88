"""Measured training steps, as a table of one's own gives them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from joulecast.errors import InputError, JoulecastError, shortened
from joulecast.gpus import load_gpu
from joulecast.scenarios.training.question import LAYOUT, MODEL, RECIPE, told_apart
from joulecast.workloads.frames import read_frame

#: Columns of a table beside the options of `joulecast.train`.
MEASURED = ("step_time_s", "power_w", "network")
_RUN = ("global_batch", "clock_mhz", "power_limit_w", "launch_mode", "attention", "host_us_per_launch",
        "input_samples_per_s", "copied_in")  # fmt: skip

#: Options that are no part of a configuration: the same job at several of them is one.
OPERATING_POINT = ("clock_mhz", "power_limit_w")

#: Most rows of a table.
_MOST_ROWS = 20_000


@dataclass(frozen=True)
class TrainingRun:
    """One measured training configuration.

    Attributes
    ----------
    source : str, mapping or Workload
        The model.
    gpu : str
    options : mapping
        As `joulecast.train` takes them.
    step_time_s : float or None
        [s]
    power_w : float or None
        Mean of one GPU. [W]
    network : str
        What is left out together when the fit is tested.
    tags : mapping
        What tells it apart for its reader.
    """

    source: Any
    gpu: str
    options: Mapping[str, Any]
    step_time_s: float | None
    power_w: float | None = None
    network: str = ""
    tags: Mapping[str, Any] = field(default_factory=dict)

    @property
    def configuration(self) -> str:
        """The same for runs that differ in clock and power limit alone."""
        plain = {name: value for name, value in self.options.items() if name not in OPERATING_POINT}
        source = self.source if isinstance(self.source, str | dict) else id(self.source)
        return f"{source} {self.gpu} {sorted(plain.items(), key=lambda item: item[0])}"


def read_runs(path: Path) -> list[TrainingRun]:
    """Measured steps from a CSV or parquet table.

    Parameters
    ----------
    path : Path
        Columns ``model``, ``gpu`` and ``step_time_s``; ``power_w`` (mean of one GPU) and ``network`` (left out
        together; the model by default) where known; any option of `joulecast.train` as a further column.

    Returns
    -------
    list of TrainingRun

    Raises
    ------
    InputError
        If the file can't be read, lacks a column, or a row holds what can't be.
    """
    table = read_frame(path)
    name = shortened(path)
    known = {"model", "gpu", *MEASURED, *MODEL, *RECIPE, *LAYOUT, *_RUN}
    for column in table.columns:
        if column not in known:
            raise InputError(f"{name} has a column {shortened(column)!r} that is none of {', '.join(sorted(known))}")
    lacking = [column for column in ("model", "gpu", "step_time_s") if column not in table.columns]
    if lacking:
        raise InputError(f"{name} needs columns model, gpu and step_time_s: it lacks {', '.join(lacking)}")
    if not 0 < table.height <= _MOST_ROWS:
        raise InputError(f"{name} has {table.height:,} rows: 1 to {_MOST_ROWS:,} can be fitted")
    return [_run(name, number, row) for number, row in enumerate(table.iter_rows(named=True), start=2)]


#: A step longer than an hour or shorter than a launch takes, or a GPU above this share of its board's limit, is a slip
#: of units.
_SHORTEST_STEP_S, _LONGEST_STEP_S, _MOST_OF_LIMIT = 1e-6, 3600.0, 1.5


def _run(name: str, number: int, row: Mapping[str, Any]) -> TrainingRun:
    given = {column: value for column, value in row.items() if value is not None}
    where = f"{name}, line {number}"

    def positive(column: str, most: float, unit: str, least: float = 0.0) -> float | None:
        value = given.get(column)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not least < value <= most:
            raise InputError(
                f"{where}: {column} must be above {least:g} and at most {most:,g} {unit}, got {shortened(value)}"
            )
        return float(value)

    for column in ("model", "gpu", "step_time_s"):
        if column not in given:
            raise InputError(f"{where}: {column} is needed in every row")
    options = {
        column: tuple(value.split()) if column == "lora_targets" else value
        for column, value in given.items()
        if column not in ("model", "gpu", *MEASURED)
    }
    try:
        told_apart(options)
        gpu = load_gpu(str(given["gpu"]))
    except JoulecastError as error:
        raise InputError(f"{where}: {error}") from None
    model = str(given["model"])
    return TrainingRun(
        model,
        gpu.name,
        options,
        positive("step_time_s", _LONGEST_STEP_S, "s", _SHORTEST_STEP_S),
        positive("power_w", _MOST_OF_LIMIT * gpu.power_limit_max_w, "W"),
        str(given.get("network", model)),
    )
