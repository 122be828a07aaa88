"""Replays a saved program's graph on tensors without data, operators of PyTorch alone."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import torch

from joulecast.errors import InputError
from joulecast.workloads.pytorch_costs import registered_cost, rows_of
from joulecast.workloads.pytorch_run import finished, new_session
from joulecast.workloads.pytorch_session import Session
from joulecast.workloads.pytorch_shapes import moved_bytes, tensors_in
from joulecast.workloads.table import Workload

#: Formats by the numbers that torch.export writes for them.
_DTYPES = {
    1: torch.uint8, 2: torch.int8, 3: torch.int16, 4: torch.int32, 5: torch.int64, 6: torch.float16, 7: torch.float32,
    8: torch.float64, 9: torch.complex32, 10: torch.complex64, 11: torch.complex128, 12: torch.bool,
    13: torch.bfloat16, 28: torch.uint16, 29: torch.float8_e4m3fn, 30: torch.float8_e5m2,
}  # fmt: skip
_MEMORY_FORMATS = {
    1: torch.contiguous_format, 2: torch.channels_last, 3: torch.channels_last_3d, 4: torch.preserve_format,
}  # fmt: skip
_OPERATOR = re.compile(r"torch\.ops\.(aten|prims)\.([A-Za-z_]\w*)\.([A-Za-z_]\w*)")

#: Arithmetic on sizes.
_ON_SIZES: dict[str, Callable[..., Any]] = {
    "_operator.add": lambda a, b: a + b, "_operator.sub": lambda a, b: a - b, "_operator.mul": lambda a, b: a * b,
    "_operator.floordiv": lambda a, b: a // b, "_operator.mod": lambda a, b: a % b, "_operator.neg": lambda a: -a,
    "_operator.eq": lambda a, b: a == b, "_operator.ne": lambda a, b: a != b, "_operator.lt": lambda a, b: a < b,
    "_operator.le": lambda a, b: a <= b, "_operator.gt": lambda a, b: a > b, "_operator.ge": lambda a, b: a >= b,
    "math.trunc": math.trunc, "torch.sym_float": float, "torch.sym_int": int, "torch.sym_not": lambda a: not a,
    "torch.sym_max": max, "torch.sym_min": min,
}  # fmt: skip


def replayed(document: Mapping[str, Any], name: str, options: Mapping[str, Any]) -> Workload:
    """The workload of a saved graph module.

    Parameters
    ----------
    document : mapping
        As `joulecast.workloads.exported.read_graph` gives it.
    name : str
        Of the file, for messages.
    options : mapping
        Checked options of a recording.

    Returns
    -------
    Workload
    """
    session = new_session(options)
    replay = _Replay(document, session)
    try:
        replay.take_inputs()
        with torch.no_grad(), session:
            replay.run()
    except InputError:
        raise
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, RuntimeError) as error:
        raise InputError(f"{name}: its graph can't be followed at {replay.at}: {type(error).__name__}") from error
    return finished(session, options, replay.inputs)


class _Replay:
    """The values of a graph's names while its operators are run one after the other."""

    def __init__(self, document: Mapping[str, Any], session: Session) -> None:
        self.graph, self.session = document["graph"], session
        self.values: dict[str, Any] = {}
        self.at = "its inputs"
        self.inputs: list[torch.Tensor] = []
        self.signature = document["signature"]

    def take_inputs(self) -> None:
        """Make what the graph takes in: weights, buffers and inputs."""
        recorder = self.session.recorder
        for one in self.signature["input_specs"]:
            ((kind, spec),) = one.items()
            argument = spec.get("arg", {})
            named = argument.get("as_tensor", argument)
            if "name" not in named or named["name"] not in self.graph["tensor_values"]:
                continue
            tensor = self.values[named["name"]] = self._made(named["name"])
            if kind in ("parameter", "buffer", "tensor_constant"):
                key = tensor.untyped_storage()._cdata
                recorder.weights[key] = float(tensor.untyped_storage().nbytes())
                if kind == "parameter":
                    recorder.parameters[key] = tensor.numel()
            else:
                self.inputs.append(tensor)
        first = next((one for one in self.inputs if one.dim()), None)
        if first is not None:
            whole = first.dtype in (torch.int64, torch.int32)
            recorder.tokens["forward"] = float(first.numel() if whole else first.shape[0])

    def run(self) -> None:
        """Run every operator of the graph, each under the path of its module."""
        stack = self.session.recorder.stack
        for node in self.graph["nodes"]:
            self.at = str(node.get("target", ""))[:80]
            stack.append(_path(node.get("metadata") or {}))
            try:
                self._run(node)
            finally:
                stack.pop()

    def _run(self, node: Mapping[str, Any]) -> None:
        target = str(node["target"])
        args, kwargs = [], {}
        for one in node["inputs"]:
            value = self._argument(one["arg"])
            if one.get("kind") == 2:
                kwargs[one["name"]] = value
            else:
                args.append(value)
        if target in _ON_SIZES:
            self._bind(node["outputs"], _ON_SIZES[target](*args))
            return
        overload = _overload(target)
        if overload is None:
            self._unknown(node, target, args, kwargs)
            return
        if not tensors_in([args, kwargs]) and any(one.name == "device" for one in overload._schema.arguments):
            kwargs["device"] = torch.device("meta")  # what makes tensors of nothing makes them without data
        self._bind(node["outputs"], overload(*args, **kwargs))

    def _unknown(self, node: Mapping[str, Any], target: str, args: list[Any], kwargs: dict[str, Any]) -> None:
        """An operator of the user's: results as the file describes them, cost as registered."""
        with self.session.recorder.pause():
            made = [self._made(name) for name in _names(node["outputs"]) if name in self.graph["tensor_values"]]
        out = made[0] if len(made) == 1 else made
        parts = target.removeprefix("torch.ops.").split(".")
        name = "::".join(parts[:2])
        cost = registered_cost(name)
        rows = rows_of(name, cost, args, kwargs, out) if cost is not None else []
        moved = 0.0 if cost is not None else moved_bytes(tensors_in([args, kwargs, out]))
        self.session.recorder.write_down(parts[1] if len(parts) > 1 else target, rows, args, out, unpriced=moved)
        self._bind(node["outputs"], out)

    def _bind(self, outputs: list[Mapping[str, Any]], result: Any) -> None:
        names = _names(outputs)
        if len(names) == 1 and not isinstance(result, list | tuple):
            self.values[names[0]] = result
            return
        results = result if isinstance(result, list | tuple) else [result]
        if len(names) == 1 and len(results) != 1:
            self.values[names[0]] = result
            return
        self.values.update(zip(names, results, strict=False))

    def _made(self, name: str) -> torch.Tensor:
        described = self.graph["tensor_values"][name]
        sizes = [self._number(one) for one in described["sizes"]]
        strides = [self._number(one) for one in described["strides"]]
        return torch.empty_strided(sizes, strides, dtype=_DTYPES[described["dtype"]], device="meta")

    def _number(self, value: Any) -> Any:
        """A size: a number, or an expression with the value that the program was exported at."""
        if isinstance(value, Mapping):
            if "as_int" in value:
                return int(value["as_int"])
            if "as_name" in value:
                return self.values[value["as_name"]]
            if "as_expr" in value:
                hint = value["as_expr"].get("hint") or {}
                if not hint:
                    raise InputError(f"size {value['as_expr'].get('expr_str')} is not known: export with an example")
                return next(iter(hint.values()))
            return next(iter(value.values()))
        return value

    def _argument(self, argument: Mapping[str, Any]) -> Any:
        ((kind, value),) = argument.items()
        if kind == "as_none":
            return None
        if kind == "as_tensor":
            return self.values[value["name"]]
        if kind in ("as_tensors", "as_optional_tensors"):
            return [self._optional(one) for one in value]
        if kind in ("as_sym_int", "as_sym_bool", "as_sym_float"):
            return self._number(value)
        if kind in ("as_sym_ints", "as_sym_floats"):
            return [self._number(one) for one in value]
        if kind == "as_scalar_type":
            return _DTYPES[value]
        if kind == "as_memory_format":
            return _MEMORY_FORMATS.get(value, torch.contiguous_format)
        if kind == "as_layout":
            return torch.strided
        if kind == "as_device":
            return torch.device("meta")
        return value

    def _optional(self, one: Any) -> Any:
        if "as_tensor" in one:
            return self.values[one["as_tensor"]["name"]]
        return self.values[one["name"]] if "name" in one else None


