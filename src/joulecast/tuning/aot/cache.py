"""Keeps what compiled configurations came to, by source, Triton version and target: a second search compiles none."""

from __future__ import annotations

import hashlib
import json
import math
import os
import sqlite3
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from joulecast.errors import InputError, shortened
from joulecast.tuning.aot.compiling import Compiled, signature_of
from joulecast.tuning.database import opened
from joulecast.tuning.kernelspec import KernelSpec
from joulecast.tuning.space import Config

#: Changes with what is kept of a compiled kernel, which is then compiled again.
_VERSION = 2

#: Changes with the table.
_TABLE = 1

_SCHEMA = "CREATE TABLE IF NOT EXISTS compiled (key TEXT PRIMARY KEY, held TEXT NOT NULL);"


def default_path() -> Path:
    """``joulecast/compiled.sqlite`` under the user's folder of caches."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "joulecast" / "compiled.sqlite"


def key_of(spec: KernelSpec, config: Config, capability: int, source: str | None = None) -> str:
    """The same for the same machine code: source, types, constants, options, target and version of Triton."""
    import triton

    signature, constants, attributes = signature_of(spec, config)
    told = [
        _VERSION, source or spec.source_hash, triton.__version__, capability, sorted(signature.items()),
        sorted((str(place), repr(value)) for place, value in constants.items()), sorted(map(str, attributes)),
        sorted(spec.options(config).items()), os.environ.get("TRITON_DEFAULT_FP_FUSION", ""),
    ]  # fmt: skip
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()


class Cache:
    """Compiled configurations in an SQLite file; failures are kept, too, and time-outs with the limit they exceeded.

    Parameters
    ----------
    path : path, optional
        Default `default_path`; ``:memory:`` keeps nothing.

    Raises
    ------
    InputError
        If the file can't be used.
    """

    def __init__(self, path: str | Path | None = None) -> None:
        self.path = path or default_path()
        if str(self.path) != ":memory:":
            try:
                Path(self.path).parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise self._unusable(error) from None
        try:
            self._base = opened(self.path, _SCHEMA, _TABLE, "cache")
        except InputError as error:
            raise InputError(f"{error} (--cache names another)") from None

    def find(self, key: str, timeout_s: float = 0.0) -> Compiled | str | None:
        """What is kept.

        Parameters
        ----------
        key : str
        timeout_s : float
            Processor time that is given now: what exceeded less is worth another try. [s]

        Returns
        -------
        Compiled, str or None
            A compiled kernel, why it failed, or None where it is to be compiled.
        """
        try:
            row = self._base.execute("SELECT held FROM compiled WHERE key = ?", (key,)).fetchone()
        except sqlite3.Error as error:
            raise self._unusable(error) from None
        if row is None:
            return None
        try:
            held: Mapping[str, Any] = json.loads(row[0])
            if "failure" not in held:
                return Compiled.unpacked(held)
            return None if float(held.get("timeout_s", math.inf)) < timeout_s else str(held["failure"])
        except (ValueError, TypeError, KeyError, AttributeError, zlib.error):
            return None  # damaged: it is compiled again

    def keep(self, key: str, found: Compiled | str, timeout_s: float | None = None) -> None:
        """Keep a compiled kernel, or why it failed; with the limit where it was that."""
        held: dict[str, Any] = {"failure": found} if isinstance(found, str) else found.packed()
        if timeout_s is not None:
            held["timeout_s"] = timeout_s
        try:
            with self._base:
                self._base.execute("INSERT OR REPLACE INTO compiled VALUES (?, ?)", (key, json.dumps(held)))
        except sqlite3.Error as error:
            raise self._unusable(error) from None

    def _unusable(self, error: Exception) -> InputError:
        told = shortened(getattr(error, "strerror", None) or error)
        return InputError(f"can't use {shortened(self.path)} as a cache: {told} (--cache names another)")

    def close(self) -> None:
        """Close the file."""
        self._base.close()
