"""What a serving engine's own code adds to each step while its GPUs wait: fitted on served runs, one file for all GPUs.

Between two steps an engine schedules, samples, turns tokens into text and sends them: a time a step, one a sequence in
it, and one for telling other GPUs. It is the work of a processor, so that GPUs of one host generation share it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType

from joulecast.coefficients import places
from joulecast.coefficients.records import read_toml, record_of, toml_key, toml_pairs
from joulecast.coefficients.roots import kept
from joulecast.errors import UnknownNameError
from joulecast.writing import write_atomic

SCHEMA = 1

#: The version that is taken where none is named, by engine.
NEWEST: Mapping[str, str] = MappingProxyType({"vllm": "vllm-0.11", "trtllm": "trtllm"})

#: Word for no such cost: what the GPUs take alone.
NONE = "none"


@dataclass(frozen=True)
class EngineSteps:
    """What one version of an engine adds.

    Attributes
    ----------
    step_us, sequence_us, group_us : float
        A step, each sequence in it, and a step on more than one GPU. [us]
    error, before : float
        Median absolute relative error of step times of models left out of the fit, and without these costs.
    rows : int
        Runs that were fitted.
    source : str
    """

    step_us: float = 0.0
    sequence_us: float = 0.0
    group_us: float = 0.0
    error: float = 0.0
    before: float = 0.0
    rows: int = 0
    source: str = ""

    def step_s(self, sequences: float, gpus: int) -> float:
        """Time that GPUs wait in a step of `sequences` on `gpus` GPUs. [s]"""
        return 1e-6 * (self.step_us + self.sequence_us * sequences + (self.group_us if gpus > 1 else 0.0))


def engine_steps(version: str) -> EngineSteps:
    """Costs of a version of an engine; none for `NONE`.

    Raises
    ------
    UnknownNameError
        For another version than those that were measured.
    """
    if version == NONE:
        return EngineSteps()
    known = load_engine_steps()
    if version not in known:
        raise UnknownNameError("server", version, (NONE, *known))
    return known[version]


@kept()
def load_engine_steps() -> Mapping[str, EngineSteps]:
    """Costs by version, from ``engines.toml``: the user's, else the shipped one."""
    path = places.found(places.ENGINES)
    return MappingProxyType({} if path is None else read_engine_steps(path))


def read_engine_steps(path: Path) -> dict[str, EngineSteps]:
    """Costs by version from a file.

    Raises
    ------
    InputError
        If it can't be read or holds an impossible number.
    """
    data = read_toml(path, "costs of engines", SCHEMA)
    return {version: record_of(EngineSteps, values, f"{path}: {version}") for version, values in data.items()}


def write_engine_steps(found: Mapping[str, EngineSteps], path: Path) -> None:
    """Write costs by version atomically."""
    lines = ["# What an engine's own code adds to a step while GPUs wait; in microseconds.", f"schema = {SCHEMA}"]
    for version, one in found.items():
        lines += ["", f"[{toml_key(version)}]", *toml_pairs(asdict(one))]
    write_atomic(path, "\n".join(lines) + "\n")
