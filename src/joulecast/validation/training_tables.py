"""Published measurements of training as runs that `joulecast train` can be asked for."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from joulecast.calibration.networks import NETWORKS
from joulecast.calibration.training_runs import TrainingRun
from joulecast.errors import InputError
from joulecast.workloads.sources import open_workload

#: MPT's sizes (width, heads, layers): configurations in the benchmark's repository.
_MPT = {
    "125m": (768, 12, 12), "350m": (1024, 16, 24), "760m": (1536, 12, 24), "1b": (2048, 16, 24), "3b": (2560, 20, 32),
    "7b": (4096, 32, 32), "13b": (5120, 40, 40), "30b": (7168, 56, 48), "70b": (8192, 64, 80),
}  # fmt: skip
_MPT_GPUS = {"h100_80gb": "H100-SXM-80GB", "a100_80gb": "A100-SXM-80GB", "a100_40gb": "A100-SXM-40GB"}
_SHARDING = {"FULL_SHARD": 3, "SHARD_GRAD_OP": 2, "NO_SHARD": 0}


def mpt(folder: Path) -> Iterator[TrainingRun]:
    """Tokens a second of MPT decoders under FSDP (mosaicml/llm-foundry)."""
    for row in rows_of_csv(folder / "mpt_llm_training_throughput.csv"):
        width, heads, layers = _MPT[row["model"].split("-")[1]]
        config = {
            "model_type": "mpt", "d_model": width, "n_heads": heads, "n_layers": layers, "vocab_size": 50368,
            "max_seq_len": 131072, "expansion_ratio": 4, "no_bias": True, "attn_config": {},
        }  # fmt: skip
        precision = {"amp_bf16": "amp_bf16", "bf16": "amp_bf16", "amp_fp8": "fp8"}[row["precision"]]
        gpu = _MPT_GPUS[row["gpu"]]
        options = {
            "micro_batch": int(row["microbatch_per_gpu"]),
            "sequence_tokens": int(row["seq_len"]),
            "gpus": int(row["gpu_count"]),
            "global_batch": int(row["global_batch_size"]),
            "precision": precision,
            "zero": _SHARDING.get(row["sharding_strategy"], 3),
            "checkpointing": "full" if row["activation_checkpointing"] == "True" else "none",
            "clip_gradients": True,
            "node_link_gb_s": 50.0 if gpu.startswith("H100") else (25.0 if "1600" in row["section"] else 12.5),
        }
        tokens = int(row["global_batch_size"]) * int(row["seq_len"])
        yield TrainingRun(
            config, gpu, options, tokens / float(row["throughput_tokens_per_s"]), None, row["model"],
            {"source": "MPT", "stack": "llm-foundry", "precision": row["precision"]},
        )  # fmt: skip


_TORCHVISION_GPUS = {
    "A100 40GB SXM4": "A100-SXM-40GB", "A100-SXM4-40GB": "A100-SXM-40GB", "TITAN V": "Titan V", "Titan V": "Titan V",
    "TITAN RTX": "Titan RTX", "Titan RTX": "Titan RTX", "GeForce RTX 2080 Ti": "RTX 2080 Ti",
    "GeForce GTX 1080 Ti": "GTX 1080 Ti",
}  # fmt: skip


def torchvision(folder: Path, gpus: Sequence[int] = (1,)) -> Iterator[TrainingRun]:
    """Training steps of torchvision's networks, batch 12, cuDNN trying its kernels out, by so many GPUs of one process.

    Tables that hold another's figures to the last digit are copies of it: each run counts once.
    """
    seen: set[tuple[str, ...]] = set()
    for row in rows_of_csv(folder / "torchvision_step_times.csv"):
        known = NETWORKS.get(row["model"])
        if (
            row["mode"] != "training"
            or int(row["gpu_count"]) not in gpus
            or known is None
            or row["precision"] == "FP64"
        ):
            continue
        same = tuple(
            row[name] for name in ("gpu", "gpu_count", "precision", "model", "step_time_mean_ms", "step_time_sd_ms")
        )
        if same in seen:
            continue
        seen.add(same)
        gpu = next((ours for theirs, ours in _TORCHVISION_GPUS.items() if theirs in row["gpu"]), row["gpu"])
        # its container let convolutions and multiplies of fp32 use tensor cores on Ampere
        full = "tf32" if gpu.startswith("A100") else "fp32"
        options = {
            "micro_batch": int(row["batch_per_gpu"]),
            "image_size": int(row["image_size_px"]),
            "precision": full if row["precision"] == "FP32" else "fp16",
            "optimizer": "sgd",
            "update": "per_tensor",
            "autotuned": True,
            # PyTorch before 1.8; each timed step first copies its batch in
            "direct_groups": True,
            "copied_in": True,
            **({"gpus": int(row["gpu_count"]), "single_process": True} if row["gpu_count"] != "1" else {}),
        }
        yield TrainingRun(
            known[0], gpu, options, float(row["step_time_median_ms"]) / 1e3, None, known[1],
            {"source": "torchvision", "stack": "torchvision", "machine": _machine(row["source_path"])},
        )  # fmt: skip


def _machine(path: str) -> str:
    """The same for tables of one machine, whatever their precision."""
    return re.sub(r"half|float|single|(?<=_)\d(?=_gpus)", "", path)


def timm(folder: Path) -> Iterator[TrainingRun]:
    """Training steps of timm's networks under AMP on an RTX 3090, the largest batch that fitted."""
    for row in rows_of_csv(folder / "timm_rtx3090_training.csv"):
        known = _timm_network(row["model"])
        if known is None:
            continue
        options = {
            "micro_batch": int(row["batch_size"]),
            "image_size": int(row["image_size_px"]),
            "precision": "amp_fp16",
            "optimizer": "momentum",
            "update": "foreach",
            "channels_last": row["memory_format"] == "nhwc",
            "autotuned": True,
        }
        yield TrainingRun(
            known[0], "RTX 3090", options, float(row["train_step_time_ms"]) / 1e3, None, known[1],
            {"source": "timm", "stack": "timm", "model": row["model"], "pytorch": int(row["pytorch"])},
        )  # fmt: skip


