"""Reads the energy of every configuration: what other strategies are measured against."""

from __future__ import annotations

from dataclasses import dataclass

from joulecast.tuning.session import Session
from joulecast.tuning.space import Code
from joulecast.tuning.strategies.base import Found, Wanted, by_energy, by_time, least_read, nothing_ran


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
        if wanted.objective == "time":
            return by_time(session, wanted, fastest)

        def search(baseline: Code, eligible: list[Code]) -> Found:
            return least_read(session, wanted, fastest, baseline, eligible, self.passes,
                              eligible if self.eligible_only else ran)  # fmt: skip

        return by_energy(session, wanted, fastest, search)


STRATEGY = MeasureAll
