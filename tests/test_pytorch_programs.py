"""What programs run on a GPU: formats by operator, packed weights, recurrent layers, compilers, saved programs."""

from __future__ import annotations

import inspect
import json
import sys
import zipfile

import pytest

import joulecast as jc
from joulecast.cli import main

torch = pytest.importorskip("torch")
F = pytest.importorskip("torch.nn.functional")


def only(workload, kind):
    """Columns of the one row of a kind."""
    table = workload.tables[kind]
    assert len(table) == 1
    return {name: table[name][0] for name in table.columns}


class Calls(torch.nn.Module):
    """A module that is one function."""

    def __init__(self, function, **modules):
        super().__init__()
        for name, module in modules.items():
            setattr(self, name, module)
        self.function = function

    def forward(self, *inputs):
        return self.function(self, *inputs)


# ------------------------------------------------------------------ formats


def test_fp32_convolutions_run_in_tf32_and_multiplies_only_where_allowed():
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.Flatten(), torch.nn.Linear(8 * 36, 4))
    x = torch.empty(2, 3, 8, 8)
    w = jc.workload(net, x)
    assert w.tables["conv2d"].words("dtype") == ["tf32"]
    assert w.tables["gemm"].words("dtype") == ["fp32"]
    torch.set_float32_matmul_precision("high")
    try:
        assert jc.workload(net, x).tables["gemm"].words("dtype") == ["tf32"]
    finally:
        torch.set_float32_matmul_precision("highest")


def test_autocast_narrows_multiplies_and_keeps_norms_wide():
    net = torch.nn.Sequential(
        torch.nn.Linear(64, 64), torch.nn.LayerNorm(64), torch.nn.Linear(64, 64), torch.nn.Softmax(-1)
    )
    w = jc.workload(net, torch.empty(8, 64), autocast="bf16")
    assert set(w.tables["gemm"].words("dtype")) == {"bf16"}
    assert set(w.tables["row_reduction"].words("dtype")) == {"fp32"}
    casts = w.tables["elementwise"]
    formats = zip(casts.words("dtype"), casts.words("out_dtype"), casts["count"], strict=True)
    assert sum(count for a, b, count in formats if (a, b) == ("fp32", "bf16")) == 6  # weights, biases, inputs of two


def test_dtype_prices_an_fp32_program_in_another_format():
    w = jc.workload(torch.nn.Linear(64, 64), torch.empty(8, 64), dtype="bf16")
    assert w.tables["gemm"].words("dtype") == ["bf16"]


