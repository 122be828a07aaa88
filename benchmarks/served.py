"""Power of language models as served by one GPU: what kernels alone say of it, and a factor from other runs.

python benchmarks/served.py --data DIR

Steady state of vLLM on H100 and B200 (ML.ENERGY leaderboard, third version). Energies come from kernels that were
measured one by one (the H100's from its relatives); times are the measured ones, so that errors are of power. Rows that
wait for their host or that the limit throttles are left out of the first table, not of the second.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np

from joulecast.calibration.served import (
    TABLE,
    ServedTable,
    factor_of,
    family_name,
    left_out_errors,
    read_served,
    tabulate,
)


def tables(folder: Path) -> dict[str, ServedTable]:
    """Served runs by GPU."""
    runs = read_served(folder / TABLE)
    names = sorted({run.gpu for run in runs}, reverse=True)
    return {name: tabulate([run for run in runs if run.gpu == name]) for name in names}


def figures(table: ServedTable, factor: float) -> tuple[float, float]:
    """Mean absolute and mean relative error of power with a factor."""
    errors = table.power_w(factor) / table.measured_w - 1
    return float(np.abs(errors).mean()), float(errors.mean())


def left_out(table: ServedTable, kin: Callable[[str], str] = str) -> float:
    """Mean absolute error of power, each model's (or house's) factor from the others."""
    return float(np.abs(left_out_errors(table, kin)).mean())


def main() -> None:
    """Print errors with the factors of other models, of other houses' models, and of the other GPU."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the data folder")
    found = tables(parser.parse_args().data)
    telling = {name: table.take(table.telling) for name, table in found.items()}
    print(f"{'':16s} {'runs':>5s} {'factor':>7s} {'kernels alone':>16s} {'model out':>10s} {'house out':>10s} "
          f"{'GPU out':>16s} {'time':>7s}")  # fmt: skip
    for name, table in telling.items():
        plain, bias = figures(table, 1.0)
        others = [factor_of(one) for other, one in telling.items() if other != name]
        other, other_bias = figures(table, float(np.mean(others))) if others else (np.nan, np.nan)
        time = float(np.median(np.abs(table.busy_s / table.step_s - 1)))
        print(f"{name:16s} {len(table):5d} {factor_of(table):7.3f} {plain:8.1%} {bias:+7.1%} {left_out(table):10.1%} "
              f"{left_out(table, family_name):10.1%} {other:8.1%} {other_bias:+7.1%} {time:7.1%}")  # fmt: skip
    print("\nby model (runs, median factor)")
    for name, table in telling.items():
        ratio = (table.measured_w - table.static_w) / table.work_w
        for model in np.unique(table.models):
            rows = table.models == model
            print(f"{name:16s} {str(model)[-36:]:36s} {rows.sum():4d} {np.median(ratio[rows]):7.3f}")
    print("\nall runs, those that wait or are throttled too")
    for name, table in found.items():
        plain, bias = figures(table, 1.0)
        print(f"{name:16s} {len(table):5d} kernels alone {plain:6.1%} {bias:+6.1%}  model out {left_out(table):6.1%}")


if __name__ == "__main__":
    main()
