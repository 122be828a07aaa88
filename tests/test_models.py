"""Models by name and by config: parameters and FLOP as published, caches, layers, passes, and damaged configs."""

from __future__ import annotations

import collections
import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulecast.errors import InputError, UnknownNameError
from joulecast.workloads.catalogue import catalogue, entry, from_name
from joulecast.workloads.counting import attended_pairs, flop_of, macs
from joulecast.workloads.huggingface import from_config, from_file, read_config
from joulecast.workloads.kinds import KINDS
from joulecast.workloads.models import model_types
from joulecast.workloads.models.net import decode_steps
from joulecast.workloads.request import Request
from joulecast.workloads.sources import open_workload
from joulecast.workloads.table import SHARDS, Workload, op_table

# Tensors of the checkpoints on the Hugging Face hub, or of the class named; torchvision's table for VGG.
PARAMETERS = {
    "bert-base-uncased": 109_482_240,
    "bert-large-uncased": 335_141_888,
    "distilbert-base-uncased": 66_362_880,
    "roberta-base": 124_645_632,
    "roberta-large": 355_359_744,
    "xlm-roberta-base": 278_043_648,
    "albert-base-v2": 11_683_584,
    "albert-xxlarge-v2": 222_595_584,
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-xl": 1_557_611_200,
    "distilgpt2": 81_912_576,
    "opt-125m": 125_239_296,
    "opt-350m": 331_196_416,
    "opt-1.3b": 1_315_758_080,
    "opt-6.7b": 6_658_473_984,
    "bloom-560m": 559_214_592,
    "bloom-3b": 3_002_557_440,
    "bloom-7b1": 7_069_016_064,
    "gpt-j-6b": 6_050_882_784,
    "gpt-neox-20b": 20_554_567_680,
    "pythia-1.4b": 1_414_647_808,
    "falcon-7b": 6_921_720_704,
    "mpt-7b": 6_649_286_656,
    "starcoder2-3b": 3_030_371_328,
    "starcoder2-15b": 15_957_889_024,
    "stablelm-2-1.6b": 1_644_515_328,
    "meta-llama/Llama-2-7b-hf": 6_738_415_616,
    "meta-llama/Llama-2-13b-hf": 13_015_864_320,
    "meta-llama/Llama-2-70b-hf": 68_976_648_192,
    "meta-llama/Llama-3.1-8B": 8_030_261_248,
    "meta-llama/Llama-3.1-70B": 70_553_706_496,
    "meta-llama/Llama-3.2-1B": 1_235_814_400,
    "meta-llama/Llama-3.2-3B": 3_212_749_824,
    "tinyllama-1.1b": 1_100_048_384,
    "mistralai/Mistral-7B-v0.1": 7_241_732_096,
    "mistralai/Mistral-7B-v0.3": 7_248_023_552,
    "mistralai/Mixtral-8x7B-v0.1": 46_702_792_704,
    "mistralai/Mixtral-8x22B-v0.1": 140_620_634_112,
    "Qwen/Qwen2-0.5B": 494_032_768,
    "Qwen/Qwen2-1.5B": 1_543_714_304,
    "Qwen/Qwen2.5-7B": 7_615_616_512,
    "Qwen/Qwen2.5-72B": 72_706_203_648,
    "Qwen/Qwen3-8B": 8_190_735_360,
    "Qwen/Qwen3-30B-A3B": 30_532_122_624,
    "Qwen/Qwen3-235B-A22B": 235_093_634_560,
    "google/gemma-2b": 2_506_172_416,
    "google/gemma-2-9b": 9_241_705_984,
    "google/gemma-2-27b": 27_227_128_320,
    "google/gemma-3-1b-it": 999_885_952,
    "google/gemma-3-4b-it": 4_300_079_472,
    "google/gemma-3-27b-it": 27_432_406_640,
    "phi-2": 2_779_683_840,
    "phi-3-mini": 3_821_079_552,
    "phi-3-medium": 13_960_238_080,
    "phi-4": 14_659_507_200,
    "phi-4-mini": 3_836_021_760,
    "deepseek-v2-lite": 15_706_484_224,
    "deepseek-v3": 671_026_419_200,
    "openai/gpt-oss-20b": 20_914_757_184,
    "openai/gpt-oss-120b": 116_829_156_672,
    "t5-small": 60_506_624,
    "t5-base": 222_903_552,
    "flan-t5-base": 247_577_856,
    "flan-t5-large": 783_150_080,
    "whisper-tiny": 37_760_640,
    "whisper-large-v2": 1_543_304_960,
    "whisper-large-v3": 1_543_490_560,
    "whisper-large-v3-turbo": 808_878_080,
    "google/vit-base-patch16-224": 86_567_656,
    "google/vit-large-patch16-224": 304_326_632,
    "clip-vit-b-32": 151_277_313,
    "clip-vit-l-14": 427_616_513,
    "resnet-18": 11_689_512,
    "resnet-50": 25_557_032,
    "resnet-101": 44_549_160,
    "resnet-152": 60_192_808,
    "vgg16": 138_357_544,
    "convnext-tiny": 28_589_128,
    "convnext-base": 88_591_464,
    "mobilevit-small": 5_578_632,
}

