"""Where coefficient files lie: a user's folder first, then what the package ships."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from joulecast.coefficients.roots import package_folder, root
from joulecast.errors import InputError, shortened

#: Names a folder of coefficient files that are looked at before the shipped ones.
ENVIRONMENT = "JOULECAST_COEFFICIENTS"

#: Files beside those of GPUs.
INTERVALS = "intervals.toml"
TRAINING = "training.toml"
ENGINES = "engines.toml"

_chosen: list[Path] = []


def shipped_folder() -> Path:
    """The folder of the package's own files, or of the forecast that stands in for them."""
    return root() or package_folder()


def default_folder() -> Path:
    """Where a calibration writes unless told otherwise: ``$JOULECAST_COEFFICIENTS``, else the user's data folder."""
    named = os.environ.get(ENVIRONMENT)
    if named:
        return Path(named)
    base = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(base).expanduser() / "joulecast" / "coefficients"


def users_folder() -> Path | None:
    """The user's folder: the chosen one, else ``$JOULECAST_COEFFICIENTS``, else the default one where it exists.

    None in a forecast, which knows nothing but its own.

    Raises
    ------
    InputError
        If ``$JOULECAST_COEFFICIENTS`` names no folder.
    """
    if root() is not None:
        return None
    if _chosen:
        return _chosen[-1]
    folder = default_folder()
    if os.environ.get(ENVIRONMENT):
        return checked(folder, f"${ENVIRONMENT}")
    return folder if folder.is_dir() else None


def checked(folder: Path, what: str) -> Path:
    """`folder`, if it is one; `what` names where it was given.

    Raises
    ------
    InputError
        If it is no folder that can be looked into.
    """
    try:
        if folder.is_dir():
            return folder
    except (OSError, ValueError):
        pass
    raise InputError(f"{what} must be a folder of coefficient files, {shortened(folder)} is none")


def choose(folder: Path | None) -> None:
    """Look into `folder` before the shipped files; None for what the environment says."""
    _chosen.clear()
    if folder is not None:
        _chosen.append(folder)


@contextmanager
def chosen(folder: Path) -> Iterator[None]:
    """Within the context, `folder` is the user's."""
    before = list(_chosen)
    choose(folder)
    try:
        yield
    finally:
        _chosen[:] = before


def found(name: str) -> Path | None:
    """The file called `name`: the user's, else the shipped one, else None."""
    return next((folder / name for folder in folders() if (folder / name).is_file()), None)


def folders() -> tuple[Path, ...]:
    """Folders in the order in which they are looked into."""
    mine, shipped = users_folder(), shipped_folder()
    return (shipped,) if mine is None or mine == shipped else (mine, shipped)


def gpus_in(folder: Path) -> tuple[str, ...]:
    """Names of the GPUs that `folder` holds files of."""
    if not folder.is_dir():
        return ()
    return tuple(sorted(one.stem for one in folder.glob("*.toml") if one.name not in (INTERVALS, TRAINING, ENGINES)))
