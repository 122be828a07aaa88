"""Intervals: nine of ten unseen rows inside, wider the less is known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import joulecast as jc
from joulecast.calibration.conformal import conformal_quantile, equal_weights, weighted_quantile
from joulecast.calibration.corrections import family_kinds
from joulecast.calibration.interval_fit import (
    blended_curve,
    covered,
    hull_growth,
    size_factors,
    transfer_curve,
    transfer_widths,
)
from joulecast.calibration.kernels import pools_of
from joulecast.calibration.left_out import Residuals, without_shapes
from joulecast.calibration.tables import read_kernel_tables
from joulecast.coefficients import places, store
from joulecast.coefficients.intervals import (
    SIZE_KNOTS_S,
    UNLIKE_KNOTS,
    FamilyIntervals,
    Intervals,
    dump_intervals,
    load_intervals,
    read_intervals,
)
from joulecast.errors import InputError
from joulecast.gpus import load_gpu
from joulecast.kernels.work import Conditions
from joulecast.physics.price import price
from joulecast.physics.settled import half_widths, under_limit
from joulecast.physics.uncertainty import by_size, widened
from joulecast.workloads.table import op_table

rising = st.lists(st.floats(0.01, 2), min_size=5, max_size=5).map(lambda some: tuple(sorted(some)))


def made_up(rows, width, *, seed=0, gpu="A", key="gemm/vllm/bf16", unlike=0.0, spread90=0.1, distance=0.0, size_s=None):
    """Residuals whose half-width for nine of ten is `width`, one a row or one for all."""
    generator = np.random.default_rng(seed)
    size = np.exp(generator.uniform(np.log(2e-6), np.log(2e-2), rows)) if size_s is None else size_s
    misses = generator.normal(0, 1, rows) * width / 1.645
    return Residuals("gemm", gpu, key, misses, size, np.full(rows, distance), spread90, unlike, itself=False)


# Quantiles


@given(st.lists(st.floats(0, 10), min_size=1, max_size=60), st.floats(0.5, 0.95))
def test_at_least_the_level_of_the_scores_lies_below_the_quantile(scores, level):
    found = conformal_quantile(scores, level)
    assert np.mean(np.array(scores) <= found) >= level


def test_a_further_row_is_held_with_the_level_however_few_there_are():
    generator = np.random.default_rng(0)
    for n in (9, 19, 50):  # of ranks that are whole
        draws = np.abs(generator.standard_t(3, (20_000, n + 1)))
        inside = [one[-1] <= conformal_quantile(one[:-1]) for one in draws[:4000]]
        assert np.mean(inside) == pytest.approx(np.ceil((n + 1) * 0.9 - 1e-9) / (n + 1), abs=0.02)


def test_labels_count_the_same_however_many_rows_they_have():
    labels = ["many"] * 900 + ["few"] * 10
    scores = np.concatenate([np.zeros(900), np.ones(10)])
    assert weighted_quantile(scores, equal_weights(labels), 0.6) == 1.0
    assert weighted_quantile(scores, np.ones(910), 0.6) == 0.0


# Factors from residuals


def test_size_factors_hold_nine_of_ten_where_short_kernels_vary_more():
    size = np.exp(np.random.default_rng(1).uniform(np.log(2e-6), np.log(2e-2), 6000))
    width = 0.1 * np.where(size < 3e-5, 2.0, 0.7)
    learn = [made_up(6000, width, seed=2, size_s=size)]
    test = [made_up(6000, width, seed=3, size_s=size)]
    factors = size_factors(learn)
    assert factors[0] > 1.5 > 1.0 > factors[-1]
    inside = covered(test, FamilyIntervals(size=factors))
    assert inside.mean() == pytest.approx(0.9, abs=0.015)
    for part in (size < 1e-5, size > 1e-3):
        assert inside[part].mean() == pytest.approx(0.9, abs=0.05)


def test_few_rows_leave_the_factor_of_their_size_near_one():
    few = [made_up(2000, 0.1, size_s=np.full(2000, 1e-3)), made_up(3, 0.5, size_s=np.full(3, 3e-6))]
    assert size_factors(few)[0] < 1.5


def test_growth_outside_the_data_is_what_left_out_extremes_ask_for():
    inside = made_up(400, 0.1, seed=1)
    for growth in (1.0, 3.0):
        far = made_up(800, 0.1 * (1 + growth * np.tanh(2.0)), seed=2, distance=2.0)
        found = hull_growth([inside, far])
        assert found == pytest.approx(growth, rel=0.25)
        hit = covered([far], FamilyIntervals(hull=found))
        assert hit.mean() == pytest.approx(0.9, abs=0.05)
    assert hull_growth([]) == FamilyIntervals().hull


def test_transfer_widths_hold_nine_of_ten_on_gpus_that_count_the_same():
    def rows(gpu, unlike, width, seed):
        return made_up(500, width, gpu=gpu, unlike=unlike, seed=seed, spread90=0.05)

    moved = [rows(f"{unlike}{i}", unlike, 0.1 + 0.1 * unlike, i) for unlike in (0.0, 1.0, 2.0) for i in range(8)]
    family = FamilyIntervals()
    curve = transfer_curve({"gemm": moved}, {"gemm": family})
    assert list(curve) == sorted(curve)
    factor, added = transfer_widths(moved, family, curve)
    family = replace(family, transfer=factor, transfer_added=added)
    assert covered(moved, family, curve).mean() == pytest.approx(0.9, abs=0.03)
    other = [rows("new", 1.0, 0.2, 99)]
    assert 0.8 <= covered(other, family, curve).mean() <= 0.97


def test_what_a_family_lacks_is_added_and_not_multiplied():
    """GPUs at hand that miss by 0.5 say nothing of some that are farther away than that they miss by so much, too."""
    curve = (0.1, 0.3, 0.4, 0.5, 0.7)
    near = [made_up(500, 0.5, gpu=f"near{i}", unlike=0.03, spread90=0.05, seed=i) for i in range(4)]
    factor, added = transfer_widths(near, FamilyIntervals(), curve)
    assert factor <= 1.0
    assert added == pytest.approx(0.5, abs=0.06)
    family = FamilyIntervals(transfer=factor, transfer_added=added)
    assert Intervals(transfer=curve, families={"gemm": family}).moved("gemm", 2.0) < 0.75
    assert covered(near, family, curve).mean() == pytest.approx(0.9, abs=0.03)
    close = [made_up(500, 0.06, gpu=f"close{i}", unlike=1.0, spread90=0.01, seed=i) for i in range(4)]
    assert transfer_widths(close, FamilyIntervals(), curve)[0] < 1.0
    grows = [made_up(500, 0.1 + 0.4 * far, gpu=f"{far}", unlike=far, spread90=0.05, seed=1) for far in (0.0, 1.0, 1.2)]
    factor, added = transfer_widths(grows, FamilyIntervals(), curve)
    assert factor > 1.0
    assert added < 0.2


def test_without_measurements_the_curve_is_the_typical_one():
    typical = Intervals().transfer
    assert blended_curve([], [], typical) == pytest.approx(typical)


# What predictions make of them


@given(st.floats(0, 6), st.floats(0, 6), st.floats(0, 2), st.floats(0, 1))
def test_transfer_never_narrows_and_widens_with_unlikeness(one, other, factor, added):
    near, far = sorted((one, other))
    known = Intervals(families={"gemm": FamilyIntervals(transfer=factor, transfer_added=added)})
    widths = [known.moved("gemm", unlike) for unlike in (near, far)]
    assert added <= widths[0] + 1e-12 <= widths[1] + 2e-12


@given(st.floats(0.01, 1), st.floats(0, 5), st.floats(0, 5), st.floats(0, 6))
def test_intervals_widen_with_the_distance_from_the_data(spread, one, other, growth):
    near, far = sorted((one, other))
    assert spread <= widened(spread, near, growth) <= widened(spread, far, growth) <= (1 + growth) * spread + 1e-9


@given(st.lists(st.floats(0.3, 3), min_size=5, max_size=5), st.floats(1e-7, 1.0))
def test_size_factors_are_interpolated_between_their_knots(factors, time_s):
    found = float(by_size(time_s, SIZE_KNOTS_S, factors))
    assert min(factors) - 1e-9 <= found <= max(factors) + 1e-9
    for knot, factor in zip(SIZE_KNOTS_S, factors, strict=True):
        assert by_size(knot, SIZE_KNOTS_S, factors) == pytest.approx(factor)


def priced(shape, gpu="B200-SXM-180GB", **options):
    return price(op_table("gemm", {**shape, "dtype": "bf16"}), load_gpu(gpu), Conditions("trtllm", "loop"), **options)


def test_an_unmeasured_gpu_has_wider_intervals():
    shape = {"m": [16, 512, 8192], "n": 4096, "k": 4096}
    own = priced(shape)
    boards = tuple(name for name in store.known() if name.startswith("B200"))
    assert (priced(shape, exclude=boards).time_spread > own.time_spread).all()
    assert (priced(shape, exclude=boards).power_spread > own.power_spread).all()


def test_a_power_surely_at_the_limit_is_known_better_than_one_that_may_lie_under_it():
    found = priced({"m": [8192], "n": 8192, "k": 8192})
    free = under_limit(found, 1965.0, np.inf)
    free_w = float(free.power_w[0])
    widths = [float(half_widths(found, under_limit(found, 1965.0, share * free_w))[1][0]) for share in (0.98, 0.6, 0.4)]
    assert float(half_widths(found, free)[1][0]) >= widths[0] >= widths[1] >= widths[2] > 0


def test_every_figure_lies_in_its_interval():
    generator = np.random.default_rng(0)
    shape = {name: generator.integers(1, 9000, 200) for name in ("m", "n", "k")}
    for gpu in ("b200", "l4", "v100-sxm-32gb"):
        found = jc.predict_kernels("gemm", {**shape, "dtype": "fp16"}, gpu)
        for name in ("time_s", "power_w", "energy_j"):
            assert (found[f"{name}_lower"] <= found[name]).all()
            assert (found[name] <= found[f"{name}_upper"]).all()
            assert (found[f"{name}_lower"] > 0).all()


# The file


@given(rising, st.lists(st.floats(0.4, 3), min_size=5, max_size=5), st.floats(0, 5), st.integers(0, 10**6))
def test_what_is_written_is_read_again(tmp_path_factory, curve, size, factor, rows):
    family = FamilyIntervals(size=tuple(size), transfer=factor, rows=rows)
    given_ = Intervals(source='a "test"\\', transfer=curve, families={"gemm": family})
    path = tmp_path_factory.mktemp("widths") / places.INTERVALS
    path.write_text(dump_intervals(given_))
    found = read_intervals(path)
    assert found.source == given_.source
    assert found.transfer == pytest.approx(curve, rel=1e-3)
    assert found.families["gemm"].size == pytest.approx(size, rel=1e-3)
    assert found.families["gemm"].rows == rows
    assert dump_intervals(found) == path.read_text()


def test_a_missing_file_is_refused():
    with pytest.raises(InputError, match="can't read"):
        read_intervals(Path("none.toml"))


def test_the_shipped_widths_are_of_every_family_with_measured_kernels():
    known = load_intervals()
    assert list(known.transfer) == sorted(known.transfer)
    assert len(known.transfer) == len(UNLIKE_KNOTS)
    assert 0 < known.model < 0.5
    measured = {key.split("/")[0] for name in store.shipped() for key, one in store.load(name).time.items() if one.rows}
    assert {"gemm", "moe", "context_attention"} <= measured & set(known.families)


# On measurements


def test_left_out_shapes_are_held_by_nine_of_ten_intervals(data_dir):
    batches = list(read_kernel_tables(data_dir, family_kinds()["quantize"]))
    few = [batch.take(np.arange(0, len(batch), max(len(batch) // 600, 1))) for batch in batches]
    learn, test = without_shapes(list(pools_of(few)))
    assert sum(one.log_ratio.size for one in test) > 300
    hit = covered(test, FamilyIntervals(size=size_factors(learn)))
    assert 0.85 <= hit.mean() <= 0.95
