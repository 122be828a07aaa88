"""Validation: metrics by hand, protocols that leak nothing, regressions, pages, and one line for bad input."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import joulecast as jc
from joulecast.calibration.kernels import shape_fold
from joulecast.cli import main
from joulecast.coefficients import store
from joulecast.coefficients.likeness import GENERATIONS
from joulecast.gpus import load_gpu
from joulecast.lowering.lower import lower
from joulecast.reports import accuracy, plots
from joulecast.scenarios.inference import predict_workload
from joulecast.validation import baseline
from joulecast.validation.kernels import measured_elsewhere, score_kernels, scored
from joulecast.validation.knowledge import SHIPPED, kept, left_out, without_gpu, without_shapes
from joulecast.validation.metrics import LEAST_ROWS_OF_A_BIN, bands, density, metrics, repeat_floor, size_class
from joulecast.validation.noise import repeats
from joulecast.validation.passes import EAGER, run_pass, score_passes
from joulecast.validation.read import read_batches, read_table
from joulecast.validation.summary import by_clock, headline, products, table, titled, transferred

GPU = "h100_sxm"
NOISE = 0.05


def _gemm(n: int = 600, seed: int = 1, timing: str = "burst") -> pl.DataFrame:
    """Made-up measurements: what the model says, times a noise of 5 % that follows from the seed."""
    random = np.random.default_rng(seed)
    shape = {name: random.integers(1, 64, n) * 64 for name in ("m", "n", "k")}
    found = jc.predict_kernels("gemm", {**shape, "dtype": "bf16", "timing_mode": timing}, GPU)
    factor = np.exp(random.uniform(-NOISE, NOISE, n))
    power = found["power_w"] * np.exp(random.uniform(-NOISE, NOISE, n)) if timing == "sustained" else np.full(n, np.nan)
    return pl.DataFrame(
        {
            "gpu": [GPU] * n,
            "op": ["gemm"] * n,
            "framework": ["trtllm"] * n,
            "framework_version": ["1.0"] * n,
            "timing_mode": [timing] * n,
            "launch_mode": ["cuda_graph"] * n,
            "operand_init": ["random"] * n,
            "kernel_source": ["torch_flow"] * n,
            **shape,
            "dtype": ["bfloat16"] * n,
            "latency_ms": found["time_s"] * factor * 1e3,
            "power_w": power,
            "power_limit_w": [700.0] * n,
            "power_quality": ["A" if timing == "sustained" else None] * n,
        }
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A data folder of one small table."""
    place = tmp_path / "data" / "aiconfigurator" / GPU
    place.mkdir(parents=True)
    _gemm().write_parquet(place / "gemm.parquet")
    return tmp_path / "data"


def _run(capsys, *arguments) -> tuple[int, str, str]:
    code = main([str(one) for one in arguments])
    out, err = capsys.readouterr()
    return code, out, err


# metrics


def test_metrics_by_hand():
    # ratios 1.1, 0.8, 1.0, 1.5: errors 10, 20, 0, 50 %
    found = metrics([11.0, 8.0, 10.0, 15.0], [10.0] * 4, [0.1, 0.1, 0.1, 0.5])
    assert found.rows == 4
    assert found.mean == pytest.approx(0.2)
    assert found.median == pytest.approx(0.15)
    assert found.p90 == pytest.approx(0.41)  # numpy's linear rule: 0.2 + 0.7 * (0.5 - 0.2)
    assert found.bias == pytest.approx(0.1)
    assert found.coverage == pytest.approx(0.75)  # log 1.1 = 0.095 in, log 0.8 = -0.22 out, 0 in, 0.405 in


def test_metrics_pass_over_what_is_no_number_and_say_so_where_nothing_is_left():
    found = metrics([1.0, np.nan, 2.0], [1.0, 1.0, np.nan])
    assert (found.rows, found.mean) == (1, 0.0)
    assert math.isnan(found.coverage)
    nothing = metrics([np.nan], [1.0], [0.1])
    assert nothing.rows == 0
    assert math.isnan(nothing.mean)


