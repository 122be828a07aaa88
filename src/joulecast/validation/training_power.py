"""Power of nodes that train (MLPerf), energy of Keras networks (del Rey), and the largest batch that fits (timm)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from joulecast.calibration.step_tables import figures, tabulated
from joulecast.calibration.training_runs import TrainingRun
from joulecast.coefficients.training import Scales
from joulecast.gpus import load_gpu
from joulecast.lowering.training import training_step
from joulecast.scenarios.training.memory import training_memory
from joulecast.scenarios.training.question import forward_pass, told_apart
from joulecast.scenarios.training.train import train
from joulecast.validation.runs import ScoredRun
from joulecast.validation.training_tables import rows_of_csv, timm

#: What an 8-GPU node of H100s draws beside its GPUs, before anything is known of one: processors, network, memory,
#: drives, conversion. [W]
NODE_W, NODE_SPREAD_W = 1500.0, 400.0

_GPT3 = {"model_type": "gpt2", "n_embd": 12288, "n_layer": 96, "n_head": 96, "vocab_size": 51200, "n_positions": 2048}
_IMAGES = {"image_size": 224, "precision": "fp16", "channels_last": True, "autotuned": True, "fused_norms": True,
           "optimizer": "momentum", "launch_mode": "cuda_graph"}  # fmt: skip

#: Benchmarks of MLPerf Training whose models the catalogue knows: sequences of BERT are packed to 512 tokens.
_MLPERF: Mapping[str, tuple[Any, dict[str, Any]]] = MappingProxyType(
    {
        "bert": ("bert-large-uncased", {"sequence_tokens": 512, "precision": "bf16", "launch_mode": "cuda_graph"}),
        "resnet": ("resnet50", _IMAGES),
        "gpt3": (_GPT3, {"sequence_tokens": 2048, "precision": "fp8", "micro_batch": 1, "tp": 8, "pp": 8, "chunks": 6,
                         "schedule": "interleaved", "zero": 1, "sequence_parallel": True}),
    }
)  # fmt: skip


def score_node_power(folder: Path) -> list[ScoredRun]:
    """Mean power of a node of eight H100s: what the host draws and what GPUs draw is fitted on other benchmarks."""
    found: dict[tuple[str, int, str], list[float]] = defaultdict(list)
    batches: dict[tuple[str, int], int] = {}
    for row in rows_of_csv(folder / "mlperf_training_power.csv"):
        if row["benchmark"] in _MLPERF and float(row["min_power_log_coverage_fraction"]) > 0.88:
            found[row["benchmark"], int(row["node_count"]), row["power_domain"]].append(float(row["mean_node_power_W"]))
            batches[row["benchmark"], int(row["node_count"])] = int(row["global_batch_size_samples"])
    runs = []
    for (benchmark, nodes), batch in batches.items():
        source, options = _MLPERF[benchmark]
        sizes = {"micro_batch": batch // nodes // 8, **options, "gpus": 8 * nodes, "global_batch": batch}
        runs.append(TrainingRun(source, "H100-SXM-80GB", sizes, 1.0, 1.0, benchmark, {"nodes": nodes}))
    tables, refused = tabulated(runs)
    if refused:
        raise ValueError("; ".join(refused))
    place = {(run.network, run.tags["nodes"]): i for i, run in enumerate(tables.runs)}
    grid = [(float(w), float(e)) for w in np.linspace(600, 2800, 45) for e in np.geomspace(0.7, 1.6, 19)]
    watts = {e: figures(tables, Scales(energy=e))[1] for e in {e for _, e in grid}}
    out = []
    for (benchmark, nodes, domain), measured in found.items():
        others = {key: values for key, values in found.items() if key[0] != benchmark and key[2] == domain}

        def cost(point: tuple[float, float], others: Mapping[Any, list[float]] = others) -> float:
            host_w, energy = point
            miss = [np.log((host_w + 8 * watts[energy][place[key[0], key[1]]]) / np.mean(values)) / 0.03
                    for key, values in others.items()]  # fmt: skip
            known = ((host_w - NODE_W) / NODE_SPREAD_W) ** 2 + (np.log(energy) / 0.2) ** 2
            return float(np.sum(np.square(miss)) + known)

        host_w, energy = min(grid, key=cost)
        predicted = host_w + 8 * watts[energy][place[benchmark, nodes]]
        name = f"{benchmark}, {nodes} nodes"
        out += [
            ScoredRun("MLPerf, power of a node", name, "H100-SXM-80GB", np.nan, float(predicted), np.nan, value)
            for value in measured
        ]
    return out


#: Networks without their classifiers, which transfer learning replaces.
_KERAS: Mapping[str, Any] = MappingProxyType(
    {
        "resnet50": "resnet50",
        "vgg16": {"model_type": "vgg", "hidden_sizes": [64, 128, 256, 512, 512], "depths": [2, 2, 3, 3, 3],
                  "classifier_size": 64, "num_labels": 2},
    }
)  # fmt: skip
_KERAS_GPUS = MappingProxyType({"NVIDIA GeForce RTX 3090": "RTX 3090", "NVIDIA GeForce RTX 3070": "RTX 3070"})

#: Edge of the images: what makes the arithmetic that the source reports. [pixels]
_KERAS_PIXELS = 128


def score_keras(folder: Path) -> list[ScoredRun]:
    """Time and energy an image of Keras networks: steps of training, and forward passes of validation.

    How fast each machine delivers images is that of its smallest network, which is not scored.
    """
    found: dict[tuple[str, str], list[Any]] = defaultdict(list)
    for row in rows_of_csv(folder / "delrey_cnn_training_energy.csv"):
        if row["gpu"] in _KERAS_GPUS:
            images = float(row["total_images_seen"])
            share = float(row["training_images"]) / (float(row["training_images"]) + float(row["validation_images"]))
            seconds = float(row["training_duration_h"]) * 3600.0 / images
            found[row["gpu"], row["architecture"]].append((seconds, float(row["average_gpu_power_W"]), share))
    out = []
    for (gpu, network), rows in found.items():
        if network == "mobilenet_v2":
            continue
        rate = 1.0 / min(seconds for seconds, _, _ in found[gpu, "mobilenet_v2"])
        options = {"micro_batch": 32, "image_size": _KERAS_PIXELS, "precision": "tf32", "optimizer": "adam",
                   "autotuned": True, "channels_last": True}  # fmt: skip
        model, recipe, layout, rest = told_apart(options)
        forward = forward_pass(_KERAS[network], model, recipe)
        step = train(forward, _KERAS_GPUS[gpu], recipe, layout, ignore_memory=True, **rest)
        only = step.parts_s["forward"]
        for seconds, power_w, share in rows:
            computed = (share * step.step_time_s + (1 - share) * only) / 32
            time_s = max(computed, 1.0 / rate)
            idle_w = load_gpu(_KERAS_GPUS[gpu]).idle_w
            watts = step.power_w * computed / time_s + max(1 - computed / time_s, 0.0) * 2.0 * idle_w
            out.append(ScoredRun("del Rey, an image", network, _KERAS_GPUS[gpu], time_s, watts, seconds, power_w))
    return out


def score_memory(folder: Path) -> list[ScoredRun]:
    """Largest batch that fits an RTX 3090, found by halving or doubling from the measured one, as ``time_s``."""
    out = []
    for run in timm(folder):
        batch = int(run.options["micro_batch"])
        if batch >= _MOST_BATCH:
            continue
        fitting = batch
        while fitting > 1 and not _fits(run, fitting):
            fitting //= 2
        while fitting >= batch and 2 * fitting <= _MOST_BATCH and _fits(run, 2 * fitting):
            fitting *= 2
        out.append(ScoredRun("timm, largest batch", run.network, run.gpu, float(fitting), np.nan, float(batch), np.nan))
    return out


#: The batch that the source tries first.
_MOST_BATCH = 512


def _fits(run: TrainingRun, batch: int) -> bool:
    model, recipe, layout, _ = told_apart({**run.options, "micro_batch": batch})
    step = training_step(forward_pass(run.source, model, recipe), replace(recipe, accumulate=1))
    return training_memory(step, recipe, layout, 1, load_gpu(run.gpu)).fits
