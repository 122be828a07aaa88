"""What a prediction may know when it is scored: coefficients as shipped, or fitted without what it is scored on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import numpy as np

from joulecast.calibration.corrections import at_their_clocks, score, train
from joulecast.calibration.kernels import MOST_ROWS, Pool, pools_of, shape_fold
from joulecast.calibration.power_fit import as_coefficients, fit_power, power_rows
from joulecast.calibration.power_learning import Knowing, score_power, train_power, with_errors
from joulecast.calibration.tables import QUALITIES, Measured
from joulecast.coefficients import store
from joulecast.coefficients.corrections import CorrectionModel, load_correction, load_power_correction
from joulecast.coefficients.likeness import GENERATIONS
from joulecast.coefficients.schema import PowerCoefficients, TimeCoefficients
from joulecast.gpus import Gpu, load_gpu

Fits = dict[str, TimeCoefficients]

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
    power_corrections : mapping of str to CorrectionModel or None
        The same of power.
    exclude : tuple of str
        GPUs whose shipped coefficients may not be used.
    """

    time: Mapping[str, Fits] = field(default_factory=lambda: MappingProxyType({}))
    power: Mapping[str, PowerCoefficients] = field(default_factory=lambda: MappingProxyType({}))
    corrections: Mapping[str, CorrectionModel] | None = None
    power_corrections: Mapping[str, CorrectionModel] | None = None
    exclude: tuple[str, ...] = ()


SHIPPED = Knowledge()


def left_out(batch: Measured) -> Measured:
    """The rows of `batch` whose shapes `without_shapes` leaves out."""
    return batch.take(shape_fold(batch) == LEFT_OUT_FOLD)


def kept(batches: Sequence[Measured]) -> list[Measured]:
    """The rows of `batches` that `without_shapes` fits on."""
    rest = [batch.take(shape_fold(batch) != LEFT_OUT_FOLD) for batch in batches]
    return [batch for batch in rest if len(batch)]


