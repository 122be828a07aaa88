"""Clocks and power limits that are set for a while: rights looked at first, everything put back at any end."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from joulecast.errors import InfeasibleError, InputError, JoulecastError
from joulecast.meters.device import Device

#: Signals that end a process and can be caught.
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def _folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")) / "joulecast"


def left_behind() -> list[dict[str, Any]]:
    """Clocks and limits that are set now, by the journals in the user's folder of caches.

    Returns
    -------
    list of dict
        ``device``, ``journal``, and ``process`` where the one that set them still runs, else None.
    """
    found = []
    for path in sorted(_folder().glob("clocks-*.json")):
        held = _read(path) or {}
        process = held.get("process")
        running = process if _runs(process, held.get("started")) else None
        found.append({"device": str(held.get("device", path.stem)), "journal": str(path), "process": running})
    return found


def default_journal(device: Device) -> Path:
    """``joulecast/clocks-....json`` under the user's folder of caches, one a device."""
    name = re.sub(r"[^A-Za-z0-9]+", "-", str(getattr(device, "identity", device.name))).strip("-").lower()
    return _folder() / f"clocks-{name}.json"


class Settings:
    """Sets clock and limit of a device, and knows how to put them back.

    Parameters
    ----------
    device : Device
    journal : path, optional
        Written before anything is set, removed when all is put back: what a killed process left is found there.
        Default `default_journal`.

    Attributes
    ----------
    left : str
        Why not all was put back when `held` ended; empty where it was.
    """

    def __init__(self, device: Device, journal: str | Path | None = None) -> None:
        self._device = device
        self._journal = default_journal(device) if journal is None else Path(journal)
        self._lock = self._journal.with_suffix(".lock")
        self._limit_w = device.limit_w()
        self._written: dict[str, Any] | None = None
        self.left = ""

    def check(self, clocks_mhz: tuple[float, ...] = (), limits_w: tuple[float, ...] = ()) -> None:
        """See that everything asked for can be set, before anything is measured.

        Raises
        ------
        InputError
            For a clock or limit that the device does not have.
        DeniedError
            Naming the right that is missing.
        """
        known = self._device.clocks_mhz()
        if clocks_mhz and not known:
            raise InputError(f"{self._device.name} has no core clocks that can be locked")
        for clock in clocks_mhz:
            if clock not in known:
                near = min(known, key=lambda value: abs(value - clock))
                raise InputError(f"{self._device.name} has no core clock of {clock:g} MHz: the nearest is {near:g}")
        span = self._device.limits_w()
        for limit in limits_w:
            if span is None or not span[0] <= limit <= span[1]:
                said = "none can be set" if span is None else f"{span[0]:g} to {span[1]:g} W can be set"
                raise InputError(f"{self._device.name} takes no power limit of {limit:g} W: {said}")
        try:
            if clocks_mhz:
                self.set(clocks_mhz[0])
            if limits_w and self._limit_w is not None:
                self.set(limit_w=self._limit_w)
        finally:
            self.restore()

    def set(self, clock_mhz: float | None = None, limit_w: float | None = None) -> None:
        """Lock the clock, set the limit; what is None is left as it is."""
        if clock_mhz is not None:
            self._touch("clock", lambda: self._device.lock_clock(clock_mhz))
        if limit_w is not None:
            self._touch("limit", lambda: self._device.set_limit(limit_w))

    def restore(self) -> None:
        """Put back what was set; the journal goes when all of it is.

        Raises
        ------
        InputError
            If another process that is still running set them.
        InfeasibleError
            If the device takes it no more; the journal stays.
        """
        kept = self._kept()
        if kept is None:
            return
        owner = kept.get("process")
        if owner != os.getpid() and _runs(owner, kept.get("started")):
            raise InputError(f"process {owner} has set the clocks of {self._device.name} and is still running")
        trouble: InfeasibleError | None = None
        try:
            if kept.get("clock", True):
                self._device.unlock_clock()
        except InfeasibleError as error:  # the limit is put back all the same
            trouble = error
        limit = self._limit_of(kept)
        if kept.get("limit", True) and limit is not None and limit != self._device.limit_w():
            self._device.set_limit(limit)
        if trouble is not None:
            raise trouble
        self._forget()
        self._limit_w = self._device.limit_w()

    def recover(self) -> None:
        """Put back what a killed process left, for one that sets nothing itself.

        Raises
        ------
        InputError
            If another process that is still running sets them.
        InfeasibleError
            If the device takes it not.
        """
        if self._journal.exists() or self._lock.exists():
            with self._alone():
                self.restore()

    @contextlib.contextmanager
    def held(self) -> Iterator[Settings]:
        """Everything is put back when this ends: normally, by an exception, or by SIGINT, SIGTERM and SIGHUP.

        No other process holds the same device meanwhile. Where it can't be put back any more, what was done is good
        all the same: `left` says why, the journal stays, and an error that is on its way tells it, too.

        Raises
        ------
        InputError
            If another process that is still running holds them.
        InfeasibleError
            If what an earlier process left can't be put back.
        """
        with self._alone():
            self.restore()  # what an earlier process left
            self.left = ""
            with self._signals():
                try:
                    yield self
                except BaseException as error:
                    self._end()
                    if self.left and isinstance(error, JoulecastError) and self.left not in str(error):
                        error.args = (f"{error}; {self.left}",)
                    raise
                self._end()

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Hold a lock that ends with the process, however that ends; children that are forked do not have it."""
        import fcntl

        try:
            self._lock.parent.mkdir(parents=True, exist_ok=True)
            lock = self._lock.open("a+")
        except OSError as error:
            raise InputError(f"can't write {self._lock}, which keeps clocks to one search: {error.strerror}") from None
        with lock:
            try:
                fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                lock.seek(0)
                who = f"process {lock.read(20).strip()}".strip()
                raise InputError(
                    f"{who} sets the clocks of {self._device.name} and is still running: wait until it ends"
                ) from None
            with contextlib.suppress(OSError):  # who it is helps others, and does no more
                os.ftruncate(lock.fileno(), 0)
                os.write(lock.fileno(), b"%d" % os.getpid())
            yield

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """Signals that would end the process put everything back first; Python makes an exception of SIGINT.

        Those that are ignored (by ``nohup``) or that the caller handles change nothing here: the search goes on.
        """
        caught: list[signal.Signals] = []

        def stopped(number: int, _frame: FrameType | None) -> None:
            try:
                self.restore()
            finally:
                signal.signal(number, signal.SIG_DFL)
                os.kill(os.getpid(), number)

        if threading.current_thread() is threading.main_thread():
            caught = [one for one in _ENDING if signal.getsignal(one) is signal.SIG_DFL]
        for one in caught:
            signal.signal(one, stopped)
        try:
            yield
        finally:
            for one in caught:
                signal.signal(one, signal.SIG_DFL)

    def _end(self) -> None:
        """Put everything back; a second Ctrl-C waits until it is.

        A mask of signals would hold for this thread alone, while another takes them and this one is told.
        """
        waiting: list[int] = []
        before: dict[signal.Signals, Any] = {}
        if threading.current_thread() is threading.main_thread():
            before = {one: signal.signal(one, lambda number, _: waiting.append(number)) for one in _ENDING}
        try:
            self.restore()
        except InfeasibleError as error:
            self.left = (
                f"the clocks of {self._device.name} are not put back: {error}; {self._journal} tells what was set"
            )
        finally:
            for one, handler in before.items():
                signal.signal(one, signal.SIG_DFL if handler is None else handler)
            for number in waiting:
                os.kill(os.getpid(), number)

    def _limit_of(self, kept: dict[str, Any]) -> float | None:
        """The limit that a journal tells, where it is one that the device can have had. [W]"""
        told, span = kept.get("limit_w"), self._device.limits_w()
        if isinstance(told, bool) or not isinstance(told, int | float) or not math.isfinite(told):
            return None
        return float(told) if span is None or span[0] <= told <= span[1] else None

    def _touch(self, what: str, act: Any) -> None:
        """Set something, journalled before; where the right is missing the journal is as it was."""
        kept = self._kept()
        if kept is not None and kept.get(what):
            act()
            return
        self._write({**(kept or self._blank()), what: True})
        try:
            act()
        except InfeasibleError:
            if kept is None:
                self._forget()  # nothing was set
            else:
                self._write(kept)
            raise

    def _blank(self) -> dict[str, Any]:
        process = os.getpid()
        return {"device": self._device.name, "limit_w": self._limit_w, "clock": False, "limit": False,
                "process": process, "started": _started(process)}  # fmt: skip

    def _kept(self) -> dict[str, Any] | None:
        """What the journal holds, or this process wrote where it was taken away since."""
        return _read(self._journal) if self._journal.exists() else self._written

    def _forget(self) -> None:
        self._journal.unlink(missing_ok=True)
        self._written = None

    def _write(self, held: dict[str, Any]) -> None:
        part = self._journal.with_suffix(f".{os.getpid()}.part")
        try:
            self._journal.parent.mkdir(parents=True, exist_ok=True)
            with part.open("w") as file:
                json.dump(held, file)
                file.flush()
                os.fsync(file.fileno())
            part.replace(self._journal)
        except OSError as error:
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)
            raise InputError(
                f"can't write {self._journal}, which tells how to put clocks back: {error.strerror}"
            ) from None
        self._written = held


def _read(journal: Path) -> dict[str, Any] | None:
    """What a journal holds; where it can't be read, that everything may have been set. None where there is none."""
    try:
        held = json.loads(journal.read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError):
        return {}
    return held if isinstance(held, dict) else {}


def _started(process: int) -> str | None:
    """When a process began, as the kernel counts: numbers of processes are given anew."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[19]
    except (OSError, IndexError):
        return None


def _runs(process: Any, started: Any) -> bool:
    if not isinstance(process, int):
        return False
    if Path("/proc/self/stat").exists():
        return started is not None and _started(process) == started
    try:
        os.kill(process, 0)
    except OSError:
        return False
    return True
