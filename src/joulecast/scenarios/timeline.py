"""Power over time: the passes of a prediction laid out launch by launch, with what a meter would show of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from joulecast.errors import InputError, UnknownNameError
from joulecast.physics.metering import Meter, readings
from joulecast.physics.power import static_power_w
from joulecast.physics.price import module_energy_j
from joulecast.physics.timeline import pass_time_s
from joulecast.physics.trace import DUTY_MODULES, gaps_s, module_duty
from joulecast.physics.unroll import launch_count, unrolled
from joulecast.scenarios.launched import Launched
from joulecast.scenarios.prediction import Prediction

Floats = npt.NDArray[np.float64]
Places = npt.NDArray[np.intp]

#: Which passes are laid out launch by launch: the first, the middle and the last of each phase, all, or none.
PASSES = ("some", "all", "none")

#: What a row is.
WHATS = ("launch", "wait", "pass", "rest")
LAUNCH, WAIT, PASS, REST = range(len(WHATS))

MAX_EVENTS = 200_000

#: Shorter waits are told together, before the first launch of their pass.
_SHORTEST_WAIT_S = 1e-9


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
        }

    def meter_columns(self) -> dict[str, Floats]:
        """What the meter shows: ``at_s`` and ``power_w``."""
        return {"at_s": self.meter_at_s, "power_w": self.meter_w}


@dataclass(frozen=True)
class _Pass:
    """One kind of pass: what all its repeats share."""

    phase: int
    rows: slice
    repeats: int
    host_s: Floats
    gpu_s: float
    time_s: float
    rest_s: float
    rest_w: float
    energy_j: float
    static_w: float
    clock_mhz: float
    others_w: float


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
        Rows at most, nearly; passes beyond it are told as a whole, and a note says so.

    Returns
    -------
    Timeline
        Its length is the prediction's time and its energy the prediction's, as are those of each phase.

    Raises
    ------
    InputError
        For an unknown choice or phase, or a prediction that does not carry its launches.
    """
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
    built = _Built(prediction, source, None if phase is None else names.index(phase))
    built.lay_out(passes, max_events)
    return built.timeline(meter, repeats)


