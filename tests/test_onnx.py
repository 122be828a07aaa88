"""ONNX models: real files, hand-made graphs with known answers, and files that are no models."""

from __future__ import annotations

import csv
import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

import joulecast as jc
import onnx_graphs as made
from joulecast.cli import main
from joulecast.errors import InputError
from joulecast.workloads.onnx_proto import is_onnx
from onnx_graphs import BOOL, FLOAT, HALF, INT8, INT64, UINT8, Graph

SHIPPED = Path(onnx.__file__).parent / "backend" / "test" / "data"
LIGHT = SHIPPED / "light"


def rows(workload: Any, kind: str) -> list[dict[str, Any]]:
    """The operations of one kind, words as words."""
    table = workload.tables.get(kind)
    if table is None:
        return []
    words = {one: table.words(one) for one in ("dtype", "op", "attn_dtype") if one in table.columns}
    return [
        {name: words[name][i] if name in words else float(column[i]) for name, column in table.columns.items()}
        for i in range(len(table))
    ]


# ---------------------------------------------------------------- real files


def resnet_multiply_adds() -> int:
    """He et al. 2015, table 1, 50 layers, the stride in the 3 x 3 convolution of each stage's first block."""
    total = 112 * 112 * 7 * 7 * 3 * 64
    before, size = 64, 56
    for width, blocks, step in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for block in range(blocks):
            first = step if block == 0 else 1
            total += size * size * before * width
            size //= first
            total += size * size * (9 * width * width + 4 * width * width)
            total += size * size * before * 4 * width if block == 0 else 0
            before = 4 * width
    return total + 2048 * 1000


def vgg_multiply_adds() -> int:
    """Simonyan and Zisserman 2014, table 1, column E."""
    total, before = 0, 3
    for width, depth, size in ((64, 2, 224), (128, 2, 112), (256, 4, 56), (512, 4, 28), (512, 4, 14)):
        for _ in range(depth):
            total += 9 * before * width * size * size
            before = width
    return total + 512 * 7 * 7 * 4096 + 4096 * 4096 + 4096 * 1000


def densenet_multiply_adds() -> int:
    """Huang et al. 2017, table 1: growth 32, bottlenecks of 128, transitions to half."""
    total, channels, size = 112 * 112 * 49 * 3 * 64, 64, 56
    for layers in (6, 12, 24, 16):
        for _ in range(layers):
            total += size * size * (channels * 128 + 9 * 128 * 32)
            channels += 32
        if layers != 16:
            channels //= 2
            total += size * size * 2 * channels * channels
            size //= 2
    return total + channels * 1000


def squeezenet_multiply_adds() -> int:
    """SqueezeNet 1.1 (Iandola et al. 2016, revised by its authors): fires of squeeze and expand widths."""
    total, before = 111 * 111 * 9 * 3 * 64, 64
    for squeeze, expand, size in ((16, 64, 55), (16, 64, 55), (32, 128, 27), (32, 128, 27), (48, 192, 13),
                                  (48, 192, 13), (64, 256, 13), (64, 256, 13)):  # fmt: skip
        total += size * size * (before * squeeze + squeeze * expand + 9 * squeeze * expand)
        before = 2 * expand
    return total + 13 * 13 * 512 * 1000


@pytest.mark.parametrize(
    ("name", "multiply_adds", "parameters"),
    [
        ("resnet50", resnet_multiply_adds(), 25_557_032),
        ("vgg19", vgg_multiply_adds(), 143_667_240),
        ("densenet121", densenet_multiply_adds(), 7_978_856),
        ("squeezenet", squeezenet_multiply_adds(), 1_235_496),
    ],
)
def test_totals_of_real_files_are_those_of_their_papers(name: str, multiply_adds: int, parameters: int):
    workload = jc.workload(LIGHT / f"light_{name}.onnx")
    assert workload.flop("matmul") == 2 * multiply_adds
    # the running statistics of batch norms are read too; those folded into filters are not read any more
    assert workload.parameters == pytest.approx(parameters, rel=0.02)
    assert workload.memory.weights_bytes == pytest.approx(4 * workload.parameters)
    assert not workload.unpriced


def test_every_file_that_ships_with_onnx_is_priced_or_told_of_in_one_line():
    priced, lines = 0, []
    for path in sorted(SHIPPED.glob("**/*.onnx")):
        assert is_onnx(path), path
        try:
            workload = jc.workload(path)
        except InputError as error:
            lines.append(str(error))
        else:
            priced += 1
            assert all(np.isfinite(column).all() for table in workload.tables.values()
                       for column in table.columns.values())  # fmt: skip
    assert priced >= 100
    assert len(lines) <= 0.05 * priced
    assert all("\n" not in line and "--dim" in line for line in lines)


def test_a_real_file_is_predicted_and_a_larger_batch_takes_longer():
    one = jc.predict(LIGHT / "light_resnet50.onnx", "a100-pcie-40gb", launch_mode="cuda_graph")
    many = jc.predict(
        LIGHT / "light_resnet50.onnx", "a100-pcie-40gb", launch_mode="cuda_graph", dims={"gpu_0/data_0.0": 32}
    )
    assert one.time_s < many.time_s < 32 * one.time_s
    assert many.energy_j > one.energy_j


# ---------------------------------------------------------------- the same model from another source


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made.bert(4, 512, 2048, 8, 30522, 512).save(tmp_path_factory.mktemp("onnx") / "bert.onnx")


