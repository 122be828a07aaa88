"""Sweeps over training: each point as `train` answers it, and what stands out."""

from __future__ import annotations

import json
import random
import re

import numpy as np
import pytest

import joulecast as jc
from joulecast.cli import main
from joulecast.errors import InputError, JoulecastError, UnknownNameError
from joulecast.gpus.names import DATA
from joulecast.scenarios import footprint
from joulecast.scenarios.sweep.training import BOUND_WORDS, elasticities_of_training, training

ASKED = {
    "gpus": 16, "tp": [1, 2], "pp": [1, 2, 3], "zero": [0, 3], "checkpointing": ["none", "full"], "micro_batch": [1, 4],
    "precision": "bf16", "global_batch": 128, "sequence_tokens": 512, "tokens": 1e9, "clock_mhz": [1000, 1410],
    "power_limit_w": [None, 250],
}  # fmt: skip


@pytest.fixture(scope="module")
def found():
    return jc.sweep_training("gpt2-xl", "a100", **ASKED)


def test_points_are_what_train_answers(found):
    rows = found.columns.rows()
    names = [name for name in ASKED if name not in ("clock_mhz", "power_limit_w")]
    for row in random.Random(3).sample(rows, 25):
        asked = {name: row[name] for name in names}
        asked |= {"clock_mhz": row["clock_asked_mhz"], "power_limit_w": row["power_limit_w"]}
        if not row["feasible"]:
            if row["clock_asked_mhz"] is not None:
                continue
            with pytest.raises(JoulecastError):
                jc.train("gpt2-xl", row["gpu"], **{k: v for k, v in asked.items() if v is not None})
            continue
        p = jc.train("gpt2-xl", row["gpu"], **asked)
        assert row["time_s"] == pytest.approx(p.run_time_s, rel=1e-12)
        assert row["energy_j"] == pytest.approx(p.run_energy_j, rel=1e-12)
        assert row["bound_by"] == p.bound_by
        assert row["memory_needed_gb"] == pytest.approx(p.memory.needed_gb)


def test_layouts_that_do_not_divide_are_points_with_a_reason(found):
    # 16 GPUs do not divide by three stages
    stages = np.asarray(found.columns["pp"])
    feasible = np.asarray(found.columns["feasible"])
    assert not feasible[stages == 3].any()
    assert feasible[stages == 1].any()
    assert any("do not divide" in reason for reason in found.reasons)
    assert sum(found.reasons.values()) == (~feasible).sum()


def test_a_deadline_takes_the_fewest_joules_that_keep_it(found):
    fastest = found.best("time")
    deadline = 1.2 * fastest["time_s"]
    kept = jc.sweep_training("gpt2-xl", "a100", max_time_s=deadline, **ASKED).best("energy")
    rows = [row for row in found.feasible.rows() if row["time_s"] <= deadline]
    assert kept["energy_j"] == min(row["energy_j"] for row in rows)
    assert kept["time_s"] <= deadline
    assert kept["energy_j"] <= fastest["energy_j"]


def test_processes_and_a_stopped_sweep_give_the_same(found, tmp_path):
    evaluator = training("gpt2-xl", gpu="a100", **ASKED)
    half = evaluator.evaluate(17, 60)
    whole = evaluator.evaluate(0, len(evaluator.space))
    for name in half.columns:
        if name != "reason":
            assert np.array_equal(half.columns[name], whole.columns[name][17:60], equal_nan=True)
    again = jc.sweep_training("gpt2-xl", "a100", resume=tmp_path / "kept", **ASKED)
    kept = jc.sweep_training("gpt2-xl", "a100", resume=tmp_path / "kept", **ASKED)
    assert np.array_equal(again.columns["energy_j"], kept.columns["energy_j"], equal_nan=True)
    with pytest.raises(InputError):
        jc.sweep_training("gpt2-xl", "a100", resume=tmp_path / "kept", **{**ASKED, "tp": 1})


