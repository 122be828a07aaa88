"""Predicts measured whole passes, each without its own model in any fit, and puts both side by side."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from joulecast.calibration.mechanisms import ALL, Mechanisms
from joulecast.calibration.pass_fit import PassErrors, coefficients_of, idle_prior_w, leave_model_out
from joulecast.calibration.pass_runs import MeasuredPass, read_passes
from joulecast.calibration.passes import ENERGIES, PassTable, fit_passes, tabulate
from joulecast.coefficients.energies import default_power
from joulecast.coefficients.schema import HostCoefficients, PowerCoefficients, TimeCoefficients
from joulecast.coefficients.transfer import host_coefficients, power_coefficients
from joulecast.errors import InputError, shortened
from joulecast.gpus import Gpu, load_gpu
from joulecast.kernels.work import Conditions
from joulecast.lowering.execution import Execution
from joulecast.lowering.lower import Lowered, lower
from joulecast.physics.host import host_cost_us, pass_cost_us
from joulecast.physics.priced import concatenated
from joulecast.physics.timeline import Passes, Run, run_phase
from joulecast.workloads.table import COMMON, OpTable

Floats = npt.NDArray[np.float64]

#: Runs whose mean clock was this far below the one asked for were throttled by the power limit.
THROTTLED_BELOW = 0.985


@dataclass(frozen=True)
class ScoredPass:
    """One measured pass with what was predicted for it.

    Attributes
    ----------
    run : MeasuredPass
    dataset : str
    held_time_s, held_power_w : float
        Predicted at the mean clock that the run had. [s, W]
    time_s, power_w, clock_mhz : float
        Predicted for the clock asked for, with the board's power limit: clock, time and power are settled together.
        [s, W, MHz]
    host_bound : bool
        Whether starting its kernels takes the host nearly as long as the pass was predicted to take.
    slow_host : bool
        Whether other measured runs of the model show that its host was slow (`slow_hosts`).
    """

    run: MeasuredPass
    dataset: str
    held_time_s: float
    held_power_w: float
    time_s: float
    power_w: float
    clock_mhz: float
    host_bound: bool
    slow_host: bool = False

    @property
    def throttled(self) -> bool:
        """Whether the run's own mean clock was below the one asked for."""
        return self.run.clock_mhz < THROTTLED_BELOW * self.run.clock_asked_mhz


def score_passes(
    folder: Path,
    gpus: tuple[str, ...] | None = None,
    tell: Callable[[str, float], None] = lambda *_: None,
    mechanisms: Mechanisms = ALL,
) -> list[ScoredPass]:
    """Every measured pass of `folder`, failed runs out, predicted from a fit on the other models of its GPU.

    Parameters
    ----------
    folder : Path
        Holds ``measurements.csv`` and ``traces``.
    gpus : tuple of str, optional
        Only these, by catalogue name.
    tell : callable
        Gets what is being done, and the share of all of it that is done.
    mechanisms : Mechanisms
        What takes part in the fits and predictions.
    """
    _check_columns(folder / "measurements.csv")
    by_gpu: dict[str, list[MeasuredPass]] = defaultdict(list)
    for run in read_passes(folder):
        if gpus is None or run.gpu in gpus:
            by_gpu[run.gpu].append(run)
    total, done = sum(map(len, by_gpu.values())), 0
    out: list[ScoredPass] = []
    for name, runs in by_gpu.items():
        gpu = load_gpu(name)
        tell(f"{name} whole passes", done / total)
        table = tabulate(runs, default_power(gpu), mechanisms)
        errors = leave_model_out(runs, table)
        slow = slow_hosts(table, np.array([run.clock_mhz for run in runs]))
        lowered: dict[int, Lowered] = {}
        for model in dict.fromkeys(run.model for run in runs):
            rows = table.models == model
            time, power, host = _without_model(table, rows, errors)
            for i in np.flatnonzero(rows):
                run = runs[i]
                tell(f"{name} {model}", done / total)
                one = lowered.setdefault(id(run.workload), lower(run.workload, gpu, EAGER))
                settled = run_pass(one, gpu, run.clock_asked_mhz, time, power, host, mechanisms)
                out.append(
                    ScoredPass(
                        run=run,
                        dataset=run.label.split()[0],
                        held_time_s=run.time_s * (1 + errors.time[i]),
                        held_power_w=run.power_w * (1 + errors.power[i]),
                        time_s=settled.time_s,
                        power_w=settled.energy_j / settled.time_s,
                        clock_mhz=settled.clock_mhz,
                        host_bound=settled.host_s > HOST_BOUND_SHARE * settled.time_s,
                        slow_host=bool(slow[i]),
                    )
                )
                done += 1
    return out


#: How much slower a run must be than physics allows beside another one, for its host to count as slow.
_SLOW = 1.08


