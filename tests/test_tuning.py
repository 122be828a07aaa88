"""Kernel search: spaces, the log through a kill, statistics, strategies on made-up and recorded spaces, the verb."""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import joulecast as jc
from joulecast.cli import main
from joulecast.errors import InfeasibleError, InputError
from joulecast.meters.reading import MeterFacts, Reading
from joulecast.meters.recording import Recording, read_recording
from joulecast.meters.replay import Noise
from joulecast.tuning import statistics
from joulecast.tuning.aot.cache import Cache
from joulecast.tuning.fastest import Search, Settings, run
from joulecast.tuning.log import Log, fingerprint
from joulecast.tuning.models import rank_correlation, scores, with_products
from joulecast.tuning.reasons import grouped
from joulecast.tuning.replay import ReplayEvaluator
from joulecast.tuning.session import Session
from joulecast.tuning.space import Space
from joulecast.tuning.strategies import Wanted, strategy
from joulecast.tuning.tiles import TiledProduct, price_tiles
from joulecast.tuning.tune import replay, search
from joulecast.tuning.workers import Job, run_jobs
from tuning_on_ray import Make

SPACE = Path(__file__).resolve().parents[1] / "docs" / "examples" / "kernel-space.csv"


# Spaces


def space() -> Space:
    return Space.of({"BM": [16, 32, 64], "BN": [16, 32, 64], "w": [2, 4]}, ["BM * BN <= 2048", "w == 2 or BM > 16"])


def test_a_space_holds_what_its_constraints_allow():
    # of nine tiles 64x64 is too large; of the eight left, the three with BM = 16 allow w = 2 alone
    assert len(space().pool(np.random.default_rng(0))) == 8 + 5
    assert all(space().holds(code) for code in space().enumerated())


@given(seed=st.integers(0, 1000))
@settings(max_examples=30, deadline=None)
def test_mutation_and_crossover_stay_in_the_space(seed):
    rng = np.random.default_rng(seed)
    pool = space().pool(rng)
    one, other = (pool[int(at)] for at in rng.integers(len(pool), size=2))
    child = space().crossed(one, other, rng)
    assert space().holds(child)
    assert all(value in (a, b) for value, a, b in zip(child, one, other, strict=True)) or child == one
    assert space().holds(space().mutated(one, rng))
    assert all(sum(a != b for a, b in zip(one, near, strict=True)) == 1 for near in space().neighbours(one))


def test_adjacent_neighbours_are_a_step_away():
    made = Space.of({"a": [1, 2, 4, 8], "word": ["x", "y", "z"]})
    assert set(made.neighbours((0, 0), adjacent=True)) == {(1, 0), (0, 1), (0, 2)}


def test_a_space_too_large_to_enumerate_is_sampled_without_repeats():
    made = Space.of({f"t{i}": list(range(8)) for i in range(10)}, ["t0 + t1 <= 9"])
    pool = made.pool(np.random.default_rng(0), limit=500)
    assert len(pool) == len(set(pool)) == 500
    assert all(made.holds(code) for code in pool)


@pytest.mark.parametrize(
    "text",
    ["__import__('os').system('true')", "BM.__class__", "open('x')", "[x for x in (1,)]", "lambda: 1", "BM <", "BX > 1",
     "BM ** 9 > 1", "'a' * 9 == 1 + {}"],
)  # fmt: skip
def test_a_constraint_is_arithmetic_and_nothing_else(text):
    with pytest.raises(InputError, match="constraint"):
        Space.of({"BM": [16, 32]}, [text])


def test_a_division_by_zero_fails_the_configuration_alone():
    made = Space.of({"a": [0, 1, 2]}, ["4 % a == 0"])
    assert [made.config(code)["a"] for code in made.enumerated()] == [1, 2]


def test_nothing_left_is_said():
    with pytest.raises(InputError, match="no configuration fulfils"):
        Space.of({"a": [1, 2]}, ["a > 2"]).pool(np.random.default_rng(0))


