"""What is asked by mistake is refused in one line, not taken silently; another's code keeps to its place."""

from __future__ import annotations

import gzip
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

import joulecast as jc
from command_line import refused
from joulecast.cli import main
from joulecast.errors import InputError
from joulecast.scenarios.timeline import timeline
from joulecast.traces.read import read_profile
from joulecast.validation.serving_files import read_results

MODEL = "meta-llama/Llama-3.2-1B"


@pytest.mark.parametrize("name", ["foo", "amper", "hopper2"])
def test_an_architecture_that_no_gpu_has_is_refused(name: str) -> None:
    with pytest.raises(InputError, match="unknown architecture"):
        jc.load_gpu("a100", {"architecture": name})


def test_an_architecture_may_be_set_to_any_that_is_known() -> None:
    assert jc.load_gpu("a100", {"architecture": "Hopper"}).architecture == "hopper"


@pytest.mark.parametrize("site", [3, "world", {"pue": 1.2}])
def test_a_site_is_a_site(site: Any) -> None:
    asks = (
        lambda: jc.train(MODEL, "a100", site=site),
        lambda: jc.sweep(MODEL, "a100", site=site),
        lambda: jc.sweep_training(MODEL, "a100", site=site),
    )
    for ask in asks:
        with pytest.raises(InputError, match="site takes a"):
            ask()


def test_a_timeline_takes_a_prediction_and_a_meter() -> None:
    with pytest.raises(InputError, match="of a prediction"):
        timeline("a100")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="takes a Meter"):
        jc.predict("resnet-50", "a100").timeline(meter=3)  # type: ignore[arg-type]


@pytest.mark.parametrize("count", [0, -1, [1, 0]])
def test_energy_is_of_one_gpu_at_least(count: Any) -> None:
    with pytest.raises(InputError, match="gpu_count must be 1 or more"):
        jc.footprint(100.0, time_s=1.0, gpu_count=count, host_w=10.0)


@pytest.mark.parametrize("name", ["frozen_layers", "checkpointed_layers"])
def test_more_layers_than_a_model_has_are_refused(name: str) -> None:
    """Llama-3.2-1B has 16."""
    jc.train(MODEL, "a100", checkpointing="full", **{name: 16})
    with pytest.raises(InputError, match=f"{name} must be at most the 16 layers"):
        jc.train(MODEL, "a100", checkpointing="full", **{name: 17})


def test_limits_of_numbers_are_told() -> None:
    with pytest.raises(InputError, match="at most 16,777,216"):
        jc.train(MODEL, "a100", gpus=10**9)
    with pytest.raises(InputError, match="at most 1e18"):
        jc.train(MODEL, "a100", tokens=1e30)


@pytest.mark.parametrize(("pp", "chunks"), [(2, 3), (2, 100), (3, 1), (5, 4)])
def test_the_nearest_layout_that_is_told_divides(pp: int, chunks: int) -> None:
    asked: dict[str, Any] = {"schedule": "interleaved" if chunks > 1 else "1f1b", "global_batch": 60}
    with pytest.raises(InputError, match="the nearest that does is") as caught:
        jc.train(MODEL, "a100", gpus=pp, pp=pp, chunks=chunks, **asked)
    near = str(caught.value).partition("the nearest that does is pp=")[2].partition(";")[0].split(" x ")
    stages, pieces = int(near[0]), int(near[1].split()[0]) if len(near) > 1 else 1
    assert stages > 1
    assert 16 % (stages * pieces) == 0
    asked["global_batch"] = 2 * stages
    assert jc.train(MODEL, "a100", gpus=stages, pp=stages, chunks=pieces, **asked).step_time_s > 0


def test_stage_clocks_are_those_of_the_gpu_as_changed() -> None:
    asked: dict[str, Any] = {"gpus": 2, "pp": 2, "global_batch": 8, "micro_batch": 4}
    whole = jc.stage_clocks(MODEL, "a100", **asked)
    half = jc.stage_clocks(MODEL, "a100", changes={"sm_count": 54}, **asked)
    assert half.uniform[-1].time_s > 1.2 * whole.uniform[-1].time_s
    for name, value in (("clock_mhz", 900), ("power_limit_w", 200)):
        with pytest.raises(InputError, match=f"leave {name} out"):
            jc.stage_clocks(MODEL, "a100", **asked, **{name: value})