@given(st.floats(1e-7, 1.0), st.floats(0.5, 2.0))
def test_one_factor_on_all_is_bias_and_error_alike(size: float, factor: float):
    measured = np.full(5, size)
    found = metrics(measured * factor, measured)
    assert found.bias == pytest.approx(factor - 1, abs=1e-9)
    assert [found.mean, found.median] == pytest.approx([abs(factor - 1)] * 2, abs=1e-9)


def test_size_classes_hold_their_upper_edge_out():
    assert size_class([9.9e-6, 1e-5, 5e-4, 1e-2]).tolist() == [0, 1, 2, 4]


def test_bins_of_few_rows_are_not_shown():
    few, many = LEAST_ROWS_OF_A_BIN - 1, LEAST_ROWS_OF_A_BIN
    measured = np.concatenate([np.full(few, 1e-5), np.full(many, 1e-3)])
    shown = bands(measured, measured * 1.1, measured)
    assert [(band.rows, round(band.middle, 6)) for band in shown] == [(many, 1.1)]
    assert 1e-3 / 1.8 < shown[0].size < 1e-3 * 1.8
    assert [rows for _, _, rows in density(measured, measured)] == [many]


def test_the_floor_of_repeats_is_the_error_of_their_mean():
    # 0.9 and 1.1 differ by 10 % from their mean, which two rows know too well by sqrt(2)
    floor, rows = repeat_floor(np.array([0, 0, 1]), [0.9, 1.1, 7.0])
    assert rows == 2
    assert floor == pytest.approx(0.1 * math.sqrt(2))
    assert repeat_floor(np.array([0, 1]), [1.0, 2.0])[1] == 0


def test_the_headline_counts_every_gpu_alike():
    def row(gpu: str, rows: int, mean: float) -> dict:
        time = {"rows": rows, "mean": mean, "median": mean, "p90": mean, "bias": 0.0, "coverage": 0.9}
        return {"protocol": "shapes", "title": "gemm", "gpu": gpu, "time": time}

    (one,) = headline([row("A", 10_000, 0.02), row("B", 10, 0.10)])
    assert one["time"]["mean"] == pytest.approx(0.06)
    assert (one["worst_gpu"], one["worst_mean"], one["gpus"], one["time"]["rows"]) == ("B", 0.10, 2, 10_010)


def test_bursts_and_rows_under_load_are_scored_apart_and_products_by_format() -> None:
    # bursts are 10 % off for fp8 and 2 % for bf16, rows under load 20 %
    rows = pl.DataFrame(
        {
            "protocol": "shapes", "source": "aiconfigurator", "gpu": GPU, "kind": "gemm", "launch": "graph",
            "timing": ["burst"] * 4 + ["sustained"] * 4, "group": ["bf16", "fp8"] * 4,
            "measured_s": 1e-3, "predicted_s": [1.02e-3, 0.9e-3] * 2 + [1.2e-3] * 4, "half_s": 0.1,
            "quality": "", "measured_w": float("nan"), "predicted_w": 1.0, "half_w": 0.1,
        }
    )  # fmt: skip
    named = titled(rows)
    apart = {row["timing"]: row["time"]["mean"] for row in by_clock(named)}
    assert apart == {"burst": pytest.approx(0.06), "sustained": pytest.approx(0.2)}
    found = {(row["group"], row["timing"]): row["time"]["mean"] for row in products(named)}
    assert found["bf16", "burst"] == pytest.approx(0.02)
    assert found["fp8", "burst"] == pytest.approx(0.1)
    settings = {"sample": 10, "train_rows": 10, "seed": 0, "version": "0"}
    heads = {"headline": headline(table(named, ("protocol", "title", "gpu"))), "by_clock": by_clock(named)}
    page = accuracy.page({"settings": settings, "products": products(named), **heads}, {}, [])
    assert f"| {GPU} | fp8 | 10.0 % | 20.0 % | - | - |" in page
    assert "| gemm | 1 | 13.0 % | - | 6.0 % | 20.0 % |" in page


# protocols


