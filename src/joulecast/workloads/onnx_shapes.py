"""Shapes and formats of what an ONNX operator gives: by onnx's own rules, ours for the runtime's operators.

Every dimension comes out as a number. Where a size depends on values, it is taken at its largest, and that is told.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import onnx
from onnx import defs, helper, numpy_helper, shape_inference

from joulecast.workloads.onnx_values import BOOL, FLOAT, INT64, NUMPY, UINT8, Shape, Value

#: Numbers of an input that onnx's rules are shown.
_SHOWN = 4096

#: What is assumed where a size is not known.
AT_LARGEST = "sizes that depend on values are taken at their largest"
AS_INPUT = "shapes that can't be inferred are taken to be those of the inputs"

#: What onnx's rules raise on operators that are not as described.
_REFUSED = (
    shape_inference.InferenceError, onnx.checker.ValidationError, ValueError, RuntimeError, TypeError, KeyError,
    OverflowError,
)  # fmt: skip

#: What an operator gives: shape and format of each result, None where it has none that is a tensor.
Results = list[tuple[Shape, int] | None]


@lru_cache(maxsize=4096)
def schema_of(op: str, domain: str, version: int) -> Any:
    """Onnx's description of an operator; None where it has none."""
    try:
        return defs.get_schema(op, version, domain)
    except defs.SchemaError:
        return None


def inferred(
    node: Any, ins: Sequence[Value | None], attrs: Mapping[str, Any], versions: Mapping[str, int]
) -> tuple[Results, str]:
    """Shapes and formats of an operator's results.

    Parameters
    ----------
    node : onnx.NodeProto
        Without references to attributes of a function around it.
    ins : sequence of Value or None
    attrs : mapping
    versions : mapping of str to int
        Of the operator sets, by domain.

    Returns
    -------
    list of (shape, format) or None, str
        And what had to be assumed of the sizes: `AT_LARGEST`, `AS_INPUT`, or nothing.
    """
    domain = "" if node.domain == "ai.onnx" else node.domain
    largest = _LARGEST.get(node.op_type)
    if largest is not None and not domain:
        found = largest(ins, attrs)
        if found is not None:
            return found, AT_LARGEST
    own = _OWN.get(node.op_type)
    if own is not None and domain not in ("", "ai.onnx.ml"):
        try:
            return _filled(node, own(ins, attrs), ins), ""
        except (AttributeError, IndexError, TypeError, ValueError, ZeroDivisionError, KeyError):
            return _like_first(node, ins), AS_INPUT
    schema = schema_of(node.op_type, domain, versions.get(domain, 1))
    if schema is None:
        return _like_first(node, ins), AS_INPUT
    shapes = _by_onnx(schema, node, ins, versions)
    if shapes is None:
        return _like_first(node, ins), AS_INPUT
    results: Results = []
    assumed = ""
    for name in node.output:
        kind = shapes.get(name)
        if kind is None or not name:
            results.append(None)
            continue
        if not kind.HasField("tensor_type"):
            results.append(None)
            continue
        shape, unknown = _numbers(kind.tensor_type, ins)
        if unknown and not results:
            assumed = AT_LARGEST
        results.append((shape, kind.tensor_type.elem_type))
    return results, assumed


def _by_onnx(schema: Any, node: Any, ins: Sequence[Value | None], versions: Mapping[str, int]) -> Any:
    types, data = {}, {}
    for name, one in zip(node.input, ins, strict=False):
        if not name or one is None or one.items is not None:
            continue
        types[name] = _type(one.elem, one.shape)
        if one.data is not None and one.numel <= _SHOWN and one.elem in NUMPY and one.elem not in (10, 16):
            array = one.known()
            if array is not None:
                data[name] = numpy_helper.from_array(array.astype(NUMPY[one.elem]), name)
    imports = [helper.make_opsetid(domain, version) for domain, version in versions.items()]
    try:
        return shape_inference.infer_node_outputs(schema, node, types, data, opset_imports=imports)
    except _REFUSED:
        return None


@lru_cache(maxsize=8192)
def _type(elem: int, shape: Shape) -> Any:
    return helper.make_tensor_type_proto(elem, shape)