CONFIG = {
    "model_type": "bert", "hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8,
    "intermediate_size": 2048, "vocab_size": 30522, "max_position_embeddings": 512, "type_vocab_size": 2,
    "hidden_act": "gelu",
}  # fmt: skip


@pytest.mark.parametrize("gpu", ["a100-pcie-40gb", "h100", "v100"])
def test_bert_from_onnx_is_bert_from_the_catalogue(bert: Path, gpu: str):
    from_file = jc.workload(bert, dims={"batch": 16, "sequence": 256})
    from_config = jc.workload(CONFIG, batch=16, prompt_tokens=256, dtype="fp16", logits="none")
    assert from_file.flop("matmul") == from_config.flop("matmul")
    # the host's own cost is of the framework: a launch costs the same here
    one, two = (jc.predict(each, gpu, host_us_per_launch=1.0) for each in (from_file, from_config))
    assert one.time_s == pytest.approx(two.time_s, rel=0.025)
    assert one.energy_j == pytest.approx(two.energy_j, rel=0.025)


def torch_bert(torch: Any, layers: int, width: int, inner: int, count: int, words: int, places: int) -> Any:
    """The model of `onnx_graphs.bert` as a PyTorch module."""
    nn, functional = torch.nn, torch.nn.functional

    class Layer(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))
            self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width)
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)

        def forward(self, x: Any) -> Any:
            q, k, v = (one(x).unflatten(-1, (count, -1)).transpose(1, 2) for one in (self.q, self.k, self.v))
            mixed = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
            x = self.norm1(self.out(mixed) + x)
            return self.norm2(self.down(functional.gelu(self.up(x))) + x)

    class Bert(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.words, self.kinds, self.places = (nn.Embedding(one, width) for one in (words, 2, places))
            self.norm = nn.LayerNorm(width)
            self.layers = nn.ModuleList(Layer() for _ in range(layers))

        def forward(self, ids: Any) -> Any:
            x = self.norm(self.words(ids) + self.kinds(ids) + self.places(ids))
            for layer in self.layers:
                x = layer(x)
            return x

    return Bert()


def test_bert_from_onnx_is_bert_traced_from_pytorch(bert: Path):
    torch = pytest.importorskip("torch")
    with torch.device("meta"):
        module = torch_bert(torch, 4, 512, 2048, 8, 30522, 512).half().eval()
        ids = torch.zeros((16, 256), dtype=torch.int64)
    traced = jc.workload(module, ids)
    from_file = jc.workload(bert, dims={"batch": 16, "sequence": 256})
    assert from_file.flop("matmul") == traced.flop("matmul")
    for mode in ("eager", "compiled"):
        one, two = (
            jc.predict(each, "a100-pcie-40gb", host_us_per_launch=1.0, launch_mode=mode) for each in (from_file, traced)
        )
        assert one.time_s == pytest.approx(two.time_s, rel=0.02)
        assert one.energy_j == pytest.approx(two.energy_j, rel=0.02)


def test_eager_attention_costs_more_than_fused(bert: Path):
    workload = jc.workload(bert, dims={"batch": 16, "sequence": 256})
    fused, eager = (jc.predict(workload, "h100", attention=one) for one in ("fused", "eager"))
    assert eager.time_s > fused.time_s
    assert any("attention" in note for note in workload.notes)


def test_layers_keep_the_paths_that_exporters_name(bert: Path):
    assert "layer.*.attention" in jc.workload(bert, batch=1, prompt_tokens=8).layers


# ---------------------------------------------------------------- sizes of inputs


def test_open_dimensions_are_told_in_one_line_with_an_example(bert: Path):
    with pytest.raises(InputError, match=r"--dim batch=1 --dim sequence=128$") as caught:
        jc.workload(bert)
    assert "\n" not in str(caught.value)


def test_batch_and_prompt_are_the_dimensions_called_so(bert: Path):
    named = jc.workload(bert, batch=2, prompt_tokens=64)
    given_by_dim = jc.workload(bert, dims={"batch": 2, "sequence": 64})
    assert named.flop() == given_by_dim.flop()
    assert jc.workload(bert, batch=4, prompt_tokens=64).flop("gemm") == 2 * named.flop("gemm")


@pytest.mark.parametrize(
    ("dims", "says"),
    [
        ({"batch": 2, "sequence": 4, "length": 3}, "no dimension 'length'"),
        ({"batch": -1, "sequence": 4}, "whole number"),
        ({"batch": 2.5, "sequence": 4}, "whole number"),
        ({"batch": 2**40, "sequence": 4}, "whole number"),
        ("batch=2", "must map"),
    ],
)
def test_wrong_dimensions_are_refused(bert: Path, dims: Any, says: str):
    with pytest.raises(InputError, match=says):
        jc.workload(bert, dims=dims)


def test_dimensions_are_of_onnx_models_alone():
    with pytest.raises(InputError, match="ONNX"):
        jc.workload("bert-base-uncased", dims={"batch": 2})


def test_a_dimension_may_be_a_sum_of_others(tmp_path: Path):
    g = Graph()
    x = g.input("x", ["batch", "past + new"])
    g.output(g.add("Relu", x))
    workload = jc.workload(g.save(tmp_path / "m.onnx"), dims={"batch": 2, "past": 30, "new": 2})
    assert rows(workload, "elementwise")[0]["elements"] == 64


def test_options_that_mean_nothing_are_refused(bert: Path):
    with pytest.raises(InputError, match="generate_tokens can't be asked"):
        jc.workload(bert, batch=1, prompt_tokens=8, generate_tokens=4)


def test_another_format_halves_the_weights(tmp_path: Path):
    g = Graph(FLOAT)
    g.output(g.add("MatMul", g.input("x", [64, 256]), g.weight(256, 512)))
    path = g.save(tmp_path / "m.onnx")
    plain, half, packed = (jc.workload(path, **one) for one in ({}, {"dtype": "bf16"},
                                                                {"dtype": "bf16", "weight_dtype": "int4"}))  # fmt: skip
    assert rows(plain, "gemm")[0]["dtype"] == "tf32"  # as ONNX Runtime allows by default
    assert rows(jc.workload(path, dtype="fp32"), "gemm")[0]["dtype"] == "fp32"
    assert rows(half, "gemm")[0]["dtype"] == "bf16"
    assert rows(packed, "gemm")[0]["dtype"] == "w4a16"
    assert half.memory.weights_bytes == plain.memory.weights_bytes / 2


# ---------------------------------------------------------------- what runs as one kernel


def test_batch_norm_and_relu_are_part_of_a_convolution(tmp_path: Path):
    g = Graph()
    x = g.input("x", [8, 64, 56, 56])
    x = g.add("Conv", x, g.weight(128, 64, 3, 3), strides=[2, 2], pads=[1, 1, 1, 1])
    x = g.add("BatchNormalization", x, *(g.weight(128) for _ in range(4)))
    g.output(g.add("Relu", x))
    workload = jc.workload(g.save(tmp_path / "m.onnx"))
    assert list(workload.tables) == ["conv2d"]
    found = rows(workload, "conv2d")[0]
    assert (found["height"], found["stride"], found["padding"], found["kernel_h"]) == (56, 2, 1, 3)
    assert workload.flop() == 2 * 8 * 28 * 28 * 128 * 64 * 9


@pytest.mark.parametrize(
    ("shape", "weight", "attrs", "multiply_adds"),
    [
        ([2, 16, 50], (32, 16, 3), {"pads": [1, 1]}, 2 * 50 * 32 * 16 * 3),
        ([2, 16, 9, 9], (16, 1, 3, 3), {"group": 16}, 2 * 7 * 7 * 16 * 9),
        ([2, 4, 8, 9, 9], (6, 4, 3, 3, 3), {}, 2 * 6 * 7 * 7 * 6 * 4 * 27),
        ([2, 4, 10, 10], (8, 4, 3, 3), {"pads": [0, 1, 2, 1]}, 2 * 10 * 10 * 8 * 4 * 9),
        ([2, 4, 11, 11], (8, 4, 3, 3), {"strides": [2, 2], "auto_pad": "SAME_UPPER"}, 2 * 6 * 6 * 8 * 4 * 9),
        ([2, 4, 11, 12], (8, 4, 3, 1), {"dilations": [2, 1]}, 2 * 7 * 12 * 8 * 4 * 3),
    ],
)
def test_convolutions_of_all_kinds_do_their_arithmetic(
    tmp_path: Path, shape: list[int], weight: tuple[int, ...], attrs: dict[str, Any], multiply_adds: int
):
    g = Graph()
    g.output(g.add("Conv", g.input("x", shape), g.weight(*weight), **attrs))
    assert jc.workload(g.save(tmp_path / "m.onnx")).flop("conv2d") == 2 * multiply_adds


def test_a_transposed_convolution_does_the_arithmetic_of_its_gradient(tmp_path: Path):
    g = Graph()
    g.output(g.add("ConvTranspose", g.input("x", [2, 32, 7, 7]), g.weight(32, 16, 4, 4), strides=[2, 2],
                   pads=[1, 1, 1, 1]))  # fmt: skip
    # every element of the input meets every tap of every filter
    assert jc.workload(g.save(tmp_path / "m.onnx")).flop() == 2 * 2 * 7 * 7 * 32 * 16 * 16


def test_norms_and_activations_written_out_are_one_kernel_each(tmp_path: Path):
    g = Graph()
    x = g.input("x", [4, 16, 64])
    x = made.gelu(g, made.written_norm(g, x, 64, ""), "")
    silu = g.add("Mul", x, g.add("Sigmoid", x))
    g.output(silu)
    workload = jc.workload(g.save(tmp_path / "m.onnx"))
    assert [one["op"] for one in rows(workload, "row_reduction")] == ["layer_norm"]
    assert sorted(one["op"] for one in rows(workload, "elementwise")) == ["gelu", "silu"]
    assert workload.operations == 3


def test_rms_norm_with_casts_is_one_kernel(tmp_path: Path):
    g = Graph()
    x = g.input("x", [4, 16, 64])
    wide = g.add("Cast", x, to=FLOAT)
    mean = g.add("ReduceMean", g.add("Pow", wide, g.constant(2, np.float32)), axes=[-1])
    root = g.add("Sqrt", g.add("Add", mean, g.constant(1e-6, np.float32)))
    scaled = g.add("Mul", wide, g.add("Reciprocal", root))
    g.output(g.add("Mul", g.weight(64), g.add("Cast", scaled, to=HALF)))
    workload = jc.workload(g.save(tmp_path / "m.onnx"))
    assert workload.operations == 1
    found = rows(workload, "row_reduction")[0]
    assert (found["op"], found["rows"], found["dim"], found["dtype"]) == ("layer_norm", 64, 64, "fp16")


def test_a_value_read_elsewhere_is_not_fused_away(tmp_path: Path):
    g = Graph()
    x = g.add("Conv", g.input("x", [1, 8, 9, 9]), g.weight(8, 8, 3, 3))
    g.output(g.add("Relu", x))
    g.output(x)
    assert jc.workload(g.save(tmp_path / "m.onnx")).operations == 2


@pytest.mark.parametrize("how", ["constant", "computed", "external", "none"])
def test_causal_masks_are_seen(tmp_path: Path, how: str):
    g = Graph()
    q, k, v = (g.input(name, [2, 64, 128]) for name in "qkv")
    mask = ""
    if how == "constant":
        mask = g.constant(np.triu(np.full((1, 1, 64, 64), -65504.0), 1), np.float16)
    elif how == "external":
        mask = g.weight(1, 1, 64, 64)
    elif how == "computed":
        places = g.add("Range", g.constant(0), g.constant(64), g.constant(1))
        rows_, columns = (g.add("Unsqueeze", places, g.constant([one])) for one in (1, 0))
        seen = g.add("LessOrEqual", columns, rows_)
        whole = g.add("Expand", g.add("Unsqueeze", seen, g.constant([0, 1])), g.constant([2, 1, 64, 64]))
        mask = g.add("Where", whole, g.constant(0, np.float16), g.constant(-65504, np.float16))
    g.output(made.attention(g, q, k, v, 2, 64, "", mask))
    workload = jc.workload(g.save(tmp_path / "m.onnx"))
    kind = "encoder_attention" if how == "none" else "context_attention"
    assert rows(workload, kind)[0]["num_heads"] == 2
    pairs = 64 * 64 if how == "none" else 64 * 65 / 2
    assert workload.flop("matmul") == pytest.approx(2 * 2 * 2 * 2 * pairs * 64)
    assert ("batched_gemm" in workload.tables) is False


def test_keys_and_values_copied_to_more_heads_count_once(tmp_path: Path):
    g = Graph()
    q = g.input("q", [2, 8, 32, 64])
    k, v = (g.input(name, [2, 2, 32, 64]) for name in "kv")

    def spread(x: str) -> str:
        wide = g.add("Expand", g.add("Unsqueeze", x, g.constant([2])), g.constant([2, 2, 4, 32, 64]))
        return str(g.add("Reshape", wide, g.constant([2, 8, 32, 64])))

    scores = g.add("MatMul", q, g.add("Transpose", spread(k), perm=[0, 1, 3, 2]))
    g.output(g.add("MatMul", g.add("Softmax", scores, axis=-1), spread(v)))
    found = rows(jc.workload(g.save(tmp_path / "m.onnx")), "encoder_attention")
    assert [(one["num_heads"], one["num_kv_heads"], one["count"]) for one in found] == [(8, 2, 1)]


# ---------------------------------------------------------------- few bits


def quantised(g: Graph, x: str, elem: type = np.int8) -> str:
    return str(g.add("QuantizeLinear", x, g.constant(0.1, np.float32), g.constant(0, elem)))


def dequantised(g: Graph, x: str, elem: type = np.int8) -> str:
    return str(g.add("DequantizeLinear", x, g.constant(0.1, np.float32), g.constant(0, elem)))


def test_a_convolution_between_scalings_runs_in_int8(tmp_path: Path):
    g = Graph(FLOAT)
    x = dequantised(g, quantised(g, g.input("x", [8, 64, 28, 28])))
    y = g.add("Relu", g.add("Conv", x, dequantised(g, g.weight(64, 64, 3, 3, elem=INT8)), pads=[1, 1, 1, 1]))
    y = dequantised(g, quantised(g, y))
    g.output(g.add("MaxPool", y, kernel_shape=[2, 2], strides=[2, 2]))
    workload = jc.workload(g.save(tmp_path / "m.onnx"))
    assert [one["dtype"] for one in rows(workload, "conv2d")] == ["int8"]
    # the input is quantised, the pooling's input dequantised; both are kernels
    assert len(rows(workload, "elementwise")) == 2
    assert workload.memory.weights_bytes == pytest.approx(64 * 64 * 9, rel=0.01)


@pytest.mark.parametrize(("elem", "packed"), [(INT8, "w8a16"), (TensorProto.INT4, "w4a16")])
def test_weights_alone_in_few_bits(tmp_path: Path, elem: int, packed: str):
    g = Graph(HALF, opset=21)
    scale = g.constant(0.1, np.float16)
    weight = g.add("DequantizeLinear", g.weight(256, 512, elem=elem), scale)
    g.output(g.add("MatMul", g.input("x", [4, 256]), weight))
    workload = jc.workload(g.save(tmp_path / "m.onnx"))
    assert [(one["dtype"], one["n"]) for one in rows(workload, "gemm")] == [(packed, 512)]
    assert workload.operations == 1
    assert workload.memory.weights_bytes == 256 * 512 * (1 if elem == INT8 else 0.5)


def test_products_of_integers_and_their_scales_are_one_kernel(tmp_path: Path):
    g = Graph(FLOAT)
    q, scale, zero = g.add("DynamicQuantizeLinear", g.input("x", [32, 256]), outs=3)
    y = g.add("MatMulInteger", q, g.weight(256, 512, elem=INT8), zero)
    y = g.add("Mul", g.add("Cast", y, to=FLOAT), g.add("Mul", scale, g.weight(1, elem=FLOAT)))
    g.output(g.add("Add", y, g.weight(512)))
    workload = jc.workload(g.save(tmp_path / "m.onnx"))
    assert [(one["m"], one["n"], one["k"], one["dtype"]) for one in rows(workload, "gemm")] == [(32, 512, 256, "int8")]
    assert len(rows(workload, "quantize")) == 1


# ---------------------------------------------------------------- ONNX Runtime's operators, and opset 23's


def runtime(g: Graph, op: str, *ins: str, outs: int = 1, **attrs: Any) -> Any:
    return g.add(op, *ins, outs=outs, domain="com.microsoft", **attrs)


def built_matmul_nbits(g: Graph) -> None:
    x = g.input("x", [4, 1024])
    g.output(runtime(g, "MatMulNBits", x, g.weight(2048, 32, 16, elem=UINT8), g.weight(2048 * 32), K=1024, N=2048,
                     bits=4, block_size=32))  # fmt: skip


def built_attention(g: Graph) -> None:
    x = g.input("x", [2, 128, 256])
    g.output(runtime(g, "Attention", x, g.weight(256, 768), g.weight(768), num_heads=4, unidirectional=1))


def built_multi_head(g: Graph) -> None:
    q, k, v = (g.input(one, [2, 128, 256]) for one in "qkv")
    g.output(runtime(g, "MultiHeadAttention", q, k, v, num_heads=4))


def built_grouped(g: Graph) -> None:
    q, k, v = g.input("q", [2, 1, 512]), g.input("k", [2, 1, 128]), g.input("v", [2, 1, 128])
    past_k, past_v = (g.input(one, [2, 2, 127, 64]) for one in ("past_k", "past_v"))
    lengths, total = g.input("lengths", [2], TensorProto.INT32), g.input("total", [1], TensorProto.INT32)
    out = runtime(
        g, "GroupQueryAttention", q, k, v, past_k, past_v, lengths, total, outs=3, num_heads=8, kv_num_heads=2
    )
    g.output(out[0])


def built_standard(g: Graph) -> None:
    q, k, v = g.input("q", [2, 8, 128, 64]), g.input("k", [2, 2, 128, 64]), g.input("v", [2, 2, 128, 64])
    g.output(g.add("Attention", q, k, v, is_causal=1))


def built_skip_norm(g: Graph) -> None:
    x, y = g.input("x", [2, 128, 256]), g.input("y", [2, 128, 256])
    g.output(runtime(g, "SkipLayerNormalization", x, y, g.weight(256), g.weight(256)))


def built_experts(g: Graph) -> None:
    x, scores = g.input("x", [64, 256]), g.input("scores", [64, 8])
    g.output(runtime(g, "MoE", x, scores, g.weight(8, 256, 1024), "", g.weight(8, 1024, 256), k=2))


def built_conv(g: Graph) -> None:
    x = g.input("x", [2, 16, 30, 30])
    g.output(runtime(g, "FusedConv", x, g.weight(16, 16, 3, 3), g.weight(16), activation="Relu", pads=[1, 1, 1, 1]))


def built_matmul(g: Graph) -> None:
    x, y = g.input("x", [2, 4, 32, 64]), g.input("y", [2, 4, 48, 64])
    g.output(runtime(g, "FusedMatMul", x, y, transB=1, alpha=0.5))


def built_norm(g: Graph) -> None:
    g.output(g.add("RMSNormalization", g.input("x", [2, 128, 256]), g.weight(256)))


@pytest.mark.parametrize(
    ("build", "kind", "expected"),
    [
        (built_matmul_nbits, "gemm", {"m": 4, "n": 2048, "k": 1024, "dtype": "w4a16"}),
        (built_attention, "gemm", {"m": 256, "n": 768, "k": 256, "dtype": "fp16"}),
        (built_attention, "context_attention", {"batch_size": 2, "query_len": 128, "num_heads": 4, "head_dim": 64}),
        (built_multi_head, "encoder_attention", {"seq_len": 128, "kv_len": 128, "num_heads": 4, "head_dim": 64}),
        (built_grouped, "generation_attention",
         {"past_len": 127, "query_len": 1, "num_heads": 8, "num_kv_heads": 2, "head_dim": 64}),
        (built_standard, "context_attention", {"query_len": 128, "num_heads": 8, "num_kv_heads": 2}),
        (built_skip_norm, "row_reduction", {"rows": 256, "dim": 256, "inputs": 2, "op": "layer_norm"}),
        (built_experts, "moe", {"num_tokens": 64, "hidden_size": 256, "inter_size": 1024, "topk": 2,
                                "num_experts": 8, "gated": 0}),
        (built_conv, "conv2d", {"height": 30, "padding": 1, "out_channels": 16}),
        (built_matmul, "batched_gemm", {"batch": 8, "m": 32, "n": 48, "k": 64}),
        (built_norm, "row_reduction", {"rows": 256, "dim": 256, "op": "layer_norm"}),
    ],
)  # fmt: skip
def test_fused_operators(tmp_path: Path, build: Any, kind: str, expected: dict[str, Any]):
    g = Graph(HALF, opset=23)
    build(g)
    workload = jc.workload(g.save(tmp_path / "m.onnx"))
    (found,) = rows(workload, kind)
    assert {name: found[name] for name in expected} == expected
    assert not workload.unpriced


def test_a_recurrent_layer_does_one_product_a_step(tmp_path: Path):
    g = Graph()
    x = g.input("x", [50, 4, 64])
    out = g.add("LSTM", x, g.weight(2, 512, 64), g.weight(2, 512, 128), outs=3, hidden_size=128,
                direction="bidirectional")  # fmt: skip
    g.output(out[0])
    workload = jc.workload(g.save(tmp_path / "m.onnx"))
    assert workload.flop("gemm") == 2 * 50 * 4 * 2 * 512 * (64 + 128)


def test_what_no_rule_prices_is_listed_and_strict_refuses(tmp_path: Path):
    g = Graph()
    g.domains["my.own"] = 1
    g.output(g.add("Relu", g.add("Secret", g.input("x", [1024, 1024]), domain="my.own")))
    path = g.save(tmp_path / "m.onnx")
    assert dict(jc.workload(path).unpriced) == {"Secret": 2 * 2 * 1024 * 1024}
    assert any("Secret" in one for one in jc.predict(path, "h100").warnings)
    with pytest.raises(InputError, match="Secret"):
        jc.predict(path, "h100", strict=True)


# ---------------------------------------------------------------- graphs within graphs


def loop_graph(trips: Any) -> Graph:
    g = Graph()
    x = g.input("x", [16, 256])
    inner = Graph()
    inner.input("i", [], INT64)
    inner.input("go", [], BOOL)
    inner.input("h", [16, 256])
    weight = g.weight(256, 256)
    inner.nodes.append(helper.make_node("Identity", ["go"], ["goes"]))
    inner.nodes.append(helper.make_node("MatMul", ["h", weight], ["next"]))
    inner.outputs = [helper.make_tensor_value_info("goes", BOOL, []), helper.make_tensor_value_info("next", HALF, None)]
    body = helper.make_graph(inner.nodes, "body", inner.inputs, inner.outputs)
    count = g.constant(trips) if isinstance(trips, int) else g.input("n", [], INT64)
    g.output(g.add("Loop", count, "", x, body=body))
    return g


def test_a_loop_runs_as_often_as_it_says(tmp_path: Path):
    workload = jc.workload(loop_graph(7).save(tmp_path / "m.onnx"))
    assert workload.flop("gemm") == 7 * 2 * 16 * 256 * 256


def test_a_loop_of_unknown_length_counts_once_and_says_so(tmp_path: Path):
    workload = jc.workload(loop_graph(None).save(tmp_path / "m.onnx"))
    assert workload.flop("gemm") == 2 * 16 * 256 * 256
    assert any("counted once" in note for note in workload.notes)


@pytest.mark.parametrize("known", [True, False])
def test_the_branch_that_is_taken_is_priced(tmp_path: Path, known: bool):
    g = Graph()
    x, weight = g.input("x", [16, 256]), g.weight(256, 256)

    def graph(steps: int, name: str) -> Any:
        nodes = [helper.make_node("MatMul", [x if i == 0 else f"{name}{i - 1}", weight], [f"{name}{i}"])
                 for i in range(steps)]  # fmt: skip
        return helper.make_graph(nodes, name, [], [helper.make_tensor_value_info(f"{name}{steps - 1}", HALF, None)])

    chosen = g.constant(True, np.bool_) if known else g.input("which", [], BOOL)
    g.output(g.add("If", chosen, then_branch=graph(1, "a"), else_branch=graph(3, "b")))
    workload = jc.workload(g.save(tmp_path / "m.onnx"))
    assert workload.flop("gemm") == (1 if known else 3) * 2 * 16 * 256 * 256
    assert any("branches" in note for note in workload.notes) is not known


def test_a_scan_runs_for_each_slice(tmp_path: Path):
    g = Graph()
    state, x, weight = g.input("h", [4, 64]), g.input("x", [20, 4, 64]), g.weight(64, 64)
    nodes = [helper.make_node("MatMul", ["s", weight], ["m"]), helper.make_node("Add", ["m", "row"], ["next"]),
             helper.make_node("Identity", ["next"], ["out"])]  # fmt: skip
    ends = [helper.make_tensor_value_info(name, HALF, [4, 64]) for name in ("s", "row", "next", "out")]
    body = helper.make_graph(nodes, "body", ends[:2], ends[2:])
    g.output(g.add("Scan", state, x, outs=2, body=body, num_scan_inputs=1)[1])
    assert jc.workload(g.save(tmp_path / "m.onnx")).flop("gemm") == 20 * 2 * 4 * 64 * 64


def test_sizes_that_depend_on_values_are_taken_at_their_largest(tmp_path: Path):
    g = Graph(FLOAT)
    boxes, scores = g.input("boxes", [1, 1000, 4]), g.input("scores", [1, 80, 1000])
    kept = g.add("NonMaxSuppression", boxes, scores, g.constant(100))
    picked = g.add("Gather", kept, g.constant(2), axis=1)
    g.output(g.add("Gather", g.add("Squeeze", boxes, g.constant([0])), picked, axis=0))
    workload = jc.workload(g.save(tmp_path / "m.onnx"))
    assert rows(workload, "gather")[-1]["rows"] == 80 * 100
    assert any("NonMaxSuppression" in note for note in workload.notes)
    assert not workload.unpriced


def test_memory_is_what_is_alive_at_once(tmp_path: Path):
    g = Graph(HALF)
    x = g.add("MatMul", g.input("x", [64, 256]), g.weight(256, 1024))
    g.output(g.add("MatMul", g.add("Tanh", x), g.weight(1024, 256)))
    memory = jc.workload(g.save(tmp_path / "m.onnx")).memory
    assert memory.weights_bytes == 2 * 2 * 256 * 1024
    assert memory.activation_bytes == 2 * 64 * 1024 * 2  # the wide tensor before and after the tanh


def doubling(depth: int) -> Graph:
    """Functions that call the one below twice: 2 ** depth operators from a few lines."""
    g = Graph()
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("f", 1)]
    for level in range(depth):
        op, domain = ("Relu", "") if level == 0 else (f"f{level - 1}", "f")
        nodes = [helper.make_node(op, ["a"], ["b"], domain=domain), helper.make_node(op, ["b"], ["c"], domain=domain)]
        g.functions.append(helper.make_function("f", f"f{level}", ["a"], ["c"], nodes, imports))
    g.domains["f"] = 1
    g.output(g.add(f"f{depth - 1}", g.input("x", [8]), domain="f"))
    return g


