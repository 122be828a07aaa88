"""Steps of convolutional networks on chips that were left out: error, and whether their intervals hold them.

python benchmarks/left_out_steps.py --data DIR

Kernels are priced from other chips alone; what the host takes is of the steps themselves, and steps that wait for it
are left out, so that errors are of kernels.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from joulecast.calibration.network_fit import fit_networks
from joulecast.calibration.networks import MeasuredNetwork, NetworkTable, read_networks, tabulate_networks
from joulecast.coefficients import store
from joulecast.coefficients.intervals import SIZE_KNOTS_S, load_intervals
from joulecast.coefficients.schema import TIME_PARAMETERS
from joulecast.coefficients.transfer import time_coefficients
from joulecast.gpus import load_gpu
from joulecast.physics.timeline import pass_time_s
from joulecast.physics.timing import duration_s, module_times
from joulecast.physics.uncertainty import by_size, combined
from joulecast.validation.knowledge import chip

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class LeftOut:
    """Steps of one GPU: predicted over measured, half-widths (both natural logarithms), which wait for kernels."""

    log_ratio: Floats
    half_width: Floats
    busy: npt.NDArray[np.bool_]


def left_out(runs: list[MeasuredNetwork]) -> LeftOut:
    """Steps of one GPU as if no board with its chip had ever been measured."""
    table = tabulate_networks(runs)
    boards = tuple(name for name in store.known() if chip(name) == chip(table.gpu.name))
    gpu_s, squares = _kernels(table, boards)
    host = fit_networks(table)
    host_s = (table.launches * host.launch_us + table.modules * host.module_us) * 1e-6
    step_s = np.asarray(pass_time_s(gpu_s, host_s)) + table.copied_bytes / (host.copy_gb_s * 1e9)
    half_width = combined(np.sqrt(squares) / gpu_s, load_intervals().model)
    return LeftOut(np.log(step_s / table.time_s), half_width, gpu_s > host_s)


def _kernels(table: NetworkTable, exclude: tuple[str, ...]) -> tuple[Floats, Floats]:
    """Time of the kernels of each step [s], and the sum over families of their half-widths in seconds, squared."""
    widths = load_intervals()
    steps = len(table.time_s)
    gpu_s = np.zeros(steps)
    by_family: dict[str, Floats] = defaultdict(lambda: np.zeros(steps))
    for one in table.kernels:
        family, engine, group = one.key.split("/", 2)
        found = time_coefficients(table.gpu, family, engine, group, exclude=exclude)
        parameters = np.array([getattr(found, name) for name in TIME_PARAMETERS])
        times = module_times(one.work, table.gpu, parameters, found.scale)
        seconds = duration_s(times, table.gpu, one.clock_mhz)
        own = np.sqrt(max(found.spread90**2 - found.moved90**2, 0.0))
        half = np.hypot(own * by_size(seconds, SIZE_KNOTS_S, widths.family(family).size), found.moved90)
        gpu_s += np.bincount(one.step, weights=one.count * seconds, minlength=steps)
        by_family[family] += np.bincount(one.step, weights=one.count * seconds * half, minlength=steps)
    return gpu_s, np.sum([np.square(part) for part in by_family.values()], axis=0)


def main() -> None:
    """Print a line for each GPU and format."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the data folder")
    by_gpu: dict[str, list[MeasuredNetwork]] = defaultdict(list)
    for run in read_networks(parser.parse_args().data / "training"):
        by_gpu[run.gpu].append(run)
    held = []
    for name, runs in by_gpu.items():
        found = left_out(runs)
        inside = np.abs(found.log_ratio) <= found.half_width
        for precision in sorted({run.precision for run in runs}):
            rows = found.busy & np.array([run.precision == precision for run in runs])
            if not rows.any():
                continue
            error = np.abs(np.expm1(found.log_ratio[rows])).mean()
            width = np.expm1(np.median(found.half_width[rows]))
            held.append(float(inside[rows].mean()))
            print(
                f"{load_gpu(name).name:16s} {precision:5s} {rows.sum():3d} steps  error {error:6.1%}  "
                f"interval +-{width:4.0%}  inside {held[-1]:4.0%}"
            )
    print(f"mean over GPUs and formats: {np.mean(held):.0%} inside")


if __name__ == "__main__":
    main()
