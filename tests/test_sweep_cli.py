"""`joulecast sweep`: its page, its files, its charts, and one line for whatever is wrong."""

from __future__ import annotations

import json
import re

import numpy as np
import polars as pl
import pytest

import joulecast as jc
from command_line import run
from joulecast.cli.sweep_options import engines_and_runner, workers
from joulecast.errors import InputError
from joulecast.reports.columns import write_columns

ASKED = [
    "sweep",
    "bert-base-uncased",
    "--gpu",
    "a100,t4",
    "--batch",
    "1,8",
    "--prompt",
    "128",
    "--clock",
    "600:1500:300",
]


def test_the_page_tells_what_is_best_and_fits_80_columns(capsys):
    code, out, err = run(capsys, *ASKED, "--power-limit", "all", "--launch", "eager,cuda_graph", "--max-time", "0.1",
                         "--sensitivity", "--price", "0.3", "--front", "time,cost")  # fmt: skip
    assert (code, err) == (0, "")
    assert max(map(len, out.splitlines())) <= 80
    for words in ("352 points", "fastest", "fewest joules", "cheapest", "front: time against cost", "core clock",
                  "infeasible", "clock outside the range of A100-SXM-80GB: 210 to 1410 MHz"):  # fmt: skip
        assert words in out
    # each number that a table gives is explained below
    numbers = set(re.findall(r"^ {0,2}(\d+)  \d", out, re.MULTILINE))
    assert numbers <= set(re.findall(r"^ {2}(\d+) {2,}[A-Z]", out, re.MULTILINE))


def test_json_tells_the_same_as_the_library(capsys):
    code, out, _ = run(capsys, *ASKED, "--json", "--sensitivity")
    found = json.loads(out)
    assert (code, found["schema"]) == (0, "joulecast.sweep/1")
    sweep = jc.sweep(
        "bert-base-uncased", ["a100", "t4"], batch=[1, 8], prompt_tokens=128, clock_mhz=[600, 900, 1200, 1500]
    )
    assert (found["points"], found["feasible"]) == (16, int(sweep.columns["feasible"].sum()))
    assert found["infeasible"] == [{"reason": reason, "points": n} for reason, n in sweep.reasons.items()]
    best = {name: value for name, value in found["best"]["energy"].items() if name not in ("notes", "warnings")}
    assert best == pytest.approx(sweep.best("energy"))
    assert any("T4 has no bf16 arithmetic" in note for one in found["best"].values() for note in one["notes"])
    assert found["best"]["throughput"]["batch"] == 8
    # batches differ in their work, so that the front is of what a token takes
    assert found["front"]["objectives"] == ["throughput", "energy_per_token"]
    assert [row["batch"] for row in found["front"]["points"]] == sweep.front("throughput", "energy_per_token")[
        "batch"
    ].tolist()
    assert found["axes"]["clock_mhz"] == [600, 900, 1200, 1500]
    assert {one["field"] for one in found["sensitivity"]["time"]} >= {"dram_gb_s", "sm_count", "clock_mhz"}


@pytest.mark.parametrize("ending", ["parquet", "csv", "json"])
def test_files_hold_all_points(capsys, tmp_path, ending):
    path = tmp_path / f"points.{ending}"
    code, _, err = run(capsys, *ASKED, "--output", str(path))
    assert (code, err) == (0, "")
    if ending == "parquet":
        found = pl.read_parquet(path)
    elif ending == "csv":
        found = pl.read_csv(path)
    else:
        found = pl.DataFrame(json.loads(path.read_text())["points"], infer_schema_length=None)
    sweep = jc.sweep(
        "bert-base-uncased", ["a100", "t4"], batch=[1, 8], prompt_tokens=128, clock_mhz=[600, 900, 1200, 1500]
    )
    expected = sweep.to_polars()
    assert found.columns == expected.columns
    assert found.height == 16
    assert found["time_s"].to_list() == pytest.approx([None if np.isnan(t) else t for t in expected["time_s"]])
    assert found["feasible"].to_list() == expected["feasible"].to_list()
    assert [text or "" for text in found["reason"]] == expected["reason"].to_list()
    assert [path.name for path in tmp_path.iterdir()] == [path.name]


def test_pieces_of_a_file_are_taken_one_at_a_time(tmp_path):
    held = []

    def pieces():
        for start in range(5):
            held.append(start)
            yield {"n": np.arange(start * 10, start * 10 + 10), "word": np.array([None] * 10, dtype=object)}

    for ending in ("parquet", "csv", "json"):
        write_columns(tmp_path / f"x.{ending}", pieces())
    assert held == list(range(5)) * 3
    assert pl.read_parquet(tmp_path / "x.parquet")["n"].to_list() == list(range(50))
    assert pl.read_csv(tmp_path / "x.csv")["n"].to_list() == list(range(50))
    assert [row["n"] for row in json.loads((tmp_path / "x.json").read_text())["points"]] == list(range(50))


def test_a_file_is_whole_or_not_there(tmp_path):
    def pieces():
        yield {"n": np.arange(3)}
        raise InputError("stopped")

    for ending in ("parquet", "csv", "json"):
        with pytest.raises(InputError, match="stopped"):
            write_columns(tmp_path / f"x.{ending}", pieces())
    assert not list(tmp_path.iterdir())


