"""Times one answer and a sweep of layouts for training Llama-3-70B on 512 GPUs.

python benchmarks/training_layouts.py
"""

from __future__ import annotations

import resource
import time

import joulecast as jc

JOB = {"precision": "bf16", "master_weights": True, "sequence_tokens": 8192, "gpus": 512, "global_batch": 512}
AXES = {
    "tp": [1, 2, 4, 8],
    "pp": [1, 2, 4, 8, 16],
    "zero": [0, 1, 2, 3],
    "checkpointing": ["none", "selective", "full"],
    "sequence_parallel": [False, True],
    "micro_batch": [1, 2],
    "power_limit_w": [400, 500, 600, 700],
    "clock_mhz": [1200, 1400, 1600, 1800, 1980],
}


def main() -> None:
    """Print seconds, points and peak memory."""
    jc.train("gpt2", "h100", sequence_tokens=128)  # what is loaded once
    began = time.perf_counter()
    answer = jc.train(
        "meta-llama/Meta-Llama-3-70B",
        "h100",
        tp=8,
        pp=8,
        zero=1,
        sequence_parallel=True,
        checkpointing="selective",
        **JOB,
    )
    print(f"one answer      {time.perf_counter() - began:.3f} s (MFU {answer.mfu:.2f})")
    began = time.perf_counter()
    found = jc.sweep_training("meta-llama/Meta-Llama-3-70B", "h100", ignore_memory=True, **JOB, **AXES)
    seconds = time.perf_counter() - began
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"sweep           {len(found):,} points in {seconds:.1f} s, {len(found) / seconds:,.0f} a second")
    print(f"peak memory     {peak_mb:,.0f} MB")


if __name__ == "__main__":
    main()
