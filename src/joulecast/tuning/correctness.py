"""Whether configurations compute what they should: Triton's interpreter against a reference, in its own process."""

from __future__ import annotations

import os
import signal
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
from joulecast.tuning.aot.pool import WALL_OVER_PROCESSOR
from joulecast.tuning.kernelspec import INTERPRETS, Argument, KernelSpec, Tensor, need_torch
from joulecast.tuning.space import Config

_TORCH = {"fp64": "float64", "fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "i64": "int64", "i32": "int32",
          "i16": "int16", "i8": "int8", "i1": "bool", "u8": "uint8", "fp8e4nv": "float8_e4m3fn",
          "fp8e5": "float8_e5m2"}  # fmt: skip

#: Tests that take too long before the others are given up, where none has come to an end.
PATIENCE = 5

#: How the verdicts begin on a test that took too long, and on one that was given up.
TOO_LONG, NOT_TESTED = "took more than", "not tested"

#: A tensor of more is a slip: no board holds it.
_MOST_BYTES = 1e12


def torch_tensors(spec: KernelSpec, config: Config, device: str = "cpu") -> dict[str, Any]:
    """Tensors of a launch by name: random numbers of about one for inputs, zeros for what is written."""
    torch = need_torch()
    made = {}
    for name, value in spec.arguments_of(config).items():
        if not isinstance(value, Tensor):
            continue
        if value.bytes > _MOST_BYTES:
            raise InputError(f"{spec.name}: {name} takes {value.bytes / 1e9:,.0f} GB, too much to test or to run: "
                             "give a small problem in small, or check none")  # fmt: skip
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
    if not expected:
        return "the reference gives nothing to compare with"
    for name, right in expected.items():
        if name not in outputs:
            return f"the reference gives {shortened(name)}, which the kernel does not write"
        found, right = outputs[name].double().cpu(), right.double().cpu()
        if found.numel() != right.numel():
            return f"{name} has {found.numel()} numbers where the reference has {right.numel()}"
        found = found.reshape(right.shape)
        if not bool(right.isfinite().all()):
            return f"the reference's {name} holds numbers that are not finite"
        if not bool(found.isfinite().all()):
            return f"{name} holds numbers that are not finite"
        scale = max(float(right.abs().max()), 1e-30)
        error = float((found - right).abs().max()) / scale
        if error > spec.tolerance:
            return f"{name} is off by {error:.2g} of its largest value, more than {spec.tolerance:g}"
    return ""


def constants_key(spec: KernelSpec, config: Config) -> str:
    """The same for configurations with the same constexprs: warps and stages change no result in the interpreter."""
    return repr(sorted(spec.constexprs(config).items()))


def interpreted(spec: KernelSpec, configs: Sequence[Config], timeout_s: float = 60.0) -> list[str | None]:
    """Whether each of `configs` computes what the reference does, on the small problem of the spec.

    Parameters
    ----------
    spec : KernelSpec
        With a reference, and with `KernelSpec.small` where its own problem is large.
    configs : sequence of mapping
        Those with the same `constants_key` are tested once.
    timeout_s : float
        Processor time for each; `WALL_OVER_PROCESSOR` times as much by the time of day. Its process is ended then, and
        another goes on with the next. [s]

    Returns
    -------
    list of str or None
        Empty where right, else what is wrong, such as that it took too long; None where there is no reference.

    Raises
    ------
    InputError
        If the kernel can't be loaded in another process, or the reference fails.
    """
    return interpreted_all([(spec, configs)], timeout_s)[0]