@pytest.mark.parametrize(
    ("name", "fields", "format"),
    [("Linear4bit", {}, "w4a16"), ("Linear8bitLt", {}, "w8a8"), ("WQLinear_GEMM", {}, "w4a16"),
     ("QuantLinear", {"bits": 8}, "w8a16"), ("FP8Linear", {}, "fp8_block")],
)  # fmt: skip
def test_linear_layers_with_packed_weights_are_known_by_their_class(name, fields, format):
    def forward(self, x):
        return x.new_zeros((*x.shape[:-1], self.out_features))

    layer = type(name, (torch.nn.Module,), {"forward": forward})()
    layer.in_features, layer.out_features = 256, 512
    layer.register_buffer("qweight", torch.zeros(256 * 512 // 8, dtype=torch.int32))
    for key, value in fields.items():
        setattr(layer, key, value)
    w = jc.workload(torch.nn.Sequential(layer), torch.empty(4, 256, dtype=torch.bfloat16))
    row = only(w, "gemm")
    assert (row["m"], row["n"], row["k"]) == (4, 512, 256)
    assert w.tables["gemm"].words("dtype") == [format]


# ------------------------------------------------------------------ operators


@pytest.mark.parametrize(
    ("layer", "shape", "macs"),
    [
        (torch.nn.Conv2d(8, 16, 3, stride=2, padding=1), (2, 8, 16, 16), 2 * 8 * 8 * 16 * 8 * 9),
        (torch.nn.Conv2d(8, 16, 3, groups=4, padding=1), (2, 8, 16, 16), 2 * 256 * 16 * 2 * 9),
        (torch.nn.Conv2d(8, 8, 3, groups=8), (2, 8, 16, 16), 2 * 14 * 14 * 8 * 9),
        (torch.nn.Conv2d(8, 16, (1, 7), padding=(0, 3)), (2, 8, 16, 16), 2 * 256 * 16 * 8 * 7),
        (torch.nn.Conv2d(8, 16, 3, dilation=2), (2, 8, 16, 16), 2 * 144 * 16 * 8 * 9),
        (torch.nn.ConvTranspose2d(8, 16, 2, stride=2), (2, 8, 16, 16), 2 * 256 * 8 * 16 * 4),
        (torch.nn.Conv1d(8, 16, 5, stride=2, padding=2), (2, 8, 64), 2 * 32 * 16 * 8 * 5),
        (torch.nn.Conv3d(8, 16, 3, padding=1), (2, 8, 4, 16, 16), 2 * 4 * 256 * 16 * 8 * 27),
    ],
)
def test_convolutions_of_all_sorts_count_their_taps(layer, shape, macs):
    x = torch.empty(shape)
    w = jc.workload(layer, x)
    assert w.flop("matmul") == 2 * macs
    trained = jc.workload(layer, x.requires_grad_(), train=True)
    assert trained.flop("matmul", phase="backward") == 4 * macs
    assert "conv2d_data_gradient" in trained.tables
    assert "conv2d_weight_gradient" in trained.tables


def test_channels_last_is_told():
    layer, x = torch.nn.Conv2d(8, 16, 3), torch.empty(2, 8, 16, 16)
    last = jc.workload(layer.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last))
    assert only(last, "conv2d")["channels_last"] == 1
    assert only(jc.workload(layer, x), "conv2d")["channels_last"] == 0


def test_a_recurrent_layer_multiplies_inputs_at_once_and_states_step_by_step():
    # LSTM, two layers: 4 gates; inputs of 20 steps x 3, then 20 products of 3 rows a layer
    w = jc.workload(torch.nn.LSTM(16, 32, num_layers=2), torch.empty(20, 3, 16))
    assert w.flop("matmul") == 2 * 20 * 3 * 4 * 32 * ((16 + 32) + (32 + 32))
    trained = jc.workload(torch.nn.GRU(16, 32), torch.empty(20, 3, 16), train=True, loss=lambda out: out[0].sum())
    assert trained.flop("matmul", phase="backward") == 2 * trained.flop("matmul", phase="forward") > 0


def test_encoder_layers_count_the_same_with_and_without_their_fast_path():
    layer = torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    x = torch.empty(2, 16, 64)
    expected = 2 * 2 * 16 * (4 * 64**2 + 2 * 64 * 128 + 2 * 16 * 64)
    for device in ("meta", "cpu"):
        w = jc.workload(torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), x, device=device)
        assert w.flop("matmul") == 2 * expected
        assert w.tables["encoder_attention"]["count"].sum() == 2


def test_embedding_bags_and_gathers_read_rows():
    bag = torch.nn.EmbeddingBag(1000, 32, mode="sum")
    w = jc.workload(bag, torch.zeros(8, 5, dtype=torch.int64))
    row = only(w, "gather")
    assert (row["rows"], row["dim"], row["table_rows"]) == (40, 32, 1000)


def test_a_sliding_window_in_the_mask_is_found():
    length, window = 64, 16

    def run(_, q, mask):
        return F.scaled_dot_product_attention(q, q, q, attn_mask=mask)

    place = torch.arange(length)
    far = place[:, None] - place[None, :]
    mask = (far >= 0) & (far < window)
    w = jc.workload(Calls(run), torch.empty(2, 4, length, 32), mask)
    row = only(w, "context_attention")
    assert (row["window_size"], row["past_len"]) == (window, 0)


def test_grouped_heads_copied_out_for_eager_attention_are_counted_as_they_were():
    def run(_, q, k):
        wide = k[:, :, None].expand(2, 2, 4, 32, 16).reshape(2, 8, 32, 16)
        return (q @ wide.transpose(-1, -2) * 0.25).softmax(-1) @ wide

    w = jc.workload(Calls(run), torch.empty(2, 8, 32, 16), torch.empty(2, 2, 32, 16))
    assert only(w, "encoder_attention")["num_heads"] == 8


def test_attention_in_pieces_has_the_gradient_of_fused_attention():
    def run(_, q, k, v):
        return (q @ k.transpose(-1, -2) * 0.25).softmax(-1) @ v

    given = [torch.empty(2, 8, 32, 16, requires_grad=True) for _ in range(3)]
    w = jc.workload(Calls(run), *given, train=True)
    assert "attention_backward" in w.tables
    assert "batched_gemm" not in w.tables


