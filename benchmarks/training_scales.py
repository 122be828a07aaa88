"""Scales of training that ship with the package: fitted to published steps, written as ``training.toml``.

    python benchmarks/training_scales.py DATA/training [FOLDER]

Decoders under PyTorch's FSDP have scales of each GPU and precision that were measured. Other transformers, and
convolutional networks, are predicted as their kernels were fitted (their stacks differ more from each other than from
that); what published steps of them are off by tells how wide intervals are.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from joulecast.calibration.conformal import conformal_quantile
from joulecast.calibration.step_tables import RunTables, figures, tabulated, taken
from joulecast.calibration.training import fit_scales, left_out
from joulecast.calibration.training_runs import TrainingRun
from joulecast.coefficients.places import package_folder
from joulecast.coefficients.training import ALL, Scales, TrainingScales, write_scales
from joulecast.validation.training_tables import SOURCES

Floats = npt.NDArray[np.float64]


def main(data: Path, out: Path) -> None:
    """Fit, and write ``training.toml`` in `out`."""
    found = {name: tabulated(_once(list(read(data))))[0] for name, read in SOURCES.items()}
    scopes: dict[str, Scales] = {}
    decoders = found["MPT"]
    names = [f"{run.gpu}/{run.options['precision']}" for run in decoders.runs]
    predicted, _ = left_out(decoders, [run.network for run in decoders.runs], within=names)
    miss = predicted / decoders.measured_s
    for scope in sorted(set(names)):
        mine = np.array(names) == scope
        fitted = fit_scales(taken(decoders, mine))
        scopes[scope] = _with_widths(replace(fitted, source="MPT decoders under FSDP (llm-foundry)"), miss[mine], None)
    power = _ratios(found, ("Zeus",), power=True)
    transformers = _ratios(found, ("DLE", "Zeus", "MPT", "timm"), convolutional=False)
    images = _ratios(found, ("DLE", "Zeus", "torchvision", "timm"), convolutional=True)
    kernels = "kernels; intervals from steps of "
    scopes[ALL] = _with_widths(Scales(source=f"{kernels}BERT, MPT and ViT"), transformers, power)
    scopes["convolution"] = _with_widths(Scales(source=f"{kernels}image networks"), images, power)
    for scope, one in scopes.items():
        print(f"{scope:32} {one.rows:5} steps  error {one.error:6.1%}  90 % within +-{np.expm1(one.spread90):.0%}")
    print("written", write_scales(TrainingScales(MappingProxyType(scopes)), out))


def _once(runs: list[TrainingRun]) -> list[TrainingRun]:
    """Runs under several power limits once, under the highest; none of the recommender, which waits for its input."""
    best: dict[str, TrainingRun] = {}
    for run in runs:
        limit = run.tags.get("limit_w", 0.0)
        key = run.configuration if limit else str(id(run))
        if run.network != "ncf" and (key not in best or limit > best[key].tags["limit_w"]):
            best[key] = run
    return list(best.values())


def _with_widths(scales: Scales, ratio: Floats, power: Floats | None) -> Scales:
    """With what predictions are off by; each network counts by its runs."""
    time = conformal_quantile(np.abs(np.log(ratio)))
    watts = scales.power_spread90 if power is None else conformal_quantile(np.abs(np.log(power)))
    return replace(
        scales, rows=int(ratio.size), error=float(np.abs(ratio - 1.0).mean()), spread90=time, power_spread90=watts
    )


def _ratios(
    found: dict[str, RunTables], names: Sequence[str], *, convolutional: bool | None = None, power: bool = False
) -> Floats:
    """Predicted over measured, nothing fitted."""
    out: list[float] = []
    for name in names:
        tables = found[name]
        time_s, power_w = figures(tables, Scales())
        off = power_w / tables.measured_w if power else time_s / tables.measured_s
        images = tables.class_s[..., 1].sum(axis=(1, 2)) > 0
        out += off[np.isfinite(off) & ((images == convolutional) | (convolutional is None))].tolist()
    return np.array(out)


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        raise SystemExit("usage: python benchmarks/training_scales.py DATA/training [FOLDER]")
    main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) == 3 else package_folder())