# The log


def test_questions_that_are_the_same_have_the_same_fingerprint():
    assert fingerprint({"a": 1, "b": [2]}) == fingerprint({"b": [2], "a": 1})
    assert fingerprint({"a": 1}) != fingerprint({"a": 2})


def test_a_killed_search_loses_the_measurement_in_flight_alone(tmp_path):
    script = tmp_path / "measure.py"
    script.write_text(
        textwrap.dedent(f"""
        import itertools, sys
        from joulecast.tuning.log import Log
        log = Log({str(tmp_path / "log.db")!r}, {{"kernel": "k"}})
        for number in itertools.count():
            log.write("energy", {{"a": 1}}, {{"energy_j": number}}, number)
            print(number, flush=True)
    """)
    )
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            if int(line) >= 50:
                process.send_signal(signal.SIGKILL)
                break
        last = int(([line, *process.stdout.read().split()])[-1])
        assert process.wait() == -signal.SIGKILL
    with Log(tmp_path / "log.db", {"kernel": "k"}) as log:
        assert all(log.find("energy", {"a": 1}, number) == {"energy_j": number} for number in range(last + 1))
        assert log.find("energy", {"a": 1}, last + 2) is None  # one may have been written and not yet told
    with Log(tmp_path / "log.db", {"kernel": "another"}) as log:
        assert len(log) == 0


@pytest.mark.parametrize("content", [b"not a database at all" * 100, b"SQLite format 3\x00" + b"\xff" * 5000])
def test_a_file_that_is_no_log_is_refused_in_one_line(tmp_path, content):
    path = tmp_path / "log.db"
    path.write_bytes(content)
    with pytest.raises(InputError, match="log"):
        Log(path, {})


@pytest.mark.parametrize("made", ["CREATE TABLE photos (id)", "CREATE TABLE questions (text)", "PRAGMA user_version=7"])
@pytest.mark.parametrize("opens", [lambda path: Log(path, {}), Cache], ids=["log", "cache"])
def test_nothing_is_written_to_the_database_of_another_program(tmp_path, made, opens):
    path = tmp_path / "theirs.db"
    with contextlib.closing(sqlite3.connect(path)) as base, base:
        base.execute(made)
        base.execute("CREATE TABLE notes (text)")
    before = path.read_bytes()
    with pytest.raises(InputError, match="another program's data"):
        opens(path)
    assert path.read_bytes() == before


def test_a_file_whose_name_no_system_takes_is_refused_in_one_line():
    with pytest.raises(InputError, match="File name too long"):
        Log("x" * 300, {})


@pytest.mark.parametrize(
    "harm",
    [
        """UPDATE outcomes SET outcome = '{"energy_j": 1, "of_a_later_version": 3}' WHERE stage = 'energy'""",
        "UPDATE outcomes SET outcome = '{broken' WHERE stage = 'latency'",
        """UPDATE outcomes SET outcome = '"words"' WHERE stage = 'latency'""",
        "UPDATE outcomes SET outcome = '[-0.001]' WHERE stage = 'latency'",
        """UPDATE outcomes SET outcome = '{"fine": true}' WHERE stage = 'check'""",
        """UPDATE outcomes SET outcome = '{"ok": true, "features": {"registers": "many"}}' WHERE stage = 'check'""",
        """UPDATE outcomes SET outcome = '{"energy_j": "1", "period_s": 0.001}' WHERE stage = 'energy'""",
        """UPDATE outcomes SET outcome = '{"energy_j": -1.0, "period_s": 0.001}' WHERE stage = 'energy'""",
        """UPDATE outcomes SET outcome = '{"energy_j": 0.2, "period_s": null}' WHERE stage = 'energy'""",
        "UPDATE outcomes SET outcome = '3' WHERE stage = 'meter'",
        "PRAGMA user_version = 9",
    ],
)
def test_a_log_that_this_version_did_not_write_is_refused_in_one_line(tmp_path, harm):
    search(*_with_space(1), slack=0.05, log=tmp_path / "log.db")
    with contextlib.closing(sqlite3.connect(tmp_path / "log.db")) as base, base:
        base.execute(harm)
    with pytest.raises(InputError, match=r"the log .*log\.db.* version of joulecast"):
        search(*_with_space(1), slack=0.05, log=tmp_path / "log.db")


