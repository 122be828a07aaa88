"""Lowering: eager pieces, formats that a GPU lacks, and parallel layouts, by counts derived by hand."""

from __future__ import annotations

import dataclasses
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import joulecast as jc
from joulecast.bounds.dtypes import DTYPES
from joulecast.errors import InputError, UnknownNameError
from joulecast.gpus import gpu_names, load_gpu
from joulecast.kernels.registry import family_of
from joulecast.kernels.work import MATHS, Conditions
from joulecast.lowering.execution import ATTENTIONS, ENGINES, LAUNCH_MODES, Execution
from joulecast.lowering.formats import FALLBACKS, arithmetic, has_format, replace_formats, substitute
from joulecast.lowering.lower import lower
from joulecast.scenarios.inference import predict_workload
from joulecast.workloads.kinds import COLLECTIVES, kind
from joulecast.workloads.table import OpTable, WorkloadBuilder, op_table

A100 = load_gpu("A100-SXM-80GB")
H100 = load_gpu("H100-SXM-80GB")
V100 = load_gpu("V100-SXM-32GB")
T4 = load_gpu("T4")


def one_op(kind_name, *, shard="none", layer="layers.*.block.op", count=1, **columns):
    builder = WorkloadBuilder("one")
    builder.add(kind_name, shard=shard, layer=layer, count=count, **columns)
    return builder.build()


def matmul_flop(tables):
    gemms = [tables[name] for name in ("gemm", "batched_gemm") if name in tables]
    return sum(float((2 * t["batch"] * t["m"] * t["n"] * t["k"] * t["count"]).sum()) for t in gemms)


def ops(tables):
    """How often each operation of the lowered tables runs, by kind and word."""
    found = Counter()
    for name, table in tables.items():
        words = table.words("op") if "op" in table.columns else [""] * len(table)
        for word, count in zip(words, table["count"].tolist(), strict=True):
            found[f"{name} {word}".strip()] += count
    return found


def collectives(tables):
    table = tables.get("nccl")
    if table is None:
        return []
    columns = [table[name].tolist() for name in ("collective", "num_gpus", "message_bytes", "count")]
    return [(COLLECTIVES[code], gpus, size, count) for code, gpus, size, count in zip(*columns, strict=True)]


# Eager pieces


def test_eager_attention_multiplies_as_much_as_fused_attention_without_a_mask():
    # Scores q k^T and their product with v: 2 x 2 x b h q kv d
    whole = one_op("encoder_attention", batch_size=3, seq_len=128, num_heads=12, head_dim=64, attn_dtype="fp16")
    eager = lower(whole, A100, Execution(attention="eager")).tables
    expected = 4 * 3 * 12 * 128 * 128 * 64
    assert matmul_flop(eager) == expected
    fused = family_of("encoder_attention").work(whole.tables["encoder_attention"], A100, Conditions("pytorch"))
    assert fused.useful_flop.sum() == pytest.approx(expected, rel=0.06)  # the softmax may be counted beside


def test_eager_attention_computes_the_masked_half_too():
    whole = one_op(
        "context_attention", batch_size=2, query_len=256, num_heads=8, num_kv_heads=8, head_dim=64, attn_dtype="bf16"
    )
    eager = lower(whole, A100, Execution(attention="eager")).tables
    assert matmul_flop(eager) == 4 * 2 * 8 * 256 * 256 * 64
    fused = family_of("context_attention").work(whole.tables["context_attention"], A100, Conditions("pytorch"))
    # Under a causal mask a query sees (q + 1) / 2 keys on average
    assert fused.useful_flop.sum() == pytest.approx(4 * 2 * 8 * 256 * (257 / 2) * 64, rel=0.08)


def test_eager_attention_copies_out_grouped_heads_and_casts_the_softmax():
    grouped = one_op(
        "context_attention", batch_size=1, query_len=64, num_heads=8, num_kv_heads=2, head_dim=64, attn_dtype="bf16"
    )
    found = ops(lower(grouped, A100, Execution(attention="eager")).tables)
    assert found == Counter(
        {
            "copy": 3,  # keys, values, and the heads laid together
            "batched_gemm": 2,
            "elementwise scale": 1,
            "elementwise mask": 1,
            "row_reduction softmax": 1,
            "elementwise cast": 1,
        }
    )
    plain = one_op("encoder_attention", batch_size=1, seq_len=64, num_heads=8, head_dim=64, attn_dtype="fp32")
    assert ops(lower(plain, A100, Execution(attention="eager")).tables) == Counter(
        {"copy": 1, "batched_gemm": 2, "elementwise scale": 1, "row_reduction softmax": 1}
    )


