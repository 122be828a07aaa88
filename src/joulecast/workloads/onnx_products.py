"""Products of ONNX: dense, batched, packed in few bits, in letters; and recurrent layers, which are made of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from joulecast.workloads.events import Row
from joulecast.workloads.onnx_rules import Call, Handler, elementwise, gemm
from joulecast.workloads.onnx_values import Value


def product(a: Value, b: Value, m: int, n: int, k: int, dtype: str) -> list[Row]:
    """`a` times `b`, their last two dimensions multiplied, those before them alike or repeated."""
    lead_a, lead_b = a.shape[:-2], b.shape[:-2]
    if math.prod(lead_b) == 1:
        return gemm(math.prod(lead_a) * m, n, k, dtype)
    batch = broadcast(lead_a, lead_b)
    if 0 in (batch, m, n, k):
        return []
    return [("batched_gemm", {"batch": batch, "m": m, "n": n, "k": k, "dtype": dtype})]


def broadcast(one: Sequence[int], two: Sequence[int]) -> int:
    """Elements of two shapes laid over each other."""
    rank = max(len(one), len(two))
    pairs = zip([1] * (rank - len(one)) + list(one), [1] * (rank - len(two)) + list(two), strict=True)
    return math.prod(b if a == 1 else a for a, b in pairs)


def matmul(call: Call) -> list[Row]:
    """MatMul and its kin; `transA` and `transB` swap the last two dimensions."""
    a, b = _matrix(call.ins[0], False), _matrix(call.ins[1], True)
    m, k = (a.shape[-1], a.shape[-2]) if call.attrs.get("transA") else (a.shape[-2], a.shape[-1])
    n = b.shape[-2] if call.attrs.get("transB") else b.shape[-1]
    return product(a, b, m, n, k, call.attrs.get("packed") or call.formats.multiplied(a, b))


def _matrix(value: Value | None, column: bool) -> Value:
    assert value is not None
    if len(value.shape) >= 2:
        return value
    size = value.shape[0] if value.shape else 1
    return value.as_view((size, 1) if column else (1, size))


def packed_matmul(dtype: str) -> Handler:
    """A multiply whose weights are packed in few bits; `N` and `K` are attributes."""

    def rows(call: Call) -> list[Row]:
        x, wide = call.x, int(call.attrs.get("bits", 4)) > 4
        k = int(call.attrs.get("K", x.shape[-1]))
        return gemm(x.numel // max(k, 1), int(call.attrs["N"]), k, "w8a16" if wide else dtype)

    return rows


def integer_matmul(scales: tuple[int, int]) -> Handler:
    """A multiply in int8 whose operands stand at the places `scales`."""

    def rows(call: Call) -> list[Row]:
        a, b = _matrix(call.ins[scales[0]], False), _matrix(call.ins[scales[1]], True)
        return product(a, b, a.shape[-2], b.shape[-1], a.shape[-1], "int8")

    return rows


def dynamic_matmul(call: Call) -> list[Row]:
    """Activations brought into int8 with a scale found on the way, then multiplied."""
    return quantised(call.x) + integer_matmul((0, 1))(call)


def quantised(x: Value) -> list[Row]:
    """Activations brought into int8, the scale found first."""
    if not x.numel:
        return []
    k = x.shape[-1] if x.shape else 1
    return [("quantize", {"m": x.numel // max(k, 1), "k": k, "quant_op": "dynamic_quant", "dtype": "int8"})]


def einsum(call: Call) -> list[Row]:
    """A sum of products in letters: kept ones shared by both are a batch, those summed over the reduction."""
    equation = str(call.attrs.get("equation", "")).replace(" ", "").replace("...", "")
    left, _, right = equation.partition("->")
    terms = left.split(",")
    shapes = [one.shape for one in call.given()]
    sizes = {letter: size for term, shape in zip(terms, shapes, strict=False)
             for letter, size in zip(reversed(term), reversed(shape), strict=False)}  # fmt: skip
    if len(terms) != 2 or len(shapes) != 2:
        return elementwise("mul", call.given(), [call.out], call.formats, 2)
    one, two, kept = set(terms[0]), set(terms[1]), set(right)
    batch, k = _sized(sizes, one & two & kept), _sized(sizes, (one & two) - kept)
    m, n = _sized(sizes, one - two), _sized(sizes, two - one)
    dtype = call.formats.multiplied(call.x, call.arg(1))
    if batch == 1:
        return gemm(m, n, k, dtype)
    return [("batched_gemm", {"batch": batch, "m": m, "n": n, "k": k, "dtype": dtype})] if m * n * k else []


def _sized(sizes: Mapping[str, int], letters: set[str]) -> int:
    return math.prod(sizes.get(one, 1) for one in letters)


def recurrent(gates: int, dtype: str = "") -> Handler:
    """A recurrent layer as cuDNN runs it: inputs of all steps multiplied at once, then one product a step.

    `dtype` is the format of its products, where it is not that of its inputs.
    """

    def rows(call: Call) -> list[Row]:
        x, weight = call.ins[0], call.ins[1]
        if x is None or weight is None or len(x.shape) != 3 or not x.numel:
            return []
        last = bool(call.attrs.get("layout"))
        steps, batch = (x.shape[1], x.shape[0]) if last else (x.shape[0], x.shape[1])
        inner = int(call.attrs.get("hidden_size") or weight.shape[1] // gates)
        ways, product_in = weight.shape[0], dtype or call.formats.multiplied(x, weight)
        point = {"op": "fused", "elements": batch * inner, "inputs": gates + 1, "outputs": 2, "flop_per_element": 40,
                 "dtype": call.fmt(x), "count": steps * ways}  # fmt: skip
        return [
            ("gemm", {"m": steps * batch, "n": gates * inner, "k": x.shape[2], "dtype": product_in, "count": ways}),
            ("gemm", {"m": batch, "n": gates * inner, "k": inner, "dtype": product_in, "count": steps * ways}),
            ("elementwise", point),
        ]

    return rows
