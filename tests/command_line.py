"""The command line asked in this process, for tests of what it answers and refuses."""

from __future__ import annotations

import pytest

from joulecast.cli import main


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a question."""
    code = main(list(arguments))
    out, err = capsys.readouterr()
    return code, out, err


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line on stderr of a refused question."""
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("joulecast: ")
    assert err.endswith("\n")
    assert err.count("\n") == 1
    return err
