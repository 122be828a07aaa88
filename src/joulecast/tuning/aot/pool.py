"""Runs jobs in processes that are killed when they take too long: compilers hang, crash and grow.

Too long is processor time, that of a job's own children included: on a machine that others use, or with more
workers than processors, no job fails for what the others do. A bound on the time of day, much wider, catches what
waits forever.
"""

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

#: Time of day over processor time at which a job is given up that does nothing, or hardly gets to run.
WALL_OVER_PROCESSOR = 20.0

_TICKS = os.sysconf("SC_CLK_TCK")


#: Signals that a compiler gives itself, on the same source again and again.
_CRASHES = (signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)


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
        Processor time it took. [s]
    late : str
        ``processor`` where it was killed for the processor time it took, ``wall`` for the time of day; else empty.
    lost : bool
        Whether its process was ended by something else than the job: another try may fare better.
    """

    place: int
    value: Any
    failure: str = ""
    seconds: float = 0.0
    late: str = ""
    lost: bool = False


@dataclass
class _Worker:
    process: Any
    pipe: Connection
    place: int = -1
    since: float = 0.0
    used_s: float = 0.0
    done: int = 0

    @property
    def took_s(self) -> float:
        """Processor time of the job so far, by the process and its children. [s]"""
        return max(processor_s(self.process.pid) - self.used_s, 0.0)


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
        Processor time for one job; its process is killed then, and another takes the next. `WALL_OVER_PROCESSOR`
        times as much by the time of day. [s]
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
                running.append(_given(_started(context, work, jobs, memory_gib, timeout_s), place))
        while running:
            soonest = min(timeout_s - worker.took_s for worker in running)
            ready = wait([worker.pipe for worker in running], timeout=max(soonest, 0.05))
            late = {id(one): _late(one, timeout_s) for one in running if one.pipe not in ready}
            for worker in [one for one in running if one.pipe in ready or late[id(one)]]:
                outcome, alive = _finished(worker, late.get(id(worker), ""), timeout_s)
                yield outcome
                running.remove(worker)
                place = next(left, None)
                if not alive or place is None or worker.done >= JOBS_A_PROCESS:
                    _stop(worker)
                    if place is not None:
                        worker = _started(context, work, jobs, memory_gib, timeout_s)
                if place is not None:
                    running.append(_given(worker, place))
    finally:
        for worker in running:
            _stop(worker)


def processor_s(process: int) -> float:
    """Processor time of a process, of its children and of theirs, ended ones included; 0 where it is gone. [s]"""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
        children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    except (OSError, IndexError):
        return 0.0
    own = sum(int(ticks) for ticks in fields[11:15]) / _TICKS
    return own + sum(processor_s(int(child)) for child in children)


def _late(worker: _Worker, timeout_s: float) -> str:
    if worker.took_s > timeout_s:
        return "processor"
    return "wall" if time.monotonic() - worker.since > WALL_OVER_PROCESSOR * timeout_s else ""


def _started(
    context: Any, work: Callable[[Any], Any], jobs: Sequence[Any], memory_gib: float, timeout_s: float
) -> _Worker:
    here, there = context.Pipe()
    process = context.Process(target=_serve, args=(there, here, work, jobs, memory_gib, timeout_s), daemon=True)
    process.start()
    there.close()
    return _Worker(process, here)


def _given(worker: _Worker, place: int) -> _Worker:
    worker.place, worker.since, worker.used_s = place, time.monotonic(), processor_s(worker.process.pid)
    with contextlib.suppress(OSError):  # it died already: its end of the pipe tells so when it is read
        worker.pipe.send(place)
    return worker


def _finished(worker: _Worker, late: str, timeout_s: float) -> tuple[Outcome, bool]:
    took = worker.took_s
    if late:
        told = f"took more than {timeout_s:g} s of processor time"
        if late == "wall":
            told = f"took more than {WALL_OVER_PROCESSOR * timeout_s:g} s, {took:.0f} s of them on a processor"
        return Outcome(worker.place, None, told, took, late), False
    try:
        value, failure = worker.pipe.recv()
    except (EOFError, OSError):
        worker.process.join(1.0)
        code = worker.process.exitcode
        if code == -signal.SIGXCPU:
            told = f"took more than {timeout_s:g} s of processor time"
            return Outcome(worker.place, None, told, took, "processor"), False
        how = f"signal {signal.Signals(-code).name}" if code is not None and code < 0 else f"exit code {code}"
        crashed = code is not None and -code in _CRASHES
        return Outcome(worker.place, None, f"the process ended with {how}", took, lost=not crashed), False
    worker.done += 1
    return Outcome(worker.place, value, failure, took), True


def _stop(worker: _Worker) -> None:
    worker.pipe.close()
    if worker.process.is_alive():
        for process in [*_below(worker.process.pid), worker.process.pid]:  # an assembler that hangs goes, too
            with contextlib.suppress(OSError):
                os.kill(process, signal.SIGKILL)
    worker.process.join(5.0)


def _below(process: int) -> list[int]:
    """Children of a process, and theirs."""
    try:
        children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    except OSError:
        return []
    return [one for child in children for one in (*_below(int(child)), int(child))]


def _serve(
    pipe: Connection, other: Connection, work: Callable[[Any], Any], jobs: Sequence[Any], gib: float, timeout_s: float
) -> None:
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
        # Where the process that waits is killed, nobody else ends a job that never comes to an end.
        own = resource.getrusage(resource.RUSAGE_SELF)
        most = int(own.ru_utime + own.ru_stime + 2.0 * timeout_s) + 5
        resource.setrlimit(resource.RLIMIT_CPU, (most, resource.RLIM_INFINITY))
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
