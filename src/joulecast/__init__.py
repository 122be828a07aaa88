"""joulecast: the time, watts and joules of an AI workload on a GPU, before you run it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from joulecast.api.explaining import explain
    from joulecast.api.inference import predict, workload
    from joulecast.api.sweeps import sweep, sweep_training
    from joulecast.api.training import stage_clocks, train
    from joulecast.api.tuning import tune
    from joulecast.coefficients.users import use_coefficients
    from joulecast.errors import InfeasibleError, InputError, JoulecastError
    from joulecast.gpus import Gpu, gpu_names, load_gpu
    from joulecast.physics.metering import Meter
    from joulecast.scenarios.explain import Explanation
    from joulecast.scenarios.footprint import Footprint, footprint
    from joulecast.scenarios.kernels import KernelTable, predict_kernels
    from joulecast.scenarios.prediction import Prediction
    from joulecast.scenarios.sweep.result import Sweep
    from joulecast.scenarios.timeline import Timeline
    from joulecast.scenarios.training.prediction import TrainingPrediction
    from joulecast.traces.attribution import Attribution, attribute
    from joulecast.tuning.exits.autotune import triton_autotune
    from joulecast.tuning.exits.operators import torch_operator
    from joulecast.tuning.kernelspec import KernelSpec
    from joulecast.tuning.result import TuningResult
    from joulecast.tuning.user_kernel import kernel_spec
    from joulecast.workloads.pytorch import capture
    from joulecast.workloads.pytorch_costs import op_cost
    from joulecast.workloads.table import Workload

_WHERE = {
    "predict": "api.inference",
    "stage_clocks": "api.training",
    "sweep": "api.sweeps",
    "sweep_training": "api.sweeps",
    "workload": "api.inference",
    "train": "api.training",
    "tune": "api.tuning",
    "TuningResult": "tuning.result",
    "KernelSpec": "tuning.kernelspec",
    "kernel_spec": "tuning.user_kernel",
    "triton_autotune": "tuning.exits.autotune",
    "torch_operator": "tuning.exits.operators",
    "explain": "api.explaining",
    "Explanation": "scenarios.explain",
    "TrainingPrediction": "scenarios.training.prediction",
    "Sweep": "scenarios.sweep.result",
    "predict_kernels": "scenarios.kernels",
    "attribute": "traces.attribution",
    "Attribution": "traces.attribution",
    "KernelTable": "scenarios.kernels",
    "footprint": "scenarios.footprint",
    "Footprint": "scenarios.footprint",
    "Meter": "physics.metering",
    "Timeline": "scenarios.timeline",
    "use_coefficients": "coefficients.users",
    "Prediction": "scenarios.prediction",
    "Workload": "workloads.table",
    "capture": "workloads.pytorch",
    "op_cost": "workloads.pytorch_costs",
    "Gpu": "gpus",
    "gpu_names": "gpus",
    "load_gpu": "gpus",
    "JoulecastError": "errors",
    "InputError": "errors",
    "InfeasibleError": "errors",
}

__all__ = [
    "Attribution",
    "Explanation",
    "Footprint",
    "Gpu",
    "InfeasibleError",
    "InputError",
    "JoulecastError",
    "KernelSpec",
    "KernelTable",
    "Meter",
    "Prediction",
    "Sweep",
    "Timeline",
    "TrainingPrediction",
    "TuningResult",
    "Workload",
    "__version__",
    "attribute",
    "capture",
    "explain",
    "footprint",
    "gpu_names",
    "kernel_spec",
    "load_gpu",
    "op_cost",
    "predict",
    "predict_kernels",
    "stage_clocks",
    "sweep",
    "sweep_training",
    "torch_operator",
    "train",
    "triton_autotune",
    "tune",
    "use_coefficients",
    "workload",
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'joulecast' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"joulecast.{_WHERE[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
