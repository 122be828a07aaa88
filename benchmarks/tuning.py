"""How good the search for kernels is, on recorded spaces: every number by one command.

    python benchmarks/tuning.py shared/data/tuning --seeds 100
    python benchmarks/tuning.py shared/data/tuning --seeds 20 --only claims fixed
    python benchmarks/tuning.py shared/data/tuning --keep done.json   # goes on where it was stopped

Truth is what was recorded (of the A100's noisy launches their mean); meters add noise to it, or draw the noise that
was recorded. The search sees noisy readings alone.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import joulecast.tuning
from joulecast.meters.recording import Recording, read_recording
from joulecast.meters.replay import Noise
from joulecast.tuning.models import PowerModel, boosted, described, scores
from joulecast.tuning.replay import ReplayEvaluator
from joulecast.tuning.session import Session
from joulecast.tuning.strategies import Wanted, strategy

ADA = "energy_rtx4000ada_wmma_cgemm_fp16.parquet"
REPEATS = "noise_rtxa4000_gemm_repeats.parquet"
ADA_CLOCKS = (1485, 1515, 1560, 1590, 1635, 1665, 1710, 1740, 1785, 1815)
EXTERNAL, NVML = Noise(0.005), Noise(0.023, autocorrelation=0.3, drift=0.02)


def run(recording: Recording, noise: Noise, seed: int, slack: float, name: str = "race", **settings: Any) -> dict:
    """One search: what it claims, what is true, what it cost."""
    evaluator = ReplayEvaluator(recording, noise, seed)
    space = evaluator.space
    session = Session(space, evaluator, rng=np.random.default_rng(seed))
    begun = time.perf_counter()
    found = strategy(name, **settings).run(
        session, Wanted(slack=slack, energy_readings=600 if name == "race" else 10**9)
    )
    took = time.perf_counter() - begun
    assert evaluator.meter is not None
    truth = {code: evaluator.meter.truth_j(space.config(code)) for code in
             {found.chosen, found.baseline, found.candidate or found.baseline}}  # fmt: skip
    valid = np.flatnonzero(recording.valid)
    fastest = valid[np.argmin(recording.time_s[valid])]
    eligible = valid[recording.time_s[valid] <= recording.time_s[fastest] * (1.0 + slack)]
    assert recording.energy_j is not None
    best = 1.0 - float(recording.energy_j[eligible].min() / recording.energy_j[fastest])
    saved = 1.0 - truth[found.chosen] / float(recording.energy_j[fastest])
    true = 1.0 - truth[found.candidate] / truth[found.baseline] if found.candidate is not None else 0.0
    return {
        "claims": bool(found.chosen != found.baseline),
        "share": saved / best if best > 0 else np.nan,
        "slower": float(recording.time_s[recording.row(space.config(found.chosen))] / recording.time_s[fastest] - 1.0),
        "covered": None if found.saving is None else bool(found.saving.lower <= true <= found.saving.upper),
        "readings": session.energy_readings,
        "timed": len(session.times),
        "overhead_s": took - session.outside_s,
        "pipeline_s": len(session.times) * 1.0 + session.energy_readings * 1.5,
    }


class Kept:
    """Outcomes of searches by what was asked and by the code that searches: a run that was stopped goes on."""

    def __init__(self) -> None:
        self.path: Path | None = None
        self.held: dict[str, dict] = {}
        folder = Path(str(joulecast.tuning.__file__)).parent
        parts = [*sorted(folder.glob("*.py")), *sorted((folder / "strategies").glob("*.py"))]
        searched = [part for part in parts if part.stem in SEARCHED or part.parent.name == "strategies"]
        self.version = hashlib.sha256(b"".join(part.read_bytes() for part in searched)).hexdigest()[:8]

    def open(self, path: Path) -> None:
        """Take what a file holds; keep there from here on."""
        self.path = path
        if path.exists():
            self.held = json.loads(path.read_text())

    def find(self, question: list[Any], search: Callable[[], dict]) -> dict:
        """The outcome of a question, searched for where it isn't held."""
        key = json.dumps([self.version, *question])
        if key not in self.held:
            self.held[key] = search()
            if self.path is not None:
                part = self.path.with_suffix(".part")
                part.write_text(json.dumps(self.held))
                part.replace(self.path)
        return self.held[key]


#: Modules that decide what a search does.
SEARCHED = {"fastest", "models", "replay", "session", "space", "statistics"}

KEPT = Kept()


def several(recordings: list[Recording], noise: Noise, seeds: int, slack: float, **more: Any) -> list[dict]:
    """Searches with different seeds, in turn over recordings."""
    found = []
    for seed in range(seeds):
        recording = recordings[seed % len(recordings)]
        asked = [recording.name, sorted(recording.constants.items()), vars(noise), seed, slack, sorted(more.items())]
        found.append(KEPT.find(asked, partial(run, recording, noise, seed, slack, **more)))
    return found


