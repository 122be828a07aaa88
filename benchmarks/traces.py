"""Scores what is read of real profiler traces: ``python benchmarks/traces.py DATA``.

DATA is the folder of measured tables; its ``traces`` are read. Printed are, for each: the share of the kernel time
whose kernels are recognised, how far predicted kernel times are from the measured ones (median of
``|predicted / measured - 1|``), and what energy comes out without the recorded shapes, over that with them.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from joulecast.traces.attribution import attributed, recognised_share
from joulecast.traces.read import read_profile
from joulecast.traces.times import time_errors

#: Traces, and where each was taken; the sampled one does not say.
TRACES = {
    "pytorch_a100_train.json.gz": "a100-sxm-40gb",
    "pytorch_v100_train.json.gz": "v100-sxm-16gb",
    "pytorch_sampled_rank0.json.gz": "a100-sxm-40gb",
    "pytorch_a100_alexnet_noshapes.json.gz": "a100-sxm-40gb",
    "pytorch_rocm_small.json.gz": "mi250-gcd",
}


def main() -> int:
    """Print the scores."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "../shared/data") / "traces"
    if not folder.is_dir():
        sys.stderr.write(f"no such folder: {folder}\n")
        return 2
    for name, gpu in TRACES.items():
        profile = read_profile(folder / name)
        found = attributed([profile], gpu)
        operators = profile.operators
        without = replace(operators, signature=np.full_like(operators.signature, -1))
        bare = attributed([replace(profile, operators=without, signatures=())], gpu)
        sys.stdout.write(
            f"{name}: {len(profile.activities):,} activities, recognised {100 * recognised_share(found.shares):.1f} % "
            f"of the kernel time, {found.energy_j:.4g} J, without shapes {bare.energy_j / found.energy_j:.3f} of it\n"
        )
        for row in time_errors(found.shares):
            sys.stdout.write(
                f"  {row['family']:12} {row['ran']:14} {row['operations']:6,} operations  "
                f"{100 * row['median_error']:4.0f} % off in the median  bias {100 * row['bias']:+4.0f} %\n"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