# Statistics


def test_points_of_students_t():
    # Abramowitz and Stegun, table 26.10
    for freedom, value in ((1, 12.706), (4, 2.776), (5, 2.571), (9, 2.262), (20, 2.086), (1000, 1.962)):
        assert statistics.t_point(freedom) == pytest.approx(value, abs=0.003)


def test_a_saving_from_blocks_is_the_ratio_of_the_energies():
    saving = statistics.saving_of([(10.0, 10.1), (9.9, 10.0), (10.0, 10.0)], [(9.0, 9.09), (8.91, 9.0), (9.0, 9.0)])
    assert saving.estimate == pytest.approx(0.1)
    assert saving.significant


def test_intervals_hold_the_truth_as_often_as_they_say():
    rng = np.random.default_rng(5)
    inside = claimed = 0
    for _ in range(600):
        noise = np.exp(0.023 * rng.normal(size=(4, 12)))
        found = statistics.saving_of(
            list(zip(noise[0], noise[1], strict=True)), list(zip(noise[2], noise[3], strict=True))
        )
        inside += found.lower <= 0.0 <= found.upper
        claimed += found.significant
    assert inside / 600 > 0.93
    assert claimed / 600 < 0.04


def test_how_many_blocks_a_small_effect_needs():
    # (2.8 x 2.3 / 2)^2 = 10.4, and two for the t distribution
    assert statistics.blocks_needed(0.02, 0.023) == 13
    assert statistics.blocks_needed(0.0, 0.023, most=40) == 40


def test_a_warmer_candidate_is_set_right_by_what_is_known_of_temperature():
    rng = np.random.default_rng(1)
    warmer = rng.normal(2.0, 1.0, size=40)
    differences = 0.004 * warmer + 0.001 * rng.normal(size=40)
    assert statistics.without_temperature(differences, list(warmer)).mean() == pytest.approx(0.0, abs=0.001)
    # equally warm differences tell nothing of the slope: what is known of GPUs is taken
    assert statistics.without_temperature(np.full(5, 0.01), [2.0] * 5) == pytest.approx(0.01 - 0.006)


# Models


def test_scores_of_a_perfect_and_of_a_turned_prediction():
    energy, time = np.array([1.0, 1.1, 1.2, 2.0]), np.array([1.0, 1.01, 1.02, 3.0])
    perfect = scores(energy, energy, time)
    assert (perfect.r2, perfect.mape, perfect.rank, perfect.near_rank, perfect.regret) == (1.0, 0.0, 1.0, 1.0, 0.0)
    turned = scores(1.0 / energy, energy, time)
    assert turned.rank == pytest.approx(-1.0)
    assert turned.regret == pytest.approx(0.2)
    # the first is predicted lowest, and is the least sure: its 95 % bound is 1.645 x 0.1 higher
    doubt = np.array([0.1, 0.0, 0.0, 0.0])
    assert scores(energy, energy, time, doubt).regret == pytest.approx(0.1)
    assert scores(energy, energy, time, 0.5 * doubt).regret == 0.0


def test_ranks_share_ties():
    # ranks 1, 2.5, 2.5, 4 against 1..4: covariance 4.5 over sqrt(4.5 x 5)
    assert rank_correlation(np.array([1.0, 2.0, 2.0, 3.0]), np.arange(4.0)) == pytest.approx(4.5 / math.sqrt(4.5 * 5.0))


