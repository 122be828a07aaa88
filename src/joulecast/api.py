"""The front door: `workload` and `predict`, with everything as plain arguments."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from inspect import signature
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from joulecast.coefficients.forecasts import forecast_notes, forecasting
from joulecast.errors import InputError, UnknownNameError
from joulecast.gpus import Gpu, load_gpu
from joulecast.lowering.execution import Execution, share_of_batch
from joulecast.lowering.formats import has_format
from joulecast.scenarios.inference import predict_workload
from joulecast.scenarios.prediction import Prediction
from joulecast.workloads.pytorch import is_module, trace_module
from joulecast.workloads.sources import open_workload
from joulecast.workloads.table import Workload

if TYPE_CHECKING:
    from joulecast.scenarios.explain import Change, Explanation, Outcome
    from joulecast.scenarios.footprint import Site
    from joulecast.scenarios.sweep.result import Sweep
    from joulecast.scenarios.training.prediction import TrainingPrediction
    from joulecast.scenarios.training.stages import StagePlans
    from joulecast.tuning.result import TuningResult


def workload(source: Any, *inputs: Any, **options: Any) -> Workload:
    """The operations of a model, ready to be predicted on any GPU.

    Parameters
    ----------
    source : str, Path, Workload, mapping, list or torch.nn.Module
        A name in the model catalogue, a file (Hugging Face config, operation list, EnergAIzer trace; told apart by
        content), a folder with a ``config.json``, or such a config or list itself; or a PyTorch module.
    *inputs
        What a PyTorch module is called with; nothing else takes any.
    **options
        Fields of `joulecast.workloads.request.Request`: ``batch``, ``prompt_tokens``, ``generate_tokens``,
        ``image_size``, ``dtype``, ``weight_dtype``, ``kv_cache_dtype``, ``attn_dtype``, ``logits``. For a PyTorch
        module those of `joulecast.workloads.pytorch.trace_module`.

    Returns
    -------
    Workload

    Raises
    ------
    InputError
        For an unknown model, a file of no format that is read, or an option out of bounds.
    """
    if is_module(source):
        return trace_module(source, *inputs, **options)
    if inputs:
        raise InputError("only a PyTorch module takes example inputs: give the options of a model by name")
    return open_workload(source, **options)


def predict(
    source: Any,
    gpu: str | Gpu,
    *,
    changes: Mapping[str, str | float] | None = None,
    clock_mhz: float | None = None,
    power_limit_w: float | None = None,
    launch_mode: str = "eager",
    attention: str = "fused",
    engine: str = "pytorch",
    tp: int = 1,
    pp: int = 1,
    ep: int = 1,
    dp: int = 1,
    microbatches: int = 1,
    overlap: float = 0.0,
    host_us_per_launch: float | None = None,
    host_speed: float | None = None,
    memory_clock_mhz: float | None = None,
    temperature_c: float | None = None,
    forecast_from: str | None = None,
    ignore_memory: bool = False,
    strict: bool = False,
    **options: Any,
) -> Prediction:
    """Time, power and energy of a model on a GPU.

    Parameters
    ----------
    source : str, Path, Workload, mapping or list
        As for `workload`.
    gpu : str or Gpu
        A name in the GPU catalogue, a TOML file, or a description.
    changes : mapping, optional
        What-if: fields of the GPU to change, such as ``{"sm_count": 160}``.
    clock_mhz, power_limit_w : float, optional
        Core clock asked for and board power limit; default the GPU's highest and own. [MHz, W]
    launch_mode : str
        ``eager`` (default), ``compiled`` or ``cuda_graph``.
    attention : str
        ``fused`` (default) or ``eager``.
    engine : str
        Whose kernels: ``pytorch`` (default), ``trtllm`` or ``vllm``.
    tp, pp, ep, dp : int
        Tensor, pipeline, expert and data parallel degree.
    microbatches : int
        That a pipeline works on at once. The batch is divided over them and over the `dp` replicas; a `Workload` is
        taken to be that of one microbatch of one replica.
    overlap : float
        Share of the time of collectives that runs beside other work, 0 to 1.
    host_us_per_launch : float, optional
        Measured cost of a launch on your host. [us]
    host_speed : float, optional
        Speed of your host over that of the fitted one, such as 1.5; not beside a measured cost.
    memory_clock_mhz : float, optional
        Memory clock, one of the GPU's steps; default the highest. [MHz]
    temperature_c : float, optional
        Temperature of the GPU, for its leakage; default that of the measurements. [deg C]
    forecast_from : str, optional
        ``ampere``: as if nothing had ever been measured on GPUs of later architectures.
    ignore_memory : bool
        Price a model that does not fit all the same.
    strict : bool
        Refuse a workload with operations that can't be priced, whatever their share.
    **options
        As for `workload`, where `source` is not one already.

    Returns
    -------
    Prediction

    Raises
    ------
    InputError
        For anything that can't be used as given.
    InfeasibleError
        If the model does not fit the GPU's memory.
    """
    execution = Execution(launch_mode, attention, engine, tp, pp, ep, dp, microbatches, overlap)
    if options.get("batch") is not None and not isinstance(source, Workload) and dp * microbatches > 1:
        options["batch"] = share_of_batch(options["batch"], dp, microbatches)
    opened = open_workload(source, **options)
    with forecasting(forecast_from):
        found = predict_workload(
            opened,
            gpu,
            execution=execution,
            changes=changes,
            clock_mhz=clock_mhz,
            power_limit_w=power_limit_w,
            host_us_per_launch=host_us_per_launch,
            host_speed=host_speed,
            memory_clock_mhz=memory_clock_mhz,
            temperature_c=temperature_c,
            ignore_memory=ignore_memory,
            strict=strict,
        )
    if forecast_from is None:
        return found
    return replace(
        found,
        notes=(*found.notes, *forecast_notes(forecast_from)),
        info=MappingProxyType({**found.info, "forecast_from": forecast_from}),
    )


def train(source: Any, gpu: str | Gpu, **options: Any) -> TrainingPrediction:
    """Time, power, energy and memory of training a model.

    Parameters
    ----------
    source : str, Path, Workload, mapping or list
        As for `workload`; the micro-batch of a ready workload is the batch it was made with.
    gpu : str or Gpu
    **options
        Of the model: ``micro_batch`` (samples at once on a GPU), ``sequence_tokens``, ``image_size``,
        ``weight_dtype``. Fields of `joulecast.lowering.recipe.Recipe`: ``precision``, ``optimizer``, ``update``,
        ``master_weights``, ``clip_gradients``, ``accumulate``, ``checkpointing``, ``checkpointed_layers``,
        ``trainable``, ``frozen_layers``, ``lora_rank``, ``lora_targets``. Fields of
        `joulecast.scenarios.training.layout.Layout`: ``gpus``, ``tp``, ``pp``, ``cp``, ``ep``, ``zero``,
        ``shard_group``, ``sequence_parallel``, ``schedule``, ``chunks``, ``gpus_per_node``, ``node_link_gb_s``.
        Of the run, as `joulecast.scenarios.training.train.train` takes them: ``global_batch``, ``steps`` or
        ``samples`` or ``tokens`` with ``epochs``, ``launch_mode``, ``attention``, ``changes``, ``clock_mhz``,
        ``power_limit_w``, ``host_us_per_launch``, ``input_samples_per_s``, ``site``, ``ignore_memory``.

    Returns
    -------
    TrainingPrediction

    Raises
    ------
    InputError
        For anything that can't be used as given, layouts that do not divide among them, with the nearest that does.
    InfeasibleError
        If the job does not fit the GPUs' memory.
    """
    from joulecast.scenarios.training.question import forward_pass, told_apart
    from joulecast.scenarios.training.train import train as predict_training

    model, recipe, layout, run = told_apart(options)
    return predict_training(forward_pass(source, model, recipe), gpu, recipe, layout, **run)


def sweep(
    source: Any,
    gpus: Any,
    *,
    changes: Mapping[str, Any] | None = None,
    clock_mhz: Any = None,
    power_limit_w: Any = None,
    host_us_per_launch: Any = None,
    memory_clock_mhz: Any = None,
    temperature_c: Any = None,
    forecast_from: str | None = None,
    ignore_memory: bool = False,
    max_time_s: float | None = None,
    max_power_w: float | None = None,
    max_energy_j: float | None = None,
    min_tokens_per_s: float | None = None,
    max_cost: float | None = None,
    max_carbon_g: float | None = None,
    site: Site | None = None,
    resume: str | os.PathLike[str] | None = None,
    workers: int = 1,
    run_on: str = "local",
    **options: Any,
) -> Sweep:
    """Time, power and energy of a model at every combination of what is given; each argument one value or several.

    Parameters
    ----------
    source : str, Path, Workload, mapping or list
        As for `workload`.
    gpus : str, Path, Gpu, or several
    changes : mapping, optional
        Fields of the GPU to one value or several, such as ``{"sm_count": [108, 128]}``.
    clock_mhz, power_limit_w : float, None or several
        None is the GPU's own; ``"all"`` even steps over what each GPU can be set to. [MHz, W]
    host_us_per_launch : float, None or several
        [us]
    memory_clock_mhz, temperature_c : float, None or several
        [MHz, deg C]
    forecast_from : str, optional
        As for `predict`.
    ignore_memory : bool
        Price what does not fit all the same.
    max_time_s, max_power_w, max_energy_j, min_tokens_per_s, max_cost, max_carbon_g : float, optional
        What points must keep to; those that do not are infeasible.
    site : Site, optional
        Price and carbon of a kWh, and what is drawn beside the GPUs.
    resume : path, optional
        A folder for finished chunks: a sweep that was stopped goes on from them.
    workers : int
        Processes; with more than one, call from under ``if __name__ == "__main__"``.
    run_on : str
        ``local`` (default) or ``ray``; the result is the same.
    **options
        One value or several of ``launch_mode``, ``attention``, ``engine``, ``tp``, ``pp``, ``ep``, ``dp``,
        ``microbatches``, ``overlap``, as for `predict`, and of ``batch``, ``prompt_tokens``, ``generate_tokens``,
        ``image_size``, ``dtype``, ``weight_dtype``, ``kv_cache_dtype``, ``attn_dtype``, as for `workload`.

    Returns
    -------
    Sweep
        ``columns`` by name, ``front()``, ``best("energy")``, ``to_polars()``. A point that can't be run is there too,
        with its reason.

    Raises
    ------
    InputError
        For anything that can't be used as given; for more points than are held in memory.
    """
    from joulecast.scenarios.sweep import question
    from joulecast.scenarios.sweep.objectives import Limits
    from joulecast.scenarios.sweep.result import swept

    evaluator = question.inference(
        source, gpus=gpus, changes=changes, clock_mhz=clock_mhz, power_limit_w=power_limit_w,
        host_us_per_launch=host_us_per_launch, memory_clock_mhz=memory_clock_mhz, temperature_c=temperature_c,
        forecast_from=forecast_from, ignore_memory=ignore_memory, site=site, **options,
    )  # fmt: skip
    limits = Limits(max_time_s, max_power_w, max_energy_j, min_tokens_per_s, max_cost, max_carbon_g)
    return swept(evaluator, question.description(evaluator), limits, resume=resume, workers=workers, on=run_on)


def stage_clocks(
    source: Any, gpu: str | Gpu, *, layers_by_stage: Sequence[int] | None = None, **options: Any
) -> StagePlans:
    """Clocks for each stage of a pipeline that take the least energy for a time of an iteration.

    Parameters
    ----------
    source : str, Path, Workload, mapping or list
        As for `train`.
    gpu : str or Gpu
    layers_by_stage : sequence of int, optional
        Layers of each stage; even by default.
    **options
        As for `train`; ``pp`` is the number of stages.

    Returns
    -------
    StagePlans

    Raises
    ------
    InputError
        For anything that can't be used as given.
    """
    from joulecast.scenarios.training.layout import micro_batches, whole_numbers
    from joulecast.scenarios.training.question import forward_pass, told_apart
    from joulecast.scenarios.training.stages import stage_plans

    model, recipe, layout, run = told_apart(options)
    for name in ("clock_mhz", "power_limit_w"):
        if name in run:
            raise InputError(f"stage clocks are planned over all clocks at the GPU's own power limit: leave {name} out")
    forward = forward_pass(source, model, recipe)
    micro = int(forward.info.get("batch") or 1)
    whole = run.get("global_batch")
    count = recipe.accumulate if whole is None else micro_batches(whole, micro, layout)
    how = {name: run[name] for name in ("launch_mode", "attention") if name in run}
    split = None if layers_by_stage is None else whole_numbers("layers_by_stage", layers_by_stage)
    return stage_plans(
        forward, load_gpu(gpu, run.get("changes")), recipe, layout, micro_batches=count, layers_by_stage=split, **how
    )


def sweep_training(
    source: Any,
    gpu: Any,
    *,
    max_time_s: float | None = None,
    max_power_w: float | None = None,
    max_energy_j: float | None = None,
    min_tokens_per_s: float | None = None,
    max_cost: float | None = None,
    max_carbon_g: float | None = None,
    site: Site | None = None,
    ignore_memory: bool = False,
    resume: str | os.PathLike[str] | None = None,
    workers: int = 1,
    run_on: str = "local",
    **options: Any,
) -> Sweep:
    """Training of a model at every combination of what is given; each option of `train` one value or several.

    Parameters
    ----------
    source : str, Path, Workload, mapping or list
        As for `train`.
    gpu : str, Path, Gpu, or several
    max_time_s, max_power_w, max_energy_j, min_tokens_per_s, max_cost, max_carbon_g : float, optional
        What points must keep to: of the whole run where its length is given, else of a step; power of all GPUs.
    site : Site, optional
        Price and carbon of a kWh, and what is drawn beside the GPUs.
    ignore_memory : bool
        Price what does not fit all the same.
    resume, workers, run_on
        As for `sweep`.
    **options
        As for `train`.

    Returns
    -------
    Sweep

    Raises
    ------
    InputError
        For anything that can't be used as given; for more points than are held in memory.
    """
    from joulecast.scenarios.sweep.objectives import Limits
    from joulecast.scenarios.sweep.result import swept
    from joulecast.scenarios.sweep.training import description, training

    evaluator = training(source, gpu=gpu, site=site, ignore_memory=ignore_memory, **options)
    limits = Limits(max_time_s, max_power_w, max_energy_j, min_tokens_per_s, max_cost, max_carbon_g)
    return swept(evaluator, description(evaluator), limits, resume=resume, workers=workers, on=run_on)


def explain(source: Any, gpu: str | Gpu, *, training: bool = False, slack: float = 0.05, **options: Any) -> Explanation:
    """What bounds a run, and what the cheapest changes to it would save.

    Parameters
    ----------
    source : str, Path, Workload, mapping or list
        As for `workload`.
    gpu : str or Gpu
    training : bool
        Whether `options` are those of `train`; else those of `predict`.
    slack : float
        Share by which a token (image, sample) may take longer for a change to be told.
    **options
        The question.

    Returns
    -------
    Explanation

    Raises
    ------
    InputError
        For anything that can't be used as given.
    """
    from joulecast.scenarios import explain as explaining

    if training:
        return explaining.explain(
            lambda new: _trained(source, gpu, {**options, **new}), _changes(gpu, options, training=True), slack=slack
        )
    ready = isinstance(source, Workload)
    unknown = set(options) - _REQUEST - set(signature(predict).parameters)
    if unknown and not ready:
        raise UnknownNameError("option of predict", min(unknown), {*_REQUEST, *signature(predict).parameters} - _ASIDE)
    model = {name: options[name] for name in options if name in _REQUEST}
    if "batch" in model:
        model["batch"] = share_of_batch(model["batch"], options.get("dp", 1), options.get("microbatches", 1))
    kept = source if ready else open_workload(source, **model)

    def ask(new: Mapping[str, Any]) -> explaining.Outcome:
        now = {**options, **new}
        same = not set(new) & _REQUEST
        run = {name: value for name, value in now.items() if name not in _REQUEST}
        return _predicted(kept, gpu, run) if same else _predicted(source, gpu, now)

    changes = _changes(gpu, options, training=False)
    if ready:
        changes = (one for one in changes if not {"batch", "weight_dtype"} & set(one.options))
    return explaining.explain(ask, changes, slack=slack)


def _changes(gpu: str | Gpu, options: Mapping[str, Any], *, training: bool) -> Iterator[Change]:
    """What to try, made once the question itself has been answered: its options are known to be usable by then."""
    from joulecast.scenarios import explain as explaining

    described = load_gpu(gpu, options.get("changes"))
    limit_w = float(options.get("power_limit_w") or described.power_limit_default_w)
    clock = float(options.get("clock_mhz") or described.clock_max_mhz)
    lowest_w = max(described.power_limit_min_w, 0.35 * limit_w)
    limits = [limit_w - (limit_w - lowest_w) * at / 12 for at in range(1, 13)]
    clocks = [clock - (clock - max(described.clock_min_mhz, 0.45 * clock)) * at / 12 for at in range(1, 13)]
    yield from explaining.gpu_changes(limits, clocks)
    if training:
        yield from explaining.training_changes(options, int(options.get("micro_batch") or 1))
        return
    narrow = [name for name in ("fp8", "w4a16", "nvfp4") if has_format(described, name)]
    yield from explaining.inference_changes(options, int(options.get("batch") or 1), narrow)


#: Arguments of `predict` that are no options of a run.
_ASIDE = frozenset({"source", "gpu", "options"})

#: Options that ask for another workload.
_REQUEST = frozenset(
    {"batch", "prompt_tokens", "generate_tokens", "decoder_tokens", "image_size", "dtype", "weight_dtype",
     "kv_cache_dtype", "attn_dtype", "logits", "pooler", "dims"}
)  # fmt: skip


def _predicted(source: Any, gpu: str | Gpu, options: Mapping[str, Any]) -> Outcome:
    from joulecast.scenarios.explain import Outcome

    p = predict(source, gpu, **options)
    bound: dict[str, float] = {}
    for phase in p.phases:
        bound[phase.bound_by] = bound.get(phase.bound_by, 0.0) + phase.time_s / p.time_s
    return Outcome(p.time_s, p.energy_j, max(p.tokens_out, 1e-300), bound)


def _trained(source: Any, gpu: str | Gpu, options: Mapping[str, Any]) -> Outcome:
    from joulecast.scenarios.explain import Outcome

    p = train(source, gpu, **options)
    return Outcome(p.step_time_s, p.step_energy_j, p.global_batch * p.tokens_per_sample,
                   {name: value / p.step_time_s for name, value in p.parts_s.items() if value > 0})  # fmt: skip


def tune(source: Any, space: Any = None, **options: Any) -> TuningResult:
    """Configurations of a kernel that are as fast and use fewer joules.

    Parameters
    ----------
    source : path, str, KernelSpec, a function under ``@triton.jit``, or Evaluator
        A recorded space (parquet or CSV); a built-in operator such as ``matmul``, or ``module:attribute`` of a spec of
        your own, which is imported; a spec (`joulecast.kernel_spec`) or a kernel; or whatever builds and measures one.
    space : Space, mapping or list, optional
        Configurations to search: values by tunable, or a list of configurations; an evaluator's own where it has one.
        A recording, an operator and a spec bring their own.
    **options
        Of `joulecast.tuning.tune.search`: ``slack``, ``objective``, ``baseline``, ``log``, ``evaluations``,
        ``readings``, ``strategy``, ``seed``; of a recording also ``where``, ``noise`` and ``session``. Of a kernel
        those of `joulecast.tuning.kernel.tune_kernel`, ``gpu`` first; ``sizes`` of an operator; ``args``, ``grid``,
        ``outputs``, ``reference``, ``constraints`` and the others of `joulecast.kernel_spec` of a function.

    Returns
    -------
    TuningResult
        With `chosen`, `saving` and its interval, `verdict`, the `front`, and the evidence.

    Raises
    ------
    InputError
        For what can't be used.
    InfeasibleError
        If no configuration runs, or energy can't be measured.
    """
    from joulecast.tuning.kernel import is_kernel, tuned
    from joulecast.tuning.space import Space
    from joulecast.tuning.tune import replay, search

    if "strategy" in options:
        options["strategy_name"] = options.pop("strategy")
    if is_kernel(source):
        return tuned(source, space, options)
    if isinstance(source, str | os.PathLike):
        if space is not None:
            raise InputError("a recording brings its own space: leave it out, or hold tunables with where=...")
        return replay(source, **options)
    space = getattr(source, "space", None) if space is None else space
    if isinstance(space, Mapping):
        space = Space.of(space)
    elif isinstance(space, list | tuple):
        space = Space.of_list(space)
    if not isinstance(space, Space):
        raise InputError("tune needs a space, such as {'num_warps': [4, 8]}")
    return search(source, space, **options)
