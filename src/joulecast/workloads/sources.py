"""One door for every source of workloads: a name, a file told by its content, a config, or a list in memory."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulecast.errors import InputError, shortened
from joulecast.workloads.exported import is_exported, workload_of_exported
from joulecast.workloads.files import content_of, content_of_json, named, parse_json, read_bytes, text_of
from joulecast.workloads.onnx_dims import OnnxModel
from joulecast.workloads.onnx_proto import is_onnx
from joulecast.workloads.pytorch import is_module
from joulecast.workloads.table import Workload
from joulecast.workloads.trace_stream import is_trace

if TYPE_CHECKING:
    from joulecast.workloads.request import Request

#: Endings that a model's name never has: a string with one of them is meant as a file.
_FILE_ENDINGS = frozenset(
    {".json", ".jsonl", ".csv", ".tsv", ".parquet", ".txt", ".pt", ".pt2", ".pth", ".bin", ".pkl", ".ckpt", ".npz",
     ".npy", ".h5", ".onnx", ".safetensors", ".gguf", ".zip", ".gz", ".toml", ".yaml", ".yml"}
)  # fmt: skip
_ONLY_ONNX = "dims are sizes of an ONNX model's inputs: {what} takes none"
_SHAPES_ARE_FIXED = "{what} has its shapes and formats in it: {option} can't be asked of it"


def open_workload(source: Any, request: Request | None = None, *, dims: Any = None, **options: Any) -> Workload:
    """The workload that `source` means.

    Parameters
    ----------
    source : str, Path, mapping, list or Workload
        A model's name (``meta-llama/Llama-3.1-8B``); the path of a Hugging Face ``config.json`` (or its
        folder), an ONNX model, an operation list, an EnergAIzer trace or a PyTorch profiler trace, told apart by
        content; the same, parsed; or a workload, which is passed through.
    request : Request, optional
        What is asked of a model; otherwise made of `options` (``batch=8, prompt_tokens=2048``).
        Operation lists and traces have their shapes in them and take none, except that a trace can be
        had in another `dtype` (fp32, fp16, bf16).
    dims : mapping of str to int, optional
        Sizes of an ONNX model's open dimensions by name, or of its inputs by place (``images.0``).

    Returns
    -------
    Workload

    Raises
    ------
    InputError
        If there is no such file or model, the file is of no format that is read, or an option does not
        apply. Files are only ever read as data: checkpoints and pickles are refused unopened.
    """
    if isinstance(source, OnnxModel):
        source, dims = source.path, {**dict(source.dims), **(dims or {})}
    if isinstance(source, Workload):
        _refuse_dims("a workload", dims)
        _refuse_options("a workload", _given(request, options))
        return source
    if is_module(source):
        raise InputError("a PyTorch module needs example inputs: make its workload with joulecast.workload(module, x)")
    if isinstance(source, Mapping | list):
        _refuse_dims("the given value", dims)
        return _from_json(source, "the given value", "model", request, options)
    if not isinstance(source, str | os.PathLike):
        raise InputError(
            f"a workload is a model's name, a file, a config or a list, not {shortened(type(source).__name__)}"
        )
    text = os.fspath(source)
    if not isinstance(text, str) or not text.strip():
        raise InputError("the model's name is empty: give a name such as bert-base-uncased, or a file")
    path = Path(os.path.expanduser(text))  # noqa: PTH111 - Path.expanduser raises where there is no home
    if os.path.isdir(path) and (os.path.exists(path / "config.json") or not isinstance(source, str)):  # noqa: PTH110, PTH112
        _refuse_dims(named(text), dims)
        return _from_folder(path, request, options)
    if os.path.exists(path) and not os.path.isdir(path):  # noqa: PTH110, PTH112 - False, not an error, for an odd name
        if is_onnx(path):
            return _from_onnx(path, dims, request, options)
        _refuse_dims(named(text), dims)
        return _from_file(path, request, options)
    if not isinstance(source, str) or _means_a_file(text):
        if os.path.isdir(path):  # noqa: PTH112
            return _from_folder(path, request, options)
        raise InputError(f"no such file: {named(text)}")
    _refuse_dims(named(text), dims)
    from joulecast.workloads.catalogue import from_name

    return from_name(text, _request(request, options))


def _means_a_file(text: str) -> bool:
    """Whether a string that names nothing on disk was meant to; hub names have slashes and dots too."""
    return text.startswith(("/", "./", "../", "~", ".\\")) or Path(text).suffix.lower() in _FILE_ENDINGS


def _from_folder(path: Path, request: Request | None, options: Mapping[str, Any]) -> Workload:
    config = path / "config.json"
    if not os.path.exists(config):  # noqa: PTH110
        raise InputError(f"{named(path)} is a folder without a config.json")
    return _from_file(config, request, options)


def _from_onnx(path: Path, dims: Any, request: Request | None, options: Mapping[str, Any]) -> Workload:
    from joulecast.workloads.onnx_model import workload_of_onnx

    return workload_of_onnx(path, dims, **_given(request, options))


def _from_file(path: Path, request: Request | None, options: Mapping[str, Any]) -> Workload:
    from joulecast.workloads.oplist import workload_of_csv, workload_of_parquet

    name = named(path)
    if is_trace(path):
        from joulecast.workloads.trace_workload import workload_of_trace

        _refuse_options("a trace", _given(request, options))
        return workload_of_trace(path)
    if is_exported(path):
        given = _given(request, options)
        precision = {"dtype": given.pop("dtype")} if "dtype" in given else {}
        _refuse_options("an exported program", given)
        return workload_of_exported(path, **precision)
    data = read_bytes(path)
    if path.suffix.lower() == ".onnx":
        lfs = data.startswith(b"version https://git-lfs")
        what = "a pointer to a file in Git LFS: fetch the file" if lfs else "no ONNX model, or a damaged one"
        raise InputError(f"{name} is {what}")
    content = content_of(data, name)
    if content == "json":
        title = path.stem if path.name != "config.json" else Path(os.path.abspath(path)).parent.name or "model"  # noqa: PTH100
        return _from_json(parse_json(data, name), name, title, request, options)
    _refuse_options("an operation list", _given(request, options))
    if content == "parquet":
        return workload_of_parquet(data, name)
    head = text_of(data, name).split("\n", 1)[0]
    if "op" not in [cell.strip().strip('"') for cell in head.split(",")]:
        raise InputError(
            f"{name} is text, but no operation list (a CSV table with a column op), and it is not JSON: "
            "Hugging Face configs, EnergAIzer traces and operation lists are read"
        )
    return workload_of_csv(data, name)


def _from_json(value: Any, name: str, title: str, request: Request | None, options: Mapping[str, Any]) -> Workload:
    content = content_of_json(value, name)
    if content == "config":
        from joulecast.workloads.huggingface import from_config

        return from_config(value, _request(request, options), title)
    if content == "oplist":
        from joulecast.workloads.oplist import workload_of_json

        _refuse_options("an operation list", _given(request, options))
        return workload_of_json(value, name)
    from joulecast.workloads.energaizer import as_precision, workload_of_trace

    given = _given(request, options)
    precision = given.pop("dtype", None)
    _refuse_options("a trace", given)
    workload = workload_of_trace(value, name)
    return workload if precision is None else as_precision(workload, precision)


def _request(request: Request | None, options: Mapping[str, Any]) -> Request:
    from joulecast.workloads.request import Request

    return Request.of(request, **options)


def _given(request: Request | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """What is asked for beyond the defaults."""
    from joulecast.workloads.request import Request

    asked = _request(request, options)
    if request is None:
        return {name: getattr(asked, name) for name, value in options.items() if value is not None}
    default = Request()
    return {
        one.name: getattr(asked, one.name)
        for one in fields(asked)
        if getattr(asked, one.name) != getattr(default, one.name)
    }


def _refuse_dims(what: str, dims: Any) -> None:
    if dims:
        raise InputError(_ONLY_ONNX.format(what=what))


def _refuse_options(what: str, given: Mapping[str, Any]) -> None:
    for option in given:
        raise InputError(_SHAPES_ARE_FIXED.format(what=what, option=option))
