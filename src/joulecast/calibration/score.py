"""Scores the time of one kind of operation against measured tables, shapes left out by hash."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from joulecast.calibration.tables import Measured, read_kernel_tables
from joulecast.calibration.time_fit import Floats, fit_time, hash_fold, hosted_s, take_work
from joulecast.coefficients.schema import TimeCoefficients
from joulecast.gpus import load_gpu
from joulecast.kernels.registry import family_of
from joulecast.physics.timing import duration_s, module_times, parameters_by_row


@dataclass(frozen=True)
class Score:
    """Error of one GPU, engine and group: relative errors of left-out rows."""

    label: str
    errors: Floats

    def line(self) -> str:
        """One line for a person: rows, mean, median and 90th percentile of |error|, and bias."""
        size = np.abs(self.errors)
        return (
            f"{self.label:62s} {size.size:7d} {size.mean():7.1%} {np.median(size):7.1%} "
            f"{np.quantile(size, 0.9):7.1%} {self.errors.mean():+7.1%}"
        )


def score_batch(batch: Measured, folds: int = 5) -> Iterator[tuple[str, Floats, Floats, TimeCoefficients]]:
    """Left-out predictions of the scaffold alone for a batch: (group, rows, predicted seconds, coefficients)."""
    gpu = load_gpu(batch.gpu)
    work = family_of(batch.table.kind).work(batch.table, gpu, batch.conditions)
    clock = gpu.clock_max_mhz
    fold = hash_fold(
        [column for name, column in sorted(batch.table.columns.items()) if column.dtype.kind == "f"], folds
    )
    train, test = np.flatnonzero(fold != 0), np.flatnonzero(fold == 0)
    fitted = fit_time(take_work(work, train), gpu, batch.time_s[train], clock, source="", host_bound=batch.host_bound)
    for code, group in enumerate(work.groups):
        rows = test[work.group[test] == code]
        if group in fitted and rows.size:
            part = take_work(work, rows)
            parameters = parameters_by_row([fitted[group]] * len(work.groups), part.group)
            time = duration_s(module_times(part, gpu, parameters), gpu, clock)
            yield group, rows, hosted_s(part, time, fitted[group].host_us, fitted[group].host_lead_us), fitted[group]


def main(kind_name: str, folder: str = "../shared/data", only: str = "") -> None:
    """Print the table for `kind_name`; `only` picks batches whose label contains it."""
    print(f"{'gpu engine version timing group':62s} {'rows':>7s} {'mean':>7s} {'median':>7s} {'p90':>7s} {'bias':>7s}")
    for batch in read_kernel_tables(Path(folder), (kind_name,)):
        label = f"{batch.gpu} {batch.conditions.engine} {batch.conditions.kernel_source} {batch.timing_mode}"
        if only not in label:
            continue
        for group, rows, predicted, fitted in score_batch(batch):
            print(Score(f"{label} {group}"[:62], predicted / batch.time_s[rows] - 1).line())
            print("   ", {k: float(f"{v:.3g}") for k, v in fitted.__dict__.items() if isinstance(v, float)})


if __name__ == "__main__":
    main(*sys.argv[1:])
