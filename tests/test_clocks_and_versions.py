"""Rows under load at the clock they ran at; versions of an engine; collectives by size of message; a host's paths."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulecast.calibration.kernels import pools_of
from joulecast.calibration.settled import FreeTimes, settled_clock_mhz
from joulecast.calibration.tables import Measured, vidur_collectives
from joulecast.calibration.time_fit import message_factors
from joulecast.coefficients import store
from joulecast.coefficients.likeness import unlikeness
from joulecast.coefficients.schema import GpuCoefficients, PowerCoefficients, TimeCoefficients
from joulecast.coefficients.versions import named, order, stood_in, with_version, without_version
from joulecast.errors import InputError
from joulecast.gpus import load_gpu
from joulecast.kernels.collective import nccl_work
from joulecast.kernels.gemm import gemm_work
from joulecast.kernels.work import Conditions
from joulecast.physics.price import price
from joulecast.physics.settled import at_clock, under_limit
from joulecast.physics.timing import message_factor
from joulecast.workloads.table import op_table

H200, H100 = load_gpu("H200-SXM-141GB"), load_gpu("H100-SXM-80GB")
POWER = PowerCoefficients(
    idle_w=80, clocked_w=50, active_w=120, tensor_pj={"bf16": 0.7}, cuda_pj={"fp32": 3.0}, sfu_pj=5.0, shared_pj=1.2,
    l2_pj=6.0, dram_pj=20.0, limit_share=0.985,
)  # fmt: skip
SPREAD = np.full(5, 0.05)
EFFICIENCIES = TimeCoefficients(tensor_efficiency=0.8, provenance="fitted", rows=100)


def products(version="0.22.0", timing="sustained", quality=3, m=(64, 512, 4096, 8192, 16384)) -> Measured:
    table = op_table("gemm", {"m": list(m), "n": 8192, "k": 8192, "dtype": "bf16"})
    n = len(m)
    return Measured(
        gpu="H200-SXM-141GB", table=table, time_s=np.full(n, 1e-3), power_w=np.full(n, np.nan),
        conditions=Conditions(engine="vllm", version=version), version=version, timing_mode=timing,
        launch_mode="cuda_graph", operand_init="random", power_limit_w=700.0, quality=np.full(n, quality),
    )  # fmt: skip


def priced(batch: Measured):
    return price(batch.table, H200, batch.conditions, power=POWER, time={"gemm/vllm/bf16": EFFICIENCIES},
                 corrections={}, power_corrections={})  # fmt: skip


def test_the_clock_of_rows_at_the_limit_is_found_from_time_and_power():
    # the truth of a GPU that behaves as the model says: large products throttle, one bound by memory does not
    batch = products()
    model = priced(batch)
    truth = under_limit(model, H200.clock_max_mhz, 700.0)
    assert truth.throttled.tolist() == [False, True, True, True, True]
    measured = replace(batch, time_s=truth.time_s, power_w=truth.power_w)
    free_s, _ = at_clock(model, H200.clock_max_mhz)
    found = settled_clock_mhz(measured, model, FreeTimes(free_s, SPREAD))
    assert found == pytest.approx(truth.clock_mhz, rel=0.01)


def test_a_settled_reading_below_the_limit_means_the_highest_clock():
    # quality A says that the power is this kernel's; whatever else is predicted, nothing throttled it
    batch = replace(products(quality=0), power_w=np.full(5, 500.0))
    model = priced(batch)
    free_s, _ = at_clock(model, H200.clock_max_mhz)
    assert (settled_clock_mhz(batch, model, FreeTimes(free_s, SPREAD)) == H200.clock_max_mhz).all()


def test_a_reading_of_what_ran_before_says_nothing_of_the_clock():
    # quality D: 0.3 s loops mostly show the kernel before, so a low reading of a hot kernel is no evidence
    model = priced(products())
    truth = under_limit(model, H200.clock_max_mhz, 700.0)
    batch = replace(products(quality=3), time_s=truth.time_s, power_w=np.full(5, 300.0))
    free_s, _ = at_clock(model, H200.clock_max_mhz)
    assert settled_clock_mhz(batch, model, FreeTimes(free_s, SPREAD)) == pytest.approx(truth.clock_mhz, rel=0.01)


def test_bursts_and_rows_under_load_of_one_version_are_one_pool_at_two_clocks():
    held = products(timing="burst")
    loaded = replace(products(), clock_mhz=np.full(5, 1500.0))
    (pool,) = pools_of([held, loaded])
    assert pool.key == "gemm/vllm"
    assert pool.clock_mhz.tolist() == [H200.clock_max_mhz] * 5 + [1500.0] * 5
    assert pool.at_highest.tolist() == [True] * 5 + [False] * 5


def test_other_versions_are_pools_of_their_own_named_after_them():
    found = {pool.key for pool in pools_of([products("1.3.0rc15"), products("1.3.0rc20", "burst")])}
    assert found == {"gemm/vllm", "gemm/vllm 1.3.0rc15"}


def test_without_bursts_the_engine_is_named_after_its_latest_version():
    found = {pool.key for pool in pools_of([products("0.22.0"), products("0.9.1")])}
    assert found == {"gemm/vllm", "gemm/vllm 0.9.1"}


@pytest.mark.parametrize(("older", "newer"), [("0.9.1", "0.22.0"), ("1.3.0rc15", "1.3.0rc20"), ("1.3.0rc20", "1.3.0")])
def test_versions_sort_by_age(older, newer):
    assert order(older) < order(newer)


def test_a_version_is_used_where_it_was_measured_and_the_engine_elsewhere():
    known = {"gemm/trtllm/bf16", "gemm/trtllm 1.3.0rc15/bf16"}
    assert named("trtllm", "1.3.0rc15", "gemm", ("bf16", "fp8"), known) == ["trtllm 1.3.0rc15", "trtllm"]
    assert named("trtllm", "", "gemm", ("bf16",), known) == ["trtllm"]
    assert without_version(with_version("trtllm", "1.3.0rc15")) == "trtllm"
    assert stood_in("gemm/trtllm 1.3.0rc15/bf16", known)
    assert not stood_in("gemm/trtllm/bf16", known)


def test_versions_of_one_engine_are_more_alike_than_engines():
    def far(other):
        return unlikeness("gemm", H100, ("trtllm", "bf16"), H100, (other, "bf16"))

    assert 0 < far("trtllm 1.3.0rc15") < far("vllm") < far("pytorch")


def test_price_takes_the_efficiencies_of_the_version_asked_for():
    slower = replace(EFFICIENCIES, tensor_efficiency=0.4)
    time = {"gemm/trtllm/bf16": EFFICIENCIES, "gemm/trtllm 1.0/bf16": slower}
    table = op_table("gemm", {"m": 8192, "n": 8192, "k": 8192, "dtype": "bf16"})

    def seconds(version, known):
        one = price(table, H200, Conditions("trtllm", version=version), power=POWER, time=known, corrections={})
        return at_clock(one, 1500)[0]

    assert seconds("1.0", time) == seconds("", {"gemm/trtllm/bf16": slower})
    assert seconds("2.0", time) == seconds("", time) < seconds("1.0", time)


def test_times_of_collectives_follow_the_factors_of_their_sizes():
    columns = {"collective": "all_reduce", "num_gpus": 8, "message_bytes": [2**12, 2**15, 2**18, 2**30]}
    work = nccl_work(op_table("nccl", columns), H100, Conditions("nccl"))
    one = TimeCoefficients(message_factors={"12": 2.0, "18": 0.5})
    # straight in logarithms between 2^12 and 2^18, level outside
    assert message_factor(work, [one]) == pytest.approx([2.0, 1.0, 0.5, 0.5])


@given(noise=st.lists(st.floats(-0.7, 0.7), min_size=8, max_size=20))
def test_a_larger_message_never_takes_less_time_at_the_sizes_that_were_measured(noise):
    size = 2.0 ** np.arange(10, 10 + len(noise))
    plain = 5e-6 + size / 300e9
    factors = message_factors(size, plain, plain * np.exp(noise))
    corrected = plain * np.array([factors[f"{one:.6g}"] for one in np.log2(size)])
    assert (np.diff(corrected) >= -1e-12 * corrected[1:]).all()


def test_few_sizes_tell_no_curve():
    assert message_factors(np.array([1e3, 1e6]), np.ones(2), np.ones(2)) == {}


def test_factors_by_size_are_written_and_read_back(tmp_path):
    one = TimeCoefficients(message_factors={"12": 1.25, "20.5": 0.75}, provenance="fitted")
    store.write(GpuCoefficients("H100-SXM-80GB", {"nccl/nccl/all_reduce/8": one}), tmp_path / "H100-SXM-80GB.toml")
    back = store.read(tmp_path / "H100-SXM-80GB.toml").time["nccl/nccl/all_reduce/8"]
    assert back.message_factors == {"12": 1.25, "20.5": 0.75}


@pytest.mark.parametrize("text", ['{ "big" = 1.0 }', '{ "20" = 0.0 }', '{ "-3" = 1.0 }', "3"])
def test_impossible_factors_by_size_are_refused(text):
    with pytest.raises(InputError, match="message_factors"):
        store.parse(f'schema = 1\ngpu = "L40S"\n[time."nccl/nccl/all_reduce/8"]\nmessage_factors = {text}\n', "mine")


def test_vidur_collectives_leave_out_what_says_something_else():
    # of one node: send-receive of any size and large reductions; not groups over nodes, pairs, or small reductions
    rows = [
        ("a100_dgx", "send_recv", 2, 2, 4096, 0.010), ("a100_dgx", "send_recv", 2, 2, 4096, 0.014),
        ("a100_dgx", "send_recv", 2, 1, 4096, 0.100), ("a100_dgx", "all_reduce", 8, 8, 4096, 0.060),
        ("h100_dgx", "all_reduce", 8, 8, 2**25, 0.200), ("a40_pairwise_nvlink", "send_recv", 2, 2, 4096, 0.004),
    ]  # fmt: skip
    names = ("platform", "collective", "num_workers", "devices_per_node", "message_bytes", "time_median_ms")
    a100, h100 = vidur_collectives(pl.DataFrame(rows, schema=names, orient="row"))
    assert (a100.gpu, h100.gpu) == ("A100-SXM-80GB", "H100-SXM-80GB")
    assert a100.time_s.tolist() == pytest.approx([12e-6])  # two passes of the profiler: their median
    assert h100.table["num_gpus"].tolist() == [8]
    assert not a100.host_bound


def test_a_hopper_host_takes_longer_for_rows_that_must_be_laid_out_again():
    # between launches an H200's host took 52 us for 8 rows, 75 for 64, 84 for 65
    table = op_table("gemm", {"m": [8, 64, 65], "n": 512, "k": 512, "dtype": "fp8_block"})
    steps = gemm_work(table, H200, Conditions("vllm")).host_steps
    assert 52 * steps == pytest.approx([52, 75, 84], abs=0.5)
    assert (gemm_work(table, H200, Conditions("trtllm")).host_steps == 1).all()
    assert (gemm_work(table, load_gpu("B200-SXM-180GB"), Conditions("vllm")).host_steps == 1).all()