def test_products_and_ratios_stand_beside_the_tunables():
    columns = with_products(np.array([[1.0, 2.0], [3.0, 5.0]]))
    assert columns.tolist() == [[1.0, 2.0, 3.0, -1.0], [3.0, 5.0, 8.0, -2.0]]


def test_a_tile_that_spills_or_starves_is_slower_and_a_block_too_large_never_runs():
    gpu = jc.load_gpu("rtx-4000-ada")
    price = price_tiles(TiledProduct(4096, 4096, 4096, [128, 256, 16, 256], [128, 256, 16, 256], [2, 1, 1, 2],
                                     [2, 1, 1, 2], 32, [2, 1, 1, 9]), gpu)  # fmt: skip
    good, spilling, starving, never = price.time_s
    assert good < starving < spilling
    assert price.registers[1] > 255 > price.registers[0]
    assert math.isinf(never)  # (256 + 256) x 32 x 2 B x 9 = 288 KiB of 100
    # 2 x 4096^3 FLOP at 1024 FLOP/clk x 48 SM x 2175 MHz
    assert good >= 2 * 4096**3 / (1024 * 48 * 2175e6)
    assert np.all(price.power_w <= 130.0)


# Searches


def made(count: int = 12, *, saving: float = 0.06, seed: int = 0) -> Recording:
    """The fastest is 0; within 5 % are four, of which number 3 saves most."""
    configs = tuple({"a": number} for number in range(count))
    time_s = 1e-3 * np.array([1.0, 1.01, 1.02, 1.04, *np.linspace(1.2, 3.0, count - 4)])
    energy = 0.2 * np.array([1.0, 1.01, 0.99, 1.0 - saving, *np.linspace(0.8, 3.0, count - 4)])
    return Recording(f"made {seed}", configs, {}, time_s, np.full(count, 1e-4), energy, ("",) * count)


@pytest.mark.parametrize("name", ["race", "measure-all", "random", "paper"])
def test_every_strategy_finds_the_saving_within_the_slack(name):
    evaluator = ReplayEvaluator(made(), Noise(0.005), seed=1)
    found = search(evaluator, evaluator.space, strategy_name=name, slack=0.05, seed=1)
    assert found.chosen == {"a": 3}
    assert found.baseline == found.fastest == {"a": 0}
    assert found.saving.lower <= 0.06 <= found.saving.upper
    assert "less energy" in found.verdict
    assert found.eligible == 4


def test_a_saving_beyond_the_slack_is_not_taken():
    evaluator = ReplayEvaluator(made(), Noise(0.005), seed=1)
    found = search(evaluator, evaluator.space, slack=0.03)
    assert found.chosen in ({"a": 0}, {"a": 2})
    assert found.eligible == 3


def test_clocks_are_lowered_from_the_fastest_for_as_long_as_the_slack_allows():
    clocks = list(range(900, 1801, 100))
    rows = [(a, clock) for a in range(64) for clock in clocks]
    configs = tuple({"a": a, "core_clock_mhz": clock} for a, clock in rows)
    clock = np.array([row[1] for row in rows]) / 1800.0
    slow = 1.0 + 0.02 * np.array([row[0] for row in rows])
    time_s = 1e-3 * slow / clock
    # power falls with the square of the clock beside 60 W that don't: 1500 MHz is 20 % slower and takes
    # (60 + 140 / 1.44) x 1.2 = 188.7 W against 200 W; kernel 1 draws a tenth less
    power_w = (60.0 + 140.0 * clock**2) * np.where(np.array([row[0] for row in rows]) == 1, 0.9, 1.0)
    count = len(rows)
    recording = Recording("clocks", configs, {}, time_s, np.zeros(count), power_w * time_s, ("",) * count)
    evaluator = ReplayEvaluator(recording, Noise(0.002), 1)
    found = search(evaluator, evaluator.space, slack=0.25, evaluations=60)
    assert found.fastest == {"a": 0, "core_clock_mhz": 1800}
    assert found.chosen == {"a": 1, "core_clock_mhz": 1500}
    within = int((time_s <= 1.25e-3).sum())
    assert found.eligible == within
    assert found.latency_evaluations < 130  # of 640: 64 at the highest clock, and what is within the slack below it
    assert found.saving.lower < 1 - 0.9 * 1.02 * 1.2 * (60 + 140 / 1.44) / 200 < found.saving.upper


