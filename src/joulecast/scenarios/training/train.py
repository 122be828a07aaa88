"""`train`: a model, a recipe and a layout to the time, power, energy and memory of training."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np

from joulecast.bounds.ranges import beyond_settable, check_clock_mhz, check_power_limit_w, number
from joulecast.coefficients.training import Scales, scales_of
from joulecast.errors import InputError, shortened
from joulecast.gpus import Gpu, load_gpu
from joulecast.lowering.execution import Execution
from joulecast.lowering.formats import arithmetic, substitute
from joulecast.lowering.recipe import Recipe
from joulecast.lowering.training import Step, training_step
from joulecast.scenarios.footprint import Site, account, checked_site
from joulecast.scenarios.pricing import host_of
from joulecast.scenarios.training.layout import Layout, micro_batches
from joulecast.scenarios.training.memory import refuse_what_does_not_fit, training_memory
from joulecast.scenarios.training.prediction import TrainingPrediction
from joulecast.scenarios.training.step import run_step
from joulecast.workloads.table import OpTable, Workload

#: Sizes that context parallelism divides, by kind: all that goes along the sequence.
_ALONG_SEQUENCE: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "gemm": ("m",),
        "row_reduction": ("rows",),
        "elementwise": ("elements",),
        "gather": ("rows",),
        "copy": ("elements",),
        "moe": ("num_tokens",),
    }
)


def train(
    forward: Workload,
    gpu: str | Gpu,
    recipe: Recipe,
    layout: Layout,
    *,
    global_batch: int | None = None,
    steps: float | None = None,
    samples: float | None = None,
    tokens: float | None = None,
    epochs: float = 1.0,
    launch_mode: str = "eager",
    attention: str = "fused",
    changes: Mapping[str, str | float] | None = None,
    clock_mhz: float | None = None,
    power_limit_w: float | None = None,
    host_us_per_launch: float | None = None,
    input_samples_per_s: float | None = None,
    copied_in: bool = False,
    site: Site | None = None,
    scales: Scales | None = None,
    ignore_memory: bool = False,
    exclude: tuple[str, ...] = (),
) -> TrainingPrediction:
    """Predict a training job.

    Parameters
    ----------
    forward : Workload
        The forward pass over one micro-batch, in the format of the recipe.
    gpu : str or Gpu
    recipe : Recipe
        Its `accumulate` is replaced where a global batch is given.
    layout : Layout
    global_batch : int, optional
        Samples of one update over all GPUs; default one micro-batch (times `Recipe.accumulate`) on each.
    steps, samples, tokens : float, optional
        Length of the run: updates, or samples or tokens in the data set, `epochs` times.
    epochs : float
    launch_mode, attention : str
        As for `predict`.
    changes, clock_mhz, power_limit_w, host_us_per_launch
        As for `predict`.
    input_samples_per_s : float, optional
        Rate at which the input pipeline delivers samples, all of them together. [1/s]
    copied_in : bool
        Whether each batch is copied to the GPU from memory that is not pinned, at `PAGEABLE_GB_S`, before the step that
        uses it, as plain loops do.
    site : Site, optional
        Where it runs, for money and carbon.
    scales : Scales, optional
        How the software differs from the kernels that were fitted; by default what ``joulecast calibrate --training``
        found, else what is shipped.
    ignore_memory : bool
        Price a job that does not fit all the same.
    exclude : tuple of str
        GPUs whose fitted coefficients may not be used.

    Returns
    -------
    TrainingPrediction

    Raises
    ------
    InputError
        For anything that can't be used as given.
    InfeasibleError
        If it does not fit the memory.
    """
    site = None if site is None else checked_site(site)
    if scales is not None and not isinstance(scales, Scales):
        raise InputError(f"scales takes joulecast.coefficients.training.Scales, not {shortened(repr(scales), 40)}")
    if not isinstance(exclude, tuple | list | set | frozenset):
        raise InputError(f"exclude takes names of GPUs in a tuple, not {shortened(repr(exclude), 40)}")
    described = load_gpu(gpu, changes)
    clock = check_clock_mhz(clock_mhz, described.clock_min_mhz, described.clock_max_mhz, described.name)
    limit = described.power_limit_default_w
    if power_limit_w is not None:
        limit = check_power_limit_w(power_limit_w, described.idle_w, described.name, described.power_limit_min_w)
    if layout.gpus > 1 and described.nvlink_gb_s <= 0 and described.pcie_gb_s <= 0:
        raise InputError(f"{described.name} has no link to other GPUs: give gpus=1")
    micro = int(forward.info.get("batch") or 1)
    count = recipe.accumulate if global_batch is None else micro_batches(global_batch, micro, layout)
    recipe = replace(recipe, accumulate=count)
    _check_layout(forward, layout, count)
    step = one_micro_batch(forward, recipe, layout, attention == "eager")
    memory = training_memory(step, recipe, layout, count, described)
    if not ignore_memory:
        refuse_what_does_not_fit(forward.name, memory, recipe, layout, micro, described)
    execution = Execution(launch_mode, attention, "pytorch", tp=layout.tp, ep=layout.ep, overlap=layout.overlap)
    whole = micro * count * layout.dp
    input_s = 0.0
    if input_samples_per_s is not None:
        rate = number(input_samples_per_s, "input rate", "samples/s")
        if not rate > 0:
            raise InputError(f"input rate must be above 0 samples/s, got {rate:g}")
        input_s = whole / rate
    if not isinstance(copied_in, bool | np.bool_):
        raise InputError(f"copied_in must be True or False, got {shortened(repr(copied_in), 40)}")
    copying_s = count * _batch_bytes(forward, recipe) / (PAGEABLE_GB_S * 1e9) if copied_in else 0.0
    host = host_of(described, host_us_per_launch)
    if scales is None:
        scales = scales_of(
            described.name, recipe.precision, "convolution" if "conv2d" in forward.tables else "", forward.name
        )  # fmt: skip
    scales = scales.at_batch(micro)
    figures = run_step(
        step, recipe, layout, described, execution, host,
        micro_batches=count, clock_mhz=clock, power_limit_w=limit, input_s=input_s, copying_s=copying_s,
        scales=scales, exclude=exclude,
    )  # fmt: skip
    tokens_each = forward.passes[0].tokens / micro
    if tokens is not None and forward.info.get("image_size") and not forward.info.get("prompt_tokens"):
        raise InputError(f"{forward.name} takes images, which are no tokens: give the length of the run as samples")
    length = _steps(steps, samples, tokens, epochs, whole, tokens_each)
    energy_j = figures.energy_j * layout.gpus
    runs_of_all = count * layout.dp * layout.cp
    flop, again = (one * runs_of_all for one in _matmul_flop(step.workload))
    peak = _peak_flop_s(described, recipe.formats.model) * layout.gpus * figures.time_s
    footprint = None
    if site is not None:
        runs = length or 1.0
        footprint = account(energy_j * runs, figures.time_s * runs, site, gpu_count=layout.gpus)
    return TrainingPrediction(
        workload=forward.name,
        gpu=described.name,
        gpus=layout.gpus,
        nodes=layout.nodes,
        micro_batch=micro,
        micro_batches=count,
        global_batch=whole,
        step_time_s=figures.time_s,
        parts_s=figures.parts_s,
        tokens_per_sample=tokens_each,
        power_w=figures.energy_j / figures.time_s,
        peak_power_w=figures.peak_power_w,
        step_energy_j=energy_j,
        clock_mhz=figures.clock_mhz,
        throttled=figures.throttled,
        bound_by=figures.bound_by,
        mfu=flop / peak,
        hfu=(flop + again) / peak,
        model_flop=flop,
        modules=MappingProxyType({name: value * layout.gpus for name, value in figures.modules.items()}),
        memory=memory,
        steps=length,
        footprint=footprint,
        intervals=figures.intervals,
        provenance=figures.provenance,
        table=figures.table,
        warnings=(
            *_warnings(memory, described, limit, figures.energy_j / figures.time_s),
            *figures.warnings,
            *_idle(forward, recipe),
        ),
        notes=tuple(dict.fromkeys((*forward.notes, *figures.notes))),
        info=MappingProxyType(
            {
                **forward.info,
                "precision": recipe.precision,
                "optimizer": recipe.optimizer,
                "checkpointing": recipe.checkpointing,
                "trainable": recipe.trainable,
                "parameters": step.parameters,
                "trained_parameters": step.trained,
                "clock_asked_mhz": clock,
                "power_limit_w": limit,
                **{name: getattr(layout, name) for name in ("tp", "pp", "cp", "ep", "dp", "zero")},
            }
        ),
    )


def _batch_bytes(forward: Workload, recipe: Recipe) -> float:
    """Bytes of the samples of one micro-batch: pixels in the format of the model, tokens as 64-bit numbers. [B]"""
    side = float(forward.info.get("image_size") or 0)
    if side and not forward.info.get("prompt_tokens"):
        size = 2.0 if recipe.formats.weights in ("fp16", "bf16") else 4.0
        return float(forward.info.get("batch") or 1) * 3.0 * side**2 * size
    return 8.0 * forward.passes[0].tokens


#: Steps of one micro-batch that were put together last: layouts of one question differ far more often than its model.
_KEPT: deque[tuple[Workload, tuple[Any, ...], Step]] = deque(maxlen=16)


def one_micro_batch(forward: Workload, recipe: Recipe, layout: Layout, unfused: bool) -> Step:
    """The step of one micro-batch, from memory where the same was asked before."""
    # divided gradients are summed in their shards, which is little beside the exchange before it
    sums = recipe.accumulate > 1 and (layout.zero < 2 or layout.shards == 1)
    key = (replace(recipe, accumulate=1), layout.cp, layout.sequence_parallel, unfused, sums)
    for asked, how, step in tuple(_KEPT):
        if asked is forward and how == key:
            return step
    divided = _divided_along_sequence(_laid_out(forward, recipe), layout)
    step = training_step(divided, key[0], unfused=unfused, sums=sums)
    _KEPT.append((forward, key, step))
    return step


def _matmul_flop(workload: Workload) -> tuple[float, float]:
    """Arithmetic of forward and backward pass, and of what is computed again, for one micro-batch. [FLOP]"""
    once = sum(workload.flop("matmul", phase=phase) for phase in ("forward", "backward"))
    computed_again = any(one.phase == "recompute" for one in workload.passes)
    return once, workload.flop("matmul", phase="recompute") if computed_again else 0.0


def _peak_flop_s(gpu: Gpu, format_: str) -> float:
    """The data sheet's dense rate of a format, or of what runs in its place. [FLOP/s]"""
    math = arithmetic(gpu, substitute(gpu, format_) or "fp32")
    rate = gpu.tensor_tflops.get(math) if math != "fp32" else None
    if not rate:
        rate = gpu.cuda_tflops.get(math) or gpu.cuda_tflops["fp32"]
    return float(rate) * 1e12


