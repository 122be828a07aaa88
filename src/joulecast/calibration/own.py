"""`calibrate`: from a user's tables to coefficient files of his own."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path

from joulecast.calibration.audit_files import table_files
from joulecast.calibration.own_fit import OwnFit, by_gpu, fit_own
from joulecast.calibration.own_tables import OwnTable, read_own
from joulecast.coefficients import places, store, transfer
from joulecast.coefficients.users import using
from joulecast.errors import InputError, MissingExtraError, shortened
from joulecast.gpus import Gpu


@dataclass(frozen=True)
class CalibratedFile:
    """One GPU: its fit, and the file that holds it; no path where nothing was written."""

    fit: OwnFit
    path: Path | None


@dataclass(frozen=True)
class Calibrated:
    """What a calibration read, set aside, fitted and wrote."""

    tables: tuple[OwnTable, ...]
    refused: tuple[InputError, ...]
    files: tuple[CalibratedFile, ...]


def today() -> str:
    """The date of a calibration, ``YYYY-MM-DD``: that of ``$SOURCE_DATE_EPOCH`` where it is set.

    Raises
    ------
    InputError
        If it is set to something else than seconds since 1970.
    """
    told = os.environ.get("SOURCE_DATE_EPOCH")
    if told is None:
        return datetime.now(UTC).date().isoformat()
    try:
        return datetime.fromtimestamp(int(told), UTC).date().isoformat()
    except (ValueError, OverflowError, OSError):
        raise InputError(f"$SOURCE_DATE_EPOCH must be seconds since 1970, got {shortened(told)}") from None


def calibrate(
    path: Path,
    out: Path,
    *,
    gpu: Gpu | None = None,
    seed: int = 0,
    version: str = "",
    tell: Callable[[str, float], None] = lambda *_: None,
) -> Calibrated:
    """Fit each GPU in the tables at `path` and write its coefficients to `out`.

    What is in `out` already of other families, engines and groups stays. Fits start from what is shipped, never from
    what is in `out`, so that the same tables give the same file.

    Parameters
    ----------
    path : Path
        A table, or a folder of them.
    out : Path
        Made where it is missing.
    gpu : Gpu, optional
        The GPU of tables that do not tell it; of others, only its rows are taken.
    seed : int
    version : str
        Of joulecast, for the provenance.
    tell : callable
        Gets what is being done, and the share of all of it that is done.

    Raises
    ------
    InputError
        If nothing at `path` can be fitted on, or `out` can't be written to.
    MissingExtraError
        If the libraries for fitting are missing.
    """
    if import_module("importlib.util").find_spec("scipy") is None:
        raise MissingExtraError("calibrating", "calibrate")
    files = table_files(path)
    date = today()
    tables, refused = read_own(path, files, gpu, lambda done: tell("auditing tables", 0.2 * done / len(files)))
    names = ", ".join(table.name for table in tables)
    batches = [batch for table in tables for batch in table.batches]
    if not batches:
        raise InputError(f"the audit set every row of {shortened(names)} aside: joulecast audit tells why")
    found = by_gpu(batches, gpu)
    fits = []
    with using(places.shipped_folder()):
        for place, (described, members) in enumerate(found.values()):
            start, length = 0.2 + 0.8 * place / len(found), 0.8 / len(found)

            def say(what: str, share: float, start: float = start, length: float = length) -> None:
                tell(what, start + share * length)

            kinds = sorted({f"{one.conditions.engine} {one.version}".strip() for one in members})
            sources = f"{shortened(names)} ({', '.join(kinds)})"
            fits.append(
                fit_own(
                    members, described, sources=sources, set_aside=sum(table.set_aside for table in tables),
                    version=version, date=date, seed=seed, tell=say,
                )
            )  # fmt: skip
    written = tuple(CalibratedFile(fit, _written(fit, out)) for fit in fits)
    transfer.forget()
    if not any(one.path for one in written):
        few = {key: rows for fit in fits for key, rows in fit.too_few.items()}
        said = ", ".join(f"{rows} of {key}" for key, rows in list(few.items())[:3])
        raise InputError(f"too few rows to fit anything: {said or 'none that runs on its GPU'}; 3 of a kind are needed")
    return Calibrated(tuple(tables), tuple(refused), written)


def _written(fit: OwnFit, out: Path) -> Path | None:
    """Write a fit over what its file has; None where there is nothing to write."""
    new = fit.coefficients
    if not new.time and new.power is None:
        return None
    try:
        out.mkdir(parents=True, exist_ok=True)
        path = out / f"{new.gpu}.toml"
        old = store.read(path) if path.is_file() else None
        store.write(new if old is None else store.overlaid(old, new), path)
    except OSError as error:
        raise InputError(f"can't write coefficients to {shortened(out)}: {error.strerror or error}") from None
    return path