def _overload(target: str) -> Any:
    """The operator on tensors called so, or None.

    What touches files is none: ``aten::from_file``, and what TorchScript has beside the dispatcher, as ``aten::save``.
    """
    found = _OPERATOR.fullmatch(target)
    packet = getattr(getattr(torch.ops, found[1]), found[2], None) if found else None
    overload = getattr(packet, found[3], None) if found and packet is not None else None
    if not isinstance(overload, torch._ops.OpOverload) or not torch._C._dispatch_has_kernel(overload.name()):
        return None
    return None if any(one.name == "filename" for one in overload._schema.arguments) else overload


def _names(outputs: list[Mapping[str, Any]]) -> list[str]:
    """Names of an operator's results."""
    out = []
    for one in outputs:
        ((kind, value),) = one.items()
        if kind in ("as_tensors", "as_optional_tensors"):
            out += [each.get("as_tensor", each).get("name", "") for each in value]
        elif isinstance(value, Mapping):
            out.append(value.get("name") or value.get("as_name") or "")
        else:
            out.append("")
    return out


def _path(metadata: Mapping[str, Any]) -> str:
    """Path of the innermost module that an operator was exported from."""
    stack = str(metadata.get("nn_module_stack", "")).split(";")
    parts = stack[-1].split(",")
    return parts[1] if len(parts) > 1 else ""
