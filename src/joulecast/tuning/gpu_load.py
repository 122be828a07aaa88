"""A kernel that runs on a GPU again and again: one CUDA graph of many launches, as meters want it."""

from __future__ import annotations

import math
from typing import Any

from joulecast.errors import InfeasibleError, InputError, shortened
from joulecast.tuning.correctness import torch_tensors, wrong
from joulecast.tuning.kernelspec import KernelSpec, need_torch
from joulecast.tuning.space import Config

#: Launches in one graph take about so long: short enough to be cut to a window, long enough to hide the replay.
GRAPH_SECONDS = 0.02


def need_gpu() -> Any:
    """The ``torch`` module with a CUDA device.

    Raises
    ------
    InputError
        If there is none; the model meter needs none.
    """
    torch = need_torch()
    if not torch.cuda.is_available():
        raise InputError("no NVIDIA GPU here to run kernels on: take --meter model, which needs none")
    return torch


class GraphLoad:
    """A `joulecast.meters.reading.Load` of one configuration.

    Parameters
    ----------
    spec : KernelSpec
    config : mapping
    torch : module
        With ``cuda``.

    Raises
    ------
    InfeasibleError
        If the launch fails.
    """

    def __init__(self, spec: KernelSpec, config: Config, torch: Any) -> None:
        self._torch, self._spec, self._config = torch, spec, config
        self.tensors = torch_tensors(spec, config, "cuda")
        numbers = {name: value for name, value in spec.arguments_of(config).items() if name not in self.tensors}
        options = {**spec.constexprs(config), **spec.options(config)}
        grid = spec.grid(config)

        def launch() -> None:
            spec.kernel[grid](**self.tensors, **numbers, **options)

        try:
            launch()
            torch.cuda.synchronize()
        except Exception as error:  # compilers and drivers raise what they like
            raise InfeasibleError(f"the launch fails: {shortened(error)}") from None
        self._in_graph = max(min(math.ceil(GRAPH_SECONDS / max(self._once(launch), 1e-7)), 2000), 1)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            for _ in range(self._in_graph):
                launch()

    @property
    def name(self) -> str:
        """Kernel and configuration."""
        return f"{self._spec.name} {dict(self._config)}"

    def launches_of(self, launches: int) -> int:
        """Launches of whole graphs."""
        return math.ceil(launches / self._in_graph) * self._in_graph

    def run(self, launches: int) -> float:
        """Replay the graph; time between the device's own events. [s]"""
        cuda = self._torch.cuda
        begin, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(self.launches_of(launches) // self._in_graph):
            self._graph.replay()
        end.record()
        cuda.synchronize()
        return float(begin.elapsed_time(end)) * 1e-3

    def times_s(self, count: int) -> list[float]:
        """Mean time of a launch in each of `count` graphs. [s]"""
        self.run(1)
        return [self.run(1) / self._in_graph for _ in range(count)]

    def _once(self, launch: Any) -> float:
        cuda = self._torch.cuda
        begin, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(5):
            launch()
        end.record()
        cuda.synchronize()
        return float(begin.elapsed_time(end)) * 1e-3 / 5.0


def right_on_gpu(spec: KernelSpec, config: Config, torch: Any) -> str:
    """What is wrong with the result of one launch on the GPU; empty where it is right, or has no reference."""
    if spec.reference is None:
        return ""
    given = torch_tensors(spec, config, "cuda")
    numbers = {name: value for name, value in spec.arguments_of(config).items() if name not in given}
    try:
        spec.kernel[spec.grid(config)](**given, **numbers, **spec.constexprs(config), **spec.options(config))
        torch.cuda.synchronize()
    except Exception as error:  # compilers and drivers raise what they like
        return f"the launch fails: {shortened(error)}"
    return wrong(spec, config, given, spec.reference(given))
