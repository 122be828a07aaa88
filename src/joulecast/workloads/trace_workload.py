"""The operators that a profiler recorded, with their shapes, as a workload that any GPU can be asked about."""

from __future__ import annotations

import re
from pathlib import Path
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from joulecast.errors import InputError
from joulecast.workloads.aten_arguments import OpRow
from joulecast.workloads.aten_shapes import rows_of, tensor_bytes
from joulecast.workloads.kineto import read_kineto
from joulecast.workloads.profile import KERNEL, OPERATOR, Profile
from joulecast.workloads.table import Workload, WorkloadBuilder
from joulecast.workloads.trace_stream import Progress

#: Kernels of matrix products of single-precision tensors that ran in the shorter format.
_SHORTER = re.compile(r"tf32|s1688(gemm|fprop|dgrad|wgrad)_?(?!fp16|f16)|s1688(gemm)?_\d", re.IGNORECASE)
_MATRIX = ("gemm", "batched_gemm", "conv2d", "conv2d_data_gradient", "conv2d_weight_gradient")
_STEP = re.compile(r"^ProfilerStep\s*#\s*\d+$")
_LAYER_LENGTH = 120

#: Share of the measured kernel time that is priced, below which a reader is told.
_TOLD_BELOW = 0.98


def workload_of_trace(path: str | Path, progress: Progress | None = None) -> Workload:
    """The workload in a PyTorch profiler trace.

    Parameters
    ----------
    path : str or Path
        Chrome JSON, plain or gzip.
    progress : callable, optional
        Given the share of the file that was read.

    Returns
    -------
    Workload
        One pass a profiler step (one in all where none is marked).

    Raises
    ------
    InputError
        If it can't be read, or no operator's shapes were recorded.
    """
    return workload_of_profile(read_kineto(path, progress))


def workload_of_profile(profile: Profile) -> Workload:
    """As `workload_of_trace`, of a profile that was read."""
    name = Path(profile.source).name
    if not len(profile.operators):
        raise InputError(
            f"{name} is a profiler trace without operators: `joulecast attribute` counts its measured kernels"
        )
    if not profile.has_shapes:
        raise InputError(
            f"{name} has no shapes (record_shapes=True): its operators can't be priced; `joulecast attribute` counts "
            "its measured kernels"
        )
    operators = profile.operators
    runs = _on_gpu(profile)
    shorter = _shorter(profile)
    covered = np.zeros(len(operators), dtype=bool)
    counts: dict[tuple[int, int, str], float] = {}
    rows: list[tuple[OpRow, ...]] = []
    numbers: dict[tuple[str, int], int] = {}
    unpriced: dict[str, float] = {}
    starters = set(profile.activities.operator.tolist())
    parent, names, signature = operators.parent.tolist(), operators.name.tolist(), operators.signature.tolist()
    layers = _layers(profile)
    for row in range(len(operators)):  # parents stand before what they hold
        above = parent[row]
        text = profile.names[names[row]]
        covered[row] = above >= 0 and covered[above]
        if covered[row] or not runs[row]:
            continue
        found: tuple[OpRow, ...] = ()
        if signature[row] >= 0:
            found = rows_of(text, profile.signatures[signature[row]], profile.world_size)
        if found:
            covered[row] = True
            key = (text, signature[row])
            if key not in numbers:
                numbers[key] = len(rows)
                rows.append(found)
            place = (numbers[key], int(shorter[row]), layers[row])
            counts[place] = counts.get(place, 0.0) + 1.0
        elif row in starters:
            moved = tensor_bytes(profile.signatures[signature[row]]) if signature[row] >= 0 else 0.0
            unpriced[text] = unpriced.get(text, 0.0) + moved
    if not counts:
        raise InputError(f"{name} has shapes, but of no operator that joulecast knows: nothing can be priced")
    return _built(profile, name, counts, rows, unpriced, _measured_share(profile, covered))


