"""Winners of fused MoE in the layout that vLLM and SGLang read: one JSON a device and shape, by number of tokens.

SGLang takes every key for a number of tokens, so that the files hold nothing else.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from joulecast.errors import InputError, shortened
from joulecast.tuning.exits.files import alone_in, write_json
from joulecast.tuning.exits.winners import DRIVER, Winner, is_catalogued, read_winners, usable, whole_numbers

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
    name = device.replace(" ", "_").replace("/", "_")
    if "H200" in name.split("_"):  # one file for all of the family
        name = "NVIDIA_H200"
    return f"E={experts},N={inter},device_name={name}.json"


def write_vllm(
    winners: str | os.PathLike[str], folder: str | os.PathLike[str], *, device_name: str | None = None,
    policy: str = DRIVER,
) -> list[Path]:  # fmt: skip
    """Write the fused MoE winners of a file, each into the file of its experts, width and device.

    Parameters
    ----------
    winners : path
    folder : path
        Such as the one that ``VLLM_TUNED_CONFIG_FOLDER`` names; files that are there keep their other entries.
    device_name : str, optional
        What ``torch.cuda.get_device_name()`` gives where the files are used, and nothing else is found there: winners
        of other devices are left out. Winners that were measured have it themselves; predicted ones need it.
    policy : str
        Clock policy that is in force, as in the file.

    Returns
    -------
    list of Path

    Raises
    ------
    InputError
        If there is no such winner, or a file can't be read or written.
    """
    chosen = usable(read_winners(winners), "fused_moe", device_name, policy)
    if not chosen:
        whose = "" if device_name is None else f" for {shortened(device_name)}"
        raise InputError(f"{shortened(winners)} holds no winner of fused_moe{whose}, clocks: {shortened(policy)}")
    target = Path(folder)
    if not target.is_dir():
        raise InputError(f"no folder {shortened(target)} to write in")
    with alone_in(target):
        return _merged(chosen, target, device_name)


def _merged(chosen: Sequence[Winner], target: Path, device_name: str | None) -> list[Path]:
    written: dict[Path, dict[str, Any]] = {}
    for one in chosen:
        if device_name is None and is_catalogued(one.device):
            raise InputError(f"{one.device} is the catalogue's name, under which nothing is looked for: give "
                             "device_name, what torch.cuda.get_device_name() tells there")  # fmt: skip
        sizes = whole_numbers(one, one.evidence.get("problem"), ("experts", "inter", "tokens"))
        path = target / file_name(sizes["experts"], sizes["inter"] // 2, device_name or one.device)
        if path not in written:
            written[path] = _held(path)
        written[path][str(sizes["tokens"])] = whole_numbers(one, one.config, NAMES)
    for path, document in written.items():
        tokens = sorted((name for name in document if name.isdecimal()), key=int)
        rest = {name: value for name, value in document.items() if not name.isdecimal()}
        write_json(path, rest | {name: document[name] for name in tokens})
    return list(written)


def _held(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        raise InputError(f"{shortened(path)} is there and no JSON: move it away") from None
    if not isinstance(held, dict):
        raise InputError(f"{shortened(path)} is there and no table of configurations: move it away")
    return held