CODE = """
import sys
import torch

def leaves():
    sys.exit(0)

def leaves_in_forward():
    class Model(torch.nn.Module):
        def forward(self, x):
            sys.exit(3)
    return Model(), torch.zeros(4, 4)

def prints():
    print("made")
    class Model(torch.nn.Module):
        def forward(self, x):
            print("called")
            return x @ x
    return Model(), torch.zeros(4, 4)
"""


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    pytest.importorskip("torch")
    (tmp_path / "own_code_of_a_user.py").write_text(CODE)
    (tmp_path / "own_code_that_leaves.py").write_text("raise SystemExit(0)")
    monkeypatch.chdir(tmp_path)
    return "own_code_of_a_user"


def test_code_that_ends_python_gives_no_empty_answer(code: str, capsys: pytest.CaptureFixture[str]) -> None:
    for place in (f"{code}:leaves", f"{code}:leaves_in_forward", "own_code_that_leaves:make"):
        assert "ends Python before there is a model" in refused(capsys, "predict", "--module", place, "--gpu", "a100")


def test_what_code_prints_stays_out_of_the_answer(code: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "--module", f"{code}:prints", "--gpu", "a100", "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["schema"] == "joulecast.predict/1"
    assert "made" in err
    assert "called" in err


def test_an_interval_without_a_log_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "trace.json"
    trace.write_text('{"traceEvents": []}')
    line = refused(capsys, "attribute", str(trace), "--gpu", "a100", "--log-interval", "1")
    assert "--power-log" in line


@pytest.mark.parametrize(("gpu", "precision"), [("a100", "fp8"), ("v100", "bf16"), ("v100", "tf32"), ("v100", "fp8")])
def test_a_format_that_a_gpu_lacks_is_told_and_utilisation_is_of_what_runs(gpu: str, precision: str) -> None:
    """No GPU does more than its data sheet's rate: model FLOP over the peak is under one."""
    found = jc.train(MODEL, gpu, precision=precision)
    assert any(f"no {precision} arithmetic" in note for note in found.notes)
    assert 0 < found.mfu <= found.hfu < 1


def test_tensor_parallelism_that_divides_nothing_is_told() -> None:
    found = jc.train("resnet-50", "a100", gpus=2, tp=2, micro_batch=8)
    assert any("tp=2 divides nothing" in one for one in found.warnings)
    assert not jc.train(MODEL, "a100", gpus=2, tp=2).warnings


def test_lora_adapts_something() -> None:
    with pytest.raises(InputError, match="LoRA adapts"):
        jc.train("resnet-50", "a100", trainable="lora")
    with pytest.raises(InputError, match="lora_rank must be at most 2,048"):
        jc.train(MODEL, "a100", trainable="lora", lora_rank=100_000)
    # GPT-2's three projections are one product of 768 by 2,304; the fourth is 768 by 768, in each of 12 layers.
    found = jc.train("openai-community/gpt2", "a100", trainable="lora", lora_rank=8, sequence_tokens=128)
    assert found.info["trained_parameters"] == 12 * 8 * (768 + 2304 + 768 + 768)


def test_weights_that_learn_are_no_integers() -> None:
    with pytest.raises(InputError, match="frozen weights"):
        jc.train(MODEL, "a100", weight_dtype="int4")
    assert jc.train(MODEL, "a100", weight_dtype="int4", trainable="lora").step_time_s > 0


def kernel(start_us: float, time_us: float) -> dict[str, Any]:
    """A matrix product in a profiler trace."""
    name = "ampere_sgemm_128x64_tn"
    return {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": start_us, "dur": time_us, "args": {}}


def traced(folder: Path, *events: dict[str, Any]) -> str:
    path = folder / "kernels.json"
    path.write_text(json.dumps({"traceEvents": list(events)}))
    return str(path)


@pytest.mark.parametrize(("start_us", "time_us"), [(0.0, 1e30), (1e30, 5.0), (-1e300, 5.0), (0.0, 1e14)])
def test_events_of_impossible_times_are_damaged(tmp_path: Path, start_us: float, time_us: float) -> None:
    found = jc.attribute(traced(tmp_path, kernel(0.0, 50.0), kernel(start_us, time_us)), "a100")
    assert found.time_s == pytest.approx(50e-6)
    assert any("1 damaged event is left out" in note for note in found.notes)


@pytest.mark.parametrize("given", [3, None, [3], {"a": 1}])
def test_traces_are_files(given: Any) -> None:
    with pytest.raises(InputError, match="traces are files"):
        jc.attribute(given, "a100")


def test_a_trace_named_twice_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = traced(tmp_path, kernel(0.0, 50.0))
    assert "named twice" in refused(capsys, "attribute", path, path, "--gpu", "a100")
    assert main(["attribute", path, "--gpu", "a100"]) == 0
    assert "1 activity " in capsys.readouterr().out


def test_a_measured_power_beyond_the_boards_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An A100's limit is 400 W: 450 W are thinkable in a peak, 4,500 W on one are not."""
    path = tmp_path / "result.json"
    result = {"backend": "vllm", "model_id": MODEL, "completed": 10, "duration": 5.0, "total_input_tokens": 1000,
              "total_output_tokens": 1000, "request_throughput": 2.0, "output_throughput": 200.0,
              "mean_ttft_ms": 10.0, "mean_tpot_ms": 5.0, "mean_e2el_ms": 500.0}  # fmt: skip
    path.write_text(json.dumps(result))
    assert "can draw" in refused(capsys, "compare", str(path), "--gpu", "a100", "--measured-power", "4500")
    assert main(["compare", str(path), "--gpu", "a100", "--measured-power", "450"]) == 0


@pytest.mark.parametrize(
    "options",
    [
        {"scales": 3}, {"exclude": 3}, {"precision": ["bf16"]}, {"schedule": ["1f1b"]}, {"dropout": 0.1},
        {"master_weights": "no"}, {"channels_last": "no"}, {"sequence_parallel": "x"},
        {"trainable": "lora", "lora_targets": 3}, {"trainable": "lora", "lora_targets": [3]},
    ],
)  # fmt: skip
def test_options_of_training_of_another_kind_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        jc.train(MODEL, "a100", **options)


def test_one_target_of_lora_is_a_whole_name() -> None:
    """Not each part of it: `o_proj` is in no other name."""
    one, listed = (jc.train(MODEL, "a100", trainable="lora", lora_targets=given) for given in ("o_proj", ["o_proj"]))
    assert one.info["trained_parameters"] == listed.info["trained_parameters"] == 16 * 16 * (2048 + 2048)


def test_stage_clocks_refuse_what_is_no_pipeline() -> None:
    asked: dict[str, Any] = {"gpus": 2, "pp": 2}
    for given in (3, "ab", [8.5, 7.5], [16, 0]):
        with pytest.raises(InputError, match="stage_layers"):
            jc.stage_clocks(MODEL, "a100", stage_layers=given, **asked)
    with pytest.raises(InputError, match="global_batch"):
        jc.stage_clocks(MODEL, "a100", global_batch="x", **asked)
    with pytest.raises(InputError, match="like layers"):
        jc.stage_clocks("resnet-50", "a100", **asked)
    with pytest.raises(InputError, match="must be a number"):
        jc.stage_clocks(MODEL, "a100", **asked).saving("x")  # type: ignore[arg-type]


def test_arguments_of_another_kind_are_refused() -> None:
    asks: tuple[Any, ...] = (
        lambda: jc.explain(MODEL, "a100", training=True, slack="x"),  # type: ignore[arg-type]
        lambda: jc.sweep_training(MODEL, "a100", resume=3),  # type: ignore[arg-type]
        lambda: jc.use_coefficients(3),  # type: ignore[arg-type]
        lambda: jc.footprint([1.0, 2.0], time_s=[1.0, 2.0, 3.0], host_w=3),
    )
    for ask in asks:
        with pytest.raises(InputError):
            ask()


@pytest.mark.parametrize(
    ("time_s", "power_w", "says"),
    [
        ("104.1e3", "304", "step_time_s"),
        ("-1", "304", "step_time_s"),
        ("1e-9", "304", "step_time_s"),
        ("0.1", "304000", "power_w"),
    ],
)
def test_measured_steps_in_another_unit_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], time_s: str, power_w: str, says: str
) -> None:
    table = tmp_path / "steps.csv"
    table.write_text(f"model,gpu,micro_batch,step_time_s,power_w\ngpt2,a100-sxm-40gb,8,{time_s},{power_w}\n")
    line = refused(capsys, "calibrate", "--training", str(table), "--out", str(tmp_path / "out"))
    assert f"line 2: {says} must be above" in line
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("flag", "value", "needs"),
    [("--lora-rank", "8", "--trainable"), ("--checkpointed-layers", "3", "--checkpointing"),
     ("--shard-group", "4", "--zero"), ("--epochs", "3", "--samples"),
     ("--node-link", "50", "--gpus beyond a node of 8")],
)  # fmt: skip
def test_flags_that_would_change_nothing_are_refused(
    capsys: pytest.CaptureFixture[str], flag: str, value: str, needs: str
) -> None:
    assert f"without {needs}" in refused(capsys, "train", MODEL, "--gpu", "a100", "--gpus", "8", flag, value)


