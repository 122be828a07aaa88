"""Lays the passes of a prediction out, launch by launch or as wholes: the rows of a `Timeline`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from joulecast.physics.power import static_power_w
from joulecast.physics.settled import module_energy_j
from joulecast.physics.timeline import pass_time_s
from joulecast.physics.trace import DUTY_MODULES, gaps_s, module_duty
from joulecast.physics.unroll import launch_count, unrolled
from joulecast.scenarios.launched import Launched
from joulecast.scenarios.prediction import Prediction

Floats = npt.NDArray[np.float64]
Places = npt.NDArray[np.intp]

#: What a row is.
WHATS = ("launch", "wait", "pass", "rest")
LAUNCH, WAIT, PASS, REST = range(len(WHATS))

#: Shorter waits are told together, before the first launch of their pass.
_SHORTEST_WAIT_S = 1e-9


@dataclass(frozen=True)
class OnePass:
    """What all repeats of one pass share.

    Attributes
    ----------
    phase : int
    rows : slice
        Its operations.
    repeats : int
    host_s : ndarray
        Host time to start each operation once. [s]
    gpu_s, time_s : float
        Of the GPU alone, and of the pass. [s]
    rest_s, rest_w : float
        What other microbatches take beyond it, and the mean power then. [s, W]
    energy_j : float
        Of one GPU, without the rest. [J]
    static_w, clock_mhz : float
    others_w : float
        What GPUs of the layout draw that do not do as this one. [W]
    """

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


#: Columns of the rows.
COLUMNS = (
    "duration_s", "power_w", "duty", "what", "pass_number", "passes", "row", "repeat", "clock_mhz", "phase", "others_w",
)  # fmt: skip


class LaidRows:
    """Collects the rows of a timeline pass by pass.

    Parameters
    ----------
    prediction : Prediction
    source : Launched
        Of it.
    only : int or None
        Which phase; None for all.
    """

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

    def _kinds(self, host_s: Floats) -> list[OnePass]:
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
                OnePass(
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

    def _wholes(self, one: OnePass, first: int, often: int, together: bool) -> None:
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

    def _launches(self, number: int, one: OnePass, place: int) -> None:
        if number not in self._laid:
            self._laid[number] = self._one_pass(one)
        duration, power, duty, what, row, repeat = self._laid[number]
        n = duration.size
        self._add(one, duration, power, duty, what, np.full(n, place), np.ones(n, np.intp), row, repeat)

    def _one_pass(self, one: OnePass) -> tuple[Any, ...]:
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

    def _add(self, one: OnePass, *columns: Any) -> None:
        n = columns[0].size
        self.pieces.append((*columns, np.full(n, one.clock_mhz), np.full(n, one.phase), np.full(n, one.others_w)))

    def columns(self) -> dict[str, Any]:
        """All rows, by `COLUMNS`."""
        return {name: np.concatenate([piece[i] for piece in self.pieces], axis=-1) for i, name in enumerate(COLUMNS)}

    @property
    def peak_power_w(self) -> float:
        """Of the launch that draws the most, laid out or not. [W]"""
        most = [max(float(self.power_w[one.rows].max(initial=0.0)), one.static_w) for one in self.kinds]
        return max(most)

    @property
    def waits_s(self) -> float:
        """How long the GPU waits for its host, over all passes. [s]"""
        return sum(one.repeats * max(one.time_s - one.gpu_s, 0.0) for one in self.kinds)


def _size_at(sizes: list[tuple[int, int]], place: int) -> int:
    """Rows of the pass with number `place` of its phase."""
    for repeats, rows in sizes:
        if place < repeats:
            return rows
        place -= repeats
    return 0
