"""Energies and the learned correction of power are recovered from made-up readings of a GPU that is known."""

import dataclasses

import numpy as np
import pytest

from joulecast.bounds.energies import ACTIVE_SHARE, energy_bounds_pj
from joulecast.calibration.power_fit import LIMIT_SHARE, fit_energies, fit_power, power_rows, throttled
from joulecast.calibration.power_learning import (
    Knowing,
    free_times_s,
    score_power,
    slowed_clock_mhz,
    train_power,
    with_errors,
)
from joulecast.calibration.tables import QUALITIES, Measured, as_written
from joulecast.coefficients import store
from joulecast.coefficients.energies import default_power
from joulecast.gpus import load_gpu
from joulecast.kernels.work import Conditions
from joulecast.physics.power import OPERAND_ENERGY, core_scale, engine_with
from joulecast.physics.price import price
from joulecast.physics.settled import at_clock, under_limit
from joulecast.workloads.table import op_table

H200 = load_gpu("h200")
#: The truth of the made-up readings: no figure is that of the priors.
TRUE = dataclasses.replace(
    default_power(H200), active_w=100.0, tensor_pj={"bf16": 0.45, "fp8": 0.2}, l2_pj=16.0, dram_pj=33.0,
    shared_pj=0.9, limit_share=LIMIT_SHARE, learned_share=1.0,
)  # fmt: skip


def measured(dtype="bf16", rows=1200, limit_w=1e6, operands="random", seed=0, timing="sustained", factor=1.0):
    """Readings of matrix products on a GPU whose energies are `TRUE` times `factor` of each row's n."""
    generator = np.random.default_rng(seed)
    m, n, k = (np.exp(generator.uniform(np.log(low), np.log(16384), rows)).astype(int) for low in (16, 256, 256))
    table = op_table("gemm", {"m": m, "n": n, "k": k, "dtype": dtype})
    conditions = Conditions(engine="vllm", operands=operands)
    priced = price(table, H200, conditions, power=dataclasses.replace(TRUE, learned_share=0.0))
    if callable(factor):
        size = factor(n)
        energy = dataclasses.replace(
            priced.energy, core_j=priced.energy.core_j * size, dram_j=priced.energy.dram_j * size,
            busy=priced.energy.busy * size,
        )  # fmt: skip
        priced = dataclasses.replace(priced, energy=energy)
    settled = under_limit(priced, H200.clock_max_mhz, np.inf if timing == "burst" else limit_w)
    return Measured(
        gpu=H200.name, table=table, time_s=settled.time_s, power_w=settled.power_w, conditions=conditions,
        version="", timing_mode=timing, launch_mode="cuda_graph", operand_init=operands, power_limit_w=limit_w,
        quality=np.full(rows, QUALITIES.index("A")),
    )  # fmt: skip


def test_energies_are_recovered_from_readings():
    fitted, trial = fit_power(rows := power_rows([measured(), measured("fp8", seed=1)], H200), H200)
    assert trial == pytest.approx(rows.power_w, rel=0.03)
    assert fitted["tensor.bf16"] == pytest.approx(0.45, rel=0.15)
    assert fitted["tensor.fp8"] == pytest.approx(0.2, rel=0.2)
    assert fitted["dram"] == pytest.approx(33.0, rel=0.2)


def test_constant_operands_tell_the_same_energies_through_less_power():
    plain, constant = measured(), measured(operands="constant")
    assert np.all(constant.power_w < plain.power_w)
    fitted, _ = fit_power(power_rows([constant], H200), H200)
    assert fitted["tensor.bf16"] == pytest.approx(0.45, rel=0.2)


def test_throttled_rows_say_at_least():
    rows = power_rows([measured(limit_w=450.0)], H200)
    assert 0.1 < rows.at_least.mean() < 0.9
    assert np.median(rows.power_w[rows.at_least]) == pytest.approx(450.0 * LIMIT_SHARE, rel=1e-3)
    fitted, trial = fit_power(rows, H200)
    assert fitted["tensor.bf16"] == pytest.approx(0.45, rel=0.2)
    assert np.all(trial[rows.at_least] <= rows.power_w[rows.at_least] * (1 + 1e-9))


def test_no_energy_leaves_its_bounds_whatever_the_readings():
    batch = measured()
    for wrong in (0.4, 6.0):
        fitted, _ = fit_power(power_rows([dataclasses.replace(batch, power_w=batch.power_w * wrong)], H200), H200)
        for name, value in fitted.items():
            if not name.endswith("_w"):
                low, high = energy_bounds_pj(name, H200.process_nm, H200.dram_type)
                assert low * (1 - 1e-9) <= value <= high * (1 + 1e-9), name


@pytest.mark.parametrize("name", ["H200-SXM-141GB", "B200-SXM-180GB"])
def test_shipped_energies_are_physical(name):
    gpu, power = load_gpu(name), store.load(name).power
    span_w = gpu.power_limit_default_w - gpu.idle_w
    assert ACTIVE_SHARE[0] * span_w * 0.999 <= power.active_w <= ACTIVE_SHARE[1] * span_w * 1.001
    energies = {"sfu": power.sfu_pj, "shared": power.shared_pj, "l2": power.l2_pj, "dram": power.dram_pj}
    energies.update({f"tensor.{math}": power.tensor_pj[math] for math in ("bf16", "fp8")})
    for one, value in energies.items():
        low, high = energy_bounds_pj(one, gpu.process_nm, gpu.dram_type)
        assert low * 0.999 <= value <= high * 1.001, one
    assert power.tensor_pj["fp8"] <= power.tensor_pj["bf16"]
    assert 0.9 < power.limit_share <= 1.0


