"""Sweeps: every point as `predict` says it, nothing dropped, the front as brute force finds it, cheap stops."""

from __future__ import annotations

import functools
import itertools
import os
import pickle
import signal
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import joulecast as jc
from joulecast.errors import InfeasibleError, InputError
from joulecast.gpus import load_gpu
from joulecast.lowering.execution import Execution
from joulecast.physics.timeline import run_phase, run_phases
from joulecast.scenarios.footprint import Site
from joulecast.scenarios.pricing import host_of, passes_of, prepared
from joulecast.scenarios.sweep import inference, question
from joulecast.scenarios.sweep.chunk import Chunk, joined
from joulecast.scenarios.sweep.collect import Collector
from joulecast.scenarios.sweep.objectives import OBJECTIVES, Limits, front, kept_to, objectives_of
from joulecast.scenarios.sweep.run import run, spans
from joulecast.scenarios.sweep.settle import BOUND_WORDS
from joulecast.scenarios.sweep.space import MOST_POINTS, Space, axis
from joulecast.scenarios.sweep.store import open_store
from joulecast.scenarios.sweep.table import points_of

LLAMA = "meta-llama/Llama-3.1-8B"

#: Sweeps of each kind: what varies beside clocks and limits.
CASES = {
    "gpus and layouts": (
        LLAMA,
        {"gpus": ["a100", "h100", "l4"], "batch": [1, 32], "prompt_tokens": [512, 2048], "generate_tokens": 64,
         "tp": [1, 2, 3], "clock_mhz": [None, 510, 900, 1700], "power_limit_w": [None, 250, 300]},
    ),
    "what-ifs": (
        "bert-large-uncased",
        {"gpus": ["a100", "t4"], "batch": [1, 64], "prompt_tokens": [128, 512], "launch_mode": ["eager", "cuda_graph"],
         "changes": {"sm_count": [72, 108], "dram_gb_s": [1000.0]}, "clock_mhz": "all", "power_limit_w": "all"},
    ),
    "experts in stages": (
        "mistralai/Mixtral-8x7B-v0.1",
        {"gpus": "h200", "batch": [2, 8], "prompt_tokens": 64, "generate_tokens": 16, "pp": [1, 2], "tp": [1, 4],
         "dp": [1, 2], "microbatches": [1, 2], "dtype": ["bf16", "fp8"], "clock_mhz": [900, None],
         "power_limit_w": [300, None], "ignore_memory": True},
    ),
    "hosts": (
        "microsoft/resnet-50",
        {"gpus": ["v100", "a10"], "batch": [1, 7, 64], "dtype": ["fp16", "fp32"], "temperature_c": [None, 80],
         "host_us_per_launch": [None, 0, 3, 12], "engine": ["pytorch", "trtllm"], "power_limit_w": [None, 150]},
    ),
}  # fmt: skip
cases = pytest.mark.parametrize("case", CASES)


@functools.cache
def evaluator_of(case):
    source, options = CASES[case]
    return question.inference(source, **options)


@functools.cache
def whole(case):
    evaluator = evaluator_of(case)
    return joined(run(evaluator))


def asked_of(evaluator, point, row):
    """Arguments of `predict` for a point."""
    space = evaluator.space
    values = {name: space.axis(name).values[code[0]] for name, code in space.codes(np.array([point])).items()}
    changes = {name.removeprefix("set."): values.pop(name) for name in list(values) if name.startswith("set.")}
    gpu = values.pop("gpu")
    for name, column in (("clock_mhz", "clock_asked_mhz"), ("power_limit_w", "power_limit_w")):
        if values[name] is not None:
            values[name] = row[column]
    return gpu, {"changes": changes or None, **{name: value for name, value in values.items() if value is not None}}


# Every point is what predict says


