"""`predict_kernels`: columns in and out, rows alike whatever they are called with, refusals of what is no kernel."""

from __future__ import annotations

import math
import tracemalloc

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import joulecast as jc
from joulecast.bounds.dtypes import DTYPES
from joulecast.errors import InputError, UnknownNameError
from joulecast.kernels.registry import families
from joulecast.scenarios.kernels import CHUNK, SETTINGS
from joulecast.workloads.kinds import KINDS

COLUMNS = (
    "time_s", "time_s_lower", "time_s_upper", "power_w", "power_w_lower", "power_w_upper",
    "energy_j", "energy_j_lower", "energy_j_upper", "clock_mhz", "bound_by", "provenance", "note",
)  # fmt: skip
NUMBERS = COLUMNS[:10]
GEMM = {"m": 64, "n": 4096, "k": 4096, "dtype": "bf16"}


def gemms(gpu="h100", options=(), **columns):
    return jc.predict_kernels("gemm", {**GEMM, **columns}, gpu, **dict(options))


def same(one, other):
    """Whether two tables hold the same figures (to rounding of single precision) and texts."""
    for name in COLUMNS:
        if name in NUMBERS:
            assert one[name] == pytest.approx(other[name], rel=1e-5, nan_ok=True)
        else:
            assert one[name].tolist() == other[name].tolist()


# What comes out


def test_columns_out_and_their_order():
    table = gemms(m=[1, 2, 3])
    assert table.names == tuple(table) == tuple(table.keys()) == tuple(dict(table))
    assert set(table.names) == set(COLUMNS)
    assert len(table) == 3
    assert all(len(table[name]) == 3 for name in table)
    with pytest.raises(UnknownNameError, match="time_s"):
        table["times_s"]


def test_rows_come_out_in_the_order_they_went_in():
    m = np.array([4096, 1, 70, 16, 2048, 3])
    table = gemms(m=m)
    for row, one in enumerate(m):
        assert table["time_s"][row] == pytest.approx(gemms(m=int(one))["time_s"][0], rel=1e-5)


def test_data_frames_hold_the_same_figures():
    table = gemms(m=[1, 64], dtype=["bf16", "fp8"])
    frame = table.to_polars()
    assert frame.columns == list(table)
    assert frame["time_s"].to_list() == table["time_s"].tolist()
    assert frame["bound_by"].to_list() == table["bound_by"].tolist()


def test_data_frames_are_taken_in():
    frame = pl.DataFrame({"m": [1, 64], "n": [4096, 4096], "k": [4096, 4096], "dtype": ["bf16", "bf16"]})
    same(jc.predict_kernels("gemm", frame, "h100"), gemms(m=[1, 64]))


def test_pandas_is_asked_for_where_it_is_missing():
    try:
        import pandas as pd
    except ImportError:
        with pytest.raises(jc.JoulecastError, match=r"pip install 'joulecast\[pandas\]'"):
            gemms().to_pandas()
    else:
        assert isinstance(gemms().to_pandas(), pd.DataFrame)


@pytest.mark.parametrize("gpu", ["a100", "h100", "t4", "mi300x"])
def test_energy_is_power_times_time_and_intervals_hold_their_figures(gpu):
    table = jc.predict_kernels("gemm", {"m": [1, 64, 1000, 8192], "n": 8192, "k": 8192, "dtype": "fp16"}, gpu)
    assert table["energy_j"] == pytest.approx(table["time_s"] * table["power_w"])
    for name in ("time_s", "power_w", "energy_j"):
        assert np.all(table[f"{name}_lower"] > 0)
        assert np.all(table[f"{name}_lower"] <= table[name])
        assert np.all(table[name] <= table[f"{name}_upper"])
    assert {str(word) for word in table["provenance"]} <= {"measured", "fitted", "transferred", "spec sheet"}


# What goes in


