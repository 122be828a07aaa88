"""Odd files, odd names and odd terminals: one clear line, or an answer without a figure that means nothing."""

import csv
import json
import math
import os
import subprocess
import sys
import warnings
from dataclasses import replace

import numpy as np
import polars as pl
import pytest

import joulecast as jc
from joulecast.cli import main
from joulecast.cli.page import kernel_table
from joulecast.errors import InfeasibleError, InputError
from joulecast.reports.columns import write_columns
from joulecast.reports.sweep_plot import _apart
from joulecast.scenarios import inference
from joulecast.scenarios.summary import fastest, thriftiest
from joulecast.validation.read import _tables

GEMM = {"op": "gemm", "m": 8, "n": 4096, "k": 4096, "dtype": "bf16"}


def asked(capsys, *arguments):
    code = main([str(one) for one in arguments])
    out, err = capsys.readouterr()
    return code, out, err


@pytest.fixture
def listed(tmp_path):
    """Writes an operation list."""

    def write(document, name="ops.json"):
        path = tmp_path / name
        path.write_text(json.dumps(document), encoding="utf-8")
        return path

    return write


def test_a_workload_that_counts_no_tokens_has_no_figure_of_a_token(listed, capsys):
    path = listed([GEMM])
    p = jc.predict(path, "a100")
    assert math.isnan(p.tokens_per_s)
    assert math.isnan(p.energy_per_token_j)
    assert math.isnan(p.phases[0].tokens_per_s)
    assert math.isnan(p.phases[0].energy_per_token_j)
    code, out, _ = asked(capsys, "predict", path, "--gpu", "a100", "--price", "1")
    assert code == 0
    assert "per M" not in out
    assert "a million" not in out
    row = next(line for line in out.splitlines() if line.startswith("forward"))
    assert row.split()[-2:] == ["-", "-"]
    code, out, _ = asked(capsys, "predict", path, "--gpu", "a100", "--json")
    assert json.loads(out)["predictions"][0]["total"]["energy_per_token_j"] is None
    code, out, _ = asked(capsys, "predict", path, "--gpu", "a100", "--csv")
    assert next(csv.DictReader(out.splitlines()))["tokens_per_s"] == ""
    counted = jc.predict(listed([{**GEMM, "tokens": 8}]), "a100")
    assert counted.energy_per_token_j == pytest.approx(counted.energy_j / 8)


def test_what_counts_no_tokens_is_still_ranked_by_its_energy(listed, capsys):
    path = listed([{**GEMM, "m": 8192}])
    runs = [jc.predict(path, "a100", clock_mhz=clock) for clock in (900, 1410)]
    assert fastest(runs) is min(runs, key=lambda one: one.time_s)
    assert thriftiest(runs) is min(runs, key=lambda one: one.energy_j)
    assert asked(capsys, "explain", path, "--gpu", "a100")[0] == 0
    code, out, _ = asked(capsys, "predict", path, "--gpu", "a100", "--clock", "900,1410")
    assert code == 0
    assert "fewest J" in out


def test_a_sweep_of_what_counts_no_tokens_ranks_none_by_them(listed, capsys, tmp_path):
    path = listed([GEMM])
    sweep = jc.sweep(path, ["a100"], clock_mhz=[900, 1410])
    with pytest.raises(InfeasibleError, match="counts no tokens"):
        sweep.best("energy_per_token")
    assert sweep.best("energy")["clock_mhz"] == 900
    code, out, _ = asked(capsys, "sweep", path, "--gpu", "a100", "--clock", "900,1410", "--front", "throughput,energy")
    assert code == 0
    assert "0 points" in out
    plot = tmp_path / "front.svg"
    flags = ["--gpu", "a100", "--clock", "900,1410", "--front", "throughput,energy", "--plot", plot]
    code, _, err = asked(capsys, "sweep", path, *flags)
    assert (code, plot.exists()) == (2, False)
    assert "counts no tokens" in err
    assert "J/token," not in out
    none = jc.sweep(path, ["a100"], clock_mhz=[900, 1410], min_tokens_per_s=1)
    assert not none.columns["feasible"].any()


@pytest.mark.parametrize("name", ["\x1b[31mred", "a\nb", "\u202eabc", "nul\0"])
def test_a_name_from_a_file_does_not_steer_the_terminal(listed, capsys, name):
    code, out, _ = asked(
        capsys, "predict", listed({"name": name, "operations": [{**GEMM, "layer": name}]}), "--gpu", "a100"
    )
    assert code == 0
    assert all(letter.isprintable() for line in out.split("\n") for letter in line)
    assert "\N{REPLACEMENT CHARACTER}" in out.split("\n")[0]


