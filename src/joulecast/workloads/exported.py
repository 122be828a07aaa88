"""Programs that `torch.export` saved (``.pt2``): a zip whose graph is plain JSON, read as data.

Nothing in the file is executed or unpickled: weights and sample inputs, which may be pickles, are not opened. Only
operators of PyTorch itself are run, without data, to see what they come to; others are operators of the user's, whose
cost may be registered (`joulecast.workloads.pytorch_costs.op_cost`).
"""

from __future__ import annotations

import json
import os
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from joulecast.errors import InputError, MissingExtraError
from joulecast.workloads.files import named
from joulecast.workloads.table import Workload

#: A graph is a few kilobytes an operator; a larger file is something else.
LARGEST_GRAPH_BYTES = 512_000_000
#: What reading a zip that is cut, damaged or encrypted raises, and a graph that is not as it should be.
_DAMAGE = (OSError, EOFError, zipfile.BadZipFile, zlib.error, RuntimeError, ValueError, KeyError, TypeError)

_OLD_NAME = "serialized_exported_program.json"


def is_exported(path: str | Path) -> bool:
    """Whether the file at `path` is a saved program: a zip that holds a graph as JSON."""
    try:
        if not (os.path.isfile(path) and zipfile.is_zipfile(path)):  # noqa: PTH113 - a pipe would be waited for
            return False
        with zipfile.ZipFile(path) as archive:
            return bool(_graphs(archive))
    except (OSError, zipfile.BadZipFile):
        return False


def workload_of_exported(path: str | Path, **options: Any) -> Workload:
    """The workload of a program saved by `torch.export.save`.

    Parameters
    ----------
    path : str or Path
    **options
        As for `joulecast.workloads.pytorch.capture`.

    Returns
    -------
    Workload

    Raises
    ------
    InputError
        If the file is damaged, or holds no graph or several.
    MissingExtraError
        Without PyTorch.
    """
    document = read_graph(path)
    try:
        import torch  # noqa: F401
    except ImportError:
        raise MissingExtraError("a program saved by torch.export", "torch") from None
    from joulecast.workloads.exported_run import replayed
    from joulecast.workloads.pytorch import checked_options

    return replayed(document, named(path), checked_options({"name": Path(path).stem, **options}))


def read_graph(path: str | Path) -> Mapping[str, Any]:
    """The saved program's graph module, as parsed JSON.

    Raises
    ------
    InputError
        If there is none that can be read.
    """
    name = named(path)
    try:
        with zipfile.ZipFile(path) as archive:
            graphs = _graphs(archive)
            if len(graphs) != 1:
                listed = ", ".join(graphs) or "none"
                raise InputError(f"{name} must hold one exported program, holds {listed}")
            if archive.getinfo(graphs[0]).file_size > LARGEST_GRAPH_BYTES:
                raise InputError(f"{name}: its graph is larger than {LARGEST_GRAPH_BYTES / 1e6:.0f} MB")
            document = json.loads(archive.read(graphs[0]))
        graph = document["graph_module"]
        if not isinstance(graph["graph"]["nodes"], list) or not isinstance(graph["graph"]["tensor_values"], dict):
            raise TypeError("nodes and tensor_values are not as torch.export writes them")
    except InputError:
        raise
    except _DAMAGE as error:
        raise InputError(
            f"{name} is no program that torch.export saved, or is damaged: {type(error).__name__}"
        ) from None
    return dict(graph)


def _graphs(archive: zipfile.ZipFile) -> list[str]:
    return [
        one
        for one in archive.namelist()
        if one == _OLD_NAME or (one.endswith(".json") and Path(one).parent.name == "models")
    ]
