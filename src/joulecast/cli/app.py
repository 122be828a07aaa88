"""Puts the verbs together; a new verb is one module here and its name in `VERBS`."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.main import get_command

from joulecast.cli.given_files import guard

#: Modules of this package, each with a function `add_to(app)`, in the order that help shows them.
VERBS = (
    "predict", "sweep", "tune", "explain", "attribute", "compare", "train",
    "kernels", "audit", "calibrate", "validate", "gpus", "models", "doctor",
)  # fmt: skip


@cache
def command() -> Any:
    """The whole command line as a click command."""
    app = typer.Typer(
        name="joulecast",
        help="Know the time, watts and joules of an AI workload before you run it.",
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80},
    )
    app.callback()(_top)
    for verb in VERBS:
        import_module(f"joulecast.cli.{verb}").add_to(app)
    whole = get_command(app)
    guard(whole)
    return whole


def _top(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_version)
    ] = False,
) -> None:
    """Know the time, watts and joules of an AI workload before you run it."""


def _version(asked: bool) -> None:
    if asked:
        from joulecast import __version__

        typer.echo(f"joulecast {__version__}")
        raise typer.Exit
