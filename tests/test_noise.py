"""The slowdown under a power limit is scored apart from differences of versions; noise and what carries errors."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from joulecast.calibration.tables import Measured
from joulecast.gpus import load_gpu
from joulecast.kernels.work import Conditions
from joulecast.physics.price import price
from joulecast.physics.settled import at_clock, under_limit
from joulecast.reports import noise as sections
from joulecast.validation.noise import carriers, floors, repeats
from joulecast.validation.read import Batch
from joulecast.validation.slowdown import paired, slowdowns, totals
from joulecast.workloads.table import OpTable, op_table

H200 = load_gpu("H200-SXM-141GB")
LIMIT_W = 730.0


def batch(table: OpTable, time_s, power_w=None, quality=0, timing="sustained", version="1", engine="vllm") -> Measured:
    n = len(table)
    return Measured(
        gpu=H200.name, table=table, time_s=np.asarray(time_s), conditions=Conditions(engine=engine, operands="random"),
        power_w=np.full(n, np.nan) if power_w is None else np.asarray(power_w), version=version, timing_mode=timing,
        launch_mode="cuda_graph", operand_init="random", quality=np.full(n, quality),
        power_limit_w=LIMIT_W if timing == "sustained" else np.nan,
    )  # fmt: skip


def products() -> OpTable:
    # large ones at the limit, and ones bound by memory that nothing slows down
    m = np.concatenate([np.linspace(4096, 12288, 40), np.ones(40)]).round()
    k = np.concatenate([np.full(40, 8192), np.linspace(120000, 200000, 40).round()])
    return op_table("gemm", {"m": m, "n": 16384, "k": k, "dtype": "bf16"})


@pytest.fixture(scope="module")
def truth():
    table = products()
    model = price(table, H200, Conditions(engine="vllm", operands="random"))
    held, _ = at_clock(model, H200.clock_max_mhz)
    return table, held, under_limit(model, H200.clock_max_mhz, LIMIT_W)


def test_what_the_model_says_of_itself_has_no_error_whatever_the_versions_differ_by(truth):
    table, held, settled = truth
    assert settled.throttled[:40].all()
    bursts = batch(table, held / 1.3, timing="burst", version="2")  # a version that is 30 % faster throughout
    (pair,) = paired([bursts, batch(table, settled.time_s, settled.power_w)])
    (found,) = slowdowns([pair])
    assert found["offset"] == pytest.approx(1.3, rel=0.01)
    assert (found["rows"], found["same"]) == (40, True)
    assert found["error"] == pytest.approx(0.0, abs=1e-6)
    assert found["measured"] == pytest.approx(float((settled.time_s / held)[:40].mean() - 1), rel=1e-6)


def test_a_slowdown_that_is_twice_as_large_is_an_error_of_as_many_points(truth):
    table, held, settled = truth
    slower = held * (1 + 2 * (settled.time_s / held - 1))
    (found,) = slowdowns(paired([batch(table, held, timing="burst"), batch(table, slower, settled.power_w)]))
    assert found["error"] == pytest.approx(found["predicted"], rel=1e-6)
    assert totals([found])[0]["error"] == found["error"]


def test_rows_without_a_burst_of_their_shape_are_left_out(truth):
    table, held, settled = truth
    half = np.arange(0, 80, 2)
    (pair,) = paired([batch(table, held, timing="burst").take(half), batch(table, settled.time_s, settled.power_w)])
    assert len(pair.rows) == len(pair.burst_s) == 40


def test_bursts_of_the_same_engine_are_preferred(truth):
    table, held, settled = truth
    own, other = (batch(table, held, timing="burst", engine=one) for one in ("vllm", "trtllm"))
    loaded = batch(table, settled.time_s, settled.power_w)
    assert paired([other, own, loaded])[0].against == "vllm 1"
    assert paired([other, loaded])[0].against == "trtllm 1"


def test_messages_of_as_many_bytes_are_repeats_whatever_their_format():
    size = np.repeat(2.0 ** np.arange(10, 40), 2)
    columns = {"collective": "all_gather", "num_gpus": 8, "message_bytes": size, "dtype": ["fp16", "int8"] * 30}
    rows = replace(batch(op_table("nccl", columns), np.tile([1.0, 1.1], 30), timing="burst"), launch_mode="eager")
    (found,) = repeats([Batch(rows, "aiconfigurator", 60)])
    # two readings that differ by 10 % lie 4.8 % from their mean, times the root of two for there being two
    assert found["time"] == pytest.approx(0.05 / 1.05 * np.sqrt(2), rel=1e-6)
    assert floors([found]) == {"NCCL": found["time"]}


def test_two_power_laws_are_repeats_and_even_routing_is_none():
    tokens = np.repeat(np.arange(1, 41) * 64, 3)
    columns = {"num_tokens": tokens, "hidden_size": 4096, "inter_size": 1024, "topk": 8, "num_experts": 128,
               "dtype": "bf16", "distribution": ["balanced", "power_law_1.01", "power_law_1.2"] * 40}  # fmt: skip
    rows = batch(op_table("moe", columns), np.tile([5.0, 1.0, 1.0], 40), timing="burst")
    (found,) = repeats([Batch(rows, "aiconfigurator", 120)])
    assert (found["rows"], found["time"]) == (80, 0.0)


def test_the_rows_that_carry_an_error_are_named():
    n = 1000
    predicted = np.full(n, 1.02)
    predicted[:10] = 6.0
    rows = pl.DataFrame({"predicted_s": predicted, "measured_s": np.ones(n)}).with_columns(
        protocol=pl.lit("shapes"), kind=pl.lit("moe"), source=pl.lit("aiconfigurator"), launch=pl.lit("graph"),
        gpu=pl.lit("H200-SXM-141GB"), engine=pl.lit("trtllm"), timing=pl.lit("burst"),
        group=pl.Series(["bf16"] * 10 + ["fp8"] * (n - 10)),
    )  # fmt: skip
    (found,) = carriers(rows)
    assert found["without"] == pytest.approx(0.02)
    assert found["share"] == pytest.approx(50 / (50 + 0.02 * 990))
    assert found["what"] == ["H200-SXM-141GB", "trtllm", "bf16", "burst"]
    assert found["what_share"] == pytest.approx(1.0)
    assert "H200-SXM-141GB, trtllm, bf16, burst" in sections.carriers([found])[-1]
    assert sections.carriers([]) == sections.slowdown({}) == sections.repeats([]) == []
