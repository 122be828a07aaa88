"""Collectives: bytes sent, ranks, links."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulecast.coefficients.schema import TimeCoefficients
from joulecast.gpus import load_gpu
from joulecast.kernels.collective import custom_allreduce_work, link_gb_s, nccl_work, sent_bytes
from joulecast.kernels.work import Conditions, KernelWork
from joulecast.physics.timing import duration_s, module_times, parameters_by_row
from joulecast.workloads.kinds import COLLECTIVES
from joulecast.workloads.table import op_table

H100, A100, L40S = load_gpu("H100-SXM-80GB"), load_gpu("A100-SXM-80GB"), load_gpu("L40S")
NCCL = Conditions("nccl")


def seconds(work: KernelWork, gpu=H100, share=1.0) -> np.ndarray:
    parameters = parameters_by_row([TimeCoefficients()] * len(work.groups), work.group)
    return duration_s(module_times(work, gpu, parameters), gpu, gpu.clock_max_mhz * share)


def nccl(gpu=H100, **columns) -> KernelWork:
    return nccl_work(op_table("nccl", columns), gpu, NCCL)


@pytest.mark.parametrize(
    ("collective", "share"),
    [
        ("all_reduce", 2 * 7 / 8),
        ("all_gather", 7 / 8),
        ("reduce_scatter", 7 / 8),
        ("alltoall", 7 / 8),
        ("send_recv", 1),
    ],
)
def test_bytes_each_of_eight_ranks_sends(collective, share):
    # the bus-bandwidth factors that NCCL's tests document
    assert sent_bytes([COLLECTIVES.index(collective)], [8], [8e6])[0] == pytest.approx(share * 8e6)


def test_a_ring_of_four_takes_its_bytes_over_the_rate_of_the_link():
    # 1 GiB all-reduce on A100: 1.5 GiB over 300 GB/s, and the delay of chunks is small beside it
    work = nccl(A100, collective="all_reduce", num_gpus=4, message_bytes=2**30)
    assert work.link_s[0] == pytest.approx(1.5 * 2**30 / 300e9, rel=0.05)


def test_links_are_nvlink_where_there_is_some_and_pcie_elsewhere():
    assert link_gb_s(H100) == H100.nvlink_gb_s
    assert link_gb_s(L40S) == L40S.pcie_gb_s


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_one_rank_costs_nothing(collective):
    work = nccl(collective=collective, num_gpus=1, message_bytes=2**20)
    assert seconds(work)[0] == 0
    assert work.reasons == {}


def test_one_rank_of_an_engines_all_reduce_costs_nothing():
    work = custom_allreduce_work(op_table("custom_allreduce", {"num_gpus": 1, "message_bytes": 2**20}), H100, NCCL)
    assert seconds(work)[0] == 0


def test_small_messages_cost_latency_and_large_ones_their_bytes():
    times = seconds(nccl(collective="all_reduce", num_gpus=8, message_bytes=[1024, 2048, 2**30, 2**31]))
    assert times[1] < 1.2 * times[0]
    assert times[3] > 1.8 * times[2]


def test_an_engine_exchanges_small_buffers_at_once_and_large_ones_in_parts():
    work = custom_allreduce_work(
        op_table("custom_allreduce", {"num_gpus": 4, "message_bytes": [4096, 2**30]}), A100, Conditions("trtllm")
    )
    assert work.link_s[0] == pytest.approx(3 * 4096 / 300e9)
    assert work.link_s[1] == pytest.approx(1.5 * 2**30 / 300e9, rel=0.05)


def test_a_gpu_without_links_says_so():
    alone = type(H100)(**{**H100.__dict__, "nvlink_gb_s": 0.0, "pcie_gb_s": 0.0})
    work = nccl(alone, collective="all_reduce", num_gpus=[1, 2], message_bytes=2**20)
    assert list(work.reasons) == [1]
    assert "no link" in work.reasons[1]


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(COLLECTIVES), st.integers(2, 64), st.integers(1, 2**36),
       st.sampled_from(("H100-SXM-80GB", "A100-SXM-80GB", "L40S", "V100-PCIE-32GB")))  # fmt: skip
def test_time_rises_with_the_message_and_never_falls_with_a_slower_clock(collective, ranks, size, gpu_name):
    gpu = load_gpu(gpu_name)
    work = nccl(gpu, collective=collective, num_gpus=ranks, message_bytes=[size, 2 * size])
    short, long = seconds(work, gpu)
    assert 0 < short <= long * (1 + 1e-9)
    assert (seconds(work, gpu, 0.4) >= seconds(work, gpu) * (1 - 1e-12)).all()
    assert np.isfinite(work.features).all()


@given(st.integers(2, 512))
def test_no_all_reduce_sends_twice_its_buffer(ranks):
    sent = sent_bytes([COLLECTIVES.index("all_reduce")], [ranks], [1.0])[0]
    assert 1.0 <= sent < 2.0