def test_phases_of_a_generation_are_prefill_and_decode():
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
                                      num_key_value_heads=2, vocab_size=100)  # fmt: skip
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config).eval()
    ids = torch.ones(1, 8, dtype=torch.int64, device="meta")
    named = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
    held = transformers.DynamicCache(config=config)
    with jc.capture() as recording, torch.no_grad():
        model(ids, use_cache=True, **{named: held})
        for _ in range(3):
            model(ids[:, :1], use_cache=True, **{named: held})
    w = recording.workload
    assert [one.phase for one in w.passes if one.tokens] == ["prefill", "decode"]
    assert sorted(w.tables["generation_attention"]["past_len"].tolist()) == [8, 9, 10]


# ------------------------------------------------------------------ compilers


def test_a_compiler_leaves_fewer_kernels_and_no_less_arithmetic():
    def run(self, x):
        y = torch.relu(self.first(x) * 2 + 1)
        return F.layer_norm(x + self.second(y), (64,))

    program = Calls(run, first=torch.nn.Linear(64, 256), second=torch.nn.Linear(256, 64))
    w = jc.workload(program, torch.empty(4096, 64))
    eager, compiled = (jc.predict(w, "a100", launch_mode=mode) for mode in ("eager", "compiled"))
    assert eager.launches == 7  # two products, scale, shift, relu, sum, norm
    assert compiled.launches == 4  # two products, the chain, the sum with the norm
    assert compiled.time_s < eager.time_s
    assert w.compiled.flop("matmul") == w.flop("matmul")


# ------------------------------------------------------------------ what is left out


def test_what_cannot_be_priced_warns_and_widens():
    library = torch.library.Library("joulecast_left_out", "DEF")
    library.define("odd(Tensor x) -> Tensor")
    library.impl("odd", lambda x: x * 2, "CompositeExplicitAutograd")
    program = Calls(lambda self, x: self.layer(torch.ops.joulecast_left_out.odd(x)), layer=torch.nn.Linear(512, 512))
    whole = jc.predict(jc.workload(torch.nn.Linear(512, 512), torch.empty(512, 512)), "a100")
    partly = jc.workload(program, torch.empty(512, 512))
    told = jc.predict(partly, "a100")
    assert any("odd" in one for one in told.warnings)
    assert told.interval("time_s")[1] > whole.interval("time_s")[1]
    with pytest.raises(jc.InputError, match=r"can't be priced: \w+::odd"):
        jc.predict(partly, "a100", strict=True)


# ------------------------------------------------------------------ saved programs and factories


class Saved(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(32, 32) for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x).relu()
        heads = x.view(2, 4, 2, 16).transpose(1, 2)
        return F.scaled_dot_product_attention(heads, heads, heads, is_causal=True)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "program.pt2"
    torch.export.save(torch.export.export(Saved(), (torch.randn(2, 4, 32),)), path)
    return path


def test_a_saved_program_counts_as_its_module_does(saved):
    read, recorded = jc.workload(saved), jc.workload(Saved(), torch.empty(2, 4, 32))
    assert read.flop("all") == recorded.flop("all")
    assert read.operations == recorded.operations
    assert read.parameters == recorded.parameters == 3 * (32 * 32 + 32)
    assert set(read.layers) == set(recorded.layers)


def test_a_damaged_program_is_one_line(saved, tmp_path):
    cut = tmp_path / "cut.pt2"
    cut.write_bytes(saved.read_bytes()[:500])
    with pytest.raises(jc.InputError):
        jc.workload(cut)
    odd = tmp_path / "odd.pt2"
    with zipfile.ZipFile(odd, "w") as archive:
        archive.writestr("odd/models/model.json", '{"graph_module": 3}')
    with pytest.raises(jc.InputError, match=r"odd\.pt2 is no program that torch.export saved"):
        jc.workload(odd)


def changed(path, out, change, *, packed=zipfile.ZIP_STORED):
    """A saved program whose graph went through `change`."""
    with zipfile.ZipFile(path) as held, zipfile.ZipFile(out, "w", packed) as made:
        for name in held.namelist():
            data = held.read(name)
            if name.endswith(".json") and "/models/" in name:
                document = json.loads(data)
                change(document["graph_module"]["graph"])
                data = json.dumps(document).encode()
            made.writestr(name, data)
    return out