def test_eager_attention_of_cached_tokens_reads_all_keys():
    step = one_op(
        "generation_attention", batch_size=4, query_len=1, past_len=1023, num_heads=8, head_dim=64, attn_dtype="bf16"
    )
    tables = lower(step, A100, Execution(attention="eager")).tables
    assert tables["row_reduction"]["dim"].tolist() == [1024]
    assert tables["row_reduction"]["rows"].tolist() == [4 * 8 * 1]


@pytest.mark.parametrize(
    ("columns", "half", "single"),
    [
        (
            ("row_reduction", {"op": "rms_norm", "rows": 10, "dim": 64}),
            {"elementwise cast": 2, "elementwise pow": 1, "row_reduction mean": 1, "elementwise add": 1,
             "elementwise other": 1, "elementwise mul": 2},
            {"elementwise pow": 1, "row_reduction mean": 1, "elementwise add": 1, "elementwise other": 1,
             "elementwise mul": 2},
        ),
        (
            ("elementwise", {"op": "rope", "elements": 4096}),
            {"elementwise other": 2, "copy": 2, "elementwise mul": 4, "elementwise add": 2},
            {"elementwise other": 2, "copy": 2, "elementwise mul": 4, "elementwise add": 2},
        ),
        (
            ("elementwise", {"op": "glu", "elements": 4096, "inputs": 2}),
            {"elementwise silu": 1, "elementwise mul": 1},
            {"elementwise silu": 1, "elementwise mul": 1},
        ),
    ],
)  # fmt: skip
def test_eager_frameworks_take_operations_apart(columns, half, single):
    kind_name, given_columns = columns
    for dtype, pieces in (("bf16", half), ("fp32", single)):
        whole = one_op(kind_name, dtype=dtype, count=32, **given_columns)
        eager = ops(lower(whole, A100, Execution()).tables)
        assert eager == Counter({name: 32 * count for name, count in pieces.items()})
        for mode in ("compiled", "cuda_graph"):
            assert sum(ops(lower(whole, A100, Execution(mode)).tables).values()) == 32


def test_pieces_run_where_the_whole_ran():
    builder = WorkloadBuilder("order")
    builder.add("gemm", layer="a", m=4, n=4, k=4, dtype="bf16")
    builder.add("row_reduction", layer="b", op="rms_norm", rows=4, dim=64, dtype="bf16")
    builder.add("gemm", layer="c", m=4, n=4, k=4, dtype="bf16")
    tables = lower(builder.build(), A100, Execution()).tables
    first, last = sorted(tables["gemm"]["order"].tolist())
    between = np.concatenate([tables["elementwise"]["order"], tables["row_reduction"]["order"]])
    assert len(set(between.tolist())) == len(between) == 8
    assert np.all((between > first) & (between < last))


def test_operations_that_never_run_are_left_out():
    builder = WorkloadBuilder("idle")
    builder.begin_pass("prefill")
    builder.add("gemm", m=4, n=4, k=4, dtype="bf16", count=0)
    builder.add("copy", elements=4, dtype="bf16")
    builder.add("nccl", collective="all_reduce", num_gpus=1, message_bytes=8)
    builder.begin_pass("decode", repeats=0)
    builder.add("copy", elements=4, dtype="bf16")
    tables = lower(builder.build(), A100, Execution()).tables
    assert ops(tables) == Counter({"copy": 1})


# Formats


@pytest.mark.parametrize(
    ("gpu", "asked", "found"),
    [
        (A100, "fp8", "w8a16"),
        (A100, "nvfp4", "w4a16"),
        (A100, "bf16", "bf16"),
        (A100, "tf32", "tf32"),
        (H100, "fp8", "fp8"),
        (V100, "bf16", "fp16"),
        (V100, "tf32", "fp32"),
        (T4, "bf16", "fp16"),
        (T4, "int8", "int8"),
        (load_gpu("GTX-1080-TI"), "tf32", "fp32"),
        (load_gpu("B200-SXM-180GB"), "nvfp4", "nvfp4"),
        (load_gpu("L40S"), "fp8", "fp8"),
    ],
)
def test_what_runs_in_place_of_a_format(gpu, asked, found):
    assert substitute(gpu, asked) == found


