"""What each ONNX operator is in our kinds: tables by operator name, of ONNX's own domain and of ONNX Runtime's."""

from __future__ import annotations

from collections.abc import Mapping

from joulecast.workloads import onnx_attention as attention
from joulecast.workloads import onnx_products as products
from joulecast.workloads import onnx_rules as rules
from joulecast.workloads import onnx_runtime as runtime
from joulecast.workloads.events import Row
from joulecast.workloads.onnx_convolutions import convolution, deformed
from joulecast.workloads.onnx_rules import Call, Handler


def _table(*entries: tuple[str, Handler]) -> dict[str, Handler]:
    return {name: handler for names, handler in entries for name in names.split()}


#: Operators that move nothing: views, shapes, bookkeeping of sequences. Small arithmetic on shapes is not run on a GPU.
_FREE = (
    "Reshape Squeeze Unsqueeze Flatten Identity Shape Size Constant Dropout Optional OptionalGetElement"
    " OptionalHasElement SequenceConstruct SequenceAt SequenceLength SequenceEmpty SequenceInsert SequenceErase BitCast"
    " ZipMap MemcpyToHost MemcpyFromHost ReorderInput ReorderOutput Print"
)
FREE = frozenset(_FREE.split())

#: Operators of ONNX's own domain.
STANDARD: Mapping[str, Handler] = {
    **_table(
        ("MatMul Gemm", products.matmul),
        ("Einsum", products.einsum),
        ("MatMulInteger", products.integer_matmul((0, 1))),
        ("QLinearMatMul", products.integer_matmul((0, 3))),
        ("Conv", convolution()),
        ("ConvTranspose", convolution(transposed=True)),
        ("ConvInteger", convolution(dtype="int8")),
        ("QLinearConv", convolution((0, 3), dtype="int8")),
        ("DeformConv", deformed),
        ("CausalConvWithState", runtime.causal_convolution),
        ("LSTM", products.recurrent(4)), ("GRU", products.recurrent(3)), ("RNN", products.recurrent(1)),
        ("Softmax LogSoftmax Hardmax", rules.along("softmax")),
        ("LayerNormalization", rules.along("layer_norm")),
        ("RMSNormalization SimplifiedLayerNormalization", rules.along("layer_norm")),
        ("LpNormalization", rules.along("layer_norm")),
        ("MeanVarianceNormalization", rules.grouped_norm),
        ("BatchNormalization", rules.batch_norm),
        ("InstanceNormalization GroupNormalization", rules.grouped_norm),
        ("LRN", rules.first_alone("other", 12)),
        ("ReduceSum ReduceProd ReduceL1 ReduceL2 ReduceSumSquare ReduceLogSum", rules.reduced("sum")),
        ("ReduceLogSumExp", rules.reduced("softmax")),
        ("ReduceMean GlobalAveragePool Mean", rules.reduced("mean")),
        ("ReduceMax ReduceMin ArgMax ArgMin GlobalMaxPool GlobalLpPool", rules.reduced("max")),
        ("MaxPool AveragePool LpPool MaxRoiPool", rules.pooled),
        ("MaxUnpool", rules.scattered),
        ("NegativeLogLikelihoodLoss SoftmaxCrossEntropyLoss", rules.along("softmax", 1)),
        ("Relu LeakyRelu PRelu ThresholdedRelu", rules.first_alone("relu")),
        ("Clip Selu Elu Celu HardSigmoid Shrink", rules.first_alone("relu")),
        ("HardSwish Mish Swish", rules.first_alone("silu", 10)),
        ("Gelu", rules.first_alone("gelu", 10)),
        ("SwiGLU", rules.first_alone("glu", 11)),
        ("Tanh", rules.pointwise("tanh", 10)), ("Sigmoid", rules.pointwise("sigmoid", 10)),
        ("Exp", rules.pointwise("exp", 8)),
        ("Add Sum", rules.pointwise("add")), ("Sub", rules.pointwise("sub")), ("Mul", rules.pointwise("mul")),
        ("Div Reciprocal", rules.pointwise("div")), ("Pow", rules.first_alone("pow", 2)),
        ("Where", rules.pointwise("mask")),
        ("Erf Softplus Softsign Sin Cos Tan Asin Acos Atan Sinh Cosh Asinh Acosh Atanh Log Det",
         rules.pointwise("other", 8)),
        ("Abs Neg Sqrt Floor Ceil Round Sign Not And Or Xor Equal Greater Less GreaterOrEqual LessOrEqual IsNaN IsInf"
         " Min Max Mod BitShift BitwiseAnd BitwiseOr BitwiseXor BitwiseNot", rules.pointwise("other", 2)),
        ("Cast CastLike", rules.cast),
        ("QuantizeLinear DequantizeLinear", runtime.rescaled),
        ("DynamicQuantizeLinear", lambda call: products.quantised(call.x)),
        ("Transpose", rules.transposed),
        ("Concat Split Slice Pad Tile Expand DepthToSpace SpaceToDepth ReverseSequence CenterCropPad Trilu Col2Im"
         " ConcatFromSequence SplitToSequence Compress EyeLike", rules.moved),
        ("Gather", rules.gathered), ("GatherElements", rules.gathered), ("GatherND", rules.gathered_nd),
        ("Scatter ScatterElements ScatterND TensorScatter", rules.scattered),
        ("ConstantOfShape Range OneHot HannWindow HammingWindow BlackmanWindow MelWeightMatrix", rules.filled),
        ("RandomNormal RandomNormalLike RandomUniform RandomUniformLike Bernoulli Multinomial",
         rules.first_alone("dropout", 10)),
        ("Resize Upsample", runtime.resized),
        ("GridSample RoiAlign AffineGrid", rules.first_alone("other", 16)),
        ("TopK", rules.sorted_top), ("Unique", rules.first_alone("other", 20)), ("NonZero", rules.places),
        ("NonMaxSuppression", rules.suppressed),
        ("CumSum CumProd", rules.pointwise("other", 2)),
        ("DFT", rules.fourier), ("STFT", rules.windowed_fourier),
        ("RotaryEmbedding", runtime.rotary),
    ),
    **attention.STANDARD,
    "FusedAttention": attention.fused,
}  # fmt: skip