@pytest.mark.parametrize("timing", ["burst", "sustained"])
def test_scores_are_those_of_what_the_public_function_says(tmp_path: Path, timing: str):
    frame = _gemm(200, timing=timing)
    frame.write_parquet(tmp_path / "t.parquet")
    (batch,) = read_batches(tmp_path / "t.parquet", kinds=None, gpus=None, most_rows=1000, seed=0)
    rows = scored(batch, "shipped", SHIPPED)
    columns = {name: frame[name].to_list() for name in frame.columns if name not in ("gpu", "op")}
    public = jc.predict_kernels("gemm", columns, GPU, ignore_extra=True)
    np.testing.assert_allclose(rows["predicted_s"].to_numpy(), public["time_s"], rtol=1e-12)
    np.testing.assert_allclose(rows["predicted_w"].to_numpy(), public["power_w"], rtol=1e-12)
    np.testing.assert_allclose(np.exp(rows["half_s"].to_numpy()), public["time_s_upper"] / public["time_s"], rtol=1e-9)
    np.testing.assert_allclose(
        np.exp(rows["half_w"].to_numpy()), public["power_w_upper"] / public["power_w"], rtol=1e-9
    )


def test_left_out_shapes_are_in_no_fit(folder: Path):
    (batch,) = read_batches(folder, kinds=None, gpus=None, most_rows=10_000, seed=0)
    scored_shapes = left_out(batch.rows)
    (rest,) = kept([batch.rows])
    assert len(scored_shapes) + len(rest) == len(batch.rows)
    assert 0.1 < len(scored_shapes) / len(batch.rows) < 0.3
    assert set(shape_fold(scored_shapes).tolist()).isdisjoint(shape_fold(rest).tolist())
    # What was measured of them can't change a fit.
    wrong = batch.rows.take(np.arange(len(batch.rows)))
    wrong.time_s[shape_fold(wrong) == 0] *= 100
    a, b = (without_shapes("gemm", [one], {}, train_rows=1000) for one in (batch.rows, wrong))
    assert a.time == b.time
    assert a.time["H100-SXM-80GB"]


def test_a_gpu_left_out_takes_its_chip_with_it_and_newer_ones_where_asked():
    out = without_gpu("gemm", load_gpu("A100-SXM-80GB"), [], train_rows=1000).exclude
    assert {"A100-SXM-80GB", "A100-PCIE-40GB"} & set(store.shipped()) <= set(out)
    assert all(name.startswith("A100-") for name in out)
    newer = without_gpu("gemm", load_gpu("h100"), [], newest="ampere", train_rows=1000).exclude
    left = set(store.shipped()) - set(newer)
    assert left
    assert all(GENERATIONS[load_gpu(name).architecture] <= GENERATIONS["ampere"] for name in left if name[:2] != "MI")


def test_made_up_measurements_are_recovered_to_their_noise(folder: Path):
    batches = list(read_batches(folder, kinds=None, gpus=None, most_rows=10_000, seed=0))
    rows = score_kernels(batches, ("shapes", "shipped"), sample=1000)
    by = {
        name: metrics(part["predicted_s"], part["measured_s"], part["half_s"])
        for (name,), part in rows.group_by(["protocol"])
    }
    assert by["shipped"].rows == 600
    assert by["shipped"].mean == pytest.approx(NOISE / 2, abs=0.005)  # mean of |uniform|
    assert 60 < by["shapes"].rows < 180
    assert by["shapes"].mean < 0.2
    assert by["shapes"].coverage > 0.7


def test_a_sample_is_the_same_whatever_else_is_asked_for(folder: Path):
    first, second = (
        next(read_batches(folder, kinds=kinds, gpus=None, most_rows=50, seed=0)) for kinds in (None, ("gemm",))
    )
    assert np.array_equal(first.rows.time_s, second.rows.time_s)
    assert (len(first.rows), first.available) == (50, 600)
    other = next(read_batches(folder, kinds=None, gpus=None, most_rows=50, seed=1))
    assert not np.array_equal(first.rows.time_s, other.rows.time_s)


def test_a_whole_pass_is_priced_as_predict_does_it():
    workload = jc.workload("bert-base-uncased", batch=4, prompt_tokens=128)
    gpu = load_gpu("a100-pcie-40gb")
    run = run_pass(lower(workload, gpu, EAGER), gpu, 1100.0)
    said = predict_workload(workload, gpu, execution=EAGER, clock_mhz=1100.0)
    assert run.time_s == pytest.approx(said.time_s, rel=1e-9)
    assert run.energy_j == pytest.approx(said.energy_j, rel=1e-9)


