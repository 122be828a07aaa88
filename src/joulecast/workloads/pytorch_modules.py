"""Modules that are priced as a whole: routed experts, and linear layers whose weights are packed in few bits.

They are known by what they hold and are called with, never by importing the library they come from.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from joulecast.workloads.pytorch_costs import Row
from joulecast.workloads.pytorch_shapes import matmul_fmt, tensors_in
from joulecast.workloads.pytorch_values import has_no_data

#: Classes of linear layers whose weights are packed, and the format that they are multiplied in: bitsandbytes,
#: torchao, AutoGPTQ / GPTQModel, AutoAWQ, quanto, HQQ.
PACKED_LINEAR: dict[str, str] = {
    "Linear4bit": "w4a16", "LinearNF4": "w4a16", "LinearFP4": "w4a16", "Linear8bitLt": "w8a8",
    "QuantLinear": "w4a16", "WQLinear_GEMM": "w4a16", "WQLinear_GEMV": "w4a16", "WQLinear_GEMVFast": "w4a16",
    "WQLinear_Marlin": "w4a16", "WQLinear_Exllama": "w4a16", "WQLinear_ExllamaV2": "w4a16", "HQQLinear": "w4a16",
    "TritonV2QuantLinear": "w4a16", "MarlinQuantLinear": "w4a16", "ExllamaV2QuantLinear": "w4a16",
    "TorchQuantLinear": "w4a16", "MacheteQuantLinear": "w4a16", "BitBLASQuantLinear": "w4a16",
    "Int8WeightOnlyLinear": "w8a16", "WeightOnlyInt8Linear": "w8a16", "WeightOnlyInt4Linear": "w4a16",
    "Int8DynActInt4WeightLinear": "w4a16", "QLinear": "w8a16", "FP8Linear": "fp8_block", "Float8Linear": "fp8",
    "FbgemmFp8Linear": "fp8", "AqlmQuantizedLinear": "w4a16", "EetqLinear": "w8a16", "VptqLinear": "w4a16",
    "MXFP4Linear": "w4a16_mxfp4",
}  # fmt: skip

#: Tensor subclasses of weights that are packed (torchao), by the beginning of the class's name.
PACKED_TENSORS = (
    ("Int4", "w4a16"), ("Int8", "w8a16"), ("Float8", "fp8"), ("NVFP4", "nvfp4"), ("MXTensor", "mxfp4"),
    ("IntxUnpacked", "w4a16"), ("UintxTensor", "w4a16"),
)  # fmt: skip


@dataclass(frozen=True)
class WholeModule:
    """A module priced as a whole: its operations, and the layout of its result."""

    name: str
    rows: list[Row]
    result: Callable[[], Tensor]

    def record(self, recorder: Any, original: Any, module: Any, args: Any, kwargs: Any) -> Any:
        """Write the operations down and give the result; tensors with data are computed by the module itself."""
        given = tensors_in([args, kwargs])
        if any(not has_no_data(one) for one in given):
            with recorder.pause():
                out = original(module, *args, **kwargs)
            recorder.write_down(self.name, self.rows, given, out)
            return out
        weights = [one for one in module.parameters() if one.dtype.is_floating_point]
        return _WholeModule.apply(recorder, self, *given, *weights)


class _WholeModule(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, recorder: Any, what: WholeModule, *tensors: Tensor) -> Any:
        ctx.recorder, ctx.what = recorder, what
        ctx.save_for_backward(*tensors)
        with recorder.pause():
            out = what.result()
        recorder.write_down(what.name, what.rows, list(tensors), out)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        tensors = ctx.saved_tensors
        with ctx.recorder.pause():
            made = [
                torch.empty_like(one) if need else None
                for one, need in zip(tensors, ctx.needs_input_grad[2:], strict=True)
            ]
        rows = [(kind, {**columns, "count": 2 * columns.get("count", 1)}) for kind, columns in ctx.what.rows]
        ctx.recorder.write_down(ctx.what.name + "_backward", rows, [*grads, *tensors], made)
        return (None, None, *made)


def module_rows(module: Any, args: Any, kwargs: Any) -> WholeModule | None:
    """The module as a whole, if it is one that is priced so; None for all others."""
    packed = _packed(module)
    if packed:
        return _linear(module, packed, args)
    parameters = module._parameters
    if "down_proj" in parameters and ("gate_up_proj" in parameters or "up_proj" in parameters):
        return _experts(module, args, kwargs)
    return None


def _packed(module: Any) -> str:
    """Format of a linear layer with packed weights; empty where it is none."""
    found = PACKED_LINEAR.get(type(module).__name__, "")
    if type(module).__module__.startswith("transformers.models."):
        found = ""  # a model's own class that is called so: I-BERT's gives scales beside its result
    if found == "w4a16" and getattr(module, "bits", 4) == 8:
        return "w8a16"
    if found:
        return found
    if isinstance(module, torch.nn.Linear):
        name = type(module.weight).__name__
        if name == "AffineQuantizedTensor":
            return "w4a16" if module.weight.dtype.itemsize * 8 <= 4 else "w8a16"
        return next((packed for start, packed in PACKED_TENSORS if name.startswith(start)), "")
    return ""


def _linear(module: Any, packed: str, args: Any) -> WholeModule | None:
    x = next(iter(tensors_in(args)), None)
    inputs = getattr(module, "in_features", getattr(module, "infeatures", None))
    outputs = getattr(module, "out_features", getattr(module, "outfeatures", None))
    if x is None or not isinstance(inputs, int) or not isinstance(outputs, int) or not x.dim():
        return None
    rows = max(x.numel() // max(x.shape[-1], 1), 1)
    row: Row = ("gemm", {"m": rows, "n": outputs, "k": inputs, "dtype": packed})
    return WholeModule("packed_linear", [row], lambda: x.new_empty((*x.shape[:-1], outputs)))


def _experts(module: Any, args: Any, kwargs: Any) -> WholeModule | None:
    """Experts stacked in one tensor, called with tokens and the experts that each goes to."""
    given = tensors_in([args, kwargs])
    down = module._parameters["down_proj"]
    up = module._parameters.get("gate_up_proj", module._parameters.get("up_proj"))
    chosen = [one for one in given if not one.dtype.is_floating_point and one.dim() >= 2]
    if down is None or up is None or down.dim() != 3 or up.dim() != 3 or len(given) < 2:
        return None
    x = given[0]
    experts, hidden = down.shape[0], x.shape[-1]
    if hidden not in down.shape[1:]:
        return None
    inter = down.shape[1] if down.shape[2] == hidden and down.shape[1] != hidden else down.shape[2]
    wide = up.shape[1] if up.shape[2] == hidden and up.shape[1] != hidden else up.shape[2]
    tokens = x.numel() // hidden
    topk = chosen[0].shape[-1] if chosen else 0
    if not topk or tokens == 0 or topk > experts:
        return None
    dtype = "fp8_block" if down.dtype.itemsize == 1 else matmul_fmt(x)
    row: Row = ("moe", {"num_tokens": tokens, "hidden_size": hidden, "inter_size": inter, "topk": topk,
                        "num_experts": experts, "dtype": dtype, "gated": int(wide == 2 * inter)})  # fmt: skip
    return WholeModule("experts", [row], lambda: x.new_empty(x.shape))
