"""Chunks of a sweep as tasks of a Ray cluster."""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from joulecast.errors import InputError, JoulecastError, MissingExtraError, shortened
from joulecast.scenarios.sweep.chunk import Chunk, Evaluator
from joulecast.scenarios.sweep.run import RETRIES, Span, begin, chosen_folder, in_order, in_worker
from joulecast.scenarios.sweep.store import Store


def ray_chunks(
    evaluator: Evaluator, todo: list[Span], store: Store | None, at_once: int | None, address: str | None
) -> Iterator[Chunk]:
    """All chunks, in order.

    Parameters
    ----------
    evaluator : Evaluator
    todo : list of (int, int)
    store : Store, optional
        On the machine of the driver.
    at_once : int, optional
        Tasks at once; as many as the cluster has CPUs by default.
    address : str, optional
        Of the cluster.

    Raises
    ------
    MissingExtraError
        Without Ray.
    InputError
        If the cluster can't be reached.
    """
    ray = _ray()
    ours = not ray.is_initialized()
    if ours:
        _connect(ray, address)
    try:
        cpus = max(int(ray.cluster_resources().get("CPU", 1)), 1)
        shipped = ray.put((secrets.token_hex(8), evaluator, chosen_folder()))
        task = ray.remote(num_cpus=1, max_retries=RETRIES)(_on_worker)

        def finished(tasks: list[Any]) -> tuple[Any, Chunk]:
            ready, _ = ray.wait(tasks, num_returns=1)
            try:
                return ready[0], ray.get(ready[0])
            except ray.exceptions.RayTaskError as error:
                cause = error.cause
                if isinstance(cause, JoulecastError):
                    raise cause from None
                raise
            except ray.exceptions.RayError as error:
                told = str(error).splitlines()[0]
                raise JoulecastError(f"a task of the sweep failed on Ray again and again: {shortened(told)}") from None

        yield from in_order(todo, store, lambda span: task.remote(shipped, *span), finished, 2 * (at_once or cpus))
    finally:
        if ours:
            ray.shutdown()


_begun: list[str] = []


def _on_worker(shipped: tuple[str, Evaluator, Path | None], start: int, stop: int) -> Chunk:
    """A span in a process of the cluster, which keeps what it lowered for the next of the same sweep."""
    token, evaluator, folder = shipped
    if _begun != [token]:
        begin(evaluator, folder)
        _begun[:] = [token]
    return in_worker(start, stop)


def _ray() -> Any:
    try:
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        import ray
    except ImportError:
        raise MissingExtraError("running on Ray", "ray") from None
    return ray


def _connect(ray: Any, address: str | None) -> None:
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR, "configure_logging": True}
    try:
        if address or os.environ.get("RAY_ADDRESS"):
            ray.init(address=address or "auto", **quiet)
        else:
            ray.init(include_dashboard=False, **quiet)
    except (ConnectionError, RuntimeError, ValueError) as error:
        told = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InputError(f"can't reach a Ray cluster: {shortened(told)}") from None
