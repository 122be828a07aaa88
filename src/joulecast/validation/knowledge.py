"""What a prediction may know when it is scored: coefficients as shipped, or fitted without what it is scored on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import numpy as np

from joulecast.calibration.kernels import Pool, fit_pool, pools_of, shape_fold
from joulecast.calibration.power_fit import as_coefficients, fit_power, power_rows
from joulecast.calibration.tables import QUALITIES, Measured
from joulecast.coefficients import store
from joulecast.coefficients.corrections import CorrectionModel
from joulecast.coefficients.schema import PowerCoefficients, TimeCoefficients
from joulecast.coefficients.transfer import GENERATIONS
from joulecast.gpus import Gpu, load_gpu

#: Shapes of this hash fold are left out.
LEFT_OUT_FOLD = 0

#: Rows of trusted power below which energies are not fitted again.
_LEAST_POWER_ROWS = 100


@dataclass(frozen=True)
class Knowledge:
    """Coefficients that a prediction uses.

    Attributes
    ----------
    time : mapping of str to dict
        Efficiencies by ``family/engine/group`` that win over the shipped ones, by GPU.
    power : mapping of str to PowerCoefficients
        Energies that win over the shipped ones, by GPU.
    corrections : mapping of str to CorrectionModel or None
        Learned corrections by family in place of the shipped ones; None for the shipped ones.
    exclude : tuple of str
        GPUs whose shipped coefficients may not be used.
    """

    time: Mapping[str, dict[str, TimeCoefficients]] = field(default_factory=lambda: MappingProxyType({}))
    power: Mapping[str, PowerCoefficients] = field(default_factory=lambda: MappingProxyType({}))
    corrections: Mapping[str, CorrectionModel] | None = None
    exclude: tuple[str, ...] = ()


SHIPPED = Knowledge()


def left_out(batch: Measured) -> Measured:
    """The rows of `batch` whose shapes are left out of `without_shapes`."""
    return batch.take(shape_fold(batch) == LEFT_OUT_FOLD)


def without_shapes(batches: Sequence[Measured], tell: Callable[[str], None] = lambda _: None) -> Knowledge:
    """Everything fitted again, in the same way as what is shipped, without the shapes of the left-out fold.

    What a fit leaves out to learn its own error is then the next fold, so that intervals never saw the scored rows.

    Parameters
    ----------
    batches : sequence of Measured
        All rows; those of the left-out fold are dropped here.
    tell : callable
        Gets a word for each fit.
    """
    kept = [batch.take(shape_fold(batch) != LEFT_OUT_FOLD) for batch in batches]
    kept = [batch for batch in kept if len(batch)]
    time: dict[str, dict[str, TimeCoefficients]] = defaultdict(dict)
    for pool in pools_of(kept):
        tell(f"{pool.gpu.name} {pool.key}")
        fitted = fit_pool(_next_fold_first(pool))
        time[pool.gpu.name].update({f"{pool.key}/{group}": one for group, one in fitted.items()})
    power: dict[str, PowerCoefficients] = {}
    for name in dict.fromkeys(batch.gpu for batch in kept):
        tell(f"{name} power")
        fitted_power = _power_without_shapes([batch for batch in kept if batch.gpu == name], load_gpu(name))
        if fitted_power is not None:
            power[name] = fitted_power
    return Knowledge(time=dict(time), power=power, corrections=MappingProxyType({}), exclude=tuple(time))


def _next_fold_first(pool: Pool) -> Pool:
    """The pool with its folds counted on, so that its fit leaves out the next one."""
    return replace(pool, fold=(pool.fold - LEFT_OUT_FOLD - 1).astype(np.intp))


def _power_without_shapes(batches: list[Measured], gpu: Gpu) -> PowerCoefficients | None:
    trusted = [batch for batch in batches if np.isfinite(batch.power_w).any()]
    good = [np.isfinite(one.power_w) & (one.quality <= QUALITIES.index("B")) for one in trusted]
    if sum(int(mask.sum()) for mask in good) < _LEAST_POWER_ROWS or max(int(mask.sum()) for mask in good) < 20:
        return None
    rows = power_rows(trusted, gpu)
    rows = replace(rows, fold=(rows.fold - LEFT_OUT_FOLD - 1).astype(np.intp))
    fitted, trial = fit_power(rows, gpu)
    inner = rows.fold == 0
    errors = trial[inner] / rows.power_w[inner] - 1
    return as_coefficients(fitted, gpu, "kernels under load", errors, len(rows.power_w))


def without_gpu(gpu: Gpu) -> Knowledge:
    """As if `gpu`, and all boards with its name before the first hyphen (its chip), had never been measured."""
    chip = gpu.name.split("-")[0]
    return Knowledge(exclude=tuple(name for name in store.shipped() if name.split("-")[0] == chip))


def without_newer(gpu: Gpu, newest: str = "ampere") -> Knowledge:
    """As if only GPUs of the generation `newest` and older had been measured."""
    limit = GENERATIONS[newest]
    newer = [name for name in store.shipped() if GENERATIONS.get(load_gpu(name).architecture, 0.0) > limit]
    return Knowledge(exclude=tuple(dict.fromkeys([gpu.name, *newer])))
