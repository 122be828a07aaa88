"""Where the measured tables come from that joulecast is fitted and scored on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Source:
    """One public source of measurements.

    Attributes
    ----------
    folder : str
        Its place in the data folder.
    what : str
        What was measured.
    repository, commit, licence : str
        As published.
    """

    folder: str
    what: str
    repository: str
    commit: str
    licence: str


SOURCES = (
    Source(
        "aiconfigurator",
        "kernels of TensorRT-LLM, vLLM and NCCL: time; power on H200 and B200",
        "ai-dynamo/aiconfigurator",
        "095f58a51c4ca8e61b66ec108d86f223f8d559ce",
        "Apache-2.0",
    ),
    Source(
        "neusight",
        "fp32 operators of PyTorch: time",
        "sitar-lab/NeuSight",
        "6945927",
        "MIT",
    ),
    Source(
        "e2e/vidur",
        "dense operators of PyTorch: time",
        "microsoft/vidur",
        "7d47513",
        "MIT",
    ),
    Source(
        "energaizer",
        "whole forward passes: time, power, energy",
        "artifact of EnergAIzer (ISPASS 2026, arXiv 2604.20105)",
        "as published with the paper",
        "MIT",
    ),
    Source(
        "mlenergy",
        "chat answers in eager PyTorch, batch 1: time and energy on V100, A40 and A100",
        "ml-energy/leaderboard-v2",
        "c3af7f3",
        "Apache-2.0",
    ),
    Source(
        "mlenergy",
        "language models served by vLLM on H100 and B200: steady-state power, for a factor on energies",
        "ml-energy/leaderboard",
        "0cd52da",
        "Apache-2.0",
    ),
    Source(
        "e2e/llm_inference_bench",
        "vLLM and TensorRT-LLM offline: throughput, mean power of some runs",
        "argonne-lcf/LLM-Inference-Bench",
        "4211f5d",
        "BSD-3-Clause",
    ),
    Source(
        "e2e/power_hungry_processing",
        "Hugging Face pipelines at batch 1: time, energy of eight GPUs of which one works",
        "sashavor/co2_inference",
        "9ae9895",
        "MIT",
    ),
)
