"""Pipelines that train under clock plans and power limits (Perseus, SOSP 2024)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from joulecast.calibration.step_tables import POWERED, RunTables, figures, power_over_clock, tabulated, taken
from joulecast.calibration.training import fit_scales
from joulecast.calibration.training_runs import TrainingRun
from joulecast.coefficients.training import Scales
from joulecast.coefficients.transfer import power_coefficients
from joulecast.gpus import load_gpu
from joulecast.physics.power import core_scale, static_power_w
from joulecast.physics.throttle import felt_swing, swings
from joulecast.validation.runs import ScoredRun

Floats = npt.NDArray[np.float64]
Tell = Callable[[str, float], None]

#: What the source calls its GPUs.
GPUS = MappingProxyType(
    {"NVIDIA A100 80GB PCIe": "A100-PCIE-80GB", "NVIDIA A40 48GB": "A40", "NVIDIA A100 80GB SXM4": "A100-SXM-80GB"}
)

#: Layers of the published models, a quarter of each; activations are computed again. Their formats are not stated:
#: rates of arithmetic fit TF32. Attention of that time's Hugging Face layers wrote its scores to memory.
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

    def held(self, clock_mhz: float, limit_w: float, swing: float) -> tuple[float, float]:
        """Time over that at the highest clock, and power while computing, up to a clock and under a limit. [-, W]

        Parts of the computing draw powers of their own (`joulecast.physics.throttle.swings`): `swing` is what the
        driver sees of it.
        """
        parts = []
        for share, power in swings(swing):
            ratio, busy_w, _ = self.at_clock(min(clock_mhz, self.at_limit(limit_w / float(power))))
            parts.append((share * ratio, share * ratio * busy_w * float(power)))
        ratio, energy = np.sum(parts, axis=0)
        return float(ratio), float(energy / ratio)


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
    micro_batch: int
    last: bool

    @property
    def share(self) -> float:
        """Share of the iteration that it computes."""
        return self.computing_s / self.time_s

    @property
    def power_w(self) -> float:
        """Mean power. [W]"""
        return self.energy_j / self.time_s


def score_pipelines(folder: Path, tell: Tell) -> list[ScoredRun]:
    """Time, energy and power of pipeline jobs over those at the highest clocks and limits, and power itself.

    What each rank computes, and what an iteration takes beside its pipeline (the update, sums of gradients), is
    measured once, at the highest clocks. What waiting adds, and scales of energy and voltage of a GPU, are fitted on
    the other models of it.
    """
    by_gpu = ranks_by_gpu(folder)
    out: list[ScoredRun] = []
    for done, (gpu, models) in enumerate(by_gpu.items()):
        tell(f"{gpu} pipelines", done / len(by_gpu))
        stages = _Stages(gpu, models)
        for model in models:
            others = {name: found for name, found in models.items() if name != model}
            stages.spin(spin_w_per_sm(gpu, others))
            scales = _fitted(stages, others)
            curves = [stages.curve(model, last, scales) for last in (False, True)]
            out += _scored(gpu, model, models[model], curves, scales)
    return out


def ranks_by_gpu(folder: Path) -> dict[str, dict[str, list[_Rank]]]:
    """Measured ranks of each model, by GPU."""
    import polars as pl

    found: dict[str, dict[str, list[_Rank]]] = defaultdict(lambda: defaultdict(list))
    for row in pl.read_parquet(folder / "perseus_pipeline_iterations.parquet").iter_rows(named=True):
        if row["model"] not in _MODELS:
            continue
        computing = (row["fwd_busy_time_per_iter_s"] or np.nan) + (row["bwd_busy_time_per_iter_s"] or np.nan)
        found[GPUS[row["gpu"]]][row["model"]].append(
            _Rank(
                (row["experiment"], row["scheme"], row["control_mode"], row["plan_index"]), row["rank"],
                row["sm_clock_mean_MHz"], row["power_limit_mean_W"], row["iter_time_s"], row["rank_iter_energy_J"],
                computing, row["num_microbatches"], row["microbatch_size"], row["rank"] % row["pp"] == row["pp"] - 1,
            )
        )  # fmt: skip
    return found


class _Stages:
    """What stages of the models on one GPU are made of: one in the middle of each, and its last one with the head."""

    def __init__(self, gpu: str, models: Mapping[str, Sequence[_Rank]]) -> None:
        runs = []
        self.known: list[tuple[str, bool]] = []
        for model, ranks in models.items():
            source, sizes = _MODELS[model]
            images = "image_size" in sizes
            options = {**sizes, "micro_batch": ranks[0].micro_batch, "precision": "tf32", "accumulate": 16,
                       "optimizer": "adam", "autotuned": True}  # fmt: skip
            options |= {"checkpointing": "none"} if images else {"checkpointing": "full", "attention": "eager"}
            for last in (False, True):
                shape = source if images else _stage(source, len({one.rank for one in ranks if one.last}), ranks, last)
                runs.append(TrainingRun(shape, gpu, options, 1.0, 1.0, f"{model}, last {last}"))
                self.known.append((model, last))
        self.tables, refused = tabulated(runs)
        self.sm_count = load_gpu(gpu).sm_count
        if refused:
            raise ValueError("; ".join(refused))

    def spin(self, each_w: float) -> None:
        """Waiting for a neighbour adds so much for each SM, in place of what ships. [W]"""
        self.tables = replace(self.tables, spin_w=np.full(len(self.tables), each_w * self.sm_count))

    def curve(self, model: str, last: bool, scales: Scales) -> Curve:
        """A stage over clocks.

        Scales are fitted to what computes and leave waiting as it is: they can't tell static power from work.
        """
        row = self.known.index((model, last))
        return replace(curve_of(self.tables, row, scales), waiting_w=curve_of(self.tables, row, Scales()).waiting_w)


def _stage(source: Mapping[str, Any], pipelines: int, ranks: Sequence[_Rank], last: bool) -> dict[str, Any]:
    """One stage of a model of which `source` is a quarter; only the last one has a vocabulary."""
    layers = "n_layer" if "n_layer" in source else "num_hidden_layers"
    stages = len({one.rank for one in ranks}) // pipelines
    return {**source, layers: max(round(source[layers] * 4 / stages), 1), **({} if last else {"vocab_size": 8})}


def curve_of(tables: RunTables, row: int, scales: Scales) -> Curve:
    """One of the runs over its clocks."""
    time_s, busy_w, waiting_w = power_over_clock(taken(tables, [row]), scales)
    return Curve(tables.clock_mhz[row], time_s[0], busy_w[0], waiting_w[0])


def waiting_power_w(models: Mapping[str, Sequence[_Rank]]) -> float:
    """Power of a GPU that waits for other stages, from ranks that compute unlike shares of an iteration. [W]

    Each model draws a power of its own while it computes.
    """
    told = [(place, one) for place, ranks in enumerate(models.values()) for one in ranks if np.isfinite(one.share)]
    rows, power_w = np.zeros((len(told), len(models) + 1)), np.array([one.power_w for _, one in told])
    for row, (place, one) in zip(rows, told, strict=True):
        row[place], row[-1] = one.share, 1.0 - one.share
    return float(np.linalg.lstsq(rows, power_w, rcond=None)[0][-1])


def spin_w_per_sm(gpu: str, models: Mapping[str, Sequence[_Rank]]) -> float:
    """What waiting for another stage adds to static power at the highest clock, for each SM. [W]

    Held against `joulecast.physics.power.SPIN_W_PER_SM`.
    """
    described = load_gpu(gpu)
    power, top_mhz = power_coefficients(described), described.clock_max_mhz
    static_w = float(static_power_w(top_mhz, described, power))
    drive = float(core_scale(top_mhz, described, power)) * top_mhz / described.rate_clock_mhz
    waiting_w = waiting_power_w({name: at_highest(ranks) for name, ranks in models.items()})
    return max(waiting_w - static_w, 0.0) / drive / described.sm_count


#: Scales of energy and voltage, and of what moves memory, which no clock of the core changes.
_SCALES = (*POWERED, "memory")

#: Fits: how long the highest clocks take depends on where the limit holds them, which the fit tells.
_TURNS = 2


def _fitted(stages: _Stages, models: Mapping[str, list[_Rank]]) -> Scales:
    """Scales that fit ranks of some models while they compute, at their clocks and limits."""
    runs = []
    for model, ranks in models.items():
        whole_s = _highest(ranks)
        for one in ranks:
            if one.rank in whole_s and one.share >= 0.7:
                curve = stages.curve(model, one.last, Scales())
                waits_w = curve.at_clock(one.clock_mhz or np.inf)[2]
                power_w = (one.power_w - (1.0 - one.share) * waits_w) / one.share
                runs.append((one, stages.known.index((model, one.last)), one.computing_s / whole_s[one.rank], power_w))
    runs = runs[:: max(len(runs) // 90, 1)]
    few = taken(stages.tables, [row for _, row, _, _ in runs])
    options = [{"power_limit_w": one.limit_w} if one.limit_w else {"clock_mhz": one.clock_mhz} for one, *_ in runs]
    jobs = tuple(replace(job, options={**job.options, **mine}) for job, mine in zip(few.runs, options, strict=True))
    limited = replace(
        few,
        runs=jobs,
        limit_w=np.array([one.limit_w or few.limit_w[0] for one, *_ in runs]),
        measured_w=np.array([power_w for *_, power_w in runs]),
    )
    there = at_clocks(limited, np.array([one.clock_mhz or np.inf for one, *_ in runs]))
    stretch = np.array([one for _, _, one, _ in runs])
    scales = Scales()
    for _ in range(_TURNS):
        whole, _ = figures(few, scales)
        scales = fit_scales(replace(there, measured_s=whole * stretch), only=_SCALES)
    return scales


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


def at_highest(ranks: Sequence[_Rank]) -> list[_Rank]:
    """Ranks of plans that hold nothing back: all at the highest clock, or at the highest limit."""
    top_mhz = max((one.clock_mhz or 0.0 for one in ranks), default=0.0)
    top_w = max((one.limit_w or 0.0 for one in ranks), default=0.0)

    def free(one: _Rank) -> bool:
        if one.clock_mhz:
            return one.clock_mhz >= 0.995 * top_mhz
        return bool(one.limit_w) and (one.limit_w or 0.0) >= 0.995 * top_w

    return [one for plan in _plans(ranks) if all(map(free, plan)) for one in plan]


def _plans(ranks: Sequence[_Rank]) -> list[list[_Rank]]:
    plans: dict[Any, list[_Rank]] = defaultdict(list)
    for one in ranks:
        plans[one.run].append(one)
    return list(plans.values())


def _highest(ranks: Sequence[_Rank]) -> dict[int, float]:
    """Time that each rank computes at the highest clocks and limits. [s]"""
    found: dict[int, list[float]] = defaultdict(list)
    for one in at_highest(ranks):
        if np.isfinite(one.computing_s):
            found[one.rank].append(one.computing_s)
    return {rank: float(np.median(times)) for rank, times in found.items()}


def pipeline_s(computing_s: Sequence[float], micro_batches: int) -> float:
    """Time of an iteration's pipeline from what its ranks compute in it: the slowest, and once through the others. [s]

    Ranks of one stage run side by side; pipelines are at most eight stages deep.
    """
    each = np.array(computing_s) / micro_batches
    deep = min(len(each), 8)
    return (micro_batches - 1) * float(each.max()) + float(each.sum()) * deep / len(each)


def _scored(gpu: str, model: str, ranks: Sequence[_Rank], curves: Sequence[Curve], scales: Scales) -> list[ScoredRun]:
    whole_s, default_w = _highest(ranks), load_gpu(gpu).power_limit_default_w
    count = ranks[0].micro_batches

    swing = float(felt_swing(scales.power_swing, float(np.median(list(whole_s.values()))) / count))

    def held(curve: Curve, clock_mhz: float | None, limit_w: float) -> tuple[float, float]:
        return curve.held(clock_mhz or np.inf, limit_w * scales.limit_share, swing)

    highest_s = float(np.median([one.time_s for one in at_highest(ranks)]))
    beside_s = max(highest_s - pipeline_s(list(whole_s.values()), count), 0.0)
    kinds: dict[str, list[tuple[float, float, float, float, float]]] = defaultdict(list)
    for plan in _plans(ranks):
        if not all(one.rank in whole_s for one in plan):
            continue
        busy, waiting, computing = [], [], []
        for one in plan:
            curve = curves[one.last]
            ratio, busy_w = held(curve, one.clock_mhz, one.limit_w or default_w)
            computing.append(whole_s[one.rank] * ratio / held(curve, None, default_w)[0])
            busy.append(busy_w)
            waiting.append(curve.at_clock(one.clock_mhz or np.inf)[2])  # no limit binds a GPU that waits
        time_s = pipeline_s(computing, count) + beside_s
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
            gpus = len(whole_s)
            out.append(ScoredRun(f"Perseus {kind}: power", model, gpu, np.nan, energy_j / time_s / gpus, np.nan,
                                 measured_j / measured_s / gpus))  # fmt: skip
            if row == max(found):
                continue
            stretch, took = time_s / first_s, measured_s / first_measured_s
            out.append(ScoredRun(f"Perseus {kind}: ratio", model, gpu, stretch, energy_j / first_j / stretch, took,
                                 measured_j / first_measured_j / took))  # fmt: skip
    return out
