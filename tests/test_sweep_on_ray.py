"""A sweep on a Ray cluster of this machine: the same bits, through the death of its driver and of a worker."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import joulecast as jc
import sweep_on_ray
from joulecast.cli import main
from joulecast.scenarios.sweep import question
from joulecast.scenarios.sweep.chunk import joined
from joulecast.scenarios.sweep.run import run, spans

needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="the extra ray is not installed")


def on_ray(folder, result, ends):
    program = Path(sweep_on_ray.__file__)
    environment = {**os.environ, "RAY_DISABLE_IMPORT_WARNING": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    environment.pop("RAY_ADDRESS", None)
    return subprocess.run(
        [sys.executable, program, folder, result, ends], env=environment, capture_output=True, text=True, timeout=180
    )


@needs_ray
def test_driver_and_worker_may_die_and_the_result_is_the_same(tmp_path):
    evaluator = question.inference("bert-base-uncased", **sweep_on_ray.ASKED)
    work, result = tmp_path / "work", tmp_path / "result.npz"

    killed = on_ray(work, result, "driver")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    kept = {path: path.stat().st_mtime_ns for path in work.glob("chunk-*.npz")}
    chunks = len(spans(len(evaluator.space), evaluator.unit))
    assert 3 <= len(kept) <= chunks
    if len(kept) == chunks:  # a fast machine finished before it was killed: leave the worker something to do
        last = max(kept)
        last.unlink()
        del kept[last]

    gone_on = on_ray(work, result, "worker")
    assert gone_on.returncode == 0, gone_on.stderr
    assert result.with_suffix(".died").exists()
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    assert len(list(work.glob("chunk-*.npz"))) == chunks

    here = joined(run(evaluator))
    with np.load(result) as found:
        assert tuple(found["reasons"].tolist()) == here.reasons
        for name, column in here.columns.items():
            assert column.dtype == found[name].dtype
            assert np.array_equal(column, found[name], equal_nan=column.dtype.kind == "f"), name


def test_without_ray_the_line_to_install_it_is_told(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "ray", None)
    for flags in (["--run-on", "ray"], ["--engine", "ray"]):
        assert main(["sweep", "bert-base-uncased", "--gpu", "a100", "--prompt", "32", *flags]) == 2
        assert "pip install 'joulecast[ray]'" in capsys.readouterr().err
    with pytest.raises(jc.JoulecastError, match=r"joulecast\[ray\]"):
        jc.sweep("bert-base-uncased", "a100", prompt_tokens=32, run_on="ray")
