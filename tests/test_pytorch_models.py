"""Totals of known models, recorded: multiply-adds by hand or as published, weights as published."""

from __future__ import annotations

import pytest

import joulecast as jc

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

TOKENS = 128

#: hidden, layers, heads, key-value heads, width of a head, MLP, its products, vocabulary.
DECODERS = {
    "Llama-2-7B": ("Llama", (4096, 32, 32, 32, 128, 11008, 3, 32000)),
    "Llama-3-8B": ("Llama", (4096, 32, 32, 8, 128, 14336, 3, 128256)),
    "Llama-3-70B": ("Llama", (8192, 80, 64, 8, 128, 28672, 3, 128256)),
    "Mistral-7B": ("Mistral", (4096, 32, 32, 8, 128, 14336, 3, 32000)),
    "Qwen2-7B": ("Qwen2", (3584, 28, 28, 4, 128, 18944, 3, 152064)),
    "Qwen3-8B": ("Qwen3", (4096, 36, 32, 8, 128, 12288, 3, 151936)),
    "Gemma-7B": ("Gemma", (3072, 28, 16, 16, 256, 24576, 3, 256000)),
    "Phi-3-mini": ("Phi3", (3072, 32, 32, 32, 96, 8192, 3, 32064)),
    "OLMo-2-7B": ("Olmo2", (4096, 32, 32, 32, 128, 11008, 3, 100352)),
    "StarCoder2-3B": ("Starcoder2", (3072, 30, 24, 2, 128, 12288, 2, 49152)),
    "Pythia-6.9B": ("GPTNeoX", (4096, 32, 32, 32, 128, 16384, 2, 50432)),
}


def on_meta(cls, config, dtype=torch.bfloat16):
    with torch.device("meta"):
        return cls(config).to(dtype)


def macs(workload, causal="done"):
    return workload.flop("matmul", causal=causal) / 2


