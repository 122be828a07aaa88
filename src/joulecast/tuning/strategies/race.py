"""The default: a race for time, then one for energy among those fast enough, and a confirmation on fresh readings."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from joulecast.tuning.models import PowerModel, described
from joulecast.tuning.session import Session
from joulecast.tuning.space import Code
from joulecast.tuning.statistics import Standing
from joulecast.tuning.strategies.base import (
    Found,
    Wanted,
    beside_in_state,
    by_energy,
    by_time,
    one_pass,
    readable,
    settled,
    time_all_that_matter,
)


@dataclass(frozen=True)
class Race:
    """Settings of the race.

    Attributes
    ----------
    first : int
        Configurations read before a power model is fitted.
    batch : int
        Read between two fits.
    caution : float
        Standard deviations that a promising configuration may be better than predicted.
    confidence : float
        Standard errors by which a configuration must trail before it is dropped early.
    close_enough : float
        Difference of log energy that isn't worth telling apart.
    rounds : int
        Of successive halving, at most.
    """

    first: int = 8
    batch: int = 6
    caution: float = 1.0
    confidence: float = 2.0
    close_enough: float = 0.001
    rounds: int = 6

    def run(self, session: Session, wanted: Wanted) -> Found:
        """Search."""
        pool = session.space.pool(session.rng)
        fastest = time_all_that_matter(session, wanted, pool)
        if wanted.objective == "time":
            return by_time(session, wanted, fastest)

        def search(baseline: Code, eligible: list[Code]) -> Found:
            standing = Standing([], [])
            read = self._explore(session, wanted, eligible, baseline, standing)
            best = self._halve(session, wanted, read, baseline, standing)
            return settled(session, wanted, fastest, baseline, best, standing, len(eligible))

        return by_energy(session, wanted, fastest, search)

    def _explore(
        self, session: Session, wanted: Wanted, eligible: list[Code], baseline: Code, standing: Standing
    ) -> list[Code]:
        """One pass over each configuration that may be the best, those that a model of power expects most of first.

        At the end the best one's own clock and limit are stepped up and down until no step uses less.
        """
        times = np.array([session.times[code] for code in eligible])
        features = described(session.features(eligible), times)
        place = {code: at for at, code in enumerate(eligible)}
        start = [code for code in eligible if code != baseline]
        if len(start) > self.first:
            half = self.first // 2
            others = session.rng.permutation(len(start) - half)[: self.first - half]
            start = start[:half] + [start[half + int(at)] for at in others]
        one_pass(session, baseline, start, standing)
        read = readable(session, [code for code in (baseline, *start) if code in place])
        while len(read) < len(eligible) and self._spent(session, wanted) < 0.4:
            levels, errors = standing.levels()
            least = min(levels.values())
            session.tell(f"reading energy, best {np.exp(least) * 1e3:.4g} mJ", 0.5 + 0.3 * len(read) / len(eligible))
            rows = [place[code] for code in read]
            energies = np.exp([levels[code] for code in read])
            model = PowerModel.fit(features[rows], times[rows], energies, features)
            mean, spread = model.predict(features, times)
            unread = [at for at, code in enumerate(eligible) if code not in levels and code not in session.unreadable]
            promise = mean - self.caution * np.hypot(spread, standing.spread / math.sqrt(2.0))
            best = min(read, key=lambda code: levels[code])
            bar = levels[best] + errors[best]
            hopeful = sorted((at for at in unread if promise[at] < bar), key=lambda at: promise[at])[: self.batch]
            if not hopeful:
                break
            one_pass(session, baseline, [eligible[at] for at in hopeful], standing)
            read = readable(session, [*read, *(eligible[at] for at in hopeful)])
        while self._spent(session, wanted) < 0.5:
            levels, _ = standing.levels()
            best = min(read, key=lambda code: levels[code])
            beside = [
                code for code in beside_in_state(session.space, best)
                if code in place and code not in levels and code not in session.unreadable
            ]  # fmt: skip
            if not beside:
                break
            one_pass(session, baseline, [best, *beside], standing)
            read = readable(session, [*read, *beside])
        return read

    def _halve(self, session: Session, wanted: Wanted, read: list[Code], baseline: Code, standing: Standing) -> Code:
        """Successive halving: those that trail beyond doubt leave, and of the others the better half stays."""
        left = list(read)
        for number in range(self.rounds):
            levels, errors = standing.levels()
            left = sorted(readable(session, left), key=lambda code: levels[code])
            best = left[0]
            left = [
                code
                for code in left
                if levels[code] - levels[best] <= self.confidence * math.hypot(errors[code], errors[best])
            ]
            most = max(len(read) >> number, 2)
            left = left[: most if number else len(left)]
            gap = max(levels[code] - levels[best] for code in left)
            sure = self.confidence * math.sqrt(2.0) * errors[best]
            if len(left) == 1 or gap + sure < self.close_enough or self._spent(session, wanted) > 0.7:
                break
            session.tell(
                f"racing {len(left)}, best {np.exp(levels[best]) * 1e3:.4g} mJ", 0.8 * (number + 1) / self.rounds
            )
            for _ in range(min(1 << number, 4)):
                one_pass(session, baseline, left, standing)
        levels, _ = standing.levels()
        return min(readable(session, left), key=lambda code: levels[code])

    def _spent(self, session: Session, wanted: Wanted) -> float:
        """Share of the readings that are left after a full confirmation."""
        return session.energy_readings / max(wanted.energy_readings - 4 * wanted.confirm_blocks, 1)


STRATEGY = Race
