"""Chooses the folder of a user's own coefficients."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path

from joulecast.coefficients import places, store, transfer
from joulecast.coefficients.training import read_scales
from joulecast.errors import InputError, shortened


def use_coefficients(folder: str | PathLike[str] | None) -> tuple[str, ...]:
    """Look into `folder` for coefficients before the shipped ones, from now on.

    Parameters
    ----------
    folder : path or None
        A folder that `joulecast calibrate` wrote; None for what the environment says
        (``$JOULECAST_COEFFICIENTS``, else the user's data folder where it exists).

    Returns
    -------
    tuple of str
        Names of the GPUs that it has coefficients of.

    Raises
    ------
    InputError
        If it is no folder, or holds a file that can't be used; the choice then stays as it was.
    """
    if folder is None:
        places.choose(None)
        transfer.forget()
        return ()
    if not isinstance(folder, str | PathLike):
        raise InputError(f"coefficients are in a folder by name, not in {shortened(repr(folder), 40)}")
    path = places.checked(Path(folder), "coefficients")
    names = places.gpus_in(path)
    if not names and not any((path / name).is_file() for name in (places.TRAINING, places.INTERVALS, places.ENGINES)):
        shown = shortened(path)
        raise InputError(f"{shown} holds no coefficient file: joulecast calibrate TABLE --out {shown} writes them")
    with places.chosen(path):
        store.load.cache_clear()
        try:
            for name in names:
                store.load(name)
            if (path / places.TRAINING).is_file():
                read_scales(path / places.TRAINING)
        finally:
            store.load.cache_clear()
    places.choose(path)
    transfer.forget()
    return names


@contextmanager
def using(folder: Path) -> Iterator[None]:
    """Within the context, `folder` is looked into first; it may still be empty or missing."""
    try:
        with places.chosen(folder):
            transfer.forget()
            yield
    finally:
        transfer.forget()


def users_gpus() -> tuple[Path | None, tuple[str, ...]]:
    """The user's folder, if any, and the GPUs it has coefficients of."""
    folder = places.users_folder()
    if folder is None or folder == places.shipped_folder():
        return None, ()
    return folder, places.gpus_in(folder)