def _numbers(tensor: Any, ins: Sequence[Value | None]) -> tuple[Shape, bool]:
    """Dimensions as numbers: an unknown one that of an input of the same rank, else 1."""
    if not tensor.HasField("shape"):
        first = next((one for one in ins if one is not None), None)
        return (first.shape if first is not None else ()), True
    like = max(
        (one.shape for one in ins if one is not None and len(one.shape) == len(tensor.shape.dim)),
        key=math.prod,
        default=(),
    )
    shape, assumed = [], False
    for axis, dim in enumerate(tensor.shape.dim):
        if dim.HasField("dim_value") and dim.dim_value >= 0:
            shape.append(int(dim.dim_value))
        else:
            shape.append(like[axis] if like else 1)
            assumed = True
    return tuple(shape), assumed


def _like_first(node: Any, ins: Sequence[Value | None]) -> Results:
    """As large as the largest input: for operators that nothing is known of."""
    largest = max((one for one in ins if one is not None), key=lambda one: one.numel, default=None)
    if largest is None:
        return [((), FLOAT) for _ in node.output]
    return [(largest.shape, largest.elem) if name else None for name in node.output]


def _filled(node: Any, found: Results, ins: Sequence[Value | None]) -> Results:
    """`found` as long as the operator has results."""
    more = _like_first(node, ins)[len(found) :]
    return [*found, *more][: len(node.output)]


# ---------------------------------------------------------------- sizes that depend on values, at their largest


def _nonzero(ins: Sequence[Value | None], _: Mapping[str, Any]) -> Results | None:
    x = ins[0]
    return None if x is None else [((len(x.shape), x.numel), INT64)]


def _suppressed(ins: Sequence[Value | None], _: Mapping[str, Any]) -> Results | None:
    scores = ins[1] if len(ins) > 1 else None
    if scores is None or len(scores.shape) != 3:
        return None
    most = ins[2].ints() if len(ins) > 2 and ins[2] is not None else None
    batch, classes, boxes = scores.shape
    return [((batch * classes * min(boxes, most[0] if most else boxes), 3), INT64)]


def _compressed(ins: Sequence[Value | None], attrs: Mapping[str, Any]) -> Results | None:
    x = ins[0]
    if x is None:
        return None
    if "axis" in attrs:
        return [(x.shape, x.elem)]
    return [((x.numel,), x.elem)]


def _unique(ins: Sequence[Value | None], attrs: Mapping[str, Any]) -> Results | None:
    x = ins[0]
    if x is None:
        return None
    size = x.shape[attrs["axis"]] if "axis" in attrs else x.numel
    return [(x.shape if "axis" in attrs else (x.numel,), x.elem), *[((size,), INT64)] * 3]


_LARGEST: Mapping[str, Callable[[Sequence[Value | None], Mapping[str, Any]], Results | None]] = {
    "NonZero": _nonzero, "NonMaxSuppression": _suppressed, "Compress": _compressed, "Unique": _unique,
}  # fmt: skip


# ---------------------------------------------------------------- operators of ONNX Runtime


def _same(ins: Sequence[Any], _: Mapping[str, Any]) -> Results:
    return [(ins[0].shape, ins[0].elem)]


def _skip_norm(ins: Sequence[Any], _: Mapping[str, Any]) -> Results:
    x = ins[0]
    rows = (*x.shape[:-1], 1)
    return [(x.shape, x.elem), (rows, FLOAT), (rows, FLOAT), (x.shape, x.elem)]


def _fused_matmul(ins: Sequence[Any], attrs: Mapping[str, Any]) -> Results:
    a, b = list(ins[0].shape), list(ins[1].shape)
    if attrs.get("transA") and len(a) > 1:
        a[-1], a[-2] = a[-2], a[-1]
    if attrs.get("transB") and len(b) > 1:
        b[-1], b[-2] = b[-2], b[-1]
    lead = a[:-2] if len(a) >= len(b) else b[:-2]
    return [((*lead, *a[-2:-1], b[-1]), ins[0].elem)]


