"""Where in the program an activity belongs: its operator, its layer, its step."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from joulecast.workloads.profile import ANNOTATION, MODULE, Floats, Ints, Profile

#: Label of what belongs to no layer or step that was recorded.
NOWHERE = "(none)"

_STEP = re.compile(r"^ProfilerStep\s*#\s*(\d+)$")
_MODULE = "nn.Module: "
#: Annotations that name what is done rather than where: the framework writes them by itself.
_OF_THE_FRAMEWORK = re.compile(
    r"^(ProfilerStep|nccl:|gloo:|mpi:|record_param_comms|\[param|PyTorch Profiler|autograd::)"
)


@dataclass(frozen=True)
class Steps:
    """Steps of a training loop, as the profiler marked them on the host, in order of time.

    Attributes
    ----------
    labels : tuple of str
    start_s, end_s : ndarray
        [s]
    """

    labels: tuple[str, ...]
    start_s: Floats
    end_s: Floats

    def of(self, moment_s: Floats) -> Ints:
        """Index of the step that each moment is in; -1 before the first and after the last."""
        place = np.searchsorted(self.start_s, moment_s, side="right") - 1
        last_end = float(self.end_s.max()) if len(self.labels) else -np.inf
        return np.where(moment_s > last_end, -1, place)


def steps_of(profile: Profile) -> Steps:
    """The steps that a profile marks; none where it marks none."""
    operators = profile.operators
    marks: dict[int, tuple[str, float, float]] = {}
    codes = {code: found.group(1) for code, name in enumerate(profile.names) if (found := _STEP.match(name))}
    for row in np.flatnonzero(np.isin(operators.name, list(codes))).tolist():
        code, start = int(operators.name[row]), float(operators.start_s[row])
        end = start + float(operators.time_s[row])
        _, known, known_end = marks.get(code, ("", start, end))
        marks[code] = (f"step {codes[code]}", min(start, known), max(end, known_end))
    ordered = sorted(marks.values(), key=lambda one: one[1])
    return Steps(
        tuple(label for label, _, _ in ordered),
        np.array([start for _, start, _ in ordered]),
        np.array([end for _, _, end in ordered]),
    )


def layers_of(profile: Profile) -> tuple[tuple[str, ...], Ints]:
    """The layer of each host range: paths of modules where they were recorded, else of the user's annotations.

    What autograd runs belongs to the layer of its forward operator.

    Parameters
    ----------
    profile : Profile

    Returns
    -------
    layers : tuple of str
        The first is `NOWHERE`.
    layer : ndarray of int
        Index into `layers` for each row of the profile's operators.
    """
    operators = profile.operators
    labels = _labels(profile, modules=bool((operators.kind == MODULE).any()))
    layers: dict[str, int] = {NOWHERE: 0}
    names: list[str] = [NOWHERE]

    def code(path: str) -> int:
        if path not in layers:
            layers[path] = len(names)
            names.append(path)
        return layers[path]

    n = len(operators)
    own, behind = [0] * n, [-1] * n
    parents, forward, name = operators.parent.tolist(), operators.forward.tolist(), operators.name.tolist()
    for row in range(n):
        above = parents[row]
        path = own[above] if above >= 0 else 0
        label = labels.get(name[row])
        own[row] = path if label is None else code(f"{names[path]} / {label}" if path else label)
        behind[row] = forward[row] if forward[row] >= 0 else behind[above] if above >= 0 else -1
    for row in range(n):
        ahead = behind[row]
        if ahead >= 0 and own[ahead]:
            own[row] = code(f"{names[own[ahead]]} (backward)")
    return tuple(names), np.array(own, dtype=np.int64)


def _labels(profile: Profile, *, modules: bool) -> dict[int, str]:
    """What to call the ranges that name a layer, by index of their name."""
    operators = profile.operators
    wanted = MODULE if modules else ANNOTATION
    out = {}
    for code in np.unique(operators.name[operators.kind == wanted]).tolist():
        text = profile.names[code]
        if text.startswith("Optimizer.step"):
            out[code] = "optimizer " + text.partition("#")[2].removesuffix(".step")
        elif not _OF_THE_FRAMEWORK.match(text):
            out[code] = text.removeprefix(_MODULE).strip("# ") or text
    if modules:
        for code in np.unique(operators.name[operators.kind == ANNOTATION]).tolist():
            if profile.names[code].startswith("Optimizer.step"):
                out[code] = "optimizer " + profile.names[code].partition("#")[2].removesuffix(".step")
    return out
