"""Clocks by stage of a pipeline: slack costs no time, and never more energy than one clock for all."""

from __future__ import annotations

import json

import pytest

import joulecast as jc
from joulecast.cli import main
from joulecast.coefficients.training import Scales
from joulecast.coefficients.transfer import power_coefficients
from joulecast.errors import InputError
from joulecast.physics.power import spinning_power_w

JOB = {"micro_batch": 4, "sequence_tokens": 512, "precision": "bf16", "gpus": 4, "pp": 4, "accumulate": 32}


@pytest.fixture(scope="module")
def plans():
    return jc.stage_clocks("gpt2-xl", "a100", **JOB)


def test_stages_of_one_clock_take_the_time_of_the_slowest_and_once_the_others(plans):
    fastest = plans.uniform[-1]
    each = [float(stage.time_s[-1]) for stage in plans.stages]
    assert fastest.time_s == pytest.approx(32 * max(each) + sum(each) - max(each))


def test_stages_take_the_micro_batches_of_a_step_the_sums_of_gradients_among_them():
    asked, at = {**JOB, "launch_mode": "cuda_graph"}, 20
    plans = jc.stage_clocks("gpt2-xl", "a100", **asked)
    step = jc.train("gpt2-xl", "a100", **asked, clock_mhz=float(plans.clocks_mhz[at]), scales=Scales())
    assert not step.throttled
    computed_s = 4 / 32 * (step.parts_s["forward"] + step.parts_s["backward"])
    assert sum(float(stage.time_s[at]) for stage in plans.stages) == pytest.approx(computed_s, rel=0.01)
    # what a step has beside: the update, and activations that are sent
    assert plans.uniform[at].time_s == pytest.approx(step.step_time_s - step.parts_s["optimizer"], rel=0.03)
    assert plans.uniform[at].energy_j == pytest.approx(step.step_energy_j, rel=0.05)


def test_a_stage_that_waits_draws_what_spinning_takes_at_its_clock(plans):
    clock, gpu = float(plans.clocks_mhz[0]), jc.load_gpu("a100")
    waiting_w = float(spinning_power_w(clock, gpu, power_coefficients(gpu)))
    slowest = plans.uniform[0]
    worked_j = 32 * sum(float(stage.energy_j[0]) for stage in plans.stages)
    waited_s = sum(slowest.time_s - 32 * float(stage.time_s[0]) for stage in plans.stages)
    assert slowest.energy_j - worked_j == pytest.approx(waiting_w * waited_s)


def test_a_slower_clock_never_speeds_a_stage_up(plans):
    for stage in plans.stages:
        assert all(a >= b for a, b in zip(stage.time_s, stage.time_s[1:], strict=False))


def test_the_slack_of_short_stages_is_turned_into_energy(plans):
    # the last stage holds the vocabulary head too: the others wait for it, and may run slower for nothing
    each = [float(stage.time_s[-1]) for stage in plans.stages]
    assert each[-1] == max(each)
    first = plans.planned[0]
    assert first.clock_mhz[-1] == max(plans.clocks_mhz)
    assert min(first.clock_mhz) < max(plans.clocks_mhz)
    # while it fills and drains, the slower stages are passed through once: less than a hundredth of 32 micro-batches
    assert first.time_s < 1.03 * plans.uniform[-1].time_s
    assert first.energy_j < plans.uniform[-1].energy_j
    assert 0 < plans.saving(0.03) < 0.5


def test_plans_do_at_least_as_well_as_one_clock_for_all(plans):
    for uniform in plans.uniform:
        within = [p.energy_j for p in plans.planned if p.time_s <= uniform.time_s]
        if within:
            assert min(within) <= uniform.energy_j * 1.02


def test_stages_may_hold_different_numbers_of_layers():
    even = jc.stage_clocks("gpt2-xl", "a100", **JOB)
    fewer = jc.stage_clocks("gpt2-xl", "a100", stage_layers=[13, 13, 13, 9], **JOB)
    assert fewer.uniform[-1].time_s < even.uniform[-1].time_s


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"pp": 1, "gpus": 1}, "pipeline"),
        ({"stage_layers": [12, 12, 12]}, "3 numbers for pp=4"),
        ({"stage_layers": [48, 0, 0, 0]}, "at least 1"),
        ({"stage_layers": [12, 12, 12, 13]}, "add up to the 48 layers"),
        ({"gpus": 5, "pp": 5}, "10,10,10,9,9"),
    ],
)
def test_what_is_no_pipeline_is_refused(asked, says):
    with pytest.raises(InputError, match=says):
        jc.stage_clocks("gpt2-xl", "a100", **{**JOB, **asked})


def test_the_command_line_plans_them(capsys):
    asked = ["train", "gpt2-xl", "--gpu", "a100", "--gpus", "4", "--pp", "4", "--sequence", "512"]
    asked += ["--precision", "bf16", "--global-batch", "32", "--stage-clocks"]
    assert main([*asked, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["stage_clocks"]
    assert all(len(plan["clock_mhz"]) == 4 for plan in told)
    assert main(asked) == 0
    page = capsys.readouterr().out
    assert "clocks by stage" in page
    assert max(map(len, page.splitlines())) <= 80
    assert main([*asked[:-3], "--stage-layers", "12,12,12,12", "--pp", "1"]) == 2
