"""Prices operations on a GPU: work, efficiencies and energies together, ready to be evaluated at any clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from joulecast.coefficients.corrections import CorrectionModel, load_correction, load_power_correction
from joulecast.coefficients.intervals import SIZE_KNOTS_S, load_intervals
from joulecast.coefficients.schema import PROVENANCES, PowerCoefficients, TimeCoefficients
from joulecast.coefficients.transfer import (
    as_measured,
    measured_on_chip,
    measured_sibling,
    power_coefficients,
    time_coefficients,
)
from joulecast.coefficients.versions import named
from joulecast.gpus import Gpu
from joulecast.gpus.changes import change_gpu
from joulecast.gpus.state import rated
from joulecast.kernels.registry import family_of
from joulecast.kernels.work import Conditions, KernelWork
from joulecast.physics.correction import correction_factor, correction_features
from joulecast.physics.operating import at_state
from joulecast.physics.power import (
    OPERAND_ENERGY,
    WorkEnergy,
    energy_parts_j,
    engine_with,
    mean_power_w,
    operand_energy,
    scaled,
    static_power_w,
    work_energy,
)
from joulecast.physics.throttle import clock_at_limit
from joulecast.physics.timing import (
    CORE_MODULES,
    ModuleTimes,
    core_share,
    dram_rate_gb_s,
    duration_s,
    measured_s,
    message_factor,
    module_times,
    parameters_by_row,
)
from joulecast.physics.uncertainty import by_size, widened
from joulecast.workloads.table import OpTable

Floats = npt.NDArray[np.float64]

#: What may bound a kernel; `bound_by` holds indices into it.
BOUNDS = (*CORE_MODULES, "DRAM", "links", "launches")


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


@dataclass(frozen=True)
class Settled:
    """Operations at the clock they settle at.

    Attributes
    ----------
    time_s, power_w, clock_mhz : ndarray
        Of each. [s, W, MHz]
    throttled : ndarray of bool
        Where the power limit lowers the clock.
    excess : ndarray
        Logarithm of the power at the clock asked for over the limit, where it throttles; else 0.
    """

    time_s: Floats
    power_w: Floats
    clock_mhz: Floats
    throttled: npt.NDArray[np.bool_]
    excess: Floats

    @property
    def energy_j(self) -> Floats:
        """Energy of each operation. [J]"""
        return self.time_s * self.power_w


def price(
    table: OpTable,
    gpu: Gpu,
    conditions: Conditions,
    *,
    power: PowerCoefficients | None = None,
    time: dict[str, TimeCoefficients] | None = None,
    exclude: tuple[str, ...] = (),
    corrections: Mapping[str, CorrectionModel] | None = None,
    power_corrections: Mapping[str, CorrectionModel] | None = None,
    pass_scales: bool = True,
) -> Priced:
    """Price the operations of `table` on `gpu`.

    Parameters
    ----------
    table : OpTable
    gpu : Gpu
    conditions : Conditions
    power : PowerCoefficients, optional
        Energies to use; otherwise those of `gpu`, fitted or transferred.
    time : dict of str to TimeCoefficients, optional
        Efficiencies by ``family/engine/group`` that win over the shipped ones.
    exclude : tuple of str
        GPUs whose shipped coefficients may not be used.
    corrections : mapping of str to CorrectionModel, optional
        By family, in place of the shipped ones; a family that is absent goes without.
    power_corrections : mapping of str to CorrectionModel, optional
        The same of power.
    pass_scales : bool
        Whether operations that stream (`Conditions.residency`) take the factors found on whole passes and models.

    Returns
    -------
    Priced
    """

    def priced(on: Gpu) -> Priced:
        return price_work(
            family_of(table.kind).work(table, on, conditions), on, conditions, power=power, time=time, exclude=exclude,
            corrections=corrections, power_corrections=power_corrections, pass_scales=pass_scales,
            tried=table["autotuned"] > 0 if "autotuned" in table.columns else None,
        )  # fmt: skip

    found = priced(gpu)
    sibling = measured_sibling(gpu, exclude)
    if sibling is None or sibling.sm_count == gpu.sm_count or not len(found):
        return found
    return _as_sms_allow(found, priced(change_gpu(gpu, {"sm_count": sibling.sm_count})))


def price_work(
    work: KernelWork,
    gpu: Gpu,
    conditions: Conditions,
    *,
    power: PowerCoefficients | None = None,
    time: dict[str, TimeCoefficients] | None = None,
    exclude: tuple[str, ...] = (),
    corrections: Mapping[str, CorrectionModel] | None = None,
    power_corrections: Mapping[str, CorrectionModel] | None = None,
    pass_scales: bool = True,
    tried: npt.NDArray[np.bool_] | None = None,
) -> Priced:
    """As `price`, of work that is known already: that of a compiled kernel, say.

    `tried` tells rows whose kernels the library first tried out: what is learned of slow guesses does not hold there.
    """
    own = time or {}
    engines = _engines(work, gpu, conditions, own, exclude)
    per_group = [
        own.get(f"{work.family}/{engine}/{group}")
        or time_coefficients(gpu, work.family, engine, group, exclude=exclude)
        for engine, group in zip(engines, work.groups, strict=True)
    ]
    in_pass = pass_scales and conditions.residency == "stream"
    scale = np.array([one.scale * (one.pass_scale if in_pass else 1.0) for one in per_group])[work.group]
    scale = scale * message_factor(work, per_group)
    times = module_times(work, gpu, parameters_by_row(per_group, work.group), scale)
    power = at_state(power or power_coefficients(rated(gpu), exclude=exclude), gpu)
    exclude_power = exclude if power_corrections is None else ()
    learned = load_correction(work.family) if corrections is None else corrections.get(work.family)
    learned_power = _power_model(work.family, power_corrections, power)
    operands = _operands(learned_power, work, gpu, conditions, exclude_power)
    distance = power_distance = np.zeros(len(work))
    power_factor = np.ones(len(work))
    if len(work) and (learned is not None or learned_power is not None):
        like = as_measured(gpu, exclude=exclude)
        seen = times if like is gpu else module_times(work, like, parameters_by_row(per_group, work.group), scale)
        features = correction_features(work, seen, like)
        plain = times
        if learned is not None:
            factor, distance = correction_factor(
                learned, work, plain, gpu, engine=engines, exclude=exclude if corrections is None else (),
                features=features,
            )  # fmt: skip
            if tried is not None:  # what is learned is how kernels fare that a library guesses
                factor, distance = np.where(tried, np.minimum(factor, 1.0), factor), np.where(tried, 0.0, distance)
            times = replace(times, scale=times.scale * factor)
        if learned_power is not None:
            power_factor, power_distance = correction_factor(
                learned_power, work, plain, gpu, engine=[engine_with(conditions.engine, one) for one in operands],
                exclude=exclude_power, features=features,
            )  # fmt: skip
    operand_factor = np.array([operand_energy(one) for one in operands])[work.group]
    by_model = power.model_factor if in_pass else 1.0
    energy = work_energy(work, gpu, power, core_share(times, gpu), operand_factor)
    kept = np.array([PROVENANCES.index(one.provenance) for one in per_group], dtype=np.intp)
    moved = np.array([one.moved90 if one.provenance == "transferred" else 0.0 for one in per_group])
    spread = np.sqrt(np.maximum(np.square([one.spread90 for one in per_group]) - np.square(moved), 0.0))
    width = load_intervals().family(work.family)
    spread = spread[work.group] * by_size(rough_s(times, gpu), SIZE_KNOTS_S, width.size)
    return Priced(
        work=work,
        times=times,
        energy=scaled(energy, by_model * power_factor**power.learned_share),
        gpu=gpu,
        power=power,
        provenance=kept[work.group],
        time_spread=np.hypot(widened(spread, distance, width.hull), moved[work.group]),
        power_spread=widened(
            power.spread90_of(work.family, conditions.engine) * width.power, power_distance, width.hull
        ),
        capped_spread=np.full(len(work), width.capped),
        energy_factor=np.full(len(work), width.energy),
        distance=distance,
        host_us=np.array([one.host_us for one in per_group])[work.group] * work.host_steps,
        host_lead_us=np.array([one.host_lead_us for one in per_group])[work.group],
    )


def _as_sms_allow(found: Priced, as_many: Priced) -> Priced:
    """`found` no faster than the same GPU `as_many` with the SMs that its chip was measured with, if it has fewer.

    And no slower, if it has more. What is learned of one number of SMs knows how blocks divide among those.
    """
    clock_mhz = found.gpu.clock_max_mhz
    ratio = duration_s(as_many.times, as_many.gpu, clock_mhz) / duration_s(found.times, found.gpu, clock_mhz)
    fewer = found.gpu.sm_count < as_many.gpu.sm_count
    bound = np.maximum(ratio, 1.0) if fewer else np.minimum(ratio, 1.0)
    return replace(found, times=replace(found.times, scale=found.times.scale * bound))


def _engines(
    work: KernelWork, gpu: Gpu, conditions: Conditions, own: Mapping[str, TimeCoefficients], exclude: tuple[str, ...]
) -> list[str]:
    """Names under which the times of each group are kept: of the version asked for, where it was measured apart."""
    if not conditions.version:
        return [conditions.engine] * len(work.groups)
    known = {*own, *measured_on_chip(gpu, exclude=exclude)}
    return named(conditions.engine, conditions.version, work.family, work.groups, known)


def rough_s(times: ModuleTimes, gpu: Gpu) -> Floats:
    """Sum of the parts of each operation's time at the highest clock: its size, quickly. [s]"""
    cycles = times.fixed_cycles + times.core_total_cycles + times.serial_cycles
    moved = times.dram_bytes + times.serial_dram_bytes
    return times.fixed_s + times.link_s + cycles / (gpu.clock_max_mhz * 1e6) + moved / (gpu.dram_gb_s * 1e9)


