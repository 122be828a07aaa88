"""Power over time: the queue, the order of launches, conservation, meters, charts and traces."""

from __future__ import annotations

import gzip
import json
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import joulecast as jc
from command_line import run
from joulecast.errors import InputError, UnknownNameError
from joulecast.physics.metering import Meter, low_pass_w, readings, trailing_mean_w
from joulecast.physics.timeline import pass_time_s
from joulecast.physics.trace import gaps_s, queue_starts_s
from joulecast.physics.unroll import launch_count, unrolled
from joulecast.reports import perfetto
from joulecast.scenarios.timeline_chart import chart_tables
from joulecast.scenarios.timeline_rows import LAUNCH, PASS, REST, WAIT

costs = st.lists(st.tuples(st.floats(0, 10), st.floats(0, 10)), min_size=1, max_size=30)


def test_a_launch_starts_when_its_host_and_the_one_before_are_done():
    # Host done at 3, 4, 5; the GPU runs 3-4, 4-9, 9-10.
    host, gpu = np.array([3.0, 1.0, 1.0]), np.array([1.0, 5.0, 1.0])
    np.testing.assert_allclose(queue_starts_s(host, gpu), [3, 4, 9])


@given(costs)
def test_the_queue_is_what_a_loop_over_launches_gives(pairs):
    host, gpu = (np.array(one) for one in zip(*pairs, strict=True))
    done, free, expected = 0.0, 0.0, []
    for of_host, of_gpu in pairs:
        done += of_host
        expected.append(max(done, free))
        free = expected[-1] + of_gpu
    np.testing.assert_allclose(queue_starts_s(host, gpu), expected, atol=1e-9)


@given(costs)
def test_waits_fill_the_pass_and_keep_the_proportions_of_the_walk(pairs):
    host, gpu = (np.array(one) for one in zip(*pairs, strict=True))
    pass_s = float(pass_time_s(gpu.sum(), host.sum()))
    gaps, scale = gaps_s(host, gpu, pass_s)
    assert (gaps >= 0).all()
    assert scale >= 0
    assert gaps.sum() + gpu.sum() == pytest.approx(pass_s, rel=1e-9, abs=1e-9)


def test_a_slow_host_needs_hardly_any_reconciling():
    # 1,000 launches of 10 us each on a host of 50 us: the walk ends one kernel after the host.
    gaps, scale = gaps_s(np.full(1000, 50e-6), np.full(1000, 10e-6), float(pass_time_s(10e-3, 50e-3)))
    assert scale == pytest.approx(1, abs=1e-3)
    np.testing.assert_allclose(gaps[1:], 40e-6, rtol=1e-3)


def test_a_pass_longer_than_its_kernels_with_a_host_that_costs_nothing_waits_first():
    gaps, _ = gaps_s(np.zeros(3), np.ones(3), 4.0)
    np.testing.assert_allclose(gaps, [1, 0, 0])


def test_layers_are_laid_out_one_by_one():
    order = unrolled(np.array([1.0, 2, 2, 1]), ["embed", "layers.*.a", "layers.*.b", "head"])
    assert order.row.tolist() == [0, 1, 2, 1, 2, 3]
    assert order.repeat.tolist() == [-1, 0, 0, 1, 1, -1]


def test_alternatives_of_a_layer_take_their_share_of_the_rounds():
    # 1 layer with a dense network, then 2 with experts.
    order = unrolled(np.array([3.0, 1, 2, 3]), ["l.*.norm", "l.*.mlp", "l.*.moe", "l.*.add"])
    assert order.row.tolist() == [0, 1, 3, 0, 2, 3, 0, 2, 3]
    assert order.repeat.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]


def test_kinds_of_attention_alternate():
    order = unrolled(np.array([4.0, 2, 2]), ["l.*.norm", "l.*.attention.window", "l.*.attention.full"])
    assert order.row.tolist() == [0, 1, 0, 2, 0, 1, 0, 2]


def test_layers_after_one_that_is_spelled_out_count_on():
    order = unrolled(np.array([1.0, 2]), ["stages.0.0.conv", "stages.0.*.conv"])
    assert order.repeat.tolist() == [-1, 1, 2]


def test_an_operation_that_runs_twice_a_layer_stays_in_its_layer():
    order = unrolled(np.array([2.0, 4]), ["l.*.a", "l.*.b"])
    assert order.row.tolist() == [0, 1, 1, 0, 1, 1]
    assert order.repeat.tolist() == [0, 0, 0, 1, 1, 1]


