"""Power of GPUs whose own power is kept back: what predictions for GPUs without power tables are worth.

python benchmarks/transfer.py --data DIR

Energies come from the other chips alone; times are the measured ones, so that errors are of power.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl

from joulecast.calibration.common_power import CommonRows, common_rows, fit_common
from joulecast.calibration.pass_fit import fitted_gpus, pass_fit_of
from joulecast.calibration.passes import PassFit, PassTable, predicted_power_w
from joulecast.coefficients import store
from joulecast.coefficients.energies import common_power
from joulecast.coefficients.schema import PowerCoefficients
from joulecast.coefficients.transfer import COMMON_SOURCE, power_coefficients
from joulecast.gpus import load_gpu
from joulecast.physics.power import core_scale
from joulecast.validation.knowledge import chip

#: Product of complex matrices that the RTX 4000 Ada was tuned for, and the fastest configurations looked at.
CGEMM_FLOP = 8.0 * 4096**3
FASTEST = 20


#: What is common to all GPUs.
ENERGY_NAMES = ("tensor_pj", "cuda_pj", "sfu_pj", "shared_pj", "l2_pj", "dram_pj", "active_w")

#: Boards with one die whose names do not tell.
SAME_DIE = ({"A10", "A40"},)


def boards_like(gpu_name: str, names: Iterable[str]) -> tuple[str, ...]:
    """Those of `names` that have the chip of a GPU."""
    same = next((one for one in SAME_DIE if gpu_name in one), {gpu_name})
    return tuple(name for name in names if chip(name) == chip(gpu_name) or name in same)


def of_other_chips(gpu_name: str, rows: Mapping[str, CommonRows]) -> PowerCoefficients:
    """Energies of a GPU as if no board with its chip had ever been measured.

    What is common to all GPUs is fitted again on the others.
    """
    gpu = load_gpu(gpu_name)
    power = power_coefficients(gpu, exclude=boards_like(gpu_name, store.known()))
    if power.source != COMMON_SOURCE:
        return power
    like = boards_like(gpu_name, rows)
    common = fit_common([one for name, one in rows.items() if name not in like])
    return replace(power, **{name: getattr(common_power(gpu, common), name) for name in ENERGY_NAMES})


def by_name(power: PowerCoefficients) -> dict[str, float]:
    """Energies as fits on passes call them."""
    return {
        "tensor": power.tensor_pj["fp16"],
        "cuda": power.cuda_pj["fp32"],
        "sfu": power.sfu_pj,
        "shared": power.shared_pj,
        "l2": power.l2_pj,
        "dram": power.dram_pj,
        "idle_w": power.idle_w,
        "clocked_w": power.clocked_w,
        "active_w": power.active_w,
        "voltage_exponent": power.voltage_exponent,
    }


def passes(fits: Mapping[str, tuple[PassTable, PassFit]], rows: Mapping[str, CommonRows]) -> dict[str, np.ndarray]:
    """Relative errors of the mean power of whole passes and generations, by GPU."""
    found = {}
    for name, (table, fit) in fits.items():
        busy_s = table.busy @ np.array([fit.scale[key] for key in table.keys])
        watts = predicted_power_w(table, by_name(of_other_chips(name, rows)), busy_s, table.time_s)
        found[name] = np.minimum(watts, table.gpu.power_limit_default_w) / table.power_w - 1
    return found


def tensor_kernel(folder: Path, rows_of: Mapping[str, CommonRows]) -> np.ndarray:
    """Relative errors of the power of a product on an RTX 4000 Ada's tensor cores, by external meter, at ten clocks."""
    table = pl.read_parquet(folder / "tuning" / "energy_rtx4000ada_wmma_cgemm_fp16.parquet")
    table = table.filter(pl.col("error").is_null()).sort("time_ms")
    gpu = load_gpu("RTX-4000-ADA")
    power = of_other_chips(gpu.name, rows_of)
    errors = []
    for _, rows in table.group_by("nvml_gr_clock"):
        few = rows.head(FASTEST)
        clock = few["core_clock_MHz"].to_numpy()
        rate = CGEMM_FLOP / (few["time_ms"].to_numpy() * 1e-3)
        scale = core_scale(clock, gpu, power)
        drive = scale * clock / gpu.rate_clock_mhz
        # a warp's 64 x 64 tile reads two bytes of each operand for 128 FLOP
        pj = power.tensor_pj["fp16"] + power.shared_pj * 2.0 / 64.0
        watts = power.idle_w + drive * (power.clocked_w + power.active_w) + rate * pj * 1e-12 * scale
        errors.append(watts / few["power_W"].to_numpy() - 1)
    return np.concatenate(errors)


def main() -> None:
    """Print a line for each GPU."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the data folder")
    folder = parser.parse_args().data
    fits = {name: pass_fit_of(load_gpu(name), runs) for name, runs in fitted_gpus(folder).items()}
    rows = {name: common_rows(table, fit.scale) for name, (table, fit) in fits.items()}
    found = {**passes(fits, rows), "RTX-4000-ADA": tensor_kernel(folder, rows)}
    for name, errors in found.items():
        source = of_other_chips(name, rows).source
        size, bias = np.abs(errors).mean(), errors.mean()
        print(f"{name:16s} {errors.size:5d} rows  error {size:6.1%}  bias {bias:+6.1%}  {source}")
    print("common to all:", ", ".join(f"{name} {value:.3g}" for name, value in fit_common(list(rows.values())).items()))


if __name__ == "__main__":
    main()
