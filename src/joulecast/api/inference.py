"""`workload` and `predict`: a model, and what it takes on a GPU."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from joulecast.coefficients.forecasts import forecast_notes, forecasting
from joulecast.errors import InputError
from joulecast.gpus import Gpu
from joulecast.lowering.execution import Execution, share_of_batch
from joulecast.scenarios.inference import predict_workload
from joulecast.scenarios.prediction import Prediction
from joulecast.workloads.pytorch import is_module, trace_module
from joulecast.workloads.sources import open_workload
from joulecast.workloads.table import Workload


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
        ``decoder_tokens``, ``image_size``, ``dtype``, ``weight_dtype``, ``kv_cache_dtype``, ``attn_dtype``,
        ``logits``, ``pooler``; of an ONNX model ``dims``, sizes of its dimensions by name. For a PyTorch module those
        of `joulecast.workloads.pytorch.trace_module`.

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
    return _opened(source, options)


def _opened(source: Any, options: dict[str, Any]) -> Workload:
    """The workload of any source but a module; exports of Nsight Systems are read by the room of traces."""
    if isinstance(source, str | os.PathLike) and os.path.isfile(os.path.expanduser(source)):  # noqa: PTH111, PTH113
        from joulecast.traces.read import is_nsight, workload_of_nsight

        if is_nsight(Path(os.fspath(source))):
            for name, value in options.items():
                if value is not None:
                    raise InputError(f"a trace has its shapes and formats in it: {name} can't be asked of it")
            return workload_of_nsight(Path(os.fspath(source)))
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
    opened = _opened(source, options)
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