def _power_model(
    family: str, given: Mapping[str, CorrectionModel] | None, power: PowerCoefficients
) -> CorrectionModel | None:
    """Correction of the power of a family that goes with the energies."""
    if power.learned_share <= 0:
        return None
    return load_power_correction(family) if given is None else given.get(family)


def _operands(
    model: CorrectionModel | None, work: KernelWork, gpu: Gpu, conditions: Conditions, exclude: tuple[str, ...]
) -> list[str]:
    """What operands hold, by group: as told, else as where the group was measured, else random."""
    if conditions.operands:
        return [conditions.operands] * len(work.groups)
    name = gpu.name.split("+")[0]
    own = {} if model is None or name in exclude else model.own
    choices = ("random", *(one for one, factor in OPERAND_ENERGY.items() if factor != 1.0))
    return [
        next((one for one in choices if f"{name}/{engine_with(conditions.engine, one)}/{group}" in own), "random")
        for group in work.groups
    ]


def at_clock(priced: Priced, clock_mhz: Any) -> tuple[Floats, Floats]:
    """Time and mean power of each operation at a core clock, whatever the power limit. [s, W]"""
    time_s = duration_s(priced.times, priced.gpu, clock_mhz)
    return time_s, mean_power_w(priced.energy, time_s, clock_mhz, priced.gpu, priced.power)


