"""The published search: generations, the M fastest, a boosted model of energy, and a share k of them measured.

Kernel energy search of arXiv 2411.18873. What it leaves open is a setting here, with what we take for it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from joulecast.tuning.models import boosted, described
from joulecast.tuning.session import Session, UnreadableError
from joulecast.tuning.space import Code
from joulecast.tuning.statistics import Standing
from joulecast.tuning.strategies.base import Found, Wanted, by_energy, nothing_ran, settled


@dataclass(frozen=True)
class Paper:
    """Settings.

    Attributes
    ----------
    population : int
        Configurations a generation.
    generations : int
    kept : int
        M, the fastest of a generation whose energy is looked at. Not published.
    k, step, floor : float
        Share of them that is measured: at first, by how much it changes, and its least.
    mu : float
        Threshold of the model's error. Published neither in value nor in kind: here the root mean square error of log
        energy on the configurations of this generation that were measured, before they are learned. Below it k falls.
    readings : int
        Averaged for each measured configuration.
    mutation : float
        Probability that a child is mutated rather than crossed.
    fresh : float
        Share of each generation that is drawn at random.
    """

    population: int = 64
    generations: int = 8
    kept: int = 16
    k: float = 1.0
    step: float = 0.2
    floor: float = 0.2
    mu: float = 0.05
    readings: int = 4
    mutation: float = 0.85
    fresh: float = 0.1

    def run(self, session: Session, wanted: Wanted) -> Found:
        """Search by generations, then confirm the lowest as every strategy does."""
        pool = session.space.pool(session.rng)
        known = set(pool)
        size = min(self.population, len(pool))
        generation = [pool[at] for at in session.rng.permutation(len(pool))[:size]]
        energies: dict[Code, float] = {}
        standing = Standing([], [])
        share, trace = self.k, []
        for number in range(self.generations):
            session.tell(f"generation {number + 1}", 0.8 * number / self.generations)
            session.check(generation)
            ran = [code for code in generation if np.isfinite(session.time_s(code))]
            ran = [code for code in ran if code not in session.unreadable]
            fast = sorted(ran, key=lambda code: (session.times[code], code))[: self.kept]
            if not fast and not energies:
                generation = [pool[at] for at in session.rng.permutation(len(pool))[:size]]
                continue
            predicted = self._predicted(session, fast, energies)
            order = sorted(range(len(fast)), key=lambda at: predicted[at])
            count = min(math.ceil(share * len(fast)), len(fast))
            errors = []
            for at in order[:count]:
                code = fast[at]
                if code not in energies:
                    try:
                        values = np.log([session.read(code).energy_j for _ in range(self.readings)])
                    except UnreadableError:
                        continue
                    energies[code] = float(np.exp(values.mean()))
                    standing.passes.append({code: float(values.mean())})
                    standing.spreads.append(float(values.var(ddof=1)) if len(values) > 1 else 0.0)
                    if number:
                        errors.append(math.log(energies[code]) - predicted[at])
            if errors:
                trusted = float(np.sqrt(np.mean(np.square(errors)))) < self.mu
                share = max(share - self.step, self.floor) if trusted else min(share + self.step, 1.0)
            trace.append(share)
            best = {code: predicted[at] for at, code in enumerate(fast) if code not in session.unreadable}
            best |= {code: math.log(energy) for code, energy in energies.items()}
            parents = sorted(best, key=lambda code: best[code])[: self.kept]
            generation = self._children(session, parents or fast, pool, known, size)
        times = {code: time for code, time in session.times.items() if np.isfinite(time)}
        if not times:
            raise nothing_ran(session)
        fastest = min(times, key=lambda code: (times[code], code))
        notes = (f"k by generation: {', '.join(f'{value:.1f}' for value in trace)}",)

        def search(baseline: Code, eligible: list[Code]) -> Found:
            fits = [code for code in energies if code in eligible]
            winner = min(fits, key=lambda code: energies[code]) if fits else eligible[0]
            return settled(session, wanted, fastest, baseline, winner, standing, len(fits), notes)

        return by_energy(session, wanted, fastest, search)

    def _predicted(self, session: Session, codes: list[Code], energies: dict[Code, float]) -> list[float]:
        """Log energy by a boosted model with the published loss, squared error over the measured energy."""
        if len(energies) < 4:
            return [math.log(session.times[code]) for code in codes]
        learned = list(energies)
        values = np.array([energies[code] for code in learned])
        both = [*learned, *codes]
        seen = described(session.features(both), np.array([session.times[code] for code in both]))
        model = boosted(
            seen[: len(learned)], values, int(session.rng.integers(1 << 30)), weights=values.mean() / values, rounds=100
        )
        raw = model.predict(seen[len(learned) :])
        return [float(value) for value in np.log(np.maximum(raw, 0.1 * values.min()))]

    def _children(
        self, session: Session, parents: list[Code], pool: list[Code], known: set[Code], size: int
    ) -> list[Code]:
        children: dict[Code, None] = {}
        fresh = max(int(self.fresh * size), 1)
        for at in session.rng.permutation(len(pool))[:fresh]:
            children[pool[at]] = None
        for _ in range(20 * size):
            if len(children) >= size:
                break
            one = parents[int(session.rng.integers(len(parents)))]
            if session.rng.random() < self.mutation or len(parents) == 1:
                child = session.space.mutated(one, session.rng)
            else:
                other = parents[int(session.rng.integers(len(parents)))]
                child = session.space.crossed(one, other, session.rng)
            if session.space.listed is None or child in known:
                children[child] = None
        return list(children)


STRATEGY = Paper