def given(name, value, kind=1):
    return {"name": name, "arg": value, "kind": kind}


@pytest.mark.parametrize("operator", ["save", "from_file"])
def test_a_saved_program_touches_no_file(saved, tmp_path, operator):
    """Both write to the path they are given when PyTorch runs them."""
    file = tmp_path / "touched"
    arguments = {
        "save": [given("item", {"as_string": "x"}), given("filename", {"as_string": str(file)})],
        "from_file": [given("filename", {"as_string": str(file)}), given("shared", {"as_bool": True}),
                      given("size", {"as_int": 8})],
    }[operator]  # fmt: skip
    node = {"target": f"torch.ops.aten.{operator}.default", "inputs": arguments, "metadata": {},
            "outputs": [{"as_tensor": {"name": "made"}}]}  # fmt: skip
    path = changed(saved, tmp_path / "writes.pt2", lambda graph: graph["nodes"].insert(0, node))
    jc.workload(path)
    assert not file.exists()


def test_a_saved_program_makes_no_data(saved, tmp_path):
    """A tensor of 40 TB made of nothing has its bytes counted, and takes none."""
    node = {"target": "torch.ops.aten.ones.default", "inputs": [given("size", {"as_ints": [10**13]})], "metadata": {},
            "outputs": [{"as_tensor": {"name": "made"}}]}  # fmt: skip
    w = jc.workload(changed(saved, tmp_path / "large.pt2", lambda graph: graph["nodes"].insert(0, node)))
    assert w.memory.activation_bytes >= 4e13


@pytest.mark.parametrize("field", [{"dtype": 999}, {"sizes": [{"as_int": -5}]}, {"sizes": [{"as_int": 10**30}]}, None])
def test_a_program_with_impossible_tensors_is_one_line(saved, tmp_path, field):
    def change(graph):
        described = next(iter(graph["tensor_values"].values()))
        described.update(field or {})
        if field is None:
            del described["sizes"]

    with pytest.raises(jc.InputError, match="can't be followed at its inputs"):
        jc.workload(changed(saved, tmp_path / "wrong.pt2", change))


@pytest.mark.parametrize("damage", ["deflated", "encrypted"])
def test_a_zip_that_cannot_be_unpacked_is_one_line(saved, tmp_path, damage):
    path = changed(saved, tmp_path / "packed.pt2", lambda _: None, packed=zipfile.ZIP_DEFLATED)
    with zipfile.ZipFile(path) as archive:
        member = next(one for one in archive.infolist() if "/models/" in one.filename)
    data = bytearray(path.read_bytes())
    if damage == "deflated":
        start = member.header_offset + 30 + len(member.filename)
        data[start : start + 400] = bytes(byte ^ 0x55 for byte in data[start : start + 400])
    else:
        data[member.header_offset + 6] |= 1  # the flag of encryption, here and in the directory at the end
        data[data.rfind(b"PK\x01\x02", 0, data.rfind(member.filename.encode())) + 8] |= 1
    path.write_bytes(data)
    with pytest.raises(jc.InputError, match="is damaged"):
        jc.workload(path)


