"""Winners of matrix products in the lookup table of PyTorch's Inductor, whose form is private: guarded by version."""

from __future__ import annotations

import os
from typing import Any

from joulecast.errors import InputError, shortened
from joulecast.tuning.exits.winners import DRIVER, read_winners, usable, whole_numbers
from joulecast.tuning.kernelspec import need_torch

#: First and last versions of torch whose table has the form written here.
VERSIONS = ((2, 10), (2, 14))

#: Of Inductor's Triton template of a plain product.
_TEMPLATE = "triton::mm"

_DTYPES = {"fp16": "torch.float16", "bf16": "torch.bfloat16"}


def lookup_table(
    winners: str | os.PathLike[str], device: str, *, policy: str = DRIVER
) -> dict[str, list[dict[str, Any]]]:
    """The table, by the key that Inductor makes of a device and a product's inputs.

    Parameters
    ----------
    winners : path
    device : str
        As ``torch.cuda.get_device_name()`` gives it; winners of other devices are left out.
    policy : str
        Clock policy that is in force, as in the file.

    Returns
    -------
    dict
        For ``x @ w.t()`` with contiguous `x` and `w`, as a linear layer without bias does.

    Raises
    ------
    InputError
        If the file holds no winner of ``matmul`` for the device, or a damaged one.
    """
    table: dict[str, list[dict[str, Any]]] = {}
    for one in usable(read_winners(winners), "matmul", device, policy):
        if one.dtype not in _DTYPES:
            continue
        m, n, k = whole_numbers(one, one.evidence.get("problem"), ("m", "n", "k")).values()
        dtype = _DTYPES[one.dtype]
        key = f"{device}+(({dtype}, [{m}, {k}], [{k}, 1]), ({dtype}, [{k}, {n}], [1, {k}]))+mm"
        names = ("BLOCK_M", "BLOCK_N", "BLOCK_K", "GROUP_M", "num_warps", "num_stages")
        config = whole_numbers(one, one.config, names)
        # What Inductor derives from its own configuration must be that of ours: masks of k most of all.
        derived = {"EVEN_K": k % config["BLOCK_K"] == 0, "USE_FAST_ACCUM": False, "ACC_TYPE": "tl.float32"}
        table[key] = [{"template_id": _TEMPLATE, **derived, **config}]
    if not table:
        raise InputError(
            f"{shortened(winners)} holds no winner of matmul in fp16 or bf16 for {shortened(device)}, clocks: {policy}"
        )
    return table


def use_in_inductor(winners: str | os.PathLike[str], *, device: str | None = None, policy: str = DRIVER) -> int:
    """Put the winners in Inductor's lookup table; gives how many. Takes effect for what is compiled afterwards.

    Inductor looks there where it may use its Triton template at all: with ``max_autotune_gemm``.

    Parameters
    ----------
    winners : path
    device : str, optional
        Default the one that PyTorch uses now.
    policy : str
        Clock policy that is in force, as in the file.

    Returns
    -------
    int

    Raises
    ------
    InputError
        If the installed torch has no such table, or another form of it; or if there is no winner for the device.
    """
    torch = need_torch()
    found = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    first, last = (".".join(map(str, one)) for one in VERSIONS)
    if not VERSIONS[0] <= found <= VERSIONS[1]:
        raise InputError(f"the lookup table is known for torch {first} to {last}, this is {torch.__version__}")
    try:
        from torch._inductor import config
        from torch._inductor.lookup_table import LookupTableChoices
        from torch._inductor.virtualized import V
    except ImportError:
        raise InputError(f"torch {torch.__version__} has no lookup table in Inductor") from None
    if not hasattr(config, "lookup_table") or not hasattr(config.lookup_table, "table"):
        raise InputError(f"torch {torch.__version__} keeps its lookup table elsewhere")
    if device is None:
        if not torch.cuda.is_available():
            raise InputError("no NVIDIA GPU here, whose winners to take: name one with device=...")
        device = str(torch.cuda.get_device_name())
    table = lookup_table(winners, device, policy=policy)
    config.lookup_table.table = {**(config.lookup_table.table or {}), **table}
    V.set_choices_handler(LookupTableChoices())
    return len(table)
