"""Times sweeps of several shapes and sizes, and prints points a second, peak memory and the curve over points.

python benchmarks/sweep.py [--points 100000] [--workers 2] [--shape clocks batches what-ifs workloads] [--json]

Shapes differ in what points share. ``clocks``: one workload of about 1,000 launches on one GPU, all clocks and limits
(half of them throttled). ``batches``: 100 batches on 100 imagined GPUs at 10 clocks. ``what-ifs``: one workload on
thousands of imagined GPUs. ``workloads``: batches and lengths, each point another workload, nothing shared.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

for threads in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "POLARS_MAX_THREADS"):
    os.environ[threads] = "1"

#: One prefill of a model this deep is about 1,000 launches on the eager path, and fits in 80 GB.
DEEP_MODEL = "Qwen/Qwen2.5-32B"
MODEL = "meta-llama/Llama-3.1-8B"

#: Limits that the shape ``clocks`` is held to at 100,000 points on 2 cores.
LIMIT_S, LIMIT_MB = 60.0, 2000.0


#: What shares less is slower: its curve ends so many times sooner.
_FEWER = {"workloads": 10, "what-ifs": 50}


@dataclass(frozen=True)
class Measured:
    """One sweep of one size."""

    shape: str
    points: int
    workloads: int
    gpus: int
    seconds: float
    peak_mb: float
    throttled: float

    @property
    def points_per_s(self) -> float:
        return self.points / self.seconds


def spread(low: float, high: float, count: int) -> list[float]:
    """`count` numbers from `low` to `high`."""
    return [round(low + (high - low) * i / max(count - 1, 1), 3) for i in range(count)]


def asked(shape: str, points: int) -> tuple[str, dict[str, Any]]:
    """A sweep of a shape, of about so many points."""
    side = max(round(math.sqrt(points)), 1)
    if shape == "clocks":
        limits = max(round(points / (2 * side)), 1)
        return DEEP_MODEL, {
            "gpus": "a100-sxm-80gb", "batch": 4, "prompt_tokens": 1024,
            "clock_mhz": spread(210, 1410, 2 * side), "power_limit_w": spread(100, 400, limits),
        }  # fmt: skip
    if shape == "batches":
        third = max(round(math.sqrt(points / 10)), 1)
        return MODEL, {
            "gpus": "a100-sxm-80gb", "batch": list(range(1, third + 1)), "prompt_tokens": 512, "generate_tokens": 64,
            "changes": {"dram_gb_s": spread(1500, 3500, third)}, "clock_mhz": spread(510, 1410, 10),
        }  # fmt: skip
    if shape == "what-ifs":
        return MODEL, {
            "gpus": "a100-sxm-80gb", "batch": 8, "prompt_tokens": 512, "generate_tokens": 64,
            "changes": {"dram_gb_s": spread(1500, 3500, side), "l2_gb_s": spread(4000, 9000, side)},
        }  # fmt: skip
    return MODEL, {
        "gpus": "a100-sxm-80gb", "batch": list(range(1, side + 1)),
        "prompt_tokens": [16 * i for i in range(1, side + 1)], "generate_tokens": 64,
    }  # fmt: skip


def measured(shape: str, points: int, workers: int, folder: Path | None) -> Measured:
    """A sweep run to its end in this process, all points written to a parquet file where `folder` is given."""
    import joulecast as jc
    from joulecast.reports.columns import write_columns
    from joulecast.scenarios.sweep import question
    from joulecast.scenarios.sweep.collect import Collector
    from joulecast.scenarios.sweep.objectives import OBJECTIVES, objectives_of
    from joulecast.scenarios.sweep.run import run
    from joulecast.scenarios.sweep.table import points_of

    source, options = asked(shape, points)
    jc.predict("bert-base-uncased", "a100", prompt_tokens=32)  # what is read once is not the sweep's
    began = time.perf_counter()
    evaluator = question.inference(source, ignore_memory=True, **options)
    collector = Collector(objectives_of(evaluator.figures), (OBJECTIVES["time"], OBJECTIVES["energy"]))

    def tables() -> Any:
        for chunk in run(evaluator, workers=workers):
            collector.add(chunk)
            yield points_of(evaluator, chunk)

    if folder is None:
        for _ in tables():
            pass
    else:
        write_columns(folder / "points.parquet", tables())
    seconds = time.perf_counter() - began
    found = collector.findings()
    sizes = {axis.name: len(axis.values) for axis in evaluator.space.axes}
    return Measured(
        shape=shape,
        points=found.points,
        workloads=math.prod(sizes[name] for name in evaluator.asked),
        gpus=math.prod(size for name, size in sizes.items() if name.startswith("set.")),
        seconds=seconds,
        peak_mb=_peak_mb(),
        throttled=found.throttled / max(found.feasible, 1),
    )


def _peak_mb() -> float:
    """Most memory that this process had."""
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def apart(shape: str, points: int, workers: int) -> Measured:
    """The same in a process of its own, whose memory is its own; that of workers is added up while it runs."""
    program = [sys.executable, __file__, "--one", shape, str(points), str(workers)]
    process = subprocess.Popen(program, stdout=subprocess.PIPE, text=True)
    most = 0.0
    while process.poll() is None:
        most = max(most, _resident_mb(process.pid))
        time.sleep(0.1)
    assert process.stdout is not None
    found = Measured(**json.loads(process.stdout.read()))
    return Measured(**{**asdict(found), "peak_mb": max(found.peak_mb, most)})


def _resident_mb(pid: int) -> float:
    """Memory of a process and all below it, as Linux tells it."""
    total = 0.0
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmRSS"):
                total = int(line.split()[1]) / 1024
        for task in Path(f"/proc/{pid}/task").iterdir():
            total += sum(_resident_mb(int(child)) for child in (task / "children").read_text().split())
    except OSError:
        pass
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--points", type=int, default=100_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--shape", nargs="+", default=["clocks", "batches", "what-ifs", "workloads"])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        shape, points, workers = options.one
        print(json.dumps(asdict(measured(shape, int(points), int(workers), None))))
        return
    rows = []
    for shape in options.shape:
        most = options.points // _FEWER.get(shape, 1)
        for points in (most // 16, most // 4, most):
            row = apart(shape, points, options.workers)
            rows.append(row)
            if not options.json:
                if len(rows) == 1:
                    print("shape        points  workloads   GPUs  seconds  points/s  peak MB  throttled")
                print(
                    f"{row.shape:<9} {row.points:>9,} {row.workloads:>10,} {row.gpus:>6,} {row.seconds:>8.1f} "
                    f"{row.points_per_s:>9,.0f} {row.peak_mb:>8.0f} {row.throttled:>9.0%}",
                    flush=True,
                )
    if options.json:
        print(json.dumps([{**asdict(row), "points_per_s": row.points_per_s} for row in rows], indent=2))
    for row in rows:
        if row.shape == "clocks" and row.points >= 99_000:
            held = row.seconds <= LIMIT_S and row.peak_mb <= LIMIT_MB
            print(f"100,000 points of a 1,000-launch workload in {LIMIT_S:.0f} s, under {LIMIT_MB:.0f} MB: "
                  f"{'held' if held else 'not held'}", file=sys.stderr)  # fmt: skip


if __name__ == "__main__":
    main()
