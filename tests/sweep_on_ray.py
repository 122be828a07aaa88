"""A sweep on a Ray cluster of this machine, as a program that tests kill: `python sweep_on_ray.py FOLDER RESULT ENDS`.

ENDS says who is killed with SIGKILL, once: ``driver`` (after its third chunk), ``worker`` (in its first), ``nobody``.
"""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from joulecast.scenarios.sweep import question
from joulecast.scenarios.sweep.chunk import Chunk, joined
from joulecast.scenarios.sweep.run import run
from joulecast.scenarios.sweep.store import open_store

ASKED: dict[str, Any] = {
    "gpus": ["a100", "t4", "v100", "a10"], "batch": [1, 8], "prompt_tokens": 128, "clock_mhz": "all",
    "power_limit_w": "all",
    "launch_mode": ["eager", "cuda_graph"],
}  # fmt: skip


@dataclass(frozen=True)
class Dying:
    """An evaluator whose process is killed the first time that it is asked anything."""

    evaluator: Any
    mark: Path

    @property
    def space(self) -> Any:
        return self.evaluator.space

    @property
    def words(self) -> Any:
        return self.evaluator.words

    @property
    def unit(self) -> int:
        return int(self.evaluator.unit)

    def evaluate(self, start: int, stop: int) -> Chunk:
        if not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return self.evaluator.evaluate(start, stop)


def main(folder: str, result: str, ends: str) -> None:
    """Run it, and write the columns of its result."""
    evaluator = question.inference("bert-base-uncased", **ASKED)
    store = open_store(folder, question.description(evaluator))
    asked = Dying(evaluator, Path(result).with_suffix(".died")) if ends == "worker" else evaluator
    chunks = []
    for chunk in run(asked, store=store, on="ray", workers=2):
        chunks.append(chunk)
        if ends == "driver" and len(chunks) == 3:
            os.kill(os.getpid(), signal.SIGKILL)
    whole = joined(chunks)
    np.savez(result, reasons=np.array(whole.reasons), **whole.columns)


if __name__ == "__main__":
    main(*sys.argv[1:])
