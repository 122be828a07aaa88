"""Reads the energy of every configuration: what other strategies are measured against."""

from __future__ import annotations

from dataclasses import dataclass

from joulecast.tuning.session import Session
from joulecast.tuning.statistics import Standing
from joulecast.tuning.strategies.base import Found, Wanted, nothing_ran, one_pass, settled, within_slack


@dataclass(frozen=True)
class MeasureAll:
    """Settings.

    Attributes
    ----------
    passes : int
        Over all configurations; each reads every one twice.
    eligible_only : bool
        Leave out those that are too slow.
    """

    passes: int = 2
    eligible_only: bool = False

    def run(self, session: Session, wanted: Wanted) -> Found:
        """Time and read everything, then confirm the best."""
        pool = session.space.pool(session.rng)
        times = {code: session.time_s(code) for code in pool}
        ran = [code for code in pool if times[code] == times[code]]
        if not ran:
            raise nothing_ran(session)
        fastest = min(ran, key=lambda code: (times[code], code))
        eligible = within_slack(session, wanted, fastest)
        baseline = wanted.baseline if wanted.baseline is not None else fastest
        if wanted.objective == "time":
            return Found(fastest, baseline, fastest, eligible=len(eligible))
        standing = Standing([], [])
        codes = eligible if self.eligible_only else ran
        for _ in range(self.passes):
            one_pass(session, list(dict.fromkeys([baseline, *codes])), standing)
        levels, _errors = standing.levels()
        best = min(eligible, key=lambda code: levels[code])
        return settled(session, wanted, fastest, best, standing, len(eligible))


STRATEGY = MeasureAll
