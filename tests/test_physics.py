"""Physics by its laws: limits of overlap, voltage, energy parts, throttling, queues and intervals."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from joulecast.bounds.ranges import check_clock_mhz, check_power_limit_w, number
from joulecast.coefficients.energies import default_power
from joulecast.coefficients.schema import HostCoefficients, PowerCoefficients
from joulecast.errors import InputError
from joulecast.gpus import gpu_names, load_gpu
from joulecast.kernels.work import Conditions
from joulecast.physics.host import host_cost_us
from joulecast.physics.power import (
    POWER_MODULES,
    core_scale,
    energy_parts_j,
    mean_power_w,
    spin_w,
    spinning_power_w,
    static_power_w,
    voltage_ratio,
)
from joulecast.physics.price import price
from joulecast.physics.priced import concatenated, take
from joulecast.physics.settled import BOUNDS, at_clock, bound_by, module_energy_j, under_limit
from joulecast.physics.throttle import CONTROL_S, felt_swing, settled_clock_mhz, swings
from joulecast.physics.timeline import Passes, pass_time_s, run_phase, run_swinging
from joulecast.physics.timing import dram_rate_gb_s, duration_s, measured_s, smooth_maximum
from joulecast.physics.uncertainty import bounds, combined, of_sum, widened
from joulecast.workloads.table import op_table

A100 = load_gpu("A100-PCIE-40GB")
GPUS = [load_gpu(name) for name in gpu_names()]
gpus = st.sampled_from(GPUS)
times = st.floats(1e-7, 1e3)
sizes = st.floats(0, 1e6)


def priced_gemms(gpu=A100, m=(1, 64, 4096, 16384), **conditions):
    table = op_table("gemm", {"m": list(m), "n": 4096, "k": 4096, "dtype": "fp16"})
    return price(table, gpu, Conditions(**conditions))


# Overlap


@given(arrays(np.float64, (5, 3), elements=sizes), st.floats(1, 30))
def test_a_smooth_maximum_lies_between_the_maximum_and_the_sum(parts, sharpness):
    found = smooth_maximum(parts, sharpness)
    assert np.all(found >= parts.max(axis=0) * (1 - 1e-12))
    assert np.all(found <= parts.sum(axis=0) * (1 + 1e-12))


@given(arrays(np.float64, (4, 2), elements=sizes))
def test_a_smooth_maximum_is_the_sum_without_overlap_and_the_maximum_with_perfect_overlap(parts):
    assert smooth_maximum(parts, 1.0) == pytest.approx(parts.sum(axis=0))
    assert smooth_maximum(parts, 1e4) == pytest.approx(parts.max(axis=0), rel=1e-3)


def test_two_equal_parts_take_the_root_of_two_by_exponent():
    assert smooth_maximum(np.array([[3.0], [3.0]]), 2.0)[0] == pytest.approx(3 * math.sqrt(2))
    assert smooth_maximum(np.zeros((2, 1)), 2.0)[0] == 0.0


@given(st.data(), gpus)
@settings(max_examples=40)
def test_a_slower_clock_never_makes_a_kernel_faster(data, gpu):
    if not ({"fp16"} & set(gpu.tensor_tflops) | {"fp16"} & set(gpu.cuda_tflops)):
        gpu = A100
    low, high = sorted(data.draw(st.floats(gpu.clock_min_mhz, gpu.clock_max_mhz)) for _ in range(2))
    one = priced_gemms(gpu)
    assert np.all(duration_s(one.times, gpu, low) >= duration_s(one.times, gpu, high) * (1 - 1e-12))


@given(gpus, st.floats(1, 1e5), st.floats(1, 1e4))
def test_the_dram_rate_stays_below_the_memory_and_below_the_bytes_in_flight(gpu, peak, clock):
    rate = dram_rate_gb_s(peak, clock, gpu)
    assert 0 < rate <= peak
    assert rate <= dram_rate_gb_s(1e12, clock, gpu) * (1 + 1e-9)  # no memory is as fast as this one
    assert dram_rate_gb_s(peak, 1e9, gpu) == pytest.approx(peak, rel=1e-6)  # a fast core leaves the memory's own


def test_the_dram_rate_of_an_a100_falls_with_the_clock_as_measured():
    # Achieved 825, 983, 1152, 1270 GB/s at 510, 705, 900, 1410 MHz (public EnergAIzer tables, large streaming kernels).
    found = dram_rate_gb_s(1330.0, np.array([510, 705, 900, 1410]), A100)
    assert found == pytest.approx([825, 983, 1152, 1270], rel=0.30)
    assert np.all(np.diff(found) > 0)


@given(times, st.floats(0, 1e4), st.floats(0, 1e3))
def test_event_timers_never_show_less_than_the_kernel_or_the_host(kernel_s, host_us, lead_us):
    shown = measured_s(kernel_s, host_us, lead_us)
    assert shown >= max(kernel_s + lead_us * 1e-6, host_us * 1e-6) * (1 - 1e-9)
    assert shown <= (kernel_s + lead_us * 1e-6 + host_us * 1e-6) * (1 + 1e-9)


def test_event_timers_show_the_kernel_itself_where_launches_cost_nothing():
    assert measured_s(3e-6, 0.0, 0.0) == pytest.approx(3e-6)


# Voltage and power


def test_the_voltage_of_an_a100_is_flat_to_1020_mhz_and_then_rises_to_894_mv():
    # The driver's voltage at locked clocks (EnergAIzer artifact): 693.75 mV to 1,020 MHz, 800 at 1,275, 894 at 1,410.
    # The catalogue holds straight lines through such readings, within 12 mV of each.
    found = voltage_ratio(np.array([210, 600, 1020, 1275, 1410]), A100, default_power(A100)) * 894
    assert found == pytest.approx([693.75, 693.75, 693.75, 800, 894], abs=12)
    assert np.ptp(found[:3]) == 0


def test_core_energy_at_the_voltage_floor_of_an_a100_is_three_fifths():
    # (693.75 / 894)^2 = 0.602
    assert core_scale(900, A100, default_power(A100)) == pytest.approx(0.602, abs=0.006)


@given(st.data(), gpus)
def test_voltage_never_falls_with_the_clock_and_is_one_at_the_rate_clock(data, gpu):
    power = default_power(gpu)
    low, high = sorted(data.draw(st.floats(gpu.clock_min_mhz, gpu.clock_max_mhz)) for _ in range(2))
    assert voltage_ratio(low, gpu, power) <= voltage_ratio(high, gpu, power)
    assert voltage_ratio(gpu.rate_clock_mhz, gpu, power) == pytest.approx(1.0)
    assert static_power_w(low, gpu, power) <= static_power_w(high, gpu, power)


def test_static_power_is_idle_and_clocked_power_at_the_rate_clock():
    power = dataclasses.replace(default_power(A100), idle_w=50.0, clocked_w=20.0)
    assert static_power_w(A100.rate_clock_mhz, A100, power) == pytest.approx(70.0)
    # At 900 MHz: 50 + 20 x 0.602 x 900 / 1410
    assert static_power_w(900.0, A100, power) == pytest.approx(50 + 20 * 0.602 * 900 / 1410, rel=0.01)


@given(st.floats(0, 1), st.sampled_from([A100, *GPUS[:4]]))
@settings(max_examples=25)
def test_the_parts_of_the_energy_sum_to_power_times_time(where, gpu):
    clock = gpu.clock_min_mhz + where * (gpu.clock_max_mhz - gpu.clock_min_mhz)
    one = priced_gemms(A100 if not gpu.tensor_tflops else gpu)
    time_s, power_w = at_clock(one, clock)
    parts = module_energy_j(one, time_s, clock)
    assert parts.shape == (len(POWER_MODULES), len(one))
    assert np.all(parts >= 0)
    assert parts.sum(axis=0) == pytest.approx(power_w * time_s)


def test_energy_by_hand_of_a_product_with_a_known_energy_a_flop():
    power = PowerCoefficients(
        idle_w=0.0, clocked_w=0.0, active_w=0.0, tensor_pj={"fp16": 0.5}, cuda_pj={}, sfu_pj=0.0,
        shared_pj=0.0, l2_pj=0.0, dram_pj=100.0,
    )  # fmt: skip
    one = price(op_table("gemm", {"m": 4096, "n": 4096, "k": 4096, "dtype": "fp16"}), A100, Conditions(), power=power)
    time_s, power_w = at_clock(one, A100.rate_clock_mhz)
    # 2 x 4096^3 FLOP at 0.5 pJ, 4096 divides into whole tiles; DRAM traffic at 100 pJ/B
    expected = 2 * 4096**3 * 0.5e-12 + one.work.dram_bytes[0] * 100e-12
    assert power_w * time_s == pytest.approx([expected], rel=0.05)
    parts = energy_parts_j(one.energy, time_s, A100.rate_clock_mhz, A100, power)
    assert parts[POWER_MODULES.index("static")].sum() == 0.0
    half = mean_power_w(one.energy, 2 * time_s, A100.rate_clock_mhz, A100, power)
    assert half == pytest.approx(power_w / 2)  # the same work over twice the time, with nothing drawn by time


# Throttling

curves = st.tuples(st.floats(0, 200), st.floats(1, 1500), st.floats(0.2, 3))


@given(st.lists(curves, min_size=1, max_size=6), st.floats(600, 2500), st.floats(50, 900))
def test_a_throttled_clock_meets_the_limit(rows, asked, limit):
    idle, dynamic, exponent = np.array(rows).T

    def power_w(clock, index):
        return idle[index] + dynamic[index] * (clock / asked) ** exponent[index]

    every = np.arange(len(rows))
    lowest = 200.0
    clock, throttled = settled_clock_mhz(power_w, asked, lowest, limit, len(rows))
    found = power_w(clock, every)
    assert np.all(clock <= asked)
    assert np.all(clock >= lowest)
    assert np.array_equal(throttled, power_w(np.full(len(rows), asked), every) > limit)
    assert np.all(clock[~throttled] == asked)
    inside = throttled & (power_w(np.full(len(rows), lowest), every) < limit)
    assert np.all(found[inside] <= limit)
    closest = (asked - lowest) / 2**11
    above = power_w(np.minimum(clock + closest, asked), every)
    assert np.all(above[inside] >= limit * (1 - 1e-12))  # a step higher would exceed it
    assert np.all(clock[throttled & ~inside] == lowest)


@pytest.mark.parametrize(("under", "over"), [(1.0, 3.0), (0.8, 2.4), (3.0, 1.0)])
def test_a_limit_is_kept_where_the_slope_of_power_changes(under, over):
    """As at the voltage floor: below it power falls with the clock alone, above it with the voltage too."""
    limit, asked = 200.0, 1410.0
    knee = 700.0 * np.exp(np.linspace(-3e-4, 3e-4, 6001))  # where the limit is met, and a little beside it

    def power_w(clock, index):
        ratio = clock / knee[index]
        return limit * (knee[index] / 700.0) ** over * ratio ** np.where(ratio < 1, under, over)

    clock, throttled = settled_clock_mhz(power_w, asked, 210.0, limit, knee.size)
    found = power_w(clock, np.arange(knee.size))
    assert throttled.all()
    assert np.all(found <= limit)
    assert np.all(found >= limit * (1 - 5e-4))


def test_a_cubic_law_settles_at_the_cube_root():
    clock, throttled = settled_clock_mhz(lambda mhz, _: 400 * (mhz / 1410) ** 3, 1410, 210, 200, 1)
    assert throttled[0]
    assert clock[0] == pytest.approx(1410 * 0.5 ** (1 / 3), abs=(1410 - 210) / 4096)


@given(st.floats(60, 400), st.floats(60, 400))
@settings(max_examples=30)
def test_a_lower_limit_is_never_faster_and_is_kept(first, second):
    one = priced_gemms()
    low, high = (under_limit(one, A100.clock_max_mhz, limit) for limit in sorted((first, second)))
    assert np.all(low.time_s >= high.time_s * (1 - 1e-12))
    assert np.all(low.clock_mhz <= high.clock_mhz)
    kept = low.clock_mhz > A100.clock_min_mhz
    assert np.all(low.power_w[kept] <= min(first, second))
    assert low.energy_j == pytest.approx(low.time_s * low.power_w)


def test_a_limit_of_each_row_is_its_own():
    one = priced_gemms(m=(8192, 8192))
    settled = under_limit(one, A100.clock_max_mhz, np.array([np.inf, 120.0]))
    assert not settled.throttled[0]
    assert settled.clock_mhz[0] == A100.clock_max_mhz
    assert settled.throttled[1]
    assert settled.power_w[1] == pytest.approx(120.0, rel=0.01)


# Queues and passes


@given(sizes, sizes)
def test_a_pass_takes_as_long_as_gpu_or_host_and_a_little_more_where_they_meet(gpu_s, host_s):
    found = float(pass_time_s(gpu_s, host_s))
    assert max(gpu_s, host_s) <= found <= max(gpu_s, host_s) * 2 ** (1 / 8) * (1 + 1e-12)
    assert found == pytest.approx(float(pass_time_s(host_s, gpu_s)))


def test_a_pass_with_no_host_cost_takes_the_gpus_time():
    assert float(pass_time_s(2.5, 0.0)) == 2.5


def passes_of(one, host_s, count=3.0, repeats=2.0):
    n = len(one)
    return Passes(one, np.full(n, count), np.zeros(n, dtype=np.intp), np.array([repeats]), np.array([host_s]))


def test_a_phase_adds_up_its_kernels_counts_and_repeats():
    one = priced_gemms(m=(512, 4096))
    run = run_phase(passes_of(one, 0.0), 900.0, math.inf)
    kernels, power_w = at_clock(one, 900.0)
    assert run.time_s == pytest.approx(6 * kernels.sum())
    assert run.energy_j == pytest.approx(6 * float(kernels @ power_w))
    assert run.idle_s == 0.0
    assert run.idle_j == 0.0
    assert not run.throttled
    assert run.kernel_s == pytest.approx(kernels)


def test_a_gpu_that_waits_for_its_host_draws_static_power_then():
    one = priced_gemms(m=(64,))
    run = run_phase(passes_of(one, host_s=1.0, count=1, repeats=1), 900.0, math.inf)
    assert run.time_s == pytest.approx(1.0)
    assert run.idle_j == pytest.approx(float(static_power_w(900.0, A100, one.power)) * run.idle_s)
    busy_j = float((one_power := at_clock(one, 900.0))[0] @ one_power[1])
    assert run.energy_j == pytest.approx(run.idle_j + busy_j)


@given(gpus, st.floats(0.2, 1.0))
def test_a_gpu_that_waits_for_another_one_draws_between_static_power_and_that_of_busy_sms(gpu, share):
    power = default_power(gpu)
    clock = max(share * gpu.clock_max_mhz, gpu.clock_min_mhz)
    static_w, waiting_w = (float(one(clock, gpu, power)) for one in (static_power_w, spinning_power_w))
    drive = float(core_scale(clock, gpu, power)) * clock / gpu.rate_clock_mhz
    assert static_w < waiting_w <= static_w + power.active_w * drive * (1 + 1e-12)
    assert waiting_w <= float(spinning_power_w(gpu.clock_max_mhz, gpu, power))


def test_waiting_for_other_gpus_adds_its_power_for_its_time_alone():
    one = priced_gemms(m=(64,))
    plain = passes_of(one, host_s=1.0, count=1, repeats=1)
    idle, spun = (run_phase(dataclasses.replace(plain, spinning_s=s), 900.0, math.inf) for s in (0.0, 0.25))
    drive = float(core_scale(900.0, A100, one.power)) * 900.0 / A100.rate_clock_mhz
    assert spun.time_s == idle.time_s
    assert spun.energy_j - idle.energy_j == pytest.approx(0.25 * spin_w(A100, one.power) * drive)
    assert spun.idle_j - idle.idle_j == pytest.approx(spun.energy_j - idle.energy_j)


def test_a_phase_settles_where_its_mean_power_meets_the_limit():
    one = priced_gemms(m=(8192, 16384))
    run = run_phase(passes_of(one, 0.0), A100.clock_max_mhz, 150.0)
    assert run.throttled
    assert run.clock_mhz < A100.clock_max_mhz
    assert run.energy_j / run.time_s == pytest.approx(150.0, rel=0.005)
    assert run.energy_j / run.time_s <= 150.0


@given(st.floats(0.0, 0.5))
def test_parts_of_a_step_swing_about_its_mean_power(swing):
    share, power = (np.array(one, dtype=np.float64) for one in zip(*swings(swing), strict=True))
    assert share.sum() == pytest.approx(1.0)
    assert share @ power == pytest.approx(1.0)
    # a lognormal's coefficient of variation
    assert share @ (power - 1.0) ** 2 == pytest.approx(math.expm1(swing**2), rel=0.02, abs=1e-12)


def test_hot_parts_throttle_while_the_mean_keeps_to_the_limit_and_cool_ones_do_not_fill_it():
    # long beside the control loop
    passes, top = passes_of(priced_gemms(m=(8192, 16384)), 0.0, count=600), A100.clock_max_mhz
    free = run_phase(passes, top, math.inf)
    asked_w = free.energy_j / free.time_s
    above, below, far = (run_swinging(passes, top, share * asked_w, 0.15) for share in (1.1, 0.85, 1.7))
    plain = run_phase(passes, top, 0.85 * asked_w)
    assert free.time_s < above.time_s < below.time_s
    assert above.throttled
    assert above.energy_j / above.time_s < asked_w
    # the mean of a swinging step stays below a limit that a steady one fills
    assert below.energy_j / below.time_s < plain.energy_j / plain.time_s
    # a limit far above all parts, and no swing at all, change nothing
    assert (far.time_s, far.energy_j, far.throttled) == (free.time_s, free.energy_j, False)
    steady = run_swinging(passes, top, 0.85 * asked_w, 0.0)
    assert (steady.time_s, steady.energy_j) == pytest.approx((plain.time_s, plain.energy_j))


@given(st.floats(0.01, 0.5), st.floats(1e-4, 10.0))
def test_a_control_loop_sees_what_swings_slowly_and_the_mean_of_what_swings_fast(swing, period_s):
    # amplitude of a sine behind a low-pass of first order
    t = np.linspace(0.0, 1.0, 4096, endpoint=False)
    wave = np.fft.rfft(np.sin(2 * np.pi * t))
    behind = np.fft.irfft(wave / (1 + 2j * np.pi * np.arange(wave.size) * CONTROL_S / period_s))
    assert float(felt_swing(swing, period_s)) == pytest.approx(swing * math.sqrt(2) * behind.std(), rel=1e-9)
    assert felt_swing(swing, period_s) < felt_swing(swing, 2 * period_s) < swing


def test_a_step_of_many_micro_batches_swings_at_the_pace_of_one():
    passes, top = passes_of(priced_gemms(m=(8192, 16384)), 0.0), A100.clock_max_mhz
    free = run_phase(passes, top, math.inf)
    asked_w = free.energy_j / free.time_s
    many = dataclasses.replace(passes, repeats=50.0 * passes.repeats)
    one, all_of_them = (run_swinging(each, top, 0.95 * asked_w, 0.2) for each in (passes, many))
    assert all_of_them.time_s == pytest.approx(50.0 * one.time_s)
    # as many operations that do not repeat take the driver through hot and cool parts slowly
    longer = run_swinging(dataclasses.replace(passes, count=50.0 * passes.count), top, 0.95 * asked_w, 0.2)
    assert longer.time_s > 50.0 * one.time_s


def test_gaps_leave_power_for_the_kernels_between_them():
    one = priced_gemms(m=(8192,))
    without = run_phase(passes_of(one, 0.0), A100.clock_max_mhz, 150.0)
    gaps = run_phase(passes_of(one, host_s=3 * without.time_s), A100.clock_max_mhz, 150.0)
    assert gaps.clock_mhz > without.clock_mhz


# Hosts


def test_a_host_pays_for_launches_and_in_eager_mode_for_modules():
    host = HostCoefficients(eager_us=9, compiled_us=6, cuda_graph_us=1, module_us=20)

    def cost(kind_name, mode, launches=1.0):
        return float(host_cost_us(kind_name, np.array([launches]), host, mode)[0])

    assert cost("gemm", "eager") == pytest.approx(9 + 20)
    assert cost("elementwise", "eager") == pytest.approx(9)
    for kind_name in ("gemm", "elementwise"):
        assert cost(kind_name, "compiled") == pytest.approx(6)
        assert cost(kind_name, "cuda_graph") == pytest.approx(1)
        for mode in ("eager", "compiled", "cuda_graph"):
            # Three kernels of one call cost more than one, and no more than three calls.
            assert cost(kind_name, mode) <= cost(kind_name, mode, 3.0) <= 3 * cost(kind_name, mode)


# Rows


def test_taking_and_joining_rows_changes_no_figure():
    one = priced_gemms()
    other = price(op_table("copy", {"elements": [100, 10**8], "dtype": "fp16"}), A100, Conditions())
    together = concatenated([one, other])
    expected = [np.concatenate(pair) for pair in zip(at_clock(one, 900.0), at_clock(other, 900.0), strict=True)]
    for found, wanted in zip(at_clock(together, 900.0), expected, strict=True):
        assert found == pytest.approx(wanted, rel=1e-12)
    backwards = np.arange(len(together))[::-1]
    for found, wanted in zip(at_clock(take(together, backwards), 900.0), expected, strict=True):
        assert found == pytest.approx(wanted[::-1], rel=1e-12)


def test_long_products_are_bound_by_tensor_cores_and_long_copies_by_dram():
    product = price(op_table("gemm", {"m": 16384, "n": 16384, "k": 16384, "dtype": "fp16"}), A100, Conditions())
    assert BOUNDS[int(bound_by(product, 1410.0)[0])] == "tensor core"
    copied = price(op_table("copy", {"elements": 10**9, "dtype": "fp16"}), A100, Conditions())
    assert BOUNDS[int(bound_by(copied, 1410.0)[0])] == "DRAM"
    tiny = price(op_table("copy", {"elements": 8, "dtype": "fp16"}), A100, Conditions())
    assert BOUNDS[int(bound_by(tiny, 1410.0)[0])] == "launches"


@pytest.mark.parametrize("m", [2048, 8192, 32768])
def test_no_product_beats_the_peak_and_no_copy_the_memory(m):
    # A100: 312 TFLOP/s in fp16 and 1,555 GB/s; a copy of n elements of 2 bytes reads and writes 4 n bytes.
    product = price(op_table("gemm", {"m": m, "n": 8192, "k": 8192, "dtype": "fp16"}), A100, Conditions())
    assert at_clock(product, 1410.0)[0][0] > 2 * m * 8192**2 / 312e12
    copied = price(op_table("copy", {"elements": m * 2**16, "dtype": "fp16"}), A100, Conditions(residency="stream"))
    assert at_clock(copied, 1410.0)[0][0] > 0.5 * 4 * m * 2**16 / 1555e9


# Intervals


@given(st.floats(1e-9, 1e9), st.floats(0, 3), st.floats(0, 3))
def test_an_interval_holds_its_value_and_grows_with_the_spread(value, first, second):
    narrow, wide = sorted((first, second))
    inner, outer = bounds(value, narrow), bounds(value, wide)
    assert outer[0] <= inner[0] <= value <= inner[1] <= outer[1]
    assert inner[0] * inner[1] == pytest.approx(value**2)  # symmetric in the logarithm


@given(st.floats(0, 2), st.floats(0, 50), st.floats(0, 50))
def test_an_interval_widens_away_from_the_data_up_to_three_times(spread, first, second):
    near, far = sorted((first, second))
    assert spread <= widened(spread, near) <= widened(spread, far) <= 3 * spread + 1e-12
    assert widened(spread, 0.0) == spread


def test_independent_errors_add_as_squares():
    assert combined(0.3, 0.4) == pytest.approx(0.5)
    assert combined(np.array([0.3, 0.0]), 0.4) == pytest.approx([0.5, 0.4])


def test_errors_within_a_family_go_together_and_those_of_families_do_not():
    assert of_sum([1.0, 1.0], 0.2, np.array([0, 0])) == pytest.approx(0.2)
    assert of_sum([1.0, 1.0], 0.2, np.array([0, 1])) == pytest.approx(0.2 / math.sqrt(2))
    assert of_sum([3.0, 1.0], [0.1, 0.4], np.array([0, 1])) == pytest.approx(math.hypot(0.075, 0.1))
    assert of_sum([0.0, 0.0], 0.2, np.array([0, 1])) == 0.0


@given(st.lists(st.tuples(st.floats(1e-6, 1e6), st.floats(0, 2), st.integers(0, 3)), min_size=1, max_size=20))
def test_a_sum_is_never_less_certain_than_its_least_certain_part(rows):
    parts, widths, family = (np.array(column) for column in zip(*rows, strict=True))
    assert 0 <= of_sum(parts, widths, family) <= widths.max() * (1 + 1e-9)


# What may be asked


@pytest.mark.parametrize(
    "value",
    [True, np.True_, "fast", "", None, [1000], np.array([1.0, 2.0]), 1j, np.complex128(1000), math.nan, math.inf],
)
def test_what_is_no_finite_number_is_refused_in_one_line(value):
    with pytest.raises(InputError, match=r"^clock must be a (finite )?number of MHz, got [^\n]+$"):
        number(value, "clock", "MHz")


def test_clocks_and_limits_are_held_to_their_range():
    assert check_clock_mhz(None, 210, 1410, "A100") == 1410
    assert check_clock_mhz(210, 210, 1410, "A100") == 210
    for clock in (209.9, 1410.1, -1, 0):
        with pytest.raises(InputError, match="outside the range of A100: 210 to 1410 MHz"):
            check_clock_mhz(clock, 210, 1410, "A100")
    assert check_power_limit_w(151, 150, "A100") == 151
    with pytest.raises(InputError, match="not above the idle power of A100, 150 W"):
        check_power_limit_w(150, 150, "A100")
