"""Energy of what each activity of a profile does, beside the time it was measured to take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from joulecast.coefficients.schema import PowerCoefficients
from joulecast.coefficients.transfer import power_coefficients
from joulecast.gpus import Gpu
from joulecast.kernels.work import Conditions
from joulecast.physics.power import STALLED_SHARE, core_scale, static_power_w
from joulecast.physics.price import price
from joulecast.physics.priced import Priced
from joulecast.physics.timing import core_share, duration_s
from joulecast.traces.assign import BYTES, FAMILY, NOTHING, Assignment
from joulecast.workloads.aten_arguments import OpRow
from joulecast.workloads.profile import KERNEL, Floats, Profile
from joulecast.workloads.table import op_table

#: An operation of middling size that stands for a family whose shapes are not known.
_TYPICAL: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "matrix": ("gemm", {"m": 4096, "n": 4096, "k": 1024}),
    "memory": ("elementwise", {"op": "add", "elements": 2**24, "inputs": 2, "dtype": "fp32"}),
    "unknown": ("elementwise", {"op": "other", "elements": 2**24, "inputs": 1, "dtype": "fp32"}),
}  # fmt: skip

#: Half the width of the 90 % interval of the dynamic power of what is known by family, by bytes, or by time alone,
#: in natural logarithms: a factor of 1.8, 1.8, and 2.7.
_FAMILY_SPREAD = 0.6
_BYTES_SPREAD = 0.6
_TIME_SPREAD = 1.0

#: Bytes that the widest loads take at a time, bytes of an element, and the exponent of `_loading`. [B, B, -]
_WIDEST_LOAD = 16.0
_ELEMENT_BYTES = {"fp64": 8.0, "fp32": 4.0, "tf32": 4.0, "fp16": 2.0, "bf16": 2.0, "fp8": 1.0, "int8": 1.0}
_LOADING = 0.34

#: Of a copy between host and GPU one end is in the GPU's memory, of one within the GPU both are.
_ENDS = (("dtod", 2.0), ("device -> device", 2.0), ("device to device", 2.0))


@dataclass(frozen=True)
class Energies:
    """Of `n` activities at one clock.

    Attributes
    ----------
    dynamic_w : ndarray
        Mean power over the measured time, beyond what a clocked GPU draws with nothing running. [W]
    predicted_s : ndarray
        Time that the model gives the work; NaN where the work is not known. [s]
    spread : ndarray
        Half the width of the 90 % interval of the dynamic power, in natural logarithms.
    static_w : float
        Power of the clocked GPU with nothing running. [W]
    static_spread : float
        The same of it.
    """

    dynamic_w: Floats
    predicted_s: Floats
    spread: Floats
    static_w: float
    static_spread: float


def energies(profile: Profile, assignment: Assignment, gpu: Gpu, clock_mhz: float) -> Energies:
    """Energy of the work of each activity, spread over its measured time.

    The energy of work does not depend on how long it took: a kernel that took longer than predicted (it waited for
    memory, or for another rank) has the lower power. What the SMs draw for holding blocks goes with the time.

    Parameters
    ----------
    profile : Profile
    assignment : Assignment
    gpu : Gpu
    clock_mhz : float
        Core clock that the trace was taken at, or is taken to have been. [MHz]

    Returns
    -------
    Energies
    """
    activities = profile.activities
    n = len(activities)
    power = power_coefficients(gpu)
    time_s = np.maximum(activities.time_s, 1e-9)
    dynamic_w, predicted, spread = np.zeros(n), np.full(n, np.nan), np.full(n, _TIME_SPREAD)
    done = np.zeros(n, dtype=bool)
    by_unit = _priced_units(assignment.units, gpu)
    for rows, priced, place in by_unit:
        where = np.full(len(assignment.units), -1)
        where[rows] = place
        members = np.flatnonzero(assignment.unit >= 0)
        members = members[where[assignment.unit[members]] >= 0]
        if members.size:
            one = where[assignment.unit[members]]
            share = assignment.share[members]
            whole_s = duration_s(priced.times, gpu, clock_mhz)[one]
            predicted[members] = whole_s * share * _loading(profile, assignment, members)
            dynamic_w[members] = _dynamic_w(priced, one, share, whole_s, time_s[members], clock_mhz)
            spread[members] = priced.power_spread[one]
            done[members] = True
    _typical(profile, assignment, gpu, clock_mhz, done, dynamic_w, spread)
    moved = np.flatnonzero(assignment.basis == BYTES)
    ends = np.array([_ends(profile.names[code]) for code in activities.name[moved].tolist()])
    dynamic_w[moved] = activities.moved_bytes[moved] * ends * power.dram_pj * 1e-12 / time_s[moved]
    spread[moved] = _BYTES_SPREAD
    return Energies(dynamic_w, predicted, spread, float(static_power_w(clock_mhz, gpu, power)), float(power.spread90))


def _priced_units(units: tuple[OpRow, ...], gpu: Gpu) -> list[tuple[Any, Priced, Any]]:
    """For each kind: rows of `units`, their `Priced`, and the place of each in it; what the GPU can't run is left."""
    kinds: dict[str, list[int]] = {}
    for row, one in enumerate(units):
        kinds.setdefault(one.kind, []).append(row)
    out = []
    for kind, rows in kinds.items():
        names = {name for row in rows for name in units[row].columns}
        columns = {name: [units[row].columns.get(name) for row in rows] for name in names}
        engine = "nccl" if kind == "nccl" else "pytorch"
        priced = price(op_table(kind, columns, rows=len(rows)), gpu, Conditions(engine=engine, residency="stream"))
        can = np.array([place for place in range(len(rows)) if place not in priced.work.reasons], dtype=np.int64)
        out.append((np.array(rows)[can], priced, can))
    return out