# torchvision's table of models (it counts multiply-adds, as these do).
GIGA_MACS = {
    "resnet-18": 1.814,
    "resnet-50": 4.089,
    "resnet-101": 7.801,
    "resnet-152": 11.514,
    "vgg16": 15.470,
    "google/vit-base-patch16-224": 17.564,
    "google/vit-large-patch16-224": 61.555,
    "convnext-tiny": 4.456,
    "convnext-base": 15.355,
}


def rows(workload: Workload, kind: str, layer: str = "", phase: str | None = None) -> list[dict[str, Any]]:
    """Rows of one kind whose layer path holds `layer`, as mappings."""
    table = workload.tables[kind]
    found = []
    for index in range(len(table)):
        row = {name: table[name][index] for name in table.columns}
        path = workload.layers[int(row["layer"])]
        if layer in path and phase in (None, workload.passes[int(row["pass_id"])].phase):
            found.append({**row, "path": path})
    return found


@pytest.mark.parametrize(("name", "published"), PARAMETERS.items())
def test_parameters_are_the_published_ones(name: str, published: int):
    assert from_name(name).parameters == published


@pytest.mark.parametrize(("name", "published"), GIGA_MACS.items())
def test_multiply_adds_of_vision_models_are_the_published_ones(name: str, published: float):
    assert round(macs(from_name(name)) / 1e9, 3) == published


def test_bert_large_forward_flop_count_matches_the_hand_derivation():
    # 24 layers x (12 h^2 + 2 s h) multiply-adds a token, h = 1024, s = 512, batch 1; 2 FLOP each
    expected = 2 * 24 * 512 * (12 * 1024**2 + 2 * 512 * 1024)
    assert from_name("bert-large-uncased", prompt_tokens=512).flop("matmul") == expected


def test_llama_prefill_is_two_flop_a_weight_and_token_and_causal_attention():
    # Weights that multiply: all but the embedding and the 65 norms; all positions are scored.
    weights = 8_030_261_248 - 128_256 * 4096 - 65 * 4096
    pairs = 1000 * 1001 // 2
    attention = 32 * 32 * 4 * 128 * pairs
    workload = from_name("llama-3.1-8b", batch=3, prompt_tokens=1000, logits="all")
    assert workload.flop("matmul") == 3 * (2 * weights * 1000 + attention)
    assert workload.flop("context_attention", causal="full") == 3 * 32 * 32 * 4 * 128 * 1000 * 1000
    last = from_name("llama-3.1-8b", batch=3, prompt_tokens=1000)
    assert workload.flop("gemm") - last.flop("gemm") == 3 * 2 * 999 * 4096 * 128_256


@pytest.mark.parametrize(
    ("name", "billions"),
    # Active parameters as the authors give them (embedding included): 12.9, 3.3, 22, 37, 5.1, 3.6, 2.4 billion.
    [
        ("mixtral-8x7b", 12.9),
        ("qwen3-30b-a3b", 3.3),
        ("qwen3-235b-a22b", 22.0),
        ("deepseek-v3", 37.0),
        ("gpt-oss-120b", 5.1),
        ("gpt-oss-20b", 3.6),
        ("deepseek-v2-lite", 2.4),
    ],
)
def test_a_token_of_a_mixture_of_experts_multiplies_by_its_active_weights(name: str, billions: float):
    assert macs(from_name(name, prompt_tokens=1)) / 1e9 == pytest.approx(billions, rel=0.09)


