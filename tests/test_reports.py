"""Figures as text, tables at a width, files for machines."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import stat

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulecast.errors import InputError
from joulecast.reports import files, tables, text
from joulecast.scenarios import summary
from joulecast.scenarios.prediction import MemoryNeed
from joulecast.writing import write_atomic
from predictions import around, llama


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0, "0"),
        (0.012345, "0.0123"),
        (0.9996, "1.00"),
        (9.996, "10.0"),
        (39_812, "39,800"),
        (999.6, "1,000"),
        (1.5e-9, "1.50e-9"),
        (-2.5, "-2.50"),
        (math.nan, "-"),
        (None, "-"),
        (12_345_678, "1.23e7"),
        (math.inf, "inf"),
    ],
)
def test_three_digits_tell_a_figure(value, shown):
    assert text.significant(value) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (1.23e-5, "12.3 µs"),
        (0.0123, "12.3 ms"),
        (0.9996, "1.00 s"),
        (90, "90.0 s"),
        (150, "2.50 min"),
        (7200, "2.00 h"),
        (3.6e6, "1,000 h"),
        (0, "0 µs"),
        (math.nan, "-"),
    ],
)
def test_a_time_takes_the_unit_that_reads_best(seconds, shown):
    assert text.duration(seconds) == shown


@pytest.mark.parametrize(
    ("joules", "shown"),
    [(2.5e-4, "250 µJ"), (0.25, "250 mJ"), (250, "250 J"), (2_500, "2.50 kJ"), (3.6e6, "1.00 kWh"), (9e9, "2.50 MWh")],
)
def test_an_energy_is_in_joules_up_to_a_kilowatt_hour(joules, shown):
    assert text.energy(joules) == shown


@pytest.mark.parametrize(("watts", "shown"), [(0.5, "500 mW"), (683.7, "684 W"), (5_600, "5.60 kW"), (2e6, "2.00 MW")])
def test_a_power(watts, shown):
    assert text.power(watts) == shown


def test_amounts_counts_and_shares():
    assert text.amount(2.4e12, "FLOP") == "2.40 TFLOP"
    assert text.amount(12, "FLOP") == "12.0 FLOP"
    assert text.count(8.03e9) == "8.03 B"
    assert text.whole(2048.0) == "2,048"
    assert text.percent(0.714) == "71 %"
    assert text.percent(0.004) == "0.4 %"
    assert text.percent(0.0001) == "<0.1 %"
    assert text.percent(0) == "0 %"
    assert text.plus_minus(0.06) == "± 6 %"
    assert text.plus_minus(math.nan) == ""
    assert text.gigabytes(17.94) == "17.9"
    assert text.in_middle("layers.*.mlp.gate_up_proj", 11) == "layer…_proj"


@given(st.floats(min_value=1e-12, max_value=1e12))
def test_a_shown_time_is_within_half_a_per_cent_of_the_true_one(seconds):
    number, unit = text.duration(seconds).split(" ")
    size = {"µs": 1e-6, "ms": 1e-3, "s": 1, "min": 60, "h": 3600}[unit]
    assert float(number.replace(",", "")) * size == pytest.approx(seconds, rel=0.0051)


def _texts(block, width=80, **options):
    return ["".join(piece for piece, _ in line) for line in block.lines(width, **options)]


def test_a_table_lines_its_columns_up():
    table = tables.Table(
        ("", "time", "", "bound by"), (("a", "1 s", "± 6 %", "DRAM"), ("total", "10 s", "", "L2")), "lrml"
    )
    assert _texts(table) == [
        "       time        bound by",
        "a       1 s ± 6 %  DRAM",
        "total  10 s        L2",
    ]


def test_a_row_without_figures_runs_over_the_columns_and_wraps_under_itself():
    table = tables.Table(("", "time", "power"), (("T4", "no answer: " + "word " * 30), ("H100", "1 s", "2 W")), "lrr")
    lines = _texts(table)
    assert max(map(len, lines)) <= 80
    assert lines[0].split() == ["time", "power"]
    assert lines[1].startswith("T4    no answer")
    assert lines[2].startswith("      word")
    assert lines[-1] == "H100   1 s    2 W"


@given(st.lists(st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=30), max_size=20))
def test_facts_never_pass_the_width_and_lose_nothing(pieces):
    facts = tables.Facts((("label", tuple(pieces)),))
    lines = _texts(facts, 80)
    assert all(len(line) <= 80 for line in lines)
    assert " ".join(lines).split() == ["label", *" ".join(pieces).split()]


def test_a_narrow_terminal_cuts_the_elastic_column_and_a_pipe_nothing():
    row = ("layers.*.mlp.gate_up_proj" * 4, "1 s")
    table = tables.Table(("layer", "time"), (row,), "lr", elastic=0)
    assert _texts(table, 80) == [f"{'layer':100}  time", f"{row[0]}   1 s"]
    assert [len(line) for line in _texts(table, 80, cut=True)] == [80, 80]


def test_a_pipe_gets_plain_text_and_a_terminal_colour(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "80")
    blocks = [tables.Heading("left", "right"), tables.Facts((("memory", ("fits",)),), "yellow")]
    pipe, terminal = io.StringIO(), Terminal()
    tables.show(blocks, pipe)
    tables.show(blocks, terminal)
    assert pipe.getvalue() == "left" + " " * 71 + "right\n\nmemory          fits\n"
    assert "\x1b[" in terminal.getvalue()
    bare = "".join(part.split("m", 1)[-1] if i else part for i, part in enumerate(terminal.getvalue().split("\x1b[")))
    assert bare == pipe.getvalue()


def test_a_stream_that_knows_only_ascii_gets_ascii_of_the_same_length():
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    shown = tables.printable("12.3 µs ± 6 % · …", stream)
    assert shown == "12.3 us ~ 6 % - ~"


def test_json_has_no_nan_and_takes_numpy():
    document = {"a": math.nan, "b": [math.inf, 1.5], "c": np.float64(2), "d": np.array([1, 2]), "e": (None, True)}
    assert json.loads(files.to_json(document), parse_constant=lambda _: pytest.fail("no JSON")) == {
        "a": None,
        "b": [None, 1.5],
        "c": 2.0,
        "d": [1, 2],
        "e": [None, True],
    }


def test_csv_takes_the_union_of_columns():
    rows = [{"a": 1, "b": math.nan}, {"a": True, "c": 'x,"y"'}]
    assert list(csv.reader(io.StringIO(files.to_csv(rows)))) == [["a", "b", "c"], ["1", "", ""], ["true", "", 'x,"y"']]


def test_a_file_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "out.json"
    write_atomic(path, "old")
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~mask

    def full(self, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.replace", full)
    with pytest.raises(InputError, match="No space left"):
        write_atomic(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", ["missing/out.json", ".", "x" * 300, "nul\0.json"])
def test_a_place_that_can_not_be_written_is_refused_in_one_line(tmp_path, name):
    with pytest.raises(InputError, match="can't write to") as caught:
        write_atomic(tmp_path / name, "text")
    assert "\n" not in str(caught.value)


def test_money_for_a_million_tokens_is_kilowatt_hours_times_price():
    # 900 J for 2,048 tokens: 1e6 / 2048 * 900 / 3.6e6 = 0.12207 kWh
    prediction = llama()
    assert summary.energy_per_million_tokens_j(prediction) == pytest.approx(900 / 2048 * 1e6)
    assert summary.cost_per_million_tokens(prediction, 0.2) == pytest.approx(0.2 * 0.1220703125)


def test_shares_sum_to_one_largest_first():
    assert summary.shares({"a": 1.0, "b": 3.0, "c": 0.0}) == {"b": 0.75, "a": 0.25}
    assert summary.shares({"a": 0.0}) == {}
    assert summary.relative_half_width(2.0, around(2.0, 0.08)) == pytest.approx(0.08)
    assert math.isnan(summary.relative_half_width(0.0, (0.0, 0.0)))


def test_a_mean_over_time_weighs_phases_by_their_time():
    # 0.5 s at 62 % and 1.5 s at 2.2 %
    assert summary.over_time(llama(), "peak_flop_share") == pytest.approx((0.5 * 0.62 + 1.5 * 0.022) / 2)


def test_memory_that_lacks():
    assert summary.memory_shortfall_gb(llama()) == 0.0
    assert summary.memory_shortfall_gb(llama(memory=MemoryNeed(90.0, 5.0, 1.0, 1.0, 85.9))) == pytest.approx(11.1)


def test_the_fastest_need_not_be_the_thriftiest():
    quick, thrifty = llama(gpu="quick", time_s=1.0, energy_j=1000.0), llama(gpu="thrifty")
    assert summary.fastest([thrifty, quick]).gpu == "quick"
    assert summary.thriftiest([quick, thrifty]).gpu == "thrifty"