@given(st.lists(st.tuples(st.sampled_from(["a", "l.*.a", "l.*.attention", "m.*.b"]), st.floats(0, 9)), max_size=12))
def test_every_count_is_kept(pairs):
    count = np.array([often for _, often in pairs])
    order = unrolled(count, [path for path, _ in pairs])
    assert order.row.size == launch_count(count)
    kept = np.bincount(order.row, weights=order.weight, minlength=len(pairs)) if pairs else np.zeros(0)
    np.testing.assert_allclose(kept, np.where(count > 1e-9, count, 0), atol=1e-9)


STEPS = np.array([1.0, 1.0]), np.array([100.0, 300.0])


def test_a_trailing_mean_is_the_mean_over_its_window():
    at = np.array([0.5, 1.0, 1.5, 2.0])
    # Idle at 50 W before: (0.5 x 50 + 0.5 x 100), 100, (0.5 x 100 + 0.5 x 300), 300 W.
    np.testing.assert_allclose(trailing_mean_w(*STEPS, at, 1.0, 50.0), [75, 100, 200, 300])
    np.testing.assert_allclose(trailing_mean_w(*STEPS, at, 1.0, np.nan), [200, 100, 200, 300])


@pytest.mark.parametrize("turns", [1, 3, 7])
def test_a_window_of_whole_passes_shows_their_mean(turns):
    np.testing.assert_allclose(trailing_mean_w(*STEPS, np.linspace(0, 2, 9), 2.0 * turns, np.nan), 200)


def test_a_low_pass_answers_a_step_as_the_textbook_says():
    # 1 - 1/e after one time constant.
    steps = np.array([5.0]), np.array([100.0])
    shown = low_pass_w(*steps, np.array([1.0]), 1.0, 0.0)
    assert shown[0] == pytest.approx(100 * (1 - np.exp(-1)))


def test_a_low_pass_of_repeated_steps_ends_where_it_began_and_keeps_their_mean():
    at = np.linspace(0, 2, 20001)
    shown = low_pass_w(*STEPS, at, 0.7, np.nan)
    assert shown[0] == pytest.approx(shown[-1])
    assert np.trapezoid(shown, at) / 2 == pytest.approx(200, rel=1e-6)


def test_a_meter_of_a_short_pass_shows_its_mean():
    at, shown = readings(STEPS[0] * 1e-4, STEPS[1], Meter(0.1, 0.1), np.nan)
    assert at[-1] == pytest.approx(2e-4)
    np.testing.assert_allclose(shown, 200, rtol=0.01)


def test_a_meter_of_a_long_run_updates_and_starts_from_idle():
    at, shown = readings(np.array([0.35]), np.array([400.0]), Meter(0.1, 0.1), 60.0)
    np.testing.assert_allclose(at, [0, 0.1, 0.2, 0.3])
    np.testing.assert_allclose(shown, [60, 400, 400, 400])


def test_a_meter_that_looks_a_quarter_of_the_time_misses_the_rest():
    # 75 ms at 100 W, then 25 ms at 300 W, over and over: a window of 25 ms every 100 ms shows 300 W, the mean is 150.
    steps = np.tile([0.075, 0.025], 10), np.tile([100.0, 300.0], 10)
    _, shown = readings(*steps, Meter(0.025, 0.1), 100.0)
    np.testing.assert_allclose(shown[1:], 300)


@pytest.mark.parametrize("options", [{"window_s": 0}, {"update_s": -1}, {"window_s": float("nan")}, {"filter": "fir"}])
def test_meters_that_cannot_be_are_refused(options):
    with pytest.raises(InputError):
        Meter(**options)


LLM = "meta-llama/Llama-3.1-8B"
CASES = {
    "prefill and decode": (LLM, "h100", {"batch": 8, "prompt_tokens": 512, "generate_tokens": 40}),
    "host-bound": ("bert-base-uncased", "h100", {"prompt_tokens": 128}),
    "no host": ("bert-base-uncased", "h100", {"prompt_tokens": 128, "host_us_per_launch": 0}),
    "throttled": (LLM, "h100", {"batch": 8, "prompt_tokens": 2048, "power_limit_w": 400}),
    "graph": (LLM, "a100", {"prompt_tokens": 64, "generate_tokens": 9, "launch_mode": "cuda_graph"}),
    "tensor parallel": (LLM, "a100", {"prompt_tokens": 64, "generate_tokens": 9, "tp": 4}),
    "pipeline": (LLM, "a100", {"prompt_tokens": 64, "generate_tokens": 9, "tp": 2, "pp": 2}),
    "microbatches": (LLM, "a100", {"prompt_tokens": 64, "generate_tokens": 9, "pp": 4, "microbatches": 3, "dp": 2}),
    "convolutions": ("resnet50", "a10", {"batch": 8}),
    "experts": ("mistralai/Mixtral-8x7B-v0.1", "h100", {"prompt_tokens": 64, "generate_tokens": 3,
                                                        "ignore_memory": True}),
    "eager attention": ("gpt2", "v100", {"prompt_tokens": 64, "attention": "eager"}),
}  # fmt: skip