def test_functions_are_taken_apart(tmp_path: Path):
    assert jc.workload(doubling(3).save(tmp_path / "m.onnx")).operations == 8


# ---------------------------------------------------------------- files that are no models


def test_functions_that_multiply_without_end_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from joulecast.workloads import onnx_graph

    monkeypatch.setattr(onnx_graph, "MOST_STEPS", 2000)
    with pytest.raises(InputError, match="more than 2,000 operators"):
        jc.workload(doubling(30).save(tmp_path / "m.onnx"))


def test_weights_in_files_elsewhere_are_never_looked_for(tmp_path: Path):
    g = Graph()
    g.output(g.add("MatMul", g.input("x", [8, 256]), g.weight(256, 512, location="../../../../etc/passwd")))
    workload = jc.workload(g.save(tmp_path / "m.onnx"))
    assert workload.memory.weights_bytes == 2 * 256 * 512


def test_a_file_of_three_gigabytes_is_read_in_little_memory(tmp_path: Path):
    g = Graph(FLOAT)
    g.output(g.add("MatMul", g.input("x", [4, 30000]), "big"))
    model = onnx.load_model_from_string(g.save(tmp_path / "m.onnx").read_bytes())
    graph = model.graph.SerializeToString()
    model.ClearField("graph")
    tensor = TensorProto(name="big", data_type=FLOAT, dims=[30000, 25000]).SerializeToString()
    size = 30000 * 25000 * 4

    def number(value: int) -> bytes:
        out = bytearray()
        while value > 127:
            out.append(value & 127 | 128)
            value >>= 7
        return bytes([*out, value])

    tensor += b"\x4a" + number(size)
    graph += b"\x2a" + number(len(tensor) + size) + tensor
    path = tmp_path / "big.onnx"
    with path.open("wb") as file:
        file.write(model.SerializeToString() + b"\x3a" + number(len(graph) + size) + graph)
        file.truncate(file.tell() + size)  # a hole: zeros that take no disk
    workload = jc.workload(path)
    assert workload.memory.weights_bytes == size
    assert workload.flop("gemm") == 2 * 4 * 30000 * 25000


