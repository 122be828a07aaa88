"""ONNX graphs made by hand for tests: small pieces, and a BERT as exporters write it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

FLOAT, HALF, INT64, INT8, UINT8, BOOL = (
    TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.INT64, TensorProto.INT8, TensorProto.UINT8, TensorProto.BOOL,
)  # fmt: skip


class Graph:
    """Nodes added one by one; weights have shapes and no numbers, as if these lay in a file of their own."""

    def __init__(self, elem: int = HALF, opset: int = 17) -> None:
        self.elem, self.opset = elem, opset
        self.nodes: list[Any] = []
        self.inputs: list[Any] = []
        self.outputs: list[Any] = []
        self.weights: list[Any] = []
        self.functions: list[Any] = []
        self.domains = {"": opset, "com.microsoft": 1}

    def input(self, name: str, shape: list[Any], elem: int | None = None) -> str:
        self.inputs.append(helper.make_tensor_value_info(name, elem or self.elem, shape))
        return name

    def output(self, name: str, elem: int | None = None) -> None:
        self.outputs.append(helper.make_tensor_value_info(name, elem or self.elem, None))

    def weight(self, *shape: int, elem: int | None = None, location: str = "weights.bin") -> str:
        tensor = TensorProto(name=f"w{len(self.weights)}", data_type=elem or self.elem, dims=shape)
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value=location)
        self.weights.append(tensor)
        return tensor.name

    def constant(self, values: Any, dtype: Any = np.int64) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(values, dtype=dtype), name))
        return name

    def add(self, op: str, *ins: str, outs: int = 1, domain: str = "", layer: str = "", **attrs: Any) -> Any:
        names = [f"t{len(self.nodes)}_{i}" for i in range(outs)]
        name = f"/{layer.replace('.', '/')}/{op}" if layer else ""
        self.nodes.append(helper.make_node(op, list(ins), names, name=name, domain=domain, **attrs))
        return names[0] if outs == 1 else names

    def save(self, path: Path) -> Path:
        graph = helper.make_graph(self.nodes, "g", self.inputs, self.outputs, self.weights)
        imports = [helper.make_opsetid(domain, version) for domain, version in self.domains.items()]
        model = helper.make_model(graph, opset_imports=imports, functions=self.functions, ir_version=10)
        path.write_bytes(model.SerializeToString())
        return path


def linear(g: Graph, x: str, inner: int, width: int, layer: str) -> str:
    """A dense layer as exporters write it: a product and an addition."""
    return g.add("Add", g.weight(width), g.add("MatMul", x, g.weight(inner, width), layer=layer), layer=layer)


def gelu(g: Graph, x: str, layer: str) -> str:
    """x (1 + erf(x / sqrt 2)) / 2 in five operators."""
    erf = g.add("Erf", g.add("Div", x, g.constant(2**0.5, np.float16), layer=layer), layer=layer)
    whole = g.add("Mul", x, g.add("Add", erf, g.constant(1, np.float16), layer=layer), layer=layer)
    return g.add("Mul", whole, g.constant(0.5, np.float16), layer=layer)


def written_norm(g: Graph, x: str, width: int, layer: str) -> str:
    """A layer norm in nine operators."""
    less = g.add("Sub", x, g.add("ReduceMean", x, axes=[-1], layer=layer), layer=layer)
    square = g.add("Pow", less, g.constant(2, np.float16), layer=layer)
    variance = g.add("ReduceMean", square, axes=[-1], layer=layer)
    root = g.add("Sqrt", g.add("Add", variance, g.constant(1e-5, np.float16), layer=layer), layer=layer)
    scaled = g.add("Mul", g.add("Div", less, root, layer=layer), g.weight(width), layer=layer)
    return g.add("Add", scaled, g.weight(width), layer=layer)


def heads(g: Graph, x: str, count: int, dim: int, perm: list[int], layer: str) -> str:
    return g.add("Transpose", g.add("Reshape", x, g.constant([0, 0, count, dim]), layer=layer), perm=perm, layer=layer)


def attention(g: Graph, q: str, k: str, v: str, count: int, dim: int, layer: str, mask: str = "") -> str:
    """Attention in pieces, heads brought forward and back."""
    q, v = (heads(g, one, count, dim, [0, 2, 1, 3], layer) for one in (q, v))
    scores = g.add("MatMul", q, heads(g, k, count, dim, [0, 2, 3, 1], layer), layer=layer)
    scores = g.add("Div", scores, g.constant(dim**0.5, np.float16), layer=layer)
    if mask:
        scores = g.add("Add", scores, mask, layer=layer)
    mixed = g.add("MatMul", g.add("Softmax", scores, axis=-1, layer=layer), v, layer=layer)
    back = g.add("Transpose", mixed, perm=[0, 2, 1, 3], layer=layer)
    return g.add("Reshape", back, g.constant([0, 0, count * dim]), layer=layer)


def bert(layers: int, width: int, inner: int, count: int, vocabulary: int, positions: int) -> Graph:
    """BERT without a pooler, sequences and their length open."""
    g = Graph()
    ids = g.input("input_ids", ["batch", "sequence"], INT64)
    kinds = g.input("token_type_ids", ["batch", "sequence"], INT64)
    places = g.input("position_ids", ["batch", "sequence"], INT64)
    words = g.add("Gather", g.weight(vocabulary, width), ids, layer="embeddings.word")
    segments = g.add("Gather", g.weight(2, width), kinds, layer="embeddings.kind")
    x = g.add("Add", words, segments, layer="embeddings")
    x = g.add("Add", x, g.add("Gather", g.weight(positions, width), places, layer="embeddings.place"),
              layer="embeddings")  # fmt: skip
    x = written_norm(g, x, width, "embeddings.norm")
    for layer in range(layers):
        at = f"layer.{layer}"
        q, k, v = (linear(g, x, width, width, f"{at}.{one}") for one in "qkv")
        mixed = attention(g, q, k, v, count, width // count, f"{at}.attention")
        x = g.add("Add", linear(g, mixed, width, width, f"{at}.out"), x, layer=at)
        x = written_norm(g, x, width, f"{at}.norm1")
        wide = gelu(g, linear(g, x, width, inner, f"{at}.up"), f"{at}.act")
        x = written_norm(
            g, g.add("Add", linear(g, wide, inner, width, f"{at}.down"), x, layer=at), width, f"{at}.norm2"
        )
    g.output(x)
    return g
