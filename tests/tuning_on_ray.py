"""Searches on a Ray cluster of this machine, as a program: `python tuning_on_ray.py FOLDER`; one worker is killed."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np

from joulecast.meters.recording import Recording
from joulecast.meters.replay import Noise
from joulecast.tuning.replay import ReplayEvaluator
from joulecast.tuning.workers import Job, run_jobs


def made(seed: int) -> Recording:
    """A small space with a saving in it."""
    configs = tuple({"a": a, "b": b} for a in (1, 2, 4, 8) for b in (1, 2, 3))
    time_s = np.array([1e-3 * (1 + 0.01 * c["b"] + 0.05 * abs(c["a"] - 4)) for c in configs])
    energy = np.array([0.2 * (1 - 0.03 * c["b"] + 0.05 * abs(c["a"] - 4)) for c in configs])
    return Recording(f"made {seed}", configs, {}, time_s, np.full(12, 1e-4), energy, ("",) * 12)


class Dying(ReplayEvaluator):
    """Kills its process at its fifteenth reading, once."""

    mark: Path | None = None
    count = 0

    def energy(self, config: Any, count: int) -> Any:
        self.count += 1
        if self.mark is not None and self.count == 15 and not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().energy(config, count)


class Make:
    """Gives an evaluator and its space; picklable."""

    def __init__(self, seed: int, mark: Path | None) -> None:
        self.seed, self.mark = seed, mark

    def __call__(self) -> tuple[Any, Any]:
        evaluator = Dying(made(self.seed), Noise(0.005), self.seed)
        evaluator.mark = self.mark
        return evaluator, evaluator.space


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    os.chdir(folder)  # workers begin elsewhere
    jobs = [Job(str(seed), Make(seed, folder / "died" if seed == 1 else None), {"slack": 0.05}) for seed in range(3)]
    found = run_jobs(jobs, "logs", run_on="ray", gpus_a_worker=0)
    (folder / "found.json").write_text(json.dumps({
        name: {"verdict": one.verdict, "from_log": one.answered_by_log, "front": [at.energy_j for at in one.front]}
        for name, one in found.items()
    }))  # fmt: skip