def test_csv_streams_to_the_screen(capsys):
    code, out, _ = run(capsys, *ASKED, "--csv")
    assert code == 0
    assert len(out.splitlines()) == 17
    assert out.startswith("gpu,")


@pytest.mark.parametrize(("ending", "head"), [("svg", b"<svg"), ("png", b"\x89PNG"), ("html", b"<!DOCTYPE html>")])
def test_charts_are_drawn(capsys, tmp_path, ending, head):
    path = tmp_path / f"front.{ending}"
    code, _, err = run(capsys, *ASKED, "--plot", str(path))
    assert (code, err) == (0, "")
    data = path.read_bytes()
    assert data.startswith(head)
    if ending == "svg":
        for words in (b"tokens a second [1/s]", b"energy a token [", b"core clock asked for [MHz]", b"least J/token"):
            assert words in data


def test_a_chart_without_clocks_or_with_one_point_is_drawn_too(capsys, tmp_path):
    path = tmp_path / "front.svg"
    for flags in (["--set", "dram_gb_s=1000:3000:500"], []):
        code, _, _ = run(
            capsys, "sweep", "bert-base-uncased", "--gpu", "a100", "--prompt", "64", *flags, "--plot", str(path)
        )
        assert code == 0
        assert b"energy [" in path.read_bytes()


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--clock", "fast"], "--clock takes a number above zero in MHz"),
        (["--clock", "1500:600:100"], "--clock takes first:last:step with a last of at least the first"),
        (["--batch", "1.5"], "--batch takes whole numbers"),
        (["--batch", "1:100000:1"], "--batch '1:100000:1' makes more than 10,000 values"),
        (["--batch", "1:10000:1", "--clock", "210:1410:1"], "are 12,010,000 points, more than 10,000,000"),
        (["--set", "sm_count"], "--set takes field=value"),
        (["--set", "sms=4"], "unknown GPU field 'sms'"),
        (["--front", "time"], "--front takes two objectives"),
        (["--front", "time,speed"], "unknown objective 'speed'"),
        (["--front", "time,carbon"], "carbon needs a carbon intensity or a region"),
        (["--max-carbon", "3"], "a limit on carbon needs a carbon intensity or region"),
        (["--max-time", "0"], "--max-time takes a time above zero"),
        (["--max-time", "1e-9"], "--max-time takes a time above zero"),
        (["--max-time", "0.000001"], "no point is feasible: time above 1e-06 s (1)"),
        (["--clock", "5000"], "no point is feasible: clock outside the range of A100-SXM-80GB"),
        (["--output", "points.xlsx"], "end it in .parquet, .csv or .json"),
        (["--output", "/nowhere/points.csv"], "its folder does not exist"),
        (["--plot", "front.pdf"], "end it in .svg, .png or .html"),
        (["--engine", "ray", "--run-on", "local"], "contradict each other"),
        (["--ray-address", "x"], "--ray-address goes with --run-on ray"),
        (["--workers", "0"], "--workers takes a whole number of 1 or more"),
        (["--json", "--csv"], "exclude each other"),
        (["--launch", "fast"], "unknown launch mode 'fast'"),
        (["--resume", "/dev/null"], "can't keep chunks in /dev/null"),
    ],
)
def test_what_can_not_be_is_one_line_and_code_2(capsys, flags, told):
    code, out, err = run(capsys, "sweep", "bert-base-uncased", "--gpu", "a100", "--prompt", "32", *flags)
    assert code == 2
    assert out == ""
    assert told in err
    assert err.count("\n") == 1


def test_points_stand_in_the_file_even_where_none_is_feasible(capsys, tmp_path):
    path = tmp_path / "points.csv"
    code, _, err = run(capsys, *ASKED, "--max-power", "1", "--output", str(path))
    assert code == 2
    assert "no point is feasible" in err
    assert pl.read_csv(path)["reason"].str.starts_with("power above 1 W").sum() == 14


def test_ray_among_the_engines_is_where_it_runs():
    assert engines_and_runner(["ray"], None, None) == (None, "ray")
    assert engines_and_runner(["trtllm", "ray"], None, "auto") == (["trtllm"], "ray")
    assert engines_and_runner(["trtllm"], None, None) == (["trtllm"], "local")
    assert workers(None, 100) == 1
    assert workers("3", 100) == 3


def test_a_sweep_goes_on_from_its_folder(capsys, tmp_path):
    work, first, second = tmp_path / "work", tmp_path / "a.csv", tmp_path / "b.csv"
    assert run(capsys, *ASKED, "--resume", str(work), "--output", str(first))[0] == 0
    kept = {path: path.stat().st_mtime_ns for path in work.iterdir()}
    assert run(capsys, *ASKED, "--resume", str(work), "--output", str(second))[0] == 0
    assert {path: path.stat().st_mtime_ns for path in work.iterdir()} == kept
    assert first.read_bytes() == second.read_bytes()
    code, _, err = run(capsys, *ASKED, "--resume", str(work), "--power-limit", "100")
    assert (code, "holds chunks of another sweep" in err) == (2, True)
    # what points must keep to is asked of finished chunks too: no other question
    assert run(capsys, *ASKED, "--resume", str(work), "--max-time", "0.05")[0] == 0
