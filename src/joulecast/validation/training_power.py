"""Power of nodes that train (MLPerf), energy of Keras networks (del Rey), and the largest batch that fits (timm)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from joulecast.calibration.step_tables import TIMED, figures, tabulated, taken
from joulecast.calibration.training import fit_scales
from joulecast.calibration.training_runs import TrainingRun
from joulecast.coefficients.training import Scales
from joulecast.gpus import load_gpu
from joulecast.lowering.recipe import Recipe
from joulecast.lowering.training import training_step
from joulecast.scenarios.training.memory import training_memory
from joulecast.scenarios.training.question import forward_pass, told_apart
from joulecast.scenarios.training.train import train
from joulecast.validation.runs import ScoredRun
from joulecast.validation.training_tables import rows_of_csv, timm
from joulecast.workloads.table import Workload

#: What an 8-GPU node of H100s draws beside its GPUs, before anything is known of one: processors, network, memory,
#: drives, conversion. [W]
NODE_W, NODE_SPREAD_W = 1500.0, 400.0

_GPT3 = {"model_type": "gpt2", "n_embd": 12288, "n_layer": 96, "n_head": 96, "vocab_size": 51200, "n_positions": 2048}
_IMAGES = {"image_size": 224, "precision": "fp16", "channels_last": True, "autotuned": True, "fused_norms": True,
           "optimizer": "momentum", "launch_mode": "cuda_graph"}  # fmt: skip

#: Benchmarks of MLPerf Training whose models the catalogue knows. Sequences of BERT run without their padding, which
#: is half of 512 tokens, and the multiplies of both transformers in fp8 (NVIDIA's submissions since round 2.1).
_MLPERF: Mapping[str, tuple[Any, dict[str, Any]]] = MappingProxyType(
    {
        "bert": ("bert-large-uncased", {"sequence_tokens": 256, "precision": "fp8", "launch_mode": "cuda_graph"}),
        "resnet": ("resnet50", _IMAGES),
        "gpt3": (_GPT3, {"sequence_tokens": 2048, "precision": "fp8", "micro_batch": 1, "tp": 8, "pp": 8, "chunks": 6,
                         "schedule": "interleaved", "zero": 1, "sequence_parallel": True}),
    }
)  # fmt: skip


def score_node_power(folder: Path) -> list[ScoredRun]:
    """Time of a step and mean power of a node of eight H100s, each benchmark from what is fitted on the others.

    Power follows from how fast the work is done: the scales of time of these submissions come first, then what the host
    draws beside its GPUs and a factor on energies, both held to what is known before.
    """
    found: dict[tuple[str, int, str], list[float]] = defaultdict(list)
    steps_s: dict[tuple[str, int], list[float]] = defaultdict(list)
    batches: dict[tuple[str, int], int] = {}
    for row in rows_of_csv(folder / "mlperf_training_power.csv"):
        if row["benchmark"] in _MLPERF and float(row["min_power_log_coverage_fraction"]) > 0.88:
            benchmark, nodes, batch = row["benchmark"], int(row["node_count"]), int(row["global_batch_size_samples"])
            found[benchmark, nodes, row["power_domain"]].append(float(row["mean_node_power_W"]))
            items = batch * (_MLPERF[benchmark][1]["sequence_tokens"] if row["throughput_unit"] == "tokens/s" else 1)
            steps_s[benchmark, nodes].append(items / float(row["throughput_per_s"]))
            batches[benchmark, nodes] = batch
    runs = []
    for (benchmark, nodes), batch in batches.items():
        source, options = _MLPERF[benchmark]
        sizes = {"micro_batch": batch // nodes // 8, **options, "gpus": 8 * nodes, "global_batch": batch}
        step_s = float(np.median(steps_s[benchmark, nodes]))
        runs.append(TrainingRun(source, "H100-SXM-80GB", sizes, step_s, 1.0, benchmark, {"nodes": nodes}))
    tables, refused = tabulated(runs)
    if refused:
        raise ValueError("; ".join(refused))
    place = {(run.network, run.tags["nodes"]): i for i, run in enumerate(tables.runs)}
    tables = replace(tables, measured_w=np.full(len(tables), np.nan))
    out = []
    for left_out in dict.fromkeys(benchmark for benchmark, _ in batches):
        scales = fit_scales(taken(tables, [run.network != left_out for run in tables.runs]), only=TIMED)
        by_energy = {float(e): figures(tables, replace(scales, energy=e)) for e in np.geomspace(0.7, 1.6, 19)}
        for domain in dict.fromkeys(domain for _, _, domain in found):
            others = {place[key[:2]]: float(np.mean(values)) for key, values in found.items()
                      if key[0] != left_out and key[2] == domain}  # fmt: skip
            host_w, energy = _host_and_energy(others, {e: power_w for e, (_, power_w) in by_energy.items()})
            time_s, power_w = by_energy[energy]
            for nodes in [nodes for benchmark, nodes in batches if benchmark == left_out]:
                at = place[left_out, nodes]
                node_w, name = host_w + 8 * float(power_w[at]), f"{left_out}, {nodes} nodes"
                step_s, measured_s = float(time_s[at]), float(tables.measured_s[at])
                out += [
                    ScoredRun("MLPerf, power of a node", name, "H100-SXM-80GB", step_s, node_w, measured_s, watts)
                    for watts in found[left_out, nodes, domain]
                ]
                constant_w = float(np.mean(list(others.values())))
                out += [
                    ScoredRun(
                        "MLPerf, other benchmarks' mean", name, "H100-SXM-80GB", np.nan, constant_w, np.nan, watts
                    )
                    for watts in found[left_out, nodes, domain]
                ]
    for (benchmark, nodes, _), values in found.items():
        rows = [(np.nan, watts) for watts in values]
        out += _repeated("MLPerf, repeats about their median", f"{benchmark}, {nodes} nodes", "H100-SXM-80GB", rows)
    return out


def _repeated(group: str, model: str, gpu: str, rows: Sequence[tuple[float, float]]) -> list[ScoredRun]:
    """Each run of one configuration as predicted by the median of them: what nothing can do better than."""
    time_s, power_w = (float(one) for one in np.median(rows, axis=0))
    return [ScoredRun(group, model, gpu, time_s, power_w, seconds, watts) for seconds, watts in rows]


def _host_and_energy(node_w: Mapping[int, float], gpu_w: Mapping[float, Any]) -> tuple[float, float]:
    """Power of a host beside its GPUs, and factor on energies, that nodes' powers fit best beside what is known. [W, -]

    Parameters
    ----------
    node_w : mapping of int to float
        Measured, by place in `gpu_w`. [W]
    gpu_w : mapping of float to ndarray
        Predicted power of one GPU of each run, by factor on energies. [W]
    """

    def cost(point: tuple[float, float]) -> float:
        host_w, energy = point
        miss = [np.log((host_w + 8 * gpu_w[energy][at]) / watts) / 0.03 for at, watts in node_w.items()]
        known = ((host_w - NODE_W) / NODE_SPREAD_W) ** 2 + (np.log(energy) / 0.2) ** 2
        return float(np.sum(np.square(miss)) + known)

    return min(((float(watts), energy) for watts in np.linspace(600, 2800, 45) for energy in gpu_w), key=cost)


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


#: What is tried for the factors of Keras on times and energies, and what is expected of them in natural logarithms.
_FACTORS, _FACTOR_SPREAD = tuple(float(one) for one in np.geomspace(0.7, 1.3, 7)), 0.2


def score_keras(folder: Path) -> list[ScoredRun]:
    """Time and energy an image of Keras networks: steps of training, and forward passes of validation.

    How fast each machine delivers images is that of its smallest network, which is not scored. A factor on the times of
    kernels and one on energies are fitted on the other machine.
    """
    found: dict[tuple[str, str], list[Any]] = defaultdict(list)
    for row in rows_of_csv(folder / "delrey_cnn_training_energy.csv"):
        if row["gpu"] in _KERAS_GPUS:
            images = float(row["total_images_seen"])
            share = float(row["training_images"]) / (float(row["training_images"]) + float(row["validation_images"]))
            seconds = float(row["training_duration_h"]) * 3600.0 / images
            found[row["gpu"], row["architecture"]].append((seconds, float(row["average_gpu_power_W"]), share))
    least_s = {gpu: min(row[0] for row in rows) for (gpu, network), rows in found.items() if network == "mobilenet_v2"}
    points = [(time, energy) for time in _FACTORS for energy in _FACTORS]
    predicted: dict[tuple[str, str], dict[tuple[float, float], tuple[float, float]]] = {}
    for gpu, network in found:
        if network != "mobilenet_v2":
            share = float(np.median([row[2] for row in found[gpu, network]]))
            predicted[gpu, network] = {
                point: _keras_image(network, gpu, share, least_s[gpu], *point) for point in points
            }  # fmt: skip
    out = []
    for (gpu, network), of_point in predicted.items():
        others = [key for key in predicted if key[0] != gpu]

        def cost(point: tuple[float, float], others: list[tuple[str, str]] = others) -> float:
            miss = [np.log(np.divide(predicted[key][point], np.median(found[key], axis=0)[:2])) / 0.1 for key in others]
            return float(np.sum(np.square(miss)) + np.sum(np.square(np.log(point) / _FACTOR_SPREAD)))

        time_s, watts = of_point[min(points, key=cost)]
        out += [
            ScoredRun("del Rey, an image", network, _KERAS_GPUS[gpu], time_s, watts, seconds, power_w)
            for seconds, power_w, _ in found[gpu, network]
        ]
        rows = [(seconds, power_w) for seconds, power_w, _ in found[gpu, network]]
        out += _repeated("del Rey, repeats about their median", network, _KERAS_GPUS[gpu], rows)
    return out


def _keras_image(
    network: str, gpu: str, share: float, least_s: float, time: float, energy: float
) -> tuple[float, float]:
    """Time of an image and mean power, `share` of the images trained on and the rest only looked at. [s, W]"""
    options = {"micro_batch": 32, "image_size": _KERAS_PIXELS, "precision": "tf32", "optimizer": "adam",
               "autotuned": True, "channels_last": True}  # fmt: skip
    scales = Scales(multiply=time, convolution=time, gradient=time, memory=time, energy=energy)
    model, recipe, layout, rest = told_apart({**options, "scales": scales})
    forward = _keras_forward(network, recipe, tuple(model.items()))
    step = train(forward, _KERAS_GPUS[gpu], recipe, layout, ignore_memory=True, **rest)
    computed = (share * step.step_time_s + (1 - share) * step.parts_s["forward"]) / 32
    time_s = max(computed, least_s)
    idle_w = load_gpu(_KERAS_GPUS[gpu]).idle_w
    return time_s, step.power_w * computed / time_s + max(1 - computed / time_s, 0.0) * 2.0 * idle_w


@lru_cache(maxsize=4)
def _keras_forward(network: str, recipe: Recipe, sizes: tuple[tuple[str, Any], ...]) -> Workload:
    return forward_pass(_KERAS[network], dict(sizes), recipe)


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
