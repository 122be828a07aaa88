"""What bounds a run and what would save: each change asked for anew, none told that does not hold."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

import joulecast as jc
from joulecast.cli import main
from joulecast.errors import InfeasibleError, InputError, UnknownNameError
from joulecast.scenarios.explain import Change, Outcome, explain

LLAMA = {"batch": 4, "prompt_tokens": 512, "generate_tokens": 32}


@pytest.fixture(scope="module")
def inference():
    return jc.explain("meta-llama/Llama-3.1-8B", "h100", **LLAMA)


def test_each_change_gives_what_predict_gives_with_it(inference):
    base = jc.predict("meta-llama/Llama-3.1-8B", "h100", **LLAMA)
    assert inference.base.energy_j == pytest.approx(base.energy_j)
    assert inference.advice
    for one in inference.advice:
        p = jc.predict("meta-llama/Llama-3.1-8B", "h100", **{**LLAMA, **one.change.options})
        assert one.energy_ratio == pytest.approx(p.energy_per_token_j / base.energy_per_token_j)
        assert one.time_ratio == pytest.approx(base.tokens_per_s / p.tokens_per_s)


def test_what_is_told_saves_within_the_slack_and_cheapest_stands_first(inference):
    assert all(one.time_ratio <= 1.05 and one.energy_ratio <= 0.99 for one in inference.advice)
    efforts = [one.change.effort for one in inference.advice]
    assert efforts == sorted(efforts)
    assert len({one.change.lever for one in inference.advice}) == len(inference.advice)
    assert sum(inference.base.bound_by.values()) == pytest.approx(1)


def test_a_host_bound_decode_is_told_to_use_graphs(inference):
    assert any("graph" in one.change.says for one in inference.advice)


def test_training_is_told_what_checkpointing_costs_where_memory_is_there():
    job = {"precision": "bf16", "checkpointing": "full", "sequence_tokens": 512, "micro_batch": 1}
    found = jc.explain("gpt2", "a100", training=True, **job)
    saved = next(one for one in found.advice if one.change.lever == "checkpointing")
    # a third of the arithmetic of a step with checkpointing is done a second time, a quarter of the step
    assert 0.65 < saved.time_ratio < 0.9
    assert saved.change.options == {"checkpointing": "none"}


def test_changes_that_do_not_fit_are_named():
    def ask(new):
        if new:
            raise InfeasibleError("does not fit by 3 GB")
        return Outcome(1.0, 100.0, 10.0, {"GPU": 1.0})

    found = explain(ask, [Change("batch", "batch 2", {"batch": 2}, 2)])
    assert found.refused == {"batch 2": "does not fit by 3 GB"}
    assert found.advice == ()


@given(
    ratios=st.lists(st.tuples(st.floats(0.2, 3.0), st.floats(0.2, 3.0), st.integers(0, 3)), min_size=1, max_size=8),
    slack=st.floats(0, 1),
)
def test_nothing_is_told_that_loses(ratios, slack):
    changes = [Change(str(i), str(i), {"at": i}, effort) for i, (_, _, effort) in enumerate(ratios)]

    def ask(new):
        time, energy, _ = ratios[new["at"]] if new else (1.0, 1.0, 0)
        return Outcome(time, energy, 1.0, {"GPU": 1.0})

    told = {one.change.says for one in explain(ask, changes, slack=slack).advice}
    holds = {str(i) for i, (t, e, _) in enumerate(ratios) if t <= 1 + slack and e <= 0.99}
    assert told == holds


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        ({"slack": -1}, InputError),
        ({"slack": float("nan")}, InputError),
        ({"training": True, "zeroo": 3}, UnknownNameError),
        ({"training": True, "gpus": 6, "tp": 4}, InputError),
    ],
)
def test_a_question_that_makes_no_sense_is_refused(asked, error):
    with pytest.raises(error):
        jc.explain("gpt2", "a100", **asked)


def test_the_command_line_tells_the_same(capsys):
    asked = ["explain", "gpt2", "--gpu", "a100", "--batch", "2", "--prompt", "128", "--generate", "8"]
    assert main([*asked, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    found = jc.explain("gpt2", "a100", batch=2, prompt_tokens=128, generate_tokens=8)
    assert [one["change"] for one in told["changes"]] == [one.change.says for one in found.advice]
    assert main(asked) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


@pytest.mark.parametrize(
    "wrong",
    [
        ["--with", "nothing_like_it=3"],
        ["--with", "gpus"],
        ["--slack", "-1"],
        ["--train", "--batch", "4"],
        ["--train", "--with", "precision=fp7"],
    ],
)
def test_wrong_flags_are_one_line(capsys, wrong):
    assert main(["explain", "gpt2", "--gpu", "a100", *wrong]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1
