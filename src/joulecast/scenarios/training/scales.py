"""Operations, host and power as a stack of training software shows them: `Scales` applied."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from joulecast.coefficients.schema import HostCoefficients, PowerCoefficients
from joulecast.coefficients.training import Scales
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
        "conv2d_data_gradient": "gradient",
        "conv2d_weight_gradient": "gradient",
        "context_attention": "attention",
        "encoder_attention": "attention",
        "attention_backward": "attention",
        "mla_context": "attention",
        "nccl": "communication",
    }
)

#: Classes of GPU time, in the order of their scales.
CLASSES = ("multiply", "convolution", "gradient", "attention", "memory")


def classes_of(rows: Rows) -> npt.NDArray[np.intp]:
    """Class of each operation, an index into `CLASSES`; -1 for exchanges."""
    codes = {name: code for code, name in enumerate(CLASSES)}
    by_kind = np.array([codes.get(CLASS_OF.get(kind, "memory"), -1) for kind in rows.kinds], dtype=np.intp)
    return by_kind[rows.kind_of]


def scaled_rows(rows: Rows, scales: Scales) -> Rows:
    """The operations as a stack runs them, and the power that its GPU draws."""
    factors = [getattr(scales, name) for name in CLASSES]
    power = scaled_power(rows.priced.power, scales)
    if power == rows.priced.power and all(one == 1.0 for one in (*factors, scales.energy, scales.communication)):
        return rows
    each = np.array([*factors, scales.communication])[classes_of(rows)]
    priced = rows.priced
    times = replace(priced.times, scale=priced.times.scale * each)
    energy = scaled(priced.energy, scales.energy)
    return replace(rows, priced=replace(priced, times=times, energy=energy, power=power))


def scaled_power(power: PowerCoefficients, scales: Scales) -> PowerCoefficients:
    """Energies of a GPU with the static power, voltages and share of the limit that its runs show."""
    return replace(
        power,
        idle_w=power.idle_w * scales.static,
        clocked_w=power.clocked_w * scales.static,
        voltage_floor=scales.voltage_floor or power.voltage_floor,
        voltage_knee=scales.voltage_knee or power.voltage_knee,
        limit_share=power.limit_share * scales.limit_share,
    )


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
