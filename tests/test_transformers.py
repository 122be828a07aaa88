"""Models of transformers: inputs made for them and changed as they ask, and what a GPU would run of them."""

from __future__ import annotations

import pytest

import joulecast as jc

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")


def on_meta(cls, config, dtype=torch.bfloat16):
    with torch.device("meta"):
        return cls(config).to(dtype).eval()


def test_layers_that_are_not_run_again_give_their_hidden_states():
    from transformers import Dinov2Backbone, Dinov2Config

    config = Dinov2Config(hidden_size=64, num_hidden_layers=6, num_attention_heads=2, image_size=56, patch_size=14,
                          out_features=["stage2", "stage4", "stage6"])  # fmt: skip
    model = on_meta(Dinov2Backbone, config)
    with jc.capture() as recorded:
        out = model(torch.empty(1, 3, 56, 56, device="meta", dtype=torch.bfloat16))
    assert len(out.feature_maps) == 3  # one a stage asked for, of layers run and not run
    assert {tuple(one.shape) for one in out.feature_maps} == {(1, 64, 4, 4)}
    # by hand: patches; four square products and an MLP of four times the width a layer; scores and values
    tokens, dim = 17, 64
    macs = 16 * 3 * 14 * 14 * dim + 6 * (tokens * 12 * dim * dim + 2 * tokens * tokens * dim)
    assert recorded.workload.flop("matmul") == 2 * macs


def test_convolutions_keep_the_layout_of_their_input():
    layers = torch.nn.Conv2d(8, 16, 2, stride=2), torch.nn.Conv2d(16, 16, 3, groups=16, padding=1)
    model = torch.nn.Sequential(*layers).to("meta", torch.bfloat16)
    x = torch.empty(2, 8, 16, 16, device="meta", dtype=torch.bfloat16)
    plain = jc.workload(model, x).tables["conv2d"]
    last = jc.workload(model, x.to(memory_format=torch.channels_last)).tables["conv2d"]
    assert plain["channels_last"].tolist() == [0, 0]
    assert last["channels_last"].tolist() == [1, 1]


def test_looking_at_a_mask_is_no_part_of_the_program():
    q, k = (torch.empty(1, 2, length, 64, device="meta", dtype=torch.bfloat16) for length in (1, 512))
    mask = torch.ones(1, 1, 1, 512, dtype=torch.bool)
    with jc.capture() as recorded:
        torch.nn.functional.scaled_dot_product_attention(q, k, k, attn_mask=mask)
    assert recorded.workload.operations == 1


@pytest.mark.parametrize(
    ("error", "shape", "wanted"),
    [
        ("a and b must have same reduction dim, but got [256, 588] X [1176, 1536].", (256, 588), (256, 1176)),
        ("Given normalized_shape=[160], expected input with shape [160], but got input of size "
         "torch.Size([1, 512, 80])", (1, 512, 80), (1, 512, 160)),
        ("Attempting to broadcast a dimension of length 560 at -1! Mismatching argument at index 1 had "
         "torch.Size([512, 560]); but expected shape should be broadcastable to [1, 512, 80]",
         (1, 512, 80), (1, 512, 560)),
        ("Input tensor shape suffix torch.Size([40, 128]) does not match expected suffix (feature_dims + num_channels) "
         "(64, 128)", (1, 512, 80), (1, 512, 128)),
        ("Input image size (1792*448) doesn't match model (896*448).", (1, 3, 896, 448), (1, 3, 448, 448)),
    ],
)  # fmt: skip
def test_inputs_are_changed_as_a_model_asks(error, shape, wanted):
    from joulecast.workloads.transformers_repairs import repaired

    more = repaired({"x": torch.zeros(shape)}, ValueError(error), object(), {}, False)
    assert tuple(more["x"].shape) == wanted


def test_an_input_that_an_error_names_is_made():
    from joulecast.workloads.transformers_repairs import repaired

    makers = {"encoder_hidden_states": lambda: torch.zeros(1, 4, 8)}
    error = ValueError("encoder_hidden_states must be given for cross-attention layers")
    more = repaired({}, error, object(), makers, False)
    assert tuple(more["encoder_hidden_states"].shape) == (1, 4, 8)
    assert repaired(more, error, object(), makers, False) is None  # it is there: nothing to add
    assert repaired({}, ValueError("no such thing"), object(), makers, False) is None


