"""The catalogue's models recorded through transformers, against the catalogue's own description of them.

    python benchmarks/traced_against_catalogue.py [--gpu a100-pcie-40gb] [MODEL ...]

Time, energy and matrix-multiply FLOP of the recorded model over those of the catalogue, by phase; the mean and the
largest departure at the end. Without names, the smallest model of each type is taken.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

import joulecast as jc
from joulecast.errors import JoulecastError
from joulecast.workloads.catalogue import catalogue
from joulecast.workloads.request import Request
from joulecast.workloads.transformers_models import from_transformers


def smallest_of_each_type() -> list[str]:
    """Names of catalogue models, one for each model type: that of the fewest parameters."""
    best: dict[str, tuple[float, str]] = {}
    for one in catalogue():
        kind = str(one.config.get("model_type"))
        size = jc.workload(one.name).parameters
        if kind not in best or size < best[kind][0]:
            best[kind] = (size, one.name)
    return [name for _, name in sorted(best.values())]


def compared(name: str, gpu: str, **asked: Any) -> list[tuple[str, float, float, float, float]]:
    """By phase: time, energy, FLOP and launches of the recorded model over the catalogue's."""
    from joulecast.workloads.catalogue import entry

    known = jc.workload(name, pooler=True, **asked)  # transformers runs the pooler of a bare encoder
    config = dict(entry(name).config)
    if "kv_lora_rank" in config:
        config.setdefault("q_lora_rank", None)  # as config.json has it; transformers' default is another model's
    traced = from_transformers(config, Request(**asked), name)
    ours, theirs = (jc.predict(one, gpu, ignore_memory=True) for one in (traced, known))
    return [
        (
            a.phase,
            a.time_s / b.time_s,
            a.energy_j / b.energy_j,
            traced.flop("matmul", phase=a.phase) / known.flop("matmul", phase=b.phase),
            traced.parameters / known.parameters,
        )
        for a, b in zip(ours.phases, theirs.phases, strict=True)
    ]


def main() -> int:
    """Compare the models asked for."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("models", nargs="*")
    parser.add_argument("--gpu", default="a100-pcie-40gb")
    parser.add_argument("--batch", type=int, default=8)
    given = parser.parse_args()
    off: list[tuple[float, float]] = []
    print(f"{'model':44s} {'phase':8s} {'time':>7s} {'energy':>7s} {'FLOP':>7s} {'weights':>7s} {'s':>6s}")
    for name in given.models or smallest_of_each_type():
        start = time.perf_counter()
        try:
            rows = compared(name, given.gpu, batch=given.batch)
        except (JoulecastError, ValueError) as error:
            print(f"{name:44s} {type(error).__name__}: {str(error)[:110]}")
            continue
        for phase, duration, energy, flop, weights in rows:
            off.append((abs(duration - 1), abs(energy - 1)))
            seconds = time.perf_counter() - start
            print(
                f"{name:44s} {phase:8s} {duration:7.3f} {energy:7.3f} {flop:7.4f} {weights:7.4f} {seconds:6.1f}",
                flush=True,
            )
    if off:
        within = sum(max(pair) <= 0.02 for pair in off)
        print(f"{within} of {len(off)} within 2 % in time and energy; largest {max(max(pair) for pair in off):.1%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
