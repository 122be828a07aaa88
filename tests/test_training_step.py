"""A forward pass becomes a training step: the arithmetic that the backward pass is known to take, and what learns."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import joulecast as jc
from joulecast.bounds.dtypes import dtype_code
from joulecast.errors import InputError, UnknownNameError
from joulecast.gpus import load_gpu
from joulecast.kernels.registry import family_of
from joulecast.kernels.work import Conditions
from joulecast.lowering.backward import gradients
from joulecast.lowering.recipe import OPTIMIZERS, Recipe
from joulecast.lowering.training import training_step
from joulecast.workloads.counting import flop_of
from joulecast.workloads.kinds import ELEMENTWISE, REDUCTIONS
from joulecast.workloads.table import op_table


@pytest.fixture(scope="module")
def llama():
    return jc.workload("meta-llama/Llama-3.1-8B", batch=1, prompt_tokens=2048, logits="all")


def test_backward_takes_two_products_for_one_and_attention_five_for_two(llama):
    step = training_step(llama, Recipe("bf16")).workload
    plain = step.flop("gemm", phase="forward")
    assert step.flop("gemm", phase="backward") == pytest.approx(2 * plain)
    attention = step.flop("context_attention", phase="forward")
    assert step.flop("attention_backward", phase="backward") == pytest.approx(2.5 * attention)


def test_full_checkpointing_runs_the_layers_again_and_keeps_their_inputs(llama):
    plain, again = (training_step(llama, Recipe("bf16", checkpointing=how)) for how in ("none", "full"))
    head = 2 * 2048 * 4096 * 128256  # the vocabulary head lies outside of the layers
    forward = plain.workload.flop("matmul", phase="forward")
    assert again.workload.flop("matmul", phase="recompute") == pytest.approx(forward - head)
    # 32 layers x 2,048 tokens x 4,096 x 2 bytes, beside what head and loss keep
    boundary = 32 * 2048 * 4096 * 2
    assert boundary < again.saved_bytes < boundary + 2048 * 128256 * (4 + 4 + 2)
    assert again.saved_bytes < 0.2 * plain.saved_bytes


def test_activations_of_a_transformer_layer_follow_the_published_formula():
    # Korthikanti et al., MLSys 2023: a layer keeps s b h (34 + 5 a s / h) bytes with unfused attention; fused attention
    # keeps no a s^2 terms, but its result, which is the projection's input as well: once there, twice here (+2).
    w = jc.workload("gpt2", batch=4, prompt_tokens=1024, logits="none")
    layers, width = 12, 768
    kept = training_step(w, Recipe("bf16")).saved_bytes / (layers * 4 * 1024 * width)
    assert kept == pytest.approx(36, abs=1)
    bare = training_step(w, Recipe("bf16", dropout=False)).saved_bytes / (layers * 4 * 1024 * width)
    assert kept - bare == pytest.approx(2)  # a byte of mask for each of two sums


def test_lora_adds_its_matrices_and_spares_the_gradients_of_what_is_frozen(llama):
    step = training_step(llama, Recipe("bf16", trainable="lora", lora_rank=16))
    # q and o: 4,096 + 4,096; k and v: 4,096 + 1,024; rank 16; 32 layers (Hu et al., 2022)
    assert step.added == 32 * 16 * (2 * 8192 + 2 * 5120)
    assert step.trained == step.added
    forward = step.workload.flop("matmul", phase="forward")
    # of the frozen weights only the gradients of the inputs: one product for one
    assert 1.0 < step.workload.flop("matmul", phase="backward") / forward < 1.1


def test_frozen_layers_take_no_backward_pass(llama):
    full, half = (
        training_step(llama, Recipe("bf16", frozen_layers=n)).workload.flop("matmul", phase="backward") for n in (0, 16)
    )
    head = 2 * 2 * 2048 * 4096 * 128256
    assert half - head == pytest.approx((full - head) / 2)


def test_training_the_head_alone_takes_the_gradients_of_the_head_alone():
    w = jc.workload("resnet50", batch=8)
    step = training_step(w, Recipe("fp32", trainable="head"))
    assert step.trained == 2048 * 1000
    assert step.workload.flop("matmul", phase="backward") == pytest.approx(2 * 8 * 2048 * 1000)


def test_shared_weights_are_updated_once_and_run_as_often_as_layers(llama):
    albert = jc.workload("albert-base-v2", batch=1, prompt_tokens=128)
    bert = jc.workload("bert-base-uncased", batch=1, prompt_tokens=128)
    of_albert, of_bert = (training_step(w, Recipe("fp32")) for w in (albert, bert))
    ratio = of_albert.workload.flop("gemm", phase="backward") / of_bert.workload.flop("gemm", phase="backward")
    assert ratio == pytest.approx(1.0, abs=0.05)
    assert of_albert.trained < 0.12 * of_bert.trained


def test_a_fused_adam_moves_seven_numbers_a_parameter(llama):
    step = training_step(llama, Recipe("fp32", optimizer="adam"))
    p = jc.predict(step.workload, "h200", ignore_memory=True)
    update = p.kernels["phase"] == "optimizer"
    # weight, gradient, two states in; weight and two states out; 4 bytes each
    assert p.kernels["dram_bytes"][update].sum() == pytest.approx(7 * 4 * step.parameters, rel=0.02)


def test_accumulation_repeats_forward_and_backward_but_not_the_update(llama):
    once, four = (training_step(llama, Recipe("bf16", accumulate=n)).workload for n in (1, 4))
    for phase, times in (("forward", 4), ("backward", 4), ("optimizer", 1)):
        assert four.flop(phase=phase) == pytest.approx(times * once.flop(phase=phase))


def test_gradients_of_later_micro_batches_are_added_to_those_before(llama):
    plain, summed = (training_step(llama, Recipe("bf16"), sums=sums).workload for sums in (False, True))
    table = summed.tables["elementwise"]
    mine = np.array(summed.layers)[table["layer"]] == "gradients.sum"
    assert (table["elements"] * table["count"])[mine].sum() == pytest.approx(8.03e9, rel=1e-3)
    assert (table["inputs"][mine] == 2).all()
    assert len(table) == len(plain.tables["elementwise"]) + 1


def test_tensor_parallel_training_sums_twice_a_layer_forwards_and_twice_backwards(llama):
    step = training_step(llama, Recipe("bf16"))
    kernels = jc.predict(step.workload, "h100", tp=4, ignore_memory=True).kernels
    sent = {
        phase: kernels["count"][(kernels["op"] == "nccl") & (kernels["phase"] == phase)].sum()
        for phase in ("forward", "backward")
    }
    # Megatron-LM (Shoeybi et al., 2019): two all-reduces a layer each way; the vocabulary head's gradient one more
    assert sent == {"forward": 64, "backward": 65}


def test_mixed_precision_casts_and_keeps_norms_wide(llama):
    p = jc.predict(training_step(llama, Recipe("amp_bf16")).workload, "h100", ignore_memory=True)
    layers = p.kernels["layer"].astype(str)
    assert (layers == "weights.cast").any()
    narrow = jc.predict(training_step(llama, Recipe("bf16")).workload, "h100", ignore_memory=True)
    assert p.time_s > narrow.time_s


@given(
    m=st.integers(1, 4096), n=st.integers(1, 4096), k=st.integers(1, 4096),
    dtype=st.sampled_from(["fp32", "tf32", "bf16", "fp8"]),
)  # fmt: skip
def test_each_gradient_of_a_multiply_takes_as_much_arithmetic_as_the_multiply(m, n, k, dtype):
    c = {"m": m, "n": n, "k": k, "batch": 1, "dtype": dtype}
    forward = flop_of(op_table("gemm", c))[0]
    for one in gradients("gemm", c):
        assert flop_of(op_table(one.kind, one.columns))[0] == forward


@given(
    size=st.integers(7, 64), stride=st.sampled_from([1, 2]), kernel=st.sampled_from([1, 3, 7]),
    groups=st.sampled_from([1, 4, 32]),
)  # fmt: skip
def test_each_gradient_of_a_convolution_takes_as_much_arithmetic(size, stride, kernel, groups):
    shape = {
        "batch_size": 4, "in_channels": 32, "out_channels": 64, "height": size, "kernel_h": kernel, "stride": stride,
        "padding": kernel // 2, "groups": groups,
    }  # fmt: skip
    flop = [
        family_of(kind).work(op_table(kind, {**shape, "dtype": "fp16"}), load_gpu("a100"), Conditions()).useful_flop[0]
        for kind in ("conv2d", "conv2d_data_gradient", "conv2d_weight_gradient")
    ]
    assert flop[1] == pytest.approx(flop[0])
    assert flop[2] == pytest.approx(flop[0])


@pytest.mark.parametrize("gpu", ["a100", "h100", "v100"])
def test_attention_takes_two_to_three_and_a_half_times_as_long_backwards(gpu):
    # FlashAttention-2 (Dao, 2024): 2.5 times the arithmetic at 0.8 to 1 of the rate, for long sequences
    shape = {"batch_size": 2, "query_len": np.array([2048, 8192]), "num_heads": 32, "head_dim": 128}
    forward = jc.predict_kernels("context_attention", {**shape, "attn_dtype": "fp16"}, gpu=gpu)["time_s"]
    backward = jc.predict_kernels("attention_backward", {**shape, "attn_dtype": "fp16"}, gpu=gpu)["time_s"]
    assert np.all((backward / forward > 1.9) & (backward / forward < 3.5))


def test_what_only_inference_runs_is_refused():
    with pytest.raises(InputError, match="tokens to generate"):
        training_step(jc.workload("gpt2", prompt_tokens=64, generate_tokens=8), Recipe())
    with pytest.raises(InputError, match="inference"):
        gradients("generation_attention", {})


@pytest.mark.parametrize(
    ("given_", "error"),
    [
        ({"precision": "fp7"}, UnknownNameError),
        ({"optimizer": "adamm"}, UnknownNameError),
        ({"accumulate": 0}, InputError),
        ({"lora_rank": 2.5}, InputError),
        ({"checkpointing": "some"}, UnknownNameError),
    ],
)
def test_a_recipe_that_makes_no_sense_is_refused(given_, error):
    with pytest.raises(error):
        Recipe(**given_)


def test_states_of_every_optimizer_cost_time(llama):
    times = {}
    for name in OPTIMIZERS:
        step = training_step(llama, Recipe("fp32", optimizer=name))
        p = jc.predict(step.workload, "h200", ignore_memory=True)
        times[name] = next(one.time_s for one in p.phases if one.phase == "optimizer")
    assert times["sgd"] < times["momentum"] < times["adam"]
    assert times["adamw"] == pytest.approx(times["adam"], rel=1e-3)
    assert times["adamw_8bit"] < times["adamw"]


def _norms(recipe, batch=8):
    forward = jc.workload("resnet50", batch=batch, image_size=224)
    table = training_step(forward, recipe).workload.tables["row_reduction"]
    return table, table["op"] == REDUCTIONS.index("batch_norm")


def test_training_takes_the_statistics_of_a_batch_where_inference_scales():
    table, norms = _norms(Recipe("fp32", "sgd"))
    # 53 batch norms (He et al., 2016), forward with one input, backward with two
    assert table["count"][norms & (table["inputs"] == 1)].sum() == 53
    assert table["count"][norms & (table["inputs"] == 2)].sum() == 53
    # stem: 64 channels of 8 x 112 x 112 pixels
    assert (table["rows"][norms][0], table["dim"][norms][0]) == (64, 8 * 112 * 112)


def test_norms_fused_with_their_activations_move_less():
    plain, fused = (
        jc.train("resnet50", "a100", micro_batch=64, precision="amp_fp16", channels_last=True, fused_norms=fuse)
        for fuse in (False, True)
    )
    # 49 ReLUs read and write each map forwards, and read two and write one backwards
    assert fused.step_time_s < 0.9 * plain.step_time_s


def test_the_stream_of_a_convolutional_network_stays_narrow_under_autocast():
    forward = jc.workload("resnet50", batch=2, image_size=224, dtype="fp16")
    table = training_step(forward, Recipe("amp_fp16", "sgd")).workload.tables["elementwise"]
    adds = (table["op"] == ELEMENTWISE.index("add")) & (table["pass_id"] == 0)
    assert adds.any()
    assert (table["dtype"][adds] == dtype_code("fp16")).all()


def test_a_batch_norm_whose_channels_do_not_fit_l2_reads_them_twice():
    gpu = load_gpu("a100")
    sizes = [{"op": "batch_norm", "rows": 256, "dim": dim, "dtype": "fp32"} for dim in (1_000, 1_000_000)]
    small, large = (
        family_of("row_reduction").work(op_table("row_reduction", one), gpu, Conditions(residency="stream"))
        for one in sizes
    )
    # two reads and a write against a read and a write
    assert large.dram_bytes[0] == pytest.approx(3 * 4 * 256e6, rel=0.02)
    assert small.dram_bytes[0] <= 2 * 4 * 256e3 * 1.01


def test_gradients_in_tf32_turn_feature_maps_that_lie_channel_by_channel():
    gpu = load_gpu("a100")
    shape = {"batch_size": 64, "in_channels": 256, "out_channels": 256, "height": 28, "width": 28, "kernel_h": 3,
             "kernel_w": 3, "padding": 1, "autotuned": 1, "dtype": "tf32"}  # fmt: skip
    turned, last = (
        family_of("conv2d_weight_gradient").work(
            op_table("conv2d_weight_gradient", {**shape, "channels_last": one}), gpu, Conditions(residency="stream")
        )
        for one in (0, 1)
    )
    # both maps read and written once more
    assert turned.serial_dram_bytes[0] + turned.serial_l2_bytes[0] >= 2 * 2 * 4 * 64 * 256 * 28 * 28 * 0.99
    assert last.serial_dram_bytes[0] == 0


def test_depthwise_kernels_for_channels_that_lie_together_end_at_seven_taps_a_side():
    gpu = load_gpu("a100")

    def instructions(kind: str, taps: int, channels_last: int) -> float:
        shape = {"batch_size": 32, "in_channels": 256, "out_channels": 256, "groups": 256, "height": 28, "width": 28,
                 "kernel_h": taps, "kernel_w": taps, "padding": taps // 2, "dtype": "fp16"}  # fmt: skip
        work = family_of(kind).work(op_table(kind, {**shape, "channels_last": channels_last}), gpu, Conditions())
        assert work.useful_flop[0] == 2 * 32 * 28 * 28 * 256 * taps**2
        return float(work.cuda_flop[0])

    for kind in ("conv2d", "conv2d_data_gradient", "conv2d_weight_gradient"):
        assert instructions(kind, 7, 1) < 0.5 * instructions(kind, 7, 0)
        assert instructions(kind, 9, 1) > 2 * instructions(kind, 9, 0)


def test_a_batch_norm_of_few_channels_waits_for_loads_not_for_bytes():
    def clocks(rows: int, dtype: str) -> float:
        table = op_table("row_reduction", {"op": "batch_norm", "rows": rows, "dim": 600_064, "dtype": dtype})
        work = family_of("row_reduction").work(table, load_gpu("a100"), Conditions(residency="stream"))
        return float(work.latency_cycles[0])

    # two passes over a channel, a block's 512 threads with a load each: as long for 16 channels as for all 108 SMs,
    # which hold four such blocks each, and whatever the size of a number
    assert clocks(16, "fp32") == clocks(432, "fp32") == clocks(64, "fp16") == 2 * 600_064 / 512 * 500
    assert clocks(864, "fp32") == 2 * clocks(432, "fp32")


def test_gradients_of_convolutions_run_in_fp32_where_a_gpu_has_no_fp16():
    def seconds(precision: str) -> float:
        options = {"micro_batch": 12, "image_size": 224, "precision": precision, "optimizer": "sgd", "autotuned": True}
        step = jc.train("vgg16", "gtx-1080-ti", ignore_memory=True, **options)
        return step.parts_s["backward"]

    # Pascal of this kind multiplies fp16 in fp32's kernels: half the bytes, no fewer instructions
    assert 0.8 * seconds("fp32") < seconds("fp16") <= seconds("fp32")


def test_the_direct_kernel_of_old_libraries_costs_by_pixel_filter_and_tap():
    gpu = load_gpu("rtx-2080-ti")
    shape = {"batch_size": 12, "in_channels": 256, "out_channels": 256, "groups": 32, "height": 56, "width": 56,
             "kernel_h": 3, "kernel_w": 3, "padding": 1, "dtype": "fp16"}  # fmt: skip

    def work(**changed):
        table = op_table("conv2d_weight_gradient", {**shape, **changed})
        return family_of("conv2d_weight_gradient").work(table, gpu, Conditions())

    new, old = work(), work(direct_groups=1)
    assert new.tensor_flop[0] > 0
    assert new.cuda_flop[0] == 0
    assert old.tensor_flop[0] == 0
    assert old.cuda_flop[0] == 2 * 320 * 12 * 56 * 56 * 256 * 9
    assert old.useful_flop[0] == new.useful_flop[0]
    # one group, and a filter a channel, never took it; nor do maps whose channels lie together
    for changed in ({"groups": 1}, {"groups": 256}, {"channels_last": 1}):
        plain, asked = work(**changed), work(**changed, direct_groups=1)
        assert (asked.cuda_flop == plain.cuda_flop).all()
        assert (asked.tensor_flop == plain.tensor_flop).all()


def test_old_libraries_are_asked_for_by_the_recipe():
    options = {"micro_batch": 12, "image_size": 224, "precision": "fp16", "optimizer": "sgd", "ignore_memory": True}
    for model, slower in (("resnext50", 1.3), ("resnet50", 1.0)):
        new, old = (jc.train(model, "titan-rtx", direct_groups=one, launch_mode="cuda_graph", **options)
                    for one in (False, True))  # fmt: skip
        assert old.parts_s["forward"] == pytest.approx(new.parts_s["forward"], rel=0.02)
        ratio = old.parts_s["backward"] / new.parts_s["backward"]
        assert ratio > slower if slower > 1 else ratio == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("gpu", "options"),
    [
        ("a100-pcie-40gb", {"micro_batch": 4, "precision": "tf32", "gpus": 4, "zero": 2, "launch_mode": "cuda_graph"}),
        ("quadro-rtx-6000", {"micro_batch": 8, "precision": "amp_fp16", "gpus": 8, "zero": 3, "launch_mode": "eager"}),
    ],
)  # fmt: skip
def test_the_limit_holds_for_bytes_of_exchanges_too(gpu, options):
    """They move beside the kernels: the step settles at a clock at which both together keep within the limit."""
    found = jc.train("gpt2", gpu, sequence_tokens=512, ignore_memory=True, **options)
    assert found.throttled
    assert found.modules["exchanges"] > 0
    limit_w = jc.load_gpu(gpu).power_limit_default_w
    assert 0.98 * limit_w < found.power_w <= 1.0005 * limit_w


def test_a_limit_that_no_clock_keeps_is_told():
    found = jc.train("gpt2", "p4", micro_batch=8, sequence_tokens=512, power_limit_w=26, ignore_memory=True)
    assert found.power_w > 26
    assert "the power limit of 26 W is exceeded even at the lowest clock" in found.warnings
