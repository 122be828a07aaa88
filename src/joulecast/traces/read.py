"""One door for profiler traces: what a file is, is told by its content."""

from __future__ import annotations

import stat
from pathlib import Path

from joulecast.errors import InputError
from joulecast.workloads.files import named
from joulecast.workloads.kineto import read_kineto
from joulecast.workloads.profile import Profile
from joulecast.workloads.table import Workload
from joulecast.workloads.trace_stream import GZIP_MAGIC, Progress, opened
from joulecast.workloads.trace_workload import workload_of_profile

SQLITE_MAGIC = b"SQLite format 3\x00"


def is_nsight(path: str | Path) -> bool:
    """Whether a regular file is an SQLite database, as Nsight Systems exports one; False where it can't be read."""
    try:
        file = Path(path).expanduser()
        if not stat.S_ISREG(file.stat().st_mode):  # a pipe would be waited for
            return False
        with file.open("rb") as opening:
            return opening.read(len(SQLITE_MAGIC)) == SQLITE_MAGIC
    except (OSError, ValueError, RuntimeError):
        return False


def workload_of_nsight(path: str | Path, progress: Progress | None = None) -> Workload:
    """The operators that an Nsight Systems export has shapes of, as a workload.

    Raises
    ------
    InputError
        If it is no such database, or has no shapes: only ``emit_nvtx(record_shapes=True)`` writes them.
    """
    from joulecast.traces.nsight import read_nsight

    profile = read_nsight(path, progress)
    if not profile.has_shapes:
        raise InputError(
            f"{named(path)} has no shapes of operators (torch.autograd.profiler.emit_nvtx(record_shapes=True) writes "
            "them): `joulecast attribute` counts its measured kernels"
        )
    return workload_of_profile(profile)


def read_profile(path: str | Path, progress: Progress | None = None) -> Profile:
    """Read a profiler trace: PyTorch's Chrome JSON (plain or gzip) or Nsight Systems' SQLite export.

    Parameters
    ----------
    path : str or Path
    progress : callable, optional
        Given the share of the file that was read.

    Returns
    -------
    Profile

    Raises
    ------
    InputError
        If the file can't be read or is neither.
    """
    path = Path(path).expanduser()
    file, _ = opened(path)
    with file:
        head = file.read(4096)
    if head.startswith(SQLITE_MAGIC):
        from joulecast.traces.nsight import read_nsight

        return read_nsight(path, progress)
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()[:1]
    if head.startswith(GZIP_MAGIC) or text in (b"{", b"["):
        return read_kineto(path, progress)
    if path.suffix.lower() in (".nsys-rep", ".qdrep"):
        raise InputError(f"{named(path)} is an Nsight Systems report: export it with `nsys export --type sqlite` first")
    raise InputError(
        f"{named(path)} is no profiler trace: a PyTorch trace (JSON, plain or gzip) or an Nsight Systems SQLite export "
        "is read"
    )