def test_no_saving_is_a_normal_answer():
    base = made(8)
    same = Recording(base.name, base.configs, {}, np.full(8, 1e-3), base.time_cv, np.full(8, 0.2), base.reasons)
    claims = 0
    for seed in range(20):
        evaluator = ReplayEvaluator(same, Noise(0.023, autocorrelation=0.3, drift=0.02), seed)
        found = search(evaluator, evaluator.space, slack=0.05, seed=seed)
        claims += found.chosen != found.baseline
        assert found.chosen == found.baseline or found.saving.significant
    assert claims <= 2


def test_a_second_search_answers_from_the_log_and_says_the_same(tmp_path):
    first = search(*_with_space(1), slack=0.05, log=tmp_path / "log.db")
    again = search(*_with_space(1), slack=0.05, log=tmp_path / "log.db")
    assert again.answered_by_log == first.latency_evaluations * 2 + first.energy_readings
    assert (again.chosen, again.saving) == (first.chosen, first.saving)
    other = search(*_with_space(2), slack=0.05, log=tmp_path / "log.db")
    assert other.answered_by_log == 0


class Stopped(ReplayEvaluator):
    """Is stopped at the `left`-th measurement."""

    left = 0

    def latency(self, config, count):
        self._stop()
        return super().latency(config, count)

    def energy(self, config, count):
        self._stop()
        return super().energy(config, count)

    def _stop(self):
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


@pytest.mark.parametrize("name", ["race", "paper"])
def test_a_search_that_goes_on_ends_as_if_it_had_not_been_stopped(tmp_path, name):
    noise = Noise(0.01, autocorrelation=0.5, drift=0.02)
    whole = search(ReplayEvaluator(made(), noise, 1), Space.of_list(made().configs), slack=0.05, strategy_name=name)
    measurements = whole.latency_evaluations + whole.energy_readings
    for left in (3, whole.latency_evaluations + 5, measurements - 2):  # in latency, energy, and while it confirms
        path = tmp_path / f"{left}.db"
        evaluator = Stopped(made(), noise, 1)
        evaluator.left = left
        with pytest.raises(KeyboardInterrupt):
            search(evaluator, evaluator.space, slack=0.05, strategy_name=name, log=path)
        evaluator = ReplayEvaluator(made(), noise, 1)
        found = search(evaluator, evaluator.space, slack=0.05, strategy_name=name, log=path)
        assert found.answered_by_log >= left - 1  # checks come on top
        assert (found.chosen, found.saving, found.points) == (whole.chosen, whole.saving, whole.points)


def _with_space(seed: int):
    evaluator = ReplayEvaluator(made(), Noise(0.005), seed)
    return evaluator, evaluator.space


class Impossible(ReplayEvaluator):
    """Every third reading is beyond the cap, those of configuration 2 always."""

    count = 0

    @property
    def facts(self) -> MeterFacts:
        return MeterFacts("replay", "made", "made", cap_w=300.0, idle_w=20.0)

    def energy(self, config, count):
        (reading,) = super().energy(config, count)
        self.count += 1
        if self.count % 3 == 0:
            return [Reading(2.0 * reading.energy_j, reading.period_s)]
        return [reading]


def test_impossible_readings_are_refused_counted_and_have_no_part_in_the_answer():
    evaluator = Impossible(made(), Noise(0.005), seed=1)
    found = search(evaluator, evaluator.space, slack=0.05)
    assert found.chosen == {"a": 3}
    assert sum(found.refused.values()) > 10
    assert "limit" in next(iter(found.refused))


