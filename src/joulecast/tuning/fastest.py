"""Finds the fastest configurations with few evaluations: boosted trees on log time, with local moves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from joulecast.tuning.models import boosted
from joulecast.tuning.space import Code

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Settings:
    """How the search goes.

    Attributes
    ----------
    evaluations : int
        Configurations that are timed at most.
    patience : int
        Stop after so many in a row that improve the best time by less than 0.5 %.
    first : int
        Drawn at random before a model is fitted.
    batch : int
        Timed between two fits.
    local : float
        Share of proposals from within two tunables of the best.
    sharpness : float
        Offset of the second logarithm: the smaller, the more the model looks at the fast end.
    """

    evaluations: int = 600
    patience: int = 300
    first: int = 15
    batch: int = 5
    local: float = 0.3
    sharpness: float = 0.05


@dataclass
class Search:
    """Proposes configurations and learns their times: state of a search over a pool.

    Attributes
    ----------
    codes : sequence of tuple of int
        The pool.
    features : ndarray, shape (n, f)
        Of the pool.
    rng : numpy.random.Generator
    settings : Settings
    guess : ndarray, shape (n,), optional
        Log time before anything is measured: the first ones are then drawn from the better half.
    """

    codes: Sequence[Code]
    features: Floats
    rng: np.random.Generator
    settings: Settings = field(default_factory=Settings)
    guess: Floats | None = None

    def __post_init__(self) -> None:
        self._array = np.asarray(self.codes, dtype=np.int32)
        self._features = np.asarray(self.features, dtype=np.float64)
        self._left = np.ones(len(self.codes), dtype=bool)
        self.rows: list[int] = []
        self.times: list[float] = []

    @property
    def best(self) -> float:
        """Shortest time so far; infinity before one ran. [s]"""
        ran = [time for time in self.times if np.isfinite(time)]
        return min(ran) if ran else float("inf")

    def propose(self) -> list[int]:
        """Rows of the pool to time next; empty when all were."""
        left = np.flatnonzero(self._left)
        if len(left) == 0:
            return []
        times = np.array(self.times)
        ran = np.isfinite(times)
        if len(self.rows) < self.settings.first or ran.sum() < 3:
            count = max(self.settings.first - len(self.rows), self.settings.batch)
            drawn = self.rng.permutation(left)
            if self.guess is not None and not self.rows:
                drawn = drawn[: 8 * count][np.argsort(self.guess[drawn[: 8 * count]], kind="stable")]
            return [int(row) for row in drawn[:count]]
        model = boosted(np.asarray(self._features[self.rows]), self.targets(), int(self.rng.integers(1 << 30)))
        score = model.predict(self._features[left])
        best_row = self.rows[int(np.nanargmin(times))]
        apart = (self._array[left] != self._array[best_row]).sum(axis=1)
        chosen: list[int] = []
        taken = np.zeros(len(left), dtype=bool)
        batch = max(self.settings.batch, len(self.rows) // 25)  # late fits change little
        for _ in range(min(batch, len(left))):
            open_ = ~taken
            if self.rng.random() < self.settings.local and (open_ & (apart <= 2)).any():
                open_ &= apart <= 2
            pick = int(np.argmin(np.where(open_, score, np.inf)))
            taken[pick] = True
            chosen.append(int(left[pick]))
        return chosen

    def learn(self, row: int, time_s: float) -> None:
        """The time of a row of the pool; NaN where it failed."""
        self._left[row] = False
        self.rows.append(row)
        self.times.append(time_s)

    def targets(self) -> Floats:
        """What the model learns: logarithms, stretched at the fast end; failures count as the slowest tenth."""
        times = np.array(self.times)
        logs = np.log(np.where(np.isfinite(times), times, 1.0))
        ran = np.isfinite(times)
        slow = float(np.quantile(logs[ran], 0.9))
        logs = np.where(ran, logs, slow)
        return np.asarray(np.log(logs - logs[ran].min() + self.settings.sharpness))


def run(search: Search, time_of: Callable[[int], float], tell: Callable[[float], None] | None = None) -> None:
    """Time proposals until the budget or the patience ends.

    Parameters
    ----------
    search : Search
    time_of : callable
        Time of a row of the pool, NaN where it fails. [s]
    tell : callable, optional
        Takes the share of the budget that is used.
    """
    since, best = 0, float("inf")
    while len(search.rows) < min(search.settings.evaluations, len(search.codes)) and since < search.settings.patience:
        for row in search.propose():
            if len(search.rows) >= search.settings.evaluations:
                break
            time_s = time_of(row)
            search.learn(row, time_s)
            if np.isfinite(time_s) and time_s < best * 0.995:
                since = 0
            else:
                since += 1
            if np.isfinite(time_s):
                best = min(best, time_s)
        if tell is not None:
            tell(len(search.rows) / min(search.settings.evaluations, len(search.codes)))
