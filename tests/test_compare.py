"""Results of serving benchmarks: what is read of them, and the prediction laid beside."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import joulecast as jc
from joulecast.cli import main
from joulecast.coefficients.engines import EngineSteps, engine_steps, read_engine_steps, write_engine_steps
from joulecast.errors import InputError
from joulecast.validation.compare import compare
from joulecast.validation.serving_files import METRICS, read_results
from joulecast.validation.serving_steps import StepRow, scored

VLLM: dict[str, Any] = {
    "backend": "vllm", "model_id": "meta-llama/Llama-3.1-8B", "num_prompts": 100, "request_rate": "inf",
    "max_concurrency": 8, "duration": 100.0, "completed": 100, "total_input_tokens": 102_400,
    "total_output_tokens": 12_800, "request_throughput": 1.0, "output_throughput": 128.0,
    "total_token_throughput": 1152.0, "mean_ttft_ms": 730.0, "mean_tpot_ms": 10.0, "mean_itl_ms": 10.0,
    "mean_e2el_ms": 2000.0,
}  # fmt: skip
SGLANG: dict[str, Any] = {
    "backend": "sglang", "request_rate": 4.0, "max_concurrency": None, "sharegpt_output_len": None, "duration": 50.0,
    "completed": 200, "total_input_tokens": 200_000, "total_output_tokens": 20_000,
    "total_output_tokens_retokenized": 19_990, "request_throughput": 4.0, "input_throughput": 4000.0,
    "output_throughput": 400.0, "mean_e2e_latency_ms": 1500.0, "mean_ttft_ms": 80.0, "mean_tpot_ms": 14.0,
    "mean_itl_ms": 28.0, "concurrency": 6.0,
}  # fmt: skip
TRTLLM: dict[str, Any] = {
    "engine": {"model": "meta-llama/Llama-3.1-8B", "backend": "Pytorch", "dtype": "bfloat16", "quantization": "FP8"},
    "world_info": {"tp_size": 2, "pp_size": 1, "ep_size": None, "world_size": 2},
    "request_info": {"num_requests": 64, "avg_num_concurrent_requests": 15.9, "avg_input_length": 1024.0,
                     "avg_output_length": 128.0},
    "performance": {"total_latency_ms": 8000.0, "avg_request_latency_ms": 2000.0, "request_throughput_req_s": 8.0,
                    "system_output_throughput_tok_s": 1024.0, "system_total_throughput_tok_s": 9216.0},
    "streaming_metrics": {"avg_ttft_ms": 100.0, "avg_tpot_ms": 15.0},
    "machine": {"name": "NVIDIA H100 80GB HBM3"},
}  # fmt: skip


def written(folder: Path, *values: Any) -> Path:
    path = folder / "result.json"
    path.write_text("\n".join(json.dumps(value) for value in values))
    return path


def test_vllm_serving_results_are_read_in_si_units(tmp_path: Path) -> None:
    (found,) = read_results(written(tmp_path, VLLM))
    assert found.tool == "vLLM bench serve"
    assert found.measured == {
        "ttft_s": 0.73, "tpot_s": 0.01, "itl_s": 0.01, "e2el_s": 2.0, "request_throughput": 1.0,
        "output_throughput": 128.0, "total_throughput": 1152.0,
    }  # fmt: skip
    assert (found.input_tokens, found.output_tokens) == (1024, 128)


def test_requests_at_once_follow_from_rate_and_latency(tmp_path: Path) -> None:
    (found,) = read_results(written(tmp_path, VLLM))
    assert (found.concurrency, found.concurrency_from) == (2.0, "Little's law")  # 1 request/s x 2 s
    without = {key: value for key, value in VLLM.items() if not key.startswith("mean_e2el")}
    (found,) = read_results(written(tmp_path, without))
    assert found.concurrency == pytest.approx(0.73 + 127 * 0.01)
    neither = {key: value for key, value in without.items() if "tpot" not in key}
    (found,) = read_results(written(tmp_path, neither))
    assert (found.concurrency, found.concurrency_from) == (8.0, "limit")


def test_sglang_lines_are_one_run_each(tmp_path: Path) -> None:
    one, two = read_results(written(tmp_path, SGLANG, {**SGLANG, "concurrency": 9.0}))
    assert (one.tool, one.concurrency, one.concurrency_from) == ("SGLang bench_serving", 6.0, "mean")
    assert two.concurrency == 9.0
    assert one.measured["e2el_s"] == 1.5
    assert "line 2" in two.source


def test_tensorrt_llm_reports_tell_model_format_layout_and_gpu(tmp_path: Path) -> None:
    (found,) = read_results(written(tmp_path, TRTLLM))
    assert (found.engine, found.dtype, found.tp, found.ep) == ("trtllm", "fp8", 2, 1)
    assert compare(found).gpu == "H100-SXM-80GB"


def test_a_fixed_batch_is_predicted_as_such(tmp_path: Path) -> None:
    values = {"run_name": "x", "batch_size": 4, "input_len": 512, "output_len": 32, "prefill_latency": 0.05,
              "median_decode_latency": 0.008, "total_latency": 0.3}  # fmt: skip
    (result,) = read_results(written(tmp_path, values))
    found = compare(result, model="meta-llama/Llama-3.1-8B", gpu="h100", server="none")
    whole = jc.predict("meta-llama/Llama-3.1-8B", "h100", batch=4, prompt_tokens=512, generate_tokens=32,
                       engine="vllm", launch_mode="cuda_graph")  # fmt: skip
    assert found.predicted["batch_latency_s"] == pytest.approx(whole.time_s)
    assert found.predicted["energy_per_token_j"] == pytest.approx(whole.energy_j / (4 * 32))
    assert set(found.predicted) == {"batch_latency_s", "power_w", "energy_per_token_j", "prefill_s", "decode_step_s"}


def test_a_server_adds_its_own_code_to_each_step_while_gpus_wait(tmp_path: Path) -> None:
    (result,) = read_results(written(tmp_path, VLLM))
    alone = compare(result, gpu="h100", batch=16, server="none")
    for version in ("vllm-0.5", "vllm-0.11"):
        found = compare(result, gpu="h100", batch=16, server=version)
        waited_s = engine_steps(version).step_s(16, 1)
        assert waited_s > 1e-4
        # of an answer of 128 tokens, 127 steps, of which each waits
        assert found.predicted["e2el_s"] - alone.predicted["e2el_s"] == pytest.approx(127 * waited_s)
        static_w = (found.predicted["energy_per_token_j"] - alone.predicted["energy_per_token_j"]) * 128 * 16
        assert 50 < static_w / (127 * waited_s) < 250  # what an H100 draws that waits
        assert any("the server's own code" in line for line in found.notes)
    assert compare(result, gpu="h100", batch=16).server == "vllm-0.11"
    with pytest.raises(InputError, match=r"vllm-0.11") as refused:
        compare(result, gpu="h100", server="vllm-0.12")
    assert "\n" not in str(refused.value)


def test_costs_of_an_engine_are_found_again(tmp_path: Path) -> None:
    true = EngineSteps(step_us=2000.0, sequence_us=30.0, group_us=500.0)
    rows = [
        StepRow("H100-SXM-80GB", f"model {place % 3}", n, gpus, 0.01 + true.step_s(n, gpus), 0.01)
        for place, (n, gpus) in enumerate((n, gpus) for n in (1, 8, 64, 256) for gpus in (1, 4))
    ]
    found = scored("made up", rows)
    for name in ("step_us", "sequence_us", "group_us"):
        assert getattr(found, name) == pytest.approx(getattr(true, name), rel=1e-3)
    assert found.error < 1e-3 < found.before
    write_engine_steps({"x": found}, tmp_path / "engines.toml")
    assert read_engine_steps(tmp_path / "engines.toml")["x"].step_us == pytest.approx(2000, rel=1e-3)
    (tmp_path / "engines.toml").write_text("schema = 1\n[x]\nstep_us = -1\n")
    with pytest.raises(InputError, match="step_us"):
        read_engine_steps(tmp_path / "engines.toml")


def test_the_figures_of_a_stream_agree_with_each_other(tmp_path: Path) -> None:
    (result,) = read_results(written(tmp_path, VLLM))
    found = compare(result, gpu="h100", batch=16)
    p = found.predicted
    assert p["e2el_s"] == pytest.approx(p["ttft_s"] + 127 * p["tpot_s"])
    assert p["request_throughput"] == pytest.approx(16 / p["e2el_s"])  # Little's law
    assert p["output_throughput"] == pytest.approx(128 * p["request_throughput"])
    assert p["total_throughput"] == pytest.approx(1152 * p["request_throughput"])
    assert p["energy_per_token_j"] == pytest.approx(p["power_w"] / p["output_throughput"])
    assert p["itl_s"] == p["tpot_s"]


def test_more_at_once_give_more_tokens_a_second_at_fewer_joules_each(tmp_path: Path) -> None:
    (result,) = read_results(written(tmp_path, VLLM))
    few, many = compare(result, gpu="h100", batch=2).predicted, compare(result, gpu="h100", batch=32).predicted
    assert many["output_throughput"] > 4 * few["output_throughput"]
    assert many["energy_per_token_j"] < few["energy_per_token_j"]
    assert many["tpot_s"] > few["tpot_s"]


def test_power_given_beside_becomes_joules_a_token(tmp_path: Path) -> None:
    (result,) = read_results(written(tmp_path, VLLM))
    rows = {row["metric"]: row for row in compare(result, gpu="h100", measured_power_w=512).rows()}
    assert rows["energy_per_token_j"]["measured"] == pytest.approx(512 / 128)
    (result,) = read_results(written(tmp_path, {**VLLM, "total_energy_j": 25_600.0}))
    assert result.measured["energy_per_token_j"] == pytest.approx(2.0)


def test_a_server_that_is_slower_than_its_gpu_costs_static_power_meanwhile(tmp_path: Path) -> None:
    (result,) = read_results(written(tmp_path, {**VLLM, "power_w": 300.0}))
    found = compare(result, gpu="h100", batch=16)
    extra = found.predicted["energy_at_pace_j"] - found.predicted["energy_per_token_j"]
    waited = 1 / 128.0 - 1 / found.predicted["output_throughput"]
    # a clocked H100 with nothing running draws about 70 to 180 W
    assert 70 * waited < extra < 180 * waited
    rows = {row["metric"]: row for row in found.rows()}
    assert rows["energy_at_pace_j"]["measured"] == pytest.approx(300 / 128)


def test_errors_are_relative_to_the_measurement_and_every_metric_is_defined(tmp_path: Path) -> None:
    (result,) = read_results(written(tmp_path, VLLM))
    for row in compare(result, gpu="h100").rows():
        assert row["definition"] == METRICS[row["metric"]][1]
        if row["measured"]:
            assert row["error"] == pytest.approx(row["predicted"] / row["measured"] - 1)
            assert row["predicted_lower"] <= row["predicted"] <= row["predicted_upper"]


def test_tokens_that_come_in_pieces_are_told(tmp_path: Path) -> None:
    (result,) = read_results(written(tmp_path, SGLANG))
    found = compare(result, gpu="h100", model="meta-llama/Llama-3.1-8B")
    assert any("ITL is 2.00 times TPOT" in note for note in found.notes)


def test_everything_that_is_missing_is_asked_for_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, {"avg_latency": 1.2, "latencies": [1.2], "percentiles": {}})
    assert main(["compare", str(path)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    for flag in ("--gpu", "--model", "--batch", "--prompt", "--generate"):
        assert flag in error
    given = [
        "--gpu",
        "h100",
        "--model",
        "meta-llama/Llama-3.1-8B",
        "--batch",
        "8",
        "--prompt",
        "32",
        "--generate",
        "16",
    ]
    assert main(["compare", str(path), *given, "--json"]) == 0
    (document,) = json.loads(capsys.readouterr().out)["runs"]
    assert document["metrics"][0]["metric"] == "batch_latency_s"


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", "hello", '{"mean_ttft_ms": null}', '{"requests_per_second": "many"}', '["x"]',
                '{"mean_ttft_ms": NaN, "mean_itl_ms": -4}'],
)  # fmt: skip
def test_what_is_no_result_is_refused_in_one_line(
    tmp_path: Path, content: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.json"
    path.write_text(content)
    assert main(["compare", str(path), "--gpu", "h100"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_an_unknown_model_points_to_the_flag(tmp_path: Path) -> None:
    (result,) = read_results(written(tmp_path, {**VLLM, "model_id": "my-own/model-17B"}))
    with pytest.raises(InputError, match="--model"):
        compare(result, gpu="h100")


def test_the_page_prints_the_definition_of_each_metric(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", str(written(tmp_path, VLLM)), "--gpu", "h100"]) == 0
    page = capsys.readouterr().out
    assert "what they mean" in page
    assert "queueing included" in page
    assert max(map(len, page.splitlines())) <= 80
