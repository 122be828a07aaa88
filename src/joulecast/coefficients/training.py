"""`Scales`: the few numbers by which a stack of training software, and its GPU under load, differ from fitted kernels.

One file, ``training.toml``, beside those of GPUs: a table of scales for all jobs, and perhaps one for each precision or
GPU. ``joulecast calibrate --training`` writes it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from joulecast.coefficients import places
from joulecast.coefficients.records import read_toml, record_of, toml_key, toml_pairs
from joulecast.coefficients.roots import kept
from joulecast.errors import InputError, shortened
from joulecast.gpus import plain_name
from joulecast.writing import write_atomic

SCHEMA = 1

#: Name of the table that holds for all jobs.
ALL = "all"


#: How power swings within a step before anything is measured, as the standard deviation of its logarithm: what the
#: operations of steps of image networks and transformers draw by their own energies is 0.06 to 0.29 apart.
POWER_SWING = 0.15


@dataclass(frozen=True)
class Scales:
    """Factors on what the kernels of a training stack take; all 1 where nothing was measured.

    Attributes
    ----------
    multiply, convolution, gradient, attention, memory : float
        On the time of matrix multiplies, convolutions, gradients of convolutions, attention, and of all that moves
        memory (norms, activations, optimizer). Dimensionless.
    host : float
        On the time that starting kernels takes the host.
    communication : float
        On the time of exchanges between GPUs.
    copying : float
        On the time in which batches are copied to the GPU and nothing else runs.
    energy : float
        On all energy beyond what is drawn by a clocked GPU with nothing running.
    static : float
        On what is drawn by a clocked GPU with nothing running.
    voltage_floor, voltage_knee : float
        Of the GPU's voltage over its clock, as in `joulecast.coefficients.schema.PowerCoefficients`; 0 for its own.
    limit_share : float
        Power that the throttled parts of a step settle at, over the power limit.
    power_swing : float
        Standard deviation of the logarithm of power over the work of a step: its hot parts throttle before its mean is
        at the limit.
    batch : float
        Micro-batch that the scales were found at; 0 where they hold at any.
    doubling : float
        Factor on all of them but `static` for each doubling of the micro-batch beyond `batch`.
    provenance, source : str
    rows : int
        Measured steps behind them.
    error : float
        Mean absolute relative error of the step time of networks left out.
    spread90, power_spread90 : float
        90th percentile of ``|log(predicted / measured)|`` of step times and powers of networks left out; 0 where not
        known.
    unknown : str
        Scales that the measured steps say nothing of, separated by commas.
    """

    multiply: float = 1.0
    convolution: float = 1.0
    gradient: float = 1.0
    attention: float = 1.0
    memory: float = 1.0
    host: float = 1.0
    communication: float = 1.0
    copying: float = 1.0
    energy: float = 1.0
    static: float = 1.0
    voltage_floor: float = 0.0
    voltage_knee: float = 0.0
    limit_share: float = 1.0
    power_swing: float = POWER_SWING
    batch: float = 0.0
    doubling: float = 1.0
    provenance: str = "transferred"
    source: str = "kernels of inference and single kernels"
    rows: int = 0
    error: float = 0.0
    spread90: float = 0.0
    power_spread90: float = 0.0
    unknown: str = ""

    def __post_init__(self) -> None:
        for name in FACTORS:
            object.__setattr__(self, name, _between(name, getattr(self, name), _LEAST, _MOST))
        for name in ("voltage_floor", "voltage_knee"):
            object.__setattr__(self, name, _between(name, getattr(self, name), 0.0, 0.99))
        object.__setattr__(self, "limit_share", _between("limit_share", self.limit_share, 0.5, 1.2))
        object.__setattr__(self, "power_swing", _between("power_swing", self.power_swing, 0.0, 1.0))
        object.__setattr__(self, "batch", _between("batch", self.batch, 0.0, 1e9))
        object.__setattr__(self, "doubling", _between("doubling", self.doubling, 0.5, 2.0))

    def at_batch(self, micro_batch: float) -> Scales:
        """The scales of a micro-batch: `doubling` is followed for four doublings either way, no further."""
        if not self.batch or self.doubling == 1.0:
            return self
        away = math.log2(max(micro_batch, 1.0) / self.batch)
        factor = self.doubling ** min(max(away, -_MOST_DOUBLINGS), _MOST_DOUBLINGS)
        moved = {name: min(max(getattr(self, name) * factor, _LEAST), _MOST) for name in FACTORS if name != "static"}
        return replace(self, **moved, batch=0.0, doubling=1.0)


#: Scales that are factors on times and energies.
FACTORS = (
    "multiply", "convolution", "gradient", "attention", "memory", "host", "communication", "copying", "energy",
    "static",
)  # fmt: skip


#: Bounds of a factor, and doublings of the batch that a measured trend holds for.
_LEAST, _MOST, _MOST_DOUBLINGS = 0.05, 20.0, 4.0


def _between(name: str, value: Any, lowest: float, highest: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not lowest <= value <= highest:
        raise InputError(f"scale {name} must be between {lowest:g} and {highest:g}, got {shortened(value)}")
    return float(value)


@dataclass(frozen=True)
class TrainingScales:
    """Scales of a stack.

    Attributes
    ----------
    scopes : mapping of str to Scales
        By what they hold for: ``all``, a GPU (``A100-SXM-80GB``), a precision (``amp_bf16``), a network, or several
        of them in that order (``A100-SXM-80GB/amp_bf16``).
    note : mapping of str to str, int or float
        Where they come from, for a reader.
    """

    scopes: Mapping[str, Scales]
    note: Mapping[str, str | int | float] = field(default_factory=lambda: MappingProxyType({}))

    def of(self, gpu: str, precision: str, network: str = "") -> Scales | None:
        """Scales that hold for a job: the narrowest scope, a network's before others; None where there is none."""
        plain = plain_name(gpu)
        narrow = [f"{plain}/{precision}", plain, precision]
        if network:
            narrow = [*(f"{one}/{network}" for one in narrow), network, *narrow]
        return next((self.scopes[scope] for scope in (*narrow, ALL) if scope in self.scopes), None)


