"""Winners of fused MoE in the layout that vLLM and SGLang read: one JSON a device and shape, by number of tokens."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from joulecast.errors import InputError, shortened
from joulecast.tuning.exits.files import write_json
from joulecast.tuning.exits.winners import read_winners

#: Parameters of a configuration, as both spell them.
NAMES = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "GROUP_SIZE_M", "num_warps", "num_stages")


def file_name(experts: int, inter: int, device: str) -> str:
    """Name of the file for half-precision weights.

    Parameters
    ----------
    experts : int
        E: experts of the layer on one GPU.
    inter : int
        N: width of one expert on one GPU, gate and up apart.
    device : str
        As ``torch.cuda.get_device_name()`` gives it.
    """
    return f"E={experts},N={inter},device_name={device.replace(' ', '_')}.json"


def write_vllm(
    winners: str | os.PathLike[str], folder: str | os.PathLike[str], *, device_name: str | None = None
) -> list[Path]:
    """Write the fused MoE winners of a file, each into the file of its experts, width and device.

    Parameters
    ----------
    winners : path
    folder : path
        Such as the one that ``VLLM_TUNED_CONFIG_FOLDER`` names; files that are there keep their other entries.
    device_name : str, optional
        What ``torch.cuda.get_device_name()`` gives where the files are used; winners name devices as our catalogue
        or the driver does, and vLLM finds a file only under its own device's exact name.

    Returns
    -------
    list of Path

    Raises
    ------
    InputError
        If there is no such winner, or a file can't be read or written.
    """
    chosen = [one for one in read_winners(winners) if one.operator == "fused_moe"]
    if not chosen:
        raise InputError(f"{shortened(winners)} holds no winner of fused_moe")
    target = Path(folder)
    if not target.is_dir():
        raise InputError(f"no folder {shortened(target)} to write in")
    written: dict[Path, dict[str, Any]] = {}
    for one in chosen:
        sizes = one.evidence["problem"]
        path = target / file_name(sizes["experts"], sizes["inter"] // 2, device_name or one.device)
        if path not in written:
            written[path] = _held(path)
        written[path][str(sizes["tokens"])] = {name: one.config[name] for name in NAMES}
        triton = one.evidence.get("versions", {}).get("triton")
        if triton:
            written[path]["triton_version"] = triton
    for path, document in written.items():
        tokens = sorted((name for name in document if name.isdigit()), key=int)
        rest = {name: value for name, value in document.items() if not name.isdigit()}
        write_json(path, rest | {name: document[name] for name in tokens})
    return list(written)


def _held(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise InputError(f"{shortened(path)} is there and no JSON: move it away") from None
    if not isinstance(held, dict):
        raise InputError(f"{shortened(path)} is there and no table of configurations: move it away")
    return held
