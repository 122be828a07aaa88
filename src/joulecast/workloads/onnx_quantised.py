"""Graphs with quantise and dequantise operators around the others: what an engine runs in few bits."""

from __future__ import annotations

from joulecast.workloads.onnx_flow import Flow
from joulecast.workloads.onnx_graph import Step
from joulecast.workloads.onnx_values import FORMATS, Value

_PRODUCTS = frozenset({"Conv", "ConvTranspose", "MatMul", "Gemm"})

#: Operators that an engine runs on small integers as they are.
_IN_BITS = _PRODUCTS | {
    "Add", "Mul", "Concat", "MaxPool", "AveragePool", "GlobalAveragePool", "Resize", "Sigmoid", "LeakyRelu", "Relu",
    "Softmax", "Transpose", "Pad", "Split", "Slice", "Gather", "HardSwish", "Gelu", "Clip", "ReduceMean",
}  # fmt: skip
_PACKED = {"int4": "w4a16", "int8": "w8a16", "fp8": "w8a16", "nvfp4": "w4a16"}


def in_few_bits(flow: Flow) -> int:
    """Operators between dequantising and quantising run in few bits; the scaling is part of them.

    Products whose weights alone are dequantised read those in few bits. What is dequantised for others stays a kernel.
    """
    found = 0
    for step in flow.of(_IN_BITS):
        if step.domain or not step.ins:
            continue
        makers = [flow.maker(one, "DequantizeLinear") for one in step.ins]
        wanted = _operands(step)
        if all(makers[place] is not None for place in wanted):
            found += _whole(flow, step, makers)
        elif step.op in ("MatMul", "Gemm") and makers[1] is not None and _weights(makers[1]) is not None:
            weight = _weights(makers[1])
            packed = _PACKED.get(FORMATS.get(weight.elem, ("", 0))[0], "") if weight is not None else ""
            if packed:
                step.ins[1] = weight
                step.attrs["packed"] = packed
                found += 1
    for step in flow.of("DequantizeLinear"):
        if not any(one is not None and (one.number in flow.outputs or _is_read(flow, one)) for one in step.outs):
            step.dead = True
    return found


def _operands(step: Step) -> list[int]:
    """Places of the inputs that have to be in few bits."""
    if step.op in _PRODUCTS:
        return [0, 1]
    places = [place for place, one in enumerate(step.ins) if one is not None and one.floating and not one.fixed]
    return places or [0]


def _whole(flow: Flow, step: Step, makers: list[Step | None]) -> bool:
    quantise = flow.reader(step.out, "QuantizeLinear")
    if quantise is None and step.op not in _PRODUCTS:
        return False
    for place, maker in enumerate(makers):
        if maker is not None and maker.ins[0] is not None:
            step.ins[place] = maker.ins[0]
    if quantise is not None:
        flow.hand_over(step, quantise)
    return True


def _weights(maker: Step | None) -> Value | None:
    """The weights that are dequantised, if they are weights."""
    first = maker.ins[0] if maker is not None else None
    return first if first is not None and first.fixed else None


def _is_read(flow: Flow, value: Value) -> bool:
    return any(
        any(one is not None and one.number == value.number for one in reader.ins) for reader in flow.readers(value)
    )
