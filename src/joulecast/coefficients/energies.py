"""Energies of a GPU from its data sheet, and those of one GPU as they would be on another."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from joulecast.bounds.energies import energy_bounds_pj
from joulecast.coefficients.schema import PowerCoefficients
from joulecast.coefficients.voltage import rate_energy, voltage_ratio
from joulecast.errors import UnknownNameError
from joulecast.gpus import Gpu, load_gpu

Floats = npt.NDArray[np.float64]

#: Energy of DRAM and its interface by memory type, relative to HBM2e: HBM needs less a bit than GDDR.
#: (Figures by makers and O'Connor et al., MICRO 2017: HBM2 and HBM2e about 3.9, GDDR6 7 to 8, GDDR5 14 pJ/bit. With
#: GDDR6 at twice HBM2e, whole passes on boards with one are predicted best from those with the other.)
_DRAM_ENERGY = {"HBM2": 1.15, "HBM2E": 1.0, "HBM3": 0.85, "HBM3E": 0.8, "GDDR5": 3.2, "GDDR5X": 2.8,
                "GDDR6": 2.0, "GDDR6X": 2.0, "GDDR7": 1.6, "LPDDR5X": 0.8}  # fmt: skip

#: Node that a process takes energy like, where its name says more: the 4 nm ones are refinements of 5 nm ones.
_ENERGY_NM = {4.0: 4.5}


def rescaled(power: PowerCoefficients, other: Gpu, gpu: Gpu) -> PowerCoefficients:
    """Energies of `other` as they would be on `gpu`, within what is possible there."""
    node = _ENERGY_NM.get(gpu.process_nm, gpu.process_nm) / _ENERGY_NM.get(other.process_nm, other.process_nm)
    node *= rate_energy(gpu, other, power)
    dram = _DRAM_ENERGY.get(gpu.dram_type.upper(), 1.3) / _DRAM_ENERGY.get(other.dram_type.upper(), 1.3)

    return replace(
        power,
        active_w=power.active_w * node * _drive(gpu, other),
        tensor_pj={name: _possible(gpu, f"tensor.{name}", pj * node) for name, pj in power.tensor_pj.items()},
        cuda_pj={name: _possible(gpu, f"cuda.{name}", pj * node) for name, pj in power.cuda_pj.items()},
        sfu_pj=_possible(gpu, "sfu", power.sfu_pj * node),
        shared_pj=_possible(gpu, "shared", power.shared_pj * node),
        l2_pj=_possible(gpu, "l2", power.l2_pj * node),
        dram_pj=_possible(gpu, "dram", power.dram_pj * dram),
    )


def _possible(gpu: Gpu, name: str, pj: float) -> float:
    """An energy, held within what is possible on a GPU."""
    low, high = energy_bounds_pj(name, gpu.process_nm, gpu.dram_type)
    return min(max(pj, low), high)


def _drive(gpu: Gpu, other: Gpu) -> float:
    """SMs times clock of one GPU over that of another. Dimensionless."""
    return gpu.sm_count * gpu.rate_clock_mhz / (other.sm_count * other.rate_clock_mhz)


def as_changed(power: PowerCoefficients, gpu: Gpu) -> PowerCoefficients:
    """A GPU's own energies, with what a what-if changes of its SMs, their clock and its idle power."""
    try:
        plain = load_gpu(gpu.plain_name)
    except UnknownNameError:  # a user's own GPU
        return power
    idle = gpu.idle_w / plain.idle_w
    drive = _drive(gpu, plain)
    if idle == 1.0 and drive == 1.0:
        return power
    return replace(power, idle_w=power.idle_w * idle, clocked_w=power.clocked_w * idle, active_w=power.active_w * drive)


def mean_by_math(
    weights: Floats, tables: Sequence[Mapping[str, float]], start: Mapping[str, float]
) -> dict[str, float]:
    """Means of each arithmetic over the relatives that have it; what none has lies as far from `start` as the rest."""
    out = {}
    for name in dict.fromkeys(name for table in tables for name in table):
        has = [place for place, table in enumerate(tables) if name in table]
        out[name] = log_mean(weights[has] / weights[has].sum(), [tables[place][name] for place in has])
    moved = [math.log(pj / start[name]) for name, pj in out.items() if name in start]
    factor = math.exp(sum(moved) / len(moved)) if moved else 1.0
    return {**{name: pj * factor for name, pj in start.items() if name not in out}, **out}


def log_mean(weights: Floats, values: Sequence[float]) -> float:
    """Mean of `values`, averaged as logarithms, by weights that sum to 1."""
    return float(np.exp(weights @ np.log(values)))


#: Share of the idle power at the highest clock that is the clocked core's, where a GPU's points don't tell.
_CLOCKED_SHARE = 0.4


