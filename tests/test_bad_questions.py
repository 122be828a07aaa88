"""What can't be asked is refused in one line, before anything is written; what can is told within the page."""

import itertools
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool

import pytest

import joulecast as jc
from command_line import refused
from joulecast.bounds.ranges import beyond_settable
from joulecast.cli import main
from joulecast.cli.with_options import argument
from joulecast.errors import InputError
from joulecast.gpus import load_gpu
from joulecast.lowering.execution import Execution
from joulecast.scenarios import summary
from joulecast.scenarios.memory import memory_need
from joulecast.scenarios.sweep import question, run

MODEL = "meta-llama/Llama-3.2-1B"


@pytest.mark.parametrize("train", [(), ("--train",)])
@pytest.mark.parametrize("given", ["batch=x", "foo=1", "tp=x", "power-limit=x", "slack=1", "site=3", "gpu=h100"])
def test_explain_refuses_what_is_no_option(capsys, train, given):
    refused(capsys, "explain", MODEL, "--gpu", "a100", *train, "--with", given)


@pytest.mark.parametrize("given", ["micro_batch=x", "gpus=x", "global-batch=x", "node-link=x", "changes=3"])
def test_explain_refuses_what_is_no_value_of_training(capsys, given):
    refused(capsys, "explain", MODEL, "--gpu", "a100", "--train", "--with", given)


def test_with_takes_the_names_of_flags_too(capsys):
    assert argument("--power-limit") == argument("power_limit_w") == "power_limit_w"
    assert argument("zero") == "zero"
    answers = []
    for given in (("clock=900", "launch=cuda-graph"), ("clock_mhz=900", "launch_mode=cuda_graph")):
        assert main(["explain", MODEL, "--gpu", "a100", "--with", given[0], "--with", given[1]]) == 0
        answers.append(capsys.readouterr().out)
    assert answers[0] == answers[1]
    line = refused(capsys, "explain", MODEL, "--gpu", "a100", "--with", "clock=900", "--with", "clock_mhz=900")
    assert "twice" in line


def test_explain_asks_of_replicas_what_predict_answers():
    """Two replicas share the batch, here as there."""
    asked = {"batch": 8, "dp": 2, "prompt_tokens": 64}
    told = jc.explain(MODEL, "a100", **asked).base
    predicted = jc.predict(MODEL, "a100", **asked)
    assert (told.time_s, told.energy_j) == (predicted.time_s, predicted.energy_j)


@pytest.mark.parametrize("asked", [{"batch": "x", "dp": 2}, {"batch": 1.5, "dp": 2}, {"batch": 4, "dp": None}])
def test_a_batch_that_is_no_number_is_refused(asked):
    with pytest.raises(InputError, match="must be a whole number"):
        jc.predict(MODEL, "a100", **asked)


def test_nothing_is_written_where_the_answer_cannot_be(capsys, tmp_path):
    gone = str(tmp_path / "gone" / "answer.json")
    chart, table, folder = tmp_path / "power.json", tmp_path / "passes.csv", tmp_path / "own"
    refused(capsys, "predict", MODEL, "--gpu", "a100", "--timeline", str(chart), "--output", gone)
    table.write_text(f"model,gpu,time_s,prompt_tokens\n{MODEL},a100,0.03,64\n{MODEL},a100,0.031,65\n")
    refused(capsys, "calibrate", "--passes", str(table), "--out", str(folder), "--output", gone)
    assert not chart.exists()
    assert not folder.exists()
    line = refused(capsys, "predict", MODEL, "--gpu", "a100", "--timeline", str(tmp_path / "gone" / "power.svg"))
    assert "its folder does not exist" in line


def test_two_answers_do_not_go_to_one_file(capsys, tmp_path):
    both = str(tmp_path / "power.json")
    assert "same file" in refused(capsys, "predict", MODEL, "--gpu", "a100", "--timeline", both, "--output", both)


def test_a_currency_of_no_price_is_refused(capsys):
    assert "--price" in refused(capsys, "predict", MODEL, "--gpu", "a100", "--currency", "EUR")


@pytest.mark.parametrize(
    ("flags", "list_of_them"),
    [
        (("--gpu", "zzzzzz"), "joulecast gpus lists them"),
        (("--gpu", "a100", "--set", "zzzzzz=1"), "joulecast gpus show NAME lists them"),
    ],
)
def test_a_name_unlike_any_tells_where_names_are(capsys, flags, list_of_them):
    assert list_of_them in refused(capsys, "predict", MODEL, *flags)
    assert "joulecast models lists them" in refused(capsys, "predict", "zzzzzz", "--gpu", "a100")


def test_a_limit_that_the_driver_sets_is_worked_out_whatever_idle_takes():
    """A board whose lowest limit lies below its idle power at full clock settles at a low clock."""
    board = load_gpu("rtx-3090")
    assert board.power_limit_min_w < board.idle_w
    capped = jc.predict(MODEL, "rtx-3090", prompt_tokens=64, power_limit_w=board.power_limit_min_w)
    assert capped.power_w <= board.power_limit_min_w
    assert not capped.warnings
    swept = jc.sweep(MODEL, ["rtx-3090"], prompt_tokens=64, power_limit_w=[board.power_limit_min_w])
    assert swept.best("time")["time_s"] == pytest.approx(capped.time_s, rel=1e-9)
    with pytest.raises(InputError, match="not above the idle power"):
        jc.predict(MODEL, "rtx-3090", prompt_tokens=64, power_limit_w=board.power_limit_min_w - 1)


