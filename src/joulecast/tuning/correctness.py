"""Whether configurations compute what they should: Triton's interpreter against a reference, in its own process."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from joulecast.errors import InputError, shortened
from joulecast.tuning.kernelspec import Argument, KernelSpec, Tensor, need_torch
from joulecast.tuning.space import Config

_TORCH = {"fp64": "float64", "fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "i64": "int64", "i32": "int32",
          "i16": "int16", "i8": "int8", "i1": "bool", "u8": "uint8", "fp8e4nv": "float8_e4m3fn",
          "fp8e5": "float8_e5m2"}  # fmt: skip


def torch_tensors(spec: KernelSpec, config: Config, device: str = "cpu") -> dict[str, Any]:
    """Tensors of a launch by name: random numbers of about one for inputs, zeros for what is written."""
    torch = need_torch()
    made = {}
    for name, value in spec.arguments_of(config).items():
        if not isinstance(value, Tensor):
            continue
        dtype = getattr(torch, _TORCH[value.dtype])
        if value.values is not None:
            made[name] = torch.from_numpy(np.ascontiguousarray(value.values)).to(dtype)
        elif value.output:
            made[name] = torch.zeros(value.shape, dtype=dtype)
        else:
            generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
            made[name] = torch.randn(value.shape, generator=generator).to(dtype)
    return {name: tensor.to(device) for name, tensor in made.items()}


def wrong(spec: KernelSpec, config: Config, outputs: Mapping[str, Any], expected: Mapping[str, Any]) -> str:
    """What is wrong with outputs; empty where they are as expected."""
    if spec.finish is not None:
        outputs = spec.finish(outputs, config)
    for name, right in expected.items():
        if name not in outputs:
            return f"the reference gives {shortened(name)}, which the kernel does not write"
        found, right = outputs[name].double().cpu(), right.double().cpu()
        if found.numel() != right.numel():
            return f"{name} has {found.numel()} numbers where the reference has {right.numel()}"
        found = found.reshape(right.shape)
        if not bool(found.isfinite().all()):
            return f"{name} holds numbers that are not finite"
        scale = max(float(right.abs().max()), 1e-30)
        error = float((found - right).abs().max()) / scale
        if error > spec.tolerance:
            return f"{name} is off by {error:.2g} of its largest value, more than {spec.tolerance:g}"
    return ""


def interpreted(spec: KernelSpec, configs: Sequence[Config], timeout_s: float = 300.0) -> list[str | None]:
    """Whether each of `configs` computes what the reference does, on the small problem of the spec.

    Parameters
    ----------
    spec : KernelSpec
        With a reference, and with `KernelSpec.small` where its own problem is large.
    configs : sequence of mapping
        Those with the same constexprs are tested once: warps and stages change no result here.
    timeout_s : float
        For all of them. [s]

    Returns
    -------
    list of str or None
        Empty where right, else what is wrong; None where it was not tested in time.

    Raises
    ------
    InputError
        If the kernel can't be loaded in another process, or the reference fails.
    """
    torch = need_torch()
    tested = _without_bf16(spec if spec.small is None else spec.small())
    if tested.reference is None:
        return [None] * len(configs)
    keys = [tuple(sorted((k, repr(v)) for k, v in tested.constexprs(config).items())) for config in configs]
    first = {key: place for place, key in reversed(list(enumerate(keys)))}
    order = sorted(first.values())
    runs, expected = [], []
    for place in order:
        config = configs[place]
        given = torch_tensors(tested, config)
        numbers = {name: value for name, value in tested.arguments_of(config).items() if name not in given}
        grid = [int(size) for size in tested.grid(config)]
        runs.append({"tensors": given, "numbers": numbers, "constexprs": tested.constexprs(config), "grid": grid})
        try:
            expected.append(tested.reference(given))
        except Exception as error:  # a user's function may raise anything
            raise InputError(f"{spec.name}: the reference fails: {shortened(error)}") from None
    with tempfile.TemporaryDirectory() as folder:
        torch.save({"kernel": whereabouts(spec), "runs": runs}, Path(folder) / "job.pt")
        _run(folder, timeout_s)
        verdicts: dict[int, str | None] = {}
        for number, place in enumerate(order):
            file = Path(folder) / f"{number}.pt"
            if not file.is_file():
                verdicts[place] = None
                continue
            outputs = torch.load(file, weights_only=True)
            failed = outputs.get("failure")
            verdicts[place] = failed or wrong(tested, configs[place], outputs["tensors"], expected[number])
        trouble = Path(folder) / "trouble"
        if trouble.is_file() and all(one is None for one in verdicts.values()):
            raise InputError(f"{spec.name}: can't be interpreted: {shortened(trouble.read_text(), 160)}")
    return [verdicts[first[key]] for key in keys]


def _without_bf16(spec: KernelSpec) -> KernelSpec:
    """With fp16 in place of bf16, whose products Triton's interpreter gets wrong: the code is the same for both."""
    held = spec.arguments_of
    if not any(isinstance(one, Tensor) and one.dtype == "bf16" for one in held(spec.baseline).values()):
        return spec

    def arguments(config: Config) -> Mapping[str, Argument]:
        return {
            name: replace(one, dtype="fp16") if isinstance(one, Tensor) and one.dtype == "bf16" else one
            for name, one in held(config).items()
        }

    return replace(spec, arguments=arguments)


def whereabouts(spec: KernelSpec) -> dict[str, Any]:
    """Where another process finds the kernel: module, file and name."""
    function = spec.kernel.fn
    module = function.__module__
    file = getattr(sys.modules.get(module), "__file__", None) or function.__code__.co_filename
    if "<locals>" in function.__qualname__:
        raise InputError(f"{spec.name}: define the kernel at the top of a module, so that another process can test it")
    return {"module": module, "file": str(file), "name": function.__qualname__, "path": list(sys.path)}


def _run(folder: str, timeout_s: float) -> None:
    # The interpreter replaces Triton's own functions as they are imported: it needs a process of its own.
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "joulecast.tuning.interpreter", folder]
    try:
        subprocess.run(command, env=environment, capture_output=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        return
