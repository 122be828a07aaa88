"""A folder of finished chunks: what a sweep that was stopped goes on from."""

from __future__ import annotations

import hashlib
import json
import os
import zipfile
import zlib
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from joulecast.coefficients import places
from joulecast.errors import InputError, shortened
from joulecast.scenarios.sweep.chunk import Chunk
from joulecast.workloads.files import parse_json, read_bytes
from joulecast.writing import whole_file, write_atomic

_QUESTION = "question.json"
_SCHEMA = "joulecast.sweep.chunks/1"


@dataclass(frozen=True)
class Store:
    """Finished chunks of one question in `folder`, one file each, written whole or not at all."""

    folder: Path

    def load(self, start: int) -> Chunk | None:
        """The chunk that starts at `start`; None where it is not there, can't be read or is not what was kept."""
        try:
            with self._path(start).open("rb") as file, np.load(file, allow_pickle=False) as kept:
                columns = {name: kept[name] for name in kept.files if name not in ("reasons", "digest")}
                chunk = Chunk(start, columns, tuple(str(text) for text in kept["reasons"]))
                return chunk if str(kept["digest"]) == _digest(chunk) else None
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error):
            return None

    def save(self, chunk: Chunk) -> None:
        """Keep a chunk."""
        with whole_file(self._path(chunk.start)) as file:
            np.savez(file, allow_pickle=False, reasons=np.array(chunk.reasons), digest=_digest(chunk), **chunk.columns)

    def _path(self, start: int) -> Path:
        return self.folder / f"chunk-{start:010d}.npz"


def open_store(folder: str | os.PathLike[str], question: Any) -> Store:
    """The folder of a question's finished chunks, made where it is not there.

    Parameters
    ----------
    folder : path
    question : plain values
        All that the answers follow from.

    Raises
    ------
    InputError
        If the folder holds chunks of another question or other files, or can't be written.
    """
    if not isinstance(folder, str | os.PathLike):
        raise InputError(f"finished chunks are kept in a folder by name, not in {shortened(repr(folder), 40)}")
    path = Path(folder)
    name = shortened(path)
    asked = fingerprint(question)
    try:
        path.mkdir(parents=True, exist_ok=True)
        known = path / _QUESTION
        if known.exists():
            found = _described(known)
            if not isinstance(found, dict) or found.get("schema") != _SCHEMA:
                raise InputError(
                    f"{name} is no folder of a sweep's chunks: give an empty one, or that of the same sweep"
                )
            if found.get("fingerprint") != asked:
                raise InputError(
                    f"{name} holds chunks of another sweep (other values, coefficients or version): "
                    "give another folder, or ask the same"
                )
        elif any(path.iterdir()):
            raise InputError(f"{name} is not empty and holds no sweep: give an empty folder for the chunks")
        else:
            text = json.dumps({"schema": _SCHEMA, "fingerprint": asked, "question": question}, indent=1, default=str)
            write_atomic(known, text)
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"can't keep chunks in {name}: {getattr(error, 'strerror', None) or error}") from None
    return Store(path)


def _described(known: Path) -> Any:
    """What the folder says that it holds; None where that can't be read."""
    try:
        return parse_json(read_bytes(known), str(known))
    except InputError:
        return None


def _digest(chunk: Chunk) -> str:
    """Of all that a chunk holds."""
    known = hashlib.sha256(json.dumps([chunk.start, chunk.reasons]).encode("utf-8"))
    for name, column in sorted(chunk.columns.items()):
        known.update(f"{name} {column.dtype.str} {column.shape}".encode())
        known.update(np.ascontiguousarray(column).tobytes())
    return known.hexdigest()


def fingerprint(question: Any) -> str:
    """Of a question and the version: alike only where the answers are."""
    asked = json.dumps([version("joulecast"), question], sort_keys=True, default=str)
    return hashlib.sha256(asked.encode("utf-8")).hexdigest()


def coefficients_in_use() -> str:
    """A hash of all files of coefficients that answers may follow from."""
    known = hashlib.sha256()
    for folder in (places.shipped_folder(), places.users_folder()):
        for path in sorted(folder.iterdir()) if folder is not None else ():
            if path.is_file():
                known.update(path.name.encode("utf-8"))
                known.update(path.read_bytes())
    return known.hexdigest()
