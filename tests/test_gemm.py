"""Matrix products against published limits, waves counted by hand, and what no product may break."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulecast.coefficients.schema import TIME_PARAMETERS, TimeCoefficients
from joulecast.gpus import load_gpu
from joulecast.kernels.gemm import gemm_work, walked_share
from joulecast.kernels.registry import family_of
from joulecast.kernels.work import Conditions, KernelWork
from joulecast.physics.timing import duration_s, module_times
from joulecast.workloads.table import op_table

# As fits on Hopper and Blackwell find them.
COEFFICIENTS = TimeCoefficients(shared_efficiency=1.0, l2_efficiency=0.53, sharpness=8.0)
LOOP, STREAM = Conditions(), Conditions(residency="stream")
PARAMETERS = np.array([getattr(COEFFICIENTS, name) for name in TIME_PARAMETERS])
FORMATS = ("fp32", "tf32", "fp16", "bf16", "fp8", "fp8_block", "nvfp4", "int8", "w8a16", "w4a16", "w8a8")


def work_of(gpu, kind="gemm", conditions=LOOP, **columns) -> KernelWork:
    return gemm_work(op_table(kind, columns), load_gpu(gpu), conditions)


def seconds(gpu, clock_mhz=None, conditions=LOOP, **columns):
    described = load_gpu(gpu)
    work = work_of(gpu, conditions=conditions, **columns)
    return duration_s(module_times(work, described, PARAMETERS), described, clock_mhz or described.rate_clock_mhz)


def test_both_kinds_have_a_family_of_their_own():
    assert family_of("gemm").name == "gemm"
    assert family_of("batched_gemm").name == "batched_gemm"


def test_waves_of_a_square_product_are_those_counted_by_hand():
    # 4096 x 4096 in 128x128 tiles is 32 x 32 = 1024 blocks; batched fp32 on Ampere uses only that tile.
    # 108 SMs hold two such blocks each: 1024 / 216 = 4.74, 5 waves; the busiest SM has ceil(1024 / 108) = 10 of them.
    work = work_of("A100-PCIE-40GB", "batched_gemm", batch=1, m=4096, n=4096, k=1024, dtype="fp32")
    assert work.blocks[0] == 1024
    assert work.waves[0] == 5
    assert work.fill[0] == pytest.approx(1024 / (10 * 108))
    assert work.useful_flop[0] == 2 * 4096 * 4096 * 1024
    assert work.cuda_flop[0] == work.useful_flop[0]
    assert work.tensor_flop[0] == 0


def test_the_correction_sees_how_full_the_waves_of_each_tile_are():
    # 4096 x 4096 on 132 SMs: 32 x 32 tiles of 128 x 128 are 7.76 waves of 8; 32 x 22 of 128 x 192 are 5.33 of 6;
    # 22 x 32 of 192 x 128 the same; 16 x 16 of 256 x 256 are 1.94 of 2
    work = work_of(load_gpu("h100-sxm-80gb"), m=4096, n=4096, k=4096, dtype="bf16")
    seen = dict(zip(work.feature_names, work.features[0], strict=True))
    assert seen["fill of 128x128 tiles"] == pytest.approx(1024 / (132 * 8), rel=1e-6)
    assert seen["fill of 128x192 tiles"] == pytest.approx(704 / (132 * 6), rel=1e-6)
    assert seen["fill of 192x128 tiles"] == pytest.approx(704 / (132 * 6), rel=1e-6)
    assert seen["fill of 256x256 tiles"] == pytest.approx(256 / (132 * 2), rel=1e-6)


def test_waves_that_are_just_full_count_as_full():
    # 192 rows a tile and 132 SMs: neither divides exactly in floating point by way of its reciprocal
    work = work_of(load_gpu("h100-sxm-80gb"), m=192 * np.arange(1, 40), n=132 * 128, k=4096, dtype="bf16")
    np.testing.assert_array_equal(work.features[:, work.feature_names.index("fill of 192x128 tiles")], 1.0)


def test_ragged_products_pay_for_whole_tiles():
    # 129 x 129 needs four 128x128 tiles: (256 / 129)^2 = 3.94 times the arithmetic.
    work = work_of("A100-PCIE-40GB", "batched_gemm", batch=64, m=129, n=129, k=512, dtype="fp32")
    assert work.cuda_flop[0] / work.useful_flop[0] == pytest.approx((256 / 129) ** 2)


def test_a_large_square_product_reaches_the_efficiency_of_the_tensor_cores():
    flop = 2 * 16384.0**3
    peak = load_gpu("H100-SXM-80GB").tensor_tflops["bf16"] * 1e12
    reached = flop / seconds("H100-SXM-80GB", m=16384, n=16384, k=16384, dtype="bf16")[0] / peak
    assert 0.6 < reached < COEFFICIENTS.tensor_efficiency


def test_a_matrix_vector_product_runs_at_the_rate_of_dram():
    # 2 x 16384 x 65536 bytes of weights and nothing else that counts
    described = load_gpu("H100-SXM-80GB")
    taken = seconds("H100-SXM-80GB", m=1, n=16384, k=65536, dtype="bf16", conditions=STREAM)[0]
    rate_gb_s = 2 * 16384 * 65536 / taken / 1e9
    assert 0.7 * described.dram_gb_s < rate_gb_s < COEFFICIENTS.dram_efficiency * described.dram_gb_s


def test_few_rows_move_the_weights_once_whatever_the_tile():
    work = work_of("H100-SXM-80GB", m=[1, 8, 64], n=8192, k=8192, dtype="bf16", conditions=STREAM)
    np.testing.assert_allclose(work.dram_bytes, 2 * 8192 * 8192, rtol=0.03)


def test_small_weights_stay_in_l2_in_a_loop_and_never_in_a_stream():
    columns = {"m": 64, "n": 1024, "k": 1024, "dtype": "bf16"}
    looped = work_of("H100-SXM-80GB", **columns, conditions=Conditions(engine="pytorch")).dram_bytes[0]
    streamed = work_of("H100-SXM-80GB", **columns, conditions=STREAM).dram_bytes[0]
    assert looped < 0.05 * streamed
    assert streamed >= 2 * 1024 * 1024


def test_a_walk_that_fits_stays_and_one_that_does_not_is_lost():
    assert walked_share(0.9e8, 1e8) > 0.95
    assert walked_share(1.2e8, 1e8) < 0.05


def test_products_with_few_tiles_and_a_long_k_are_split():
    work = work_of("H100-SXM-80GB", m=[16, 16, 4096], n=[128, 128, 4096], k=[65536, 512, 65536], dtype="bf16")
    splits = 2 ** work.features[:, work.feature_names.index("log splits")]
    assert splits[0] > 16
    assert splits[1] == 1
    assert splits[2] == 1


@pytest.mark.parametrize("dtype", ["w8a8", "w8a16", "w4a16"])
def test_plugins_for_integer_weights_do_not_split_a_long_k(dtype):
    # on an A100 they take 40 to 45 us for 16 rows and for 256, and its bf16 product, which splits k, takes 8
    work = work_of("A100-SXM-80GB", m=[16, 256], n=128, k=16384, dtype=dtype)
    np.testing.assert_array_equal(work.features[:, work.feature_names.index("log splits")], 0.0)
    plain = work_of("A100-SXM-80GB", m=16, n=128, k=16384, dtype="bf16")
    assert work.latency_cycles[0] > 4.0 * plain.latency_cycles[0]


def test_tensorrt_llm_multiplies_few_rows_of_smoothed_integers_on_cuda_cores():
    # TensorRT-LLM's plugins take a path of their own below 5 rows; n = 128, k = 16,384 takes an A100 13 us, then 64
    columns = {"m": [4, 5], "n": 128, "k": 16384, "dtype": "w8a8"}
    work = work_of("A100-SXM-80GB", conditions=Conditions(engine="trtllm"), **columns)
    assert work.tensor_flop[0] == 0 < work.tensor_flop[1]
    assert work.latency_cycles[0] == 0 < work.latency_cycles[1]
    other = work_of("A100-SXM-80GB", conditions=Conditions(engine="vllm"), **columns)
    assert (other.tensor_flop > 0).all()


def test_fp8_pays_for_bringing_its_activations_into_the_format():
    plain = work_of("H100-SXM-80GB", m=16384, n=512, k=16384, dtype="bf16")
    quantised = work_of("H100-SXM-80GB", m=16384, n=512, k=16384, dtype="fp8")
    # two reads of two bytes and a write of one an element of x
    assert quantised.serial_l2_bytes[0] == 5 * 16384 * 16384
    assert plain.serial_l2_bytes[0] == 0
    assert quantised.launches[0] == plain.launches[0] + 2


def test_weight_only_formats_read_fewer_weights_and_widen_them_on_cuda_cores():
    wide, narrow = (
        work_of("A100-SXM-80GB", m=32, n=8192, k=8192, dtype=name, conditions=STREAM) for name in ("bf16", "w4a16")
    )
    assert narrow.dram_bytes[0] < 0.3 * wide.dram_bytes[0]
    assert narrow.cuda_flop[0] > 0
    assert narrow.tensor_flop[0] == wide.tensor_flop[0]


@pytest.mark.parametrize(
    ("gpu", "dtype"), [("A100-SXM-80GB", "fp8"), ("H100-SXM-80GB", "nvfp4"), ("T4", "bf16"), ("V100-PCIE-32GB", "tf32")]
)
def test_formats_that_a_gpu_does_not_compute_in_give_a_reason(gpu, dtype):
    work = work_of(gpu, m=[128, 128], n=128, k=128, dtype=[dtype, "fp32"])
    assert list(work.reasons) == [0]
    assert gpu in work.reasons[0]
    assert dtype in work.reasons[0]


def test_groups_are_the_formats_that_occur():
    work = work_of("H100-SXM-80GB", m=64, n=64, k=64, dtype=["fp8", "bf16", "fp8"])
    assert set(work.groups) == {"bf16", "fp8"}
    assert [work.groups[code] for code in work.group] == ["fp8", "bf16", "fp8"]


def test_rows_do_not_depend_on_the_rows_beside_them():
    columns = {"m": [1, 64, 4096, 77], "n": [4096, 64, 4096, 1000], "k": [4096, 8192, 4096, 333],
               "dtype": ["fp32", "bf16", "fp8", "w4a16"]}  # fmt: skip
    together = work_of("H100-SXM-80GB", **columns)
    for row in range(4):
        alone = work_of("H100-SXM-80GB", **{name: [values[row]] for name, values in columns.items()})
        for name in ("tensor_flop", "cuda_flop", "shared_bytes", "l2_bytes", "dram_bytes", "fill", "blocks"):
            assert getattr(together, name)[row] == getattr(alone, name)[0], name


sizes = st.integers(1, 100_000)


@settings(max_examples=60, deadline=None)
@given(m=sizes, n=sizes, k=sizes, dtype=st.sampled_from(FORMATS), gpu=st.sampled_from(["B200-SXM-180GB", "L40S", "T4"]))
def test_no_product_does_less_than_it_must(m, n, k, dtype, gpu):
    work = work_of(gpu, m=m, n=n, k=k, dtype=dtype)
    assert work.tensor_flop[0] + work.cuda_flop[0] >= work.useful_flop[0] * (1 - 1e-12)
    assert 0 < work.fill[0] <= 1
    assert work.waves[0] >= 1
    assert work.dram_bytes[0] >= 0
    assert np.isfinite(work.features).all()


@settings(max_examples=40, deadline=None)
@given(m=sizes, n=sizes, k=sizes, low=st.floats(0.2, 0.99), dtype=st.sampled_from(["bf16", "fp8", "w8a16", "fp32"]))
def test_a_slower_clock_is_never_faster(m, n, k, low, dtype):
    fast = load_gpu("H200-SXM-141GB").clock_max_mhz
    columns = {"m": m, "n": n, "k": k, "dtype": dtype}
    assert seconds("H200-SXM-141GB", low * fast, **columns)[0] >= seconds("H200-SXM-141GB", fast, **columns)[0]


def test_twice_the_reduction_of_a_large_product_takes_twice_as_long():
    once, twice = seconds("A100-SXM-80GB", m=8192, n=8192, k=[8192, 16384], dtype="bf16")
    assert twice / once == pytest.approx(2.0, rel=0.03)


@pytest.mark.parametrize("dtype", FORMATS)
def test_extreme_sizes_stay_finite(dtype):
    huge = 2.0**48
    work = work_of("B200-SXM-180GB", m=[huge, 1, huge, 1], n=[huge, huge, 1, 1], k=[huge, 1, 1, huge], dtype=dtype)
    for name, value in work.__dict__.items():
        if isinstance(value, np.ndarray) and value.dtype.kind == "f":
            assert np.isfinite(value).all(), name


def test_scales_of_blocks_are_applied_by_cuda_cores_up_to_hopper_and_by_tensor_cores_of_blackwells_servers():
    hopper, blackwell = load_gpu("H100-SXM-80GB"), load_gpu("B200-SXM-180GB")
    sizes = {name: np.array([8192.0]) for name in ("m", "n", "k")}

    def rate(dtype, gpu):
        found = gemm_work(op_table("gemm", {**sizes, "dtype": dtype}), gpu, Conditions(engine="trtllm"))
        return float(found.tensor_flop_per_clk[0]), float(found.l2_bytes[0] - found.serial_l2_bytes[0])

    # 128 multiply-adds of one result take 256 / 8192 clocks of an SM, the one that scales them 2 / 256
    slower = 1.0 + (2.0 / 256.0) / (256.0 / 8192.0)
    assert rate("fp8", hopper)[0] / rate("fp8_block", hopper)[0] == pytest.approx(slower, rel=1e-3)
    assert rate("fp8_block", hopper)[1] > 1.1 * rate("fp8", hopper)[1]  # smaller tiles are loaded more often
    assert rate("fp8_block", blackwell) == rate("fp8", blackwell)