def test_what_is_damaged_is_told_in_one_line(tmp_path: Path):
    whole = (LIGHT / "light_squeezenet.onnx").read_bytes()
    path = tmp_path / "m.onnx"
    for cut in (1, 7, 20, 300, 5000, len(whole) - 1):
        path.write_bytes(whole[:cut])
        with pytest.raises(InputError, match=r"no ONNX model|damaged") as caught:
            jc.workload(path)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0", "Git LFS"),
        (b"<!DOCTYPE html><html>", "no ONNX model"),
        (b"\x08\x09\x3a\x00", "without a graph"),
        (b"\x08\x09\x3a" + b"\xff" * 9 + b"\x01", "too early|beyond"),
        (b"\x08\x09\x3a\x02\x0b\x0b", "begins no field"),
        (b"\x08\x09\x12\x01\xff\x3a\x00", "is no text"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, content: bytes, says: str):
    path = tmp_path / "m.onnx"
    path.write_bytes(content)
    with pytest.raises(InputError, match=says) as caught:
        jc.workload(path)
    assert "\n" not in str(caught.value)


def test_graphs_nested_without_end_are_refused(tmp_path: Path):
    graph = b""
    for _ in range(120):  # a node with an attribute that holds a graph
        graph = b"\x0a" + _sized(b"\x2a" + _sized(b"\x32" + _sized(graph)))
    path = tmp_path / "m.onnx"
    path.write_bytes(b"\x08\x09\x3a" + _sized(graph))
    with pytest.raises(InputError, match="nests too deeply"):
        jc.workload(path)


