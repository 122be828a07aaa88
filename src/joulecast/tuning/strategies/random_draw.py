"""Draws configurations at random, times them and reads those within the slack: the least that a search must beat."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from joulecast.tuning.session import Session
from joulecast.tuning.statistics import Standing
from joulecast.tuning.strategies.base import Found, Wanted, nothing_ran, one_pass, settled, within_slack


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
        ran = [code for code in drawn if np.isfinite(session.times[code])]
        if not ran:
            raise nothing_ran(session)
        fastest = min(ran, key=lambda code: (session.times[code], code))
        eligible = within_slack(session, wanted, fastest)
        baseline = wanted.baseline if wanted.baseline is not None else fastest
        if wanted.objective == "time":
            return Found(fastest, baseline, fastest, eligible=len(eligible))
        standing = Standing([], [])
        for _ in range(self.passes):
            one_pass(session, list(dict.fromkeys([baseline, *eligible])), standing)
        levels, _errors = standing.levels()
        best = min(eligible, key=lambda code: levels[code])
        return settled(session, wanted, fastest, best, standing, len(eligible))


STRATEGY = Random
