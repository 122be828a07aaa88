"""Attention kernels: work by hand, limits, and how time follows shapes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import joulecast as jc
from joulecast.coefficients.schema import TIME_PARAMETERS, TimeCoefficients
from joulecast.gpus import Gpu, load_gpu, resolve
from joulecast.kernels import flash
from joulecast.kernels.registry import family_of
from joulecast.kernels.work import Conditions, KernelWork
from joulecast.physics.timing import duration_s, module_times
from joulecast.workloads.table import op_table

DEFAULTS = np.array([getattr(TimeCoefficients(), name) for name in TIME_PARAMETERS])
GPUS = ("a100", "h100", "b200", "l40s", "v100", "t4", "p100", "rtx 4090", "mi300x")
LOOP = Conditions()
COLD = Conditions(engine="vllm", residency="stream")
ATTENTION = ("context_attention", "generation_attention", "encoder_attention")
LATENT = (
    "mla_context", "mla_generation", "mla_module_context", "mla_module_generation",
    "dsa_module_context", "dsa_module_generation",
)  # fmt: skip


def gpu_of(name: str) -> Gpu:
    return load_gpu(resolve(name)[0].name)


def work_of(kind: str, gpu: str = "h100", conditions: Conditions = LOOP, **columns: object) -> KernelWork:
    return family_of(kind).work(op_table(kind, columns), gpu_of(gpu), conditions)


def seconds(kind: str, gpu: str = "h100", conditions: Conditions = LOOP, **columns: object) -> np.ndarray:
    found = gpu_of(gpu)
    return duration_s(
        module_times(work_of(kind, gpu, conditions, **columns), found, DEFAULTS), found, found.clock_max_mhz
    )


LLAMA_8B = {"num_heads": 32, "num_kv_heads": 8, "head_dim": 128}


# ---- arithmetic by hand


def test_causal_flop_of_a_grouped_prefill_by_hand():
    # 2 sequences, 32 query heads (8 key heads change nothing), 1000 x 1001 / 2 pairs a head, 4 x 128 FLOP a pair
    work = work_of("context_attention", batch_size=2, query_len=1000, **LLAMA_8B)
    assert work.useful_flop[0] == 2 * 32 * (1000 * 1001 / 2) * 4 * 128


def test_flop_with_cached_tokens_by_hand():
    # 100 new queries after 900: each sees 901 ... 1000 keys, 95,050 pairs
    work = work_of("context_attention", batch_size=1, query_len=100, past_len=900, num_heads=1, head_dim=64)
    assert work.useful_flop[0] == sum(range(901, 1001)) * 4 * 64


def test_window_flop_by_hand():
    # queries 1 ... 128 see 1 ... 128 keys, the other 3968 see 128 each
    work = work_of("context_attention", batch_size=1, query_len=4096, num_heads=1, head_dim=64, window_size=128)
    assert work.useful_flop[0] == (128 * 129 / 2 + (4096 - 128) * 128) * 4 * 64


def test_value_heads_of_another_width_count_their_own_flop():
    work = work_of("context_attention", batch_size=1, query_len=64, num_heads=1, head_dim=192, value_dim=128)
    assert work.useful_flop[0] == 64 * 65 / 2 * 2 * (192 + 128)


def test_encoder_flop_counts_every_pair():
    work = work_of("encoder_attention", batch_size=3, seq_len=577, num_heads=16, head_dim=64)
    assert work.useful_flop[0] == 3 * 16 * 577 * 577 * 4 * 64


def test_latent_attention_flop_by_hand():
    # unfolded: keys of 192, values of 128; absorbed: 576 and 512, every head on the one cache
    unfolded = work_of("mla_context", batch_size=1, query_len=512, num_heads=128)
    assert unfolded.useful_flop[0] == 128 * (512 * 513 / 2) * 2 * (192 + 128)
    absorbed = work_of("mla_generation", batch_size=4, past_len=1023, num_heads=128)
    assert absorbed.useful_flop[0] == 4 * 128 * 1024 * 2 * (576 + 512)


def test_projections_of_a_latent_module_by_hand():
    # DeepSeek-V3 layer, unfolded: 7168 x 2112, 1536 x 128 x 192, 512 x 128 x 256 and 128 x 128 x 7168 weights
    weights = 7168 * 2112 + 1536 * 128 * 192 + 512 * 128 * 256 + 128 * 128 * 7168
    module = work_of("mla_module_context", batch_size=1, query_len=256, num_heads=128)
    kernel = work_of("mla_context", batch_size=1, query_len=256, num_heads=128)
    assert module.useful_flop[0] - kernel.useful_flop[0] == pytest.approx(2 * 256 * weights)


def test_decode_reads_the_weights_of_a_latent_module_once():
    weights = 2 * (7168 * 2112 + 1536 * 128 * 192 + 512 * 128 * 256 + 128 * 128 * 7168)
    module = work_of("mla_module_generation", conditions=COLD, batch_size=1, past_len=1, num_heads=128)
    assert module.dram_bytes[0] == pytest.approx(weights, rel=0.03)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "expected"),
    [(32, 32, 16 * 32 * 8192 * 256 * 2), (32, 8, 16 * 8 * 8192 * 256 * 2), (32, 1, 16 * 8192 * 256 * 2)],
    ids=["one key head a query head", "grouped", "one key head"],
)
def test_decode_bytes_by_hand(heads: int, kv_heads: int, expected: float):
    # batch 16, 8192 keys, keys and values of 128 at 2 bytes; queries and results are under 1 % of that
    work = work_of(
        "generation_attention", conditions=COLD, batch_size=16, past_len=8191, num_heads=heads, num_kv_heads=kv_heads,
        head_dim=128,
    )  # fmt: skip
    assert expected < work.dram_bytes[0] < 1.01 * expected


def test_decode_bytes_of_latent_attention_do_not_depend_on_heads():
    one, many = (
        work_of("mla_generation", conditions=COLD, batch_size=8, past_len=32767, num_heads=h).dram_bytes[0]
        for h in (1, 128)
    )
    assert one == pytest.approx(8 * 32768 * 576 * 2, rel=0.001)
    assert many == pytest.approx(one, rel=0.01)


def test_cache_of_one_byte_halves_the_traffic_of_decoding():
    shape = {"batch_size": 32, "past_len": 16383, **LLAMA_8B}
    wide = work_of("generation_attention", conditions=COLD, kv_cache_dtype="bf16", **shape)
    narrow = work_of("generation_attention", conditions=COLD, kv_cache_dtype="fp8", **shape)
    assert narrow.dram_bytes[0] / wide.dram_bytes[0] == pytest.approx(0.5, abs=0.01)


def test_sparse_attention_reads_no_more_keys_than_it_chose():
    # from 2048 keys on only the indexer's work grows: 64 heads x 128, 2 FLOP a multiply-add
    short, long = (
        work_of("dsa_module_generation", batch_size=1, past_len=n, num_heads=16).useful_flop[0] for n in (4095, 8191)
    )
    assert long - short == 4096 * 64 * 128 * 2


# ---- blocks under a mask


@given(
    n=st.integers(1, 1500), past=st.integers(0, 700), window=st.one_of(st.just(0), st.integers(1, 900)),
    rows=st.sampled_from([64, 128, 256]), columns=st.sampled_from([32, 64]),
)  # fmt: skip
@settings(max_examples=80, deadline=None)
def test_blocks_under_a_mask_agree_with_counting_them(n: int, past: int, window: int, rows: int, columns: int):
    total = longest = 0
    aligned = past % columns == 0 and (window == 0 or (past - window + 1) % columns == 0)
    for first in range(0, n, rows):
        last = min(first + rows, n)
        begin = max(0, past + first - window + 1) if window else 0
        count = -(-(past + last) // columns) - begin // columns
        total, longest = total + count, max(longest, count)
    arrays = (np.array([float(x)]) for x in (n, past, window, rows, columns))
    got, got_longest = flash.causal_blocks(*arrays)
    row_blocks = -(-n // rows)
    # exact where the blocks are aligned; else within a block a row
    assert abs(got[0] - total) <= (1e-9 if aligned and not window else row_blocks)
    assert longest - 1 <= got_longest[0] <= longest + 2


def test_a_causal_mask_halves_the_blocks_of_a_long_prefill():
    causal = work_of("context_attention", batch_size=1, query_len=16384, num_heads=32, head_dim=128)
    full = work_of("encoder_attention", batch_size=1, seq_len=16384, num_heads=32, head_dim=128)
    assert causal.tensor_flop[0] / full.tensor_flop[0] == pytest.approx(0.5, abs=0.01)
    ratio = seconds("context_attention", batch_size=4, query_len=16384, num_heads=32, head_dim=128) / seconds(
        "encoder_attention", batch_size=4, seq_len=16384, num_heads=32, head_dim=128
    )
    assert ratio[0] == pytest.approx(0.5, abs=0.06)


def test_padding_to_tiles_never_loses_work():
    lengths = np.array([1, 17, 64, 65, 127, 128, 129, 1000, 4096])
    for gpu in ("a100", "h100", "b200"):
        work = work_of("context_attention", gpu, batch_size=2, query_len=lengths, num_heads=8, head_dim=96)
        assert (work.tensor_flop >= work.useful_flop).all()


def test_a_window_caps_the_work():
    lengths = np.array([4096, 8192, 16384])
    free, windowed = (
        work_of(
            "context_attention", batch_size=1, query_len=lengths, num_heads=8, head_dim=128, window_size=w
        ).tensor_flop
        for w in (0, 1024)
    )
    assert np.allclose(free[1:] / free[:-1], 4, rtol=0.05)  # with the square of the length
    assert np.allclose(windowed[1:] / windowed[:-1], 2, rtol=0.1)  # with the length
    past = np.array([4095, 131071])
    decode = work_of("generation_attention", batch_size=1, past_len=past, window_size=1024, **LLAMA_8B)
    assert decode.useful_flop[0] == decode.useful_flop[1] == 32 * 1024 * 4 * 128


def test_a_window_wider_than_the_sequence_changes_nothing():
    shape = {"batch_size": 2, "query_len": 2000, **LLAMA_8B}
    none, wide = (work_of("context_attention", window_size=w, **shape) for w in (0, 8192))
    assert none.tensor_flop == wide.tensor_flop
    assert none.cuda_flop == wide.cuda_flop


# ---- how time follows


def test_grouped_heads_decode_faster_than_as_many_key_heads():
    each, grouped = (
        seconds("generation_attention", batch_size=64, past_len=8191, num_heads=32, num_kv_heads=k, head_dim=128)[0]
        for k in (32, 8)
    )
    assert grouped < 0.4 * each


def test_long_cold_decoding_takes_what_dram_gives():
    gpu = gpu_of("h100")
    work = work_of("generation_attention", conditions=COLD, batch_size=64, past_len=32767, **LLAMA_8B)
    time = duration_s(module_times(work, gpu, DEFAULTS), gpu, gpu.clock_max_mhz)
    least = 64 * 8 * 32768 * 256 * 2 / (gpu.dram_gb_s * 1e9)
    assert least < time[0] < 1.6 * least


def test_keys_are_split_where_sequences_do_not_fill_the_gpu():
    alone, crowd = (work_of("generation_attention", "b200", batch_size=b, past_len=32767, **LLAMA_8B) for b in (1, 512))
    assert alone.blocks[0] > 8  # more than its key heads
    assert crowd.blocks[0] == 512 * 8
    assert alone.fill[0] > 0.9


def test_benchmark_loops_find_a_small_cache_in_l2_and_serving_does_not():
    shape = {"batch_size": 8, "past_len": 1023, **LLAMA_8B}  # 32 MiB; an H100 has 50
    loop = work_of("generation_attention", conditions=Conditions("vllm", "loop"), **shape)
    stream = work_of("generation_attention", conditions=COLD, **shape)
    assert loop.dram_bytes[0] < 0.3 * stream.dram_bytes[0]


@pytest.mark.parametrize("kind", ATTENTION)
def test_time_grows_with_the_sequence(kind: str):
    lengths = 2 ** np.arange(8, 16)
    columns = {
        "context_attention": {"query_len": lengths},
        "generation_attention": {"past_len": lengths - 1},
        "encoder_attention": {"seq_len": lengths},
    }[kind]
    for gpu in ("a100", "h100", "b200", "l40s"):
        time = seconds(kind, gpu, batch_size=16, num_heads=16, head_dim=128, **columns)
        assert (time[1:] > 0.97 * time[:-1]).all()
        assert time[-1] > 10 * time[0]


@given(
    kind=st.sampled_from([*ATTENTION, *LATENT]), gpu=st.sampled_from(["a100", "h100", "b200", "l40s"]),
    batch=st.integers(1, 300), length=st.integers(1, 20000), heads=st.sampled_from([1, 3, 8, 32, 128]),
    clock=st.floats(300, 1400),
)  # fmt: skip
@settings(max_examples=80, deadline=None)
def test_a_slower_clock_is_never_faster(kind: str, gpu: str, batch: int, length: int, heads: int, clock: float):
    found = gpu_of(gpu)
    columns: dict[str, object] = {"batch_size": batch, "num_heads": heads}
    columns["seq_len" if kind == "encoder_attention" else "past_len" if "generation" in kind else "query_len"] = length
    if kind in ATTENTION:
        columns["head_dim"] = 128
    times = module_times(family_of(kind).work(op_table(kind, columns), found, Conditions()), found, DEFAULTS)
    slow, fast = duration_s(times, found, clock), duration_s(times, found, clock * 1.2)
    assert np.isfinite(slow).all()
    assert (slow >= fast).all()
    assert (fast > 0).all()


EXTREMES = np.array([1, 2, 1000, 10**6])


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("engine", ["pytorch", "trtllm", "vllm"])
def test_extremes_give_numbers(gpu: str, engine: str):
    conditions = Conditions(engine)
    cases = {
        "context_attention": {"query_len": EXTREMES, "past_len": EXTREMES[::-1], "head_dim": [8, 64, 256, 512],
                              "num_kv_heads": [1, 7, 3, 128], "window_size": [0, 1, 10**6, 5]},
        "generation_attention": {"past_len": EXTREMES, "head_dim": [8, 64, 256, 512], "num_kv_heads": [1, 7, 3, 128],
                                 "window_size": [0, 1, 10**6, 5]},
        "encoder_attention": {"seq_len": EXTREMES, "head_dim": [8, 72, 80, 512], "kv_len": EXTREMES[::-1]},
        **{kind: {"query_len" if "context" in kind else "past_len": EXTREMES} for kind in LATENT},
    }  # fmt: skip
    for kind, columns in cases.items():
        dtypes = {"attn_dtype": "fp16"} if kind in ATTENTION else {"attn_dtype": "fp16", "kv_cache_dtype": "fp16"}
        work = work_of(
            kind, gpu, conditions, batch_size=[1, 4096, 3, 1], num_heads=[1, 7, 96, 128], **columns, **dtypes
        )
        assert len(work.features.T) == len(work.feature_names)
        for name, values in work.__dict__.items():
            if isinstance(values, np.ndarray) and values.dtype.kind == "f":
                assert np.isfinite(values).all(), (kind, name)
                assert name == "features" or (values >= 0).all(), (kind, name)
        assert ((work.fill > 0) & (work.fill <= 1)).all(), kind
        assert (work.serial_dram_bytes <= work.dram_bytes * (1 + 1e-9)).all(), kind
        assert (work.serial_l2_bytes <= work.l2_bytes * (1 + 1e-9)).all(), kind


# ---- formats


def test_fp8_attention_is_refused_where_tensor_cores_lack_it():
    for kind in ("context_attention", "generation_attention"):
        work = work_of(kind, "a100", batch_size=[1, 1], **LLAMA_8B, attn_dtype=["bf16", "fp8"])
        assert set(work.reasons) == {1}
        assert "A100" in work.reasons[1]
        assert "fp8" in work.reasons[1]
    assert work_of("context_attention", "l40s", batch_size=1, **LLAMA_8B, attn_dtype="fp8").reasons == {}


def test_projections_are_refused_in_formats_the_gpu_lacks():
    for gpu, dtype in (("a100", "fp8_block"), ("h100", "nvfp4"), ("v100", "bf16")):
        work = work_of("mla_module_context", gpu, batch_size=1, query_len=64, num_heads=16, gemm_dtype=["fp16", dtype],
                       attn_dtype="fp16", kv_cache_dtype="fp16")  # fmt: skip
        assert set(work.reasons) == {1}
        assert dtype in work.reasons[1]


def test_formats_without_attention_kernels_are_refused():
    assert (
        "int4"
        in work_of("encoder_attention", batch_size=1, seq_len=8, num_heads=1, head_dim=64, attn_dtype="int4").reasons[0]
    )
    assert "bf16" in work_of("context_attention", "v100", batch_size=1, **LLAMA_8B).reasons[0]


def test_groups_tell_formats_and_kernels_apart():
    formats = {"attn_dtype": ["bf16", "bf16", "fp8"], "kv_cache_dtype": ["bf16", "fp8", "fp8"]}
    work = work_of("context_attention", batch_size=1, **LLAMA_8B, **formats)
    assert [work.groups[code] for code in work.group] == ["bf16", "bf16/fp8kv", "fp8"]
    triton = work_of(
        "context_attention", conditions=Conditions("vllm", "loop", "vllm_triton_attn"), batch_size=1, **LLAMA_8B
    )
    assert triton.groups == ("bf16@vllm_triton_attn",)
    single = work_of("generation_attention", batch_size=1, num_heads=[8, 8], num_kv_heads=[8, 2], head_dim=128)
    assert [single.groups[code] for code in single.group] == ["bf16/single", "bf16"]


def test_slow_fp8_kernels_of_ada_form_groups_of_their_own():
    work = work_of("context_attention", "l40s", batch_size=1, num_heads=8, head_dim=[64, 128, 256], attn_dtype="fp8")
    assert [work.groups[code] for code in work.group] == ["fp8/narrow", "fp8", "fp8/wide"]


def test_bf16_attention_with_a_narrow_cache_computes_in_fp8_only_where_kernels_do():
    shape = {"batch_size": 8, "query_len": 8192, "kv_cache_dtype": "fp8", **LLAMA_8B}
    hopper, ada = (work_of("context_attention", gpu, **shape) for gpu in ("h100", "l40s"))
    assert hopper.tensor_flop_per_clk[0] == gpu_of("h100").tensor_flop_per_clk("fp8")
    assert ada.tensor_flop_per_clk[0] == gpu_of("l40s").tensor_flop_per_clk("bf16")


def test_fp32_attention_runs_on_cuda_cores():
    work = work_of(
        "context_attention", "a100", batch_size=1, query_len=512, num_heads=8, head_dim=64, attn_dtype="fp32"
    )
    assert work.tensor_flop[0] == 0
    assert work.cuda_flop[0] > work.useful_flop[0]


# ---- features and what-if changes


def test_absorbing_products_are_batched_over_heads():
    work = work_of("mla_bmm", num_tokens=64, num_heads=128, bmm_stage=["pre", "post"], dtype="bf16")
    assert np.array_equal(work.useful_flop, [2 * 64 * 128 * 128 * 512] * 2)
    assert work.family == "mla_bmm"


def test_more_sms_never_take_longer_for_long_prefill():
    gpu = gpu_of("a100")
    table = op_table("context_attention", {"batch_size": 16, "query_len": 8192, **LLAMA_8B})
    times = []
    for sms in (54, 108, 216):
        other = replace(
            gpu, sm_count=sms, tensor_tflops={k: v * sms / 108 for k, v in gpu.tensor_tflops.items()},
            cuda_tflops={k: v * sms / 108 for k, v in gpu.cuda_tflops.items()},
        )  # fmt: skip
        work = family_of("context_attention").work(table, other, Conditions())
        times.append(duration_s(module_times(work, other, DEFAULTS), other, gpu.clock_max_mhz)[0])
    assert times[0] > times[1] > times[2]
    assert times[0] / times[2] == pytest.approx(4, rel=0.25)


def test_a_row_does_not_depend_on_its_neighbours():
    columns = {"batch_size": [1, 64, 7], "query_len": [5, 4096, 300], "attn_dtype": ["bf16", "fp8", "fp16"]}
    together = work_of("context_attention", **columns, **LLAMA_8B)
    for row in range(3):
        alone = work_of("context_attention", **{name: [values[row]] for name, values in columns.items()}, **LLAMA_8B)
        assert alone.tensor_flop[0] == together.tensor_flop[row]
        assert alone.groups[alone.group[0]] == together.groups[together.group[row]]
        assert np.array_equal(alone.features[0], together.features[row])


def test_tiles_of_few_rows_run_on_amperes_instructions():
    shape = {"batch_size": 8, "query_len": 8192, **LLAMA_8B}
    triton = Conditions("vllm", "loop", "vllm_triton_attn")
    for gpu, share in (("a100", 1.0), ("h100", 0.629), ("b200", 2048 / 8192)):  # their rate over the SM's own
        both = (Conditions("vllm"), triton)
        own, small = (work_of("context_attention", gpu, conditions=one, **shape) for one in both)
        assert small.tensor_flop_per_clk[0] / own.tensor_flop_per_clk[0] == pytest.approx(share, rel=1e-3)


@given(
    queries=st.integers(1, 8192),
    keys=st.integers(1, 8192),
    width=st.sampled_from((32, 64, 128)),
    heads=st.integers(1, 32),
)
def test_attention_on_fewer_keys_than_queries_moves_each_byte_once_at_least(queries, keys, width, heads):
    columns = {"batch_size": 2, "seq_len": queries, "kv_len": keys, "num_heads": heads, "head_dim": width,
               "attn_dtype": "fp16"}  # fmt: skip
    found = jc.predict_kernels("encoder_attention", columns, gpu="a100-sxm-80gb")
    assert np.isfinite(found["time_s"]).all()
    assert (found["time_s"] > 0).all()
    assert np.isfinite(found["energy_j"]).all()
    streamed = jc.predict(
        jc.workload([{"op": "encoder_attention", **columns}]), "a100-sxm-80gb", ignore_memory=True
    ).kernels["dram_bytes"]
    assert (streamed >= 0).all()
