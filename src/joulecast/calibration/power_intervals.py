"""Widths of the intervals of power and energy of kernels, and of whole passes, from rows that no fit saw."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from joulecast.calibration.conformal import equal_weights, weighted_quantile
from joulecast.calibration.interval_fit import blended_curve
from joulecast.calibration.left_out import chip
from joulecast.calibration.pass_fit import fitted_gpus, leave_model_out, pass_fit_of
from joulecast.calibration.passes import PassFit, PassTable, predicted_time_s
from joulecast.calibration.tables import QUALITIES, Measured
from joulecast.coefficients import store
from joulecast.coefficients.intervals import FamilyIntervals, Intervals
from joulecast.coefficients.transfer import relatives, time_coefficients
from joulecast.gpus import Gpu, load_gpu
from joulecast.physics.price import price
from joulecast.physics.settled import under_limit
from joulecast.physics.uncertainty import of_sum

Floats = npt.NDArray[np.float64]

#: Rows of one table that are looked at.
ROWS_OF_BATCH = 1_500

#: Half-widths below which no meter is.
_LEAST = 0.02

#: Rows at the limit that widths there are fitted on at least.
_FEWEST_CAPPED = 50


@dataclass(frozen=True)
class PowerResiduals:
    """Rows of one batch with trusted power: logarithms of predicted over measured, and what was promised."""

    family: str
    gpu: str
    power: Floats
    time: Floats
    capped: npt.NDArray[np.bool_]
    excess: Floats
    power_spread: float
    time_spread: Floats


def power_residuals(batches: Sequence[Measured], exclude_own: bool = False, seed: int = 0) -> Iterator[PowerResiduals]:
    """Residuals of trusted readings; with `exclude_own`, as if no board of the GPU's chip had ever been measured."""
    generator = np.random.default_rng(seed)
    for batch in batches:
        rows = np.flatnonzero(np.isfinite(batch.power_w) & (batch.quality <= QUALITIES.index("B")))
        if rows.size > ROWS_OF_BATCH:
            rows = np.sort(generator.choice(rows, ROWS_OF_BATCH, replace=False))
        if rows.size < 20:
            continue
        few, gpu = batch.take(rows), load_gpu(batch.gpu)
        exclude = tuple(name for name in store.known() if chip(name) == chip(gpu.name)) if exclude_own else ()
        priced = price(few.table, gpu, few.conditions, exclude=exclude)
        limit_w = few.power_limit_w if np.isfinite(few.power_limit_w) else gpu.power_limit_default_w
        free = few.timing_mode == "burst"
        settled = under_limit(priced, gpu.clock_max_mhz, np.inf if free else limit_w, hosted=few.host_bound)
        good = np.ones(rows.size, dtype=np.bool_)
        good[list(priced.work.reasons)] = False
        yield PowerResiduals(
            family=priced.work.family,
            gpu=gpu.name,
            power=np.log(settled.power_w / few.power_w)[good],
            time=np.log(settled.time_s / few.time_s)[good],
            capped=settled.throttled[good],
            excess=settled.excess[good],
            power_spread=_donor_spread(gpu, exclude, priced.work.family, few.conditions.engine),
            time_spread=priced.time_spread[good],
        )


def _donor_spread(gpu: Gpu, exclude: tuple[str, ...], family: str, engine: str) -> float:
    """Half-width of powers where the energies that `gpu` would use were fitted."""
    fitted = (coefficients.power for _, _, coefficients in relatives(gpu, exclude) if coefficients.power is not None)
    return next((one.spread90_of(family, engine) for one in fitted), 0.5)


def _distance(gpu: Gpu, exclude: tuple[str, ...]) -> float:
    return next((far for far, _, coefficients in relatives(gpu, exclude) if coefficients.power is not None), 4.0)


def with_power(
    intervals: Intervals, batches: Sequence[Measured], tell: Callable[[str], None] = lambda _: None
) -> Intervals:
    """`intervals` with the widths of powers, of energies, and of what a limit sets.

    The times of `intervals` must be those in use, for energies build on them.
    """
    own = list(power_residuals(batches))
    if not own:
        return intervals
    by_family: dict[str, list[PowerResiduals]] = defaultdict(list)
    for one in own:
        by_family[one.family].append(one)
    families = dict(intervals.families)
    for name, members in sorted(by_family.items()):
        found = _family(families.get(name, FamilyIntervals()), members)
        if found is not None:
            families[name] = found = _with_capped(found, members)
            hit = np.concatenate([np.abs(one.power[~one.capped]) <= one.power_spread * found.power for one in members])
            factors = f"power x{found.power:.2f} energy x{found.energy:.2f} at limit {found.capped:.2f}"
            tell(f"{name:24s} {factors}: in {hit.mean():.1%}")
    foreign = list(power_residuals(batches, exclude_own=True))
    places, added = [], []
    for gpu_name in dict.fromkeys(one.gpu for one in foreign):
        gpu = load_gpu(gpu_name)
        exclude = tuple(name for name in store.known() if chip(name) == chip(gpu_name))
        members = [one for one in foreign if one.gpu == gpu_name and (~one.capped).any()]
        if not members:
            continue
        score = np.concatenate([np.abs(one.power[~one.capped]) / families[one.family].power for one in members])
        weight = equal_weights([one.family for one in members for _ in range(int((~one.capped).sum()))])
        needed = weighted_quantile(score, weight)
        places.append(_distance(gpu, exclude))
        added.append(float(np.sqrt(max(needed**2 - members[0].power_spread ** 2, 0.0))))
        tell(f"{gpu_name:24s} power from relatives at {places[-1]:.1f}: half-width {needed:.2f}")
    curve = blended_curve(places, added, Intervals().power_transfer)
    return replace(intervals, families=families, power_transfer=curve, capped_time=_capped_time(own, intervals))


