"""A training job: sums, limits of its parts, layouts, memory, bad input."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import joulecast as jc
from joulecast.cli import main
from joulecast.errors import InfeasibleError, InputError, UnknownNameError
from joulecast.gpus import load_gpu
from joulecast.scenarios.training.communication import Group, collective_s, data_group
from joulecast.scenarios.training.layout import Layout, micro_batches

LLAMA = {"sequence_tokens": 2048, "precision": "bf16", "checkpointing": "full", "zero": 3}


@pytest.fixture(scope="module")
def eight():
    return jc.train("meta-llama/Llama-3.1-8B", "h100", gpus=8, global_batch=64, **LLAMA)


def test_parts_sum_to_the_step_and_modules_to_its_energy(eight):
    assert sum(eight.parts_s.values()) == pytest.approx(eight.step_time_s)
    assert sum(eight.modules.values()) == pytest.approx(eight.step_energy_j)
    assert eight.power_w * eight.gpus * eight.step_time_s == pytest.approx(eight.step_energy_j)
    assert eight.power_w <= eight.peak_power_w * 1.001 <= 700 * 1.002


def test_model_flop_is_six_times_parameters_and_tokens_and_attention(eight):
    # 6 N D for the multiplies with N without the embedding table (it is looked up), causal attention beside:
    # 2 products x 2 FLOP x 3 (forward and backward; 3.5 as the kernel runs it) x s^2 / 2 x hidden x layers a sample
    tokens = 64 * 2048
    multiplied = 6 * (8.030e9 - 128256 * 4096) * tokens
    attention = 64 * 3.5 * 2 * 2 * (2048 * 2049 / 2) * 4096 * 32
    assert eight.model_flop == pytest.approx(multiplied + attention, rel=2e-3)
    assert eight.hfu / eight.mfu == pytest.approx(4 / 3, abs=0.03)


def test_an_accumulated_step_takes_its_micro_batches_one_update_and_the_sums_of_their_gradients():
    asked = {"micro_batch": 16, "sequence_tokens": 1024, "clock_mhz": 900}  # below the limit, with sums and without
    one, four = (jc.train("gpt2", "a100", **asked, accumulate=n) for n in (1, 4))
    update = one.parts_s["optimizer"]
    sums_s = four.step_time_s - 4 * (one.step_time_s - update) - update
    # two gradients of 4 bytes read and one written for each of 124 million parameters, four times, in 148 launches:
    # about as long as DRAM takes at the 1 TB/s of this clock, less what L2 holds, more for starting
    dram_s = 4 * 124.4e6 * 12 / 1e12
    assert 0.3 * dram_s < sums_s < 2 * dram_s
    assert four.step_time_s < 4 * one.step_time_s
    assert four.step_energy_j < 4 * one.step_energy_j


def test_gpus_of_a_tensor_parallel_group_update_and_sum_the_weights_that_they_have():
    asked = {"micro_batch": 4, "sequence_tokens": 1024, "accumulate": 8, "precision": "bf16", "ignore_memory": True}
    alone, eight = (jc.train("meta-llama/Llama-3.1-8B", "h100", gpus=n, tp=n, **asked) for n in (1, 8))
    assert eight.parts_s["optimizer"] == pytest.approx(alone.parts_s["optimizer"] / 8, rel=0.2)


def test_scaling_out_lowers_power_a_gpu_and_rate_a_gpu():
    jobs = [
        jc.train("gpt2", "a100", micro_batch=1, sequence_tokens=1024, gpus=n, precision="bf16", node_link_gb_s=2.0)
        for n in (1, 8, 64)
    ]
    watts = [job.power_w for job in jobs]
    rates = [job.tokens_per_s / job.gpus for job in jobs]
    assert watts[0] > watts[2]
    assert rates[0] > rates[1] > rates[2]
    assert jobs[2].parts_s["communication"] > jobs[1].parts_s["communication"] > 0


@pytest.mark.parametrize(("stages", "count"), [(2, 4), (4, 8), (4, 32)])
def test_the_bubble_is_the_published_share(stages, count):
    # GPipe and 1F1B: (p - 1) / m of the ideal time where stages are even (Narayanan et al., 2021); ours has the
    # embedding and vocabulary head at the ends, so that it is not below
    job = jc.train(
        "meta-llama/Llama-3.1-8B", "h100", gpus=stages, pp=stages, accumulate=count, ignore_memory=True,
        sequence_tokens=2048, precision="bf16",
    )  # fmt: skip
    computed = sum(job.parts_s[name] for name in ("forward", "backward"))
    share = job.parts_s["bubble"] / computed
    assert share >= (stages - 1) / count
    chunked = jc.train(
        "meta-llama/Llama-3.1-8B", "h100", gpus=stages, pp=stages, accumulate=count, ignore_memory=True,
        sequence_tokens=2048, precision="bf16", schedule="interleaved", chunks=2,
    )  # fmt: skip
    assert chunked.parts_s["bubble"] < job.parts_s["bubble"]


@pytest.mark.parametrize("more", [{"pp": 4, "accumulate": 4}, {"node_link_gb_s": 1.0, "gpus_per_node": 1}])
def test_a_gpu_draws_more_while_it_waits_for_others_than_for_its_input_and_less_than_at_work(more):
    asked = {"micro_batch": 4, "sequence_tokens": 1024, "precision": "bf16", "gpus": 4, "clock_mhz": 1100, **more}
    job = jc.train("gpt2-medium", "a100", **asked)
    late = jc.train("gpt2-medium", "a100", **asked, input_samples_per_s=0.25 * job.global_batch / job.step_time_s)
    assert not job.throttled
    waited_s = job.parts_s["bubble"] + job.parts_s["communication"]
    assert waited_s > 0.2 * job.step_time_s
    # the same work and the same waits for others in four times the time, and nothing else in the rest of it
    idle_w = (late.step_energy_j - job.step_energy_j) / 4 / (late.step_time_s - job.step_time_s)
    assert late.parts_s["input"] == pytest.approx(late.step_time_s - job.step_time_s)
    waiting_w = job.modules["waiting"] / 4 / waited_s
    working_w = (job.step_energy_j - job.modules["waiting"]) / 4 / (job.step_time_s - waited_s)
    assert 1.2 * idle_w < waiting_w < working_w


def test_a_bubble_at_a_lower_clock_draws_less():
    jobs = [
        jc.train("gpt2-medium", "a100", micro_batch=4, sequence_tokens=1024, precision="bf16", gpus=4, pp=4,
                 accumulate=4, clock_mhz=mhz)
        for mhz in (800, 1100, 1400)
    ]  # fmt: skip
    slow, middle, fast = (job.modules["waiting"] / job.parts_s["bubble"] for job in jobs)
    assert slow < middle < fast


def test_a_slower_clock_never_speeds_a_step_up_and_a_cap_is_kept():
    clocks = [jc.train("bert-large-uncased", "a100", micro_batch=16, sequence_tokens=256, clock_mhz=c)
              for c in (705, 1005, 1410)]  # fmt: skip
    times = [job.step_time_s for job in clocks]
    assert times[0] > times[1] > times[2]
    capped = jc.train("bert-large-uncased", "a100", micro_batch=16, sequence_tokens=256, power_limit_w=200)
    assert capped.throttled
    assert capped.power_w <= 200 * 1.001
    assert capped.step_time_s > times[2]


def test_sharding_divides_states_gradients_and_weights_in_turn():
    memory = [
        jc.train("gpt2", "a100", gpus=8, zero=z, precision="fp32", sequence_tokens=128).memory.parts for z in range(4)
    ]
    parameters = 124439808
    # Rajbhandari et al., 2020: K = 8 bytes of Adam's states, 4 of gradients, 4 of weights in fp32
    assert memory[0]["optimizer"] == pytest.approx(8 * parameters / 1e9)
    assert memory[1]["optimizer"] == pytest.approx(parameters / 1e9)
    assert memory[1]["gradients"] == pytest.approx(4 * parameters / 1e9)
    assert memory[2]["gradients"] == pytest.approx(4 * parameters / 8 / 1e9)
    assert memory[2]["weights"] == pytest.approx(4 * parameters / 1e9)
    assert memory[3]["weights"] == pytest.approx(4 * parameters / 8 / 1e9)


def test_an_all_reduce_between_nodes_is_bound_by_the_network():
    gpu = load_gpu("h100")
    size = 1e9
    inside = collective_s("all_reduce", size, Group(8, 8), gpu, 50.0)
    between = collective_s("all_reduce", size, Group(64, 8), gpu, 5.0)
    # each GPU sends 2 (n - 1) / n of an eighth of the buffer: at 5 GB/s and 85 % of it
    assert between == pytest.approx(2 * 7 / 8 * size / 8 / (5e9 * 0.85), rel=0.02)
    assert between > inside
    assert collective_s("all_reduce", size, Group(1, 1), gpu, 50.0) == 0


@given(dp=st.integers(1, 64), tp=st.sampled_from([1, 2, 4, 8]))
def test_a_group_of_data_parallel_gpus_spans_as_many_nodes_as_it_must(dp, tp):
    layout = Layout(gpus=dp * tp, tp=tp)
    group = data_group(layout, layout.dp)
    assert group.local <= 8 // tp
    assert group.nodes == math.ceil(dp / min(dp, 8 // tp))


@settings(max_examples=25, deadline=None)
@given(
    micro=st.integers(1, 8), dp=st.integers(1, 8), count=st.integers(1, 16), off=st.integers(0, 7),
)  # fmt: skip
def test_micro_batches_divide_or_the_nearest_batch_that_does_is_named(micro, dp, count, off):
    batch = micro * dp * count + off
    if batch % (micro * dp) == 0:
        assert micro_batches(batch, micro, Layout(gpus=dp)) * micro * dp == batch
    else:
        with pytest.raises(InputError, match=r"nearest that does is \d+"):
            micro_batches(batch, micro, Layout(gpus=dp))


@pytest.mark.parametrize(
    ("given_", "says"),
    [
        ({"gpus": 6, "tp": 4}, "nearest number that does is 8"),
        ({"gpus": 8, "pp": 8}, "nearest that does is pp=6"),
        ({"gpus": 16, "tp": 16}, "beyond a node"),
        ({"zero": 4}, "zero must be 0, 1, 2 or 3"),
        ({"gpus": 0}, "whole number of at least 1"),
        ({"gpus": True}, "whole number"),
        ({"samples": 0}, "samples must be above 0"),
        ({"samples": float("nan")}, "samples"),
        ({"steps": 10, "tokens": 10}, "give the length of the run once"),
        ({"clock_mhz": 99}, "clock"),
        ({"chunks": 2}, "interleaved"),
        ({"input_samples_per_s": -1}, "input rate"),
        ({"gpus": 4, "shard_group": 3}, "must divide"),
    ],
)
def test_what_makes_no_sense_is_one_line(given_, says):
    with pytest.raises(InputError, match=says) as caught:
        jc.train("gpt2", "a100", sequence_tokens=128, **given_)
    assert "\n" not in str(caught.value)


def test_an_unknown_option_is_named():
    with pytest.raises(UnknownNameError, match="micro_batches"):
        jc.train("gpt2", "a100", micro_batches=3)


def test_stages_of_unlike_layers_wait_for_the_longest_which_holds_the_most():
    asked = {"precision": "bf16", "sequence_tokens": 512, "global_batch": 64, "clock_mhz": 1000}
    even, same, more, fewer = (
        jc.train("gpt2-xl", "a100", gpus=4, pp=4, stage_layers=layers, **asked)
        for layers in (None, [12, 12, 12, 12], [18, 10, 10, 10], [13, 13, 13, 9])
    )
    assert (same.step_time_s, same.step_energy_j) == (even.step_time_s, even.step_energy_j)
    assert same.memory == even.memory
    # the first of 18 layers holds half as much again as one of 12
    for part in ("weights", "gradients", "optimizer"):
        assert more.memory.parts[part] == pytest.approx(1.5 * even.memory.parts[part])
    # 64 micro-batches of the longest stage, and once through the others: 1.5 times, but for the head of the last stage
    assert 1.2 < more.step_time_s / even.step_time_s < 1.5
    assert more.parts_s["bubble"] > even.parts_s["bubble"] > fewer.parts_s["bubble"]
    assert more.parts_s["forward"] == pytest.approx(even.parts_s["forward"])
    # what is computed is the same, wherever it is; waiting draws more than nothing
    assert more.step_energy_j > even.step_energy_j > fewer.step_energy_j
    five = jc.train("gpt2-xl", "a100", gpus=5, pp=5, stage_layers=[10, 10, 10, 9, 9], **asked)
    assert five.step_time_s < even.step_time_s


@pytest.mark.parametrize(
    ("model", "asked", "says"),
    [
        ("gpt2", {"channels_last": True}, "channels_last changes nothing: openai-community/gpt2 has no convolutions"),
        ("gpt2", {"autotuned": True}, "autotuned changes nothing"),
        ("gpt2", {"fused_norms": True}, "no norms behind convolutions"),
        ("vgg16", {"fused_norms": True}, "no norms behind convolutions"),
        ("resnet50", {"direct_groups": True}, "no grouped convolutions"),
    ],
)
def test_what_a_model_has_no_operations_for_is_told(model, asked, says):
    sizes = {"sequence_tokens": 128} if model == "gpt2" else {}
    job, plain = (jc.train(model, "a100", **sizes, **given) for given in (asked, {}))
    assert job.step_time_s == plain.step_time_s
    assert any(says in one for one in job.warnings)
    assert not any("changes nothing" in one for one in plain.warnings)


def test_what_changes_something_is_not_said_to_change_nothing():
    asked = {"channels_last": True, "autotuned": True, "fused_norms": True}
    assert not any("changes nothing" in one for one in jc.train("resnet50", "a100", **asked).warnings)


def test_a_model_of_no_like_layers_takes_no_pipeline():
    with pytest.raises(InputError, match="like layers"):
        jc.train("resnet50", "a100", gpus=2, pp=2)


def test_what_does_not_fit_says_by_how_much_and_what_may():
    with pytest.raises(InfeasibleError, match=r"does not fit .* by [\d,.]+ GB.*zero=3"):
        jc.train("meta-llama/Meta-Llama-3-70B", "h100", gpus=8, precision="bf16", sequence_tokens=128)


def test_the_input_bounds_a_small_network():
    job = jc.train("resnet50", "a100", micro_batch=32, precision="amp_bf16", input_samples_per_s=100)
    assert job.samples_per_s == pytest.approx(100)
    assert job.bound_by == "input"
    free = jc.train("resnet50", "a100", micro_batch=32, precision="amp_bf16")
    assert job.power_w < free.power_w


def test_a_run_is_as_long_as_its_data(eight):
    run = jc.train("meta-llama/Llama-3.1-8B", "h100", gpus=8, global_batch=64, tokens=1e9, epochs=2, **LLAMA)
    assert run.steps == math.ceil(2e9 / 2048 / 64)
    assert run.run_energy_j == pytest.approx(run.steps * eight.step_energy_j)


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--schedule", "gpipe"], "--schedule changes nothing without --pp of 2 or more"),
        (["--schedule", "interleaved", "--pp", "2", "--gpus", "2"], "--schedule interleaved changes nothing without"),
        (["--sequence-parallel"], "--sequence-parallel changes nothing without --tp"),
        (["--gpus", "4", "--cp", "4", "--sequence", "1022"], "cp=4: the nearest that does is 1024"),
        (["--gpus", "8", "--tp", "8", "--ep", "3"], "the nearest that does is ep=2"),
        (["--gpus", "8", "--zero", "3", "--shard-group", "3"], "the nearest that does is 2"),
        (["--gpus", "5", "--pp", "5"], "12 layers do not divide by pp=5: the nearest that does is pp=4; or give "
                                       "stage_layers, as 3,3,2,2,2"),
        (["--gpus", "2", "--pp", "2", "--stage-layers", "5,6"], "must add up to the 12 layers"),
        (["--stage-layers", "12"], "--stage-layers changes nothing without --pp of 2 or more"),
        (["--gpus", "2", "--pp", "2", "--stage-layers", "5,x"], "--stage-layers takes a whole number"),
    ],
)  # fmt: skip
def test_layouts_that_divide_nothing_are_refused_with_what_would(capsys, flags, says):
    assert main(["train", "gpt2", "--gpu", "a100", *flags]) == 2
    told = capsys.readouterr()
    assert says in told.err
    assert len(told.err.strip().splitlines()) == 1
    assert told.out == ""


def test_exchanges_beside_multiplies_hide_their_share_and_no_other_work():
    """The table of a step tells exchanges apart: hidden by half they take half, and multiplies what they took."""

    def step(**more):
        return jc.train("gpt2", "h100", gpus=4, tp=4, precision="bf16", micro_batch=8, sequence_tokens=1024,
                        launch_mode="cuda_graph", **more)  # fmt: skip

    open_, half, hidden = step(), step(overlap=0.5), step(overlap=1.0)
    assert half.table.other_s == pytest.approx(0.5 * open_.table.other_s, rel=0.01)
    assert hidden.table.other_s.max() < 0.01 * open_.table.other_s.max()
    assert half.table.class_s == pytest.approx(open_.table.class_s, rel=0.01)
    assert hidden.step_time_s < half.step_time_s < open_.step_time_s
    assert hidden.step_energy_j < half.step_energy_j < open_.step_energy_j
    with pytest.raises(InputError, match=r"share from 0 to 1, got 1\.5"):
        step(overlap=1.5)


def test_one_process_copies_weights_out_and_sums_gradients_before_anything_else_runs():
    options = {"micro_batch": 12, "image_size": 224, "precision": "fp32", "optimizer": "sgd"}
    alone, several, apart = (
        jc.train("vgg16", "titan-rtx", **options, **more)
        for more in ({}, {"gpus": 4, "single_process": True}, {"gpus": 4})
    )
    # 138 million weights there and their gradients back, in fp32, over PCIe 3: no more than its 15.75 GB/s allow
    assert several.parts_s["communication"] > 2 * 4 * 138.36e6 / 15.75e9
    assert several.step_time_s > max(alone.step_time_s, apart.step_time_s)
    assert several.global_batch == 48
    # starts of small networks queue up behind one another: more GPUs, longer steps
    steps = [jc.train("mobilenet-v2", "a100", gpus=n, single_process=n > 1, **options).step_time_s for n in (1, 2, 4)]
    assert steps[0] < steps[1] < steps[2]


@pytest.mark.parametrize("more", [{"zero": 1}, {"tp": 2}, {"gpus": 16}, {"single_process": "yes"}])
def test_one_process_drives_a_node_and_nothing_divided(more):
    with pytest.raises(InputError, match="single_process"):
        Layout(**{"gpus": 4, "single_process": True, **more})


def test_batches_copied_in_before_a_step_take_their_bytes_over_the_bus():
    options = {"micro_batch": 12, "image_size": 224, "precision": "fp32", "optimizer": "sgd", "clock_mhz": 1005}
    plain, copied = (jc.train("resnet50", "titan-rtx", copied_in=one, **options) for one in (False, True))
    # 12 images of 3 x 224 x 224 fp32 numbers at 5 GB/s
    seconds = 12 * 3 * 224**2 * 4 / 5e9
    assert copied.step_time_s - plain.step_time_s == pytest.approx(seconds, rel=0.05)
    assert copied.parts_s["input"] == pytest.approx(seconds)
    with pytest.raises(InputError, match="copied_in must be True or False"):
        jc.train("resnet50", "titan-rtx", copied_in="yes", **options)


def test_the_command_line_gives_the_same_figures(capsys):
    asked = ["train", "gpt2", "--gpu", "a100", "--sequence", "256", "--micro-batch", "2", "--steps", "10"]
    assert main([*asked, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    ours = jc.train("gpt2", "a100", sequence_tokens=256, micro_batch=2, steps=10)
    assert told["run_energy_j"] == pytest.approx(ours.run_energy_j)
    assert main(asked) == 0
    page = capsys.readouterr().out
    assert "MFU" in page
    assert max(map(len, page.splitlines())) <= 80


@settings(max_examples=30, deadline=None)
@given(
    batch=st.integers(1, 64), length=st.sampled_from([1, 7, 128, 1024]), gpus=st.sampled_from([1, 2, 8, 24]),
    precision=st.sampled_from(["fp32", "tf32", "amp_fp16", "amp_bf16", "bf16", "fp8"]), zero=st.integers(0, 3),
)  # fmt: skip
def test_any_job_has_positive_finite_figures(batch, length, gpus, precision, zero):
    job = jc.train(
        "gpt2", "h100", micro_batch=batch, sequence_tokens=length, gpus=gpus, precision=precision, zero=zero,
        ignore_memory=True,
    )  # fmt: skip
    assert 0 < job.step_time_s < math.inf
    assert 0 < job.power_w <= 700.1
    assert all(value >= 0 for value in job.parts_s.values())
    lower, upper = job.interval("energy_j")
    assert lower <= job.step_energy_j <= upper
