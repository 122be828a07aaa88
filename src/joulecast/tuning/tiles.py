"""Prices tiled matrix products from their tiles and launch geometry alone, on any GPU, before anything is measured.

This is the ``model`` meter for kernels whose code is not at hand: registers, occupancy, traffic and latencies are
reckoned from the tile, and energies from what a unit of work costs on the GPU's process.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from joulecast.bounds.energies import ACTIVE_SHARE, energy_bounds_pj
from joulecast.gpus import Gpu

Floats = npt.NDArray[np.float64]

#: Clocks from a load to its use: shared memory, L2 and DRAM on NVIDIA GPUs since Volta (public microbenchmarks put
#: them at 23 to 33, 200 to 300 and 450 to 600).
SHARED_CLOCKS, GLOBAL_CLOCKS = 30.0, 500.0

#: Clocks of a barrier and of the loop around it.
STEP_CLOCKS = 60.0

#: Registers that a thread needs beside accumulators and operands: addresses, indices, loop.
OTHER_REGISTERS = 40.0

#: Most registers of a thread on NVIDIA GPUs.
MOST_REGISTERS = 255.0

#: Bytes that an SM moves between shared memory or L1 and registers in a clock.
SHARED_BYTES_PER_CLOCK = 128.0

#: Share of a data sheet's rate that kernels reach at best, DRAM and L2.
REACHED = 0.85

#: Side of a tensor instruction's tile.
_FRAGMENT = 16.0

#: Exponent of the smooth maximum over what bounds a kernel.
SMOOTHNESS = 4.0


@dataclass(frozen=True)
class TiledProduct:
    """Tiles of a product ``C[m, n] = A[m, k] B[k, n]``, an array a field, all of one length (or one value for all).

    Attributes
    ----------
    m, n, k : array_like
    block_m, block_n : array_like
        Tile of a block of threads.
    warps_m, warps_n : array_like
        Warps along each side of the tile.
    step_k : array_like
        Elements of k that are staged at a time.
    stages : array_like
        Buffers of staged operands; more than one let loads run ahead. 0 where operands are not staged.
    bytes_an_element : float
        Of the operands, all parts of a complex number together.
    accumulators : float
        32-bit registers an element of C takes.
    flop_an_element : float
        Of one multiply-add: 2, or 8 of complex numbers.
    math : str
        ``tensor.fp16``, ``cuda.fp32``, ...
    lanes_m, lanes_n : array_like
        On CUDA cores, threads along each side of a block's tile; not looked at on tensor cores.
    """

    m: Any
    n: Any
    k: Any
    block_m: Any
    block_n: Any
    warps_m: Any
    warps_n: Any
    step_k: Any = 16
    stages: Any = 1
    bytes_an_element: float = 2.0
    accumulators: float = 1.0
    flop_an_element: float = 2.0
    math: str = "tensor.fp16"
    lanes_m: Any = 1
    lanes_n: Any = 1


@dataclass(frozen=True)
class TilePrice:
    """What is reckoned of each tile; all of shape (n,).

    Attributes
    ----------
    time_s, power_w, energy_j : ndarray
        Infinite where a block does not fit an SM at all. [s, W, J]
    registers : ndarray
        That a thread wants; above 255 the rest is spilled.
    resident : ndarray
        Blocks an SM holds at once; 0 where none fits.
    waves : ndarray
    """

    time_s: Floats
    power_w: Floats
    energy_j: Floats
    registers: Floats
    resident: Floats
    waves: Floats


def price_tiles(tiles: TiledProduct, gpu: Gpu, clock_mhz: Any = None) -> TilePrice:
    """Time, power and energy of tiled products.

    Parameters
    ----------
    tiles : TiledProduct
    gpu : Gpu
    clock_mhz : array_like, optional
        Core clock; the boost clock where it is not given. [MHz]

    Returns
    -------
    TilePrice

    Notes
    -----
    A thread keeps its share of the warp's tile of C in registers, with a column of A's and a row of B's fragments
    beside; what exceeds 255 goes to local memory and back at every step of k. Each warp reads ``(1/wm + 1/wn)``
    elements a multiply-add from shared memory, each block ``(1/bm + 1/bn)`` from L2, and each wave of blocks once
    what its blocks have in common from DRAM. Resident warps hide latencies: a step of k takes at least its chain of
    load, barrier and dependent products, over the blocks that run beside each other. The time is a smooth maximum of
    all these, in whole waves. Energy is idle and active power times time plus work times its energy, the geometric
    middle of what `joulecast.bounds.energies` allows for the process; a limit of power stretches the time.
    """
    m, n, k, bm, bn, wm, wn, step, stages, lm, ln, clock = (
        np.asarray(value, dtype=np.float64)
        for value in np.broadcast_arrays(
            tiles.m, tiles.n, tiles.k, tiles.block_m, tiles.block_n, tiles.warps_m, tiles.warps_n, tiles.step_k,
            tiles.stages, tiles.lanes_m, tiles.lanes_n, gpu.clock_boost_mhz if clock_mhz is None else clock_mhz,
        )
    )  # fmt: skip
    kind, math = tiles.math.split(".")
    hz = clock * 1e6
    per_clock = gpu.tensor_flop_per_clk(math) if kind == "tensor" else gpu.cuda_flop_per_clk(math)
    size = tiles.bytes_an_element
    warps = wm * wn
    tile_m, tile_n = bm / wm, bn / wn  # of a warp
    blocks = np.ceil(m / bm) * np.ceil(n / bn)
    padded = np.ceil(m / bm) * bm * np.ceil(n / bn) * bn  # masked rows are reckoned all the same
    steps = np.ceil(k / step)

    if kind == "tensor":
        # one side's fragments are held, the other's pass by
        fragments = (np.minimum(tile_m, tile_n) + _FRAGMENT) * _FRAGMENT * size / 4.0
        registers = (tile_m * tile_n * tiles.accumulators + fragments) / 32.0
        reads = 1.0 / tile_m + 1.0 / tile_n  # elements that a warp reads for a multiply-add
        rounds = k / _FRAGMENT
    else:
        own_m, own_n = bm / lm, bn / ln
        registers = own_m * own_n * tiles.accumulators + own_m + own_n
        reads = 1.0 / own_m + 1.0 / own_n  # what threads share is written to the registers of each
        rounds = k
    registers = registers + OTHER_REGISTERS
    room = np.floor(gpu.registers_kib * 1024.0 / (4.0 * 32.0 * warps) / 8.0) * 8.0
    kept = np.minimum(registers, np.minimum(room, MOST_REGISTERS))
    spilled = registers - kept

    shared = np.maximum(stages, 0.0) * (bm + bn) * step * size
    by_registers = np.floor(gpu.registers_kib * 1024.0 / (np.ceil(kept / 8.0) * 8.0 * 4.0 * 32.0 * warps))
    by_shared = np.floor(gpu.shared_memory_kib * 1024.0 / np.maximum(shared + 1024.0, 1.0))
    by_warps = np.floor(gpu.warps_per_sm / warps)
    fits = np.minimum(np.minimum(by_registers, by_shared), by_warps)
    resident = np.minimum(np.maximum(fits, 1.0), np.ceil(blocks / gpu.sm_count))
    waves = np.ceil(blocks / (gpu.sm_count * resident))
    # blocks of the last wave, spread over the SMs: what is idle for want of blocks
    filled = blocks / (gpu.sm_count * np.ceil(blocks / gpu.sm_count))

    work = padded * k
    flop = work * tiles.flop_an_element
    warp_reads = work * size * reads
    staged = work * size * (1.0 / bm + 1.0 / bn)
    local = 2.0 * 4.0 * spilled * 32.0 * warps * blocks * rounds  # out and back
    shared_bytes = warp_reads + np.where(stages > 0, staged, 0.0) + local
    cache = np.maximum(1.25 * gpu.shared_memory_kib * 1024.0 - shared * resident, 8192.0)
    held = 4.0 * spilled * 32.0 * warps * resident
    l2_bytes = staged + 0.5 * local + 0.5 * _beyond(local, held, cache)  # what is written goes on to L2

    running = np.minimum(blocks, gpu.sm_count * resident)
    side = np.sqrt(np.maximum(running, 1.0))  # a wave covers about a square of tiles
    dram_bytes = (m * k + k * n) * size + work * size * (1.0 / (side * bm) + 1.0 / (side * bn)) + m * n * size
    dram_bytes = np.minimum(dram_bytes, l2_bytes + m * n * size)

    # One block alone on its SM: its warps' products, its reads and its waiting follow each other at every step.
    product = work / blocks / steps * tiles.flop_an_element / (per_clock / gpu.sm_count)
    product = product * np.maximum(4.0 / warps, 1.0)  # a scheduler each: less than four warps leave some idle
    read = shared_bytes / blocks / steps / SHARED_BYTES_PER_CLOCK
    wait = SHARED_CLOCKS + STEP_CLOCKS + GLOBAL_CLOCKS / np.maximum(stages, 1.0)
    latency = waves * steps * (product + read + wait)

    seconds = [
        flop / per_clock / hz / filled,
        shared_bytes / (SHARED_BYTES_PER_CLOCK * gpu.sm_count) / hz / filled,
        l2_bytes / (REACHED * gpu.l2_bytes_per_clk) / hz,
        dram_bytes / (REACHED * gpu.dram_gb_s * 1e9),
        latency / hz,
    ]
    time = np.asarray(sum(part**SMOOTHNESS for part in seconds) ** (1.0 / SMOOTHNESS))

    joules = {tiles.math: flop, "shared": shared_bytes, "l2": l2_bytes, "dram": dram_bytes}
    voltage = _voltage_squared(gpu, clock)
    dynamic = np.zeros_like(time)
    for name, amount in joules.items():
        low, high = energy_bounds_pj(name, gpu.process_nm, gpu.dram_type)
        dynamic = dynamic + amount * np.sqrt(low * high) * 1e-12 * (1.0 if name == "dram" else voltage)
    above = gpu.power_limit_default_w - gpu.idle_w
    clocked = np.sqrt(ACTIVE_SHARE[0] * ACTIVE_SHARE[1]) * voltage * clock / gpu.clock_boost_mhz
    active = gpu.idle_w + above * clocked * filled
    power = active + dynamic / time
    over = np.maximum((power - gpu.idle_w) / above, 1.0)  # at the limit the clock falls, and the voltage with it
    time = time * over ** (1.0 / 3.0)
    power = np.minimum(power, gpu.power_limit_default_w)
    never = fits < 1
    return TilePrice(
        np.where(never, np.inf, time), power, np.where(never, np.inf, power * time), registers,
        np.where(never, 0.0, resident), waves,
    )  # fmt: skip


def _beyond(traffic: Floats, footprint: Floats, cache_bytes: Floats) -> Floats:
    """Traffic that a cache lets through, by how much of the footprint does not fit it."""
    return traffic * np.clip(1.0 - cache_bytes / np.maximum(footprint, 1.0), 0.0, 1.0)


def _voltage_squared(gpu: Gpu, clock_mhz: Floats) -> Floats:
    """Square of the voltage over that at the boost clock."""
    if gpu.voltage_points:
        clocks, volts = np.array(gpu.voltage_points, dtype=np.float64).T
        ratio = np.interp(clock_mhz, clocks, volts) / np.interp(gpu.clock_boost_mhz, clocks, volts)
    else:  # half of the range of voltage follows the clock
        ratio = 0.5 + 0.5 * clock_mhz / gpu.clock_boost_mhz
    return np.asarray(ratio**2)
