"""The catalogue: a name, a file or a description becomes a `Gpu`."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path

from joulecast.errors import InputError, UnknownNameError, shortened
from joulecast.gpus import names
from joulecast.gpus.changes import change_gpu
from joulecast.gpus.gpu import Gpu
from joulecast.gpus.reader import read_gpu_file


def gpu_names() -> tuple[str, ...]:
    """Standard names of all GPUs in the catalogue, in alphabetical order."""
    return tuple(sorted(names.index().entries))


def resolve(name: str | Path | Gpu) -> tuple[Gpu, str]:
    """The GPU that `name` means, and a note if the name leaves something open.

    Parameters
    ----------
    name : str, Path or Gpu
        A name in any spelling, an NVML device name, the path of a TOML file (a text that ends in
        ``.toml`` or, if no GPU has that name, the path of an existing file), or a `Gpu` as it is.

    Returns
    -------
    gpu : Gpu
        Its description.
    note : str
        Such as ``h100 means H100-SXM-80GB``; empty where the name says it all.

    Raises
    ------
    UnknownNameError
        If no GPU has that name; the line names the nearest.
    InputError
        If the file can't be read or describes no possible GPU, or the name is of an accelerator that
        joulecast does not describe.

    Examples
    --------
    >>> gpu, note = resolve("h100")
    >>> gpu.name, note
    ('H100-SXM-80GB', 'h100 means H100-SXM-80GB')
    """
    if isinstance(name, Gpu):
        return name, ""
    if isinstance(name, Path) or (isinstance(name, str) and name.lower().endswith(".toml")):
        return read_gpu_file(Path(name)), ""
    if not isinstance(name, str):
        raise InputError(f"a GPU is a name, a TOML file or a Gpu, not {shortened(repr(name), 40)}")
    try:
        entry, note = names.find(name)
    except UnknownNameError:
        if _is_file(name):
            return read_gpu_file(Path(name)), ""
        raise
    return _catalogued(entry.path), note


def load_gpu(name: str | Path | Gpu, changes: Mapping[str, str | float] | None = None) -> Gpu:
    """The GPU that `name` means, with the fields in `changes` set.

    Parameters
    ----------
    name : str, Path or Gpu
        As for `resolve`.
    changes : mapping of str to (str or float), optional
        Fields to set, as for `joulecast.gpus.changes.change_gpu`, such as ``{"sm_count": 160}``.

    Raises
    ------
    InputError
        As for `resolve` and `change_gpu`; for a change to an architecture that no GPU of the catalogue has.

    Examples
    --------
    >>> load_gpu("a100").sm_count
    108
    >>> load_gpu("a100", {"sm_count": 128}).name
    'A100-SXM-80GB+sm_count=128'
    """
    gpu, _ = resolve(name)
    if not changes:
        return gpu
    changed = change_gpu(gpu, changes)
    known = {gpu.architecture} if changed.architecture == gpu.architecture else architectures()
    if changed.architecture not in known:
        raise UnknownNameError("architecture", changed.architecture, known)
    return changed


@functools.cache
def architectures() -> frozenset[str]:
    """Architectures of the catalogue's GPUs."""
    return frozenset(_catalogued(entry.path).architecture for entry in names.index().entries.values())


@functools.cache
def _catalogued(path: Path) -> Gpu:
    return read_gpu_file(path)


def _is_file(name: str) -> bool:
    try:
        return Path(name).is_file()
    except (OSError, ValueError):
        return False