def test_reasons_that_differ_in_numbers_alone_are_one_and_keep_their_numbers():
    told = grouped({
        "compile: took more than 60 s of processor time": 3,
        "prune: needs 512 KiB of shared memory a block, H100-SXM-80GB has 227": 2,
        "prune: needs 1,024 KiB of shared memory a block, H100-SXM-80GB has 227": 4,
    })  # fmt: skip
    assert told == {
        "prune: needs 512 to 1,024 KiB of shared memory a block, H100-SXM-80GB has 227": 6,
        "compile: took more than 60 s of processor time": 3,
    }
    power = "{} mJ in 1.2 ms is {} W, more than 1.05 x the limit of 300 W"
    assert grouped({power.format(384.5, 320): 1, power.format(720, 600): 1}) == {
        power.format("384.5 to 720", "320 to 600"): 2
    }


def test_what_fails_is_counted_by_its_reason():
    base = made()
    time_s = base.time_s.copy()
    time_s[5:8] = np.nan
    reasons = tuple("CompilationFailed" if 5 <= at < 8 else "" for at in range(12))
    broken = Recording(base.name, base.configs, {}, time_s, base.time_cv, base.energy_j, reasons)
    evaluator = ReplayEvaluator(broken, Noise(0.005))
    found = search(evaluator, evaluator.space, slack=0.05)
    assert found.failed == {"compile: CompilationFailed": 3}
    nothing = Recording(base.name, base.configs, {}, np.full(12, np.nan), base.time_cv, base.energy_j, ("gone",) * 12)
    with pytest.raises(InfeasibleError, match="gone"):
        search(ReplayEvaluator(nothing), ReplayEvaluator(nothing).space)


def test_the_front_falls_as_time_rises():
    found = search(*_with_space(1), slack=0.05)
    times = [point.time_s for point in found.front]
    energies = [point.energy_j for point in found.front]
    assert times == sorted(times)
    assert energies == sorted(energies, reverse=True)


def test_energies_have_the_interval_that_their_readings_scatter_to():
    evaluator = ReplayEvaluator(made(), Noise(0.01), seed=3)
    found = search(evaluator, evaluator.space, slack=0.05, strategy_name="measure-all")
    for point in found.points:  # of readings that scatter by 1 %, known to about a tenth from all of them together
        assert point.error_j == pytest.approx(1.96 * 0.01 * point.energy_j / math.sqrt(point.readings), rel=0.35)
    once = replace(found, points=tuple(replace(point, error_j=None) for point in found.points))
    assert once.to_dict()["points"][0]["error_j"] is None


def test_the_picture_shows_what_it_is_about_on_top_and_wherever_it_lies():
    pytest.importorskip("altair")
    from joulecast.reports.tuning_plot import time_energy

    def row(time, kind, label=""):
        return {"time": time, "energy": 2.0, "error": 0.1, "kind": kind, "front": False, "label": label}

    rows = [row(9.0, "baseline", "baseline"), row(1.0, "chosen", "chosen"), row(1.1, "other"), row(9.0, "other")]
    chart = time_energy(rows, 1.2, ("ms", "J"), title="", subtitle=[]).to_dict()
    (drawn,) = [part["data"]["values"] for part in chart["layer"] if part["mark"]["type"] == "point"]
    assert [(one["time"], one["kind"]) for one in drawn] == [(1.1, "other"), (9.0, "baseline"), (1.0, "chosen")]
    assert (drawn[0]["low"], drawn[0]["high"]) == (1.9, 2.1)


