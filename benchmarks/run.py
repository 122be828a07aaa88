"""Times the limits that joulecast holds itself to, on one core, and prints them beside what was measured.

python benchmarks/run.py [--install-size] [--json] [--repeats 5]
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

for threads in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "POLARS_MAX_THREADS"):
    os.environ[threads] = "1"

MODEL = "meta-llama/Llama-3.1-8B"
# One prefill of a dense model this deep is about 1,000 launches on the eager path, and fits in 80 GB.
DEEP_MODEL = "Qwen/Qwen2.5-32B"
GPU = "h100-sxm-80gb"
GEMM_ROWS = 1_000_000


@dataclass(frozen=True)
class Measurement:
    """One limit and what was measured; `better` is ``low`` or ``high``."""

    what: str
    measured: float
    limit: float
    unit: str
    better: str = "low"
    note: str = ""

    @property
    def held(self) -> bool:
        """Whether the limit is held."""
        return self.measured <= self.limit if self.better == "low" else self.measured >= self.limit


def import_time(repeats: int) -> Measurement:
    """`import joulecast` in a fresh interpreter, less the start of the interpreter itself."""
    seconds = _fresh(["-c", "import joulecast"], repeats) - _fresh(["-c", "pass"], repeats)
    return Measurement("import joulecast", seconds, 0.25, "s")


def cold_predict(repeats: int) -> Measurement:
    """The command line from nothing to a table, the start of the interpreter included."""
    program = "import sys; from joulecast.cli import main; sys.exit(main())"
    arguments = ["predict", MODEL, "--gpu", "h100", "--batch", "8", "--prompt", "2048", "--generate", "256"]
    return Measurement("cold joulecast predict, Llama-3.1-8B", _fresh(["-c", program, *arguments], repeats), 1.0, "s")


def warm_predict(repeats: int) -> Measurement:
    """`predict` of one workload that was asked for before, at another clock each time."""
    import joulecast as jc

    workload = jc.workload(DEEP_MODEL, batch=1, prompt_tokens=512, dtype="bf16")
    prediction = jc.predict(workload, gpu=GPU)
    clocks = itertools.cycle(range(1200, 1900, 15))
    seconds = _best(lambda: jc.predict(workload, gpu=GPU, clock_mhz=next(clocks)), 10 * repeats)
    return Measurement("warm predict", 1e3 * seconds, 5.0, "ms", note=f"{prediction.launches:,.0f} launches")


def new_workload(repeats: int) -> Measurement:
    """`predict` of a workload that is built but was never priced: nothing of it is kept from before."""
    import joulecast as jc

    workloads = [jc.workload(DEEP_MODEL, batch=1, prompt_tokens=512 + i, dtype="bf16") for i in range(10 * repeats)]
    jc.predict(workloads[0], gpu=GPU)
    fresh = iter(workloads[1:])
    seconds = _best(lambda: jc.predict(next(fresh), gpu=GPU), len(workloads) - 1)
    return Measurement("predict of a workload not asked before", 1e3 * seconds, 10.0, "ms")


def gemm_rows(repeats: int) -> Measurement:
    """Distinct gemm rows a second, every column out."""
    import numpy as np

    import joulecast as jc

    # The index is written in mixed radix into m, n and k, so that no two rows are alike.
    index = np.arange(GEMM_ROWS)
    columns = {
        "m": 1 + 37 * (index % 100),
        "n": 64 * (1 + (index // 100) % 100),
        "k": 64 * (1 + index // 10_000),
        "dtype": "bf16",
    }
    jc.predict_kernels("gemm", {"m": 64, "n": 64, "k": 64, "dtype": "bf16"}, gpu=GPU)  # loads what is loaded once
    seconds = _best(lambda: jc.predict_kernels("gemm", columns, gpu=GPU), max(1, repeats // 2))
    return Measurement("distinct gemm rows", GEMM_ROWS / seconds, 300_000, "rows/s", better="high")


def install_size(_: int) -> Measurement:
    """joulecast with all that it needs and no extra, whatever else this environment holds."""
    import joulecast

    files = {path for path in Path(joulecast.__file__).parent.rglob("*") if path.is_file()}
    seen: set[str] = set()
    wanted = ["joulecast"]
    while wanted:
        name = re.sub(r"[-_.]+", "-", wanted.pop()).lower()
        if name in seen:
            continue
        seen.add(name)
        try:
            found = metadata.distribution(name)
        except metadata.PackageNotFoundError:  # wanted on other systems alone
            continue
        files |= {path for one in found.files or () if (path := Path(str(found.locate_file(one))).resolve()).is_file()}
        wanted += [re.split(r"[^\w.-]", one, maxsplit=1)[0] for one in found.requires or () if "extra ==" not in one]
    total = sum(path.stat().st_size for path in files)
    return Measurement("install", total / 1e6, 350, "MB", note=f"{len(seen)} packages")


def _fresh(arguments: list[str], repeats: int) -> float:
    command = [sys.executable, *arguments]
    return _best(lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL), repeats)


def _best(run: Callable[[], object], repeats: int) -> float:
    """Shortest of several runs, the one least disturbed by others. [s]"""
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - start)
    return best


def main() -> int:
    """Measure and print; exit code 1 if a limit is not held."""
    parser = argparse.ArgumentParser(description="time the limits that joulecast holds itself to")
    parser.add_argument("--repeats", type=int, default=5, help="runs of each measurement; the best counts")
    parser.add_argument("--install-size", action="store_true", help="add the size of a base install")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

    benchmarks = [import_time, cold_predict, warm_predict, new_workload, gemm_rows]
    if options.install_size:
        benchmarks.append(install_size)
    measured = [benchmark(options.repeats) for benchmark in benchmarks]
    if options.json:
        print(json.dumps([{**asdict(one), "held": one.held} for one in measured], indent=2))
    else:
        print(f"{'what':<40}{'measured':>14}{'limit':>14}")
        for one in measured:
            value = f"{one.measured:,.{0 if one.measured >= 1000 else 3}f}"
            limit = f"{'<' if one.better == 'low' else '>'} {one.limit:,g}"
            verdict = "" if one.held else "  NOT HELD"
            print(f"{one.what:<40}{value:>14}{limit:>14} {one.unit}  {one.note}{verdict}".rstrip())
    return 0 if all(one.held for one in measured) else 1


if __name__ == "__main__":
    sys.exit(main())
