"""Odd files, odd names and odd terminals: one clear line, or an answer without a figure that means nothing."""

import csv
import json
import math
import os
import subprocess
import sys

import pytest

import joulecast as jc
from joulecast.cli import main
from joulecast.errors import InfeasibleError
from joulecast.scenarios.summary import fastest, thriftiest

GEMM = {"op": "gemm", "m": 8, "n": 4096, "k": 4096, "dtype": "bf16"}


def asked(capsys, *arguments):
    code = main([str(one) for one in arguments])
    out, err = capsys.readouterr()
    return code, out, err


@pytest.fixture
def listed(tmp_path):
    """Writes an operation list."""

    def write(document, name="ops.json"):
        path = tmp_path / name
        path.write_text(json.dumps(document), encoding="utf-8")
        return path

    return write


def test_a_workload_that_counts_no_tokens_has_no_figure_of_a_token(listed, capsys):
    path = listed([GEMM])
    p = jc.predict(path, "a100")
    assert math.isnan(p.tokens_per_s)
    assert math.isnan(p.energy_per_token_j)
    assert math.isnan(p.phases[0].tokens_per_s)
    assert math.isnan(p.phases[0].energy_per_token_j)
    code, out, _ = asked(capsys, "predict", path, "--gpu", "a100", "--price", "1")
    assert code == 0
    assert "per M" not in out
    assert "a million" not in out
    row = next(line for line in out.splitlines() if line.startswith("forward"))
    assert row.split()[-2:] == ["-", "-"]
    code, out, _ = asked(capsys, "predict", path, "--gpu", "a100", "--json")
    assert json.loads(out)["predictions"][0]["total"]["energy_per_token_j"] is None
    code, out, _ = asked(capsys, "predict", path, "--gpu", "a100", "--csv")
    assert next(csv.DictReader(out.splitlines()))["tokens_per_s"] == ""
    counted = jc.predict(listed([{**GEMM, "tokens": 8}]), "a100")
    assert counted.energy_per_token_j == pytest.approx(counted.energy_j / 8)


def test_what_counts_no_tokens_is_still_ranked_by_its_energy(listed, capsys):
    path = listed([{**GEMM, "m": 8192}])
    runs = [jc.predict(path, "a100", clock_mhz=clock) for clock in (900, 1410)]
    assert fastest(runs) is min(runs, key=lambda one: one.time_s)
    assert thriftiest(runs) is min(runs, key=lambda one: one.energy_j)
    assert asked(capsys, "explain", path, "--gpu", "a100")[0] == 0
    code, out, _ = asked(capsys, "predict", path, "--gpu", "a100", "--clock", "900,1410")
    assert code == 0
    assert "fewest J" in out


def test_a_sweep_of_what_counts_no_tokens_ranks_none_by_them(listed, capsys):
    path = listed([GEMM])
    sweep = jc.sweep(path, ["a100"], clock_mhz=[900, 1410])
    with pytest.raises(InfeasibleError, match="counts no tokens"):
        sweep.best("energy_per_token")
    assert sweep.best("energy")["clock_mhz"] == 900
    code, out, _ = asked(capsys, "sweep", path, "--gpu", "a100", "--clock", "900,1410", "--front", "throughput,energy")
    assert code == 0
    assert "0 points" in out
    assert "J/token," not in out
    none = jc.sweep(path, ["a100"], clock_mhz=[900, 1410], min_tokens_per_s=1)
    assert not none.columns["feasible"].any()


@pytest.mark.parametrize("name", ["\x1b[31mred", "a\nb", "\u202eabc", "nul\0"])
def test_a_name_from_a_file_does_not_steer_the_terminal(listed, capsys, name):
    code, out, _ = asked(
        capsys, "predict", listed({"name": name, "operations": [{**GEMM, "layer": name}]}), "--gpu", "a100"
    )
    assert code == 0
    assert all(letter.isprintable() for line in out.split("\n") for letter in line)
    assert "\N{REPLACEMENT CHARACTER}" in out.split("\n")[0]


def test_the_module_is_the_command():
    told = subprocess.run([sys.executable, "-m", "joulecast", "--version"], capture_output=True, text=True, check=True,
                          env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})  # fmt: skip
    assert told.stdout == f"joulecast {jc.__version__}\n"
