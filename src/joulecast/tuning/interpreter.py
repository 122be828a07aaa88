"""Runs kernels in Triton's interpreter, as a program of its own with ``TRITON_INTERPRET=1`` in its environment."""

from __future__ import annotations

import importlib
import importlib.util
import math
import resource
import signal
import sys
from pathlib import Path
from typing import Any


def main(folder: str, first: int, seconds: float, wall_s: float) -> None:
    """Run the launches of ``job.pt`` in `folder` from `first` on, and write what each leaves in the tensors to a file.

    A launch that takes more than `seconds` of processor time, or `wall_s` by the time of day, ends the process; what
    is written by then counts. [s]
    """
    import torch
    import triton  # noqa: F401 - the time that it takes to load is no launch's

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    runs = torch.load(Path(folder) / "job.pt", weights_only=True)
    for number, run in enumerate(runs[first:], first):
        _bound(seconds, wall_s)
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


def _bound(seconds: float, wall_s: float) -> None:
    """From now on, the kernel of the operating system ends this process after so long."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    most = math.ceil(used.ru_utime + used.ru_stime + seconds)
    resource.setrlimit(resource.RLIMIT_CPU, (most, resource.RLIM_INFINITY))
    signal.setitimer(signal.ITIMER_REAL, wall_s)


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
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4]))
