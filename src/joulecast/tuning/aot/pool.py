"""Runs jobs in processes that are killed when they take too long: compilers hang, crash and grow."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import resource
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from joulecast.errors import JoulecastError

#: Jobs of one process before a fresh one takes its place: compilers don't give memory back.
JOBS_A_PROCESS = 40


@dataclass(frozen=True)
class Outcome:
    """Of one job.

    Attributes
    ----------
    place : int
        Of the job.
    value : object
        What it gave; None where it failed.
    failure : str
        Why it failed; empty where it did not.
    seconds : float
        Time it took. [s]
    """

    place: int
    value: Any
    failure: str = ""
    seconds: float = 0.0


@dataclass
class _Worker:
    process: Any
    pipe: Connection
    place: int = -1
    since: float = 0.0
    done: int = 0


def run_jobs(
    work: Callable[[Any], Any], jobs: Sequence[Any], *, workers: int = 0, timeout_s: float = 60.0,
    memory_gib: float = 8.0,
) -> Iterator[Outcome]:  # fmt: skip
    """Do `work` on each of `jobs`, in the order that they finish.

    Parameters
    ----------
    work : callable
        Runs in a forked process, so that it may be any function; gives something that can be pickled.
    jobs : sequence
    workers : int
        Processes; 0 for one a processor.
    timeout_s : float
        For one job; its process is killed then, and another takes the next. [s]
    memory_gib : float
        Address space of a process beyond what it starts with; a job that needs more fails. [GiB]

    Yields
    ------
    Outcome
    """
    context = multiprocessing.get_context("fork")
    count = min(workers or len(os.sched_getaffinity(0)), len(jobs))
    left = iter(range(len(jobs)))
    running: list[_Worker] = []
    try:
        for _ in range(count):
            place = next(left, None)
            if place is not None:
                running.append(_given(_started(context, work, jobs, memory_gib), place))
        while running:
            soonest = min(worker.since + timeout_s for worker in running)
            ready = wait([worker.pipe for worker in running], timeout=max(soonest - time.monotonic(), 0.0))
            for worker in [one for one in running if one.pipe in ready or _late(one, timeout_s)]:
                outcome, alive = _finished(worker, worker.pipe in ready, timeout_s)
                yield outcome
                running.remove(worker)
                place = next(left, None)
                if not alive or place is None or worker.done >= JOBS_A_PROCESS:
                    _stop(worker)
                    worker = _started(context, work, jobs, memory_gib) if place is not None else None  # type: ignore[assignment]
                if place is not None:
                    running.append(_given(worker, place))
    finally:
        for worker in running:
            _stop(worker)


def _late(worker: _Worker, timeout_s: float) -> bool:
    return time.monotonic() - worker.since > timeout_s


def _started(context: Any, work: Callable[[Any], Any], jobs: Sequence[Any], memory_gib: float) -> _Worker:
    here, there = context.Pipe()
    process = context.Process(target=_serve, args=(there, here, work, jobs, memory_gib), daemon=True)
    process.start()
    there.close()
    return _Worker(process, here)


def _given(worker: _Worker, place: int) -> _Worker:
    worker.place, worker.since = place, time.monotonic()
    with contextlib.suppress(OSError):  # it died already: its end of the pipe tells so when it is read
        worker.pipe.send(place)
    return worker


def _finished(worker: _Worker, answered: bool, timeout_s: float) -> tuple[Outcome, bool]:
    took = time.monotonic() - worker.since
    if not answered:
        return Outcome(worker.place, None, f"took more than {timeout_s:.0f} s", took), False
    try:
        value, failure = worker.pipe.recv()
    except (EOFError, OSError):
        worker.process.join(1.0)
        code = worker.process.exitcode
        how = f"signal {signal.Signals(-code).name}" if code is not None and code < 0 else f"exit code {code}"
        return Outcome(worker.place, None, f"the process ended with {how}", took), False
    worker.done += 1
    return Outcome(worker.place, value, failure, took), True


def _stop(worker: _Worker) -> None:
    worker.pipe.close()
    if worker.process.is_alive():
        worker.process.kill()
    worker.process.join(5.0)


def _serve(pipe: Connection, other: Connection, work: Callable[[Any], Any], jobs: Sequence[Any], gib: float) -> None:
    """A process: takes places of jobs, gives what they come to."""
    other.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that waits for this one decides
    held = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (held + int(gib * 2**30),) * 2)
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)  # compilers talk to the screen
    os.dup2(quiet, 2)
    while True:
        try:
            place = pipe.recv()
        except (EOFError, OSError):
            break
        try:
            answer: tuple[Any, str] = (work(jobs[place]), "")
        except JoulecastError as error:
            answer = (None, str(error))
        except MemoryError:
            answer = (None, f"needs more than {gib:.0f} GiB of memory")
        except Exception as error:  # whatever compilers raise; told, not lost
            answer = (None, f"{type(error).__name__}: {error}"[:200])
        pipe.send(answer)
    os._exit(0)
