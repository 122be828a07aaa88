"""Walks an ONNX graph from its inputs to its outputs: every operator with its tensors, in the order it runs."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from joulecast.errors import InputError, shortened
from joulecast.workloads.onnx_control import CONTROL, SEQUENCES, sequence
from joulecast.workloads.onnx_dims import Asked
from joulecast.workloads.onnx_nodes import (
    attributes_of,
    bound_attributes,
    dims_of,
    names_read,
    path_of,
    versions_of,
)
from joulecast.workloads.onnx_ops import FREE
from joulecast.workloads.onnx_shapes import inferred
from joulecast.workloads.onnx_values import ALL_KNOWN_BYTES, BOOL, INT32, INT64, NUMPY, Value, evaluated

#: Operators that are walked, functions and subgraphs taken apart: more is no model, or a trap.
MOST_STEPS = 200_000
DEEPEST = 40

#: Elements of one tensor: beyond any machine.
_MOST_ELEMENTS = 2**50
_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")

#: Operators that run each time though what they read is the same: they draw numbers, or keep weights in few bits.
_DRAWN = "RandomNormal RandomNormalLike RandomUniform RandomUniformLike Bernoulli Multinomial"
_EACH_RUN = frozenset([*_DRAWN.split(), "DequantizeLinear"])


@dataclass
class Step:
    """One operator that runs.

    Attributes
    ----------
    op, domain : str
    attrs : dict
    ins, outs : list of Value or None
    path : str
        Of its layer, numbers as stars.
    count : float
        How often it runs (bodies of loops).
    dead : bool
        Whether it became part of another.
    """

    op: str
    domain: str
    attrs: dict[str, Any]
    ins: list[Value | None]
    outs: list[Value | None]
    path: str
    count: float = 1.0
    dead: bool = False

    @property
    def out(self) -> Value | None:
        """The first result."""
        return next((one for one in self.outs if one is not None), None)


@dataclass
class Scope:
    """Names that a graph can see: its own, and those of the graph around it."""

    values: dict[str, Value]
    outer: Scope | None = None

    def find(self, name: str) -> Value | None:
        """The value called `name`."""
        scope: Scope | None = self
        while scope is not None:
            found = scope.values.get(name)
            if found is not None:
                return found
            scope = scope.outer
        return None


@dataclass
class Walk:
    """The steps of a graph in the making.

    Attributes
    ----------
    name : str
        Of the file, for messages.
    versions : mapping of str to int
        Of operator sets, by domain.
    functions : mapping
        The model's own, by domain, name and overload.
    steps : list of Step
    assumed : set of str
        What had to be assumed, a sentence each.
    guessed : dict of str to set of str
        What was assumed of sizes, with the operators whose.
    found : mapping of str to Value
        Tensors of the outermost graph by name.
    """

    name: str
    versions: Mapping[str, int]
    functions: Mapping[tuple[str, str, str], Any]
    steps: list[Step] = field(default_factory=list)
    assumed: set[str] = field(default_factory=set)
    guessed: dict[str, set[str]] = field(default_factory=dict)
    walked: int = 0
    worked_out: int = 0
    depth: int = 0
    times: float = 1.0
    inside: str = ""
    found: Mapping[str, Value] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    # ---------------------------------------------------------------- values

    def new(self, shape: Sequence[int], elem: int, **facts: Any) -> Value:
        """A tensor in memory of its own.

        Raises
        ------
        InputError
            If it is larger than any memory.
        """
        if min(shape, default=0) < 0 or math.prod(shape) > _MOST_ELEMENTS:
            sizes = " x ".join(str(one) for one in shape)
            raise InputError(f"{self.name} has a tensor of {shortened(sizes)}, which is beyond any machine")
        return Value(next(self.numbers), tuple(shape), elem, **facts)

    def constant(self, tensor: Any) -> Value:
        """A tensor of the file; its numbers where they were kept."""
        shape = tuple(int(one) for one in tensor.dims)
        data: Any = None
        if tensor.data_location != onnx.TensorProto.EXTERNAL and tensor.data_type in NUMPY:
            try:
                data = numpy_helper.to_array(tensor).astype(NUMPY[tensor.data_type], copy=False)
            except (ValueError, TypeError, OverflowError, AttributeError, KeyError, MemoryError):
                data = None
        return self.new(shape, tensor.data_type, data=data if data is not None and data.shape == shape else None,
                        fixed=True)  # fmt: skip

    # ---------------------------------------------------------------- graphs

    def graph(self, nodes: Sequence[Any], scope: Scope) -> None:
        """Walk operators, each after those that make what it reads.

        Raises
        ------
        InputError
            If they read what nothing makes, or wait for each other in a circle.
        """
        self.depth += 1
        if self.depth > DEEPEST:
            raise InputError(f"{self.name} nests graphs or functions more than {DEEPEST} deep")
        waiting = list(nodes)
        while waiting:
            later = []
            for node in waiting:
                if all(not name or scope.find(name) is not None for name in names_read(node)):
                    self._node(node, scope)
                else:
                    later.append(node)
            if len(later) == len(waiting):
                made = {name for node in later for name in node.output}
                lost = [name for node in later for name in names_read(node) if name and scope.find(name) is None]
                outside = [name for name in lost if name not in made]
                if outside:
                    raise InputError(f"{self.name} reads {shortened(outside[0])!r}, which nothing in it makes")
                raise InputError(f"{self.name} is no graph in order: {shortened(lost[0])!r} waits for itself")
            if later:  # what is out of order costs as if it were walked
                self.walked += len(later)
                self._bound()
            waiting = later
        self.depth -= 1

    def _bound(self) -> None:
        if self.walked > MOST_STEPS:
            raise InputError(f"{self.name} comes to more than {MOST_STEPS:,} operators: it is no model that could run")

    def _node(self, node: Any, scope: Scope) -> None:
        self.walked += 1
        self._bound()
        ins = [scope.find(name) if name else None for name in node.input]
        domain = "" if node.domain == "ai.onnx" else node.domain
        function = self.functions.get((node.domain, node.op_type, node.overload))
        if function is not None:
            outs = self._function(function, node, ins)
        elif not domain and node.op_type in CONTROL:
            outs = CONTROL[node.op_type](self, node, ins, scope)
        else:
            outs = self._operator(node, domain, ins)
        for name, one in zip(node.output, outs, strict=False):
            if name and one is not None:
                scope.values[name] = one

    def _function(self, function: Any, node: Any, ins: list[Value | None]) -> list[Value | None]:
        """A function of the model's, taken apart."""
        given = {one.name: one for one in function.attribute_proto}
        given |= {one.name: one for one in node.attribute}
        local = Scope({name: one for name, one in zip(function.input, ins, strict=False) if one is not None})
        missing = [name for name in function.input if name not in local.values]
        kept, self.versions = self.versions, {**self.versions, **versions_of(function.opset_import)}
        before, self.inside = self.inside, self.inside or path_of(node)
        nodes = [bound_attributes(one, given) for one in function.node]
        for one in nodes:  # inputs that were left out
            for place, name in enumerate(one.input):
                if name in missing:
                    one.input[place] = ""
        self.graph(nodes, local)
        self.versions, self.inside = kept, before
        return [local.find(name) for name in function.output]

    def subgraph(self, graph: Any, scope: Scope, given: Sequence[Value | None] = ()) -> list[Value]:
        """Results of a graph within an operator."""
        local = Scope({}, scope)
        for one, value in zip(graph.input, given, strict=False):
            if value is not None:
                local.values[one.name] = value
        for tensor in graph.initializer:
            local.values[tensor.name] = self.constant(tensor)
        self.graph(graph.node, local)
        found = [local.find(one.name) for one in graph.output]
        return [one if one is not None else self.new((), onnx.TensorProto.FLOAT) for one in found]

    # ---------------------------------------------------------------- operators

    def _operator(self, node: Any, domain: str, ins: list[Value | None]) -> list[Value | None]:
        attrs = attributes_of(node)
        op = node.op_type
        if op == "Constant" and not domain:
            return [self._literal(attrs)]
        if op in SEQUENCES and not domain:
            known = sequence(self, op, attrs, ins)
            if known is not None:
                return known
        first = next((one for one in ins if one is not None), None)
        found, assumed = inferred(node, ins, attrs, self.versions)
        if assumed:
            self.guessed.setdefault(assumed, set()).add(op)
        fixed = all(one is None or one.fixed for one in ins) and op not in _EACH_RUN
        fixed = fixed or (op in ("Shape", "Size") and first is not None)
        view = op in FREE and not domain and op not in ("Shape", "Size") and first is not None and first.items is None
        outs: list[Value | None] = []
        for place, result in enumerate(found):
            if result is None:
                outs.append(None)
                continue
            shape, elem = result
            data = self._worked_out(op, domain, ins, attrs, shape, elem) if place == 0 else None
            if view and place == 0 and first is not None:
                outs.append(replace(first, shape=shape, elem=elem, data=data, fixed=fixed))
            else:
                outs.append(self.new(shape, elem, data=data, fixed=fixed))
        if op == "Split" and first is not None and first.data is not None and not domain:
            outs = self._split(first, attrs, outs)
        if not fixed and not view:
            self.steps.append(Step(op, domain, attrs, ins, outs, self._path(node), self.times))
        return outs

    def _path(self, node: Any) -> str:
        return _NUMBER.sub("*", self.inside or path_of(node))

    def _worked_out(
        self, op: str, domain: str, ins: list[Value | None], attrs: dict[str, Any], shape: Any, elem: int
    ) -> Any:
        first = ins[0] if ins else None
        if op == "Shape" and first is not None:
            rank = len(first.shape)
            start, end = int(attrs.get("start", 0)), int(attrs.get("end", rank))
            return np.array(first.shape[start:end], dtype=np.int64)
        if op == "Size" and first is not None:
            return np.array(first.numel, dtype=np.int64)
        if op == "ConstantOfShape":
            held = attrs.get("value")
            value = numpy_helper.to_array(held).reshape(-1)[:1] if held is not None else np.zeros(1, dtype=np.float32)
            return np.broadcast_to(value.reshape((1,) * len(shape)), (1,) * len(shape)) if value.size else None
        if domain or self.worked_out > ALL_KNOWN_BYTES:
            return None
        data = evaluated(op, ins, attrs, shape, elem)
        if data is not None:
            self.worked_out += data.nbytes
        return data

    def _literal(self, attrs: Mapping[str, Any]) -> Value | None:
        """A constant that an operator holds."""
        if "value" in attrs:
            return self.constant(attrs["value"])
        for name, elem, kind in (
            ("value_int", INT64, np.int64), ("value_ints", INT64, np.int64),
            ("value_float", 1, np.float32), ("value_floats", 1, np.float32),
        ):  # fmt: skip
            if name in attrs:
                data = np.asarray(attrs[name], dtype=kind)
                return self.new(data.shape, elem, data=data, fixed=True)
        if "sparse_value" in attrs:
            sparse = attrs["sparse_value"]
            return self.new(tuple(sparse.dims), sparse.values.data_type, fixed=True)
        return self.new((), onnx.TensorProto.STRING, fixed=True)

    def copied(self, source: Value, items: Sequence[Value], attrs: Mapping[str, Any]) -> None:
        """Parts of a tensor are copied out."""
        self.steps.append(Step("Split", "", dict(attrs), [source], list(items), self.inside, self.times))

    def _split(self, first: Value, attrs: Mapping[str, Any], outs: list[Value | None]) -> list[Value | None]:
        """Parts of numbers that are known."""
        data, axis, at = first.known(), int(attrs.get("axis", 0)), 0
        parts: list[Value | None] = []
        for one in outs:
            if one is None or data is None or not data.ndim:
                parts.append(one)
                continue
            size = one.shape[axis % data.ndim]
            parts.append(replace(one, data=np.take(data, range(at, min(at + size, data.shape[axis])), axis=axis)))
            at += size
        return parts


