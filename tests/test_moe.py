"""Mixtures of experts: routing, weights that are read, padding, formats."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulecast.coefficients.schema import TimeCoefficients
from joulecast.gpus import load_gpu
from joulecast.kernels.moe import kernel_label, moe_work
from joulecast.kernels.routing import coverage, power_law, route
from joulecast.kernels.work import Conditions, KernelWork
from joulecast.physics.timing import duration_s, module_times, parameters_by_row
from joulecast.workloads.kinds import ROUTINGS
from joulecast.workloads.table import op_table

H100, A100, B200 = load_gpu("H100-SXM-80GB"), load_gpu("A100-SXM-80GB"), load_gpu("B200")
STREAM = Conditions("trtllm", "stream")
#: Mixtral 8x7B and DeepSeek-V3, from their published configurations.
MIXTRAL = {"hidden_size": 4096, "inter_size": 14336, "topk": 2, "num_experts": 8}
DEEPSEEK = {"hidden_size": 7168, "inter_size": 2048, "topk": 8, "num_experts": 256}


def moe(gpu=H100, conditions=STREAM, **columns) -> KernelWork:
    return moe_work(op_table("moe", {"dtype": "bf16", **columns}), gpu, conditions)


def seconds(work: KernelWork, gpu=H100, share=1.0) -> np.ndarray:
    parameters = parameters_by_row([TimeCoefficients()] * len(work.groups), work.group)
    return duration_s(module_times(work, gpu, parameters), gpu, gpu.clock_max_mhz * share)


def test_coverage_of_experts():
    assert coverage(1, 8, 256) == pytest.approx(8 / 256)
    assert coverage(2, 2, 4) == pytest.approx(1 - 0.5**2)
    assert coverage(10_000, 8, 256) == pytest.approx(1.0)


def test_flop_of_a_mixtral_layer():
    # three products of 4096 x 14336 for each of two experts, 2 FLOP a multiply-add
    work = moe(**MIXTRAL, num_tokens=4096)
    assert work.useful_flop[0] == 4096 * 2 * 3 * 2 * 4096 * 14336
    assert work.useful_flop[0] <= work.tensor_flop[0] < 1.3 * work.useful_flop[0]


def test_one_token_reads_the_weights_of_its_own_experts_and_many_read_all():
    expert = 3 * 7168 * 2048 * 2
    work = moe(**DEEPSEEK, num_tokens=[1, 32])
    assert work.dram_bytes[0] == pytest.approx(8 * expert, rel=0.01)
    assert work.dram_bytes[1] == pytest.approx(256 * expert, rel=0.01)


def test_parallel_layouts_divide_experts_and_their_width():
    whole, spread, divided = (
        moe(**DEEPSEEK, num_tokens=64, **layout).dram_bytes[0]
        for layout in ({}, {"moe_ep_size": 8}, {"moe_tp_size": 8})
    )
    assert spread == pytest.approx(whole / 8, rel=0.02)
    assert divided == pytest.approx(whole / 8, rel=0.02)


def test_formats_set_the_bytes_of_the_weights():
    work = moe(B200, **DEEPSEEK, num_tokens=64, dtype=["bf16", "fp8_block", "nvfp4"])
    assert work.dram_bytes[1] / work.dram_bytes[0] == pytest.approx(1 / 2, rel=0.02)
    assert work.dram_bytes[2] / work.dram_bytes[0] == pytest.approx((0.5 + 1 / 16) / 2, rel=0.02)


def test_an_ungated_layer_has_two_products_and_a_group_of_its_own():
    work = moe(**MIXTRAL, num_tokens=64, gated=[1, 0])
    assert work.useful_flop[1] == work.useful_flop[0] * 2 / 3
    assert {work.groups[code] for code in work.group} == {"bf16", "bf16@nongated"}


def test_few_tokens_an_expert_are_padded_to_a_tile():
    work = moe(**DEEPSEEK, num_tokens=[32, 16384])
    padding = work.tensor_flop / work.useful_flop
    assert padding[0] > 10 * padding[1]


def test_formats_a_gpu_lacks_say_why():
    assert "A100" in moe(A100, **MIXTRAL, num_tokens=8, dtype="fp8").reasons[0]
    assert "fp4" in moe(H100, **MIXTRAL, num_tokens=8, dtype="nvfp4").reasons[0]
    assert moe(H100, **MIXTRAL, num_tokens=8, dtype="w4a16_mxfp4").reasons == {}


@pytest.mark.parametrize(
    ("source", "label"),
    [("", ""), ("moe_torch_flow", ""), ("moe_torch_flow_cutlass", ""), ("moe_torch_flow_min_latency", "@min_latency"),
     ("vllm_fused_moe", ""), ("deepgemm", ""), ("moe_torch_flow_nongated", "")],
)  # fmt: skip
def test_names_of_kernels(source, label):
    assert kernel_label(source) == label


def test_a_power_law_has_a_mean_of_one_and_rises():
    loads = power_law(np.array([1.01, 1.2]), np.array([1000.0, 1000.0]))
    np.testing.assert_allclose(loads.mean(axis=1), 1.0)
    assert (np.diff(loads, axis=1) > 0).all()
    assert loads[1, -1] > loads[0, -1]  # the steeper, the more the few largest have


def test_skewed_routing_hits_fewer_experts_and_busies_one_gpu_more():
    arguments = [np.full(1, value, dtype=float) for value in (64, 8, 256, 8)]
    even = route(*arguments, np.array([0]), (16.0, 128.0))
    skewed = route(*arguments, np.array([ROUTINGS.index("power_law_1.2")]), (16.0, 128.0))
    assert skewed.hit[0] < even.hit[0]
    assert skewed.pairs[0] > even.pairs[0]
    assert skewed.largest[0] > even.largest[0]


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 2**20), st.integers(1, 16384), st.integers(1, 32768), st.integers(1, 16), st.integers(1, 1024),
    st.integers(1, 64), st.integers(1, 256), st.sampled_from(ROUTINGS),
    st.sampled_from(("bf16", "fp8", "w4a16", "fp32")), st.sampled_from(("H100-SXM-80GB", "A100-SXM-80GB", "T4")),
)  # fmt: skip
def test_any_layer_has_finite_work_that_a_slower_clock_never_speeds_up(
    tokens, hidden, inter, topk, experts, tp, ep, routing, dtype, gpu_name
):
    gpu = load_gpu(gpu_name)
    work = moe(gpu, num_tokens=tokens, hidden_size=hidden, inter_size=inter, topk=min(topk, experts),
               num_experts=experts, moe_tp_size=tp, moe_ep_size=ep, distribution=routing, dtype=dtype)  # fmt: skip
    for name in ("tensor_flop", "cuda_flop", "shared_bytes", "l2_bytes", "dram_bytes", "blocks"):
        value = getattr(work, name)
        assert np.isfinite(value).all(), name
        assert (value >= 0).all(), name
    assert 0 < work.fill[0] <= 1 + 1e-9
    assert np.isfinite(work.features).all()
    times = [seconds(work, gpu, share)[0] for share in (0.3, 1.0)]
    assert 0 < times[1] <= times[0] < np.inf


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 15), st.sampled_from(ROUTINGS))
def test_more_tokens_take_no_less_time(power, routing):
    short, long = seconds(moe(**DEEPSEEK, num_tokens=[2**power, 2 ** (power + 1)], distribution=routing))
    assert long > short * 0.97