def scales_of(gpu: str, precision: str, kind: str = "", network: str = "") -> Scales:
    """Scales of a training job: the user's where there are any, else the shipped ones, else all 1.

    Parameters
    ----------
    gpu : str
        By its name in the catalogue.
    precision : str
        As in `joulecast.lowering.recipe.PRECISIONS`.
    kind : str
        Kind of network (``convolution``) that shipped scales have a scope of its own for.
    network : str
        Name of the network.
    """
    for known in _known():
        found = (known.scopes.get(kind) if kind else None) or known.of(gpu, precision, network)
        if found is not None:
            return found
    return Scales()


def _known() -> list[TrainingScales]:
    paths = [folder / places.TRAINING for folder in places.folders()]
    return [_from_file(path, path.stat().st_mtime_ns) for path in paths if path.is_file()]


@kept(8)
def _from_file(path: Path, _: int) -> TrainingScales:
    return read_scales(path)


def read_scales(path: Path) -> TrainingScales:
    """Scales from a file.

    Raises
    ------
    InputError
        If it is missing, is no TOML, is of another schema, or holds an impossible number.
    """
    data = read_toml(path, "scales of training", SCHEMA)
    scopes, note = data.get("scales", {}), data.get("calibration", {})
    if not isinstance(scopes, dict) or not all(isinstance(one, dict) for one in scopes.values()):
        raise InputError(f"{shortened(path)}: scales must hold a table for each scope")
    if not isinstance(note, dict) or not all(isinstance(one, str | int | float) for one in note.values()):
        raise InputError(f"{shortened(path)}: calibration must hold texts and numbers")
    return TrainingScales(
        MappingProxyType({name: record_of(Scales, one, f"{shortened(path)}: {name}") for name, one in scopes.items()}),
        MappingProxyType(note),
    )


def dump_scales(scales: TrainingScales) -> str:
    """The text of the file: a table for each scope, numbers to five significant digits; what is 1 or 0 is left out."""
    plain = asdict(Scales())
    lines = ["# Factors by which training differs from the kernels that were fitted; 1 where left out.",
             f"schema = {SCHEMA}"]  # fmt: skip
    if scales.note:
        lines += ["", "[calibration]", *toml_pairs(scales.note)]
    for scope, one in scales.scopes.items():
        values = {name: value for name, value in asdict(one).items() if value != plain[name] or name == "provenance"}
        lines += ["", f"[scales.{toml_key(scope)}]", *toml_pairs(values)]
    return "\n".join(lines) + "\n"


def write_scales(scales: TrainingScales, folder: Path) -> Path:
    """Write ``training.toml`` in `folder` atomically.

    Raises
    ------
    InputError
        If it can't be written.
    """
    path = folder / places.TRAINING
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(path, dump_scales(scales))
    except OSError as error:
        raise InputError(f"can't write scales to {shortened(folder)}: {error.strerror or error}") from None
    return path