def said(title: str, rows: list[dict]) -> None:
    """A line of the table."""
    covered = [row["covered"] for row in rows if row["covered"] is not None]
    share = [row["share"] for row in rows]
    cells = [
        f"claims {np.mean([row['claims'] for row in rows]):.0%}",
        f"inside its interval {np.mean(covered):.1%} of {len(covered)}" if covered else "",
        f"share of the best saving {np.nanmedian(share):.0%} (quartile {np.nanquantile(share, 0.25):.0%})"
        if np.isfinite(share).any() else "",
        f"slower than the fastest by {np.quantile([row['slower'] for row in rows], 0.95):.1%} in 95 %",
        f"readings {np.median([row['readings'] for row in rows]):.0f}",
        f"timed {np.median([row['timed'] for row in rows]):.0f}",
        f"overhead {np.sum([row['overhead_s'] for row in rows]) / np.sum([row['pipeline_s'] for row in rows]):.1%}",
    ]  # fmt: skip
    print(f"{title:46s} " + "  ".join(cell for cell in cells if cell), flush=True)


def claims(data: Path, seeds: int) -> None:
    """Repeats of one kernel: nothing is there to be found."""
    recordings = [read_recording(data / REPEATS, session=number) for number in range(6)]
    said("repeats of one kernel, as recorded", several(recordings, Noise(None), seeds, 0.05))


def ada(data: Path, clock: int | None = None) -> list[Recording]:
    """The RTX 4000 Ada space, at each clock or at all of them."""
    whole = read_recording(data / ADA)
    return [whole] if clock == 0 else [whole.only(nvml_gr_clock=value) for value in ADA_CLOCKS]


def fixed(data: Path, seeds: int) -> None:
    """The RTX 4000 Ada at fixed clocks."""
    said("RTX 4000 Ada, clocks fixed, 0.5 %", several(ada(data), EXTERNAL, seeds, 0.05))
    said("RTX 4000 Ada, clocks fixed, 2.3 %", several(ada(data), NVML, seeds, 0.05))


def free(data: Path, seeds: int) -> None:
    """The RTX 4000 Ada with the clock as a tunable."""
    said("RTX 4000 Ada, clocks free, 0.5 %", several(ada(data, 0), EXTERNAL, seeds, 0.05))
    said("RTX 4000 Ada, clocks free, 2.3 %", several(ada(data, 0), NVML, seeds, 0.05))


def others(data: Path, seeds: int) -> None:
    """The spaces that nothing was chosen on."""
    hotspot = read_recording(data / "energy_rtxa4000_hotspot.parquet")
    xgemm = read_recording(data / "energy_a100_xgemm_fp32.parquet")
    said("RTX A4000 hotspot, 2.3 %", several([hotspot], NVML, seeds, 0.05))
    said("A100 Xgemm, launches as recorded", several([xgemm], Noise(None), seeds, 0.05))


def readings(data: Path, seeds: int) -> None:
    """What the race reads, against reading everything."""
    for title, noise, passes in (("0.5 %", EXTERNAL, 3), ("2.3 %", NVML, 12)):
        few = several(ada(data), noise, seeds, 0.05)
        within = several(ada(data), noise, seeds, 0.05, name="measure-all", passes=passes,
                         eligible_only=True)  # fmt: skip
        everything = several(ada(data), noise, seeds, 0.05, name="measure-all", passes=passes)
        said(f"race, {title}", few)
        said(f"measure-all within the slack, {title}", within)
        said(f"measure-all, {title}", everything)
        ratio = np.median([r["readings"] for r in few]) / np.median([r["readings"] for r in everything])
        print(f"{'':46s} readings of the race over measure-all: {ratio:.3f}")


def strategies(data: Path, seeds: int) -> None:
    """The published search and a random one beside the race."""
    for name, more in (("race", {}), ("paper", {"name": "paper", "mu": 0.05}), ("random", {"name": "random"})):
        said(f"{name}, RTX 4000 Ada, clocks fixed, 0.5 %", several(ada(data), EXTERNAL, seeds, 0.05, **more))


