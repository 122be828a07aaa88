"""Energy by Zeus's own monitor, for those who have it set up; needs the package ``zeus``."""

from __future__ import annotations

import importlib
import time
from typing import Any

from joulecast.errors import InfeasibleError, InputError
from joulecast.meters.judge import judged
from joulecast.meters.reading import Load, MeterFacts, Reading


class ZeusMeter:
    """A `joulecast.meters.Meter` over ``zeus.monitor.ZeusMonitor``.

    Parameters
    ----------
    index : int
        GPU, as Zeus counts.
    window_s : float
        Least length of a window. [s]
    monitor : object, optional
        With ``begin_window(name)`` and ``end_window(name)``, whose result has ``gpu_energy`` and ``time``.
    cap_w, idle_w : float, optional
        Bounds of what a reading can be; Zeus does not tell them. [W]

    Raises
    ------
    InputError
        If Zeus is not installed.
    """

    def __init__(
        self, index: int = 0, window_s: float = 2.0, monitor: Any = None, *, cap_w: float | None = None,
        idle_w: float | None = None,
    ) -> None:  # fmt: skip
        if monitor is None:
            try:
                library = importlib.import_module("zeus.monitor")
            except ImportError:
                raise InputError("the zeus meter needs Zeus: pip install zeus") from None
            monitor = library.ZeusMonitor(gpu_indices=[index], approx_instant_energy=False)
        self._monitor, self._index, self._window = monitor, index, window_s
        self._facts = MeterFacts("zeus", f"GPU {index}", "Zeus's monitor", cap_w, idle_w)
        self._launch_s: dict[str, float] = {}

    @property
    def facts(self) -> MeterFacts:
        """Of the monitor."""
        return self._facts

    def prepare(self, load: Load) -> None:
        """Run for ten seconds."""
        load.run(self._launches(load, 10.0))

    def read(self, load: Load) -> Reading:
        """One window of the monitor.

        Raises
        ------
        InfeasibleError
            If Zeus gives no energy of the GPU.
        """
        launches = load.launches_of(self._launches(load, self._window))
        self._monitor.begin_window("joulecast")
        kernel_s = load.run(launches)
        found = self._monitor.end_window("joulecast")
        energy = found.gpu_energy.get(self._index)
        if energy is None:
            raise InfeasibleError(f"Zeus gave no energy of GPU {self._index}")
        kernel = None if kernel_s is None else kernel_s / launches
        return judged(Reading(energy / launches, found.time / launches, kernel, launches), self._facts)

    def _launches(self, load: Load, seconds: float) -> int:
        if load.name not in self._launch_s:
            load.run(1)
            begun = time.perf_counter()
            done = load.launches_of(16)
            load.run(16)
            self._launch_s[load.name] = max((time.perf_counter() - begun) / done, 1e-9)
        return max(int(seconds / self._launch_s[load.name]), 1)
