"""`Scales`: the few numbers by which a software stack of training differs from the kernels that were fitted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from joulecast.coefficients.schema import HostCoefficients
from joulecast.errors import InputError
from joulecast.physics.power import scaled
from joulecast.scenarios.pricing import Rows

#: Class of each kind of operation; those not named move memory.
CLASS_OF: Mapping[str, str] = MappingProxyType(
    {
        "gemm": "multiply",
        "batched_gemm": "multiply",
        "moe": "multiply",
        "mla_bmm": "multiply",
        "conv2d": "convolution",
        "conv2d_data_gradient": "convolution",
        "conv2d_weight_gradient": "convolution",
        "context_attention": "attention",
        "encoder_attention": "attention",
        "attention_backward": "attention",
        "mla_context": "attention",
        "nccl": "communication",
    }
)

#: Classes of GPU time, in the order of their scales.
CLASSES = ("multiply", "convolution", "attention", "memory")


@dataclass(frozen=True)
class Scales:
    """Factors on what the kernels of a training stack take; all 1 where nothing was measured.

    Attributes
    ----------
    multiply, convolution, attention, memory : float
        On the time of matrix multiplies, convolutions, attention, and of all that moves memory (norms, activations,
        optimizer). Dimensionless.
    host : float
        On the time that starting kernels takes the host.
    communication : float
        On the time of exchanges between GPUs.
    energy : float
        On all energy beyond what is drawn by a clocked GPU with nothing running.
    provenance, source : str
    error : float
        Mean absolute relative error of the step time of networks left out.
    """

    multiply: float = 1.0
    convolution: float = 1.0
    attention: float = 1.0
    memory: float = 1.0
    host: float = 1.0
    communication: float = 1.0
    energy: float = 1.0
    provenance: str = "transferred"
    source: str = "kernels of inference and single kernels"
    error: float = 0.0

    def __post_init__(self) -> None:
        for name in FACTORS:
            value = float(getattr(self, name))
            if not 0.05 <= value <= 20:
                raise InputError(f"scale {name} must be between 0.05 and 20, got {value:g}")
            object.__setattr__(self, name, value)


FACTORS = tuple(one.name for one in fields(Scales) if one.name not in ("provenance", "source", "error"))


def classes_of(rows: Rows) -> npt.NDArray[np.intp]:
    """Class of each operation, an index into `CLASSES`; -1 for exchanges."""
    codes = {name: code for code, name in enumerate(CLASSES)}
    by_kind = np.array([codes.get(CLASS_OF.get(kind, "memory"), -1) for kind in rows.kinds], dtype=np.intp)
    return by_kind[rows.kind_of]


def scaled_rows(rows: Rows, scales: Scales) -> Rows:
    """The operations as a stack runs them."""
    factors = [getattr(scales, name) for name in CLASSES]
    if all(one == 1.0 for one in (*factors, scales.energy, scales.communication)):
        return rows
    each = np.array([*factors, scales.communication])[classes_of(rows)]
    priced = rows.priced
    times = replace(priced.times, scale=priced.times.scale * each)
    return replace(rows, priced=replace(priced, times=times, energy=scaled(priced.energy, scales.energy)))


def scaled_host(host: HostCoefficients, factor: float) -> HostCoefficients:
    """A host that takes `factor` as long to start anything."""
    if factor == 1.0:
        return host
    return replace(
        host,
        eager_us=host.eager_us * factor,
        compiled_us=host.compiled_us * factor,
        cuda_graph_us=host.cuda_graph_us * factor,
        module_us=host.module_us * factor,
    )