def _loading(profile: Profile, assignment: Assignment, members: Any) -> Floats:
    """Factor on the time of matrix products whose kernels load less than 16 bytes at a time.

    Rows whose length is no multiple of 16 bytes can't be loaded by the widest instructions. One exponent, fitted on
    the tf32 products of a training trace of an A100 that ran alone and load 4 bytes at a time (a factor of 1.6).
    """
    factors = {
        code: (_WIDEST_LOAD / min(kernel.alignment * _ELEMENT_BYTES.get(kernel.dtype, 4.0), _WIDEST_LOAD)) ** _LOADING
        for code, kernel in assignment.kernels.items()
        if kernel.alignment
    }
    names = profile.activities.name[members].tolist()
    return np.array([factors.get(name, 1.0) for name in names])


def _dynamic_w(priced: Priced, one: Any, share: Floats, whole_s: Floats, time_s: Floats, clock_mhz: float) -> Floats:
    gpu, power = priced.gpu, priced.power
    scale = float(core_scale(clock_mhz, gpu, power))
    drive = scale * clock_mhz / gpu.rate_clock_mhz
    work_j = (priced.energy.core_total_j * scale + priced.energy.dram_j)[one] * share
    # the longer the work took beyond what it needs, the more of the time its warps waited
    needed = core_share(priced.times, gpu)[one]
    stretched = np.minimum(1.0, needed * whole_s * share / time_s)
    working = (STALLED_SHARE + (1 - STALLED_SHARE) * stretched) / (STALLED_SHARE + (1 - STALLED_SHARE) * needed)
    return np.asarray(work_j / time_s + power.active_w * drive * priced.energy.busy[one] * working)


def _typical(
    profile: Profile,
    assignment: Assignment,
    gpu: Gpu,
    clock_mhz: float,
    done: Any,
    dynamic_w: Floats,
    spread: Floats,
) -> None:
    """Kernels whose work is not known: the power of a typical one of their family, on as many SMs as have blocks."""
    activities = profile.activities
    blocks = activities.grid.prod(axis=1)
    filled = np.where(np.isfinite(blocks) & (blocks > 0), np.minimum(blocks / gpu.sm_count, 1.0), 1.0)
    for row in np.flatnonzero(~done & (activities.category == KERNEL)).tolist():
        kernel = assignment.kernels[int(activities.name[row])]
        dynamic_w[row] = typical_w(kernel.bound or "unknown", kernel.dtype, gpu, clock_mhz) * filled[row]
        known = bool(kernel.bound)
        spread[row] = _FAMILY_SPREAD if known else _TIME_SPREAD
        assignment.basis[row] = FAMILY if known else NOTHING


@lru_cache(maxsize=512)
def typical_w(bound: str, dtype: str, gpu: Gpu, clock_mhz: float) -> float:
    """Dynamic power of a typical kernel that fills the GPU.

    Parameters
    ----------
    bound : str
        ``matrix``, ``memory``, ``links`` or ``unknown``.
    dtype : str
        Format of a matrix product; others have the GPU's widest.
    gpu : Gpu
    clock_mhz : float
        [MHz]

    Returns
    -------
    float
        [W]
    """
    power = power_coefficients(gpu)
    drive = float(core_scale(clock_mhz, gpu, power)) * clock_mhz / gpu.rate_clock_mhz
    if bound == "links":  # its blocks wait for the links
        return float(power.active_w * drive * STALLED_SHARE)
    kind, columns = _TYPICAL[bound]
    for one in dict.fromkeys((dtype, "fp16", "fp32")) if kind == "gemm" else ("fp32",):
        try:
            table = op_table(kind, {**columns, "dtype": one})
        except ValueError:
            continue
        priced = price(table, gpu, Conditions(engine="pytorch", residency="stream"))
        if not priced.work.reasons:
            seconds = duration_s(priced.times, gpu, clock_mhz)
            every = np.zeros(1, dtype=np.int64)
            return float(_dynamic_w(priced, every, np.ones(1), seconds, seconds, clock_mhz)[0])
    return _whole_w(gpu, power)


def _whole_w(gpu: Gpu, power: PowerCoefficients) -> float:
    return max(gpu.power_limit_default_w * 0.5 - power.idle_w, 0.0)


def _ends(name: str) -> float:
    lowered = name.lower()
    return next((ends for word, ends in _ENDS if word in lowered), 1.0)