@pytest.mark.parametrize("flag", ["--single-process", "--gpus-per-node=4"])
def test_layouts_of_one_gpu_are_none(capsys: pytest.CaptureFixture[str], flag: str) -> None:
    assert "without --gpus of 2 or more" in refused(capsys, "train", MODEL, "--gpu", "a100", flag)


def test_a_sweep_refuses_options_that_none_of_its_points_looks_at(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("sweep", MODEL, "--gpu", "a100", "--train", "--with", "lora_rank=4,8", "--with")
    assert "without --trainable lora" in refused(capsys, *asked, "trainable=all,head")
    assert main([*asked, "trainable=all,lora"]) == 0


@pytest.mark.parametrize("model", ["resnet-50", "google/vit-base-patch16-224"])
def test_context_parallelism_divides_no_images(model: str) -> None:
    with pytest.raises(InputError, match="cp=2 divides sequences of tokens"):
        jc.train(model, "a100", gpus=2, cp=2)


@pytest.mark.parametrize("told", ["banana", "8", "8.0.1", "gfx942"])
def test_a_compute_capability_is_one(told: str) -> None:
    with pytest.raises(InputError, match=r"such as 8\.0"):
        jc.load_gpu("a100", {"compute_capability": told})
    assert jc.load_gpu("a100", {"compute_capability": "8.6"}).compute_capability == "8.6"


_KERNEL = {"ph": "X", "cat": "kernel", "name": "void gemm", "pid": 0, "tid": 7, "ts": 100.0, "dur": 50.0,
           "args": {"device": 0, "stream": 7, "correlation": 1}}  # fmt: skip


def test_what_is_read_is_not_written_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "trace.json"
    trace.write_text(json.dumps({"traceEvents": [_KERNEL]}))
    before, link = trace.read_bytes(), tmp_path / "link.json"
    link.symlink_to(trace)
    for flag in ("--output", "--perfetto"):
        for name in (trace, link, tmp_path / "." / "trace.json"):
            line = refused(capsys, "attribute", str(trace), "--gpu", "a100", flag, str(name))
            assert f"{flag} would write over" in line
    line = refused(capsys, "predict", "--trace", str(trace), "--gpu", "a100", "--output", str(trace))
    assert "would write over" in line
    assert trace.read_bytes() == before


def test_two_answers_of_any_verb_do_not_go_to_one_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace, one = tmp_path / "trace.json", str(tmp_path / "one.json")
    trace.write_text(json.dumps({"traceEvents": [_KERNEL]}))
    line = refused(capsys, "attribute", str(trace), "--gpu", "a100", "--perfetto", one, "--output", one)
    assert "--perfetto and --output name the same file" in line
    flame, gone = tmp_path / "f.svg", str(tmp_path / "gone" / "p.json")
    refused(capsys, "attribute", str(trace), "--gpu", "a100", "--flame", str(flame), "--perfetto", gone)
    assert not flame.exists()
    assert [path.name for path in tmp_path.iterdir()] == ["trace.json"]


def test_a_timeline_that_ends_in_gz_is_packed(tmp_path: Path) -> None:
    trace, packed = tmp_path / "trace.json", tmp_path / "p.json.gz"
    trace.write_text(json.dumps({"traceEvents": [_KERNEL]}))
    assert main(["attribute", str(trace), "--gpu", "a100", "--perfetto", str(packed)]) == 0
    assert json.loads(gzip.decompress(packed.read_bytes()))["traceEvents"]


def test_shapes_that_no_memory_holds_are_damaged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    size = 10**15
    operator = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 90, "dur": 5,
                "args": {"Input Dims": [[size, size], [size, size]], "Input type": ["float", "float"]}}  # fmt: skip
    trace = tmp_path / "trace.json"
    trace.write_text(json.dumps({"traceEvents": [operator]}))
    assert "nothing can be priced" in refused(capsys, "predict", "--trace", str(trace), "--gpu", "a100")