@pytest.fixture(scope="module")
def predictions():
    return {name: jc.predict(model, gpu, **options) for name, (model, gpu, options) in CASES.items()}


@pytest.mark.parametrize("passes", ["some", "all", "none"])
@pytest.mark.parametrize("name", CASES)
def test_a_timeline_has_the_time_and_the_energy_of_its_prediction(name, passes, predictions):
    p = predictions[name]
    t = p.timeline(passes=passes)
    assert t.time_s == pytest.approx(p.time_s, rel=1e-9)
    assert t.layout_energy_j == pytest.approx(p.energy_j, rel=1e-9)
    for code, phase in enumerate(p.phases):
        mine = t.phase == code
        assert t.duration_s[mine].sum() == pytest.approx(phase.time_s, rel=1e-9)
        assert (t.duration_s * t.layout_power_w)[mine].sum() == pytest.approx(phase.energy_j, rel=1e-9)
    np.testing.assert_allclose(t.start_s[1:], (t.start_s + t.duration_s)[:-1], rtol=1e-9)
    assert (t.duration_s > 0).all()
    assert (t.power_w > 0).all()
    assert ((t.duty >= 0) & (t.duty <= 1)).all()
    assert (t.meter_w <= t.peak_power_w * (1 + 1e-9)).all()
    assert t.power_w.max() <= t.peak_power_w * (1 + 1e-9)
    if name != "microbatches":
        idle_s = sum(phase.idle_share * phase.time_s for phase in p.phases)
        assert t.waiting_share == pytest.approx(idle_s / p.time_s, rel=1e-6, abs=1e-9)


@settings(max_examples=25, deadline=None)
@given(
    ops=st.lists(
        st.fixed_dictionaries(
            {
                "op": st.just("gemm"),
                "dtype": st.sampled_from(["bf16", "fp32"]),
                "m": st.integers(1, 4096),
                "n": st.integers(1, 4096),
                "k": st.integers(1, 4096),
                "count": st.integers(1, 6),
                "layer": st.sampled_from(["layers.*.a", "layers.*.b", "stem", "layers.*.attention"]),
            }
        ),
        min_size=1,
        max_size=8,
    ),
    host_us=st.floats(0, 50),
    limit_w=st.floats(150, 700),
)
def test_any_list_of_operations_keeps_its_energy(ops, host_us, limit_w):
    p = jc.predict(ops, "h100", host_us_per_launch=host_us, power_limit_w=limit_w)
    t = p.timeline()
    assert t.time_s == pytest.approx(p.time_s, rel=1e-9)
    assert t.energy_j == pytest.approx(p.energy_j, rel=1e-9)
    assert (t.what == LAUNCH).sum() == sum(one["count"] for one in ops)
    np.testing.assert_allclose(t.start_s[1:], (t.start_s + t.duration_s)[:-1])


def test_every_launch_of_a_pass_is_there(predictions):
    p = predictions["host-bound"]
    t = p.timeline()
    runs = np.bincount(t.row[t.what == LAUNCH], minlength=p.kernels["count"].size)
    np.testing.assert_allclose(runs, p.kernels["count"])
    assert t.kernels_started().sum() == pytest.approx(p.launches)
    layers = list(dict.fromkeys(one.split(".")[1] for one in t.texts("layer") if one.startswith("layers.")))
    assert layers == [str(i) for i in range(12)]


def test_a_slow_host_leaves_gaps_at_idle_power_between_launches(predictions):
    t = predictions["host-bound"].timeline()
    waits = t.what == WAIT
    assert waits.sum() > 0.5 * (t.what == LAUNCH).sum()
    assert np.unique(t.power_w[waits]).size == 1
    assert t.power_w[waits].max() < t.power_w[~waits].min()
    assert t.queue_scale["forward"][0] == pytest.approx(1, abs=0.05)