def test_a_factory_of_the_users_is_priced_from_the_command_line(tmp_path, monkeypatch, capsys):
    (tmp_path / "own_program_of_a_test.py").write_text(
        "import torch\n\n\ndef make():\n    return torch.nn.Linear(64, 64), torch.empty(8, 64)\n\n\n"
        "def broken():\n    raise ValueError('nothing here')\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    place = "own_program_of_a_test"
    assert main(["predict", "--module", f"{place}:make", "--gpu", "h100", "--json"]) == 0
    assert '"workload": "make"' in capsys.readouterr().out
    assert main(["predict", "--module", f"{place}:broken", "--gpu", "h100"]) == 2
    assert capsys.readouterr().err.strip().endswith(f"{place}:broken failed: ValueError: nothing here")
    assert main(["predict", "--module", "no such thing", "--gpu", "h100"]) == 2
    assert "package.module:factory" in capsys.readouterr().err


@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_a_generation_takes_its_true_steps_without_data_too(device):
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
                                      num_key_value_heads=2, vocab_size=100)  # fmt: skip
    with torch.device(device):
        model = transformers.LlamaForCausalLM(config).eval()
        ids = torch.ones(1, 8, dtype=torch.int64)
    with jc.capture() as recording, torch.no_grad():
        out = model.generate(ids, max_new_tokens=5, min_new_tokens=5, do_sample=False)
    assert out.shape == (1, 13)
    w = recording.workload
    assert {one.phase: one.tokens for one in w.passes if one.tokens} == {"prefill": 8, "decode": 4}
    # a token: 2 layers of 64 x (64 + 2 x 32 + 64) and three products of 64 x 128, a head of 64 x 100 on the last
    layer = 64 * (64 + 2 * 32 + 64) + 3 * 64 * 128
    pairs = (8 * 9 // 2, 9 + 10 + 11 + 12)
    for phase, tokens, seen, heads in (("prefill", 8, pairs[0], 1), ("decode", 4, pairs[1], 4)):
        macs = 2 * (tokens * layer + 2 * seen * 64) + heads * 64 * 100
        assert (
            w.flop("gemm", phase=phase)
            + w.flop("context_attention", phase=phase)
            + w.flop("generation_attention", phase=phase)
            == 2 * macs
        )


@pytest.mark.parametrize("kind", ["Llama", "Gemma2"])
def test_layers_that_write_to_a_cache_are_counted_as_if_they_were_run(kind):
    # Gemma 2 alternates layers that see all with layers that see a window of 16
    transformers = pytest.importorskip("transformers")
    config = getattr(transformers, f"{kind}Config")(
        hidden_size=64, intermediate_size=128, num_hidden_layers=8, num_attention_heads=4, num_key_value_heads=2,
        head_dim=16, vocab_size=100, **({"sliding_window": 16} if kind == "Gemma2" else {}),
    )  # fmt: skip
    with torch.device("meta"):
        model = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    named = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"

    def recorded(repeat):
        held = transformers.DynamicCache(config=config)
        with jc.capture(repeat=repeat) as recording, torch.no_grad():
            for length in (40, 1, 1):
                model(torch.ones(2, length, dtype=torch.int64, device="meta"), use_cache=True, **{named: held})
        return recording.workload, [tuple(one.keys.shape) for one in held.layers]

    (short, shapes), (full, true_shapes) = recorded(True), recorded(False)
    assert shapes == true_shapes
    assert short.flop("all") == full.flop("all")
    assert short.operations == full.operations
    assert short.layers == full.layers


# ------------------------------------------------------------------ attention of the user's own kind


def flexing(mask_mod=None, length=1024, side=128):
    from torch.nn.attention import flex_attention as flex

    mask = None
    if mask_mod is not None:
        mask = flex.create_block_mask(mask_mod, None, None, length, length, device="cpu", BLOCK_SIZE=side)
    module = Calls(lambda _, q, k, v: flex.flex_attention(q, k, v, block_mask=mask, enable_gqa=True))
    q, kv = torch.empty(2, 8, length, 64), torch.empty(2, 2, length, 64)
    return module, (q, kv, kv)


def causal(batch, head, query, key):
    return query >= key


def test_flex_attention_with_a_causal_mask_is_that_of_the_fused_kernel():
    module, inputs = flexing(causal)
    fused = Calls(lambda _, q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True))
    assert only(jc.workload(module, *inputs), "context_attention") == only(
        jc.workload(fused, *inputs), "context_attention"
    )


def test_flex_attention_counts_the_blocks_that_its_mask_lets_in():
    def documents(batch, head, query, key):
        return query // 256 == key // 256  # four documents of two blocks each: a quarter of the keys

    module, inputs = flexing(documents)
    whole, _ = flexing()
    # two products of 8 heads x 1024 queries x keys x 64, 2 FLOP each, batch 2
    assert jc.workload(whole, *inputs).flop("encoder_attention") == 2 * 2 * 2 * 8 * 1024 * 1024 * 64
    assert only(jc.workload(module, *inputs), "encoder_attention")["kv_len"] == 256


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the compiler's own imports
def test_flex_attention_under_another_name_and_its_gradient_are_recorded_and_it_is_itself_again():
    from torch.nn.attention.flex_attention import flex_attention

    code = flex_attention.__code__
    module = Calls(lambda _, q: torch.compile(flex_attention)(q, q, q))
    x = torch.empty(1, 4, 256, 64, requires_grad=True)
    w = jc.workload(module, x, train=True)
    assert only(w, "attention_backward")["query_len"] == 256
    assert flex_attention.__code__ is code