@pytest.mark.parametrize("damage", ["values('x', NULL, 0)", "values(1e300, 9e999, 0)", "values(1, 2, 'x')"])
def test_damaged_rows_of_an_export_are_left_out_and_told(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "report.sqlite"
    database = sqlite3.connect(path)
    database.execute("create table StringIds(id, value)")
    database.execute("create table CUPTI_ACTIVITY_KIND_KERNEL(start, end, deviceId)")
    database.execute("insert into StringIds values('x', 'gemm')")
    database.execute("insert into CUPTI_ACTIVITY_KIND_KERNEL values(100, 350, 0)")
    database.execute(f"insert into CUPTI_ACTIVITY_KIND_KERNEL {damage}")
    database.commit()
    database.close()
    profile = read_profile(path)
    assert profile.activities.time_s.tolist() == pytest.approx([250e-9])
    assert "2 damaged rows are left out" in profile.notes


def test_an_export_without_times_has_no_kernels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "report.sqlite"
    database = sqlite3.connect(path)
    database.execute("create table CUPTI_ACTIVITY_KIND_KERNEL(a)")
    database.execute("insert into CUPTI_ACTIVITY_KIND_KERNEL values(1)")
    database.commit()
    database.close()
    assert "1 damaged row is left out" in refused(capsys, "attribute", str(path), "--gpu", "a100")


def test_a_folder_without_coefficients_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "readme.txt").write_text("nothing here")
    line = refused(capsys, "predict", MODEL, "--gpu", "a100", "--coefficients", str(tmp_path))
    assert "holds no coefficient file" in line
    with pytest.raises(InputError, match="holds no coefficient file"):
        jc.use_coefficients(tmp_path)


