"""Scores of published training runs: readers, ratios, curves over clocks, memory."""

from __future__ import annotations

import numpy as np
import pytest

import joulecast as jc
from joulecast.calibration.step_tables import tabulated
from joulecast.calibration.training_runs import TrainingRun
from joulecast.coefficients.training import Scales
from joulecast.coefficients.transfer import power_coefficients
from joulecast.gpus import load_gpu
from joulecast.physics.power import SPIN_W_PER_SM, spinning_power_w
from joulecast.validation.runs import ScoredRun
from joulecast.validation.training import PROTOCOLS, holds_training, training_tables
from joulecast.validation.training_pipelines import (
    Curve,
    _Rank,
    at_clocks,
    at_highest,
    pipeline_s,
    ranks_by_gpu,
    spin_w_per_sm,
    waiting_power_w,
)
from joulecast.validation.training_power import (
    NODE_W,
    _host_and_energy,
    _keras_image,
    score_keras,
    score_memory,
    score_node_power,
)
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


def _rank(rank: int, share: float, power_w: float, clock_mhz: float, plan: int = 0) -> _Rank:
    return _Rank(("perseus", "plan", "frequency", plan), rank, clock_mhz, None, 2.0, 2.0 * power_w, 2.0 * share, 8, 4,
                 rank == 3)  # fmt: skip


def test_power_of_waiting_is_told_by_ranks_that_compute_unlike_shares():
    # 300 W at work and 110 W waiting, in whatever shares
    ranks = [_rank(i, share, 300.0 * share + 110.0 * (1 - share), 1410.0) for i, share in enumerate((0.6, 0.7, 0.9))]
    assert waiting_power_w({"one": ranks}) == pytest.approx(110.0)
    # a model that draws less at work and computes less of the time says nothing else of waiting
    others = [_rank(i, share, 250.0 * share + 110.0 * (1 - share), 1410.0) for i, share in enumerate((0.4, 0.5))]
    assert waiting_power_w({"one": ranks, "other": others}) == pytest.approx(110.0)


def test_what_ships_for_waiting_is_within_a_quarter_of_each_gpu_that_tells_it(data_dir):
    models = ranks_by_gpu(data_dir / "training")
    each = {gpu: spin_w_per_sm(gpu, found) for gpu, found in models.items()}
    assert np.exp(np.mean(np.log(list(each.values())))) == pytest.approx(SPIN_W_PER_SM, rel=0.15)
    for gpu, found in models.items():
        described = load_gpu(gpu)
        told_w = waiting_power_w({name: at_highest(ranks) for name, ranks in found.items()})
        waiting_w = spinning_power_w(described.clock_max_mhz, described, power_coefficients(described))
        assert float(waiting_w) == pytest.approx(told_w, rel=0.25)


def test_highest_plans_are_those_that_hold_no_rank_back():
    ranks = [_rank(rank, 0.8, 250.0, mhz, plan) for plan, clocks in enumerate([(1410.0, 1410.0), (1410.0, 1050.0)])
             for rank, mhz in enumerate(clocks)]  # fmt: skip
    assert at_highest(ranks) == ranks[:2]


def test_a_pipeline_takes_its_slowest_stage_each_micro_batch_and_each_stage_once():
    # Narayanan et al. (2021): m of the slowest, and the others once: 7 x 3 + (1 + 2 + 3) for eight micro-batches
    assert pipeline_s([8.0, 16.0, 24.0], 8) == pytest.approx(7 * 3 + 6)
    # two pipelines of eight stages beside each other take no longer than one
    assert pipeline_s([8.0] * 16, 8) == pytest.approx(7 + 8)


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


def test_host_and_energy_of_nodes_are_told_apart_by_nodes_that_work_and_nodes_that_wait():
    # GPUs of 124 W that do nothing and work of 476 or 176 W: nodes of the expected host, at energies 1.2 as large
    work = np.array([476.0, 176.0, 300.0])
    energies = [float(one) for one in np.geomspace(0.7, 1.6, 19)]
    near = min(energies, key=lambda one: abs(one - 1.2))
    gpu_w = {one: 124.0 + one * work for one in energies}
    node_w = {at: float(NODE_W + 8 * gpu_w[near][at]) for at in (0, 1)}
    host_w, energy = _host_and_energy(node_w, gpu_w)
    assert abs(energies.index(energy) - energies.index(near)) <= 2
    assert host_w + 8 * gpu_w[energy][2] == pytest.approx(NODE_W + 8 * gpu_w[near][2], rel=0.02)


def test_node_power_beats_one_number_for_all_benchmarks_and_falls_with_scale(data_dir):
    scored = score_node_power(data_dir / "training")

    def off(group):
        found = [abs(one.power_w / one.measured_w - 1) for one in scored if one.group == group]
        assert len(found) == 46
        return np.mean(found)

    ours = off("MLPerf, power of a node")
    assert off("MLPerf, repeats about their median") < ours < min(off("MLPerf, other benchmarks' mean"), 0.055)
    by_name = {one.model: one.power_w for one in scored if one.group == "MLPerf, power of a node"}
    assert by_name["resnet, 8 nodes"] < 0.95 * by_name["resnet, 1 nodes"]


def test_an_image_never_comes_faster_than_the_input_and_its_power_is_between_waiting_and_working():
    gpu = "NVIDIA GeForce RTX 3070"
    time_s, busy_w = _keras_image("resnet50", gpu, 0.7, 1e-6, 1.0, 1.0)
    same_s, slow_w = _keras_image("resnet50", gpu, 0.7, 4 * time_s, 1.0, 1.0)
    assert same_s == 4 * time_s
    waiting_w = 2 * jc.load_gpu("rtx-3070").idle_w
    assert slow_w == pytest.approx(0.25 * busy_w + 0.75 * waiting_w)
    assert _keras_image("resnet50", gpu, 0.0, 1e-6, 1.0, 1.0)[0] < 0.5 * time_s


def test_joules_of_keras_images_are_known_from_the_other_machine(data_dir):
    scored = score_keras(data_dir / "training")

    def off(group):
        found = [one for one in scored if one.group == group]
        return np.mean([abs(one.time_s * one.power_w / (one.measured_s * one.measured_w) - 1) for one in found])

    assert off("del Rey, repeats about their median") < off("del Rey, an image") < 0.18