def with_host(priced: Priced, clock_mhz: Any) -> tuple[Floats, Floats]:
    """As `at_clock`, each operation started by a host that takes its time (`Priced.host_us`). [s, W]

    While it waits, the GPU draws the power of a clocked GPU with nothing running.
    """
    kernel_s, power_w = at_clock(priced, clock_mhz)
    time_s = measured_s(kernel_s, priced.host_us, priced.host_lead_us)
    static_w = static_power_w(clock_mhz, priced.gpu, priced.power)
    return time_s, static_w + (power_w - static_w) * kernel_s / time_s


def under_limit(priced: Priced, clock_mhz: Any, power_limit_w: Any, *, hosted: bool = False) -> Settled:
    """Each operation run on its own, again and again, at the clock that the power limit lets it have.

    Parameters
    ----------
    priced : Priced
    clock_mhz : array_like
        Clock asked for. [MHz]
    power_limit_w : array_like
        Power limit; infinite to hold the clock. Mean power settles at `PowerCoefficients.limit_share` of it. [W]
    hosted : bool
        Whether a host starts each operation by itself; what is drawn while it does counts towards the limit.

    Returns
    -------
    Settled
    """
    n = len(priced)
    clock = np.array(np.broadcast_to(np.asarray(clock_mhz, dtype=np.float64), (n,)))
    limit_w = np.broadcast_to(np.asarray(power_limit_w, dtype=np.float64) * priced.power.limit_share, (n,))
    evaluated = with_host if hosted else at_clock
    time_s, power_w = evaluated(priced, clock)
    throttled, excess = power_w > limit_w, np.zeros(n)
    over = np.flatnonzero(throttled)
    if over.size:
        excess[over] = np.log(power_w[over] / limit_w[over])
        few = timed(priced, over)
        clock[over] = clock_at_limit(
            lambda mhz, rows: evaluated(few if isinstance(rows, slice) else timed(few, rows), mhz)[1],
            power_w[over], clock[over], priced.gpu.clock_min_mhz, limit_w[over],
        )  # fmt: skip
        time_s[over], power_w[over] = evaluated(few, clock[over])
    return Settled(time_s, power_w, clock, throttled, excess)