@cases
def test_points_are_what_predict_says_of_each_alone(case):
    evaluator, chunk = evaluator_of(case), whole(case)
    table = points_of(evaluator, chunk)
    chosen = np.random.default_rng(7).choice(np.flatnonzero(chunk.feasible), 12, replace=False)
    for point in chosen.tolist():
        row = table.row(point)
        gpu, options = asked_of(evaluator, point, row)
        alone = jc.predict(evaluator.source, gpu, ignore_memory=evaluator.ignore_memory, **options)
        for name in ("time_s", "power_w", "energy_j", "clock_mhz", "tokens_per_s", "energy_per_token_j", "tokens_out"):
            assert row[name] == pytest.approx(getattr(alone, name), rel=1e-8), (name, options)
        for name in ("time_s", "power_w", "energy_j"):
            bounds = (row[f"{name}_lower"], row[f"{name}_upper"])
            assert bounds == pytest.approx(alone.interval(name), rel=1e-8), (name, options)
        assert row["bound_by"] == alone.bound_by
        assert row["throttled"] == any(phase.throttled for phase in alone.phases)
        assert row["memory_needed_gb"] == pytest.approx(alone.memory.needed_gb)
        assert row["power_provenance"] == alone.provenance["power"]
        assert row["gpu_count"] == alone.gpu_count