def _packed_matmul(ins: Sequence[Any], attrs: Mapping[str, Any]) -> Results:
    return [((*ins[0].shape[:-1], int(attrs["N"])), ins[0].elem)]


def _integer_matmul(ins: Sequence[Any], _: Mapping[str, Any]) -> Results:
    return [((*ins[0].shape[:-1], ins[1].shape[-1]), FLOAT)]


def _attention(ins: Sequence[Any], attrs: Mapping[str, Any]) -> Results:
    """One input, weights of queries, keys and values side by side."""
    x, weight = ins[0], ins[1]
    heads = int(attrs["num_heads"])
    sizes = attrs.get("qkv_hidden_sizes")
    value = int(sizes[2]) if sizes else weight.shape[-1] // 3
    batch, length = x.shape[0], x.shape[1]
    past = ins[4].shape[3] if len(ins) > 4 and ins[4] is not None else 0
    return [((batch, length, value), x.elem), ((2, batch, heads, past + length, value // heads), x.elem)]


def _multi_head(ins: Sequence[Any], attrs: Mapping[str, Any]) -> Results:
    q = ins[0]
    heads = int(attrs["num_heads"])
    k = ins[1] if len(ins) > 1 else None
    v = ins[2] if len(ins) > 2 else None
    if len(q.shape) == 5:  # packed
        return [((q.shape[0], q.shape[1], heads * q.shape[4]), q.elem)]
    width = q.shape[-1]
    if v is not None:
        width = v.shape[-1] if len(v.shape) == 3 else heads * v.shape[-1]
    past = ins[6].shape[2] if len(ins) > 6 and ins[6] is not None else 0
    keys = k.shape[2] if k is not None and len(k.shape) == 4 else (k.shape[1] if k is not None else q.shape[1])
    cache = ((q.shape[0], heads, past + keys, q.shape[-1] // heads), q.elem)
    return [((q.shape[0], q.shape[1], width), q.elem), cache, cache]


def _grouped(ins: Sequence[Any], attrs: Mapping[str, Any]) -> Results:
    q, k = ins[0], ins[1] if len(ins) > 1 else None
    heads, groups = int(attrs["num_heads"]), int(attrs["kv_num_heads"])
    dim = q.shape[-1] // heads if k is not None else q.shape[-1] // (heads + 2 * groups)
    past = ins[3].shape[2] if len(ins) > 3 and ins[3] is not None else 0
    cache = ((q.shape[0], groups, past + q.shape[1], dim), q.elem)
    return [((q.shape[0], q.shape[1], heads * dim), q.elem), cache, cache]


def _embedded(ins: Sequence[Any], _: Mapping[str, Any]) -> Results:
    ids, table = ins[0], ins[2]
    width = (*ids.shape, table.shape[-1])
    return [(width, table.elem), ((ids.shape[0],), 6), (width, table.elem)]


def _halved(ins: Sequence[Any], _: Mapping[str, Any]) -> Results:
    return [((*ins[0].shape[:-1], ins[0].shape[-1] // 2), ins[0].elem)]


def _convolved(ins: Sequence[Any], attrs: Mapping[str, Any]) -> Results:
    """A fused convolution is one of ONNX's own with more attributes."""
    x, w = ins[0], ins[1]
    space = len(x.shape) - 2
    strides = list(attrs.get("strides") or [1] * space)
    dilations = list(attrs.get("dilations") or [1] * space)
    pads = list(attrs.get("pads") or [0] * (2 * space))
    auto = attrs.get("auto_pad", "NOTSET")
    sizes = []
    for i in range(space):
        reach = dilations[i] * (w.shape[2 + i] - 1) + 1
        if auto in ("SAME_UPPER", "SAME_LOWER"):
            sizes.append(-(-x.shape[2 + i] // strides[i]))
        else:
            sizes.append((x.shape[2 + i] + pads[i] + pads[i + space] - reach) // strides[i] + 1)
    return [((x.shape[0], w.shape[0], *sizes), x.elem)]


def _quantized(ins: Sequence[Any], _: Mapping[str, Any]) -> Results:
    zero = ins[2] if len(ins) > 2 else None
    return [(ins[0].shape, zero.elem if zero is not None else UINT8)]


def _dequantized(ins: Sequence[Any], _: Mapping[str, Any]) -> Results:
    return [(ins[0].shape, ins[1].elem)]


def _recurrent(ins: Sequence[Any], attrs: Mapping[str, Any]) -> Results:
    x, inner = ins[0], int(attrs["hidden_size"])
    ways = 2 if attrs.get("direction") == "bidirectional" else 1
    state = ((ways, x.shape[1], inner), x.elem)
    return [((x.shape[0], ways, x.shape[1], inner), x.elem), state, state]


def _qlinear_pair(ins: Sequence[Any], _: Mapping[str, Any]) -> Results:
    """Two operands, each with scale and zero point, broadcast."""
    a, b = ins[0].shape, ins[3].shape
    rank = max(len(a), len(b))
    pairs = zip((1,) * (rank - len(a)) + a, (1,) * (rank - len(b)) + b, strict=True)
    return [(tuple(max(one, two) for one, two in pairs), ins[0].elem)]


def _gathered_blocks(ins: Sequence[Any], attrs: Mapping[str, Any]) -> Results:
    table, index, scales = ins[0], ins[1], ins[2]
    width = table.shape[-1] * (2 if table.elem == UINT8 and int(attrs.get("bits", 4)) == 4 else 1)
    return [((*index.shape, width), scales.elem)]


def _mask_like(ins: Sequence[Any], _: Mapping[str, Any]) -> Results:
    return [(ins[0].shape, ins[0].elem), (ins[0].shape, BOOL)]


def _pooled_globally(ins: Sequence[Any], _: Mapping[str, Any]) -> Results:
    x = ins[0]
    return [((*x.shape[:2], *[1] * (len(x.shape) - 2)), x.elem)]


_OWN: Mapping[str, Callable[[Sequence[Any], Mapping[str, Any]], Results]] = {
    "Attention": _attention, "QAttention": _attention, "MultiHeadAttention": _multi_head,
    "DecoderMaskedMultiHeadAttention": _multi_head, "PackedMultiHeadAttention": _same,
    "GroupQueryAttention": _grouped, "SparseAttention": _grouped, "SkipLayerNormalization": _skip_norm,
    "SkipSimplifiedLayerNormalization": _skip_norm, "SimplifiedLayerNormalization": _same,
    "EmbedLayerNormalization": _embedded, "FastGelu": _same, "BiasGelu": _same, "Gelu": _same, "QuickGelu": _same,
    "BiasAdd": _same, "BiasSplitGelu": _halved, "SkipGroupNorm": _same, "GroupNorm": _same, "NhwcConv": _same,
    "FusedConv": _convolved, "FusedMatMul": _fused_matmul, "TransposeMatMul": _fused_matmul,
    "FusedMatMulActivation": _fused_matmul, "FusedGemm": _fused_matmul, "GemmFastGelu": _fused_matmul,
    "GemmFloat8": _fused_matmul, "RotaryEmbedding": _same, "MoE": _same, "QMoE": _same, "MatMulNBits": _packed_matmul,
    "MatMulBnb4": _packed_matmul, "MatMulFpQ4": _packed_matmul, "MatMulIntegerToFloat": _integer_matmul,
    "DynamicQuantizeMatMul": _integer_matmul, "QuantizeLinear": _quantized, "DequantizeLinear": _dequantized,
    "QLinearAdd": _qlinear_pair, "QLinearMul": _qlinear_pair, "QLinearSigmoid": _same, "QLinearLeakyRelu": _same,
    "QLinearSoftmax": _same, "QGelu": _same, "QLinearGlobalAveragePool": _pooled_globally,
    "GatherBlockQuantized": _gathered_blocks,
    "DynamicQuantizeLSTM": _recurrent, "BiasDropout": _mask_like, "BitmaskDropout": _mask_like,
    "BiasSoftmax": _same, "RelativePositionBias": _same, "GatedRelativePositionBias": _same, "ReorderInput": _same,
    "CausalConvWithState": _same, "Inverse": _same, "Trilu": _same, "GridSample": _same, "RMSNormalization": _same,
}  # fmt: skip
