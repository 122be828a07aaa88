"""What starting kernels costs the host: a cost a launch, and one a module with weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from joulecast.coefficients.schema import HostCoefficients

#: Operations that are modules with weights of their own in an eager framework: their call costs the host more
#: than the launch of a pointwise function.
MODULES = frozenset({"gemm", "conv2d", "moe", "context_attention", "generation_attention", "encoder_attention"})

#: Cost of the further kernels that a library starts for one operation, over that of an operation: no framework is
#: gone through for them.
_NEXT_KERNEL = 0.2


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
    return operations_started(launches) * host.launch_us(launch_mode) + module_us