@cases
def test_infeasible_points_are_told_with_a_reason_and_predict_refuses_them_too(case):
    evaluator, chunk = evaluator_of(case), whole(case)
    table = points_of(evaluator, chunk)
    refused = np.flatnonzero(~chunk.feasible)
    for point in refused[:: max(refused.size // 8, 1)].tolist():
        row = table.row(point)
        assert row["reason"]
        assert row["time_s"] is None
        if "power limit outside" in row["reason"]:  # predict prices limits that no driver would set, with a warning
            continue
        gpu, options = asked_of(evaluator, point, row)
        with pytest.raises((InputError, InfeasibleError)):
            jc.predict(evaluator.source, gpu, ignore_memory=evaluator.ignore_memory, **options)


def test_all_points_are_there_whatever_becomes_of_them():
    counts = {case: (len(whole(case)), len(evaluator_of(case).space)) for case in CASES}
    assert all(have == want for have, want in counts.values())
    # 3 GPUs x 2 batches x 2 prompts x 3 tp x 4 clocks x 3 limits
    assert counts["gpus and layouts"][0] == 3 * 2 * 2 * 3 * 4 * 3


@cases
def test_a_point_has_the_same_bits_alone_and_in_company(case):
    evaluator, chunk = evaluator_of(case), whole(case)
    for point in np.random.default_rng(3).choice(len(chunk), 6, replace=False).tolist():
        alone = pickle.loads(pickle.dumps(evaluator)).evaluate(point, point + 1)
        for name, column in alone.columns.items():
            if name != "reason":
                assert np.array_equal(column[0], chunk.columns[name][point], equal_nan=column.dtype.kind == "f"), name
        assert alone.reasons[alone.columns["reason"][0]] == chunk.reasons[chunk.columns["reason"][point]]


@given(
    st.lists(st.tuples(st.floats(210, 1410), st.one_of(st.just(np.inf), st.floats(60, 500))), min_size=1, max_size=12)
)
@settings(max_examples=25)
def test_phases_that_settle_together_settle_as_each_would_alone(asked):
    gpu = load_gpu("a100")
    workload = _llama()
    lowered, rows = prepared(workload, gpu, Execution(), ())
    members = np.flatnonzero(rows.pass_id == 0)
    one = passes_of(lowered, rows, members, host_of(gpu, 1.0))
    n = len(asked)
    many = type(one)(
        priced=_tiled(one.priced, members.size, n),
        count=np.tile(one.count, n),
        pass_of=np.repeat(np.arange(n), members.size),
        repeats=np.tile(one.repeats, n),
        host_s=np.tile(one.host_s, n),
        phase_of=np.arange(n),
    )
    clocks, limits = (np.array(column) for column in zip(*asked, strict=True))
    together = run_phases(many, clocks, limits)
    for place, (clock, limit) in enumerate(asked):
        alone = run_phase(one, clock, limit)
        assert together.clock_mhz[place] == alone.clock_mhz
        assert together.time_s[place] == pytest.approx(alone.time_s, rel=1e-12)
        assert together.energy_j[place] == pytest.approx(alone.energy_j, rel=1e-12)


@functools.cache
def _llama():
    return jc.workload(LLAMA, batch=4, prompt_tokens=512)


def _tiled(priced, rows, n):
    from joulecast.physics.priced import take

    return take(priced, np.tile(np.arange(rows), n))


# Physics


def test_a_lower_clock_or_limit_is_never_faster():
    # Clocks and limits that settle at the same clock differ by what the solver leaves open, 2e-4 of the clock.
    found = jc.sweep(LLAMA, "h100", batch=8, prompt_tokens=1024, generate_tokens=32, clock_mhz="all",
                     power_limit_w="all")  # fmt: skip
    time_s = found.columns["time_s"].reshape(20, 11)
    assert (np.diff(time_s, axis=0) <= 5e-4 * time_s[1:]).all()
    assert (np.diff(time_s, axis=1) <= 5e-4 * time_s[:, 1:]).all()
    assert (found.columns["clock_mhz"] <= found.columns["clock_asked_mhz"]).all()


def test_figures_follow_from_each_other_and_from_the_site():
    found = jc.sweep(
        "bert-base-uncased", "a100", batch=[1, 16], prompt_tokens=128, clock_mhz=[600, None],
        site=Site(price_per_kwh=0.3, g_co2e_per_kwh=400.0, pue=1.25),
    ).columns  # fmt: skip
    assert found["energy_j"] == pytest.approx(found["time_s"] * found["power_w"], rel=1e-12)
    assert found["edp_js"] == pytest.approx(found["energy_j"] * found["time_s"])
    assert found["ed2p_js2"] == pytest.approx(found["energy_j"] * found["time_s"] ** 2)
    kwh = found["energy_j"] * 1.25 / 3.6e6
    assert found["cost"] == pytest.approx(0.3 * kwh)
    assert found["carbon_g_co2e"] == pytest.approx(400 * kwh)


def test_elasticities_of_a_model_that_streams_its_weights():
    # Decoding one sequence from a graph reads all weights for each token: the DRAM rate is nearly all there is to it.
    evaluator = question.inference(LLAMA, gpus="a100", batch=1, prompt_tokens=16, generate_tokens=64,
                                   launch_mode="cuda_graph")  # fmt: skip
    found = {one.field: one for one in question.elasticities_at(evaluator, 0)}
    assert -1.0 <= found["dram_gb_s"].time < -0.6
    assert abs(found["tensor_tflops"].time) < 0.05
    for one in found.values():
        assert one.energy == pytest.approx(one.time + one.power, abs=1e-9), one.field
    # A host that takes a millisecond a launch leaves nothing to gain from the GPU.
    slow = question.inference("bert-base-uncased", gpus="a100", batch=1, prompt_tokens=32, host_us_per_launch=1000)
    at_host = {one.field: one for one in question.elasticities_at(slow, 0)}
    assert at_host["host_us_per_launch"].time == pytest.approx(1.0, abs=0.01)
    assert abs(at_host["dram_gb_s"].time) < 1e-6


# Objectives, limits, front

figures = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=40)


@given(figures)
def test_the_front_is_what_brute_force_finds(pairs):
    x, y = (np.array(column, dtype=float) for column in zip(*pairs, strict=True)) if pairs else (np.zeros(0),) * 2
    kept = [
        i
        for i in range(len(pairs))
        if not any((x[j] <= x[i] and y[j] <= y[i]) and (x[j] < x[i] or y[j] < y[i]) for j in range(len(pairs)))
        and not any(x[j] == x[i] and y[j] == y[i] for j in range(i))
    ]
    found = front(x, y).tolist()
    assert sorted(found) == kept
    assert all(x[a] < x[b] and y[a] > y[b] for a, b in itertools.pairwise(found))


def test_points_without_figures_are_on_no_front():
    assert front([np.nan, 1.0, 2.0], [0.0, 1.0, np.nan]).tolist() == [1]


def test_best_and_front_from_chunks_are_those_of_the_whole():
    evaluator = evaluator_of("gpus and layouts")
    objectives = objectives_of(evaluator.figures)
    pair = (OBJECTIVES["time"], OBJECTIVES["energy"])
    collector = Collector(objectives, pair)
    for start in range(0, len(evaluator.space), 37):
        collector.add(evaluator.evaluate(start, min(start + 37, len(evaluator.space))))
    found = collector.findings()
    sweep = jc.sweep(evaluator.source, **CASES["gpus and layouts"][1])
    assert found.points == len(sweep)
    assert found.feasible == int(sweep.columns["feasible"].sum())
    assert dict(found.reasons) == dict(sweep.reasons)
    assert found.front.tolist() == sweep.front().numbers.tolist()
    for one in objectives:
        best = sweep.best(one.name)[one.column]
        assert found.rows(np.array([found.best[one.name]]))[one.column][0] == best


def test_limits_make_points_infeasible_and_keep_their_figures():
    free = jc.sweep("bert-base-uncased", "a100", batch=[1, 8, 64], prompt_tokens=128, clock_mhz="all")
    middle = float(np.median(free.columns["time_s"]))
    held = jc.sweep(
        "bert-base-uncased", "a100", batch=[1, 8, 64], prompt_tokens=128, clock_mhz="all", max_time_s=middle
    )
    slow = free.columns["time_s"] > middle
    assert np.array_equal(~held.columns["feasible"], slow)
    assert held.columns["time_s"] == pytest.approx(free.columns["time_s"])
    assert held.reasons == {f"time above {middle:g} s": int(slow.sum())}
    assert held.best("throughput")["time_s"] <= middle
    fast = jc.sweep("bert-base-uncased", "a100", batch=[1, 8, 64], prompt_tokens=128,
                    min_tokens_per_s=float(free.columns["tokens_per_s"].max()))  # fmt: skip
    assert fast.feasible["batch"].tolist() == [64]
    none = jc.sweep("bert-base-uncased", "a100", max_power_w=1.0)
    with pytest.raises(InfeasibleError, match="no point is feasible: power above 1 W"):
        none.best()


def test_the_first_of_several_reasons_is_told():
    chunk = Chunk(0, {"time_s": np.array([1.0, 3.0]), "power_w": np.array([5.0, 9.0]),
                      "reason": np.array([1, 0], dtype=np.int32)}, ("", "does not fit"))  # fmt: skip
    kept = kept_to(chunk, Limits(max_time_s=2, max_power_w=4))
    assert [kept.reasons[code] for code in kept.columns["reason"]] == ["does not fit", "time above 2 s"]


def test_models_that_do_not_fit_are_listed_with_what_they_need():
    found = jc.sweep("meta-llama/Llama-3.1-70B", ["t4", "h100"], prompt_tokens=64).columns
    assert found["feasible"].tolist() == [False, False]
    both = jc.sweep("meta-llama/Llama-3.1-70B", ["t4", "h100"], prompt_tokens=64, tp=[1, 2])
    assert both.feasible["tp"].tolist() == [2]
    assert both.reasons == {"does not fit the memory of T4": 2, "does not fit the memory of H100-SXM-80GB": 1}
    # 70.6e9 parameters of 2 bytes
    assert found["memory_needed_gb"][0] > 141
    priced = jc.sweep("meta-llama/Llama-3.1-70B", "t4", prompt_tokens=64, ignore_memory=True)
    assert priced.columns["feasible"].all()


# The space


def test_points_are_numbered_and_never_listed():
    space = Space(tuple(axis(f"axis{i}", range(10)) for i in range(12)))
    assert len(space) == 10**12
    codes = space.codes(np.array([0, 123_456_789_012 - 1]))
    assert [int(codes[f"axis{i}"][1]) for i in range(12)] == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1, 1]
    assert space.along("axis11", 17).tolist() == list(range(10, 20))
    assert space.along("axis10", 17).tolist() == list(range(7, 107, 10))
    with pytest.raises(InputError, match=r"are 1,000,000,000,000 points, more than 10,000,000"):
        space.checked()
    assert len(spans(MOST_POINTS)) == -(-MOST_POINTS // 8192)


@given(st.integers(1, 3_000_000), st.integers(1, 20_000))
def test_chunks_cover_all_points_once_and_are_bounded(points, unit):
    found = spans(points, unit)
    assert unit > 8192 or all(start % unit == 0 for start, _ in found)
    assert found[0][0] == 0
    assert found[-1][1] == points
    assert all(a[1] == b[0] for a, b in itertools.pairwise(found))
    assert max(stop - start for start, stop in found) <= 8192


def test_what_is_remembered_does_not_grow_with_the_points(monkeypatch):
    monkeypatch.setattr(inference, "_ROWS_KEPT", 2000)
    evaluator = question.inference("bert-base-uncased", gpus="a100", batch=range(1, 300), prompt_tokens=64)
    for start in range(0, 299, 50):
        evaluator.evaluate(start, min(start + 50, 299))
        kept = evaluator._kept
        assert kept.rows == sum(block.rows for block in kept.blocks.values())
        assert kept.rows <= 2000 or len(kept.blocks) == 1
    gpus = question.inference("bert-base-uncased", gpus="a100", changes={"sm_count": range(80, 180)}, prompt_tokens=64)
    gpus.evaluate(0, 100)
    assert len(gpus._kept.gpus) <= 64


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"gpus": []}, "gpu has no values"),
        ({"gpus": "a1000000"}, "unknown GPU"),
        ({"batch": []}, "batch has no values"),
        ({"batch": [1, 0]}, "batch must be a whole number"),
        ({"batches": [1]}, "unknown option 'batches': did you mean batch"),
        ({"dtype": ["bf16", "bf17"]}, "unknown dtype 'bf17'"),
        ({"engine": ["pytorch", "tensorflow"]}, "unknown engine"),
        ({"tp": [1, 0]}, "tp must be a whole number"),
        ({"clock_mhz": [900, float("nan")]}, "clock must be a finite number"),
        ({"clock_mhz": "fast"}, "clock must be a number"),
        ({"power_limit_w": -5}, "power limit must be above zero"),
        ({"host_us_per_launch": [1, -1]}, "host cost a launch must be between"),
        ({"changes": {"sms": [1]}}, "unknown GPU field 'sms'"),
        ({"changes": [1]}, "changes must map fields"),
        ({"changes": {"sm_count": []}}, "set.sm_count has no values"),
        ({"image_size": 224}, "image_size does not apply"),
        ({"max_time_s": 0}, "max_time_s must be above zero"),
        ({"max_cost": 1}, "a limit on cost needs a price of a kWh"),
        ({"run_on": "slurm"}, "unknown runner 'slurm': known: local, ray"),
        ({"workers": 0}, "workers must be a whole number from 1"),
        ({"forecast_from": "hopper"}, "unknown forecast"),
        ({"batch": range(1, 10_001), "clock_mhz": np.arange(300, 1400)}, "more than 10,000,000"),
    ],
)
def test_what_no_point_could_use_is_refused_in_one_line(options, told):
    with pytest.raises(InputError) as error:
        jc.sweep("bert-base-uncased", **{"gpus": "a100", **options})
    assert told in str(error.value)
    assert "\n" not in str(error.value)


