"""Forecasts: coefficients fitted on older GPUs alone, with nothing of newer ones in them."""

from __future__ import annotations

import re

import numpy as np
import polars as pl
import pytest

import joulecast as jc
from joulecast.calibration.forecast import copy_of_older
from joulecast.coefficients import places, store
from joulecast.coefficients.corrections import read_correction
from joulecast.coefficients.forecasts import FORECASTS, forecast_folder, forecasting
from joulecast.coefficients.roots import kept, rooted
from joulecast.coefficients.transfer import power_coefficients, relatives
from joulecast.errors import InputError, UnknownNameError
from joulecast.gpus import gpu_names, load_gpu

OLD = FORECASTS["ampere"]
SHAPE = {"m": [16, 512, 4096], "n": 4096, "k": 4096, "dtype": "bf16"}
NEWER = sorted(name for name in gpu_names() if load_gpu(name).architecture not in OLD)


def test_its_files_are_of_older_gpus_and_name_no_newer_one():
    folder = forecast_folder("ampere")
    names = places.gpus_in(folder)
    assert {load_gpu(name).architecture for name in names} <= set(OLD)
    assert "A100-PCIE-40GB" in names
    newer = re.compile(r"\b(H100|H200|B200|GB200|L4|L40S?|RTX[- ]?40\d\d|MI\d+)\b", re.IGNORECASE)
    for path in folder.glob("*.toml"):
        assert not newer.search(path.read_text(encoding="utf-8")), path.name


def test_its_corrections_learnt_from_older_gpus_alone():
    for path in forecast_folder("ampere").glob("*.npz"):
        model = read_correction(path)
        for one in (model, *model.parts.values()):
            own = {load_gpu(key.split("/")[0]).architecture for key in one.own}
            assert own <= set(OLD), path.name


def test_within_it_nothing_else_is_known(tmp_path):
    with forecasting("ampere"):
        assert store.load("H100-SXM-80GB") is None
        assert places.users_folder() is None
        for _, other, _ in relatives(load_gpu("h100")):
            assert other.architecture in OLD
        assert power_coefficients(load_gpu("h100")).provenance == "transferred"
    assert store.load("H100-SXM-80GB") is not None


@pytest.mark.parametrize("name", ["h100", "h200-sxm-141gb", "b200", "l40s"])
def test_a_forecast_of_a_newer_gpu_is_transferred_wider_and_another(name):
    known = jc.predict_kernels("gemm", SHAPE, name)
    blind = jc.predict_kernels("gemm", SHAPE, name, forecast_from="ampere")
    assert set(known["provenance"]) == {"fitted"}
    assert set(blind["provenance"]) == {"transferred"}
    assert np.all(blind["time_s"] != known["time_s"])
    widths = [np.log(one["time_s_upper"] / one["time_s_lower"]) for one in (known, blind)]
    assert np.all(widths[1] > widths[0])
    # blind, but not lost: within a factor of two of what was fitted
    assert np.all(np.abs(np.log(blind["time_s"] / known["time_s"])) < np.log(2.0))


def test_what_is_asked_after_a_forecast_knows_everything_again():
    before = jc.predict("bert-large-uncased", "h100", batch=8)
    blind = jc.predict("bert-large-uncased", "h100", batch=8, forecast_from="ampere")
    after = jc.predict("bert-large-uncased", "h100", batch=8)
    assert after.time_s == before.time_s
    assert blind.energy_j != before.energy_j
    assert blind.info["forecast_from"] == "ampere"
    assert any("forecast from ampere" in note for note in blind.notes)


def test_a_forecast_of_an_older_gpu_keeps_its_own_measurements():
    found = jc.predict_kernels(
        "gemm", {"m": 512, "n": 4096, "k": 4096, "dtype": "bf16"}, "a100", forecast_from="ampere"
    )
    assert set(found["provenance"]) == {"fitted"}


def test_an_unknown_forecast_is_named():
    with pytest.raises(UnknownNameError, match="did you mean ampere"):
        jc.predict("bert-large-uncased", "h100", forecast_from="ampre")


def test_a_forecast_and_coefficients_of_ones_own_exclude_each_other(capsys, tmp_path):
    from joulecast.cli import main
    from joulecast.coefficients.users import use_coefficients

    try:
        code = main(["predict", "gpt2", "--gpu", "h100", "--forecast-from", "ampere", "--coefficients", str(tmp_path)])
    finally:
        use_coefficients(None)
    assert code == 2
    assert "exclude each other" in capsys.readouterr().err


def test_the_copy_that_is_fitted_has_no_row_of_a_newer_gpu_and_no_table_that_does_not_tell(tmp_path):
    source, copy = tmp_path / "source", tmp_path / "copy"
    (source / "kernels").mkdir(parents=True)
    (source / "traces").mkdir()
    pl.DataFrame({"gpu": ["a100_sxm", "h100_sxm", "T4", "a board nobody knows"], "x": [1, 2, 3, 4]}).write_parquet(
        source / "kernels" / "gemm.parquet"
    )
    pl.DataFrame({"gpu": ["h100_sxm"], "x": [1]}).write_csv(source / "kernels" / "newer.csv")
    pl.DataFrame({"accelerator": ["A100"], "x": [1]}).write_csv(source / "kernels" / "untold.csv")
    (source / "traces" / "one.json").write_text("[]")
    assert copy_of_older(source, copy, OLD) == 1
    assert pl.read_parquet(copy / "kernels" / "gemm.parquet")["x"].to_list() == [1, 3]
    assert sorted(path.name for path in copy.rglob("*") if path.is_file()) == ["gemm.parquet", "one.json"]


def test_answers_are_kept_apart_for_each_root(tmp_path):
    asked = []

    @kept(8)
    def answer(number: int) -> int:
        asked.append(number)
        return len(asked)

    assert [answer(1), answer(1)] == [1, 1]
    with rooted(tmp_path):
        assert [answer(1), answer(1)] == [2, 2]
    assert answer(1) == 1
    answer.cache_clear()
    assert answer(1) == 3


def test_a_forecast_that_was_never_built_says_so(monkeypatch, tmp_path):
    monkeypatch.setattr("joulecast.coefficients.forecasts.package_folder", lambda: tmp_path)
    with pytest.raises(InputError, match="not installed"):
        jc.predict("gpt2", "h100", forecast_from="ampere")