def _sized(data: bytes) -> bytes:
    size, out = len(data), bytearray()
    while size > 127:
        out.append(size & 127 | 128)
        size >>= 7
    return bytes([*out, size]) + data


def test_a_circle_is_told(tmp_path: Path):
    g = Graph()
    x = g.input("x", [4])
    g.nodes += [helper.make_node("Add", [x, "b"], ["a"]), helper.make_node("Relu", ["a"], ["b"])]
    g.output("b")
    with pytest.raises(InputError, match="waits for itself"):
        jc.workload(g.save(tmp_path / "m.onnx"))


def test_operators_out_of_order_are_put_in_order(tmp_path: Path):
    g = Graph()
    g.nodes += [helper.make_node("Relu", ["a"], ["b"]), helper.make_node("Tanh", [g.input("x", [4])], ["a"])]
    g.output("b")
    assert jc.workload(g.save(tmp_path / "m.onnx")).operations == 2


def test_what_nothing_makes_is_told(tmp_path: Path):
    g = Graph()
    g.output(g.add("Relu", "nowhere"))
    with pytest.raises(InputError, match="'nowhere', which nothing in it makes"):
        jc.workload(g.save(tmp_path / "m.onnx"))


def test_sizes_beyond_any_machine_are_told(tmp_path: Path):
    g = Graph()
    g.output(g.add("Relu", g.input("x", [2**40, 2**40])))
    with pytest.raises(InputError, match="beyond any machine"):
        jc.workload(g.save(tmp_path / "m.onnx"))


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_bytes_give_a_workload_or_one_line(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject):
    source = data.draw(st.sampled_from(["light/light_squeezenet.onnx", "simple/test_gradient_of_add/model.onnx",
                                        "pytorch-operator/test_operator_conv/model.onnx",
                                        "simple/test_sequence_model1/model.onnx"]))  # fmt: skip
    content = bytearray((SHIPPED / source).read_bytes())
    for _ in range(data.draw(st.integers(1, 6))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.mktemp("fuzz") / "m.onnx"
    path.write_bytes(content)
    said = ""
    try:
        jc.workload(path)
    except InputError as error:
        said = str(error)
    assert "\n" not in said


def test_without_the_extra_the_line_that_installs_it_is_told(tmp_path: Path):
    path = made.bert(1, 64, 128, 2, 100, 64).save(tmp_path / "bert.onnx")
    code = f"""
import sys
sys.modules["onnx"] = None
import joulecast as jc
try:
    jc.workload({str(path)!r}, batch=1, prompt_tokens=8)
except jc.JoulecastError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'joulecast[onnx]'" in done.stdout


def test_an_onnx_model_needs_no_pytorch(tmp_path: Path):
    path = made.bert(1, 64, 128, 2, 100, 64).save(tmp_path / "bert.onnx")
    code = f"""
import sys
sys.modules["torch"] = None
import joulecast as jc
print(jc.predict({str(path)!r}, "h100", batch=1, prompt_tokens=8).time_s > 0)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True"


# ---------------------------------------------------------------- from the command line


def test_from_the_command_line(bert: Path, capsys: pytest.CaptureFixture[str]):
    asked = ["predict", str(bert), "--gpu", "a100-pcie-40gb", "--json"]
    assert main([*asked, "--dim", "batch=8", "--dim", "sequence=128"]) == 0
    by_name = capsys.readouterr().out
    assert main([*asked, "--batch", "8", "--prompt", "128"]) == 0
    assert capsys.readouterr().out == by_name


def times(text: str) -> list[str]:
    return [row["time_s"] for row in csv.DictReader(io.StringIO(text))]


def test_sweeps_and_training_take_sizes_too(bert: Path, capsys: pytest.CaptureFixture[str]):
    asked = ["sweep", str(bert), "--gpu", "h100", "--batch", "1,8", "--csv"]
    assert main([*asked, "--dim", "sequence=128"]) == 0
    swept = times(capsys.readouterr().out)
    assert main([*asked, "--prompt", "128"]) == 0
    assert times(capsys.readouterr().out) == swept
    assert len(swept) == 2
    asked = ["train", str(bert), "--gpu", "h100", "--micro-batch", "4", "--json"]
    assert main([*asked, "--dim", "sequence=128"]) == 0
    trained = capsys.readouterr().out
    assert main([*asked, "--sequence", "128"]) == 0
    assert capsys.readouterr().out == trained


def test_a_step_of_training_does_three_times_the_forward_arithmetic(bert: Path):
    forward = jc.workload(bert, batch=4, prompt_tokens=128).flop("matmul")
    step = jc.train(bert, "h100", micro_batch=4, sequence_tokens=128)
    assert step.model_flop == pytest.approx(3 * forward, rel=0.05)


@pytest.mark.parametrize("dim", ["batch", "batch=", "batch=-1", "batch=x", "=4", "batch=1e3"])
def test_wrong_sizes_on_the_command_line_are_one_line(bert: Path, dim: str, capsys: pytest.CaptureFixture[str]):
    assert main(["predict", str(bert), "--gpu", "h100", "--dim", dim]) == 2
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1
    assert "--dim" in printed


def test_a_model_under_another_name_is_known_by_content(bert: Path, tmp_path: Path):
    other = tmp_path / "model.bin"
    other.write_bytes(bert.read_bytes())
    assert jc.workload(other, batch=1, prompt_tokens=8).operations


def test_the_example_of_the_docs_is_the_one_that_tests_make(tmp_path: Path):
    shown = Path(__file__).parents[1] / "docs" / "examples" / "bert.onnx"
    fresh = made.bert(12, 768, 3072, 12, 30522, 512).save(tmp_path / "bert.onnx")
    one, two = (jc.workload(path, batch=8, prompt_tokens=128) for path in (shown, fresh))
    assert one.flop() == two.flop()
    # 12 layers of 12 h^2 + 2 s h multiply-adds a token
    assert one.flop("matmul") == 2 * 8 * 128 * 12 * (12 * 768**2 + 2 * 128 * 768)