def test_scalars_sequences_and_arrays_broadcast():
    expected = gemms(m=[1, 2, 3], n=[4096] * 3, k=[4096] * 3, dtype=["bf16"] * 3)
    for columns in (
        {"m": (1, 2, 3)},
        {"m": np.array([1, 2, 3], dtype=np.uint8), "n": np.float32(4096), "k": [4096]},
        {"m": np.array([1.0, 2.0, 3.0]), "dtype": np.array(["bf16"] * 3)},
        {"m": pl.Series([1, 2, 3]), "dtype": pl.Series(["bf16"] * 3)},
        {"m": [1, 2, 3], "batch": [None, 1, None]},
    ):
        same(gemms(**columns), expected)


@pytest.mark.parametrize(
    ("name", "alias"),
    [("bf16", "bfloat16"), ("fp16", "half"), ("fp16", "torch.float16"), ("fp32", "float"), ("fp8", "e4m3"),
     ("w8a8", "sq"), ("fp8", "FP8_E4M3FN"), ("w4a16", "int4_wo")],
)  # fmt: skip
def test_formats_go_by_all_their_names(name, alias):
    same(gemms(dtype=[alias, name]), gemms(dtype=[name, name]))


def test_rows_of_unlike_formats_are_what_each_is_alone():
    words = ["bf16", "fp8", "fp16", "w4a16", "fp32"]
    together = gemms(dtype=words)
    for row, word in enumerate(words):
        assert together["time_s"][row] == pytest.approx(gemms(dtype=word)["time_s"][0], rel=1e-5)


def test_defaults_are_what_is_said():
    same(
        gemms(m=[1, 2]),
        gemms(m=[1, 2], framework="trtllm", launch_mode="cuda_graph", timing_mode="sustained", operand_init="random",
              power_limit_w=jc.load_gpu("h100").power_limit_default_w, kernel_source="", batch=1),
    )  # fmt: skip


def test_settings_may_be_one_a_row():
    table = gemms(
        m=[8192] * 4, n=8192, k=8192,
        framework=["trtllm", "vllm", None, "pytorch"],
        timing_mode=["sustained", "burst", "burst", "sustained"],
        power_limit_w=[400, 400, 400, 300],
    )  # fmt: skip
    for row, (framework, mode, limit) in enumerate(
        [("trtllm", "sustained", 400), ("vllm", "burst", 400), ("trtllm", "burst", 400), ("pytorch", "sustained", 300)]
    ):
        alone = gemms(m=8192, n=8192, k=8192, framework=framework, timing_mode=mode, power_limit_w=limit)
        for name in NUMBERS:
            assert table[name][row] == pytest.approx(alone[name][0], rel=1e-5), (name, row)


def test_a_limit_given_as_an_argument_wins_over_the_column():
    large = {"m": [8192, 8192], "n": 8192, "k": 8192}
    found = gemms(**large, power_limit_w=[700, 600], options={"power_limit_w": 300})
    same(found, gemms(**large, power_limit_w=300))
    assert np.all(found["power_w"] <= 300)
    assert gemms(**large, power_limit_w=[None, 300])["clock_mhz"][0] > found["clock_mhz"][0]


# Limits and clocks


@pytest.mark.parametrize("gpu", ["a100", "t4", "h100", "l40s"])
def test_sustained_runs_keep_the_limit_and_bursts_are_never_slower(gpu):
    columns = {"m": [1, 128, 2048, 16384], "n": 8192, "k": 8192, "dtype": "fp16"}
    limit = jc.load_gpu(gpu).power_limit_default_w * 0.8
    sustained, burst = (
        jc.predict_kernels("gemm", {**columns, "timing_mode": mode}, gpu, power_limit_w=limit)
        for mode in ("sustained", "burst")
    )
    kept = sustained["note"] == ""
    assert kept.any()
    assert np.array_equal(sustained["power_w"] <= limit, kept)
    assert np.all(burst["time_s"] <= sustained["time_s"] * (1 + 1e-9))
    assert np.all(burst["clock_mhz"] == jc.load_gpu(gpu).clock_max_mhz)
    throttled = sustained["clock_mhz"] < burst["clock_mhz"]
    assert np.array_equal(throttled, [", cap" in word for word in sustained["bound_by"]])
    # a board holds its mean a little under the limit, and throttles from there on
    assert np.all(burst["power_w"][throttled] > 0.98 * limit)
    # what throttled GPUs were read at, on average over their boards' control
    assert np.all(sustained["power_w"][throttled & kept] > 0.98 * limit)