def test_the_module_is_the_command():
    told = subprocess.run([sys.executable, "-m", "joulecast", "--version"], capture_output=True, text=True, check=True,
                          env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})  # fmt: skip
    assert told.stdout == f"joulecast {jc.__version__}\n"


def ran(*arguments, **how):
    """The command line in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **how.pop("environment", {})}
    command = [sys.executable, "-m", "joulecast", *map(str, arguments)]
    return subprocess.run(command, env=environment, check=False, **{"stderr": subprocess.PIPE, **how})


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no full device here")  # noqa: PTH110
@pytest.mark.parametrize("form", [(), ("--json",), ("--csv",)])
def test_a_full_disk_behind_the_answer_is_one_line(form):
    with open("/dev/full", "w") as full:  # noqa: PTH123
        done = ran("gpus", *form, stdout=full)
    assert done.returncode == 2
    assert done.stderr.decode() == "joulecast: can't write the answer: No space left on device\n"


@pytest.mark.parametrize("form", ["--json", "--csv"])
def test_machines_get_utf_8_whatever_the_terminal_speaks(listed, form):
    path = listed({"name": "模型", "operations": [GEMM]}, "模型.json")
    told = [
        ran("predict", path, "--gpu", "a100", form, stdout=subprocess.PIPE, environment={"PYTHONIOENCODING": speaks})
        for speaks in ("ascii", "utf-8")
    ]
    assert [one.returncode for one in told] == [0, 0]
    assert told[0].stdout == told[1].stdout
    assert "模型" in told[0].stdout.decode("utf-8")


MEASURED = "gpu,op,m,n,k,dtype,latency_ms,power_w,power_limit_w,power_quality\n"


@pytest.mark.parametrize(
    ("cells", "told"),
    [
        ("0.02 ms,400,700,A", "column latency_ms must hold numbers, row 0 has '0.02 ms'"),
        ("0.02,400 W,700,A", "column power_w must hold numbers, row 0 has '400 W'"),
        ("0.02,400,700 W,A", "column power_limit_w must hold numbers, row 0 has '700 W'"),
        ("0.02,400,700,Z", "power_quality must be A, B, C or D, row 0 has 'Z'"),
        ("true,400,700,A", "column latency_ms must hold numbers, it holds Boolean"),
    ],
)
@pytest.mark.parametrize("verb", [("audit",), ("validate", "--data")])
def test_readings_that_are_no_numbers_are_told(tmp_path, capsys, cells, told, verb):
    path = tmp_path / "table.csv"
    path.write_text(f"{MEASURED}h100-sxm,gemm,4096,4096,4096,bf16,{cells}\n")
    code, out, err = asked(capsys, *verb, path)
    assert (code, out) == (2, "")
    assert told in err
    assert err.count("\n") == 1


def test_a_power_that_was_not_read_is_no_word(tmp_path, capsys):
    path = tmp_path / "table.csv"
    rows = [f"h100-sxm,gemm,4096,4096,{k},bf16,0.3,{power},700,A" for k, power in ((4096, 400), (4160, "[N/A]"))]
    path.write_text(MEASURED + "\n".join(rows) + "\n")
    assert asked(capsys, "audit", path)[0] == 0


def test_a_time_beyond_all_bounds_is_flagged_and_no_fault(tmp_path, capsys):
    path = tmp_path / "table.csv"
    path.write_text(f"{MEASURED}h100-sxm,gemm,4096,4096,4096,bf16,1e-308,400,700,A\n")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        code, _, err = asked(capsys, "audit", path)
    assert (code, err) == (1, "")


@pytest.mark.parametrize("verb", [("audit",), ("validate", "--data"), ("calibrate",)])
@pytest.mark.parametrize("name", ["x" * 5000, "/dev/null"])
def test_what_is_no_table_is_told(capsys, verb, name):
    code, out, err = asked(capsys, *verb, name)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert "fault" not in err


@pytest.mark.parametrize("source", ["aiconfigurator/h100_sxm/gemm", "neusight/kernels_x", "e2e/vidur/dense_ops"])
@pytest.mark.parametrize("damage", ["junk", "columns"])
def test_a_damaged_table_of_the_data_folder_is_named(tmp_path, capsys, source, damage):
    path = tmp_path / f"{source}.parquet"
    path.parent.mkdir(parents=True)
    if damage == "junk":
        path.write_bytes(b"PAR1 junk")
    else:
        pl.DataFrame({"a": [1]}).write_parquet(path)
    code, out, err = asked(capsys, "validate", "--data", tmp_path)
    assert (code, out) == (2, "")
    assert path.name in err


def test_links_that_lead_nowhere_hide_no_table(tmp_path, capsys):
    (tmp_path / "lost.csv").symlink_to(tmp_path / "nowhere.csv")
    (tmp_path / "round").symlink_to(tmp_path)
    (tmp_path / "a.parquet").mkdir()
    (tmp_path / "table.csv").write_text(f"{MEASURED}h100-sxm,gemm,4096,4096,4096,bf16,0.3,400,700,A\n")
    assert asked(capsys, "audit", tmp_path)[0] == 0
    assert [one.name for one in _tables(tmp_path)] == ["table.csv"]


@pytest.mark.skipif(not os.path.exists("/dev/zero"), reason="no devices here")  # noqa: PTH110
def test_a_table_over_hours_is_a_file(tmp_path):
    """A device gives bytes without end, through a link too."""
    path = tmp_path / "table.csv"
    path.symlink_to("/dev/zero")
    with pytest.raises(InputError, match="not a regular file"):
        jc.footprint(3.6e6, time_s=3600, carbon=path)


def test_the_hour_that_autumn_gives_twice_needs_its_zone(tmp_path):
    path = tmp_path / "table.csv"
    rows = [
        ("2026-10-25T02:00", "+02:00", 100),
        ("2026-10-25T02:00", "+01:00", 200),
        ("2026-10-25T03:00", "+01:00", 300),
    ]
    path.write_text("time,g\n" + "".join(f"{moment},{value}\n" for moment, _, value in rows))
    with pytest.raises(InputError, match="give times with their zone"):
        jc.footprint(3.6e6, time_s=3600, carbon=path)
    path.write_text("time,g\n" + "".join(f"{moment}{zone},{value}\n" for moment, zone, value in rows))
    # two hours from the first 02:00: one at 100, one at 200
    assert jc.footprint(3.6e6, time_s=7200, carbon=path, start="2026-10-25T02:00+02:00").g_co2e_per_kwh == 150


def test_a_disk_that_fills_under_a_table_of_points_is_one_line(tmp_path, monkeypatch):
    """Polars tells of the disk in an error of its own."""

    def full(*_, **__):
        raise pl.exceptions.ComputeError("parquet: underlying IO error: No space left on device (os error 28)")

    monkeypatch.setattr(pl.DataFrame, "write_parquet", full)
    with pytest.raises(InputError, match="No space left on device"):
        write_columns(tmp_path / "x.parquet", [{"a": np.ones(3)}])
    assert not list(tmp_path.iterdir())


def test_an_optional_part_that_is_missing_is_told_wherever_it_is_imported(capsys, monkeypatch):
    def without(*_):
        raise ModuleNotFoundError("No module named 'scipy'", name="scipy.optimize")

    monkeypatch.setattr("joulecast.cli._run", without)
    assert asked(capsys, "gpus") == (
        2,
        "",
        "joulecast: this needs an optional part: pip install 'joulecast[calibrate]'\n",
    )


def test_the_launch_list_tells_operations_on_a_narrow_terminal():
    table = kernel_table(jc.predict("gpt2", "a100"))
    lines = ["".join(text for text, _ in line) for line in table.lines(80, cut=True)]
    assert max(map(len, lines)) <= 80
    assert any("context_attention" in line and "layers." in line for line in lines)


def test_words_of_low_points_of_a_plot_go_up_from_each_other():
    best = [{"y": 1.0, "label": "top"}, {"y": 0.02, "label": "low"}, {"y": 0.0, "label": "lowest"}]
    placed = {row["label"]: dy for row, dy in _apart(best, [1.0, 0.02, 0.0])}
    assert placed["lowest"] < 0
    assert placed["low"] <= placed["lowest"] - 12  # a line of words
    assert placed["top"] == placed["lowest"]


def test_what_comes_out_as_no_number_is_no_answer(capsys, monkeypatch):
    """Dashes with exit code 0 would pass for an answer."""
    right = inference.passes_of

    def broken(*given):
        passes = right(*given)
        priced = passes.priced
        times = replace(priced.times, scale=np.full_like(priced.times.scale, np.nan))
        return replace(passes, priced=replace(priced, times=times))

    monkeypatch.setattr(inference, "passes_of", broken)
    code, out, err = asked(capsys, "predict", "gpt2", "--gpu", "a100")
    assert (code, out) == (2, "")
    assert "gpt2 can't be priced on A100-SXM-80GB: " in err
    assert "gemm" in err
