"""Runs of whole models: host by module calls, slow hosts, engines' steps, pipelines, ablation, their pages."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulecast.calibration.mechanisms import ALL, NAMES, Mechanisms
from joulecast.calibration.pass_runs import read_generations
from joulecast.calibration.passes import PassTable, predicted_time_s, tabulate
from joulecast.cli import main
from joulecast.coefficients.energies import default_power
from joulecast.coefficients.schema import HostCoefficients
from joulecast.coefficients.transfer import power_coefficients
from joulecast.coefficients.voltage import voltage_ratio
from joulecast.errors import InputError
from joulecast.gpus import load_gpu
from joulecast.kernels.work import Conditions
from joulecast.lowering.execution import Execution
from joulecast.lowering.lower import lower
from joulecast.physics.host import host_cost_us, pass_cost_us
from joulecast.physics.power import core_scale
from joulecast.physics.settled import at_clock
from joulecast.reports import whole_runs
from joulecast.validation import engines, generations, pipeline_meter, pipelines
from joulecast.validation.passes import slow_hosts
from joulecast.validation.runs import ScoredRun, run_figures, run_table
from joulecast.validation.whole import RUNS
from joulecast.workloads.catalogue import from_name
from joulecast.workloads.module_calls import module_calls
from joulecast.workloads.table import COMMON, OpTable

A100 = load_gpu("A100-PCIE-40GB")
ENGINE_HEAD = (
    "hardware,n_devices,framework,model_id,input_tokens,output_tokens,batch_size,latency_s,throughput_tok_per_s"
)


# The host


def test_modules_of_bert_large_are_those_that_transformers_calls():
    # 419 modules answer in one forward pass of transformers 5.24, 145 of them linear layers.
    assert module_calls(from_name("bert-large-uncased").info) == 419 - 145
    assert module_calls({"family": "vgg", "num_layers": 16}) == 0
    assert module_calls({}) == 0


def test_modules_without_weights_cost_half_a_module_and_only_in_eager_mode():
    host = HostCoefficients(eager_us=10, module_us=20)
    info = {"family": "bert", "num_layers": 2}
    assert pass_cost_us(info, host, "eager") == pytest.approx((11 * 2 + 10) * 0.5 * 20)
    assert pass_cost_us(info, host, "compiled") == pass_cost_us(info, host, "cuda_graph") == 0


def test_copies_inside_other_operations_cost_a_share_of_a_launch():
    host = HostCoefficients(eager_us=10, module_us=20, copy_share=0.25)
    assert host_cost_us("copy", 1, host, "eager") == pytest.approx(2.5)
    assert host_cost_us("elementwise", 1, host, "eager") == pytest.approx(10)


def _table(**columns: np.ndarray) -> PassTable:
    r = len(columns["time_s"])
    base = {
        "kernel_s": np.ones((r, 1)), "launches": np.ones(r), "modules": np.zeros(r), "work": np.ones((r, 6)),
        "busy": np.ones((r, 1)), "voltage": np.ones(r), "clock": np.ones(r), "power_w": np.ones(r),
        "models": np.array(["m"] * r), "takes_turns": np.zeros(r, dtype=bool),
    }  # fmt: skip
    return PassTable(gpu=A100, keys=("gemm/pytorch/fp16",), **{**base, **columns})


def test_a_host_that_waits_in_every_layer_takes_turns_with_the_gpu():
    table = _table(
        time_s=np.ones(2), kernel_s=np.full((2, 1), 3.0), launches=np.full(2, 2e6), takes_turns=np.array([False, True])
    )
    together, turns = predicted_time_s(table, np.zeros(1), 1.0, 0.0)[0]
    assert turns == pytest.approx(3.0 + 0.75 * 2.0)
    assert 3.0 < together < 3.1


def test_only_a_slow_host_makes_a_pass_slower_than_a_larger_one():
    # The second asks for half as much and takes longer; the third is slower for its clock alone.
    work = np.outer([2.0, 1.0, 2.0], np.ones(6))
    table = _table(time_s=np.array([1.0, 1.3, 1.9]), work=work)
    assert slow_hosts(table, np.array([1000.0, 1000.0, 500.0])).tolist() == [False, True, False]
    other = replace(table, models=np.array(["a", "b", "a"]))
    assert not slow_hosts(other, np.array([1000.0, 1000.0, 500.0])).any()


# Mechanisms


@pytest.mark.parametrize("name", NAMES)
def test_each_mechanism_can_be_left_out_alone(name: str):
    off = ALL.without(name)
    assert [one for one in NAMES if not getattr(off, one)] == [name]


def _gemm_table() -> OpTable:
    workload = from_name("bert-large-uncased", prompt_tokens=128, dtype="bf16")
    table = lower(workload, A100, Execution(attention="eager")).tables["gemm"]
    return OpTable("gemm", {name: column for name, column in table.columns.items() if name not in COMMON})


def test_what_is_left_out_takes_no_time():
    table, conditions = _gemm_table(), Conditions(engine="pytorch", residency="stream")
    whole = ALL.price(table, A100, conditions)
    for clock in (600.0, A100.clock_max_mhz):
        time_s, power_w = at_clock(whole, clock)
        without_l2 = at_clock(Mechanisms(l2=False).price(table, A100, conditions), clock)
        assert (without_l2[0] <= time_s * (1 + 1e-9)).all()
        assert (without_l2[0] * without_l2[1] < time_s * power_w).all()
        fast = at_clock(Mechanisms(bandwidth_of_clock=False).price(table, A100, conditions), clock)[0]
        assert (fast <= time_s * (1 + 1e-9)).all()
    # At the highest clock the rate is that of the highest clock.
    assert fast == pytest.approx(time_s)


def test_energies_go_with_a_power_of_the_voltage():
    power = replace(power_coefficients(A100), voltage_exponent=3.0)
    assert core_scale(1000, A100, power) == pytest.approx(float(voltage_ratio(1000, A100, power)) ** 3)
    assert core_scale(1000, A100, ALL.without("voltage").power(power)) == 1.0


def test_a_host_that_is_left_out_costs_nothing():
    host = ALL.without("host").host_costs(HostCoefficients())
    assert host_cost_us("gemm", 3, host, "eager") == 0


# Engines


@settings(max_examples=20, deadline=None)
@given(st.floats(0.0, 5e-3), st.floats(0.0, 2e-4), st.floats(0.0, 5e-3))
def test_costs_of_steps_are_recovered(step_s: float, sequence_s: float, group_s: float):
    true = engines.StepCost(step_s, sequence_s, group_s)
    runs, waves = [], []
    for gpus in (1, 4):
        for batch in (1, 16, 64):
            one = engines.Waves(5.0, 1.0, 1000.0, 1000.0 * batch, 1410.0)
            time_s = one.kernel_s + true.of(one, gpus)
            runs.append(engines.EngineRun("a", "A100-SXM-40GB", "vllm", "m", gpus, 1000, 1000, batch, time_s, math.nan))
            waves.append(one)
    found = engines.fit_step_cost(runs, waves)
    for run, one in zip(runs, waves, strict=True):
        assert one.kernel_s + found.of(one, run.gpus) == pytest.approx(run.time_s, rel=1e-3)


def test_a_batch_whose_cache_does_not_fit_runs_in_waves():
    def waves(batch: int) -> engines.Waves:
        found = engines.waves_of(
            engines.EngineRun("a", "A100-SXM-40GB", "vllm", "meta-llama/Llama-2-7b-hf", 1, 2048, 2048, batch, 1e6, 0.0)
        )
        assert found is not None
        return found

    # 4,096 tokens of 0.5 MB are 2.1 GB a sequence; 0.9 x 43 GB less 13.5 GB of weights hold 11 of them.
    assert waves(8).steps == 2048
    assert waves(16).steps == 2 * 2048
    assert waves(16).sequence_steps == 16 * 2048
    assert waves(64).kernel_s > 3 * waves(16).kernel_s


def test_models_that_are_not_known_or_do_not_fit_are_not_scored():
    run = engines.EngineRun("a", "A100-SXM-40GB", "vllm", "nobody/knows", 1, 16, 16, 1, 1.0, math.nan)
    # 16 steps read 13.5 GB each: 0.14 s at 1,555 GB/s.
    assert engines.waves_of(replace(run, model="huggyllama/llama-7b", time_s=0.2)) is not None
    assert engines.waves_of(replace(run, model="huggyllama/llama-7b", time_s=0.13)) is None
    assert engines.waves_of(run) is None
    assert engines.waves_of(replace(run, model="meta-llama/Meta-Llama-3-70B")) is None
    assert engines.waves_of(replace(run, model="huggyllama/llama-7b", prompt=2048, generated=2048)) is None


def _engine_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "bench"
    folder.mkdir()
    rows = [
        f"Nvidia A100 GPU,1,vLLM,{model},128,128,{batch},2,{batch * 256 / seconds}"
        for model, seconds in (("meta-llama/Llama-2-7b-hf", 1.7), ("meta-llama/Meta-Llama-3-8B", 1.9))
        for batch in (1, 16)
    ]
    (folder / "throughput.csv").write_text("\n".join([ENGINE_HEAD, *rows]) + "\n")
    line = "Nvidia A100 GPU,1,vLLM,meta-llama/Llama-2-7b-hf,128,128,1,1.7,150,230"
    (folder / "power.csv").write_text(f"{ENGINE_HEAD},avg_power_w\n{line}\n")
    return folder


def test_engines_are_scored_from_the_command_line(tmp_path: Path, capsys):
    folder = _engine_folder(tmp_path)
    assert main(["validate", "--data", str(folder), "--only", "engines", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["runs"]["engines"]
    assert [row["group"] for row in found["groups"]] == ["A100-SXM-40GB, vllm"]
    assert found["total"][0]["throughput"]["rows"] == 5
    assert found["total"][0]["power"]["rows"] == 1
    assert found["total"][0]["throughput"]["median"] < 0.3
    assert main(["validate", "--data", str(folder), "--only", "engines", "--csv"]) == 0
    table = pl.read_csv(capsys.readouterr().out.encode())
    assert table["part"].to_list() == ["engines"]
    assert main(["validate", "--data", str(folder), "--only", "pipelines"]) == 2
    assert "none of what was asked for" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["throughput.csv", "power.csv"])
def test_a_table_that_lacks_a_column_says_which(tmp_path: Path, name: str):
    folder = _engine_folder(tmp_path)
    frame = pl.read_csv(folder / name).drop("batch_size")
    frame.write_csv(folder / name)
    with pytest.raises(InputError, match="lacks batch_size"):
        engines.read_engine_runs(folder)


# Pipelines


def _pipeline_table(host: float, sample_s: float, tokens: float) -> pipelines.Table:
    step = pipelines.Step(kernel_s=2e-3, busy_j=0.3, launches=300, modules=200)
    models = {"a/long": pipelines.Model(step, step, step)}
    models["b/short"] = pipelines.Model(*[replace(step, launches=100, modules=60)] * 3)
    models["c/busy"] = pipelines.Model(*[replace(step, kernel_s=40e-3)] * 3)
    runs = [
        pipelines.PipelineRun(task, model, 1.0, together_w=600.0, gpus=8.0, parameters=1e9)
        for task in ("qa_x", "textgen_x")
        for model in models
    ]
    table = pipelines.Table.of(runs, models)
    fit = pipelines.Fit(
        {
            "host/all": math.log(host),
            "sample/text": math.log(sample_s),
            "step/all": math.log(1e-3),
            "prompt/short": math.log(30),
            "tokens/textgen/": math.log(tokens),
        }
    )
    time_s = fit.predicted(table)[0]
    timed = [replace(run, time_s=float(t)) for run, t in zip(runs, time_s, strict=True)]
    return replace(table, runs=tuple(timed))


def test_what_pipelines_were_made_up_with_is_recovered():
    table = _pipeline_table(host=3.0, sample_s=2e-3, tokens=10.0)
    fit = pipelines.fit_pipelines(table)
    assert fit.predicted(table)[0] == pytest.approx([run.time_s for run in table.runs], rel=0.03)
    assert math.exp(fit.values["host/all"]) == pytest.approx(3.0, rel=0.1)
    assert math.exp(fit.values["tokens/textgen/"]) == pytest.approx(10.0, rel=0.1)


def test_repetitions_become_their_median(tmp_path: Path):
    head = "task_dataset,model_id,duration_s,mean_gpu_power_all_gpus_w,gpu_count,num_parameters"
    rows = [f"qa_squad,bert-base-uncased,{seconds},600,8,1.1e8" for seconds in (10, 11, 19)]
    (tmp_path / "inference_1000.csv").write_text("\n".join([head, *rows]) + "\n")
    (run,) = pipelines.read_pipeline_runs(tmp_path)
    assert run.time_s == pytest.approx(11e-3)
    assert (run.together_w, run.gpus) == (600, 8)
    assert run.file_gb == pytest.approx(0.44)  # four bytes a parameter
    assert replace(run, model="bigscience/bloom-560m").file_gb == pytest.approx(0.22)  # published in 16 bits
    assert (run.generates, run.prompt, run.overhead) == ("", "squad", "text")
    (tmp_path / "inference_1000.csv").write_text("task_dataset,model_id\n")
    with pytest.raises(InputError, match="lacks duration_s"):
        pipelines.read_pipeline_runs(tmp_path)


def _readings(idle_w: float, start_s: float, per_gb_s: float, gpu_w: float) -> pipeline_meter.Readings:
    """Eight GPUs, one of which draws `gpu_w` while runs last; all are idle while models are loaded."""
    rows = []
    for place, gb in enumerate((0.1, 0.5, 2.0, 14.0, 40.0, 1.0)):
        for seconds in (20.0, 200.0, 900.0):
            loading_j = 8 * idle_w * (start_s + per_gb_s * gb)
            watts = gpu_w + 7 * idle_w + loading_j / seconds
            rows.append((f"task {place % 2}", gb, seconds, 8.0, watts))
    return pipeline_meter.readings_of(rows)


def test_idle_power_and_loading_are_told_from_the_gpu_that_works():
    readings = _readings(idle_w=62.0, start_s=4.0, per_gb_s=9.0, gpu_w=130.0)
    meter = pipeline_meter.fit_meter(readings, np.full(18, 130.0))
    assert meter.idle_w["task 0"] == pytest.approx(62.0, rel=0.01)
    assert meter.per_gb_s == pytest.approx(9.0, rel=0.02)
    idle_w, loading_w = meter.beside_w(readings)
    assert readings.together_w - idle_w - loading_w == pytest.approx(np.full(18, 130.0), abs=8.0)


def test_a_day_whose_task_no_other_run_was_of_has_the_idle_power_of_all():
    meter = pipeline_meter.Meter({"seen": 70.0, "": 60.0}, start_s=2.0, per_gb_s=5.0)
    readings = pipeline_meter.readings_of([("seen", 1.0, 70.0, 8.0, 800.0), ("new", 1.0, 70.0, 8.0, 800.0)])
    idle_w, loading_w = meter.beside_w(readings)
    assert idle_w == pytest.approx([490.0, 420.0])
    assert loading_w == pytest.approx([56.0, 48.0])  # eight idle GPUs for 2 s + 5 s, over 70 s


def test_a_reading_that_holds_more_of_loading_than_of_running_is_set_aside():
    table = _pipeline_table(host=3.0, sample_s=2e-3, tokens=10.0)
    table = replace(table, runs=tuple(replace(run, model="gpt2", time_s=0.1, parameters=1e9) for run in table.runs))
    fit = pipelines.fit_pipelines(_pipeline_table(host=3.0, sample_s=2e-3, tokens=10.0))

    def measured(per_gb_s: float) -> list[float]:
        meter = pipeline_meter.Meter({"": 60.0}, start_s=0.0, per_gb_s=per_gb_s)
        gpu = load_gpu(pipelines.GPU)
        return [one.measured_w for one in pipelines._scored(table, fit, gpu, 80.0, meter)]

    # 600 W together, 420 W of idle GPUs: 4 GB at 5 s each add 8 x 60 W x 20 s / 100 s = 96 W
    assert measured(0.0) == pytest.approx([180.0] * 6)
    assert np.isnan(measured(5.0)).all()
    assert measured(2.0) == pytest.approx([180.0 - 38.4] * 6)


# Tables and pages


def test_a_run_is_held_against_the_median_of_other_models_of_its_shape():
    watts = {"lmsys/vicuna-7B": (200.0, 220.0), "tatsu-lab/alpaca-7B": (200.0, 200.0), "gpt2": (100.0,)}
    runs = [_run(model=model, measured_w=w) for model, all_ in watts.items() for w in all_]
    rows, error = generations.of_its_like(runs)
    # GPT-2 has no other of its shape; vicuna is held against 200 W, alpaca against 210 W
    assert rows == 4
    assert error == pytest.approx((0.0 + 20 / 220 + 10 / 200 + 10 / 200) / 4)


def _run(**changes: object) -> ScoredRun:
    base: dict[str, object] = {
        "group": "g", "model": "gpt2", "gpu": "A40",
        "time_s": 1.1, "power_w": 90.0, "measured_s": 1.0, "measured_w": 100.0,
    }  # fmt: skip
    return ScoredRun(**{**base, **changes})  # type: ignore[arg-type]


def test_figures_of_runs_by_hand():
    found = run_figures([_run(), _run(measured_w=math.nan)])
    assert found["time"]["mean"] == pytest.approx(0.1)
    assert found["throughput"]["mean"] == pytest.approx(1 - 1 / 1.1)
    assert found["power"]["mean"] == pytest.approx(0.1)
    assert found["power"]["rows"] == 1
    assert found["energy"]["mean"] == pytest.approx(0.01)
    assert [row["group"] for row in run_table([_run(), _run(group="h")], lambda one: one.group)] == ["g", "h"]


def test_the_page_shows_every_part_and_what_mechanisms_earn():
    runs = [_run(group="model"), _run(group="shape", power_w=100.0)]
    tables = {name: part.tables(runs) for name, part in RUNS.items()}
    figures = {**run_figures(runs), "without": "", "dataset": "a100"}
    document = {"runs": tables, "ablation": [figures, {**figures, "without": "host"}]}
    text = "\n".join(whole_runs.sections(document))
    for title, _ in whole_runs.PARTS.values():
        assert f"## {title}" in text
    assert "all, shape left out" in text
    assert "no host: launches cost nothing | 10.0 /" in text
    assert len(whole_runs.blocks(document)) == 2 * (len(RUNS) + 1)
    assert set(whole_runs.MECHANISMS) == {"", *NAMES}
    assert set(whole_runs.PARTS) == set(RUNS)


# Measured runs


def test_generations_of_models_left_out(data_dir: Path):
    runs = [run for run in read_generations(data_dir / "mlenergy" / "v1_llm.csv") if run.gpu == "V100-SXM-32GB"]
    assert len(runs) == 56
    assert {run.takes_turns for run in runs if "stablelm" in run.model} == {True}
    table = tabulate(runs, default_power(load_gpu("V100-SXM-32GB")))
    errors = generations.leave_model_out(runs, table)
    assert np.abs(errors.time).mean() < 0.06
    assert np.abs(errors.power).mean() < 0.07


def test_shapes_are_told_apart_by_all_but_the_vocabulary():
    shape = generations._shape
    assert shape("lmsys/vicuna-7B") == shape("Neutralzz/BiLLa-7B-SFT") == shape("huggyllama/llama-7b")
    assert shape("lmsys/vicuna-7B") != shape("lmsys/vicuna-13B")


def test_engines_are_within_what_was_promised(data_dir: Path):
    folder = data_dir / engines.FOLDER
    runs = [run for run in engines.read_engine_runs(folder) if run.gpu == "A100-SXM-40GB" and run.gpus == 1]
    few = [run for run in runs if run.batch <= 16 and run.prompt == 512]
    found = [(run, engines.waves_of(run)) for run in few]
    ratio = [waves.kernel_s / run.time_s for run, waves in found if waves is not None and run.engine == "trtllm"]
    assert np.median(np.abs(np.array(ratio) - 1)) < 0.15