@pytest.mark.parametrize(
    ("name", "bytes_a_token"),
    # 2 (key, value) x key-value heads x head width x layers x 2 B
    [
        ("llama-3.1-8b", 2 * 8 * 128 * 32 * 2),
        ("llama-2-7b", 2 * 32 * 128 * 32 * 2),
        ("falcon-7b", 2 * 1 * 64 * 32 * 2),
        ("gemma-2b", 2 * 1 * 256 * 18 * 2),
        ("deepseek-v3", (512 + 64) * 61 * 2),  # latent and rotated key, in place of 128 heads
        ("gpt2", 2 * 12 * 64 * 12 * 2),
    ],
)
def test_cache_bytes_of_a_token(name: str, bytes_a_token: int):
    workload = from_name(name, batch=3, prompt_tokens=100, generate_tokens=28)
    assert workload.info["kv_bytes_per_token"] == bytes_a_token
    assert workload.memory.kv_cache_bytes == 3 * 128 * bytes_a_token
    half = from_name(name, batch=3, prompt_tokens=100, generate_tokens=28, kv_cache_dtype="fp8")
    assert half.memory.kv_cache_bytes == workload.memory.kv_cache_bytes / 2


def test_windows_bound_the_cache_and_the_attention_of_their_layers_alone():
    mistral = from_name("mistralai/Mistral-7B-v0.1", prompt_tokens=10_000)
    assert mistral.memory.kv_cache_bytes == 4096 * 2 * 8 * 128 * 32 * 2
    gemma = from_name("gemma-3-1b", prompt_tokens=8192)  # 26 layers, every sixth sees all: 4
    assert gemma.memory.kv_cache_bytes == (22 * 512 + 4 * 8192) * 2 * 1 * 256 * 2
    attention = rows(gemma, "context_attention")
    assert sorted((row["window_size"], row["count"]) for row in attention) == [(0, 4), (512, 22)]
    short = rows(from_name("gemma-3-1b", prompt_tokens=512), "context_attention")
    assert [(row["window_size"], row["count"]) for row in short] == [(0, 26)]  # the window binds nowhere
    gpt_oss = rows(from_name("gpt-oss-20b", prompt_tokens=1024), "context_attention")
    assert sorted((row["window_size"], row["count"]) for row in gpt_oss) == [(0, 12), (128, 12)]


def test_a_window_leaves_the_pairs_that_counting_by_hand_gives():
    for query, past, window in ((10, 0, 4), (10, 3, 4), (5, 0, 8), (1, 7, 0), (6, 2, 5), (3, 9, 4)):
        by_hand = sum(min(past + i, window or math.inf) for i in range(1, query + 1))
        given = (np.array([float(n)]) for n in (query, past, window))
        assert attended_pairs(*given) == [by_hand]


def test_albert_runs_its_layer_twelve_times_and_stores_it_once():
    albert, bert = from_name("albert-base-v2", prompt_tokens=128), from_name("bert-base-uncased", prompt_tokens=128)
    mapping = 2 * 128 * 128 * 768
    assert albert.flop("gemm") - mapping == bert.flop("gemm")
    assert albert.flop("encoder_attention") == bert.flop("encoder_attention")
    assert albert.memory.weights_bytes == 2 * 11_683_584
    assert {row["count"] for row in rows(albert, "gemm", "layers.")} == {12}


def test_experts_are_one_operation_beside_dense_layers_and_shared_experts():
    deepseek = from_name("deepseek-v3", batch=2, prompt_tokens=10)
    (experts,) = rows(deepseek, "moe")
    shape = (experts["num_tokens"], experts["hidden_size"], experts["inter_size"], experts["topk"])
    assert (*shape, experts["num_experts"], experts["count"]) == (20, 7168, 2048, 8, 256, 58)
    assert [row["count"] for row in rows(deepseek, "gemm", ".mlp.down_proj")] == [3]
    (shared,) = rows(deepseek, "gemm", "moe.shared.down_proj")
    assert (shared["k"], shared["n"], shared["count"]) == (2048, 7168, 58)