def slow_hosts(table: PassTable, clock_mhz: Floats) -> npt.NDArray[np.bool_]:
    """Runs of one GPU that other measured runs contradict: nothing but a slow host makes them so slow.

    A pass of the same model with as much arithmetic and as many bytes, or more, ran so fast that this one should have
    been faster even if its time rose in full proportion to a lower clock. From measured times and what is asked of the
    GPU: no predicted time has a say in it.

    Parameters
    ----------
    table : PassTable
        Of `r` passes.
    clock_mhz : ndarray, shape (r,)
        Clock that each had. [MHz]
    """
    names = list(ENERGIES)
    arithmetic = table.work[:, names.index("tensor")] + table.work[:, names.index("cuda")]
    moved = table.work[:, names.index("dram")]
    allowed = table.time_s[None, :] * np.maximum(clock_mhz[None, :] / clock_mhz[:, None], 1.0)
    like = table.models[:, None] == table.models[None, :]
    for work in (arithmetic, moved):
        like &= work[None, :] >= (1 - 1e-6) * work[:, None]
    return np.asarray(((table.time_s[:, None] > _SLOW * allowed) & like).any(axis=1))


#: Columns that a table of whole passes has.
COLUMNS = ("dataset", "gpu", "model", "precision", "batch", "seq_len", "clock_target_mhz", "clock_mean_mhz",
           "time_ms_raw", "power_w_raw", "time_ms", "power_w", "failed_run", "trace")  # fmt: skip


def _check_columns(path: Path) -> None:
    try:
        with path.open(encoding="utf-8") as file:
            head = file.readline(10_000).strip().split(",")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"can't read {shortened(path)}: {getattr(error, 'strerror', None) or error}") from None
    lacking = [name for name in COLUMNS if name not in head]
    if lacking:
        raise InputError(f"{shortened(path)} lacks {', '.join(lacking)}: it is no table of whole passes")


#: A pass whose host needs this share of its time, or more, to start it is counted as bound by its host.
HOST_BOUND_SHARE = 0.85

EAGER = Execution(launch_mode="eager", attention="eager")


def _without_model(
    table: PassTable, rows: npt.NDArray[np.bool_], errors: PassErrors
) -> tuple[dict[str, TimeCoefficients], PowerCoefficients, HostCoefficients]:
    """Coefficients as the package would ship them, had the passes at `rows` never been measured."""
    others = table.take(~rows)
    fit = fit_passes(others, idle_prior_w(table.gpu))
    return coefficients_of(fit, others, errors)


def run_pass(
    lowered: Lowered,
    gpu: Gpu,
    clock_mhz: float,
    time: dict[str, TimeCoefficients] | None = None,
    power: PowerCoefficients | None = None,
    host: HostCoefficients | None = None,
    mechanisms: Mechanisms = ALL,
) -> Run:
    """One pass under the board's default power limit, with given coefficients in place of the shipped ones.

    Parameters
    ----------
    lowered : Lowered
        A workload of one pass.
    gpu : Gpu
    clock_mhz : float
        Clock asked for. [MHz]
    time, power, host : optional
        Efficiencies by ``family/engine/group``, energies, and host; the shipped ones where absent.
    mechanisms : Mechanisms
        What takes part.
    """
    host = mechanisms.host_costs(host or host_coefficients(gpu))
    power = mechanisms.power(power or power_coefficients(gpu))
    limit_w = gpu.power_limit_default_w if mechanisms.throttle else np.inf
    conditions = Conditions(engine=lowered.execution.engine, residency="stream")
    priced, count, cost_us = [], [], []
    for table in lowered.tables.values():
        shapes = OpTable(table.kind, {name: column for name, column in table.columns.items() if name not in COMMON})
        one = mechanisms.price(shapes, gpu, conditions, time=time, power=power)
        priced.append(one)
        count.append(table["count"])
        cost_us.append(host_cost_us(table.kind, one.work.launches, host, lowered.execution.launch_mode))
    info = lowered.workload.info if mechanisms.module_calls else {}
    calls_us = pass_cost_us(info, host, lowered.execution.launch_mode)
    counts: Any = np.concatenate(count).astype(np.float64)
    passes = Passes(
        priced=concatenated(priced),
        count=counts,
        pass_of=np.zeros(counts.size, dtype=np.intp),
        repeats=np.ones(1),
        host_s=np.array([(counts @ np.concatenate(cost_us) + calls_us) * 1e-6]),
    )
    return run_phase(passes, clock_mhz, limit_w)


def worst(scored: Sequence[ScoredPass], most: int = 5) -> list[ScoredPass]:
    """The passes whose predicted energy is furthest off, worst first."""

    def error(one: ScoredPass) -> float:
        return abs(one.time_s * one.power_w / (one.run.time_s * one.run.power_w) - 1)

    return sorted(scored, key=error, reverse=True)[:most]