def test_a_limit_that_no_driver_sets_is_told():
    assert beyond_settable(100, 100, 400, "GPU") == beyond_settable(400, 100, 400, "GPU") == ()
    (below,) = jc.predict(MODEL, "a100", prompt_tokens=64, power_limit_w=95).warnings
    assert below == "A100-SXM-80GB can't be set below 100 W, 95 W were asked for"
    (above,) = jc.train(MODEL, "a100", sequence_tokens=64, power_limit_w=450).warnings
    assert above == "A100-SXM-80GB can't be set above 400 W, 450 W were asked for"


def test_experts_of_a_model_without_are_told():
    (warning,) = jc.predict(MODEL, "a100", prompt_tokens=64, tp=2, ep=2).warnings
    assert "has no experts" in warning


def test_what_tensor_parallelism_does_not_divide_stays_whole_in_memory():
    """A convolutional network has no heads to divide over: each GPU holds all of it, and no degree makes it fit."""
    gpu = load_gpu("h100")
    network = jc.workload("resnet50", batch=64)
    alone, divided = (memory_need(network, gpu, Execution(tp=tp)) for tp in (1, 8))
    assert alone == divided
    with pytest.raises(jc.InfeasibleError) as caught:
        jc.predict("resnet50", "h100", image_size=100_000)
    assert "tp=" not in str(caught.value)
    decoder = jc.workload(MODEL, batch=64)
    halves = [memory_need(decoder, gpu, Execution(tp=tp)).weights_gb for tp in (1, 2)]
    assert halves[1] == halves[0] / 2


def test_a_sweep_tells_the_memory_that_predict_tells_of_experts():
    """Experts over the GPUs of several replicas: each holds its share of them, here as there."""
    model, asked = "Qwen/Qwen3-30B-A3B", {"batch": 8, "prompt_tokens": 64, "dp": 4}
    swept = jc.sweep(model, ["h100"], ep=[1, 4], **asked).to_polars()
    for row in swept.to_dicts():
        alone = jc.predict(model, "h100", ep=row["ep"], **asked).memory
        assert row["memory_needed_gb"] == pytest.approx(alone.needed_gb, rel=1e-12)
    assert swept["memory_needed_gb"].to_list()[1] < 0.5 * swept["memory_needed_gb"].to_list()[0]


@pytest.mark.parametrize("clocks", ["100:400:50", "900,1200"])
def test_operating_points_stay_within_eighty_columns(capsys, clocks):
    for gpu, limit in itertools.product(("a100", "h100"), ("90,500", "300")):
        main(["predict", MODEL, "--gpu", gpu, "--prompt", "128", "--clock", clocks, "--power-limit", limit])
        assert max(map(len, capsys.readouterr().out.splitlines()), default=0) <= 80


def test_one_point_is_one_point(capsys):
    assert main(["sweep", MODEL, "--gpu", "a100", "--prompt", "64"]) == 0
    page = capsys.readouterr().out
    assert "1 point, 1 feasible" in page
    assert "front: time against energy, 1 point\n" in page
    assert ";\n" not in page


def test_a_pool_that_broke_before_it_was_asked_is_replaced(monkeypatch):
    """A process may die between two answers: the next span finds the pool broken, and is not lost."""
    asked = []

    class Pool:
        def submit(self, _, *span):
            asked.append(span)
            if len(asked) == 2:
                raise BrokenProcessPool("a process died")
            future = Future()
            if len(asked) == 1:
                future.set_exception(BrokenProcessPool("a process died"))
            else:
                future.set_result(evaluator.evaluate(*span))
            return future

        def shutdown(self, **_):
            pass

    monkeypatch.setattr(run, "_pool", lambda *_: Pool())
    evaluator = question.inference(MODEL, gpus=["a100"], prompt_tokens=64, clock_mhz=[600, 900, 1200, 1410])
    spans = [(0, 2), (2, 4)]
    chunks = list(run._processes(evaluator, spans, None, workers=2))
    assert [(chunk.start, chunk.start + len(chunk)) for chunk in chunks] == spans
    assert asked == [*spans, *spans]


def test_of_clocks_that_a_limit_makes_alike_the_first_is_the_fastest():
    workload = jc.workload(MODEL, batch=32, prompt_tokens=256)
    asked = [700.0, 1200.0, 1300.0, 1410.0]
    capped = [jc.predict(workload, "a100-pcie", power_limit_w=170, clock_mhz=clock) for clock in asked]
    settled = [one.phases[0].clock_mhz for one in capped]
    assert settled[0] < settled[1] == pytest.approx(settled[3], rel=5e-5)
    assert summary.fastest(capped) is summary.fastest(capped[1:]) is capped[1]
    assert summary.thriftiest(capped) in (capped[0], capped[1])


@pytest.mark.parametrize(("gpu", "limit"), [("l4", 50), ("a100-pcie", 170), ("h100", 320)])
def test_a_limit_settles_at_one_clock_whatever_clock_is_asked_for(gpu, limit):
    """The limit is kept and met to 3e-4, and a higher clock asked for neither gains nor loses by the way to it."""
    workload = jc.workload(MODEL, batch=32, prompt_tokens=256)
    highest = load_gpu(gpu).clock_max_mhz
    found = [
        jc.predict(workload, gpu, launch_mode="cuda_graph", power_limit_w=limit, clock_mhz=share * highest)
        for share in (0.85, 0.9, 0.95, 1.0)
    ]
    for one in found:
        assert one.phases[0].throttled
        assert limit * (1 - 3e-4) < one.power_w <= limit
        assert one.time_s == pytest.approx(found[-1].time_s, rel=5e-5)