def test_an_objective_must_be_known_and_have_figures():
    found = jc.sweep("bert-base-uncased", "a100", prompt_tokens=64)
    with pytest.raises(InputError, match="unknown objective 'speed'"):
        found.best("speed")
    with pytest.raises(InputError, match="cost needs a price"):
        found.front("time", "cost")


def test_a_frame_has_a_row_for_each_point_and_says_what_was_asked():
    found = jc.sweep("bert-base-uncased", ["a100", "t4"], batch=[1, 2], prompt_tokens=64, clock_mhz=[600, 2000])
    frame = found.to_polars()
    assert frame.height == 8
    assert frame["gpu"].unique().sort().to_list() == ["A100-SXM-80GB", "T4"]
    assert frame["clock_asked_mhz"].to_list() == [600, 2000] * 4
    assert frame.filter(~frame["feasible"])["reason"].unique().sort().to_list() == [
        "clock outside the range of A100-SXM-80GB: 210 to 1410 MHz",
        "clock outside the range of T4: 300 to 1590 MHz",
    ]


# Stopped and gone on with


@dataclass(frozen=True)
class Counting:
    """An evaluator that tells what it was asked, and that may end its process at a point, once."""

    space: Space
    folder: Path
    ends_at: int = -1

    @property
    def words(self):
        return {"bound_by": BOUND_WORDS}

    @property
    def unit(self):
        return 1

    def evaluate(self, start, stop):
        if start <= self.ends_at < stop and not (self.folder / "ended").exists():
            (self.folder / "ended").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        (self.folder / f"asked-{start}").touch()
        points = np.arange(start, stop)
        reason = np.where(points % 7 == 0, 1, 0).astype(np.int32)
        return Chunk(start, {"time_s": np.sin(points), "reason": reason}, ("", "a seventh"))

    def asked(self):
        """Starts of what was asked, which is forgotten."""
        found = sorted(int(path.name.split("-")[1]) for path in self.folder.glob("asked-*"))
        for path in self.folder.glob("asked-*"):
            path.unlink()
        return found