def test_measured_passes_are_scored_without_their_model(data_dir: Path):
    found = score_passes(data_dir / "energaizer", ("A10",))
    assert len(found) > 20
    assert {one.dataset for one in found} == {"a10-900mhz"}
    error = np.mean([abs(one.time_s / one.run.time_s - 1) for one in found])
    assert error < 0.15
    assert all(0 < one.power_w <= 150.001 for one in found)


# stored results


def _errors(**mean: float) -> dict:
    return {key: {"rows": 100, "mean": value} for key, value in mean.items()}


def test_an_error_that_grew_beyond_the_tolerance_is_worse():
    # 10 % may grow to 10 * 1.05 + 0.5 = 11.0 %
    stored = _errors(same=0.10, within=0.10, beyond=0.10, better=0.10, gone=0.10)
    new = _errors(same=0.10, within=0.1099, beyond=0.1101, better=0.08, added=0.5)
    found = baseline.compare(new, stored)
    assert found.compared == 4
    assert [change.key for change in found.worse] == ["beyond"]
    assert [change.key for change in found.better] == ["better"]


def test_errors_of_other_rows_are_not_compared():
    new = {"a": {"rows": 100, "mean": 0.5}, "b": {"rows": 101, "mean": 0.5}}
    found = baseline.compare(new, {"a": {"rows": 300, "mean": 0.1}, "b": {"rows": 100, "mean": 0.1}})
    assert (found.compared, [one.key for one in found.worse]) == (1, ["b"])


def test_a_partial_run_keeps_what_it_did_not_look_at():
    stored = {"errors": _errors(a=0.1, b=0.2)}
    assert set(baseline.updated(stored, _errors(b=0.3), {}, whole=False)["errors"]) == {"a", "b"}
    assert set(baseline.updated(stored, _errors(b=0.3), {}, whole=True)["errors"]) == {"b"}


def test_the_shipped_results_hold_errors_alone():
    stored = baseline.read(baseline.stored_path())
    if stored is None:
        pytest.skip("no results are stored yet")
    assert stored["errors"]
    assert all(set(one) <= {"rows", "mean", "coverage"} and one["rows"] >= 1 for one in stored["errors"].values())


# end to end


def test_validate_end_to_end(folder: Path, tmp_path: Path, capsys):
    stored = tmp_path / "stored.json"
    common = ("validate", "--data", folder, "--protocol", "shapes,shipped", "--baseline", stored)
    page = tmp_path / "accuracy.md"
    code, out, err = _run(capsys, *common, "--update-baseline", "--write", page)
    assert (code, err) == (0, "")
    assert "gemm" in out
    text = page.read_text()
    assert "095f58a51c4ca8e61b66ec108d86f223f8d559ce" in text
    links = [line.split("](")[1].split(")")[0] for line in text.splitlines() if line.startswith("![")]
    assert "accuracy/error_by_gpu.svg" in links
    for link in links:
        assert (tmp_path / link).read_text(encoding="utf-8").startswith("<svg")
    # The same again is no worse.
    code, out, _ = _run(capsys, *common)
    assert code == 0
    assert "0 of 2 errors got worse" in out
    # Stored errors that were smaller make it worse, and it says where.
    held = json.loads(stored.read_text())
    key = "kernels/shipped/gemm/H100-SXM-80GB/time"
    held["errors"][key]["mean"] = 0.001
    stored.write_text(json.dumps(held))
    code, out, err = _run(capsys, *common)
    assert (code, err) == (1, "")
    assert key in out
    code, out, _ = _run(capsys, *common, "--json")
    document = json.loads(out)
    assert code == 1
    assert [one["key"] for one in document["comparison"]["worse"]] == [key]
    assert document["headline"][0]["time"]["rows"] > 0
    code, out, _ = _run(capsys, *common, "--csv")
    assert out.splitlines()[0].startswith("protocol,title,gpu,kind,group")
    # Without data it shows what is stored.
    code, out, _ = _run(capsys, "validate", "--baseline", stored)
    assert code == 0
    assert key in out