def without_shapes(
    family: str,
    batches: Sequence[Measured],
    power: Mapping[str, PowerCoefficients],
    *,
    train_rows: int,
    gpus: Sequence[str] | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> Knowledge:
    """Efficiencies and the correction of a family fitted again, as the shipped ones are, without a fifth of the shapes.

    What a fit leaves out to learn its own error is then the next fold, so that intervals never saw the scored rows.

    Parameters
    ----------
    family : str
    batches : sequence of Measured
        All rows of the family, whatever GPU; those of the left-out fold are dropped here.
    power : mapping of str to PowerCoefficients
        From `power_without_shapes`.
    train_rows : int
        Rows of one pool at most that the correction is trained on.
    gpus : sequence of str, optional
        GPUs that will be asked for: others are fitted only where the correction needs them.
    tell : callable
        Gets a word for each fit.
    """
    learned = load_correction(family) is not None
    wanted = kept([one for one in batches if learned or gpus is None or one.gpu in gpus])
    tell("efficiencies, and clocks under load")
    found = at_their_clocks(wanted, power, MOST_ROWS, held_out=True, draft_rows=train_rows // 4, fold=LEFT_OUT_FOLD + 1)
    measured: list[tuple[Pool, Fits]] = [(pool, dict(fits)) for pool, fits in found]
    corrections: dict[str, CorrectionModel] = {}
    if learned:
        tell(f"correction of {family}")
        model = train(measured, held_out=True, most_rows=train_rows)
        if model is not None:
            corrections[family] = model
            measured = [(pool, _with_spread(model, pool, fits)) for pool, fits in measured]
    time: dict[str, Fits] = defaultdict(dict)
    for pool, fits in measured:
        time[pool.gpu.name].update({f"{pool.key}/{group}": one for group, one in fits.items()})
    gpu_names = tuple(sorted({one.gpu for one in batches}))
    power, learned_power = _learned_power(family, wanted, Knowing(power, dict(time), corrections))
    return Knowledge(dict(time), power, corrections, learned_power, gpu_names)


def _learned_power(
    family: str, batches: Sequence[Measured], knowing: Knowing
) -> tuple[Mapping[str, PowerCoefficients], dict[str, CorrectionModel]]:
    """Energies with the errors that their left-out rows have once corrected, and the correction."""
    if load_power_correction(family) is None:
        return knowing.power, {}
    energies = {name: replace(one, learned_share=1.0) for name, one in knowing.power.items()}
    knowing = replace(knowing, power=energies)
    known = [one for one in batches if one.gpu in energies]
    loaded = [one for one in known if one.timing_mode == "sustained"]
    bursts = [one for one in known if one.timing_mode == "burst"]
    fold = LEFT_OUT_FOLD + 1
    model = train_power(family, loaded, knowing, bursts=bursts, fold=fold)
    scores = list(score_power(family, loaded, knowing, model, fold))
    better = {name: with_errors(one, scores, name) for name, one in energies.items()}
    return better, {} if model is None else {family: model}


def _with_spread(model: CorrectionModel, pool: Pool, fits: Fits) -> Fits:
    """The fits with the error and spread that their left-out rows have once corrected."""
    out = dict(fits)
    for one in score(model, pool, fits):
        group = one.key.removeprefix(f"{pool.key}/")
        out[group] = replace(fits[group], error=one.error, spread90=one.spread90)
    return out


def power_without_shapes(batches: Sequence[Measured], gpu: Gpu) -> PowerCoefficients | None:
    """Energies of `gpu` fitted again without the left-out shapes; None where too few readings are trusted."""
    trusted = kept([one for one in batches if one.gpu == gpu.name and np.isfinite(one.power_w).any()])
    good = [int((np.isfinite(one.power_w) & (one.quality <= QUALITIES.index("B"))).sum()) for one in trusted]
    if sum(good) < _LEAST_POWER_ROWS or max(good) < 20:
        return None
    rows = power_rows(trusted, gpu)
    rows = replace(rows, fold=(rows.fold - LEFT_OUT_FOLD - 1).astype(np.intp))
    fitted, trial = fit_power(rows, gpu)
    inner = rows.fold == 0
    errors = trial[inner] / rows.power_w[inner] - 1
    return as_coefficients(fitted, gpu, "kernels under load", errors, len(rows.power_w))


def chip(gpu_name: str) -> str:
    """What boards of one chip share: the name before the first hyphen."""
    return gpu_name.split("-")[0]


def without_gpu(family: str, gpu: Gpu, batches: Sequence[Measured], *, newest: str = "", train_rows: int) -> Knowledge:
    """As if `gpu`, and every board with its chip, had never been measured.

    Parameters
    ----------
    family : str
    gpu : Gpu
    batches : sequence of Measured
        All rows of the family, to train its correction on those of other GPUs.
    newest : str
        Where given, GPUs of later architectures than this one were never measured either.
    train_rows : int
        Rows of one pool at most that the correction is trained on.
    """
    limit = GENERATIONS[newest] if newest else np.inf
    names = {*store.known(), *(batch.gpu for batch in batches)}
    out = tuple(
        sorted(
            name
            for name in names
            if chip(name) == chip(gpu.name) or GENERATIONS.get(load_gpu(name).architecture, 0.0) > limit
        )
    )
    corrections: dict[str, CorrectionModel] | None = None
    if load_correction(family) is not None:
        model = train(_shipped_fits([one for one in batches if one.gpu not in out], train_rows), most_rows=train_rows)
        corrections = {} if model is None else {family: model}
    power_corrections: dict[str, CorrectionModel] | None = None
    if load_power_correction(family) is not None:
        rest = [one for one in batches if one.gpu not in out and np.isfinite(one.power_w).any()]
        energies = {name: _shipped_energies(name) for name in {one.gpu for one in rest}}
        known = {name: one for name, one in energies.items() if one is not None}
        model = train_power(family, [one for one in rest if one.gpu in known], Knowing(known)) if known else None
        power_corrections = {} if model is None else {family: model}
    return Knowledge(corrections=corrections, power_corrections=power_corrections, exclude=out)


def _shipped_energies(gpu_name: str) -> PowerCoefficients | None:
    """Energies that were fitted on the GPU's own kernels."""
    coefficients = store.load(gpu_name)
    power = None if coefficients is None else coefficients.power
    return power if power is not None and power.learned_share > 0 else None


def _shipped_fits(batches: Sequence[Measured], most_rows: int) -> list[tuple[Pool, Fits]]:
    """Pools with the coefficients that the package ships for them."""
    found = []
    for pool in pools_of(batches, most_rows):
        coefficients = store.load(pool.gpu.name)
        if coefficients is not None:
            start = f"{pool.key}/"
            fits = {key.removeprefix(start): one for key, one in coefficients.time.items() if key.startswith(start)}
            found.append((pool, fits))
    return found
