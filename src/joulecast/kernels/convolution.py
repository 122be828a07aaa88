"""Convolutions: implicit matrix multiply, Winograd's transforms, and depthwise kernels; the fastest is taken."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from joulecast.bounds.dtypes import DTYPES, dtype_code
from joulecast.gpus import Gpu
from joulecast.kernels.formats import (
    ACTIVATION_BYTES,
    FP32,
    MATH_OF,
    OUTPUT_BYTES,
    WEIGHT_BYTES,
    activation_misses,
    by_math,
    group_labels,
    log_ratio,
    rate_of,
    vector_rate,
)
from joulecast.kernels.work import Conditions, Family, Floats, KernelWork, resident_share, tail_fill, work
from joulecast.workloads.table import OpTable

#: Algorithms, in the order of the candidates. ``winograd4``: F(4x4, 3x3) as transforms around 36 matrix multiplies;
#: ``winograd2``: F(2x2, 3x3) fused into one kernel; ``depthwise_last``: depthwise where the channels of a pixel lie
#: together, so that a thread takes several of them with one load; ``grouped``: direct, of several groups;
#: ``depthwise_wide``: as ``depthwise_last``, of filters that no such kernel was written for.
ALGORITHMS = ("direct", "winograd4", "winograd2", "depthwise", "depthwise_last", "grouped", "depthwise_wide")

#: Shares of the peaks by which algorithms are compared before their efficiencies are known.
_NOMINAL = {"core": 0.75, "l2": 0.5, "dram": 0.8}
_LAUNCH_S = 3e-6

#: Steps of the reduction that a block's prologue and epilogue last as long as.
_MULTIPLY_EDGE = 16.0
_WINOGRAD_EDGE = 48.0

#: Reluctance to use an algorithm that needs memory for its transforms, in the choice between algorithms.
_WORKSPACE_PENALTY = 1.2

#: Images, rows and columns of 2 x 2 results that a block of the fused algorithm takes, by what suits the image;
#: kernels for architectures from Volta on have one form alone.
_FUSED_TILES = ((1.0, 4.0, 8.0), (2.0, 2.0, 8.0), (2.0, 4.0, 4.0), (4.0, 1.0, 8.0), (4.0, 2.0, 4.0))
_ALL_FUSED_TILES = ("maxwell", "pascal")

#: Fewer channels than this a group do not fill a matrix instruction, so that a depthwise kernel is used.
_FEW_CHANNELS = 8.0


#: Integer instructions of depthwise kernels for each result (divisions that find its place) and for each tap (checks
#: of its bounds, addresses). fp16 has kernels of the library's own for some filters, which share what they load
#: between neighbours; where channels lie together one load and check serves several of them.
_PER_RESULT, _PER_TAP = 60.0, 6.0
_LIBRARY_TAPS, _LIBRARY_PER_TAP, _LAST_PER_TAP = (1.0, 9.0, 25.0), 2.0, 1.0

#: Most taps of a filter that depthwise kernels for channels that lie together were written for, and instructions of
#: what runs beyond. ConvMixers infer two to three times as slowly that way with 9 x 9 taps, and faster with 7 x 7.
_LAST_TAPS, _WIDE_PER_TAP = 49.0, 38.0

#: Integer lanes of an SM from Volta on: half as many as lanes that multiply and add where those are 128.
_INTEGER_LANES = 64.0


@dataclass(frozen=True)
class _Shape:
    """Sizes of convolutions, each an array of shape (n,)."""

    images: Floats
    channels: Floats  # read, of one group
    filters: Floats  # written, of one group
    height: Floats
    width: Floats
    taps: Floats
    out_height: Floats
    out_width: Floats
    groups: Floats
    stride: Floats
    channels_last: npt.NDArray[np.bool_]
    autotuned: npt.NDArray[np.bool_]
    half: npt.NDArray[np.bool_]  # fp16, for which cuDNN's depthwise kernels are used
    in_bytes: Floats
    weight_bytes: Floats
    out_bytes: Floats

    @property
    def pixels(self) -> Floats:
        """Pixels of all results."""
        return self.images * self.out_height * self.out_width

    @property
    def useful_flop(self) -> Floats:
        """Arithmetic of the definition of a convolution. [FLOP]."""
        return 2.0 * self.pixels * self.filters * self.channels * self.taps * self.groups

    @property
    def input_total(self) -> Floats:
        """Bytes of the input. [B]."""
        return self.images * self.channels * self.groups * self.height * self.width * self.in_bytes

    @property
    def weights_total(self) -> Floats:
        """Bytes of the filters. [B]."""
        return self.groups * self.filters * self.channels * self.taps * self.weight_bytes

    @property
    def output_total(self) -> Floats:
        """Bytes of the result. [B]."""
        return self.pixels * self.filters * self.groups * self.out_bytes


@dataclass(frozen=True)
class _Candidate:
    """Work of one algorithm, each an array of shape (n,); `serial` is traffic of transforms. [FLOP, B]."""

    flop: Floats
    shared: Floats
    l2: Floats
    serial: Floats
    blocks: Floats
    waves: Floats
    fill: Floats
    launches: Floats

    def seconds(self, rate: Floats, gpu: Gpu, dram: Floats) -> Floats:
        """Time at nominal shares of the peaks, to compare algorithms. [s]."""
        hertz = gpu.rate_clock_mhz * 1e6
        core = self.flop / (rate * _NOMINAL["core"] * self.fill)
        shared = self.shared / (128.0 * gpu.sm_count * _NOMINAL["core"] * self.fill)
        l2 = self.l2 / (gpu.l2_bytes_per_clk * _NOMINAL["l2"])
        main = np.maximum(np.maximum(core, shared), l2) / hertz
        memory = gpu.dram_gb_s * 1e9 * _NOMINAL["dram"]
        return np.maximum(main, dram / memory) + self.serial / memory + self.launches * _LAUNCH_S


def output_size(size: Any, kernel: Any, stride: Any, padding: Any, dilation: Any) -> Floats:
    """Rows (or columns) of a convolution's result, at least 1.

    ``floor((size + 2 padding - dilation (kernel - 1) - 1) / stride) + 1``.
    """
    span = np.asarray(size) + 2.0 * np.asarray(padding) - np.asarray(dilation) * (np.asarray(kernel) - 1.0) - 1.0
    return np.asarray(np.maximum(np.floor(span / np.asarray(stride)) + 1.0, 1.0))


def _shape(table: OpTable) -> _Shape:
    code = table["dtype"]
    geometry = (table["stride"], table["padding"], table["dilation"])
    groups = np.minimum(table["groups"], np.minimum(table["in_channels"], table["out_channels"]))
    return _Shape(
        images=table["batch_size"],
        channels=np.ceil(table["in_channels"] / groups),
        filters=np.ceil(table["out_channels"] / groups),
        height=table["height"],
        width=table["width"],
        taps=table["kernel_h"] * table["kernel_w"],
        out_height=output_size(table["height"], table["kernel_h"], *geometry),
        out_width=output_size(table["width"], table["kernel_w"], *geometry),
        groups=groups,
        stride=table["stride"],
        channels_last=table["channels_last"] > 0,
        autotuned=table["autotuned"] > 0,
        half=code == dtype_code("fp16"),
        in_bytes=ACTIVATION_BYTES[code],
        weight_bytes=WEIGHT_BYTES[code],
        out_bytes=OUTPUT_BYTES[code],
    )


def _matrix_multiply(
    m: Floats, n: Floats, k: Floats, batch: Any, size: Floats, tile: tuple[float, float, float], gpu: Gpu
) -> _Candidate:
    """Tiled product of `batch` matrices; `tile` is rows, columns, and blocks that an SM holds."""
    rows, columns, resident = tile
    blocks = np.ceil(m / rows) * np.ceil(n / columns) * batch
    depth = np.ceil(k / 8.0) * 8.0
    waves, fill = tail_fill(blocks, gpu.sm_count * resident)
    # in the last wave SMs with fewer blocks finish each of them sooner
    fill = np.maximum(fill, blocks / (np.ceil(blocks / gpu.sm_count) * gpu.sm_count))
    return _Candidate(
        flop=2.0 * blocks * rows * columns * (depth + _MULTIPLY_EDGE),
        shared=blocks * depth * size * rows * columns * (1.0 / 32.0 + 1.0 / 64.0),  # warp tiles of 64 by 32
        l2=blocks * (np.minimum(rows, m) + np.minimum(columns, n)) * depth * size,
        serial=np.zeros_like(blocks),
        blocks=blocks,
        waves=waves,
        fill=fill,
        launches=np.ones_like(blocks),
    )


def _best(candidates: list[_Candidate], costs: list[Floats]) -> tuple[_Candidate, npt.NDArray[np.intp]]:
    """The cheapest candidate of each row, and its index."""
    chosen = np.argmin(np.stack(costs), axis=0)
    picked = {name: np.stack([getattr(c, name) for c in candidates])[chosen, np.arange(len(chosen))]
              for name in _Candidate.__dataclass_fields__}  # fmt: skip
    return _Candidate(**picked), chosen.astype(np.intp)


_TILES = ((128.0, 128.0, 2.0), (128.0, 64.0, 4.0), (128.0, 32.0, 8.0), (64.0, 64.0, 8.0))
_GEMM_TILES = ((128.0, 128.0, 2.0), (128.0, 64.0, 4.0), (64.0, 64.0, 8.0), (32.0, 128.0, 4.0))


def _tiled(m: Floats, n: Floats, k: Floats, batch: Any, size: Floats, rate: Floats, gpu: Gpu, tiles: Any) -> _Candidate:
    zero = np.zeros_like(m)
    options = [_matrix_multiply(m, n, k, batch, size, tile, gpu) for tile in tiles]
    return _best(options, [option.seconds(rate, gpu, zero) for option in options])[0]


def _direct(shape: _Shape, tensor: npt.NDArray[np.bool_], rate: Floats, gpu: Gpu) -> _Candidate:
    # tensor cores read eight channels at a time, a first layer's three are padded to that
    channels = np.where(tensor, np.ceil(shape.channels / 8.0) * 8.0, shape.channels)
    options = _tiled(
        shape.pixels, shape.filters, channels * shape.taps, shape.groups, shape.in_bytes, rate, gpu, _TILES
    )
    # neighbouring pixels share taps: L1 keeps some of the window from being asked of L2 again (half, in logarithms)
    gathered = shape.pixels * shape.channels * shape.groups * shape.taps * shape.in_bytes
    halo = np.sqrt(np.minimum(1.0, shape.input_total / gathered))
    serial = _turned_bytes(shape, tensor)
    return replace(options, l2=options.l2 * halo, serial=serial, launches=np.where(serial > 0, 3.0, 1.0))


def _turned_bytes(shape: _Shape, tensor: npt.NDArray[np.bool_]) -> Floats:
    """Traffic of the transposes around kernels that want the channels of a pixel together. [B].

    Tensor cores read operands that way. Feature maps that lie channel by channel are turned before and after the
    kernel. A library that may try its kernels out finds those that do without: fp32 ones, first layers with their
    few channels, and filters of one tap, which multiply matrices as they lie if rows of pixels are whole vectors.
    """
    vector = 16.0 / shape.in_bytes
    one_tap = (shape.taps == 1) & (shape.stride == 1) & (shape.out_height * shape.out_width % vector == 0)
    as_it_lies = shape.autotuned & (one_tap | (shape.in_bytes >= 4) | (shape.channels < _FEW_CHANNELS))
    turns = tensor & ~shape.channels_last & ~as_it_lies
    return np.where(turns, 2.0 * (shape.input_total + shape.output_total), 0.0)


def _winograd4(shape: _Shape, rate: Floats, gpu: Gpu) -> _Candidate:
    # 6 x 6 inputs make 4 x 4 results with 36 multiplications; images come in sixteens
    squares = np.ceil(shape.out_height / 4.0) * np.ceil(shape.out_width / 4.0)
    tiles = np.ceil(shape.images / 16.0) * 16.0 * squares
    main = _tiled(tiles, shape.filters, shape.channels, 36.0, shape.in_bytes, rate, gpu, _GEMM_TILES)
    images = 36.0 * tiles * (shape.channels + shape.filters) * shape.in_bytes
    filters = (36.0 + shape.taps) * shape.channels * shape.filters * shape.in_bytes
    serial = images + filters + shape.input_total + shape.output_total
    return replace(main, serial=serial, launches=np.full_like(tiles, 4.0))


def _winograd2(shape: _Shape, gpu: Gpu) -> _Candidate:
    # a block makes 32 tiles of 2 x 2 results of 32 filters: 4 x 4 inputs, 16 multiplications each
    forms = _FUSED_TILES if gpu.architecture in _ALL_FUSED_TILES else _FUSED_TILES[:1]
    rows, columns = np.ceil(shape.out_height / 2.0), np.ceil(shape.out_width / 2.0)
    spatial = np.min(
        [np.ceil(shape.images / n) * np.ceil(rows / h) * np.ceil(columns / w) for n, h, w in forms], axis=0
    )
    blocks = spatial * np.ceil(shape.filters / 32.0)
    waves, fill = tail_fill(blocks, gpu.sm_count * 2.0)
    fill = np.maximum(fill, blocks / (np.ceil(blocks / gpu.sm_count) * gpu.sm_count))
    depth = np.ceil(shape.channels / 8.0) * 8.0
    filters = (16.0 + shape.taps) * shape.channels * shape.filters * shape.in_bytes
    return _Candidate(
        flop=2.0 * blocks * 32.0 * 32.0 * 16.0 * (depth + _WINOGRAD_EDGE),
        shared=blocks * depth * shape.in_bytes * 16.0 * 64.0 * 2.0,
        l2=blocks * depth * shape.in_bytes * (10.0 * 18.0 + 16.0 * 32.0),
        serial=filters,
        blocks=blocks,
        waves=waves,
        fill=fill,
        launches=np.full_like(blocks, 2.0),
    )


def _depthwise(shape: _Shape, gpu: Gpu) -> _Candidate:
    results = shape.pixels * shape.filters * shape.groups
    blocks = np.maximum(np.ceil(results / 256.0), 1.0)
    waves, fill = tail_fill(blocks, gpu.sm_count * 8.0)
    library = shape.half & np.isin(shape.taps, _LIBRARY_TAPS)
    steps = np.where(library, _LIBRARY_PER_TAP * shape.taps, _PER_RESULT + _PER_TAP * shape.taps)
    last = np.where(shape.taps > _LAST_TAPS, _WIDE_PER_TAP, _LAST_PER_TAP)
    steps = np.where(shape.channels_last, last * shape.taps, steps)
    loads = np.where(shape.channels_last, 0.25, 1.0)
    products = results * shape.channels * shape.taps
    return _Candidate(
        flop=2.0 * results * shape.channels * steps,
        shared=products * (shape.in_bytes + shape.weight_bytes) * loads,
        l2=shape.input_total * np.minimum(shape.taps, 2.0) + shape.output_total,
        serial=np.zeros_like(blocks),
        blocks=blocks,
        waves=waves,
        fill=np.maximum(fill, blocks / (np.ceil(blocks / gpu.sm_count) * gpu.sm_count)),
        launches=np.ones_like(blocks),
    )


def convolution_work(table: OpTable, gpu: Gpu, conditions: Conditions) -> KernelWork:
    """Work of two-dimensional convolutions by the algorithm that promises to be fastest.

    Formats with tensor cores use them, unless a group has few channels; fp32 uses CUDA cores and, for 3 x 3
    filters of stride 1, may use Winograd's algorithms [1]_.

    Parameters
    ----------
    table : OpTable
        Of kind ``conv2d``.
    gpu : Gpu
    conditions : Conditions

    Returns
    -------
    KernelWork
        Groups are ``algorithm/format``.

    References
    ----------
    .. [1] A. Lavin, S. Gray, Fast algorithms for convolutional neural networks, CVPR 2016.
    """
    n = len(table)
    shape = _shape(table)
    code = table["dtype"]
    math = MATH_OF[code]
    tensor_rates, cuda_rates = by_math(gpu.tensor_flop_per_clk), by_math(gpu.cuda_flop_per_clk)
    narrow = (shape.groups > 1) & (np.minimum(shape.channels, shape.filters) < _FEW_CHANNELS)
    tensor = (tensor_rates[math] > 0) & ~narrow & (code != dtype_code("fp32"))
    # 16-bit arithmetic without tensor cores, and all depthwise kernels, run on CUDA cores
    cuda_rate = np.where(cuda_rates[math] > 0, cuda_rates[math], vector_rate(gpu))
    integer_rate = min(vector_rate(gpu), 2.0 * _INTEGER_LANES * gpu.sm_count)
    cuda_rate = np.where(narrow, np.minimum(cuda_rate, integer_rate), cuda_rate)
    rate = np.where(tensor, rate_of(tensor_rates, math), cuda_rate)

    footprint = shape.input_total + shape.weights_total + shape.output_total
    misses = activation_misses(footprint, gpu, conditions)
    l2_size = gpu.l2_mib * 2.0**20
    cold = shape.weights_total if conditions.residency == "stream" else shape.weights_total * misses
    base = (shape.input_total + shape.output_total) * misses + cold

    candidates = [
        _direct(shape, tensor, rate, gpu), _winograd4(shape, rate, gpu), _winograd2(shape, gpu), _depthwise(shape, gpu),
    ]  # fmt: skip
    costs = [candidate.seconds(rate, gpu, base) for candidate in candidates]
    fits = (table["kernel_h"] == 3) & (table["kernel_w"] == 3) & (table["stride"] == 1) & (table["dilation"] == 1)
    fits &= (shape.groups == 1) & (code == dtype_code("fp32"))
    never = np.full(n, np.inf)
    costs[1] = np.where(fits, _WORKSPACE_PENALTY * costs[1], never)
    costs[2] = np.where(fits, costs[2], never)
    costs[3] = np.where(narrow, costs[3], never)
    costs[0] = np.where(narrow, never, costs[0])
    best, chosen = _best(candidates, costs)
    ranked = np.partition(np.stack(costs), 1, axis=0)

    # filters' tiles walk over the input again; what L2 can't hold of a wave's share comes from DRAM again
    again = np.where(chosen <= 2, np.maximum(np.ceil(shape.filters / 128.0) - 1.0, 0.0), 0.0)
    thrash = again * shape.input_total * (1.0 - resident_share(shape.input_total / shape.images, l2_size))
    between = activation_misses(best.serial, gpu, conditions)  # transforms hand over through L2 where they fit
    serial_dram = best.serial * between
    matrix = tensor & (chosen == 0)
    # transposes stream: they take as long as DRAM or L2 does, not both; Winograd's gather tiles
    serial_l2 = best.serial * np.where(matrix, 1.0 - between, 1.0)
    chosen = np.where((chosen == 3) & shape.channels_last, np.where(shape.taps > _LAST_TAPS, 6, 4), chosen)
    chosen = np.where((chosen == 0) & (shape.groups > 1), 5, chosen)
    groups, group = group_labels(
        chosen * len(DTYPES) + code, [f"{name}/{dtype.name}" for name in ALGORITHMS for dtype in DTYPES]
    )
    useful = shape.useful_flop
    missing = {} if max(cuda_rates.max(), tensor_rates.max()) > 0 else {
        int(row): f"{gpu.name} states no arithmetic rates" for row in range(n)
    }  # fmt: skip
    return work(
        "conv2d",
        n,
        zero_share=table["zero_share"] if "zero_share" in table.columns else 0.0,
        groups=groups,
        group=group,
        tensor_flop=np.where(matrix, best.flop, 0.0),
        cuda_flop=np.where(matrix, 0.0, best.flop),
        tensor_flop_per_clk=np.where(matrix, rate, 1.0),
        cuda_flop_per_clk=np.where(matrix, 1.0, rate),
        shared_bytes=best.shared,
        l2_bytes=best.l2 + serial_l2,
        dram_bytes=base + thrash + serial_dram,
        serial_l2_bytes=serial_l2,
        serial_dram_bytes=serial_dram,
        fill=best.fill,
        blocks=best.blocks,
        waves=best.waves,
        launches=best.launches,
        useful_flop=useful,
        math=np.where(matrix, math, np.where(code == dtype_code("fp32"), FP32, math)),
        features={
            "log_padding": log_ratio(best.flop, useful),
            "log_waves": np.log1p(best.waves),
            "log_channels": np.log(shape.channels) / 8.0,
            "log_filters": np.log(shape.filters) / 8.0,
            "log_pixels": np.log(shape.pixels) / 16.0,
            "dram_share": misses,
            "runner_up": np.minimum(ranked[1] / ranked[0], 4.0),
        },
        reasons=missing,
    )


FAMILY = Family("conv2d", ("conv2d",), convolution_work)
