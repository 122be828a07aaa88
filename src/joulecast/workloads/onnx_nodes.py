"""What an ONNX operator's description says: attributes, names that it reads, the layer that it comes from."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import onnx
from onnx import helper

_SCOPES = re.compile(r"'([^']*)'|\"([^\"]*)\"")


def dims_of(kind: Any) -> list[int | str | None]:
    """Dimensions of a described tensor: numbers, names, or None."""
    if kind.HasField("sequence_type"):
        kind = kind.sequence_type.elem_type
    elif kind.HasField("optional_type"):
        kind = kind.optional_type.elem_type
    dims: list[int | str | None] = []
    for dim in kind.tensor_type.shape.dim:
        if dim.HasField("dim_param") and dim.dim_param.strip(" ?"):
            dims.append(dim.dim_param)
        else:
            dims.append(int(dim.dim_value) if dim.HasField("dim_value") and dim.dim_value >= 0 else None)
    return dims


def versions_of(imports: Any) -> dict[str, int]:
    """Versions of operator sets by domain."""
    return {("" if one.domain == "ai.onnx" else one.domain): int(one.version) for one in imports}


def attributes_of(node: Any) -> dict[str, Any]:
    """Attributes as plain values, words as text."""
    out: dict[str, Any] = {}
    for one in node.attribute:
        try:
            value = helper.get_attribute_value(one)
        except ValueError:
            continue
        out[one.name] = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
    return out


def bound_attributes(node: Any, given: Mapping[str, Any]) -> Any:
    """A copy of an operator of a function with the function's attributes in place."""
    copied = onnx.NodeProto()
    copied.CopyFrom(node)
    kept = []
    for one in copied.attribute:
        if not one.ref_attr_name:
            for graph in [*([one.g] if one.HasField("g") else []), *one.graphs]:
                bound = [bound_attributes(inner, given) for inner in graph.node]
                del graph.node[:]
                graph.node.extend(bound)
            kept.append(one)
            continue
        source = given.get(one.ref_attr_name)
        if source is not None:
            found = onnx.AttributeProto()
            found.CopyFrom(source)
            found.name = one.name
            kept.append(found)
    kept = [onnx.AttributeProto.FromString(one.SerializeToString()) for one in kept]
    del copied.attribute[:]
    copied.attribute.extend(kept)
    return copied


def names_read(node: Any) -> list[str]:
    """Names that an operator reads itself, and those of outer graphs that its own graphs read."""
    names = list(node.input)
    for one in node.attribute:
        for graph in [*([one.g] if one.HasField("g") else []), *one.graphs]:
            made = {each.name for each in (*graph.input, *graph.initializer)}
            made |= {name for inner in graph.node for name in inner.output}
            names += [name for inner in graph.node for name in names_read(inner) if name and name not in made]
    return names


def path_of(node: Any) -> str:
    """Path of the layer that an operator comes from, by the exporter's names."""
    for one in node.metadata_props:
        if one.key == "pkg.torch.onnx.name_scopes":
            scopes = [a or b for a, b in _SCOPES.findall(one.value[:4000])]
            return scopes[-2] if len(scopes) > 1 else ""
    if not node.name.startswith("/"):
        return ""
    return ".".join(node.name.strip("/").split("/")[:-1])[:200]
