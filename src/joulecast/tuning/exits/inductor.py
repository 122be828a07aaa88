"""Winners of matrix products in the lookup table of PyTorch's Inductor, whose form is private: guarded by version."""

from __future__ import annotations

import os
from typing import Any

from joulecast.errors import InputError
from joulecast.tuning.exits.winners import read_winners
from joulecast.tuning.kernelspec import need_torch

#: First and last versions of torch whose table has the form written here.
VERSIONS = ((2, 10), (2, 14))

#: Of Inductor's Triton template of a plain product.
_TEMPLATE = "triton::mm"

_DTYPES = {"fp16": "torch.float16", "bf16": "torch.bfloat16"}


def lookup_table(winners: str | os.PathLike[str]) -> dict[str, list[dict[str, Any]]]:
    """The table, by the key that Inductor makes of a product's inputs.

    Parameters
    ----------
    winners : path

    Returns
    -------
    dict
        For ``x @ w.t()`` with contiguous `x` and `w`, as a linear layer without bias does.

    Raises
    ------
    InputError
        If the file holds no winner of ``matmul``.
    """
    table: dict[str, list[dict[str, Any]]] = {}
    for one in read_winners(winners):
        if one.operator != "matmul" or one.dtype not in _DTYPES:
            continue
        sizes = one.evidence["problem"]
        m, n, k = (int(sizes[name]) for name in ("m", "n", "k"))
        dtype = _DTYPES[one.dtype]
        key = f"(({dtype}, [{m}, {k}], [{k}, 1]), ({dtype}, [{k}, {n}], [1, {k}]))+mm"
        names = ("BLOCK_M", "BLOCK_N", "BLOCK_K", "GROUP_M", "num_warps", "num_stages")
        table[key] = [{"template_id": _TEMPLATE, **{name: one.config[name] for name in names}}]
    if not table:
        raise InputError("the file holds no winner of matmul in fp16 or bf16")
    return table


def use_in_inductor(winners: str | os.PathLike[str]) -> int:
    """Put the winners in Inductor's lookup table; gives how many. Takes effect for what is compiled afterwards.

    Parameters
    ----------
    winners : path

    Returns
    -------
    int

    Raises
    ------
    InputError
        If the installed torch has no such table, or another form of it.
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
    table = lookup_table(winners)
    config.lookup_table.table = {**(config.lookup_table.table or {}), **table}
    V.set_choices_handler(LookupTableChoices())
    return len(table)
