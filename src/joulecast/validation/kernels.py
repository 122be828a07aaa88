"""Predicts measured kernels under a protocol and puts prediction and measurement side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from joulecast.calibration.tables import QUALITIES, Measured
from joulecast.coefficients.schema import PROVENANCES, TimeCoefficients
from joulecast.coefficients.transfer import GENERATIONS, time_coefficients
from joulecast.gpus import load_gpu
from joulecast.kernels.registry import families
from joulecast.physics.price import Priced, price, under_limit
from joulecast.physics.timing import measured_s
from joulecast.validation.knowledge import SHIPPED, Knowledge, left_out, without_gpu, without_newer, without_shapes
from joulecast.validation.metrics import size_class
from joulecast.validation.read import Batch, sampled

if TYPE_CHECKING:
    import polars as pl

#: What each protocol lets a prediction know.
PROTOCOLS = {
    "shipped": "as shipped: the coefficients of the package, which saw these rows or rows like them",
    "shapes": "shapes left out: everything fitted again without a fifth of the shapes, and scored on those",
    "gpus": "GPU left out: nothing that was measured on any board with the scored GPU's chip",
    "older": "older only: a GPU newer than Ampere, from what was measured on Ampere and before",
}

#: Half width of the interval of a power that the limit sets, in natural logarithms.
CAPPED_SPREAD = 0.03


def scored(batch: Batch, protocol: str, knowledge: Knowledge = SHIPPED) -> pl.DataFrame:
    """One row for each measured row of `batch` that runs on its GPU.

    Parameters
    ----------
    batch : Batch
    protocol : str
        One of `PROTOCOLS`, written beside each row.
    knowledge : Knowledge
        What the prediction may use.

    Returns
    -------
    polars.DataFrame
        ``measured_s``, ``predicted_s``, ``half_s`` (half width of the 90 % interval, natural logarithms), the same
        for watts, ``quality`` of the power reading, ``capped``, ``provenance``, ``size`` (a class), ``group`` (formats,
        mostly), and what describes the batch.
    """
    import polars as pl

    rows = batch.rows
    gpu = load_gpu(rows.gpu)
    priced = price(
        rows.table, gpu, rows.conditions, time=knowledge.time.get(gpu.name), power=knowledge.power.get(gpu.name),
        exclude=knowledge.exclude, corrections=knowledge.corrections,
    )  # fmt: skip
    limit_w = rows.power_limit_w if np.isfinite(rows.power_limit_w) else gpu.power_limit_default_w
    settled = under_limit(priced, gpu.clock_max_mhz, np.inf if rows.timing_mode == "burst" else limit_w)
    time_s = settled.time_s
    if rows.host_bound:
        time_s = measured_s(time_s, *_host_us(priced, rows, knowledge))
    frame = pl.DataFrame(
        {
            "measured_s": rows.time_s,
            "predicted_s": time_s,
            "half_s": priced.time_spread,
            "measured_w": rows.power_w,
            "predicted_w": settled.power_w,
            "half_w": np.where(settled.throttled, CAPPED_SPREAD, priced.power.spread90),
            "quality": np.array(QUALITIES)[rows.quality],
            "capped": settled.throttled,
            "provenance": np.array(PROVENANCES)[priced.provenance],
            "group": np.array(priced.work.groups)[priced.work.group],
            "size": size_class(rows.time_s).astype(np.int8),
        }
    ).with_columns(
        protocol=pl.lit(protocol),
        source=pl.lit(batch.source),
        gpu=pl.lit(rows.gpu),
        kind=pl.lit(rows.table.kind),
        engine=pl.lit(rows.conditions.engine),
        version=pl.lit(rows.version),
        timing=pl.lit(rows.timing_mode),
        launch=pl.lit("eager" if rows.host_bound else "graph"),
        operands=pl.lit(rows.operand_init),
    )
    if not priced.work.reasons:
        return frame
    runs = np.ones(frame.height, dtype=np.bool_)
    runs[list(priced.work.reasons)] = False
    return frame.filter(runs)


def _tell_of_fit(tell: Callable[[str, float], None], share: float, what: str) -> None:
    tell(f"fitting {what}", share)


def _host_us(priced: Priced, rows: Measured, knowledge: Knowledge) -> tuple[np.ndarray, np.ndarray]:
    """Cost of the host that each row was measured from, and its part before the kernel. [us]"""
    own = knowledge.time.get(rows.gpu, {})
    family, engine = priced.work.family, rows.conditions.engine
    per_group: list[TimeCoefficients] = [
        own.get(f"{family}/{engine}/{group}")
        or time_coefficients(priced.gpu, family, engine, group, exclude=knowledge.exclude)
        for group in priced.work.groups
    ]
    code = priced.work.group
    return (np.array([one.host_us for one in per_group])[code], np.array([one.host_lead_us for one in per_group])[code])


def score_kernels(
    batches: Sequence[Batch], protocols: Iterable[str], *, sample: int, seed: int = 0,
    tell: Callable[[str, float], None] = lambda *_: None,
) -> pl.DataFrame:  # fmt: skip
    """All batches under each of `protocols`, as one table (see `scored`).

    Parameters
    ----------
    batches : sequence of Batch
        With enough rows to fit on; at most `sample` of each are scored.
    protocols : iterable of str
        Some of `PROTOCOLS`.
    sample, seed : int
    tell : callable
        Gets what is being done, and the share of all of it that is done.
    """
    import polars as pl

    known = [batch for batch in batches if batch.rows.table.kind in families()]
    asked = [name for name in PROTOCOLS if name in set(protocols)]
    parts: list[pl.DataFrame] = []

    for step, protocol in enumerate(asked):
        base = step / len(asked)
        knowledge = SHIPPED
        if protocol == "shapes":
            tell("fitting without the left-out shapes", base)
            knowledge = without_shapes([batch.rows for batch in known], partial(_tell_of_fit, tell, base))
        for i, batch in enumerate(known):
            tell(f"{batch.rows.gpu} {batch.rows.table.kind}", base + i / len(known) / len(asked))
            gpu = load_gpu(batch.rows.gpu)
            rows = left_out(batch.rows) if protocol == "shapes" else batch.rows
            if not len(rows):
                continue
            if protocol == "gpus":
                knowledge = without_gpu(gpu)
            elif protocol == "older":
                if not 3.5 < GENERATIONS.get(gpu.architecture, 0.0) < 10.0:
                    continue
                knowledge = without_newer(gpu)
            few = Batch(sampled(rows, sample, seed), batch.source, batch.available)
            parts.append(scored(few, protocol, knowledge))
    return pl.concat(parts) if parts else pl.DataFrame()
