"""Number formats as arrays that a column of codes indexes, and the rates a GPU has for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from joulecast.bounds.dtypes import DTYPES
from joulecast.gpus import Gpu
from joulecast.kernels.work import MATHS, Conditions, Floats, resident_share
from joulecast.lowering.formats import arithmetic

Codes = npt.NDArray[np.intp]

#: Bytes an element of weights, of activations and of results, by code of the format. [B]
WEIGHT_BYTES = np.array([dtype.weight_bytes for dtype in DTYPES], dtype=np.float64)
ACTIVATION_BYTES = np.array([dtype.activation_bytes for dtype in DTYPES], dtype=np.float64)
OUTPUT_BYTES = np.array([dtype.output_bytes for dtype in DTYPES], dtype=np.float64)

#: Arithmetic of each format, as an index into `MATHS`.
MATH_OF = np.array([MATHS.index(dtype.math) for dtype in DTYPES], dtype=np.intp)


@lru_cache(maxsize=256)
def maths_on(gpu: Gpu) -> Codes:
    """Arithmetic in which a GPU multiplies each format, as an index into `MATHS`, by code of the format."""
    return np.array([MATHS.index(arithmetic(gpu, dtype.name)) for dtype in DTYPES], dtype=np.intp)


FP32 = MATHS.index("fp32")

#: How much of L2 serves one walk through data, relative to caches made of two halves that keep copies of each
#: other's lines: a single large one holds more.
_L2_REACH = {"ada": 1.5}

#: A previous kernel's data shares L2 with its own inputs and the next kernel's, so this many times what an
#: operation touches passes through between writing an activation and reading it again.
STREAM_CROWDING = 2.0


def by_math(rate: Callable[[str], float]) -> Floats:
    """Values of `rate` for each of `MATHS`, as an array that ``KernelWork.math`` indexes."""
    return np.array([rate(math) for math in MATHS])


def rate_of(rate_by_math: Floats, math: Any) -> Floats:
    """Rates of rows by their arithmetic, 1 where the GPU has none (those rows carry a reason)."""
    rates = rate_by_math[math]
    return np.where(rates > 0, rates, 1.0)


def vector_rate(gpu: Gpu) -> float:
    """FP32 rate of the CUDA cores, in which indexing and conversions run whatever the format. [FLOP/clk]"""
    return max(gpu.cuda_flop_per_clk("fp32"), 1.0)


def group_labels(codes: Any, labels: Sequence[str]) -> tuple[tuple[str, ...], Codes]:
    """Labels that occur among `codes`, and for each row the index of its label among those."""
    present, index = np.unique(np.asarray(codes, dtype=np.intp), return_inverse=True)
    return tuple(labels[code] for code in present), index.reshape(-1).astype(np.intp)


def missing_formats(math: Codes, rate_by_math: Floats, gpu: Gpu, units: str) -> dict[int, str]:
    """Reasons of the rows whose arithmetic `units` of this GPU don't have."""
    rows = np.flatnonzero(rate_by_math[math] <= 0)
    return {int(row): f"{gpu.name} has no {units} for {MATHS[math[row]]}" for row in rows}


def activation_misses(footprint_bytes: Any, gpu: Gpu, conditions: Conditions) -> Floats:
    """Share of activation traffic that reaches DRAM: 0 where the working set stays in L2, 1 where it can't.

    Parameters
    ----------
    footprint_bytes : array_like
        Distinct bytes that the operation reads and writes. [B]
    gpu : Gpu
    conditions : Conditions
        In a ``loop`` the operation's own bytes come round again; in a ``stream`` the neighbours' do too.

    Returns
    -------
    ndarray
        Dimensionless, in [0, 1].
    """
    crowding = 1.0 if conditions.residency == "loop" else STREAM_CROWDING
    reach = _L2_REACH.get(gpu.architecture, 1.0)
    return 1.0 - resident_share(np.asarray(footprint_bytes) * crowding, gpu.l2_mib * 2.0**20 * reach)


def log_ratio(value: Any, reference: Any) -> Floats:
    """Natural logarithm of a ratio, for features; both at least a millionth."""
    return np.asarray(np.log(np.maximum(value, 1e-6)) - np.log(np.maximum(reference, 1e-6)))
