"""PyTorch programs as workloads: modules on meta, fake and CPU tensors, gradients, optimizers, captures."""

from __future__ import annotations

import sys

import pytest

import joulecast as jc

torch = pytest.importorskip("torch")


class Mlp(torch.nn.Module):
    def __init__(self, width: int = 64, depth: int = 4):
        super().__init__()
        self.layers = torch.nn.ModuleList(
            torch.nn.Sequential(torch.nn.Linear(width, 4 * width), torch.nn.GELU(), torch.nn.Linear(4 * width, width))
            for _ in range(depth)
        )

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x)
        return x


def rows(workload, kind):
    """Rows of one kind as (columns, count)."""
    table = workload.tables[kind]
    return [({name: table[name][i] for name in table.columns}, table["count"][i]) for i in range(len(table))]


def test_flop_of_an_mlp_is_two_a_multiply_add():
    # 4 layers x 2 products of 64 x 256, 32 rows
    w = jc.workload(Mlp(), torch.empty(32, 64))
    assert w.flop("matmul") == 2 * 32 * 4 * 2 * 64 * 256
    assert w.parameters == 4 * (2 * 64 * 256 + 256 + 64)
    assert w.memory.weights_bytes == 4 * w.parameters


@pytest.mark.parametrize("train", [False, True])
def test_the_count_is_equal_on_meta_fake_and_cpu_tensors(train):
    def build(device):
        model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.BatchNorm2d(8), torch.nn.ReLU(),
                                    torch.nn.Flatten(), torch.nn.Linear(8 * 64, 10))  # fmt: skip
        return jc.workload(model, torch.randn(4, 3, 8, 8), device=device, train=train)

    meta, fake, cpu = (build(device) for device in ("meta", "fake", "cpu"))
    assert meta.flop("matmul") == fake.flop("matmul") == cpu.flop("matmul") > 0
    assert meta.operations == fake.operations == cpu.operations


def test_layers_like_earlier_ones_are_counted_as_if_they_were_run():
    with torch.device("meta"):
        model = Mlp(depth=9)
    x = torch.empty(32, 64, device="meta")
    short, full = jc.workload(model, x), jc.workload(model, x, repeat=False)
    assert short.flop("all") == full.flop("all")
    assert short.operations == full.operations
    assert short.layers == full.layers


def test_gradients_take_twice_the_products_and_know_their_modules():
    w = jc.workload(Mlp(), torch.empty(32, 64, requires_grad=True), train=True, optimizer=torch.optim.AdamW)
    forward = w.flop("matmul", phase="forward")
    assert w.flop("matmul", phase="backward") == 2 * forward
    assert [one.phase for one in w.passes] == ["forward", "backward", "optimizer"]
    gemm = w.tables["gemm"]
    assert {w.layers[layer] for layer in gemm["layer"]} == {"layers.*.0", "layers.*.2"}


def test_an_optimizer_updates_every_parameter_in_few_kernels():
    w = jc.workload(Mlp(), torch.empty(32, 64), train=True, optimizer=torch.optim.AdamW)
    step = [one.phase for one in w.passes].index("optimizer")
    elementwise = w.tables["elementwise"]
    sizes = elementwise["elements"][(elementwise["pass_id"] == step) & (elementwise["elements"] > 100)]
    assert set(sizes.tolist()) == {w.parameters}
    assert len(sizes) < 20


def test_shared_weights_are_counted_once():
    class Tied(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = torch.nn.Embedding(100, 16)
            self.head = torch.nn.Linear(16, 100, bias=False)
            self.head.weight = self.embedding.weight

        def forward(self, index):
            return self.head(self.embedding(index))

    w = jc.workload(Tied(), torch.zeros(2, 8, dtype=torch.int64))
    assert w.parameters == 1600
    assert w.memory.weights_bytes == 6400


def test_a_module_is_as_it_was_after_it_is_recorded():
    model = Mlp()
    before = [one.data_ptr() for one in model.parameters()]
    training = model.training
    jc.workload(model, torch.empty(2, 64))
    assert [one.data_ptr() for one in model.parameters()] == before
    assert model.training == training
    assert torch.nn.Module.__call__.__qualname__.startswith("Module.")


@pytest.mark.parametrize("causal", [False, True])
def test_fused_attention_counts_as_its_pieces_do(causal):
    batch, heads, length, width = 2, 4, 32, 16

    class Fused(torch.nn.Module):
        def forward(self, q, k, v):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)

    class Pieces(torch.nn.Module):
        def forward(self, q, k, v):
            scores = q @ k.transpose(-1, -2) / width**0.5
            if causal:
                shown = torch.ones(length, length, dtype=torch.bool, device=q.device).tril()
                scores = scores.masked_fill(~shown, float("-inf"))
            return scores.softmax(-1) @ v

    q = torch.randn(batch, heads, length, width)
    fused, pieces = jc.workload(Fused(), q, q, q), jc.workload(Pieces(), q, q, q)
    written = jc.workload(Pieces(), q, q, q, attention="eager")
    # two products of length x length x width a head
    assert fused.flop("matmul", causal="full") == 4 * batch * heads * length**2 * width
    assert pieces.flop("matmul", causal="full") == fused.flop("matmul", causal="full")
    assert pieces.flop("matmul") == fused.flop("matmul")
    assert written.flop("matmul") == fused.flop("matmul", causal="full")
    kind = "context_attention" if causal else "encoder_attention"
    assert kind in fused.tables
    assert kind in pieces.tables
    assert "batched_gemm" in written.tables