def test_a_limit_that_the_lowest_clock_exceeds_is_told_in_the_note():
    idle = jc.load_gpu("h100").idle_w
    table = gemms(m=[16384], n=16384, k=16384, power_limit_w=idle + 0.5)
    assert table["power_w"][0] > idle + 0.5
    assert table["note"][0] == "the power limit is exceeded even at the lowest clock"
    assert gemms(m=[16384], n=16384, k=16384)["note"][0] == ""


def test_a_slower_clock_is_never_faster():
    columns = {"m": [1, 64, 4096], "timing_mode": "burst"}
    times = [gemms(**columns, options={"clock_mhz": clock})["time_s"] for clock in (400, 900, 1400, 1980)]
    assert np.all(np.diff(times, axis=0) <= 0)


def test_no_product_beats_the_peak():
    # H100 SXM: 989.4 TFLOP/s in bf16, 1,979 in fp8
    for dtype, peak in (("bf16", 989.4e12), ("fp8", 1978.9e12)):
        for m in (512, 4096, 16384):
            assert gemms(m=m, n=16384, k=16384, dtype=dtype)["time_s"][0] > 2 * m * 16384**2 / peak


# Rows that can't run


def test_a_row_that_cannot_run_is_nan_with_its_reason_and_leaves_the_others():
    table = gemms("a100", m=[8, 8, 8], dtype=["bf16", "fp8", "bf16"])
    for name in NUMBERS:
        assert np.array_equal(np.isnan(table[name]), [False, True, False])
    assert table["note"][1].startswith("A100-SXM-80GB has no fp8")
    assert table["note"].tolist()[::2] == ["", ""]
    assert (table["bound_by"][1], table["provenance"][1]) == ("", "")
    assert table["time_s"][0] == pytest.approx(gemms("a100", m=8)["time_s"][0])


@pytest.mark.parametrize("start", [0, CHUNK - 2, CHUNK - 1])
def test_reasons_stand_in_their_rows_wherever_chunks_end(start):
    words = np.full(CHUNK + 2, "bf16", dtype=object)
    words[start : start + 3] = "fp8"
    table = gemms("a100", m=8, dtype=words)
    assert np.array_equal(np.isnan(table["time_s"]), words == "fp8")
    assert np.array_equal(table["note"] != "", words == "fp8")


# Many rows


@pytest.mark.parametrize("n", [CHUNK - 1, CHUNK, CHUNK + 1])
def test_rows_are_alike_whatever_chunk_they_are_in(n):
    m = 1 + np.arange(n) % 97
    table = gemms(m=m)
    few = gemms(m=np.arange(1, 98))
    for name in NUMBERS:
        assert table[name] == pytest.approx(few[name][m - 1], rel=1e-5)
    assert table["bound_by"].tolist() == few["bound_by"][m - 1].tolist()


def test_settings_that_alternate_do_not_mix_rows():
    n = 1001
    modes = np.where(np.arange(n) % 3 == 0, "burst", "sustained")
    m = 1 + np.arange(n)
    table = gemms(m=m, n=16384, k=16384, timing_mode=modes)
    for mode in ("burst", "sustained"):
        alone = gemms(m=m[modes == mode], n=16384, k=16384, timing_mode=mode)
        assert table["time_s"][modes == mode] == pytest.approx(alone["time_s"], rel=1e-5)


