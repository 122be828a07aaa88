"""Specs of reductions along rows: softmax, RMS norm, layer norm."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from joulecast.tuning.kernelspec import KernelSpec, Tensor
from joulecast.tuning.operators.matmul import tile_default
from joulecast.tuning.space import Config, Space

_EPSILON = 1e-6


def softmax(*, rows: int = 4096, columns: int = 4096, dtype: str = "fp16") -> KernelSpec:
    """Softmax of each row."""
    from joulecast.tuning.operators.code import rows as code

    def reference(given: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"y": given["x"].float().softmax(dim=1)}

    return _spec("softmax", code.softmax, rows, columns, dtype, reference, softmax)


def rms_norm(*, rows: int = 4096, columns: int = 4096, dtype: str = "fp16") -> KernelSpec:
    """``x / rms(x) * weight`` of each row."""
    from joulecast.tuning.operators.code import rows as code

    def reference(given: Mapping[str, Any]) -> Mapping[str, Any]:
        x = given["x"].float()
        return {"y": x * (x.pow(2).mean(dim=1, keepdim=True) + _EPSILON).rsqrt() * given["weight"].float()}

    return _spec("rms_norm", code.norm, rows, columns, dtype, reference, rms_norm)


def layer_norm(*, rows: int = 4096, columns: int = 4096, dtype: str = "fp16") -> KernelSpec:
    """``(x - mean) / deviation * weight + bias`` of each row."""
    from joulecast.tuning.operators.code import rows as code

    def reference(given: Mapping[str, Any]) -> Mapping[str, Any]:
        x = given["x"].float()
        x = x - x.mean(dim=1, keepdim=True)
        x = x * (x.pow(2).mean(dim=1, keepdim=True) + _EPSILON).rsqrt()
        return {"y": x * given["weight"].float() + given["bias"].float()}

    return _spec("layer_norm", code.norm, rows, columns, dtype, reference, layer_norm)


def _spec(
    name: str, kernel: Any, rows: int, columns: int, dtype: str,
    reference: Callable[[Mapping[str, Any]], Mapping[str, Any]], again: Callable[..., KernelSpec],
) -> KernelSpec:  # fmt: skip
    blocks = tuple(v for v in (128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768) if v < 2 * columns or v == 128)
    space = Space.of(
        {
            "BLOCK": blocks,
            "ROWS": tuple(v for v in (1, 2, 4, 8) if v <= rows),
            "WHOLE": (0, 1),
            "num_warps": (1, 2, 4, 8, 16, 32),
            "num_stages": (1, 2, 3),
        },
        (
            f"WHOLE == 0 or BLOCK >= {columns}",
            f"WHOLE == 1 or BLOCK < {columns} or BLOCK == {blocks[0]}",
            "ROWS * BLOCK <= 128 * 32 * num_warps",
            "ROWS * BLOCK >= 32 * num_warps",
            "WHOLE == 0 or num_stages == 1",  # there is no loop to pipeline
        ),
    )
    shape = (rows, columns)
    arguments: dict[str, Any] = {"x": Tensor(shape, dtype), "y": Tensor(shape, dtype, output=True),
                                 "rows": rows, "columns": columns}  # fmt: skip
    constants: dict[str, Any] = {}
    if name != "softmax":
        arguments |= {"weight": Tensor((columns,), dtype), "bias": Tensor((columns,), dtype), "epsilon": _EPSILON}
        constants["CENTRED"] = int(name == "layer_norm")
    whole = {"BLOCK": blocks[-1], "ROWS": 1, "WHOLE": 1, "num_warps": 8, "num_stages": 1}
    default: Config = whole if space.holds(space.code(whole)) else tile_default(
        space, {"BLOCK": 1024, "ROWS": 1, "WHOLE": 1, "num_warps": 4, "num_stages": 1}
    )  # fmt: skip
    return KernelSpec(
        name=name,
        kernel=kernel,
        space=space,
        arguments=arguments,
        grid=lambda config: (-(-rows // int(config["ROWS"])),),
        reference=reference,
        default=default,
        problem={"rows": rows, "columns": columns, "dtype": dtype},
        constants=constants,
        family="row_reduction",
        small=None if rows <= 12 else lambda: again(rows=11, columns=columns, dtype=dtype),
    )