def test_every_bound_has_a_word(found):
    assert set(np.asarray(found.feasible["bound_by"]).tolist()) <= set(BOUND_WORDS)


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        ({"zeroo": 1}, UnknownNameError),
        ({"precision": ["bf16", "bf17"]}, UnknownNameError),
        ({"tp": []}, InputError),
        ({"max_cost": 3.0}, InputError),
        ({"optimizer": "adamm"}, UnknownNameError),
        ({"changes": {"sm_cout": 100}}, UnknownNameError),
        ({"changes": ["sm_count"]}, InputError),
    ],
)
def test_what_no_point_could_use_is_refused(asked, error):
    with pytest.raises(error):
        jc.sweep_training("gpt2", "a100", sequence_tokens=128, **asked)


def test_what_if_gpus_and_even_steps_are_what_train_answers():
    changes = {"dram_gb_s": [1500.0, 2500.0], "sm_count": 100}
    found = jc.sweep_training("gpt2", ["a100", "h100"], changes=changes, clock_mhz="all", sequence_tokens=256)
    rows = found.columns.rows()
    assert len(rows) == 2 * 2 * 20
    for row in (rows[0], rows[25], rows[-1]):
        fields = {"dram_gb_s": row["set.dram_gb_s"], "sm_count": 100}
        p = jc.train("gpt2", row["gpu"], changes=fields, clock_mhz=row["clock_asked_mhz"], sequence_tokens=256)
        assert row["step_energy_j"] == pytest.approx(p.step_energy_j, rel=1e-12)
    for name in ("a100", "h100"):
        gpu = jc.load_gpu(name)
        mine = [row["clock_asked_mhz"] for row in rows if row["gpu"] == gpu.name]
        assert (min(mine), max(mine)) == (gpu.clock_min_mhz, gpu.clock_max_mhz)


def test_elasticities_of_training_follow_what_bounds_the_step():
    job = {"gpus": 16, "zero": 3, "sequence_tokens": 256}
    bound = training("gpt2-xl", gpu="h100", node_link_gb_s=0.5, **job)
    slow = {one.field: one for one in elasticities_of_training(bound, 0)}
    # a network of half a GB/s is all that the step waits for: its time goes with 1 / rate
    assert slow["node_link_gb_s"].time == pytest.approx(-1, abs=0.12)
    assert abs(slow["clock_mhz"].time) < 0.1
    alone = {
        one.field: one for one in elasticities_of_training(training("gpt2-xl", gpu="h100", sequence_tokens=256), 0)
    }
    assert "node_link_gb_s" not in alone
    assert alone["nvlink_gb_s"].time == 0
    for one in (*slow.values(), *alone.values()):
        assert one.time <= 1e-6, one.field
        assert one.energy == pytest.approx(one.time + one.power, abs=2e-3)  # energy is power times time


def test_money_and_carbon_of_points_that_fit_beside_points_that_do_not():
    site = footprint.site_of(price=0.2, carbon=100.0)
    asked = {"gpus": 8, "micro_batch": [1, 4096], "sequence_tokens": 256, "steps": 100, "site": site}
    rows = jc.sweep_training("gpt2-xl", "a100", **asked).columns.rows()
    assert [row["feasible"] for row in rows] == [True, False]
    assert rows[0]["cost"] == pytest.approx(0.2 * rows[0]["energy_j"] / 3.6e6)
    assert rows[0]["carbon_g_co2e"] == pytest.approx(100.0 * rows[0]["energy_j"] / 3.6e6)
    assert rows[1]["cost"] is None


COMMAND = ["sweep", "gpt2", "--train", "--gpu", "a100", "--with", "sequence_tokens=256", "--with", "micro_batch=1,4"]