def test_a_hundred_thousand_distinct_rows_take_bounded_memory():
    m = np.arange(1, 100_001)
    gemms(m=m[:10])
    tracemalloc.start()
    table = gemms(m=m, options={"power_limit_w": 300})
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # 13 columns out and 5 in of 8 bytes a row are 14 MB of it; the rest is one chunk.
    assert peak < 250e6
    assert np.all(np.isfinite(table["time_s"]))


def test_no_rows_give_no_rows():
    for columns in ({"m": []}, {"m": np.array([]), "dtype": []}, {"m": [], "framework": [], "power_limit_w": []}):
        table = gemms(**columns)
        assert len(table) == 0
        assert set(table.names) == set(COLUMNS)
        assert table.to_polars().height == 0


# Refusals


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ({"m": [1, 2], "n": [1, 2, 3]}, "column m of gemm has 2 rows where 3 are expected"),
        ({"m": [1, 2, 3], "framework": ["vllm", "vllm"]}, "column framework has 2 rows where 3 are expected"),
        ({"m": [1, 2, 3], "power_limit_w": [300, 300]}, "column power_limit_w has 2 rows where 3 are expected"),
        ({"m": [], "n": [1, 2]}, "column m of gemm has 0 rows where 2 are expected"),
        ({"m": 0}, "m of gemm must be between 1 and .*, got 0 in row 0"),
        ({"m": [4, -3]}, "got -3 in row 1"),
        ({"m": [4, 4, math.nan]}, "got nan in row 2"),
        ({"k": math.inf}, "k of gemm must be between 1 and .*, got inf"),
        ({"m": 2**81}, "m of gemm must be between"),
        ({"m": 10**400}, "column m of gemm must hold numbers"),
        ({"m": 2.5}, "m of gemm must be a whole number, got 2.5 in row 0"),
        ({"m": "many"}, "column m of gemm must hold numbers, got many"),
        ({"m": ["4", "x"]}, "column m of gemm must hold numbers"),
        ({"m": {}}, "column m of gemm must hold numbers"),
        ({"m": 1j}, "column m of gemm must hold numbers"),
        ({"m": np.array([1 + 1j])}, "column m of gemm must hold numbers"),
        ({"m": np.array(["2020-01-01"], dtype="datetime64[D]")}, "column m of gemm must hold numbers"),
        ({"m": [[1, 2], [3, 4]]}, "column m must hold one value a row"),
        ({"m": [[1, 2], [3]]}, "column m must hold one value a row"),
        ({"m": np.ones((3, 1))}, "column m must hold one value a row"),
        ({"dtype": [["bf16"]]}, "column dtype must hold one value a row"),
        ({"m": [1, 2], "framework": [["vllm"], None]}, "column framework must hold one value a row"),
        ({"dtype": "bf17"}, "unknown dtype 'bf17': did you mean bf16"),
        ({"dtype": ["bf16", "fp9"]}, "unknown dtype 'fp9'"),
        ({"dtype": None}, "gemm needs a column dtype"),
        ({"m": None}, "gemm needs a column m"),
        ({"m": [1, None, 3]}, "gemm needs its m in every row: row 1 has none"),
        ({"m": [1, 2], "dtype": ["bf16", None]}, "in every row: row 1 has none"),
        ({"dtpye": "bf16"}, "unknown column of gemm 'dtpye': did you mean dtype"),
        ({"latency": 3.0}, "unknown column of gemm 'latency'"),
        ({5: 3.0}, "unknown column of gemm '5'"),
        ({"framework": "tensorrt"}, "unknown framework 'tensorrt'"),
        ({"timing_mode": "fast"}, "unknown timing_mode 'fast': known: burst, sustained"),
        ({"launch_mode": "graph"}, "unknown launch_mode 'graph'"),
        ({"operand_init": 3}, "unknown operand_init '3'"),
        ({"power_limit_w": "low"}, "power limit must be a number of W, got 'low'"),
        ({"power_limit_w": ["low"]}, "column power_limit_w must hold numbers of W"),
        ({"power_limit_w": math.nan}, "power limit must be a finite number of W"),
        ({"m": [1, 2], "power_limit_w": [300, math.inf]}, "power limit must be a finite number of W"),
        ({"m": [1, 2], "power_limit_w": [300, 3]}, "power limit of 3 W is not above the idle power of H100"),
    ],
)
def test_what_is_no_kernel_is_refused_in_one_line(columns, told):
    with pytest.raises(InputError, match=told) as refused:
        jc.predict_kernels("gemm", {**GEMM, **columns}, "h100")
    assert len(str(refused.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"op": "gem"}, "unknown operation 'gem': did you mean gemm"),
        ({"op": None}, "unknown operation 'None'"),
        ({"op": ["gemm"]}, "unknown operation"),
        ({"columns": [1, 2]}, "columns of gemm must be a mapping"),
        ({"columns": None}, "columns of gemm must be a mapping"),
        ({"columns": {}}, "gemm needs a column m"),
        ({"columns": pl.LazyFrame(GEMM)}, "collect\\(\\) the lazy frame"),
        ({"gpu": "h1000"}, "unknown GPU 'h1000'"),
        ({"clock_mhz": 5000}, "clock of 5000 MHz is outside the range"),
        ({"clock_mhz": [1000, 1200]}, "clock must be a number of MHz"),
        ({"power_limit_w": "x"}, "power limit must be a number of W"),
        ({"power_limit_w": [300, 400]}, "power limit must be a number of W"),
        ({"power_limit_w": math.inf}, "power limit must be a finite number"),
    ],
)
def test_arguments_that_cannot_be_used_are_refused_in_one_line(arguments, told):
    with pytest.raises(InputError, match=told) as refused:
        jc.predict_kernels(**{"op": "gemm", "columns": GEMM, "gpu": "h100", **arguments})
    assert len(str(refused.value).splitlines()) == 1


