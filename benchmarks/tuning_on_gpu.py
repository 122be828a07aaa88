"""Tunes the operators that matter on the GPU of this machine, smallest first, and writes a page of what it shows.

    python benchmarks/tuning_on_gpu.py --folder measured            # an NVIDIA GPU, joulecast[tune,torch,measure]
    python benchmarks/tuning_on_gpu.py --folder tried --meter model --configs 4 --only decode   # no GPU: a rehearsal

First the meter is looked at: what works, how far readings of one and the same kernel scatter, and whether a saving is
claimed between a kernel and itself. Then come decode and other small shapes, where blocks leave SMs idle and most is to
be expected, then prefill, rows, convolutions and attention. Everything is kept in the folder (logs, winners, a JSON a
question): a run that was stopped goes on. The page is written anew after each operator, docs/tune-measured.md with
``--page``. With ``--clocks`` each is searched over core clocks, too, which needs the right to set them.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import joulecast as jc
from joulecast.errors import JoulecastError
from joulecast.tuning.exits.winners import add_winner
from joulecast.tuning.kernel import tune_kernel
from joulecast.tuning.operators import operator
from joulecast.tuning.result import TuningResult

#: n and k of the products of a layer: attention and its output, down, up and gate, and the head of a language model.
PRODUCTS = ((4096, 4096), (11008, 4096), (4096, 14336), (128256, 4096))


def questions() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Group, operator and sizes, those first from which most is expected."""
    for dtype in ("bf16", "fp16"):
        for m in (1, 16):
            for n, k in PRODUCTS:
                yield "decode", "matmul", {"m": m, "n": n, "k": k, "dtype": dtype}
    for n, k in PRODUCTS:
        yield "decode", "gemv", {"n": n, "k": k, "dtype": "bf16"}
    for cached in (1024, 4096, 16384):
        yield "decode", "attention_decode", {"batch": 1, "cached": cached, "dtype": "bf16"}
    for size in (64, 128):
        yield "small", "batched_matmul", {"batch": 64, "m": size, "n": size, "k": size, "dtype": "fp16"}
    for tokens in (1, 64):
        yield "small", "fused_moe", {"tokens": tokens, "dtype": "bf16"}
    for dtype in ("bf16", "fp16"):
        for m in (128, 2048):
            for n, k in PRODUCTS:
                yield "prefill", "matmul", {"m": m, "n": n, "k": k, "dtype": dtype}
    for head_dim in (64, 128):
        for tokens in (512, 2048, 8192):
            yield "prefill", "attention_prefill", {"tokens": tokens, "head_dim": head_dim, "dtype": "bf16"}
    for name in ("rms_norm", "softmax"):
        for columns in (1024, 4096, 16384, 32768):
            yield "rows", name, {"rows": 4096, "columns": columns, "dtype": "bf16"}
    for channels, height in ((64, 56), (128, 28), (256, 14), (512, 7)):
        sizes = {"channels": channels, "filters": channels, "height": height, "width": height}
        yield "convolutions", "conv", {"batch": 32, **sizes, "dtype": "fp16"}


def look(folder: Path, device: str) -> dict[str, Any]:
    """The meter, and a kernel raced against itself: the same configuration under several names of one tunable."""
    path = folder / "meter.json"
    if path.exists():
        held: dict[str, Any] = json.loads(path.read_text())
        return held
    import numpy as np

    from joulecast.meters.nvml import cuda_device, nvml_meter
    from joulecast.tuning.evaluator import Check
    from joulecast.tuning.gpu_load import GraphLoad, need_gpu
    from joulecast.tuning.space import Space
    from joulecast.tuning.tune import search

    torch = need_gpu()
    meter = nvml_meter(cuda_device(torch))
    spec = operator("matmul", m=2048)
    load = GraphLoad(spec, spec.baseline, torch)
    meter.prepare(load)
    readings = [meter.read(load) for _ in range(40)]
    energies = np.array([one.energy_j for one in readings if not one.refused])

    class Same:
        """One kernel under eight names."""

        question, facts = {"kernel": "the same"}, meter.facts
        check = staticmethod(lambda configs: [Check(True)] * len(configs))
        latency = staticmethod(lambda config, count: np.array(load.times_s(count)))  # noqa: ARG005
        energy = staticmethod(lambda config, count: [meter.read(load) for _ in range(count)])  # noqa: ARG005
        features = prior = staticmethod(lambda configs: None)  # noqa: ARG005

    raced = [search(Same(), Space.of({"name": list(range(8))}), slack=0.05, seed=seed) for seed in range(3)]
    found = {
        "device": device, "method": meter.facts.method, "notes": list(meter.facts.notes),
        "versions": dict(meter.facts.versions), "limit_w": meter.facts.cap_w, "idle_w": meter.facts.idle_w,
        "readings": len(energies), "refused": len(readings) - len(energies),
        "scatter": float(energies.std(ddof=1) / energies.mean()),
        "lag_1": float(np.corrcoef(energies[1:], energies[:-1])[0, 1]),
        "drift": float(energies[-10:].mean() / energies[:10].mean() - 1.0),
        "temperature_c": [readings[0].temperature_c, readings[-1].temperature_c],
        "claims_between_the_same": sum(one.chosen != one.baseline for one in raced), "races": len(raced),
    }  # fmt: skip
    path.write_text(json.dumps(found, indent=2))
    return found