def _layers(profile: Profile) -> list[str]:
    """Path of modules and annotations around each range; what autograd runs has that of its forward operator."""
    operators = profile.operators
    own, behind = [""] * len(operators), [-1] * len(operators)
    kinds, names = operators.kind.tolist(), operators.name.tolist()
    for row, (above, ahead) in enumerate(zip(operators.parent.tolist(), operators.forward.tolist(), strict=True)):
        layer = own[above] if above >= 0 else ""
        text = profile.names[names[row]]
        if kinds[row] != OPERATOR and not _STEP.match(text) and not text.startswith(("nccl:", "[param")):
            part = text.removeprefix("nn.Module: ").strip("# ").replace(".", "_")
            layer = ".".join(filter(None, (layer, part)))[-_LAYER_LENGTH:]
        own[row] = layer
        behind[row] = ahead if ahead >= 0 else behind[above] if above >= 0 else -1
    return [f"{own[ahead]} (backward)" if ahead >= 0 and own[ahead] else own[row] for row, ahead in enumerate(behind)]


def _built(
    profile: Profile,
    name: str,
    counts: dict[tuple[int, int, str], float],
    rows: list[tuple[OpRow, ...]],
    unpriced: dict[str, float],
    measured_share: float,
) -> Workload:
    marked = [code for code, text in enumerate(profile.names) if _STEP.match(text)]
    steps = len(np.unique(profile.operators.name[np.isin(profile.operators.name, marked)])) or 1
    builder = WorkloadBuilder(name)
    builder.begin_pass("forward", repeats=steps, tokens=1)
    for (number, short, layer), count in counts.items():
        for row in rows[number]:
            columns = dict(row.columns)
            if short and row.kind in _MATRIX and columns.get("dtype") == "fp32":
                columns["dtype"] = "tf32"
            if row.kind in ("gemm", "conv2d"):
                columns["zero_share"] = 0.0  # what the tensors held was not recorded
            builder.add(row.kind, layer=layer, count=count * row.count / steps, **columns)
    total = sum(counts.values())
    notes = [
        f"operators of a trace: {total:,.0f} priced by their shapes over {steps} step(s); copies between host and GPU "
        "and what its host did beside them are not in it",
        *profile.notes,
    ]
    if measured_share < _TOLD_BELOW:
        notes.insert(
            1,
            f"the operators priced took {100 * measured_share:.0f} % of the measured kernel time: the rest (operators "
            "without shapes, or that joulecast does not know) is left out of time and energy",
        )
    return builder.build(
        info=MappingProxyType({"unit": "step", "steps": steps, "source": "trace"}),
        notes=tuple(notes),
        unpriced=MappingProxyType({one: moved / steps for one, moved in unpriced.items()}),
    )


def _on_gpu(profile: Profile) -> list[bool]:
    """Of each range, whether it or what it holds started something on a GPU; all where nothing ran on one."""
    operators = profile.operators
    if not len(profile.activities):
        return [True] * len(operators)
    out = [False] * len(operators)
    parent = operators.parent.tolist()
    for row in np.unique(profile.activities.operator).tolist():
        place = row
        while place >= 0 and not out[place]:
            out[place] = True
            place = parent[place]
    return out


def _measured_share(profile: Profile, covered: npt.NDArray[np.bool_]) -> float:
    """Share of the measured kernel time that operators which are priced started; 1 where nothing was measured."""
    activities = profile.activities
    kernels = activities.category == KERNEL
    total = float(activities.time_s[kernels].sum())
    known = kernels & (activities.operator >= 0) & covered[np.maximum(activities.operator, 0)]
    return float(activities.time_s[known].sum()) / total if total else 1.0


def _shorter(profile: Profile) -> list[bool]:
    """Of each range, whether a kernel that it (or what it holds) started ran in tf32."""
    activities = profile.activities
    out = [False] * len(profile.operators)
    codes = [code for code, text in enumerate(profile.names) if _SHORTER.search(text)]
    chosen = np.isin(activities.name, codes) & (activities.category == KERNEL)
    parent = profile.operators.parent.tolist()
    for row in np.unique(activities.operator[chosen]).tolist():
        place = row
        while place >= 0 and not out[place]:
            out[place] = True
            place = parent[place]
    return out
