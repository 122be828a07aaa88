"""Scores of published training runs: readers, ratios, curves over clocks, memory."""

from __future__ import annotations

import numpy as np
import pytest

import joulecast as jc
from joulecast.calibration.step_tables import tabulated
from joulecast.calibration.training_runs import TrainingRun
from joulecast.coefficients.training import Scales
from joulecast.validation.runs import ScoredRun
from joulecast.validation.training import PROTOCOLS, holds_training, training_tables
from joulecast.validation.training_pipelines import Curve, at_clocks
from joulecast.validation.training_power import score_memory
from joulecast.validation.training_tables import SOURCES

CURVE = Curve(*(np.array(one) for one in ([500.0, 1000.0, 2000.0], [4.0, 2.0, 1.0], [50.0, 100.0, 400.0],
                                          [20.0, 30.0, 60.0])))  # fmt: skip


def test_a_curve_gives_time_over_that_at_the_top_and_the_clock_of_a_limit():
    assert CURVE.at_clock(1000.0) == (2.0, 100.0, 30.0)
    assert CURVE.at_clock(5000.0)[0] == 1.0
    assert CURVE.at_limit(100.0) == pytest.approx(1000.0)
    # halfway in logarithms between 100 and 400 W lies 200 W, and 1,414 MHz
    assert CURVE.at_limit(200.0) == pytest.approx(1000.0 * 2**0.5)


def test_steps_at_lower_clocks_are_those_of_train():
    options = {"micro_batch": 32, "sequence_tokens": 512, "precision": "bf16"}
    tables, _ = tabulated([TrainingRun("gpt2", "a100-sxm-40gb", options, 1.0, 1.0, "gpt2")])
    low = at_clocks(tables, np.array([1000.0]))
    assert low.clock_mhz[0, -1] == 1000.0
    run = jc.train("gpt2", "a100-sxm-40gb", **options, clock_mhz=1000, scales=Scales())
    busy = (low.class_s[0, -1].sum(axis=-1) * low.repeats[0]).sum()
    assert busy == pytest.approx(sum(run.parts_s[name] for name in ("forward", "backward", "optimizer")), rel=0.05)


@pytest.mark.parametrize("name", list(SOURCES))
def test_every_published_row_is_a_job_that_can_be_asked_for(data_dir, name):
    runs = list(SOURCES[name](data_dir / "training"))
    assert len(runs) > 40
    assert len({PROTOCOLS[name][0](run) for run in runs}) > 1
    _, refused = tabulated(runs[:: max(len(runs) // 6, 1)])
    assert not refused
    assert all(run.step_time_s > 0 for run in runs)


def test_tables_tell_ratios_and_memory_apart(data_dir):
    assert holds_training(data_dir) == data_dir / "training"
    nan = float("nan")
    scored = [
        ScoredRun("set", "net", "gpu", 1.1, nan, 1.0, nan),
        ScoredRun("timm, largest batch", "net", "gpu", 128.0, nan, 256.0, nan),
        ScoredRun("timm, largest batch", "net", "gpu", 256.0, nan, 256.0, nan),
        ScoredRun("timm, largest batch", "net", "gpu", 64.0, nan, 256.0, nan),
    ]
    tables = training_tables(scored)
    assert [row["group"] for row in tables["groups"]] == ["set"]
    assert tables["groups"][0]["time"]["mean"] == pytest.approx(0.1)
    assert (tables["memory"]["right"], tables["memory"]["within_one"]) == pytest.approx((1 / 3, 2 / 3))


def test_the_largest_batch_that_fits_is_right_or_off_by_one_halving(data_dir):
    found = score_memory(data_dir / "training")
    off = np.log2([one.time_s / one.measured_s for one in found])
    assert len(found) > 30
    assert (np.abs(off) <= 1).mean() >= 0.9
    assert (off == 0).mean() >= 0.7
