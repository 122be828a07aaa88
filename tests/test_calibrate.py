"""Calibration from a user's own tables: what comes out, what is set aside, what is refused."""

from __future__ import annotations

import json

import numpy as np
import pytest

import joulecast as jc
from joulecast.calibration.conformal import conformal_quantile
from joulecast.calibration.own import calibrate, today
from joulecast.calibration.time_fit import fit_time
from joulecast.cli import main
from joulecast.coefficients import places, store, transfer
from joulecast.coefficients.corrections import load_correction
from joulecast.coefficients.schema import TIME_PARAMETERS, GpuCoefficients, TimeCoefficients
from joulecast.coefficients.users import use_coefficients
from joulecast.errors import InputError
from joulecast.gpus import load_gpu
from joulecast.gpus.names import DATA
from joulecast.kernels.registry import family_of
from joulecast.kernels.work import Conditions
from joulecast.physics.correction import correction_factor
from joulecast.physics.timing import duration_s, module_times
from joulecast.workloads.table import op_table

GPU = load_gpu("L4")
KEY = "gemm/vllm/bf16"

#: A GPU that reaches less of its peaks than any relative, and starts kernels more slowly.
TRUTH = TimeCoefficients(tensor_efficiency=0.5, dram_efficiency=0.7, fixed_us=6.0, fixed_kcycles=4.0, sharpness=4.0)


@pytest.fixture(autouse=True)
def nothing_of_ones_own(monkeypatch, tmp_path):
    """Without coefficients of whoever runs the tests."""
    monkeypatch.delenv(places.ENVIRONMENT, raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "none"))
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    use_coefficients(None)
    yield
    use_coefficients(None)


def measured(rows=40, noise=0.01, seed=3):
    """Gemm rows of `GPU` as its kernels would be timed if `TRUTH` were true of it."""
    generator = np.random.default_rng(seed)
    shape = {
        "m": generator.choice([1, 16, 64, 256, 1024, 4096, 8192], rows),
        "n": generator.choice([1024, 4096, 8192, 16384], rows),
        "k": generator.choice([1024, 4096, 8192], rows),
    }
    work = family_of("gemm").work(op_table("gemm", {**shape, "dtype": "bf16"}), GPU, Conditions("vllm", "loop"))
    times = module_times(work, GPU, np.array([getattr(TRUTH, name) for name in TIME_PARAMETERS]))
    factor, _ = correction_factor(load_correction("gemm"), work, times, GPU, engine="vllm")
    seconds = factor * duration_s(times, GPU, GPU.clock_max_mhz) * np.exp(generator.normal(0, noise, rows))
    return shape, seconds


def table(path, shape, seconds, **more):
    """A CSV in the columns that are documented."""
    columns = {"op": "gemm", "gpu": "L4", "framework": "vllm", "timing_mode": "burst", "dtype": "bf16", **shape, **more}
    columns["latency_ms"] = seconds * 1e3
    texts = {name: np.broadcast_to(np.asarray(value), seconds.shape) for name, value in columns.items()}
    lines = [",".join(texts), *(",".join(str(column[i]) for column in texts.values()) for i in range(seconds.size))]
    path.write_text("\n".join(lines) + "\n")
    return path


def test_efficiencies_are_recovered_from_forty_rows(tmp_path):
    found = calibrate(table(tmp_path / "own.csv", *measured()), tmp_path / "out")
    (file,) = found.files
    (group,) = file.fit.groups
    own = store.read(file.path).time[KEY]
    assert (group.key, group.rows, own.rows, own.provenance) == (KEY, 40, 40, "fitted")
    assert group.before > 0.1
    assert group.error < 0.05
    assert own.tensor_efficiency == pytest.approx(TRUTH.tensor_efficiency, rel=0.2)
    assert own.dram_efficiency == pytest.approx(TRUTH.dram_efficiency, rel=0.1)


