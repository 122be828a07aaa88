"""Scores `joulecast compare` on whole serving runs: ``python benchmarks/serving.py DATA [--write]``.

DATA is the folder of measured tables. First what engines add to a step beside their kernels, by version: costs fitted
on all runs, and median errors of the time of a step without them, and with costs from other models than the one that is
scored. Then the metrics of runs of vLLM 0.5.4 and 0.11.1 at a full batch, their model left out of the costs: medians of
signed relative errors and of their absolute values. ``--write`` puts the costs into the package.

Prompt lengths were not published; what is assumed stands in `joulecast.validation.serving_steps`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import numpy as np

from joulecast.coefficients import engines, places
from joulecast.coefficients.roots import package_folder
from joulecast.errors import JoulecastError
from joulecast.validation import compare as comparing
from joulecast.validation.serving_files import ServingResult
from joulecast.validation.serving_steps import fit_steps, newer_results, older_results, scored, step_rows

METRICS = ("tpot_s", "itl_s", "output_throughput", "energy_per_token_j", "energy_at_pace_j")


@contextmanager
def _with_steps(version: str, steps: engines.EngineSteps) -> Iterator[None]:
    """Within the context, a version costs what `steps` say."""
    kept = comparing.engine_steps
    comparing.engine_steps = lambda name: steps if name == version else kept(name)
    try:
        yield
    finally:
        comparing.engine_steps = kept


def score(results: list[ServingResult], version: str, steps_without: Callable[[str], engines.EngineSteps]) -> None:
    """Print the errors of a version by GPU."""
    errors: dict[str, list[list[float]]] = {}
    refused: dict[str, int] = {}
    costs: dict[str, engines.EngineSteps] = {}
    for result in results:
        steps = costs.setdefault(result.model, steps_without(result.model))
        try:
            with _with_steps(version, steps):
                found = comparing.compare(result, server=version)
        except JoulecastError:
            refused[result.model] = refused.get(result.model, 0) + 1
            continue
        rows = {row["metric"]: row["error"] for row in found.rows()}
        # at a measured pace above the predicted one there is nothing to add
        if rows.get("energy_at_pace_j") is None:
            rows["energy_at_pace_j"] = rows["energy_per_token_j"]
        errors.setdefault(found.gpu, []).append([_number(rows.get(name)) for name in METRICS])
    sys.stdout.write(f"\n{version:16}{'runs':>6}" + "".join(f"{name:>22}" for name in METRICS) + "\n")
    for gpu, values in (*errors.items(), ("all", [row for rows in errors.values() for row in rows])):
        cells = ""
        for column in np.array(values).T:
            known = column[np.isfinite(column)]
            cells += (
                f"{100 * np.median(known):+13.0f} % |{100 * np.median(np.abs(known)):3.0f} %|"
                if known.size
                else f"{'-':>22}"
            )
        sys.stdout.write(f"{gpu:16}{len(values):6}{cells}\n")
    for model, count in refused.items():
        sys.stdout.write(f"not predicted: {model} ({count} runs)\n")


def _number(value: float | None) -> float:
    return float("nan") if value is None else value


def main() -> int:
    """Fit, print, and write if asked."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("data", nargs="?", default="../shared/data", type=Path)
    parser.add_argument("--write", action="store_true", help="put the costs into the package")
    given = parser.parse_args()
    runs = step_rows(given.data)
    if not runs:
        sys.stderr.write(f"no served runs in {given.data}\n")
        return 2
    found = {version: scored(*source_and_rows) for version, source_and_rows in runs.items()}
    sys.stdout.write(f"{'':16}{'runs':>6}{'step':>10}{'sequence':>12}{'group':>10}{'without':>10}{'left out':>10}\n")
    for version, one in found.items():
        costs = "".join(f"{asdict(one)[name]:{width}.0f} us" for name, width in
                        (("step_us", 7), ("sequence_us", 9), ("group_us", 7)))  # fmt: skip
        sys.stdout.write(f"{version:16}{one.rows:6}{costs}{100 * one.before:8.0f} %{100 * one.error:8.0f} %\n")
    if given.write:
        engines.write_engine_steps(found, package_folder() / places.ENGINES)
    for version, read, name in (("vllm-0.5", older_results, "v2_llm.csv"), ("vllm-0.11", newer_results, "v3_llm.csv")):
        if version in runs:
            rows = runs[version][1]
            score(
                read(given.data / "mlenergy" / name),
                version,
                lambda model, rows=rows: fit_steps([one for one in rows if one.model != model]),
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
