"""`Launched`: what a prediction was made of, kept for looking at it launch by launch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from joulecast.coefficients.schema import HostCoefficients
from joulecast.gpus import Gpu
from joulecast.lowering.lower import Lowered
from joulecast.physics.host import host_cost_us
from joulecast.physics.timeline import Run
from joulecast.scenarios.pricing import Rows, passes_of
from joulecast.workloads.table import Pass

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Launched:
    """Priced operations, the runs of their phases and the host that starts them.

    Attributes
    ----------
    lowered : Lowered
    rows : Rows
        In order of pass and position.
    runs : mapping of str to Run
        By phase.
    gpu : Gpu
    host : HostCoefficients
    """

    lowered: Lowered
    rows: Rows
    runs: Mapping[str, Run]
    gpu: Gpu
    host: HostCoefficients

    @property
    def passes(self) -> tuple[Pass, ...]:
        """Passes of the workload."""
        return self.lowered.workload.passes

    @property
    def layers(self) -> tuple[str, ...]:
        """Layer paths, by the codes of the rows."""
        return self.lowered.workload.layers

    @property
    def alike(self) -> int:
        """GPUs that do at any time what this one does: the tensor-parallel group, in all replicas."""
        return self.lowered.execution.alike

    def clock_mhz(self) -> Floats:
        """Core clock of each row. [MHz]"""
        return self._by_pass([self.runs[one.phase].clock_mhz if one.phase in self.runs else 0.0 for one in self.passes])

    def kernel_s(self) -> Floats:
        """Time of each row once. [s]"""
        out = np.zeros(len(self.rows.priced))
        for phase, run in self.runs.items():
            out[self._by_pass([float(one.phase == phase) for one in self.passes]) > 0] = run.kernel_s
        return out

    def host_s(self) -> Floats:
        """Host time to start each row once; what a pass costs beside its launches is spread over them. [s]"""
        rows, out = self.rows, np.zeros(len(self.rows.priced))
        launches, mode = rows.priced.work.launches, self.lowered.execution.launch_mode
        for code, name in enumerate(rows.kinds):
            those = rows.kind_of == code
            out[those] = host_cost_us(name, launches[those], self.host, mode) * 1e-6
        ids, pass_of = np.unique(rows.pass_id, return_inverse=True)
        whole = passes_of(self.lowered, rows, np.arange(out.size), self.host).host_s
        started = np.bincount(pass_of, weights=rows.count * out, minlength=ids.size)
        return out * np.divide(whole, started, out=np.ones(ids.size), where=started > 0)[pass_of]

    def _by_pass(self, values: list[float]) -> Floats:
        return np.asarray(values, dtype=np.float64)[self.rows.pass_id]
