"""What starting kernels costs the host: a cost a launch, and one a module with weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from joulecast.coefficients.schema import HostCoefficients

#: Operations that are modules with weights of their own in an eager framework: their call costs the host more
#: than the launch of a pointwise function.
MODULES = frozenset({"gemm", "conv2d", "moe", "context_attention", "generation_attention", "encoder_attention"})


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
    return np.asarray(launches) * host.launch_us(launch_mode) + module_us