def test_extra_columns_are_passed_over_only_if_asked():
    extra = {"m": [1, 2], "latency_ms": [0.1, 0.2], "power": [100, 200], "version": "1.0", "weird": [[1], [2, 3]]}
    with pytest.raises(UnknownNameError, match="latency_ms"):
        gemms(**extra)
    same(gemms(**extra, options={"ignore_extra": True}), gemms(m=[1, 2]))


def test_the_largest_sizes_are_answered_with_finite_figures():
    for size in (2**60, 2**80):
        table = jc.predict_kernels("gemm", {"m": size, "n": size, "k": size, "dtype": "bf16"}, "h100")
        for name in NUMBERS:
            assert np.all(np.isfinite(table[name])), name
        # 2 FLOP a multiply-add at no more than 989.4 TFLOP/s
        assert table["time_s"][0] > 2 * float(size) ** 3 / 989.4e12


# All operations


def smallest(described, size=16):
    """Columns that an operation needs, of a given size."""
    words = {"dtype": "fp16", "choice": None, "size": size, "real": size}
    needed = {}
    for column in described.columns:
        if column.default is None or (column.type == "dtype" and column.default in ("bf16", "fp8")):
            needed[column.name] = column.choices[0] if column.type == "choice" else words[column.type]
    return needed


SERVED = sorted(set(KINDS) & set(families()))


@pytest.mark.parametrize("op", SERVED)
@pytest.mark.parametrize("gpu", ["h100", "a100", "v100", "b200"])
def test_every_operation_has_figures_or_a_reason_on_every_gpu(op, gpu):
    columns = smallest(KINDS[op])
    many = {**columns, **{name: [value, 4 * value] for name, value in columns.items() if isinstance(value, int)}}
    try:
        table = jc.predict_kernels(op, many, gpu)
    except InputError as error:  # sizes that contradict each other
        assert len(str(error).splitlines()) == 1  # noqa: PT017
        return
    for row in range(2):
        figures = np.array([table[name][row] for name in NUMBERS])
        if table["note"][row]:
            assert np.all(np.isnan(figures)) or "limit" in table["note"][row]
        else:
            assert np.all(np.isfinite(figures))
            assert np.all(figures > 0)