def test_a_slowdown_tells_the_clock():
    batch = measured(limit_w=400.0)
    priced = price(batch.table, H200, batch.conditions, power=dataclasses.replace(TRUE, learned_share=0.0))
    settled = under_limit(priced, H200.clock_max_mhz, 400.0)
    free_s, _ = at_clock(priced, H200.clock_max_mhz)
    capped = throttled(batch) & (settled.clock_mhz > 0.6 * H200.clock_max_mhz) & (settled.time_s > 1.02 * free_s)
    assert capped.sum() > 20
    found = slowed_clock_mhz(priced, batch, free_s)
    assert found[capped] == pytest.approx(settled.clock_mhz[capped], rel=0.01)


def test_bursts_of_another_version_give_the_time_that_is_not_throttled():
    batch, burst = measured(limit_w=450.0), measured(timing="burst")
    priced = price(batch.table, H200, batch.conditions, power=dataclasses.replace(TRUE, learned_share=0.0))
    other = dataclasses.replace(burst, time_s=burst.time_s * 1.3)  # a slower kernel, the same everywhere
    assert free_times_s(batch, priced, [other]) == pytest.approx(burst.time_s, rel=1e-6)


def test_what_energies_leave_is_learned_and_the_intervals_are_those_of_left_out_shapes():
    def factor(n):
        return 1.25 + 0.2 * np.tanh(np.log(n / 2048))

    batch = measured(rows=3000, factor=factor)
    capped = measured(rows=1500, limit_w=500.0, factor=factor, seed=1)
    knowing = Knowing({H200.name: TRUE})
    model = train_power("gemm", [batch, capped], knowing, fold=0)
    plain = next(score_power("gemm", [batch, capped], knowing, None))
    learned = next(score_power("gemm", [batch, capped], knowing, model))
    assert np.abs(plain.error).mean() > 0.08
    assert np.abs(learned.error).mean() < 0.03
    told = with_errors(TRUE, [learned], H200.name)
    assert told.spread90_of("gemm", "vllm") == learned.spread90 < plain.spread90
    assert told.spread90_of("moe", "vllm") == told.spread90


def test_the_correction_is_deterministic():
    batch = measured(rows=600)
    knowing = Knowing({H200.name: TRUE})
    first, second = (train_power("gemm", [batch], knowing) for _ in range(2))
    assert np.array_equal(first.head, second.head)


def test_energies_of_one_gpu_carry_their_limit_and_no_correction():
    power = fit_energies([measured()], H200)
    assert (power.limit_share, power.learned_share) == (LIMIT_SHARE, 0.0)
    assert power.error < 0.03


def test_operands_that_stay_the_same_take_less_and_never_more():
    assert max(OPERAND_ENERGY.values()) == OPERAND_ENERGY["random"] == 1.0
    assert OPERAND_ENERGY["constant"] < OPERAND_ENERGY["uninitialised"]
    assert OPERAND_ENERGY["kv_cache_uninitialised"] < OPERAND_ENERGY["uninitialised"]


@pytest.mark.parametrize("operands", ["uninitialised", "constant", "kv_cache_uninitialised"])
def test_what_is_not_random_is_priced_below_what_is_and_learned_apart_from_it(operands):
    table = op_table("generation_attention", {"batch_size": 64, "past_len": 8191, "num_heads": 32, "num_kv_heads": 8,
                                              "head_dim": 128})  # fmt: skip
    random, other = (
        price(table, H200, Conditions(engine="vllm", operands=one), power=TRUE, power_corrections={})
        for one in ("random", operands)
    )
    assert other.energy.dram_j == pytest.approx(OPERAND_ENERGY[operands] * random.energy.dram_j)
    assert other.energy.core_j == pytest.approx(OPERAND_ENERGY[operands] * random.energy.core_j)
    assert engine_with("vllm", operands) != engine_with("vllm", "random") == "vllm"


def test_modules_built_without_a_checkpoint_hold_what_nobody_wrote_whatever_their_inputs():
    batch = measured()
    module = op_table(
        "mla_module_generation", {"batch_size": np.full(len(batch), 8), "past_len": 4096, "num_heads": 64}
    )
    built = dataclasses.replace(batch, table=module, conditions=Conditions(engine="trtllm", operands="random"))
    found = as_written(built)
    assert found.operand_init == found.conditions.operands == "kv_cache_uninitialised"
    constant = dataclasses.replace(built, conditions=Conditions(engine="trtllm", operands="constant"))
    others = (batch, constant, dataclasses.replace(built, conditions=Conditions(engine="vllm", operands="random")))
    assert all(as_written(one) is one for one in others)


def test_a_throttled_kernel_settles_where_energies_scale_with_voltage_squared():
    one = price(op_table("gemm", {"m": 8192, "n": 8192, "k": 8192, "dtype": "bf16"}), H200, Conditions(), power=TRUE,
                power_corrections={})  # fmt: skip
    settled = under_limit(one, H200.clock_max_mhz, 400.0)
    clock = float(settled.clock_mhz[0])
    scale = float(core_scale(clock, H200, TRUE))
    drive = scale * clock / H200.rate_clock_mhz
    core_w = (one.energy.core_total_j * scale + one.energy.dram_j) / settled.time_s
    expected = TRUE.idle_w + drive * (TRUE.clocked_w + TRUE.active_w * one.energy.busy) + core_w
    assert settled.power_w == pytest.approx(expected)
    assert settled.power_w == pytest.approx([400.0 * LIMIT_SHARE], rel=1e-3)
