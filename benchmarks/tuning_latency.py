"""Evaluations until a configuration within 1 % of the fastest is timed, beside Kernel Tuner's strategies.

Replays the time-only recorded spaces. Kernel Tuner is no part of joulecast: ``pip install kernel-tuner`` for its
columns; it runs in its own simulation mode on the same tables. Every distinct configuration counts, failed ones too.

    python benchmarks/tuning_latency.py shared/data/tuning --seeds 20 --rivals genetic_algorithm greedy_ils
    python benchmarks/tuning_latency.py shared/data/tuning --rivals ... --keep done.json   # goes on where it ended
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from joulecast.meters.recording import Recording, read_recording
from joulecast.tuning import fastest, models
from joulecast.tuning.fastest import Search, Settings
from joulecast.tuning.space import Space

WITHIN = 1.01


def ours(recording: Recording, seed: int, most: int) -> int:
    """Evaluations of joulecast's search until the target; `most` where it is not reached."""
    space = Space.of_list(recording.configs)
    codes = [space.code(config) for config in recording.configs]
    target = np.nanmin(recording.time_s) * WITHIN
    search = Search(codes, space.numbers(codes), np.random.default_rng(seed), Settings(evaluations=most))
    while len(search.rows) < min(most, len(codes)):
        for row in search.propose():
            search.learn(row, float(recording.time_s[row]))
            if recording.time_s[row] <= target:
                return len(search.rows)
    return most


def cache_of(recording: Recording, folder: Path) -> tuple[Path, dict[str, list[object]]]:
    """The recording in the form that Kernel Tuner replays."""
    names = list(recording.names)
    values = {name: sorted({config[name] for config in recording.configs}) for name in names}
    rows = {}
    for config, time_s in zip(recording.configs, recording.time_s, strict=True):
        entry = dict(config) | {
            "time": float(time_s * 1e3) if np.isfinite(time_s) else "RuntimeFailedConfig",
            "compile_time": 0.0, "verification_time": 0, "benchmark_time": 0.0, "framework_time": 0.0,
            "strategy_time": 0.0, "timestamp": "2024-01-01 00:00:00+00:00",
        }  # fmt: skip
        if np.isfinite(time_s):
            entry["times"] = [float(time_s * 1e3)]
        rows[",".join(str(config[name]) for name in names)] = entry
    document = {"device_name": "replay", "kernel_name": "kernel", "problem_size": [1], "tune_params_keys": names,
                "tune_params": values, "objective": "time", "cache": rows}  # fmt: skip
    path = folder / f"{recording.name}.json"
    path.write_text(json.dumps(document))
    return path, values


def rival(recording: Recording, cache: Path, values: dict[str, list[object]], name: str, seed: int, most: int) -> int:
    """Evaluations of a strategy of Kernel Tuner until the target; `most` where it is not reached."""
    import random

    import kernel_tuner

    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - the rival draws from it
    allowed = {tuple(config.values()) for config in recording.configs}
    names = list(recording.names)

    def held(values):  # a lambda would be parsed as text
        return tuple(values[name] for name in names) in allowed

    with contextlib.redirect_stdout(io.StringIO()):
        results, _ = kernel_tuner.tune_kernel(
            "kernel", "", (1,), [], values, restrictions=held,
            strategy=name, strategy_options={"max_fevals": most}, simulation_mode=True, cache=str(cache), lang="CUDA",
            verbose=False, quiet=True,
        )  # fmt: skip
    target = np.nanmin(recording.time_s) * 1e3 * WITHIN
    for number, result in enumerate(results, start=1):
        if isinstance(result["time"], float) and result["time"] <= target:
            return number
    return most


class Kept:
    """What was found, by space, strategy and seed: a benchmark that was stopped goes on."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.held: dict[str, int] = json.loads(path.read_text()) if path is not None and path.exists() else {}

    def find(self, key: str, search: Callable[[], int]) -> int:
        """What is kept under `key`, else what `search` gives, which is kept."""
        if key not in self.held:
            self.held[key] = search()
            if self.path is not None:
                part = self.path.with_suffix(".part")
                part.write_text(json.dumps(self.held, indent=0))
                part.replace(self.path)
        return self.held[key]


def version_of_ours() -> str:
    """Changes with the code of the search."""
    files = (fastest.__file__, models.__file__)
    return hashlib.sha256(b"".join(Path(str(file)).read_bytes() for file in files)).hexdigest()[:8]


def main() -> None:
    """Print a row a space and the medians."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--rival-seeds", type=int, default=5)
    parser.add_argument("--most", type=int, default=1000)
    parser.add_argument("--rivals", nargs="*", default=[])
    parser.add_argument("--only", default="", help="spaces whose name holds this")
    parser.add_argument("--keep", type=Path, help="file that keeps what was found")
    args = parser.parse_args()
    kept, mine = Kept(args.keep), f"joulecast {version_of_ours()}"
    table: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for path in sorted(args.data.glob("time_*.parquet")):
            if args.only not in path.stem:
                continue
            recording = read_recording(path)
            row: dict[str, float] = {}
            found = [
                kept.find(f"{path.stem} {mine} {args.most} {seed}", partial(ours, recording, seed, args.most))
                for seed in range(args.seeds)
            ]
            row["joulecast"] = float(np.median(found))
            row["solved"] = float(np.mean(np.array(found) < args.most))
            if args.rivals:
                cache, values = cache_of(recording, Path(scratch))
                for name in args.rivals:
                    found = [
                        kept.find(
                            f"{path.stem} {name} {args.most} {seed}",
                            partial(rival, recording, cache, values, name, seed, args.most),
                        )
                        for seed in range(args.rival_seeds)
                    ]
                    row[name] = float(np.median(found))
            table[recording.name] = row
            cells = "  ".join(f"{key} {value:.0f}" for key, value in row.items() if key != "solved")
            print(f"{recording.name:40s} {cells}  (solved in {row['solved']:.0%})", flush=True)
    columns = [key for key in next(iter(table.values())) if key != "solved"]
    for key in columns:
        print(f"median over spaces  {key:20s} {np.median([row[key] for row in table.values()]):.0f}")
    if args.rivals:
        best = [min(row[name] for name in args.rivals) for row in table.values()]
        ahead = sum(row["joulecast"] < least for row, least in zip(table.values(), best, strict=True))
        print(f"median over spaces  best rival on each  {np.median(best):.0f}")
        print(f"ahead of it on {ahead} of {len(best)} spaces")


if __name__ == "__main__":
    main()
