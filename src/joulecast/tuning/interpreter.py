"""Runs kernels in Triton's interpreter, as a program of its own with ``TRITON_INTERPRET=1`` in its environment."""

from __future__ import annotations

import importlib
import importlib.util
import math
import resource
import sys
from pathlib import Path
from typing import Any


def main(folder: str, seconds: float) -> None:
    """Run each launch of ``job.pt`` in `folder` and write what it leaves in the tensors, one file a launch.

    After `seconds` of processor time the process ends; what is written by then counts.
    """
    resource.setrlimit(resource.RLIMIT_CPU, (max(math.ceil(seconds), 1), resource.RLIM_INFINITY))
    import torch

    runs = torch.load(Path(folder) / "job.pt", weights_only=True)
    for number, run in enumerate(runs):
        answer: dict[str, Any] = {"tensors": run["tensors"]}
        try:
            kernel = found(**run["kernel"])
        except Exception as error:  # whatever the user's module raises
            answer = {"trouble": f"{type(error).__name__}: {error}"[:200]}
        else:
            try:
                kernel[tuple(run["grid"])](**run["tensors"], **run["numbers"], **run["constexprs"])
            except Exception as error:  # whatever the kernel raises
                answer = {"failure": f"fails in the interpreter: {type(error).__name__}: {error}"[:200]}
        unfinished = Path(folder) / f"{number}.part"
        torch.save(answer, unfinished)
        unfinished.rename(Path(folder) / f"{number}.pt")


def found(module: str, file: str, name: str, path: list[str]) -> Any:
    """The kernel, from its module or, where that can't be imported by name, from its file.

    What a script does after it has defined the kernel, such as tuning it, may fail here: the kernel is there.
    """
    sys.path[:] = path
    if module != "__main__" and importlib.util.find_spec(module) is not None:
        try:
            return getattr(importlib.import_module(module), name)
        except Exception:  # whatever the user's module raises: its file tells whether the kernel came first
            if not Path(file).is_file():
                raise
    alias = "joulecast_tuned_" + "".join(letter if letter.isalnum() else "_" for letter in file)
    if alias in sys.modules:
        return getattr(sys.modules[alias], name)
    spec = importlib.util.spec_from_file_location(alias, file)
    assert spec is not None, file
    assert spec.loader is not None, file
    made = importlib.util.module_from_spec(spec)
    sys.modules[alias] = made
    try:
        spec.loader.exec_module(made)
    except Exception:  # whatever the user's module raises
        if not hasattr(made, name):
            del sys.modules[alias]
            raise
    return getattr(made, name)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