def interpreted_all(
    several: Sequence[tuple[KernelSpec, Sequence[Config]]], timeout_s: float = 60.0
) -> list[list[str | None]]:
    """As `interpreted`, of several kernels in one process."""
    torch = need_torch()
    runs: list[dict[str, Any]] = []
    due: list[tuple[KernelSpec, Config, Mapping[str, Any]]] = []
    places: list[list[int | None]] = []
    for spec, configs in several:
        tested = _without_bf16(spec if spec.small is None else spec.small())
        seen: dict[str, int] = {}
        mine: list[int | None] = []
        for config in configs:
            key = constants_key(tested, config)
            if tested.reference is not None and key not in seen:
                seen[key] = len(runs)
                given = torch_tensors(tested, config)
                runs.append(_launch(tested, config, given))
                due.append((tested, config, _expected(tested, given)))
            mine.append(seen.get(key))
        places.append(mine)
    verdicts = _run(torch, runs, due, timeout_s) if runs else []
    return [[None if place is None else verdicts[place] for place in mine] for mine in places]


def _launch(spec: KernelSpec, config: Config, given: Mapping[str, Any]) -> dict[str, Any]:
    numbers = {name: value for name, value in spec.arguments_of(config).items() if name not in given}
    grid = [int(size) for size in spec.grid(config)]
    return {"kernel": whereabouts(spec), "tensors": dict(given), "numbers": numbers,
            "constexprs": spec.constexprs(config), "grid": grid}  # fmt: skip


def _expected(spec: KernelSpec, given: Mapping[str, Any]) -> Mapping[str, Any]:
    assert spec.reference is not None
    try:
        found = spec.reference(given)
    except Exception as error:  # a user's function may raise anything
        raise InputError(f"{spec.name}: the reference fails: {shortened(error)}") from None
    if not isinstance(found, Mapping) or not all(hasattr(one, "double") for one in found.values()):
        raise InputError(f"{spec.name}: the reference must give tensors by the names of the kernel's outputs")
    return found


def _run(
    torch: Any, runs: list[dict[str, Any]], due: Sequence[tuple[KernelSpec, Config, Mapping[str, Any]]],
    timeout_s: float,
) -> list[str | None]:  # fmt: skip
    # The interpreter replaces Triton's own functions as they are imported: it needs a process of its own.
    environment = {**os.environ, "TRITON_INTERPRET": "1", INTERPRETS: "1", "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        torch.save(runs, Path(folder) / "job.pt")
        command = [sys.executable, "-m", "joulecast.tuning.interpreter", folder]
        bounds = [str(timeout_s), str(WALL_OVER_PROCESSOR * timeout_s)]
        ended: dict[int, str] = {}
        first = 0
        while first < len(runs) and not len(ended) == first >= PATIENCE:
            done = subprocess.run([*command, str(first), *bounds], env=environment, capture_output=True, check=False)
            written = range(first, len(runs))
            first = next((number for number in written if not _file(folder, number).is_file()), len(runs))
            if first < len(runs):  # in which the process ended: another goes on behind it
                ended[first] = _ended(done.returncode, timeout_s)
                first += 1
        ended |= dict.fromkeys(range(first, len(runs)), f"{NOT_TESTED}, as {first} before it came to no end")
        verdicts: list[str | None] = []
        for number, (spec, config, expected) in enumerate(due):
            if number in ended:
                verdicts.append(ended[number])
                continue
            left = torch.load(_file(folder, number), weights_only=True)
            if "trouble" in left:
                raise InputError(f"{spec.name}: can't be loaded in another process: {left['trouble']}")
            verdicts.append(left.get("failure") or wrong(spec, config, left["tensors"], expected))
        return verdicts


def _file(folder: str, number: int) -> Path:
    return Path(folder) / f"{number}.pt"


def _ended(code: int, timeout_s: float) -> str:
    """Why a test came to no end, by how its process did."""
    if code == -signal.SIGXCPU:
        return f"{TOO_LONG} {timeout_s:g} s of processor time in the test against the reference"
    if code == -signal.SIGALRM:
        return f"{TOO_LONG} {WALL_OVER_PROCESSOR * timeout_s:g} s in the test against the reference"
    how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    return f"ends the interpreter with {how}"


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