def test_a_capture_records_any_code_and_a_decorator_each_call():
    model = Mlp()
    with jc.capture() as recording:
        model(torch.randn(8, 64)).sum().backward()
    assert recording.workload.flop("matmul") == 3 * 2 * 8 * 4 * 2 * 64 * 256 - 2 * 8 * 64 * 256

    @jc.capture(name="step")
    def step(x):
        return model(x)

    assert step(torch.randn(8, 64)).shape == (8, 64)
    assert step.workload.name == "step"
    assert step.workload.flop("matmul") == 2 * 8 * 4 * 2 * 64 * 256


def test_a_recording_that_fails_leaves_nothing_behind():
    class Broken(torch.nn.Module):
        def forward(self, _):
            raise RuntimeError("no such thing\nsecond line")

    with pytest.raises(jc.InputError, match=r"Broken on the example inputs failed: RuntimeError: no such thing$"):
        jc.workload(Broken(), torch.empty(1))
    assert jc.workload(Mlp(), torch.empty(1, 64)).flop("matmul") > 0


def test_a_custom_operator_costs_what_its_owner_says():
    library = torch.library.Library("joulecast_test", "DEF")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: x * 2, "CompositeExplicitAutograd")

    class Own(torch.nn.Module):
        def forward(self, x):
            return torch.ops.joulecast_test.twice(x) @ x

    w = jc.workload(Own(), torch.empty(8, 8))
    assert w.unpriced == {"joulecast_test::twice": 2 * 8 * 8 * 4}
    with pytest.raises(jc.InputError, match="can't be priced: joulecast_test::twice"):
        jc.workload(Own(), torch.empty(8, 8), strict=True)
    alone = torch.nn.Module()
    alone.forward = torch.ops.joulecast_test.twice
    with pytest.raises(jc.InputError, match=r"only operators that can't be priced: joulecast_test::twice; @jc\.op"):
        jc.predict(jc.workload(alone, torch.empty(8, 8)), "a100")

    @jc.op_cost("joulecast_test::twice")
    def cost(x, *, out):
        return {"kind": "elementwise", "op": "scale", "elements": out.numel(), "dtype": "fp32"}

    try:
        w = jc.workload(Own(), torch.empty(8, 8), strict=True)
    finally:
        from joulecast.workloads.pytorch_costs import forget_op_cost

        forget_op_cost("joulecast_test::twice")
    assert not w.unpriced
    assert w.tables["elementwise"]["elements"].tolist() == [64]


def test_counts_are_those_of_torchs_own_counter():
    # of convolutions in one group: the gradient of grouped filters it counts once for each pair of groups
    from torch.utils.flop_counter import FlopCounterMode

    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 3, stride=2, padding=1), torch.nn.BatchNorm2d(16), torch.nn.ReLU(),
        torch.nn.Conv2d(16, 16, 3, padding=1), torch.nn.ConvTranspose2d(16, 8, 2, stride=2),
        torch.nn.Flatten(), torch.nn.Linear(8 * 256, 10),
    )  # fmt: skip
    x = torch.randn(2, 3, 16, 16, requires_grad=True)
    with FlopCounterMode(display=False) as counter:
        model(x).sum().backward()
    w = jc.workload(model, x, train=True)
    assert w.flop("matmul") == counter.get_total_flops()


def test_without_torch_the_line_that_installs_it_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(jc.JoulecastError, match=r"pip install 'joulecast\[torch\]'"):
        jc.capture()


def test_the_place_of_a_freed_tensor_is_not_taken_for_it():
    from joulecast.workloads.pytorch_values import Places

    places = Places()
    # an allocator gives the same place again as soon as one is free
    assert len({places.of(torch.empty(256, device="meta")) for _ in range(200)}) == 200
    assert len({places.of(torch.empty(256)) for _ in range(200)}) == 200
    kept = torch.empty(4)
    assert places.of(kept) == places.of(kept.view(2, 2))


def test_a_programs_own_autocast_is_taken_as_on_a_gpu():
    class Mixed(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = torch.nn.Linear(64, 64), torch.nn.Linear(64, 64)

        def forward(self, x):
            with torch.autocast("cuda", dtype=torch.bfloat16):
                y = self.a(x)
            return self.b(y.float())

    w = jc.workload(Mixed(), torch.empty(8, 64))
    assert sorted(w.tables["gemm"].words("dtype")) == ["bf16", "fp32"]
    assert not torch.is_autocast_enabled("cuda")


def test_nested_and_sparse_tensors_are_told_of_or_run():
    nested = torch.nested.nested_tensor([torch.randn(3, 64), torch.randn(5, 64)], layout=torch.jagged)
    with pytest.raises(jc.errors.InputError, match="nested") as refused:
        jc.workload(torch.nn.Linear(64, 64), nested)
    assert "\n" not in str(refused.value)

    class Graph(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(16, 16)

        def forward(self, a, x):
            return torch.sparse.mm(a, self.linear(x))

    w = jc.workload(Graph(), torch.eye(32).to_sparse(), torch.randn(32, 16))
    assert w.tables["gemm"]["n"].tolist() == [16.0]
    assert w.unpriced or "gather" in w.tables


def test_places_given_as_a_list_are_known_values():
    from joulecast.workloads.pytorch_run import meta_inputs, new_session

    session = new_session({}, None)
    sizes = meta_inputs(torch.tensor([[1, 16, 8]]), session)
    with session:
        turned = sizes[:, [0, 2, 1]]
        chosen = sizes[0][[True, False, True]]
        sizes[:, [1]] = 5
    known = session.recorder.values.of
    assert known(turned).tolist() == [[1, 8, 16]]
    assert known(chosen).tolist() == [1, 8]
    assert known(sizes).tolist() == [[1, 5, 8]]
