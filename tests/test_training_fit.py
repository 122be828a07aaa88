"""Scales of a training stack: fitted to steps made with known ones, written, read, and used by predictions."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import joulecast as jc
from joulecast.calibration.step_tables import figures, tabulated, taken
from joulecast.calibration.training import fit_scales, left_out, unidentified
from joulecast.calibration.training_fit import calibrate_training, folds, learning_curve
from joulecast.calibration.training_networks import by_network, network_scales
from joulecast.calibration.training_runs import TrainingRun, read_runs
from joulecast.cli import main
from joulecast.coefficients.training import Scales, TrainingScales, dump_scales, read_scales, scales_of, write_scales
from joulecast.coefficients.users import using
from joulecast.errors import InputError, UnknownNameError

TRUE = Scales(multiply=1.3, memory=1.6)

JOBS = [
    (model, {"micro_batch": batch, "sequence_tokens": length, "precision": "bf16"})
    for model in ("gpt2", "bert-base-uncased")
    for batch, length in ((4, 512), (16, 256), (32, 128), (16, 512))
]


def made(scales, gpu="a100-sxm-40gb", **more):
    """Steps as a stack with these scales would run them."""
    out = []
    for model, options in JOBS:
        run = jc.train(model, gpu, **options, **more, scales=scales, ignore_memory=True)
        out.append(TrainingRun(model, gpu, {**options, **more}, run.step_time_s, run.power_w, model))
    return out


@pytest.fixture(scope="module")
def tables():
    found, refused = tabulated(made(TRUE))
    assert not refused
    return found


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    path = tmp_path_factory.mktemp("steps") / "steps.csv"
    lines = ["model,gpu,micro_batch,sequence_tokens,precision,step_time_s"]
    for run in made(TRUE):
        o = run.options
        lines.append(f"{run.source},{run.gpu},{o['micro_batch']},{o['sequence_tokens']},bf16,{run.step_time_s}")
    path.write_text("\n".join(lines) + "\n")
    return path


def test_scales_that_steps_were_made_with_are_found_again(tables):
    found = fit_scales(tables, only=("multiply", "memory"))
    assert found.multiply == pytest.approx(1.3, rel=0.08)
    assert found.memory == pytest.approx(1.6, rel=0.15)
    time_s, power_w = figures(tables, found)
    assert time_s == pytest.approx(tables.measured_s, rel=0.06)
    assert power_w == pytest.approx(tables.measured_w, rel=0.05)


def test_a_tabulated_step_is_what_train_predicts_for_any_scales_and_limit():
    options = {"micro_batch": 16, "sequence_tokens": 512, "precision": "bf16"}
    limits = (150.0, 250.0, 400.0)
    runs = [TrainingRun("gpt2", "a100-sxm-40gb", {**options, "power_limit_w": w}, 1.0, 1.0, "gpt2") for w in limits]
    tables, _ = tabulated(runs)
    scales = Scales(multiply=1.2, memory=0.8, energy=1.3, static=1.2, limit_share=0.97)
    time_s, power_w = figures(tables, scales)
    for i, limit in enumerate(limits):
        run = jc.train("gpt2", "a100-sxm-40gb", **options, power_limit_w=limit, scales=scales, ignore_memory=True)
        assert time_s[i] == pytest.approx(run.step_time_s, rel=0.03)
        assert power_w[i] == pytest.approx(run.power_w, rel=0.03)


def test_a_tabulated_pipeline_draws_what_train_says_while_it_waits():
    options = {"micro_batch": 4, "sequence_tokens": 512, "precision": "bf16", "gpus": 4, "pp": 4, "accumulate": 4}
    tables, _ = tabulated([TrainingRun("gpt2", "a100-sxm-40gb", options, 1.0, 1.0, "gpt2")])
    run = jc.train("gpt2", "a100-sxm-40gb", **options, scales=Scales())
    assert run.parts_s["bubble"] > 0.2 * run.step_time_s
    time_s, power_w = figures(tables, Scales())
    assert time_s[0] == pytest.approx(run.step_time_s, rel=0.01)
    assert power_w[0] == pytest.approx(run.power_w, rel=0.01)


def test_classes_that_steps_do_not_have_are_told_and_left_alone(tables):
    blind = unidentified(tables)
    assert "convolution" in blind
    assert "communication" in blind
    assert "voltage_floor" in blind  # one limit alone
    assert "multiply" not in blind
    found = fit_scales(taken(tables, [0, 1]))
    assert found.convolution == 1.0
    assert "convolution" in found.unknown


def test_a_network_left_out_is_predicted_from_the_others_alone(tables):
    names = [run.network for run in tables.runs]
    time_s, _ = left_out(tables, names)
    assert np.abs(time_s / tables.measured_s - 1).mean() < 0.1
    plain, _ = figures(tables, Scales())
    assert np.abs(plain / tables.measured_s - 1).mean() > 0.2


def test_more_measured_steps_predict_the_others_better(tables):
    none, *_, most = learning_curve(tables, (1, 3), draws=2)
    assert none.configurations == 0
    assert most.configurations == 3
    assert most.time < none.time


@given(names=st.lists(st.sampled_from("abcdefghijklmnop"), min_size=1, max_size=40), most=st.integers(1, 8))
def test_a_fold_holds_whole_groups(names, most):
    found = folds(names, most, 0)
    assert len(set(found)) == min(most, len(set(names)))
    assert len({(name, fold) for name, fold in zip(names, found, strict=True)}) == len(set(names))


def test_what_is_fitted_is_written_and_used_by_predictions_of_other_jobs(table, tmp_path):
    found = calibrate_training(table, tmp_path, version="0")
    assert found.path == tmp_path / "training.toml"
    assert found.before[0] > 0.2 > found.network[0]
    text = found.path.read_text()
    assert "multiply = 1." in text
    job = {"micro_batch": 8, "sequence_tokens": 384, "precision": "bf16", "ignore_memory": True}
    asked = ("gpt2", "h100")
    plain, true = (jc.train(*asked, **job, scales=one) for one in (Scales(), TRUE))
    with using(tmp_path):
        ours = jc.train(*asked, **job)
    assert abs(ours.step_time_s / true.step_time_s - 1) < 0.1 < abs(plain.step_time_s / true.step_time_s - 1)


def test_scales_of_a_precision_or_gpu_come_before_those_of_all(tmp_path):
    written = TrainingScales({
        "all": Scales(multiply=1.1), "bf16": Scales(multiply=1.2), "H100-SXM-80GB": Scales(multiply=1.3),
        "H100-SXM-80GB/bf16": Scales(multiply=1.4),
    })  # fmt: skip
    path = write_scales(written, tmp_path)
    assert dict(read_scales(path).scopes) == dict(written.scopes)
    with using(tmp_path):
        found = [scales_of(gpu, precision).multiply for gpu in ("A100-SXM-80GB", "H100-SXM-80GB")
                 for precision in ("tf32", "bf16")]  # fmt: skip
    assert found == [1.1, 1.2, 1.3, 1.4]


def test_a_measured_network_keeps_what_it_is_off_by(tables):
    every = Scales(multiply=1.2, memory=1.2)
    own = network_scales(tables, every)
    assert {scope.rpartition("/")[2] for scope in own} == {"gpt2", "bert-base-uncased"}
    time_s, _ = by_network(tables, every, own)
    for name in ("gpt2", "bert-base-uncased"):
        mine = np.array([run.network == name for run in tables.runs])
        before = figures(taken(tables, mine), every)[0]
        off = [abs(np.log(one / tables.measured_s[mine]).mean()) for one in (before, time_s[mine])]
        assert off[1] < 0.3 * off[0] + 1e-3


def test_what_a_network_is_off_by_over_its_batch_is_found_and_followed():
    # at a clock that no limit lowers: tables of times alone keep the clock that steps settle at without scales
    asked = {"sequence_tokens": 512, "precision": "bf16", "clock_mhz": 900.0}
    runs = [
        TrainingRun("gpt2", "a100", {"micro_batch": batch, **asked}, 1.0, None, "gpt2") for batch in (4, 8, 16, 32, 64)
    ]
    plain, _ = tabulated(runs)
    exact, _ = figures(plain, Scales())
    # a tenth more at the middle, and 3 % more with each doubling
    drift = 1.1 * 1.03 ** np.arange(-2.0, 3.0)
    found = network_scales(replace(plain, measured_s=exact * drift), Scales())["gpt2"]
    assert found.batch == pytest.approx(16.0)
    assert found.doubling == pytest.approx(1.03, abs=0.01)
    again, _ = figures(plain, found)
    np.testing.assert_allclose(again, exact * drift, rtol=0.02)
    # beyond four doublings from where it was measured a trend is not believed further
    assert found.at_batch(16 * 2**4) == found.at_batch(16 * 2**9)
    step = jc.train("gpt2", "a100", micro_batch=64, scales=found, **asked)
    assert step.step_time_s == pytest.approx(again[-1], rel=1e-6)


def test_one_run_that_is_not_what_it_says_moves_nothing(tables):
    true = replace(tables, measured_w=np.full(len(tables), np.nan))
    wrong = replace(true, measured_s=true.measured_s * np.where(np.arange(len(tables)) == 3, 4.0, 1.0))
    found, misled = fit_scales(true), fit_scales(wrong)
    for name in ("multiply", "memory"):
        assert getattr(misled, name) == pytest.approx(getattr(found, name), rel=0.06)


def test_steps_that_nothing_explains_do_not_bend_the_scales_of_the_others(tables):
    # most steps of one network: its host would have to be so slow that the other network waited for it, too
    lost = np.isin(np.arange(len(tables)), (4, 5, 6))
    measured = tables.measured_s * np.where(lost, 4.0, 1.0)
    found = fit_scales(replace(tables, measured_s=measured, measured_w=np.full(len(tables), np.nan)))
    np.testing.assert_allclose(figures(tables, found)[0][~lost], tables.measured_s[~lost], rtol=0.06)


def test_scales_of_a_domain_start_from_those_of_the_one_that_it_is_part_of(tables):
    words = [("", run.network) for run in tables.runs]
    lone = [str(i) for i in range(len(tables))]
    nested, _ = left_out(tables, lone, within=words)
    flat, _ = left_out(tables, lone, within=[run.network for run in tables.runs])
    off = [float(np.abs(one / tables.measured_s - 1).mean()) for one in (nested, flat)]
    # four steps of a network alone, or with what those of the other say
    assert off[0] <= off[1] + 0.005


def test_limits_of_different_configurations_tell_the_voltage_too():
    runs = [
        TrainingRun("gpt2", "v100", {"micro_batch": batch, "sequence_tokens": 512, "precision": "fp16",
                                     "power_limit_w": limit}, 1.0, 200.0)
        for batch, limit in ((4, 250.0), (8, 200.0), (16, 150.0))
    ]  # fmt: skip
    tables, _ = tabulated(runs)
    assert not {"static", "voltage_floor", "voltage_knee", "limit_share"} & set(unidentified(tables))
    assert "voltage_knee" in unidentified(taken(tables, [0, 1]))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("schema = 2\n", "schema"),
        ("nonsense", "is no TOML"),
        ("schema = 1\n[scales.all]\nmultiply = -1\n", "multiply"),
        ("schema = 1\n[scales.all]\nmultiply = 100\n", "between 0.05 and 20"),
        ("schema = 1\n[scales.all]\nmultiplication = 1\n", "multiplication"),
        ("schema = 1\nscales = 3\n", "a table for each scope"),
        ("schema = 1\n[scales.all]\nprovenance = \"heard\"\n", "heard"),
    ],
)  # fmt: skip
def test_a_damaged_file_of_scales_is_one_line(tmp_path, text, says):
    (tmp_path / "training.toml").write_text(text)
    with pytest.raises(InputError, match=says) as caught:
        jc.use_coefficients(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_file_of_scales_is_read_as_it_was_written():
    scales = TrainingScales({"all": Scales(multiply=1.25, source='a "table"', rows=3, unknown="host")}, {"steps": 3})
    assert "multiply = 1.25" in dump_scales(scales)
    assert "convolution" not in dump_scales(scales)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "steps.csv"),
        ("model,gpu\ngpt2,a100\n", "lacks step_time_s"),
        ("model,gpu,step_time_s\n", "0 rows"),
        ("model,gpu,step_time_s,colour\ngpt2,a100,1,red\n", "colour"),
        ("model,gpu,step_time_s\ngpt2,a100,-1\n", "line 2: step_time_s must be above 1e-06"),
        ("model,gpu,step_time_s\ngpt2,a100,fast\n", "line 2: step_time_s must be above 1e-06"),
        ("model,gpu,step_time_s\ngpt2,,1\n", "line 2: gpu is needed"),
        ("model,gpu,step_time_s\ngpt2,nonesuch,1\n", "line 2: .*nonesuch"),
        ("model,gpu,step_time_s,precision\ngpt2,a100,1,fp12\n", "line 2: .*fp12"),
        ("model,gpu,step_time_s,gpus,tp\ngpt2,a100,1,6,4\n", "line 2: .*nearest number that does is 8"),
        ("model,gpu,step_time_s\nnonesuch-model,a100,1\n", "none of the 1 steps"),
    ],
)
def test_a_table_that_can_not_be_is_one_line(tmp_path, text, says):
    path = tmp_path / "steps.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=says) as caught:
        calibrate_training(path, None)
    assert "\n" not in str(caught.value)


def test_rows_keep_their_options_and_what_is_left_out_together(tmp_path):
    path = tmp_path / "steps.csv"
    path.write_text("model,gpu,step_time_s,power_w,network,gpus\ngpt2,a100,0.5,300,gpt,8\ngpt2,a100,0.4,,,\n")
    first, second = read_runs(path)
    assert (first.network, second.network) == ("gpt", "gpt2")
    assert first.options == {"gpus": 8}
    assert second.power_w is None
    assert first.gpu == "A100-SXM-80GB"


def test_the_command_line_fits_writes_and_says_what_is_not_known(table, tmp_path, capsys):
    assert main(["calibrate", "--training", str(table), "--out", str(tmp_path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["files"] == [str(tmp_path / "training.toml")]
    assert told["errors"]["network_left_out"]["time"] < 0.2
    assert any("convolution" in warning for warning in told["warnings"])
    assert main(["train", "gpt2", "--gpu", "a100", "--coefficients", str(tmp_path), "--json"]) == 0
    assert main(["calibrate", "--curve"]) == 2
    assert main(["calibrate", "--training", str(table), "--per", "weather"]) == 2
    assert main(["calibrate", "--training", str(tmp_path / "none.csv")]) == 2
    assert "\n" not in capsys.readouterr().err.strip().splitlines()[-1]
    with pytest.raises(UnknownNameError):
        calibrate_training(table, None, per=("weather",))
