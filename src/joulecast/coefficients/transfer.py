"""Coefficients for any GPU: its own where fitted, else those of its nearest relative, labelled so."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from joulecast.coefficients import corrections, store
from joulecast.coefficients.energies import (
    as_changed,
    common_power,
    default_power,
    log_mean,
    mean_by_math,
    rescaled,
    static_parts_w,
)
from joulecast.coefficients.intervals import UNLIKE_KNOTS, load_intervals
from joulecast.coefficients.likeness import (
    correction_share,
    distance,
    far_apart,
    gpus_apart,
    influence,
    kernel_distance,
)
from joulecast.coefficients.roots import kept
from joulecast.coefficients.schema import (
    TIME_PARAMETERS,
    GpuCoefficients,
    HostCoefficients,
    PowerCoefficients,
    TimeCoefficients,
)
from joulecast.coefficients.versions import stood_in
from joulecast.errors import UnknownNameError
from joulecast.gpus import Gpu, load_gpu
from joulecast.gpus.state import rated

Floats = npt.NDArray[np.float64]


@kept(4096)
def relatives(gpu: Gpu, exclude: tuple[str, ...] = ()) -> tuple[tuple[float, Gpu, GpuCoefficients], ...]:
    """Calibrated GPUs, nearest first, with their distance; the GPU itself (what-if changes aside) is at 0."""
    found = []
    gpu = rated(gpu)
    for name in store.known():
        coefficients = store.load(name)
        if name in exclude or coefficients is None:
            continue
        itself = name == gpu.plain_name
        try:
            other = gpu if itself else load_gpu(name)
        except UnknownNameError:  # of a user's own GPU, another one than this
            continue
        found.append((0.0 if itself else distance(gpu, other) + 1e-3, other, coefficients))
    return tuple(sorted(found, key=lambda item: item[0]))


#: Distance within which GPUs are boards or bins of one chip: some SMs, clocks and stacks of memory apart.
SIBLING = 0.1


@kept(4096)
def measured_on_chip(gpu: Gpu, *, exclude: tuple[str, ...] = ()) -> frozenset[str]:
    """Kernels (``family/engine/group``) that were measured on `gpu` or on another GPU of its chip."""
    return frozenset(
        key for far, _, coefficients in relatives(gpu, exclude) if far < SIBLING for key in coefficients.time
    )


@kept(4096)
def as_measured(gpu: Gpu, exclude: tuple[str, ...] = ()) -> Gpu:
    """`gpu` with special functions as fast as on the GPU of its chip that was measured; itself where none was.

    What is learned of the chip's kernels knows no other share of them: asked for one, it would make a GPU slower that
    has more of them (B300 beside B200).
    """
    plain = measured_sibling(gpu, exclude)
    if plain is None or plain.sfu_per_clk_sm == gpu.sfu_per_clk_sm:
        return gpu
    return replace(gpu, sfu_per_clk_sm=plain.sfu_per_clk_sm)


@kept(4096)
def measured_sibling(gpu: Gpu, exclude: tuple[str, ...] = ()) -> Gpu | None:
    """The nearest measured GPU of the chip of `gpu`, the plain one of what-if changes; None where there is none."""
    found = relatives(gpu, exclude)
    if not found or found[0][0] >= SIBLING:
        return None
    try:
        return load_gpu(found[0][1].plain_name)
    except UnknownNameError:  # a user's own GPU
        return None


@kept(4096)
def time_coefficients(
    gpu: Gpu, family: str, engine: str, group: str, *, exclude: tuple[str, ...] = ()
) -> TimeCoefficients:
    """Efficiencies of one family, engine and group on `gpu`.

    Its own where they were fitted. Else those of all that are fitted for the family, blended (`blended`) by how
    unlike they are (`joulecast.coefficients.likeness.unlikeness`); the defaults where there are none.

    Parameters
    ----------
    gpu : Gpu
    family, engine, group : str
    exclude : tuple of str
        GPUs whose coefficients may not be used (to score a GPU as if it were unmeasured).

    Returns
    -------
    TimeCoefficients
        ``provenance`` is ``fitted`` only for the GPU's own of the same engine and group.
    """
    found = nearest(gpu, family, engine, group, exclude=exclude)
    if found is None:
        return TimeCoefficients()
    if found.unlike == 0:
        return found.fitted
    itself = found.gpu == gpu.plain_name
    moved = load_intervals().moved(family, found.unlike, itself)
    half_width = math.hypot(found.fitted.spread90, moved)
    return replace(
        found.fitted,
        provenance="transferred",
        source=f"from {found.key} of {found.gpu}",
        error=found.fitted.error + 0.4 * (half_width - found.fitted.spread90),
        spread90=half_width,
        moved90=moved,
    )


@dataclass(frozen=True)
class Donor:
    """Coefficients to use where a GPU has none of its own.

    `unlike`, `key` and `gpu` tell of the nearest relative; `fitted` are its coefficients, blended with those of others
    unless they are the very ones asked for.
    """

    unlike: float
    key: str
    gpu: str
    fitted: TimeCoefficients


def nearest(
    gpu: Gpu, family: str, engine: str, group: str, *, exclude: tuple[str, ...] = (), own: bool = True
) -> Donor | None:
    """Coefficients of a family for `gpu` from those least unlike what is asked for; None where it has none.

    Parameters
    ----------
    gpu : Gpu
    family, engine, group : str
    exclude : tuple of str
        GPUs whose coefficients may not be used.
    own : bool
        Whether the very coefficients asked for may be used, where `gpu` has them.
    """
    choices = []
    gpu = rated(gpu)
    for _, other, coefficients in relatives(gpu, exclude):
        gpus = gpus_apart(family, gpu, other)
        for key, its_engine, its_group, fitted in coefficients.by_family.get(family, ()):
            if its_engine == engine or not stood_in(key, coefficients.time):
                unlike = far_apart(kernel_distance((engine, group), (its_engine, its_group)), gpus)
                if own or unlike > 0:
                    choices.append((unlike, key, other.name, fitted, other))
    if not choices:
        return None
    choices.sort(key=lambda choice: choice[:3])
    unlike, key, name, *_ = choices[0]
    near = [
        (far, _clocked(fitted, family, other, gpu)) for far, _, _, fitted, other in choices if far <= unlike + _REACH
    ]
    return Donor(unlike, key, name, blended(near))


#: Families whose launches last as long as their blocks take to start and end: in core cycles GPUs agree, in seconds
#: they don't. Others, such as decoding, wait for memory and links, whatever the core's clock.
_IN_CYCLES = frozenset({"gemm", "batched_gemm", "context_attention", "encoder_attention"})


def _clocked(fitted: TimeCoefficients, family: str, other: Gpu, gpu: Gpu) -> TimeCoefficients:
    """Coefficients of `other` with its launches as long as they are at the clock of `gpu`."""
    if family not in _IN_CYCLES or other.clock_max_mhz == gpu.clock_max_mhz:
        return fitted
    return replace(fitted, fixed_us=fitted.fixed_us * other.clock_max_mhz / gpu.clock_max_mhz)


#: Coefficients that are so much more unlike than the nearest say nothing more.
_REACH = 0.7


def blended(choices: Sequence[tuple[float, TimeCoefficients]]) -> TimeCoefficients:
    """Coefficients between those of several relatives: numbers are averaged as logarithms, nearer ones count more.

    Single fits leave open how a time divides among modules that take alike; what several agree on transfers best.

    Parameters
    ----------
    choices : sequence of (float, TimeCoefficients)
        How unlike each is, and what it is; nearest first. All but the fitted numbers come from the nearest, which is
        returned as it is where it is the very one asked for, or was only scaled and not fitted.
    """
    unlike, nearest_one = choices[0]
    if unlike > 0 and nearest_one.message_factors:
        held = correction_share(unlike)
        waned = {size: factor**held for size, factor in nearest_one.message_factors.items()}
        nearest_one = replace(nearest_one, message_factors=waned)
    if unlike == 0 or nearest_one.scale != 1:
        return nearest_one
    near = [(far, one) for far, one in choices if far <= unlike + _REACH and one.scale == 1]
    if len(near) == 1:
        return nearest_one
    weights = np.array([influence(far) for far, _ in near])
    numbers = np.log([[getattr(one, name) for name in TIME_PARAMETERS] for _, one in near])
    mean = np.exp(weights @ numbers / weights.sum())
    return replace(nearest_one, **dict(zip(TIME_PARAMETERS, mean.tolist(), strict=True)))


def interpolated(x: float, knots: tuple[float, ...], values: tuple[float, ...]) -> float:
    """Value at `x` of a curve through `values` at `knots`, straight between them and level outside."""
    return float(np.interp(x, knots, values))


#: Rows of a fit of energies that halve its weight: some passes of models leave open what takes their power.
_ROWS_OF_HALF_TRUST = 100.0

#: Share of the weight below which a relative is not named.
_NAMED = 0.1


#: Where energies come from that no one GPU gave.
COMMON_SOURCE = "what passes on all measured GPUs have in common"


@kept(4096)
def power_coefficients(gpu: Gpu, *, exclude: tuple[str, ...] = ()) -> PowerCoefficients:
    """Energies of `gpu`: its own where fitted, else those of its relatives, rescaled and blended.

    Core energies go with the process node and the voltage that rates are stated at, DRAM's with the type of memory,
    static power with what is said of idle power, and the power of active SMs with their number and clock: a limit of
    the board lowers the clock, not what an SM takes. Numbers are averaged as logarithms; nearer relatives count more,
    and fits on many rows. A GPU of another chip whose nearest relative knows whole passes alone takes what all such
    GPUs have in common (`joulecast.coefficients.energies.COMMON`): one of them leaves open what takes its power.

    Parameters
    ----------
    gpu : Gpu
    exclude : tuple of str
        GPUs whose coefficients may not be used.

    Returns
    -------
    PowerCoefficients
        ``learned_share``, voltages and errors are those of the nearest relative; ``model_factor`` as `_model_factor`.
    """
    donors = [(far, other, c.power) for far, other, c in relatives(gpu, exclude) if c.power is not None]
    if not donors:
        return default_power(gpu)
    far, _, donor = donors[0]
    if far == 0.0:
        own = as_changed(donor, gpu)
        factor = _model_factor(gpu, exclude, np.ones(1), [own])
        return own if factor == own.model_factor else replace(own, model_factor=factor)
    added = interpolated(far, UNLIKE_KNOTS, load_intervals().power_transfer)
    half_width = math.hypot(donor.spread90, added)
    if far >= SIBLING and donor.learned_share == 0.0:
        return replace(
            common_power(gpu), provenance="transferred", source=COMMON_SOURCE, limit_share=donor.limit_share,
            error=donor.error + 0.4 * (half_width - donor.spread90), spread90=half_width,
        )  # fmt: skip
    found = [rescaled(power, other, gpu) for _, other, power in donors]
    trust = [max(power.rows, 1) / (max(power.rows, 1) + _ROWS_OF_HALF_TRUST) for _, _, power in donors]
    weights = np.array([influence(away) for away, _, _ in donors]) * trust
    weights = weights / weights.sum()
    names = [other.name for weight, (_, other, _) in zip(weights, donors, strict=True) if weight >= _NAMED]
    idle_w, clocked_w = static_parts_w(gpu)
    return replace(
        found[0],
        idle_w=idle_w,
        clocked_w=clocked_w,
        active_w=log_mean(weights, [one.active_w for one in found]),
        tensor_pj=mean_by_math(weights, [one.tensor_pj for one in found], default_power(gpu).tensor_pj),
        cuda_pj=mean_by_math(weights, [one.cuda_pj for one in found], default_power(gpu).cuda_pj),
        sfu_pj=log_mean(weights, [one.sfu_pj for one in found]),
        shared_pj=log_mean(weights, [one.shared_pj for one in found]),
        l2_pj=log_mean(weights, [one.l2_pj for one in found]),
        dram_pj=log_mean(weights, [one.dram_pj for one in found]),
        model_factor=_model_factor(gpu, exclude, weights, found),
        provenance="transferred",
        source=f"rescaled from {', '.join(names)}",
        error=donor.error + 0.4 * (half_width - donor.spread90),
        spread90=half_width,
        family_spread90={key: math.hypot(one, added) for key, one in donor.family_spread90.items()},
    )


def _model_factor(gpu: Gpu, exclude: tuple[str, ...], weights: Floats, energies: Sequence[PowerCoefficients]) -> float:
    """What whole models take on `gpu` over what its energies say of their kernels. Dimensionless.

    As measured on the GPU itself. Else as measured on others, nearer ones counting more, for the part of its energies
    that was fitted on benchmarks of kernels: those fitted on whole passes hold it already.
    """
    measured = [(far, c.model_energy) for far, _, c in relatives(gpu, exclude) if c.model_energy is not None]
    if not measured:
        return 1.0
    if measured[0][0] == 0.0:
        return measured[0][1].factor
    near = np.array([influence(far) for far, _ in measured])
    common = np.log(log_mean(near / near.sum(), [one.factor for _, one in measured]))
    of_kernels = np.array([power.learned_share for power in energies])
    return float(np.exp(common * (weights @ of_kernels)))


@kept(4096)
def host_coefficients(gpu: Gpu) -> HostCoefficients:
    """Cost of a launch on the host that `gpu` was measured in, else on those of near relatives, else the defaults.

    GPUs of one generation sit in hosts of one age; beyond that a host says nothing of another. One machine is no rule:
    of several the geometric mean is taken.
    """
    near: dict[str, HostCoefficients] = {}
    for far, other, coefficients in relatives(gpu):
        if coefficients.host is None or far >= 1.0:
            continue
        if far == 0.0:
            return coefficients.host
        near[other.name] = coefficients.host
    if not near:
        return HostCoefficients()

    def mean(name: str) -> float:
        costs = np.array([getattr(one, name) for one in near.values()])
        return float(costs[0] if len(costs) == 1 else np.exp(np.mean(np.log(np.maximum(costs, 1e-3)))))

    return replace(
        next(iter(near.values())),
        eager_us=mean("eager_us"),
        compiled_us=mean("compiled_us"),
        cuda_graph_us=mean("cuda_graph_us"),
        module_us=mean("module_us"),
        provenance="transferred",
        source=f"host{'s' if len(near) > 1 else ''} of {', '.join(near)}",
    )


def forget() -> None:
    """Drop what was looked up, after coefficient files changed on disk."""
    store.load.cache_clear()
    store.own_file.cache_clear()
    corrections.forget()
    load_intervals.cache_clear()
    for cached in (
        relatives,
        measured_on_chip,
        as_measured,
        measured_sibling,
        time_coefficients,
        power_coefficients,
        host_coefficients,
    ):
        cached.cache_clear()