def _family(known: FamilyIntervals, members: Sequence[PowerResiduals]) -> FamilyIntervals | None:
    free = [one for one in members if (~one.capped).any()]
    if not free:
        return None
    labels = [one.gpu for one in free for _ in range(int((~one.capped).sum()))]
    weight = equal_weights(labels)
    power = np.concatenate([np.abs(one.power[~one.capped]) / one.power_spread for one in free])
    # spreads are those of rows that no correction saw; it has seen these
    factor = float(np.clip(weighted_quantile(power, weight), 1.0, 5.0))
    energy = np.concatenate([
        np.abs(one.power + one.time)[~one.capped]
        / np.hypot(one.time_spread[~one.capped], one.power_spread * factor) for one in free
    ])  # fmt: skip
    return replace(known, power=factor, energy=float(np.clip(weighted_quantile(energy, weight), 0.3, 3.0)))


def _with_capped(known: FamilyIntervals, members: Sequence[PowerResiduals]) -> FamilyIntervals:
    """The family with the width of powers that the limit surely sets, beyond those that may lie under it."""
    some = [one for one in members if one.capped.any()]
    if sum(int(one.capped.sum()) for one in some) < _FEWEST_CAPPED:
        return known
    size = np.concatenate([np.abs(one.power[one.capped]) for one in some])
    promised = np.concatenate([one.power_spread * known.power - one.excess[one.capped] for one in some])
    weight = equal_weights([one.gpu for one in some for _ in range(int(one.capped.sum()))])
    return replace(known, capped=max(weighted_quantile(np.where(size > promised, size, 0.0), weight), _LEAST))


def _capped_time(own: Sequence[PowerResiduals], known: Intervals) -> float:
    """What a clock that the limit sets adds to the half-width of times."""
    some = [one for one in own if one.capped.any()]
    if sum(int(one.capped.sum()) for one in some) < _FEWEST_CAPPED:
        return known.capped_time
    added = [np.sqrt(np.maximum(one.time**2 - one.time_spread**2, 0.0))[one.capped] for one in some]
    weight = equal_weights([one.gpu for one in some for _ in range(int(one.capped.sum()))])
    return weighted_quantile(np.concatenate(added), weight)


def with_passes(intervals: Intervals, folder: Path, tell: Callable[[str], None] = lambda _: None) -> Intervals:
    """`intervals` with what whole passes add, from passes whose model was left out of every fit.

    Every model of a GPU counts the same, however many runs of it there are.
    """
    miss, kernels, hosted, labels, elsewhere = [], [], [], [], []
    by_gpu = {name: (runs, *pass_fit_of(load_gpu(name), runs)) for name, runs in fitted_gpus(folder).items()}
    for name, (runs, table, fit) in by_gpu.items():
        errors = leave_model_out(runs, table)
        elsewhere.append(
            np.abs(_misses_on_another_host(table, fit, [f for g, (_, _, f) in by_gpu.items() if g != name]))
        )
        log_scale = np.log([fit.scale[key] for key in table.keys])
        _, gpu_s = predicted_time_s(table, log_scale, fit.launch_us, fit.module_us)
        host_s = (table.launches * fit.launch_us + table.modules * fit.module_us) * 1e-6
        miss.append(np.abs(np.log1p(errors.time)))
        kernels.append(kernel_half_width(table))
        hosted.append(host_s > gpu_s)
        labels += [f"{name} {model}" for model in table.models]
    if not miss:
        return intervals
    size, inner, waits = np.concatenate(miss), np.concatenate(kernels), np.concatenate(hosted)
    label = np.array(labels)
    model, host, any_host = intervals.model, intervals.host, intervals.any_host
    if (~waits).sum() >= 20:
        excess = np.sqrt(np.maximum(size[~waits] ** 2 - inner[~waits] ** 2, 0.0))
        model = max(weighted_quantile(excess, equal_weights(label[~waits])), _LEAST)
    if waits.sum() >= 20:
        excess = np.sqrt(np.maximum(size[waits] ** 2 - model**2, 0.0))
        host = max(weighted_quantile(excess, equal_weights(label[waits])), _LEAST)
        excess = np.sqrt(np.maximum(np.concatenate(elsewhere)[waits] ** 2 - model**2, 0.0))
        any_host = max(weighted_quantile(excess, equal_weights(label[waits])), host)
    width = np.where(waits, np.hypot(model, host), np.hypot(model, inner))
    tell(
        f"whole passes: model {model:.3f}, host {host:.3f}, any host {any_host:.3f}; "
        f"{size.size} runs, in {np.mean(size <= width):.1%}"
    )
    return replace(intervals, model=model, host=host, any_host=any_host)


def _misses_on_another_host(table: PassTable, fit: PassFit, others: Sequence[PassFit]) -> Floats:
    """Errors of the times of passes whose host is taken to be like the others, in natural logarithms."""
    if not others:
        return np.zeros(len(table.time_s))
    launch_us, module_us = np.exp(np.mean(np.log([(one.launch_us, one.module_us) for one in others]), axis=0)).tolist()
    log_scale = np.log([fit.scale[key] for key in table.keys])
    return np.log(predicted_time_s(table, log_scale, launch_us, module_us)[0] / table.time_s)


def kernel_half_width(table: PassTable) -> Floats:
    """Half-width of the time of all kernels of each pass, from those of its families."""
    known = [time_coefficients(table.gpu, *key.split("/", 2)).spread90 for key in table.keys]
    names = [key.split("/", 1)[0] for key in table.keys]
    family = np.array([names.index(name) for name in names], dtype=np.intp)
    return np.array([of_sum(row, np.array(known), family) for row in table.kernel_s])
