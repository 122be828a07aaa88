"""Operators that ONNX Runtime runs as one kernel: convolutions with what follows, norms, activations, products."""

from __future__ import annotations

from collections.abc import Callable

from joulecast.workloads.onnx_flow import Flow, others, scalar
from joulecast.workloads.onnx_graph import Step
from joulecast.workloads.onnx_values import Value

Pattern = Callable[[Flow], int]

_CONVOLUTIONS = "Conv ConvTranspose FusedConv"


def folded_convolutions(flow: Flow) -> int:
    """Batch norms and constant scales become part of the filters; a ReLU is done on the way out."""
    found = 0
    for step in flow.of(_CONVOLUTIONS):
        while (after := flow.reader(step.out)) is not None and _folds(step, after):
            flow.hand_over(step, after)
            found += 1
        after = flow.reader(step.out, "Relu")
        if after is not None:
            flow.hand_over(step, after)
            step.attrs["rectified"] = True
            found += 1
    return found


def _folds(step: Step, after: Step) -> bool:
    out = step.out
    if out is None or after.domain:
        return False
    if after.op == "BatchNormalization":
        return not after.attrs.get("training_mode") and after.ins[0] is not None and after.ins[0].number == out.number
    if after.op not in ("Mul", "Add") or after.out is None or after.out.numel != out.numel:
        return False
    rest = others(after, out)
    channels = out.shape[1] if len(out.shape) > 1 else 1
    return len(rest) == 1 and rest[0].fixed and rest[0].numel in (1, channels)


def norms(flow: Flow) -> int:
    """Layer norms and RMS norms written out: means, a root, a division, gain and bias."""
    return sum(_norm(flow, root) for root in flow.of("Sqrt"))


def _norm(flow: Flow, root: Step) -> bool:
    epsilon = flow.maker(root.ins[0], "Add")
    mean = flow.maker(next((one for one in epsilon.ins if not scalar(one)), None), "ReduceMean") if epsilon else None
    square = flow.maker(mean.ins[0], "Pow Mul") if mean else None
    if epsilon is None or mean is None or square is None or square.ins[0] is None:
        return False
    if square.op == "Mul" and (square.ins[1] is None or square.ins[1].number != square.ins[0].number):
        return False
    centred = square.ins[0]
    members = [epsilon, mean, square, root]
    x = centred
    less = flow.maker(centred, "Sub")
    centre = flow.maker(less.ins[1], "ReduceMean") if less is not None else None
    if less is not None and centre is not None and less.ins[0] is not None and centre.ins[0] is not None:
        if less.ins[0].number != centre.ins[0].number:
            return False
        members += [less, centre]
        x = less.ins[0]
    last = _scaled_by(flow, root, centred, members)
    if last is None or mean.out is None or not x.shape:
        return False
    last = _gain(flow, last, members, x)
    widened = flow.maker(x, "Cast")
    if widened is not None and all(any(one is each for each in members) for one in flow.readers(x)):
        members.append(widened)
        x = widened.ins[0] or x
    width = x.numel // max(mean.out.numel, 1)
    axis, size = len(x.shape), 1
    while axis > 0 and size < width:
        axis -= 1
        size *= x.shape[axis]
    if size != width or not flow.closed(members, last):
        return False
    flow.join(members, last)
    last.op, last.domain, last.ins, last.attrs = "LayerNormalization", "", [x], {"axis": axis}
    return True


def _scaled_by(flow: Flow, root: Step, centred: Value, members: list[Step]) -> Step | None:
    """The division by the root, or the product with what it is one over."""
    after = flow.reader(root.out, "Div Reciprocal")
    if after is None:
        return None
    members.append(after)
    if after.op == "Reciprocal" or (after.ins[0] is not None and scalar(after.ins[0])):
        after = flow.reader(after.out, "Mul")
        if after is None:
            return None
        members.append(after)
    return after if any(one is not None and one.number == centred.number for one in after.ins) else None


def _gain(flow: Flow, last: Step, members: list[Step], x: Value) -> Step:
    """The last step of the norm: casts, a gain, a bias."""
    for ops in ("Cast", "Mul", "Add", "Cast"):
        after = flow.reader(last.out, ops)
        if after is None or last.out is None:
            continue
        rest = others(after, last.out)
        if ops != "Cast" and not (rest and rest[0].fixed and rest[0].numel <= x.shape[-1] * 64):
            continue
        if ops == "Cast" and after.out is None:
            continue
        members.append(after)
        last = after
    return last


