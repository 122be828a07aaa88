"""Coefficients for any GPU: its own where fitted, else those of its nearest relative, labelled so."""

from __future__ import annotations

from dataclasses import replace

from joulecast.coefficients import store
from joulecast.coefficients.schema import GpuCoefficients, TimeCoefficients
from joulecast.gpus import Gpu, load_gpu

#: Architectures in order of time and likeness; the distance between two is how far apart they stand.
GENERATIONS = {
    "maxwell": 0.0,
    "pascal": 1.0,
    "volta": 2.0,
    "turing": 2.6,
    "ampere": 3.5,
    "ada": 4.2,
    "hopper": 5.0,
    "blackwell": 6.0,
    "rdna2": 11.0,
    "rdna3": 11.5,
    "cdna": 12.0,
    "cdna2": 12.5,
    "cdna3": 13.0,
}


def distance(a: Gpu, b: Gpu) -> float:
    """How unlike two GPUs are for the transfer of efficiencies; 0 for parts of one chip. Dimensionless."""
    generations = abs(GENERATIONS.get(a.architecture, 5.0) - GENERATIONS.get(b.architecture, 5.0))
    memory = 0.0 if a.dram_type.upper()[:3] == b.dram_type.upper()[:3] else 0.7
    size = 0.1 * abs(a.sm_count - b.sm_count) / max(a.sm_count, b.sm_count)
    return generations + memory + size


def relatives(gpu: Gpu, exclude: tuple[str, ...] = ()) -> list[tuple[float, Gpu, GpuCoefficients]]:
    """Calibrated GPUs, nearest first, with their distance; the GPU itself (what-if changes aside) is at 0."""
    found = []
    for name in store.shipped():
        coefficients = store.load(name)
        if name in exclude or coefficients is None:
            continue
        other = load_gpu(name)
        found.append((0.0 if name == gpu.name.split("+")[0] else distance(gpu, other) + 1e-3, other, coefficients))
    return sorted(found, key=lambda item: item[0])


def time_coefficients(
    gpu: Gpu, family: str, engine: str, group: str, *, exclude: tuple[str, ...] = ()
) -> TimeCoefficients:
    """Efficiencies of one family, engine and group on `gpu`.

    Looked for in this order: the GPU's own; another engine's on the same GPU; those of the nearest GPU (same
    engine before others, same group before the family's other groups); the defaults.

    Parameters
    ----------
    gpu : Gpu
    family, engine, group : str
    exclude : tuple of str
        GPUs whose coefficients may not be used (to score a GPU as if it were unmeasured).

    Returns
    -------
    TimeCoefficients
        ``provenance`` is ``fitted`` only for the GPU's own of the same engine and group.
    """
    choices = []
    for far, other, coefficients in relatives(gpu, exclude):
        for key, fitted in coefficients.time.items():
            its_family, its_engine, its_group = key.split("/", 2)
            if its_family == family:
                unlike = (its_group != group) * 3.0 + (its_engine != engine) * 0.4
                choices.append((far + unlike, key, other.name, fitted))
    if not choices:
        return TimeCoefficients()
    unlike, key, name, fitted = min(choices, key=lambda choice: choice[:3])
    if unlike == 0:
        return fitted
    what = f"from {key} of {name}"
    return replace(fitted, provenance="transferred", source=what, error=fitted.error + 0.06 * (1 + min(unlike, 6.0)))