@pytest.mark.parametrize("name", gpu_names())
def test_a_substitute_is_a_format_that_the_gpu_has(name):
    gpu = load_gpu(name)
    for dtype in DTYPES:
        found = substitute(gpu, dtype.name)
        assert found is None or has_format(gpu, found)
    assert substitute(gpu, "fp16") is not None  # every GPU runs a 16-bit model in some way


def test_no_fallback_leads_back_to_where_it_came_from():
    def reached(name):
        return {name}.union(*(reached(other) for other in FALLBACKS.get(name, ())))

    assert all(name not in reached(other) for name, others in FALLBACKS.items() for other in others)


@pytest.mark.parametrize(
    ("gpu", "dtype", "told"),
    [
        (A100, "fp8", "A100-SXM-80GB has no fp8 arithmetic: priced as w8a16"),
        (V100, "bf16", "V100-SXM-32GB has no bf16 arithmetic: priced as fp16"),
        (T4, "bf16", "T4 has no bf16 arithmetic: priced as fp16"),
    ],
)
def test_a_replaced_format_is_told(gpu, dtype, told):
    lowered = lower(one_op("gemm", m=4, n=4, k=4, dtype=dtype), gpu, Execution())
    assert lowered.notes == (told,)
    assert lowered.tables["gemm"].words("dtype") == [told.split()[-1]]


def test_formats_are_replaced_row_by_row_and_only_where_they_compute():
    table, replaced = replace_formats(op_table("gemm", {"m": 4, "n": 4, "k": 4, "dtype": ["fp8", "bf16", "fp8"]}), A100)
    assert table.words("dtype") == ["w8a16", "bf16", "w8a16"]
    assert replaced == {"fp8": "w8a16"}
    # In memory every GPU has every format: a copy of bf16 on a V100 moves 2 bytes an element.
    copied, replaced = replace_formats(op_table("copy", {"elements": 4, "dtype": "bf16"}), V100)
    assert copied.words("dtype") == ["bf16"]
    assert replaced == {}


def test_attention_computes_in_what_the_gpu_has_and_keeps_its_cache():
    columns = {"batch_size": 1, "num_heads": 8, "head_dim": 64, "attn_dtype": "fp8"}
    table, replaced = replace_formats(op_table("generation_attention", columns), V100)
    assert table.words("attn_dtype") == ["fp16"]
    assert table.words("kv_cache_dtype") == ["fp8"]
    assert replaced == {"fp8": "fp16"}


@pytest.mark.parametrize(
    ("name", "math"),
    [("A100-SXM-80GB", "bf16"), ("T4", "fp16"), ("V100-SXM-32GB", "fp16"), ("GTX-750-TI", "fp32"), ("MI300X", "bf16")],
)
def test_narrow_weights_are_widened_to_what_the_gpu_multiplies(name, math):
    gpu = load_gpu(name)
    for word in ("w8a16", "w4a16"):
        assert arithmetic(gpu, word) == math
        assert substitute(gpu, word) == word
        table = op_table("gemm", {"m": 64, "n": 512, "k": 512, "dtype": word})
        found = family_of("gemm").work(table, gpu, Conditions("pytorch"))
        assert found.reasons == {}
        assert MATHS[found.math[0]] == math


@pytest.mark.parametrize("name", gpu_names())
def test_what_stands_in_for_a_format_can_be_priced(name):
    gpu = load_gpu(name)
    words = [dtype.name for dtype in DTYPES if substitute(gpu, dtype.name) is not None]
    for kind_name, columns in (
        ("gemm", {"m": 64, "n": 512, "k": 512}),
        ("moe", {"num_tokens": 64, "hidden_size": 512, "inter_size": 512, "topk": 2, "num_experts": 8}),
    ):
        table, _ = replace_formats(op_table(kind_name, {**columns, "dtype": words}), gpu)
        assert family_of(kind_name).work(table, gpu, Conditions("pytorch")).reasons == {}


def test_a_format_that_nothing_stands_in_for_is_refused():
    table = op_table("gemm", {"m": 4, "n": 4, "k": 4, "dtype": "fp64"})
    none = dataclasses.replace(A100, tensor_tflops={}, cuda_tflops={"fp32": 19.5})
    with pytest.raises(InputError, match=r"^A100-SXM-80GB can't run fp64, and no other format can stand in for it$"):
        replace_formats(table, none)


