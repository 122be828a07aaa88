"""Work of row reductions, elementwise kernels, convolutions, gathers, quantisation and linear attention."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulecast.bounds.dtypes import DTYPES
from joulecast.coefficients.schema import TIME_PARAMETERS, TimeCoefficients
from joulecast.gpus import load_gpu
from joulecast.kernels.convolution import convolution_work, output_size
from joulecast.kernels.elementwise import elementwise_work
from joulecast.kernels.gather import distinct_rows, gather_work
from joulecast.kernels.linear_attention import gdn_work, mamba2_work
from joulecast.kernels.quantize import quantize_work
from joulecast.kernels.registry import family_of
from joulecast.kernels.row_reduction import row_reduction_work
from joulecast.kernels.work import Conditions, KernelWork
from joulecast.physics.timing import duration_s, measured_s, module_times, parameters_by_row
from joulecast.workloads.kinds import ELEMENTWISE, KINDS, REDUCTIONS, plain_op
from joulecast.workloads.table import OpTable, op_table

A100 = load_gpu("A100-SXM-80GB")
V100 = load_gpu("V100-PCIE-32GB")
H100 = load_gpu("H100-SXM-80GB")
LOOP, STREAM = Conditions("pytorch", "loop"), Conditions("pytorch", "stream")
SIMPLE = ("row_reduction", "elementwise", "copy", "conv2d", "gather", "quantize")


def seconds(work: KernelWork, gpu=A100, clock_mhz=None) -> np.ndarray:
    parameters = parameters_by_row([TimeCoefficients()] * len(work.groups), work.group)
    return duration_s(module_times(work, gpu, parameters), gpu, clock_mhz or gpu.clock_max_mhz)


def conv(gpu=A100, **columns) -> KernelWork:
    return convolution_work(op_table("conv2d", columns), gpu, STREAM)


def test_adding_two_tensors_moves_three_tensors_and_counts_one_flop_an_element():
    # 2^28 fp32 elements: two read, one written, 4 B each, all through DRAM of a GPU with 40 MiB of L2
    work = elementwise_work(
        op_table("elementwise", {"op": "add", "elements": 2**28, "inputs": 2, "dtype": "fp32"}), A100, LOOP
    )
    assert work.l2_bytes[0] == 3 * 4 * 2**28
    assert work.dram_bytes[0] == pytest.approx(3 * 4 * 2**28, rel=1e-4)
    assert work.useful_flop[0] == 2**28


def test_what_fits_in_l2_does_not_come_from_dram_in_a_loop_and_hardly_in_a_stream():
    table = op_table("elementwise", {"op": "relu", "elements": 2**18, "dtype": "fp32"})  # 2 MiB of 40 MiB
    for conditions in (LOOP, STREAM):
        work = elementwise_work(table, A100, conditions)
        assert work.dram_bytes[0] < 0.01 * work.l2_bytes[0]


def test_a_cast_writes_the_format_it_casts_to():
    work = elementwise_work(
        op_table("elementwise", {"op": "cast", "elements": 1000, "dtype": "fp32", "out_dtype": "fp16"}), A100, LOOP
    )
    assert work.l2_bytes[0] == 1000 * (4 + 2)


def test_functions_use_special_units_and_sums_do_not():
    work = elementwise_work(
        op_table("elementwise", {"op": ["exp", "tanh", "pow", "add"], "elements": 4096, "dtype": "fp32"}), A100, LOOP
    )
    assert work.sfu_ops.tolist() == [4096, 8192, 8192, 0]
    assert work.cuda_flop[2] > 5 * work.cuda_flop[3]


def test_a_softmax_row_that_fits_in_a_warp_is_read_once_and_a_longer_one_in_each_pass():
    table = op_table("row_reduction", {"op": "softmax", "rows": 2**14, "dim": [1024, 4096], "dtype": "fp32"})
    work = row_reduction_work(table, A100, LOOP)
    assert work.shared_bytes[0] == 2**14 * 1024 * 4 * 2  # one read, one write
    assert work.shared_bytes[1] == 2**14 * 4096 * 4 * 4  # maximum, sum, result; one write


def test_a_sum_writes_one_result_a_row():
    work = row_reduction_work(
        op_table("row_reduction", {"op": "sum", "rows": 64, "dim": 4096, "dtype": "fp16"}), A100, LOOP
    )
    assert work.l2_bytes[0] == 64 * 4096 * 2 + 64 * 2


def test_short_rows_leave_lanes_of_a_warp_idle():
    table = op_table("row_reduction", {"op": "layer_norm", "rows": 2**16, "dim": [32, 1024], "dtype": "fp32"})
    work = row_reduction_work(table, A100, LOOP)
    per_element = work.cuda_flop / (2**16 * table["dim"])
    assert per_element[0] > 2 * per_element[1]


@pytest.mark.parametrize(
    ("size", "kernel", "stride", "padding", "dilation", "expected"),
    [(224, 7, 2, 3, 1, 112), (56, 3, 1, 1, 1, 56), (56, 1, 2, 0, 1, 28), (32, 3, 1, 2, 2, 32), (5, 5, 1, 0, 1, 1)],
)
def test_output_sizes_of_known_layers(size, kernel, stride, padding, dilation, expected):
    # ResNet's stem, its 3 x 3 and its strided 1 x 1; a dilated 3 x 3; a filter as large as its input
    assert output_size(size, kernel, stride, padding, dilation) == expected


def test_flop_of_the_first_layer_of_a_resnet():
    # 7 x 7, 3 -> 64 channels, 224 x 224 with stride 2: 118,013,952 multiply-adds an image (He et al. 2015)
    work = conv(batch_size=1, in_channels=3, out_channels=64, height=224, kernel_h=7, stride=2, padding=3, dtype="fp32")
    assert work.useful_flop[0] == 2 * 118_013_952


def test_groups_divide_the_arithmetic_and_a_depthwise_filter_has_one_channel():
    shape = {"batch_size": 8, "in_channels": 256, "out_channels": 256, "height": 28, "kernel_h": 3, "padding": 1}
    work = conv(**shape, groups=[1, 32, 256], dtype="bf16")
    dense = 2 * 8 * 28 * 28 * 256 * 256 * 9
    assert work.useful_flop.tolist() == [dense, dense / 32, dense / 256]
    assert work.tensor_flop[0] > 0
    assert work.tensor_flop[2] == 0
    assert work.groups[work.group[2]] == "depthwise/bf16"


def test_three_by_three_in_fp32_saves_multiplications_by_winograd_and_others_do_not():
    shape = {"batch_size": 64, "in_channels": 256, "out_channels": 256, "height": 28}
    winograd = conv(V100, **shape, kernel_h=3, padding=1, dtype="fp32")
    assert winograd.groups[winograd.group[0]] == "winograd4/fp32"
    assert winograd.cuda_flop[0] < 0.5 * winograd.useful_flop[0]  # 36 for 144 multiplications, tiles padded
    for other in (
        {"kernel_h": 3, "padding": 1, "stride": 2},
        {"kernel_h": 1},
        {"kernel_h": 3, "padding": 2, "dilation": 2},
    ):
        direct = conv(V100, **shape, **other, dtype="fp32")
        assert direct.groups[direct.group[0]] == "direct/fp32"
        assert direct.cuda_flop[0] >= direct.useful_flop[0]


def test_sixteen_bit_convolutions_run_on_tensor_cores_where_there_are_any():
    shape = {"batch_size": 32, "in_channels": 128, "out_channels": 128, "height": 28, "kernel_h": 3, "padding": 1}
    assert conv(A100, **shape, dtype="fp16").tensor_flop[0] > 0
    pascal = conv(load_gpu("P100-PCIE-16GB"), **shape, dtype="fp16")
    assert pascal.tensor_flop[0] == 0
    assert pascal.cuda_flop[0] > 0


def test_three_channels_are_padded_to_eight_for_tensor_cores():
    shape = {"batch_size": 32, "out_channels": 64, "height": 112, "kernel_h": 3, "padding": 1, "dtype": "bf16"}
    work = conv(**shape, in_channels=[3, 8])
    assert work.tensor_flop[0] == work.tensor_flop[1]
    assert work.useful_flop[1] / work.useful_flop[0] == pytest.approx(8 / 3)


def test_weights_are_cold_in_a_stream():
    table = op_table(
        "conv2d",
        {"batch_size": 1, "in_channels": 256, "out_channels": 256, "height": 14, "kernel_h": 1, "dtype": "fp16"},
    )
    loop, stream = (convolution_work(table, A100, conditions).dram_bytes[0] for conditions in (LOOP, STREAM))
    assert stream == pytest.approx(256 * 256 * 2, rel=0.01)
    assert loop < 0.01 * stream


def test_distinct_rows_of_a_table():
    assert distinct_rows(np.array([1.0]), np.array([50_000.0]))[0] == pytest.approx(1.0)
    assert distinct_rows(np.array([1e9]), np.array([100.0]))[0] == pytest.approx(100.0)
    # birthdays: 365 people have 365 (1 - 1/e) of them, nearly
    assert distinct_rows(np.array([365.0]), np.array([365.0]))[0] == pytest.approx(365 * (1 - (364 / 365) ** 365))
    assert distinct_rows(np.array([7.0]), np.array([1.0]))[0] == pytest.approx(1.0)


def test_a_gather_reads_and_writes_each_row():
    work = gather_work(
        op_table("gather", {"rows": 4096, "dim": 4096, "table_rows": 128_256, "dtype": "bf16"}), A100, STREAM
    )
    assert work.l2_bytes[0] == 2 * 4096 * 4096 * 2 + 4096 * 8


def test_a_dynamic_scale_reads_the_activation_twice_in_trtllm():
    table = op_table("quantize", {"m": 65536, "k": 16384, "quant_op": ["static_quant", "dynamic_quant"]})
    work = quantize_work(table, H100, Conditions("trtllm"))
    elements = 65536 * 16384
    assert work.l2_bytes[0] == elements * (2 + 1)
    assert work.l2_bytes[1] == elements * (2 + 2 + 1)
    assert (quantize_work(table, H100, Conditions("vllm")).l2_bytes == elements * 3).all()


def test_a_recurrent_step_moves_each_state_in_and_out():
    table = op_table(
        "linear_attention_gdn",
        {"phase": "generation", "batch_size": 64, "d_model": 2048, "num_k_heads": 16, "num_v_heads": 32,
         "kernel_source": "fused_recurrent_gated_delta_rule"},
    )  # fmt: skip
    work = gdn_work(table, H100, Conditions("trtllm"))
    states = 64 * 32 * 128 * 128
    assert work.l2_bytes[0] == 2 * states * 2 + 64 * 32 * 4 * 128 * 2


def test_a_scan_works_on_whole_chunks():
    columns = {"phase": "context", "batch_size": 8, "d_model": 2688, "d_state": 128, "nheads": 64, "n_groups": 8,
               "kernel_source": "mamba_chunk_scan_combined"}  # fmt: skip
    work = mamba2_work(op_table("linear_attention_mamba2", {**columns, "seq_len": [1, 256, 257, 512]}), H100, LOOP)
    assert work.tensor_flop[0] == work.tensor_flop[1]
    assert work.tensor_flop[2] == work.tensor_flop[3] == 2 * work.tensor_flop[0]


def test_a_host_that_is_slower_than_the_kernel_is_what_a_timer_shows():
    assert measured_s(2e-6, 30.0, 10.0) == pytest.approx(30e-6, rel=0.01)
    assert measured_s(1e-3, 30.0, 10.0) == pytest.approx(1.01e-3, rel=1e-3)
    assert measured_s(5e-6, 0.0, 0.0) == 5e-6


#: Sizes that are multiples of another.
WHOLES = {"in_channels": "groups", "out_channels": "groups", "num_v_heads": "num_k_heads", "nheads": "n_groups"}


def random_table(draw, kind_name: str) -> OpTable:
    columns = {}
    for column in KINDS[kind_name].columns:
        if column.type == "size":
            top = {"kernel_h": 11, "kernel_w": 11, "stride": 4, "dilation": 4, "padding": 5, "inputs": 4, "outputs": 3,
                   "groups": 64, "num_k_heads": 64, "n_groups": 64}  # fmt: skip
            columns[column.name] = draw(
                st.integers(int(column.minimum), min(top.get(column.name, 2**20), int(column.maximum)))
            )
        elif column.type == "choice":
            columns[column.name] = draw(st.sampled_from(column.choices))
        elif column.type == "dtype":
            columns[column.name] = draw(st.sampled_from([dtype.name for dtype in DTYPES]))
        else:
            columns[column.name] = draw(st.floats(column.minimum, min(column.maximum, 100)))
    for whole, part in WHOLES.items():
        if whole in columns:
            columns[whole] *= columns[part]
    for side, taps in (("height", "kernel_h"), ("width", "kernel_w")):
        if side in columns:
            columns[side] += columns["dilation"] * columns[taps]
    return op_table(kind_name, columns)


@settings(max_examples=60, deadline=None)
@given(st.data(), st.sampled_from((*SIMPLE, "linear_attention_gdn", "linear_attention_mamba2")),
       st.sampled_from(("A100-SXM-80GB", "H100-SXM-80GB", "P100-PCIE-16GB", "L40S", "MI100")),
       st.sampled_from(("loop", "stream")))  # fmt: skip
def test_any_shape_has_finite_positive_work_and_a_slower_clock_is_never_faster(data, kind_name, gpu_name, residency):
    gpu = load_gpu(gpu_name)
    work = family_of(kind_name).work(random_table(data.draw, kind_name), gpu, Conditions("pytorch", residency))
    for name in ("tensor_flop", "cuda_flop", "sfu_ops", "shared_bytes", "l2_bytes", "dram_bytes", "useful_flop"):
        value = getattr(work, name)
        assert np.isfinite(value).all(), name
        assert (value >= 0).all(), name
    assert ((work.fill > 0) & (work.fill <= 1 + 1e-9)).all()
    assert np.isfinite(work.features).all()
    assert (work.serial_dram_bytes <= work.dram_bytes * (1 + 1e-9)).all()
    assert (work.serial_l2_bytes <= work.l2_bytes * (1 + 1e-9)).all()
    times = [seconds(work, gpu, gpu.clock_max_mhz * share)[0] for share in (0.3, 0.6, 1.0)]
    assert 0 < times[2] <= times[1] <= times[0] < np.inf


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(ELEMENTWISE), st.integers(1, 2**34), st.sampled_from(("fp32", "fp16")))
def test_more_elements_never_take_less_time(op, elements, dtype):
    table = op_table("elementwise", {"op": op, "elements": [elements, 2 * elements], "dtype": dtype})
    short, long = seconds(elementwise_work(table, A100, LOOP))
    assert long >= short * 0.999


def test_vectors_of_rows_give_what_single_rows_give():
    rng = np.random.default_rng(0)
    n = 50
    table = op_table("conv2d", {
        "batch_size": rng.integers(1, 64, n),
        "in_channels": rng.integers(3, 512, n), "out_channels": rng.integers(3, 512, n),
        "height": rng.integers(5, 60, n), "kernel_h": rng.choice([1, 3, 7], n), "padding": rng.integers(0, 3, n),
        "dtype": [("fp32", "fp16")[i % 2] for i in range(n)]})  # fmt: skip
    together = seconds(convolution_work(table, A100, LOOP))
    alone = [seconds(convolution_work(table.take(np.array([row])), A100, LOOP))[0] for row in range(n)]
    np.testing.assert_allclose(together, alone)


def test_every_choice_has_its_costs():
    assert len(TIME_PARAMETERS) == len(set(TIME_PARAMETERS))
    for op in REDUCTIONS:
        work = row_reduction_work(
            op_table("row_reduction", {"op": op, "rows": 128, "dim": 512, "dtype": "bf16"}), A100, LOOP
        )
        assert work.groups == (f"{plain_op(op)}/bf16",)
        assert work.cuda_flop[0] >= 2 * 128 * 512
