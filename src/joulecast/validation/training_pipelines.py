"""Pipelines that train under clock plans and power limits, and stages at locked clocks (Perseus, SOSP 2024)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from joulecast.calibration.step_tables import RunTables, figures, power_over_clock, tabulated, taken
from joulecast.calibration.training import fit_scales
from joulecast.calibration.training_runs import TrainingRun
from joulecast.coefficients.training import Scales
from joulecast.gpus import load_gpu
from joulecast.validation.runs import ScoredRun

Floats = npt.NDArray[np.float64]
Tell = Callable[[str, float], None]

_GPUS = MappingProxyType(
    {"NVIDIA A100 80GB PCIe": "A100-PCIE-80GB", "NVIDIA A40 48GB": "A40", "NVIDIA A100 80GB SXM4": "A100-SXM-80GB"}
)

#: Layers of the published models, one GPU's share; activations are computed again. Their formats are not stated:
#: rates of arithmetic fit TF32.
_MODELS: Mapping[str, tuple[Any, dict[str, Any]]] = MappingProxyType(
    {
        "bert-huge-uncased": (
            {"model_type": "bert", "hidden_size": 2048, "num_hidden_layers": 6, "num_attention_heads": 16,
             "intermediate_size": 8192, "vocab_size": 30522, "max_position_embeddings": 512},
            {"sequence_tokens": 512},
        ),
        "bloom-3b": (
            {"model_type": "bloom", "hidden_size": 2560, "n_layer": 8, "n_head": 32, "vocab_size": 250880},
            {"sequence_tokens": 1024},
        ),
        "gpt3-6.7b": (
            {"model_type": "gpt2", "n_embd": 4096, "n_layer": 8, "n_head": 32, "vocab_size": 50257,
             "n_positions": 1024},
            {"sequence_tokens": 1024},
        ),
        "wide-resnet101_8": (
            {"model_type": "resnet", "embedding_size": 64, "hidden_sizes": [256, 512, 1024, 2048],
             "depths": [3, 4, 23, 3], "layer_type": "bottleneck", "hidden_act": "relu", "width_per_group": 512},
            {"image_size": 224},
        ),
    }
)  # fmt: skip

#: The pipeline stage of the clock sweeps: a twelfth of GPT-3's layers over eight tensor-parallel GPUs, one sequence.
_STAGE = {"model_type": "gpt2", "n_embd": 12288, "n_layer": 12, "n_head": 96, "vocab_size": 50257, "n_positions": 2048}


@dataclass(frozen=True)
class Curve:
    """What computing a micro-batch takes at rising clocks, and what waiting draws.

    Attributes
    ----------
    clock_mhz, time_s, busy_w, waiting_w : ndarray, shape (k,)
    """

    clock_mhz: Floats
    time_s: Floats
    busy_w: Floats
    waiting_w: Floats

    def at_clock(self, clock_mhz: float) -> tuple[float, float, float]:
        """Time over that at the highest clock, and both powers. [-, W, W]"""
        place = np.log(np.clip(clock_mhz, self.clock_mhz[0], self.clock_mhz[-1]))
        grid = np.log(self.clock_mhz)
        time_s = float(np.exp(np.interp(place, grid, np.log(self.time_s))))
        busy, waiting = (float(np.interp(place, grid, one)) for one in (self.busy_w, self.waiting_w))
        return time_s / float(self.time_s[-1]), busy, waiting

    def at_limit(self, limit_w: float) -> float:
        """Highest clock whose power while computing keeps to a limit. [MHz]"""
        rising = np.maximum.accumulate(self.busy_w)
        return float(np.exp(np.interp(np.log(limit_w), np.log(rising), np.log(self.clock_mhz))))


@dataclass(frozen=True)
class _Rank:
    """One stage's GPU under one plan."""

    run: tuple[Any, ...]
    rank: int
    clock_mhz: float | None
    limit_w: float | None
    time_s: float
    energy_j: float
    computing_s: float
    micro_batches: int