# Layouts


def divided(workload, **layout):
    return lower(workload, H100, Execution("cuda_graph", **layout)).tables


def test_column_parallel_products_divide_their_outputs_and_send_nothing():
    tables = divided(one_op("gemm", shard="out", m=32, n=4096, k=1024, dtype="bf16"), tp=4)
    assert (tables["gemm"]["m"][0], tables["gemm"]["n"][0], tables["gemm"]["k"][0]) == (32, 1024, 1024)
    assert collectives(tables) == []


def test_row_parallel_products_divide_their_reduction_and_add_up_the_result():
    tables = divided(one_op("gemm", shard="in", m=32, n=4096, k=1024, dtype="bf16", count=24), tp=4)
    assert (tables["gemm"]["m"][0], tables["gemm"]["n"][0], tables["gemm"]["k"][0]) == (32, 4096, 256)
    assert collectives(tables) == [("all_reduce", 4, 32 * 4096 * 2, 24)]


def test_products_of_low_precision_send_16_bit_results():
    tables = divided(one_op("gemm", shard="in", m=8, n=16, k=64, dtype="fp8"), tp=2)
    assert collectives(tables) == [("all_reduce", 2, 8 * 16 * 2, 1)]


def test_batched_products_send_the_result_of_each():
    tables = divided(one_op("gemm", shard="in", m=8, n=16, k=64, batch=5, dtype="fp32"), tp=2)
    assert collectives(tables) == [("all_reduce", 2, 5 * 8 * 16 * 4, 1)]


def test_convolutions_send_the_pixels_that_they_write():
    # 224 pixels, 7 taps, stride 2, padding 3: (224 + 6 - 7) // 2 + 1 = 112; without padding 109
    for padding, side in ((3, 112), (0, 109)):
        columns = {"batch_size": 2, "in_channels": 64, "out_channels": 32, "height": 224, "kernel_h": 7, "stride": 2}
        tables = divided(one_op("conv2d", shard="in", padding=padding, dtype="fp16", **columns), tp=2)
        assert tables["conv2d"]["in_channels"].tolist() == [32]
        assert collectives(tables) == [("all_reduce", 2, 2 * 32 * side * side * 2, 1)]


def test_whole_operations_run_on_every_gpu():
    tables = divided(one_op("row_reduction", op="layer_norm", rows=32, dim=1024, dtype="bf16"), tp=8)
    assert tables["row_reduction"]["rows"].tolist() == [32]
    assert collectives(tables) == []


def test_heads_are_divided_and_key_value_heads_copied_where_they_are_fewer():
    columns = {"batch_size": 1, "query_len": 64, "num_heads": 32, "num_kv_heads": 4, "head_dim": 128}
    for tp, heads, kv_heads in ((2, 16, 2), (4, 8, 1), (8, 4, 1), (32, 1, 1)):
        table = divided(one_op("context_attention", shard="out", **columns), tp=tp)["context_attention"]
        assert (table["num_heads"][0], table["num_kv_heads"][0]) == (heads, kv_heads)


@pytest.mark.parametrize(("heads", "tp", "nearest"), [(12, 8, 6), (32, 3, 2), (7, 2, 1), (25, 10, 5)])
def test_heads_that_do_not_divide_are_refused_with_the_nearest_degree(heads, tp, nearest):
    whole = one_op("encoder_attention", shard="out", batch_size=1, seq_len=8, num_heads=heads, head_dim=64)
    with pytest.raises(InputError, match=f"^{heads} num_heads .* don't divide by tp={tp}; .* is tp={nearest}$"):
        divided(whole, tp=tp)
    assert divided(whole, tp=nearest)["encoder_attention"]["num_heads"][0] == heads / nearest


