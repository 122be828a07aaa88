"""The audit of measured tables: what can't be is found, what is odd but true is kept."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulecast.bounds import plausibility as bounds
from joulecast.calibration.audit import audit_batch
from joulecast.calibration.audit_files import audit_file
from joulecast.calibration.audit_readings import least_pass_s
from joulecast.calibration.least_work import least_work
from joulecast.calibration.tables import QUALITIES, Measured
from joulecast.cli import main
from joulecast.errors import InputError
from joulecast.gpus import load_gpu
from joulecast.kernels.work import Conditions
from joulecast.workloads.sources import open_workload
from joulecast.workloads.table import op_table


def _batch(kind, columns, time_s, *, gpu="h100-sxm-80gb", power_w=None, limit_w=np.nan, quality="A"):
    table = op_table(kind, columns)
    n = len(table)
    return Measured(
        gpu=load_gpu(gpu).name,
        table=table,
        time_s=np.broadcast_to(np.asarray(time_s, dtype=float), (n,)).copy(),
        power_w=np.full(n, np.nan) if power_w is None else np.asarray(power_w, dtype=float),
        conditions=Conditions(),
        version="1",
        timing_mode="sustained",
        launch_mode="cuda_graph",
        operand_init="random",
        power_limit_w=limit_w,
        quality=np.full(n, QUALITIES.index(quality)),
    )


def _checks(audit):
    return {(one.check, int(row)) for one in audit.findings if not one.doubtful for row in one.rows}


def _gemm(m, n=8192, k=8192, dtype="bf16"):
    return {"m": m, "n": n, "k": k, "dtype": dtype}


# ---- arithmetic


def test_a_gemm_above_the_dense_peak_at_the_highest_clock_is_flagged_and_one_at_it_is_not():
    # H100 SXM: 132 SMs x 4096 FLOP/clk at 1980 MHz = 1070.5 TFLOP/s; 2 x 8192^3 FLOP take 1.0271 ms there
    least = 2 * 8192.0**3 / (132 * 4096 * 1.98e9)
    assert not audit_batch(_batch("gemm", _gemm([8192]), [least])).flagged.any()
    audit = audit_batch(_batch("gemm", _gemm([8192]), [least * 0.95]))
    assert _checks(audit) == {("peak_flop", 0)}
    assert "dense peak" in audit.findings[0].reasons[0]
    assert audit.findings[0].values[0] == pytest.approx(1070.5 / 0.95, rel=1e-3)


def test_the_rate_of_2_to_4_sparsity_is_no_excuse():
    # at twice the dense rate, which data sheets print as sparse
    least = 2 * 8192.0**3 / (132 * 4096 * 1.98e9)
    assert _checks(audit_batch(_batch("gemm", _gemm([8192]), [least / 2]))) == {("peak_flop", 0)}


def test_fp32_at_the_rate_of_tf32_is_flagged_and_the_reason_names_tf32():
    # A100: 19.5 TFLOP/s in fp32, 156 in TF32; 2 x 4096^3 FLOP in 1.4 ms are 98 TFLOP/s
    audit = audit_batch(_batch("gemm", _gemm([4096], 4096, 4096, "fp32"), [1.4e-3], gpu="a100-pcie-40gb"))
    assert _checks(audit) == {("peak_flop", 0)}
    assert "TF32" in audit.findings[0].reasons[0]


def test_causal_attention_is_counted_without_what_its_mask_hides():
    # 16 sequences of 8192, 32 heads of 128: 4 x 16 x 32 x 128 x 8192 x 8193 / 2 FLOP, half of all pairs
    done = 4 * 16 * 32 * 128 * 8192 * 8193 / 2
    shape = {"batch_size": [16], "query_len": 8192, "num_heads": 32, "head_dim": 128}
    time = done / 750e12  # as fast as fused attention gets on an H100; all pairs would be 1500 TFLOP/s
    assert not audit_batch(_batch("context_attention", shape, [time])).flagged.any()
    assert _checks(audit_batch(_batch("context_attention", shape, [time / 1.5]))) == {("peak_flop", 0)}


def test_winograd_may_do_a_3x3_convolution_of_stride_1_in_a_quarter_of_its_multiplications():
    # V100 PCIe: fp32 15.7 TFLOP/s at 1530 MHz by definition, 80 SMs x 128 FLOP x 1.38 GHz = 14.1 at its clocks
    gpu = load_gpu("v100-pcie-32gb")
    peak = gpu.cuda_flop_per_clk("fp32") * gpu.clock_max_mhz * 1e6
    shape = {"batch_size": [64], "in_channels": 256, "out_channels": 256, "height": 56, "kernel_h": 3, "padding": 1,
             "dtype": "fp32"}  # fmt: skip
    counted = 2 * 64 * 56 * 56 * 256 * 256 * 9
    at = {stride: _batch("conv2d", {**shape, "stride": stride}, [1.0], gpu="v100-pcie-32gb") for stride in (1, 2)}
    assert least_work(at[1].table, gpu).flop[0] == pytest.approx(counted / 4)
    assert least_work(at[2].table, gpu).flop[0] == pytest.approx(counted / 4)  # a quarter of the pixels, all their work
    for share, expected in ((3.5, set()), (4.5, {("peak_flop", 0)})):
        fast = _batch("conv2d", shape, [counted / (share * peak)], gpu="v100-pcie-32gb")
        assert _checks(audit_batch(fast)) == expected
    pointwise = {**shape, "kernel_h": 1, "padding": 0}
    fast = _batch("conv2d", pointwise, [counted / 9 / (1.5 * peak)], gpu="v100-pcie-32gb")
    assert ("peak_flop", 0) in _checks(audit_batch(fast))


# ---- memory


def test_rates_above_dram_are_true_where_the_footprint_fits_l2_and_not_far_beyond_it():
    # H200: 4.8 TB/s and 50 MiB of L2; adding in place of 16-bit numbers reads and writes 4 B an element
    def add(elements, rate):
        shape = {"op": "relu", "elements": [elements], "dtype": "fp16"}
        return _checks(audit_batch(_batch("elementwise", shape, [4 * elements / rate], gpu="h200-sxm-141gb")))

    assert add(5e6, 8e12) == set()  # 20 MB at 8 TB/s
    assert add(16e6, 8e12) == set()  # 64 MB nearly fit: 11.6 MB come from DRAM
    assert add(1e9, 8e12) == {("bandwidth", 0)}  # 4 GB at 8 TB/s
    assert add(1e9, 4.7e12) == set()


def test_nothing_reads_faster_than_l2_delivers():
    # H200: 5120 B/clk at 1980 MHz = 10.1 TB/s
    shape = {"op": "relu", "elements": [5e6], "dtype": "fp16"}
    audit = audit_batch(_batch("elementwise", shape, [20e6 / 12e12], gpu="h200-sxm-141gb"))
    assert _checks(audit) == {("bandwidth", 0)}
    assert "L2" in audit.findings[0].reasons[0]


def test_keys_and_values_that_may_share_their_memory_are_doubted_and_kept():
    # 8.6 GB of cache; 1.6 times the 7.7 TB/s of a B200 would do if keys and values lay in the same pages
    shape = {"batch_size": [128], "past_len": 2047, "num_heads": 32, "head_dim": 256}
    cache = 128 * 2048 * 32 * 512 * 2
    audit = audit_batch(_batch("generation_attention", shape, [cache / (1.6 * 7.7e12)], gpu="b200-sxm-180gb"))
    assert not audit.flagged.any()
    assert audit.doubted.tolist() == [True]
    assert audit_batch(
        _batch("generation_attention", shape, [cache / (2.3 * 7.7e12)], gpu="b200-sxm-180gb")
    ).flagged.all()


def test_a_collective_can_not_send_faster_than_the_links():
    # 8 GPUs: 7/8 of 1 GiB leave each at 450 GB/s or less on H100
    shape = {"collective": ["all_gather"], "num_gpus": 8, "message_bytes": 2.0**30}
    sent = 2.0**30 * 7 / 8
    assert _checks(audit_batch(_batch("nccl", shape, [sent / 400e9]))) == set()
    assert _checks(audit_batch(_batch("nccl", shape, [sent / 500e9]))) == {("link", 0)}


# ---- power and energy


@pytest.mark.parametrize(
    ("gpu", "limit", "reading"), [("h200-sxm-141gb", 700, 719.2), ("b200-sxm-180gb", 1000, 1039.6)]
)
def test_readings_of_a_loop_a_few_per_cent_above_the_limit_are_kept(gpu, limit, reading):
    powers = [reading, limit * 1.06]
    batch = _batch("gemm", _gemm([8192, 8193]), [20e-3] * 2, gpu=gpu, power_w=powers, limit_w=limit)
    assert _checks(audit_batch(batch)) == {("power_limit", 1)}


def test_power_below_the_idle_floor_is_flagged():
    # H200 with a context resident idles at 126 W; B200's lowest reading is 209 W, its floor 241 W
    power = [128.0, 90.0]
    batch = _batch("gemm", _gemm([8192, 8193]), [20e-3] * 2, gpu="h200-sxm-141gb", power_w=power, limit_w=700)
    assert _checks(audit_batch(batch)) == {("idle", 1)}
    lowest = _batch("gemm", _gemm([8192]), [20e-3], gpu="b200-sxm-180gb", power_w=[209.4], limit_w=1000)
    assert not audit_batch(lowest).flagged.any()


@pytest.mark.parametrize(("factor", "unit"), [(1e3, "mW"), (1e-3, "kW")])
def test_power_in_other_units_is_told(factor, unit):
    batch = _batch("gemm", _gemm([8192]), [20e-3], gpu="h200-sxm-141gb", power_w=[500 * factor], limit_w=700)
    audit = audit_batch(batch)
    assert _checks(audit) == {("unit", 0)}
    assert unit in audit.findings[0].reasons[0]


def _file(tmp_path, name="table.csv", **columns):
    path = tmp_path / name
    frame = pl.DataFrame(columns)
    if path.suffix == ".parquet":
        frame.write_parquet(path)
    else:
        frame.write_csv(path)
    return path


def test_the_two_impossible_readings_of_the_kernel_search_paper_are_found(tmp_path):
    # arXiv 2411.18873: 6.909 mJ in 0.0118 ms is 585 W on an RTX 4090 limited to 450 W, another reading is 468 W;
    # 3.24 mJ in 0.0123 ms (263 W) and 239 W are possible
    path = _file(
        tmp_path,
        kernel=["MV", "CONV", "MV, theirs", "MM1"],
        time_ms=[0.0118, 0.01, 0.0123, 0.1],
        energy_mj=[6.909, 4.68, 3.24, 23.9],
        power_limit_w=[450] * 4,
    )
    audited = audit_file(path)
    assert audited.format == "readings"
    assert _checks(audited.audit) == {("window", 0), ("window", 1)}
    assert "585.5 W" in audited.audit.findings[0].reasons[0]
    assert audited.unused == ("kernel",)


def test_a_power_given_as_such_is_held_against_the_default_limit_of_the_named_board(tmp_path):
    path = _file(tmp_path, gpu=["RTX 4090"] * 3, time_ms=[0.01] * 3, power_w=[468.0, 450.0, 300.0])
    audit = audit_file(path).audit
    assert _checks(audit) == {("power_limit", 0)}
    assert "default" in audit.findings[0].reasons[0]


def test_energy_must_be_power_times_time(tmp_path):
    path = _file(
        tmp_path, gpu=["a100-pcie-40gb"] * 3, time_ms=[10.0, 10.0, 10.0], power_w=[200.0] * 3,
        energy_j=[2.03, 4.0, 2000.0],
    )  # fmt: skip
    # 1.4 % apart is how two meters differ, twice is a contradiction, a thousand times a unit
    assert _checks(audit_file(path).audit) == {("energy", 1), ("unit", 2)}


def test_windows_shorter_than_the_meter_averages_are_doubted(tmp_path):
    path = _file(tmp_path, gpu=["h100"] * 2, time_ms=[1.0, 1.0], power_w=[300.0] * 2, window_s=[0.1, 2.0])
    audit = audit_file(path).audit
    assert audit.doubted.tolist() == [True, False]


def test_zero_negative_and_missing_figures_are_flagged(tmp_path):
    path = _file(
        tmp_path, gpu=["h100"] * 5, time_ms=[0.0, -1.0, None, 1.0, 1.0], power_w=[300.0, 300.0, 300.0, 0.0, 300.0]
    )
    assert _checks(audit_file(path).audit) == {("not_positive", row) for row in range(4)}


# ---- rows against each other


def test_repeats_that_differ_by_noise_are_kept_and_those_that_contradict_are_found():
    shape = _gemm([4096] * 6)
    audit = audit_batch(_batch("gemm", shape, np.array([1.0, 1.07, 1.14, 1.02, 0.98, 3.5]) * 1e-3))
    assert _checks(audit) == {("repeat", 5)}
    both = audit_batch(_batch("gemm", _gemm([4096] * 2), [1e-3, 3e-3]))
    assert _checks(both) == {("repeat", 0), ("repeat", 1)}  # of two, neither is known to be right


def test_a_row_given_twice_is_told():
    batch = _batch("gemm", _gemm([4096, 4096, 8192]), [1e-3, 1e-3, 2e-3], power_w=[500.0, 500.0, 600.0], limit_w=700)
    assert _checks(audit_batch(batch)) == {("duplicate", 1)}


def test_steps_of_tiles_and_waves_are_no_contradiction():
    m = np.arange(128, 4096, 64)
    waves = np.ceil(np.ceil(m / 128) * 64 / 132)
    times = 10e-6 + waves * 60e-6
    times[1::4] *= 0.75  # a quarter of neighbouring sizes a quarter faster
    assert not audit_batch(_batch("gemm", _gemm(m), times)).flagged.any()


def test_one_spoiled_row_is_blamed_and_not_those_it_contradicts():
    m = np.array([64, 128, 256, 512, 1024, 2048])
    times = np.array([100.0, 110, 4000, 250, 400, 700]) * 1e-6
    audit = audit_batch(_batch("gemm", _gemm(m), times))
    assert _checks(audit) == {("growth", 2)}
    assert "4 ms at m = 256" in audit.findings[0].reasons[0]


def test_a_kernel_chosen_badly_for_a_range_of_sizes_is_doubted_and_kept():
    m = np.array([16, 32, 64, 256, 512, 1024])
    times = np.array([900.0, 950, 1000, 100, 110, 120]) * 1e-6
    audit = audit_batch(_batch("gemm", _gemm(m, 2048, 2048), times))
    assert not audit.flagged.any()
    assert audit.doubted.any()


def test_jitter_of_tiny_kernels_is_no_contradiction():
    times = np.array([15.0, 2.0, 14.0, 3.0, 15.0, 2.0]) * 1e-6
    shape = {"op": "relu", "elements": [1e3, 1e4, 3e4, 1e5, 3e5, 4e5], "dtype": "fp16"}
    assert not audit_batch(_batch("elementwise", shape, times)).flagged.any()


# ---- units


@settings(max_examples=40, deadline=None)
@given(
    m=st.lists(st.integers(1, 16384), min_size=30, max_size=60, unique=True),
    share=st.floats(0.25, 0.9),
    launch_us=st.floats(2.0, 10.0),
    slip=st.sampled_from([1e-3, 1e3]),
)
def test_times_a_thousand_times_too_short_or_long_are_noticed(m, share, launch_us, slip):
    gpu = load_gpu("h100-sxm-80gb")
    table = op_table("gemm", _gemm(m))
    work = least_work(table, gpu)
    least = np.maximum(work.flop / work.flop_per_s, work.touched_bytes / (gpu.dram_gb_s * 1e9))
    times = least / share + launch_us * 1e-6
    assert not audit_batch(_batch("gemm", _gemm(m), times)).flagged.any()
    audit = audit_batch(_batch("gemm", _gemm(m), times * slip))
    assert audit.flagged.mean() > 0.5
    assert "unit" in {one.check for one in audit.findings}


@given(st.floats(0.5, 2.0), st.sampled_from([-6, -3, 3, 6]))
def test_a_slip_of_the_unit_is_told_from_a_plain_misfit(near, power):
    assert bounds.slip_of_unit(near * 10.0**power) == power
    assert bounds.slip_of_unit(near) == 0


@given(touched=st.floats(1, 1e12), l2=st.floats(1e6, 2e8), rate=st.floats(1e10, 1e13))
def test_the_floor_of_memory_never_exceeds_all_bytes_at_drams_rate(touched, l2, rate):
    assert 0 <= bounds.memory_floor_s(touched, l2, rate) <= touched / rate


# ---- files and the command


def test_a_users_own_kernel_table_works_in_either_file_format(tmp_path):
    columns = {"op": ["gemm"] * 2, "gpu": ["h100_sxm"] * 2, "m": [8192] * 2, "n": [8192, 4096], "k": [8192] * 2,
               "dtype": ["bfloat16"] * 2, "latency_ms": [0.5, 1.0], "mood": ["good", "bad"]}  # fmt: skip
    for name in ("mine.csv", "mine.parquet"):
        audited = audit_file(_file(tmp_path, name, **columns))
        assert audited.format == "kernels"
        assert audited.unused == ("mood",)
        assert _checks(audited.audit) == {("peak_flop", 0)}


def test_exit_codes_and_json(tmp_path, capsys):
    bad = _file(tmp_path, "bad.csv", time_ms=[0.0118], energy_mj=[6.909], power_limit_w=[450])
    good = _file(tmp_path, "good.csv", time_ms=[0.0123], energy_mj=[3.24], power_limit_w=[450])
    words = _file(tmp_path, "words.csv", title=["a"], value=[1])
    assert main(["audit", str(good)]) == 0
    assert "clean" in capsys.readouterr().out
    assert main(["audit", str(bad), "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["tables"][0]["flagged"] == 1
    assert document["findings"][0] | {"reason": ""} == {
        "table": str(bad), "row": 0, "check": "window", "doubtful": False, "value": pytest.approx(585.508, abs=1e-3),
        "bound": 450.0, "unit": "W", "reason": "",
    }  # fmt: skip
    for path in (words, tmp_path / "none.csv"):
        assert main(["audit", str(path)]) == 2
        out, err = capsys.readouterr()
        assert (out, err.count("\n")) == ("", 1)
    assert main(["audit", str(tmp_path)]) == 1
    assert "words.csv is no table of measurements" in " ".join(capsys.readouterr().out.split())
    bad.unlink()
    assert main(["audit", str(tmp_path)]) == 2  # nothing is flagged of what could be read
    out, err = capsys.readouterr()
    assert "clean: nothing is impossible" in out
    assert err.startswith("joulecast: 1 of 2 tables can't be read, the first: words.csv is no table")


def test_the_least_time_of_a_pass_leaves_out_a_language_models_head():
    # OPT-1.3B: 24 layers x 12 h^2 weights, h = 2048, and causal or full attention; 2 FLOP each at 125 TFLOP/s x clock
    gpu = load_gpu("a10")
    least = least_pass_s(open_workload("facebook/opt-1.3b", batch=8, prompt_tokens=2048, dtype="bf16"), gpu)
    linear = 2 * 24 * 12 * 2048**2 * 8 * 2048 / (gpu.tensor_flop_per_clk("bf16") * gpu.clock_max_mhz * 1e6)
    assert linear < least < 1.5 * linear


# ---- published measurements


def test_the_failed_run_is_found_without_its_mark_and_no_other(data_dir, tmp_path):
    table = pl.read_csv(data_dir / "energaizer" / "measurements.csv", infer_schema_length=None)
    failed = set(np.flatnonzero(table["failed_run"].to_numpy()).tolist())
    path = tmp_path / "measurements.csv"
    table.drop("failed_run").write_csv(path)  # no traces beside it: the models themselves tell the arithmetic
    for file in (path, data_dir / "energaizer" / "measurements.csv"):
        audited = audit_file(file)
        assert audited.left_out == 0
        assert set(np.flatnonzero(audited.audit.flagged).tolist()) == failed


def test_single_launches_above_the_cap_are_found_and_a_good_meter_is_trusted(data_dir):
    folder = data_dir / "tuning"
    launches = audit_file(folder / "energy_a100_xgemm_fp32.parquet")
    reason = next(one for one in launches.audit.findings if one.check == "window").reasons[0]
    assert "(51.6% of the table's launches)" in reason  # 52 %, says the table's description
    for good in ("energy_rtx4000ada_wmma_cgemm_fp16", "energy_rtxa4000_hotspot", "noise_rtxa4000_gemm_repeats"):
        assert not audit_file(folder / f"{good}.parquet").audit.flagged.any()


@pytest.mark.parametrize("name", ["h200_sxm/gemm", "h200_sxm/generation_attention", "b200_sxm/context_attention"])
def test_hardly_any_row_of_good_tables_is_flagged(data_dir, name):
    audited = audit_file(data_dir / "aiconfigurator" / f"{name}.parquet")
    assert audited.audit.flagged.mean() < 1e-3
    assert audited.weak_power > 0


def test_convolutions_by_winograd_and_fp32_operators_are_kept(data_dir):
    for name in ("conv2d", "linear"):
        assert not audit_file(data_dir / "neusight" / f"kernels_nvidia_{name}.parquet").audit.flagged.any()


def test_a_misspelt_operation_is_told_and_not_called_clean(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("gpu,op,m,n,k,dtype,latency_ms\nh100_sxm,gem,64,64,64,bf16,0.01\n")
    with pytest.raises(InputError, match="unknown operation 'gem': did you mean gemm"):
        audit_file(path)
