"""Clocks and power limits of a GPU side by side, for people: which is the fastest, which takes the least energy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from joulecast.cli import footprint
from joulecast.cli import page as pages
from joulecast.cli.rows import Outcome, marks
from joulecast.reports import text
from joulecast.reports.tables import Block, Facts, Heading, Table
from joulecast.scenarios import summary
from joulecast.scenarios.footprint import Site
from joulecast.scenarios.prediction import Prediction


def page(outcomes: Sequence[Outcome], site: Site | None) -> list[Block]:
    """One table a GPU, a row for each clock and limit."""
    blocks: list[Block] = []
    best = marks(outcomes)
    for gpu in dict.fromkeys(outcome.gpu for outcome in outcomes):
        mine = [(one, mark) for one, mark in zip(outcomes, best, strict=True) if one.gpu == gpu]
        answered = [one.prediction for one, _ in mine if one.prediction is not None]
        label = pages.gpu_label(answered[0]) if answered else gpu
        question = pages.question(answered[0].workload, answered[0].info) if answered else ""
        blocks.append(Heading(question, label))
        blocks.append(_table(mine))
        if len(answered) > 1:
            blocks.append(Facts(tuple(_optima(mine, answered, site))))
    return blocks + pages.remarks([one.prediction for one in outcomes if one.prediction is not None])


#: What a row is the best at, in few letters: lines below the table say it in words.
_NAMED = {(True, False): "fastest", (False, True): "fewest J", (True, True): "best", (False, False): ""}


def _table(points: Sequence[tuple[Outcome, dict[str, bool]]]) -> Table:
    rows: list[tuple[str, ...]] = []
    styles = []
    for outcome, mark in points:
        clock, limit = outcome.asked["clock_asked_mhz"], outcome.asked["power_limit_w"]
        head = (text.whole(clock), text.whole(limit))
        p = outcome.prediction
        if p is None:
            rows.append((*head, f"no answer: {outcome.error}"))
            styles.append("red")
            continue
        named = _NAMED[mark["fastest"], mark["fewest_joules"]]
        rows.append(
            (
                *head,
                text.whole(p.clock_mhz),
                text.duration(p.time_s),
                text.power(p.power_w),
                text.energy(p.energy_j),
                text.significant(p.energy_per_token_j),
                pages.short_bound(p.bound_by.removesuffix(", cap")),
                named,
            )
        )
        styles.append("bold" if named else "")
    unit = next((pages.unit_of(one.prediction) for one, _ in points if one.prediction is not None), "token")
    headers = ("MHz", "W", "runs at", "time", "power", "energy", f"J/{unit}", "bound by", "")
    return Table(headers, tuple(rows), "rrrrrrrll", tuple(styles))


def _optima(
    points: Sequence[tuple[Outcome, dict[str, bool]]], answered: Sequence[Prediction], site: Site | None
) -> Iterator[tuple[str, tuple[str, ...]]]:
    fast, thrifty = summary.fastest(answered), summary.thriftiest(answered)
    for label, chosen in (("fastest", fast), ("fewest joules", thrifty)):
        point = next(one for one, _ in points if one.prediction is chosen)
        pieces = [f"{text.whole(point.asked['clock_asked_mhz'])} MHz, {text.whole(point.asked['power_limit_w'])} W:"]
        pieces.append(f"{text.duration(chosen.time_s)} {pages.half(chosen, 'time_s')},")
        pieces.append(f"{text.energy(chosen.energy_j)} {pages.half(chosen, 'energy_j')}")
        if site is not None:
            pieces += footprint.pieces(chosen, site, pages.unit_of(chosen))
        if chosen is thrifty and thrifty is not fast:
            slower, saved = summary.traded(thrifty, fast)
            pieces.append(f"({text.percent(saved)} less energy for {text.percent(slower)} more time)")
        yield label, tuple(pieces)
