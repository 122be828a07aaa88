"""`Sweep`: all points of a sweep in memory, with what is best among them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from joulecast.errors import InfeasibleError, InputError
from joulecast.scenarios.sweep.chunk import joined
from joulecast.scenarios.sweep.objectives import Limits, check_limits, front, kept_to, objective
from joulecast.scenarios.sweep.run import checked_workers, run
from joulecast.scenarios.sweep.space import Space
from joulecast.scenarios.sweep.store import open_store
from joulecast.scenarios.sweep.table import Points, points_of

if TYPE_CHECKING:
    import polars

    from joulecast.scenarios.sweep.inference import InferenceEvaluator
    from joulecast.scenarios.sweep.training import TrainingEvaluator

#: Points that are held in memory; more are for the command line, which streams them to a file.
MOST_IN_MEMORY = 2_000_000


@dataclass(frozen=True)
class Sweep:
    """The answers of a sweep.

    Attributes
    ----------
    space : Space
        What was asked.
    columns : Points
        By name, one row a point: what it asked, ``feasible`` and ``reason``, and its figures: ``time_s``,
        ``power_w``, ``energy_j`` (each with ``_lower`` and ``_upper``), ``clock_mhz`` (settled), ``throttled``,
        ``bound_by``, ``tokens_per_s``, ``energy_per_token_j``, ``edp_js``, ``memory_needed_gb``, ``provenance``, ...
    reasons : mapping of str to int
        Why points are infeasible, and how many.
    """

    space: Space
    columns: Points
    reasons: Mapping[str, int]

    def __len__(self) -> int:
        return len(self.space)

    @property
    def feasible(self) -> Points:
        """The points that have an answer within the limits."""
        return self.columns.take(np.asarray(self.columns["feasible"], dtype=np.bool_))

    def front(self, first: str = "time", second: str = "energy") -> Points:
        """Feasible points that no other is better than in one objective without being worse in the other.

        Raises
        ------
        InputError
            For an unknown objective.
        """
        among = self.feasible
        wanted = [objective(name, list(among)) for name in (first, second)]
        return among.take(front(*(one.sign * among[one.column] for one in wanted)))

    def best(self, name: str = "energy") -> dict[str, Any]:
        """The feasible point that is best in an objective, as plain values.

        Raises
        ------
        InfeasibleError
            If none is feasible, or the workload does not count what the objective is of.
        """
        among = self.feasible
        wanted = objective(name, list(among))
        if not among.numbers.size:
            raise InfeasibleError(none_feasible(self.reasons))
        figures = wanted.sign * among[wanted.column]
        if np.isnan(figures).all():
            raise InfeasibleError(f"no point has a figure of {wanted.title}: the workload counts no tokens")
        return among.row(int(np.nanargmin(figures)))

    def to_polars(self) -> polars.DataFrame:
        """A data frame, a row for each point."""
        return self.columns.to_polars()


def none_feasible(reasons: Mapping[str, int]) -> str:
    """One line that says why no point has an answer."""
    told = "; ".join(f"{text} ({count:,})" for text, count in list(reasons.items())[:3])
    more = f"; and {len(reasons) - 3} reasons more" if len(reasons) > 3 else ""
    return f"no point is feasible: {told}{more}"


def swept(
    evaluator: InferenceEvaluator | TrainingEvaluator,
    question: Mapping[str, Any],
    limits: Limits,
    *,
    resume: str | os.PathLike[str] | None = None,
    workers: int = 1,
    on: str = "local",
) -> Sweep:
    """Check limits and workers, open the folder to go on from, and evaluate all points.

    Parameters
    ----------
    evaluator : InferenceEvaluator or TrainingEvaluator
    question : mapping
        All that the answers follow from, as plain values: what a folder of chunks must agree with.
    limits : Limits
    resume : path, optional
        A folder for finished chunks.
    workers : int
    on : str
        ``local`` or ``ray``.

    Raises
    ------
    InputError
        For limits on what there are no figures of, a number of workers that is none, a folder of another question, and
        more points than `MOST_IN_MEMORY`.
    """
    check_limits(limits, evaluator.figures)
    checked_workers(workers, on)
    total = len(evaluator.space)
    if total > MOST_IN_MEMORY:
        raise InputError(
            f"{total:,} points are more than the {MOST_IN_MEMORY:,} that are held in memory: "
            "write them to a file with joulecast sweep --output"
        )
    store = None if resume is None else open_store(resume, question)
    whole = joined([kept_to(chunk, limits) for chunk in run(evaluator, store=store, workers=workers, on=on)])
    counts = np.bincount(whole.columns["reason"], minlength=len(whole.reasons))
    reasons = {text: int(n) for text, n in zip(whole.reasons[1:], counts[1:], strict=True) if n}
    ordered = dict(sorted(reasons.items(), key=lambda item: -item[1]))
    return Sweep(evaluator.space, points_of(evaluator, whole), ordered)
