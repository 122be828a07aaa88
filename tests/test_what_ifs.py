"""What-ifs of one GPU: clocks, power limits, temperature, memory clock."""

from __future__ import annotations

import csv
import io
import json

import joulecast as jc
from joulecast.cli import main

MODEL = "meta-llama/Llama-3.1-8B"


def _run(capsys, *arguments):
    code = main(arguments)
    out, err = capsys.readouterr()
    return code, out, err


def test_a_span_of_clocks_marks_its_fastest_and_its_thriftiest(capsys):
    asked = ("predict", MODEL, "--gpu", "a100-pcie", "--batch", "8", "--prompt", "2048", "--clock", "510:1410:150")
    code, out, _ = _run(capsys, *asked, "--json")
    assert code == 0
    found = json.loads(out)["predictions"]
    assert [one["clock_asked_mhz"] for one in found] == [510, 660, 810, 960, 1110, 1260, 1410]
    best = min(found, key=lambda one: one["total"]["energy_j"])
    assert [one["fewest_joules"] for one in found] == [one is best for one in found]
    fast = min(found, key=lambda one: one["total"]["time_s"])
    assert [one["fastest"] for one in found] == [one is fast for one in found]
    # a prefill of 16,384 tokens is bound by tensor cores: an optimum lies inside, not at an end
    assert 510 < best["clock_asked_mhz"] < 1410
    alone = jc.predict(MODEL, "a100-pcie", batch=8, prompt_tokens=2048, clock_mhz=960)
    assert found[3]["total"]["energy_j"] == alone.energy_j
    code, page, _ = _run(capsys, *asked)
    assert code == 0
    assert max(map(len, page.splitlines())) <= 80
    assert page.count("fewest J\n") == 1


def test_limits_and_clocks_go_each_with_each_and_csv_names_them(capsys):
    _, out, _ = _run(
        capsys, "predict", MODEL, "--gpu", "a100-pcie,h100", "--prompt", "512", "--clock", "900,1800",
        "--power-limit", "200:300:100", "--csv",
    )  # fmt: skip
    rows = [row for row in csv.DictReader(io.StringIO(out)) if row["phase"] in ("total", "")]
    points = {(row["gpu"], row["clock_asked_mhz"], row["power_limit_w"]) for row in rows}
    assert len(points) == len(rows) == 8
    refused = [row for row in rows if row["error"]]
    assert {(row["gpu"], row["clock_asked_mhz"]) for row in refused} == {("A100-PCIE-40GB", "1800.0")}


def test_a_lower_limit_never_makes_it_faster(capsys):
    _, out, _ = _run(
        capsys, "predict", MODEL, "--gpu", "h100", "--batch", "8", "--prompt", "2048", "--power-limit", "200:700:100",
        "--json",
    )  # fmt: skip
    found = json.loads(out)["predictions"]
    times = [one["total"]["time_s"] for one in found]
    assert times == sorted(times, reverse=True)
    assert all(one["total"]["power_w"] <= one["power_limit_w"] * 1.001 for one in found)


def test_too_many_points_are_refused(capsys):
    code, out, err = _run(
        capsys, "predict", MODEL, "--gpu", "h100", "--clock", "300:1900:1", "--power-limit", "200,300"
    )
    assert (code, out) == (2, "")
    assert "take larger steps" in err
