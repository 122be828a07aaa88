"""Growth of board power with temperature, from measured repeats: what ``--temperature`` stands on.

python benchmarks/leakage.py --data DIR
"""

from __future__ import annotations

import argparse
from itertools import pairwise
from pathlib import Path

import numpy as np
import polars as pl

from joulecast.coefficients.transfer import power_coefficients
from joulecast.gpus import load_gpu
from joulecast.physics.operating import LEAKAGE_PER_K, MEASURED_AT_C

#: First readings of a session: the meter's window still holds what was before.
SKIPPED = 5


def slope_w_per_k(temperature_c: np.ndarray, power_w: np.ndarray) -> float:
    """Least squares of power over temperature, each 2 degrees counted once."""
    place = np.floor(temperature_c / 2.0)
    levels = np.unique(place)
    t = np.array([temperature_c[place == one].mean() for one in levels])
    p = np.array([np.median(power_w[place == one]) for one in levels])
    return float(np.polyfit(t, p, 1)[0])


def repeats(folder: Path) -> float:
    """RTX A4000, one kernel at 840 MHz again and again while the board warms up: median over sessions. [W/K]"""
    table = pl.read_parquet(folder / "tuning" / "noise_rtxa4000_gemm_repeats.parquet")
    found = []
    for _, session in table.group_by("session", maintain_order=True):
        rows = session.slice(SKIPPED)
        found.append(slope_w_per_k(rows["temp_C"].to_numpy(), rows["power_W"].to_numpy()))
    return float(np.median(found))


def within_configurations(folder: Path) -> float:
    """RTX 4000 Ada, external meter: power over temperature once configuration and clock are taken out. [W/K]"""
    table = pl.read_parquet(folder / "tuning" / "energy_rtx4000ada_wmma_cgemm_fp16.parquet")
    table = table.filter(pl.col("temp_C").is_not_null())
    names = ["block_size_x", "block_size_y", "block_size_z", "M_PER_BLOCK", "N_PER_BLOCK", "NBUFFER"]
    names += ["M_PER_WARP", "N_PER_WARP"]
    groups = [
        table.select(pl.concat_str(keys, separator="_")).to_series().rank("dense").to_numpy().astype(int) - 1
        for keys in (names, ["nvml_gr_clock"])
    ]
    power_w, temperature = table["power_W"].to_numpy().copy(), table["temp_C"].to_numpy().copy()
    for _ in range(200):
        for group in groups:
            for values in (power_w, temperature):
                values -= (np.bincount(group, values) / np.bincount(group))[group]
    return float(power_w @ temperature / (temperature @ temperature))


def repeated_passes(folder: Path) -> float:
    """A100-PCIE-40GB: whole passes that were run twice, weighted by how far apart their temperatures are. [W/K]"""
    table = pl.read_csv(folder / "energaizer" / "measurements.csv", infer_schema_length=None)
    keys = ["dataset", "model", "precision", "batch", "seq_len", "attention", "clock_target_mhz"]
    table = table.filter(~pl.col("failed_run") & pl.col("gpu").str.contains("A100"))
    twice = table.group_by(keys).agg("temperature_c", "power_w", pl.len()).filter(pl.col("len") > 1)
    apart = [
        (t1 - t0, p1 - p0)
        for temperatures, powers in zip(twice["temperature_c"], twice["power_w"], strict=True)
        for (t0, p0), (t1, p1) in pairwise(sorted(zip(temperatures, powers, strict=True)))
    ]
    degrees, watts = np.array(apart).T
    return float(degrees @ watts / (degrees @ degrees))


def main() -> None:
    """Print the slopes, in watts and as shares of static power with the core clock up."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of measured tables")
    folder = parser.parse_args().data
    shares = []
    for gpu, what in (("rtx-a4000", repeats), ("rtx-4000-ada", within_configurations), ("a100-pcie", repeated_passes)):
        power = power_coefficients(load_gpu(gpu))
        slope = what(folder)
        shares.append(slope / (power.idle_w + power.clocked_w))
        print(f"{gpu:14s} {slope:6.3f} W/K  {shares[-1]:.2%} of static power a degree")
    passes = pl.read_csv(folder / "energaizer" / "measurements.csv", infer_schema_length=None)
    print(f"median         {np.median(shares):.2%} a degree; built in {LEAKAGE_PER_K:.2%}")
    print(f"measured at    {passes['temperature_c'].median():.0f} °C; built in {MEASURED_AT_C:.0f} °C")


main()
