"""Mixed precision as an autocasting framework runs it: what stays in fp32, and the casts in between."""

from __future__ import annotations

from dataclasses import replace

from joulecast.lowering.recipe import Recipe
from joulecast.lowering.rows import ATTENTION, Row, whole
from joulecast.workloads.kinds import plain_op

#: Reductions that an autocasting framework computes in fp32 (precision rules of PyTorch's autocast).
_FULL_PRECISION = frozenset({"layer_norm", "rms_norm", "group_norm", "softmax"})

#: Norms of the stream between layers: what they write is in fp32, and so is what is added to it. Batch norms of
#: convolutional networks write what they read.
_STREAM_NORMS = frozenset({"layer_norm", "rms_norm", "group_norm"})


def autocast(rows: list[Row], recipe: Recipe) -> list[Row]:
    """The forward pass under autocast: norms and the stream between layers in fp32, casts before multiplies."""
    narrow = recipe.formats.model
    out: list[Row] = []
    wide = False  # whether what the next multiply reads is in fp32
    stream = any(row.kind == "row_reduction" and plain_op(row.columns["op"]) in _STREAM_NORMS for row in rows)
    for row in rows:
        columns = dict(row.columns)
        if row.kind == "row_reduction" and plain_op(columns["op"]) in _FULL_PRECISION:
            columns["dtype"], wide = "fp32", True
        elif row.kind == "elementwise" and columns["op"] == "add" and columns["inputs"] > 1 and stream:
            columns["dtype"] = columns["out_dtype"] = "fp32"
        elif row.kind in ("gather", "copy") and columns["dtype"] == narrow:
            columns["dtype"] = "fp32"
            if "out_dtype" in columns:
                columns["out_dtype"] = "fp32"
        elif row.kind in ("gemm", "conv2d") and wide:
            elements = _read_elements(row)
            cast = {"op": "cast", "elements": elements, "inputs": 1.0, "dtype": "fp32", "out_dtype": narrow}
            out.append(Row("elementwise", whole("elementwise", cast), row.layer, row.count, "none", row.order))
        elif row.kind in ATTENTION or row.kind in ("elementwise", "moe"):
            wide = False
        out.append(replace(row, columns=columns))
    return out


def _read_elements(row: Row) -> float:
    c = row.columns
    if row.kind == "gemm":
        return float(c["batch"] * c["m"] * c["k"])
    return float(c["batch_size"] * c["in_channels"] * c["height"] * c["width"])
