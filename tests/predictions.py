"""Predictions made by hand, for tests of how they are shown."""

from __future__ import annotations

from typing import Any

import numpy as np

from joulecast.scenarios.prediction import MemoryNeed, PhasePrediction, Prediction


def around(value: float, share: float) -> tuple[float, float]:
    """An interval of `share` of `value` on either side."""
    return (value * (1 - share), value * (1 + share))


def phase(name: str, time_s: float, power_w: float, *, bound_by: str, **changes: Any) -> PhasePrediction:
    """A phase of a decoder at batch 8; `changes` replace fields."""
    energy_j = time_s * power_w
    fields: dict[str, Any] = {
        "phase": name,
        "passes": 1.0,
        "time_s": time_s,
        "power_w": power_w,
        "energy_j": energy_j,
        "gpu_time_s": time_s,
        "host_time_s": time_s / 10,
        "idle_share": 0.0,
        "clock_mhz": 1980.0,
        "throttled": "cap" in bound_by,
        "bound_by": bound_by,
        "tokens_in": 16384.0,
        "tokens_out": 8.0,
        "flop": 2.63e14,
        "dram_bytes": 4.1e10,
        "peak_flop_share": 0.62,
        "peak_dram_share": 0.31,
        "intervals": {
            "time_s": around(time_s, 0.061),
            "power_w": around(power_w, 0.042),
            "energy_j": around(energy_j, 0.12),
        },
    }
    return PhasePrediction(**{**fields, **changes})


def llama(**changes: Any) -> Prediction:
    """Prefill (0.5 s at 600 W) and decode (1.5 s at 400 W) of an 8B decoder, 900 J in all; `changes` replace fields."""
    phases = (
        phase("prefill", 0.5, 600.0, bound_by="tensor core, cap", clock_mhz=1755.0),
        phase(
            "decode",
            1.5,
            400.0,
            bound_by="DRAM",
            passes=255.0,
            tokens_in=2040.0,
            tokens_out=2040.0,
            flop=3.3e13,
            peak_flop_share=0.022,
            peak_dram_share=0.81,
            idle_share=0.004,
        ),
    )
    kernels = {
        "phase": np.array(["prefill", "prefill", "decode"], dtype=object),
        "layer": np.array(
            ["layers.*.mlp.gate_up_proj", "layers.*.attention.sdpa", "layers.*.mlp.down_proj"], dtype=object
        ),
        "op": np.array(["gemm", "context_attention", "gemm"], dtype=object),
        "family": np.array(["gemm", "attention", "gemm"], dtype=object),
        "shape": np.array(
            ["m=16384 n=28672 k=4096 bf16", "batch=8 q=2048 kv=2048 h=32/8 d=128", "m=8 n=4096 k=14336 bf16"],
            dtype=object,
        ),
        "count": np.array([32.0, 32.0, 8160.0]),
        "launches": np.array([32.0, 32.0, 8160.0]),
        "time_s": np.array([0.4, 0.1, 1.5]),
        "energy_j": np.array([250.0, 50.0, 600.0]),
        "power_w": np.array([625.0, 500.0, 400.0]),
        "clock_mhz": np.array([1755.0, 1755.0, 1980.0]),
        "bound_by": np.array(["tensor core, cap", "special functions, cap", "DRAM"], dtype=object),
        "flop": np.array([2.5e14, 1.3e13, 3.3e13]),
        "dram_bytes": np.array([3e10, 1.1e10, 4e12]),
        "provenance": np.array(["fitted", "fitted", "fitted"], dtype=object),
    }
    fields: dict[str, Any] = {
        "workload": "meta-llama/Llama-3.1-8B",
        "gpu": "H100-SXM-80GB",
        "gpu_count": 1,
        "time_s": 2.0,
        "power_w": 450.0,
        "energy_j": 900.0,
        "clock_mhz": 1923.75,
        "power_limit_w": 700.0,
        "bound_by": "DRAM",
        "phases": phases,
        "kernels": kernels,
        "modules": {"DRAM": 300.0, "tensor core": 150.0, "L2": 60.0, "CUDA core": 40.0, "static": 340.0, "idle": 10.0},
        "families": {"gemm": 720.0, "attention": 90.0, "row_reduction": 45.0, "elementwise": 40.0, "idle": 5.0},
        "layers": {
            "layers.*.mlp.gate_up_proj": 400.0,
            "layers.*.mlp.down_proj": 200.0,
            "layers.*.attention.qkv_proj": 120.0,
            "layers.*.attention.o_proj": 80.0,
            "lm_head": 60.0,
            "layers.*.attention.sdpa": 30.0,
            "": 10.0,
        },
        "memory": MemoryNeed(16.06, 2.42, 0.62, 0.75, 85.9),
        "intervals": {"time_s": around(2.0, 0.08), "power_w": around(450.0, 0.05), "energy_j": around(900.0, 0.1)},
        "provenance": {
            "gemm": "fitted on H100-SXM-80GB",
            "attention": "fitted on H100-SXM-80GB",
            "row_reduction": "transferred from A100-SXM-80GB",
            "elementwise": "transferred from A100-SXM-80GB",
            "power": "transferred from H200-SXM-141GB",
            "host": "fitted",
        },
        "notes": ("h100 means H100-SXM-80GB",),
        "info": {
            "batch": 8,
            "prompt_tokens": 2048,
            "generate_tokens": 256,
            "dtype": "bf16",
            "launch_mode": "eager",
            "attention": "fused",
            "engine": None,
            "tp": 1,
            "pp": 1,
            "ep": 1,
            "parameters": 8.03e9,
        },
    }
    return Prediction(**{**fields, **changes})