@pytest.fixture
def counting(tmp_path):
    folder = tmp_path / "seen"
    folder.mkdir()
    return Counting(Space((axis("a", range(40)), axis("b", range(50)))), folder)


def same(chunks, others):
    one, other = joined(chunks), joined(others)
    return one.reasons == other.reasons and all(np.array_equal(one.columns[c], other.columns[c]) for c in one.columns)


def test_a_sweep_that_was_stopped_goes_on_from_what_it_finished(counting, tmp_path):
    straight = list(run(counting))
    counting.asked()
    store = open_store(tmp_path / "work", "question")
    stopped = run(counting, store=store)
    first = [next(stopped) for _ in range(3)]
    stopped.close()
    done = counting.asked()
    assert done == [start for start, _ in spans(2000)][:3]
    again = list(run(counting, store=open_store(tmp_path / "work", "question")))
    assert counting.asked() == [start for start, _ in spans(2000)][3:]
    assert same(again, straight)
    assert same(again[:3], first)


@pytest.mark.parametrize("part", ["first", "less", "other"])
def test_a_chunk_that_is_not_what_was_kept_is_evaluated_again(counting, tmp_path, part):
    """Another's rows, too few of them or a changed figure would stand among the answers."""
    store = open_store(tmp_path / "work", "question")
    straight = list(run(counting, store=store))
    counting.asked()
    first, second = sorted((tmp_path / "work").glob("chunk-*.npz"))[:2]
    with np.load(first if part == "first" else second) as kept:
        held = {name: kept[name] for name in kept.files}
    if part == "less":
        held = {name: value[:1] if value.ndim else value for name, value in held.items()}
    if part == "other":
        held["time_s"] = held["time_s"] * 1.01
    np.savez(second, **held)
    assert same(run(counting, store=store), straight)
    assert counting.asked() == [spans(2000)[1][0]]


