"""Runs a sweep chunk by chunk: here, in several processes, or on a Ray cluster; always with the same result."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from joulecast.coefficients import places
from joulecast.errors import InputError, JoulecastError, UnknownNameError, shortened
from joulecast.scenarios.sweep.chunk import Chunk, Evaluator
from joulecast.scenarios.sweep.store import Store

#: Points of a chunk, at least and at most: enough to be worth a task, few enough for memory and for a bar to move.
_LEAST, _MOST = 256, 8192
_CHUNKS = 64

RUNNERS = ("local", "ray")

_MOST_WORKERS = 1024

#: How often a span is tried again after the process that had it died.
RETRIES = 3

Span = tuple[int, int]
Submit = Callable[[Span], Any]
Finished = Callable[[list[Any]], Any]


def checked_workers(workers: Any, on: str) -> None:
    """Refuse a number of workers that is none, and a runner that is not known.

    Raises
    ------
    InputError
    """
    if on not in RUNNERS:
        raise UnknownNameError("runner", on, RUNNERS)
    if isinstance(workers, bool) or not isinstance(workers, int) or not 1 <= workers <= _MOST_WORKERS:
        raise InputError(f"workers must be a whole number from 1 to {_MOST_WORKERS}, got {shortened(workers)!r}")


def spans(points: int, unit: int = 1) -> list[Span]:
    """First and end of each chunk, always the same; each of whole `unit` of points, where that is not too many."""
    size = min(max(-(-points // _CHUNKS), _LEAST), _MOST)
    if unit <= _MOST:
        size = min(-(-size // unit), _MOST // unit) * unit
    return [(start, min(start + size, points)) for start in range(0, points, size)]


def run(
    evaluator: Evaluator, *, store: Store | None = None, workers: int = 1, on: str = "local", address: str | None = None
) -> Iterator[Chunk]:
    """All chunks of a sweep, in order.

    Parameters
    ----------
    evaluator : Evaluator
    store : Store, optional
        Where finished chunks are kept and taken from.
    workers : int
        Processes; with Ray, tasks at once (1 for as many as it has CPUs).
    on : str
        ``local`` or ``ray``.
    address : str, optional
        Of a Ray cluster; by default ``$RAY_ADDRESS``, else one on this machine for the time of the sweep.

    Yields
    ------
    Chunk
    """
    todo = spans(len(evaluator.space), evaluator.unit)
    if on == "ray":
        from joulecast.scenarios.sweep.on_ray import ray_chunks

        yield from ray_chunks(evaluator, todo, store, None if workers == 1 else workers, address)
    elif workers > 1 and len(todo) > 1:
        yield from _processes(evaluator, todo, store, workers)
    else:
        for start, stop in todo:
            yield _known(store, start) or _saved(store, evaluator.evaluate(start, stop))


def _known(store: Store | None, start: int) -> Chunk | None:
    return None if store is None else store.load(start)


def _saved(store: Store | None, chunk: Chunk) -> Chunk:
    if store is not None:
        store.save(chunk)
    return chunk


def in_order(
    todo: Iterable[Span], store: Store | None, submit: Submit, finished: Finished, at_once: int
) -> Iterator[Chunk]:
    """Chunks in order from tasks that end in any; at most `at_once` are begun and not yet given out.

    Parameters
    ----------
    todo : iterable of (int, int)
    store : Store, optional
    submit : callable
        Begins a span and gives its task.
    finished : callable
        Waits for one of several tasks and gives ``(task, its chunk)``.
    at_once : int
    """
    left = iter(todo)
    expected: list[int] = []
    tasks: list[Any] = []
    done: dict[int, Chunk] = {}
    more = True
    while True:
        while more and len(expected) < at_once:
            span = next(left, None)
            if span is None:
                more = False
                break
            expected.append(span[0])
            known = _known(store, span[0])
            if known is None:
                tasks.append(submit(span))
            else:
                done[span[0]] = known
        if not expected:
            return
        if expected[0] in done:
            yield done.pop(expected.pop(0))
            continue
        task, chunk = finished(tasks)
        tasks.remove(task)
        done[chunk.start] = _saved(store, chunk)


def _processes(evaluator: Evaluator, todo: list[Span], store: Store | None, workers: int) -> Iterator[Chunk]:
    """Chunks from processes of this machine; where one dies, what they had is begun again in new ones."""
    spans_of: dict[Future[Chunk], Span] = {}
    tries = 0
    pool = _pool(evaluator, workers)

    def submit(span: Span) -> Span:
        try:
            future = pool.submit(in_worker, *span)
        except BrokenProcessPool as error:  # a process died before: its span and this one are begun again together
            future = Future()
            future.set_exception(error)
        spans_of[future] = span
        return span

    def finished(_: list[Any]) -> tuple[Span, Chunk]:
        nonlocal pool, tries
        while True:
            future = next(iter(wait(spans_of, return_when=FIRST_COMPLETED).done))
            try:
                chunk = future.result()
            except BrokenProcessPool:
                tries += 1
                if tries > RETRIES:
                    raise JoulecastError(
                        "a process of the sweep died again and again: run it with fewer workers"
                    ) from None
                again = list(spans_of.values())
                spans_of.clear()
                pool.shutdown(wait=False, cancel_futures=True)
                pool = _pool(evaluator, workers)
                for span in again:
                    submit(span)
            else:
                return spans_of.pop(future), chunk

    try:
        yield from in_order(todo, store, submit, finished, 3 * workers)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


_here: list[Evaluator] = []


def _pool(evaluator: Evaluator, workers: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(
        workers, mp_context=get_context("spawn"), initializer=begin, initargs=(evaluator, chosen_folder())
    )


def chosen_folder() -> Path | None:
    """The folder of coefficients that was chosen here, for processes that start with none."""
    return places.users_folder()


def begin(evaluator: Evaluator, folder: Path | None) -> None:
    """Make ready a process that evaluates spans."""
    places.choose(folder)
    _here[:] = [evaluator]


def in_worker(start: int, stop: int) -> Chunk:
    """A span, in a process that `begin` made ready."""
    return _here[0].evaluate(start, stop)
