"""Attention written as multiply, softmax, multiply in an ONNX graph, found and made one fused operation."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from joulecast.workloads.onnx_attention import Shape, seen_through
from joulecast.workloads.onnx_flow import Flow, scalar
from joulecast.workloads.onnx_graph import Step
from joulecast.workloads.onnx_values import Value

_PRODUCTS = ("MatMul", "FusedMatMul")
_BEFORE = frozenset({"Mul", "Div", "Add", "Sub", "Where", "Cast", "Clip", "Tanh", "Max", "Min"})
_AFTER = frozenset({"Cast", "Where", "Mul"})


@dataclass
class _Found:
    """Steps between the two products, and what the masks among them show."""

    steps: list[Step] = field(default_factory=list)
    masks: list[Value] = field(default_factory=list)


def fused_attention(flow: Flow) -> int:
    """Make fused attention of each softmax between two products.

    Scales, masks and casts between them become part of it, as do the transposes that bring heads forward and back and
    the copies of keys and values to more heads.
    """
    return sum(_fuse(flow, softmax) for softmax in flow.of("Softmax"))


def _fuse(flow: Flow, softmax: Step) -> bool:
    scores = softmax.ins[0]
    if scores is None or softmax.domain or len(scores.shape) < 3:
        return False
    axis = int(softmax.attrs.get("axis", -1))
    if axis not in (-1, len(scores.shape) - 1):
        return False
    found = _Found()
    first = _back(flow, scores, found)
    second = _on(flow, softmax, found) if first is not None else None
    if first is None or second is None or second is first or first.out is None:
        return False
    q, k, v = first.ins[0], first.ins[1], second.ins[1]
    if q is None or k is None or v is None or not 3 <= len(first.out.shape) <= 5 or len(v.shape) < 2:
        return False
    lead = first.out.shape[:-2]
    batch, heads = (1, lead[0]) if len(lead) == 1 else (lead[0], first.out.numel // max(lead[0], 1))
    if len(lead) > 1:
        heads = 1
        for one in lead[1:]:
            heads *= one
    queries, keys = first.out.shape[-2:]
    members = [*found.steps, softmax, first]
    width, value = q.shape[-1], v.shape[-1]
    shown = [seen_through(mask, queries, keys) for mask in found.masks]
    seen = next((each for each in shown if each is not None), None)
    if not flow.closed([*members, second], second):
        return False
    _, q = _absorbed(flow, q, members)
    copied_k, k = _absorbed(flow, k, members)
    copied_v, v = _absorbed(flow, v, members)
    copies = copied_k if copied_k == copied_v and heads % max(copied_k, 1) == 0 else 1
    after = flow.reader(second.out, "Transpose")
    if after is not None:
        flow.hand_over(second, after)
    flow.join(members, second)
    shape = Shape(batch, queries, keys, heads, heads // copies, width, value)
    second.op, second.domain, second.ins = "FusedAttention", "", [q, k, v]
    second.attrs = {"shape": shape, "seen": seen}
    return True


def _back(flow: Flow, scores: Value, found: _Found) -> Step | None:
    """The product that scores come from, through steps of their size."""
    here = scores
    for _ in range(16):
        step = flow.maker(here)
        if step is None:
            return None
        if step.op in _PRODUCTS:
            return step
        if step.op not in _BEFORE or step.domain:
            return None
        found.steps.append(step)
        place = next((i for i in _order(step) if _large(step.ins[i], here)), None)
        if place is None:
            return None
        _note_mask(step, place, found)
        here = step.ins[place] or here
    return None


def _order(step: Step) -> list[int]:
    """Places of inputs, those first that are not known."""
    return sorted((i for i, one in enumerate(step.ins) if one is not None),
                  key=lambda i: (step.ins[i].data is not None, step.op == "Where" and i == 0))  # type: ignore[union-attr]  # fmt: skip


def _large(value: Value | None, here: Value) -> bool:
    return value is not None and value.numel == here.numel and value.data is None and not value.fixed


def _note_mask(step: Step, place: int, found: _Found) -> None:
    """What a mask added to scores, or chosen by, lets through."""
    if step.op == "Add":
        found.masks += [one for i, one in enumerate(step.ins) if i != place and one is not None and len(one.shape) >= 2]
    elif step.op == "Where" and step.ins[0] is not None and step.ins[0].data is not None:
        mask = step.ins[0]
        shown = mask.data if place == 1 else ~mask.data.astype(bool) if mask.data is not None else None
        found.masks.append(replace(mask, data=shown))


def _on(flow: Flow, softmax: Step, found: _Found) -> Step | None:
    """The product that reads the softmax, through casts and the like."""
    here = softmax.out
    for _ in range(6):
        readers = flow.readers(here)
        product = next((one for one in readers if one.op in _PRODUCTS), None)
        if product is not None and len(readers) == 1:
            first = product.ins[0]
            return product if first is not None and here is not None and first.number == here.number else None
        checks = [one for one in readers if one.op == "IsNaN"]
        rest = [one for one in readers if one.op in _AFTER and not one.domain]
        if not rest or len(checks) + len(rest) != len(readers):
            return None
        found.steps += [*checks, rest[0]]
        here = rest[0].out
    return None


def _absorbed(flow: Flow, value: Value, members: list[Step]) -> tuple[int, Value]:
    """How often `value` was copied out to more heads, and what it was before transposes, scales and copies."""
    copies = 1
    for _ in range(6):
        step = flow.maker(value, "Transpose Mul Div Expand Tile Cast")
        if step is None or flow.reader(value) is None or step.ins[0] is None or step.domain:
            break
        source = step.ins[0]
        if step.op in ("Mul", "Div") and not (step.ins[1] is not None and scalar(step.ins[1])):
            break
        if step.op in ("Expand", "Tile"):
            if not source.numel or value.numel % source.numel:
                break
            copies *= max(value.numel // source.numel, 1)
        members.append(step)
        value = source
    return copies, value
