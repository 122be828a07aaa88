"""`train` and `stage_clocks`: a training job before it starts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from joulecast.errors import InputError
from joulecast.gpus import Gpu, load_gpu

if TYPE_CHECKING:
    from joulecast.scenarios.training.prediction import TrainingPrediction
    from joulecast.scenarios.training.stages import StagePlans


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
        ``trainable``, ``frozen_layers``, ``lora_rank``, ``lora_targets``, ``channels_last``, ``autotuned``,
        ``fused_norms``, ``direct_groups``, ``dropout``. Fields of
        `joulecast.scenarios.training.layout.Layout`: ``gpus``, ``tp``, ``pp``, ``cp``, ``ep``, ``zero``,
        ``shard_group``, ``single_process``, ``sequence_parallel``, ``overlap``, ``schedule``, ``chunks``,
        ``stage_layers``, ``gpus_per_node``, ``node_link_gb_s``.
        Of the run, as `joulecast.scenarios.training.train.train` takes them: ``global_batch``, ``steps`` or
        ``samples`` or ``tokens`` with ``epochs``, ``launch_mode``, ``attention``, ``changes``, ``clock_mhz``,
        ``power_limit_w``, ``host_us_per_launch``, ``input_samples_per_s``, ``copied_in``, ``site``,
        ``ignore_memory``.

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


def stage_clocks(source: Any, gpu: str | Gpu, **options: Any) -> StagePlans:
    """Clocks for each stage of a pipeline that take the least energy for a time of an iteration.

    Parameters
    ----------
    source : str, Path, Workload, mapping or list
        As for `train`.
    gpu : str or Gpu
    **options
        As for `train`; ``pp`` is the number of stages, ``stage_layers`` what each holds.

    Returns
    -------
    StagePlans

    Raises
    ------
    InputError
        For anything that can't be used as given.
    """
    from joulecast.scenarios.training.layout import micro_batches
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
    return stage_plans(forward, load_gpu(gpu, run.get("changes")), recipe, layout, micro_batches=count, **how)