def test_latent_attention_is_unfolded_in_prefill_and_absorbed_in_decoding():
    deepseek = from_name("deepseek-v3", batch=2, prompt_tokens=10, generate_tokens=2)
    (prefill,) = rows(deepseek, "context_attention")
    assert (prefill["num_heads"], prefill["head_dim"], prefill["value_dim"]) == (128, 192, 128)
    (decode,) = rows(deepseek, "mla_generation")
    assert (decode["num_heads"], decode["past_len"], decode["count"]) == (128, 10, 61)
    assert len(rows(deepseek, "mla_bmm")) == 2
    assert rows(deepseek, "gemm", "kv_b_proj", "prefill")
    assert not rows(deepseek, "gemm", "kv_b_proj", "decode")


def test_latent_attention_of_other_widths_reads_one_shared_latent_key():
    config = {**entry("deepseek-v3").config, "kv_lora_rank": 256}
    (core,) = rows(from_config(config, Request(generate_tokens=2)), "generation_attention")
    assert (core["num_kv_heads"], core["head_dim"], core["value_dim"]) == (1, 320, 256)


@given(prompt=st.integers(1, 10**6), generate=st.integers(0, 10**6))
def test_decoding_steps_stand_for_all_and_are_exact_in_what_is_linear(prompt: int, generate: int):
    steps = decode_steps(prompt, generate)
    count = max(generate - 1, 0)
    assert len(steps) <= 5
    assert sum(repeats for _, repeats in steps) == count
    assert sum(past * repeats for past, repeats in steps) == prompt * count + count * (count - 1) // 2


def test_generation_is_a_prefill_and_one_step_less_than_its_tokens():
    workload = from_name("llama-3.1-8b", batch=2, prompt_tokens=100, generate_tokens=101)
    assert [one.phase for one in workload.passes] == ["prefill"] + ["decode"] * 4
    assert workload.passes[0].tokens == 200
    assert sum(one.repeats for one in workload.passes[1:]) == 100
    pairs = sum(100 + step for step in range(1, 101))  # step i reads 100 + i keys
    assert workload.flop("generation_attention", phase="decode") == 2 * 32 * 32 * 4 * 128 * pairs
    assert [one.phase for one in from_name("bert-base-uncased").passes] == ["forward"]


def test_operations_of_a_llama_layer_in_their_order_with_their_layout():
    workload = from_name("llama-3.1-8b", prompt_tokens=64)
    listed = sorted(
        (row["order"], row["path"], SHARDS[row["shard"]], row["count"])
        for kind in workload.tables
        for row in rows(workload, kind)
    )
    layer = "layers.*"
    assert [(path, shard) for _, path, shard, _ in listed] == [
        ("embeddings.tokens", "none"),
        ("rotary", "none"),
        (f"{layer}.attention_norm", "none"),
        (f"{layer}.attention.q_proj", "out"),
        (f"{layer}.attention.k_proj", "out"),
        (f"{layer}.attention.v_proj", "out"),
        (f"{layer}.attention.rope", "out"),
        (f"{layer}.attention.cache_append", "out"),
        (f"{layer}.attention.core", "out"),
        (f"{layer}.attention.o_proj", "in"),
        (f"{layer}.attention_residual", "none"),
        (f"{layer}.mlp_norm", "none"),
        (f"{layer}.mlp.gate_proj", "out"),
        (f"{layer}.mlp.up_proj", "out"),
        (f"{layer}.mlp.glu", "out"),
        (f"{layer}.mlp.down_proj", "in"),
        (f"{layer}.mlp_residual", "none"),
        ("final_norm", "none"),
        ("lm_head", "out"),
    ]
    assert all(count == (32 if path.startswith(layer) else 1) for _, path, _, count in listed)