def test_experts_are_spread_over_the_tensor_parallel_group():
    columns = {"num_tokens": 64, "hidden_size": 1024, "inter_size": 512, "topk": 2, "num_experts": 16}
    tables = divided(one_op("moe", dtype="bf16", **columns), tp=8, ep=4)
    assert (tables["moe"]["moe_tp_size"][0], tables["moe"]["moe_ep_size"][0]) == (2, 4)
    # each GPU sends 64 / 8 tokens to 2 experts, each divided over 2 GPUs, and gets the results back; then all have all
    routed = 64 / 8 * 2 * 2 * 1024 * 2
    assert sorted(collectives(tables)) == [
        ("all_gather", 8, 64 * 1024 * 2, 1), ("alltoall", 8, routed, 1), ("alltoall", 8, routed, 1)
    ]  # fmt: skip
    assert collectives(divided(one_op("moe", dtype="bf16", **columns), tp=8)) == [("all_reduce", 8, 64 * 1024 * 2, 1)]


def test_every_row_parallel_product_of_a_layer_is_added_up():
    builder = WorkloadBuilder("flat")
    for name in ("o_proj", "down_proj"):
        builder.add("gemm", shard="in", layer=f"layers.0.{name}", m=8, n=64, k=64, dtype="bf16")
    assert collectives(divided(builder.build(), tp=2)) == [("all_reduce", 2, 8 * 64 * 2, 1)] * 2


def test_shared_experts_are_added_up_with_the_routed_ones():
    # DeepSeek-V3: 61 layers of attention, 3 of them with a dense MLP and 58 with experts; width 7168, 8 tokens.
    tables = divided(jc.workload("deepseek-ai/DeepSeek-V3", batch=1, prompt_tokens=8), tp=8)
    reduced = [count for *_, size, count in collectives(tables) if size == 8 * 7168 * 2]
    assert sorted(reduced) == [3, 58, 61]


def test_one_gpu_sends_nothing():
    for workload in (jc.workload("gpt2", batch=1, prompt_tokens=8), jc.workload("mistralai/Mixtral-8x7B-v0.1")):
        assert collectives(lower(workload, H100, Execution()).tables) == []


def test_a_dense_decoder_reduces_twice_a_layer():
    # Llama-3.1-8B: 32 layers, width 4096; attention and MLP each end in one all-reduce of tokens x 4096 x 2 bytes.
    tables = divided(jc.workload("meta-llama/Llama-3.1-8B", batch=2, prompt_tokens=128), tp=4)
    found = [one for one in collectives(tables) if one[0] == "all_reduce" and one[2] == 256 * 4096 * 2]
    assert sum(count for *_, count in found) >= 64
    assert sum(count for *_, count in found) <= 66  # the embedding may be divided by words


def test_pipeline_stages_pass_on_the_activations():
    tables = divided(jc.workload("meta-llama/Llama-3.1-8B", batch=2, prompt_tokens=128), pp=4)
    assert collectives(tables) == [("send_recv", 2, 256 * 4096 * 2, 3)]
    with pytest.raises(InputError, match=r"^pp=33 is more stages than the model has layers \(32\)$"):
        divided(jc.workload("meta-llama/Llama-3.1-8B"), pp=33)


@pytest.mark.parametrize("model", ["meta-llama/Llama-3.1-8B", "gpt2", "bert-large-uncased"])
@pytest.mark.parametrize("tp", [2, 4])
def test_the_products_of_all_gpus_together_are_those_of_the_model(model, tp):
    workload = jc.workload(model, batch=1, prompt_tokens=64)
    whole = matmul_flop(lower(workload, H100, Execution("cuda_graph")).tables)
    each = matmul_flop(divided(workload, tp=tp))
    # What is not divided runs on all; sizes are rounded up to whole columns.
    assert whole * (1 - 1e-12) <= each * tp <= whole * 1.10


# Execution


@given(
    st.sampled_from([*LAUNCH_MODES, "graph", "", None, 3, ["eager"]]),
    st.sampled_from([*ATTENTIONS, "flash", None]),
    st.sampled_from([*ENGINES, "nccl", "TensorRT"]),
    *(st.one_of(st.integers(-3, 5000), st.floats(), st.booleans(), st.text(max_size=3), st.none()) for _ in range(3)),
)
def test_a_way_of_running_is_taken_or_refused_in_one_line(mode, attention, engine, tp, pp, ep):
    try:
        found = Execution(mode, attention, engine, tp, pp, ep)
    except InputError as error:
        refused = str(error)
    else:
        refused = "not refused"
        assert mode in LAUNCH_MODES and attention in ATTENTIONS and engine in ENGINES  # noqa: PT018
        assert found.tp % found.ep == 0
        assert found.gpu_count == found.tp * found.pp
    assert len(refused.splitlines()) == 1