def test_first_middle_and_last_passes_are_laid_out_and_the_context_grows(predictions):
    t = predictions["prefill and decode"].timeline()
    decode = t.phase == 1
    assert sorted(set(t.pass_number[decode & (t.what == LAUNCH)].tolist())) == [0, 19, 38]
    assert (t.what[decode] == PASS).sum() == 39 - 3
    of_pass = [t.duration_s[decode & (t.pass_number == number)].sum() for number in (0, 38)]
    assert of_pass[1] >= of_pass[0]


def test_rows_are_bounded_and_that_is_told(predictions):
    p = predictions["prefill and decode"]
    t = p.timeline(passes="all", max_events=6000)
    assert len(t) <= 7000
    assert "more than 6,000 rows" in " ".join(t.notes)
    few = p.timeline(max_events=5)
    assert (few.what == PASS).all()
    assert few.passes.sum() == 40
    assert any("as wholes" in note for note in few.notes)
    assert few.layout_energy_j == pytest.approx(p.energy_j)


def test_one_phase_alone(predictions):
    p = predictions["prefill and decode"]
    t = p.timeline(phase="decode")
    assert t.time_s == pytest.approx(p.phases[1].time_s)
    with pytest.raises(UnknownNameError, match="decode"):
        p.timeline(phase="decod")


def test_one_gpu_of_several_is_told(predictions):
    t = predictions["tensor parallel"].timeline()
    assert "one GPU's trace of 4" in " ".join(t.notes)
    assert "nccl" in t.texts("op")
    np.testing.assert_allclose(t.layout_power_w, 4 * t.power_w, rtol=1e-6)


def test_stages_that_wait_are_in_the_power_of_the_layout(predictions):
    t = predictions["pipeline"].timeline()
    others = t.layout_power_w - 2 * t.power_w
    assert others.min() > 0


def test_other_microbatches_are_the_rest_of_each_pass(predictions):
    p = predictions["microbatches"]
    t = p.timeline(passes="all")
    rest = t.what == REST
    assert rest.sum() == 1 + 8
    assert t.power_w[rest].max() <= p.power_w / p.gpu_count * 1.5
    assert "goes with one microbatch" in " ".join(t.notes)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"passes": "few"}, "choice of passes"), ({"max_events": 0}, "max_events"), ({"max_events": 1.5}, "max_events")],
)
def test_choices_that_cannot_be_are_refused(options, message, predictions):
    with pytest.raises(InputError, match=message):
        predictions["host-bound"].timeline(**options)


def test_a_prediction_from_elsewhere_is_refused():
    from predictions import llama

    with pytest.raises(InputError, match="does not carry its launches"):
        llama().timeline()


@settings(max_examples=20, deadline=None)
@given(columns=st.integers(1, 500))
def test_a_chart_shows_all_the_energy(columns, predictions):
    t = predictions["host-bound"].timeline()
    tables = chart_tables(t, columns)
    energy = sum((row["end_s"] - row["start_s"]) * row["power_w"] for row in tables["power"])
    assert energy == pytest.approx(t.energy_j)
    assert all(row["low_w"] <= row["power_w"] * (1 + 1e-9) for row in tables["power"])
    assert all(row["high_w"] >= row["power_w"] * (1 - 1e-9) for row in tables["power"])
    strip = tables["families"]
    assert strip[0]["start_s"] == 0
    assert strip[-1]["end_s"] == pytest.approx(t.time_s)
    assert all(a["end_s"] == b["start_s"] for a, b in pairwise(strip))


def check_trace(document):
    """The rules of the trace event format that a viewer goes by."""
    events = document["traceEvents"]
    for event in events:
        assert event["ph"] in "MXC"
        assert isinstance(event["name"], str)
        assert isinstance(event["pid"], int)
        if event["ph"] == "M":
            assert event["name"] in ("process_name", "thread_name", "thread_sort_index")
            assert event["args"]
            continue
        assert isinstance(event["ts"], int | float)
        assert event["ts"] >= 0
        if event["ph"] == "X":
            assert event["dur"] >= 0
            assert isinstance(event["tid"], int)
        else:
            assert all(isinstance(value, int | float) for value in event["args"].values())
    threads = {event["tid"] for event in events if event["ph"] == "X"}
    assert threads <= {event["tid"] for event in events if event["name"] == "thread_name"}
    for thread in threads:  # slices of a thread nest or follow each other
        spans = [(e["ts"], -e["dur"]) for e in events if e["ph"] == "X" and e["tid"] == thread]
        open_ = []
        for start, length in sorted(spans):
            while open_ and open_[-1] <= start + 5e-4:
                open_.pop()
            assert not open_ or start - length <= open_[-1] + 2e-3
            open_.append(start - length)
    return events