def test_formats_of_weights_activations_and_cache_apart():
    dense = from_name("llama-3.1-8b")
    packed = from_name("llama-3.1-8b", weight_dtype="int4")
    heads = 2 * 128_256 * 4096 + 65 * 4096  # embedding, vocabulary head and norms stay in 16 bit
    assert packed.memory.weights_bytes == 2 * heads + (8_030_261_248 - heads) * (0.5 + 1 / 64)
    assert dense.memory.weights_bytes == 2 * 8_030_261_248
    words = dict(zip(map(str, packed.tables["gemm"]["layer"]), packed.tables["gemm"].words("dtype"), strict=True))
    assert sorted(words.values()) == ["bf16"] + ["w4a16"] * 7
    fp8 = from_name("llama-3.1-8b", dtype="fp8")
    assert set(fp8.tables["row_reduction"].words("dtype")) == {"bf16"}
    assert fp8.tables["context_attention"].words("attn_dtype") == ["bf16"]
    assert set(from_name("bert-base-uncased", dtype="tf32").tables["gemm"].words("dtype")) == {"tf32"}
    with pytest.raises(InputError, match="fp32 activations and int4 weights"):
        Request(dtype="fp32", weight_dtype="int4")


def test_gpt_oss_keeps_its_experts_as_the_checkpoint_holds_them():
    shipped = from_name("gpt-oss-20b")
    assert shipped.tables["moe"].words("dtype") == ["w4a16_mxfp4"]
    assert 13.5e9 < shipped.memory.weights_bytes < 14.0e9  # the checkpoint has 13.8 GB
    unpacked = from_name("gpt-oss-20b", weight_dtype="bf16")
    assert unpacked.memory.weights_bytes == 2 * 20_914_757_184


def test_encoder_decoders_read_their_source_once():
    t5 = from_name("flan-t5-base", prompt_tokens=200, generate_tokens=3)
    assert [row["m"] for row in rows(t5, "gemm", "decoder.layers.*.cross.k_proj")] == [200]
    cross = rows(t5, "encoder_attention", "cross", "decode")
    assert {(row["seq_len"], row["kv_len"]) for row in cross} == {(1, 200)}
    whisper = from_name("whisper-tiny", batch=2)
    (encoder,) = rows(whisper, "encoder_attention", "encoder.")
    assert (encoder["seq_len"], encoder["count"]) == (1500, 4)
    assert [(row["width"], row["stride"]) for row in rows(whisper, "conv2d")] == [(3002, 1), (3002, 2)]


def test_image_size_and_patches():
    assert from_name("google/vit-base-patch16-224", image_size=384).info["image_tokens"] == 24 * 24 + 1
    assert macs(from_name("resnet-50", image_size=448)) > 3.9 * macs(from_name("resnet-50"))
    with pytest.raises(InputError, match="smaller"):
        from_name("google/vit-base-patch16-224", image_size=8)
    (note,) = from_name("resnet-50", prompt_tokens=512).notes
    assert "takes images" in note


def _as_launched(workload: Workload) -> collections.Counter[tuple[Any, ...]]:
    """Matrix multiplies and convolutions with eager attention's two multiplies, by shape."""
    found: collections.Counter[tuple[Any, ...]] = collections.Counter()
    for row in rows(workload, "gemm"):
        found["gemm", 1, row["m"], row["n"], row["k"]] += row["count"]
    for kind, length in (("encoder_attention", "seq_len"), ("context_attention", "query_len")):
        for row in rows(workload, kind) if kind in workload.tables else ():
            batch, n, dim = row["batch_size"] * row["num_heads"], row[length], row["head_dim"]
            found["gemm", batch, n, n, dim] += row["count"]
            found["gemm", batch, n, dim, n] += row["count"]
    for row in rows(workload, "conv2d") if "conv2d" in workload.tables else ():
        shape = ("in_channels", "out_channels", "height", "kernel_h", "stride", "padding")
        found["conv", row["batch_size"], *(row[name] for name in shape)] += row["count"]
    return found


def _as_traced(path: Path) -> collections.Counter[tuple[Any, ...]]:
    """The same from a trace; its linear layers have out features first, its rotary table is no layer."""
    found: collections.Counter[tuple[Any, ...]] = collections.Counter()
    for op, tags in json.loads(path.read_text()):
        if tags[0] == "conv2d":
            found["conv", *(op[name] for name in ("b", "c", "m", "hw", "rs", "stride", "padding"))] += 1
        elif tags[0] == "gemm" and op["dimK"] > 1:
            m, n = (op["dimN"], op["dimM"]) if op["batch"] == 1 else (op["dimM"], op["dimN"])
            found["gemm", op["batch"], m, n, op["dimK"]] += 1
    return found


