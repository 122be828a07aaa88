"""`Priced`: operations with all that their time and power at any clock follow from; cut and put together."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from joulecast.coefficients.schema import PowerCoefficients
from joulecast.gpus import Gpu
from joulecast.kernels.work import KernelWork
from joulecast.physics.power import WorkEnergy
from joulecast.physics.timing import ModuleTimes

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Priced:
    """Operations of one kind with all that their time and power at any clock follow from.

    Attributes
    ----------
    work : KernelWork
    times : ModuleTimes
    energy : WorkEnergy
    gpu : Gpu
    power : PowerCoefficients
    provenance : ndarray of int
        Of each row's time, an index into `joulecast.coefficients.schema.PROVENANCES`.
    time_spread : ndarray
        Half the width of the 90 % interval of the time, in natural logarithms.
    power_spread : ndarray
        The same of the power, where no limit sets it.
    capped_spread : ndarray
        The same of a power that the limit surely sets.
    energy_factor : ndarray
        On the half-width of the energy beside that of independent time and power.
    distance : ndarray
        How far each row is from the rows that the fit saw; 0 inside.
    host_us, host_lead_us : ndarray
        Least time between two readings of a host's clock around one launch, and the part before the kernel starts
        (`joulecast.physics.timing.measured_s`); 0 where no launch by a host was measured. [us]
    """

    work: KernelWork
    times: ModuleTimes
    energy: WorkEnergy
    gpu: Gpu
    power: PowerCoefficients
    provenance: npt.NDArray[np.intp]
    time_spread: Floats
    power_spread: Floats
    capped_spread: Floats
    energy_factor: Floats
    distance: Floats
    host_us: Floats
    host_lead_us: Floats

    def __len__(self) -> int:
        return len(self.work)


def rough_s(times: ModuleTimes, gpu: Gpu) -> Floats:
    """Sum of the parts of each operation's time at the highest clock: its size, quickly. [s]"""
    cycles = times.fixed_cycles + times.core_total_cycles + times.serial_cycles
    moved = times.dram_bytes + times.serial_dram_bytes
    return times.fixed_s + times.link_s + cycles / (gpu.clock_max_mhz * 1e6) + moved / (gpu.dram_gb_s * 1e9)


def timed(priced: Priced, rows: Any) -> Priced:
    """The operations at `rows` as far as `with_host` and `at_clock` look at them: the rest stays whole."""

    def cut(value: Any) -> dict[str, Any]:
        return {name: one[:, rows] if name in _BY_MODULE else one[rows] for name, one in value.__dict__.items()}

    return replace(
        priced, times=ModuleTimes(**cut(priced.times)), energy=WorkEnergy(**cut(priced.energy)),
        host_us=priced.host_us[rows], host_lead_us=priced.host_lead_us[rows],
    )  # fmt: skip


#: Arrays whose rows are modules: operations lie along their last axis.
_BY_MODULE = ("core_cycles", "core_j")


def take(priced: Priced, rows: Any) -> Priced:
    """The operations at `rows` (indices or mask)."""

    def cut(name: str, value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return value[:, rows] if name in _BY_MODULE else value[rows]
        if isinstance(value, KernelWork | ModuleTimes | WorkEnergy):
            return type(value)(**{key: cut(key, item) for key, item in value.__dict__.items()})
        return value

    return Priced(**{key: cut(key, value) for key, value in priced.__dict__.items()})


def concatenated(parts: list[Priced]) -> Priced:
    """Operations of several kinds as one `Priced`; all of one GPU. Groups and features are left behind."""
    first = parts[0]
    if len(parts) == 1:
        return first

    def together(objects: list[Any], skip: tuple[str, ...] = ()) -> dict[str, Any]:
        return {
            key: np.concatenate([getattr(one, key) for one in objects], axis=value.ndim - 1)
            for key, value in objects[0].__dict__.items()
            if isinstance(value, np.ndarray) and key not in skip
        }

    reasons: dict[int, str] = {}
    start = 0
    for part in parts:
        reasons.update({start + row: reason for row, reason in part.work.reasons.items()})
        start += len(part)
    work = KernelWork(
        family="",
        groups=(),
        features=np.zeros((start, 0)),
        reasons=reasons,
        **together([part.work for part in parts], skip=("features",)),
    )
    return Priced(
        work=work,
        times=ModuleTimes(**together([part.times for part in parts])),
        energy=WorkEnergy(**together([part.energy for part in parts])),
        gpu=first.gpu,
        power=first.power,
        **together(parts),
    )