def half_widths(priced: Priced, settled: Settled) -> tuple[Floats, Floats, Floats]:
    """Half the width of the 90 % intervals of time, power and energy of each operation, in natural logarithms.

    Where the limit sets the power, that is known well, the better the further the power without it would lie above,
    and what is not known of it shows in clock and time.
    """
    known = load_intervals()
    capped = np.maximum(priced.power_spread - settled.excess, priced.capped_spread)
    power = np.where(settled.throttled, capped, priced.power_spread)
    time = np.where(settled.throttled, np.hypot(priced.time_spread, known.capped_time), priced.time_spread)
    return time, power, priced.energy_factor * np.hypot(time, power)


#: Of parts that take nearly the longest, the one to name: what a reader can do something about comes first.
_NAMED_FIRST = np.array([BOUNDS.index(name) for name in (
    "tensor core", "CUDA core", "DRAM", "special functions", "links", "L2", "shared memory", "launches")])  # fmt: skip
_NEARLY = 0.7


def bound_by(priced: Priced, clock_mhz: Any) -> npt.NDArray[np.intp]:
    """What bounds each operation at a clock, as an index into `BOUNDS`.

    The part that takes the longest; of several within 30 % of it (their efficiencies can't be told apart so well)
    the first of tensor core, CUDA core, DRAM, special functions, links, L2, shared memory, launches.
    """
    times, gpu = priced.times, priced.gpu
    hertz = np.asarray(clock_mhz) * 1e6
    rate = dram_rate_gb_s(times.dram_rate_gb_s, clock_mhz, gpu) * 1e9
    parts = np.empty((len(BOUNDS), times.dram_bytes.size))
    parts[:5] = times.core_cycles / hertz
    parts[5] = times.dram_bytes / rate
    parts[6] = times.link_s
    parts[7] = times.fixed_s + times.fixed_cycles / hertz
    longest = parts.max(axis=0)
    nearly = parts[_NAMED_FIRST] >= _NEARLY * longest
    return np.where(longest > 0, _NAMED_FIRST[nearly.argmax(axis=0)], BOUNDS.index("launches"))


def module_energy_j(priced: Priced, time_s: Floats, clock_mhz: Any) -> Floats:
    """Energy of each operation by module, shape (8, n), rows as `joulecast.physics.power.POWER_MODULES`. [J]"""
    return energy_parts_j(priced.energy, time_s, clock_mhz, priced.gpu, priced.power)


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