@pytest.mark.parametrize("said", ["", "{", "[" * 100_000, "[]", "\0"])
def test_a_folder_whose_question_is_damaged_is_refused(tmp_path, said):
    open_store(tmp_path / "work", "question")
    (tmp_path / "work" / "question.json").write_text(said)
    with pytest.raises(InputError, match="no folder of a sweep's chunks"):
        open_store(tmp_path / "work", "question")


def test_a_chunk_that_can_not_be_read_is_evaluated_again(counting, tmp_path):
    store = open_store(tmp_path / "work", "question")
    straight = list(run(counting, store=store))
    counting.asked()
    broken = sorted((tmp_path / "work").glob("chunk-*.npz"))[2]
    broken.write_bytes(broken.read_bytes()[:100])
    assert same(run(counting, store=store), straight)
    assert counting.asked() == [spans(2000)[2][0]]


def test_chunks_of_another_question_are_refused(tmp_path):
    asked = {"prompt_tokens": 64, "batch": [1, 2]}
    jc.sweep("bert-base-uncased", "a100", resume=tmp_path / "work", **asked)
    jc.sweep("bert-base-uncased", "a100", resume=tmp_path / "work", **asked)
    others = ({"batch": [1, 3]}, {"prompt_tokens": 65}, {"clock_mhz": 900}, {"changes": {"sm_count": 100}},
              {"site": Site(price_per_kwh=1.0)})  # fmt: skip
    for other in others:
        with pytest.raises(InputError, match="holds chunks of another sweep"):
            jc.sweep("bert-base-uncased", "a100", resume=tmp_path / "work", **{**asked, **other})
    with pytest.raises(InputError, match="holds chunks of another sweep"):
        jc.sweep("bert-large-uncased", "a100", resume=tmp_path / "work", **asked)


def test_folders_that_hold_something_else_are_left_alone(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match="is not empty and holds no sweep"):
        open_store(tmp_path, "question")
    with pytest.raises(InputError, match="can't keep chunks in"):
        open_store(tmp_path / "notes.txt", "question")
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_processes_give_the_same_bits_and_one_that_dies_is_replaced(counting, tmp_path):
    straight = list(run(counting))
    counting.asked()
    dying = Counting(counting.space, counting.folder, ends_at=700)
    store = open_store(tmp_path / "work", "question")
    assert same(run(dying, store=store, workers=2), straight)
    assert (counting.folder / "ended").exists()
    assert set(counting.asked()) == {start for start, _ in spans(2000)}
    assert len(list((tmp_path / "work").glob("chunk-*.npz"))) == len(spans(2000))