def walk_model(model: Any, name: str, asked: Asked) -> tuple[Walk, list[Value]]:
    """The steps of a model, and its inputs.

    Parameters
    ----------
    model : onnx.ModelProto
    name : str
        Of the file, for messages.
    asked : Asked
        Sizes of the inputs.

    Returns
    -------
    Walk, list of Value

    Raises
    ------
    InputError
        If sizes are missing, or the graph can't be followed.
    """
    functions = {(one.domain, one.name, one.overload): one for one in model.functions}
    walk = Walk(name, versions_of(model.opset_import), functions)
    scope = Scope({})
    for tensor in model.graph.initializer:
        scope.values[tensor.name] = walk.constant(tensor)
    for sparse in model.graph.sparse_initializer:
        scope.values[sparse.values.name] = walk.new(tuple(sparse.dims), sparse.values.data_type, fixed=True)
    described = [one for one in model.graph.input if one.name not in scope.values]
    shapes = asked.shapes([(one.name, dims_of(one.type)) for one in described])
    inputs = []
    for one in described:
        elem = one.type.tensor_type.elem_type or onnx.TensorProto.FLOAT
        value = walk.new(shapes[one.name], elem)
        if one.type.HasField("sequence_type"):
            value = replace(value, items=(value,))
        if "mask" in one.name.lower() and elem in (INT64, INT32, BOOL):
            ones: Any = np.ones((1,) * len(value.shape), dtype=NUMPY[elem])
            value = replace(value, data=ones)
            walk.assumed.add(f"input {shortened(one.name, 40)} is taken to let all through")
        scope.values[one.name] = value
        inputs.append(value)
    try:
        walk.graph(model.graph.node, scope)
    except RecursionError:
        raise InputError(f"{name} nests too deeply to be followed") from None
    walk.found = scope.values
    walk.assumed |= {f"{what}: {shortened(', '.join(sorted(ops)), 120)}" for what, ops in walk.guessed.items()}
    return walk, inputs
