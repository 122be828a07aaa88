"""ONNX models as workloads: the kernels that ONNX Runtime's graph optimiser leaves, priced by shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from joulecast.errors import InputError, shortened
from joulecast.workloads.events import Event, Row
from joulecast.workloads.files import named
from joulecast.workloads.onnx_dims import Asked, checked_dims
from joulecast.workloads.onnx_proto import read_model
from joulecast.workloads.request import Request
from joulecast.workloads.table import Workload

if TYPE_CHECKING:
    from joulecast.workloads.onnx_graph import Step, Walk
    from joulecast.workloads.onnx_rules import Formats
    from joulecast.workloads.onnx_values import Value

#: What of a request an ONNX model can be asked.
_TAKEN = frozenset({"batch", "prompt_tokens", "image_size", "dtype", "weight_dtype", "logits"})

#: Zeros in what a ReLU lets through, where a convolution reads it: about half of a feature map.
_ZEROS_AFTER_RELU = 0.5


@dataclass
class _Assumed:
    assumed: set[str] = field(default_factory=set)


@dataclass
class _Recording:
    """Weights and tokens of a graph, as a workload is made of them."""

    weights: dict[int, float]
    parameters: dict[int, int]
    tokens: dict[str, float]
    values: _Assumed


def workload_of_onnx(path: str | Path, dims: Any = None, **options: Any) -> Workload:
    """The workload of an ONNX model.

    Parameters
    ----------
    path : str or Path
        Weights kept in other files are not needed.
    dims : mapping of str to int, optional
        Sizes of open dimensions by name (``batch``), or of any input by place (``images.0``).
    **options
        ``batch``, ``prompt_tokens`` and ``image_size`` for open dimensions that are called so; ``dtype`` for what the
        model holds in fp32; ``weight_dtype`` for its weights.

    Returns
    -------
    Workload
        As ONNX Runtime would run it; ``compiled`` with pointwise chains fused as well.

    Raises
    ------
    InputError
        If the file is damaged or can't be followed, or sizes are missing.
    MissingExtraError
        Without the onnx package.
    """
    name = named(path)
    given = {key: value for key, value in options.items() if value is not None}
    known = [one.name for one in fields(Request)]
    for option in given:
        if option not in _TAKEN:
            what = "can't be asked of an ONNX model" if option in known else "is no option"
            raise InputError(f"{shortened(option)} {what}: it takes dims, {', '.join(sorted(_TAKEN - {'logits'}))}")
    request = Request.of(None, **given)
    asked = Asked(name, checked_dims(dims), given.get("batch"), given.get("prompt_tokens"), given.get("image_size"))
    model = read_model(path)

    from joulecast.workloads.onnx_graph import walk_model
    from joulecast.workloads.onnx_rules import Formats

    try:
        walk, inputs = walk_model(model, name, asked)
    except (TypeError, ValueError, AttributeError, KeyError, IndexError, OverflowError, MemoryError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{name} is an ONNX model that can't be followed: {type(error).__name__}") from error
    formats = Formats()
    if "dtype" in given:
        product = request.dtype if request.weight_dtype is None else request.head_dtype
        formats = Formats(request.activation_dtype, product)
    if "weight_dtype" in given:
        formats = replace(formats, packed=request.gemm_dtype)
    facts = {
        "source": "onnx",
        "dtype": given.get("dtype") or _held(walk),
        "batch": inputs[0].shape[0] if inputs and inputs[0].shape else 1,
        "opset": walk.versions.get("", 0),
        "operators": len(walk.steps),
    }
    return _workload(walk, inputs, _results(walk, model), formats, Path(path).stem, facts)


def _results(walk: Walk, model: Any) -> set[int]:
    """Numbers of what the graph gives."""
    return {walk.found[one.name].number for one in model.graph.output if one.name in walk.found}


def _held(walk: Walk) -> str:
    """Format of most of the real numbers that steps read and that are the same in every run."""
    from joulecast.workloads.onnx_values import FORMATS

    sizes: dict[str, float] = {}
    for value in {one.number: one for step in walk.steps for one in step.ins if one is not None and one.fixed}.values():
        if value.numel > 1:
            name = FORMATS.get(value.elem, ("fp32", 4))[0]
            sizes[name] = sizes.get(name, 0.0) + value.numel
    return max(sizes, key=lambda one: sizes[one]) if sizes else "fp32"


def _workload(
    walk: Walk, inputs: Sequence[Value], results: set[int], formats: Formats, title: str, info: Mapping[str, Any]
) -> Workload:
    from joulecast.workloads.onnx_flow import Flow
    from joulecast.workloads.onnx_passes import PASSES
    from joulecast.workloads.pytorch_build import workload_of
    from joulecast.workloads.pytorch_fusion import fused_events

    notes = [note for find, note in PASSES if find(Flow(walk.steps, results)) and note]
    steps = [one for one in walk.steps if not one.dead and one.count > 0]
    if any(one.op == "FusedAttention" and one.attrs["seen"] and one.attrs["seen"].presumed for one in steps):
        notes.append("square masks whose numbers are not in the file are taken to be causal")
    events = _events(steps, formats)
    first = inputs[0] if inputs else None
    tokens = 0.0
    if first is not None and first.shape:
        tokens = float(first.numel if not first.floating and len(first.shape) <= 2 else first.shape[0])
    weights, parameters = _weights(steps, formats)
    recording = _Recording(weights, parameters, {"forward": tokens}, _Assumed(walk.assumed))
    counts = np.ones(len(events))
    facts: dict[str, Any] = {"name": title, "info": dict(info), "notes": tuple(notes)}
    biased = tuple(dict.fromkeys(one.path for one in steps if one.attrs.get("biased")))
    compiled = replace(workload_of(*fused_events(events, counts), recording, **facts), biased=biased)
    return replace(workload_of(events, counts, recording, **facts), compiled=compiled, biased=biased)


def _events(steps: Sequence[Step], formats: Formats) -> list[Event]:
    events = []
    rectified: set[int] = set()
    for step in steps:
        rows = _rows(step, formats)
        event = Event(step.op, [_times(row, step.count) for row in rows or []], step.path, "forward")
        read = {one.number: one for one in step.ins if one is not None}
        made = [one for one in step.outs if one is not None]
        event.reads = tuple((one.number, one.numel, int(formats.bytes(one))) for one in read.values())
        event.writes = tuple((one.number, one.numel, int(formats.bytes(one))) for one in made)
        event.shape = made[0].shape if made else ()
        if rows is None:
            event.unpriced_bytes = step.count * sum(formats.bytes(one) for one in [*read.values(), *made])
        _mark_zeros(step, event, rectified)
        events.append(event)
    return events


def _rows(step: Step, formats: Formats) -> list[Row] | None:
    """What a step is in our kinds; None where no rule prices it, or its tensors are not as the rule expects."""
    from joulecast.workloads.onnx_ops import rows_for
    from joulecast.workloads.onnx_rules import Call

    call = Call(step.op, step.ins, step.outs, step.attrs, formats)
    try:
        return rows_for(step.domain, call)
    except (IndexError, KeyError, TypeError, ValueError, AttributeError, AssertionError, ZeroDivisionError):
        return None


def _times(row: Row, count: float) -> Row:
    if count == 1:
        return row
    kind, columns = row
    return kind, {**columns, "count": count * columns.get("count", 1)}


def _mark_zeros(step: Step, event: Event, rectified: set[int]) -> None:
    """Convolutions that read what a convolution's ReLU let through multiply by zeros, half of them."""
    if step.attrs.get("rectified") or (step.op == "MaxPool" and step.ins[0] and step.ins[0].number in rectified):
        rectified.update(one.number for one in step.outs if one is not None)
    first = step.ins[0] if step.ins else None
    if first is not None and first.number in rectified:
        event.rows = [
            (kind, {**columns, "zero_share": _ZEROS_AFTER_RELU}) if kind == "conv2d" else (kind, columns)
            for kind, columns in event.rows
        ]


def _weights(steps: Sequence[Step], formats: Formats) -> tuple[dict[int, float], dict[int, int]]:
    """Bytes and elements of what steps read that is the same in every run."""
    weights: dict[int, float] = {}
    parameters: dict[int, int] = {}
    for step in steps:
        for one in step.ins:
            if one is not None and one.fixed and one.numel:
                weights[one.number] = formats.bytes(one)
                parameters[one.number] = one.numel
    return weights, parameters