def test_a_table_of_ones_own_needs_few_columns(tmp_path: Path):
    own = _gemm(50).select("gpu", "op", "m", "n", "k", "dtype", "latency_ms")
    own.write_csv(tmp_path / "own.csv")
    (batch,) = read_table(tmp_path / "own.csv")
    assert (batch.gpu, batch.table.kind, batch.timing_mode, len(batch)) == ("H100-SXM-80GB", "gemm", "sustained", 50)


def test_one_source_of_the_data_folder_is_enough(folder: Path):
    rows = [
        list(read_batches(path, kinds=None, gpus=None, most_rows=1000, seed=0))
        for path in (folder, folder / "aiconfigurator", folder / "aiconfigurator" / GPU)
    ]
    assert [len(batches[0].rows) for batches in rows] == [600, 600, 600]
    assert [batches[0].source for batches in rows] == ["aiconfigurator", "aiconfigurator", "table"]


def test_tables_of_other_things_may_lie_beside_those_of_kernels(folder: Path):
    place = folder / "aiconfigurator" / GPU
    (place / "specs.csv").write_text("gpu,price\nh100,1\n")
    assert len(list(read_batches(place, kinds=None, gpus=None, most_rows=1000, seed=0))) == 1


@pytest.mark.parametrize("rows", [1, 3, 12])
def test_few_rows_are_scored_all_the_same(tmp_path: Path, capsys, rows: int):
    _gemm(rows, timing="sustained").write_parquet(tmp_path / "few.parquet")
    code, out, err = _run(capsys, "validate", "--data", tmp_path / "few.parquet", "--json")
    assert (code, err) == (0, "")
    scored_rows = {row["protocol"]: row["time"]["rows"] for row in json.loads(out)["headline"]}
    assert scored_rows["shipped"] == scored_rows["gpus"] == scored_rows["older"] == rows


def test_a_page_without_plots_or_passes_is_still_a_page():
    document = {"settings": {"sample": 10, "train_rows": 10, "seed": 0, "version": "0"}}
    assert accuracy.page(document, {}, []).startswith("# Accuracy\n")


def test_a_chart_of_passes_is_drawn_from_their_errors():
    errors = {what: {"mean": 0.05} for what in ("time", "power", "energy")}
    charts = plots.of_accuracy({"passes": {"models": [{"dataset": "d", "model": "bert", **errors}]}}, {})
    assert list(charts) == ["passes"]
    assert plots.written(charts["passes"], "png").startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--data", "{tmp}/none"), "no such file"),
        (("--data", "{tmp}/empty"), "no measured tables"),
        (("--data", "{tmp}/words.csv"), "lacks gpu, op, latency_ms"),
        (("--data", "{tmp}/zero.csv"), "above zero"),
        (("--data", "{tmp}/text.csv"), "must hold numbers"),
        (("--data", "{tmp}/unknown.csv"), "unknown operation 'gem': did you mean gemm?"),
        (("--data", "{tmp}/short.csv"), "short.csv"),
        (("--data", "{tmp}/broken.parquet"), "not a readable parquet file"),
        (("--data", "{tmp}/passes"), "lacks dataset, gpu"),
        (("--data", "{data}", "--kind", "gem"), "did you mean gemm?"),
        (("--data", "{data}", "--gpu", "h1000"), "unknown GPU"),
        (("--data", "{data}", "--gpu", "t4"), "none of what was asked for"),
        (("--data", "{data}", "--protocol", "all"), "--protocol takes one of"),
        (("--data", "{data}", "--only", "layers"), "--only takes one of"),
        (("--data", "{data}", "--only", "passes"), "none of what was asked for"),
        (("--data", "{data}", "--only", "passes", "--kind", "gemm"), "give one"),
        (("--data", "{data}", "--sample", "-3"), "--sample takes a whole number"),
        (("--data", "{data}", "--write", "{tmp}/page.html"), "ends in .md"),
        (("--data", "{data}", "--write", "{tmp}/none/page.md"), "its folder does not exist"),
        (("--data", "{data}", "--baseline", "{tmp}/none.json"), "no stored results"),
        (("--data", "{data}", "--baseline", "{tmp}/words.csv"), "can't read stored results"),
        (("--data", "{data}", "--baseline", "{tmp}/other.json"), "holds no stored results"),
        (("--write", "{tmp}/page.md"), "give --data"),
    ],
)
def test_bad_input_is_one_line(folder: Path, tmp_path: Path, capsys, arguments, words):
    good = _gemm(20).select("gpu", "op", "m", "n", "k", "dtype", "latency_ms")
    (tmp_path / "empty").mkdir()
    (tmp_path / "passes" / "traces").mkdir(parents=True)
    (tmp_path / "passes" / "measurements.csv").write_text("a,b\n1,2\n")
    (tmp_path / "words.csv").write_text("a,b\n1,2\n")
    good.with_columns(latency_ms=pl.lit(0.0)).write_csv(tmp_path / "zero.csv")
    good.with_columns(latency_ms=pl.lit("fast")).write_csv(tmp_path / "text.csv")
    good.with_columns(op=pl.lit("gem")).write_csv(tmp_path / "unknown.csv")
    good.drop("k").write_csv(tmp_path / "short.csv")
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 and then nothing")
    (tmp_path / "other.json").write_text('{"schema": "joulecast.models/1"}')
    places = {"tmp": tmp_path, "data": folder}
    code, out, err = _run(capsys, "validate", *(one.format(**places) for one in arguments))
    assert (code, out) == (2, "")
    assert err.startswith("joulecast: ")
    assert err.count("\n") == 1
    assert words in err


