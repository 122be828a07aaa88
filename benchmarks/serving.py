"""Scores `joulecast compare` on whole serving runs: ``python benchmarks/serving.py DATA``.

DATA is the folder of measured tables; read is ``mlenergy/v2_llm.csv``, whose runs of chat and code were made with vLLM
0.5.4 at a full batch. Prompt lengths were not published: 200 tokens are assumed for chat, 150 for code. Printed are the
median of the signed relative errors and of their absolute values.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import numpy as np

from joulecast.errors import JoulecastError
from joulecast.validation.compare import compare
from joulecast.validation.serving_files import ServingResult

PROMPT_TOKENS = {"chat": 200, "code": 150}
METRICS = ("tpot_s", "output_throughput", "energy_per_token_j", "energy_at_pace_j")


def results(path: Path) -> list[ServingResult]:
    """The runs of the table that were made with text prompts."""
    out = []
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            prompt = next((size for task, size in PROMPT_TOKENS.items() if task in row["task"]), None)
            if prompt is None or "visual" in row["task"]:
                continue
            measured = {
                "tpot_s": float(row["avg_time_per_output_token_s"]),
                "output_throughput": float(row["output_throughput_tok_per_s"]),
                "energy_per_token_j": float(row["energy_per_output_token_j"]),
            }
            out.append(
                ServingResult(
                    path.name,
                    "vLLM",
                    "vllm",
                    measured,
                    model=row["model_id"],
                    gpu=row["gpu"],
                    tp=int(row["tp"]),
                    pp=int(row["pp"]),
                    input_tokens=prompt,
                    output_tokens=float(row["avg_output_tokens_per_request"]),
                    concurrency=float(row["avg_batch_size_req"]),
                    concurrency_from="mean",
                )
            )
    return out


def main() -> int:
    """Print the errors by GPU."""
    table = Path(sys.argv[1] if len(sys.argv) > 1 else "../shared/data") / "mlenergy" / "v2_llm.csv"
    if not table.is_file():
        sys.stderr.write(f"no such table: {table}\n")
        return 2
    errors: dict[str, list[list[float]]] = {}
    refused: dict[str, int] = {}
    for result in results(table):
        try:
            found = compare(result)
        except JoulecastError:
            refused[result.model] = refused.get(result.model, 0) + 1
            continue
        rows = {row["metric"]: row["error"] for row in found.rows()}
        # at a measured pace above the predicted one there is nothing to add
        rows.setdefault("energy_at_pace_j", rows["energy_per_token_j"])
        errors.setdefault(found.gpu, []).append([rows[name] for name in METRICS])
    sys.stdout.write(f"{'':16}{'runs':>6}" + "".join(f"{name:>26}" for name in METRICS) + "\n")
    for gpu, values in (*errors.items(), ("all", [row for rows in errors.values() for row in rows])):
        signed, size = np.median(values, axis=0), np.median(np.abs(values), axis=0)
        cells = "".join(f"{100 * a:+17.0f} % |{100 * b:3.0f} %|" for a, b in zip(signed, size, strict=True))
        sys.stdout.write(f"{gpu:16}{len(values):6}{cells}\n")
    for model, count in refused.items():
        sys.stdout.write(f"not predicted: {model} ({count} runs)\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
