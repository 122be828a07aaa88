"""What every strategy is asked and gives, and the steps that strategies share."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from joulecast.errors import InfeasibleError
from joulecast.meters.reading import Reading
from joulecast.meters.recording import STATES
from joulecast.tuning.fastest import Search, Settings, run
from joulecast.tuning.reasons import grouped
from joulecast.tuning.session import Session, UnreadableError
from joulecast.tuning.space import Code, Space
from joulecast.tuning.statistics import Saving, Standing, blocks_needed, saving_of


@dataclass(frozen=True)
class Wanted:
    """What is asked of a search.

    Attributes
    ----------
    slack : float
        How much slower than the fastest a configuration may be. [share]
    baseline : tuple of int or None
        Code of the configuration that savings are told against; None for the fastest found.
    objective : str
        ``energy``, or ``time`` for the fastest alone.
    latency : Settings
        Of the search for the fastest.
    energy_readings : int
        Readings of energy at most, confirmation included.
    confirm_blocks : int
        ABBA blocks of the confirmation at most.
    """

    slack: float = 0.02
    baseline: Code | None = None
    objective: str = "energy"
    latency: Settings = field(default_factory=Settings)
    energy_readings: int = 600
    confirm_blocks: int = 40


@dataclass(frozen=True)
class Found:
    """What a strategy found.

    Attributes
    ----------
    chosen : tuple of int
        What to use: the candidate where its saving is confirmed, else the baseline.
    baseline, fastest : tuple of int
    candidate : tuple of int or None
        What was confirmed, or failed to be; None where nothing but the baseline was left.
    saving : Saving or None
        Of the candidate on fresh readings; None where there was no candidate, or energy was not asked for.
    eligible : int
        Configurations found within the slack.
    notes : tuple of str
    blocks : tuple of (Reading, Reading, Reading, Reading)
        The confirmation, block by block: two readings of the baseline around two of the candidate, or within them.
    """

    chosen: Code
    baseline: Code
    fastest: Code
    candidate: Code | None = None
    saving: Saving | None = None
    eligible: int = 0
    notes: tuple[str, ...] = ()
    blocks: tuple[tuple[Reading, Reading, Reading, Reading], ...] = ()


class Strategy(Protocol):
    """A way to search."""

    def run(self, session: Session, wanted: Wanted) -> Found:
        """Search.

        Raises
        ------
        joulecast.errors.InfeasibleError
            If no configuration runs.
        """
        ...


def time_all_that_matter(session: Session, wanted: Wanted, pool: list[Code]) -> Code:
    """Search `pool` for the fastest, and then for what is within the slack; gives the fastest.

    Where the core clock or the power limit is a tunable, the search is at the highest alone: nothing is faster at a
    lower one. From each that is within the slack there, they are then lowered for as long as it stays within.

    Raises
    ------
    InfeasibleError
        If nothing ran.
    """
    settings = wanted.latency
    everything, pool = pool, _at_the_top(session.space, pool)
    guess = session.evaluator.prior([session.config(code) for code in pool])
    search = Search(pool, session.features(pool), session.rng, settings, None if guess is None else np.log(guess[0]))
    run(
        search,
        lambda row: session.time_s(pool[row]),
        lambda share: session.tell(f"timing, best {search.best * 1e3:.4g} ms", 0.5 * share),
    )
    _climb(session, pool, search, max(settings.evaluations // 2, 50))
    if wanted.objective == "energy":
        _widen(session, wanted, pool, search)
        _lower(session, wanted, everything)
    ran = {code: time for code, time in session.times.items() if np.isfinite(time)}
    if not ran:
        raise nothing_ran(session)
    return min(ran, key=lambda code: (ran[code], code))


def nothing_ran(session: Session) -> InfeasibleError:
    """What to raise where every configuration failed."""
    why = [f"{count} x {reason}" for reason, count in grouped(session.failed).items()][:3]
    return InfeasibleError(f"no configuration of {len(session.times)} tried runs: {', '.join(why)}")


def _climb(session: Session, pool: list[Code], search: Search, most: int) -> None:
    """Time what differs from the best in one tunable, until none of it is faster."""
    place = {code: row for row, code in enumerate(pool)}
    timed = set(search.rows)
    while most > 0 and search.rows:
        times = np.array(search.times)
        if not np.isfinite(times).any():
            return
        best = search.best
        top = pool[search.rows[int(np.nanargmin(times))]]
        beside = [place[code] for code in session.space.neighbours(top) if code in place and place[code] not in timed]
        for row in beside[:most]:
            timed.add(row)
            search.learn(row, session.time_s(pool[row]))
        most -= len(beside)
        if search.best >= best:
            return


def _widen(session: Session, wanted: Wanted, pool: list[Code], search: Search) -> None:
    """Time configurations that are likely within the slack, until the model expects no more of them."""
    from joulecast.tuning.models import boosted

    features = np.asarray(search.features)
    left_to_spend = max(wanted.latency.evaluations // 2, 50)
    while left_to_spend > 0 and len(search.rows) < len(pool):
        rows, times = np.array(search.rows), np.array(search.times)
        if np.isfinite(times).sum() < 3:
            return
        model = boosted(features[rows], search.targets(), int(session.rng.integers(1 << 30)), rounds=60)
        left = np.setdiff1d(np.arange(len(pool)), rows)
        score = model.predict(features[left])
        edge = np.log(np.log1p(wanted.slack) + wanted.latency.sharpness) + 0.15
        likely = left[score <= edge]
        batch = likely[np.argsort(score[score <= edge], kind="stable")][: min(20, left_to_spend)]
        if len(batch) == 0:
            return
        limit = search.best * (1.0 + wanted.slack)
        hits = 0
        for row in batch.tolist():
            time_s = session.time_s(pool[row])
            search.learn(row, time_s)
            hits += bool(np.isfinite(time_s) and time_s <= limit)
        left_to_spend -= len(batch)
        if hits == 0 and len(batch) >= 10:
            return


def _states(space: Space) -> list[int]:
    """Places of the tunables that are the device's and not the kernel's: core clock and power limit."""
    names = {name for several in STATES.values() for name in several}
    return [
        place
        for place, tunable in enumerate(space.tunables)
        if tunable.name in names and tunable.ordered and len(tunable.values) > 1
    ]


def _at_the_top(space: Space, pool: list[Code]) -> list[Code]:
    """Those of a pool at the highest clock and limit; the pool itself where there is no such tunable."""
    for place in _states(space):
        values = space.tunables[place].values
        top = max(range(len(values)), key=lambda at: float(values[at]))
        pool = [code for code in pool if code[place] == top] or pool
    return pool


def beside_in_state(space: Space, code: Code) -> list[Code]:
    """The same kernel a step lower or higher in core clock or power limit, lower ones first."""
    found = []
    for step in (-1, 1):
        for place in _states(space):
            values = space.tunables[place].values
            order = sorted(range(len(values)), key=lambda at: float(values[at]))
            rank = order.index(code[place]) + step
            if 0 <= rank < len(order):
                found.append((*code[:place], order[rank], *code[place + 1 :]))
    return found


def _lower(session: Session, wanted: Wanted, pool: list[Code]) -> None:
    """Lower clock and limit of each that is within the slack, a step at a time, until it is no longer."""
    places = _states(session.space)
    ran = {code: time for code, time in session.times.items() if np.isfinite(time)}
    if not places or not ran:
        return
    known = set(pool)
    limit = min(ran.values()) * (1.0 + wanted.slack)
    due = deque(sorted((code for code, time in ran.items() if time <= limit), key=lambda code: ran[code]))
    most = len(session.times) + wanted.latency.evaluations
    while due and len(session.times) < most:
        for below in beside_in_state(session.space, due.popleft())[: len(places)]:
            if below in known and below not in session.times and session.time_s(below) <= limit:
                due.append(below)


def within_slack(session: Session, wanted: Wanted, fastest: Code) -> list[Code]:
    """Timed codes within the slack of the fastest, the fastest first."""
    limit = session.times[fastest] * (1.0 + wanted.slack)
    found = [code for code, time in session.times.items() if np.isfinite(time) and time <= limit]
    return sorted(found, key=lambda code: (session.times[code], code))


def by_energy(
    session: Session, wanted: Wanted, fastest: Code, search: Callable[[Code, list[Code]], Found]
) -> Found:  # fmt: skip
    """Search among what is within the slack for the least energy, without what can't be read.

    Parameters
    ----------
    session : Session
    wanted : Wanted
    fastest : tuple of int
    search : callable
        Takes the baseline and what is within the slack. Where it raises `UnreadableError` it starts anew without that,
        which happens where the baseline, or all that it has left, can't be read.

    Raises
    ------
    InfeasibleError
        If nothing within the slack can be read, or the baseline that was given can't.
    """
    while True:
        within = within_slack(session, wanted, fastest)
        readable = [code for code in within if code not in session.unreadable]
        baseline = wanted.baseline if wanted.baseline is not None else next(iter(readable), fastest)
        if baseline in session.unreadable or not readable:
            what = "the baseline" if readable else f"none of {len(within)} configurations within the slack"
            why = next(iter(grouped(session.refused)))
            raise InfeasibleError(f"the energy of {what} can't be read: {why}")
        try:
            found = search(baseline, readable)
        except UnreadableError:
            continue
        if wanted.baseline is None and baseline != fastest:
            said = "the energy of the fastest can't be read: the baseline is the fastest of those whose energy can"
            return replace(found, notes=(*found.notes, said))
        return found


def readable(session: Session, codes: Iterable[Code]) -> list[Code]:
    """Those of `codes` that were not given up.

    Raises
    ------
    UnreadableError
        If none is left.
    """
    left = [code for code in codes if code not in session.unreadable]
    if not left:
        raise UnreadableError("what was left can't be read")
    return left


def one_pass(session: Session, baseline: Code, others: Iterable[Code], standing: Standing) -> None:
    """Read the baseline and others, forth and back, so that what changes steadily cancels; without what can't be read.

    Raises
    ------
    UnreadableError
        If the baseline can't: passes are linked by it.
    """
    codes = list(dict.fromkeys([baseline, *others]))
    order = [codes[place] for place in session.rng.permutation(len(codes))]
    first = _levels(session, order)
    second = _levels(session, list(reversed(order)))
    codes = readable(session, codes)
    if codes[0] != baseline:
        raise UnreadableError("the baseline can't be read")
    standing.passes.append({code: 0.5 * (first[code] + second[code]) for code in codes})
    gaps = np.array([second[code] - first[code] for code in codes])
    if len(codes) > 1:  # what all share is drift, not noise
        gaps = gaps - gaps.mean()
        standing.spreads.extend((0.5 * gaps**2 * len(codes) / (len(codes) - 1)).tolist())
    else:
        standing.spreads.append(float(0.5 * gaps[0] ** 2))


def _levels(session: Session, codes: list[Code]) -> dict[Code, float]:
    """Log energy of each by one reading; what can't be read is left out."""
    found = {}
    for code in codes:
        if code not in session.unreadable:
            with contextlib.suppress(UnreadableError):
                found[code] = float(np.log(session.read(code).energy_j))
    return found