@pytest.mark.parametrize("name", ["prefill and decode", "host-bound", "convolutions", "tensor parallel"])
def test_the_trace_follows_the_rules_of_its_format(name, predictions, tmp_path):
    from joulecast.cli.timeline import trace

    t = predictions[name].timeline()
    text = b"".join(trace(t)).decode("utf-8")
    events = check_trace(json.loads(text))
    kernels = [event for event in events if event["ph"] == "X" and event["tid"] == perfetto.GPU]
    assert len(kernels) == (t.what != WAIT).sum()
    power = [event for event in events if event["ph"] == "C" and event["name"] == "power [W]"]
    at = np.array([event["ts"] for event in power])
    watts = np.array([event["args"]["W"] for event in power])
    assert at[-1] == pytest.approx(t.time_s * 1e6, abs=0.01)
    assert watts[:-1] @ np.diff(at) * 1e-6 == pytest.approx(t.energy_j, rel=1e-3)
    names = {event["name"] for event in events if event["ph"] == "C"}
    assert names == {"power [W]", "clock [MHz]", "busy [%]", "100 ms meter [W]"}
    busy = [event["args"] for event in events if event["name"] == "busy [%]"]
    assert all({"DRAM", "tensor core", "L2"} <= set(args) for args in busy)
    assert all(0 <= value <= 100 for args in busy for value in args.values())
    model = [event for event in events if event["ph"] == "X" and event["tid"] == perfetto.MODEL]
    phases = [event for event in model if event["name"] in t.phases]
    assert sum(event["dur"] for event in phases) <= t.time_s * 1e6 + 0.01


ASK = ("predict", "bert-base-uncased", "--gpu", "a100", "--prompt", "128")


@pytest.mark.parametrize("ending", ["json", "json.gz", "csv", "parquet"])
def test_files_by_their_ending(ending, tmp_path, capsys):
    path = tmp_path / f"power.{ending}"
    code, out, _ = run(capsys, *ASK, "--timeline", str(path), "--meter-ms", "25/100")
    assert code == 0
    assert "25 ms meter every 100 ms" in out
    data = path.read_bytes()
    if ending.startswith("json"):
        check_trace(json.loads(gzip.decompress(data) if ending.endswith("gz") else data))
    elif ending == "csv":
        head = data.decode().splitlines()[0].split(",")
        assert head[:5] == ["start_s", "duration_s", "power_w", "layout_power_w", "energy_j"]
    else:
        assert data[:4] == b"PAR1"
    assert [one.name for one in tmp_path.iterdir()] == [path.name]


def test_a_chart_is_drawn(tmp_path, capsys):
    pytest.importorskip("altair")
    pytest.importorskip("vl_convert")
    path = tmp_path / "power.svg"
    code, _, _ = run(capsys, *ASK, "--timeline", str(path))
    assert code == 0
    text = path.read_text(encoding="utf-8")
    for word in ("power [W]", "100 ms meter", "power limit", "tensor core", "time [ms]", "in the launch that draws"):
        assert word in text


def test_the_json_document_has_the_figures(capsys):
    code, out, _ = run(capsys, *ASK, "--timeline", "-", "--json")
    assert code == 0
    found = json.loads(out)["predictions"][0]
    over_time = found["power_over_time"]
    assert over_time["mean_power_w"] == pytest.approx(found["total"]["power_w"])
    assert over_time["peak_power_w"] >= over_time["meter_highest_w"] >= over_time["meter_lowest_w"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--timeline", "power.xyz"], "can't tell the format"),
        (["--timeline", "power"], "can't tell the format"),
        (["--timeline", "no/such/folder/a.json"], "folder does not exist"),
        (["--timeline-passes", "all"], "goes with --timeline"),
        (["--meter-ms", "100"], "goes with --timeline"),
        (["--timeline", "-", "--meter-ms", "fast"], "--meter-ms takes a window"),
        (["--timeline", "-", "--meter-ms", "0"], "--meter-ms"),
        (["--timeline", "-", "--timeline-phase", "decode"], "unknown phase"),
        (["--timeline", "-", "--gpu", "h100"], "one GPU"),
        (["--timeline", "-", "--clock", "900,1410"], "one GPU"),
    ],
)
def test_flags_that_make_no_sense_are_refused(flags, message, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    code, _, err = run(capsys, *ASK, *flags)
    assert code == 2
    assert message in err
    assert not list(tmp_path.iterdir())
