"""Compiles, prunes and featurises configurations of a matrix product for an H100 without one, and says what it took.

    python benchmarks/tuning_compile.py --configs 200 --workers 2

Prints wall and processor time apart: on a machine that others use, only the second is the pipeline's own.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import tempfile
import time
from pathlib import Path

import numpy as np

from joulecast.tuning.aot.built import Built
from joulecast.tuning.aot.cache import Cache
from joulecast.tuning.operators import operator
from joulecast.tuning.reasons import grouped
from joulecast.tuning.triton_evaluator import FEATURES, TritonEvaluator


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--configs", type=int, default=200)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--gpu", default="h100")
    parser.add_argument("--m", type=int, default=4096)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TRITON_CACHE_DIR"] = folder  # nothing that was compiled before helps
        from joulecast.gpus import load_gpu

        spec = operator("matmul", m=asked.m, n=4096, k=4096)
        rng = np.random.default_rng(asked.seed)
        pool = spec.space.pool(rng)
        configs = [spec.space.config(pool[int(at)]) for at in rng.choice(len(pool), asked.configs, replace=False)]
        evaluator = TritonEvaluator(spec, load_gpu(asked.gpu), Cache(Path(folder) / "c.sqlite"), workers=asked.workers)
        begun, before = time.perf_counter(), _processor_s()
        found = evaluator.built(configs)
        features = evaluator.features(configs)
        took, used = time.perf_counter() - begun, _processor_s() - before
        begun = time.perf_counter()
        again = TritonEvaluator(spec, load_gpu(asked.gpu), Cache(Path(folder) / "c.sqlite"), workers=asked.workers)
        again.built(configs)
        second = time.perf_counter() - begun
        ready = [one for one in found if isinstance(one, Built)]
        exact = [
            one.dynamic.counts.matrix_flop * one.compiled.warps * one.blocks / one.asked.tensor_flop for one in ready
        ]
        report = evaluator.report
        print(json.dumps({
            "configurations": len(configs), "workers": asked.workers, "wall_s": round(took, 1),
            "processor_s": round(used, 1), "processor_s_a_worker": round(used / asked.workers, 1),
            "again_from_the_cache_s": round(second, 1), "can_be_launched": len(ready),
            "pruned_before_compiling": report.pruned, "compiled": report.compiled, "failed": report.failed,
            "refused": grouped(report.reasons), "features": [*np.shape(features)], "feature_names": len(FEATURES),
            "largest_worker_mib": round(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024),
            "largest_parent_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
            "machine_code_flop_over_asked": [round(min(exact), 6), round(max(exact), 6)],
            "load_average": [round(one, 1) for one in os.getloadavg()],
        }, indent=2))  # fmt: skip


def _processor_s() -> float:
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


if __name__ == "__main__":
    main()
