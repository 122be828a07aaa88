"""The learned correction: it helps where there is data, fades where there is none, and is the same each time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from joulecast.calibration.correction_fit import CorrectionBatch, _together, fit_correction
from joulecast.coefficients.corrections import read_correction, write_correction
from joulecast.coefficients.schema import TimeCoefficients
from joulecast.errors import InputError
from joulecast.gpus import load_gpu
from joulecast.kernels.work import Conditions, work
from joulecast.physics.correction import (
    correction_factor,
    correction_features,
    feature_names,
    standardised,
)
from joulecast.physics.price import price_work
from joulecast.physics.timing import duration_s, module_times, parameters_by_row

COEFFICIENTS = TimeCoefficients()


def synthetic(n, seed, gpu, low=20.0, high=36.0):
    """Kernels of an invented family whose true time bends with the width of a row and wobbles with the fill."""
    generator = np.random.default_rng(seed)
    flop, fill = 2.0 ** generator.uniform(low, high, n), generator.uniform(0.3, 1.0, n)
    width = generator.uniform(0.0, 8.0, n)
    described = work(
        "invented", n, groups=("bf16",), group=0, tensor_flop=flop, tensor_flop_per_clk=gpu.tensor_flop_per_clk("bf16"),
        useful_flop=flop, dram_bytes=flop / 100.0, fill=fill, features={"log width": width},
    )  # fmt: skip
    truth = np.exp(0.3 * np.sin(width) + 0.2 * np.abs(fill - 0.6))
    return described, truth * plain_s(described, gpu)


def times_of(described, gpu):
    return module_times(described, gpu, parameters_by_row([COEFFICIENTS], described.group))


def plain_s(described, gpu):
    return duration_s(times_of(described, gpu), gpu, gpu.clock_max_mhz)


def batch(gpu_name, seed=0, n=3000, engine="trtllm", slower=1.0):
    gpu = load_gpu(gpu_name)
    described, seconds = synthetic(n, seed, gpu)
    return CorrectionBatch(described, gpu, engine, [COEFFICIENTS], slower * seconds, gpu.clock_max_mhz)


@pytest.fixture(scope="module")
def model():
    return fit_correction([batch("H100-SXM-80GB"), batch("A100-SXM-80GB", 1)], hidden=(48, 32), epochs=60)


def error(factor, described, seconds, gpu):
    return np.mean(np.abs(factor * plain_s(described, gpu) / seconds - 1))


@pytest.mark.parametrize("gpu_name", ["H100-SXM-80GB", "A100-SXM-80GB", "A800-SXM-80GB"])
def test_left_out_rows_and_a_left_out_gpu_are_predicted_several_times_better(model, gpu_name):
    gpu = load_gpu(gpu_name)
    described, seconds = synthetic(800, 99, gpu)
    factor, distance = correction_factor(model, described, times_of(described, gpu), gpu, engine="trtllm")
    assert np.median(distance) == 0
    assert error(factor, described, seconds, gpu) < 0.25 * error(1.0, described, seconds, gpu)


def test_it_fades_to_no_correction_far_from_the_data(model):
    gpu = load_gpu("H100-SXM-80GB")
    described, _ = synthetic(200, 5, gpu)
    times = times_of(described, gpu)
    inside, at_home = correction_factor(model, described, times, gpu, engine="trtllm")
    far = replace(described, features=described.features + 40.0)
    outside, distance = correction_factor(model, far, times, gpu, engine="trtllm")
    assert np.abs(np.log(inside)).mean() > 0.1
    np.testing.assert_allclose(outside, 1.0, atol=1e-6)
    assert (distance > 3).all()
    assert np.median(at_home) == 0


def test_it_fades_step_by_step(model):
    gpu = load_gpu("H100-SXM-80GB")
    described, _ = synthetic(1, 5, gpu)
    times = times_of(described, gpu)
    edge = replace(described, features=np.full((1, 1), 8.0))
    steps = [replace(edge, features=np.full((1, 1), 8.0 + beyond)) for beyond in (0.0, 1.0, 2.0, 4.0, 8.0)]
    found = [correction_factor(model, one, times, gpu) for one in steps]
    sizes = [abs(np.log(factor[0])) for factor, _ in found]
    distances = [distance[0] for _, distance in found]
    assert sizes == sorted(sizes, reverse=True)
    assert distances == sorted(distances)


def test_distance_is_that_to_the_range_of_the_data_in_standard_deviations(model):
    inside = model.mean + model.scale * (model.low + model.high) / 2
    rows = np.repeat(inside[None], 3, axis=0).astype(np.float32)
    first, second = model.feature_names.index("log width"), model.feature_names.index("log fill")
    rows[1, first] = model.mean[first] + model.scale[first] * (model.high[first] + 3.0)
    rows[2, first] = rows[1, first]
    rows[2, second] = model.mean[second] + model.scale[second] * (model.low[second] - 4.0)
    kept, distance = standardised(model, rows)
    np.testing.assert_allclose(distance, [0.0, 3.0, 5.0], atol=1e-4)  # 3 and 4 at right angles are 5
    assert ((kept >= model.low) & (kept <= model.high)).all()
    for row in range(3):  # whatever rows are beside
        alone, far = standardised(model, rows[row : row + 1])
        np.testing.assert_array_equal(alone[0], kept[row])
        assert far[0] == distance[row]


def test_weights_that_no_row_asks_for_fade():
    # targets of pure noise: what is learnt of them is wrong on other rows, and less of it is learnt
    gpu = load_gpu("H100-SXM-80GB")
    described, _ = synthetic(600, 0, gpu)
    noise = np.exp(np.random.default_rng(1).normal(0.0, 0.2, 600)) * plain_s(described, gpu)
    one = CorrectionBatch(described, gpu, "trtllm", [COEFFICIENTS], noise, gpu.clock_max_mhz)
    fresh, _ = synthetic(800, 2, gpu)
    wrong = []
    for forgotten in (0.0, 3.0):
        fitted = fit_correction([one], hidden=(48, 32), epochs=60, forgotten=forgotten)
        factor, _ = correction_factor(fitted, fresh, times_of(fresh, gpu), gpu, engine="trtllm")
        wrong.append(np.abs(np.log(factor)).mean())
    assert wrong[1] < 0.6 * wrong[0]


def test_networks_together_say_the_mean_of_what_each_says():
    generator = np.random.default_rng(0)
    shapes = [(5, 4), (4,), (4, 3), (3,), (8,), (2, 8)]  # two layers of 4 and 3, a shared output and two own
    found = [[generator.standard_normal(shape).astype(np.float32) for shape in shapes] for _ in range(3)]

    def said(values, rows, key):
        first = np.maximum(rows @ values[0] + values[1], 0)
        second = np.maximum(first @ values[2] + values[3], 0)
        return np.concatenate([first, second, np.ones((len(rows), 1))], axis=1) @ (values[4] + values[5][key])

    rows = generator.standard_normal((20, 5))
    for key in range(2):
        mean = np.mean([said(one, rows, key) for one in found], axis=0)
        np.testing.assert_allclose(said(_together(found), rows, key), mean, rtol=1e-5, atol=1e-5)


def test_the_same_rows_and_seed_give_the_same_model(model):
    again = fit_correction([batch("H100-SXM-80GB"), batch("A100-SXM-80GB", 1)], hidden=(48, 32), epochs=60)
    for one, other in zip(model.weights, again.weights, strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(model.head, again.head)


def test_an_engine_with_slower_kernels_has_an_output_of_its_own():
    batches = [batch("H100-SXM-80GB"), batch("H100-SXM-80GB", engine="vllm", slower=1.3)]
    fitted = fit_correction(batches, hidden=(32, 32), epochs=40)
    gpu = load_gpu("H100-SXM-80GB")
    described, _ = synthetic(500, 7, gpu)
    fast, slow = (
        correction_factor(fitted, described, times_of(described, gpu), gpu, engine=one)[0] for one in ("trtllm", "vllm")
    )
    assert np.median(slow / fast) == pytest.approx(1.3, abs=0.05)
    unknown, _ = correction_factor(
        fitted, described, times_of(described, gpu), gpu, exclude=("H100-SXM-80GB",), engine="vllm"
    )
    assert np.median(unknown / slow) < 0.97


def test_gpu_identity_is_not_among_what_the_network_sees(model):
    # ridge and L2 rate only set the distance: the first layer does not read them
    for name in ("log ridge", "log L2 rate over DRAM rate"):
        assert (model.weights[0][model.feature_names.index(name)] == 0).all()


def test_a_group_with_a_network_of_its_own_uses_it(model):
    gpu = load_gpu("H100-SXM-80GB")
    described, _ = synthetic(200, 11, gpu)
    both = replace(described, groups=("bf16", "fp8"), group=np.arange(200) % 2)
    measured = {**model.own, f"{gpu.name}/trtllm/fp8": np.zeros_like(model.head)}
    whole = replace(model, own=measured)
    other = replace(whole, head=model.head + np.eye(model.head.size, dtype=np.float32)[-1] * np.float32(0.5))
    times = times_of(described, gpu)
    one, distance = correction_factor(whole, both, times, gpu, engine="trtllm")
    two, _ = correction_factor(replace(whole, parts={"fp8": other}), both, times, gpu, engine="trtllm")
    home = distance == 0
    np.testing.assert_allclose(np.log(two / one)[home], 0.5 * (np.arange(200) % 2)[home], atol=1e-5)


def test_host_bound_rows_do_not_pass_for_slow_kernels():
    gpu = load_gpu("H100-SXM-80GB")
    described, seconds = synthetic(4000, 0, gpu, high=40.0)
    one = CorrectionBatch(described, gpu, "trtllm", [COEFFICIENTS], seconds, gpu.clock_max_mhz)
    bound = replace(COEFFICIENTS, host_us=60.0)
    shown = (one.time_s**8 + (60e-6) ** 8) ** 0.125
    fitted = fit_correction([replace(one, per_group=[bound], time_s=shown)], hidden=(48, 32), epochs=60)
    described, seconds = synthetic(500, 8, gpu, low=37.0, high=39.5)
    factor, _ = correction_factor(fitted, described, times_of(described, gpu), gpu)
    assert error(factor, described, seconds, gpu) < 0.6 * error(1.0, described, seconds, gpu)


def test_files_keep_a_model_and_refuse_others(model, tmp_path):
    path = tmp_path / "correction_invented.npz"
    write_correction(model, path)
    gpu = load_gpu("H100-SXM-80GB")
    described, _ = synthetic(300, 3, gpu)
    model = replace(model, parts={"bf16": model, "fp8": model})
    before, _ = correction_factor(model, described, times_of(described, gpu), gpu, engine="trtllm")
    after, _ = correction_factor(read_correction(path), described, times_of(described, gpu), gpu, engine="trtllm")
    np.testing.assert_allclose(after, before, rtol=2e-3)
    path.write_bytes(b"not an archive")
    with pytest.raises(InputError, match="can't read a correction"):
        read_correction(path)


def test_a_family_without_a_correction_keeps_its_times():
    gpu = load_gpu("H100-SXM-80GB")
    described, _ = synthetic(10, 1, gpu)
    priced = price_work(described, gpu, Conditions("trtllm"))
    assert priced.times.scale.tolist() == [1.0] * 10
    assert priced.distance.tolist() == [0.0] * 10


def test_features_are_found_by_name_whatever_their_order(model):
    gpu = load_gpu("H100-SXM-80GB")
    described, _ = synthetic(50, 4, gpu)
    more = replace(
        described,
        features=np.stack([np.full(50, 77.0), described.features[:, 0]], axis=1),
        feature_names=("another", "log width"),
    )
    times = times_of(described, gpu)
    one, _ = correction_factor(model, described, times, gpu)
    other, _ = correction_factor(model, more, times, gpu)
    np.testing.assert_array_equal(one, other)


def test_features_have_names_and_are_finite_for_an_empty_kernel():
    gpu = load_gpu("H100-SXM-80GB")
    nothing = work("invented", 2, groups=("bf16",), group=0, features={"log width": 1.0})
    features = correction_features(nothing, times_of(nothing, gpu), gpu)
    assert features.shape == (2, len(feature_names(nothing)))
    assert np.isfinite(features).all()
