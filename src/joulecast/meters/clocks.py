"""Clocks and power limits that are set for a while: rights looked at first, everything put back at any end."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from joulecast.errors import InfeasibleError, InputError
from joulecast.meters.device import Device


class Settings:
    """Sets clock and limit of a device, and knows how to put them back.

    Parameters
    ----------
    device : Device
    journal : path
        Written before anything is set, removed when all is put back: what a killed process left is found there.
    """

    def __init__(self, device: Device, journal: str | Path) -> None:
        self._device, self._journal = device, Path(journal)
        self._limit_w = device.limit_w()

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
        self._keep()
        try:
            if clocks_mhz:
                self._device.lock_clock(clocks_mhz[0])
            if limits_w and self._limit_w is not None:
                self._device.set_limit(self._limit_w)
        except InfeasibleError:
            self._journal.unlink(missing_ok=True)  # nothing was set
            raise
        self.restore()

    def set(self, clock_mhz: float | None = None, limit_w: float | None = None) -> None:
        """Lock the clock, set the limit; what is None is left as it is."""
        self._keep()
        if clock_mhz is not None:
            self._device.lock_clock(clock_mhz)
        if limit_w is not None:
            self._device.set_limit(limit_w)

    def restore(self) -> None:
        """Put everything back; the journal goes when all of it is."""
        if not self._journal.exists():
            return
        kept = json.loads(self._journal.read_text())
        self._device.unlock_clock()
        if kept.get("limit_w") is not None and kept["limit_w"] != self._device.limit_w():
            self._device.set_limit(float(kept["limit_w"]))
        self._journal.unlink(missing_ok=True)

    @contextlib.contextmanager
    def held(self) -> Iterator[Settings]:
        """Everything is put back when this ends: normally, by an exception, or by SIGINT, SIGTERM and SIGHUP."""
        self.restore()  # what an earlier process left
        before: dict[int, Any] = {}

        def stopped(number: int, frame: FrameType | None) -> None:
            self.restore()
            signal.signal(number, before[number])
            if callable(before[number]):
                before[number](number, frame)
            else:
                os.kill(os.getpid(), number)

        if threading.current_thread() is threading.main_thread():
            for caught in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                before[int(caught)] = signal.getsignal(caught)
                signal.signal(caught, stopped)
        try:
            yield self
        finally:
            self.restore()
            for caught_number, handler in before.items():
                signal.signal(caught_number, handler)

    def _keep(self) -> None:
        if self._journal.exists():
            return
        self._journal.parent.mkdir(parents=True, exist_ok=True)
        part = self._journal.with_suffix(f".{os.getpid()}.part")
        with part.open("w") as file:
            json.dump({"device": self._device.name, "limit_w": self._limit_w, "process": os.getpid()}, file)
            file.flush()
            os.fsync(file.fileno())
        part.replace(self._journal)
