"""What a GPU lets a thread block have: limits that decide whether a configuration can be launched at all."""

from __future__ import annotations

import math
from dataclasses import dataclass

from joulecast.errors import InputError
from joulecast.gpus import Gpu

#: Shared memory that one block may ask for, and blocks an SM holds, by compute capability.
#: CUDA C++ programming guide, technical specifications per compute capability. [KiB, 1]
_BLOCK_LIMITS = {
    "7.0": (96, 32), "7.5": (64, 16), "8.0": (163, 32), "8.6": (99, 16), "8.7": (163, 16), "8.9": (99, 24),
    "9.0": (227, 32), "10.0": (227, 32), "10.3": (227, 32), "12.0": (99, 24),
}  # fmt: skip

#: Older ones are no targets of Triton.
OLDEST = 7.5

_REGISTERS_PER_SM = 65_536
_REGISTERS_PER_THREAD = 255
_THREADS_PER_BLOCK = 1024
_RESERVED_SHARED = 1024  # the system's part of each block's shared memory, from compute capability 8.0 on


@dataclass(frozen=True)
class Limits:
    """Limits of one GPU.

    Attributes
    ----------
    gpu : Gpu
    capability : int
        Compute capability as Triton writes it, such as 90.
    shared_bytes : int
        Shared memory that a block may ask for. [B]
    shared_per_sm : int
        Of an SM. [B]
    blocks_per_sm : int
    warps_per_sm : int
    """

    gpu: Gpu
    capability: int
    shared_bytes: int
    shared_per_sm: int
    blocks_per_sm: int
    warps_per_sm: int

    def occupancy(self, warps: int, registers: int, shared_bytes: int) -> int:
        """Blocks that one SM holds at a time; 0 where it can't hold one.

        Parameters
        ----------
        warps : int
            Of a block.
        registers : int
            Of a thread; handed out in steps of 8 a thread (256 a warp).
        shared_bytes : int
            Of a block. [B]
        """
        a_warp = math.ceil(max(registers, 16) / 8) * 8 * 32
        reserved = _RESERVED_SHARED if self.capability >= 80 else 0
        by_shared = self.shared_per_sm // max(shared_bytes + reserved, 1)
        by_registers = _REGISTERS_PER_SM // a_warp // warps
        return min(self.blocks_per_sm, self.warps_per_sm // warps, by_registers, by_shared)

    def refusal(self, warps: int, shared_bytes: float, registers: float = 0) -> str:
        """Why a block can't be launched; empty where it can."""
        if shared_bytes > self.shared_bytes:
            return (f"needs {shared_bytes / 1024:.0f} KiB of shared memory a block, "
                    f"{self.gpu.name} has {self.shared_bytes // 1024}")  # fmt: skip
        if 32 * warps > _THREADS_PER_BLOCK:
            return f"{warps} warps are more than the {_THREADS_PER_BLOCK // 32} a block may have"
        if registers > _REGISTERS_PER_THREAD or registers * 32 * warps > _REGISTERS_PER_SM:
            return f"needs {registers:.0f} registers a thread with {warps} warps, more than an SM has"
        return ""


def limits_of(gpu: Gpu) -> Limits:
    """Limits of a GPU.

    Raises
    ------
    InputError
        If Triton kernels can't be compiled for it here.
    """
    known = _BLOCK_LIMITS.get(gpu.compute_capability)
    if gpu.vendor != "nvidia" or known is None or float(gpu.compute_capability) < OLDEST:
        raise InputError(
            f"kernels are tuned for NVIDIA GPUs of compute capability {OLDEST} and later, "
            f"{gpu.name} has {gpu.compute_capability}"
        )
    shared_kib, blocks = known
    major, minor = gpu.compute_capability.split(".")
    return Limits(
        gpu,
        10 * int(major) + int(minor),
        min(shared_kib * 1024, int(gpu.shared_memory_kib * 1024)),
        int(gpu.shared_memory_kib * 1024),
        blocks,
        int(gpu.warps_per_sm),
    )