@pytest.mark.parametrize(
    ("pattern", "name", "asked"),
    [
        ("bertmodel_large_*", "bert-large-uncased", {"pooler": True}),
        ("optmodel_opt-1p3b_*", "facebook/opt-1.3b", {"logits": "none"}),
        ("qwen2model_qwen2-1p5b_*", "Qwen/Qwen2-1.5B", {"logits": "none"}),
        ("vitmodel_large_*", "google/vit-large-patch16-224-in21k", {"pooler": True}),
        ("mobilevitmodel_small_*", "apple/mobilevit-small", {"logits": "none"}),
    ],
)
def test_multiplies_and_convolutions_are_those_that_profilers_saw(
    data_dir: Path, pattern: str, name: str, asked: dict[str, Any]
):
    traces = sorted((data_dir / "energaizer" / "traces").glob(pattern))
    assert traces
    config = dict(entry(name).config)
    if "vit-large" in name:
        config["pooler_output_size"] = 768  # as the traced model had it
    for trace in traces:
        parts = {part[0]: int(part[1:]) for part in trace.stem.split("_") if part[1:].isdigit()}
        request = Request(batch=parts["b"], prompt_tokens=parts.get("s"), **asked)
        assert _as_launched(from_config(config, request, name)) == _as_traced(trace), trace.name


def test_every_kind_of_operation_has_a_count_of_its_arithmetic():
    for name, kind in KINDS.items():
        given = {
            column.name: column.choices[0] if column.type == "choice" else "bf16" if column.type == "dtype" else 4
            for column in kind.columns
            if column.default is None
        }
        counted = flop_of(op_table(name, given))
        moves_only = name in ("nccl", "custom_allreduce", "gather", "copy")
        assert counted.shape == (1,)
        assert (counted[0] == 0) == moves_only, name


@pytest.mark.parametrize(
    ("stored", "asked", "way"),
    [
        ({"quant_method": "awq", "bits": 4}, {}, "(awq): weight_dtype='int4'"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, {}, "(bitsandbytes): weight_dtype='int4'"),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, {"dtype": "fp16"}, "(fp8): dtype='fp8_block'"),
        ({"quant_method": "compressed-tensors"}, {}, "another dtype or weight_dtype"),
        ({"quant_method": "awq", "bits": 4}, {"weight_dtype": "int4"}, ""),
        ({"quant_method": "fp8"}, {"dtype": "fp8"}, ""),
    ],
)
def test_a_quantised_checkpoint_that_is_priced_wider_says_so(stored: dict[str, Any], asked: dict[str, Any], way: str):
    config = {**entry("meta-llama/Llama-3.1-8B").config, "quantization_config": stored}
    notes = from_config(config, **asked).notes
    assert len(notes) == bool(way)
    assert way in "".join(notes)
    with pytest.raises(InputError, match="quantization_config must hold a config of its own"):
        from_config({**config, "quantization_config": "awq"}, **asked)
    assert "fp8_block" in "".join(from_name("deepseek-v3").notes)


def test_catalogue_names_are_found_by_hub_name_and_alias_in_any_case():
    assert len(catalogue()) >= 60
    assert entry("LLAMA-3.1-8b") is entry("meta-llama/Llama-3.1-8B") is entry("meta-llama/Llama-3.1-8B-Instruct")
    assert entry("bert-large-uncased").name == "google-bert/bert-large-uncased"
    assert entry("vgg16").family == "vgg"
    names = [one.name for one in catalogue()]
    assert len({name.lower() for name in names}) == len(names)
    assert {one.family for one in catalogue()} <= set(model_types())
    with pytest.raises(UnknownNameError, match=r"did you mean .*llama-3\.1-8b"):
        entry("llama-3.1-8")


