"""What-ifs of one GPU: clocks, power limits, temperature, memory clock."""

from __future__ import annotations

import csv
import io
import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import joulecast as jc
from joulecast.cli import main
from joulecast.coefficients.transfer import power_coefficients
from joulecast.errors import InputError
from joulecast.gpus import load_gpu
from joulecast.gpus.state import rated, running_at
from joulecast.physics.operating import LEAKAGE_PER_K, MEASURED_AT_C, at_state, leakage_factor
from joulecast.scenarios.pricing import nearly_alike

MODEL = "meta-llama/Llama-3.1-8B"
WORKLOAD = jc.workload("bert-large-uncased", batch=16, prompt_tokens=512)


def _run(capsys, *arguments):
    code = main(arguments)
    out, err = capsys.readouterr()
    return code, out, err


def test_a_span_of_clocks_marks_its_fastest_and_its_thriftiest(capsys):
    asked = ("predict", MODEL, "--gpu", "a100-pcie", "--batch", "8", "--prompt", "2048", "--clock", "510:1410:150")
    code, out, _ = _run(capsys, *asked, "--json")
    assert code == 0
    found = json.loads(out)["predictions"]
    assert [one["clock_asked_mhz"] for one in found] == [510, 660, 810, 960, 1110, 1260, 1410]
    best = min(found, key=lambda one: one["total"]["energy_j"])
    assert [one["fewest_joules"] for one in found] == [one is best for one in found]
    least = min(one["total"]["time_s"] for one in found)
    fast = next(one for one in found if one["total"]["time_s"] <= least * (1 + 1e-4))  # the limit makes the last alike
    assert [one["fastest"] for one in found] == [one is fast for one in found]
    # a prefill of 16,384 tokens is bound by tensor cores: an optimum lies inside, not at an end
    assert 510 < best["clock_asked_mhz"] < 1410
    alone = jc.predict(MODEL, "a100-pcie", batch=8, prompt_tokens=2048, clock_mhz=960)
    assert found[3]["total"]["energy_j"] == alone.energy_j
    code, page, _ = _run(capsys, *asked)
    assert code == 0
    assert max(map(len, page.splitlines())) <= 80
    assert page.count("fewest J\n") == 1


def test_limits_and_clocks_go_each_with_each_and_csv_names_them(capsys):
    _, out, _ = _run(
        capsys, "predict", MODEL, "--gpu", "a100-pcie,h100", "--prompt", "512", "--clock", "900,1800",
        "--power-limit", "200:300:100", "--csv",
    )  # fmt: skip
    rows = [row for row in csv.DictReader(io.StringIO(out)) if row["phase"] in ("total", "")]
    points = {(row["gpu"], row["clock_asked_mhz"], row["power_limit_w"]) for row in rows}
    assert len(points) == len(rows) == 8
    refused = [row for row in rows if row["error"]]
    assert {(row["gpu"], row["clock_asked_mhz"]) for row in refused} == {("A100-PCIE-40GB", "1800.0")}


def test_a_lower_limit_never_makes_it_faster(capsys):
    _, out, _ = _run(
        capsys, "predict", MODEL, "--gpu", "h100", "--batch", "8", "--prompt", "2048", "--power-limit", "200:700:100",
        "--json",
    )  # fmt: skip
    found = json.loads(out)["predictions"]
    times = [one["total"]["time_s"] for one in found]
    assert times == sorted(times, reverse=True)
    assert all(one["total"]["power_w"] <= one["power_limit_w"] * 1.001 for one in found)


def test_too_many_points_are_refused(capsys):
    code, out, err = _run(
        capsys, "predict", MODEL, "--gpu", "h100", "--clock", "300:1900:1", "--power-limit", "200,300"
    )
    assert (code, out) == (2, "")
    assert "take larger steps" in err


@settings(max_examples=25)
@given(
    colder=st.floats(0, 109),
    warmer_by=st.floats(0.5, 60),
    gpu=st.sampled_from(["a100-pcie", "h100", "l40s"]),
    limit=st.sampled_from([None, 200.0]),
)
def test_a_hotter_gpu_never_draws_less_and_under_a_limit_never_runs_faster(colder, warmer_by, gpu, limit):
    hotter = min(colder + warmer_by, 110.0)
    cold, hot = (jc.predict(WORKLOAD, gpu, power_limit_w=limit, temperature_c=degrees) for degrees in (colder, hotter))
    assert hot.clock_mhz <= cold.clock_mhz * (1 + 1e-6)
    assert hot.time_s >= cold.time_s * (1 - 1e-6)
    assert hot.energy_j >= cold.energy_j * (1 - 1e-6)
    if hot.clock_mhz == cold.clock_mhz:
        assert hot.power_w > cold.power_w


def test_a_hotter_gpu_under_its_limit_settles_lower():
    cool, hot = (jc.predict(WORKLOAD, "a100-pcie", temperature_c=degrees) for degrees in (40, 85))
    assert cool.phases[0].throttled
    assert hot.phases[0].throttled
    assert hot.clock_mhz < cool.clock_mhz - 5