def test_predictions_use_them_and_their_intervals_hold_other_shapes(tmp_path):
    calibrate(table(tmp_path / "own.csv", *measured()), tmp_path / "out")
    shape, truth = measured(200, seed=11)
    given = {**shape, "dtype": "bf16", "framework": "vllm", "timing_mode": "burst"}
    before = jc.predict_kernels("gemm", given, GPU)
    assert use_coefficients(tmp_path / "out") == ("L4",)
    after = jc.predict_kernels("gemm", given, GPU)
    assert set(before["provenance"]) == {"transferred"}
    assert set(after["provenance"]) == {"fitted"}
    assert np.mean(np.abs(after["time_s"] / truth - 1)) < 0.05 < np.mean(np.abs(before["time_s"] / truth - 1))
    inside = (after["time_s_lower"] <= truth) & (truth <= after["time_s_upper"])
    assert inside.mean() > 0.75
    assert np.mean(np.log(after["time_s_upper"] / after["time_s"])) < np.mean(
        np.log(before["time_s_upper"] / before["time_s"])
    )


def test_three_rows_move_the_times_and_stay_near_the_relative(tmp_path):
    shape, seconds = measured(3)
    found = calibrate(table(tmp_path / "own.csv", shape, seconds), tmp_path / "out")
    (group,) = found.files[0].fit.groups
    donor = transfer.nearest(GPU, "gemm", "vllm", "bf16")
    own = store.read(found.files[0].path).time[KEY]
    assert own.spread90 >= donor.fitted.spread90 > 0
    assert group.start == f"{donor.key} of {donor.gpu}"
    use_coefficients(tmp_path / "out")
    after = jc.predict_kernels("gemm", {**shape, "dtype": "bf16", "framework": "vllm", "timing_mode": "burst"}, GPU)
    assert np.mean(np.abs(after["time_s"] / seconds - 1)) < group.before


def test_the_same_tables_and_seed_give_the_same_file(tmp_path):
    path = table(tmp_path / "own.csv", *measured(12))
    texts = [calibrate(path, tmp_path / name).files[0].path.read_bytes() for name in ("one", "two")]
    again = calibrate(path, tmp_path / "one").files[0].path.read_bytes()  # over what is there already
    assert texts[0] == texts[1] == again
    assert [one.name for one in (tmp_path / "one").iterdir()] == ["L4.toml"]


def test_the_file_says_where_it_comes_from(tmp_path):
    path = table(tmp_path / "own.csv", *measured(20), framework_version="0.9.1")
    made = store.read(calibrate(path, tmp_path / "out", version="9.9", seed=5).files[0].path).calibration
    assert (made.version, made.date, made.seed, made.rows, made.set_aside) == ("9.9", "2023-11-14", 5, 20, 0)
    assert "own.csv" in made.sources
    assert "vllm 0.9.1" in made.sources
    assert 0 < made.residuals["gemm"] < 0.2