def test_no_alias_names_two_models():
    owner: dict[str, str] = {}
    for one in catalogue():
        for alias in (one.name, *one.aliases):
            assert owner.setdefault(alias.lower(), one.name) == one.name, alias


def test_a_config_file_gives_what_the_catalogue_gives(tmp_path: Path):
    folder = tmp_path / "llama"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**entry("llama-3.1-8b").config, "torch_dtype": "bfloat16"}))
    ours, theirs = from_name("llama-3.1-8b", batch=4), from_file(folder, batch=4)
    assert theirs.parameters == ours.parameters
    assert theirs.flop() == ours.flop()
    assert theirs.memory == ours.memory
    assert theirs.name == "llama"
    assert read_config(folder / "config.json")["model_type"] == "llama"


def test_a_config_of_timm_names_an_architecture_of_the_catalogue():
    config = {"architecture": "vgg16", "num_classes": 1000, "pretrained_cfg": {"tag": "tv_in1k"}}
    assert from_config(config, Request(batch=2)).parameters == 138_357_544
    assert open_workload(config, batch=2).parameters == 138_357_544
    with pytest.raises(UnknownNameError, match="unknown model 'coatnet_0'"):
        from_config({"architecture": "coatnet_0"})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"model_type": "llama", "hidden_size": 4096', "not valid JSON"),
        (b"\xff\xfe\x00", "UTF-8"),
        (b"[1, 2]", "must hold a JSON object"),
        (b"[" * 100_000, "nests too deeply|not valid JSON"),
        (b" " * 5_000_001, "too large"),
        (b"", "empty"),
    ],
)
def test_a_file_that_is_no_config_is_refused_in_a_line(tmp_path: Path, content: bytes, message: str):
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        read_config(path)
    assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match="no such file"):
        read_config(tmp_path / "absent" / "config.json")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": -1}, "hidden_size must be a whole number"),
        ({"hidden_size": float("nan")}, "hidden_size must be a whole number"),
        ({"hidden_size": "4096"}, "hidden_size must be a whole number"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers must be"),
        ({"num_hidden_layers": True}, "num_hidden_layers must be"),
        ({"num_key_value_heads": 7}, "32 query heads do not divide over 7"),
        ({"hidden_act": "silly"}, "unknown activation 'silly'"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings must be true or false"),
        ({"rope_scaling": [1]}, "rope_scaling must hold a config"),
        ({"model_type": "lama"}, "model type 'lama'.*nearest: llama"),
        ({"model_type": "unheard-of"}, "model type 'unheard-of'.*supported: albert"),
        ({"model_type": None}, "model_type is missing"),
    ],
)
def test_a_wrong_config_is_refused_with_the_key_and_why(changes: dict[str, Any], message: str):
    with pytest.raises(InputError, match=message) as caught:
        from_config({**entry("llama-3.1-8b").config, **changes}, Request(), "mine")
    assert "\n" not in str(caught.value)


def test_what_a_config_leaves_out_is_taken_from_transformers_with_a_note(monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("transformers")
    found = from_config({"model_type": "bert"})
    assert found.parameters == 109_482_240  # BERT-base: transformers' defaults are its sizes
    assert "transformers' defaults for bert" in found.notes[-1]
    partly = from_config({**entry("llama-3.1-8b").config, "hidden_size": None})
    assert "leaves out hidden_size" in partly.notes[-1]
    monkeypatch.setitem(sys.modules, "transformers.models.auto.configuration_auto", None)
    with pytest.raises(InputError, match=r"hidden_size is missing.*pip install 'joulecast\[torch\]'") as caught:
        from_config({"model_type": "bert"})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "asked", "limit"),
    [
        ("llama-2-7b", {"prompt_tokens": 4097}, 4096),
        ("llama-2-7b", {"prompt_tokens": 4000, "generate_tokens": 100}, 4096),
        ("llama-3.1-8b", {"prompt_tokens": 131_073}, 131_072),
        ("bert-base-uncased", {"prompt_tokens": 513}, 512),
        ("roberta-base", {"prompt_tokens": 513}, 512),
        ("clip", {"prompt_tokens": 78}, 77),
        ("whisper-tiny", {"generate_tokens": 450}, 448),
        ("gpt2", {"prompt_tokens": 1025}, 1024),
    ],
)
def test_more_tokens_than_a_model_takes_are_refused_with_its_limit(name: str, asked: dict[str, int], limit: int):
    with pytest.raises(InputError, match=f"at most {limit} tokens"):
        from_name(name, **asked)


