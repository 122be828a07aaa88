"""What starting kernels costs the host: a cost a launch, and one a call of a module."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from joulecast.coefficients.schema import HostCoefficients
from joulecast.workloads.module_calls import module_calls

#: Operations that are modules with weights of their own in an eager framework: their call costs the host more
#: than the launch of a pointwise function.
MODULES = frozenset({"gemm", "conv2d", "moe", "context_attention", "generation_attention", "encoder_attention"})

#: Cost of the further kernels that a library starts for one operation, over that of an operation: no framework is
#: gone through for them.
_NEXT_KERNEL = 0.2

#: Call of a module without weights over that of one with weights: its Python code runs, little is dispatched.
PLAIN_MODULE = 0.5


def plain_calls(info: Mapping[str, Any], phase: str = "") -> float:
    """Calls of modules without weights in one pass of a workload, in calls of modules with weights."""
    return PLAIN_MODULE * module_calls(info, phase)


def pass_cost_us(info: Mapping[str, Any], host: HostCoefficients, launch_mode: str, phase: str = "") -> float:
    """Host time of one pass beside that of its operations: calls of modules that start nothing themselves. [us]

    Parameters
    ----------
    info : mapping
        Of the workload.
    host : HostCoefficients
    launch_mode : str
        ``eager``, ``compiled`` or ``cuda_graph``.
    phase : str
        Of the pass.
    """
    return plain_calls(info, phase) * host.module_us if launch_mode == "eager" else 0.0


def faster(host: HostCoefficients, speed: float) -> HostCoefficients:
    """A host that takes 1 / `speed` of the time of another for everything; its costs are no longer fitted."""
    if speed == 1.0:
        return host
    return replace(
        host,
        eager_us=host.eager_us / speed,
        compiled_us=host.compiled_us / speed,
        cuda_graph_us=host.cuda_graph_us / speed,
        module_us=host.module_us / speed,
        provenance="transferred",
        source=f"{host.source}, {speed:g} times as fast",
    )


def operations_started(launches: Any) -> npt.NDArray[np.float64]:
    """What starting `launches` kernels for one operation costs the host, in operations of one kernel."""
    kernels = np.asarray(launches, dtype=np.float64)
    return np.asarray(np.minimum(kernels, 1.0) + _NEXT_KERNEL * np.maximum(kernels - 1.0, 0.0))


def host_cost_us(kind_name: str, launches: Any, host: HostCoefficients, launch_mode: str) -> npt.NDArray[np.float64]:
    """Host time to start operations of one kind.

    Parameters
    ----------
    kind_name : str
        Kind of the operations.
    launches : array_like
        Kernels that each starts.
    host : HostCoefficients
    launch_mode : str
        ``eager``, ``compiled`` or ``cuda_graph``.

    Returns
    -------
    ndarray
        Cost of each operation. [us]
    """
    module_us = host.module_us if launch_mode == "eager" and kind_name in MODULES else 0.0
    share = host.copy_share if kind_name == "copy" else 1.0
    return operations_started(launches) * host.launch_us(launch_mode) * share + module_us
