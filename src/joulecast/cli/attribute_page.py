"""An attribution as a page, a JSON document and rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulecast.reports import text
from joulecast.reports.tables import Block, Facts, Heading, Table
from joulecast.traces.attribution import Attribution, basis_shares, recognised_share
from joulecast.traces.groups import IDLE
from joulecast.traces.names import short_name
from joulecast.traces.times import time_errors

if TYPE_CHECKING:
    from joulecast.traces.reconcile import Reconciliation

#: Columns that the name may take on a page of 80.
_NAME_WIDTH = 34


def page(found: Attribution, by: str, top: int, meter: Sequence[Reconciliation]) -> list[Block]:
    """The page for people."""
    families = found.table("family")
    known = {name: share for name, share in basis_shares(found.shares).items() if share > 0}
    recognised = text.percent(recognised_share(found.shares))
    facts = (
        ("energy goes to", tuple(f"{name} {text.percent(share)}" for name, share in _top(families, 8))),
        ("work known by", tuple(f"{name} {text.percent(share)}" for name, share in known.items())),
        ("recognised", (f"kernels of {recognised} of the kernel time",)),
        *_times(found),
    )
    hardware = f"{found.gpu} · {text.whole(found.clock_mhz)} MHz · {text.whole(found.power_limit_w)} W limit"
    blocks: list[Block] = [Heading(_title(found), hardware), _totals(found), Facts(facts), _table(found, by, top)]
    blocks += [_meter(one) for one in meter]
    remarks = [("warning" if not place else "", (line,)) for place, line in enumerate(found.warnings)]
    remarks += [("note" if not place else "", (line,)) for place, line in enumerate(found.notes)]
    if remarks:
        blocks.append(Facts(tuple(remarks), label_width=10))
    return blocks


def document(found: Attribution, by: str, meter: Sequence[Reconciliation]) -> dict[str, Any]:
    """The JSON document."""
    return {
        "schema": "joulecast.attribution/1",
        "traces": list(dict.fromkeys(share.profile.source for share in found.shares)),
        "gpu": found.gpu,
        "clock_mhz": found.clock_mhz,
        "clock_given": found.clock_given,
        "power_limit_w": found.power_limit_w,
        "time_s": found.time_s,
        "energy_j": found.energy_j,
        "energy_j_lower": found.interval_j[0],
        "energy_j_upper": found.interval_j[1],
        "power_w": found.power_w,
        "idle_s": sum(share.account.idle_s for share in found.shares),
        "idle_j": sum(share.account.idle_j for share in found.shares),
        "recognised_time_share": recognised_share(found.shares),
        "work_known_by": basis_shares(found.shares),
        "predicted_times": time_errors(found.shares),
        "families": _records(found.table("family")),
        "by": by,
        "groups": _records(found.table(by)),
        "meter": [one.facts() for one in meter],
        "warnings": list(found.warnings),
        "notes": list(found.notes),
    }


def rows(found: Attribution, by: str) -> list[dict[str, Any]]:
    """The rows of the CSV table."""
    return _records(found.table(by))


def timeline_bytes(found: Attribution) -> bytes:
    """The measured timeline with a counter of the power, as Perfetto reads it."""
    from joulecast.reports.perfetto import written
    from joulecast.traces.timeline import events

    facts = {"gpu": found.gpu, "clock_mhz": found.clock_mhz, "energy_j": found.energy_j}
    return b"".join(written(events(found), facts))


def _title(found: Attribution) -> str:
    files = list(dict.fromkeys(Path(share.profile.source).name for share in found.shares))
    name = files[0] if len(files) == 1 else f"{len(files)} traces"
    kernels = sum(len(share.profile.activities) for share in found.shares)
    return f"{name} · {text.whole(kernels)} activit{'y' if kernels == 1 else 'ies'}"


def _totals(found: Attribution) -> Table:
    lower, upper = found.interval_j
    idle_s = sum(share.account.idle_s for share in found.shares)
    idle_j = sum(share.account.idle_j for share in found.shares)
    static = sum(share.energies.static_w * share.wall_s for share in found.shares)
    cells = (
        text.duration(found.time_s), text.power(found.power_w), text.energy(found.energy_j),
        f"{text.energy(lower)} to {text.energy(upper)}", text.percent(idle_s / found.time_s),
        text.percent(idle_j / found.energy_j), text.percent(static / found.energy_j),
    )  # fmt: skip
    time = "time" if len(found.shares) == 1 else "GPU time"
    headers = (time, "power", "energy", "90 % interval", "idle time", "idle energy", "static")
    return Table(headers, (cells,), "rrrrrrr")


def _table(found: Attribution, by: str, top: int) -> Table:
    columns = found.table(by)
    if by == "launch":  # in the order of time for machines, by energy for people
        order = sorted(range(len(columns["name"])), key=lambda row: -columns["energy_j"][row])
        columns = {name: [column[row] for row in order] for name, column in columns.items()}
    if by in ("step", "gpu"):
        columns["time_s"] = columns["wall_s"]
    many = len(columns["name"])
    shown = many if top == 0 else min(top, many)
    lines = [
        (
            _short(columns["name"][i], by),
            text.whole(columns["count"][i]) if columns["count"][i] else "",
            text.duration(columns["time_s"][i] or columns["wall_s"][i]),
            text.power(columns["power_w"][i]),
            text.energy(columns["energy_j"][i]),
            text.percent(columns["share"][i]),
        )
        for i in range(shown)
    ]
    if many > shown:
        rest = slice(shown, many)
        lines.append(
            (
                f"{many - shown} others",
                text.whole(sum(columns["count"][rest])),
                text.duration(sum(columns["time_s"][rest])),
                "",
                text.energy(sum(columns["energy_j"][rest])),
                text.percent(sum(columns["share"][rest])),
            )
        )
    return Table((by, "count", "time", "power", "energy", "share"), tuple(lines), "lrrrrr", elastic=0)


def _short(name: str, by: str) -> str:
    return text.in_middle(short_name(name) if by in ("kernel", "launch") and name != IDLE else name, _NAME_WIDTH)


def _times(found: Attribution) -> list[tuple[str, tuple[str, ...]]]:
    """Predicted against measured times, of what ran alone and was long enough to matter."""
    rows = [row for row in time_errors(found.shares) if row["family"] != "elementwise"]
    words = [
        f"{row['family']} {text.percent(row['median_error'])} off in the median of {text.whole(row['operations'])} "
        f"that ran {row['ran']}"
        for row in rows
    ]
    return [("predicted times", tuple(words))] if words else []


def _top(columns: Mapping[str, list[Any]], many: int) -> list[tuple[str, float]]:
    pairs = list(zip(columns["name"], columns["share"], strict=True))
    return pairs[:many]


def _records(columns: Mapping[str, list[Any]]) -> list[dict[str, Any]]:
    names = list(columns)
    return [dict(zip(names, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _meter(meter: Reconciliation) -> Facts:
    return Facts(tuple((label, (line,)) for label, line in meter.lines()), title="beside the meter")
