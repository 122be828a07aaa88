"""Several GPUs: replicas, pipelines with microbatches, experts over replicas, overlap, memory of stages."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import joulecast as jc
from joulecast.cli import main
from joulecast.errors import InputError
from joulecast.gpus import load_gpu
from joulecast.lowering.execution import Execution, share_of_batch
from joulecast.lowering.lower import lower
from joulecast.physics.pipeline import largest_stage_share, makespan, waiting_share
from joulecast.scenarios.memory import expert_weight_bytes, layers_of_stages, memory_need
from joulecast.workloads.kinds import COLLECTIVES

SMALL = "Qwen/Qwen2.5-1.5B"
EXPERTS = "Qwen/Qwen3-30B-A3B"
HOW = {"prompt_tokens": 256, "generate_tokens": 8, "launch_mode": "cuda_graph", "ignore_memory": True}


def test_a_layout_of_one_is_the_single_gpu():
    plain = jc.predict(SMALL, "h100", batch=4, **HOW)
    one = jc.predict(SMALL, "h100", batch=4, tp=1, pp=1, ep=1, dp=1, microbatches=1, **HOW)
    assert (one.time_s, one.energy_j, one.gpu_count) == (plain.time_s, plain.energy_j, 1)


@settings(max_examples=12)
@given(dp=st.sampled_from([2, 3, 4, 8]), each=st.integers(1, 8))
def test_replicas_take_the_time_of_one_and_the_energy_of_all(dp, each):
    one = jc.predict(SMALL, "h100", batch=each, **HOW)
    all_ = jc.predict(SMALL, "h100", batch=each * dp, dp=dp, **HOW)
    assert all_.time_s == one.time_s
    assert all_.gpu_count == dp
    assert math.isclose(all_.energy_j, dp * one.energy_j, rel_tol=1e-12)
    assert math.isclose(all_.tokens_per_s, dp * one.tokens_per_s, rel_tol=1e-12)
    assert math.isclose(all_.energy_per_token_j, one.energy_per_token_j, rel_tol=1e-12)
    assert all_.memory.needed_gb == one.memory.needed_gb
    assert all_.info["batch"] == each * dp


def test_a_batch_that_does_not_divide_is_refused_with_those_that_do():
    with pytest.raises(InputError, match=r"batch 10 does not divide over 4 .*; 8 and 12 do"):
        jc.predict(SMALL, "h100", batch=10, dp=4, **HOW)
    with pytest.raises(InputError, match="; 4 does"):
        share_of_batch(1, 2, 2)


@given(p=st.integers(1, 16), m=st.integers(1, 64))
def test_the_bubble_of_a_prefill_is_that_of_the_textbook(p, m):
    span = makespan(1, p, m, 1 / p)
    assert math.isclose(span, (m + p - 1) / p, rel_tol=1e-12)
    assert math.isclose(waiting_share(span, p, m), (p - 1) / (m + p - 1), rel_tol=1e-9, abs_tol=1e-12)


def _walked(n: int, stages: list[float], m: int) -> float:
    """End of the last of `n` passes of `m` microbatches, stage by stage: each waits for its own last and the stage."""
    free = [0.0] * len(stages)
    ready = [0.0] * m
    for _ in range(n):
        for one in range(m):
            for place, length in enumerate(stages):
                free[place] = ready[one] = max(free[place], ready[one]) + length
    return max(ready)


@given(n=st.integers(1, 12), p=st.integers(1, 6), m=st.integers(1, 12))
def test_even_stages_end_when_a_walk_through_them_says(n, p, m):
    assert math.isclose(makespan(n, p, m, 1 / p), _walked(n, [1 / p] * p, m) / n, rel_tol=1e-9)


@given(m=st.integers(1, 12), layers=st.integers(2, 40), p=st.integers(2, 6))
def test_uneven_stages_of_a_prefill_end_when_a_walk_through_them_says(m, layers, p):
    p = min(p, layers)
    stages = [one / layers for one in layers_of_stages(layers, p)]
    assert math.isclose(makespan(1, p, m, largest_stage_share(p, layers)), _walked(1, stages, m), rel_tol=1e-9)


def test_microbatches_fill_a_pipeline_and_energy_is_conserved():
    batch, pp = 8, 4
    found = {m: jc.predict(SMALL, "h100", batch=batch, pp=pp, microbatches=m, **HOW) for m in (1, 2, 4, 8)}
    for m, one in found.items():
        prefill, decode = one.phases
        # 28 layers divide evenly over 4 stages
        assert math.isclose(prefill.bubble_share, (pp - 1) / (m + pp - 1), rel_tol=1e-9)
        assert math.isclose(decode.bubble_share, 1 - m * 7 / (7 * max(m, pp) + min(m, pp) - 1), rel_tol=1e-9)
        for parts in (one.families, one.modules, one.layers):
            assert math.isclose(math.fsum(parts.values()), one.energy_j, rel_tol=1e-9)
        alone = jc.predict(SMALL, "h100", batch=batch // m, pp=pp, **HOW).phases[0]
        assert math.isclose(prefill.time_s, alone.time_s * (m + pp - 1) / pp, rel_tol=1e-9)
        assert prefill.tokens_in == batch * 256
        assert prefill.tokens_out == batch
    assert found[4].phases[1].time_s < found[1].phases[1].time_s * 1.2
    assert found[4].phases[1].bubble_share < 0.15 < found[1].phases[1].bubble_share


def test_experts_over_replicas_exchange_the_tokens_of_all_of_them():
    workload = jc.workload(EXPERTS, batch=16, prompt_tokens=128)
    gpu = load_gpu("h100")
    tables = lower(workload, gpu, Execution("cuda_graph", tp=2, dp=4, ep=8)).tables
    moe, sent = tables["moe"], tables["nccl"]
    # tokens of the 4 replicas meet at 128 experts over 8 GPUs
    assert np.all(moe["num_tokens"] == 4 * 16 * 128)
    assert np.all(moe["moe_ep_size"] == 8)
    assert np.all(moe["moe_tp_size"] == 1)
    to_all = sent.take(sent["collective"] == COLLECTIVES.index("alltoall"))
    assert np.all(to_all["num_gpus"] == 8)
    # each GPU sends its half of the replica's 2,048 tokens to 8 experts each, 2,048 numbers of 2 bytes
    assert np.all(to_all["message_bytes"] == 1024 * 8 * 2048 * 2)
    assert to_all["count"].sum() == 2 * 48
    work = tables["moe"]
    assert np.all(work["num_tokens"] / work["moe_ep_size"] == 16 * 128 / 2)


def test_experts_weights_are_spread_further_than_the_rest():
    workload = jc.workload(EXPERTS, batch=8, prompt_tokens=128)
    gpu = load_gpu("h100")
    # 48 layers x 128 experts x 3 matrices of 2,048 x 768 in 2 bytes
    experts = 48 * 128 * 3 * 2048 * 768 * 2
    assert expert_weight_bytes(workload) == experts
    rest = workload.memory.weights_bytes - experts
    need = memory_need(workload, gpu, Execution(tp=2, dp=4, ep=8))
    assert math.isclose(need.weights_gb * 1e9, rest / 2 + experts / 8, rel_tol=1e-12)


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        ({"tp": 4, "ep": 3}, "ep=3 must divide tp=4"),
        ({"tp": 2, "dp": 2, "ep": 8}, "divides tp x dp=4"),
        ({"overlap": 1.5}, "from 0 to 1"),
        ({"dp": 0}, "dp must be a whole number"),
        ({"microbatches": 2.5}, "microbatches must be a whole number"),
    ],
)
def test_layouts_that_can_not_be_are_refused(layout, message):
    with pytest.raises(InputError, match=message):
        jc.predict(SMALL, "h100", **{**HOW, **layout})


def test_experts_that_do_not_divide_are_refused():
    with pytest.raises(InputError, match="8 experts don't divide by ep=16"):
        jc.predict("mistralai/Mixtral-8x7B-v0.1", "h100", batch=16, dp=16, ep=16, **HOW)


def test_overlap_without_collectives_is_refused_or_told(capsys):
    assert main(["predict", SMALL, "--gpu", "h100", "--overlap", "0.5"]) == 2
    assert "--overlap changes nothing without --tp" in capsys.readouterr().err
    alone = jc.predict(SMALL, "h100", overlap=0.5)
    assert "overlap changes nothing: this layout has no collectives" in alone.notes


def test_overlap_hides_collectives_and_never_more_than_them():
    slow = HOW | {"clock_mhz": 1200}  # no limit throttles what overlaps more
    found = [jc.predict(SMALL, "h100", batch=32, tp=2, overlap=share, **slow) for share in (0.0, 0.5, 1.0)]
    times = [one.time_s for one in found]
    assert times[0] > times[1] > times[2]
    collectives = found[0].kernels["time_s"][found[0].kernels["op"] == "nccl"].sum()
    assert times[0] - times[2] <= collectives * (1 + 1e-9)
    assert math.isclose(times[0] - times[1], times[1] - times[2], rel_tol=0.05)
    for one in found:
        assert math.isclose(math.fsum(one.families.values()), one.energy_j, rel_tol=1e-9)
    assert any("50% of the time of collectives" in note for note in found[1].notes)
    assert any("overlap with no other work" in note for note in found[0].notes)


@given(layers=st.integers(1, 100), stages=st.integers(1, 12))
def test_stages_hold_all_layers_and_inner_ones_the_odd(layers, stages):
    held = layers_of_stages(layers, stages)
    assert sum(held) == layers
    assert max(held) - min(held) <= 1
    if stages > 2 and layers % stages <= stages - 2:
        assert held[0] == held[-1] == min(held)


def test_the_first_or_last_stage_holds_the_embedding_and_needs_the_most():
    workload = jc.workload("meta-llama/Llama-3.1-8B", prompt_tokens=16)
    need = memory_need(workload, load_gpu("h100"), Execution(pp=4))
    whole = workload.memory.weights_bytes
    table = 128_256 * 4096 * 2
    assert math.isclose(need.weights_gb * 1e9, (whole - 2 * table) / 4 + table, rel_tol=1e-12)


def test_the_command_line_divides_the_batch_and_tells_each_gpu(capsys):
    asked = ("predict", SMALL, "--gpu", "h100", "--batch", "8", "--prompt", "64", "--generate", "4", "--dp", "2")
    more = ("--pp", "2", "--microbatches", "2", "--overlap", "0.5")
    assert main([*asked, *more, "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["predictions"]
    assert found["gpu_count"] == 4
    assert found["question"]["batch"] == 8
    assert math.isclose(found["power_per_gpu_w"] * 4, found["total"]["power_w"])
    assert math.isclose(found["energy_per_gpu_j"] * 4, found["total"]["energy_j"])
    assert found["phases"][0]["tokens_in"] == 8 * 64
    assert math.isclose(found["phases"][0]["bubble_share"], 1 / 3)
    assert main([*asked, *more]) == 0
    page = capsys.readouterr().out
    assert "each GPU" in page
    assert "stages wait for each other" in page
    assert main(["predict", SMALL, "--gpu", "h100", "--batch", "3", "--dp", "2"]) == 2
    assert "does not divide over 2" in capsys.readouterr().err


def test_more_gpus_than_a_node_are_told():
    found = jc.predict("meta-llama/Llama-3.1-8B", "h100", tp=16, prompt_tokens=64)
    assert any("inside one node" in warning for warning in found.warnings)
