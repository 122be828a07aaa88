"""The front door: `workload` and `predict`, with everything as plain arguments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from joulecast.coefficients.forecasts import forecast_notes, forecasting
from joulecast.gpus import Gpu
from joulecast.lowering.execution import Execution
from joulecast.scenarios.inference import predict_workload
from joulecast.scenarios.prediction import Prediction
from joulecast.workloads.sources import open_workload
from joulecast.workloads.table import Workload


def workload(source: Any, **options: Any) -> Workload:
    """The operations of a model, ready to be predicted on any GPU.

    Parameters
    ----------
    source : str, Path, Workload, mapping or list
        A name in the model catalogue, a file (Hugging Face config, operation list, EnergAIzer trace; told apart by
        content), a folder with a ``config.json``, or such a config or list itself.
    **options
        Fields of `joulecast.workloads.request.Request`: ``batch``, ``prompt_tokens``, ``generate_tokens``,
        ``image_size``, ``dtype``, ``weight_dtype``, ``kv_cache_dtype``, ``attn_dtype``, ``logits``.

    Returns
    -------
    Workload

    Raises
    ------
    InputError
        For an unknown model, a file of no format that is read, or an option out of bounds.
    """
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
    host_us_per_launch: float | None = None,
    memory_clock_mhz: float | None = None,
    temperature_c: float | None = None,
    forecast_from: str | None = None,
    ignore_memory: bool = False,
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
    tp, pp, ep : int
        Tensor, pipeline and expert parallel degree.
    host_us_per_launch : float, optional
        Measured cost of a launch on your host. [us]
    memory_clock_mhz : float, optional
        Memory clock, one of the GPU's steps; default the highest. [MHz]
    temperature_c : float, optional
        Temperature of the GPU, for its leakage; default that of the measurements. [deg C]
    forecast_from : str, optional
        ``ampere``: as if nothing had ever been measured on GPUs of later architectures.
    ignore_memory : bool
        Price a model that does not fit all the same.
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
    opened = open_workload(source, **options)
    with forecasting(forecast_from):
        found = predict_workload(
            opened,
            gpu,
            execution=Execution(launch_mode, attention, engine, tp, pp, ep),
            changes=changes,
            clock_mhz=clock_mhz,
            power_limit_w=power_limit_w,
            host_us_per_launch=host_us_per_launch,
            memory_clock_mhz=memory_clock_mhz,
            temperature_c=temperature_c,
            ignore_memory=ignore_memory,
        )
    if forecast_from is None:
        return found
    return replace(
        found,
        notes=(*found.notes, *forecast_notes(forecast_from)),
        info=MappingProxyType({**found.info, "forecast_from": forecast_from}),
    )
