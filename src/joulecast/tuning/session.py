"""One search as it runs: asks the evaluator through the log, counts what was asked, and judges every reading."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

import numpy as np
from pydantic import TypeAdapter

from joulecast.errors import InfeasibleError
from joulecast.meters.judge import judged
from joulecast.meters.reading import MeterFacts, Reading
from joulecast.tuning.evaluator import Check, Evaluator, Floats
from joulecast.tuning.log import Log, key_of
from joulecast.tuning.space import Code, Config, Space

#: Readings in a row of one configuration that may be refused before it is given up, and configurations in a row that
#: may be given up before the meter is.
REFUSALS, GIVEN_UP = 5, 10

Telling = Callable[[str, float], None]

_Kind = TypeVar("_Kind", Check, Reading, MeterFacts)

#: What the log holds, looked at before it is believed.
_ADAPTERS: dict[type, TypeAdapter[Any]] = {kind: TypeAdapter(kind) for kind in (Check, Reading, MeterFacts)}

#: Stage under which the log keeps what the meter says of itself.
_METER = "meter"


class UnreadableError(InfeasibleError):
    """The energy of one configuration can't be read: a search goes on without it."""


@dataclass
class Session:
    """What strategies work with: configurations by code, answers from the log where it holds them.

    Attributes
    ----------
    space : Space
    evaluator : Evaluator
    log : Log or None
    rng : numpy.random.Generator
    tell : callable
        Takes what is being done and the share that is done.
    unreadable : dict of tuple to str
        Configurations whose energy can't be read, with the reason of the last reading that was refused.
    """

    space: Space
    evaluator: Evaluator
    log: Log | None = None
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))
    tell: Telling = lambda what, share: None  # noqa: ARG005
    checks: dict[Code, Check] = field(default_factory=dict)
    times: dict[Code, float] = field(default_factory=dict)
    readings: dict[Code, list[Reading]] = field(default_factory=dict)
    unreadable: dict[Code, str] = field(default_factory=dict)
    refused: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    energy_readings: int = 0
    answered_by_log: int = 0
    outside_s: float = 0.0
    _asked: Counter[tuple[str, Code]] = field(default_factory=Counter)
    _facts: MeterFacts | None = None
    _in_a_row: int = 0

    def __post_init__(self) -> None:
        self._start = time.perf_counter()
        self._keys: dict[Code, str] = {}

    @property
    def overhead_s(self) -> float:
        """Time since the start that was spent neither in the evaluator nor in its place. [s]"""
        return time.perf_counter() - self._start - self.outside_s

    @property
    def facts(self) -> MeterFacts:
        """Of the meter as it read last, which was before a stop where every reading comes from the log."""
        if self._facts is None and self.log is not None:
            held = self.log.find(_METER, "")
            if held is not None:
                self._facts = self._made(MeterFacts, held)
        return self.evaluator.facts if self._facts is None else self._facts

    def config(self, code: Code) -> Config:
        """The configuration of a code."""
        return self.space.config(code)

    def check(self, codes: Sequence[Code]) -> list[Check]:
        """Whether each can run: pruned, compiled and tested by the evaluator, a batch at once."""
        unknown = [code for code in dict.fromkeys(codes) if code not in self.checks]
        missing = []
        for code in unknown:
            held = None if self.log is None else self.log.find("check", self._key(code))
            if held is None:
                missing.append(code)
            else:
                self.answered_by_log += 1
                self.checks[code] = self._made(Check, held)
        if missing:
            begun = time.perf_counter()
            found = self.evaluator.check([self.config(code) for code in missing])
            self.outside_s += time.perf_counter() - begun
            for code, check in zip(missing, found, strict=True):
                self.checks[code] = check
                if self.log is not None:
                    self.log.write("check", self._key(code), asdict(check) | {"features": dict(check.features)})
        for code in unknown:
            if not self.checks[code].ok:
                self.failed[f"{self.checks[code].stage}: {self.checks[code].reason}"] += 1
        return [self.checks[code] for code in codes]

    def time_s(self, code: Code, count: int = 7) -> float:
        """Mean time of a launch, NaN where the configuration fails; measured once. [s]"""
        if code in self.times:
            return self.times[code]
        if not self.check([code])[0].ok:
            self.times[code] = float("nan")
            return self.times[code]
        held = None if self.log is None else self.log.find("latency", self._key(code))
        if held is None:
            begun = time.perf_counter()
            found = np.asarray(self.evaluator.latency(self.config(code), count), dtype=np.float64)
            self.outside_s += time.perf_counter() - begun
            held = [float(value) for value in found]
            if self.log is not None:
                self.log.write("latency", self._key(code), held)
        else:
            self._recall(lambda: self.evaluator.latency(self.config(code), count))
            good = isinstance(held, list) and all(isinstance(t, float) and 0.0 < t < np.inf for t in held)
            if self.log is not None and not good:
                raise self.log.unusable()
        if not held:
            self.failed["launch: failed when it was timed"] += 1
        self.times[code] = float(np.median(held)) if held else float("nan")
        return self.times[code]

    def read(self, code: Code, stage: str = "energy") -> Reading:
        """The next reading that is not refused.

        Parameters
        ----------
        code : tuple of int
        stage : str
            Readings of other stages are others: what chose a configuration never confirms it.

        Raises
        ------
        UnreadableError
            If `REFUSALS` in a row are refused.
        InfeasibleError
            If that is so of `GIVEN_UP` configurations in a row, unless they come from a recording.
        """
        reason = ""
        for _ in range(REFUSALS):
            reading = self._next(code, stage)
            if not reading.refused:
                if stage == "energy":
                    self.readings.setdefault(code, []).append(reading)
                self._in_a_row = 0
                return reading
            reason = reading.refused
            self.refused[reason] += 1
        self.unreadable[code] = reason
        self._in_a_row += 1
        told = f"{REFUSALS} readings in a row of {dict(self.config(code))} were refused: {reason}"
        if self._in_a_row >= GIVEN_UP and not self._replays:
            raise InfeasibleError(f"no energy of {GIVEN_UP} configurations in a row could be read; at last, {told}")
        raise UnreadableError(told)

    def features(self, codes: Sequence[Code]) -> Floats:
        """Parameters as numbers, with what the evaluator and the checks know beside, shape (n, f)."""
        columns = [self.space.numbers(codes)]
        extra = self.evaluator.features([self.config(code) for code in codes])
        if extra is not None:
            columns.append(np.asarray(extra, dtype=np.float64))
        return np.concatenate(columns, axis=1)

    def _next(self, code: Code, stage: str) -> Reading:
        ordinal = self._asked[stage, code]
        self._asked[stage, code] += 1
        self.energy_readings += 1
        held = None if self.log is None else self.log.find(stage, self._key(code), ordinal)
        if held is not None:
            self._recall(lambda: self.evaluator.energy(self.config(code), 1))
            found = self._made(Reading, held)
            if not found.refused and not (0.0 < found.energy_j < np.inf and 0.0 < found.period_s < np.inf):
                assert self.log is not None
                raise self.log.unusable()
            return found
        begun = time.perf_counter()
        reading = self.evaluator.energy(self.config(code), 1)[0]
        self.outside_s += time.perf_counter() - begun
        facts = self.evaluator.facts
        reading = judged(reading, facts)
        if self.log is not None:
            if facts != self._facts:
                self.log.write(_METER, "", asdict(facts))
            self.log.write(stage, self._key(code), asdict(reading), ordinal)
        self._facts = facts
        return reading

    @property
    def _replays(self) -> bool:
        return bool(getattr(self.evaluator, "replays", False))

    def _recall(self, ask: Callable[[], object]) -> None:
        """Count an answer of the log; a recording is asked all the same, as its noise follows from what was asked."""
        self.answered_by_log += 1
        if self._replays:
            ask()

    def _made(self, kind: type[_Kind], held: Any) -> _Kind:
        """What was logged, as what it is."""
        try:
            if not set(held) <= set(kind.__dataclass_fields__):
                raise ValueError  # pydantic lets pass what a dataclass does not know
            found: _Kind = _ADAPTERS[kind].validate_json(json.dumps(held), strict=True)
            return found
        except (TypeError, ValueError):
            assert self.log is not None
            raise self.log.unusable() from None

    def _key(self, code: Code) -> str:
        if code not in self._keys:
            self._keys[code] = key_of(self.config(code))
        return self._keys[code]