#: Functions that an activation is made of, and what it is called then.
_ACTIVATIONS = {"Erf": "Gelu", "Tanh": "Gelu", "Sigmoid": "HardSwish", "HardSigmoid": "HardSwish"}
_LINEAR = "Mul Div Add Sub Pow Softplus"


def activations(flow: Flow) -> int:
    """GELUs, SiLUs and their kin written out: a function of x, times x."""
    found = 0
    for step in flow.of(_ACTIVATIONS):
        if not step.domain:
            found += _activation(flow, step)
    return found


def _activation(flow: Flow, anchor: Step) -> bool:
    for x in _candidates(flow, anchor.ins[0]):
        before: list[Step] = []
        if not _leads_to(flow, anchor.ins[0], x, before, 7):
            continue
        members = [*before, anchor]
        last = _times(flow, anchor, x, members)
        if last is not None and flow.closed(members, last):
            name = _ACTIVATIONS[anchor.op]
            flow.join(members, last)
            last.op, last.domain, last.ins, last.attrs = name, "", [x], {}
            return True
    return False


def _candidates(flow: Flow, value: Value | None) -> list[Value]:
    """What a value may be a function of, nearest first."""
    out: list[Value] = []
    queue = [value] if value is not None else []
    while queue and len(out) < 10:
        here = queue.pop(0)
        if any(here.number == one.number for one in out):
            continue
        out.append(here)
        step = flow.maker(here, _LINEAR)
        if step is not None:
            queue += [one for one in step.ins if one is not None and not scalar(one) and not one.fixed]
    return out


def _leads_to(flow: Flow, value: Value | None, x: Value, members: list[Step], depth: int) -> bool:
    """Whether a value is a function of `x` and numbers alone; the steps on the way are added to `members`."""
    if value is None or depth < 0:
        return False
    if value.number == x.number or scalar(value):
        return True
    step = flow.maker(value, _LINEAR)
    if step is None:
        return False
    if all(step is not one for one in members):
        members.append(step)
    return all(_leads_to(flow, one, x, members, depth - 1) for one in step.ins if one is not None)


def _times(flow: Flow, anchor: Step, x: Value, members: list[Step]) -> Step | None:
    """The product with `x` after the function, and constant factors around it."""
    last, multiplied = anchor, False
    for _ in range(4):
        after = flow.reader(last.out, "Mul Add Div")
        if after is None or last.out is None or after.out is None or after.out.numel != x.numel:
            break
        rest = others(after, last.out)
        if len(rest) != 1:
            break
        if scalar(rest[0]):
            if multiplied and after.op == "Add":
                break
        elif not multiplied and after.op == "Mul":
            side: list[Step] = []
            if not _leads_to(flow, rest[0], x, side, 2):
                break
            members += [one for one in side if all(one is not each for each in members)]
            multiplied = True
        else:
            break
        members.append(after)
        last = after
    return last if multiplied else None


def biases(flow: Flow) -> int:
    """A constant added to each row of a product is added on the way out."""
    found = 0
    for step in flow.of("MatMul FusedMatMul MatMulNBits MatMulInteger MatMulIntegerToFloat"):
        after = flow.reader(step.out, "Add")
        if after is None or step.out is None or after.out is None or after.out.numel != step.out.numel:
            continue
        rest = others(after, step.out)
        if len(rest) == 1 and rest[0].fixed and rest[0].numel == step.out.shape[-1]:
            flow.hand_over(step, after)
            step.attrs["biased"] = True
            found += 1
    return found


def integer_ends(flow: Flow) -> int:
    """A product in int8 is scaled to real numbers, and a constant added, on the way out."""
    found = 0
    for step in flow.of("MatMulInteger ConvInteger"):
        cast = flow.reader(step.out, "Cast")
        if cast is None:
            continue
        flow.hand_over(step, cast)
        after = flow.reader(step.out, "Mul")
        if after is not None and step.out is not None:
            rest = others(after, step.out)
            if rest and rest[0].numel <= max(step.out.shape[-1:] or (1,)):
                flow.hand_over(step, after)
        found += 1
    return found
