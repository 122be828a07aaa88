"""What README and docs show is what the program prints."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from docs_examples import ROOT, examples_of, matches, output_of, pages, programs_of

EXAMPLES = [example for page in pages() for example in examples_of(page) if example.runnable]
DISTINCT = sorted({example.command for example in EXAMPLES})
PROGRAMS = {program: f"{page.name}-{n}" for page in pages() for n, program in enumerate(programs_of(page), 1)}


def test_the_readme_opens_with_an_example():
    assert any(example.page == ROOT / "README.md" for example in EXAMPLES)


@pytest.mark.parametrize("command", DISTINCT)
def test_a_command_prints_what_the_docs_show(command: str):
    output = output_of(command)
    stale = [example for example in EXAMPLES if example.command == command and not matches(example.expected, output)]
    places = ", ".join(f"{example.page.relative_to(ROOT)}:{example.line}" for example in stale)
    assert not stale, f"{places} no longer show what `{command}` prints (make docs-examples renews them):\n{output}"


@pytest.mark.parametrize("program", [pytest.param(program, id=place) for program, place in PROGRAMS.items()])
def test_a_python_program_in_the_docs_runs(program: str):
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_examples_are_split_at_their_commands(tmp_path: Path):
    page = tmp_path / "page.md"
    page.write_text("text\n```console\n$ make demo\n$ joulecast gpus\none\n  two\n```\n```sh\n$ joulecast x\n```\n")
    first, second = examples_of(page)
    assert (first.command, first.expected, first.runnable, first.line) == ("make demo", "", False, 3)
    assert (second.command, second.expected, second.runnable, second.line) == (
        "joulecast gpus",
        "one\n  two\n",
        True,
        4,
    )
    assert page.read_text()[second.start : second.end] == "one\n  two\n"


@pytest.mark.parametrize(
    ("expected", "output", "same"),
    [
        ("a\nb\n", "a  \nb\n\n", True),
        ("a\nb\n", "a\nc\n", False),
        ("a\n...\nd\n", "a\nb\nc\nd\n", True),
        ("a\n...\n", "a\n", True),
        ("a\n...\nd\n", "a\nb\nc\n", False),
        ("", "surprise\n", False),
        ("1.5\n...\n", "125\nx\n", False),
    ],
)
def test_matching_tells_a_stale_output_from_a_true_one(expected: str, output: str, same: bool):
    assert matches(expected, output) is same
