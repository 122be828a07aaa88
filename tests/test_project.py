"""The project as a whole: version, packaging, docstrings, what an import costs, what may not stand in a file."""

from __future__ import annotations

import ast
import importlib.metadata
import json
import re
import subprocess
import sys
import tomllib
import zipfile
from dataclasses import fields
from pathlib import Path

import pytest

import joulecast
from joulecast.lowering.execution import Execution
from joulecast.scenarios.training.question import LAYOUT, MODEL, RECIPE, RUN
from joulecast.workloads.request import Request

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "joulecast"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
MODULES = sorted(PACKAGE.rglob("*.py"))
DATA_SUFFIXES = {".toml", ".npz", ".json", ".csv", ".typed"}


def _relative(paths: list[Path]) -> list[str]:
    return [path.relative_to(ROOT).as_posix() for path in paths]


def _tracked() -> list[Path]:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout: no list of the files that belong to the project")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout.decode()
    return [ROOT / name for name in listed.split("\0") if name and (ROOT / name).is_file()]


def test_the_version_is_the_same_wherever_it_stands():
    assert joulecast.__version__ == PROJECT["version"]
    assert importlib.metadata.version("joulecast") == PROJECT["version"]


def test_every_module_says_what_it_is_for():
    silent = [m for m in MODULES if len(ast.get_docstring(ast.parse(m.read_text(encoding="utf-8"))) or "") < 20]
    assert _relative(silent) == []


@pytest.mark.parametrize(
    "statement", ["import joulecast", "import joulecast.gpus, joulecast.workloads, joulecast.physics"]
)
def test_importing_loads_no_heavy_library(statement: str):
    heavy = ["altair", "pandas", "polars", "pyarrow", "pydantic", "rich", "scipy", "sklearn", "torch", "typer"]
    program = f"import json, sys\n{statement}\nprint(json.dumps([name for name in {heavy!r} if name in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert json.loads(done.stdout) == []


def test_no_file_tells_of_the_machine_it_was_written_on():
    # Split, so that this file passes its own test.
    traces = ["/" + "work/", "/tmp/" + "venv", "/tmp/" + "bash", "/" + "root/", "/" + "home/", "bash_" + "jobs"]
    traces += ["index" + "-url", "find" + "-links"]
    pattern = re.compile("|".join(rf"(?<![\w.]){re.escape(trace)}" for trace in traces).encode())
    found = [path for path in _tracked() if pattern.search(path.read_bytes())]
    assert _relative(found) == []


def test_constraints_pin_every_requirement_exactly():
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert [pin for pin in pins if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.]+", pin)] == []
    pinned = {_normalised(pin.split("==")[0]) for pin in pins}
    asked = [*PROJECT["dependencies"], *(one for extra in PROJECT["optional-dependencies"].values() for one in extra)]
    names = {_normalised(re.match(r"[A-Za-z0-9._-]+", one)[0]) for one in asked}
    assert names - pinned == {"joulecast"}


def test_the_build_backend_is_the_pinned_one():
    requires = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["build-system"]["requires"]
    assert set(requires) <= set((ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines())


def test_the_wheel_carries_code_data_and_licence(tmp_path: Path):
    wheel_builder = pytest.importorskip("hatchling.builders.wheel", reason="the build backend is not installed")
    (wheel,) = wheel_builder.WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    with zipfile.ZipFile(wheel) as archive:
        inside = set(archive.namelist())
    source = {p for p in PACKAGE.rglob("*") if p.is_file() and (p.suffix in DATA_SUFFIXES or p.suffix == ".py")}
    assert "joulecast/py.typed" in inside
    assert {p.relative_to(PACKAGE.parent).as_posix() for p in source} <= inside
    assert [name for name in inside if name.endswith("licenses/LICENSE")]
    assert [name for name in inside if name.endswith("licenses/NOTICE")]
    assert not [name for name in inside if name.startswith(("tests/", "benchmarks/"))]


def _normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_docstrings_of_the_front_door_name_every_option():
    request = {one.name for one in fields(Request)}
    execution = {one.name for one in fields(Execution)}
    options = {
        joulecast.workload: request,
        joulecast.predict: execution,
        joulecast.sweep: request | execution,
        joulecast.train: {*MODEL, *RECIPE, *LAYOUT, *RUN} - {"scales", "exclude"},  # those are for fits
    }
    silent = {
        (function.__name__, name)
        for function, names in options.items()
        for name in names
        if not re.search(rf"\b{name}\b", function.__doc__ or "")
    }
    assert silent == set()