def confirmed(
    session: Session, wanted: Wanted, baseline: Code, candidate: Code, expected: float, spread: float
) -> tuple[Saving, tuple[tuple[Reading, Reading, Reading, Reading], ...]]:
    """Saving of a candidate on readings that had no part in choosing it.

    Parameters
    ----------
    session : Session
    wanted : Wanted
    baseline, candidate : tuple of int
    expected : float
        Difference of log energy that the choice promised; half of it is looked for, as choices promise too much.
    spread : float
        Standard deviation of a reading's logarithm.

    Returns
    -------
    saving : Saving
    blocks : tuple

    Notes
    -----
    The number of blocks is fixed before the first is read: stopping when the interval looks good would spoil it.
    Each block is ABBA or BAAB by chance: recorded meters swing with a period of eight readings, which a fixed order
    of four turns into a difference.
    """
    count = blocks_needed(max(0.5 * expected, 0.002), spread, most=wanted.confirm_blocks)
    stage = f"confirm {baseline} {candidate}"
    blocks: list[tuple[Reading, Reading, Reading, Reading]] = []
    for number in range(count):
        session.tell("confirming", 0.8 + 0.2 * number / count)
        outer, inner = (baseline, candidate) if session.rng.random() < 0.5 else (candidate, baseline)
        read = [session.read(code, stage) for code in (outer, inner, inner, outer)]
        a, b = ((0, 3), (1, 2)) if outer == baseline else ((1, 2), (0, 3))
        blocks.append((read[a[0]], read[b[0]], read[b[1]], read[a[1]]))
    warmer = [_warmer(block) for block in blocks]
    saving = saving_of(
        [(block[0].energy_j, block[3].energy_j) for block in blocks],
        [(block[1].energy_j, block[2].energy_j) for block in blocks],
        warmer,
    )
    return saving, tuple(blocks)