def _deit(width: int) -> dict[str, Any]:
    return {"model_type": "vit", "hidden_size": width, "num_hidden_layers": 12, "num_attention_heads": width // 64,
            "intermediate_size": 4 * width, "image_size": 224, "patch_size": 16}  # fmt: skip


_TIMM: Mapping[str, Any] = {
    "vit_large_patch16_224": "vit-large-patch16-224",
    "vit_base_patch16_224": "vit-base-patch16-224",
    "deit_base_patch16_224": _deit(768),
    "deit_small_patch16_224": _deit(384),
    "deit_tiny_patch16_224": _deit(192),
}


def _timm_network(name: str) -> tuple[Any, str] | None:
    if name in NETWORKS:
        return NETWORKS[name]
    ours = _TIMM.get(name)
    return None if ours is None else (ours, "vit")


_ZEUS_GPUS = {
    "NVIDIA A40": "A40",
    "Quadro RTX 6000": "Quadro RTX 6000",
    "Tesla V100 (250 W max limit, PCIe class)": "V100-PCIE-32GB",
    "Tesla P100 (250 W max limit, PCIe class)": "P100-PCIE-16GB",
}  # fmt: skip
_ZEUS: Mapping[Any, Any] = {
    "resnet50": ("microsoft/resnet-50", 1281167, {"image_size": 224, "autotuned": True}),
    "squad": ("bert-base-uncased", 88524, {"sequence_tokens": 384, "attention": "eager"}),
    "sentiment140": ("bert-base-uncased", 500000, {"sequence_tokens": 128, "attention": "eager"}),
    "ncf": ("ncf", 4970845, {}),
}

#: MovieLens-1M: users and films; factors of neural collaborative filtering by products and by layers (He et al., 2017).
_USERS, _FILMS, _BY_PRODUCTS, _BY_LAYERS = 6040, 3706, 32, 128