def test_an_exchange_of_one_gpu_with_itself_takes_no_time_and_no_energy():
    columns = {"collective": "all_reduce", "num_gpus": [1, 2], "message_bytes": 2**20}
    table = jc.predict_kernels("nccl", columns, "h100")
    assert (table["time_s"][0], table["energy_j"][0]) == (0, 0)
    assert 0 < table["power_w"][0] < 700
    assert table["bound_by"][0] == "launches"
    assert table["time_s"][1] > 2**20 / 450e9  # NVLink 4: 450 GB/s each way


words = st.one_of(
    st.integers(-2, 2**62), st.floats(), st.text(max_size=3), st.none(), st.booleans(),
    st.sampled_from([dtype.name for dtype in DTYPES]), st.lists(st.integers(1, 10**6), max_size=3),
    st.lists(st.one_of(st.none(), st.floats(), st.text(max_size=2)), max_size=3),
    st.sampled_from(["vllm", "burst", "eager", "causal_conv1d_fn", "pre", "softmax", "all_reduce", "context"]),
)  # fmt: skip


@given(st.data(), st.sampled_from([*SERVED, "gemm"]))
@settings(max_examples=250)
def test_whatever_is_asked_is_answered_or_refused_as_input(data, op):
    names = [*KINDS[op].names, *SETTINGS, "power_limit_w", "surprise"]
    columns = {
        **smallest(KINDS[op]),
        **data.draw(st.dictionaries(st.sampled_from(names), words, max_size=4)),
    }
    try:
        table = jc.predict_kernels(op, columns, "a100", ignore_extra=data.draw(st.booleans()))
    except InputError as error:
        refused = str(error)
    else:
        refused = "not refused"
        lengths = {len(table[name]) for name in table}
        assert len(lengths) == 1
        answered = np.array([not note or "limit" in note for note in table["note"]], dtype=bool)
        assert np.all(np.isfinite(table["time_s"][answered]))
        assert np.all(np.isnan(table["time_s"][~answered]))
    assert len(refused.splitlines()) == 1


def test_random_shapes_keep_the_laws_row_by_row():
    random = np.random.default_rng(0)
    m, n, k = (np.floor(2 ** random.uniform(0, 15, 400)) for _ in range(3))
    table = jc.predict_kernels("gemm", {"m": m, "n": n, "k": k, "dtype": "bf16"}, "a100")
    gpu = jc.load_gpu("a100")
    assert np.all(table["time_s"] > 2 * m * n * k / 312e12)
    assert np.all(table["power_w"] <= gpu.power_limit_default_w)
    assert np.all(table["power_w"] > 0.5 * gpu.idle_w)
    assert np.all((gpu.clock_min_mhz <= table["clock_mhz"]) & (table["clock_mhz"] <= gpu.clock_max_mhz))
    rows = [0, 17, 399]
    for row in rows:
        alone = jc.predict_kernels("gemm", {"m": m[row], "n": n[row], "k": k[row], "dtype": "bf16"}, "a100")
        for name in NUMBERS:
            assert alone[name][0] == pytest.approx(table[name][row], rel=1e-5)


def test_rows_that_are_alike_are_evaluated_once_and_told_in_their_own_order() -> None:
    few = {"m": np.array([1, 7, 512, 4096]), "n": 4096, "k": np.array([64, 4096, 128, 8192]), "dtype": "bf16"}
    pick = np.random.default_rng(0).integers(0, 4, 6000)
    once = jc.predict_kernels("gemm", few, "h100")
    often = jc.predict_kernels("gemm", {**few, "m": few["m"][pick], "k": few["k"][pick]}, "h100")
    for name in once.names:
        np.testing.assert_array_equal(often[name], once[name][pick])