def test_a_class_that_can_not_be_run_gives_way_to_another_and_a_note_says_so():
    config = {"model_type": "splinter", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
              "intermediate_size": 128, "vocab_size": 99, "architectures": ["SplinterForPreTraining"]}  # fmt: skip
    w = jc.workload(config, prompt_tokens=16)
    assert any("SplinterForPreTraining could not be run" in note for note in w.notes)
    # by hand: four square products and two of the MLP a layer, scores and values of all tokens
    assert w.flop("matmul") >= 2 * 2 * (16 * (4 * 64 * 64 + 2 * 64 * 128) + 2 * 16 * 16 * 64)


#: hidden, layers, heads, key-value heads, MLP, vocabulary, and the parameters published.
BYTES = {
    "llama-2-7b": ("llama", (4096, 32, 32, 32, 11008, 32000), 6_738_415_616),
    "llama-3-8b": ("llama", (4096, 32, 32, 8, 14336, 128256), 8_030_261_248),
    "mistral-7b": ("mistral", (4096, 32, 32, 8, 14336, 32000), 7_241_732_096),
    "qwen2-7b": ("qwen2", (3584, 28, 28, 4, 18944, 152064), 7_615_616_512),
}


@pytest.mark.parametrize("name", BYTES)
def test_bytes_of_a_decoder_by_hand(name):
    from joulecast.workloads.request import Request
    from joulecast.workloads.transformers_models import from_transformers

    model_type, (hidden, layers, heads, kv_heads, inter, vocab), parameters = BYTES[name]
    config = {"model_type": model_type, "hidden_size": hidden, "num_hidden_layers": layers, "vocab_size": vocab,
              "num_attention_heads": heads, "num_key_value_heads": kv_heads, "intermediate_size": inter,
              "tie_word_embeddings": False}  # fmt: skip
    batch, tokens = 2, 128
    memory = from_transformers(config, Request(batch=batch, prompt_tokens=tokens), name).memory
    assert memory.weights_bytes == pytest.approx(2 * parameters, rel=1e-6)  # two bytes each; and one row of angles
    assert memory.kv_cache_bytes == 2 * 2 * batch * tokens * layers * kv_heads * (hidden // heads)
    # at most alive: both branches of an MLP and their product beside the stream, perhaps what the MLP reads as well
    stream, branch = 2 * batch * tokens * hidden, 2 * batch * tokens * inter
    assert 3 * branch + stream <= memory.activation_bytes <= 1.01 * (3 * branch + 2 * stream)
    by_hand = 2 * parameters + memory.kv_cache_bytes + 3 * branch + 2 * stream
    assert memory.total_bytes == pytest.approx(by_hand, rel=0.01)


def test_layers_of_one_shape_and_different_strides_are_each_run():
    class Block(torch.nn.Module):
        def __init__(self, stride):
            super().__init__()
            self.convolution = torch.nn.Conv2d(8, 8, 3, stride=stride, padding=1)

        def forward(self, x):
            return self.convolution(x)

    class Pair(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = torch.nn.ModuleList([Block(2), Block(2), Block(2), Block(1)])

        def forward(self, x):
            return [block(x).shape for block in self.blocks]

    model = Pair().to("meta")
    with jc.capture() as recorded:
        shapes = model(torch.empty(1, 8, 16, 16, device="meta"))
    assert [tuple(one) for one in shapes] == [(1, 8, 8, 8)] * 3 + [(1, 8, 16, 16)]
    assert recorded.workload.flop("matmul") == 2 * 8 * 8 * 9 * (3 * 8 * 8 + 16 * 16)


def test_of_two_inputs_of_one_width_the_one_that_the_model_was_at_is_changed(tmp_path):
    from joulecast.workloads.transformers_repairs import repaired

    path = tmp_path / "transformers_like.py"  # a line of a model's, as its traceback has it
    path.write_text("def run(layer, context):\n    return layer(context=context)\n")
    scope: dict = {}
    exec(compile(path.read_text(), str(path), "exec"), scope)

    def refuse(context):
        raise RuntimeError("a and b must have same reduction dim, but got [32, 64] X [320, 64].")

    try:
        scope["run"](refuse, 0)
    except RuntimeError as error:
        more = repaired(
            {"noise": torch.zeros(1, 32, 64), "context": torch.zeros(1, 32, 64)}, error, object(), {}, False
        )
    assert tuple(more["noise"].shape) == (1, 32, 64)
    assert tuple(more["context"].shape) == (1, 32, 320)


def test_an_entry_that_a_config_has_elsewhere_is_taken_from_there_and_told():
    from transformers import BltConfig, LlamaConfig

    from joulecast.workloads.transformers_configs import TAKEN, completed

    config = BltConfig()
    error = AttributeError("'BltConfig' object has no attribute 'num_hidden_layers'")
    assert completed(config, error)
    assert config.num_hidden_layers == config.decoder_config.num_hidden_layers
    assert getattr(config, TAKEN) == ["BltConfig has no num_hidden_layers: that of BltLocalDecoderConfig is taken"]
    assert not completed(config, error)  # it is there: the error is another's
    assert not completed(LlamaConfig(), AttributeError("'LlamaConfig' object has no attribute 'no_such_size'"))
    assert not completed(config, ValueError(str(error)))


def test_heads_of_keys_are_those_of_queries_where_a_type_does_not_tell_them_apart():
    from transformers import GPT2Config

    from joulecast.workloads.transformers_configs import completed

    config = GPT2Config(n_head=6)
    assert completed(config, AttributeError("'GPT2Config' object has no attribute 'num_key_value_heads'"))
    assert config.num_key_value_heads == 6


def test_a_model_without_a_forward_pass_encodes():
    from joulecast.workloads.transformers_run import _that_runs

    class Coder(torch.nn.Module):
        def encode(self, hidden_states):
            return 2 * hidden_states

    model = _that_runs(Coder())
    assert model(hidden_states=torch.ones(2)).tolist() == [2.0, 2.0]


def test_shared_keys_are_as_wide_as_each_kind_of_layer_has_them():
    from types import SimpleNamespace

    from joulecast.workloads.transformers_inputs import _shared_cache, float_inputs

    layers = [SimpleNamespace(head_dim=width, num_key_value_heads=2) for width in (32, 64)]
    text = SimpleNamespace(layer_types=["sliding_attention", "full_attention"], per_layer_config=layers)
    made = float_inputs({"shared_kv_states": _shared_cache(text, 1, 8)}, torch.bfloat16)["shared_kv_states"]
    assert {kind: tuple(keys.shape) for kind, (keys, _) in made.items()} == {
        "sliding_attention": (1, 2, 8, 32),
        "full_attention": (1, 2, 8, 64),
    }
    assert {one.dtype for pair in made.values() for one in pair} == {torch.bfloat16}


def test_defaults_that_are_tuples_are_read_as_a_file_gives_them():
    pytest.importorskip("transformers")
    from joulecast.workloads.transformers_models import model_config

    config = model_config({"model_type": "vitmatte"})
    assert config.fusion_hidden_sizes == [256, 128, 64, 32]  # of the paper's decoder
    assert isinstance(config.convstream_hidden_sizes, list)
    assert model_config({"model_type": "reformer"}).axial_pos_shape == (64, 64)  # its class makes a tuple of a list


def test_columns_picked_by_a_list_keep_their_values():
    pytest.importorskip("transformers")
    from joulecast.workloads.request import Request
    from joulecast.workloads.transformers_models import from_transformers, known_types

    if "muse_spark_vision" not in known_types():
        pytest.skip("this transformers has no muse_spark_vision")
    values = {
        "model_type": "muse_spark_vision", "hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 50,
        "patch_size": 14, "patch_temporal": 2, "num_attention_heads": 16,
    }  # fmt: skip
    w = from_transformers(values, Request(), "vision")
    # 16 x 16 pieces of 2 x 3 x 14 x 14 numbers, all in one window of 32 x 32; each layer 4 h^2 + 2 h f and 2 s h
    layer = 4 * 1536**2 + 2 * 1536 * 8960 + 2 * 256 * 1536
    assert w.flop("matmul") == 2 * 256 * (50 * layer + 2 * 3 * 14 * 14 * 1536)


def test_pieces_of_a_picture_counted_by_their_elements_are_places_in_the_text():
    from types import SimpleNamespace

    from joulecast.workloads.transformers_repairs import repaired

    config = SimpleNamespace(image_token_id=7, text_config=SimpleNamespace(hidden_size=4096))
    error = ValueError(f"Image features and image tokens do not match, tokens: 0, features: {576 * 4096}")
    more = repaired({"input_ids": torch.full((1, 32), 5)}, error, config, {}, False)
    assert int((more["input_ids"] == 7).sum()) == 576


def test_a_text_is_as_long_as_the_sound_that_it_goes_with():
    from joulecast.workloads.transformers_repairs import repaired

    inputs = {"input_ids": torch.full((1, 32), 5), "input_features": torch.zeros(1, 128, 512)}
    error = RuntimeError(
        "Attempting to broadcast a dimension of length 64 at -2! Mismatching argument at index 1 had "
        "torch.Size([1, 64, 3072]); but expected shape should be broadcastable to [1, 32, 3072]"
    )
    more = repaired(inputs, error, object(), {}, False)
    assert more["input_ids"].tolist() == [[5] * 64]
    assert more["input_features"] is inputs["input_features"]


def test_an_entry_that_results_lack_is_empty_while_a_model_is_run_and_gone_afterwards():
    from contextlib import ExitStack

    from transformers.modeling_outputs import CausalLMOutput

    from joulecast.workloads.transformers_configs import completed_result

    error = AttributeError("'CausalLMOutput' object has no attribute 'image_outputs'")
    with ExitStack() as undo:
        assert completed_result(error, undo)
        assert CausalLMOutput().image_outputs is None
    assert not hasattr(CausalLMOutput, "image_outputs")
    assert not completed_result(AttributeError("'Linear' object has no attribute 'image_outputs'"), ExitStack())


class Picky(torch.nn.Module):
    """A model that runs on what `accepts` lets pass."""

    def __init__(self, accepts):
        from transformers import BertConfig

        super().__init__()
        self.config = BertConfig(vocab_size=99, hidden_size=8)
        self.embed = torch.nn.Embedding(99, 8, device="meta")
        self.accepts = accepts

    def forward(self, input_ids):
        return self.accepts(self.embed(input_ids))


def run(model):
    from joulecast.workloads.request import Request
    from joulecast.workloads.transformers_run import _traced

    return _traced(model.config, Request(prompt_tokens=32), "picky", model, torch.float32)


def test_a_model_that_takes_one_token_at_a_time_is_given_one():
    def single(x):
        if x.shape[1] > 1:
            raise ValueError("one token at a time")
        return x @ x.mT

    w = run(Picky(single))
    assert "it takes one token at a time" in w.notes
    assert w.flop("matmul") == 2 * 8  # one number of eight products


def test_a_mask_that_depends_on_weights_and_its_opposite_agree():
    def both(x):
        mask = (x > 0).flatten()
        parts = torch.cat([x.flatten(), x.flatten()])[torch.cat([mask, ~mask])]
        return parts.reshape(x.shape[1], 8) @ torch.empty(8, 4, device="meta")  # of each two numbers one

    w = run(Picky(both))
    assert w.flop("matmul") == 2 * 32 * 8 * 4
    assert any("taken to hold" in note for note in w.notes)


def test_lengths_that_depend_on_weights_agree_with_their_sum():
    def longer(x):
        lengths = x.sum(-1).round().long()
        room = torch.zeros(int(lengths.sum()), 8, device="meta")
        room[:] = x[0].repeat_interleave(lengths[0], dim=0)
        return room @ torch.empty(8, 4, device="meta")

    assert run(Picky(longer)).flop("matmul") == 2 * 32 * 8 * 4  # one place a token


def test_noise_decides_the_same_each_time():
    def noisy(x):
        kept = torch.randn(64, device="meta") > 0  # of known noise, so that sizes follow from it
        return torch.zeros(64, 8, device="meta")[kept] @ x[0].T

    assert run(Picky(noisy)).flop("matmul") == run(Picky(noisy)).flop("matmul")


def test_where_a_model_asks_for_more_than_can_be_made_its_part_is_run():
    from joulecast.workloads.transformers_run import _that_runs

    class Video(Picky):
        def forward(self, inference_session):
            return inference_session

    video = Video(lambda x: x)
    video.inner = Picky(lambda x: x)
    assert _that_runs(video) is video.inner


def test_text_and_picture_are_run_together():
    from joulecast.workloads.request import Request
    from joulecast.workloads.transformers_models import from_transformers

    text = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1,
            "num_attention_heads": 4, "vocab_size": 99}  # fmt: skip
    vision = {"model_type": "clip_vision_model", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
              "num_attention_heads": 4, "image_size": 56, "patch_size": 14}  # fmt: skip
    values = {"model_type": "llava", "text_config": text, "vision_config": vision, "image_token_index": 7}
    w = from_transformers(values, Request(prompt_tokens=32), "llava")
    assert not any("text alone" in note for note in w.notes)
    assert w.flop("conv2d") == 2 * 16 * 3 * 14 * 14 * 32  # the picture's 16 patches
