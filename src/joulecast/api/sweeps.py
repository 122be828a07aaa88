"""`sweep` and `sweep_training`: every combination of what is given."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from joulecast.scenarios.footprint import Site
    from joulecast.scenarios.sweep.result import Sweep


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
        ``decoder_tokens``, ``image_size``, ``dtype``, ``weight_dtype``, ``kv_cache_dtype``, ``attn_dtype``,
        ``logits``, ``pooler``, as for `workload`.

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


def sweep_training(
    source: Any,
    gpu: Any,
    *,
    changes: Mapping[str, Any] | None = None,
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
    changes : mapping, optional
        Fields of the GPU to one value or several.
    max_time_s, max_power_w, max_energy_j, min_tokens_per_s, max_cost, max_carbon_g : float, optional
        What points must keep to: of the whole run where its length is given, else of a step; power of all GPUs.
    site : Site, optional
        Price and carbon of a kWh, and what is drawn beside the GPUs.
    ignore_memory : bool
        Price what does not fit all the same.
    resume, workers, run_on
        As for `sweep`.
    **options
        As for `train`; ``clock_mhz`` and ``power_limit_w`` also ``"all"``, as for `sweep`.

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

    evaluator = training(source, gpu=gpu, changes=changes, site=site, ignore_memory=ignore_memory, **options)
    limits = Limits(max_time_s, max_power_w, max_energy_j, min_tokens_per_s, max_cost, max_carbon_g)
    return swept(evaluator, description(evaluator), limits, resume=resume, workers=workers, on=run_on)
