"""Mean error of measured products against rows a second: what the learned parts earn, and what they cost.

python benchmarks/error_and_speed.py --data DIR [--rows 60000]
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

for threads in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "POLARS_MAX_THREADS"):
    os.environ[threads] = "1"

import numpy as np  # noqa: E402

from joulecast.calibration.tables import Measured, read_kernel_tables  # noqa: E402
from joulecast.coefficients.corrections import CorrectionModel, load_correction, load_power_correction  # noqa: E402
from joulecast.gpus import load_gpu  # noqa: E402
from joulecast.physics.price import price  # noqa: E402
from joulecast.physics.settled import half_widths, under_limit  # noqa: E402

#: Rows that are evaluated at a time, as predictions of kernels do.
CHUNK = 16_384

GPUS = ("A100-SXM-80GB", "H100-SXM-80GB", "H200-SXM-141GB", "B200-SXM-180GB", "L40S")

Models = Mapping[str, CorrectionModel] | None


def ways() -> dict[str, tuple[Models, Models]]:
    """Corrections of time and of power by what is left of them, from nothing to all."""
    time_model, power_model = load_correction("gemm"), load_power_correction("gemm")
    out: dict[str, tuple[Models, Models]] = {"physics alone": ({}, {})}
    if time_model is not None:
        alike = replace(time_model, parts=MappingProxyType({}))
        first = _layers(alike, 1)
        out["one network, one layer"] = ({"gemm": first}, {})
        out["one network for all formats"] = ({"gemm": alike}, {})
        out["a network for each format"] = ({"gemm": time_model}, {})
    if power_model is not None and time_model is not None:
        out["and one of power (as shipped)"] = ({"gemm": time_model}, {"gemm": power_model})
    return out


def _layers(model: CorrectionModel, count: int) -> CorrectionModel:
    """The model with its first `count` hidden layers, and the outputs of those."""
    kept = sum(len(bias) for bias in model.biases[:count])
    whole = [*range(kept), len(model.head) - 1]
    return replace(
        model, weights=model.weights[:count], biases=model.biases[:count], head=model.head[whole],
        own={key: one[whole] for key, one in model.own.items()},
    )  # fmt: skip


def evaluated(batch: Measured, models: tuple[Models, Models]) -> Any:
    """Predicted times, with every other column made beside them. [s]"""
    gpu = load_gpu(batch.gpu)
    found = []
    for start in range(0, len(batch), CHUNK):
        part = batch.take(slice(start, start + CHUNK))
        priced = price(part.table, gpu, part.conditions, corrections=models[0], power_corrections=models[1])
        settled = under_limit(priced, gpu.clock_max_mhz, np.inf)
        half_widths(priced, settled)
        found.append(settled.time_s)
    return np.concatenate(found)


def measure(batches: Sequence[Measured], tell: Callable[[str], None] = print) -> None:
    """Print a line for each way."""
    tell(f"{'':34s} {'time, mean':>11s} {'median':>8s} {'rows/s':>9s}")
    for name, models in ways().items():
        errors, seconds, rows = [], 0.0, 0
        for batch in batches:
            evaluated(batch.take(slice(0, 64)), models)
            start = time.process_time()
            predicted_s = evaluated(batch, models)
            seconds += time.process_time() - start
            rows += len(batch)
            errors.append(np.abs(predicted_s / batch.time_s - 1))
        mean = float(np.mean([one.mean() for one in errors]))
        middle = float(np.mean([np.median(one) for one in errors]))
        tell(f"{name:34s} {mean:11.1%} {middle:8.1%} {rows / seconds:9,.0f}")


def main() -> None:
    """Read the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of measured tables")
    parser.add_argument("--rows", type=int, default=60_000, help="rows in all (60000)")
    asked = parser.parse_args()
    bursts = [
        one for one in read_kernel_tables(asked.data, ("gemm",)) if one.timing_mode == "burst" and one.gpu in GPUS
    ]
    generator, each = np.random.default_rng(0), max(asked.rows // max(len(bursts), 1), 1)
    few = [one.take(np.sort(generator.choice(len(one), min(each, len(one)), replace=False))) for one in bursts]
    print(f"products timed in bursts, {sum(map(len, few)):,} rows of {len({one.gpu for one in few})} GPUs, as shipped;")
    print("time, power, energy, clock and intervals of each; seconds of one core\n")
    measure(few)


if __name__ == "__main__":
    main()
