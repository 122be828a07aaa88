"""Power over time: the passes of a prediction laid out launch by launch, with what a meter would show of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from joulecast.errors import InputError, UnknownNameError, shortened
from joulecast.physics.metering import Meter, readings
from joulecast.physics.trace import DUTY_MODULES
from joulecast.scenarios.launched import Launched
from joulecast.scenarios.prediction import Prediction
from joulecast.scenarios.timeline_rows import WHATS, LaidRows

Floats = npt.NDArray[np.float64]
Places = npt.NDArray[np.intp]

#: Which passes are laid out launch by launch: the first, the middle and the last of each phase, all, or none.
PASSES = ("some", "all", "none")

MAX_EVENTS = 200_000


@dataclass(frozen=True)
class Timeline:
    """Power of one GPU over time in steps that follow each other without gap; one row each, `n` in all.

    Attributes
    ----------
    prediction : Prediction
        What it belongs to.
    start_s, duration_s : ndarray
        [s]
    power_w : ndarray
        Mean power of the step, one GPU. [W]
    layout_power_w : ndarray
        The same of all GPUs of the layout together. [W]
    clock_mhz : ndarray
        Core clock that the phase settles at. [MHz]
    duty : ndarray, shape (6, n)
        Share of the step that each of `joulecast.physics.trace.DUTY_MODULES` is busy.
    what : ndarray of int
        Index into `WHATS`: a launch (all kernels of one operation), a wait for the host, a pass (or several like
        ones) told as a whole, or the rest of a pass that a pipeline's other microbatches take.
    phase : ndarray of int
        Index into `phases`.
    pass_number, passes : ndarray of int
        Which pass of its phase, and how many passes the row holds.
    row : ndarray of int
        Row of ``prediction.kernels``; -1 for waits and passes.
    repeat : ndarray of int
        Which of the like layers; -1 where there is one.
    phases : tuple of str
    meter : Meter
    meter_at_s, meter_w : ndarray
        When the meter shows what. [s, W]
    meter_repeats : bool
        Whether the meter sees the steps repeated back to back (they are shorter than it looks).
    peak_power_w : float
        Of the launch that draws the most, laid out or not. [W]
    waiting_share : float
        Share of the time that the GPU waits for its host, in passes laid out or not.
    queue_scale : mapping of str to (float, float)
        Least and largest factor, over the passes of each phase, between the waits of an exact walk through the queue
        of host and GPU and those shown (`joulecast.physics.trace.gaps_s`).
    notes : tuple of str
    """

    prediction: Prediction
    start_s: Floats
    duration_s: Floats
    power_w: Floats
    layout_power_w: Floats
    clock_mhz: Floats
    duty: Floats
    what: Places
    phase: Places
    pass_number: Places
    passes: Places
    row: Places
    repeat: Places
    phases: tuple[str, ...]
    meter: Meter
    meter_at_s: Floats
    meter_w: Floats
    meter_repeats: bool
    peak_power_w: float
    waiting_share: float
    queue_scale: Mapping[str, tuple[float, float]]
    notes: tuple[str, ...]

    def __len__(self) -> int:
        return self.start_s.size

    @property
    def time_s(self) -> float:
        """Length. [s]"""
        return float(self.duration_s.sum())

    @property
    def energy_j(self) -> float:
        """Energy of one GPU. [J]"""
        return float(self.duration_s @ self.power_w)

    @property
    def layout_energy_j(self) -> float:
        """Energy of all GPUs of the layout. [J]"""
        return float(self.duration_s @ self.layout_power_w)

    @property
    def mean_power_w(self) -> float:
        """Mean power of one GPU. [W]"""
        return self.energy_j / self.time_s

    def texts(self, column: str) -> list[str]:
        """``layer`` (numbers in place of stars), ``op``, ``family``, ``shape`` or ``bound_by`` of each row.

        Others than launches have none but the op: what they are.
        """
        of_row = [str(one) for one in self.prediction.kernels[column].tolist()]
        none = ["", *WHATS[1:]] if column == "op" else [""] * len(WHATS)
        rows, whats = self.row.tolist(), self.what.tolist()
        if column != "layer":
            return [of_row[row] if row >= 0 else none[what] for row, what in zip(rows, whats, strict=True)]
        return [
            "" if row < 0 else of_row[row].replace("*", str(repeat), 1) if repeat >= 0 else of_row[row]
            for row, repeat in zip(rows, self.repeat.tolist(), strict=True)
        ]

    def kernels_started(self) -> Floats:
        """Kernels that each launch starts; 0 for other rows."""
        table = self.prediction.kernels
        count = table["count"]
        each = np.divide(table["launches"], count, out=np.zeros(count.size), where=count > 0)
        return np.where(self.row >= 0, each[self.row], 0.0)

    def columns(self) -> dict[str, npt.NDArray[Any] | list[str]]:
        """The table by names with units, one entry a row; meter readings are a table of their own (`meter_columns`)."""
        duties = {f"{name.replace(' ', '_').lower()}_duty": self.duty[i] for i, name in enumerate(DUTY_MODULES)}
        return {
            "start_s": self.start_s,
            "duration_s": self.duration_s,
            "power_w": self.power_w,
            "layout_power_w": self.layout_power_w,
            "energy_j": self.power_w * self.duration_s,
            "clock_mhz": self.clock_mhz,
            **duties,
            "what": [WHATS[one] for one in self.what.tolist()],
            "phase": [self.phases[one] for one in self.phase.tolist()],
            "pass_number": self.pass_number,
            "passes": self.passes,
            "layer": self.texts("layer"),
            "op": self.texts("op"),
            "family": self.texts("family"),
            "shape": self.texts("shape"),
            "bound_by": self.texts("bound_by"),
            "kernels": self.kernels_started(),
        }

    def meter_columns(self) -> dict[str, Floats]:
        """What the meter shows: ``at_s`` and ``power_w``."""
        return {"at_s": self.meter_at_s, "power_w": self.meter_w}


def timeline(
    prediction: Prediction,
    *,
    passes: str = "some",
    phase: str | None = None,
    meter: Meter = Meter(),  # noqa: B008 - frozen
    repeats: bool | None = None,
    max_events: int = MAX_EVENTS,
) -> Timeline:
    """The power trace of a prediction, in order of execution.

    Parameters
    ----------
    prediction : Prediction
        Of `joulecast.predict`.
    passes : str
        Which passes to lay out launch by launch: ``some`` (first, middle and last of each phase), ``all``, ``none``.
        The others are one row each.
    phase : str, optional
        Only this phase.
    meter : Meter
    repeats : bool, optional
        Whether the meter sees all this repeated back to back, or an idle GPU before; default: the former where it is
        shorter than the meter's window.
    max_events : int
        Rows at most, nearly, of some 200 bytes each; passes beyond it are told as a whole, and a note says so.

    Returns
    -------
    Timeline
        Its length is the prediction's time and its energy the prediction's, as are those of each phase.

    Raises
    ------
    InputError
        For an unknown choice or phase, or a prediction that does not carry its launches.
    """
    if not isinstance(prediction, Prediction):
        raise InputError(f"a timeline is of a prediction, not of {shortened(repr(prediction), 40)}")
    if not isinstance(meter, Meter):
        raise InputError(f"meter takes a Meter, such as joulecast.Meter(0.025, 0.1), not {shortened(repr(meter), 40)}")
    source = prediction.launched
    if not isinstance(source, Launched):
        raise InputError("this prediction does not carry its launches: make it anew with joulecast.predict")
    if passes not in PASSES:
        raise UnknownNameError("choice of passes", passes, PASSES)
    if isinstance(max_events, bool) or not isinstance(max_events, int) or not 1 <= max_events <= 10_000_000:
        raise InputError(f"max_events must be a whole number from 1 to 10,000,000, got {max_events!r}")
    names = tuple(source.runs)
    if phase is not None and phase not in names:
        raise UnknownNameError("phase", phase, names)
    rows = LaidRows(prediction, source, None if phase is None else names.index(phase))
    rows.lay_out(passes, max_events)
    columns = rows.columns()
    duration, power = columns["duration_s"], columns["power_w"]
    length = float(duration.sum())
    again = length < meter.window_s if repeats is None else bool(repeats)
    at, shown = readings(duration, power, meter, np.nan if again else rows.kinds[0].static_w)
    notes = list(rows.notes)
    if prediction.gpu_count > 1:
        notes.append(f"one GPU's trace of {prediction.gpu_count} (column layout_power_w: all of them)")
    if prediction.gpu_count > source.alike:
        notes.append("it goes with one microbatch from stage to stage; the others are the rest of each pass")
    return Timeline(
        prediction=prediction,
        start_s=np.cumsum(duration) - duration,
        layout_power_w=power * source.alike + columns.pop("others_w"),
        **columns,
        phases=names,
        meter=meter,
        meter_at_s=at,
        meter_w=shown,
        meter_repeats=again,
        peak_power_w=rows.peak_power_w,
        waiting_share=rows.waits_s / length,
        queue_scale={names[code]: (min(found), max(found)) for code, found in sorted(rows.scales.items())},
        notes=tuple(notes),
    )
