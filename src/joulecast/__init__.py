"""joulecast: the time, watts and joules of an AI workload on a GPU, before you run it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from joulecast.api import predict, workload
    from joulecast.coefficients.users import use_coefficients
    from joulecast.errors import InfeasibleError, InputError, JoulecastError
    from joulecast.gpus import Gpu, gpu_names, load_gpu
    from joulecast.scenarios.footprint import Footprint, footprint
    from joulecast.scenarios.kernels import KernelTable, predict_kernels
    from joulecast.scenarios.prediction import Prediction
    from joulecast.workloads.table import Workload

_WHERE = {
    "predict": "api",
    "workload": "api",
    "predict_kernels": "scenarios.kernels",
    "KernelTable": "scenarios.kernels",
    "footprint": "scenarios.footprint",
    "Footprint": "scenarios.footprint",
    "use_coefficients": "coefficients.users",
    "Prediction": "scenarios.prediction",
    "Workload": "workloads.table",
    "Gpu": "gpus",
    "gpu_names": "gpus",
    "load_gpu": "gpus",
    "JoulecastError": "errors",
    "InputError": "errors",
    "InfeasibleError": "errors",
}

__all__ = [
    "Footprint",
    "Gpu",
    "InfeasibleError",
    "InputError",
    "JoulecastError",
    "KernelTable",
    "Prediction",
    "Workload",
    "__version__",
    "footprint",
    "gpu_names",
    "load_gpu",
    "predict",
    "predict_kernels",
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