def test_the_search_for_the_fastest_needs_few_evaluations():
    # a bowl over three tunables of eight values: 512 configurations, one is best
    made_space = Space.of({name: [2**i for i in range(8)] for name in "abc"})
    codes = made_space.pool(np.random.default_rng(0))
    times = np.array([1e-3 * (1 + sum((x - y) ** 2 for x, y in zip(code, (3, 5, 2), strict=True))) for code in codes])
    needed = []
    for seed in range(3):
        search_ = Search(codes, made_space.numbers(codes), np.random.default_rng(seed), Settings(evaluations=100))
        run(search_, lambda row: float(times[row]))
        needed.append(search_.times.index(1e-3) if 1e-3 in search_.times else 512)
    assert np.median(needed) < 80  # half of 512 by chance


def test_the_paper_measures_a_smaller_share_as_its_model_is_trusted():
    recording = read_recording(SPACE)
    evaluator = ReplayEvaluator(recording, Noise(0.002), 1)
    session = Session(evaluator.space, evaluator, rng=np.random.default_rng(1))
    found = strategy("paper", mu=0.2, population=24, kept=8).run(session, Wanted(slack=0.1))
    assert found.notes[0].startswith("k by generation: 1.0")
    assert found.notes[0].endswith("0.2")


@pytest.mark.parametrize(
    ("options", "said"),
    [({"strategy_name": "rase"}, "race"), ({"slack": -1.0}, "slack"), ({"objective": "watts"}, "energy or time"),
     ({"settings": {"fist": 3}}, "first"), ({"baseline": {"a": 99}}, "not in the space"),
     ({"readings": 0}, "readings")],
)  # fmt: skip
def test_bad_questions_are_refused_in_one_line(options, said):
    with pytest.raises(InputError, match=said) as caught:
        search(*_with_space(1), **options)
    assert "\n" not in str(caught.value)


# Recorded spaces


def test_the_saving_of_the_recorded_space_is_found(data_dir):
    path = data_dir / "tuning" / "energy_rtx4000ada_wmma_cgemm_fp16.parquet"
    found = replay(path, where={"nvml_gr_clock": 1665}, noise=0.005, slack=0.05, seed=3)
    recording = read_recording(path).only(nvml_gr_clock=1665)
    energy = recording.energy_j
    best = (
        1
        - np.nanmin(energy[recording.time_s <= 1.05 * np.nanmin(recording.time_s)])
        / energy[np.nanargmin(recording.time_s)]
    )
    true = 1 - energy[recording.row(found.chosen)] / energy[recording.row(found.baseline)]
    assert true > 0.7 * best
    assert found.saving.lower <= true <= found.saving.upper


def test_repeats_of_one_kernel_give_no_saving(data_dir):
    path = data_dir / "tuning" / "noise_rtxa4000_gemm_repeats.parquet"
    found = [replay(path, session=seed % 6, seed=seed, slack=0.05) for seed in range(6)]
    assert sum(one.chosen != one.baseline for one in found) <= 1


def test_the_model_meter_ranks_the_recorded_space(data_dir):
    recording = read_recording(data_dir / "tuning" / "energy_rtx4000ada_wmma_cgemm_fp16.parquet").only(
        nvml_gr_clock=1665
    )
    rows = np.flatnonzero(recording.valid)
    column = {name: np.array([recording.configs[row][name] for row in rows], dtype=float) for name in recording.names}
    price = price_tiles(
        TiledProduct(4096, 4096, 4096, column["M_PER_BLOCK"], column["N_PER_BLOCK"], column["block_size_z"],
                     column["block_size_y"], 16, column["NBUFFER"], bytes_an_element=4.0, accumulators=2.0,
                     flop_an_element=8.0),
        jc.load_gpu("rtx-4000-ada"), 1665.0,
    )  # fmt: skip
    energy = recording.energy_j[rows]
    assert rank_correlation(price.energy_j, energy) > 0.85
    assert energy[np.argmin(price.energy_j)] / energy.min() - 1 < 0.08


# The verb