@pytest.mark.parametrize("name", DECODERS)
def test_multiply_adds_of_a_decoder_by_hand(name):
    # A token takes hidden x (q + k + v + o) and the MLP's products in each layer; query i sees i keys, each at twice
    # the width of a head; the head scores the last token.
    kind, (hidden, layers, heads, kv, dim, inter, products, vocab) = DECODERS[name]
    config = getattr(transformers, f"{kind}Config")(
        hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=kv, head_dim=dim,
        intermediate_size=inter, vocab_size=vocab, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    model = on_meta(getattr(transformers, f"{kind}ForCausalLM"), config)
    ids = torch.ones(1, TOKENS, dtype=torch.int64)
    w = jc.workload(model, ids, kwargs={"use_cache": False, "logits_to_keep": 1}, device="meta")
    per_token = hidden * dim * (2 * heads + 2 * kv) + products * hidden * inter
    pairs = TOKENS * (TOKENS + 1) // 2
    assert macs(w) == layers * (TOKENS * per_token + 2 * pairs * heads * dim) + hidden * vocab
    assert "context_attention" in w.tables
    assert set(w.tables["context_attention"]["num_kv_heads"].tolist()) == {kv}


#: hidden, layers, MLP, tokens, parameters as published [millions]
ENCODERS = {
    "bert-base-uncased": ("Bert", {}, (768, 12, 3072), 109.5),
    "bert-large-uncased": ("Bert", {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16,
                                    "intermediate_size": 4096}, (1024, 24, 4096), 335.1),
    "roberta-base": ("Roberta", {"vocab_size": 50265, "max_position_embeddings": 514, "type_vocab_size": 1},
                     (768, 12, 3072), 124.6),
    "distilbert-base-uncased": ("DistilBert", {}, (768, 6, 3072), 66.4),
}  # fmt: skip


@pytest.mark.parametrize("name", ENCODERS)
def test_multiply_adds_and_weights_of_an_encoder(name):
    # 4 h^2 of projections and 2 h x MLP a token and layer, 2 s h of attention; the pooler reads one token
    kind, fields, (hidden, layers, inter), millions = ENCODERS[name]
    model = on_meta(getattr(transformers, f"{kind}Model"), getattr(transformers, f"{kind}Config")(**fields))
    w = jc.workload(model, torch.ones(1, TOKENS, dtype=torch.int64), device="meta")
    pooler = hidden**2 if kind != "DistilBert" else 0
    assert macs(w) == layers * TOKENS * (4 * hidden**2 + 2 * hidden * inter + 2 * TOKENS * hidden) + pooler
    assert w.parameters / 1e6 == pytest.approx(millions, abs=0.06)


#: Class, config, thousand millions of multiply-adds at 224 x 224 as published (torchvision's tables of models; the
#: papers of ViT's and Swin's authors), millions of parameters.
VISION = {
    "resnet-18": ("ResNet", {"layer_type": "basic", "hidden_sizes": [64, 128, 256, 512], "depths": [2, 2, 2, 2]},
                  1.81, 11.69),
    "resnet-34": ("ResNet", {"layer_type": "basic", "hidden_sizes": [64, 128, 256, 512], "depths": [3, 4, 6, 3]},
                  3.66, 21.80),
    "resnet-50": ("ResNet", {}, 4.09, 25.56),
    "resnet-101": ("ResNet", {"depths": [3, 4, 23, 3]}, 7.80, 44.55),
    "resnet-152": ("ResNet", {"depths": [3, 8, 36, 3]}, 11.51, 60.19),
    "convnext-tiny": ("ConvNext", {}, 4.46, 28.59),
    "vit-b-16": ("ViT", {}, 17.56, 86.57),
    "vit-l-16": ("ViT", {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16,
                         "intermediate_size": 4096}, 61.55, 304.33),
    "swin-tiny": ("Swin", {}, 4.49, 28.29),
}  # fmt: skip


@pytest.mark.parametrize("name", VISION)
def test_multiply_adds_and_weights_of_a_vision_model_are_as_published(name):
    kind, fields, published, millions = VISION[name]
    config = getattr(transformers, f"{kind}Config")(num_labels=1000, **fields)
    classes = {"ConvNext": "ConvNextForImageClassification"}
    model = on_meta(getattr(transformers, classes.get(kind, f"{kind}ForImageClassification")), config)
    w = jc.workload(model, torch.empty(1, 3, 224, 224, dtype=torch.bfloat16), device="meta")
    assert macs(w) / 1e9 == pytest.approx(published, rel=0.006)
    assert w.parameters / 1e6 == pytest.approx(millions, abs=0.02)


def test_a_mixture_counts_the_experts_that_a_token_goes_to():
    # Mixtral 8x7B: two of eight experts a token, three products each; a router of hidden x 8
    config = transformers.MixtralConfig(num_hidden_layers=4)
    model = on_meta(transformers.MixtralForCausalLM, config)
    ids = torch.ones(1, TOKENS, dtype=torch.int64)
    w = jc.workload(model, ids, kwargs={"use_cache": False, "logits_to_keep": 1}, device="meta")
    attention = 2 * (TOKENS * (TOKENS + 1) // 2) * 4096
    per_token = 4096 * 128 * (2 * 32 + 2 * 8) + 2 * 3 * 4096 * 14336 + 4096 * 8
    assert macs(w) == 4 * (TOKENS * per_token + attention) + 4096 * 32000
    assert set(w.tables["moe"].columns["topk"].tolist()) == {2}


def test_latent_attention_is_one_fused_operation():
    # DeepSeek-V3: 128 heads, keys of 128 + 64, values of 128
    config = transformers.DeepseekV3Config(num_hidden_layers=3)
    model = on_meta(transformers.DeepseekV3ForCausalLM, config)
    ids = torch.ones(1, TOKENS, dtype=torch.int64)
    w = jc.workload(model, ids, kwargs={"use_cache": False, "logits_to_keep": 1}, device="meta")
    core = w.tables["context_attention"]
    assert (core["head_dim"][0], core["value_dim"][0], core["num_heads"][0]) == (192, 128, 128)
    assert core["count"].sum() == 3


@pytest.mark.parametrize("name", ["Qwen/Qwen2-0.5B", "facebook/opt-125m", "distilbert/distilgpt2",
                                  "bigcode/starcoder2-3b", "google/vit-base-patch16-224-in21k",
                                  "FacebookAI/xlm-roberta-base", "google-t5/t5-small", "EleutherAI/pythia-70m",
                                  "google/gemma-3-1b-it", "microsoft/resnet-18"])  # fmt: skip
def test_a_recorded_model_costs_what_the_catalogue_says(name):
    from joulecast.workloads.catalogue import entry
    from joulecast.workloads.request import Request
    from joulecast.workloads.transformers_models import from_transformers

    known = jc.workload(name, batch=8, pooler=True)
    recorded = from_transformers(entry(name).config, Request(batch=8), name)
    assert recorded.parameters == known.parameters
    assert recorded.flop("matmul") == pytest.approx(known.flop("matmul"), rel=1e-3)
    ours, theirs = (jc.predict(one, "a100-pcie-40gb") for one in (recorded, known))
    assert ours.time_s == pytest.approx(theirs.time_s, rel=0.02)
    assert ours.energy_j == pytest.approx(theirs.energy_j, rel=0.02)


def test_a_config_that_only_transformers_knows_becomes_a_workload():
    # Cohere's decoder: as a Llama with one norm a layer and tied embeddings, scores of all tokens scaled
    config = {"model_type": "cohere", "architectures": ["CohereForCausalLM"], "hidden_size": 512, "vocab_size": 1000,
              "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 8, "intermediate_size": 1024,
              "auto_map": {"AutoModel": "somewhere.else"}, "quantization_config": {"quant_method": "gptq"}}  # fmt: skip
    w = jc.workload(config, batch=2, prompt_tokens=TOKENS, generate_tokens=4)
    assert [one.phase for one in w.passes] == ["prefill", "decode", "decode", "decode"]
    per_token = 4 * 512**2 + 3 * 512 * 1024
    attention = 2 * (TOKENS * (TOKENS + 1) // 2) * 512
    assert w.flop("matmul", phase="prefill") / 2 == 2 * (2 * (TOKENS * per_token + attention) + 512 * 1000)
    cached = w.tables["generation_attention"]["past_len"]
    assert sorted(set(cached.tolist())) == [TOKENS, TOKENS + 1, TOKENS + 2]


def test_formats_are_ours_to_choose():
    config = {"model_type": "cohere", "hidden_size": 512, "vocab_size": 1000, "num_hidden_layers": 2,
              "num_attention_heads": 8, "num_key_value_heads": 8, "intermediate_size": 1024}  # fmt: skip
    plain, narrow = (jc.workload(config, prompt_tokens=8, dtype=dtype) for dtype in ("bf16", "fp8"))
    gemm = narrow.tables["gemm"]
    formats = dict(zip([narrow.layers[i] for i in gemm["layer"]], gemm.words("dtype"), strict=True))
    assert formats["lm_head"] == "bf16"
    assert {word for path, word in formats.items() if path != "lm_head"} == {"fp8"}
    layers = 2 * (4 * 512**2 + 3 * 512 * 1024)
    assert plain.memory.weights_bytes - narrow.memory.weights_bytes == layers


def test_a_type_that_nobody_knows_is_one_line():
    with pytest.raises(jc.InputError, match=r"model type 'coheer'.*nearest: cohere"):
        jc.workload({"model_type": "coheer"})