def test_models_of_like_widths_are_repeats_of_each_other(tmp_path: Path):
    n = 120
    words = ["deepseek-ai/DeepSeek-V3", "deepseek-ai/DeepSeek-R1", "zai-org/GLM-5"]
    pl.DataFrame(
        {
            "gpu": [GPU] * 3 * n,
            "op": ["mla_module_generation"] * 3 * n,
            "model": [word for word in words for _ in range(n)],
            "batch_size": list(range(1, n + 1)) * 3,
            "query_len": [1] * 3 * n,
            "past_len": [4096] * 3 * n,
            "num_heads": [128] * 3 * n,
            "latency_ms": [0.9] * n + [1.1] * n + [5.0] * n,
        }
    ).write_parquet(tmp_path / "t.parquet")
    batches = list(read_batches(tmp_path / "t.parquet", kinds=None, gpus=None, most_rows=1000, seed=0))
    (found,) = repeats(batches)
    assert found["rows"] == 2 * n  # the third model is another operation
    assert found["time"] == pytest.approx(0.1 * math.sqrt(2))
    assert found["power_rows"] == 0
    assert math.isnan(found["power"])


def test_an_unmeasured_gpu_is_scored_with_kernels_that_only_it_has_apart() -> None:
    rows = pl.DataFrame(
        {
            "protocol": "gpus", "title": "gemm", "gpu": "A100-SXM-80GB", "kind": "gemm", "engine": "trtllm",
            "version": ["1", "1", "2", "2"], "group": ["bf16", "bf16", "bf16", "w4a16"],
            "timing": "burst", "launch": "graph", "elsewhere": [True, True, True, False],
            "on_sibling": [True, True, False, False],
            "measured_s": [1.0, 1.0, 1.0, 1.0], "predicted_s": [1.2, 1.2, 0.5, 9.0],
        }
    )  # fmt: skip
    (found,) = transferred(rows)
    assert found["share"] == 0.75
    assert found["time"]["mean"] == pytest.approx((0.2 + 0.2 + 0.5) / 3)
    assert found["offset"]["mean"] == pytest.approx(0.0)  # each version is off by one factor
    assert found["sibling"]["mean"] == pytest.approx(0.2)


def test_kernels_of_one_gpu_alone_are_told_from_those_that_others_have() -> None:
    a100 = load_gpu("A100-SXM-80GB")
    boards = tuple(name for name in store.known() if name.startswith("A100"))
    assert measured_elsewhere(a100, "gemm/trtllm/bf16", boards)
    assert not measured_elsewhere(a100, "gemm/trtllm/w4a16", boards)