def told(arguments, capsys) -> str:
    assert main(["tune", *map(str, arguments)]) == 0
    return capsys.readouterr().out


def test_the_verb_tells_saving_evidence_and_front(capsys, tmp_path):
    picture = tmp_path / "picture.svg"
    page = told(["--replay", SPACE, "--noise", "0.005", "--slack", "0.1", "--plot", picture], capsys)
    assert "result" in page
    assert "readings" in page
    assert "front" in page
    assert picture.read_text().startswith("<svg")


def test_json_holds_the_evidence_and_a_second_run_the_log(capsys, tmp_path):
    flags = ["--replay", SPACE, "--noise", "0.005", "--slack", "0.1", "--log", tmp_path / "log.db", "--json"]
    first = json.loads(told(flags, capsys))
    again = json.loads(told(flags, capsys))
    assert first["saving"] == again["saving"]
    assert again["answered_by_log"] > 0
    assert first["meter"]["name"] == "replay"
    assert {"latency_evaluations", "energy_readings", "temperature_c", "clock_mhz", "front", "question"} <= set(first)


@pytest.mark.parametrize(
    "arguments",
    [[], ["--replay", "none.parquet"], ["--replay", str(SPACE), "--where", "x=1"],
     ["--replay", str(SPACE), "--slack", "x"], ["--replay", str(SPACE), "--plot", "x.bmp"],
     ["--replay", str(SPACE), "--strategy", "best"],
     ["--replay", str(Path(__file__))], ["--replay", str(SPACE), "--log", "/no/such/folder/log.db"],
     ["--replay", str(SPACE), "--plot", "/no/such/folder/x.svg"], ["--replay", str(SPACE), "--meter", "nvml"],
     ["--replay", str(SPACE), "--winners", "w.json"], ["--replay", str(SPACE), "--batch", "2"],
     ["--replay", str(SPACE), "--clocks", "1410"], ["matmul", "--gpu", "h100", "--noise", "0.02"],
     ["--model", "Qwen/Qwen2.5-7B", "--gpu", "h100", "--clocks", "1410"]],
)  # fmt: skip
def test_bad_flags_end_with_two_and_one_line(arguments, capsys):
    assert main(["tune", *arguments]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


# Ray


def test_a_worker_of_ray_that_dies_loses_nothing(tmp_path):
    pytest.importorskip("ray")
    program = Path(__file__).with_name("tuning_on_ray.py")
    environment = {**os.environ, "RAY_DISABLE_IMPORT_WARNING": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    environment.pop("RAY_ADDRESS", None)
    command = [sys.executable, str(program), str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    assert (tmp_path / "died").exists()
    assert found["1"]["from_log"] >= 12 * 2 + 14  # checks, times, and all readings before the one that was cut short
    assert [found[name]["from_log"] for name in "02"] == [0, 0]
    alone = run_jobs([Job(name, Make(int(name), None), {"slack": 0.05}) for name in "012"], tmp_path / "alone")
    for name, one in alone.items():
        assert one.chosen == {"a": 4, "b": 3}
        assert found[name]["verdict"] == one.verdict
        assert found[name]["front"] == [point.energy_j for point in one.front]


def test_a_job_that_fails_stops_no_other_and_says_why(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def broken():
        raise RuntimeError("no such kernel\nand more of it")

    jobs = [
        Job("made/up", broken),
        Job("fine", Make(1, None), {"slack": 0.05}),
        Job("bad", Make(1, None), {"slack": -1.0}),
    ]
    found = run_jobs(jobs, "logs")
    assert str(found["made/up"]) == "made/up: RuntimeError: no such kernel"
    assert "slack is a share" in str(found["bad"])
    again = run_jobs(jobs[1:2], "logs")  # its log is found without the others, too
    assert again["fine"].answered_by_log == found["fine"].latency_evaluations * 2 + found["fine"].energy_readings
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="can't make the folder"):
        run_jobs(jobs, "file")
