"""What the meter of pipelines read beside the GPU that worked: the idle ones, and all of them while a model was loaded.

The publishers' meter ran from before a model was loaded until the last sample was done, and their durations count
the samples alone: the shorter the run and the larger the file, the more of the energy is that of loading. Neither
times of loading nor idle powers are published; both are fitted on the models that are not scored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

#: What a GPU of the publishers' machine draws with nothing on it: the least that eight of them drew together. [W]
IDLE_W = 59.0

#: What is thought of idle power, of loading whatever the size, and of loading 1 GB (a network file system); and the
#: widths of that in natural logarithms. [W, s, s/GB]
_THOUGHT = {"idle": (IDLE_W, 0.1), "start": (3.0, 1.0), "per_gb": (5.0, 1.0)}

#: Width of idle power from task to task, each measured on a day of its own. Natural logarithm.
_FROM_TASK_TO_TASK = 0.1

#: Scatter of readings, and how much what is thought counts beside it. Natural logarithm.
_SCATTER, _PRIOR_STRENGTH = 0.05, 0.03


@dataclass(frozen=True)
class Readings:
    """Runs as their meter saw them.

    Attributes
    ----------
    tasks : tuple of str
    file_gb : ndarray, shape (r,)
        Size of the files that a model is loaded from. [GB]
    duration_s : ndarray, shape (r,)
        Of all samples. [s]
    gpus : ndarray, shape (r,)
        GPUs of the machine, of which one works.
    together_w : ndarray, shape (r,)
        Energy of all GPUs over `duration_s`. [W]
    """

    tasks: tuple[str, ...]
    file_gb: Floats
    duration_s: Floats
    gpus: Floats
    together_w: Floats


@dataclass(frozen=True)
class Meter:
    """Idle power of a GPU on the day of each task, and how long loading takes.

    Attributes
    ----------
    idle_w : mapping of str to float
        By task; under the empty name, of tasks that no run was of. [W]
    start_s, per_gb_s : float
        [s, s/GB]
    """

    idle_w: Mapping[str, float]
    start_s: float
    per_gb_s: float

    def beside_w(self, readings: Readings) -> tuple[Floats, Floats]:
        """What idle GPUs add to a reading, and what loading does. [W, W]"""
        idle_w = np.array([self.idle_w.get(task, self.idle_w[""]) for task in readings.tasks])
        loading_s = self.start_s + self.per_gb_s * readings.file_gb
        return (readings.gpus - 1.0) * idle_w, readings.gpus * idle_w * loading_s / readings.duration_s


def fit_meter(readings: Readings, gpu_w: Floats) -> Meter:
    """Fit on runs whose working GPU is predicted to draw `gpu_w` while they last. [W]"""
    from scipy.optimize import least_squares

    names = list(dict.fromkeys(readings.tasks))
    which = np.array([names.index(task) for task in readings.tasks])
    prior, width = np.array([*_THOUGHT.values()]).T
    prior = np.concatenate([np.log(prior), np.zeros(len(names))])
    width = np.concatenate([width, np.full(len(names), _FROM_TASK_TO_TASK)])

    def meter(theta: Floats) -> Meter:
        by_task = dict(zip(names, np.exp(theta[0] + theta[3:]).tolist(), strict=True))
        return Meter({**by_task, "": float(np.exp(theta[0]))}, *np.exp(theta[1:3]).tolist())

    def residuals(theta: Floats) -> Floats:
        idle_w, start_s, per_gb_s = np.exp(theta[0] + theta[3:])[which], *np.exp(theta[1:3])
        loading = readings.gpus * (start_s + per_gb_s * readings.file_gb) / readings.duration_s
        found = gpu_w + idle_w * (readings.gpus - 1.0 + loading)
        return np.concatenate([np.log(found / readings.together_w), _PRIOR_STRENGTH * (theta - prior) / width])

    return meter(least_squares(residuals, prior, loss="soft_l1", f_scale=_SCATTER).x)


def readings_of(rows: Sequence[tuple[str, float, float, float, float]]) -> Readings:
    """Rows of task, file size, duration, GPUs and power of all of them, in columns."""
    tasks, *columns = zip(*rows, strict=True)
    return Readings(tuple(tasks), *(np.array(column, dtype=np.float64) for column in columns))
