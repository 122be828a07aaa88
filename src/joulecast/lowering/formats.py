"""Number formats that a GPU lacks: what runs in their place, and that it is told."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from joulecast.bounds.dtypes import CODES, DTYPES
from joulecast.errors import InputError
from joulecast.gpus import Gpu
from joulecast.workloads.kinds import kind
from joulecast.workloads.table import Array, OpTable

#: What frameworks run where a format is missing, in order of choice.
FALLBACKS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "tf32": ("fp32",),
        "bf16": ("fp16", "fp32"),
        "fp16": ("fp32",),
        "fp8": ("w8a16",),
        "fp8_block": ("w8a16",),
        "w8a8": ("w8a16",),
        "int8": ("w8a16",),
        "int4": ("w4a16",),
        "nvfp4": ("w4a16",),
        "mxfp4": ("w4a16_mxfp4", "w4a16"),
        "w4a8_mxfp4": ("w4a16_mxfp4", "w4a16"),
    }
)
_ATTENTION_FALLBACKS = dict.fromkeys(("fp8", "fp8_block", "nvfp4", "mxfp4", "int8", "int4"), "bf16")

#: Kinds whose formats are arithmetic; elsewhere a format is only a size in memory, which every GPU has.
_MATRIX = ("gemm", "batched_gemm", "conv2d", "conv2d_data_gradient", "conv2d_weight_gradient", "moe", "mla_bmm")


#: Formats whose weights are widened to the activations' before they are multiplied.
_WEIGHT_ONLY = ("w8a16", "w4a16", "w4a16_mxfp4")


def arithmetic(gpu: Gpu, name: str) -> str:
    """The arithmetic that `gpu` multiplies the format `name` in: its own, or where only weights are narrow the best.

    Weights alone are widened to whatever the activations are in: bf16, or fp16 or fp32 on a GPU without it.
    """
    if name in _WEIGHT_ONLY:
        for rates in (gpu.tensor_tflops, gpu.cuda_tflops):
            for math in ("bf16", "fp16"):
                if rates.get(math, 0.0) > 0:
                    return math
        return "fp32"
    return DTYPES[CODES[name]].math


def has_format(gpu: Gpu, name: str) -> bool:
    """Whether `gpu` computes in the format `name`: its arithmetic on tensor or CUDA cores."""
    math = arithmetic(gpu, name)
    if math in ("fp32", "fp64"):
        return math in gpu.cuda_tflops
    return math in gpu.tensor_tflops or (math in ("fp16", "bf16") and math in gpu.cuda_tflops)


def substitute(gpu: Gpu, name: str) -> str | None:
    """The format that runs in place of `name` on `gpu`: itself where the GPU has it, None where nothing can."""
    if has_format(gpu, name):
        return name
    for other in FALLBACKS.get(name, ()):
        found = substitute(gpu, other)
        if found is not None:
            return found
    return None


def replace_formats(table: OpTable, gpu: Gpu) -> tuple[OpTable, dict[str, str]]:
    """`table` with the formats that `gpu` lacks replaced, and which were.

    Raises
    ------
    InputError
        If nothing can run in place of a format.
    """
    columns: dict[str, Array] = dict(table.columns)
    replaced: dict[str, str] = {}
    for column in kind(table.kind).columns:
        arithmetic = column.name in ("attn_dtype", "gemm_dtype") or (column.name == "dtype" and table.kind in _MATRIX)
        if column.type != "dtype" or not arithmetic:
            continue
        codes = columns[column.name]
        for code in np.unique(codes):
            name = DTYPES[int(code)].name
            start = name
            if column.name == "attn_dtype" and not has_format(gpu, name):
                start = _ATTENTION_FALLBACKS.get(name, name)
            found = substitute(gpu, start)
            if found is None:
                raise InputError(f"{gpu.name} can't run {name}, and no other format can stand in for it")
            if found != name:
                columns[column.name] = np.where(codes == code, np.int16(CODES[found]), columns[column.name])
                replaced[name] = found
    return OpTable(table.kind, columns), replaced
