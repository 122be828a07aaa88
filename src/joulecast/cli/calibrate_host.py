"""`joulecast calibrate --passes`: what starting launches costs a host, for people and programs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from joulecast.reports import text
from joulecast.reports.tables import Block, Facts, Table

if TYPE_CHECKING:
    from joulecast.calibration.host_fit import CalibratedHost


def rows(found: CalibratedHost) -> list[dict[str, Any]]:
    """One mapping a GPU and launch mode."""
    return [
        {
            "gpu": one.gpu,
            "launch_mode": one.launch_mode,
            "launch_us": one.launch_us,
            "module_us": one.module_us,
            "rows": one.rows,
            "host_bound": one.host_bound,
            "error_before": one.before,
            "error": one.error if one.error == one.error else None,
        }
        for one in found.fits
    ]


def document(found: CalibratedHost) -> dict[str, Any]:
    """The JSON document."""
    return {
        "schema": "joulecast.calibrate_host/1",
        "fitted": rows(found),
        "warnings": [warning for one in found.fits for warning in one.warnings],
        "not_fitted": list(found.refused),
        "files": [str(path) for path in found.files],
    }


def page(found: CalibratedHost) -> list[Block]:
    """The page for people."""
    cells = tuple(
        (
            one.gpu,
            one.launch_mode,
            f"{one.launch_us:.2f} µs",
            f"{one.module_us:.2f} µs" if one.module_us else "",
            text.whole(one.rows),
            text.whole(one.host_bound),
            text.percent(one.before),
            text.percent(one.error) if one.error == one.error else "",
        )
        for one in found.fits
    )
    headers = ("", "launches", "a launch", "a module", "rows", "host-bound", "before", "error")
    return [Table(headers, cells, "llrrrrrr"), Facts(tuple(_remarks(found)), "dim", 12)]


def _remarks(found: CalibratedHost) -> Iterator[tuple[str, tuple[str, ...]]]:
    for one in found.fits:
        for warning in one.warnings:
            yield "warning", (f"{one.gpu}, {one.launch_mode}: {warning}",)
    for refused in found.refused:
        yield "not fitted", (refused,)
    yield "error", ("mean over passes, each predicted from a fit on the others",)
    for path in found.files:
        yield "written", (str(path),)