def _warmer(block: tuple[Reading, Reading, Reading, Reading]) -> float | None:
    first, second, third, fourth = (reading.temperature_c for reading in block)
    if first is None or second is None or third is None or fourth is None:
        return None
    return 0.5 * (second + third - first - fourth)


def by_time(session: Session, wanted: Wanted, fastest: Code) -> Found:
    """What is found where only time is asked for."""
    baseline = wanted.baseline if wanted.baseline is not None else fastest
    return Found(fastest, baseline, fastest, eligible=len(within_slack(session, wanted, fastest)))


def least_read(
    session: Session, wanted: Wanted, fastest: Code, baseline: Code, eligible: list[Code], passes: int,
    codes: Sequence[Code],
) -> Found:  # fmt: skip
    """Read each of `codes` in every pass, and confirm the least of `eligible`."""
    standing = Standing([], [])
    for _ in range(passes):
        one_pass(session, baseline, codes, standing)
    levels, _errors = standing.levels()
    best = min(readable(session, eligible), key=lambda code: levels[code])
    return settled(session, wanted, fastest, baseline, best, standing, len(eligible))


def settled(
    session: Session, wanted: Wanted, fastest: Code, baseline: Code, best: Code, standing: Standing, eligible: int,
    notes: tuple[str, ...] = (),
) -> Found:  # fmt: skip
    """The end of every strategy: the best is confirmed against the baseline, and chosen only where it saves."""
    if best == baseline:
        return Found(baseline, baseline, fastest, None, None, eligible, notes)
    levels, _ = standing.levels()
    expected = levels[baseline] - levels[best] if baseline in levels and best in levels else 0.01
    saving, blocks = confirmed(session, wanted, baseline, best, expected, standing.spread or 0.02)
    chosen = best if saving.significant else baseline
    return Found(chosen, baseline, fastest, best, saving, eligible, notes, blocks)
