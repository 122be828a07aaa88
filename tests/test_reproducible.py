"""The same tables give the same coefficients, whatever an earlier build had learnt."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from joulecast.calibration.audit import sound
from joulecast.calibration.corrections import _train_family
from joulecast.calibration.kernels import fit_kernels
from joulecast.calibration.power_fit import fit_kernel_power
from joulecast.calibration.tables import read_kernel_tables
from joulecast.coefficients import store
from joulecast.coefficients.schema import GpuCoefficients
from joulecast.gpus import gpu_names


@pytest.fixture(scope="module")
def small(data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few hundred rows of one table with bursts, rows under load and two versions of an engine."""
    folder = tmp_path_factory.mktemp("data")
    (folder / "aiconfigurator" / "b200_sxm").mkdir(parents=True)
    rows = pl.read_parquet(data_dir / "aiconfigurator" / "b200_sxm" / "encoder_attention.parquet")
    few = pl.concat([part.sample(350, seed=1) for _, part in rows.group_by("framework_version", maintain_order=True)])
    few.write_parquet(folder / "aiconfigurator" / "b200_sxm" / "encoder_attention.parquet")
    return folder


def build(folder: Path) -> tuple[str, dict[str, np.ndarray]]:
    """The text of the coefficient file, and the arrays of the correction."""
    (gpu, first), *_ = fit_kernels(folder).items()
    energies = fit_kernel_power(list(sound(read_kernel_tables(folder))), corrections={})
    known = {name: first if name == gpu else {} for name in gpu_names()}
    found = _train_family("encoder_attention", folder, known, energies)
    assert found.model is not None
    time = {**first, **found.fits.get(gpu, {})}
    arrays = {f"weight{index}": one for index, one in enumerate(found.model.weights)}
    return store.dump(GpuCoefficients(gpu, time, energies[gpu])), {**arrays, "head": found.model.head}


def test_two_builds_of_one_table_agree_to_rounding(small):
    (text, arrays), (again, others) = build(small), build(small)
    assert text == again
    for name, one in arrays.items():
        assert one == pytest.approx(others[name], rel=1e-6, abs=1e-7), name
    assert '[time."encoder_attention/trtllm 1.3.0rc15/bf16"]' in text