#: Operators that ONNX Runtime adds, many of which its optimiser makes of several.
RUNTIME: Mapping[str, Handler] = {
    **_table(
        ("FusedMatMul TransposeMatMul FusedGemm FusedMatMulActivation GemmFastGelu", products.matmul),
        ("GemmFloat8", runtime.float8_matmul),
        ("MatMulIntegerToFloat", products.integer_matmul((0, 1))),
        ("DynamicQuantizeMatMul", products.dynamic_matmul),
        ("QGemm", products.integer_matmul((0, 3))), ("QLinearMatMul", products.integer_matmul((0, 3))),
        ("MatMulNBits MatMulFpQ4 MatMulBnb4", products.packed_matmul("w4a16")),
        ("FusedConv NhwcConv NhwcFusedConv", convolution()),
        ("QLinearConv", convolution((0, 3), dtype="int8")),
        ("CausalConvWithState", runtime.causal_convolution),
        ("SkipLayerNormalization SkipSimplifiedLayerNormalization", runtime.skip_norm),
        ("SimplifiedLayerNormalization RMSNormalization", rules.along("layer_norm")),
        ("SkipGroupNorm GroupNorm", rules.grouped_norm),
        ("EmbedLayerNormalization", runtime.embedded_norm),
        ("Gelu FastGelu BiasGelu QuickGelu QGelu", rules.first_alone("gelu", 10)),
        ("BiasSplitGelu", rules.first_alone("glu", 11)),
        ("BiasAdd BiasDropout BitmaskDropout", rules.pointwise("bias")),
        ("BiasSoftmax QLinearSoftmax", rules.along("softmax")),
        ("RotaryEmbedding", runtime.rotary),
        ("MoE", runtime.experts("")), ("QMoE", runtime.experts("w4a16")),
        ("QuantizeLinear DequantizeLinear", runtime.rescaled),
        ("QLinearAdd QLinearMul", rules.pointwise("add", 4)),
        ("QLinearSigmoid QLinearLeakyRelu", rules.first_alone("sigmoid", 4)),
        ("QLinearConcat", rules.moved), ("DynamicQuantizeLSTM", products.recurrent(4, "int8")),
        ("QLinearGlobalAveragePool QLinearAveragePool QLinearReduceMean", rules.reduced("mean")),
        ("GatherBlockQuantized", rules.gathered), ("GatherND", rules.gathered_nd),
        ("RelativePositionBias GatedRelativePositionBias", rules.filled),
        ("Trilu", rules.moved), ("GridSample", rules.first_alone("other", 16)),
    ),
    **attention.RUNTIME,
}  # fmt: skip

#: Domains whose operators are described here; those of classical learning run on the host.
_DOMAINS: Mapping[str, Mapping[str, Handler]] = {
    "": STANDARD, "ai.onnx": STANDARD, "ai.onnx.preview": STANDARD, "com.microsoft": RUNTIME,
    "com.microsoft.nchwc": RUNTIME, "com.ms.internal.nhwc": STANDARD,
}  # fmt: skip


def rows_for(domain: str, call: Call) -> list[Row] | None:
    """Operations that one operator stands for; None where no rule prices it."""
    if call.op in FREE:
        return []
    handler = _DOMAINS.get(domain, {}).get(call.op)
    return None if handler is None else handler(call)
