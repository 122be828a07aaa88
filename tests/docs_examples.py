"""The commands shown in README and docs: finds them, runs them, and puts their true output in place.

A block fenced as ``console`` holds commands after ``$`` with what they print below. Those that start with
``joulecast`` are run, from the root of the repository at 80 columns; a line ``...`` stands for any number of lines.

Run as a program, it checks all of them; with ``--write`` it puts today's output in place.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ANY_LINES = "..."
_PYTHON = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Example:
    """One command with the output shown for it; `start` and `end` delimit that output in `page`."""

    page: Path
    line: int
    command: str
    expected: str
    start: int
    end: int

    @property
    def runnable(self) -> bool:
        """Whether it is a command of ours, not one shown for the reader alone."""
        return self.command.startswith("joulecast ")


def pages() -> list[Path]:
    """The pages that may hold examples."""
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def examples_of(page: Path) -> list[Example]:
    """The examples on one page, in order."""
    text = page.read_text(encoding="utf-8")
    found: list[Example] = []
    for block in _BLOCK.finditer(text):
        at = block.start(1)
        for line in block[1].splitlines(keepends=True):
            end = at + len(line)
            if line.startswith("$ "):
                number = text.count("\n", 0, at) + 1
                found.append(Example(page, number, line[2:].strip(), "", end, end))
            elif found and found[-1].end == at:
                found[-1] = replace(found[-1], expected=found[-1].expected + line, end=end)
            at = end
    return found


def programs_of(page: Path) -> list[str]:
    """The Python programs shown on one page, in order."""
    return [block[1] for block in _PYTHON.finditer(page.read_text(encoding="utf-8"))]


def output_of(command: str) -> str:
    """What a joulecast command prints, errors among it; a traceback is an error of ours."""
    program = "import sys; sys.argv[0] = 'joulecast'; from joulecast.cli import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", program, *shlex.split(command)[1:]],
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "80", "NO_COLOR": "1", "PYTHONIOENCODING": "utf-8"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    output = done.stdout.decode("utf-8")
    # 1 is a fault of ours, but also the verdict of commands that check something
    faults = ("Traceback (most recent call last)", "a fault of joulecast itself")
    if done.returncode not in (0, 1, 2) or any(fault in output for fault in faults):
        raise RuntimeError(f"`{command}` exited with {done.returncode}:\n{output}")
    return output


def matches(expected: str, output: str) -> bool:
    """Whether `output` is what is shown, whatever the blanks at the ends of lines."""
    shown = _lines(expected)
    if ANY_LINES not in shown:
        return shown == _lines(output)
    pattern = "".join(r"(?:.*\n)*" if line == ANY_LINES else re.escape(line) + r"\n" for line in shown)
    return re.fullmatch(pattern, "".join(line + "\n" for line in _lines(output))) is not None


def rewritten(page: Path) -> str:
    """The text of `page` with the output of each of our commands renewed where it no longer matches."""
    text = page.read_text(encoding="utf-8")
    for example in reversed(examples_of(page)):
        if not example.runnable:
            continue
        output = output_of(example.command)
        if not matches(example.expected, output):
            shown = "".join(line + "\n" for line in _lines(output))
            text = text[: example.start] + shown + text[example.end :]
    return text


def _lines(text: str) -> list[str]:
    lines = [line.rstrip() for line in text.splitlines()]
    while lines and not lines[-1]:
        lines.pop()
    while lines and not lines[0]:
        lines.pop(0)
    return lines


def main() -> int:
    """Check every page, or renew it with ``--write``."""
    parser = argparse.ArgumentParser(description="check or renew the output shown in README and docs")
    parser.add_argument("--write", action="store_true", help="put today's output in place")
    write = parser.parse_args().write
    stale = 0
    for page in pages():
        before, after = page.read_text(encoding="utf-8"), rewritten(page)
        if before != after:
            stale += 1
            if write:
                page.write_text(after, encoding="utf-8")
            print(f"{page.relative_to(ROOT)}: {'renewed' if write else 'stale'}")
    return 0 if write or not stale else 1


if __name__ == "__main__":
    sys.exit(main())
