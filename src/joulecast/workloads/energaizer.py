"""The EnergAIzer trace: the logged kernels of one forward pass, read into a workload."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from joulecast.bounds.dtypes import DTYPES, dtype, dtype_code
from joulecast.errors import InputError, UnknownNameError, shortened
from joulecast.workloads.energaizer_ops import TracedOp, shape_of
from joulecast.workloads.energaizer_restore import restored
from joulecast.workloads.files import content_of, content_of_json, named, parse_json, read_bytes
from joulecast.workloads.table import Memory, OpTable, Workload, WorkloadBuilder

#: Longer traces are refused (one forward pass has hundreds to thousands of kernels).
MAX_KERNELS = 200_000

#: Elementwise operations of the format: our word, and tensors read of the size of the result.
ELEMENTWISE_OPS: Mapping[str, tuple[str, int]] = MappingProxyType(
    {
        "pointwise_add": ("add", 2), "pointwise_mul": ("mul", 2), "unspecified_tensor": ("other", 2),
        "scalar_mul": ("scale", 1), "scalar_add": ("add", 1), "unspecified_scalar": ("other", 1),
        "typecast_to_fp32": ("cast", 1), "typecast_to_bf16": ("cast", 1), "typecast_to_fp16": ("cast", 1),
        "relu": ("relu", 1), "gelu": ("gelu", 1), "silu": ("silu", 1), "tanh": ("tanh", 1),
        "sigmoid": ("sigmoid", 1), "unspecified_activation": ("relu", 1),
    }
)  # fmt: skip
_GEMM_FIELDS = ("batch", "dimM", "dimN", "dimK")
_CONV_FIELDS = ("b", "m", "c", "hw", "rs", "stride", "padding")
_GEMM_EXTRA = ("precM", "precA", "useTensorCore")
_MAX_LAYERED = 20_000


def read_trace(path: str | Path, *, restore: bool = True) -> Workload:
    """The forward pass that an EnergAIzer trace logs.

    Parameters
    ----------
    path : str or Path
        JSON file: a list of ``[descriptor, tags]``.
    restore : bool
        Add the launches that the format leaves out (normalisations, copies, gathers, ...) and correct
        what it misstates (depthwise convolutions), each told in the notes; added operations lie under
        layers that begin with ``restored.``. Without it, the kernels of the trace and nothing else.

    Returns
    -------
    Workload
        One pass, ``forward``; each kernel counts once, in the order of the trace.

    Raises
    ------
    InputError
        For a file that is not such a trace: one line that names file, row (from 1) and field.
    """
    name = named(path)
    data = read_bytes(path)
    if content_of(data, name) != "json":
        raise InputError(f"{name} is not an EnergAIzer trace (JSON: a list of [descriptor, tags])")
    value = parse_json(data, name)
    if content_of_json(value, name) != "energaizer":
        raise InputError(f"{name} is not an EnergAIzer trace (a list of [descriptor, tags])")
    return workload_of_trace(value, name, restore=restore)


def workload_of_trace(rows: Any, name: str, *, restore: bool = True) -> Workload:
    """The workload in a parsed trace; `name` is the file's, for messages and the workload's name."""
    if not isinstance(rows, list) or not rows:
        raise InputError(f"{name} holds no kernels")
    if len(rows) > MAX_KERNELS:
        raise InputError(f"{name} has {len(rows):,} kernels; at most {MAX_KERNELS:,} are read")
    swapped = _rows_are_tokens(rows)
    traced = _with_layers([_traced(row, f"{name}, row {i + 1}", swapped) for i, row in enumerate(rows)])
    shape = shape_of(traced)
    ops, notes = restored(traced, shape, conv1d=swapped) if restore else (traced, ())
    builder = WorkloadBuilder(Path(name).stem)
    builder.begin_pass("forward", tokens=shape.images or shape.tokens)
    for op in ops:
        builder.add(op.kind, layer=f"restored.{op.layer or 'model'}" if op.added else op.layer, **op.columns)
    parameters = sum(_weights(op) for op in ops)
    width = DTYPES[dtype_code(shape.dtype)].weight_bytes
    info = {
        "source": "EnergAIzer trace", "dtype": shape.dtype, "batch": shape.images or shape.batch,
        "prompt_tokens": 0 if shape.images else shape.sequence, "traced_kernels": len(rows),
        "restored_launches": sum(op.added for op in ops),
        **_of_its_model(name, ops),
    }  # fmt: skip
    return builder.build(
        parameters=parameters,
        memory=Memory(weights_bytes=parameters * width, activation_bytes=4 * width * _largest_result(ops)),
        info=MappingProxyType(info),
        notes=(*notes, "parameters count the traced matrices and filters, not embedding tables"),
    )


def as_precision(workload: Workload, precision: str) -> Workload:
    """`workload` with its floating-point tensors in another format, as a framework would run it.

    Casts that no longer change the format are dropped (a fp32 model has no casts around its softmax).
    In fp32, convolutions become ``tf32``: PyTorch lets cuDNN use it unless told otherwise, while matrix
    products stay fp32. Casts that another format would need are not added.

    Parameters
    ----------
    workload : Workload
    precision : str
        ``fp32``, ``fp16`` or ``bf16`` (or an alias).

    Raises
    ------
    InputError
        For any other format.
    """
    target = dtype(precision).name
    if target not in ("fp32", "fp16", "bf16"):
        raise InputError(f"a trace can be re-typed to fp32, fp16 or bf16, not {target}")
    source = str(workload.info.get("dtype", "bf16"))
    if target == source:
        return workload
    tables: dict[str, OpTable] = {}
    for name, table in workload.tables.items():
        columns = dict(table.columns)
        for column in ("dtype", "out_dtype", "attn_dtype", "kv_cache_dtype"):
            if column in columns:
                to = "tf32" if target == "fp32" and name == "conv2d" else target
                changed = columns[column] == dtype_code(source)
                columns[column] = np.where(changed, dtype_code(to), columns[column]).astype(np.int16)
        retyped = replace(table, columns=columns)
        if name == "elementwise":
            is_cast = np.array(retyped.words("op")) == "cast"
            retyped = retyped.take(~(is_cast & (retyped["dtype"] == retyped["out_dtype"])))
        if len(retyped):
            tables[name] = retyped
    ratio = dtype(target).weight_bytes / dtype(source).weight_bytes
    memory = Memory(*(part * ratio for part in vars(workload.memory).values()))
    return replace(
        workload, tables=tables, memory=memory, info=MappingProxyType({**workload.info, "dtype": target}),
        notes=(*workload.notes, f"re-typed from {source} to {target}"),
    )  # fmt: skip


def _of_its_model(name: str, ops: Sequence[TracedOp]) -> dict[str, Any]:
    """Family and attention layers, where the file is named after the class of its model (``bertmodel_large...``)."""
    word = Path(name).stem.split("_")[0].lower()
    if not word.endswith("model"):
        return {}
    return {"family": word.removesuffix("model"), "num_layers": sum(op.is_reduction("softmax") for op in ops)}


def _traced(row: Any, where: str, swapped: bool) -> TracedOp:
    if not (isinstance(row, list) and len(row) == 2 and isinstance(row[0], Mapping) and isinstance(row[1], list)):
        raise InputError(f"{where}: a kernel must be [descriptor, tags], got {shortened(row)}")
    fields, tags = row
    tag = tags[0] if tags else None
    reader = _READERS.get(tag) if isinstance(tag, str) else None
    if reader is None:
        raise InputError(f"{where}: {UnknownNameError('tag', shortened(tag), _READERS)}")
    op: TracedOp = reader(fields, where, swapped)
    return op


def _gemm(fields: Mapping[str, Any], where: str, swapped: bool) -> TracedOp:
    _only(fields, (*_GEMM_FIELDS, *_GEMM_EXTRA), where)
    batch, rows, columns, k = (_size(fields, field, where) for field in _GEMM_FIELDS)
    words = _precision(fields, "precM", where)
    if batch > 1:
        return TracedOp("batched_gemm", {"batch": batch, "m": rows, "n": columns, "k": k, "dtype": words})
    m, n = (rows, columns) if swapped else (columns, rows)
    return TracedOp("gemm", {"m": m, "n": n, "k": k, "dtype": words})


def _conv2d(fields: Mapping[str, Any], where: str, _: bool) -> TracedOp:
    _only(fields, (*_GEMM_FIELDS, *_GEMM_EXTRA, *_CONV_FIELDS), where)
    b, m, c, hw, rs, stride = (_size(fields, field, where) for field in _CONV_FIELDS[:-1])
    padding = _size(fields, "padding", where, minimum=0)
    if hw + 2 * padding < rs:
        raise InputError(f"{where}: a filter of {rs} exceeds an image of {hw} with padding {padding}")
    out = (hw + 2 * padding - rs) // stride + 1
    reduction = _size(fields, "dimK", where)
    if (c * rs * rs) % reduction or m % (c * rs * rs // reduction) or c % (c * rs * rs // reduction):
        raise InputError(f"{where}: dimK is {reduction}, but {c} channels x {rs} x {rs} taps don't group so")
    for field, right in (("dimM", b * out * out), ("dimN", m)):
        if _size(fields, field, where) != right:
            raise InputError(f"{where}: {field} is {fields[field]}, but the convolution's own fields make it {right}")
    columns = {
        "batch_size": b, "in_channels": c, "out_channels": m, "height": hw, "kernel_h": rs, "stride": stride,
        "padding": padding, "groups": c * rs * rs // reduction, "dtype": _precision(fields, "precM", where),
    }  # fmt: skip
    return TracedOp("conv2d", columns)


def _reduction(op: str) -> Any:
    def read(fields: Mapping[str, Any], where: str, _: bool) -> TracedOp:
        _only(fields, ("batch", "dim", "prec"), where)
        rows, dim = _size(fields, "batch", where), _size(fields, "dim", where)
        return TracedOp(
            "row_reduction", {"op": op, "rows": rows, "dim": dim, "dtype": _precision(fields, "prec", where)}
        )

    return read


def _elementwise(fields: Mapping[str, Any], where: str, _: bool) -> TracedOp:
    _only(fields, ("dim", "op", "prec"), where)
    word = fields.get("op")
    if not isinstance(word, str) or word not in ELEMENTWISE_OPS:
        raise InputError(f"{where}: {UnknownNameError('elementwise op', shortened(word), ELEMENTWISE_OPS)}")
    op, inputs = ELEMENTWISE_OPS[word]
    read = _precision(fields, "prec", where)
    written = word.removeprefix("typecast_to_") if op == "cast" else read
    columns = {
        "op": op, "elements": _size(fields, "dim", where), "inputs": inputs, "dtype": read, "out_dtype": written,
    }  # fmt: skip
    return TracedOp("elementwise", columns)


_READERS: Mapping[str, Any] = MappingProxyType(
    {
        "gemm": _gemm, "conv2d": _conv2d, "softmax": _reduction("softmax"), "layernorm": _reduction("layer_norm"),
        "elementwise": _elementwise,
    }
)  # fmt: skip


def _only(fields: Mapping[str, Any], known: Sequence[str], where: str) -> None:
    for field in fields:
        if field not in known:
            raise InputError(f"{where}: {UnknownNameError('field', field, known)}")


def _size(fields: Mapping[str, Any], field: str, where: str, minimum: int = 1) -> int:
    value = fields.get(field)
    if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= 2**40:
        raise InputError(f"{where}: {field} must be a whole number of at least {minimum}, got {shortened(value, 30)}")
    return value


def _precision(fields: Mapping[str, Any], field: str, where: str) -> str:
    value = fields.get(field)
    if not isinstance(value, str):
        raise InputError(f"{where}: {field} must name a number format, got {shortened(value, 30)}")
    try:
        return dtype(value).name
    except UnknownNameError as error:
        raise InputError(f"{where}: {error}") from None


def _rows_are_tokens(rows: Sequence[Any]) -> bool:
    """Whether linear layers are logged with M = tokens (GPT-2's Conv1D) and not M = out features.

    Layer norms tell how many tokens there are; linear layers have that many rows on one side.
    """
    norms: Counter[int] = Counter()
    linear: list[tuple[Any, Any]] = []
    for row in rows:
        if isinstance(row, list) and len(row) == 2 and isinstance(row[0], Mapping) and isinstance(row[1], list):
            fields, tag = row[0], row[1][0] if row[1] else None
            if tag == "layernorm" and isinstance(fields.get("batch"), int):
                norms[fields["batch"]] += 1
            elif tag == "gemm" and fields.get("batch") == 1:
                linear.append((fields.get("dimM"), fields.get("dimN")))
    if not norms:
        return False
    as_m = sum(m in norms and n not in norms for m, n in linear)
    as_n = sum(n in norms and m not in norms for m, n in linear)
    return as_m > as_n


def _with_layers(ops: list[TracedOp]) -> list[TracedOp]:
    """`ops` with a layer path where one stretch of the trace repeats over most of its length."""
    n = len(ops)
    if not 16 <= n <= _MAX_LAYERED:
        return ops
    codes: dict[tuple[Any, ...], int] = {}
    signature = np.array([codes.setdefault((op.kind, *op.columns.values()), len(codes)) for op in ops])
    best = (0, 0, 0)
    for period in range(8, min(n // 3, 256) + 1):
        same = signature[period:] == signature[:-period]
        edges = np.flatnonzero(np.diff(np.concatenate(([0], same.view(np.int8), [0]))))
        runs = edges[1::2] - edges[::2]
        if runs.size:
            longest = int(np.argmax(runs))
            covered = int(runs[longest]) + period
            if covered > best[0] + period:  # a multiple of the true period covers no more
                best = (covered, period, int(edges[2 * longest]))
    covered, period, start = best
    if covered < 0.6 * n or covered < 3 * period:
        return ops
    layers = covered // period
    out = []
    for i, op in enumerate(ops):
        path = "embeddings" if i < start else "layers.*" if (i - start) // period < layers else "head"
        out.append(replace(op, layer=path))
    return out


def _weights(op: TracedOp) -> float:
    c = op.columns
    if op.kind == "gemm" and c["k"] > 1:
        return float(c["n"] * c["k"])
    if op.kind == "conv2d":
        return float(c["out_channels"] * c["in_channels"] // c["groups"] * c["kernel_h"] ** 2)
    return 0.0


def _largest_result(ops: Sequence[TracedOp]) -> float:
    return float(max(op.results for op in ops))
