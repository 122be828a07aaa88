"""Times recording real models through transformers, each in an interpreter of its own.

    python benchmarks/tracing.py

Printed are the seconds, after imports, in which a model is built without weights, recorded and priced; of the wall
clock, and of the processor, which a busy machine does not change. The best of several interpreters counts. Exit code
1 if a limit is not held.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys

for threads in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "POLARS_MAX_THREADS"):
    os.environ[threads] = "1"

#: Model, the module of its class in transformers (an import), and seconds that it may take.
MODELS = (
    ("meta-llama/Llama-3.1-8B", "llama", 1.0),
    ("meta-llama/Llama-3.1-70B", "llama", 3.0),
    ("deepseek-ai/DeepSeek-V3", "deepseek_v3", 6.0),
)

_PROGRAM = """
import importlib, json, sys, time
import torch, transformers, joulecast as jc
from joulecast.workloads.catalogue import entry
from joulecast.workloads.request import Request
from joulecast.workloads.transformers_models import from_transformers, offline
from joulecast.workloads import transformers_run
name, kind = sys.argv[1:]
with offline():
    importlib.import_module(f"transformers.models.{kind}.modeling_{kind}")
jc.predict("distilbert-base-cased", "h100")
config = dict(entry(name).config)
wall, cpu = time.perf_counter(), time.process_time()
workload = from_transformers(config, Request(batch=1, prompt_tokens=2048), name)
traced = time.perf_counter() - wall
jc.predict(workload, "h100-sxm-80gb", ignore_memory=True)
print(json.dumps([time.perf_counter() - wall, time.process_time() - cpu, traced, workload.operations]))
"""


def measured(name: str, kind: str, repeats: int) -> list[float]:
    """Seconds of the wall clock and of the processor, seconds of building and recording, and operations."""
    runs = []
    for _ in range(repeats):
        command = [sys.executable, "-W", "ignore", "-c", _PROGRAM, name, kind]
        found = subprocess.run(command, check=True, capture_output=True, text=True)
        runs.append(json.loads(found.stdout.splitlines()[-1]))
    return min(runs)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="time building, recording and pricing models of transformers")
    parser.add_argument("--repeats", type=int, default=3, help="interpreters for each model; the best counts")
    repeats = parser.parse_args().repeats
    held = True
    print(f"{'model':32}{'wall':>9}{'processor':>11}{'of it recording':>17}{'limit':>9}")
    for name, kind, limit in MODELS:
        wall, cpu, recording, operations = measured(name, kind, repeats)
        held &= cpu <= limit
        print(f"{name:32}{wall:7.2f} s{cpu:9.2f} s{recording:15.2f} s{limit:7.0f} s  {operations:,.0f} operations"
              + ("" if cpu <= limit else "  NOT HELD"), flush=True)  # fmt: skip
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