def score_pipelines(folder: Path, tell: Tell) -> list[ScoredRun]:
    """Time, energy and power of pipeline jobs over those at the highest clocks and limits, and power itself.

    How the stages' work is balanced is measured once, at the highest clocks. Energy and voltage scales of a GPU are
    fitted on the other models of it.
    """
    ranks = _read(folder / "perseus_pipeline_iterations.parquet")
    by_gpu: dict[str, dict[str, list[_Rank]]] = defaultdict(lambda: defaultdict(list))
    for (gpu, model), found in ranks.items():
        by_gpu[gpu][model] = found
    out: list[ScoredRun] = []
    for done, (gpu, models) in enumerate(by_gpu.items()):
        tell(f"{gpu} pipelines", done / len(by_gpu))
        tables, known = _tables(gpu, models)
        for model in known:
            others = [name for name in known if name != model]
            scales = _scales(tables, known, others, models) if others else Scales()
            curve = _curve(tables, known.index(model), scales)
            out += _scored(gpu, model, models[model], curve, scales.limit_share)
    return out


def _read(path: Path) -> dict[tuple[str, str], list[_Rank]]:
    import polars as pl

    found: dict[tuple[str, str], list[_Rank]] = defaultdict(list)
    for row in pl.read_parquet(path).iter_rows(named=True):
        if row["model"] not in _MODELS:
            continue
        computing = (row["fwd_busy_time_per_iter_s"] or np.nan) + (row["bwd_busy_time_per_iter_s"] or np.nan)
        found[_GPUS[row["gpu"]], row["model"]].append(
            _Rank(
                (row["experiment"], row["scheme"], row["control_mode"], row["plan_index"]), row["rank"],
                row["sm_clock_mean_MHz"], row["power_limit_mean_W"], row["iter_time_s"], row["rank_iter_energy_J"],
                computing, row["num_microbatches"],
            )
        )  # fmt: skip
    return found


def _tables(gpu: str, models: Iterable[str]) -> tuple[RunTables, list[str]]:
    runs = []
    for model in models:
        source, sizes = _MODELS[model]
        options = {**sizes, "micro_batch": 32 if "image_size" in sizes else 4, "precision": "tf32", "accumulate": 16,
                   "checkpointing": "none" if "image_size" in sizes else "full", "optimizer": "adam",
                   "autotuned": True}  # fmt: skip
        runs.append(TrainingRun(source, gpu, options, 1.0, 1.0, model))
    tables, refused = tabulated(runs)
    if refused:
        raise ValueError("; ".join(refused))
    return tables, [run.network for run in tables.runs]


def _curve(tables: RunTables, row: int, scales: Scales) -> Curve:
    time_s, busy_w, waiting_w = power_over_clock(taken(tables, [row]), scales)
    return Curve(tables.clock_mhz[row], time_s[0], busy_w[0], waiting_w[0])


def _scales(tables: RunTables, known: Sequence[str], others: Sequence[str], ranks: Mapping[str, list[_Rank]]) -> Scales:
    """Scales of power that fit ranks of other models while they compute, at their clocks and limits."""
    runs, rows = [], []
    for model in others:
        whole = _highest(ranks[model])
        for one in ranks[model]:
            share = one.computing_s / one.time_s
            first = whole.get(one.rank)
            if first is None or not np.isfinite(share) or share < 0.7:
                continue
            # waiting draws about half of computing: power while computing, from the mean
            power_w = one.energy_j / one.time_s / (share + 0.5 * (1.0 - share))
            stretch = one.computing_s / first
            options = {"power_limit_w": one.limit_w} if one.limit_w else {"clock_mhz": one.clock_mhz}
            runs.append((model, options, stretch, power_w))
            rows.append(known.index(model))
    return _fitted(tables, runs, rows)


