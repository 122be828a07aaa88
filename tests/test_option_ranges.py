"""Numbers, lists and spans as flags take them."""

from __future__ import annotations

from dataclasses import fields
from inspect import signature
from typing import Annotated

import pytest
from hypothesis import given
from hypothesis import strategies as st

import joulecast as jc
from joulecast.cli import flags, run_flags, train_flags
from joulecast.cli.flags import option
from joulecast.cli.options import MOST_VALUES, numbers
from joulecast.errors import InputError
from joulecast.lowering.execution import Execution
from joulecast.scenarios.training.question import LAYOUT, MODEL, RECIPE
from joulecast.scenarios.training.train import train
from joulecast.workloads.request import Request


def test_a_span_holds_its_last_value_where_a_step_meets_it():
    clocks = numbers("--clock", "510:1410:90", "MHz")
    assert clocks is not None
    assert clocks == tuple(float(510 + 90 * i) for i in range(11))
    assert numbers("--clock", "510:1400:90", "MHz") == clocks[:-1]


def test_lists_keep_their_order_and_hold_each_value_once():
    assert numbers("--clock", "1200, 900,900:1200:300", "MHz") == (1200.0, 900.0)
    assert numbers("--clock", "900", "MHz") == (900.0,)
    assert numbers("--clock", None, "MHz") is None


@given(st.integers(1, 1000), st.integers(1, 50), st.integers(0, 200))
def test_steps_of_tenths_do_not_drift(first, step, count):
    text = f"{first / 10}:{(first + step * count) / 10}:{step / 10}"
    assert numbers("--power-limit", text, "W") == tuple(round((first + step * i) / 10, 9) for i in range(count + 1))


@pytest.mark.parametrize(
    "text",
    ["", "fast", "-900", "900:", "900:1200", "1200:900:100", "900:1200:0", "1e3", "nan", "0", "900,,1200", "1:2:3:4"],
)
def test_anything_else_is_refused_in_one_line(text):
    with pytest.raises(InputError, match="--clock takes") as error:
        numbers("--clock", text, "MHz")
    assert "\n" not in str(error.value)


def test_too_many_values_are_refused_before_they_are_made():
    with pytest.raises(InputError, match=f"more than {MOST_VALUES:,}"):
        numbers("--clock", "1:1000000000:0.001", "MHz")


def test_shared_flags_are_named_by_what_the_library_calls_them():
    of_execution = {one.name for one in fields(Execution)}
    assert set(vars(run_flags.Ways())) == of_execution
    assert {*vars(run_flags.Sizes()), *vars(run_flags.Formats())} < {one.name for one in fields(Request)}
    assert set(vars(run_flags.States())) < set(signature(jc.predict).parameters)
    groups = (train_flags.Batches, train_flags.Length, train_flags.Training, train_flags.Spread)
    known = {*MODEL, *RECIPE, *LAYOUT, *signature(train).parameters}
    assert {name for group in groups for name in vars(group())} <= known


def test_a_group_stands_in_a_verb_as_its_flags_and_is_given_whole():
    asked = []

    def verb(*, first: Annotated[str, option("--first", "N", "One.")], sizes: run_flags.Sizes, last: bool = False):
        asked.append((first, flags.read(sizes), last))

    spread = flags.spread(verb)
    assert list(signature(spread).parameters) == ["first", *vars(run_flags.Sizes()), "last"]
    nothing = dict.fromkeys(vars(run_flags.Sizes()))
    spread(first="x", last=True, **{**nothing, "batch": "8"})
    assert asked == [("x", {**nothing, "batch": 8}, True)]
    with pytest.raises(InputError, match="--batch takes a whole number of 1 or more"):
        flags.read(run_flags.Sizes(batch="0"))
    assert flags.read_several(run_flags.Sizes(batch="1,8"))["batch"] == [1, 8]