# ------------------------------------------------------------------ other layers


def test_a_projected_lstm_multiplies_by_the_width_that_its_cells_hand_on():
    w = jc.workload(torch.nn.LSTM(256, 512, num_layers=2, proj_size=128), torch.empty(100, 8, 256))
    # 800 steps of a sequence: inputs, 4 gates of 512 from 128 handed on, the projection to them
    first = 4 * 512 * 256 + 4 * 512 * 128 + 128 * 512
    second = 4 * 512 * 128 + 4 * 512 * 128 + 128 * 512
    assert w.flop("matmul") == 2 * 800 * (first + second)


@pytest.mark.parametrize("shape", [(64, 32), (4, 64, 32)])
def test_a_product_of_complex_numbers_is_four_of_real_ones(shape):
    x = torch.empty(*shape, dtype=torch.complex64)
    w = jc.workload(Calls(lambda _, one: one @ one.mT), x)
    products = 64 * 64 * 32 * (4 if len(shape) == 3 else 1)
    assert w.flop("matmul") == 4 * 2 * products
    assert {kind for table in w.tables.values() if "m" in table.columns for kind in table.words("dtype")} == {"fp32"}


def test_a_module_that_is_sharded_is_refused_before_it_is_touched():
    class FSDPModule:
        """As PyTorch names what `fully_shard` makes of a module."""

    class FSDPLinear(FSDPModule, torch.nn.Linear):
        pass

    with pytest.raises(jc.InputError, match="sharded by fully_shard"):
        jc.workload(FSDPLinear(4, 4), torch.empty(2, 4))


@pytest.mark.parametrize("layout", ["coo", "csr"])
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
def test_a_sparse_product_takes_a_row_for_each_number_that_is_stored(layout):
    sparse = torch.eye(512).to_sparse() if layout == "coo" else torch.eye(512).to_sparse_csr()
    w = jc.workload(Calls(lambda _, a, b: torch.sparse.mm(a, b)), sparse, torch.ones(512, 64))
    taken = only(w, "gather")
    assert (taken["rows"], taken["dim"], taken["table_rows"]) == (512, 64, 512)
    assert not w.unpriced
    at = jc.workload(Calls(lambda _, a, b: a @ b), sparse, torch.ones(512, 64))
    assert only(at, "gather")["rows"] == 512
    assert not at.flop("matmul")


def test_what_runs_in_inference_mode_is_what_runs_without_gradients():
    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3), torch.nn.GroupNorm(2, 8), torch.nn.Flatten(2), torch.nn.Linear(36, 16),
        torch.nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True),
    )  # fmt: skip

    def run():
        x = net(torch.ones(2, 3, 8, 8))
        return torch.einsum("bij,bkj->bik", x, x) @ x

    found = []
    for mode in (torch.no_grad, torch.inference_mode):
        with jc.capture() as recording, mode():
            run()
        found.append(recording.workload)
    assert not found[1].unpriced
    for kind in ("gemm", "batched_gemm", "conv2d", "encoder_attention", "row_reduction"):
        assert found[1].flop(kind) == found[0].flop(kind)


def test_a_branch_of_the_program_is_run_as_the_value_that_it_hangs_on_says():
    def once(x):
        return x @ x.T

    def twice(x):
        return x @ x.T @ x

    def choose(_, x, flag):
        return torch.cond(flag.any(), once, twice, (x,))

    for flag, products in ((True, 64 * 64 * 32), (False, 2 * 64 * 64 * 32)):
        w = jc.workload(Calls(choose), torch.ones(64, 32), torch.tensor([flag]))
        assert w.flop("matmul") == 2 * products


def test_an_exported_program_is_a_module_too_and_one_without_sizes_is_refused():
    net = torch.nn.Linear(32, 8)
    exported = torch.export.export(net, (torch.ones(4, 32),)).module()
    assert jc.workload(exported, torch.ones(4, 32)).flop("matmul") == 2 * 4 * 32 * 8
    with pytest.raises(jc.InputError, match="of no size yet"):
        jc.workload(torch.nn.LazyLinear(8), torch.ones(4, 32))