def _fitted(tables: RunTables, runs: Sequence[tuple[str, Mapping[str, Any], float, float]], rows: list[int]) -> Scales:
    step = max(len(runs) // 90, 1)
    runs, rows = list(runs)[::step], rows[::step]
    few = taken(tables, rows)
    time_s, _ = figures(few, Scales())  # at the GPU's own limit, as the highest clocks run
    limit = np.array([options.get("power_limit_w") or few.limit_w[0] for _, options, _, _ in runs])
    asked = np.array([options.get("clock_mhz") or np.inf for _, options, _, _ in runs])
    few = replace(
        few,
        runs=tuple(replace(few.runs[i], options={**few.runs[i].options, **runs[i][1]}) for i in range(len(rows))),
        limit_w=limit,
        measured_s=time_s * np.array([stretch for _, _, stretch, _ in runs]),
        measured_w=np.array([power_w for _, _, _, power_w in runs]),
    )
    return fit_scales(at_clocks(few, asked), only=("energy", "static", "voltage_floor", "voltage_knee", "limit_share"))


def at_clocks(tables: RunTables, clock_mhz: Floats) -> RunTables:
    """The runs at clocks asked for: what lies above them becomes what they have."""
    grid = tables.clock_mhz
    asked = np.minimum(clock_mhz[:, None], grid[:, -1:])
    place = np.minimum(grid, asked)

    def moved(values: Floats) -> Floats:
        out = np.empty_like(values)
        for i in range(len(values)):
            flat = values[i].reshape(values.shape[1], -1)
            out[i] = np.stack([np.interp(place[i], grid[i], flat[:, j]) for j in range(flat.shape[1])], axis=1).reshape(
                values.shape[1:]
            )
        return out

    names = ("class_s", "other_s", "exchange_s", "waiting_s", "holding_s", "own_voltage")
    columns: dict[str, Any] = {name: moved(getattr(tables, name)) for name in names}
    return replace(tables, clock_mhz=place, **columns)


def _highest(ranks: Sequence[_Rank]) -> dict[int, float]:
    """Time that each rank computes at the highest clocks and limits. [s]"""
    found: dict[int, list[float]] = defaultdict(list)
    top_mhz = max((one.clock_mhz or 0.0 for one in ranks), default=0.0)
    top_w = max((one.limit_w or 0.0 for one in ranks), default=0.0)
    plans: dict[Any, list[_Rank]] = defaultdict(list)
    for one in ranks:
        plans[one.run].append(one)
    for plan in plans.values():
        if all((one.clock_mhz or 0) >= 0.995 * top_mhz or (one.limit_w or 0) >= 0.995 * top_w for one in plan):
            for one in plan:
                if np.isfinite(one.computing_s):
                    found[one.rank].append(one.computing_s)
    return {rank: float(np.median(times)) for rank, times in found.items()}


def _scored(gpu: str, model: str, ranks: Sequence[_Rank], curve: Curve, limit_share: float) -> list[ScoredRun]:
    shares, default_w = _highest(ranks), load_gpu(gpu).power_limit_default_w
    plans: dict[Any, list[_Rank]] = defaultdict(list)
    for one in ranks:
        plans[one.run].append(one)
    kinds: dict[str, list[tuple[float, float, float, float, float]]] = defaultdict(list)
    for plan in plans.values():
        if not all(one.rank in shares for one in plan):
            continue
        busy, waiting, computing = [], [], []
        for one in plan:
            limit_w = one.limit_w or default_w
            clock = min(one.clock_mhz or np.inf, curve.at_limit(limit_w * limit_share))
            ratio, busy_w, waiting_w = curve.at_clock(clock)
            computing.append(shares[one.rank] * ratio / curve.at_clock(curve.at_limit(default_w * limit_share))[0])
            busy.append(busy_w)
            waiting.append(waiting_w)
        count = plan[0].micro_batches
        each = np.array(computing) / count
        stages = len({one.rank for one in plan})
        # ranks of one stage run side by side: the pipeline's stages are told by how long each computes
        deep = stages if stages <= 8 else 8
        time_s = (count - 1) * float(each.max()) + float(each.sum()) * deep / len(each)
        energy_j = sum(w * t + idle * max(time_s - t, 0.0)
                       for w, t, idle in zip(busy, computing, waiting, strict=True))  # fmt: skip
        measured_s = max(one.time_s for one in plan)
        measured_j = sum(one.energy_j for one in plan)
        kind = "clock plans" if plan[0].clock_mhz else "power limits"
        top = max(one.clock_mhz or one.limit_w or 0.0 for one in plan)
        low = min(one.clock_mhz or one.limit_w or 0.0 for one in plan)
        kinds[kind].append((low + 1e-3 * top, time_s, energy_j, measured_s, measured_j))
    out = []
    for kind, found in kinds.items():
        _, first_s, first_j, first_measured_s, first_measured_j = max(found)
        for row in found:
            _, time_s, energy_j, measured_s, measured_j = row
            gpus = len(shares)
            out.append(ScoredRun(f"Perseus {kind}: power", model, gpu, np.nan, energy_j / time_s / gpus, np.nan,
                                 measured_j / measured_s / gpus))  # fmt: skip
            if row == max(found):
                continue
            stretch, took = time_s / first_s, measured_s / first_measured_s
            out.append(ScoredRun(f"Perseus {kind}: ratio", model, gpu, stretch, energy_j / first_j / stretch, took,
                                 measured_j / first_measured_j / took))  # fmt: skip
    return out


def score_stage_clocks(folder: Path, tell: Tell) -> list[ScoredRun]:
    """Time and energy of pipeline stages at locked clocks over those at the highest: nothing fitted on either GPU."""
    import polars as pl

    table = pl.read_csv(folder / "perseus_stage_clock_sweeps.csv")
    out = []
    for (theirs,), part in table.group_by(["gpu"], maintain_order=True):
        gpu = _GPUS[str(theirs)]
        tell(f"stages on {gpu}", 0.5)
        options = {"micro_batch": 1, "sequence_tokens": 2048, "precision": "bf16", "accumulate": 64, "gpus": 8, "tp": 8,
                   "optimizer": "sgd"}  # fmt: skip
        tables, _ = tabulated([TrainingRun(_STAGE, gpu, options, 1.0, 1.0, "gpt3")])
        # one GPU was profiled with its slice of the weights: no exchanges
        tables = replace(tables, other_s=np.zeros_like(tables.other_s))
        curve = _curve(tables, 0, Scales())
        whole = part.group_by("stage", "sm_clock_MHz").agg(pl.col("time_s").sum(), pl.col("gpu_energy_J").sum())
        limit = tables.limit_w[0]
        for (stage,), rows in whole.group_by(["stage"]):
            found = rows.sort("sm_clock_MHz")
            predicted = []
            for clock in found["sm_clock_MHz"]:
                # the A100s of this source draw more than the part's limit
                settled = min(float(clock), curve.at_limit(limit) if gpu == "A40" else np.inf)
                ratio, busy_w, _ = curve.at_clock(settled)
                predicted.append((ratio, busy_w))
            times, watts = np.array(predicted).T
            measured_s, measured_j = found["time_s"].to_numpy(), found["gpu_energy_J"].to_numpy()
            t, m = times / times[-1], measured_s / measured_s[-1]
            w, v = watts / watts[-1], measured_j / measured_j[-1] / m
            out += [
                ScoredRun(
                    f"Perseus stage clocks, {gpu}",
                    f"gpt3 stage {stage}",
                    gpu,
                    float(t[i]),
                    float(w[i]),
                    float(m[i]),
                    float(v[i]),
                )
                for i in range(len(times) - 1)
            ]
    return out