def test_the_command_line_tells_what_stands_out(capsys, tmp_path):
    table = tmp_path / "points.csv"
    assert main([*COMMAND, "--with", "precision=bf16,fp32", "--json", "--output", str(table)]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["points"] == 4
    assert len(table.read_text().splitlines()) == 5
    assert main([*COMMAND, "--clock", "900:1410:170"]) == 0
    page = capsys.readouterr().out
    assert max(map(len, page.splitlines())) <= 80
    assert "micro-batch 4" in page
    assert main([*COMMAND, "--set", "sm_count=100,108", "--clock", "all", "--sensitivity"]) == 0
    page = capsys.readouterr().out
    assert max(map(len, page.splitlines())) <= 80
    assert "1 % more" in page


@pytest.mark.parametrize(
    "wrong",
    [
        ["--with", "precision"],
        ["--with", "nothing=1"],
        ["--batch", "4"],
        ["--set", "nothing=1"],
        ["--set", "sm_count"],
        ["--tp", "2", "--with", "tp=2"],
    ],
)
def test_wrong_flags_are_one_line(capsys, wrong):
    assert main([*COMMAND, *wrong]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (["--max-time", "5 days"], "5d"),
        (["--max-time", "0h"], "above zero"),
        (["--max-time", "5d", "--finish-by", "2026-12-04T17:00"], "give one"),
        (["--finish-by", "friday"], "2026-12-04T17:00"),
        (["--finish-by", "2020-01-01"], "after the start"),
        (["--finish-by", "2026-12-04T17:00Z", "--start", "2026-12-01"], "time zone"),
    ],
)
def test_deadlines_that_can_not_be_are_one_line(capsys, wrong, told):
    assert main([*COMMAND, "--with", "steps=100", *wrong]) == 2
    line = capsys.readouterr().err.strip()
    assert len(line.splitlines()) == 1
    assert told in line or "36h" in line


def test_a_moment_to_finish_by_counts_from_the_start(capsys):
    from joulecast.cli.sweep_options import longest

    assert longest(None, "2026-12-04T17:00", "2026-12-01T05:00") == 3.5 * 86400
    assert longest("36h", None, None) == longest("1.5d", None, None) == 36 * 3600
    assert longest("250 ms", None, None) == 0.25
    run = [*COMMAND, "--with", "steps=1000", "--start", "2026-12-01", "--json"]
    assert main([*run, "--finish-by", "2026-12-04"]) == 0
    assert json.loads(capsys.readouterr().out)["feasible"] == 2
    assert main([*run, "--finish-by", "2026-12-01T00:00:01"]) == 2


def test_options_of_training_need_the_flag(capsys):
    assert main(["sweep", "gpt2", "--gpu", "a100", "--with", "zero=1"]) == 2
    assert "--train" in capsys.readouterr().err


def test_a_gpu_described_in_a_file_is_swept_as_train_predicts_it(tmp_path):
    described = (DATA / "a100-sxm-80gb.toml").read_text("utf-8")
    mine = tmp_path / "mine.toml"
    unnamed = re.sub(r"^(aliases|shorthand) = \[[^]]*\]\n", "", described, flags=re.M)
    mine.write_text(unnamed.replace("A100-SXM-80GB", "Mine"))
    swept = jc.sweep_training("gpt2", str(mine), micro_batch=[1, 2], sequence_tokens=128)
    assert swept.columns["step_time_s"].tolist() == [
        jc.train("gpt2", str(mine), micro_batch=size, sequence_tokens=128).step_time_s for size in (1, 2)
    ]


def test_a_list_is_one_value_and_a_list_of_lists_several():
    asked = {"gpus": 2, "pp": 2, "global_batch": 8, "sequence_tokens": 128}
    splits = [[8, 4], [6, 6]]
    swept = jc.sweep_training("gpt2", "a100", stage_layers=splits, **asked).columns["step_time_s"]
    assert swept.tolist() == [jc.train("gpt2", "a100", stage_layers=one, **asked).step_time_s for one in splits]
    alone = jc.sweep_training("gpt2", "a100", stage_layers=splits[0], **asked)
    assert alone.columns["step_time_s"].tolist() == [swept[0]]