def static_parts_w(gpu: Gpu) -> tuple[float, float]:
    """Idle power of a GPU apart from its clock, and what the clocked core adds; together `Gpu.idle_w`. [W, W]"""
    lowest = gpu.idle_points[0][1] if gpu.idle_points else (1 - _CLOCKED_SHARE) * gpu.idle_w
    lowest = min(lowest, gpu.idle_w)
    return lowest, gpu.idle_w - lowest


def _span_w(gpu: Gpu) -> float:
    """What the board may draw above idle. [W]"""
    return gpu.power_limit_default_w - gpu.idle_w


#: Energies that whole passes and generations on GPUs of 7 to 12 nm agree on, and the power of SMs that hold blocks.
#:
#: A fit on one GPU leaves open what takes its power: answers at batch 1 tell of memory and of SMs that wait, large
#: passes of tensor cores, and what a fit can't tell stays at a guess. Together they tell it. For a part of 7 nm at its
#: highest clock with HBM2e; logic goes with the node, SMs with its root (as transistors shrink, an SM gets more of
#: them). ``benchmarks/transfer.py`` finds them and scores each chip with those of the others. The powers of the node
#: were chosen with those errors and kernels on H200 and B200 in sight. [pJ; W for an SM and GHz]
COMMON = {
    "tensor": 0.264, "cuda": 3.13, "sfu": 7.65, "shared": 1.52, "l2": 13.3, "dram": 85.7, "active": 1.21,
}  # fmt: skip


#: Coarser nodes take what this one takes: a V100 of 12 nm draws as A10s of 8 nm would with its SMs.
_COARSEST_NM = 8.0

#: What core-domain energies go with, in voltages, where no sweep of a GPU's clocks told: switching (2), and leakage,
#: which rises faster.
COMMON_VOLTAGE_EXPONENT = 2.5


def common_units(gpu: Gpu) -> dict[str, float]:
    """What each of `COMMON` is multiplied by on a GPU, at its rate clock. [1, SM GHz]"""
    start = replace(default_power(gpu), voltage_exponent=COMMON_VOLTAGE_EXPONENT)
    volts = float(voltage_ratio(gpu.clock_max_mhz, gpu, start) ** -COMMON_VOLTAGE_EXPONENT)
    node = min(_ENERGY_NM.get(gpu.process_nm, gpu.process_nm), _COARSEST_NM) / 7.0
    return {
        **dict.fromkeys(COMMON, node * volts),
        "dram": _DRAM_ENERGY.get(gpu.dram_type.upper(), 1.3),
        "active": node**0.5 * volts * gpu.sm_count * gpu.rate_clock_mhz * 1e-3,
    }


def common_power(gpu: Gpu, common: Mapping[str, float] = COMMON) -> PowerCoefficients:
    """Energies of a GPU from what all measured GPUs share, within what is possible.

    Parameters
    ----------
    gpu : Gpu
    common : mapping of str to float
        As `COMMON`.
    """
    start = default_power(gpu)
    here = {name: common[name] * unit for name, unit in common_units(gpu).items()}
    tensor = here["tensor"] / start.tensor_pj["fp16"]
    cuda = here["cuda"] / start.cuda_pj["fp32"]
    return replace(
        start,
        active_w=here["active"],
        tensor_pj={name: _possible(gpu, f"tensor.{name}", pj * tensor) for name, pj in start.tensor_pj.items()},
        cuda_pj={name: _possible(gpu, f"cuda.{name}", pj * cuda) for name, pj in start.cuda_pj.items()},
        sfu_pj=_possible(gpu, "sfu", here["sfu"]),
        shared_pj=_possible(gpu, "shared", here["shared"]),
        l2_pj=_possible(gpu, "l2", here["l2"]),
        dram_pj=_possible(gpu, "dram", here["dram"]),
        voltage_exponent=COMMON_VOLTAGE_EXPONENT,
    )


def default_power(gpu: Gpu) -> PowerCoefficients:
    """Energies of a GPU from its data sheet alone: orders of magnitude for a 7 nm part, scaled by node."""
    node = gpu.process_nm / 7.0
    tensor = {
        "fp64": 8.0, "tf32": 0.9, "fp16": 0.45, "bf16": 0.45, "fp8": 0.25, "fp4": 0.14, "int8": 0.25, "int4": 0.15,
    }  # fmt: skip
    cuda = {"fp64": 16.0, "fp32": 4.0, "fp16": 2.5, "bf16": 2.5}
    idle_w, clocked_w = static_parts_w(gpu)
    return PowerCoefficients(
        idle_w=idle_w,
        clocked_w=clocked_w,
        active_w=0.2 * _span_w(gpu),
        tensor_pj={math: pj * node for math, pj in tensor.items()},
        cuda_pj={math: pj * node for math, pj in cuda.items()},
        sfu_pj=8.0 * node,
        shared_pj=2.0 * node,
        l2_pj=12.0 * node,
        dram_pj=60.0 * _DRAM_ENERGY.get(gpu.dram_type.upper(), 1.3),
    )