@pytest.mark.parametrize(
    ("scaling", "limit"),
    [
        ({"type": "linear", "factor": 4.0}, 16_384),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}, 16_384),
        ({"rope_type": "yarn", "factor": 0.5}, 4096),
        ({"rope_type": "llama3", "factor": 32.0, "original_max_position_embeddings": 4096}, 4096),
    ],
)
def test_rotary_scaling_stretches_the_limit(scaling: dict[str, Any], limit: int):
    config = {**entry("llama-2-7b").config, "rope_scaling": scaling}
    assert from_config(config).info["max_tokens"] == limit


def test_a_stretch_that_the_config_counts_already_is_not_counted_twice():
    yarn = {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096}
    assert from_config({**entry("deepseek-v3").config, "rope_scaling": yarn}).info["max_tokens"] == 163_840


def test_models_without_a_bound_on_positions_take_any_length():
    assert from_name("bloom-7b1", prompt_tokens=100_000).info["prompt_tokens"] == 100_000
    assert from_name("t5-small", prompt_tokens=5000).info["prompt_tokens"] == 5000


@pytest.mark.parametrize("name", ["bert-base-uncased", "resnet-50", "vit-base", "clip", "mobilevit-s"])
def test_models_that_generate_nothing_refuse_to(name: str):
    with pytest.raises(InputError, match="generates no tokens"):
        from_name(name, generate_tokens=5)


@pytest.mark.parametrize("value", [0, -1, 1.5, float("nan"), float("inf"), True, "8", None, 2**31 + 1, [8]])
def test_sizes_that_are_none_are_refused(value: Any):
    with pytest.raises(InputError, match="batch must be a whole number"):
        Request(batch=value)


@pytest.mark.parametrize("name", [one.name for one in catalogue() if one.family != "clip"][::7])
def test_a_batch_of_a_thousand_million_is_a_question_of_memory_alone(name: str):
    workload = from_name(name, batch=10**9)
    assert workload.memory.total_bytes > 1e12
    assert workload.flop() == pytest.approx(1e9 * from_name(name).flop(), rel=1e-3)


def test_unknown_options_and_words_are_refused_by_name():
    with pytest.raises(InputError, match="unknown option 'promt_tokens'"):
        from_name("gpt2", promt_tokens=5)
    with pytest.raises(InputError, match="logits must be one of last, all, none"):
        Request(logits="first")
    with pytest.raises(UnknownNameError, match="dtype"):
        Request(dtype="bf17")


BY_TYPE = {one.family: dict(one.config) for one in catalogue()}
JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 2**40),
    st.floats(),
    st.sampled_from(
        ["", "x", "gelu", "relu", "sliding_attention", 10**5000, 0, 1, 2, 3, 7, {}, [], [0], [[]], {"a": 1}]
    ),
    st.lists(st.integers(-1, 600), max_size=8),
    st.dictionaries(st.sampled_from(["type", "factor", "hidden_size", "alibi", "quant_method"]), st.integers(-1, 9)),
)
KEYS = sorted({key for config in BY_TYPE.values() for key in config} | {"rope_scaling", "layer_types", "id2label"})


@settings(max_examples=400, deadline=None)
@given(
    model_type=st.sampled_from(sorted(BY_TYPE)),
    changes=st.dictionaries(st.sampled_from(KEYS), JUNK, min_size=1, max_size=4),
    generate=st.sampled_from([0, 0, 3]),
)
def test_a_damaged_config_gives_a_workload_or_one_clear_line(model_type: str, changes: Any, generate: int):
    try:
        workload = from_config({**BY_TYPE[model_type], **changes}, Request(generate_tokens=generate), "damaged")
    except InputError as error:
        told = str(error)
    else:
        told = "fine"
        assert math.isfinite(workload.flop())
        assert workload.flop() > 0
        assert workload.memory.weights_bytes > 0
    assert "\n" not in told
    assert len(told) < 600