def test_other_kernels_in_the_file_stay(tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    kept = TimeCoefficients(fixed_us=9.0, provenance="fitted", source="before")
    store.write(GpuCoefficients("L4", {"moe/vllm/bf16": kept, KEY: kept}), out / "L4.toml")
    calibrate(table(tmp_path / "own.csv", *measured(20)), out)
    found = store.read(out / "L4.toml").time
    assert found["moe/vllm/bf16"] == kept
    assert found[KEY].source != "before"


def test_impossible_rows_are_set_aside_and_listed(tmp_path, capsys):
    shape, seconds = measured(16)
    largest = int(np.argmax(shape["m"] * shape["n"] * shape["k"]))
    clean = seconds.copy()
    seconds[largest] = 2e-6  # far above any peak
    path = table(tmp_path / "own.csv", shape, seconds)
    assert main(["calibrate", str(path), "--out", str(tmp_path / "out"), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["tables"][0]["set_aside"] == 1
    assert {"peak_flop", "bandwidth"} & set(document["tables"][0]["checks"])
    assert document["fitted"][0]["rows"] == 15
    without = {name: np.delete(column, largest) for name, column in shape.items()}
    other = calibrate(table(tmp_path / "clean.csv", without, np.delete(clean, largest)), tmp_path / "clean")
    own, expected = (store.read(folder / "L4.toml").time[KEY] for folder in (tmp_path / "out", tmp_path / "clean"))
    assert own.tensor_efficiency == expected.tensor_efficiency
    assert other.tables[0].set_aside == 0


def test_energies_are_fitted_where_power_was_read(tmp_path):
    shape, _ = measured(120)
    given = {**shape, "dtype": "bf16", "framework": "vllm"}
    predicted = jc.predict_kernels("gemm", given, GPU)
    power = predicted["power_w"] * np.exp(np.random.default_rng(0).normal(0, 0.02, 120))
    power = np.minimum(power, GPU.power_limit_default_w)
    path = table(
        tmp_path / "own.csv",
        shape,
        predicted["time_s"],
        power_w=power,
        power_limit_w=GPU.power_limit_default_w,
        timing_mode="sustained",
    )
    found = calibrate(path, tmp_path / "out")
    assert found.files[0].fit.power_rows > 90  # shapes come up more than once
    fitted = store.read(found.files[0].path).power
    assert fitted.provenance == "fitted"
    assert fitted.error < 0.15


def test_what_a_table_leaves_open_is_taken_as_predictions_take_it(tmp_path):
    shape, seconds = measured(12)
    path = tmp_path / "own.csv"
    rows = zip(*shape.values(), seconds, strict=True)
    path.write_text("op,m,n,k,dtype,time_us\n" + "".join(f"gemm,{m},{n},{k},bf16,{t * 1e6}\n" for m, n, k, t in rows))
    found = calibrate(path, tmp_path / "out", gpu=GPU)
    assert [one.key for one in found.files[0].fit.groups] == ["gemm/trtllm/bf16"]


def test_a_gpu_of_ones_own_is_calibrated_and_predicted(tmp_path):
    own = tmp_path / "mine.toml"
    text = (DATA / "l4.toml").read_text("utf-8").replace('name = "L4"', 'name = "My-L4"')
    own.write_text("\n".join(line for line in text.split("\n") if not line.startswith(("aliases", "shorthand"))))
    described = load_gpu(str(own))
    shape, seconds = measured(20)
    calibrate(table(tmp_path / "own.csv", shape, seconds, gpu="My-L4"), tmp_path / "out", gpu=described)
    use_coefficients(tmp_path / "out")
    given = {**shape, "dtype": "bf16", "framework": "vllm", "timing_mode": "burst"}
    assert set(jc.predict_kernels("gemm", given, described)["provenance"]) == {"fitted"}


def test_too_few_rows_are_refused_with_their_group(tmp_path):
    with pytest.raises(InputError, match=r"too few rows to fit anything: 2 of gemm/vllm/bf16"):
        calibrate(table(tmp_path / "own.csv", *measured(2)), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a,b\n1,2\n", "no column op"),
        ("op,gpu,m,n,k,dtype,latency_ms\n", "has no rows"),
        ("op,gpu,m,n,k,dtype,latency_ms\nnothing,L4,1,1,1,bf16,1\n", "no kernels"),
        ("op,gpu,m,n,k,dtype,latency_ms\ngemm,L9999,1,1,1,bf16,1\n", "L9999"),
        ("op,gpu,m,n,k,dtype\ngemm,L4,1,1,1,bf16\n", "latency_ms"),
        ("op,m,n,k,dtype,latency_ms\ngemm,1,1,1,bf16,1\n", "--gpu"),
        ("op,gpu,m,n,k,dtype,latency_ms\ngemm,L4,x,1,1,bf16,1\n", "m"),
        ("op,gpu,n,k,dtype,latency_ms\ngemm,L4,1,1,bf16,1\n", "column m"),
        ("op,gpu,m,n,k,dtype,latency_ms\ngemm,,1,1,1,bf16,1\n", "column gpu is empty"),
        ("op,gpu,framework,m,n,k,dtype,latency_ms\ngemm,L4,weird,1,1,1,bf16,1\n", "framework"),
        ('{"op": "gemm"}', "CSV or parquet"),
    ],
)
def test_a_bad_table_is_refused_in_one_line(tmp_path, capsys, text, says):
    path = tmp_path / "own.csv"
    path.write_text(text)
    assert main(["calibrate", str(path), "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "arguments",
    [["--seed", "x"], ["--gpu", "L9999"], ["--stage", "nothing"], ["--stage", "kernels"], ["--out", "own.csv"]],
)
def test_a_bad_argument_is_refused_in_one_line(tmp_path, monkeypatch, capsys, arguments):
    monkeypatch.chdir(tmp_path)
    table(tmp_path / "own.csv", *measured(5))
    assert main(["calibrate", "own.csv", "--out", "out", *arguments]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_missing_table_is_refused(tmp_path, capsys):
    assert main(["calibrate", str(tmp_path / "none.csv"), "--out", str(tmp_path)]) == 2
    assert "no such file" in capsys.readouterr().err


def test_a_bad_date_is_refused(monkeypatch):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "soon")
    with pytest.raises(InputError, match="SOURCE_DATE_EPOCH"):
        today()


# A user's folder


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("L4.toml", "schema = 1\n", "gpu"),
        ("L4.toml", "[", "no TOML"),
        ("L4.toml", 'schema = 1\ngpu = "H100-SXM-80GB"\n', "call it H100-SXM-80GB.toml"),
        ("intervals.toml", "schema = 7\n", "schema 7"),
        ("intervals.toml", "schema = 1\nmodel = -1\n", "model must be a number"),
        ("intervals.toml", "schema = 1\ntransfer = [1.0]\n", "must hold 5 numbers"),
        ("intervals.toml", "schema = 1\nmodle = 1.0\n", "modle"),
    ],
)
def test_a_bad_file_of_ones_own_is_refused_in_one_line(tmp_path, capsys, name, text, says):
    (tmp_path / name).write_text(text)
    shape = ["--set", "m=64", "--set", "n=64", "--set", "k=64", "--set", "dtype=bf16"]
    assert main(["kernels", "gemm", "--gpu", "l4", "--coefficients", str(tmp_path), *shape]) == 2
    said = capsys.readouterr().err
    assert says in said.replace("'", "")
    assert said.count("\n") == 1


def test_a_folder_that_is_none_is_refused_wherever_it_is_named(tmp_path, monkeypatch, capsys):
    assert main(["doctor", "--coefficients", str(tmp_path / "none")]) == 2
    monkeypatch.setenv(places.ENVIRONMENT, str(tmp_path / "gone"))
    use_coefficients(None)
    assert main(["doctor"]) == 2
    assert places.ENVIRONMENT in capsys.readouterr().err


def test_ones_own_file_wins_key_by_key_and_doctor_lists_it(tmp_path, monkeypatch, capsys):
    shipped = store.load("H100-SXM-80GB")
    key, other = sorted(shipped.time)[:2]
    mine = TimeCoefficients(fixed_us=77.0, provenance="fitted", source="mine", rows=4)
    store.write(GpuCoefficients("H100-SXM-80GB", {key: mine}), tmp_path / "H100-SXM-80GB.toml")
    monkeypatch.setenv(places.ENVIRONMENT, str(tmp_path))
    use_coefficients(None)
    found = store.load("H100-SXM-80GB")
    assert found.time[key].fixed_us == 77.0
    assert found.time[other] == shipped.time[other]
    assert found.power == shipped.power
    assert main(["doctor", "--json"]) == 0
    own = json.loads(capsys.readouterr().out)["coefficients"]
    assert own["folder"] == str(tmp_path)
    assert [one["gpu"] for one in own["gpus"]] == ["H100-SXM-80GB"]
    noted = jc.predict("gpt2", "h100", prompt_tokens=16).notes
    assert any(str(tmp_path) in note for note in noted)


# What fits are made of


def test_a_fit_without_a_say_stays_at_its_prior():
    work = family_of("gemm").work(
        op_table("gemm", {"m": [64] * 3, "n": 64, "k": 64, "dtype": "bf16"}), GPU, Conditions("vllm", "loop")
    )
    prior = TimeCoefficients(tensor_efficiency=0.31, dram_efficiency=0.52, fixed_us=3.3, fixed_kcycles=5.0)
    times = module_times(work, GPU, np.array([getattr(prior, name) for name in TIME_PARAMETERS]))
    seconds = duration_s(times, GPU, GPU.clock_max_mhz)
    (group,) = work.groups
    found = fit_time(work, GPU, seconds, GPU.clock_max_mhz, source="", priors={group: prior}, least_rows=1)[group]
    for name in ("tensor_efficiency", "dram_efficiency", "fixed_us", "fixed_kcycles"):
        assert getattr(found, name) == pytest.approx(getattr(prior, name), rel=0.02)


def test_the_conformal_quantile_has_the_rank_of_its_theorem():
    assert conformal_quantile(np.arange(1, 100)) == 90  # ceil(100 x 0.9)
    assert conformal_quantile(np.arange(1, 20)) == 18  # ceil(20 x 0.9)
    assert conformal_quantile([1.0] * 9) == 1.0  # the rank of nine is the ninth
    assert conformal_quantile([3.0, 1.0]) > 3.0  # too few for the rank
