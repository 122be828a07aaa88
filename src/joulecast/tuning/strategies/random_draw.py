"""Draws configurations at random, times them and reads those within the slack: the least that a search must beat."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from joulecast.tuning.session import Session
from joulecast.tuning.space import Code
from joulecast.tuning.strategies.base import Found, Wanted, by_energy, by_time, least_read, nothing_ran


@dataclass(frozen=True)
class Random:
    """Settings.

    Attributes
    ----------
    passes : int
        Over what is within the slack; each reads every one twice.
    """

    passes: int = 2

    def run(self, session: Session, wanted: Wanted) -> Found:
        """Time a random share, read the eligible, confirm the best."""
        pool = session.space.pool(session.rng)
        drawn = [pool[place] for place in session.rng.permutation(len(pool))[: wanted.latency.evaluations]]
        for number, code in enumerate(drawn):
            session.tell("timing", 0.5 * number / len(drawn))
            session.time_s(code)
        ran = [code for code, time in session.times.items() if np.isfinite(time)]
        if not ran:
            raise nothing_ran(session)
        fastest = min(ran, key=lambda code: (session.times[code], code))
        if wanted.objective == "time":
            return by_time(session, wanted, fastest)

        def search(baseline: Code, eligible: list[Code]) -> Found:
            return least_read(session, wanted, fastest, baseline, eligible, self.passes, eligible)

        return by_energy(session, wanted, fastest, search)


STRATEGY = Random
