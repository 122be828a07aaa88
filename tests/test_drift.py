"""What a sweep's times gain from first to last row is found, and nothing is found where there is nothing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulecast.calibration.drift import drift_s
from joulecast.calibration.tables import read_kernel_tables


def sweep(rows=3000, gained_s=0.0, seed=0, ordered=False):
    """Times of random work on a GPU of 5 TFLOP/s that gets slower by `gained_s` over the sweep."""
    generator = np.random.default_rng(seed)
    work = 10.0 ** generator.uniform(7, 11, rows)
    work = np.sort(work) if ordered else work
    own_s = (5e-5 + work / 5e12) * np.exp(0.1 * generator.standard_normal(rows))
    return own_s + gained_s * np.arange(rows) / (rows - 1), work


@settings(max_examples=20, deadline=None)
@given(gained_ms=st.floats(0.1, 1.0), seed=st.integers(0, 99))
def test_a_drift_is_found_to_a_tenth(gained_ms, seed):
    time_s, work = sweep(gained_s=gained_ms * 1e-3, seed=seed)
    assert drift_s(time_s, work)[-300:].max() == pytest.approx(gained_ms * 1e-3, rel=0.1)


@pytest.mark.parametrize(
    "times",
    [sweep(), sweep(ordered=True), sweep(gained_s=1e-3, rows=200), (np.zeros(0), np.zeros(0))],
    ids=["steady", "ordered by size", "few rows", "empty"],
)
def test_nothing_is_found_where_nothing_drifts_or_nothing_tells(times):
    assert not drift_s(*times).any()


def test_a_row_keeps_some_of_its_time():
    time_s, work = sweep(gained_s=1e-3)
    time_s[-1] = 1e-5  # one that the drift spared
    assert (time_s - drift_s(time_s, work) > 0).all()


def test_convolutions_are_read_without_the_drift_of_their_sweep(data_dir):
    # as published, small ones among the last third take 0.2 to 0.6 ms more than those among the first
    for batch in read_kernel_tables(data_dir, ("conv2d",)):
        columns = batch.table.columns
        names = ("batch_size", "in_channels", "out_channels", "height", "height")
        multiplies = np.prod([columns[name] for name in names], axis=0)
        small = np.flatnonzero(multiplies <= np.quantile(multiplies, 0.1))
        first, last = small[: len(small) // 3], small[-len(small) // 3 :]
        assert np.median(batch.time_s[last]) - np.median(batch.time_s[first]) < 0.15e-3