def test_measured_figures_that_cannot_be_are_told(tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    figures = {"completed": 10, "duration": -1.0, "total_input_tokens": 1000, "total_output_tokens": 1000}
    told = {"model_id": MODEL, "seed": -1, "request_rate": float("inf"), "max_concurrency": 1}
    result.write_text(json.dumps({**told, **figures, "mean_ttft_ms": float("nan"), "mean_tpot_ms": 5.0}))
    (found,) = read_results(result)
    assert found.notes[-1] == "left out, for they can't be: duration = -1, mean_ttft_ms = nan"


def test_images_are_counted_as_images(capsys: pytest.CaptureFixture[str]) -> None:
    assert "as samples" in refused(capsys, "train", "resnet-50", "--gpu", "a100", "--tokens", "1e9")
    assert main(["train", "resnet-50", "--gpu", "a100", "--samples", "1e6"]) == 0
    out = capsys.readouterr().out
    assert " J an image" in out
    assert all(len(line) <= 80 for line in out.splitlines())


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["audit", ""], "FILE|DIR"),
        (["attribute", "", "--gpu", "a100"], "TRACE..."),
        (["predict", "gpt2", "--gpu", "a100", "--output="], "--output"),
        (["sweep", "gpt2", "--gpu", "a100", "--resume", ""], "--resume"),
        (["validate", "--data", ""], "--data"),
    ],
)
def test_an_empty_path_is_not_the_folder_that_one_is_in(tmp_path, monkeypatch, capsys, words, name):
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert f"{name} is empty" in err
    assert not list(tmp_path.iterdir())
