"""Many searches on several GPUs: a worker a GPU, on this machine or on Ray; a worker that dies loses nothing.

A comparison of energies needs one GPU from its first reading to its last, so that it is the searches that are dealt
out, not the readings. Each keeps its own log; when a worker dies, the next one goes on from there.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from joulecast.errors import InfeasibleError, InputError, JoulecastError, MissingExtraError, shortened
from joulecast.tuning.evaluator import Evaluator
from joulecast.tuning.result import TuningResult
from joulecast.tuning.space import Space
from joulecast.tuning.tune import search


@dataclass(frozen=True)
class Job:
    """A search to be done somewhere.

    Attributes
    ----------
    name : str
    make : callable
        Called by the worker; gives evaluator and space. It must be picklable, and what it gives need not be.
    options : mapping
        Of `joulecast.tuning.tune.search`, without the log.
    """

    name: str
    make: Callable[[], tuple[Evaluator, Space]]
    options: Mapping[str, Any] = field(default_factory=dict)


def run_jobs(
    jobs: Sequence[Job],
    folder: str | Path,
    *,
    run_on: str = "local",
    gpus_a_worker: float = 1.0,
    retries: int = 3,
    tell: Callable[[str, float], None] | None = None,
) -> dict[str, TuningResult | JoulecastError]:
    """Do all jobs.

    Parameters
    ----------
    jobs : sequence of Job
        With names that differ.
    folder : path
        For the logs, one a job; must be seen by all workers.
    run_on : str
        ``local``, one after the other in this process, or ``ray``.
    gpus_a_worker : float
        That Ray gives each: 1 for measuring, 0 for replaying.
    retries : int
        Times that a job is given to another worker when its own dies.
    tell : callable, optional
        Takes the name of a job that is done and the share of jobs that are.

    Returns
    -------
    dict
        Result of each job by name, or the error that it ended with: one job's failure stops no other.

    Raises
    ------
    InputError
        For names that repeat, or another place to run on.
    InfeasibleError
        If Ray has no GPU for a worker.
    """
    names = [job.name for job in jobs]
    if len(set(names)) != len(names):
        raise InputError("jobs need names that differ")
    if run_on not in ("local", "ray"):
        raise InputError(f"jobs run on local or ray, not on {run_on!r}")
    place = Path(folder).resolve()  # workers of Ray begin in folders of their own
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"can't make the folder {shortened(place)}: {error.strerror}") from None
    done: dict[str, TuningResult | JoulecastError] = {}
    if run_on == "local":
        for number, job in enumerate(jobs, start=1):
            done[job.name] = do(job, place / _file_of(job.name))
            if tell is not None:
                tell(job.name, number / len(jobs))
        return done
    ray = _ray()
    if gpus_a_worker > ray.cluster_resources().get("GPU", 0.0):
        raise InfeasibleError(f"Ray has no GPU for workers that need {gpus_a_worker:g}: give gpus_a_worker=0 to replay")
    task = ray.remote(do).options(num_cpus=1, num_gpus=gpus_a_worker, max_retries=retries)
    waiting = {task.remote(job, place / _file_of(job.name)): job.name for job in jobs}
    while waiting:
        ready, _ = ray.wait(list(waiting), num_returns=1)
        name = waiting.pop(ready[0])
        try:
            done[name] = ray.get(ready[0])
        except ray.exceptions.RayTaskError as error:  # it never began: its worker can't read it, or write its log
            done[name] = _fault(name, getattr(error, "cause", None) or error)
        except ray.exceptions.RayError as error:
            done[name] = InfeasibleError(f"{name}: its workers died {retries + 1} times: {_first_line(error)}")
        if tell is not None:
            tell(name, len(done) / len(jobs))
    return done


def do(job: Job, log: Path) -> TuningResult | JoulecastError:
    """One job in this process; an error is given, not raised."""
    try:
        evaluator, space = job.make()
        return search(evaluator, space, log=log, **dict(job.options))
    except JoulecastError as error:
        return error
    except Exception as error:  # whatever the caller's evaluator raises: the other jobs go on
        return _fault(job.name, error)


def _file_of(name: str) -> str:
    """Of a job's log: the same whatever jobs stand beside it."""
    return f"{re.sub(r'[^A-Za-z0-9]+', '-', name).strip('-')[:60]}-{zlib.crc32(name.encode()):08x}.db"


def _fault(name: str, error: BaseException) -> InfeasibleError:
    return InfeasibleError(f"{name}: {type(error).__name__}: {_first_line(error)}")


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return shortened(lines[0], 200) if lines else "no reason was given"


def _ray() -> Any:
    try:
        import ray
    except ImportError:
        raise MissingExtraError("running on a Ray cluster", "ray") from None
    if not ray.is_initialized():
        ray.init(log_to_driver=False, include_dashboard=False)
    return ray
