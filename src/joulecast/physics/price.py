"""Prices operations on a GPU: work, efficiencies and energies together, ready to be evaluated at any clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from joulecast.coefficients.corrections import CorrectionModel, load_correction, load_power_correction
from joulecast.coefficients.intervals import SIZE_KNOTS_S, FamilyIntervals, load_intervals
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
from joulecast.physics.correction import Singles, correction_factor, correction_features
from joulecast.physics.operating import at_state
from joulecast.physics.power import OPERAND_ENERGY, engine_with, operand_energy, scaled, work_energy
from joulecast.physics.priced import Floats, Priced, rough_s
from joulecast.physics.timing import (
    ModuleTimes,
    core_share,
    duration_s,
    message_factor,
    module_times,
    parameters_by_row,
)
from joulecast.physics.uncertainty import by_size, widened
from joulecast.workloads.table import OpTable


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
    parameters = parameters_by_row(per_group, work.group)
    times = module_times(work, gpu, parameters, scale)
    power = at_state(power or power_coefficients(rated(gpu), exclude=exclude), gpu)
    exclude_power = exclude if power_corrections is None else ()
    of_time = load_correction(work.family) if corrections is None else corrections.get(work.family)
    of_power = _power_model(work.family, power_corrections, power)
    operands = _operands(of_power, work, gpu, conditions, exclude_power)
    features = None
    if len(work) and (of_time is not None or of_power is not None):
        like = as_measured(gpu, exclude=exclude)
        seen = times if like is gpu else module_times(work, like, parameters, scale)
        features = correction_features(work, seen, like)
    power_factor, power_distance = _factor(
        of_power, work, times, gpu, [engine_with(conditions.engine, one) for one in operands], exclude_power, features
    )
    factor, distance = _factor(of_time, work, times, gpu, engines, exclude if corrections is None else (), features)
    if tried is not None:  # what is learned is how kernels fare that a library guesses
        factor, distance = np.where(tried, np.minimum(factor, 1.0), factor), np.where(tried, 0.0, distance)
    times = replace(times, scale=times.scale * factor)
    operand_factor = np.array([operand_energy(one) for one in operands])[work.group]
    energy = work_energy(work, gpu, power, core_share(times, gpu), operand_factor)
    by_model = power.model_factor if in_pass else 1.0
    width = load_intervals().family(work.family)
    return Priced(
        work=work,
        times=times,
        energy=scaled(energy, by_model * power_factor**power.learned_share),
        gpu=gpu,
        power=power,
        provenance=np.array([PROVENANCES.index(one.provenance) for one in per_group], dtype=np.intp)[work.group],
        time_spread=_time_spread(work, rough_s(times, gpu), per_group, distance, width),
        power_spread=widened(
            power.spread90_of(work.family, conditions.engine) * width.power, power_distance, width.hull
        ),
        capped_spread=np.full(len(work), width.capped),
        energy_factor=np.full(len(work), width.energy),
        distance=distance,
        host_us=np.array([one.host_us for one in per_group])[work.group] * work.host_steps,
        host_lead_us=np.array([one.host_lead_us for one in per_group])[work.group],
    )


def _factor(
    model: CorrectionModel | None, work: KernelWork, times: ModuleTimes, gpu: Gpu, engines: Sequence[str],
    exclude: tuple[str, ...], features: Singles | None,
) -> tuple[Floats, Floats]:  # fmt: skip
    """As `correction_factor`; 1, and no distance, where there is no correction."""
    if model is None or not len(work):
        return np.ones(len(work)), np.zeros(len(work))
    return correction_factor(model, work, times, gpu, engine=engines, exclude=exclude, features=features)


def _time_spread(
    work: KernelWork, rough_time_s: Floats, per_group: Sequence[TimeCoefficients], distance: Floats,
    width: FamilyIntervals,
) -> Floats:  # fmt: skip
    """Half-width of the interval of each time: by size and distance, and what a relative's coefficients add beside."""
    moved = np.array([one.moved90 if one.provenance == "transferred" else 0.0 for one in per_group])
    spread = np.sqrt(np.maximum(np.square([one.spread90 for one in per_group]) - np.square(moved), 0.0))
    sized = spread[work.group] * by_size(rough_time_s, SIZE_KNOTS_S, width.size)
    return np.asarray(np.hypot(widened(sized, distance, width.hull), moved[work.group]))


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
    name = gpu.plain_name
    own = {} if model is None or name in exclude else model.own
    choices = ("random", *(one for one, factor in OPERAND_ENERGY.items() if factor != 1.0))
    return [
        next((one for one in choices if f"{name}/{engine_with(conditions.engine, one)}/{group}" in own), "random")
        for group in work.groups
    ]