def asked(folder: Path, gpu: str, name: str, sizes: dict[str, Any], args: argparse.Namespace) -> dict[str, Any]:
    """One operator: measured, or predicted in a rehearsal, and beside it what the model meter predicted."""
    called = "-".join([name, *(f"{key}{value}" for key, value in sizes.items())])
    path = folder / f"{called}.json"
    if path.exists():
        held: dict[str, Any] = json.loads(path.read_text())
        return held
    spec, begun = operator(name, **sizes), time.perf_counter()
    shared: dict[str, Any] = {
        "configs": args.configs, "slack": args.slack, "cache": folder / "compiled.sqlite", "workers": args.workers,
        "clocks_mhz": args.clocks,
    }  # fmt: skip
    predicted = tune_kernel(spec, gpu, meter="model", check="none", **shared)
    if args.meter == "model":
        found: TuningResult = predicted
    else:
        found = tune_kernel(spec, gpu, meter=args.meter, log=folder / f"{called}.db", **shared)
    add_winner(folder / f"winners-{args.meter}.json", found)
    chosen = _energy(found, found.chosen), _time(found, found.chosen)
    row = {
        "operator": name, "sizes": sizes, "verdict": found.verdict, "saving": found.to_dict()["saving"],
        "chosen": dict(found.chosen), "baseline": dict(found.baseline), "energy_j": chosen[0], "time_s": chosen[1],
        "time_over_fastest": found.time_ratio, "readings": found.energy_readings, "timed": found.latency_evaluations,
        "refused": dict(found.refused), "duty": found.duty, "temperature_c": found.temperature_c,
        "clock_mhz": found.clock_mhz, "predicted_energy_j": _energy(predicted, kernel(found, predicted)),
        "predicted_time_s": _time(predicted, kernel(found, predicted)),
        "models": found.to_dict()["model"], "seconds": time.perf_counter() - begun,
    }  # fmt: skip
    path.write_text(json.dumps(row, indent=2))
    return row


def kernel(found: TuningResult, predicted: TuningResult) -> dict[str, Any]:
    """The chosen configuration as the prediction knows it; its own choice where it does not."""
    known = [dict(point.config) for point in predicted.points]
    return dict(found.chosen) if dict(found.chosen) in known else dict(predicted.chosen)


def _point(found: TuningResult, config: Any) -> Any:
    return next(point for point in found.points if dict(point.config) == dict(config))


def _energy(found: TuningResult, config: Any) -> float | None:
    told: float | None = _point(found, config).energy_j
    return told


def _time(found: TuningResult, config: Any) -> float:
    return float(_point(found, config).time_s)


def page(device: str, meter: dict[str, Any] | None, rows: list[dict[str, Any]], failed: dict[str, str]) -> str:
    """The page, in Markdown."""
    how = "predicted, not measured" if meter is None else f"measured: {meter['method']}"
    lines = [f"# Tuned on {device}", "", f"`python benchmarks/tuning_on_gpu.py`, {how}.", ""]
    if meter is not None:
        said = (
            f"Readings of one kernel scatter by {meter['scatter']:.2%} (lag-1 correlation {meter['lag_1']:.2f}, drift "
            f"{meter['drift']:+.2%} over {meter['readings']}; {meter['refused']} refused). Raced against itself, a "
            f"saving was claimed in {meter['claims_between_the_same']} of {meter['races']} searches."
        )
        lines += [said, *(f"* {note}" for note in meter["notes"]), ""]
    lines += ["| operator | sizes | saving (95 %) | time | energy | over the prediction: time, energy | readings |"]
    lines += ["|---|---|---|---|---|---|---|"]
    for row in rows:
        sizes = " ".join(f"{key}={value}" for key, value in row["sizes"].items())
        saving = row["saving"]
        told = "none found" if saving is None else f"{saving['lower']:+.1%} to {saving['upper']:+.1%}"
        energy, said_j = row["energy_j"], row["predicted_energy_j"]
        over = f"{row['time_s'] / row['predicted_time_s']:.2f}"
        over += "" if energy is None or not said_j else f", {energy / said_j:.2f}"
        joules = "" if energy is None else f"{energy * 1e3:.4g} mJ"
        lines.append(
            f"| {row['operator']} | {sizes} | {told} | {row['time_s'] * 1e6:.4g} µs | {joules} | {over} | "
            f"{row['readings']} |"
        )
    lines += ["", *(f"* {name} failed: {why}" for name, why in failed.items())]
    return "\n".join(lines).rstrip() + "\n"


def main() -> None:
    """Run the list."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--meter", choices=("nvml", "zeus", "model"), default="nvml")
    parser.add_argument("--gpu", help="of the catalogue; default the one that is here")
    parser.add_argument("--only", nargs="*", help="decode, small, prefill, rows, convolutions")
    parser.add_argument("--most", type=int, help="operators at most")
    parser.add_argument("--configs", type=int, default=120)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--slack", type=float, default=0.02)
    parser.add_argument("--clocks", nargs="*", type=float, default=[])
    parser.add_argument("--page", type=Path, help="where to write the page; default in the folder")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    if args.meter == "model":
        device, meter = jc.load_gpu(args.gpu or "h100").name, None
    else:
        from joulecast.tuning.gpu_load import need_gpu

        device = need_gpu().cuda.get_device_name()
        meter = look(args.folder, device)
    rows, failed = [], {}
    chosen = [one for one in questions() if not args.only or one[0] in args.only][: args.most]
    for number, (_, name, sizes) in enumerate(chosen, start=1):
        try:
            rows.append(asked(args.folder, args.gpu or device, name, sizes, args))
            print(f"{number}/{len(chosen)} {name} {sizes}: {rows[-1]['verdict']}", flush=True)
        except JoulecastError as error:
            failed[f"{name} {sizes}"] = str(error)
            print(f"{number}/{len(chosen)} {name} {sizes}: {error}", flush=True)
        (args.page or args.folder / "tune-measured.md").write_text(page(device, meter, rows, failed))


if __name__ == "__main__":
    try:
        main()
    except JoulecastError as error:
        raise SystemExit(f"joulecast: {error}") from None
