"""Rebuilds coefficient files from tables: kernels, corrections, power, networks, passes, served models, intervals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

from joulecast.calibration.audit import sound
from joulecast.calibration.corrections import BY_MESSAGE, train_corrections
from joulecast.calibration.interval_fit import fit_time_intervals
from joulecast.calibration.kernels import fit_kernels
from joulecast.calibration.network_fit import NETWORK_STEPS, fit_all_networks
from joulecast.calibration.own_fit import residuals_by_family
from joulecast.calibration.pass_fit import PASSES, fit_all_passes
from joulecast.calibration.power_fit import fit_kernel_power
from joulecast.calibration.power_intervals import with_passes, with_power
from joulecast.calibration.power_learning import learn_power
from joulecast.calibration.served import fit_all_served
from joulecast.calibration.tables import read_kernel_tables
from joulecast.coefficients import places, store, transfer
from joulecast.coefficients.corrections import load_correction, write_correction
from joulecast.coefficients.intervals import write_intervals
from joulecast.coefficients.schema import Calibration, GpuCoefficients
from joulecast.coefficients.users import using
from joulecast.kernels.registry import families

#: Stages in the order in which they build on each other.
STAGES = ("kernels", "corrections", "power", "networks", "passes", "served", "intervals")


def build(
    folder: Path, out: Path, stages: tuple[str, ...] = STAGES, tell: Callable[[str], None] = lambda _: None
) -> None:
    """Fit everything that the tables of `folder` allow and write one file a GPU to `out`.

    Parameters
    ----------
    folder : Path
        The data folder.
    out : Path
        Where coefficient files are; what other stages wrote there is kept.
    stages : tuple of str
        Which of `STAGES` to run anew.
    tell : callable
        Gets a line for each fit.
    """
    with using(out):
        _build(folder, out, stages, tell)


def _build(folder: Path, out: Path, stages: tuple[str, ...], tell: Callable[[str], None]) -> None:
    if "kernels" in stages:
        for gpu, time in fit_kernels(folder, tell=tell).items():
            _write(out, replace(_read(out, gpu), time=time))
    if "corrections" in stages:
        for name in BY_MESSAGE:
            (out / f"correction_{name}.npz").unlink(missing_ok=True)
        batches = list(sound(read_kernel_tables(folder, tuple(families()))))
        energies = fit_kernel_power(batches, corrections={})  # not what an earlier build had learnt
        for found in train_corrections(folder, lambda gpu: _read(out, gpu).time, energies, tell):
            for gpu, again in found.fits.items():
                kept = _read(out, gpu)
                _write(out, replace(kept, time={**kept.time, **again}))
            if found.model is not None:
                write_correction(found.model, out / f"correction_{found.model.family}.npz")
                load_correction.cache_clear()
            for one in found.scores:
                kept = _read(out, one.gpu)
                better = replace(kept.time[one.key], error=one.error, spread90=one.spread90)
                _write(out, replace(kept, time={**kept.time, one.key: better}))
    if "power" in stages:
        batches = list(sound(read_kernel_tables(folder, tuple(families()))))
        models, energies = learn_power(batches, fit_kernel_power(batches, tell), tell)
        for family, model in models.items():
            write_correction(model, out / f"power_{family}.npz")
        for gpu, power in energies.items():
            _write(out, replace(_read(out, gpu), power=power))
    if "networks" in stages:
        _forget(out, NETWORK_STEPS, PASSES)
        fitted = fit_all_networks(folder, tell=tell)  # all of them before any is written: none builds on another
        for gpu, (time, host) in fitted.items():
            kept = _read(out, gpu)
            _write(out, replace(kept, time={**kept.time, **time}, host=host or kept.host))
    if "passes" in stages or "networks" in stages:  # passes build on networks
        _forget(out, PASSES)
        for gpu, (time, power, host) in fit_all_passes(folder, tell=tell).items():
            kept = _read(out, gpu)
            _write(out, replace(kept, time={**kept.time, **time}, power=power, host=host))
    if "served" in stages:
        factors = fit_all_served(folder, tell=tell)
        for gpu in {*places.gpus_in(out), *factors}:
            _write(out, replace(_read(out, gpu), model_energy=factors.get(gpu)))
    if "intervals" in stages:
        _fit_intervals(folder, out, tell)
    for gpu in places.gpus_in(out):
        _write(out, _signed(_read(out, gpu)))


def _fit_intervals(folder: Path, out: Path, tell: Callable[[str], None]) -> None:
    """Widths of intervals of times, then of what builds on them."""
    batches = list(sound(read_kernel_tables(folder, tuple(families()))))
    found = fit_time_intervals(batches, tell)
    write_intervals(found, out / places.INTERVALS)
    transfer.forget()
    found = with_passes(with_power(found, batches, tell), folder, tell)
    write_intervals(found, out / places.INTERVALS)
    transfer.forget()


def _signed(coefficients: GpuCoefficients) -> GpuCoefficients:
    """The coefficients with where they come from; no date, so that rebuilding changes nothing."""
    fitted = [one for one in coefficients.time.values() if one.provenance == "fitted"]
    sources = {one.source.split(f"; {PASSES}")[0] for one in fitted}
    return replace(
        coefficients,
        calibration=Calibration(
            version=version("joulecast"),
            sources="; ".join(sorted(sources)),
            rows=sum(one.rows for one in fitted),
            residuals=residuals_by_family(coefficients.time, coefficients.power),
        ),
    )


def _forget(out: Path, *sources: str) -> None:
    """Take out times that were fitted on any of `sources`."""
    for gpu in places.gpus_in(out):
        kept = _read(out, gpu)
        alone = {key: one for key, one in kept.time.items() if not any(name in one.source for name in sources)}
        if len(alone) < len(kept.time):
            _write(out, replace(kept, time=alone))


def _read(out: Path, gpu: str) -> GpuCoefficients:
    path = out / f"{gpu}.toml"
    return store.read(path) if path.is_file() else GpuCoefficients(gpu)


def _write(out: Path, coefficients: GpuCoefficients) -> None:
    store.write(coefficients, out / f"{coefficients.gpu}.toml")
    transfer.forget()