def test_no_temperature_is_the_temperature_of_the_measurements():
    plain = jc.predict(WORKLOAD, "h100")
    same = jc.predict(WORKLOAD, "h100", temperature_c=MEASURED_AT_C)
    assert same.energy_j == plain.energy_j
    assert plain.info["temperature_c"] is None
    assert any("°C" in note for note in same.notes)
    assert not any("°C" in note for note in plain.notes)


def test_leakage_doubles_over_the_degrees_that_its_growth_says():
    # exp(k dT) = 2 for dT = ln 2 / k
    assert math.isclose(leakage_factor(MEASURED_AT_C + math.log(2) / LEAKAGE_PER_K), 2.0)


def test_a_memory_step_scales_the_dram_rate_and_lowers_idle_power():
    gpu = load_gpu("rtx-3090")
    lower = running_at(gpu, memory_clock_mhz=5001)
    assert math.isclose(lower.dram_gb_s, gpu.dram_gb_s * 5001 / 9751)
    assert rated(lower) == gpu
    assert running_at(gpu, memory_clock_mhz=9751) == gpu
    power = power_coefficients(gpu)
    assert at_state(power, lower).idle_w < power.idle_w
    assert at_state(power, lower).dram_pj == power.dram_pj
    assert at_state(power, gpu) is power


def test_a_lower_memory_clock_slows_what_memory_bounds_in_proportion():
    decode = {"prompt_tokens": 512, "generate_tokens": 16, "launch_mode": "cuda_graph"}
    full, half = (
        jc.predict("meta-llama/Llama-3.2-3B", "rtx-3090", memory_clock_mhz=mhz, **decode).phases[1]
        for mhz in (9751, 5001)
    )
    assert full.bound_by.startswith("DRAM")
    assert 1.6 < half.time_s / full.time_s <= 9751 / 5001
    assert half.power_w < full.power_w


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"memory_clock_mhz": 7000}, "its steps are 6251, 405 MHz"),
        ({"temperature_c": 200}, "from 0 to 110"),
        ({"temperature_c": float("nan")}, "finite"),
    ],
)
def test_states_that_it_does_not_have_are_refused(asked, message):
    with pytest.raises(InputError, match=message):
        jc.predict(WORKLOAD, "a10", **asked)


def test_a_gpu_whose_memory_steps_are_not_known_says_so():
    with pytest.raises(InputError, match="leave the memory clock out"):
        jc.predict(WORKLOAD, "h100", memory_clock_mhz=5001)


def test_every_trace_is_predicted_and_says_what_was_restored(data_dir):
    traces = sorted((data_dir / "energaizer" / "traces").glob("*.json"))
    assert len(traces) >= 40
    for path in traces:
        found = jc.predict(path, "a100-pcie", clock_mhz=900)
        assert found.time_s > 0
        assert found.power_w <= 250.001
        assert not found.unpriced
        restored = [note for note in found.notes if note.startswith("restored")]
        assert restored, path.name
        families = {"mobilevit": "batch norms", "qwen2": "means of RMS norms", "optmodel": "copies of queries"}
        for model, what in families.items():
            if path.name.startswith(model) and "_b1_" not in path.name:
                assert any(what in note for note in restored), (path.name, what)


def test_a_faster_host_starts_launches_in_less_time():
    one = {"batch": 1, "prompt_tokens": 32}
    plain, same, twice = (jc.predict("bert-base-uncased", "h100", host_speed=speed, **one) for speed in (None, 1, 2))
    assert plain.bound_by == "host"
    assert same.time_s == plain.time_s
    assert math.isclose(twice.phases[0].host_time_s, plain.phases[0].host_time_s / 2)
    assert twice.time_s < plain.time_s
    assert twice.provenance["host"] == "transferred"
    for wrong in ({"host_speed": 0}, {"host_speed": 2, "host_us_per_launch": 5}):
        with pytest.raises(InputError, match="host"):
            jc.predict("bert-base-uncased", "h100", **one, **wrong)


@pytest.mark.parametrize(("gpu_s", "host_s", "alike"), [(1.0, 0.84, False), (1.0, 0.86, True), (0.86, 1.0, True)])
def test_gpu_and_host_within_fifteen_percent_bound_a_phase_together(gpu_s, host_s, alike):
    assert bool(nearly_alike(gpu_s, host_s)) is alike


def test_kernels_take_temperature_and_memory_clock_too(capsys):
    shape = {"op": "add", "elements": 2**26, "dtype": "fp32"}
    plain, hot = (jc.predict_kernels("elementwise", shape, "rtx-3090", temperature_c=c) for c in (None, 90))
    slow = jc.predict_kernels("elementwise", shape, "rtx-3090", memory_clock_mhz=5001)
    assert hot["power_w"][0] > plain["power_w"][0] or hot["clock_mhz"][0] < plain["clock_mhz"][0]
    assert 1.6 < slow["time_s"][0] / plain["time_s"][0] <= 9751 / 5001 * 1.001
    code, out, _ = _run(
        capsys, "kernels", "elementwise", "--gpu", "rtx-3090", "--set", "op=add", "--set", f"elements={2**26}", "--set",
        "dtype=fp32", "--memory-clock", "5001", "--temperature", "64", "--json",
    )  # fmt: skip
    assert code == 0
    assert json.loads(out)["rows"][0]["time_s"] == pytest.approx(slow["time_s"][0])
