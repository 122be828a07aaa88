"""The learned correction of times: a small network on ratios, which fades away from the data it was trained on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from joulecast.coefficients.corrections import CorrectionModel
from joulecast.coefficients.likeness import correction_share, far_apart, gpus_apart, influence, kernel_distance
from joulecast.coefficients.versions import stood_in
from joulecast.errors import UnknownNameError
from joulecast.gpus import Gpu, load_gpu
from joulecast.kernels.work import KernelWork
from joulecast.physics.timing import CORE_MODULES, ModuleTimes, dram_rate_gb_s, duration_s

Floats = npt.NDArray[np.float64]
Singles = npt.NDArray[np.float32]

#: Features that every family has: shares of the modules in the time at the rate clock (logarithms, a thousandth
#: at least), then how the launch fills the GPU, then the GPU's own ratios.
GENERIC_FEATURES = (
    *(f"share of {module}" for module in CORE_MODULES),
    "share of all core modules", "share of DRAM", "share of links", "share of launches", "share of small kernels",
    "log fill", "log waves", "log blocks over SMs", "log useful share", "log DRAM bytes over L2", "log launches",
    "log ridge", "log L2 rate over DRAM rate",
)  # fmt: skip

#: Features that only tell how unlike the training data a GPU is. The network does not see them: they would let it
#: know one GPU from another instead of learning what GPUs share.
DISTANCE_FEATURES = ("log ridge", "log L2 rate over DRAM rate")

#: Rows taken through the network at a time: its layers then stay in the CPU's cache.
_CHUNK = 2048


def correction_factor(
    model: CorrectionModel, work: KernelWork, times: ModuleTimes, gpu: Gpu, *,
    engine: str | Sequence[str] = "", exclude: tuple[str, ...] = (), features: Singles | None = None,
) -> tuple[Floats, Floats]:  # fmt: skip
    """Factor on the time of each row (or the power, whatever the model learned), and how far the row is from the data.

    Parameters
    ----------
    model : CorrectionModel
    work : KernelWork
    times : ModuleTimes
        Of the same rows, uncorrected.
    gpu : Gpu
    engine : str or sequence of str
        Engine whose own outputs are used on a GPU that was measured; one for each group where they differ.
    exclude : tuple of str
        GPUs whose own outputs may not be used.
    features : ndarray, optional
        What `correction_features` says of the same rows, where it was asked already.

    Returns
    -------
    factor : ndarray, shape (n,)
        1 far from the data.
    distance : ndarray, shape (n,)
        0 inside the range of the training data in every feature; grows with the standard deviations beyond it.
    """
    if features is None:
        features = correction_features(work, times, gpu)
    names = feature_names(work)
    n = len(work)
    log_factor, distance = np.empty(n, dtype=np.float32), np.empty(n, dtype=np.float32)
    for code, group in enumerate(work.groups):
        part = model.parts.get(group, model)
        own_engine = engine if isinstance(engine, str) else engine[code]
        head, share = output_head(part, group, gpu, own_engine, exclude)
        if len(work.groups) == 1:
            log_factor, distance = _network(part, aligned(features, names, part.feature_names), head)
            log_factor *= share
        else:
            rows = np.flatnonzero(work.group == code)
            found = _network(part, aligned(features[rows], names, part.feature_names), head)
            log_factor[rows], distance[rows] = found[0] * share, found[1]
    fade = np.exp(-np.square(distance) * np.float32(np.log(2.0)))
    factor = np.exp(np.clip(log_factor, -3.0, 3.0) * fade)
    return factor.astype(np.float64), distance.astype(np.float64)


def _network(model: CorrectionModel, features: Singles, head: Singles) -> tuple[Singles, Singles]:
    """Logarithm of the factor before it fades, and the distance."""
    log_factor, distance = np.empty(len(features), dtype=np.float32), np.empty(len(features), dtype=np.float32)
    for start in range(0, len(features), _CHUNK):
        rows = slice(start, start + _CHUNK)
        inside, distance[rows] = standardised(model, features[rows])
        # Not a matrix product: its rounding would depend on the rows beside.
        log_factor[rows] = np.einsum("ij,j->i", hidden_layers(model, inside), head[:-1]) + head[-1]
    return log_factor, distance


def correction_features(work: KernelWork, times: ModuleTimes, gpu: Gpu) -> Singles:
    """What the correction sees of each row: `GENERIC_FEATURES`, then the family's own. Dimensionless, (n, f)."""
    n = len(work)
    hertz = gpu.rate_clock_mhz * 1e6
    total = np.maximum(duration_s(replace(times, scale=np.ones(n)), gpu, gpu.rate_clock_mhz), 1e-12)
    dram = dram_rate_gb_s(times.dram_rate_gb_s, gpu.rate_clock_mhz, gpu) * 1e9
    shares = np.empty((len(CORE_MODULES) + 5, n), dtype=np.float32)
    in_cycles = 1.0 / (total * hertz)
    shares[:5] = times.core_cycles * in_cycles
    shares[5] = times.core_total_cycles * in_cycles
    shares[6] = times.dram_bytes / (dram * total)
    shares[7] = times.link_s / total
    shares[8] = times.fixed_s / total + times.fixed_cycles * in_cycles
    shares[9] = times.serial_cycles * in_cycles + times.serial_dram_bytes / (dram * total)
    ratios = np.empty((8, n), dtype=np.float32)
    ratios[0] = work.fill
    ratios[1] = np.minimum(work.waves, 1e30)
    ratios[2] = np.minimum(work.blocks, 1e30) / gpu.sm_count
    asked = work.tensor_flop + work.cuda_flop
    ratios[3] = np.where(asked > 0, np.maximum(work.useful_flop, 1e-3 * asked) / np.where(asked > 0, asked, 1.0), 1.0)
    ratios[4] = np.clip(work.dram_bytes / (gpu.l2_mib * 2.0**20), 2.0**-16, 1e30)
    ratios[5] = work.launches
    peak = np.maximum(np.where(work.tensor_flop > 0, work.tensor_flop_per_clk, work.cuda_flop_per_clk), 1.0)
    ratios[6] = peak * (gpu.rate_clock_mhz * 1e-3 / gpu.dram_gb_s)
    ratios[7] = gpu.l2_gb_s / gpu.dram_gb_s
    out = np.empty((n, len(GENERIC_FEATURES) + work.features.shape[1]), dtype=np.float32, order="F")
    out[:, :10] = np.log(shares + np.float32(1e-3)).T
    out[:, 10:18] = np.log2(np.maximum(ratios, np.float32(2.0**-20))).T
    out[:, 18:] = work.features
    return out


