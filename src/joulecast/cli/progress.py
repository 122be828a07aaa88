"""A progress bar on stderr, which leaves stdout to the answer."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def bar() -> Iterator[Callable[[str, float], None]]:
    """What is being done, and the share of all of it that is done; nothing where stderr is no terminal."""
    if not sys.stderr.isatty():
        yield lambda what, share: None  # noqa: ARG005
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    columns = (BarColumn(24), TaskProgressColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=1.0)
        yield lambda what, share: progress.update(task, completed=share, description=what[:60])
