"""Reads measured whole passes of models: forward passes at locked clocks, and chat answers generated one at a time."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from joulecast.errors import InputError, UnknownNameError
from joulecast.gpus import load_gpu
from joulecast.workloads.energaizer import as_precision, read_trace
from joulecast.workloads.table import Workload


@dataclass(frozen=True)
class MeasuredPass:
    """One measured run of a whole pass.

    Attributes
    ----------
    label, model : str
        Of the run, and of the model that is left out with it.
    gpu : str
    workload : Workload
    clock_asked_mhz, clock_mhz : float
        Locked clock, and the mean that the run had. [MHz]
    time_s, power_w : float
        Corrected for process start-up. [s, W]
    time_raw_s, power_raw_w : float
        As published.
    source : str
        What it is, for the provenance.
    takes_turns : bool
        Whether its software made the host wait for the GPU in every layer, so that the two took turns.
    """

    label: str
    model: str
    gpu: str
    workload: Workload
    clock_asked_mhz: float
    clock_mhz: float
    time_s: float
    power_w: float
    time_raw_s: float
    power_raw_w: float
    source: str
    takes_turns: bool = False


def read_passes(folder: Path) -> list[MeasuredPass]:
    """Measured passes of the EnergAIzer data that have a trace, failed runs out.

    Parameters
    ----------
    folder : Path
        Holds ``measurements.csv`` and ``traces/``.

    Returns
    -------
    list of MeasuredPass

    Raises
    ------
    InputError
        If the folder does not hold them.
    """
    import polars as pl

    path = folder / "measurements.csv"
    if not path.is_file():
        raise InputError(f"no measurements.csv in {folder}")
    workloads: dict[tuple[str, str], Workload] = {}
    out = []
    for row in pl.read_csv(path, infer_schema_length=None).iter_rows(named=True):
        if row["failed_run"] or not row["trace"]:
            continue
        key = (row["trace"], row["precision"])
        if key not in workloads:
            trace = read_trace(folder / "traces" / row["trace"])
            workloads[key] = as_precision(trace, "fp32") if row["precision"] == "fp32" else trace
        out.append(
            MeasuredPass(
                label=f"{row['dataset']} {row['model']} {row['precision']} b{row['batch']} s{row['seq_len']} "
                f"{row['clock_target_mhz']}",
                model=row["model"],
                gpu=load_gpu(row["gpu"]).name,
                workload=workloads[key],
                clock_asked_mhz=float(row["clock_target_mhz"]),
                clock_mhz=float(row["clock_mean_mhz"]),
                time_s=row["time_ms"] * 1e-3,
                power_w=float(row["power_w"]),
                time_raw_s=row["time_ms_raw"] * 1e-3,
                power_raw_w=float(row["power_w_raw"]),
                source="eager forward passes",
            )
        )
    return out


#: Prompts of a chat data set are short and not published; decoding takes nearly all of the time.
_CHAT_PROMPT_TOKENS = 64

#: Parts that the leaderboard's machines had; models of 13 billion parameters fit the larger V100 alone.
_GENERATION_GPUS = {"A100": "A100-SXM-40GB", "A40": "A40", "V100": "V100-SXM-32GB"}

#: Families whose code of that time kept rotary tables and the mask's value on the host and copied them in every layer:
#: each copy waits until the GPU has done everything before it.
_WAITING_FAMILIES = frozenset({"gpt_neox"})


def read_generations(path: Path) -> list[MeasuredPass]:
    """Measured generations of chat answers, one at a time, in eager PyTorch (ML.ENERGY leaderboard, first version).

    Parameters
    ----------
    path : Path
        ``v1_llm.csv``.

    Returns
    -------
    list of MeasuredPass
        One a model, task and GPU (a prefill and all decoding steps), of the models that the catalogue knows.

    Raises
    ------
    InputError
        If there is no such file.
    """
    import polars as pl

    from joulecast.workloads.catalogue import from_name

    if not path.is_file():
        raise InputError(f"no such file: {path}")
    out = []
    for row in pl.read_csv(path, infer_schema_length=None).iter_rows(named=True):
        if row["batch_size"] != 1 or row["gpu"] not in _GENERATION_GPUS:
            continue
        tokens = round(row["avg_output_tokens_per_request"])
        try:
            workload = from_name(
                row["model_id"], prompt_tokens=_CHAT_PROMPT_TOKENS, generate_tokens=tokens, dtype="fp16"
            )
        except UnknownNameError:
            continue
        gpu = load_gpu(_GENERATION_GPUS[row["gpu"]])
        out.append(
            MeasuredPass(
                label=f"{row['model_id']} {row['task']} {row['gpu']}",
                model=row["model_id"],
                gpu=gpu.name,
                workload=workload,
                clock_asked_mhz=gpu.clock_max_mhz,
                clock_mhz=gpu.clock_max_mhz,
                time_s=float(row["avg_request_latency_s"]),
                power_w=float(row["avg_power_w_derived"]),
                time_raw_s=float(row["avg_request_latency_s"]),
                power_raw_w=float(row["avg_power_w_derived"]),
                source="eager generations",
                takes_turns=workload.info["family"] in _WAITING_FAMILIES,
            )
        )
    return out