def feature_names(work: KernelWork) -> tuple[str, ...]:
    """Names of the columns of `correction_features`."""
    return (*GENERIC_FEATURES, *work.feature_names)


def aligned(features: Singles, names: tuple[str, ...], wanted: tuple[str, ...]) -> Singles:
    """Columns of `features`, called `names`, in the order `wanted`; 0 where there is none of that name."""
    if names == wanted:
        return features
    out = np.zeros((len(features), len(wanted)), dtype=np.float32, order="F")
    place = {name: column for column, name in enumerate(names)}
    for column, name in enumerate(wanted):
        if name in place:
            out[:, column] = features[:, place[name]]
    return out


def in_deviations(features: Singles, mean: Singles, scale: Singles) -> Singles:
    """Features as standard deviations from their mean. One arithmetic for training and use: their ranges then agree."""
    z = features - mean
    z *= np.float32(1.0) / scale
    return z


def standardised(model: CorrectionModel, features: Singles) -> tuple[Singles, Singles]:
    """Features in standard deviations, kept within the range of the training data; and the distance beyond it."""
    z = in_deviations(features, model.mean, model.scale)
    beyond = np.zeros(len(z), dtype=np.float32)
    # most columns lie inside for all rows at once, and those need no arithmetic
    for column in np.flatnonzero(
        (z.min(axis=0, initial=np.inf) < model.low) | (z.max(axis=0, initial=-np.inf) > model.high)
    ):
        one = z[:, column]
        inside = np.minimum(np.maximum(one, model.low[column]), model.high[column])
        beyond += np.square(one - inside)
        z[:, column] = inside
    return z, np.sqrt(beyond)


def hidden_layers(model: CorrectionModel, inside: Singles) -> Singles:
    """All hidden layers side by side, shape (n, h), of standardised features."""
    out = np.empty((len(inside), sum(len(bias) for bias in model.biases)), dtype=np.float32)
    before, start = inside, 0
    for weight, bias in zip(model.weights, model.biases, strict=True):
        layer = before @ weight
        layer += bias
        before = np.maximum(layer, 0.0, out=out[:, start : start + len(bias)])
        start += len(bias)
    return out


def output_head(
    model: CorrectionModel, group: str, gpu: Gpu, engine: str, exclude: tuple[str, ...] = ()
) -> tuple[Singles, np.float32]:
    """Output weights and bias of a group on `gpu`, shape (h + 1,), and the share of the correction that holds.

    What was not measured takes the outputs of its relatives, nearer ones counting more, and less of the correction
    the more unlike they are.
    """
    name = gpu.plain_name
    own = None if name in exclude else model.own.get(f"{name}/{engine}/{group}")
    if own is not None:
        return model.head + own, np.float32(1.0)
    share, weights = _of_relatives(model.family, tuple(model.own), gpu, engine, group, exclude)
    head = model.head
    for key, weight in weights:
        head = head + np.float32(weight) * model.own[key]
    return head, np.float32(share)


@lru_cache(maxsize=4096)
def _of_relatives(
    family: str, keys: tuple[str, ...], gpu: Gpu, engine: str, group: str, exclude: tuple[str, ...]
) -> tuple[float, tuple[tuple[str, float], ...]]:
    """The share of a correction that holds for what is not among `keys`, and the weights of those that are.

    All of it, from the shared output alone, where nothing is known of any relative.
    """
    found = []
    apart: dict[str, tuple[float, float] | None] = {}
    by_gpu: dict[str, set[str]] = defaultdict(set)
    for key in keys:
        by_gpu[key.split("/", 1)[0]].add(f"{family}/{key.split('/', 1)[1]}")
    for key in keys:
        name, its_engine, its_group = key.split("/", 2)
        if name in exclude or ("@" in its_engine) != ("@" in engine):  # other operands: see `physics.power.engine_with`
            continue
        if its_engine != engine and stood_in(f"{family}/{its_engine}/{its_group}", by_gpu[name]):
            continue
        if name not in apart:
            try:
                apart[name] = gpus_apart(family, gpu, load_gpu(name))
            except UnknownNameError:  # a user's own GPU, another one than this
                continue
        found.append((far_apart(kernel_distance((engine, group), (its_engine, its_group)), apart[name]), key))
    if not found:
        return 1.0, ()
    weights = [influence(unlike) for unlike, _ in found]
    total = sum(weights)
    return correction_share(min(found)[0]), tuple(
        (key, one / total) for one, (_, key) in zip(weights, found, strict=True) if one > 1e-3 * total
    )