def test_degrees_may_be_numpy_numbers():
    found = Execution(tp=np.int64(4), pp=np.int32(2), ep=np.uint8(2))
    assert (found.tp, found.pp, found.ep, found.gpu_count) == (4, 2, 2, 8)
    assert type(found.tp) is int


def test_unknown_words_bring_the_nearest():
    with pytest.raises(UnknownNameError, match="did you mean cuda_graph"):
        Execution("cuda-graph")
    with pytest.raises(InputError, match=r"^ep=3 must divide tp=4"):
        Execution(tp=4, ep=3)


def test_lowering_leaves_the_workload_as_it_was():
    workload = jc.workload("meta-llama/Llama-3.2-1B", batch=1, prompt_tokens=32, dtype="fp8")
    before = {name: {c: v.copy() for c, v in table.columns.items()} for name, table in workload.tables.items()}
    lower(workload, A100, Execution(attention="eager", tp=2))
    for name, columns in before.items():
        for column, values in columns.items():
            assert np.array_equal(workload.tables[name][column], values), (name, column)


@pytest.mark.parametrize("mode", LAUNCH_MODES)
@pytest.mark.parametrize("attention", ATTENTIONS)
def test_lowered_tables_have_every_column_of_their_kind(mode, attention):
    lowered = lower(jc.workload("Qwen/Qwen3-30B-A3B", generate_tokens=4), A100, Execution(mode, attention, tp=4, pp=2))
    for name, table in lowered.tables.items():
        assert isinstance(table, OpTable)
        assert set(kind(name).names) <= set(table.columns)
        assert len({len(column) for column in table.columns.values()}) == 1
        for column in kind(name).columns:
            if column.type == "size":
                assert np.all(table[column.name] >= column.minimum), (name, column.name)


@pytest.mark.parametrize(
    ("name", "pieces"),
    [
        ("rms_norm", 8),  # cast, square, mean, epsilon, root, scale, cast down, gain
        ("rms_norm_unit", 10),  # the gain is cast and counted from one before it is applied
        ("rms_norm_wide", 8),
        ("rms_norm_late", 8),
    ],
)
def test_ways_to_write_an_rms_norm_differ_in_their_eager_pieces_alone(name, pieces):
    workload, plain = (one_op("row_reduction", op=op, rows=4096, dim=2048, dtype="bf16") for op in (name, "rms_norm"))
    eager = lower(workload, A100, Execution()).tables
    assert sum(len(table) for table in eager.values()) == pieces
    graph = Execution(launch_mode="cuda_graph")
    assert lower(workload, A100, graph).tables["row_reduction"]["rows"].tolist() == [4096]
    times = [predict_workload(one, A100, execution=graph).time_s for one in (workload, plain)]
    assert times[0] == times[1]


def test_a_rotation_of_a_part_of_each_head_turns_that_part_and_lays_all_of_it():
    # queries and keys of 1,024 elements each, a quarter of them rotated: five launches each, and a copy of the whole
    workload = one_op("elementwise", op="rope_partial", elements=2048, flop_per_element=0.75, dtype="bf16")
    tables = lower(workload, A100, Execution()).tables
    assert sorted(tables["copy"]["elements"]) == [256, 256, 1024, 1024]
    assert sorted(tables["elementwise"]["elements"]) == [128, 128] + [256] * 6


def test_grouped_heads_are_copied_out_beside_a_window_and_nowhere_else():
    shape = {"batch_size": 2, "query_len": 128, "num_heads": 8, "num_kv_heads": 2, "head_dim": 64}
    for window, heads, copies in ((0, 2, 0), (64, 8, 2)):
        workload = one_op("context_attention", window_size=window, **shape)
        tables = lower(workload, A100, Execution()).tables
        assert tables["context_attention"]["num_kv_heads"].tolist() == [heads]
        assert (len(tables["copy"]) if "copy" in tables else 0) == copies


def test_tensors_copied_together_are_copied_one_by_one_in_eager_code():
    workload = one_op("copy", elements=1000, parts=2, dtype="bf16")
    eager = lower(workload, A100, Execution()).tables["copy"]
    assert (eager["elements"].tolist(), eager["count"].tolist()) == ([500], [2])
    assert lower(workload, A100, Execution(launch_mode="compiled")).tables["copy"]["elements"].tolist() == [1000]