def like_layers(forward: Workload, layout: Layout) -> int:
    """How many like layers a pipeline divides.

    Raises
    ------
    InputError
        If the model is not made of like layers.
    """
    rows_of_layers = {path.partition("*")[0] for path in forward.layers if "*" in path}
    layers = int(forward.info.get("num_layers") or 0) if len(rows_of_layers) == 1 else 0
    if not layers:
        raise InputError(f"pp={layout.pp} needs a model of like layers, which {forward.name} is not: give pp=1")
    return layers


def layers_of_stages(forward: Workload, layout: Layout) -> tuple[int, ...]:
    """How many layers each stage of a pipeline holds.

    Raises
    ------
    InputError
        If the model is not made of like layers, or they do not divide and nothing says what each stage holds, or that
        does not add up.
    """
    layers = like_layers(forward, layout)
    if layout.stage_layers is None:
        _check_stages(layers, layout)
        return (layers // layout.pp,) * layout.pp
    if sum(layout.stage_layers) != layers:
        raise InputError(
            f"stage_layers must add up to the {layers} layers of {forward.name}, as {_as_even(layers, layout.pp)} do; "
            f"{_listed(layout.stage_layers)} are {sum(layout.stage_layers)}"
        )
    return layout.stage_layers


def _as_even(layers: int, stages: int) -> str:
    """Layers of stages as alike as can be, the first ones holding one more."""
    return _listed(layers // stages + (at < layers % stages) for at in range(stages))


def _listed(layers: Iterable[int]) -> str:
    return ",".join(str(one) for one in layers)


def _check_stages(layers: int, layout: Layout) -> None:
    pieces = layout.pp * layout.chunks
    if layers % pieces == 0:
        return
    fits = [
        (n, chunks)
        for n in range(1, layers + 1)
        for chunks in range(1, layers // n + 1)
        if layers % (n * chunks) == 0 and (n > 1 or layout.chunks == 1) and (chunks > 1) == (layout.chunks > 1)
    ]
    pp, chunks = min(fits or [(1, 1)], key=lambda one: (abs(one[0] - layout.pp), abs(one[1] - layout.chunks)))
    what, near = (
        f"pp={stages}" + (f" x {pieces} chunks" if layout.chunks > 1 else "")
        for stages, pieces in ((layout.pp, layout.chunks), (pp, chunks))
    )
    uneven = layout.chunks == 1 and layers >= layout.pp
    also = f"; or give stage_layers, as {_as_even(layers, layout.pp)}" if uneven and layout.pp <= _FEW_STAGES else ""
    raise InputError(f"{layers} layers do not divide by {what}: the nearest that does is {near}{also}")


#: Stages whose layers an error spells out.
_FEW_STAGES = 16


def _check_layout(forward: Workload, layout: Layout, count: int) -> None:
    if layout.pp > 1:
        layers_of_stages(forward, layout)
        if count < layout.pp and layout.schedule == "interleaved":
            raise InputError(
                f"an interleaved pipeline takes at least as many micro-batches as stages: {count} for {layout.pp}"
            )
    if layout.cp > 1:
        length = forward.info.get("prompt_tokens") or forward.info.get("tokens") or 0
        if not length and forward.info.get("image_size"):
            raise InputError(f"cp={layout.cp} divides sequences of tokens, and {forward.name} takes images: give cp=1")
        if length and int(length) % layout.cp:
            whole = max(round(int(length) / layout.cp), 1) * layout.cp
            raise InputError(
                f"a sequence of {length} tokens does not divide by cp={layout.cp}: the nearest that does is {whole}"
            )


#: Rate of copies to a GPU from memory that is not pinned: through a buffer, over PCIe 3. [GB/s]
PAGEABLE_GB_S = 5.0

#: What of a recipe says how convolutions run.
_CONVOLUTIONS = ("channels_last", "autotuned", "direct_groups")


def _idle(forward: Workload, recipe: Recipe) -> Iterator[str]:
    """What the recipe says of operations that the model lacks, so that it changes nothing."""
    table = forward.tables.get("conv2d")
    grouped = table is not None and bool((table["groups"] > 1).any())
    norms = table is not None and any(layer.endswith(".norm") for layer in forward.layers)
    needs = {
        "channels_last": (table is not None, "convolutions"),
        "autotuned": (table is not None, "convolutions"),
        "fused_norms": (norms, "norms behind convolutions"),
        "direct_groups": (grouped, "grouped convolutions"),
    }
    for name, (there, what) in needs.items():
        if getattr(recipe, name) and not there:
            yield f"{name} changes nothing: {forward.name} has no {what}"
    if recipe.direct_groups and recipe.channels_last and grouped:
        yield "direct_groups changes nothing with channels_last: those kernels are of maps whose channels lie apart"


def _laid_out(forward: Workload, recipe: Recipe) -> Workload:
    """Convolutions as the recipe lays feature maps out and chooses kernels."""
    table = forward.tables.get("conv2d")
    if table is None or not any(getattr(recipe, name) for name in _CONVOLUTIONS):
        return forward
    columns = dict(table.columns)
    for name in _CONVOLUTIONS:
        if getattr(recipe, name):
            columns[name] = np.ones(len(table))
    return replace(forward, tables=MappingProxyType({**forward.tables, "conv2d": OpTable("conv2d", columns)}))


def _divided_along_sequence(forward: Workload, layout: Layout) -> Workload:
    """What one GPU of a context-parallel group does, and the norms that sequence parallelism divides.

    Attention over a divided sequence is balanced over the group, each with its share of all pairs.
    """
    if layout.cp == 1 and not layout.sequence_parallel:
        return forward
    tables = {}
    for name, table in forward.tables.items():
        columns = dict(table.columns)
        if layout.cp > 1:
            if name in _ALONG_SEQUENCE:
                for column in _ALONG_SEQUENCE[name]:
                    columns[column] = np.maximum(np.ceil(columns[column] / layout.cp), 1.0)
            else:
                columns["count"] = columns["count"] / layout.cp
        if layout.sequence_parallel and name in ("row_reduction", "elementwise"):
            inner = np.array(["*" in one for one in forward.layers])[table["layer"]]
            columns["shard"] = np.where(inner & (table["shard"] == 0), 1, table["shard"])
        tables[name] = OpTable(name, columns)
    return replace(forward, tables=MappingProxyType(tables))


def _steps(
    steps: float | None, samples: float | None, tokens: float | None, epochs: float, batch: int, tokens_each: float
) -> float | None:
    given = {"steps": steps, "samples": samples, "tokens": tokens}
    named = [name for name, value in given.items() if value is not None]
    if len(named) > 1:
        raise InputError(f"give the length of the run once, as {' or '.join(named)}")
    for name in (*named, "epochs"):
        value = number(epochs if name == "epochs" else given[name], name, "")
        if not 0 < value <= 1e18:
            raise InputError(f"{name} must be above 0 and at most 1e18, got {value:g}")
    if not named:
        return None
    if steps is not None:
        return float(steps)
    data = float(samples) if samples is not None else float(tokens or 0.0) / tokens_each
    return float(np.ceil(data * epochs / batch))


def _warnings(memory: Any, gpu: Gpu, limit_w: float, power_w: float) -> tuple[str, ...]:
    found: list[str] = []
    if not memory.fits:
        found.append(
            f"needs {memory.needed_gb:.1f} GB of memory a GPU where {gpu.name} has {memory.available_gb:.1f} GB: "
            "it would not run"
        )
    if power_w > limit_w * 1.001:
        found.append(f"the power limit of {limit_w:g} W is exceeded even at the lowest clock")
    return (*found, *beyond_settable(limit_w, gpu.power_limit_min_w, gpu.power_limit_max_w, gpu.name))