class _Built:
    """Collects the rows of a timeline pass by pass."""

    def __init__(self, prediction: Prediction, source: Launched, only: int | None) -> None:
        self.prediction, self.source = prediction, source
        self.names = tuple(source.runs)
        rows = source.rows
        self.kernel_s, self.clock = source.kernel_s(), source.clock_mhz()
        self.energy_j = module_energy_j(rows.priced, self.kernel_s, self.clock).sum(axis=0)
        self.power_w = np.divide(
            self.energy_j, self.kernel_s, out=np.zeros_like(self.energy_j), where=self.kernel_s > 0
        )
        self.duty = module_duty(rows.priced, self.kernel_s, self.clock, source.gpu)
        host_s = source.host_s()
        self.kinds = [one for one in self._kinds(host_s) if only is None or one.phase == only]
        self.pieces: list[tuple[Any, ...]] = []
        self.scales: dict[int, list[float]] = {}
        self.notes: list[str] = []
        self._laid: dict[int, tuple[Any, ...]] = {}

    def _kinds(self, host_s: Floats) -> list[_Pass]:
        source, rows = self.source, self.source.rows
        phase_of = {name: code for code, name in enumerate(self.names)}
        starts = np.searchsorted(rows.pass_id, np.arange(len(source.passes) + 1))
        layout = [self._layout(name) for name in self.names]
        found = []
        for number, one in enumerate(source.passes):
            its = slice(int(starts[number]), int(starts[number + 1]))
            if its.start == its.stop or one.repeats < 1:
                continue
            code, run = phase_of[one.phase], source.runs[one.phase]
            gpu_s = float(rows.count[its] @ self.kernel_s[its])
            time_s = float(pass_time_s(gpu_s, float(rows.count[its] @ host_s[its])))
            static_w = float(static_power_w(run.clock_mhz, source.gpu, rows.priced.power))
            spans, rest_w, others_w = layout[code]
            found.append(
                _Pass(
                    phase=code, rows=its, repeats=int(one.repeats), host_s=host_s[its], gpu_s=gpu_s, time_s=time_s,
                    rest_s=(spans - 1.0) * time_s, rest_w=rest_w,
                    energy_j=float(rows.count[its] @ self.energy_j[its]) + static_w * max(time_s - gpu_s, 0.0),
                    static_w=static_w, clock_mhz=run.clock_mhz, others_w=others_w,
                )
            )  # fmt: skip
        return found

    def _layout(self, name: str) -> tuple[float, float, float]:
        """A phase on all GPUs of the layout.

        How long it takes over one microbatch alone; mean power of a GPU, which is that of the time beyond that
        microbatch [W]; and what GPUs draw that do not do as this one does: stages that wait or work on others. [W]
        """
        told = next(one for one in self.prediction.phases if one.phase == name)
        run, alike = self.source.runs[name], self.source.alike
        spans = told.time_s / run.time_s
        spans = spans if spans > 1.0 + 1e-12 else 1.0
        mean_w = told.energy_j / told.time_s / self.prediction.gpu_count
        own_j = run.energy_j + mean_w * (spans - 1.0) * run.time_s
        return spans, mean_w, (told.energy_j - alike * own_j) / told.time_s

    def lay_out(self, which: str, most: int) -> None:
        """All passes in order; those chosen, as far as `most` rows allow, launch by launch."""
        total = np.zeros(len(self.names), dtype=np.intp)
        for one in self.kinds:
            total[one.phase] += one.repeats
        chosen = self._chosen(which, total, most)
        done = np.zeros(len(self.names), dtype=np.intp)
        whole = int(total.sum()) - sum(len(one) for one in chosen)
        together = whole > max(most // 10, 1)
        if together:
            self.notes.append(f"{whole:,} passes are told as wholes, like ones together")
        for number, one in enumerate(self.kinds):
            first = int(done[one.phase])
            inside = sorted(place for place in chosen[one.phase] if first <= place < first + one.repeats)
            at = first
            for place in [*inside, first + one.repeats]:
                self._wholes(one, at, place - at, together)
                if place < first + one.repeats:
                    self._launches(number, one, place)
                at = place + 1
            done[one.phase] += one.repeats

    def _chosen(self, which: str, total: Places, most: int) -> list[set[int]]:
        """Numbers of the passes of each phase to lay out; within `most` rows, first passes first."""
        chosen: list[set[int]] = [set() for _ in self.names]
        if which == "none":
            return chosen
        size: list[list[tuple[int, int]]] = [[] for _ in self.names]
        for one in self.kinds:
            size[one.phase].append((one.repeats, 2 * launch_count(self.source.rows.count[one.rows])))
        wanted = [
            (rank, phase, place)
            for phase, often in enumerate(total.tolist())
            if often
            for rank, place in enumerate(dict.fromkeys((0, often - 1, often // 2)))
        ]
        left, skipped = most, 0
        for _, phase, place in sorted(wanted):
            rows = _size_at(size[phase], place)
            if rows > left:
                skipped += 1
                continue
            chosen[phase].add(place)
            left -= rows
        if which == "all":
            for phase, often in enumerate(total.tolist()):
                place = 0
                for repeats, rows in size[phase]:
                    fit = [p for p in range(place, place + repeats) if p not in chosen[phase]]
                    taken = min(len(fit), left // max(rows, 1))
                    chosen[phase].update(fit[:taken])
                    left -= taken * rows
                    place += repeats
                skipped += often - len(chosen[phase]) if often else 0
        if skipped:
            self.notes.append(
                f"{skipped:,} passes that were asked for launch by launch are told as wholes: more than {most:,} rows"
            )
        return chosen

    def _wholes(self, one: _Pass, first: int, often: int, together: bool) -> None:
        if often <= 0:
            return
        rows = 1 if together else often
        passes = often // rows
        length_s = one.time_s + one.rest_s
        busy_s = self.source.rows.count[one.rows] * self.kernel_s[one.rows]
        duty = (self.duty[:, one.rows] @ busy_s) / one.time_s
        energy_j = one.energy_j + one.rest_w * one.rest_s
        full, none = np.full(rows, 1.0), np.full(rows, -1)
        self._add(
            one, full * length_s * passes, full * (energy_j / length_s), duty[:, None] * full,
            np.full(rows, PASS), first + np.arange(rows), np.full(rows, passes), none, none,
        )  # fmt: skip

    def _launches(self, number: int, one: _Pass, place: int) -> None:
        if number not in self._laid:
            self._laid[number] = self._one_pass(one)
        duration, power, duty, what, row, repeat = self._laid[number]
        n = duration.size
        self._add(one, duration, power, duty, what, np.full(n, place), np.ones(n, np.intp), row, repeat)

    def _one_pass(self, one: _Pass) -> tuple[Any, ...]:
        """Launches and waits of one pass, in order."""
        rows = self.source.rows
        layers = self.source.layers
        paths = [layers[code] for code in rows.layer[one.rows].tolist()]
        order = unrolled(rows.count[one.rows], paths)
        row = order.row + one.rows.start
        launch_s = self.kernel_s[row] * order.weight
        gaps, scale = gaps_s(one.host_s[order.row] * order.weight, launch_s, one.time_s)
        self.scales.setdefault(one.phase, []).append(scale)
        tiny = gaps < _SHORTEST_WAIT_S
        tiny[0] = False
        gaps[0] += gaps[tiny].sum()
        gaps[tiny] = 0.0
        n = row.size
        duration = np.stack([gaps, launch_s], axis=1).ravel()
        power = np.stack([np.full(n, one.static_w), self.power_w[row]], axis=1).ravel()
        duty = np.zeros((len(DUTY_MODULES), 2 * n))
        duty[:, 1::2] = self.duty[:, row]
        what = np.tile([WAIT, LAUNCH], n)
        rows_ = np.stack([np.full(n, -1), row], axis=1).ravel()
        repeat = np.stack([np.full(n, -1), order.repeat], axis=1).ravel()
        if one.rest_s:
            duration, power = np.append(duration, one.rest_s), np.append(power, one.rest_w)
            mean_duty = (duty * duration[:-1]).sum(axis=1, keepdims=True) / one.time_s
            duty = np.concatenate([duty, mean_duty], axis=1)
            what = np.append(what, REST)
            rows_, repeat = np.append(rows_, -1), np.append(repeat, -1)
        kept = duration > 0
        return duration[kept], power[kept], duty[:, kept], what[kept], rows_[kept], repeat[kept]

    def _add(self, one: _Pass, *columns: Any) -> None:
        n = columns[0].size
        self.pieces.append((*columns, np.full(n, one.clock_mhz), np.full(n, one.phase), np.full(n, one.others_w)))

    def timeline(self, meter: Meter, repeats: bool | None) -> Timeline:
        parts = [np.concatenate([piece[i] for piece in self.pieces], axis=-1) for i in range(len(self.pieces[0]))]
        duration, power, duty, what, number, passes, row, repeat, clock, phase, others = parts
        length = float(duration.sum())
        again = length < meter.window_s if repeats is None else bool(repeats)
        at, shown = readings(duration, power, meter, np.nan if again else self.kinds[0].static_w)
        laid = np.concatenate([self.power_w[one.rows] for one in self.kinds])
        if self.prediction.gpu_count > 1:
            self.notes.append(f"one GPU's trace of {self.prediction.gpu_count} (column layout_power_w: all of them)")
        if self.prediction.gpu_count > self.source.alike:
            self.notes.append("it goes with one microbatch from stage to stage; the others are the rest of each pass")
        return Timeline(
            prediction=self.prediction,
            start_s=np.cumsum(duration) - duration,
            duration_s=duration,
            power_w=power,
            layout_power_w=power * self.source.alike + others,
            clock_mhz=clock,
            duty=duty,
            what=what,
            phase=phase,
            pass_number=number,
            passes=passes,
            row=row,
            repeat=repeat,
            phases=self.names,
            meter=meter,
            meter_at_s=at,
            meter_w=shown,
            meter_repeats=again,
            peak_power_w=float(max(laid.max(initial=0.0), max(one.static_w for one in self.kinds))),
            waiting_share=sum(one.repeats * max(one.time_s - one.gpu_s, 0.0) for one in self.kinds) / length,
            queue_scale={self.names[code]: (min(found), max(found)) for code, found in sorted(self.scales.items())},
            notes=tuple(self.notes),
        )


def _size_at(sizes: list[tuple[int, int]], place: int) -> int:
    """Rows of the pass with number `place` of its phase."""
    for repeats, rows in sizes:
        if place < repeats:
            return rows
        place -= repeats
    return 0
