"""The host from measured passes: costs that made the times come back, and what can't be told is refused."""

from __future__ import annotations

import csv
import json
import math
from dataclasses import replace

import pytest

import joulecast as jc
from joulecast.calibration.host_fit import calibrate_host, read_host_runs
from joulecast.cli import main
from joulecast.coefficients import store
from joulecast.coefficients.intervals import Intervals, load_intervals
from joulecast.coefficients.transfer import forget
from joulecast.coefficients.users import using
from joulecast.errors import InputError

MODELS = ("bert-large-uncased", "facebook/opt-1.3b", "Qwen/Qwen2-1.5B", "bert-base-uncased", "gpt2")
COLUMNS = ("model", "gpu", "batch", "prompt_tokens", "launch_mode", "time_s")


def _table(path, rows):
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        writer.writerows(rows)
    return path


def _measured(tmp_path, launch_us, module_us, mode, batches=(1,), models=MODELS):
    """Times that a host of these costs makes."""
    asked = [(model, "h100", batch, 64, mode, 1.0) for model in models for batch in batches]
    runs = read_host_runs(_table(tmp_path / "asked.csv", asked))
    rows = [(*one[:-1], run.predicted_s(launch_us, module_us)) for one, run in zip(asked, runs, strict=True)]
    return _table(tmp_path / "passes.csv", rows)


def test_costs_that_made_the_times_come_back(tmp_path):
    table = _measured(tmp_path, 15.0, 40.0, "eager")
    found = calibrate_host(table, tmp_path / "out")
    (fit,) = found.fits
    # modules and launches go nearly hand in hand: their sum is told better than either
    assert fit.launch_us == pytest.approx(15.0, rel=0.15)
    assert fit.module_us == pytest.approx(40.0, rel=0.15)
    assert fit.host_bound == 5
    assert fit.error < 0.02 < fit.before


def test_graph_launches_are_fitted_apart_and_the_rest_of_the_host_is_kept(tmp_path):
    table = _measured(tmp_path, 60.0, 0.0, "cuda_graph", models=("bert-base-uncased", "gpt2", "bert-large-uncased"))
    found = calibrate_host(table, tmp_path / "out")
    (fit,) = found.fits
    assert fit.launch_us == pytest.approx(60.0, rel=0.03)
    host = store.read(found.files[0]).host
    with_it = jc.predict("gpt2", "h100", prompt_tokens=64, launch_mode="eager")
    assert host.eager_us == with_it.info["host_us_per_launch"]
    assert host.cuda_graph_us == pytest.approx(fit.launch_us, rel=1e-4)
    assert host.provenance == "measured"


def test_predictions_use_the_fitted_host(tmp_path):
    table = _measured(tmp_path, 30.0, 60.0, "eager")
    calibrate_host(table, tmp_path / "out")
    plain = jc.predict("gpt2", "h100", prompt_tokens=64)
    with using(tmp_path / "out"):
        mine = jc.predict("gpt2", "h100", prompt_tokens=64)
    forget()
    assert mine.time_s > 1.5 * plain.time_s
    assert mine.bound_by == "host"
    assert any("your own" in note for note in mine.notes)


def test_what_a_file_has_of_kernels_stays(tmp_path):
    table = _measured(tmp_path, 30.0, 60.0, "eager", models=MODELS[:3])
    first = calibrate_host(table, tmp_path / "out").files[0]
    kernels = store.load("H100-SXM-80GB")
    store.write(replace(kernels, host=None), first)
    calibrate_host(table, tmp_path / "out")
    again = store.read(first)
    assert len(again.time) == len(kernels.time)
    assert again.host is not None


def test_passes_that_the_gpu_bounds_tell_nothing_and_are_refused(tmp_path):
    table = _measured(tmp_path, 5.0, 5.0, "cuda_graph", batches=(256, 512), models=("bert-large-uncased",))
    with pytest.raises(InputError, match=r"none of the 2 passes waits for its host.* at most .* us"):
        calibrate_host(table, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("header", "row", "message"),
    [
        ("model,time_s", "gpt2,1", "lacks gpu"),
        ("model,gpu,time_s,colour", "gpt2,h100,1,red", "has a column 'colour'"),
        ("model,gpu,time_s", "gpt2,h100,-1", "row 1: time_s must be above zero"),
        ("model,gpu,time_s", "gpt2,h100,soon", "row 1: time_s must be a number"),
        ("model,gpu,time_s", "gpt2,h101,1", "row 1: .*did you mean"),
        ("model,gpu,time_s", "gpt2,h100,0.01", "1 pass is too few"),
        ("model,gpu,time_s,clock_mhz", "gpt2,h100,0.01,9000", "row 1: clock of 9000"),
        ("model,gpu,time_s,launch_mode", "gpt2,h100,0.01,magic", "row 1: .*magic"),
    ],
)
def test_tables_that_can_not_be_are_refused_by_row(tmp_path, header, row, message):
    path = tmp_path / "passes.csv"
    path.write_text(f"{header}\n{row}\n")
    with pytest.raises(InputError, match=message):
        calibrate_host(path, tmp_path / "out")


def test_the_command_line_tells_costs_errors_and_the_file(tmp_path, capsys):
    table = _measured(tmp_path, 15.0, 40.0, "eager", models=MODELS[:3])
    assert main(["calibrate", "--passes", str(table), "--out", str(tmp_path / "out")]) == 0
    page = capsys.readouterr().out
    assert "host-bound" in page
    assert "can't be told apart" in page
    assert main(["calibrate", "--passes", str(table), "--out", str(tmp_path / "out"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "joulecast.calibrate_host/1"
    assert found["fitted"][0]["host_bound"] == 3
    assert main(["calibrate", "--out", str(tmp_path / "out")]) == 2
    assert "--passes FILE" in capsys.readouterr().err


def _log_width(answer, name="time_s"):
    lower, upper = answer.interval(name)
    return math.log(upper / lower) / 2


def test_a_measured_host_narrows_answers_that_wait_for_it_and_no_others(tmp_path):
    def asked(**host):
        return jc.predict("gpt2", "h100", prompt_tokens=64, launch_mode="eager", **host)

    unknown = asked()
    assert (unknown.bound_by, unknown.provenance["host"]) == ("host", "spec sheet")
    given = asked(host_us_per_launch=12.0)
    assert _log_width(given) < 0.5 * _log_width(unknown)
    assert _log_width(given, "energy_j") < _log_width(unknown, "energy_j")
    assert _log_width(given) >= load_intervals().host
    calibrate_host(_measured(tmp_path, 15.0, 40.0, "eager"), tmp_path / "out")
    with using(tmp_path / "out"):
        fitted = asked()
    assert fitted.provenance["host"] == "measured"
    assert _log_width(fitted) == pytest.approx(_log_width(given), rel=0.1)

    def busy(**host):
        return jc.predict("gpt2", "h100", batch=256, prompt_tokens=1024, launch_mode="cuda_graph", **host)

    assert busy().bound_by != "host"
    assert _log_width(busy(host_us_per_launch=0.5)) == pytest.approx(_log_width(busy()))


def test_hosts_are_known_best_where_they_were_measured():
    known = Intervals(host=0.1, any_host=0.2)
    assert [known.waiting(name) for name in ("measured", "fitted", "transferred", "spec sheet")] == [0.1, 0.2, 0.4, 0.4]
    assert Intervals(host=0.3, any_host=0.2).waiting("fitted") == 0.3  # never known better than where it was measured