def _ncf(batch: int, precision: str) -> Any:
    """Neural collaborative filtering over a batch, as an operation list."""
    pairs = [(_USERS, _BY_PRODUCTS), (_FILMS, _BY_PRODUCTS), (_USERS, _BY_LAYERS), (_FILMS, _BY_LAYERS)]
    ops: list[dict[str, Any]] = [
        {"op": "gather", "rows": batch, "dim": dim, "table_rows": rows, "dtype": precision} for rows, dim in pairs
    ]
    ops.append({"op": "mul", "elements": batch * _BY_PRODUCTS, "inputs": 2, "dtype": precision})
    width = 2 * _BY_LAYERS
    while width > _BY_PRODUCTS:
        ops.append({"op": "gemm", "m": batch, "n": width // 2, "k": width, "dtype": precision})
        ops.append({"op": "relu", "elements": batch * width // 2, "inputs": 1, "dtype": precision})
        width //= 2
    ops.append({"op": "gemm", "m": batch, "n": 1, "k": 2 * _BY_PRODUCTS, "dtype": precision})
    return open_workload(ops)


def zeus(folder: Path) -> Iterator[TrainingRun]:
    """Epochs under power limits on one GPU (Zeus, NSDI 2023); scored by ratios to the highest limit, and by power.

    The recommender waits for its input, whose rate nothing else tells: it is that under the highest limit.
    """
    ncf: dict[int, Any] = {}
    rows = list(rows_of_csv(folder / "zeus_power_limit_sweeps.csv"))
    fastest: dict[tuple[str, str], tuple[float, float]] = {}
    for row in rows:
        if row["model"] == "ncf":
            at = row["gpu"], row["batch_size"]
            fastest[at] = max(
                fastest.get(at, (0.0, 0.0)), (float(row["power_limit_W"]), float(row["time_per_epoch_s"]))
            )
    for row in rows:
        known = _ZEUS.get(row["model"]) or _ZEUS.get(row["dataset"])
        if known is None:
            continue
        source, samples, sizes = known
        gpu, batch = _ZEUS_GPUS[row["gpu"]], int(row["batch_size"])
        if source == "ncf":
            source = ncf.setdefault(batch, _ncf(batch, "fp32"))
        options = {
            **sizes,
            **(
                {"input_samples_per_s": samples / batch / fastest[row["gpu"], row["batch_size"]][1]}
                if row["model"] == "ncf"
                else {"micro_batch": batch}
            ),
            # PyTorch before 1.12 multiplied fp32 matrices on the tensor cores of Ampere
            "precision": "tf32" if gpu == "A40" else "fp32",
            "optimizer": "adamw" if row["optimizer"] == "adamw" else "adam",
            # SQuAD's steps take as long a sample at 4 samples as at 24: an update of many launches would show
            "update": "fused" if row["dataset"] == "squad" else "per_tensor",
            "power_limit_w": float(row["power_limit_W"]),
        }
        yield TrainingRun(
            source, gpu, options, float(row["time_per_epoch_s"]) * batch / samples, float(row["average_gpu_power_W"]),
            f"{row['model']}",
            {"source": "Zeus", "stack": "zeus", "group": (gpu, row["model"], row["dataset"], batch),
             "limit_w": float(row["power_limit_W"])},
        )  # fmt: skip


_DLE_GPUS = {
    "NVIDIA V100 16GB SXM": "V100-SXM-16GB", "NVIDIA V100 32GB SXM": "V100-SXM-32GB",
    "NVIDIA A100 40GB SXM": "A100-SXM-40GB", "NVIDIA A100 80GB SXM": "A100-SXM-80GB",
}  # fmt: skip
#: Frameworks whose BERT reads sequences binned by length: `seq_len` is the longest, not the shape (they take fewer
#: seconds a token at 512 than at 128).
_BINNED = ("PyTorch", "PaddlePaddle")
_DLE = {
    "BERT": ("bert-large-uncased", {}),
    "BioBERT": ("bert-base-uncased", {}),
    "resnet50v1.5": ("microsoft/resnet-50", {"image_size": 224}),
}


def deep_learning_examples(folder: Path) -> Iterator[TrainingRun]:
    """Throughput of NVIDIA's DeepLearningExamples, rows whose shapes are stated, at most 16 GPUs."""
    for row in rows_of_csv(folder / "nvidia_dle_training_throughput.csv"):
        known = _DLE.get(row["model"])
        length = row["seq_len"]
        if known is None or not row["per_microbatch_time_s"] or int(row["gpu_count"]) > 16:
            continue
        if "BERT" in row["model"] and (not length or row["framework"] in _BINNED):
            continue
        gpu = next((ours for theirs, ours in _DLE_GPUS.items() if theirs == row["gpu"]), row["gpu"])
        ampere = gpu.startswith("A100")
        full = "tf32" if ampere else "fp32"
        precision = {"FP32": full, "TF32": "tf32"}.get(row["precision"], "amp_fp16")
        # norm and activation are one kernel in MXNet and PaddlePaddle where channels lie together, and XLA's
        fused = row["framework"] in ("MxNet", "PaddlePaddle") and precision.startswith("amp")
        fused |= row["xla"] in ("ON", "Yes")
        sizes: dict[str, Any] = {"channels_last": precision.startswith("amp"), "autotuned": True,
                                 "fused_norms": fused}  # fmt: skip
        if length:
            sizes = {"sequence_tokens": int(length), "attention": "eager"}
        accumulated = max(int(float(row["gradient_accumulation_steps"] or 1)), 1)
        options: dict[str, Any] = {
            "micro_batch": int(row["microbatch_per_gpu_samples"]),
            "accumulate": accumulated,
            "gpus": int(row["gpu_count"]),
            "precision": precision,
            "optimizer": "adam" if "BERT" in row["model"] else "momentum",
            **known[1],
            **sizes,
        }
        yield TrainingRun(
            known[0], gpu, options, float(row["per_microbatch_time_s"]) * accumulated, None, row["model"],
            {"source": "DLE", "stack": f"DLE {row['framework']}", "xla": row["xla"], "phase": row["phase"]},
        )  # fmt: skip


SOURCES: Mapping[str, Callable[[Path], Iterator[TrainingRun]]] = MappingProxyType(
    {"MPT": mpt, "torchvision": torchvision, "timm": timm, "Zeus": zeus, "DLE": deep_learning_examples}
)


def rows_of_csv(path: Path) -> Iterator[dict[str, str]]:
    """Rows of a table of the folder, by column."""
    import csv

    if not path.is_file():
        raise InputError(f"no table {path.name} in {path.parent}")
    with path.open(newline="") as file:
        yield from csv.DictReader(file)
