"""The command line: one module a verb, no arithmetic; every error crosses here, once."""

from __future__ import annotations

import errno
import os
import re
import sys
import warnings
from collections.abc import Sequence

from joulecast.errors import InputError, JoulecastError, MissingExtraError, visible

#: Why an answer can't be written, and nobody of ours is to blame.
_UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)

#: Exit codes: done, a fault of ours, something that the caller can put right, stopped from the keyboard or a pipe.
DONE, FAULT, REFUSED, INTERRUPTED, PIPE_CLOSED = 0, 1, 2, 130, 141


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Parameters
    ----------
    arguments : sequence of str, optional
        What follows the program's name; the process's own by default.

    Returns
    -------
    int
        Exit code: 0 where there is an answer, 2 for bad input with one line on stderr, 1 for a fault of ours.
    """
    _open_closed_streams()
    if arguments is None and not sys.warnoptions:
        warnings.simplefilter("ignore")  # a library's warnings are for its callers' developers
    debug = bool(os.environ.get("JOULECAST_DEBUG"))
    try:
        code = _run(list(sys.argv[1:] if arguments is None else arguments))
        sys.stdout.flush()
    except JoulecastError as error:
        return _refuse(error)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        _close_pipe()
        return PIPE_CLOSED
    except Exception as error:
        if _is_usage_error(error):
            return _refuse(error)
        if debug:
            raise
        if isinstance(error, ModuleNotFoundError) and (extra := _extra_with(error.name or "")):
            return _refuse(MissingExtraError("this", extra))
        if isinstance(error, OSError) and error.errno in _UNWRITABLE:
            _close_pipe()
            return _refuse(InputError(f"can't write the answer: {error.strerror}"))
        reason = _one_line(f"{type(error).__name__}: {error}")
        _complain(f"a fault of joulecast itself, please report it ({reason}); JOULECAST_DEBUG=1 shows where")
        return FAULT
    return code


def _open_closed_streams() -> None:
    """Streams that the caller closed: an answer to one fails as it should, complaints go nowhere."""
    if sys.stdout is None:
        sys.stdout = open(os.open(os.devnull, os.O_RDONLY), "w", encoding="utf-8")  # noqa: SIM115, PTH123
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123


def _extra_with(module: str) -> str:
    """The optional part that installs `module`; empty where none does."""
    from importlib.metadata import PackageNotFoundError, requires

    try:
        needed = requires("joulecast") or []
    except PackageNotFoundError:
        return ""
    package = module.partition(".")[0].replace("_", "-")
    found = [re.fullmatch(r"([\w.-]+).*extra == ['\"]([\w-]+)['\"]", line) for line in needed]
    return next((one[2] for one in found if one and one[1].replace("_", "-") == package and one[2] != "dev"), "")


def _run(arguments: list[str]) -> int:
    from joulecast.cli.app import command

    code = command().main(arguments or ["--help"], prog_name="joulecast", standalone_mode=False)
    return code if isinstance(code, int) else DONE


def _is_usage_error(error: Exception) -> bool:
    import typer

    return isinstance(error, typer.BadParameter.__mro__[2]) or type(error).__name__ == "Abort"


def _refuse(error: Exception) -> int:
    text = error.format_message() if hasattr(error, "format_message") else str(error)
    _complain(_one_line(text))
    return REFUSED


def _complain(text: str) -> None:
    from joulecast.reports.tables import printable

    try:
        sys.stderr.write(printable(f"joulecast: {text}\n", sys.stderr))
        sys.stderr.flush()
    except BrokenPipeError:
        _close_pipe()


def _one_line(text: str) -> str:
    return visible(" ".join(str(text).split()))


def _close_pipe() -> None:
    """Let the interpreter flush into nothing at its end, where the reader is gone."""
    try:
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, sys.stdout.fileno())
    except (OSError, ValueError, AttributeError):
        pass
