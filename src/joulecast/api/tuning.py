"""`tune`: kernels that are as fast and use fewer joules."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from joulecast.errors import InputError

if TYPE_CHECKING:
    from joulecast.tuning.result import TuningResult


def tune(source: Any, space: Any = None, **options: Any) -> TuningResult:
    """Configurations of a kernel that are as fast and use fewer joules.

    Parameters
    ----------
    source : path, str, KernelSpec, a function under ``@triton.jit``, or Evaluator
        A recorded space (parquet or CSV); a built-in operator such as ``matmul``, or ``module:attribute`` of a spec of
        your own, which is imported; a spec (`joulecast.kernel_spec`) or a kernel; or whatever builds and measures one.
    space : Space, mapping or list, optional
        Configurations to search: values by tunable, or a list of configurations; an evaluator's own where it has one.
        A recording, an operator and a spec bring their own.
    **options
        Of `joulecast.tuning.tune.search`: ``slack``, ``objective``, ``baseline``, ``log``, ``evaluations``,
        ``readings``, ``strategy``, ``seed``; of a recording also ``where``, ``noise`` and ``session``. Of a kernel
        those of `joulecast.tuning.kernel.tune_kernel`, ``gpu`` first; ``sizes`` of an operator; ``args``, ``grid``,
        ``outputs``, ``reference``, ``constraints`` and the others of `joulecast.kernel_spec` of a function.

    Returns
    -------
    TuningResult
        With `chosen`, `saving` and its interval, `verdict`, the `front`, and the evidence.

    Raises
    ------
    InputError
        For what can't be used.
    InfeasibleError
        If no configuration runs, or energy can't be measured.
    """
    from joulecast.tuning.kernel import is_kernel, tuned
    from joulecast.tuning.kernelspec import interpreting
    from joulecast.tuning.space import Space
    from joulecast.tuning.tune import replay, search

    if interpreting():
        raise InputError("a process that tests kernels tunes none: put the call under if __name__ == '__main__'")
    if "strategy" in options:
        options["strategy_name"] = options.pop("strategy")
    if is_kernel(source):
        return tuned(source, space, options)
    if isinstance(source, str | os.PathLike):
        if space is not None:
            raise InputError("a recording brings its own space: leave it out, or hold tunables with where=...")
        return replay(source, **options)
    space = getattr(source, "space", None) if space is None else space
    if isinstance(space, Mapping):
        space = Space.of(space)
    elif isinstance(space, list | tuple):
        space = Space.of_list(space)
    if not isinstance(space, Space):
        raise InputError("tune needs a space, such as {'num_warps': [4, 8]}")
    return search(source, space, **options)