def model(data: Path, seeds: int) -> None:
    """The power model at 50 measurements, RTX 4000 Ada at one clock (1665 MHz)."""
    recording = read_recording(data / ADA).only(nvml_gr_clock=1665)
    evaluator = ReplayEvaluator(recording)
    rows = np.flatnonzero(recording.valid)
    codes = [evaluator.space.code(recording.configs[row]) for row in rows]
    assert recording.energy_j is not None
    times, energies = recording.time_s[rows], recording.energy_j[rows]
    numbers = evaluator.space.numbers(codes)
    features = described(numbers, times)
    fast = np.argsort(times, kind="stable")
    for title, near in (("50 at random", 0), ("35 at random, 15 of the fastest", 15)):
        found: dict[str, list] = {}
        for seed in range(seeds):
            rng = np.random.default_rng(seed)
            start = fast[: 2 * near : 2]
            rest = np.setdiff1d(np.arange(len(rows)), start)
            train = np.concatenate([start, rng.permutation(rest)[: 50 - near]])
            noisy = energies * np.exp(0.005 * rng.normal(size=len(energies)))
            fitted = PowerModel.fit(features[train], times[train], noisy[train], features)
            logs, caution = fitted.predict(features, times)
            test = np.setdiff1d(np.arange(len(rows)), train)
            pairs: dict[str, tuple[Any, Any]] = {"power model x time": (np.exp(logs), caution)}
            pairs["constant power x time"] = (times * np.mean(noisy[train] / times[train]), None)
            trees = boosted(features[train], noisy[train], seed, weights=noisy.mean() / noisy[train], rounds=150)
            pairs["boosted energy, 1/Em"] = (np.maximum(trees.predict(features), 1e-3), None)
            for name, (predicted, doubt) in pairs.items():
                whole = scores(predicted, energies, times, doubt)
                left = scores(predicted[test], energies[test], times[test])
                found.setdefault(name, []).append((left.r2, left.mape, left.rank, whole.near_r2, whole.near_mape,
                                                   whole.near_rank, whole.regret))  # fmt: skip
        for name, several_ in found.items():
            r2, mape, rank, near_r2, near_mape, near_rank, regret = np.median(np.array(several_), axis=0)
            print(f"{title:34s} {name:24s} R2 {r2:.2f}  MAPE {mape:.1%}  rank {rank:.3f}   near-fastest: "
                  f"R2 {near_r2:.2f}  MAPE {near_mape:.1%}  rank {near_rank:.2f}  regret {regret:.2%}",
                  flush=True)  # fmt: skip


def tiles(data: Path, seeds: int) -> None:  # noqa: ARG001 - nothing is drawn
    """The model meter: tiles and launch geometry alone, no measurement; CUDA-core products were looked at last."""
    from joulecast.gpus import load_gpu
    from joulecast.tuning.models import rank_correlation
    from joulecast.tuning.tiles import TiledProduct, price_tiles

    whole = read_recording(data / ADA)
    for clock in (1485, 1665, 1815, 0):
        space = whole.only(nvml_gr_clock=clock) if clock else whole
        rows = np.flatnonzero(space.valid)
        column = {name: np.array([space.configs[row][name] for row in rows], dtype=float) for name in space.names}
        product = TiledProduct(
            4096, 4096, 4096, column["M_PER_BLOCK"], column["N_PER_BLOCK"], column["block_size_z"],
            column["block_size_y"], 16, column["NBUFFER"], bytes_an_element=4.0, accumulators=2.0, flop_an_element=8.0,
        )  # fmt: skip
        price = price_tiles(product, load_gpu("rtx-4000-ada"), clock or column["nvml_gr_clock"])
        assert space.energy_j is not None
        energy, measured = space.energy_j[rows], space.time_s[rows]
        told = scores(price.energy_j, energy, measured)
        pick = int(np.argmin(price.energy_j))
        time_rank = rank_correlation(price.time_s, measured)
        regret = energy[pick] / energy.min() - 1.0
        print(f"RTX 4000 Ada, {clock or 'all'} MHz: rank of energy {told.rank:.3f}, of time {time_rank:.3f}; regret of "
              f"its pick {regret:.1%}, in the near-fastest set {told.regret:.1%}", flush=True)  # fmt: skip
    for name, gpu in (("energy_a100_xgemm_fp32", "a100-pcie-40gb"), ("time_gemmkt_rtx_3090", "rtx-3090"),
                      ("time_gemmkt_rtx_2080_ti", "rtx-2080-ti")):  # fmt: skip
        space = read_recording(data / f"{name}.parquet")
        rows = np.flatnonzero(space.valid)
        column = {key: np.array([{**space.constants, **space.configs[row]}[key] for row in rows], dtype=float)
                  for key in ("MWG", "NWG", "MDIMC", "NDIMC", "SA", "SB")}  # fmt: skip
        across = np.maximum(column["MDIMC"] / 32.0, 1.0)
        product = TiledProduct(
            4096, 4096, 4096, column["MWG"], column["NWG"], across, column["MDIMC"] * column["NDIMC"] / 32.0 / across,
            32, np.sign(column["SA"] + column["SB"]), bytes_an_element=4.0, math="cuda.fp32", lanes_m=column["MDIMC"],
            lanes_n=column["NDIMC"],
        )  # fmt: skip
        price = price_tiles(product, load_gpu(gpu))
        print(f"{name}: rank of time {rank_correlation(price.time_s, space.time_s[rows]):.3f}", flush=True)


PARTS: dict[str, Callable[[Path, int], None]] = {
    "claims": claims, "fixed": fixed, "model": model, "others": others, "readings": readings, "strategies": strategies,
    "free": free, "tiles": tiles,
}  # fmt: skip


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--only", nargs="*", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--keep", type=Path, help="file that keeps what was found")
    args = parser.parse_args()
    if args.keep is not None:
        KEPT.open(args.keep)
    warnings.simplefilter("ignore")
    for name in args.only:
        PARTS[name](args.data, args.seeds)


if __name__ == "__main__":
    main()
