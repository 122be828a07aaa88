"""The one vocabulary of number formats: names, aliases, bytes an element, and how a format computes."""

from __future__ import annotations

from dataclasses import dataclass

from joulecast.errors import UnknownNameError


@dataclass(frozen=True)
class DType:
    """A number format as an operation sees it.

    Attributes
    ----------
    name : str
        The standard name.
    weight_bytes, activation_bytes, output_bytes : float
        Bytes an element of the weights (scales included), of the activations as the matrix
        multiply reads them, and of the result.
    math : str
        Name of the arithmetic rate used (a key of a GPU's tensor or CUDA-core rates).
    aliases : tuple of str
        Other names that are accepted.
    """

    name: str
    weight_bytes: float
    activation_bytes: float
    output_bytes: float
    math: str
    aliases: tuple[str, ...] = ()


# Block scales are part of the weight: fp8_block one fp32 a 128x128 block (negligible), nvfp4 one byte
# and mxfp4 one byte a 16 and 32 elements, int4 one fp16 a group of 128.
DTYPES: tuple[DType, ...] = (
    DType("fp32", 4, 4, 4, "fp32", ("float32", "float", "f32")),
    DType("tf32", 4, 4, 4, "tf32", ("tensorfloat32",)),
    DType("fp16", 2, 2, 2, "fp16", ("float16", "half", "f16")),
    DType("bf16", 2, 2, 2, "bf16", ("bfloat16",)),
    DType("fp8", 1, 1, 2, "fp8", ("float8", "e4m3", "fp8_e4m3fn", "fp8_e4m3", "float8_e4m3fn")),
    DType("fp8_block", 1, 1, 2, "fp8", ("fp8_blockwise",)),
    DType("nvfp4", 0.5 + 1 / 16, 0.5 + 1 / 16, 2, "fp4", ("fp4",)),
    DType("mxfp4", 0.5 + 1 / 32, 0.5 + 1 / 32, 2, "fp4", ()),
    DType("int8", 1, 1, 2, "int8", ()),
    DType("int4", 0.5 + 1 / 64, 0.5, 2, "int4", ()),
    DType("w8a16", 1, 2, 2, "bf16", ("int8_wo",)),
    DType("w4a16", 0.5 + 1 / 64, 2, 2, "bf16", ("int4_wo",)),
    DType("w8a8", 1, 1, 2, "int8", ("sq", "smoothquant")),
    DType("w4a8_mxfp4", 0.5 + 1 / 32, 1 + 1 / 32, 2, "fp8", ("w4a8_mxfp4_mxfp8",)),
    DType("w4a16_mxfp4", 0.5 + 1 / 32, 2, 2, "bf16", ()),
    DType("fp64", 8, 8, 8, "fp64", ("float64", "double")),
)

CODES: dict[str, int] = {dtype.name: code for code, dtype in enumerate(DTYPES)}
_BY_ALIAS: dict[str, DType] = {alias.lower(): dtype for dtype in DTYPES for alias in (dtype.name, *dtype.aliases)}


def dtype(name: str | DType) -> DType:
    """The `DType` called `name` (any accepted spelling, ``torch.`` prefix allowed).

    Raises
    ------
    UnknownNameError
        If no format has that name.
    """
    if isinstance(name, DType):
        return name
    found = _BY_ALIAS.get(str(name).removeprefix("torch.").strip().lower())
    if found is None:
        raise UnknownNameError("dtype", name, CODES)
    return found


def dtype_code(name: str | DType) -> int:
    """Index into `DTYPES` of the format called `name`: how columns hold formats."""
    return CODES[dtype(name).name]
